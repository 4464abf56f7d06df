"""What drivers scored on a set of scenes: one row per scene, means by family, the same for recorded and made scenes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from .. import kinematics
from ..config import ScoringConfig
from ..domain import Array, Observation, Plan, Trajectory
from ..planning import LEARNED
from ..planning.planner import Planner, PlannerContext, PlannerState, PlanningError
from ..scoring.scorer import WAYPOINTS, Scene, score, total
from ..scoring.simulate import HORIZON_S

WAYPOINT_TIMES_S = HORIZON_S / WAYPOINTS * np.arange(1, WAYPOINTS + 1)
SUB_SCORES = ("nc", "dac", "ttc", "comfort", "ep")
MEASURES = ("pdms", *SUB_SCORES, "pdms_without_comfort")
Row = list[float]  # MEASURES, 0..1 or NaN
RANDOM_WEIGHTS = "random weights"  # follows the planner in the name of a row


class Driver(NamedTuple):
    """Who drives in a row of a table."""

    planner: str
    oracle: str = ""  # what it is told, of `oracle.ORACLES`; empty in the closed loop, which tells all alike
    random_weights: bool = False  # its network has learned nothing


def drivers_of(planners: Sequence[str], oracles: Sequence[str], random_weights: bool) -> dict[str, Driver]:
    """The rows of a table by name, as "reflectdrive2 random weights (words)"; with one oracle its name is left out."""
    drivers = {}
    for planner in planners:
        for random in (False, True) if random_weights and planner in LEARNED else (False,):
            for oracle in oracles:
                name = f"{planner} {RANDOM_WEIGHTS}" if random else planner
                drivers[name if len(oracles) == 1 else f"{name} ({oracle})"] = Driver(planner, oracle, random)
    return drivers


@dataclass(eq=False)
class Scores:
    """One row per scene, the same scenes for every driver."""

    families: list[str] = field(default_factory=list)  # of each scene
    scores: dict[str, list[Row]] = field(default_factory=dict)  # by driver, of each scene
    best: dict[str, list[float]] = field(default_factory=dict)  # by planner that has learned: PDMS of its best proposal
    failures: dict[str, list[str]] = field(default_factory=dict)  # by planner: scenes without a plan, and why

    def add(self, family: str, rows: Mapping[str, Row], best: Mapping[str, float] | None = None) -> None:
        """Who has no row had no plan and earns nothing."""
        self.families.append(family)
        for driver, scores in self.scores.items():
            scores.append(rows.get(driver, [0.0] * len(MEASURES)))
        for driver, values in self.best.items():
            values.append((best or {}).get(driver, 0.0))


def planned(planner: Planner, observation: Observation, planner_context: PlannerContext) -> Plan:
    """What a planner plans without a past. Raises PlanningError if it cannot."""
    _, plan = planner(PlannerState(), observation, planner_context)
    if plan.trajectory.horizon_s < HORIZON_S - 1e-9:
        raise PlanningError(f"the plan ends at {plan.trajectory.horizon_s:.1f} s, {HORIZON_S:.0f} s are scored")
    return plan


def waypoints(plan: Plan) -> Array:
    """Poses (1 + C, 8, 3) at 0.5 .. 4 s of a plan and its rivals."""
    return np.stack([kinematics.resample(each, WAYPOINT_TIMES_S) for each in (plan.trajectory, *plan.candidates)])


def prolonged(trajectory: Trajectory) -> Trajectory:
    """Up to what is scored: a plan that was carried forward ends sooner, and goes on as it ended, straight."""
    missing = int(np.ceil((HORIZON_S - trajectory.horizon_s) / trajectory.dt_s - 1e-6))
    if missing <= 0:
        return trajectory
    x, y, heading = trajectory.poses[-1]
    along_m = kinematics.speeds(trajectory)[-1] * trajectory.dt_s * np.arange(1, missing + 1)
    more = np.stack([x + along_m * np.cos(heading), y + along_m * np.sin(heading), np.full(missing, heading)], axis=-1)
    return Trajectory(np.concatenate([trajectory.poses, more]), trajectory.dt_s)


def best_of(scene: Scene, plans: Array, config: ScoringConfig) -> float:
    """The score of the best of plans (N, 8, 3): what choosing with the future known would be worth."""
    return float(score(scene, plans, config=config).score.max())


def rows_of(scene: Scene, plans: Mapping[str, Array], config: ScoringConfig) -> dict[str, Row]:
    """MEASURES of each driver's plan (8, 3) or (40, 3) in a scene."""
    card = score(scene, np.stack(list(plans.values())), config=config)
    without_comfort = total(card, replace(config, comfort_weight=0.0))
    columns = (card.score, *(getattr(card, name) for name in SUB_SCORES), without_comfort)
    rows = (list(map(float, row)) for row in zip(*columns, strict=True))
    return dict(zip(plans, rows, strict=True))


def summary(driver: str, result: Scores) -> dict[str, Any]:
    """Means in percent over all scenes of a driver, and under `families` over those of each."""
    scores, families = np.array(result.scores[driver]), np.array(result.families)
    parts = {family: means(scores[families == family]) for family in sorted(set(result.families))}
    best = {"best_of_k": round(100.0 * float(np.mean(result.best[driver])), 3)} if driver in result.best else {}
    return {**means(scores), **best, "families": parts}


def means(scores: Array) -> dict[str, Any]:
    """Percent over the scenes that have the number; None where none has."""
    found = {}
    for measure, values in zip(MEASURES, scores.T, strict=True):
        known = values[np.isfinite(values)]
        found[measure] = round(100.0 * float(known.mean()), 3) if len(known) else None
    return {"scenes": len(scores), **found}


def without_a_plan(result: Scores, what: str) -> Sequence[str]:
    """A sentence for each planner that had no plan for some of the scenes, which are called `what`."""
    return [
        f"{planner} had no plan for {len(failures)} {what}, scored 0; the first: {failures[0]}"
        for planner, failures in result.failures.items()
    ]
