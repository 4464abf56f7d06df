"""`reflectdrive bench parity --model FILE --graphs CARD --scenes NAME|DIR`: exported graphs compared with eager torch.

For each scene both decode a full frame, with all goals drafted and edited, and a lite frame that continues the first
plan; equal ids are counted. Then the planner plans with each from its initial state, as `eval` does: published ids and
scores are compared over the same scenes, with a bootstrap interval. Both load through their cards and self-checks as in
a vehicle; a missing --backend is one sentence and exit code 2. Of denoisers the largest distance between plans that
both sample from the same noise is given, in metres.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, ModelConfig, load, override, override_dotted
from ..core.domain import Array, Observation, Plan
from ..data import shards
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..evaluation import driving_scores, open_loop, privilege
from ..evaluation.bootstrap import percent_interval
from ..evaluation.driving_scores import MEASURES
from ..features.images import ModelInputs, model_inputs
from ..features.vectors import vector_inputs
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..model.card import GraphCard, GraphError
from ..planning import get_planner
from ..planning.denoiser import START_SCALE, Denoiser
from ..planning.planner import AnyNetwork, Network, Planner, PlannerContext, PlanningError
from ..runtime import cli_args
from ..runtime.model_file import model_config
from ..runtime.network import load_network, token_network
from ..scoring.scorer import Scene
from .network_steps import full_rounds, lite_rounds, run_step, sampled_m

PRIVILEGE = "objects"  # as the default of `reflectdrive eval`
SETTINGS = (  # those of decoding are built into the graphs, those of the model are options
    *("planner", "vehicle", "engine", "guard", "lights", "output", "scoring", "repair"),
    *("reflectdrive2", "reflectdrive", "drivefine"),
)
Pair = tuple[Array, Array]  # what two networks wrote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FILE", help="weights, for eager torch on the CPU")
    parser.add_argument("--sha256", metavar="HASH", help="of --model (default: from the card.json beside it)")
    parser.add_argument(
        "--graphs", type=Path, required=True, metavar="CARD", help="card of the graphs exported from it"
    )
    parser.add_argument("--backend", choices=("onnxruntime", "tensorrt"), default="onnxruntime", help="of the graphs")
    parser.add_argument("--device", default="auto", metavar="NAME", help="of the graphs: auto, cpu, cuda ..")
    parser.add_argument("--threads", type=arguments.process_count(), default=1, metavar="N", help="of each")
    cli_args.add_scenes_argument(parser, "test")
    parser.add_argument(
        "--limit", type=arguments.positive_int(), default=1000, metavar="N", help="its scenes, spread over families"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of planner and score (YAML)")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command(os_error="{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    config = load(args.config) if args.config else Config()
    config = override_dotted(config, arguments.settings_of(args.settings, SETTINGS))
    network, eager, config = both_networks(args, config)
    folder = open_loop.resolve_scene_set(args.scenes, 1, errors, args.limit)
    numbers = {
        "backend": args.backend,
        "backend_description": getattr(network, "backend_description", ""),
        "precision": GraphCard.read(args.graphs).precision,
        "threads": args.threads,
        "set": shards.index_of(folder).set,
    }
    vectors = network.kind == "denoiser"
    scenes = read_scenes(folder, args.limit, errors, images=not vectors)
    if network.kind == eager.kind == "denoiser":
        numbers |= compare_samples(network, eager, scenes)
    else:
        own, other = (token_network(each, args.model, "bench parity") for each in (network, eager))
        numbers |= {"planner": config.planner, **compare_networks(own, other, scenes, config)}
    write_numbers(args.json, numbers, weights_sha256=GraphCard.read(args.graphs).model["weights_sha256"])
    (show_samples if vectors else show)(numbers, console)


def both_networks(args: argparse.Namespace, config: Config) -> tuple[AnyNetwork, AnyNetwork, Config]:
    """The graphs' network and eager torch, and the configuration that decodes as is built in.

    Raises ConfigError, GraphError, ModelFileError.
    """
    weights, graphs = model_config(args.model, args.sha256), model_config(str(args.graphs), None)
    card = GraphCard.read(graphs.file)
    if card.model["weights_sha256"] != weights.sha256.lower():
        raise GraphError(f"{args.graphs} was exported from other weights than --model: export them again")
    if card.kind == "token":
        config = replace(config, decoding=override(config.decoding, card.decoding()))
    models = (
        ModelConfig(graphs.file, graphs.sha256, args.backend, args.device, config.model.engines, args.threads),
        ModelConfig(weights.file, weights.sha256, "torch", "cpu", "", args.threads),
    )
    network, eager = (load_network(model, config.decoding) for model in models)
    assert network is not None  # there is none only where no file is named
    assert eager is not None
    return network, eager, config


# --- measuring -------------------------------------------------------------------------------------------------------


def read_scenes(folder: Path, limit: int, console: Console, images: bool = True) -> Iterator[DrivingScene]:
    """`limit` scenes of a set, with a bar. Raises SetError."""
    read = shards.read(folder, images=images, limit=limit, on_damage=console.print)
    yield from track_progress(read, "comparing", console, limit)


def compare_networks(
    network: Network, reference: Network, scenes: Iterable[DrivingScene], config: Config
) -> dict[str, Any]:
    """Ids and PDMS of a network, and those of `reference`, on the same scenes. Raises SetError where there is none."""
    pairs, equal_plans, pdms, failures = list[Pair](), 0, list[list[float]](), list[str]()
    planner = get_planner(config)
    for scene in scenes:
        pairs.append(decode_both(network, reference, model_inputs(scene.observation(), network.inputs)))
        observation = privilege.observe(scene, PRIVILEGE)
        plans = [_plan_of(planner, observation, PlannerContext(config, of), failures) for of in (network, reference)]
        mine, theirs = (None if plan is None else plan.tokens for plan in plans)
        equal_plans += mine is not None and theirs is not None and np.array_equal(mine, theirs)
        scored = scene.scored(vehicle=config.vehicle)
        pdms.append([0.0 if plan is None else _pdms(scored, plan, config) for plan in plans])
    if not pairs:
        raise SetError("the set holds no scene to compare on")
    scores = np.array(pdms)  # (N, 2)
    difference = scores[:, 0] - scores[:, 1]
    return {
        **count_equal(pairs),
        "equal_plans": equal_plans,
        "failures": failures,
        "pdms": round(100.0 * float(scores[:, 0].mean()), 3),
        "pdms_reference": round(100.0 * float(scores[:, 1].mean()), 3),
        "pdms_difference": round(100.0 * float(difference.mean()), 3),
        "pdms_difference_95": percent_interval(difference),
    }


def _plan_of(planner: Planner, observation: Observation, context: PlannerContext, failures: list[str]) -> Plan | None:
    """A plan from the initial state; None if planning fails, which scores 0."""
    try:
        return driving_scores.plan_once(planner, observation, context)
    except PlanningError as fault:
        failures.append(str(fault))
        return None


def _pdms(scene: Scene, plan: Plan, config: Config) -> float:
    rows = driving_scores.score_plans(scene, {"": driving_scores.plan_waypoints(plan)[0]}, config.scoring)
    return rows[""][MEASURES.index("pdms")]


def decode_both(network: Network, reference: Network, inputs: ModelInputs) -> Pair:
    """Actions (G + 1, T) of each: full frames on all goals, and the lite frame on the first plan of `reference`."""
    full = [run_step(of, inputs, full_rounds(of.layout))[0] for of in (network, reference)]
    last = full[1][:1].copy()
    layout = reference.layout
    last[:, layout.waypoint(layout.points - 1)] = layout.mask_id
    lite = [run_step(of, inputs, lite_rounds(of.layout), actions=last)[0] for of in (network, reference)]
    mine, theirs = (np.concatenate(both) for both in zip(full, lite, strict=True))
    return mine, theirs


def count_equal(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Equal ids, action sequences and scenes of what two networks wrote, a pair for each scene."""
    same = [mine == theirs for mine, theirs in pairs]
    ids, equal_ids = sum(each.size for each in same), sum(int(each.sum()) for each in same)
    bins = max(int(np.abs(mine - theirs).max()) for mine, theirs in pairs)
    return {
        "scenes": len(pairs),
        "equal_scenes": sum(bool(each.all()) for each in same),
        "sequences": sum(len(each) for each in same),
        "equal_sequences": sum(int(each.all(-1).sum()) for each in same),
        "tokens": ids,
        "equal_tokens": equal_ids,
        "equal_share": equal_ids / ids,
        "largest_difference_bins": bins,
    }


