"""`reflectdrive eval --closed-loop`: planners drive in closed loop in the proving ground.

Each drive is one generated town with reactive traffic, or one seed of traffic on a map (`--map FILE`) or in towns
of others (`--judge carla`). The engine plans at 10 Hz and the ego follows its plans. Time is simulated: a planner is
never late, and a drive depends on its seed only, not on the machine. No town of a closed loop is part of a scene set.

Of several planners or variants (`evaluation.variants`) a second table has the differences, paired by world, to the
first that is given as much: the road (`inputs.drivable_type`) or not.

With `--random-weights` each learned planner drives once more with random weights, with `--only-random-weights` only so:
what choice and repair do alone. `--worst N` writes a page of the N worst incidents of each planner, drawn from above,
to `--out`.

A drive that fails is listed in the table; it sets exit code 1, as do a process that died, an error in the log, and NaN.
With many worlds the table lists the worst drives and the abnormal ones. With `--json FILE` finished drives are kept in
FILE.drives until the end: stopped at any time, the same command goes on from there (not with `--worst`).

Route completion is the progress along the route divided by the distance that the speed limits allow in the same time.
It stays below 100 % because of curves, traffic lights and other vehicles. Distances are measured along the driven path.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..core.domain import CameraFrame
from ..features.images import PAIR_INTERVAL_S
from ..infra import arguments
from ..infra.command import make_table
from ..infra.errors import UserError
from ..infra.parallel import Workers, map_restartable
from ..infra.progress import track_progress
from ..infra.provenance import program_sha256, write_numbers
from ..maps import road_file, sumo
from ..planning import LEARNED
from ..planning.planner import Planner
from ..runtime import cli_args
from ..runtime.engine import Engine
from ..scoring.simulate import DT_S
from ..sim.drive_log import DriveLog
from ..sim.render import camera
from ..sim.world import World, WorldOptions
from . import drive_score, worlds, worst_page
from .drive_measurements import MeasurementRecorder
from .drive_results import DriveResult, FinishedDrives, Job, abnormalities, logged_errors
from .drive_score import DriveScore, progress_note, score_metrics
from .drive_sums import MEASURES, PLAN_SCORES, difference, difference_table, drive_metrics
from .driving_scores import extend
from .incidents import IncidentRecorder
from .privilege import LOST_AFTER_S, without
from .variants import Variant, Variants, check, references, weights_of
from .worlds import Worlds

SCORE_EVERY_S = 1.0
START_LIMIT_S, STEP_LIMIT_S = 300.0, 5.0  # processor time of a world's start and of a step; beyond, a drive hangs
SEEDS = 10
DURATION_S = 60.0
PAGE = "worst.html"
FOLDER = Path("out/worst")  # of the page
ROWS_MAX = 30  # worlds of a planner in the table; of more only the worst and the abnormal ones
WORST_ROWS = 10
SENTENCES_MAX = 50  # on abnormal drives


def drive(
    options: WorldOptions,
    variant: Variant,
    duration_s: float,
    *,
    name: str = "",
    images: bool | None = None,
    recipe: Planner | None = None,
) -> DriveResult:
    """Drives for `duration_s` of simulated time, or until the route ends.

    `name`: of the row, by default that of the planner. `images`: whether camera images are rendered; None: if the
    planner uses them. Inputs that it loses are there until LOST_AFTER_S. The drivable area is given where
    `inputs.drivable_type` is not `none`. `recipe` plans in place of the planner's own recipe, on its network.
    Raises ConfigError for an unknown planner, ModelFileError for a model that cannot be used, RoadError, SumoMissing
    and TrafficError as the world does.
    """
    config, name = variant.config, name or variant.planner_name
    networks = variant.networks()
    if images is None:
        images = variant.uses_images
    scores: list[list[float]] = []  # of each scored plan: its PDM score and PLAN_SCORES
    verdicts: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    planning_ms: dict[str, list[float]] = {}
    with logged_errors() as errors, World(options, config.vehicle) as world:
        recorder = IncidentRecorder(world, name)
        measurer = MeasurementRecorder(world.road_map, world.space, world.vehicle)
        engine = Engine(config, clock=lambda: world.stamp_ns * 1e-9, planner=recipe, network=networks)
        cameras = CameraHistory(world, config) if images else None
        every = round(SCORE_EVERY_S / DT_S)
        for step in range(round(duration_s / DT_S)):
            observation = world.observation(
                cameras.capture() if cameras else (),
                drivable=config.inputs.drivable_type != "none",
                vectors=variant.uses_map,
            )
            if step * DT_S >= LOST_AFTER_S:
                observation = without(observation, variant.lost)
            start_s = time.process_time()
            report = engine.step(observation)
            kind = "none" if report.step is None else report.step.value
            planning_ms.setdefault(kind, []).append(1e3 * (time.process_time() - start_s))
            verdicts[report.verdict.name] += 1
            sources[report.source.name] += 1
            if step % every == 0:
                card, reference = world.score(extend(report.plan.trajectory))
                measurer.put_plan(float(card.progress_m[0]), reference.progress_m)
                scores.append([float(getattr(card, name)[0]) for name in ("score", *PLAN_SCORES)])
            events = world.step(report.plan)
            recorder.put((step + 1) * DT_S, report, events)
            measurer.put(world.ego, world.snapshot.actors, world.speed_limit_mps, world.progress_m, events)
            if any(event.kind == "end_of_route" for event in events):
                break
        scored = np.array(scores)
        return DriveResult(
            name,
            options.seed,
            world.road_map.name,
            world.drive,
            measurer.measurements(),
            scored[:, 0],
            scored[:, 1:],
            dict(verdicts),
            dict(sources),
            planning_ms,
            recorder.incidents(),
            tuple(errors),
        )


class CameraHistory:
    """Renders the camera images of two instants, the older first; at the start both are the same."""

    def __init__(self, world: World, config: Config) -> None:
        self._world = world
        self._rig = camera.rig(config.cameras.width, config.cameras.height)
        self._images: deque[tuple[CameraFrame, ...]] = deque(maxlen=round(PAIR_INTERVAL_S / DT_S) + 1)

    def capture(self) -> tuple[CameraFrame, ...]:
        self._images.append(self._world.render_images(self._rig))
        return (*self._images[0], *self._images[-1])


# --- many drives ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drives:
    """The results of every row on every seed."""

    planners: tuple[str, ...]  # names of the rows
    results: tuple[DriveResult, ...]  # of the completed drives
    failures: Mapping[Job, str]  # why the other drives failed
    references: Mapping[str, str] = field(default_factory=dict)  # by row: the one that it is compared with

    def of(self, planner: str) -> list[DriveResult]:
        return [result for result in self.results if result.planner == planner]

    def broken_off(self, planner: str) -> list[int]:
        """Seeds of the failed drives."""
        return [seed for name, seed in self.failures if name == planner]

    @cached_property
    def scores(self) -> dict[Job, DriveScore]:
        return drive_score.scores(self.results)

    def metrics(self, results: Sequence[DriveResult]) -> dict[str, Any]:
        """The scores of some of the drives (`score_metrics`) and their totals (`drive_metrics`)."""
        return {**score_metrics(results, self.scores), **drive_metrics(results)}

    @cached_property
    def abnormal(self) -> dict[Job, str]:
        """What was wrong with drives, the failed ones first."""
        others = {(each.planner, each.seed): "; ".join(abnormalities(each)) for each in self.results}
        return {**self.failures, **{job: text for job, text in others.items() if text}}


def run_drives(
    variants: Variants,
    seeds: Sequence[int],
    duration_s: float,
    console: Console,
    where: Worlds | None = None,
    workers: Workers = 1,
    finished: FinishedDrives | None = None,
    incidents: bool = True,
) -> Drives:
    """Drives every row on every seed, in parallel.

    `where` gives the worlds of the seeds; by default generated towns. Drives of `finished` are not driven again, and
    others are added to it. Without `incidents` results have none, which saves memory.

    Raises ConfigError for an unknown planner, ModelFileError for a model that cannot be used, SumoMissing.
    """
    sumo.binary("sumo")  # report a missing SUMO once, not from every drive
    check(variants)
    jobs = [(name, seed) for seed in seeds for name in variants]  # a stopped run has the same worlds for all rows
    results: dict[Job, DriveResult] = {}
    failures: dict[Job, str] = {}
    if finished is not None:
        if finished.note:
            console.print(finished.note)
        results |= {job: finished.results[job] for job in jobs if job in finished.results}
        if results:
            console.print(f"{len(results)} of {len(jobs)} drives are in {finished.path}")
    remaining = [job for job in jobs if job not in results]
    outcomes = _iterate_drives(remaining, variants, duration_s, where, workers, incidents)
    for job, result in track_progress(outcomes, "driving", console, len(remaining)):
        if isinstance(result, DriveResult):
            results[job] = result
            if finished is not None:
                finished.put(result)
        else:
            failures[job] = result
    jobs = [(name, seed) for name in variants for seed in seeds]
    failures |= {job: "it was not driven" for job in jobs if job not in results and job not in failures}
    return Drives(
        tuple(variants),
        tuple(results[job] for job in jobs if job in results),
        {job: failures[job] for job in jobs if job in failures},
        references(variants),
    )


def _iterate_drives(
    jobs: Sequence[Job],
    variants: Variants,
    duration_s: float,
    where: Worlds | None,
    workers: Workers,
    incidents: bool = True,
) -> Iterator[tuple[Job, DriveResult | str]]:
    """Results in order of completion, or the reason of a failure: SUMO may crash its process."""
    work = partial(_run_drive, variants=variants, duration_s=duration_s, where=where, incidents=incidents)
    deaths: Counter[Job] = Counter()

    def on_progress(index: int, value: int) -> None:
        deaths[jobs[index]] += value == 0

    for outcome in map_restartable(jobs, work, workers, on_progress):
        if outcome.result is None:
            yield outcome.task, outcome.reason
        else:
            yield outcome.task, replace(outcome.result, process_deaths=deaths[outcome.task])


def _run_drive(
    job: Job,
    report: Callable[[int], None],
    *,
    variants: Variants,
    duration_s: float,
    where: Worlds | None = None,
    incidents: bool = True,
) -> DriveResult:
    name, seed = job
    with _processor_time_limit(START_LIMIT_S + STEP_LIMIT_S * duration_s / DT_S):
        result = drive((where or worlds.generated()).options(seed), variants[name], duration_s, name=name)
    return result if incidents else replace(result, incidents=())


@contextmanager
def _processor_time_limit(limit_s: float) -> Iterator[None]:
    """SIGPROF ends the process after this processor time, also in a loop inside SUMO, where no exception arrives."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


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
    towns = parser.add_mutually_exclusive_group()
    towns.add_argument(
        "--map", type=Path, metavar="FILE", help="closed loop: drive on this map: Lanelet2 (.osm) or OpenDRIVE (.xodr)"
    )
    towns.add_argument(
        "--judge",
        metavar="NAME",
        help=f"closed loop: drive in towns of others, all for development: {', '.join(worlds.TOWNS)}",
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


def run_closed_loop(
    args: argparse.Namespace, config: Config, variants: Variants, console: Console, errors: Console
) -> int:
    """Exit code 0, or 1 when a drive was abnormal. Raises UserError, OSError."""
    if args.out is not None and args.worst is None:
        raise UserError("--out DIR is the folder of the page of --worst: add --worst N")
    where = _worlds(args)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    with_incidents = args.worst is not None
    resumes = args.json is not None and not with_incidents
    with _finished_drives(args, config, variants, where) if resumes else nullcontext() as finished:
        drives = run_drives(variants, seeds, args.duration, errors, where, args.workers, finished, with_incidents)
        random_weights = args.random_weights or args.only_random_weights
        content = {"random_weights": random_weights, **where.numbers(), **table_metrics(drives)}
        write_numbers(args.json, content, weights_sha256=weights_of(variants))
        if finished is not None:
            finished.discard()
    console.print(_table(drives))
    console.print(_terms_table(drives))
    if content["differences"]:
        console.print(difference_table(content["differences"], args.by_family))
    if args.worst is not None:
        folder = args.out or FOLDER
        incidents = [incident for result in drives.results for incident in result.incidents]
        folder.mkdir(parents=True, exist_ok=True)
        text = worst_page.render(worst_page.worst(incidents, args.worst), config.vehicle)
        (folder / PAGE).write_text(text, encoding="utf-8")
        console.print(f"{len(incidents)} incidents; the worst are drawn in {folder / PAGE}")
    for line in _notes(drives):
        console.print(line)
    return 1 if drives.abnormal else 0


def stopped_sentence(args: argparse.Namespace) -> str:
    """The consequence of a signal for the user."""
    return "" if args.json is None or args.worst is not None else "the same command goes on from there"


def _finished_drives(args: argparse.Namespace, config: Config, variants: Variants, where: Worlds) -> FinishedDrives:
    """Drives of an earlier run of the same program, settings, weights, maps and duration, whatever its planners; with
    variants, of the same ones."""
    source = {
        "program": program_sha256(),
        "configuration": {**asdict(config), "planner": ""},
        "variants": args.variant,
        "weights": [cli_args.weights_of(config, list(LEARNED)), weights_of(variants) if args.variant else ""],
        "duration_s": args.duration,
        "worlds": where.numbers(),
    }
    file = args.json.with_name(f"{args.json.name}.drives")
    return FinishedDrives(file, json.loads(json.dumps(source, default=str)), config.vehicle)


def _worlds(args: argparse.Namespace) -> Worlds:
    """The worlds that the arguments ask for; a map that cannot be used is reported once, not from every drive."""
    if args.judge is not None:
        return worlds.of_judge(args.judge)
    if args.map is None:
        return worlds.generated()
    with tempfile.TemporaryDirectory() as scratch:
        road_file.load(args.map, Path(scratch))
    return worlds.of_map(args.map)


def table_metrics(drives: Drives) -> dict[str, Any]:
    """`Drives.metrics` of each row under `planners`, with those of each drive; those of the first once more at the top.

    `broken_off` is the number of failed drives of a row, `process_deaths` that of processes that died in drives that
    ended; `failures` and `abnormal`, which includes them, give sentences by planner and seed. `differences` are those
    of `drive_sums.difference`, of each row of `drives.references`.
    """
    by_planner = {}
    for planner in drives.planners:
        results = drives.of(planner)
        singles = [
            {
                "seed": one.seed,
                "town": one.town,
                **drives.metrics([one]),
                "drive_measurements": asdict(one.measurements),
                **_event_rows(one.log),
            }
            for one in results
        ]
        broken_off = len(drives.broken_off(planner))
        deaths = sum(one.process_deaths for one in results)
        by_planner[planner] = {
            "broken_off": broken_off,
            "process_deaths": deaths,
            **drives.metrics(results),
            "worlds": singles,
        }
    first = drives.planners[0]
    return {
        "planner": first,
        **without_worlds(by_planner[first]),
        "planners": by_planner,
        "differences": {
            row: {"reference": reference, **difference(drives.of(row), drives.of(reference), drives.metrics)}
            for row, reference in drives.references.items()
        },
        "failures": _by_name(drives.failures),
        "abnormal": _by_name(drives.abnormal),
    }


def _by_name(sentences: Mapping[Job, str]) -> dict[str, str]:
    return {f"{planner}, seed {seed}": text for (planner, seed), text in sentences.items()}


def without_worlds(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key != "worlds"}


def _event_rows(log: DriveLog) -> dict[str, Any]:
    return {"events": [{"kind": one.kind, "time_s": round(one.time_s, 1), "text": one.text} for one in log.events]}


def _table(drives: Drives) -> Table:
    table: list[tuple[str, ...]] = []
    title = "closed loop in the proving ground"
    for planner in drives.planners:
        results, broken_off = drives.of(planner), drives.broken_off(planner)
        listed = _listed_results(results, drives)
        if len(listed) < len(results):
            title = f"closed loop in the proving ground: the {WORST_ROWS} drives of least PDMS, and abnormal ones"
        rows = [(f"{one.seed}", drives.metrics([one]), 0) for one in listed]
        rows += [(f"{seed}", drives.metrics([]), 1) for seed in broken_off[:SENTENCES_MAX]]
        rows += [
            (f"all {len(results)}" if len(listed) < len(results) else "all", drives.metrics(results), len(broken_off))
        ]
        for index, (world, row, count) in enumerate(rows):
            score, *cells = ("-" if row[key] is None else f"{row[key]:.1f}" for key in ("drive_score", *MEASURES))
            table.append((planner if index == 0 else "", world, score, f"{row['km']:.2f}", *cells, f"{count}"))
        table.append(())
    headings = ("planner", "world", "drive score", "km", *MEASURES.values(), "broken off")
    return make_table(headings, table, title, progress_note(drives.results), texts=2)


def _terms_table(drives: Drives) -> Table:
    """The terms of the drive score of each row that completed a drive."""
    rows = [
        (name, *(f"{value:.1f}" for value in drives.metrics(drives.of(name))["drive_terms"].values()))
        for name in drives.planners
        if drives.of(name)
    ]
    return make_table(("planner", *drive_score.TERMS.values()), rows, "terms of the drive score, %")


def _listed_results(results: Sequence[DriveResult], drives: Drives) -> Sequence[DriveResult]:
    """Of more than ROWS_MAX drives the abnormal ones and the WORST_ROWS with the least PDMS, in their order."""
    if len(results) <= ROWS_MAX:
        return results
    abnormal = drives.abnormal
    worst = sorted(results, key=lambda one: float(one.scores.mean()) if len(one.scores) else 0.0)[:WORST_ROWS]
    strange = [one for one in results if (one.planner, one.seed) in abnormal][:SENTENCES_MAX]
    return [one for one in results if one in worst or one in strange]


def _notes(drives: Drives) -> list[str]:
    """A sentence for each abnormal drive, and one with the totals of many drives."""
    lines = []
    for (planner, seed), text in list(drives.abnormal.items())[:SENTENCES_MAX]:
        kind = "broken off" if (planner, seed) in drives.failures else "abnormal"
        lines.append(f"{kind}: {planner}, seed {seed}: {text}")
    if (more := len(drives.abnormal) - SENTENCES_MAX) > 0:
        lines.append(f"{more} more abnormal drives are in the file of --json")
    count = len(drives.results) + len(drives.failures)
    if count > ROWS_MAX:
        deaths = sum(one.process_deaths for one in drives.results)
        lines.append(
            f"{len(drives.results)} of {count} drives came to their end; {len(drives.failures)} broken off, "
            f"{deaths} dead processes whose drive was driven again, {len(drives.abnormal)} drives abnormal in all"
        )
    return lines
