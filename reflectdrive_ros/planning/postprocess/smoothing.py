"""Removes the noise of token waypoints: of rounding to coarse bins, of prediction with fine ones.

A bin is 0.3 m wide, so accelerations between rounded points have errors of about 3 m/s^2. The points are taken as
measurements, uniform within a width `noise_m` (`TokenLayout.waypoint_noise_m`), of a motion that starts with the car's
present velocity and has a small jerk; the maximum a posteriori motion is one linear map of the points. If the route is
known, this is done in its Frenet frame with a smaller jerk, because the road's bends are then removed. No point moves
by more than half the width.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import reflectdrive_kernels as kernels

from ... import kinematics
from ...domain import Array, EgoState
from ...scoring.frenet import NO_ROUTE, ROUTE_RULE, FrenetFrame

JERK_MPS3 = 2.0  # prior standard deviation of the jerk; smaller values cut corners, larger ones leave noise
JERK_ON_ROAD_MPS3 = 1.0  # the same against the road
STANDING_MPS = 0.3


def smooth_points(points: Array, ego: EgoState, dt_s: float, noise_m: float, road: FrenetFrame | None = None) -> Array:
    """Points (.., T, 2) at dt, 2 dt, .. of the ego frame, each moved by at most half of `noise_m`; repeated points stay
    equal, so that a stop stays a stop.
    """
    points = np.asarray(points, float)
    start = np.zeros((2, 2))
    start[0] = previous_position(ego, dt_s)
    plain, on_road = (
        smoothing_matrices(points.shape[-2], dt_s, noise_m, jerk) for jerk in (JERK_MPS3, JERK_ON_ROAD_MPS3)
    )
    moved = np.empty(points.shape)
    plans, found = (each.reshape(-1, *points.shape[-2:]) for each in (points, moved))
    route = NO_ROUTE if road is None else road.for_kernels
    kernels.smooth_points(plans, start, noise_m, plain, on_road, route, ROUTE_RULE, found)
    return moved


def previous_position(ego: EgoState, dt_s: float) -> Array:
    """(2,) position one interval ago, in the present ego frame, from the present motion."""
    along_m = -ego.speed_mps * dt_s + 0.5 * ego.acceleration_mps2 * dt_s**2
    curvature = ego.yaw_rate_rps / ego.speed_mps if abs(ego.speed_mps) > STANDING_MPS else 0.0
    return np.asarray(kinematics.arc(curvature, np.array([along_m]))[0, :2])


@lru_cache(maxsize=8)
def smoothing_matrices(count: int, dt_s: float, noise_m: float, jerk_mps3: float) -> tuple[Array, Array]:
    """(T, T) and (T, 2): weights of the T points, and of the positions one interval ago and now, in the estimate."""
    third = np.diff(np.eye(count + 2), n=3, axis=0)  # (T - 1, T + 2), from one interval ago on
    of_start, of_points = third[:, :2], third[:, 2:]
    weight = (noise_m / np.sqrt(12) / (jerk_mps3 * dt_s**3)) ** 2
    normal = np.eye(count) + weight * of_points.T @ of_points
    return np.linalg.inv(normal), -np.linalg.solve(normal, weight * of_points.T @ of_start)
