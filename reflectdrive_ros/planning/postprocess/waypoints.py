"""The points of token plans to poses: one plan for publishing, many for checks."""

from __future__ import annotations

import math

import numpy as np
import reflectdrive_kernels as kernels

from ...core import geometry, kinematics
from ...core.domain import Array, EgoState, Observation, Plan, Trajectory
from ...core.kinematics import SAME_PLACE_M
from ...core.tokens import TokenLayout
from ...scoring.frenet import FrenetFrame, poses_on_road
from ...scoring.limits import RouteLimits
from ...scoring.scorer import WAYPOINTS
from .curvature import exceeds_curvature, limit_curvature
from .route_limits import slow_points
from .smoothing import smooth_points
from .speed_profile import (
    drop_reversals,
    hold_standstill,
    limit_acceleration,
    limit_curve_speed,
    smooth_distances,
)

POINTS, POINT_DT_S = WAYPOINTS, 0.5
HORIZON_S = POINTS * POINT_DT_S
STEP_S = 0.1  # of `interpolate`, as the driving score simulates


def postprocess(
    points: Array, ego: EgoState, noise_m: float, road: FrenetFrame | None, limits: RouteLimits | None = None
) -> Array:
    """Points (.., P, 2) of tokens, uncertain within `noise_m`, as the car drives them: smooth, within its limits and
    those of the route, relative to the road if it is known.
    """
    kept = limit_acceleration(
        drop_reversals(smooth_points(points, ego, POINT_DT_S, noise_m, road)), ego.speed_mps, POINT_DT_S
    )
    kept = hold_standstill(limit_curve_speed(kept, ego.speed_mps, POINT_DT_S), ego.speed_mps)
    return kept if limits is None else slow_points(kept, limits, ego.speed_mps, POINT_DT_S)


def carried_points(last: Plan, observation: Observation, count: int) -> Array:
    """(P, 2) `count` points of the last plan, 0.5 s apart from now on, current ego frame; NaN beyond its end."""
    elapsed_s = (observation.stamp_ns - last.stamp_ns) * 1e-9
    times_s = elapsed_s + POINT_DT_S * np.arange(1, count + 1)
    covered = times_s <= last.trajectory.horizon_s + 1e-6
    poses = kinematics.resample(last.trajectory, np.minimum(times_s[covered], last.trajectory.horizon_s))
    now_from_then = geometry.compose(geometry.invert(observation.ego.map_from_ego), last.map_from_ego)
    points = np.full((count, 2), np.nan)
    points[covered] = geometry.transform_points(now_from_then, poses[:, :2])
    return points


def trajectories(
    points: Array, speed_mps: float, dt_s: float, road: FrenetFrame | None = None, headings: Array | None = None
) -> tuple[Trajectory, ...]:
    """Points (N, P, 2), of a car that now drives at `speed_mps`, as poses at `dt_s`, headings included, up to 4 s.

    headings: (N, P) rad, as `waypoint_poses`.
    """
    poses = waypoint_poses(points, road, headings)
    return tuple(Trajectory(each, dt_s) for each in interpolate(poses, speed_mps, dt_s))


def waypoint_poses(points: Array, road: FrenetFrame | None, headings: Array | None = None) -> Array:
    """Poses (.., P, 3) through points (.., P, 2), with `headings` (.., P) rad where these are not NaN, else with those
    of the path."""
    poses = poses_on_road(points, road)
    if headings is not None:
        poses[..., 2] = np.where(np.isnan(headings), poses[..., 2], headings)
    return poses


def token_headings(waypoints: Array, points: Array, layout: TokenLayout) -> Array | None:
    """(.., P) headings in rad of decoded waypoints (.., P, A) that were postprocessed to points (.., P, 2); None if the
    layout has none.

    NaN where a point was moved by more than a bin, and in a whole plan if one of its headings is at the end of the
    range, beyond which tokens have none.
    """
    if len(layout.axes) < 3:
        return None
    axis, headings = layout.axes[2], waypoints[..., 2]
    moved = np.abs(points - waypoints[..., :2]).max(axis=-1) > layout.codebook.bin_m
    low, high = (axis.codebook.to_values(np.array(id_)) for id_ in axis.id_range)
    clipped = ((headings <= low) | (headings >= high)).any(axis=-1, keepdims=True)
    return np.where(moved | clipped, np.nan, headings)


def interpolate(poses: Array, speed_mps: float, dt_s: float = STEP_S) -> Array:
    """Poses (N, 4 s / dt_s, 3) through poses (N, P, 3) at 0.5 .. 4 s, of a car that drives at `speed_mps`.

    The path is that of `kinematics.resample`, except for plans that stop and continue: their path has a corner at the
    stop. Distances along it follow the points within the limits of a controller: see `speed_profile.smooth_distances`.
    """
    knots = np.concatenate([np.zeros((len(poses), 1, 3)), poses], axis=1)  # (N, P + 1, 3)
    distance = _distances(geometry.arc_lengths(knots)[:, 1:], speed_mps, dt_s)  # (N, T)
    found = np.empty((*distance.shape, 3))
    kernels.follow_waypoints(knots, distance, SAME_PLACE_M, found)
    sharp = exceeds_curvature(knots)
    if sharp.any():
        found[sharp] = limit_curvature(found[sharp], distance[sharp])
    return found


def _distances(along: Array, speed_mps: float, dt_s: float) -> Array:
    """(N, T) `smooth_distances` at dt, 2 dt, .. up to 4 s, also where dt does not divide the time between points."""
    every = math.ceil(POINT_DT_S / dt_s - 1e-6)
    fine_s = POINT_DT_S / every
    distance = smooth_distances(along, speed_mps, POINT_DT_S, fine_s)
    if dt_s == fine_s:
        return distance
    at = dt_s / fine_s * np.arange(1, int(HORIZON_S / dt_s + 1e-6) + 1)
    after = np.ceil(at - 1e-6).astype(int)
    distance = np.concatenate([np.zeros((len(along), 1)), distance], axis=1)
    return np.asarray(distance[:, after] - (after - at) * (distance[:, after] - distance[:, after - 1]))
