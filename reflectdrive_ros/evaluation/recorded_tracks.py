"""`reflectdrive eval --scenes real_tracks`: PDM scores of planners and of the recorded human on recorded traffic.

Each start is planned once from the planner's initial state. The scorer simulates the plan with its own vehicle model;
other agents follow their recorded tracks and do not react. Scores are the PDM score of NAVSIM v1.1 by the rules of
`scoring.scorer` that are used for driving.

Comfort of the human is not scored where the recording comes from cameras above the road: accelerations are then second
differences of noisy positions. The PDMS of the human leaves comfort out in this case, and one column leaves it out for
all drivers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..data import real_tracks
from ..infra.command import make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..planning.planner import Networks, PlannerContext, PlanningError
from . import driving_scores
from .driving_scores import MEASURES, Scores
from .variants import Variants, check, references, weights_of

HUMAN = "human"
HEADINGS = ("PDMS", "NC", "DAC", "TTC", "C", "EP", "PDMS without C", "EPDMS")


def run(args: argparse.Namespace, config: Config, variants: Variants, console: Console, errors: Console) -> int:
    """Exit code 0. Raises UserError when there is nothing to score, OSError of a file."""
    if args.limit is not None:
        raise real_tracks.TracksError(
            f"{real_tracks.NAME} is scored whole: --limit is for sets of the proving ground, as test"
        )
    with_images = {variant.planner_name for variant in variants.values() if variant.is_learned and variant.uses_images}
    if with_images:
        names = ", ".join(sorted(with_images))
        raise real_tracks.TracksError(f"{real_tracks.NAME} has no images for {names}: use --scenes test")
    folder = real_tracks.default_folder() if args.scenes == real_tracks.NAME else Path(args.scenes)
    result = evaluate(folder, variants, errors, config, args.families)
    scores = numbers(result)
    write_numbers(args.json, {"set": real_tracks.NAME, **scores}, weights_sha256=weights_of(variants))
    console.print(_table(result, args.by_family))
    if scores["differences"]:
        console.print(driving_scores.difference_table(scores["differences"], args.by_family))
    for note in _notes(result):
        console.print(note)
    return 0


@dataclass(eq=False)
class TrackResult(Scores):
    """Scores of a set of recordings."""

    recordings: int = 0
    left_out: list[str] = field(default_factory=list)  # recordings without a map
    skipped: int = 0  # starts where the recorded car is off the mapped road


def evaluate(
    folder: Path,
    variants: Variants,
    console: Console,
    config: Config | None = None,
    sites: Sequence[str] | None = None,
) -> TrackResult:
    """The recorded human and the rows on every start of a set, or of some sites.

    Raises TracksError if there is nothing to score, ModelFileError or ConfigError for a model that cannot be used.
    """
    config = config or Config()
    check(variants)
    networks = {name: variant.networks() for name, variant in variants.items()}
    paths = real_tracks.recordings_in(folder)
    result = TrackResult(scores={driver: [] for driver in (HUMAN, *variants)}, references=references(variants))
    families = set[str]()
    for path in track_progress(paths, "scoring", console):
        recording = real_tracks.load(path)
        families.add(recording.family)
        if sites is not None and recording.family not in sites:
            continue
        if not recording.lanes:
            result.left_out.append(recording.name)
            continue
        before = len(result.families)
        for start in real_tracks.starts(recording, vectors=True):
            _score_start(start, variants, networks, config, result)
        result.recordings += 1
        result.skipped += len(real_tracks.start_steps(recording)) - (len(result.families) - before)
    if unknown := sorted(set(sites or ()) - families):
        raise real_tracks.TracksError(
            f"--families names {', '.join(unknown)}; {folder} holds the sites {', '.join(sorted(families))}"
        )
    if not result.families:
        raise real_tracks.TracksError(
            f"{folder} holds no recording with a map and {real_tracks.FUTURE_S:.0f} s of driving"
        )
    return result


def _score_start(
    start: real_tracks.Start,
    variants: Variants,
    networks: Mapping[str, Networks],
    config: Config,
    result: TrackResult,
) -> None:
    plans = {HUMAN: start.human}
    for name, variant in variants.items():
        context = PlannerContext.of(replace(variant.config, vehicle=start.vehicle), networks[name])
        try:
            plan = driving_scores.plan_once(variant.planner(), start.observation, context)
            plans[name] = driving_scores.plan_waypoints(plan)[0]
        except PlanningError as fault:
            result.failures.setdefault(name, []).append(f"{start.name}: {fault}")
    rows = driving_scores.score_plans(start.scene, plans, config.scoring)
    if start.overhead:
        rows[HUMAN][MEASURES.index("comfort")] = rows[HUMAN][MEASURES.index("epdms")] = np.nan
        rows[HUMAN][MEASURES.index("pdms")] = rows[HUMAN][MEASURES.index("pdms_without_comfort")]
    result.add(start.family, rows)


# --- numbers and table -----------------------------------------------------------------------------------------------


def numbers(result: TrackResult) -> dict[str, Any]:
    """As `driving_scores.numbers`, and what was scored, left out and failed."""
    drivers = {driver: driving_scores.summary(driver, result) for driver in result.scores}
    return {
        **driving_scores.numbers(drivers, HUMAN, result),
        "recordings": result.recordings,
        "left_out": result.left_out,
        "skipped": result.skipped,
        "failures": result.failures,
    }


def _table(result: TrackResult, by_site: bool) -> Table:
    title = f"{len(result.families)} starts of {result.recordings} recordings; means in percent"
    rows: list[tuple[str, ...]] = []
    for driver in result.scores:
        summary = driving_scores.summary(driver, result)
        for site, means in {"": summary, **(summary["families"] if by_site else {})}.items():
            values = ("-" if means[measure] is None else f"{means[measure]:.1f}" for measure in MEASURES)
            columns = [site or "all", str(means["scenes"])] if by_site else []
            rows.append(("" if site else driver, *columns, *values))
        if by_site:
            rows.append(())
    headings = ("driver", *(["site", "scenes"] if by_site else []), *HEADINGS)
    return make_table(headings, rows, title, texts=2 if by_site else 1)


def _notes(result: TrackResult) -> Sequence[str]:
    notes = []
    if result.left_out:
        notes.append(f"left out, no map to score by: {', '.join(result.left_out)}")
    if result.skipped:
        notes.append(f"{result.skipped} starts skipped: the recorded car is off the mapped road")
    return [*notes, *driving_scores.missing_plan_notes(result, "starts")]
