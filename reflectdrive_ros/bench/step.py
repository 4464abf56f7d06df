"""`reflectdrive bench step`: the time of a planning step, in the network and beside it, with the network's roofline.

    reflectdrive bench step                                                         # graphs of the configured planner
    reflectdrive bench step --model RUN/weights.safetensors --setting model.device=cuda
    reflectdrive bench step --scenes val --limit 100 --setting model.threads=1      # also the engine's steps

The network plans for a synthetic scene, full and lite steps in turn: of a token network prefill, the planner's draft
rounds on up to six goals and all of its edit rounds on one, and prefill and two steps on one action sequence; of a
denoiser, which has full steps only, one encoded scene and EVALUATIONS evaluations. Each time has new newest images, and
those of the step before as the older ones, as on the road. `backend`, `device` and `threads` are settings of `model`.
Then each file of its weights is timed on every installed backend (`bench.backends`); of several planners all, while the
other numbers are of the first with a network.

The bound is a roofline: per part the time of its minimal FLOPs or of its bytes (`bench.roofline`), the larger, at the
copy and matrix rates of this machine, measured in the same run with as many threads. It needs torch, and a GPU that
torch finds if the network is on one. With weights on a GPU, steps are also timed in each mode of
`model.token.cuda_graphs`.

With --scenes each scene is planned twice with objects and road: a full step from the initial state, and 0.1 s later,
with the same images, a lite step where the planner makes one. Times are processor time of `Engine.step`, the stop plan,
choice, repair and guard included, less the network's calls; without deadline, so that all plans are the same on every
machine. Every scene has its turn in each of the runs, and its median counts.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import geometry, kinematics
from ..core.config import Config, ConfigError
from ..core.domain import Observation, StepKind
from ..core.tokens import Round
from ..data import shards
from ..data.shards import SetError
from ..evaluation import open_loop
from ..evaluation.privilege import observe
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.installing import shipped
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..model import checkpoint
from ..model.denoiser import checkpoint as denoiser_checkpoint
from ..model.peaks import has_gpu, measure_peaks
from ..planning import LEARNED, decoding_config, learned_configs
from ..planning.inputs import reads_vectors
from ..planning.planner import AnyNetwork, Network, prefill_sequences
from ..runtime import cli_args
from ..runtime.engine import Engine
from ..runtime.network import SELF_CHECK_STEPS, load_network, synthetic_inputs, torch_decoding
from . import backends
from .network_steps import (
    Action,
    denoiser_plan,
    full_rounds,
    full_step_rounds,
    lite_rounds,
    run_step,
    time_actions,
    token_steps,
)
from .roofline import Cost, bound_ms, costs, denoiser_costs

LATER_S = 0.1
MAX_GOALS = 6
EVALUATIONS = SELF_CHECK_STEPS + 1  # of a denoiser's sampler, as published
SEQUENCES = (1, 6)  # of a step in the comparison of CUDA modes: of a lite one, and of all goals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--planner", choices=sorted(LEARNED), help="recipe (the configured planners)")
    parser.add_argument("--steps", type=arguments.positive_int(), default=100, metavar="N", help="network steps a kind")
    parser.add_argument("--runs", type=arguments.positive_int(1000), default=3, help="turns of each scene")
    cli_args.add_bench_arguments(parser)
    parser.set_defaults(scenes=None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    configured = cli_args.configuration(args)
    config = next(iter(learned_configs(configured).values()), configured)
    network = load_network(config.model, decoding_config(config)) if config.planner in LEARNED else None
    if network is None:
        raise ConfigError("bench step needs a network: give --planner NAME, and set model.file or give --model FILE")
    numbers = {"planner": config.planner, **network_numbers(network, config, args.steps, errors)}
    rows = backends.measure(configured, errors)
    numbers["backends"] = backends.numbers(rows)
    if args.scenes is not None:
        numbers |= engine_numbers(network, config, args, errors)
    gpu = str(numbers["backend_description"]) if numbers["on_gpu"] else ""
    write_numbers(args.json, numbers, gpu, weights_sha256=cli_args.weights_of(config, [config.planner]))
    console.print(network_table(numbers))
    for each in backends.report(rows):
        console.print(each, soft_wrap=isinstance(each, str))
    if modes := numbers.get("cuda_modes"):
        console.print(modes_table(modes))
    if args.scenes is not None:
        console.print(engine_table(numbers))


# --- the network -----------------------------------------------------------------------------------------------------


def network_numbers(network: AnyNetwork, config: Config, steps: int, console: Console) -> dict[str, Any]:
    """Milliseconds of full and lite steps of the network, of their parts, and their bounds."""
    description, path = str(getattr(network, "backend_description", "")), shipped(config.model.file)
    device = torch_device(description, config.model.device)
    rates = None if device is None else measure_peaks(device, config.model.threads)
    actions: dict[str, Action]
    work: dict[str, list[Cost]]
    if network.kind == "denoiser":
        guided = "guidance" in network.capabilities
        net_config = denoiser_checkpoint.random_net(path, 0).config
        part_costs = denoiser_costs(net_config, 2 if guided else 1)
        actions = {"full": denoiser_plan(network, guided)}
        work = {"full": [part_costs["encode"], *[part_costs["denoise"]] * EVALUATIONS]}
        names: tuple[str, ...] = ("encode", "evaluations")
    else:
        token_config = checkpoint.config_of(path)
        inputs = synthetic_inputs(network)
        count = min(MAX_GOALS, len(prefill_sequences(network, inputs).actions))
        part_costs = costs(token_config, count)
        rounds = full_step_rounds(config, network.layout)
        actions = token_steps(network, inputs, count, rounds)
        work = token_work(network, part_costs, costs(token_config, 1), rounds)
        names = ("prefill", "draft", "edit")
    times_ms = time_actions(steps, actions, console)
    numbers: dict[str, Any] = {
        "backend_description": description,
        "on_gpu": device not in (None, "cpu"),
        "threads": config.model.threads,
        "network_steps": steps,
        "copy_gb_per_s": None if rates is None else rates[0] / 1e9,
        "matmul_gflop_per_s": None if rates is None else rates[1] / 1e9,
        "gflop": {name: cost.flop / 1e9 for name, cost in part_costs.items()},
        "mb": {name: cost.bytes / 1e6 for name, cost in part_costs.items()},
    }
    for kind, rows in times_ms.items():
        wall, busy, *parts = rows.T
        numbers |= {f"{kind}_ms_p50": float(np.median(wall)), f"{kind}_ms_p99": float(np.percentile(wall, 99))}
        numbers[f"{kind}_cpu_ms_p50"] = float(np.median(busy))
        numbers[f"{kind}_parts_ms_p50"] = {
            name: float(np.median(part)) for name, part in zip(names, parts, strict=True)
        }
        numbers[f"roofline_{kind}_ms"] = None if rates is None else sum(bound_ms(cost, *rates) for cost in work[kind])
    if network.kind == "token" and device is not None and device != "cpu" and path.suffix == ".safetensors":
        numbers["cuda_modes"] = cuda_modes(config, device, steps)
    return numbers


def torch_device(description: str, configured: str) -> str | None:
    """The device of a backend as torch names it; None where torch cannot measure its rates."""
    named = re.search(r" on (cpu|cuda(?::\d+)?)\b", description)
    device = named[1] if named else configured if configured.startswith("cuda") else "cuda"
    return device if device == "cpu" or has_gpu() else None


def token_work(
    network: Network, all_goals: Mapping[str, Cost], one: Mapping[str, Cost], full: Sequence[Round]
) -> dict[str, list[Cost]]:
    """The parts of a full and a lite step."""
    lite = lite_rounds(network.layout)
    edits = sum(edit for _, edit in full)
    read = [cost for name, cost in all_goals.items() if name != "step"]
    return {
        "full": [*read, all_goals["step"].times(len(full) - edits), one["step"].times(edits)],
        "lite": [one["vision"], one["prefill"], one["step"].times(len(lite))],
    }


def cuda_modes(config: Config, device: str, steps: int) -> dict[str, dict[str, Any]]:
    """Of each mode: milliseconds of a decoding step by number of sequences, and the share of final ids equal to those
    kernel by kernel; a sentence where it cannot run. They decide `cuda_graphs.DEFAULT_MODE`."""
    from ..model.token.cuda_graphs import MODES, CudaMode
    from ..runtime.torch_backend import TorchNetwork

    path, decoding = shipped(config.model.file), torch_decoding(decoding_config(config))
    net = checkpoint.load(path, config.model.sha256)
    reference = TorchNetwork(net, device, decoding, mode=CudaMode())
    inputs, rounds = synthetic_inputs(reference), full_rounds(reference.layout)
    modes: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        try:
            network = TorchNetwork(net, device, decoding, mode=mode)
        except ModuleNotFoundError as fault:
            modes[str(mode)] = {"not_run": f"{fault.name} is not installed"}
            continue
        step_ms: dict[str, float] = {}
        equal = []
        for count in SEQUENCES:
            times_ms = []
            for turn in range(-1, steps):  # the first records and compiles
                ids, (_, drafts_ms, edits_ms) = run_step(network, inputs, rounds, count)
                if turn >= 0:
                    times_ms.append((drafts_ms + edits_ms) / len(rounds))
            step_ms[str(count)] = median(times_ms)
            equal.append(float(np.mean(ids == run_step(reference, inputs, rounds, count)[0])))
        modes[str(mode)] = {"step_ms_p50": step_ms, "same_ids": min(equal)}
    return modes


# --- the engine ------------------------------------------------------------------------------------------------------


def engine_numbers(network: AnyNetwork, config: Config, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Processor time of the engine's steps without the network, by kind. Raises SetError without scenes."""
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, console, args.limit)
    scenes = shards.read(folder, images=not reads_vectors(config), limit=args.limit, on_damage=console.print)
    observations = [
        observe(scene, "objects", with_vectors=True) for scene in track_progress(scenes, "reading", console, args.limit)
    ]
    if not observations:
        raise SetError(f"{folder} holds no scene to plan for")
    timed = TimedNetwork(network)
    engine = Engine(config, clock=lambda: 0.0, network=cast(AnyNetwork, timed))
    steps = time_engine(engine, timed, observations, args.runs, console)
    return {
        "set": shards.index_of(folder).set,
        "scenes": len(observations),
        "runs": args.runs,
        "parts": {name: step_numbers(some) for name, some in by_kind(steps).items() if some},
    }


