"""`reflectdrive bench editing --model RUN RUN .. --scenes val`: what a planner's corrections of its own plans bring.

One row per weights: PDMS of the plan before and after its edit rounds (ReflectDrive-2, Table 3) or, with --planner
drivefine, before and after the refinement expert (DriveFine, Table 4), and the gain, paired by scene. Further columns
compare the plan with that of the first weights. If a network predicts scores of plans, `ranked` is its choice among the
finished plans, and `best` the best of them by the true score, an upper bound. A network of reflectdrive2 that has a
refinement expert too has a column `refined`: the same draft, corrected by the expert in place of AutoEdit.

Every plan is that of a full step under one privilege, `route` by default. Intervals are 95 % bootstrap intervals over
scenes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import kinematics
from ..core.config import Config, ModelConfig, override_dotted
from ..core.domain import PLAN_DT_S, Array, Observation
from ..data import shards
from ..data.scene import DrivingScene
from ..data.shards import SetError, ShardNote
from ..evaluation import driving_scores, open_loop, privilege
from ..infra import arguments, parallel
from ..infra.command import HelpFormatter, command, make_table
from ..infra.files import sha256_of
from ..infra.progress import ShownProgress
from ..infra.provenance import write_numbers
from ..planning import LEARNED
from ..planning.planner import PlannerContext, network_inputs
from ..planning.postprocess.comfort import relax_profile
from ..planning.postprocess.waypoints import postprocess, trajectories
from ..runtime import cli_args
from ..runtime.model_file import model_config
from ..scoring.scorer import SUB_SCORES, WAYPOINT_TIMES_S

WEIGHTS = "weights.safetensors"
VARIANTS = ("draft", "plan", "refined", "ranked", "best")
UNCORRECTED: dict[str, dict[str, Any]] = {  # planner -> settings of its section without corrections
    "reflectdrive2": {"edit_rounds": 0},
    "drivefine": {"refine": False},
}
Scored = dict[str, list[float]]  # MEASURES of each variant, in 0..1


@dataclass(frozen=True)
class Task:
    """Scenes of one shard for one model."""

    note: ShardNote
    limit: int
    model: ModelConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    parser.add_argument(
        "--model", type=Path, nargs="+", required=True, metavar="DIR", help="runs, or folders of weights"
    )
    cli_args.add_scenes_argument(parser, "val")
    parser.add_argument(
        "--planner", default="reflectdrive2", choices=tuple(UNCORRECTED), help="planner (default: reflectdrive2)"
    )
    parser.add_argument(
        "--limit", type=arguments.positive_int(10**6), metavar="N", help="scenes, spread over the families of the set"
    )
    parser.add_argument("--privilege", default="route", choices=("words", "route"), help="inputs of the planner")
    arguments.add_workers_arguments(parser, "--workers", 2, "processes")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if there is nothing to plan for."""
    config = override_dotted(Config(planner=args.planner), arguments.settings_of(args.settings))
    models = {str(folder): _model(folder, config) for folder in args.model}
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, args.limit)
    rows = measure(folder, models, config, args.privilege, args.limit, args.workers, errors)
    numbers = summarise(rows)
    content = {"set": shards.index_of(folder).set, "privilege": args.privilege, "rows": numbers}
    write_numbers(args.json, content, weights_sha256=", ".join(model.sha256 for model in models.values()))
    scenes = len(next(iter(rows.values())))
    console.print(
        _table(f"set '{content['set']}', {scenes} scenes, privilege {args.privilege}; PDMS in percent", numbers)
    )


def _model(folder: Path, config: Config) -> ModelConfig:
    """Raises ModelFileError."""
    found = model_config(str(folder / WEIGHTS), sha256_of(folder / WEIGHTS))
    return replace(config.model, file=found.file, sha256=found.sha256, backend="torch", threads=1)


def measure(
    folder: Path,
    models: dict[str, ModelConfig],
    config: Config,
    privilege_name: str,
    limit: int | None,
    workers: parallel.Workers,
    errors: Console,
) -> dict[str, list[Scored]]:
    """Scores of every variant by model, of the same scenes in the same order. Raises SetError."""
    notes = open_loop.shard_tasks(shards.index_of(folder), None, limit)
    tasks = [Task(note, count, model) for model in models.values() for note, count in notes]
    work = partial(_score_shard, folder, config, privilege_name)
    found: dict[tuple[str, str], list[Scored]] = {}
    with ShownProgress(errors) as progress:
        bar = progress.add_task("planning", total=sum(task.limit for task in tasks))
        with closing(parallel.map_restartable(tasks, work, workers)) as outcomes:
            for outcome in outcomes:
                if outcome.result is None:
                    raise SetError(f"{outcome.task.note.file} could not be scored: {outcome.reason}")
                found[outcome.task.model.file, outcome.task.note.file] = outcome.result
                progress.advance(bar, outcome.task.limit)
    rows = {name: [row for note, _ in notes for row in found[model.file, note.file]] for name, model in models.items()}
    if not any(rows.values()):
        raise SetError(f"{folder} holds no scene to plan for")
    return rows


