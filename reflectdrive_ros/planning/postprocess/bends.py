"""Slows plans down before their own bends, to a comfortable lateral acceleration and yaw rate.

A network that is rewarded for progress drives through bends at the bound of the driving score, and a plan at that bound
is refused by the guard as soon as the vehicle is a little faster or the bend a little tighter.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array, FactorKind, Trajectory
from ...core.kinematics import with_origin
from ...scoring.limits import COMFORT_BRAKING_MPS2, RouteLimits
from .route_limits import slow_trajectory

LATERAL_MPS2, YAW_RATE_RPS = 4.0, 0.9  # the driving score calls more than 4.89 and 0.95 uncomfortable
STEP_M = 1.0  # between places whose speed is limited
WINDOW_M = 2.0  # to either side, over which the curvature of a path is taken: shorter ones are noise
MIN_PATH_M = 3.0  # a shorter plan has no bend
FASTEST_MPS = 40.0  # no limit above it


def slow_in_bends(trajectory: Trajectory, speed_mps: float) -> Trajectory:
    """The trajectory of a car that drives at `speed_mps`, delayed along its path before bends that it takes too fast;
    itself if there are none."""
    return slow_trajectory(trajectory, bend_limits(trajectory), speed_mps)


def bend_limits(trajectory: Trajectory) -> RouteLimits:
    """The speeds that the bends of a trajectory allow, by distance along it."""
    poses = with_origin(trajectory.poses)
    along = geometry.arc_lengths(poses)
    if along[-1] < MIN_PATH_M:
        return RouteLimits.none()
    places = np.arange(0.0, along[-1], STEP_M)
    speeds = curve_speeds(poses, along, places)
    slow = speeds < FASTEST_MPS
    at_m, count = places[slow], int(slow.sum())
    return RouteLimits(
        count * (FactorKind.SPEED_LIMIT,),
        at_m,
        at_m + STEP_M,
        speeds[slow],
        np.full(count, COMFORT_BRAKING_MPS2),
        np.zeros((count, 3)),
        np.zeros((0, 2, 2)),
        np.zeros(0),
    )


def curve_speeds(poses: Array, along: Array, places: Array) -> Array:
    """(C,) m/s that LATERAL_MPS2 and YAW_RATE_RPS allow at places (C,) along poses (T, 3) that are at `along` (T,)."""
    moves = np.concatenate([[True], np.diff(along) > 0.0])  # a standing car repeats its pose
    headings = np.unwrap(poses[moves, 2])
    ends = [np.clip(places + way, along[0], along[-1]) for way in (-WINDOW_M, WINDOW_M)]
    behind, ahead = (np.interp(at, along[moves], headings) for at in ends)
    curvature = np.abs(ahead - behind) / np.maximum(ends[1] - ends[0], WINDOW_M)
    curvature = np.maximum(curvature, LATERAL_MPS2 / FASTEST_MPS**2 / 2.0)
    return np.asarray(np.minimum(np.sqrt(LATERAL_MPS2 / curvature), YAW_RATE_RPS / curvature))
