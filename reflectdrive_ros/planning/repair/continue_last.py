"""The plan that is driven now, continued where it is safe, before anything is searched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.domain import Array, Plan
from ...scoring.safety import SafetyContext
from ..assessment import Assessment, assess, evaluate
from ..postprocess.speed_profile import slow_points
from ..postprocess.waypoints import POINT_DT_S, rest_of_plan

CONTINUED_PROGRESS = 0.5  # share of the progress of an unsafe plan that the plan driven now must make to replace it


def continue_last(
    last: Sequence[Plan | None], safety_context: SafetyContext, count: int, far_m: Array
) -> tuple[Array, Assessment | None]:
    """Of N unsafe plans with progress `far_m` (N,), the indices (C,) of those whose predecessor is continued, and the
    continuations, None if there are none.

    A continuation is the rest of the plan that is driven now, as `count` points, if that plan is not older than
    CARRY_MAX_S, and the rest is safe, within the vehicle limits, and makes at least CONTINUED_PROGRESS of the progress.

    Two repairs that are each safe, one around an agent and one that stops before it, are not safe when they alternate.
    """
    rests = [rest_of_plan(each, safety_context.observation, count) for each in last]
    indices = np.array([index for index, rest in enumerate(rests) if rest is not None], int)
    if not len(indices):
        return indices, None
    points = np.stack([rest for rest in rests if rest is not None])
    slowed = slow_points(points, safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S)
    assessment = assess(safety_context, evaluate(safety_context, slowed), far_m[indices])
    good = assessment.sound.all(axis=1) & (assessment.progress_m >= CONTINUED_PROGRESS * far_m[indices])
    return (indices[good], assessment.of(np.flatnonzero(good))) if good.any() else (indices[:0], None)
