"""Open-loop scores: one row of PDM sub-scores per scene and driver, and their means by scene family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.table import Table

from ..core import kinematics
from ..core.config import ScoringConfig
from ..core.domain import Array, Observation, Plan, Trajectory
from ..infra.command import make_table
from ..planning.planner import Planner, PlannerContext, PlannerState, PlanningError
from ..scoring.scorer import SUB_SCORES, WAYPOINT_TIMES_S, Scene, score, score_states, total
from ..scoring.simulate import HORIZON_S
from . import bootstrap

MEASURES = ("pdms", *SUB_SCORES, "pdms_without_comfort", "epdms")
PARTS = {"nc": "NC", "dac": "DAC", "ttc": "TTC", "comfort": "C", "ep": "EP"}  # of PDMS, and their headings
Row = list[float]  # MEASURES, 0..1 or NaN


@dataclass(eq=False)
class Scores:
    """One row per scene, the same scenes for every driver."""

    families: list[str] = field(default_factory=list)  # of each scene
    scores: dict[str, list[Row]] = field(default_factory=dict)  # by driver, of each scene
    references: Mapping[str, str] = field(default_factory=dict)  # by driver: the one that it is compared with
    best: dict[str, list[float]] = field(default_factory=dict)  # by learned planner: PDMS of its best proposal
    failures: dict[str, list[str]] = field(default_factory=dict)  # by planner: scenes without a plan, and why

    def add(self, family: str, rows: Mapping[str, Row], best: Mapping[str, float] | None = None) -> None:
        """Adds one scene. A driver without a row had no plan and scores 0."""
        self.families.append(family)
        for driver, scores in self.scores.items():
            scores.append(rows.get(driver, [0.0] * len(MEASURES)))
        for driver, values in self.best.items():
            values.append((best or {}).get(driver, 0.0))


def plan_once(planner: Planner, observation: Observation, planner_context: PlannerContext) -> Plan:
    """The plan of a planner from its initial state. Raises PlanningError."""
    _, plan = planner(PlannerState(), observation, planner_context)
    if plan.trajectory.horizon_s < HORIZON_S - 1e-9:
        raise PlanningError(f"the plan ends at {plan.trajectory.horizon_s:.1f} s, {HORIZON_S:.0f} s are scored")
    return plan


def plan_waypoints(plan: Plan) -> Array:
    """Poses (1 + C, 8, 3) at 0.5, 1, .. 4 s of a plan and its C candidates, ego frame."""
    return np.stack([kinematics.resample(each, WAYPOINT_TIMES_S) for each in (plan.trajectory, *plan.candidates)])


def extend(trajectory: Trajectory) -> Trajectory:
    """A trajectory of at least HORIZON_S: a carried-forward plan is extended straight at its last speed."""
    missing = int(np.ceil((HORIZON_S - trajectory.horizon_s) / trajectory.dt_s - 1e-6))
    if missing <= 0:
        return trajectory
    x, y, heading = trajectory.poses[-1]
    distances_m = kinematics.speeds(trajectory)[-1] * trajectory.dt_s * np.arange(1, missing + 1)
    columns = (x + distances_m * np.cos(heading), y + distances_m * np.sin(heading), np.full(missing, heading))
    more = np.stack(columns, axis=-1)
    return Trajectory(np.concatenate([trajectory.poses, more]), trajectory.dt_s)


def best_score(scene: Scene, plans: Array, config: ScoringConfig) -> float:
    """The highest score among plans (N, 8, 3): an upper bound for plan selection."""
    return float(score(scene, plans, config=config).score.max())


UNKNOWN_WITHOUT_MAP = ("pdms", "dac", "pdms_without_comfort", "epdms")


def score_plans(scene: Scene, plans: Mapping[str, Array], config: ScoringConfig) -> dict[str, Row]:
    """MEASURES of each driver's plan (8, 3) or (40, 3) in a scene, in 0..1; UNKNOWN_WITHOUT_MAP are NaN without one."""
    card = score(scene, np.stack(list(plans.values())), config=config)
    extended = score_states(scene, card.states, replace(config, form="epdms"))
    without_comfort = total(card, config, with_comfort=False)
    columns = (card.score, *(getattr(card, name) for name in SUB_SCORES), without_comfort, extended.score)
    rows = [list(map(float, row)) for row in zip(*columns, strict=True)]
    if scene.areas is None and scene.grid is None:
        for name in UNKNOWN_WITHOUT_MAP:
            for row in rows:
                row[MEASURES.index(name)] = float("nan")
    return dict(zip(plans, rows, strict=True))


