"""`reflectdrive bench step --scenes val`: processor time of the engine's step without the network.

Each scene is planned twice with known objects and road: a full step from cold, and 0.1 s later, with the same images, a
lite step where the planner makes one. Times are those of `Engine.step`, the stop plan, choice, repair and the guard
included, less the network's calls; without deadline, so that all plans are the same on every machine. Every scene has
its turn in each of the runs, and its median counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import geometry, kinematics
from ..core.domain import Observation, StepKind
from ..data import shards
from ..data.shards import SetError
from ..evaluation import open_loop
from ..evaluation.privilege import observe
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..planning import decoding_config
from ..planning.planner import Network
from ..runtime import cli_args
from ..runtime.engine import Engine
from ..runtime.network import load_network, token_network

PLANNERS = ("reflectdrive", "reflectdrive2", "drivefine")
LATER_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--planner", choices=PLANNERS, default="reflectdrive2", help="recipe")
    parser.add_argument("--runs", type=arguments.positive_int(1000), default=3, help="turns of each scene")
    cli_args.add_bench_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if scenes or model are missing."""
    config = replace(cli_args.configuration(args), planner=args.planner)
    network = token_network(load_network(config.model, decoding_config(config)), config.model.file, "bench step")
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, args.limit)
    scenes = shards.read(folder, images=True, limit=args.limit, on_damage=errors.print)
    observations = [observe(scene, "objects") for scene in track_progress(scenes, "reading", errors, args.limit)]
    if not observations:
        raise SetError(f"{folder} holds no scene to plan for")
    timed = TimedNetwork(network)
    engine = Engine(config, clock=lambda: 0.0, network=cast(Network, timed))
    steps = measure(engine, timed, observations, args.runs, errors)
    numbers = {name: figures(some) for name, some in parts(steps).items() if some}
    about = {
        "set": shards.index_of(folder).set,
        "planner": args.planner,
        "scenes": len(observations),
        "runs": args.runs,
    }
    write_numbers(args.json, {**about, "parts": numbers}, weights_sha256=cli_args.weights_of(config, [args.planner]))
    console.print(
        table(f"{args.planner}, {len(observations)} scenes, ms of processor time without the network", numbers)
    )


class TimedNetwork:
    """A network that adds up the processor time of its calls."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._network, name)
        return self._with_timer(found) if callable(found) else found

    def _with_timer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*inputs: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return call(*inputs, **named)
            finally:
                self.seconds += time.process_time() - begun

        return timed


@dataclass(frozen=True)
class Step:
    """One step of one scene."""

    kind: StepKind | None
    repairs: int
    own_ms: float  # median over the runs


def measure(
    engine: Engine, network: TimedNetwork, observations: list[Observation], runs: int, errors: Console
) -> list[Step]:
    spent: dict[tuple[int, int], list[float]] = {}
    kinds: dict[tuple[int, int], tuple[StepKind | None, int]] = {}
    pairs = [(observation, moved_on(observation)) for observation in observations]
    for number in track_progress(range(runs + 1), "planning", errors):
        for scene, pair in enumerate(pairs):
            engine.reset()
            for turn, observation in enumerate(pair):
                network.seconds, begun = 0.0, time.process_time()
                report = engine.step(observation)
                own_s = time.process_time() - begun - network.seconds
                if number:  # the first turn warms up
                    spent.setdefault((scene, turn), []).append(1e3 * own_s)
                kinds[scene, turn] = report.step, 0 if report.plan.check is None else report.plan.check.repairs
    return [Step(*kinds[key], median(values)) for key, values in spent.items()]


def moved_on(observation: Observation) -> Observation:
    """The observation with the vehicle LATER_S further on its present arc."""
    ego = observation.ego
    curvature = ego.yaw_rate_rps / ego.speed_mps if ego.speed_mps > 0.0 else 0.0
    (driven,) = kinematics.arc(curvature, np.array([LATER_S * ego.speed_mps]))
    stamp_ns = observation.stamp_ns + round(1e9 * LATER_S)
    later = replace(ego, stamp_ns=stamp_ns, map_from_ego=geometry.compose(ego.map_from_ego, driven))
    return replace(observation, stamp_ns=stamp_ns, ego=later)


def parts(steps: list[Step]) -> dict[str, list[Step]]:
    return {
        "all": steps,
        "full": [step for step in steps if step.kind is StepKind.FULL],
        "lite": [step for step in steps if step.kind is StepKind.LITE],
        "repaired": [step for step in steps if step.repairs],
        "not repaired": [step for step in steps if not step.repairs],
    }


def figures(steps: list[Step]) -> dict[str, float]:
    times_ms = [step.own_ms for step in steps]
    p50, p95, p99 = np.percentile(times_ms, (50, 95, 99)).round(3).tolist()
    iterations = sum(step.repairs for step in steps) / len(steps)
    return {"steps": len(steps), "ms_p50": p50, "ms_p95": p95, "ms_p99": p99, "iterations": round(iterations, 3)}


def table(title: str, numbers: Mapping[str, Mapping[str, float]]) -> Table:
    cells = [
        (name, str(row["steps"]), *(f"{row[key]:.2f}" for key in ("ms_p50", "ms_p95", "ms_p99", "iterations")))
        for name, row in numbers.items()
    ]
    return make_table(("steps", "number", "p50", "p95", "p99", "repair iterations"), cells, title)
