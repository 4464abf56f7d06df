"""Limits on the speed profile of a plan: acceleration, lateral acceleration from a standstill, no reversing.

One bin of 0.3 m in the first 0.5 s is 2.4 m/s^2, so errors of a few bins ask for more than a vehicle can do. The path
is kept; distances along it are limited to what is reachable without getting ahead of the plan. Waypoints that go back
are removed: the vehicle stands. Between waypoints `smooth_distances` interpolates within the limits of drive and
brakes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import reflectdrive_kernels as kernels

from ... import geometry
from ...domain import Array
from ...kinematics import SAME_PLACE_M

SPEEDING_UP_MPS2 = 3.0  # a brisk start; plans with less acceleration are kept
LATERAL_ACCELERATION_MAX_MPS2 = 5.0  # lateral acceleration in a bend that is driven from a standstill
CREEPING_MPS = 2.0  # a faster car is in the bend already, and would have to brake
SPEED_LIMIT_PASSES = 4  # at lower speed other points fall into the bend, so the limit is applied repeatedly
AHEAD = 0.5  # cosine: a step of half a second that turns by more than 60 degrees is none that a car makes
HOLD_M, HOLD_MPS = 1.0, 0.5  # a slower car whose plan ends nearer stands; one bin is 0.3 m
TELLING_M = 0.15  # a shorter step does not give the heading
OFF_M = 0.1  # how far off a point is by rounding; a network's own errors are larger
JERK_MPS3 = 1.5  # prior standard deviation of the jerk along the path
CATCH_UP_S = 0.5  # in which a drawn drive makes up for what it lags behind
MOST_MPS2, LEAST_MPS2 = 4.0, -6.0  # limits of a published plan's acceleration and deceleration
BRAKING_MPS2 = 4.0  # by which a car that catches up with its plan can fall back to the plan's speed


def limit_acceleration(points: Array, speed_mps: float, dt_s: float) -> Array:
    """Points (.., T, 2) at dt, 2 dt, .. of the ego frame, delayed along their path to keep SPEEDING_UP_MPS2 from
    `speed_mps`."""
    points = np.asarray(points, float)
    found = points.copy()
    plans = found.reshape(-1, *points.shape[-2:])
    changed = kernels.limit_acceleration(plans, (speed_mps, dt_s, SPEEDING_UP_MPS2, BRAKING_MPS2))
    return found if changed else points


def limit_curve_speed(points: Array, speed_mps: float, dt_s: float) -> Array:
    """Points (.., T, 2) of a slow vehicle, delayed along their path so that the lateral
    acceleration stays below LATERAL_ACCELERATION_MAX_MPS2."""
    if abs(speed_mps) > CREEPING_MPS:
        return points
    ways = np.concatenate([np.zeros_like(points[..., :1, :]), points], axis=-2).reshape(-1, points.shape[-2] + 1, 2)
    along = geometry.arc_lengths(ways)
    found, share = ways[:, 1:], np.ones(len(ways))
    for _ in range(SPEED_LIMIT_PASSES):
        most = max_lateral_accelerations(found, dt_s)
        if (most <= LATERAL_ACCELERATION_MAX_MPS2).all():
            break
        share = share * np.sqrt(LATERAL_ACCELERATION_MAX_MPS2 / np.maximum(most, LATERAL_ACCELERATION_MAX_MPS2))
        found = geometry.interpolate_paths(ways, along, share[:, None] * along[:, 1:])
    return np.asarray(found.reshape(points.shape))


def max_lateral_accelerations(points: Array, dt_s: float) -> Array:
    """(N,) m/s^2, maximum over time of the lateral acceleration of points (N, T, 2)."""
    steps = np.diff(points, axis=1, prepend=np.zeros_like(points[:, :1]))
    length = np.hypot(steps[..., 0], steps[..., 1])
    before, after = steps[:, :-1], steps[:, 1:]
    cross = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    turns = np.abs(np.arctan2(cross, (before * after).sum(-1)))
    moves = np.minimum(length[:, :-1], length[:, 1:]) > TELLING_M
    aside = np.where(moves, turns * np.maximum(length[:, :-1], length[:, 1:]), 0.0) / dt_s**2
    return np.asarray(aside.max(axis=1, initial=0.0))


def drop_reversals(points: Array) -> Array:
    """Points (.., T, 2) in which a step backwards or sideways repeats the previous point: the vehicle stands."""
    found: Array = np.array(points, float, order="C")
    kernels.drop_reversals(found.reshape(-1, *found.shape[-2:]), AHEAD, TELLING_M)
    return found


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

    The maximum a posteriori motion, with standard deviations OFF_M of points and JERK_MPS3 of the jerk, within the
    limits of brakes and engine. A plan that stops stops at its own place, unless the car cannot.
    """
    of_along, of_speed = _likeliest(along.shape[1], dt_s, fine_s)
    start_mps = max(speed_mps, 0.0)
    wanted: Array = along @ of_along.T + start_mps * of_speed
    stops = along[:, -1] - along[:, -2] < SAME_PLACE_M
    room = np.where(stops, along[:, -1], np.inf)
    limits = (BRAKING_MPS2, MOST_MPS2, LEAST_MPS2, CATCH_UP_S)
    kernels.hold_distances(wanted, room, start_mps, fine_s, limits)
    return wanted


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
    weight = fine_s / dt_s / JERK_MPS3**2
    positions = np.eye(count * every)[every - 1 :: every] / OFF_M
    normal = weight * jerks.T @ jerks + positions.T @ positions
    return np.linalg.solve(normal, positions.T) / OFF_M, -np.linalg.solve(normal, weight * jerks.T @ of_speed)
