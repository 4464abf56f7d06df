"""`reflectdrive eval`: planners and the recorded human, scored on recorded traffic.

Each start of each recording is planned once, from cold: a planner sees the observation of that moment and has no
memory of earlier ones. Its plan is then driven by the scorer's car among the others as they really went (they do not
react), and gets the PDM score of NAVSIM v1.1 by the rules of `scoring.scorer` that are used for driving.

The human's comfort is not told where the recording was made by cameras above the road: accelerations are second
differences of noisy positions there, and the noise would be scored. The human's PDMS is then that of the other
sub-scores, and for comparison with planners there is a column without comfort for all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from .. import kinematics
from ..config import Config, ConfigError, load
from ..domain import Array
from ..planning import PLANNERS
from ..planning.planner import Planner, PlannerState, PlanningError, Tools
from ..scoring.scorer import WAYPOINTS, ScoreCard, score, total
from ..scoring.simulate import HORIZON_S
from . import tracks
from .provenance import provenance

HUMAN = "human"
BASELINES = ("constant_velocity", "route_follower")
SETS = ("real_tracks",)
WAYPOINT_TIMES_S = HORIZON_S / WAYPOINTS * np.arange(1, WAYPOINTS + 1)
SUB_SCORES = ("nc", "dac", "ttc", "comfort", "ep")
MEASURES = ("pdms", *SUB_SCORES, "pdms_without_comfort")
HEADINGS = ("PDMS", "NC", "DAC", "TTC", "C", "EP", "PDMS without C")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=SETS, default=SETS[0], help="scene set (default: real_tracks)")
    parser.add_argument(
        "--scenes", type=Path, metavar="DIR", help="folder of the set, where it is not beside the package"
    )
    parser.add_argument(
        "--planner",
        nargs="+",
        choices=sorted(PLANNERS),
        default=list(BASELINES),
        metavar="NAME",
        help=f"planners to score beside the human: {', '.join(sorted(PLANNERS))} (default: {' '.join(BASELINES)})",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of planners and score (YAML)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of the table here too")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 2 with one sentence on stderr when the set cannot be read or FILE cannot be written."""
    errors, console = Console(stderr=True), Console()
    if not console.is_terminal:  # a log is wide enough for the table
        console = Console(width=120)
    try:
        planners = {name: PLANNERS[name] for name in args.planner}
        config = load(args.config) if args.config else Config()
        result = evaluate(args.scenes or beside_the_package(), planners, errors, config)
        if args.json is not None:
            content = {"set": args.set, **numbers(result), **provenance(["reflectdrive", *sys.argv[1:]])}
            args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except (tracks.TracksError, ConfigError) as fault:
        errors.print(escape(str(fault)), soft_wrap=True)
        return 2
    except OSError as fault:
        errors.print(escape(f"{fault.filename or args.json} cannot be written: {fault.strerror}"), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("stopped")
        return 130
    console.print(_table(result))
    for note in _notes(result):
        console.print(escape(note), soft_wrap=True)
    return 0


def beside_the_package() -> Path:
    """The whole set where a checkout has it beside itself, else the part of it that comes with the source."""
    checkout = Path(__file__).resolve().parents[2]
    places = (checkout.parent / "shared" / "data" / "real_tracks", checkout / "test" / "data" / "real_tracks")
    for place in places:
        if place.is_dir():
            return place
    raise tracks.TracksError("no scene set beside the package; name the folder of real_tracks with --scenes DIR")


@dataclass(eq=False)
class Result:
    """What came of a set: one row per start, the same starts for every driver."""

    recordings: int = 0
    left_out: list[str] = field(default_factory=list)  # recordings without a map
    passed_over: int = 0  # starts where the recorded car itself stands off the road
    families: list[str] = field(default_factory=list)  # of each start
    scores: dict[str, list[list[float]]] = field(default_factory=dict)  # by driver: MEASURES of each start, 0..1 or NaN
    failures: dict[str, list[str]] = field(default_factory=dict)  # by planner: starts without a plan, and why


def evaluate(folder: Path, planners: Mapping[str, Planner], console: Console, config: Config | None = None) -> Result:
    """The recorded human and planners on every start of a set. Raises TracksError if there is nothing to score."""
    config = config or Config()
    paths = tracks.recordings_in(folder)
    result = Result(scores={driver: [] for driver in (HUMAN, *planners)})
    for path in track(paths, "scoring", console=console, transient=True):
        recording = tracks.load(path)
        if not recording.lanes:
            result.left_out.append(recording.name)
            continue
        begun = len(result.families)
        for start in tracks.starts(recording):
            _score_start(start, planners, config, result)
        result.recordings += 1
        result.passed_over += len(tracks.start_steps(recording)) - (len(result.families) - begun)
    if not result.families:
        raise tracks.TracksError(f"{folder} holds no recording with a map and {tracks.FUTURE_S:.0f} s of driving")
    return result


def _score_start(start: tracks.Start, planners: Mapping[str, Planner], config: Config, result: Result) -> None:
    plans = {HUMAN: start.human}
    for name, planner in planners.items():
        try:
            plans[name] = waypoints(planner, start, config)
        except PlanningError as fault:
            result.failures.setdefault(name, []).append(f"{start.name}: {fault}")
    card = score(start.scene, np.stack(list(plans.values())), config=config.scoring)
    without_comfort = total(card, replace(config.scoring, comfort_weight=0.0))
    rows = dict(zip(plans, _measures(card, without_comfort), strict=True))
    if start.overhead:
        rows[HUMAN][MEASURES.index("comfort")] = np.nan
        rows[HUMAN][MEASURES.index("pdms")] = rows[HUMAN][MEASURES.index("pdms_without_comfort")]
    result.families.append(start.family)
    for driver, scores in result.scores.items():
        scores.append(rows.get(driver, [0.0] * len(MEASURES)))  # who has no plan earns nothing


def _measures(card: ScoreCard, without_comfort: Array) -> Iterator[list[float]]:
    columns = (card.score, *(getattr(card, name) for name in SUB_SCORES), without_comfort)
    return (list(map(float, row)) for row in zip(*columns, strict=True))


def waypoints(planner: Planner, start: tracks.Start, config: Config) -> Array:
    """Poses (8, 3) at 0.5 .. 4 s of what a planner plans without a past. Raises PlanningError if it cannot."""
    _, plan = planner(PlannerState(), start.observation, Tools(replace(config, vehicle=start.vehicle)))
    if plan.trajectory.horizon_s < HORIZON_S - 1e-9:
        raise PlanningError(f"the plan ends at {plan.trajectory.horizon_s:.1f} s, {HORIZON_S:.0f} s are scored")
    return kinematics.resample(plan.trajectory, WAYPOINT_TIMES_S)


# --- numbers and table -----------------------------------------------------------------------------------------------


def numbers(result: Result) -> dict[str, Any]:
    """Means in percent for each driver under `drivers`, and those of the first planner once more at the top."""
    drivers = {driver: _summary(driver, result) for driver in result.scores}
    first = next(name for name in drivers if name != HUMAN)
    return {
        "planner": first,
        **drivers[first],
        "drivers": drivers,
        "recordings": result.recordings,
        "left_out": result.left_out,
        "passed_over": result.passed_over,
        "failures": result.failures,
    }


def _summary(driver: str, result: Result) -> dict[str, Any]:
    scores, families = np.array(result.scores[driver]), np.array(result.families)
    parts = {family: _means(scores[families == family]) for family in sorted(set(result.families))}
    return {**_means(scores), "families": parts}


def _means(scores: Array) -> dict[str, Any]:
    """Percent over the starts that have the number; None where none has."""
    means = {}
    for measure, values in zip(MEASURES, scores.T, strict=True):
        known = values[np.isfinite(values)]
        means[measure] = round(100.0 * float(known.mean()), 3) if len(known) else None
    return {"scenes": len(scores), **means}


def _table(result: Result) -> Table:
    title = f"{len(result.families)} starts of {result.recordings} recordings; means in percent"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("driver")
    table.add_column("site")
    for heading in ("scenes", *HEADINGS):
        table.add_column(heading, justify="right")
    for driver in result.scores:
        summary = _summary(driver, result)
        for site, means in {"all": summary, **summary["families"]}.items():
            values = ("-" if means[measure] is None else f"{means[measure]:.1f}" for measure in MEASURES)
            name = driver if site == "all" else ""
            table.add_row(name, site, str(means["scenes"]), *values, end_section=site == sorted(result.families)[-1])
    return table


def _notes(result: Result) -> Sequence[str]:
    notes = []
    if result.left_out:
        notes.append(f"left out, no map to score by: {', '.join(result.left_out)}")
    if result.passed_over:
        notes.append(f"{result.passed_over} starts passed over: the recorded car itself stands off the mapped road")
    for planner, failures in result.failures.items():
        notes.append(f"{planner} had no plan for {len(failures)} starts, scored 0; the first: {failures[0]}")
    return notes