def summary(driver: str, result: Scores) -> dict[str, Any]:
    """Means in percent over all scenes of a driver, and under `families` over those of each."""
    scores, families = np.array(result.scores[driver]), np.array(result.families)
    parts = {family: mean_scores(scores[families == family]) for family in sorted(set(result.families))}
    best = {"best_of_k": round(100.0 * float(np.mean(result.best[driver])), 3)} if driver in result.best else {}
    return {**mean_scores(scores), **best, "families": parts}


def numbers(drivers: Mapping[str, Mapping[str, Any]], recorded: str, result: Scores) -> dict[str, Any]:
    """Summaries of drivers under `drivers`, and that of the first planner once more at the top; `recorded` is the
    driver that is no planner. Under `differences` those of each driver of `result.references`.
    """
    first = next(name for name in drivers if name != recorded)
    differences = {driver: difference(driver, reference, result) for driver, reference in result.references.items()}
    return {"planner": first, **drivers[first], "drivers": drivers, "differences": differences}


def difference(driver: str, reference: str, result: Scores) -> dict[str, Any]:
    """Paired differences of two drivers on the same scenes, in percent with 95 % intervals, and under `families` over
    the scenes of each.
    """
    pairs = np.array([result.scores[driver], result.scores[reference]], float)  # (2, N, M)
    families = np.array(result.families)

    def means(selected: Array) -> dict[str, Any]:
        values: dict[str, Any] = {"scenes": int(selected.sum())}
        for index, measure in enumerate(MEASURES):
            own, others = 100.0 * pairs[:, selected, index]
            values[measure], values[f"{measure}_95"] = bootstrap.paired_difference(own, others)
        return values

    by_family = {family: means(families == family) for family in sorted(set(result.families))}
    return {"reference": reference, **means(np.ones(len(families), bool)), "families": by_family}


def mean_scores(scores: Array) -> dict[str, Any]:
    """Means in percent over the scenes with a finite value; None where there is none."""
    means = {}
    for measure, values in zip(MEASURES, scores.T, strict=True):
        finite = values[np.isfinite(values)]
        means[measure] = round(100.0 * float(finite.mean()), 3) if len(finite) else None
    return {"scenes": len(scores), **means}


def missing_plan_notes(result: Scores, what: str) -> Sequence[str]:
    """One sentence for each planner without a plan in some scenes; `what` names the scenes."""
    return [
        f"{planner} had no plan for {len(failures)} {what}, scored 0; the first: {failures[0]}"
        for planner, failures in result.failures.items()
    ]


def difference_table(differences: Mapping[str, Mapping[str, Any]], by_family: bool) -> Table:
    """PDMS of each driver less that of its reference with the interval; its parts with a mark where theirs excludes
    0."""
    rows: list[tuple[str, ...]] = []
    for driver, all_scenes in differences.items():
        parts = {driver: all_scenes}
        if by_family:
            parts |= {f"  {family}": means for family, means in all_scenes["families"].items()}
        for name, means in parts.items():
            rows.append((name, *bootstrap.difference_cells(means, "pdms", list(PARTS))))
    title = f"less {', '.join(dict.fromkeys(each['reference'] for each in differences.values()))}, paired by scene"
    return make_table(("", "PDMS", "95 %", *PARTS.values()), rows, title, bootstrap.MARK, texts=1)