# --- denoisers -------------------------------------------------------------------------------------------------------


def compare_samples(network: Denoiser, reference: Denoiser, scenes: Iterable[DrivingScene]) -> dict[str, Any]:
    """Distances in metres between the futures that both sample from the same noise. Raises SetError without scenes."""
    spec, noise = network.spec, np.random.default_rng(0)
    ego_m, all_m = list[float](), list[float]()
    for scene in scenes:
        inputs = vector_inputs(privilege.observe(scene, PRIVILEGE, with_drivable=False, with_vectors=True), spec)
        start = START_SCALE * noise.standard_normal((spec.futures, 1 + spec.future_steps, 4))
        distances_m = []
        for guided in (False, True) if "guidance" in network.capabilities else (False,):
            mine, theirs = (sampled_m(each, inputs, start, guided) for each in (network, reference))
            distances_m.append(np.hypot(*np.moveaxis((mine - theirs)[..., :2], -1, 0)).max(axis=1))  # (P,)
        ego_m.append(float(max(each[0] for each in distances_m)))
        all_m.append(float(max(each.max() for each in distances_m)))
    if not ego_m:
        raise SetError("the set holds no scene to compare on")
    return {
        "scenes": len(ego_m),
        "ego_difference_m_p50": float(np.median(ego_m)),
        "ego_difference_m_max": max(ego_m),
        "difference_m_max": max(all_m),
    }


