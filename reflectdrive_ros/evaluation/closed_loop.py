"""`reflectdrive eval --closed-loop`: planners drive in closed loop in the proving ground.

Each drive is one generated town with reactive traffic, or one seed of traffic on a map (`--map FILE`) or in the towns
of a judge (`--judge carla`). The engine plans at 10 Hz and the ego follows its plans. Time is simulated: a planner is
never late, and a drive depends on its seed only, not on the machine. No town of a closed loop is part of a scene set.

With `--random-weights` each learned planner drives once more with random weights, with `--only-random-weights` only so:
what choice and repair do alone. A drive that fails is listed in the table and sets exit code 1. `--worst N` writes a
page of the N worst incidents of each planner, drawn from above, to `--out`.

Route completion is the progress along the route divided by the distance that the speed limits allow in the same time.
It stays below 100 % because of curves, traffic lights and other vehicles. Distances are measured along the driven path.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .. import arguments
from ..command import make_table
from ..config import Config
from ..domain import Array, CameraFrame
from ..errors import UserError
from ..parallel import Workers, map_restartable
from ..planning import CAMERA_FREE, LEARNED, VECTOR_PLANNERS, get_planner
from ..planning.planner import Planner
from ..progress import track_progress
from ..provenance import write_numbers
from ..runtime import cli_args
from ..runtime.engine import Engine, check_network
from ..scoring.scorer import SUB_SCORES
from ..scoring.simulate import DT_S
from ..sim import sumo
from ..sim.drive_log import DriveLog
from ..sim.network import maps
from ..sim.render import camera
from ..sim.world import World, WorldOptions
from . import worlds, worst_page
from .driving_scores import RANDOM_WEIGHTS, Driver, extend, make_drivers
from .incidents import Incident, IncidentRecorder
from .worlds import Worlds

SCORE_EVERY_S = 1.0
SEEDS = 10
DURATION_S = 60.0
PAGE = "worst.html"
FOLDER = Path("out/worst")  # of the page
PLAN_SCORES = (*SUB_SCORES, "tlc")  # parts of the PDM score of a plan, by their names in a ScoreCard


@dataclass(frozen=True, eq=False)
class DriveResult:
    """One planner's drive in one world."""

    planner: str  # name of its row in the table
    seed: int
    town: str
    log: DriveLog
    scores: Array  # (S,) PDM score of the plans that were driven, one each SCORE_EVERY_S, 0..1
    sub_scores: Array  # (S, 6) the parts of these scores, columns PLAN_SCORES, 0..1
    verdicts: Mapping[str, int]  # of the planner's own plans
    sources: Mapping[str, int]  # of the executed plans
    planning_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # processor time of steps, by their kind
    incidents: tuple[Incident, ...] = ()  # with the seconds before them


def drive(
    options: WorldOptions,
    planner: str,
    config: Config,
    duration_s: float,
    *,
    images: bool | None = None,
    random_weights: bool = False,
    recipe: Planner | None = None,
) -> DriveResult:
    """Drives for `duration_s` of simulated time, or until the route ends.

    `images`: whether camera images are rendered; None: if the settings require cameras and the planner uses them. The
    drivable area is given where `inputs.drivable_type` is not `none`. With `random_weights` the planner's network has
    random weights. `recipe` plans in place of the planner's own recipe, on its network.
    Raises ConfigError for an unknown planner, ModelFileError for a model that cannot be used, RoadError, SumoMissing
    and TrafficError as the world does.
    """
    config = replace(config, planner=planner)
    network = cli_args.network_for(config, planner, random_weights) if planner in LEARNED else None
    if images is None:
        images = config.needs_cameras and planner not in CAMERA_FREE
    scores: list[list[float]] = []  # of each scored plan: its PDM score and PLAN_SCORES
    verdicts: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    planning_ms: dict[str, list[float]] = {}
    name = f"{planner} {RANDOM_WEIGHTS}" if random_weights else planner
    with World(options, config.vehicle) as world:
        recorder = IncidentRecorder(world, name)
        engine = Engine(config, clock=lambda: world.stamp_ns * 1e-9, planner=recipe, network=network)
        cameras = CameraHistory(world, config) if images else None
        every = round(SCORE_EVERY_S / DT_S)
        for step in range(round(duration_s / DT_S)):
            observation = world.observation(
                cameras.capture() if cameras else (),
                drivable=config.inputs.drivable_type != "none",
                vectors=planner in VECTOR_PLANNERS,
            )
            begun_s = time.process_time()
            report = engine.step(observation)
            kind = "none" if report.step is None else report.step.value
            planning_ms.setdefault(kind, []).append(1e3 * (time.process_time() - begun_s))
            verdicts[report.verdict.name] += 1
            sources[report.source.name] += 1
            if step % every == 0:
                card = world.score(extend(report.plan.trajectory))
                scores.append([float(getattr(card, name)[0]) for name in ("score", *PLAN_SCORES)])
            events = world.step(report.plan)
            recorder.put((step + 1) * DT_S, report, events)
            if any(event.kind == "end_of_route" for event in events):
                break
        scored = np.array(scores)
        return DriveResult(
            name,
            options.seed,
            world.road_map.name,
            world.drive,
            scored[:, 0],
            scored[:, 1:],
            dict(verdicts),
            dict(sources),
            planning_ms,
            recorder.incidents(),
        )