def _score_shard(
    folder: Path, config: Config, privilege_name: str, task: Task, report: Callable[[Any], None]
) -> list[Scored]:
    asked = replace(config, model=task.model)
    damages: list[str] = []
    scenes = shards.read_shard(folder, task.note, images=True, limit=task.limit, on_damage=damages.append)
    found = [score_scene(scene, asked, privilege_name) for scene in scenes]
    if damages:
        raise SetError(damages[0])
    return found


def score_scene(scene: DrivingScene, config: Config, privilege_name: str) -> Scored:
    """MEASURES of the plan before and after editing and, if the network predicts scores, of its choice and of the best
    finished plan.
    """
    network, recipe = cli_args.network_for(config, config.planner, random_weights=False), config.planner
    assert network is not None
    observation = privilege.observe(scene, privilege_name)
    plans: dict[str, Array] = {}
    changes: dict[str, dict[str, Any]] = {"draft": UNCORRECTED[recipe], "plan": {}}
    if "plan_value" in network.capabilities:
        changes["ranked"] = {"rank_plans": True}
    for name, change in changes.items():
        settings = replace(getattr(config, recipe), **change)
        context = PlannerContext(replace(config, **{recipe: settings}), network)
        waypoints = driving_scores.plan_waypoints(driving_scores.plan_once(LEARNED[recipe], observation, context))
        plans[name] = waypoints[0]
        if name == "ranked":
            plans |= {f"candidate {place}": each for place, each in enumerate(waypoints)}
    if recipe == "reflectdrive2" and "refine" in network.capabilities:
        plans["refined"] = refined_waypoints(observation, PlannerContext(config, network))
    rows = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), plans, config.scoring)
    candidates = [row for name, row in rows.items() if name.startswith("candidate")]
    found = {name: row for name, row in rows.items() if not name.startswith("candidate")}
    if candidates:
        found["best"] = max(candidates, key=lambda row: row[0])
    return found


def refined_waypoints(observation: Observation, context: PlannerContext) -> Array:
    """(8, 3) poses at 0.5 .. 4 s of the draft of reflectdrive2 after one pass of a refinement expert."""
    settings = replace(context.config.reflectdrive2, **UNCORRECTED["reflectdrive2"])
    draft = driving_scores.plan_once(
        LEARNED["reflectdrive2"],
        observation,
        replace(context, config=replace(context.config, reflectdrive2=settings)),
    )
    network, inputs = network_inputs("bench editing", observation, context, frozenset({"refine"}))
    assert draft.tokens is not None
    ids, _ = network.refine(network.prefill(inputs), draft.tokens[None])
    known, layout = context.safety_context(observation), network.layout
    points = postprocess(layout.decode(ids)[..., :2], observation.ego, layout.waypoint_noise_m, known.road)
    sent = relax_profile(points[0], known)
    (trajectory,) = trajectories(sent[None], observation.ego.speed_mps, PLAN_DT_S, known.road)
    return kinematics.resample(trajectory, WAYPOINT_TIMES_S)


def summarise(rows: dict[str, list[Scored]]) -> dict[str, dict[str, Any]]:
    """By model: mean scores in percent, the gain of editing, and the difference to the first model's plan."""
    first = next(iter(rows.values()))
    numbers = {}
    for name, scored in rows.items():
        pdms = {variant: np.array([row[variant][0] for row in scored]) for variant in VARIANTS if variant in scored[0]}
        means = np.array([row["plan"] for row in scored])
        own: dict[str, Any] = {variant: round(100.0 * float(values.mean()), 3) for variant, values in pdms.items()}
        for measure in SUB_SCORES:
            own[measure] = round(100.0 * float(np.nanmean(means[:, driving_scores.MEASURES.index(measure)])), 3)
        own["gain"], own["gain_95"] = _difference(pdms["plan"], pdms["draft"])
        if "refined" in pdms:
            own["refined_gain"], own["refined_gain_95"] = _difference(pdms["refined"], pdms["draft"])
            own["refined_less_plan"], own["refined_less_plan_95"] = _difference(pdms["refined"], pdms["plan"])
        own["to_first"], own["to_first_95"] = _difference(pdms["plan"], np.array([row["plan"][0] for row in first]))
        numbers[name] = own
    return numbers


def _difference(values: Array, other: Array) -> tuple[float, list[float]]:
    return round(100.0 * float((values - other).mean()), 3), open_loop.bootstrap_interval(values - other)


def _table(title: str, numbers: dict[str, dict[str, Any]]) -> Table:
    heads = ("weights", "before", "after", "gain (95 %)", "to the first (95 %)", "NC", "DAC", "TTC", "C", "EP")
    more = [name for name in ("refined", "ranked", "best") if any(name in row for row in numbers.values())]
    cells = []
    for name, row in numbers.items():
        differences = [open_loop.format_difference(row[key], row[f"{key}_95"]) for key in ("gain", "to_first")]
        cells.append(
            (
                name,
                *(f"{row[key]:.1f}" for key in ("draft", "plan")),
                *differences,
                *(f"{row[key]:.1f}" for key in SUB_SCORES),
                *(f"{row[key]:.1f}" if key in row else "" for key in more),
            )
        )
    return make_table((*heads, *more), cells, title)
