"""`reflectdrive eval --scenes test`: PDM scores of planners and of the expert on proving-ground scenes, open loop.

Each scene is planned once from the planner's initial state. The scorer simulates the plan with its own vehicle model;
other agents follow their recorded tracks. A missing scene set is generated first. Confidence intervals treat scenes as
independent, although scenes of one shard share a road network.

`--privilege` chooses the planner's inputs beyond images (`evaluation.privilege`); several privileges give one row each.
`--random-weights` adds a row with random network weights: the part of the score due to selection and repair. Learned
planners also report the score of their best proposal, an upper bound for selection. Of several planners or variants
(`evaluation.variants`) a second table has the differences, paired by scene, to the first with the same privilege.

Beside the score: the distance to the driven path (`evaluation.displacement`), by scenario tag and, in sets made of
recordings, by place. DAC and PDMS are means over scenes with a map, NC and TTC over scenes with known objects.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import kinematics
from ..core.config import Config
from ..core.domain import Array, Observation, Plan
from ..data import sets, shards
from ..data.scene import DrivingScene
from ..data.shards import Index, SetError, ShardNote
from ..infra import parallel
from ..infra.command import make_table
from ..infra.files import path_text
from ..infra.progress import ShownProgress
from ..infra.provenance import write_numbers
from ..infra.storage import location
from ..planning import generator_spec, get_planner
from ..planning.planner import AnyNetwork, PlannerContext, PlanningError
from ..scoring.scorer import WAYPOINT_TIMES_S
from . import displacement, driving_scores, scene_sets
from . import privilege as privileges_of
from .bootstrap import percent_interval
from .driving_scores import MEASURES, PARTS, Row, Scores
from .remembered import remembering
from .variants import NetworkKey, Variants, check, references, weights_of

EXPERT = "expert"
ALL = "all"  # scenes
UNKNOWN_WITHOUT_OBJECTS = ("pdms", "nc", "ttc", "pdms_without_comfort", "epdms")
LOCALITIES_MAX = 12


def run(args: argparse.Namespace, config: Config, variants: Variants, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if scenes of the set are left out. Raises UserError when there is nothing to score, OSError of a
    file.
    """
    folder = resolve_scene_set(args.scenes, args.workers, errors, None if args.families else args.limit)
    set_name = shards.index_of(folder).set
    result = evaluate(folder, variants, config, args.families, args.limit, args.workers, errors)
    models = [variant.config.model.sha256 for variant in variants.values() if variant.is_learned]
    model = {"model_sha256": models[0]} if models else {}
    random_weights = args.random_weights or args.only_random_weights
    options = {"privileges": args.privilege, "random_weights": random_weights, **model}
    scores = numbers(result)
    content = {"set": set_name, "folder": folder.name, **options, **scores}
    write_numbers(args.json, content, weights_sha256=weights_of(variants))
    console.print(_table(set_name, result, scores["drivers"], args.by_family))
    if scores["differences"]:
        console.print(driving_scores.difference_table(scores["differences"], args.by_family))
    console.print(_displacement_table(result, scores["drivers"], args.by_family))
    for note in (*_unknown_notes(result), *result.damages, *driving_scores.missing_plan_notes(result, "scenes")):
        console.print(note)
    return 1 if result.damages else 0


def resolve_scene_set(scenes: str, workers: parallel.Workers, console: Console, limit: int | None = None) -> Path:
    """The folder of a scene set. `scenes` is a folder, or the name of a set, which is generated first where missing:
    all of it, or the first shards that hold `limit` scenes.

    Raises SetError, SumoMissing, OSError.
    """
    if scenes not in sets.SIZES:
        folder = location(scenes)
        if not (folder / shards.INDEX).exists():
            make = shlex.join(["reflectdrive", "scenes", "--out", scenes])
            names = ", ".join(sets.SIZES)
            raise SetError(
                f"{path_text(folder)} holds no scene set: name one of {names}, or make one there with `{make}`"
            )
        return folder
    make_shard, generator = scene_sets.make_sampler(*scene_sets.IMAGE_SIZE, images=True)
    whole = sets.SceneSetSpec(scenes, sets.SIZES[scenes], generator)
    spec = whole if limit is None else sets.first_part(whole, limit)
    folder = sets.default_folder(scenes, generator)
    while True:
        if not sets.is_complete(folder, spec):
            part = f"it, {spec.size} scenes" if spec == whole else f"its first {spec.size} of {whole.size} scenes"
            console.print(f"the set '{scenes}' is not whole in {folder}: making {part}")
        index, _ = scene_sets.ensure_scene_set(folder, spec, make_shard, workers, console)
        if limit is None or index.scenes >= limit or spec.size >= whole.size:
            return folder
        spec = sets.first_part(whole, spec.size + 1)  # a shard may hold fewer scenes than was requested


