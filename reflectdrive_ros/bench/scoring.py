"""`reflectdrive bench scoring`: time to score N candidates on one core, including simulation.

The scene is the golden set's median in agents and polygons. Candidates are the scene's own, each with one waypoint
moved by up to 10 bins of 0.3 m, as in local search. Times are CPU time, which equals wall time (`wall_ms_*`) on a quiet
machine and excludes other processes on a busy one. The bound is the arithmetic alone: the array elements that every
candidate must touch before any agent is tested, at the rate at which this core multiplies arrays in its cache. The
official times are those of NAVSIM's code on another machine (two shared cores): read the ratios as orders of magnitude.

No setting (--setting) changes what is measured: the rules are NAVSIM's, and for one row the defaults of the driving.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import geometry
from ..core.domain import AgentKind, Array
from ..evaluation import golden
from ..evaluation.golden import SCORING_V1, SCORING_V2, GoldenError, GoldenScene
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..scoring.areas import MapAreas
from ..scoring.contacts import SAMPLES, AgentTracks
from ..scoring.scorer import Scene, score
from ..scoring.simulate import DT_S, STATE_SIZE, STEPS

MEDIAN_SCENE = "s0016"
COUNTS = (1, 6, 64, 221, 1000)
BIN_M, REACH_BINS = 0.3, 10  # 221 pairs lie within 10 bins of one
AGENT_COUNTS = (50, 500)
RUNS_PER_TURN = 5
MULTIPLY_SHAPE = (200, 4096)  # times, elements
# ms, from TIMING.md of the golden set: v1.1 in one batch, v1.1 as NAVSIM calls it, v2.2 in one batch
OFFICIAL_MS = {6: (49.0, 163.0, 86.0), 64: (330.0, 1830.0, 650.0), 221: (1120.0, 6210.0, 2260.0)}
# Minimal elements per candidate: 50 array operations per step of the car, 5 points by 20 operations for the map, 6
# filters over 41 samples, the states themselves.
OPERATIONS = STEPS * 50 + (STEPS + 1) * (5 * 20 + 6 * (STEPS + 1) + STATE_SIZE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=arguments.positive_int(10_000), default=15, help="repetitions to take medians over"
    )
    parser.add_argument("--golden", type=Path, metavar="FILE", help="golden scenes, if they are not beside the package")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    scene = median_scene(args.golden or default_scenes_file())
    with one_core():
        numbers = figures(scene, args.runs, errors)
    write_numbers(args.json, numbers)
    console.print(table(numbers))


def default_scenes_file() -> Path:
    """The slice of the golden set in the source tree."""
    return Path(__file__).resolve().parents[2] / "test" / "data" / "golden" / "scenes.jsonl.gz"


def median_scene(path: Path) -> GoldenScene:
    """The benchmark scene. Raises GoldenError if the file does not hold it."""
    for scene in golden.read_scenes(path):
        if scene.scene_id == MEDIAN_SCENE:
            return scene
    raise GoldenError(f"{path} does not hold scene {MEDIAN_SCENE}")


@contextmanager
def one_core() -> Iterator[None]:
    """Keeps this process, and any threads of its libraries, on one of the cores it may use."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def candidates(scene: GoldenScene, count: int) -> Array:
    """(N, 8, 3) the scene's candidates in turn, each with one waypoint moved within the search ball."""
    reach = range(-REACH_BINS, REACH_BINS + 1)
    ball = [(i, j) for i in reach for j in reach if abs(i) + abs(j) <= REACH_BINS]
    own = scene.candidates
    moved = own[np.arange(count) % len(own)].copy()
    for k in range(count):
        moved[k, 4, :2] += BIN_M * np.array(ball[k % len(ball)])
    return np.asarray(moved)


def make_agents(scene: Scene, count: int) -> AgentTracks:
    """Agents that stand and drive along and beside the route, spread evenly by golden ratios; deterministic."""
    k = np.arange(count)
    along = np.interp((k * 0.618034) % 1.0, [0, 1], [-10.0, 90.0])
    lateral_m = np.interp((k * 0.754878) % 1.0, [0, 1], [-25.0, 25.0])
    speed = np.where(k % 3 == 0, 0.0, 3.0 + (k * 0.569840) % 1.0 * 8.0)
    travelled = along[:, None] + speed[:, None] * DT_S * np.arange(SAMPLES)
    base = geometry.sample(scene.centerline, travelled.reshape(-1)).reshape(count, SAMPLES, 3)
    poses = geometry.compose(base, np.stack([np.zeros(count), lateral_m, np.zeros(count)], axis=-1)[:, None])
    return AgentTracks(
        poses,
        np.ones((count, SAMPLES), bool),
        np.repeat(speed[:, None], SAMPLES, axis=1),
        np.tile([4.6, 1.9], (count, 1)),
        np.full(count, AgentKind.VEHICLE),
    )


