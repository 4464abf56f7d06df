"""Comfort of a plan: relax its longitudinal profile, limit its lateral shift against the last plan.

Longitudinal: `relax_profile` keeps path and end of an uncomfortable plan and is never ahead of it. It increases the
position-noise variance until the smoothed longitudinal profile meets the comfort limits of the driving score. If no
profile is comfortable and safe, the plan is unchanged: hard braking may be required.

Lateral: `limit_lateral_shift` scales the lateral offsets from the last path down in proportion, so that none
exceeds the limit; the distances along the path, and so the speed profile, are unchanged. Autoware's validator rejects
plans that jump by more than half a metre.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core import geometry
from ...core.domain import Array, EgoState, Plan, Trajectory
from ...core.kinematics import SAME_PLACE_M
from ...scoring.safety import SafetyContext
from ..assessment import comfortable, evaluate
from .waypoints import POINT_DT_S, previous_position, smoothing_matrices

UNCERTAIN_M = (0.6, 1.2, 2.4, 4.8)  # standard deviations of positions
RELAXED_JERK_MPS3 = 1.0  # prior standard deviation of the jerk along the path

LAST_PATH_MIN_M = 1.0  # a shorter last plan has no defined lateral direction


def relax_profile(points: Array, safety_context: SafetyContext) -> Array:
    """Points (8, 2), or the first relaxed profile that is comfortable and safe."""
    if comfortable(safety_context, points[None])[0]:
        return points
    options = relaxed_profiles(points[None], safety_context.observation.ego, POINT_DT_S)[0]
    good = comfortable(safety_context, options)
    if safety_context.can_check and good.any():
        good &= evaluate(safety_context, options).safe
    return np.asarray(options[good.argmax()]) if good.any() else points


def relax_profiles(points: Array, safety_context: SafetyContext) -> Array:
    """`relax_profile` of N plans (N, 8, 2) at once, for training rewards. Agents and road must not be known."""
    if safety_context.can_check:
        raise ValueError("relax_profiles got a context with agents or a road, expected neither")
    relaxed: Array = points.copy()
    rough = np.flatnonzero(~comfortable(safety_context, points))
    if not len(rough):
        return relaxed
    options = relaxed_profiles(points[rough], safety_context.observation.ego, POINT_DT_S)
    good = comfortable(safety_context, options.reshape(-1, *points.shape[1:])).reshape(options.shape[:2])
    relaxable = good.any(axis=1)
    relaxed[rough[relaxable]] = options[relaxable, good[relaxable].argmax(axis=1)]
    return relaxed


def relaxed_profiles(points: Array, ego: EgoState, dt_s: float) -> Array:
    """(N, len(UNCERTAIN_M), 8, 2) points (N, 8, 2) with increasing smoothing; never ahead of them."""
    path = np.concatenate([np.zeros((len(points), 1, 2)), points], axis=1)
    length = np.hypot(*np.moveaxis(np.diff(path, axis=1), -1, 0))
    along = np.concatenate([np.zeros((len(points), 1)), np.cumsum(length, axis=1)], axis=1)
    start = np.array([previous_position(ego, dt_s)[0], 0.0])
    reached = []
    for uncertain_m in UNCERTAIN_M:
        of_points, of_start = smoothing_matrices(points.shape[1], dt_s, uncertain_m, RELAXED_JERK_MPS3)
        smooth = np.stack([of_points @ row + of_start @ start for row in along[:, 1:]])
        reached.append(np.minimum(np.maximum.accumulate(np.maximum(smooth, 0.0), axis=1), along[:, 1:]))
    count = len(reached)
    options = geometry.interpolate_paths(
        np.repeat(path, count, axis=0),
        np.repeat(along, count, axis=0),
        np.stack(reached, axis=1).reshape(-1, points.shape[1]),
    )
    return np.asarray(options.reshape(len(points), count, *points.shape[1:]))


# --- lateral shift ----------------------------------------------------------------------------------------------------


def limit_lateral_shift(plan: Plan, last: Plan, limit_m: float) -> Plan:
    """The plan with no point more than `limit_m` lateral of the last plan's path, where they run side by side; the plan
    itself if that holds already, or if the car is not where the last plan had it.
    """
    now_from_then = geometry.compose(geometry.invert(plan.map_from_ego), last.map_from_ego)
    path = np.concatenate([now_from_then[None], geometry.compose(now_from_then, last.trajectory.poses)])
    line = geometry.distinct_points(path, SAME_PLACE_M)
    if len(line) < 2 or geometry.arc_lengths(line)[-1] < LAST_PATH_MIN_M:
        return plan
    poses = plan.trajectory.poses
    along, lateral_m = geometry.project(line, np.concatenate([np.zeros((1, 2)), poses[:, :2]]))
    alongside = (along > 0.0) & (along < geometry.arc_lengths(line)[-1] - 1e-6)
    farthest = np.abs(lateral_m[alongside]).max(initial=0.0)
    here, margin_m = lateral_m[0], limit_m - abs(lateral_m[0])
    if farthest <= limit_m or margin_m < 0.5 * limit_m:
        return plan
    share = margin_m / np.abs(lateral_m[alongside] - here).max()  # share of the shift from the last plan to this one
    normals = geometry.rotate(np.array([0.0, 1.0]), geometry.sample(line, along)[:, 2])
    moved = ((share - 1.0) * (lateral_m - here))[:, None] * normals
    moved = _forward_fill(moved, alongside)[1:]  # beyond the last plan's end by as much as there
    return replace(plan, trajectory=Trajectory(_rotate_with_path(poses, poses[:, :2] + moved), plan.trajectory.dt_s))


def _forward_fill(values: Array, valid: Array) -> Array:
    """Values (N, 2) where valid (N,), else those of the index before; 0 before the first."""
    latest = np.maximum.accumulate(np.where(valid, np.arange(len(values)), -1))
    return np.where((latest >= 0)[:, None], values[latest], 0.0)


def _rotate_with_path(poses: Array, points: Array) -> Array:
    """Poses (T, 3) at other points (T, 2), each rotated as much as the path to it; standing poses keep the rotation
    before.
    """
    before, after = (np.diff(each, axis=0, prepend=np.zeros((1, 2))) for each in (poses[:, :2], points))
    cross = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    turns = np.arctan2(cross, (before * after).sum(1))[:, None]
    moves = np.hypot(*before.T) > SAME_PLACE_M
    return np.column_stack([points, geometry.wrap(poses[:, 2] + _forward_fill(turns, moves)[:, 0])])
