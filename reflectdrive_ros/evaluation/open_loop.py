"""`reflectdrive eval --set test`: planners and the expert, scored on scenes of the proving ground.

Open loop: each scene is planned once, from cold, with what a planner may know (its observation). The plan is driven by
the scorer's car among the others as they really went, and gets the PDM score by the rules that are used for driving. A
set that is not there is made first. Scenes of one shard share towns; the interval of a mean takes them as independent.
What a planner is told beyond its pictures is chosen by `--oracle` (see `oracle`); several make several rows of each.
With `--random-weights` each planner that has a network has a row more, of the same network with random weights: how
much of the score comes from choice and repair alone.
A planner that has learned is also scored by the best of its proposals, which only a judge who knows the future finds.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from .. import kinematics, parallel
from ..config import Config, ConfigError
from ..data import sets, shards
from ..data.scene import INSTANTS_S, DrivingScene
from ..data.shards import Index, SetError, ShardNote
from ..domain import Array, Observation, Plan
from ..planning import BLIND, LEARNED, PROPOSALS, planner_named
from ..planning.planner import PlanningError, Tools
from ..provenance import write_numbers
from ..runtime import cli_args
from ..runtime.engine import check_cameras
from . import driving_scores, scene_sets
from . import privilege as oracle_of
from .driving_scores import MEASURES, WAYPOINT_TIMES_S, Driver, Row, Scores, drivers_of

EXPERT = "expert"
RESAMPLED = 1000  # times, for the interval of a mean
COLUMNS = {"nc": "NC", "dac": "DAC", "ttc": "TTC", "comfort": "C", "ep": "EP"}
Drivers = Mapping[str, Driver]  # by name in the tables


def run(args: argparse.Namespace, config: Config, console: Console, errors: Console) -> int:
    """Exit code 0; 2 with one sentence on stderr when there is nothing to score. Raises OSError of a file."""
    try:
        folder = the_set(args.set, args.scenes, args.workers, errors)
        result = evaluate(
            folder,
            args.planner,
            config,
            args.families,
            args.limit,
            args.workers,
            errors,
            args.oracle,
            args.random_weights,
        )
    except scene_sets.FAULTS as fault:
        errors.print(escape(str(fault)), soft_wrap=True, highlight=False)
        return 2
    if args.json is not None:
        model = {"model_sha256": config.model.sha256} if result.best else {}
        told = {"oracles": args.oracle, "random_weights": args.random_weights, **model}
        content = {"set": args.set, "folder": folder.name, **told, **numbers(result)}
        write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, args.planner))
    console.print(_table(args.set, result))
    for note in (*result.damages, *driving_scores.without_a_plan(result, "scenes")):
        console.print(escape(note), soft_wrap=True, highlight=False)
    return 0


def the_set(name: str, folder: Path | None, workers: int, console: Console) -> Path:
    """Where a set lies: in `folder`, as it is, or in the usual place, whole, where it is made if it is not there.

    Raises SetError, SumoMissing, OSError.
    """
    if folder is not None:
        if not (folder / shards.INDEX).exists():
            make = shlex.join(["reflectdrive", "scenes", "--set", name, "--out", str(folder)])
            raise SetError(f"{folder} holds no set of scenes: leave --scenes out, or make one there with `{make}`")
        there = shards.index_of(folder)
        if there.set != name:
            raise SetError(f"{folder} holds the set '{there.set}', not '{name}': name it with --set {there.set}")
        return folder
    make_shard, made_by = scene_sets.the_sampler(*scene_sets.PIXELS, pictures=True)
    wanted = sets.SceneSetSpec(name, sets.SIZES[name], made_by)
    folder = sets.default_folder(name, made_by)
    if not sets.is_complete(folder, wanted):
        sentence = f"the set '{name}' is not whole in {folder}: making it, {wanted.size} scenes"
        console.print(escape(sentence), soft_wrap=True, highlight=False)
    scene_sets.made(folder, wanted, make_shard, workers, console)
    return folder


@dataclass(eq=False)
class Result(Scores):
    """What came of a set of made scenes."""

    names: list[str] = field(default_factory=list)  # of the scenes
    damages: list[str] = field(default_factory=list)  # sentences about shards that were left out


@dataclass(frozen=True)
class Part:
    """What came of one shard, and what of it was damaged."""

    scenes: tuple[ScoredScene, ...]
    damages: tuple[str, ...]


@dataclass(frozen=True)
class ScoredScene:
    """One scene, by driver."""

    name: str
    family: str
    rows: dict[str, Row]
    best: dict[str, float]  # PDMS of the best proposal, of those that have learned
    failures: dict[str, str]  # why there is no plan


def evaluate(
    folder: Path,
    planners: Sequence[str],
    config: Config,
    families: Collection[str] | None,
    limit: int | None,
    workers: int,
    console: Console,
    oracles: Sequence[str] = ("constant_velocity",),
    random_weights: bool = False,
) -> Result:
    """The expert and planners on the scenes of a set, in its order whatever the number of workers.

    With several oracles each planner drives once under each. With `random_weights` each planner that has a network
    drives once more with `runtime.network.random_network`. The rows are called as `drivers_of` tells.

    Raises SetError if there is nothing to score, ModelFileError or ConfigError for a model that cannot be used.
    """
    learned = [name for name in planners if name in LEARNED]
    for name in learned:  # a fault of the model is told once, not by every worker
        network = cli_args.network_for(config, name, random_weights=False)
        if random_weights:
            cli_args.network_for(config, name, random_weights=True)
        check_cameras(replace(config, planner=name), network)
        if network is not None and network.inputs.instants != len(INSTANTS_S):
            raise ConfigError(
                f"{config.model.file} takes images of {network.inputs.instants} instants, the scenes of a set have "
                f"{len(INSTANTS_S)}: give a model for {len(INSTANTS_S)}"
            )
    index = shards.index_of(folder)
    tasks = _tasks(index, families, limit)
    drivers = drivers_of(planners, oracles, random_weights)
    work = partial(_score_shard, folder, drivers, config, families)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("scoring", total=sum(scenes for _, scenes in tasks))
        with closing(_parts(tasks, work, workers, lambda count: progress.update(bar, completed=count))) as done:
            parts = {note.file: part for note, part in done}
    result = Result(
        scores={driver: [] for driver in (EXPERT, *drivers)},
        best={name: [] for name, driver in drivers.items() if driver.planner in learned},
    )
    for note, _ in tasks:
        for scene in parts[note.file].scenes:
            result.names.append(scene.name)
            result.add(scene.family, scene.rows, scene.best)
            for planner, reason in scene.failures.items():
                result.failures.setdefault(planner, []).append(f"{scene.name}: {reason}")
        result.damages += parts[note.file].damages
    result.damages += [f"{folder / name}.tar was never made: {reason}" for name, reason in index.missing.items()]
    if not result.names:
        said = "".join(f"; {damage}" for damage in result.damages[:1])
        raise SetError(f"{folder} holds no scene to score{said}")
    return result


def _tasks(index: Index, families: Collection[str] | None, limit: int | None) -> list[tuple[ShardNote, int]]:
    """The shards that are to be scored, with how many scenes of each."""
    tasks = []
    for note in index.shards:
        available = index.available(note, families)
        scenes = available if limit is None else min(available, limit)
        limit = None if limit is None else limit - scenes
        if scenes:
            tasks.append((note, scenes))
    return tasks


def _parts(
    tasks: Sequence[tuple[ShardNote, int]],
    work: Callable[[tuple[ShardNote, int], Callable[[int], None]], Part],
    workers: int,
    on_progress: Callable[[int], None],
) -> Generator[tuple[ShardNote, Part], None, None]:
    """(note, part) of each task, as they come."""
    done = [0] * len(tasks)

    def tell(place: int, scenes: int) -> None:
        done[place] = scenes
        on_progress(sum(done))

    try:  # one worker, too, is a process of its own: all of a crew reckon alike, on every machine
        with closing(parallel.share_out(tasks, work, workers, tell)) as outcomes:
            for outcome in outcomes:
                note, scenes = outcome.task
                lost = f"{note.file} could not be scored: {outcome.reason}; its {scenes} scenes are left out"
                yield note, outcome.result or Part((), (lost,))
    except parallel.CrewError as fault:
        raise SetError(f"nothing can be scored: {fault}") from None


def _score_shard(
    folder: Path,
    drivers: Drivers,
    config: Config,
    families: Collection[str] | None,
    task: tuple[ShardNote, int],
    report: Callable[[int], None],
) -> Part:
    note, limit = task
    damages: list[str] = []
    done = []
    scenes = shards.read_shard(
        folder,
        note,
        images=not {driver.planner for driver in drivers.values()} <= set(BLIND),
        families=families,
        limit=limit,
        on_damage=damages.append,
    )
    for scene in scenes:
        done.append(_score_scene(scene, drivers, config))
        report(len(done))
    return Part(tuple(done), tuple(damages))


def _score_scene(scene: DrivingScene, drivers: Drivers, config: Config) -> ScoredScene:
    scored = scene.scored(vehicle=config.vehicle)
    plans, best, failures = {EXPERT: scene.expert}, {}, {}
    space = not {driver.planner for driver in drivers.values()} <= set(BLIND)  # who is blind has no use for it
    told = {driver.oracle: oracle_of.observed(scene, driver.oracle, space) for driver in drivers.values()}
    for name, driver in drivers.items():
        asked = replace(config, planner=driver.planner)
        has_network = driver.planner in LEARNED
        tools = Tools(
            asked, cli_args.network_for(config, driver.planner, driver.random_weights) if has_network else None
        )
        try:
            plan = driving_scores.planned(planner_named(asked), told[driver.oracle], tools)
            plans[name] = driving_scores.waypoints(plan)[0]
            if has_network:
                proposals = _to_all_goals(plan, told[driver.oracle], tools)
                best[name] = driving_scores.best_of(scored, proposals, config.scoring)
        except PlanningError as fault:
            failures[name] = str(fault)
    rows = driving_scores.rows_of(scored, plans, config.scoring)
    return ScoredScene(scene.name, scene.family, rows, best, failures)


def _to_all_goals(plan: Plan, seen: Observation, tools: Tools) -> Array:
    """Poses (N, 8, 3) at 0.5 .. 4 s of the plan before any repair and of the plans to the other goals.

    `seen` is what this row is told: nothing else of the scene goes in. Where that tells of no objects and no drivable
    space, the planner follows one goal; then the drafts to all goals stand beside its plan.
    """
    config = tools.config
    repaired = plan.check is not None and plan.check.repairs > 0
    if repaired or (config.planner == "reflectdrive2" and not config.reflectdrive2.choose):
        config = replace(
            config,
            reflectdrive2=replace(config.reflectdrive2, choose=True, repair=False),
            reflectdrive=replace(config.reflectdrive, repair=False),
        )
        plan = driving_scores.planned(planner_named(config), seen, replace(tools, config=config))
    plans = driving_scores.waypoints(plan)
    if plan.candidates:
        return plans
    others = [kinematics.resample(each, WAYPOINT_TIMES_S) for each in PROPOSALS[config.planner](seen, tools)]
    return np.concatenate([plans, np.stack(others)])


# --- numbers and table -----------------------------------------------------------------------------------------------


def numbers(result: Result) -> dict[str, Any]:
    """Means in percent for each driver under `drivers`, and those of the first planner once more at the top."""
    drivers = {driver: _summary(driver, result) for driver in result.scores}
    first = next(name for name in drivers if name != EXPERT)
    return {
        "planner": first,
        **drivers[first],
        "drivers": drivers,
        "failures": result.failures,
        "left_out": result.damages,
    }


def _summary(driver: str, result: Result) -> dict[str, Any]:
    pdms = np.array(result.scores[driver])[:, MEASURES.index("pdms")]
    return {**driving_scores.summary(driver, result), "pdms_95": interval(pdms)}


def interval(values: Array) -> list[float]:
    """Where the mean of (N,) values lies with 95 %, in percent, by the bootstrap; the same for the same values."""
    generator = np.random.default_rng(0)
    resampled = [generator.choice(values, len(values)).mean() for _ in range(RESAMPLED)]
    return [round(100.0 * float(end), 3) for end in np.percentile(resampled, [2.5, 97.5])]


def with_interval(mean: float, ends: Sequence[float]) -> str:
    """A difference and its 95 % interval, as "+1.00 (-0.20 .. +2.10)"."""
    return f"{mean:+.2f} ({ends[0]:+.2f} .. {ends[1]:+.2f})"


def _table(name: str, result: Result) -> Table:
    title = f"set '{name}', {len(result.names)} scenes, open loop; means in percent"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("driver")
    table.add_column("family")
    best = ["best of K"] if result.best else []
    for heading in ("scenes", "PDMS", "95 %", *COLUMNS.values(), *best):
        table.add_column(heading, justify="right")
    for driver in result.scores:
        summary = _summary(driver, result)
        for family, means in {"all": summary, **summary["families"]}.items():
            low, high = means.get("pdms_95", (None, None))
            table.add_row(
                driver if family == "all" else "",
                family,
                str(means["scenes"]),
                f"{means['pdms']:.1f}",
                "" if low is None else f"{low:.1f} - {high:.1f}",
                *(f"{means[column]:.1f}" for column in COLUMNS),
                *(f"{means['best_of_k']:.1f}" if "best_of_k" in means else "" for _ in best),
                end_section=family == max(result.families),
            )
    return table
