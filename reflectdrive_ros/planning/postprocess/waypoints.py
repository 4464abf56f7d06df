"""The waypoints of token plans to poses: smooth, within the vehicle and route limits, for publishing and for checks.

Noise: `smooth_points` removes the noise of token waypoints: of rounding to coarse bins, of prediction with fine
ones. A bin is 0.3 m wide, so accelerations between rounded points have errors of about 3 m/s^2. The points are treated
as measurements, uniform within a width `noise_m` (`TokenLayout.waypoint_noise_m`), of a motion that starts with the
car's present velocity and has a small jerk; the maximum a posteriori motion is one linear map of the points. If the
route is known, this is done in its Frenet frame with a smaller jerk, because the road's bends are then removed. No
point moves by more than half the width.

Curvature: `limit_curvature` limits the curvature by pure pursuit along the plan, with unchanged distances: at
walking pace an error of one bin bends the path more tightly than a vehicle can turn.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import reflectdrive_kernels as kernels

from ...core import geometry, kinematics
from ...core.domain import Array, EgoState, Observation, Plan, Trajectory
from ...core.kinematics import SAME_PLACE_M
from ...core.tokens import TokenLayout
from ...scoring.frenet import NO_ROUTE, ROUTE_RULE, FrenetFrame, poses_on_road
from ...scoring.limits import RouteLimits
from ...scoring.scorer import WAYPOINTS
from .speed_profile import (
    TELLING_M,
    drop_reversals,
    hold_standstill,
    limit_acceleration,
    limit_curve_speed,
    slow_points,
    smooth_distances,
)

POINTS, POINT_DT_S = WAYPOINTS, 0.5
HORIZON_S = POINTS * POINT_DT_S
CARRY_MAX_S = 1.0  # a plan is used again for so long: later, the scene is another
STEP_S = 0.1  # of `interpolate`, as the driving score simulates
FOLLOWED_M, FOLLOWED_RAD = 0.3, 0.15  # lateral, of a car that follows its plan, from where the plan has it
FOLLOWED_ALONG_M = 1.0  # likewise, longitudinal

SMOOTHING_JERK_MPS3 = 2.0  # prior standard deviation of the jerk; smaller values cut corners, larger ones leave noise
SMOOTHING_JERK_ON_ROAD_MPS3 = 1.0  # the same against the road

TIGHTEST_PER_M = 0.3  # a small car at full steering angle
LOOK_AHEAD_M = 1.5


def postprocess(
    points: Array, ego: EgoState, noise_m: float, road: FrenetFrame | None, limits: RouteLimits | None = None
) -> Array:
    """Points (.., P, 2) of tokens, uncertain within `noise_m`, as the car drives them: smooth, within its limits and
    those of the route, relative to the road if it is known.
    """
    limited = limit_acceleration(
        drop_reversals(smooth_points(points, ego, POINT_DT_S, noise_m, road)), ego.speed_mps, POINT_DT_S
    )
    limited = hold_standstill(limit_curve_speed(limited, ego.speed_mps, POINT_DT_S), ego.speed_mps)
    return limited if limits is None else slow_points(limited, limits, ego.speed_mps, POINT_DT_S)


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


def follows(ego: EgoState, plan: Plan) -> bool:
    """Whether the car is where a plan has it. It is not while a person drives: what is left of the plan would begin
    beside the car, or at another speed."""
    elapsed_s = np.array([min((ego.stamp_ns - plan.stamp_ns) * 1e-9, plan.trajectory.horizon_s)])
    now_from_then = geometry.compose(geometry.invert(ego.map_from_ego), plan.map_from_ego)
    ((ahead_m, left_m, turn_rad),) = np.abs(
        geometry.compose(now_from_then, kinematics.resample(plan.trajectory, elapsed_s))
    )
    return bool(ahead_m <= FOLLOWED_ALONG_M and left_m <= FOLLOWED_M and turn_rad <= FOLLOWED_RAD)


def waypoints(trajectory: Trajectory) -> Array:
    """(8, 2) points at 0.5 .. 4 s."""
    return kinematics.resample(trajectory, POINT_DT_S * np.arange(1, POINTS + 1))[:, :2]


def rest_of_plan(last: Plan | None, observation: Observation, count: int) -> Array | None:
    """(P, 2) `carried_points` of the last plan, continued at constant velocity beyond its end; None if there is none
    or if it is older than CARRY_MAX_S."""
    if last is None or not 0 < observation.stamp_ns - last.stamp_ns <= CARRY_MAX_S * 1e9:
        return None
    points = carried_points(last, observation, count)
    for index in np.flatnonzero(np.isnan(points[:, 0])):
        before = points[index - 2] if index > 1 else np.zeros(2)
        points[index] = 2.0 * points[index - 1] - before
    return drop_reversals(points)  # a car that has overrun its stop does not drive back


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
    interpolated = np.empty((*distance.shape, 3))
    kernels.follow_waypoints(knots, distance, SAME_PLACE_M, interpolated)
    sharp = exceeds_curvature(knots)
    if sharp.any():
        interpolated[sharp] = limit_curvature(interpolated[sharp], distance[sharp])
    return interpolated


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


# --- noise ------------------------------------------------------------------------------------------------------------


def smooth_points(points: Array, ego: EgoState, dt_s: float, noise_m: float, road: FrenetFrame | None = None) -> Array:
    """Points (.., T, 2) at dt, 2 dt, .. of the ego frame, each moved by at most half of `noise_m`; repeated points stay
    equal, so that a stop stays a stop.
    """
    points = np.asarray(points, float)
    start = np.zeros((2, 2))
    start[0] = previous_position(ego, dt_s)
    plain, on_road = (
        smoothing_matrices(points.shape[-2], dt_s, noise_m, jerk)
        for jerk in (SMOOTHING_JERK_MPS3, SMOOTHING_JERK_ON_ROAD_MPS3)
    )
    moved = np.empty(points.shape)
    plans, smoothed = (each.reshape(-1, *points.shape[-2:]) for each in (points, moved))
    route = NO_ROUTE if road is None else road.for_kernels
    kernels.smooth_points(plans, start, noise_m, plain, on_road, route, ROUTE_RULE, smoothed)
    return moved


def previous_position(ego: EgoState, dt_s: float) -> Array:
    """(2,) position one interval ago, in the present ego frame, from the present motion."""
    along_m = -ego.speed_mps * dt_s + 0.5 * ego.acceleration_mps2 * dt_s**2
    return np.asarray(kinematics.arc(kinematics.curvature_now(ego), np.array([along_m]))[0, :2])


@lru_cache(maxsize=8)
def smoothing_matrices(count: int, dt_s: float, noise_m: float, jerk_mps3: float) -> tuple[Array, Array]:
    """(T, T) and (T, 2): weights of the T points, and of the positions one interval ago and now, in the estimate."""
    third = np.diff(np.eye(count + 2), n=3, axis=0)  # (T - 1, T + 2), from one interval ago on
    of_start, of_points = third[:, :2], third[:, 2:]
    weight = (noise_m / np.sqrt(12) / (jerk_mps3 * dt_s**3)) ** 2
    normal = np.eye(count) + weight * of_points.T @ of_points
    return np.linalg.inv(normal), -np.linalg.solve(normal, weight * of_points.T @ of_start)


# --- curvature --------------------------------------------------------------------------------------------------------


def exceeds_curvature(paths: Array) -> Array:
    """(N,) bool: whether paths (N, T + 1, 2+), starting at the present position, have more curvature than a car can
    drive.
    """
    too_sharp = np.empty(len(paths), bool)
    kernels.bends_too_sharply(paths[..., :2], TIGHTEST_PER_M, TELLING_M, too_sharp)
    return too_sharp


def limit_curvature(poses: Array, distance: Array) -> Array:
    """Poses (N, T, 3) of cars that set out from the origin with heading 0 and follow poses (N, T, 3): they have driven
    `distance` (N, T) by then, with no sharper turn than TIGHTEST_PER_M."""
    limited = np.empty(poses.shape)
    kernels.pursue(poses, distance, TIGHTEST_PER_M, LOOK_AHEAD_M, limited)
    return limited