class CameraHistory:
    """Renders the camera images of two instants, the older first; at the start both are the same."""

    def __init__(self, world: World, config: Config) -> None:
        self._world = world
        self._rig = camera.rig(config.cameras.width, config.cameras.height)
        self._seen: deque[tuple[CameraFrame, ...]] = deque(maxlen=round(config.cameras.pair_interval_s / DT_S) + 1)

    def capture(self) -> tuple[CameraFrame, ...]:
        self._seen.append(self._world.render_images(self._rig))
        return (*self._seen[0], *self._seen[-1])


# --- many drives ------------------------------------------------------------------------------------------------------


Job = tuple[str, int]  # name of the planner's row, seed


@dataclass(frozen=True, eq=False)
class Drives:
    """The results of every planner on every seed."""

    planners: tuple[str, ...]  # names of the rows
    results: tuple[DriveResult, ...]  # of the completed drives
    failures: Mapping[Job, str]  # why the other drives failed

    def of(self, planner: str) -> list[DriveResult]:
        return [result for result in self.results if result.planner == planner]

    def broken_off(self, planner: str) -> list[int]:
        """Seeds of the failed drives."""
        return [seed for name, seed in self.failures if name == planner]


def run_drives(
    planners: Sequence[str],
    seeds: Sequence[int],
    config: Config,
    duration_s: float,
    console: Console,
    random_weights: bool = False,
    where: Worlds | None = None,
    workers: Workers = 1,
    trained: bool = True,
) -> Drives:
    """Drives every planner on every seed, in parallel; `random_weights`, `trained`: as of `make_drivers`.

    `where` gives the worlds of the seeds; by default generated towns.

    Raises ConfigError for an unknown planner, ModelFileError for a model that cannot be used, SumoMissing.
    """
    sumo.binary("sumo")  # report a missing SUMO once, not from every drive
    drivers = make_drivers(planners, ("",), random_weights, trained)
    for driver in drivers.values():
        asked = replace(config, planner=driver.planner)
        get_planner(asked)
        if driver.planner in LEARNED:  # report a fault of the model once, not from every drive
            check_network(asked, cli_args.network_for(config, driver.planner, driver.random_weights))
    jobs = [(name, seed) for name in drivers for seed in seeds]
    found: dict[Job, DriveResult] = {}
    failures: dict[Job, str] = {}
    found_drives = _iterate_drives(jobs, drivers, config, duration_s, where, workers)
    for job, result in track_progress(found_drives, "driving", console, len(jobs)):
        if isinstance(result, DriveResult):
            found[job] = result
        else:
            failures[job] = result
    return Drives(
        tuple(drivers),
        tuple(found[job] for job in jobs if job in found),
        {job: failures[job] for job in jobs if job in failures},
    )


def _iterate_drives(
    jobs: Sequence[Job],
    drivers: Mapping[str, Driver],
    config: Config,
    duration_s: float,
    where: Worlds | None,
    workers: Workers,
) -> Iterator[tuple[Job, DriveResult | str]]:
    """Results in order of completion, or the reason of a failure: SUMO may crash its process."""
    work = partial(_run_drive, drivers=drivers, config=config, duration_s=duration_s, where=where)
    for outcome in map_restartable(jobs, work, workers):
        yield outcome.task, outcome.reason if outcome.result is None else outcome.result


def _run_drive(
    job: Job,
    report: Callable[[int], None],
    *,
    drivers: Mapping[str, Driver],
    config: Config,
    duration_s: float,
    where: Worlds | None = None,
) -> DriveResult:
    name, seed = job
    return drive(
        (where or worlds.generated()).options(seed),
        drivers[name].planner,
        config,
        duration_s,
        random_weights=drivers[name].random_weights,
    )