@dataclass(eq=False)
class Result(Scores):
    """Scores of a generated scene set."""

    names: list[str] = field(default_factory=list)  # of the scenes
    localities: list[str] = field(default_factory=list)  # of each scene, empty where it has none
    distances: dict[str, list[Array]] = field(default_factory=dict)  # by driver, (8,) m of each scene
    expected: int = 0  # scenes of the set that were to be scored
    without_map: int = 0  # scenes
    without_objects: int = 0  # scenes
    damages: list[str] = field(default_factory=list)  # sentences about skipped shards


@dataclass(frozen=True)
class ShardScores:
    """Scores of one shard, and sentences about its damaged scenes."""

    scenes: tuple[ScoredScene, ...]
    damages: tuple[str, ...]


@dataclass(frozen=True)
class ScoredScene:
    """Scores of one scene by driver."""

    name: str
    family: str
    locality: str
    has_map: bool
    has_objects: bool
    rows: dict[str, Row]
    distances: dict[str, Array]  # (8,) m to the driven path
    best: dict[str, float]  # PDMS of the best proposal, of learned planners
    failures: dict[str, str]  # why there is no plan, by driver


def evaluate(
    folder: Path,
    variants: Variants,
    config: Config,
    families: Collection[str] | None,
    limit: int | None,
    workers: parallel.Workers,
    console: Console,
) -> Result:
    """The expert and the rows on the scenes of a set, in its order whatever the number of workers.

    `config` has the vehicle and the rules of the score, which are the same for all rows.

    Raises SetError if there is nothing to score, ModelFileError or ConfigError for a model that cannot be used.
    """
    check(variants, scene_images=True)
    index = shards.index_of(folder)
    tasks = shard_tasks(index, families, limit)
    work = partial(_score_shard, folder, variants, config, families)
    with ShownProgress(console) as progress:
        bar = progress.add_task("scoring", total=sum(scenes for _, scenes in tasks))
        with closing(_score_shards(tasks, work, workers, lambda count: progress.update(bar, completed=count))) as done:
            parts = {note.file: part for note, part in done}
    result = Result(
        scores={driver: [] for driver in (EXPERT, *variants)},
        best={name: [] for name, variant in variants.items() if generator_spec(variant.config).proposals is not None},
        references=references(variants),
        distances={driver: [] for driver in variants},
        expected=expected_scenes(index, families, limit),
    )
    for note, _ in tasks:
        for scene in parts[note.file].scenes:
            result.names.append(scene.name)
            result.localities.append(scene.locality)
            result.add(scene.family, scene.rows, scene.best)
            for driver, each in result.distances.items():
                each.append(scene.distances.get(driver, displacement.NO_PLAN))
            result.without_map += not scene.has_map
            result.without_objects += not scene.has_objects
            for planner, reason in scene.failures.items():
                result.failures.setdefault(planner, []).append(f"{scene.name}: {reason}")
        result.damages += parts[note.file].damages
    if limit is None or len(result.names) < limit:
        result.damages += [f"{folder}/{fault}" for fault in index.faults]
    if not result.names:
        reason = "".join(f"; {damage}" for damage in result.damages[:1])
        raise SetError(f"{folder} holds no scene to score{reason}")
    return result


def shard_tasks(index: Index, families: Collection[str] | None, limit: int | None) -> list[tuple[ShardNote, int]]:
    """The shards to be scored, each with its number of scenes: the first ones that hold `limit` scenes together."""
    tasks = []
    for note in index.distinct:
        available = index.available(note, families)
        scenes = available if limit is None else min(available, limit)
        limit = None if limit is None else limit - scenes
        if scenes:
            tasks.append((note, scenes))
    return tasks


def expected_scenes(index: Index, families: Collection[str] | None, limit: int | None) -> int:
    """Number of scenes to be scored of a set without damage, by its index."""
    listed = sum(index.available(note, families) for note in index.shards)
    expected = max(listed, index.size) if index.missing and families is None else listed
    return expected if limit is None else min(expected, limit)


