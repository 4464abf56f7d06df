"""Eight points of a token plan as the drive they stand for: published one at a time, checked many at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.interpolate import CubicSpline, PchipInterpolator

from .. import geometry, tokens
from ..domain import Array, EgoState, Trajectory
from ..kinematics import SAME_PLACE_M
from .pace import onward, paced
from .smoothing import smoothed

POINTS, POINT_DT_S = 8, 0.5
FREE = 2 * (POINTS - 1)  # ids to write: all but the goal's
HORIZON_S = POINTS * POINT_DT_S
KNOTS_S = POINT_DT_S * np.arange(POINTS + 1)
STEP_S = 0.1  # of `drawn`, as the driving score simulates


def shares(rounds: int) -> list[int]:
    """How many ids each round writes, so that all FREE are: equal shares, larger ones first, as 5, 5, 4."""
    return [-(-(FREE - turn) // rounds) for turn in range(rounds)]


def driven(points: Array, ego: EgoState, bin_m: float) -> Array:
    """Points (.., 8, 2) of tokens as this car drives them: without the jolts of rounding, no faster than it can."""
    return paced(onward(smoothed(points, ego, POINT_DT_S, bin_m)), ego.speed_mps, POINT_DT_S)


def trajectories(points: Array, speed_mps: float, dt_s: float) -> tuple[Trajectory, ...]:
    """Points (N, 8, 2), of a car that now drives at `speed_mps`, as poses at `dt_s`, headings included, up to 4 s."""
    return tuple(Trajectory(poses, dt_s) for poses in drawn(tokens.poses_from_points(points), speed_mps, dt_s))


def drawn(poses: Array, speed_mps: float, dt_s: float = STEP_S) -> Array:
    """Poses (N, 4 s / dt_s, 3) through poses (N, 8, 3) at 0.5 .. 4 s, of a car that now drives at `speed_mps`.

    The way is that of `kinematics.resample`, but for plans that stop and go on: their path is bent at the stop by
    itself. The distance is a cubic spline in time that begins with the present speed, so what a controller is given has
    no jumps in acceleration; where that would go backwards, it is a monotone curve, so a stop stays a stop.
    """
    knots = np.concatenate([np.zeros((len(poses), 1, 3)), poses], axis=1)  # (N, 9, 3)
    way = np.diff(knots[..., :2], axis=1)
    length = np.hypot(way[..., 0], way[..., 1])
    moves = length > SAME_PLACE_M
    along = np.concatenate([np.zeros((len(poses), 1)), np.cumsum(length, axis=1)], axis=1)
    times_s = dt_s * np.arange(1, int(HORIZON_S / dt_s + 1e-6) + 1)
    of_along, of_speed = _spline(dt_s)
    distance = along @ of_along.T + max(speed_mps, 0.0) * of_speed  # (N, T)
    backwards = (np.diff(distance, axis=1, prepend=0.0) < 0.0).any(axis=1)
    if backwards.any():
        distance[backwards] = PchipInterpolator(KNOTS_S, along[backwards], axis=1)(times_s)
    piece = np.minimum((times_s / POINT_DT_S + 1e-9).astype(int), POINTS - 1)
    share = (distance - along[:, piece]) / np.where(moves, length, 1.0)[:, piece]
    share = np.where(moves[:, piece], np.clip(share, 0.0, 1.0), 0.0)[..., None]

    tangent = _tangents(way, length, moves) * np.maximum(length, SAME_PLACE_M)[:, :, None, None]
    a, b, ta, tb = knots[:, piece, :2], knots[:, piece + 1, :2], tangent[:, piece, 0], tangent[:, piece, 1]
    place = (1 + 2 * share) * (1 - share) ** 2 * a + share**2 * (3 - 2 * share) * b
    place += share * (1 - share) ** 2 * ta - share**2 * (1 - share) * tb
    for knot in range(POINTS):  # who stands does not turn
        knots[:, knot + 1, 2] = np.where(moves[:, knot], knots[:, knot + 1, 2], knots[:, knot, 2])
    turn = geometry.wrap(np.diff(knots[..., 2], axis=1))
    heading = knots[:, piece, 2] + share[..., 0] * turn[:, piece]
    return np.concatenate([place, geometry.wrap(heading)[..., None]], axis=-1)


@lru_cache(maxsize=8)
def _spline(dt_s: float) -> tuple[Array, Array]:
    """(T, 9) and (T,): what distances at KNOTS_S and the present speed weigh in the distances at dt, 2 dt, .. 4 s."""
    times_s = dt_s * np.arange(1, int(HORIZON_S / dt_s + 1e-6) + 1)
    count = len(KNOTS_S)
    of_along = CubicSpline(KNOTS_S, np.eye(count), bc_type=((1, np.zeros(count)), "not-a-knot"))(times_s)
    of_speed = CubicSpline(KNOTS_S, np.zeros(count), bc_type=((1, 1.0), "not-a-knot"))(times_s)
    return of_along, of_speed


def _tangents(way: Array, length: Array, moves: Array) -> Array:
    """(N, 8, 2, 2) direction per metre where each piece begins and where it ends: the mean of the pieces around a knot,
    the shorter one weighing more; one-sided at the ends and at a stop."""
    slope = way / np.where(moves, length, 1.0)[..., None]
    between = np.where(moves[:, :-1] & moves[:, 1:], 1.0, 0.0)[..., None]
    before, after = length[:, :-1, None], length[:, 1:, None]
    middle = (after * slope[:, :-1] + before * slope[:, 1:]) / np.maximum(before + after, SAME_PLACE_M)
    begins, ends = slope.copy(), slope.copy()
    begins[:, 1:] += between * (middle - slope[:, 1:])
    ends[:, :-1] += between * (middle - slope[:, :-1])
    return np.stack([begins, ends], axis=2)
