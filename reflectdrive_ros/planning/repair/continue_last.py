"""The plan that is driven now, continued where it is safe, before anything is searched."""

from __future__ import annotations

from ...core.domain import Plan
from ...scoring.safety import SafetyContext
from ..assessment import Assessment, assess, evaluate
from ..postprocess.speed_profile import slow_points
from ..postprocess.waypoints import POINT_DT_S, rest_of_plan

CONTINUED_PROGRESS = 0.5  # share of the progress of an unsafe plan that the plan driven now must make to replace it


def continue_last(last: Plan | None, safety_context: SafetyContext, count: int, far_m: float) -> Assessment | None:
    """The rest of the plan that is driven now, as `count` points, if it is not older than CARRY_MAX_S, safe,
    within the vehicle limits, and makes at least CONTINUED_PROGRESS of the progress `far_m` of the unsafe plan.

    Two repairs that are each safe, one around an agent and one that stops before it, are not safe when they alternate.
    """
    points = rest_of_plan(last, safety_context.observation, count)
    if points is None:
        return None
    slowed = slow_points(points[None], safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S)
    assessment = assess(safety_context, evaluate(safety_context, slowed), far_m)
    return assessment if assessment.sound.all() and assessment.progress_m[0] >= CONTINUED_PROGRESS * far_m else None
