"""Slows plans down to what `scoring.limits` allows: they keep their path and stop before closed stop lines.

The car follows the plan in time and is never ahead of it. Distances along the plan count as distances along the route:
they differ by little, and by nothing near the car.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array, Trajectory
from ...core.kinematics import with_origin
from ...scoring.limits import COMFORT_BRAKING_MPS2, RouteLimits
from .speed_profile import MOST_MPS2

FINE_S = 0.1  # step of the slowed motion
NOTICED_MPS = 0.05  # plans that are faster by less are kept, but not where the car has to stand: they would creep on


def slow_points(points: Array, limits: RouteLimits, speed_mps: float, dt_s: float) -> Array:
    """Points (.., P, 2) at dt, 2 dt, .. of a car that drives at `speed_mps`, delayed along their paths where they are
    too fast."""
    if not limits.kinds:
        return points
    ways = np.concatenate([np.zeros_like(points[..., :1, :]), points], axis=-2).reshape(-1, points.shape[-2] + 1, 2)
    along = geometry.arc_lengths(ways)
    reached = slow_distances(along, limits, speed_mps, dt_s)
    if reached is along:
        return points
    return np.asarray(geometry.interpolate_paths(ways, along, reached[:, 1:]).reshape(points.shape))


def slow_trajectory(trajectory: Trajectory, limits: RouteLimits, speed_mps: float) -> Trajectory:
    """The trajectory, delayed along its path where it is too fast; itself if it is not."""
    if not limits.kinds:
        return trajectory
    poses = with_origin(trajectory.poses)
    along = geometry.arc_lengths(poses[None])
    reached = slow_distances(along, limits, speed_mps, trajectory.dt_s)
    if reached is along:
        return trajectory
    headings = np.unwrap(poses[:, 2])
    # A standing car repeats its pose, so that one distance has several indices: the first heading there counts.
    moves = np.concatenate([[True], np.diff(along[0]) > 0.0])
    places = geometry.interpolate_paths(poses[None, :, :2], along, reached[:, 1:])[0]
    turned = np.interp(reached[0, 1:], along[0, moves], headings[moves])
    return Trajectory(np.column_stack([places, geometry.wrap(turned)]), trajectory.dt_s)


def slow_distances(along: Array, limits: RouteLimits, speed_mps: float, dt_s: float) -> Array:
    """(N, T + 1) distances at 0, dt, .. of cars that should reach `along` (N, T + 1) and drive at `speed_mps` now;
    `along` itself if none of them is too fast."""
    planned_mps = np.diff(along, axis=1) / dt_s
    allowed_mps = limits.allowed_speeds(along[:, :-1], dt_s)
    # A coarse interval may end beyond the place where it should have been slower.
    allowed_mps = np.minimum(allowed_mps, limits.allowed_speeds(along[:, 1:], dt_s) + COMFORT_BRAKING_MPS2 * dt_s)
    fast = (planned_mps > allowed_mps + np.where(allowed_mps > 0.0, NOTICED_MPS, 0.0)).any(axis=1)
    if not fast.any():
        return along
    found: Array = along.copy()
    found[fast] = _follow(planned_mps[fast], limits, speed_mps, dt_s)
    return found


def _follow(planned_mps: Array, limits: RouteLimits, speed_mps: float, dt_s: float) -> Array:
    """(N, T + 1) distances of cars with planned speeds (N, T), within the limits."""
    count = max(round(dt_s / FINE_S), 1)
    fine_s, braking_mps2 = dt_s / count, float(limits.braking_mps2.max())
    place, speed = np.zeros(len(planned_mps)), np.full(len(planned_mps), max(speed_mps, 0.0))
    found = np.zeros((len(planned_mps), planned_mps.shape[1] + 1))
    change_s = 0.5 * fine_s  # from the present speed to the mean of the first interval
    for now in range(planned_mps.shape[1]):
        for _ in range(count):
            allowed = np.maximum(limits.allowed_speeds(place, fine_s), speed - braking_mps2 * change_s)
            wanted = np.minimum(allowed, speed + MOST_MPS2 * change_s)
            speed = np.maximum(np.minimum(planned_mps[:, now], wanted), 0.0)
            place, change_s = place + fine_s * speed, fine_s
        found[:, now + 1] = place
    return found
