"""Speed profile of a plan: the distances along its path are delayed, the path is unchanged.

Vehicle: One bin of 0.3 m in the first 0.5 s is 2.4 m/s^2, so errors of a few bins require more than a vehicle can
do. Distances are limited to what is reachable without getting ahead of the plan. Waypoints that go back are removed:
the vehicle stands. Between waypoints `smooth_distances` interpolates within the limits of drive and brakes.

Route: Plans are slowed down to what `scoring.limits` allows, and stop before closed stop lines. The car follows the
plan in time and is never ahead of it. Distances along the plan count as distances along the route: they differ by
little, and by nothing near the car.

Bends: `slow_in_bends` slows a plan down before its own bends, to a comfortable lateral acceleration and yaw rate. A
network that is rewarded for progress drives through bends at the bound of the driving score, and a plan at that bound
is refused by the guard as soon as the vehicle is a little faster or the bend a little tighter.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import reflectdrive_kernels as kernels

from ...core import geometry
from ...core.domain import Array, FactorKind, Trajectory
from ...core.kinematics import SAME_PLACE_M, with_origin
from ...scoring.limits import COMFORT_BRAKING_MPS2, RouteLimits

SPEEDING_UP_MPS2 = 2.2  # plans with less acceleration are kept; the driving score calls more than 2.4 uncomfortable
LATERAL_ACCELERATION_MAX_MPS2 = 5.0  # lateral acceleration in a bend that is driven from a standstill
CREEPING_MPS = 2.0  # a faster car is in the bend already, and would have to brake
SPEED_LIMIT_PASSES = 4  # at lower speed other points fall into the bend, so the limit is applied repeatedly
AHEAD = 0.5  # cosine: a step of half a second that turns by more than 60 degrees is none that a car makes
HOLD_M, HOLD_MPS = 1.0, 0.5  # a slower car whose plan ends nearer stands; one bin is 0.3 m
TELLING_M = 0.15  # a shorter step does not give the heading
OFF_M = 0.1  # how far off a point is by rounding; a network's own errors are larger
PROFILE_JERK_MPS3 = 1.5  # prior standard deviation of the jerk along the path
CATCH_UP_S = 0.5  # in which an interpolated motion makes up for its lag
MOST_MPS2, LEAST_MPS2 = SPEEDING_UP_MPS2, -6.0  # limits of a published plan's acceleration and deceleration
BRAKING_MPS2 = 4.0  # by which a car that catches up with its plan can fall back to the plan's speed

FINE_S = 0.1  # step of the slowed motion
NOTICED_MPS = 0.05  # plans that are faster by less are kept, but not where the car has to stand: they would creep on

BEND_LATERAL_MPS2, BEND_YAW_RATE_RPS = 4.0, 0.9  # the driving score calls more than 4.89 and 0.95 uncomfortable
BEND_STEP_M = 1.0  # between positions whose speed is limited
BEND_WINDOW_M = 2.0  # to either side, over which the curvature of a path is measured: shorter ones are noise
BEND_PATH_MIN_M = 3.0  # a shorter plan has no bend
BEND_SPEED_MAX_MPS = 40.0  # no limit above it

STEP_MIN_M = 0.003  # a shorter step of 0.1 s is no motion


# --- vehicle limits ---------------------------------------------------------------------------------------------------


def limit_acceleration(points: Array, speed_mps: float, dt_s: float) -> Array:
    """Points (.., T, 2) at dt, 2 dt, .. of the ego frame, delayed along their path to keep SPEEDING_UP_MPS2 from
    `speed_mps`."""
    points = np.asarray(points, float)
    limited = points.copy()
    plans = limited.reshape(-1, *points.shape[-2:])
    changed = kernels.limit_acceleration(plans, (speed_mps, dt_s, SPEEDING_UP_MPS2, BRAKING_MPS2))
    return limited if changed else points


def limit_curve_speed(points: Array, speed_mps: float, dt_s: float) -> Array:
    """Points (.., T, 2) of a slow vehicle, delayed along their path so that the lateral
    acceleration stays below LATERAL_ACCELERATION_MAX_MPS2."""
    if abs(speed_mps) > CREEPING_MPS:
        return points
    paths = np.concatenate([np.zeros_like(points[..., :1, :]), points], axis=-2).reshape(-1, points.shape[-2] + 1, 2)
    along = geometry.arc_lengths(paths)
    slowed, share = paths[:, 1:], np.ones(len(paths))
    for _ in range(SPEED_LIMIT_PASSES):
        most = max_lateral_accelerations(slowed, dt_s)
        if (most <= LATERAL_ACCELERATION_MAX_MPS2).all():
            break
        share = share * np.sqrt(LATERAL_ACCELERATION_MAX_MPS2 / np.maximum(most, LATERAL_ACCELERATION_MAX_MPS2))
        slowed = geometry.interpolate_paths(paths, along, share[:, None] * along[:, 1:])
    return np.asarray(slowed.reshape(points.shape))


def max_lateral_accelerations(points: Array, dt_s: float) -> Array:
    """(N,) m/s^2, maximum over time of the lateral acceleration of points (N, T, 2)."""
    steps = np.diff(points, axis=1, prepend=np.zeros_like(points[:, :1]))
    length = np.hypot(steps[..., 0], steps[..., 1])
    before, after = steps[:, :-1], steps[:, 1:]
    cross = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    turns = np.abs(np.arctan2(cross, (before * after).sum(-1)))
    moves = np.minimum(length[:, :-1], length[:, 1:]) > TELLING_M
    lateral_mps2 = np.where(moves, turns * np.maximum(length[:, :-1], length[:, 1:]), 0.0) / dt_s**2
    return np.asarray(lateral_mps2.max(axis=1, initial=0.0))


def drop_reversals(points: Array) -> Array:
    """Points (.., T, 2) in which a step backwards or sideways repeats the previous point: the vehicle stands."""
    forward: Array = np.array(points, float, order="C")
    kernels.drop_reversals(forward.reshape(-1, *forward.shape[-2:]), AHEAD, TELLING_M)
    return forward


def hold_standstill(points: Array, speed_mps: float) -> Array:
    """Points (.., T, 2); zeros, a stand, for a car below HOLD_MPS where no point is HOLD_M away.

    In a queue, plans that alternate between a stop and a few bins keep a car rolling: a controller brakes it slowly
    from walking pace.
    """
    if abs(speed_mps) >= HOLD_MPS:
        return points
    stays = np.hypot(points[..., 0], points[..., 1]).max(axis=-1) < HOLD_M
    return np.where(stays[..., None, None], 0.0, points) if stays.any() else points


# --- between the points ----------------------------------------------------------------------------------------------


def smooth_distances(along: Array, speed_mps: float, dt_s: float, fine_s: float) -> Array:
    """Distances (N, T) at fine_s, 2 fine_s, .. of a car that drives at `speed_mps` and should reach `along` (N, K) at
    dt_s, 2 dt_s, .. `fine_s` divides `dt_s`.

    The maximum a posteriori motion, with standard deviations OFF_M of points and PROFILE_JERK_MPS3 of the jerk, within
    the limits of brakes and engine. A plan that stops stops at its own end, unless the car cannot.
    """
    of_along, of_speed = _likeliest(along.shape[1], dt_s, fine_s)
    start_mps = max(speed_mps, 0.0)
    smoothed: Array = along @ of_along.T + start_mps * of_speed
    stops = along[:, -1] - along[:, -2] < SAME_PLACE_M
    room = np.where(stops, along[:, -1], np.inf)
    limits = (BRAKING_MPS2, MOST_MPS2, LEAST_MPS2, CATCH_UP_S)
    kernels.hold_distances(smoothed, room, start_mps, fine_s, limits)
    return smoothed


@lru_cache(maxsize=8)
def _likeliest(count: int, dt_s: float, fine_s: float) -> tuple[Array, Array]:
    """(T, K) and (T,): weights of K distances and of the present speed in the estimate at T instants."""
    every = round(dt_s / fine_s)
    steps = np.diff(np.eye(count * every + 1), axis=0)[:, 1:] / fine_s  # mean speeds; the distance now is 0
    changes = np.diff(steps, axis=0) / fine_s
    first = steps[:1] / (0.5 * fine_s)  # from the present speed on, half an interval before
    jerks = np.concatenate([(changes[:1] - first) / (0.75 * fine_s), np.diff(changes, axis=0) / fine_s])
    of_speed = np.zeros(len(jerks))
    of_speed[0] = 1.0 / (0.5 * fine_s) / (0.75 * fine_s)
    weight = fine_s / dt_s / PROFILE_JERK_MPS3**2
    positions = np.eye(count * every)[every - 1 :: every] / OFF_M
    normal = weight * jerks.T @ jerks + positions.T @ positions
    return np.linalg.solve(normal, positions.T) / OFF_M, -np.linalg.solve(normal, weight * jerks.T @ of_speed)


# --- route limits -----------------------------------------------------------------------------------------------------


def slow_points(points: Array, limits: RouteLimits, speed_mps: float, dt_s: float) -> Array:
    """Points (.., P, 2) at dt, 2 dt, .. of a car that drives at `speed_mps`, delayed along their paths where they are
    too fast."""
    if not limits.kinds:
        return points
    paths = np.concatenate([np.zeros_like(points[..., :1, :]), points], axis=-2).reshape(-1, points.shape[-2] + 1, 2)
    along = geometry.arc_lengths(paths)
    reached = slow_distances(along, limits, speed_mps, dt_s)
    if reached is along:
        return points
    return np.asarray(geometry.interpolate_paths(paths, along, reached[:, 1:]).reshape(points.shape))


def slow_trajectory(trajectory: Trajectory, limits: RouteLimits, speed_mps: float) -> Trajectory:
    """The trajectory, delayed along its path where it is too fast; itself if it is not."""
    if not limits.kinds:
        return trajectory
    poses = with_origin(trajectory.poses)
    along = geometry.arc_lengths(poses[None])
    reached = slow_distances(along, limits, speed_mps, trajectory.dt_s)
    return trajectory if reached is along else at_distances(poses, along[0], reached[0, 1:], trajectory.dt_s)


def at_distances(poses: Array, along: Array, reached_m: Array, dt_s: float) -> Trajectory:
    """The trajectory of a car that has driven `reached_m` (N,) at dt, 2 dt, .. along poses (T, 3), whose arc lengths
    are `along` (T,)."""
    headings = np.unwrap(poses[:, 2])
    # A standing car repeats its pose, so that one distance has several indices: the first heading there counts.
    moves = np.concatenate([[True], np.diff(along) > 0.0])
    points = geometry.interpolate_paths(poses[None, :, :2], along[None], reached_m[None])[0]
    turned = np.interp(reached_m, along[moves], headings[moves])
    return Trajectory(np.column_stack([points, geometry.wrap(turned)]), dt_s)


def slow_distances(along: Array, limits: RouteLimits, speed_mps: float, dt_s: float) -> Array:
    """(N, T + 1) distances at 0, dt, .. of cars that should reach `along` (N, T + 1) and drive at `speed_mps` now;
    `along` itself if none of them is too fast."""
    planned_mps = np.diff(along, axis=1) / dt_s
    allowed_mps = limits.allowed_speeds(along[:, :-1], dt_s)
    # A coarse interval may end beyond the point where it should have been slower.
    allowed_mps = np.minimum(allowed_mps, limits.allowed_speeds(along[:, 1:], dt_s) + COMFORT_BRAKING_MPS2 * dt_s)
    fast = (planned_mps > allowed_mps + np.where(allowed_mps > 0.0, NOTICED_MPS, 0.0)).any(axis=1)
    if not fast.any():
        return along
    slowed: Array = along.copy()
    slowed[fast] = _follow(planned_mps[fast], limits, speed_mps, dt_s)
    return slowed


def _follow(planned_mps: Array, limits: RouteLimits, speed_mps: float, dt_s: float) -> Array:
    """(N, T + 1) distances of cars with planned speeds (N, T), within the limits."""
    count = max(round(dt_s / FINE_S), 1)
    fine_s, braking_mps2 = dt_s / count, float(limits.braking_mps2.max())
    distance, speed = np.zeros(len(planned_mps)), np.full(len(planned_mps), max(speed_mps, 0.0))
    reached = np.zeros((len(planned_mps), planned_mps.shape[1] + 1))
    change_s = 0.5 * fine_s  # from the present speed to the mean of the first interval
    for now in range(planned_mps.shape[1]):
        for _ in range(count):
            allowed = np.maximum(limits.allowed_speeds(distance, fine_s), speed - braking_mps2 * change_s)
            permitted = np.minimum(allowed, speed + MOST_MPS2 * change_s)
            speed = np.maximum(np.minimum(planned_mps[:, now], permitted), 0.0)
            distance, change_s = distance + fine_s * speed, fine_s
        reached[:, now + 1] = distance
    return reached


# --- bends ------------------------------------------------------------------------------------------------------------


def slow_in_bends(trajectory: Trajectory, speed_mps: float) -> Trajectory:
    """The trajectory of a car that drives at `speed_mps`, delayed along its path before bends that it takes too fast;
    itself if there are none."""
    return slow_trajectory(trajectory, bend_limits(trajectory), speed_mps)


def bend_limits(trajectory: Trajectory) -> RouteLimits:
    """The speeds that the bends of a trajectory allow, by distance along it."""
    poses = with_origin(trajectory.poses)
    along = geometry.arc_lengths(poses)
    if along[-1] < BEND_PATH_MIN_M:
        return RouteLimits.none()
    positions_m = np.arange(0.0, along[-1], BEND_STEP_M)
    speeds = curve_speeds(poses, along, positions_m)
    slow = speeds < BEND_SPEED_MAX_MPS
    at_m, count = positions_m[slow], int(slow.sum())
    return RouteLimits(
        count * (FactorKind.SPEED_LIMIT,),
        at_m,
        at_m + BEND_STEP_M,
        speeds[slow],
        np.full(count, COMFORT_BRAKING_MPS2),
        np.zeros((count, 3)),
        np.zeros((0, 2, 2)),
        np.zeros(0),
    )


def curve_speeds(poses: Array, along: Array, positions_m: Array) -> Array:
    """(C,) m/s that BEND_LATERAL_MPS2 and BEND_YAW_RATE_RPS allow at arc lengths `positions_m` (C,) along poses (T, 3).

    along: (T,) arc lengths of the poses.
    """
    moves = np.concatenate([[True], np.diff(along) > 0.0])  # a standing car repeats its pose
    headings = np.unwrap(poses[moves, 2])
    ends = [np.clip(positions_m + offset_m, along[0], along[-1]) for offset_m in (-BEND_WINDOW_M, BEND_WINDOW_M)]
    behind, ahead = (np.interp(at, along[moves], headings) for at in ends)
    curvature = np.abs(ahead - behind) / np.maximum(ends[1] - ends[0], BEND_WINDOW_M)
    curvature = np.maximum(curvature, BEND_LATERAL_MPS2 / BEND_SPEED_MAX_MPS**2 / 2.0)
    return np.asarray(np.minimum(np.sqrt(BEND_LATERAL_MPS2 / curvature), BEND_YAW_RATE_RPS / curvature))


# --- standstill -------------------------------------------------------------------------------------------------------


def without_reversal(poses: Array) -> Array:
    """Poses (T, 3) whose steps against their heading, and steps shorter than STEP_MIN_M, are left out; the heading is
    kept while the car stands."""
    steps = np.diff(poses[:, :2], axis=0, prepend=np.zeros((1, 2)))
    forward = steps[:, 0] * np.cos(poses[:, 2]) + steps[:, 1] * np.sin(poses[:, 2])
    moves = forward > STEP_MIN_M
    points = np.cumsum(steps * moves[:, None], axis=0)
    last = np.maximum.accumulate(np.where(moves, np.arange(len(poses)), -1))
    heading = np.where(last >= 0, poses[np.maximum(last, 0), 2], 0.0)
    return np.column_stack([points, heading])