def compare_denoisers(
    network: Denoiser, reference: Denoiser, scenes: Iterable[DrivingScene], config: Config
) -> dict[str, Any]:
    """PDMS of the planner's plans with each network, from its initial state, on the same scenes, and the distances in
    metres between both plans. A scene without a plan scores 0. Raises SetError without scenes.
    """
    planner, failures = get_planner(config), list[str]()
    scores, moved_m = list[list[float]](), list[float]()
    for scene in scenes:
        observation = privilege.observe(scene, PRIVILEGE, with_vectors=True)
        plans = {}
        for name, each in (("own", network), ("reference", reference)):
            try:
                plan = driving_scores.plan_once(planner, observation, PlannerContext(config, each))
                plans[name] = driving_scores.plan_waypoints(plan)[0]
            except PlanningError as fault:
                failures.append(str(fault))
        rows = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), plans, config.scoring)
        pdms = MEASURES.index("pdms")
        scores.append([rows[name][pdms] if name in rows else 0.0 for name in ("own", "reference")])
        if len(plans) == 2:
            moved_m.append(float(np.hypot(*(plans["own"] - plans["reference"])[:, :2].T).max()))
    if not scores:
        raise SetError("the set holds no scene to compare on")
    pairs = np.array(scores)  # (N, 2)
    return {
        "scenes": len(pairs),
        "failures": failures,
        "pdms": round(100.0 * float(pairs[:, 0].mean()), 3),
        "pdms_reference": round(100.0 * float(pairs[:, 1].mean()), 3),
        "pdms_difference_95": percent_interval(pairs[:, 0] - pairs[:, 1]),
        **{f"difference_m_p{share}": round(float(np.percentile(moved_m or [0.0], share)), 4) for share in (50, 99)},
    }


# --- text ------------------------------------------------------------------------------------------------------------


def show(numbers: Mapping[str, Any], console: Console) -> None:
    scenes, bins = numbers["scenes"], numbers["largest_difference_bins"]
    low, high = numbers["pdms_difference_95"]
    networks = f"{numbers['backend_description']}, {numbers['precision']}, beside eager torch"
    console.print(f"{networks}, {scenes} scenes of '{numbers['set']}'")
    console.print(table(numbers))
    console.print(
        f"PDMS {numbers['pdms']:.2f}, that of eager torch {numbers['pdms_reference']:.2f}: difference "
        f"{numbers['pdms_difference']:+.3f} ({low:+.3f} .. {high:+.3f}); ids differ by {bins} bins at most"
    )
    if failures := numbers["failures"]:
        sentence = f"{len(failures)} times there was no plan, scored 0; the first: {failures[0]}"
        console.print(sentence)


def table(numbers: Mapping[str, Any]) -> Table:
    scenes = numbers["scenes"]
    rows = []
    for name, of, equal in (
        ("ids, of all goals and a lite frame", numbers["tokens"], numbers["equal_tokens"]),
        ("scenes with all of these", scenes, numbers["equal_scenes"]),
        ("plans from cold", scenes, numbers["equal_plans"]),
    ):
        rows.append((name, str(of), str(equal), f"{100 * equal / of:.2f}"))
    return make_table(("", "there are", "the same", "%"), rows)


def show_samples(numbers: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{numbers['backend_description']}, {numbers['precision']}, beside eager torch, {numbers['scenes']} scenes of "
        f"'{numbers['set']}': plans sampled from the same noise differ by at most "
        f"{numbers['ego_difference_m_max']:.2g} m (median {numbers['ego_difference_m_p50']:.2g} m), futures of "
        f"neighbours by at most {numbers['difference_m_max']:.2g} m"
    )
