"""`reflectdrive eval`: PDM scores of planners on recorded traffic (`--scenes real_tracks`, with the recorded human), on
proving-ground scenes (`--scenes test`, with the expert), or in closed loop (`--closed-loop`).

On recordings, each start is planned once from the planner's initial state. The scorer simulates the plan with its own
vehicle model; other agents follow their recorded tracks and do not react. Scores are the PDM score of NAVSIM v1.1 by
the rules of `scoring.scorer` that are used for driving.

Comfort of the human is not scored where the recording comes from cameras above the road: accelerations are then second
differences of noisy positions. The PDMS of the human leaves comfort out in this case, and one column leaves it out for
all drivers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError
from ..data import real_tracks, sets
from ..data.scene import FAMILIES
from ..evaluation import closed_loop, driving_scores, open_loop
from ..evaluation.driving_scores import MEASURES, Driver, Scores
from ..evaluation.privilege import PRIVILEGES
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..planning import CAMERA_FREE, LEARNED, PLANNERS, VECTOR_PLANNERS
from ..planning.planner import AnyNetwork, Planner, PlannerContext, PlanningError
from ..runtime import cli_args
from ..runtime.engine import check_network

HUMAN = "human"
BASELINES = ("constant_velocity", "route_follower")
HEADINGS = ("PDMS", "NC", "DAC", "TTC", "C", "EP", "PDMS without C", "EPDMS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = (real_tracks.NAME, *sets.SIZES)
    parser.add_argument(
        "--scenes",
        metavar="NAME|DIR",
        help=f"scene set {', '.join(names)}, or the folder of a set or of recordings (default: {real_tracks.NAME})",
    )
    parser.add_argument(
        "--planner",
        nargs="+",
        choices=sorted((*PLANNERS, *LEARNED)),
        default=list(BASELINES),
        metavar="NAME",
        help=f"planners to score: {', '.join(sorted((*PLANNERS, *LEARNED)))}",
    )
    cli_args.add_model_arguments(parser)
    cli_args.add_random_weights_argument(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of planners and score (YAML)")
    arguments.add_settings_argument(parser)
    made = parser.add_argument_group("scene sets of the proving ground", "a missing set is generated first")
    made.add_argument(
        "--limit",
        type=arguments.positive_int(),
        metavar="N",
        help="score N scenes only: those of the first shards, spread over the scenario families as the set is",
    )
    made.add_argument(
        "--privilege",
        nargs="+",
        choices=PRIVILEGES,
        metavar="NAME",
        help="inputs beyond images: words (command, speed limit, instruction), route (also the route), "
        "objects (also the drivable area, and objects with their present velocities), logged (also their recorded "
        "futures); several give one row each (default: objects)",
    )
    parser.add_argument(
        "--families", nargs="+", metavar="NAME", help=f"only {', '.join(FAMILIES)}; of recordings: only these sites"
    )
    arguments.add_workers_arguments(parser, "--workers", arguments.available_cores(), "processes")
    closed_loop.add_arguments(parser.add_argument_group("closed loop", "the engine drives in generated worlds"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command(lambda args: closed_loop.stopped_sentence(args) if args.closed_loop else "")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if scenes of a set are left out; 2 with one sentence on stderr when the set cannot be read or FILE
    cannot be written.
    """
    config = cli_args.configuration(args)
    _refuse_options_of_the_other_loop(args)
    args.scenes, args.privilege = args.scenes or real_tracks.NAME, args.privilege or ["objects"]
    if args.closed_loop:
        return closed_loop.run_closed_loop(args, config, console, errors)
    if not _are_recordings(args.scenes):
        if unknown := sorted(set(args.families or ()) - set(FAMILIES)):
            raise ConfigError(f"--families names {', '.join(unknown)}, expected some of {', '.join(FAMILIES)}")
        return open_loop.run(args, config, console, errors)
    if args.limit is not None:
        raise real_tracks.TracksError(
            f"{real_tracks.NAME} is scored whole: --limit is for sets of the proving ground, as test"
        )
    if seeing := sorted(set(args.planner) & set(LEARNED) - set(CAMERA_FREE)):
        raise real_tracks.TracksError(f"{real_tracks.NAME} has no images for {', '.join(seeing)}: use --scenes test")
    drivers = driving_scores.make_drivers(args.planner, ("",), args.random_weights)
    planners = {name: {**PLANNERS, **LEARNED}[driver.planner] for name, driver in drivers.items()}
    networks = {name: _network(config, driver) for name, driver in drivers.items() if driver.planner in LEARNED}
    folder = real_tracks.default_folder() if args.scenes == real_tracks.NAME else Path(args.scenes)
    result = evaluate(folder, planners, errors, config, networks, args.families)
    content = {"set": real_tracks.NAME, **numbers(result)}
    write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, args.planner))
    console.print(_table(result))
    for note in _notes(result):
        console.print(note)
    return 0