MEASURES: Mapping[str, str] = {
    "route_completion": "route %",
    "collisions_per_km": "hits/km",
    "at_fault_per_km": "own fault/km",
    "off_road_per_km": "off-road/km",
    "off_road_time": "off-road %",
    "red_lights_per_km": "reds/km",
    "speeding_per_km": "speeding/km",
    "comfort": "comfort %",
    "mean_speed_mps": "m/s",
    "pdms": "PDMS",
}


def drive_metrics(results: Sequence[DriveResult]) -> dict[str, Any]:
    """Totals over drives: rates per kilometre, shares in percent of the total time.

    A value that no drive defines is None.
    """
    logs = [result.log for result in results]
    km = sum(log.distance_m for log in logs) / 1000.0
    seconds = sum(log.duration_s for log in logs)
    scores = np.concatenate([np.zeros(0), *(result.scores for result in results)])
    parts = np.concatenate([np.zeros((0, len(PLAN_SCORES))), *(result.sub_scores for result in results)])

    def per_km(count: float) -> float | None:
        return round(count / km, 3) if km > 0 else None

    def share(part: float, whole: float) -> float | None:
        return round(100.0 * part / max(whole, 1e-9), 2) if logs else None

    return {
        "drives": len(results),
        "km": round(km, 3),
        "seconds": round(seconds, 1),
        "route_completion": share(sum(log.progress_m for log in logs), sum(log.limit_distance_m for log in logs)),
        "collisions": sum(len(log.collisions) for log in logs),
        "at_fault": sum(log.at_fault for log in logs),
        "collisions_per_km": per_km(sum(len(log.collisions) for log in logs)),
        "at_fault_per_km": per_km(sum(log.at_fault for log in logs)),
        "off_road_per_km": per_km(sum(log.count("off_road") for log in logs)),
        "off_road_time": share(sum(log.off_road_s for log in logs), seconds),
        "red_lights": sum(log.count("red_light") for log in logs),
        "red_lights_per_km": per_km(sum(log.count("red_light") for log in logs)),
        "speeding": sum(log.count("speeding") for log in logs),
        "speeding_per_km": per_km(sum(log.count("speeding") for log in logs)),
        "off_route": sum(log.count("off_route") for log in logs),
        "stuck": sum(log.count("stuck") for log in logs),
        "comfort": share(float(np.dot([log.comfort for log in logs], _seconds(logs))), sum(_seconds(logs))),
        "mean_speed_mps": round(1000.0 * km / max(seconds, 1e-9), 3) if logs else None,
        "pdms": round(100.0 * float(scores.mean()), 2) if len(scores) else None,
        "plan_scores": _percent(parts),
        "verdicts": _sum_counts(result.verdicts for result in results),
        "sources": _sum_counts(result.sources for result in results),
        "planning_ms": _planning_ms(results),
    }


def _percent(parts: Array) -> dict[str, float]:
    """Means in percent of the parts (S, 6) of the scores of plans; empty without plans."""
    return dict(zip(PLAN_SCORES, (100.0 * parts.mean(axis=0)).round(2).tolist(), strict=True)) if len(parts) else {}


def _planning_ms(results: Sequence[DriveResult]) -> dict[str, Any]:
    """Processor time of planning steps in ms: the mean over all, and mean and count by step kind."""
    times: dict[str, list[float]] = {}
    for result in results:
        for kind, some in result.planning_ms.items():
            times.setdefault(kind, []).extend(some)
    kinds = {kind: {"mean": round(float(np.mean(some)), 3), "steps": len(some)} for kind, some in times.items()}
    every = [value for some in times.values() for value in some]
    return {"mean": round(float(np.mean(every)), 3) if every else None, **kinds}


def _seconds(logs: Sequence[DriveLog]) -> list[float]:
    return [max(log.duration_s, DT_S) for log in logs]


