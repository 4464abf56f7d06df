"""Closed loop of `reflectdrive bench reflection`: the same worlds driven with each variant, in worlds with a bend.

A world has a bend if its route, within the distance that is seen from the start and outside junctions and roundabouts,
would be driven with the lateral acceleration of the family high_lateral_acceleration at the speed limit. The choice
thus depends on the road alone, not on how a variant drives. Traffic reacts. The planner drives as configured, with its
repair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import geometry
from ..core.config import Config
from ..core.domain import Observation, Plan
from ..core.lanes import lanes_at
from ..evaluation import closed_loop, open_loop, worlds
from ..evaluation.drive_results import DriveResult
from ..evaluation.drive_sums import drive_metrics
from ..infra.command import make_table
from ..infra.errors import UserError
from ..infra.parallel import Workers, map_restartable
from ..infra.progress import track_progress
from ..maps.roads import RoadType
from ..planning import reflexdiffusion
from ..planning.planner import PlannerContext, PlannerState
from ..sim.expert.scenario_tags import LATERAL_MPS2
from ..sim.network.navigation import BEHIND_M
from ..sim.world import World
from .reflection_variants import BASE, PLANNER, Variant, configured

SPACING_M = 2.0  # between places of the route where its bend is measured ..
HALF_CHORD_M = 5.0  # .. by the headings so far before and after
MIN_BEND_M = 10.0  # length of a bend
SEARCHED = 20  # worlds examined for each that is wanted


@dataclass(frozen=True, eq=False)
class Drive:
    """A drive with one variant; numbers of all its plans together."""

    result: DriveResult
    plans: int
    reflecting: int  # plans with a reflected step
    reflected: int  # steps of the sampler
    kept: int


def has_bend(world: World) -> bool:
    """Whether the route ahead has a bend."""
    line, limits_mps = world.route, world.observation().route_limits_mps
    assert limits_mps is not None
    along_m = geometry.arc_lengths(line[:, :2])
    at_m = np.arange(BEHIND_M, along_m[-1] - HALF_CHORD_M, SPACING_M)
    before, after = (geometry.sample(line[:, :2], at_m + aside)[:, 2] for aside in (-HALF_CHORD_M, HALF_CHORD_M))
    curvature = np.abs(geometry.wrap(after - before)) / (2 * HALF_CHORD_M)
    limit_mps = limits_mps[np.searchsorted(along_m, at_m, side="right") - 1]
    sharp = np.flatnonzero(curvature * limit_mps**2 > LATERAL_MPS2)
    lanes = {key: entry.lane for key, entry in world.road_map.lanes.items()}
    count = 0
    for pose in geometry.sample(line[:, :2], at_m[sharp]):
        roads = [world.road_map.lanes[key] for key in lanes_at(lanes, pose)]
        count += not any(road.across_junction is not None or road.road_type is RoadType.ROUNDABOUT for road in roads)
    return count * SPACING_M >= MIN_BEND_M


def find_worlds(first_seed: int, count: int, config: Config, workers: Workers, errors: Console) -> list[int]:
    """The seeds of the first `count` worlds with a bend. Raises UserError if there are too few."""
    found: list[int] = []
    seed = first_seed
    while len(found) < count and seed < first_seed + SEARCHED * count:
        seeds = list(range(seed, seed + count))
        outcomes = map_restartable(seeds, partial(_check_world, config=config), workers)
        bends = {outcome.task: bool(outcome.result) for outcome in track_progress(outcomes, "worlds", errors, count)}
        found += [each for each in seeds if bends[each]]
        seed += count
    if len(found) < count:
        raise UserError(f"only {len(found)} of the worlds from seed {first_seed} have a bend: ask for fewer drives")
    return found[:count]


def _check_world(seed: int, report: Callable[[Any], None], *, config: Config) -> bool:
    with World(worlds.generated().options(seed), config.vehicle) as world:
        return has_bend(world)


def measure(
    variants: list[Variant], seeds: list[int], duration_s: float, config: Config, workers: Workers, errors: Console
) -> dict[tuple[str, int], Drive]:
    """The drives by variant and seed. Raises UserError naming the first drive that broke off."""
    jobs = [(variant, seed) for seed in seeds for variant in variants]
    work = partial(_drive, config=config, duration_s=duration_s)
    found = {}
    for outcome in track_progress(map_restartable(jobs, work, workers), "driving", errors, len(jobs)):
        variant, seed = outcome.task
        if outcome.result is None:
            raise UserError(f"the drive of '{variant.name}' with seed {seed} broke off: {outcome.reason}")
        found[variant.name, seed] = outcome.result
    return found


def _drive(job: tuple[Variant, int], report: Callable[[Any], None], *, config: Config, duration_s: float) -> Drive:
    variant, seed = job
    reflections: list[tuple[bool, ...]] = []  # of each plan, whether each of its reflections was kept

    def recipe(
        state: PlannerState, observation: Observation, planner_context: PlannerContext
    ) -> tuple[PlannerState, Plan]:
        state, plan = reflexdiffusion.plan(state, observation, planner_context)
        assert isinstance(state.memory, reflexdiffusion.Memory)
        reflections.append(tuple(each.kept for each in state.memory.reflections))
        return state, plan

    asked = configured(config, variant, repair=config.reflexdiffusion.repair)
    result = closed_loop.drive(worlds.generated().options(seed), PLANNER, asked, duration_s, recipe=recipe)
    kept = [each for plan in reflections for each in plan]
    return Drive(result, len(reflections), sum(map(bool, reflections)), len(kept), sum(kept))


# --- numbers and table -----------------------------------------------------------------------------------------------


def summarise(
    drives: Mapping[tuple[str, int], Drive], variants: list[Variant], seeds: list[int], steps: int
) -> dict[str, dict[str, Any]]:
    """By variant: totals, differences of PDMS and comfort to `base` paired by world, shares of reflections, time."""
    rows = {}
    for variant in variants:
        some = [drives[variant.name, seed] for seed in seeds]
        row = drive_metrics([each.result for each in some])
        row = {name: value for name, value in row.items() if name not in ("verdicts", "sources", "planning_ms")}
        for name, value_of in (("to_base", _pdms), ("comfort_to_base", _comfort)):
            apart = np.array([value_of(drives[variant.name, seed]) - value_of(drives[BASE, seed]) for seed in seeds])
            row[name] = round(100.0 * float(apart.mean()), 3)
            row[f"{name}_95"] = open_loop.bootstrap_interval(apart)
        plans, reflecting, reflected, kept = (
            sum(getattr(each, name) for each in some) for name in ("plans", "reflecting", "reflected", "kept")
        )
        row["reflected_percent"] = round(100.0 * reflecting / max(plans, 1), 2)
        row["reflected_steps_percent"] = round(100.0 * reflected / max(steps * plans, 1), 2)
        row["kept_percent"] = round(100.0 * kept / max(reflected, 1), 1)
        row["step_ms"] = drive_metrics([each.result for each in some])["planning_ms"]["mean"]
        rows[variant.name] = row
    return rows


def _pdms(drive: Drive) -> float:
    return float(drive.result.scores.mean())


def _comfort(drive: Drive) -> float:
    return drive.result.log.comfort


def table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = ("variant", "PDMS", "to base (95 %)", "at fault", "off road/km", "route %", "C", "reflected", "steps", "ms")
    cells = [
        (
            name,
            f"{row['pdms']:.1f}",
            open_loop.format_difference(row["to_base"], row["to_base_95"]),
            str(row["at_fault"]),
            f"{row['off_road_per_km']:.2f}",
            *(f"{row[key]:.1f}" for key in ("route_completion", "comfort")),
            *(f"{row[key]:.1f} %" for key in ("reflected_percent", "reflected_steps_percent")),
            f"{row['step_ms']:.1f}",
        )
        for name, row in rows.items()
    ]
    return make_table(heads, cells, title)