class TimedNetwork:
    """A network that adds up the processor time of its calls."""

    def __init__(self, network: AnyNetwork) -> None:
        self._network = network
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._network, name)
        return self._with_timer(attribute) if callable(attribute) else attribute

    def _with_timer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*inputs: Any, **options: Any) -> Any:
            start_s = time.process_time()
            try:
                return call(*inputs, **options)
            finally:
                self.seconds += time.process_time() - start_s

        return timed


@dataclass(frozen=True)
class Step:
    """One step of one scene."""

    kind: StepKind | None
    repairs: int
    own_ms: float  # median over the runs


def time_engine(
    engine: Engine, network: TimedNetwork, observations: list[Observation], runs: int, console: Console
) -> list[Step]:
    """The steps of every scene."""
    times_ms: dict[tuple[int, int], list[float]] = {}
    kinds: dict[tuple[int, int], tuple[StepKind | None, int]] = {}
    pairs = [(observation, moved_on(observation)) for observation in observations]
    for number in track_progress(range(runs + 1), "engine steps", console):
        for scene, pair in enumerate(pairs):
            engine.reset()
            for turn, observation in enumerate(pair):
                network.seconds, start_s = 0.0, time.process_time()
                report = engine.step(observation)
                own_s = time.process_time() - start_s - network.seconds
                if number:  # the first turn warms up
                    times_ms.setdefault((scene, turn), []).append(1e3 * own_s)
                kinds[scene, turn] = report.step, 0 if report.plan.check is None else report.plan.check.repairs
    return [Step(*kinds[key], median(values)) for key, values in times_ms.items()]


