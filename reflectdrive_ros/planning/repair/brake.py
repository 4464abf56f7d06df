"""Braking along the path of a plan that is not safe, or along the route."""

from __future__ import annotations

import numpy as np

from ...core import geometry, kinematics
from ...core.domain import Array, Plan
from ...scoring.safety import SafetyContext
from ..assessment import assess, evaluate, limit_violation
from ..postprocess.speed_profile import slow_points
from ..postprocess.waypoints import CARRY_MAX_S, POINT_DT_S, STEP_S
from ..select import score_candidates
from .continue_last import continue_last
from .return_to_route import merge_into_route

BRAKING_MPS2 = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0)
GENTLE_BRAKINGS_MPS2, HARD_BRAKINGS_MPS2 = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0), (4.0, 5.0, 6.0, 8.0)
GENTLE_JERK_MPS3, HARD_JERK_MPS3 = 4.0, 20.0  # by which a braking grows: comfortable, and what brakes can


def repair_points(points: Array, safety_context: SafetyContext, last: Plan | None = None) -> tuple[Array, int]:
    """A plan through points (P, 2) that is not safe, replaced; and 1, or 0 if nothing is better than the plan.

    `last`, the plan that is driven now, is continued if that is safe. Else the path of the plan, or that of the route,
    is driven with the gentlest braking that is safe: of GENTLE_BRAKINGS_MPS2 the best driving score
    decides, else of HARD_BRAKINGS_MPS2. If nothing is safe, the least unsafe plan is the result.
    """
    start = assess(safety_context, evaluate(safety_context, points[None]))
    far_m = float(start.progress_m[0])
    if (continued := continue_last(last, safety_context, len(points), far_m)) is not None:
        return continued.points[0], 1
    acceleration_mps2 = present_acceleration_mps2(last, safety_context)
    paths = [np.concatenate([np.zeros((1, 2)), points])]
    if safety_context.route is not None:
        along = geometry.arc_lengths(paths[0])
        paths.append(np.concatenate([np.zeros((1, 2)), merge_into_route(along[None, 1:], safety_context)[0]]))
    allowed = float(start.limit_violation.max())
    options = [start.points]
    for group, jerk_mps3 in ((GENTLE_BRAKINGS_MPS2, GENTLE_JERK_MPS3), (HARD_BRAKINGS_MPS2, HARD_JERK_MPS3)):
        braked = np.concatenate(
            [brake_along(path, group, jerk_mps3, acceleration_mps2, safety_context) for path in paths]
        )
        braked = slow_points(braked, safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S)
        evaluation = evaluate(safety_context, braked)
        sound = evaluation.safe & (limit_violation(safety_context, evaluation.poses).max(axis=1) <= allowed)
        if sound.any():
            good = np.flatnonzero(sound)
            best = int(np.argmax(score_candidates(safety_context, braked[good]).scores)) if len(good) > 1 else 0
            return np.asarray(braked[good[best]]), 1
        options.append(braked)
    assessment = assess(safety_context, evaluate(safety_context, np.concatenate(options)), far_m)
    best = assessment.best(allowed)
    return assessment.points[best], int(best > 0)


def present_acceleration_mps2(last: Plan | None, safety_context: SafetyContext) -> float:
    """Acceleration that the plan which is driven now has at this instant; without one, that of the vehicle."""
    observation = safety_context.observation
    if last is None or not 0 < observation.stamp_ns - last.stamp_ns <= CARRY_MAX_S * 1e9:
        return float(observation.ego.acceleration_mps2)
    index = int((observation.stamp_ns - last.stamp_ns) * 1e-9 / last.trajectory.dt_s)
    accelerations = kinematics.accelerations(last.trajectory)
    return float(accelerations[min(index, len(accelerations) - 1)])


def brake_along(
    path: Array,
    brakings_mps2: tuple[float, ...],
    jerk_mps3: float,
    acceleration_mps2: float,
    safety_context: SafetyContext,
) -> Array:
    """(N, P, 2) points on a path (P + 1, 2) from the origin on, never ahead of it, with each braking: the acceleration
    falls from the present one to it, with at most `jerk_mps3`, and stays."""
    along = geometry.arc_lengths(path)
    speed_mps = max(float(safety_context.scene.motion[0]), 0.0)
    times_s = STEP_S * np.arange(1, round(POINT_DT_S / STEP_S) * (len(path) - 1) + 1)
    first = min(acceleration_mps2, 0.0)
    rows = []
    for braking in brakings_mps2:
        acceleration = np.maximum(first - jerk_mps3 * (times_s - 0.5 * STEP_S), -braking)
        speeds = np.maximum(speed_mps + np.cumsum(acceleration) * STEP_S, 0.0)
        rows.append((np.cumsum(speeds) * STEP_S)[round(POINT_DT_S / STEP_S) - 1 :: round(POINT_DT_S / STEP_S)])
    reached = np.minimum(np.stack(rows), along[1:])
    return np.stack([np.interp(reached, along, path[:, axis]) for axis in (0, 1)], axis=-1)


def brake_along_plan(points: Array, speed_mps: float) -> Array:
    """(6, P, 2) points on the path of a plan (P, 2), with braking from now on of at least each of BRAKING_MPS2."""
    line = np.concatenate([np.zeros((1, 2)), points])
    along = geometry.arc_lengths(line)
    reached = _brake_profiles(along, speed_mps)
    return np.stack([np.interp(reached, along, line[:, axis]) for axis in (0, 1)], axis=-1)


def follow_route(points: Array, safety_context: SafetyContext) -> Array:
    """(7, P, 2) points along the route, merging within MERGE_S, at the distances of the plan (P, 2) and braked."""
    along = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))
    return merge_into_route(
        np.concatenate([along[None, 1:], _brake_profiles(along, float(safety_context.scene.motion[0]))]), safety_context
    )


def _brake_profiles(along: Array, speed_mps: float) -> Array:
    """(6, 8) distances on a plan `along` (9,) with braking of at least each of BRAKING_MPS2 from now on."""
    times_s = POINT_DT_S * np.arange(1, len(along))
    braked = np.stack([kinematics.braking_distances(speed_mps, braking, times_s) for braking in BRAKING_MPS2])
    return np.asarray(np.minimum(braked, along[1:]))