def _score_shards(
    tasks: Sequence[tuple[ShardNote, int]],
    work: Callable[[tuple[ShardNote, int], Callable[[int], None]], ShardScores],
    workers: parallel.Workers,
    on_progress: Callable[[int], None],
) -> Generator[tuple[ShardNote, ShardScores], None, None]:
    """(note, scores) of each task, in order of completion."""
    done = [0] * len(tasks)

    def report_progress(index: int, scenes: int) -> None:
        done[index] = scenes
        on_progress(sum(done))

    try:  # also a single worker is a separate process: all workers use the same SIMD instructions
        with closing(parallel.map_restartable(tasks, work, workers, report_progress)) as outcomes:
            for outcome in outcomes:
                note, scenes = outcome.task
                lost = f"{note.file} could not be scored: {outcome.reason}; its {scenes} scenes are left out"
                yield note, outcome.result or ShardScores((), (lost,))
    except parallel.WorkerPoolError as fault:
        raise SetError(f"nothing can be scored: {fault}") from None


def _score_shard(
    folder: Path,
    variants: Variants,
    config: Config,
    families: Collection[str] | None,
    task: tuple[ShardNote, int],
    report: Callable[[int], None],
) -> ShardScores:
    note, limit = task
    damages: list[str] = []
    done = []
    scenes = shards.read_shard(
        folder,
        note,
        images=any(variant.uses_images for variant in variants.values()),
        families=families,
        limit=limit,
        on_damage=damages.append,
    )
    for scene in scenes:
        done.append(_score_scene(scene, variants, config))
        report(len(done))
    return ShardScores(tuple(done), tuple(damages))


def _score_scene(scene: DrivingScene, variants: Variants, config: Config) -> ScoredScene:
    scored = scene.scored(vehicle=config.vehicle)
    plans, best, failures = {EXPERT: scene.expert}, {}, {}
    observations = {
        variant.privilege: privileges_of.observe(scene, variant.privilege, with_vectors=True)
        for variant in variants.values()
    }
    networks: dict[NetworkKey, AnyNetwork] = {}  # rows that share one decode a scene once
    for name, variant in variants.items():
        keys, loaded = variant.network_keys, variant.networks()
        for planner, key in keys.items():
            networks.setdefault(key, remembering(loaded[planner]))
        own = {planner: networks[key] for planner, key in keys.items()}
        context = PlannerContext.of(variant.config, own)
        observation = privileges_of.without(observations[variant.privilege], variant.lost)
        try:
            plan = driving_scores.plan_once(variant.planner(), observation, context)
            plans[name] = driving_scores.plan_waypoints(plan)[0]
            if generator_spec(variant.config).proposals is not None:
                proposals = _plan_waypoints_to_all_goals(plan, observation, context)
                best[name] = driving_scores.best_score(scored, proposals, config.scoring)
        except PlanningError as fault:
            failures[name] = str(fault)
    rows = driving_scores.score_plans(scored, plans, config.scoring)
    if not scene.has_objects:
        for row, name in product(rows.values(), UNKNOWN_WITHOUT_OBJECTS):
            row[MEASURES.index(name)] = float("nan")
    distances = {name: displacement.distances(plan, scene.expert) for name, plan in plans.items() if name in variants}
    locality = str(scene.notes.get("place", ""))
    has = scene.has_map, scene.has_objects
    return ScoredScene(scene.name, scene.family, locality, *has, rows, distances, best, failures)


def _plan_waypoints_to_all_goals(plan: Plan, observation: Observation, context: PlannerContext) -> Array:
    """Poses (N, 8, 3) at 0.5 .. 4 s of the plan before any repair and of the plans to the other goals.

    `observation` is the observation of this row's privilege; nothing else of the scene is used. Without objects and
    drivable area the planner follows one goal; then the drafts to all goals are appended to its plan.
    """
    config = context.config
    repaired = plan.check is not None and plan.check.repairs > 0
    if repaired or config.pipeline.vary or not config.pipeline.select:
        config = replace(config, pipeline=replace(config.pipeline, vary=False, select=True, repair=False))
        plan = driving_scores.plan_once(get_planner(config), observation, replace(context, config=config))
    plans = driving_scores.plan_waypoints(plan)
    if plan.candidates:
        return plans
    proposals = generator_spec(config).proposals
    if proposals is None:
        return plans
    others = [kinematics.resample(each, WAYPOINT_TIMES_S) for each in proposals(observation, context)]
    return np.concatenate([plans, np.stack(others)])


# --- numbers and table -----------------------------------------------------------------------------------------------


def numbers(result: Result) -> dict[str, Any]:
    """As `driving_scores.numbers`, and what was unknown, failed and left out."""
    return {
        **driving_scores.numbers({driver: _summary(driver, result) for driver in result.scores}, EXPERT, result),
        "without_map": result.without_map,
        "without_objects": result.without_objects,
        "failures": result.failures,
        "expected_scenes": result.expected,
        "left_out": result.damages,
    }