def _sum_counts(counts: Iterator[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--closed-loop", action="store_true", help="drive in closed loop in the proving ground")
    parser.add_argument(
        "--seeds",
        type=arguments.positive_int(100_000),
        default=SEEDS,
        metavar="N",
        help="closed loop: number of worlds",
    )
    parser.add_argument("--first-seed", type=arguments.SEED, default=0, metavar="N", help="of the first world")
    parser.add_argument(
        "--duration",
        type=arguments.duration(1.0, 3600.0),
        default=DURATION_S,
        metavar="S",
        help="closed loop: seconds of driving in each",
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--map", type=Path, metavar="FILE", help="closed loop: drive on this map: Lanelet2 (.osm) or OpenDRIVE (.xodr)"
    )
    place.add_argument(
        "--judge", metavar="NAME", help=f"closed loop: drive in towns of others: {', '.join(worlds.TOWNS)}"
    )
    parser.add_argument(
        "--only-random-weights",
        action="store_true",
        help="closed loop: drive learned planners with random weights only",
    )
    parser.add_argument(
        "--worst",
        type=arguments.positive_int(1000),
        metavar="N",
        help="closed loop: write a page of the N worst incidents of each planner to --out",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"closed loop: folder of the page {PAGE} of --worst (default: {FOLDER})"
    )


def run_closed_loop(args: argparse.Namespace, config: Config, console: Console, errors: Console) -> int:
    """Exit code 0, or 1 when a drive broke off. Raises UserError, OSError."""
    if args.out is not None and args.worst is None:
        raise UserError("--out DIR is the folder of the page of --worst: add --worst N")
    where = _worlds(args)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    only_random = args.only_random_weights
    if only_random and not set(args.planner) <= set(LEARNED):
        raise UserError(f"--only-random-weights is for learned planners: name some of {', '.join(LEARNED)} only")
    random_weights = args.random_weights or only_random
    driven = run_drives(
        args.planner, seeds, config, args.duration, errors, random_weights, where, args.workers, not only_random
    )
    content = {"random_weights": random_weights, **where.numbers(), **table_metrics(driven)}
    write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, args.planner))
    console.print(_table(driven))
    if args.worst is not None:
        folder = args.out or FOLDER
        found = [incident for result in driven.results for incident in result.incidents]
        folder.mkdir(parents=True, exist_ok=True)
        text = worst_page.render(worst_page.worst(found, args.worst), config.vehicle)
        (folder / PAGE).write_text(text, encoding="utf-8")
        console.print(f"{len(found)} incidents; the worst are drawn in {folder / PAGE}")
    for (planner, seed), why in driven.failures.items():
        console.print(f"broken off: {planner}, seed {seed}: {why}")
    return 1 if driven.failures else 0


def _worlds(args: argparse.Namespace) -> Worlds:
    """The worlds that the arguments ask for; a map that cannot be used is reported once, not from every drive."""
    if args.judge is not None:
        return worlds.of_judge(args.judge)
    if args.map is None:
        return worlds.generated()
    with tempfile.TemporaryDirectory() as scratch:
        maps.load(args.map, Path(scratch))
    return worlds.of_map(args.map)


def table_metrics(driven: Drives) -> dict[str, Any]:
    """`drive_metrics` of each row under `planners`, with those of each drive; those of the first once more at the top.

    `broken_off` is the number of failed drives of a row; `failures` gives the reasons by planner and seed.
    """
    by_planner = {}
    for planner in driven.planners:
        results = driven.of(planner)
        singles = [
            {"seed": one.seed, "town": one.town, **drive_metrics([one]), **_event_rows(one.log)} for one in results
        ]
        broken_off = len(driven.broken_off(planner))
        by_planner[planner] = {"broken_off": broken_off, **drive_metrics(results), "worlds": singles}
    first = driven.planners[0]
    return {
        "planner": first,
        **without_worlds(by_planner[first]),
        "planners": by_planner,
        "failures": {f"{planner}, seed {seed}": why for (planner, seed), why in driven.failures.items()},
    }


def without_worlds(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key != "worlds"}


def _event_rows(log: DriveLog) -> dict[str, Any]:
    return {"events": [{"kind": one.kind, "time_s": round(one.time_s, 1), "text": one.text} for one in log.events]}


def _table(driven: Drives) -> Table:
    table: list[tuple[str, ...]] = []
    for planner in driven.planners:
        results, broken_off = driven.of(planner), driven.broken_off(planner)
        rows = [(f"{one.seed}", drive_metrics([one]), 0) for one in results]
        rows += [(f"{seed}", drive_metrics([]), 1) for seed in broken_off]
        rows += [("all", drive_metrics(results), len(broken_off))]
        for index, (world, row, count) in enumerate(rows):
            cells = ("-" if row[key] is None else f"{row[key]:.1f}" for key in MEASURES)
            table.append((planner if index == 0 else "", world, f"{row['km']:.2f}", *cells, f"{count}"))
        table.append(())
    headings = ("planner", "world", "km", *MEASURES.values(), "broken off")
    return make_table(headings, table, "closed loop in the proving ground", texts=2)
