"""`reflectdrive bench reflection --scenes val`: the effect of guidance and reflection on the plans of reflexdiffusion.

One row per variant: `base` samples with all conditions, `guidance` with classifier-free guidance, `reflection` does
steps with a low confidence once more (ReflexDiffusion, Table 6). Differences to `base` are paired by scene, with 95 %
bootstrap intervals. `reflected` is the share of plans with at least one reflected step, `steps` the share of all steps
that are reflected, `kept` the share of reflections that raised the confidence. Times are medians of a plan on one
thread.

Plans are neither chosen among several nor repaired, so that the rows show the network alone. A second table has the
scenes near the limits of handling, the family high_lateral_acceleration, a third one all others.

With `--closed-loop` each variant drives the same generated worlds with a bend ahead, with reactive traffic and, unless
`reflexdiffusion.repair` is false, with repair. Differences are then paired by world.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..core.domain import Array
from ..data import shards
from ..data.scene import DrivingScene
from ..data.shards import SetError, ShardNote
from ..evaluation import driving_scores, open_loop, privilege
from ..infra import arguments
from ..infra.command import HelpFormatter, command, make_table
from ..infra.parallel import Workers
from ..infra.provenance import write_numbers
from ..planning import reflexdiffusion
from ..planning.planner import PlannerContext, PlannerState
from ..runtime import cli_args
from ..runtime.engine import check_network
from ..scoring.scorer import SUB_SCORES
from . import reflection_drives
from .reflection_variants import BASE, PLANNER, Variant, configured, make_variants
from .shard_results import plan_shards

LIMITS = "high_lateral_acceleration"  # family of the second table
ELSEWHERE = "elsewhere"
FIRST_SEED = 9000  # of closed loops; those of other tables are smaller


@dataclass(frozen=True)
class PlanResult:
    """One plan: its scores, MEASURES in 0..1, and its reflections."""

    scores: list[float]
    reflected: int
    kept: int
    ms: float


@dataclass(frozen=True)
class SceneResult:
    """The plans of one scene by variant."""

    family: str
    plans: Mapping[str, PlanResult]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    cli_args.add_scenes_argument(parser, "val")
    parser.add_argument(
        "--limit", type=arguments.positive_int(10**6), metavar="N", help="scenes, spread over the families of the set"
    )
    parser.add_argument(
        "--families", nargs="+", metavar="NAME", help="scenes of these families only, such as high_lateral_acceleration"
    )
    parser.add_argument(
        "--guidance", type=arguments.Range(0.0, 3.0), nargs="+", metavar="W", help="weights (default: the setting)"
    )
    parser.add_argument("--privilege", default="objects", choices=privilege.PRIVILEGES, help="inputs of the planner")
    arguments.add_workers_arguments(parser, "--workers", 2, "processes")
    parser.add_argument("--closed-loop", action="store_true", help="drive in generated worlds with a bend ahead")
    parser.add_argument(
        "--seeds", type=arguments.positive_int(1000), default=20, metavar="N", help="closed loop: number of worlds"
    )
    parser.add_argument(
        "--first-seed",
        type=arguments.SEED,
        default=FIRST_SEED,
        metavar="N",
        help="closed loop: the first that is examined",
    )
    parser.add_argument(
        "--duration", type=arguments.duration(1.0, 3600.0), default=30.0, metavar="S", help="closed loop: of a drive"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (YAML)")
    cli_args.add_model_arguments(parser)
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    parser.set_defaults(planner=PLANNER)


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if there is nothing to plan for."""
    config = cli_args.configuration(args)
    variants = make_variants(args.guidance or [config.reflexdiffusion.guidance])
    if args.closed_loop:
        content, tables = _drive(args, config, variants, errors)
    else:
        content, tables = _plan(args, config, variants, errors)
    write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, [PLANNER]))
    for each in tables:
        console.print(each)


def _plan(
    args: argparse.Namespace, config: Config, variants: list[Variant], errors: Console
) -> tuple[dict[str, Any], list[Table]]:
    """Numbers and tables, open loop. Raises SetError."""
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, None if args.families else args.limit)
    found = measure(folder, variants, config, args.privilege, args.families, args.limit, args.workers, errors)
    groups = group_scenes(found)
    steps = config.reflexdiffusion.steps
    rows = {name: summarise(some, variants, steps) for name, some in groups.items()}
    index = shards.index_of(folder)
    content = {
        "set": index.set,
        "first": int(index.made_by.get("first", 0)),
        "privilege": args.privilege,
        "scenes": len(found),
        "scenes_of": {name: len(some) for name, some in groups.items()},
        "rows": rows,
    }
    title = f"set '{index.set}', privilege {args.privilege}"
    return content, [_table(f"{title}, {name}: {len(groups[name])} scenes", row) for name, row in rows.items()]


