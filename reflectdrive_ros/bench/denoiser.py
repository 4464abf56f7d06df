"""Measurements of denoisers, for `bench planner`, `bench parity` and the accuracy gate: times with their bound, equal
plans and scores.

A plan is one encoded scene and EVALUATIONS evaluations of the sampler. Batch 1 is the prediction with all conditions;
batch 2, which guidance needs, also the prediction without. In every round the backend and eager torch run in turn, so
that short slowdowns of the machine affect both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..core.domain import Array
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..evaluation import driving_scores, open_loop, privilege
from ..evaluation.driving_scores import MEASURES
from ..features.vectors import VectorInputs, vector_inputs
from ..infra.command import make_table
from ..infra.progress import track_progress
from ..model.denoiser.net import DenoiserNet, base_config, small_config
from ..model.token.torch_bench import measure_peaks
from ..planning import get_planner
from ..planning.denoiser import START_SCALE, Denoiser, in_metres, present_states, sample
from ..planning.planner import PlannerContext, PlanningError
from ..runtime.network import SELF_CHECK_STEPS, synthetic_vectors
from ..runtime.torch_denoiser import TorchDenoiser
from .roofline import bound_ms, denoiser_costs

CONFIGS = {"small": small_config, "base": base_config}
EVALUATIONS = SELF_CHECK_STEPS + 1  # of the published sampler
BATCHES = (1, 2)
PARTS = ("encode", "denoise", "plan")
WARM_UP = 5
PRIVILEGE = "objects"  # as the default of `reflectdrive eval`


# --- times -----------------------------------------------------------------------------------------------------------


def figures(
    network: Denoiser, net: DenoiserNet, device: str | None, threads: int, steps: int, console: Console
) -> dict[str, Any]:
    """Milliseconds of each part by batch, beside those of eager torch, and their bounds.

    device: on which both run, None: they run on two, so that there is no bound.
    """
    bytes_per_s, flop_per_s = measure_peaks(device or "cpu", threads)  # it also sets torch's threads
    eager = TorchDenoiser(net, device or "cpu", network.capabilities)
    batches = BATCHES if "guidance" in network.capabilities else BATCHES[:1]
    spent_ms = _time_steps({"": network, "eager_": eager}, batches, steps, console)
    numbers: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "evaluations": EVALUATIONS,
        "copy_gb_per_s": bytes_per_s / 1e9 if device else None,
        "matmul_gflop_per_s": flop_per_s / 1e9 if device else None,
    }
    for part in PARTS:
        for owner in ("", "eager_"):
            rows = {str(batch): spent_ms[f"{owner}{part} {batch}"] for batch in batches}
            for share in (50, 99):
                name = f"{owner}{part}_ms_p{share}"
                numbers[name] = {batch: float(np.percentile(row, share)) for batch, row in rows.items()}
    bounds = {batch: denoiser_costs(net.config, batch) for batch in batches}
    for name, counts in (("encode", (1, 0)), ("denoise", (0, 1)), ("plan", (1, EVALUATIONS))):
        numbers[f"roofline_{name}_ms"] = (
            None
            if device is None
            else {
                str(batch): sum(
                    count * bound_ms(costs[part], bytes_per_s, flop_per_s)
                    for part, count in zip(("encode", "denoise"), counts, strict=True)
                )
                for batch, costs in bounds.items()
            }
        )
    return numbers


def _time_steps(
    networks: Mapping[str, Denoiser], batches: Iterable[int], steps: int, console: Console
) -> dict[str, list[float]]:
    """Milliseconds of every run of each part, by "owner part batch"."""
    actions: dict[str, Callable[[], object]] = {}
    for owner, network in networks.items():
        inputs = synthetic_vectors(network.spec)
        for batch in batches:
            actions |= {f"{owner}{part} {batch}": run for part, run in _parts(network, inputs, batch == 2).items()}
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for turn in track_progress(range(-WARM_UP, steps), "planning", console):
        for name, action in actions.items():
            begun = time.perf_counter_ns()
            action()
            if turn >= 0:
                spent[name].append(1e-6 * (time.perf_counter_ns() - begun))
    return spent


def _parts(network: Denoiser, inputs: VectorInputs, guided: bool) -> dict[str, Callable[[], object]]:
    """The parts of a plan; `denoise` is on the scene of the last `encode`, because engines hold one scene."""
    futures = np.zeros((network.spec.futures, 1 + network.spec.future_steps, 4))
    context: list[Any] = [None]

    def encode() -> None:
        context[0] = network.encode(inputs, guided)

    return {
        "encode": encode,
        "denoise": lambda: network.denoise(context[0], futures, 0.5),
        "plan": lambda: sampled_m(network, inputs, futures, guided),
    }


def sampled_m(network: Denoiser, inputs: VectorInputs, start: Array, guided: bool) -> Array:
    """Futures (P, 1 + T, 4) in metres, sampled from a start; `guided`: by the mean of both predictions."""
    context = network.encode(inputs, guided)
    present = present_states(inputs, network.spec)
    clean = sample(lambda x, at: network.denoise(context, x, at).mean(axis=0), start, present, SELF_CHECK_STEPS)
    return in_metres(clean, network.spec)


def tables(numbers: Mapping[str, Any]) -> list[Table]:
    """Of `figures` with the entries of `bench planner`."""

    def cell(name: str, batch: str) -> str:
        return "" if numbers[name] is None else f"{numbers[name][batch]:.2f}"

    rows = []
    for part in PARTS:
        names = [f"{part}_ms_p50", f"{part}_ms_p99", f"roofline_{part}_ms", f"eager_{part}_ms_p50"]
        shown = f"{part}, {numbers['evaluations']} evaluations" if part == "plan" else part
        rows += [(shown, batch, *(cell(name, batch) for name in names)) for batch in numbers["plan_ms_p50"]]
    title = (
        f"{numbers['config']}, {numbers['parameters'] / 1e6:.1f} M parameters, {numbers['backend_description']}; "
        f"{numbers['steps']} steps"
    )
    return [make_table(("part", "batch", "ms p50", "p99", "bound ms", "eager ms"), rows, title, texts=2)]


# --- plans -----------------------------------------------------------------------------------------------------------


def compare(network: Denoiser, reference: Denoiser, scenes: Iterable[DrivingScene]) -> dict[str, Any]:
    """Distances in metres between the futures that both sample from the same noise. Raises SetError without scenes."""
    spec, noise = network.spec, np.random.default_rng(0)
    ego_m, all_m = list[float](), list[float]()
    for scene in scenes:
        inputs = vector_inputs(privilege.observe(scene, PRIVILEGE, with_drivable=False, with_vectors=True), spec)
        start = START_SCALE * noise.standard_normal((spec.futures, 1 + spec.future_steps, 4))
        apart = []
        for guided in (False, True) if "guidance" in network.capabilities else (False,):
            mine, theirs = (sampled_m(each, inputs, start, guided) for each in (network, reference))
            apart.append(np.hypot(*np.moveaxis((mine - theirs)[..., :2], -1, 0)).max(axis=1))  # (P,)
        ego_m.append(float(max(each[0] for each in apart)))
        all_m.append(float(max(each.max() for each in apart)))
    if not ego_m:
        raise SetError("the set holds no scene to compare on")
    return {
        "scenes": len(ego_m),
        "ego_difference_m_p50": float(np.median(ego_m)),
        "ego_difference_m_max": max(ego_m),
        "difference_m_max": max(all_m),
    }


def compare_scores(
    network: Denoiser, reference: Denoiser, scenes: Iterable[DrivingScene], config: Config
) -> dict[str, Any]:
    """PDMS of the planner's plans with each network, from its initial state, on the same scenes, and the distances in
    metres between both plans. A scene without a plan scores 0. Raises SetError without scenes.
    """
    planner, failures = get_planner(config), list[str]()
    scores, apart_m = list[list[float]](), list[float]()
    for scene in scenes:
        seen = privilege.observe(scene, PRIVILEGE, with_vectors=True)
        plans = {}
        for name, each in (("own", network), ("reference", reference)):
            try:
                plan = driving_scores.plan_once(planner, seen, PlannerContext(config, each))
                plans[name] = driving_scores.plan_waypoints(plan)[0]
            except PlanningError as fault:
                failures.append(str(fault))
        rows = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), plans, config.scoring)
        pdms = MEASURES.index("pdms")
        scores.append([rows[name][pdms] if name in rows else 0.0 for name in ("own", "reference")])
        if len(plans) == 2:
            apart_m.append(float(np.hypot(*(plans["own"] - plans["reference"])[:, :2].T).max()))
    if not scores:
        raise SetError("the set holds no scene to compare on")
    found = np.array(scores)  # (N, 2)
    difference = found[:, 0] - found[:, 1]
    return {
        "scenes": len(found),
        "failures": failures,
        "pdms": round(100.0 * float(found[:, 0].mean()), 3),
        "pdms_reference": round(100.0 * float(found[:, 1].mean()), 3),
        "pdms_difference_95": open_loop.bootstrap_interval(difference),
        **{f"difference_m_p{share}": round(float(np.percentile(apart_m or [0.0], share)), 4) for share in (50, 99)},
    }


def show_comparison(numbers: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{numbers['backend_description']}, {numbers['precision']}, beside eager torch, {numbers['scenes']} scenes of "
        f"'{numbers['set']}': plans sampled from the same noise differ by at most "
        f"{numbers['ego_difference_m_max']:.2g} m (median {numbers['ego_difference_m_p50']:.2g} m), futures of "
        f"neighbours by at most {numbers['difference_m_max']:.2g} m"
    )