def quartiles_ms(
    actions: Mapping[str, Callable[[], object]], runs: int, console: Console
) -> dict[str, tuple[list[float], float]]:
    """Quartiles of the milliseconds of CPU time, and the median on the clock, for each action.

    Every action has its turn several times, a few runs each: a machine that is slow for a second slows them all.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # the first run includes the preparation of the scene
    turns = [(name, action) for _ in range(-(-runs // RUNS_PER_TURN)) for name, action in actions.items()]
    for name, action in track_progress(turns, "scoring", console):
        for _ in range(RUNS_PER_TURN):
            starts_s = time.process_time(), time.perf_counter()
            action()
            spent[name].append((time.process_time() - starts_s[0], time.perf_counter() - starts_s[1]))
    return {
        name: (np.percentile([1e3 * cpu for cpu, _ in both], (25, 50, 75)).tolist(), 1e3 * median(w for _, w in both))
        for name, both in spent.items()
    }


def multiply() -> None:
    """200 times 4096 elements of float64, arrays in the cache: the rate of the bound."""
    a = np.ones(MULTIPLY_SHAPE[1])
    b, out = a.copy(), a.copy()
    for _ in range(MULTIPLY_SHAPE[0]):
        np.multiply(a, b, out=out)


def figures(scene: GoldenScene, runs: int, console: Console) -> dict[str, Any]:
    """The measurements, with the keys of the design: `ms_1` .. `ms_1000`, and their bounds."""
    actions: dict[str, Callable[[], object]] = {"multiply": multiply, "prepare": partial(prepare, scene.first)}
    scored = {str(count): count for count in COUNTS}
    for name, count in scored.items():
        actions[name] = partial(score, scene.first, candidates(scene, count), SCORING_V1, official=True)
    plans = candidates(scene, 221)
    actions["221_v2"] = partial(score, scene.second, plans, SCORING_V2, official=True)
    actions["221_driving"] = partial(score, scene.first, plans)
    for agents in AGENT_COUNTS:
        dense = replace(scene.first, agents=make_agents(scene.first, agents))
        actions[f"221_agents_{agents}"] = partial(score, dense, plans, SCORING_V1, official=True)
    # A process that handles images has had megabytes in its hands, after which the C library keeps freed memory
    # instead of returning it page by page. Fresh processes pay 2 to 5 ms for that at 221 candidates.
    score(scene.first, candidates(scene, max(COUNTS)))

    measured = quartiles_ms(actions, runs, console)
    rate = float(np.prod(MULTIPLY_SHAPE)) / measured["multiply"][0][1]  # elements in a millisecond
    numbers: dict[str, Any] = {
        "scene": scene.scene_id,
        "agents": len(scene.first.agents),
        "polygons": scene.first.areas.index.count if scene.first.areas else 0,
        "runs": runs,
        "ms_prepare": measured["prepare"][0][1],
        "quartiles_ms_prepare": measured["prepare"][0][::2],
    }
    for name in [name for name in actions if name not in ("multiply", "prepare")]:
        (low, numbers[f"ms_{name}"], high), numbers[f"wall_ms_{name}"] = measured[name]
        numbers[f"quartiles_ms_{name}"] = [low, high]
        numbers[f"bound_ms_{name}"] = scored.get(name, 221) * OPERATIONS / rate
    for count in [count for count in COUNTS if count in OFFICIAL_MS]:
        batch, loop, _ = OFFICIAL_MS[count]
        numbers[f"times_faster_than_official_batch_{count}"] = batch / numbers[f"ms_{count}"]
        numbers[f"times_faster_than_official_loop_{count}"] = loop / numbers[f"ms_{count}"]
    numbers["times_faster_than_official_batch_221_v2"] = OFFICIAL_MS[221][2] / numbers["ms_221_v2"]
    return numbers


def prepare(scene: Scene) -> None:
    """Preparation once per scene: the polygons are checked and indexed."""
    areas = replace(scene.areas or MapAreas())
    areas.index.sets(np.zeros((1, 2)))


def table(numbers: dict[str, Any]) -> Table:
    title = (
        f"scoring on one core, simulation included, medians of {numbers['runs']} runs; "
        f"scene {numbers['scene']}: {numbers['agents']} agents, {numbers['polygons']} polygons"
    )
    headings = (
        "candidates",
        "ms",
        "bound ms",
        "ms / bound",
        "clock ms",
        "µs each",
        "official batch / this",
        "official loop / this",
    )
    names = [
        *((f"{count}", f"{count}", count) for count in COUNTS),
        ("221, EPDMS (v2)", "221_v2", 221),
        ("221, driving rules", "221_driving", 221),
        *((f"221, {agents} agents", f"221_agents_{agents}", 221) for agents in AGENT_COUNTS),
    ]
    rows = []
    for name, key, count in names:
        ratios = [numbers.get(f"times_faster_than_official_{kind}_{key}") for kind in ("batch", "loop")]
        ms = numbers[f"ms_{key}"]
        bound = numbers[f"bound_ms_{key}"]
        times = (f"{ms:.2f}", f"{bound:.2f}", f"{ms / bound:.1f}", f"{numbers[f'wall_ms_{key}']:.2f}")
        faster = ("" if ratio is None else f"{ratio:.0f}" for ratio in ratios)
        rows.append((name, *times, f"{1e3 * ms / count:.0f}", *faster))
    caption = f"once per scene before that: {numbers['ms_prepare']:.1f} ms"
    return make_table(headings, rows, title, caption, texts=0)
