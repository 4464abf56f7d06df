"""Candidates of other planners: each is checked, repaired if it is not safe, and scored.

A candidate that is safe stays the object that came. One that is not is repaired as the pipeline repairs plans
(`repair_points`, `finish`); where its repair does not pass the check either, the stop plan along its path competes.
The candidate, its repair and its stop are ranked by the time for which they are safe: the result is never less safe
than the candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core import kinematics
from ..core.domain import Array, Observation, Plan, Trajectory, Verdict
from ..scoring.safety import SafetyContext, safety_check
from . import guard, pipeline
from .candidates import Candidates
from .planner import PlannerContext
from .postprocess.waypoints import POINT_DT_S, POINTS
from .repair.brake import repair_points
from .select import score_candidates
from .stop_plan import stop_plan

REPAIRED, STOPPED = "repaired", "replaced by a stop along its path"


@dataclass(frozen=True, eq=False)
class CheckedCandidate:
    """A candidate after check and repair. Ego frame of the observation."""

    plan: Plan  # its trajectory is the candidate's own object if nothing was changed; `change` says what was
    judgement: guard.Judgement  # on the candidate as it came
    is_safe: bool  # whether `plan` passes the guard and is safe for its horizon, as far as inputs are known
    score: float  # 0..1 driving score in the forecast; 0 if `plan` is not safe

    @property
    def sentence(self) -> str:
        """Verdict on the candidate, what was changed, and what the result was checked against."""
        own = "" if self.judgement.verdict is Verdict.OK else f"{self.judgement.verdict.name}: {self.judgement.reason}"
        left = "" if self.is_safe else "no safe change was found, so it is unchanged" if not self.plan.change else ""
        return "; ".join(filter(None, (own, self.plan.change or left, str(self.plan.check or ""))))


def check_candidates(
    trajectories: Sequence[Trajectory],
    observation: Observation,
    planner_context: PlannerContext,
    last: Sequence[Plan | None] = (),
) -> tuple[CheckedCandidate, ...]:
    """Check, repair and score of N trajectories in the ego frame of the observation, of any interval and horizon.

    `last`: for each, the plan that was published for the same candidate in the last step, which its repair continues
    where that is safe; empty: none. Nothing is repaired once the deadline of the planner context is over.
    """
    safety_context = planner_context.safety_context(observation)
    repairs = planner_context.config.pipeline.repair and safety_context.can_check
    checked = []
    for trajectory in trajectories:
        plan = with_check(
            Plan(observation.stamp_ns, observation.ego.map_from_ego, trajectory), safety_context, repairs=0
        )
        judgement = judge(plan, safety_context)
        checked.append(CheckedCandidate(plan, judgement, judgement.verdict is Verdict.OK, 0.0))
    if not checked:
        return ()
    unsafe = [index for index, each in enumerate(checked) if not each.is_safe]
    if unsafe and repairs and planner_context.deadline_used() < 1.0:
        plans = [checked[index].plan for index in unsafe]
        changed = repair(plans, safety_context, [last[index] if last else None for index in unsafe])
        for index, (plan, is_safe) in zip(unsafe, changed, strict=True):
            checked[index] = replace(checked[index], plan=plan, is_safe=is_safe)
    scores = forecast_scores([each.plan.trajectory for each in checked], safety_context)
    return tuple(
        replace(each, score=float(score) if each.is_safe else 0.0) for each, score in zip(checked, scores, strict=True)
    )


def forecast_scores(
    trajectories: Sequence[Trajectory], safety_context: SafetyContext, peers: int | None = None
) -> Array:
    """(N,) 0..1 driving scores in the forecast of N trajectories (at least one), safe or not.

    `peers`: the first so many, to whose best progress is relative; None: all.
    """
    points = np.stack([points_of(each) for each in trajectories])
    return np.clip(score_candidates(safety_context, points, peers).scores, 0.0, 1.0)


def best(checked: Sequence[CheckedCandidate]) -> int:
    """Index of the candidate with the best score; among equal ones of that which is safe for longer, then the first."""
    return max(range(len(checked)), key=lambda index: (checked[index].score, safe_s(checked[index].plan), -index))


def judge(plan: Plan, safety_context: SafetyContext) -> guard.Judgement:
    """The guard's verdict, and UNSAFE also for a plan whose safety check fails beyond the guard's horizon."""
    judgement = guard.check(plan, safety_context, 0.0)
    if judgement.verdict is Verdict.OK and plan.check is not None and plan.check.unsafe_after_s is not None:
        return guard.Judgement(Verdict.UNSAFE, f"the plan is unsafe after {plan.check.unsafe_after_s:.1f} s")
    return judgement


def repair(
    plans: Sequence[Plan], safety_context: SafetyContext, last: Sequence[Plan | None]
) -> tuple[tuple[Plan, bool], ...]:
    """Of each plan the `safest_change`, and whether it is safe."""
    repaired, counts = repair_points(np.stack([points_of(each.trajectory) for each in plans]), safety_context, last)
    return tuple(
        safest_change(plan, points, int(count), safety_context)
        for plan, points, count in zip(plans, repaired, counts, strict=True)
    )


def safest_change(plan: Plan, points: Array, count: int, safety_context: SafetyContext) -> tuple[Plan, bool]:
    """The first that is safe of the plan through repaired `points` (8, 2), which were changed `count` times, and the
    stop along the path of the plan, else that of them and the plan which is safe for longest; and whether it is safe.
    """
    options = [plan]
    if count:
        finished = pipeline.finish(points, 0, Candidates(points[None]), safety_context, safety_context.observation)
        options.append(replace(with_check(finished, safety_context, count), change=REPAIRED))
        if judge(options[-1], safety_context).verdict is Verdict.OK:
            return options[-1], True
    observation = safety_context.observation
    stop = stop_plan(observation.ego, observation.others, plan.trajectory.poses, safety_context.config, safety_context)
    options.append(replace(with_check(stop, safety_context, 1), change=STOPPED))
    is_safe = judge(options[-1], safety_context).verdict is Verdict.OK
    return (options[-1], True) if is_safe else (max(options, key=safe_s), False)


def with_check(plan: Plan, safety_context: SafetyContext, repairs: int) -> Plan:
    return replace(plan, check=safety_check(plan, safety_context, repairs))


def safe_s(plan: Plan) -> float:
    """Seconds for which a checked plan is safe; infinite if it is throughout."""
    return float("inf") if plan.check is None else plan.check.safe_s


def points_of(trajectory: Trajectory) -> Array:
    """(8, 2) points at 0.5 .. 4 s; beyond the end of a shorter trajectory it goes on at its last velocity."""
    times_s = POINT_DT_S * np.arange(1, POINTS + 1)
    poses = kinematics.resample(trajectory, np.minimum(times_s, trajectory.horizon_s))
    points = poses[:, :2].copy()
    beyond_s = np.maximum(times_s - trajectory.horizon_s, 0.0)
    if beyond_s[-1] > 0.0:
        end = kinematics.with_origin(trajectory.poses)[-2:, :2]
        points += beyond_s[:, None] * (end[1] - end[0]) / trajectory.dt_s
    return np.asarray(points)