def moved_on(observation: Observation) -> Observation:
    """The observation with the vehicle LATER_S further on its present arc."""
    ego = observation.ego
    curvature = ego.yaw_rate_rps / ego.speed_mps if ego.speed_mps > 0.0 else 0.0
    (moved,) = kinematics.arc(curvature, np.array([LATER_S * ego.speed_mps]))
    stamp_ns = observation.stamp_ns + round(1e9 * LATER_S)
    later = replace(ego, stamp_ns=stamp_ns, map_from_ego=geometry.compose(ego.map_from_ego, moved))
    return replace(observation, stamp_ns=stamp_ns, ego=later)


def by_kind(steps: list[Step]) -> dict[str, list[Step]]:
    return {
        "all": steps,
        "full": [step for step in steps if step.kind is StepKind.FULL],
        "lite": [step for step in steps if step.kind is StepKind.LITE],
        "repaired": [step for step in steps if step.repairs],
        "not repaired": [step for step in steps if not step.repairs],
    }


def step_numbers(steps: list[Step]) -> dict[str, float]:
    p50, p95, p99 = np.percentile([step.own_ms for step in steps], (50, 95, 99)).round(3).tolist()
    iterations = sum(step.repairs for step in steps) / len(steps)
    return {"steps": len(steps), "ms_p50": p50, "ms_p95": p95, "ms_p99": p99, "iterations": round(iterations, 3)}