def _drive(
    args: argparse.Namespace, config: Config, variants: list[Variant], errors: Console
) -> tuple[dict[str, Any], list[Table]]:
    """Numbers and table, closed loop. Raises UserError."""
    check_network(config, cli_args.network_for(config, PLANNER, random_weights=False))
    seeds = reflection_drives.find_worlds(args.first_seed, args.seeds, config, args.workers, errors)
    drives = reflection_drives.measure(variants, seeds, args.duration, config, args.workers, errors)
    rows = reflection_drives.summarise(drives, variants, seeds, config.reflexdiffusion.steps)
    content = {"worlds": seeds, "duration_s": args.duration, "repair": config.reflexdiffusion.repair, "drives": rows}
    title = f"{len(seeds)} worlds with a bend, {args.duration:g} s each, {'with' if content['repair'] else 'no'} repair"
    return content, [reflection_drives.table(title, rows)]


def group_scenes(found: list[SceneResult]) -> dict[str, list[SceneResult]]:
    """All scenes, those near the limits of handling, and all others; a group that is empty or all is left out."""
    groups = {
        LIMITS: [scene for scene in found if scene.family == LIMITS],
        ELSEWHERE: [scene for scene in found if scene.family != LIMITS],
    }
    return {"all": found, **{name: some for name, some in groups.items() if 0 < len(some) < len(found)}}


def measure(
    folder: Path,
    variants: list[Variant],
    config: Config,
    privilege_name: str,
    families: list[str] | None,
    limit: int | None,
    workers: Workers,
    errors: Console,
) -> list[SceneResult]:
    """Plans of every variant, in the order of the scenes. Raises SetError."""
    tasks = open_loop.shard_tasks(shards.index_of(folder), families, limit)
    work = partial(_plan_shard, folder, variants, config, privilege_name, families)
    return plan_shards(folder, tasks, work, workers, errors)


def _plan_shard(
    folder: Path,
    variants: list[Variant],
    config: Config,
    privilege_name: str,
    families: list[str] | None,
    task: tuple[ShardNote, int],
    report: Callable[[Any], None],
) -> list[SceneResult]:
    note, limit = task
    damages: list[str] = []
    scenes = shards.read_shard(folder, note, images=False, families=families, limit=limit, on_damage=damages.append)
    found = [plan_scene(scene, variants, config, privilege_name) for scene in scenes]
    if damages:
        raise SetError(damages[0])
    return found


def plan_scene(scene: DrivingScene, variants: list[Variant], config: Config, privilege_name: str) -> SceneResult:
    """The plans of one scene, without repair."""
    network = cli_args.network_for(config, PLANNER, random_weights=False)
    observation = privilege.observe(scene, privilege_name, with_vectors=True)
    waypoints: dict[str, Array] = {}
    reports: dict[str, tuple[int, int, float]] = {}
    for variant in variants:
        context = PlannerContext(configured(config, variant, repair=False), network)
        begun = time.perf_counter()
        state, plan = reflexdiffusion.plan(PlannerState(), observation, context)
        ms = 1e3 * (time.perf_counter() - begun)
        assert isinstance(state.memory, reflexdiffusion.Memory)
        reflections = state.memory.reflections
        waypoints[variant.name] = driving_scores.plan_waypoints(plan)[0]
        reports[variant.name] = len(reflections), sum(each.kept for each in reflections), ms
    rows = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), waypoints, config.scoring)
    return SceneResult(scene.family, {name: PlanResult(rows[name], *reports[name]) for name in rows})


def summarise(scenes: list[SceneResult], variants: list[Variant], steps: int) -> dict[str, dict[str, Any]]:
    """By variant: mean scores in percent, the difference to `base`, shares of reflections, and the time."""
    base = np.array([scene.plans[BASE].scores[0] for scene in scenes])
    numbers = {}
    for variant in variants:
        plans = [scene.plans[variant.name] for scene in scenes]
        scores = 100.0 * np.array([plan.scores for plan in plans])
        row: dict[str, Any] = {
            name: round(float(np.nanmean(scores[:, driving_scores.MEASURES.index(name)])), 3)
            for name in ("pdms", *SUB_SCORES)
        }
        difference = scores[:, 0] / 100.0 - base
        row["to_base"] = round(100.0 * float(difference.mean()), 3)
        row["to_base_95"] = open_loop.bootstrap_interval(difference)
        reflected, kept = (np.array([getattr(plan, name) for plan in plans]) for name in ("reflected", "kept"))
        row["reflected_percent"] = round(100.0 * float((reflected > 0).mean()), 2)
        row["reflected_steps_percent"] = round(100.0 * float(reflected.sum()) / (steps * len(plans)), 2)
        row["kept_percent"] = round(100.0 * float(kept.sum()) / max(int(reflected.sum()), 1), 1)
        row["plan_ms_p50"] = round(float(np.median([plan.ms for plan in plans])), 2)
        numbers[variant.name] = row
    return numbers


def _table(title: str, numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = ("variant", "PDMS", "to base (95 %)", "NC", "DAC", "TTC", "C", "EP", "reflected", "steps", "kept", "ms")
    cells = [
        (
            name,
            f"{row['pdms']:.1f}",
            open_loop.format_difference(row["to_base"], row["to_base_95"]),
            *(f"{row[key]:.1f}" for key in SUB_SCORES),
            *(f"{row[key]:.1f} %" for key in ("reflected_percent", "reflected_steps_percent", "kept_percent")),
            f"{row['plan_ms_p50']:.1f}",
        )
        for name, row in numbers.items()
    ]
    return make_table(heads, cells, title)