def _refuse_options_of_the_other_loop(args: argparse.Namespace) -> None:
    """Raises ConfigError for an option that the chosen loop does not read."""
    names = ("scenes", "limit", "privilege", "families") if args.closed_loop else ("map", "judge", "worst", "out")
    if (name := next((name for name in names if getattr(args, name) is not None), None)) is None:
        return
    if args.closed_loop:
        raise ConfigError(f"--{name} is for recorded scenes, and --closed-loop drives in worlds: leave one of them out")
    raise ConfigError(f"--{name} is for drives in closed loop: add --closed-loop, or leave it out")


def _network(config: Config, driver: Driver) -> AnyNetwork | None:
    """The network of a learned planner. Raises ModelFileError, or ConfigError for one of another kind."""
    network = cli_args.network_for(config, driver.planner, driver.random_weights)
    check_network(replace(config, planner=driver.planner), network)
    return network


def _are_recordings(scenes: str) -> bool:
    """Whether the value of --scenes names real_tracks or a folder with recordings of it."""
    return scenes == real_tracks.NAME or (
        scenes not in sets.SIZES and os.path.isdir(scenes) and any(Path(scenes).glob("*.npz"))
    )


@dataclass(eq=False)
class Result(Scores):
    """Scores of a set of recordings."""

    recordings: int = 0
    left_out: list[str] = field(default_factory=list)  # recordings without a map
    skipped: int = 0  # starts where the recorded car is off the mapped road


def evaluate(
    folder: Path,
    planners: Mapping[str, Planner],
    console: Console,
    config: Config | None = None,
    networks: Mapping[str, AnyNetwork | None] | None = None,
    sites: Sequence[str] | None = None,
) -> Result:
    """The recorded human and planners on every start of a set, or of some sites; `networks` are those of learned
    planners.

    Raises TracksError if there is nothing to score.
    """
    config, networks = config or Config(), networks or {}
    paths = real_tracks.recordings_in(folder)
    result = Result(scores={driver: [] for driver in (HUMAN, *planners)})
    found = set[str]()
    for path in track_progress(paths, "scoring", console):
        recording = real_tracks.load(path)
        found.add(recording.family)
        if sites is not None and recording.family not in sites:
            continue
        if not recording.lanes:
            result.left_out.append(recording.name)
            continue
        begun = len(result.families)
        for start in real_tracks.starts(recording, vectors=bool(VECTOR_PLANNERS & set(planners))):
            _score_start(start, planners, networks, config, result)
        result.recordings += 1
        result.skipped += len(real_tracks.start_steps(recording)) - (len(result.families) - begun)
    if unknown := sorted(set(sites or ()) - found):
        raise real_tracks.TracksError(
            f"--families names {', '.join(unknown)}; {folder} holds the sites {', '.join(sorted(found))}"
        )
    if not result.families:
        raise real_tracks.TracksError(
            f"{folder} holds no recording with a map and {real_tracks.FUTURE_S:.0f} s of driving"
        )
    return result


def _score_start(
    start: real_tracks.Start,
    planners: Mapping[str, Planner],
    networks: Mapping[str, AnyNetwork | None],
    config: Config,
    result: Result,
) -> None:
    plans = {HUMAN: start.human}
    config = replace(config, vehicle=start.vehicle)
    for name, planner in planners.items():
        try:
            plan = driving_scores.plan_once(planner, start.observation, PlannerContext(config, networks.get(name)))
            plans[name] = driving_scores.plan_waypoints(plan)[0]
        except PlanningError as fault:
            result.failures.setdefault(name, []).append(f"{start.name}: {fault}")
    rows = driving_scores.score_plans(start.scene, plans, config.scoring)
    if start.overhead:
        rows[HUMAN][MEASURES.index("comfort")] = rows[HUMAN][MEASURES.index("epdms")] = np.nan
        rows[HUMAN][MEASURES.index("pdms")] = rows[HUMAN][MEASURES.index("pdms_without_comfort")]
    result.add(start.family, rows)


# --- numbers and table -----------------------------------------------------------------------------------------------


def numbers(result: Result) -> dict[str, Any]:
    """As `driving_scores.numbers`, and what was scored, left out and failed."""
    drivers = {driver: driving_scores.summary(driver, result) for driver in result.scores}
    return {
        **driving_scores.numbers(drivers, HUMAN),
        "recordings": result.recordings,
        "left_out": result.left_out,
        "skipped": result.skipped,
        "failures": result.failures,
    }


def _table(result: Result) -> Table:
    title = f"{len(result.families)} starts of {result.recordings} recordings; means in percent"
    rows: list[tuple[str, ...]] = []
    for driver in result.scores:
        summary = driving_scores.summary(driver, result)
        for site, means in {"all": summary, **summary["families"]}.items():
            values = ("-" if means[measure] is None else f"{means[measure]:.1f}" for measure in MEASURES)
            name = driver if site == "all" else ""
            rows.append((name, site, str(means["scenes"]), *values))
        rows.append(())
    return make_table(("driver", "site", "scenes", *HEADINGS), rows, title, texts=2)


def _notes(result: Result) -> Sequence[str]:
    notes = []
    if result.left_out:
        notes.append(f"left out, no map to score by: {', '.join(result.left_out)}")
    if result.skipped:
        notes.append(f"{result.skipped} starts skipped: the recorded car is off the mapped road")
    return [*notes, *driving_scores.missing_plan_notes(result, "starts")]