# --- tables ----------------------------------------------------------------------------------------------------------


def network_table(numbers: Mapping[str, Any]) -> Table:
    rows = []
    for kind in ("full", "lite"):
        if f"{kind}_ms_p50" not in numbers:
            continue
        p50, bound = numbers[f"{kind}_ms_p50"], numbers[f"roofline_{kind}_ms"]
        times = (p50, numbers[f"{kind}_ms_p99"], numbers[f"{kind}_cpu_ms_p50"])
        limits = (bound, None if bound is None else p50 / bound)
        parts = ", ".join(f"{name} {part:.1f}" for name, part in numbers[f"{kind}_parts_ms_p50"].items())
        rows.append((kind, *("-" if value is None else f"{value:.1f}" for value in (*times, *limits)), parts))
    caption = "no bound: torch does not find the device"
    if numbers["copy_gb_per_s"] is not None:
        caption = (
            f"bound: copy {numbers['copy_gb_per_s']:.1f} GB/s, products of matrices "
            f"{numbers['matmul_gflop_per_s']:.0f} GFLOP/s in float32"
        )
    title = f"network of {numbers['planner']}, {numbers['backend_description']}; {numbers['network_steps']} steps, ms"
    return make_table(("step", "p50", "p99", "CPU p50", "bound", "p50 / bound", "parts"), rows, title, caption)


def modes_table(modes: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (mode, *(f"{ms:.3f}" for ms in row["step_ms_p50"].values()), f"{row['same_ids']:.3f}")
        if "step_ms_p50" in row
        else (mode, row["not_run"], "", "")
        for mode, row in modes.items()
    ]
    headings = ("mode", *(f"{count} sequences" for count in SEQUENCES), "same ids")
    return make_table(headings, rows, "a decoding step by CUDA mode, ms")


def engine_table(numbers: Mapping[str, Any]) -> Table:
    rows = [
        (name, str(row["steps"]), *(f"{row[key]:.2f}" for key in ("ms_p50", "ms_p95", "ms_p99", "iterations")))
        for name, row in numbers["parts"].items()
    ]
    title = f"{numbers['planner']}, {numbers['scenes']} scenes, ms of processor time without the network"
    return make_table(("steps", "number", "p50", "p95", "p99", "repair iterations"), rows, title)