def _summary(driver: str, result: Result) -> dict[str, Any]:
    """All measures of a driver over the set, and under `families` and `places` over those of each."""
    whole = driving_scores.summary(driver, result)
    everywhere = np.ones(len(result.names), bool)
    tags, localities = np.array(result.families), np.array(result.localities)
    return {
        **whole,
        **_measures(driver, result, everywhere),
        "families": {
            tag: {**means, **_measures(driver, result, tags == tag)} for tag, means in whole["families"].items()
        },
        "places": {
            name: {
                **driving_scores.mean_scores(np.array(result.scores[driver])[localities == name]),
                **_measures(driver, result, localities == name),
            }
            for name in sorted({*result.localities} - {""})
        },
    }


def _measures(driver: str, result: Result, selected: Array) -> dict[str, Any]:
    """The intervals of a driver's scores in the selected scenes (N,) bool, and its distances to the driven path."""
    measures: dict[str, Any] = {}
    for name, values in zip(MEASURES, np.array(result.scores[driver])[selected].T, strict=True):
        finite = values[np.isfinite(values)]  # PDMS of scenes without a map is unknown
        measures[f"{name}_95"] = percent_interval(finite) if len(finite) else [None, None]
    if driver in result.distances:
        measures["displacement"] = displacement.summarise(np.array(result.distances[driver])[selected])
    return measures


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _table(name: str, result: Result, drivers: Mapping[str, Any], by_family: bool) -> Table:
    scenes = f"{len(result.names)} of {result.expected} scenes" if result.damages else f"{len(result.names)} scenes"
    title = f"set '{name}', {scenes}, open loop; means in percent"
    best = ["best of K"] if result.best else []
    rows: list[tuple[str, ...]] = []
    for driver, summary in drivers.items():
        for family, means in _parts(summary, by_family):
            low, high = means.get("pdms_95", (None, None))
            rows.append(
                (
                    driver if family == ALL else "",
                    *([family, str(means["scenes"])] if by_family else []),
                    _percent(means["pdms"]),
                    "" if low is None else f"{low:.1f} - {high:.1f}",
                    *(_percent(means[column]) for column in PARTS),
                    *(f"{means['best_of_k']:.1f}" if "best_of_k" in means else "" for _ in best),
                )
            )
        if by_family:
            rows.append(())
    headings = ("driver", *(["family", "scenes"] if by_family else []), "PDMS", "95 %", *PARTS.values(), *best)
    return make_table(headings, rows, title, texts=2 if by_family else 1)


def _parts(summary: Mapping[str, Any], by_family: bool) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The means over all scenes and, `by_family`, over those of each family."""
    return [(ALL, summary), *(summary["families"].items() if by_family else ())]


def _displacement_table(result: Result, drivers: Mapping[str, Any], by_family: bool) -> Table:
    """ADE and FDE; `by_family` by scenario tag and place too, the most frequent places only."""
    frequent = {name for name, _ in Counter(filter(None, result.localities)).most_common(LOCALITIES_MAX)}
    rows: list[tuple[str, ...]] = []
    for driver in result.distances:
        summary = drivers[driver]
        localities = {name: means for name, means in summary["places"].items() if name in frequent}
        more = localities.items() if by_family and len(localities) > 1 else ()
        for part, means in [*_parts(summary, by_family), *more]:
            errors = means["displacement"]
            low, high = errors["ade_m_95"]["3"] or (None, None)
            cells = [errors[name][str(horizon)] for name in ("ade_m", "fde_m") for horizon in displacement.HORIZONS_S]
            rows.append(
                (
                    driver if part == ALL else "",
                    *([part] if by_family else []),
                    str(errors["plans"]),
                    *("-" if cell is None else f"{cell:.2f}" for cell in cells),
                    "-" if low is None else f"{low:.2f} - {high:.2f}",
                    f"{errors['miss_rate']:.0f}",
                )
            )
        if by_family:
            rows.append(())
    headings = [f"{name} {horizon} s" for name in ("ADE", "FDE") for horizon in displacement.HORIZONS_S]
    title = f"distance to the driven path in m; missed: more than {displacement.MISS_M:.0f} m at 4 s"
    columns = ("driver", *(["part"] if by_family else []), "plans", *headings, "95 % of ADE 3 s", "missed %")
    return make_table(columns, rows, title, texts=2 if by_family else 1)


def _unknown_notes(result: Result) -> list[str]:
    """One sentence for what the scenes do not tell."""
    scenes = len(result.names)
    parts = (
        (result.without_map, "have no map", "DAC and PDMS"),
        (result.without_objects, "have no objects", "NC, TTC and PDMS"),
    )
    return [
        f"{count} of {scenes} scenes {lack}: {names} are {'unknown' if count == scenes else 'means over the others'}"
        for count, lack, names in parts
        if count
    ]
