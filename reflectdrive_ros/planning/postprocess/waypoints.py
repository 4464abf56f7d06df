"""The points of token plans to poses: one plan for publishing, many for checks."""

from __future__ import annotations

import math

import numpy as np

from ... import geometry
from ...domain import Array, EgoState, Trajectory
from ...kinematics import SAME_PLACE_M
from ...scoring.frenet import FrenetFrame, poses_on_road
from ...scoring.limits import RouteLimits
from ...scoring.scorer import WAYPOINTS
from ...tokens import TokenLayout
from .curvature import exceeds_curvature, limit_curvature
from .route_limits import slow_points
from .smoothing import smooth_points
from .speed_profile import drop_reversals, limit_acceleration, limit_curve_speed, smooth_distances

POINTS, POINT_DT_S = WAYPOINTS, 0.5
HORIZON_S = POINTS * POINT_DT_S
STEP_S = 0.1  # of `interpolate`, as the driving score simulates


def postprocess(
    points: Array, ego: EgoState, bin_m: float, road: FrenetFrame | None, limits: RouteLimits | None = None
) -> Array:
    """Points (.., P, 2) of tokens as the car drives them: without quantisation noise, within its limits and those of
    the route, relative to the road if it is known.
    """
    kept = limit_acceleration(
        drop_reversals(smooth_points(points, ego, POINT_DT_S, bin_m, road)), ego.speed_mps, POINT_DT_S
    )
    kept = limit_curve_speed(kept, ego.speed_mps, POINT_DT_S)
    return kept if limits is None else slow_points(kept, limits, ego.speed_mps, POINT_DT_S)


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
    way = np.diff(knots[..., :2], axis=1)
    length = np.hypot(way[..., 0], way[..., 1])
    moves = length > SAME_PLACE_M
    for knot in range(poses.shape[1]):  # a standing car does not turn
        knots[:, knot + 1, 2] = np.where(moves[:, knot], knots[:, knot + 1, 2], knots[:, knot, 2])
    along = np.concatenate([np.zeros((len(poses), 1)), np.cumsum(length, axis=1)], axis=1)
    distance = _distances(along[:, 1:], speed_mps, dt_s)  # (N, T)
    piece = np.zeros(distance.shape, np.intp)
    for knot in range(1, poses.shape[1]):
        piece += distance > along[:, knot, None]
    found = _along_curves(knots, length, moves, _tangents(way, length, moves), along, distance, piece)
    sharp = exceeds_curvature(knots)
    if sharp.any():
        found[sharp] = limit_curvature(found[sharp], distance[sharp])
    return found


def _along_curves(
    knots: Array, length: Array, moves: Array, tangents: Array, along: Array, distance: Array, piece: Array
) -> Array:
    """Poses (N, T, 3) at arc lengths `distance`, each on a `piece` (N, T) of its curve; straight beyond.

    One array per coefficient of a piece: gathering them this way takes a quarter of the time of gathering rows.
    """
    of_piece, of_knot = (
        np.arange(len(knots))[:, None] * columns + piece for columns in length.shape[1] + np.array([0, 1])
    )
    share = (distance - along.take(of_knot)) / np.where(moves, length, 1.0).take(of_piece)
    share = np.where(moves.take(of_piece), np.minimum(np.maximum(share, 0.0), 1.0), 0.0)
    left, square = 1.0 - share, share * share
    weights = (1.0 + 2.0 * share) * left * left, square * (3.0 - 2.0 * share), share * left * left, -square * left
    found = np.empty((*distance.shape, 3))
    scale = np.maximum(length, SAME_PLACE_M)
    for axis in (0, 1):
        begins, ends = (tangents[:, :, end, axis] * scale for end in (0, 1))
        knot = np.ascontiguousarray(knots[..., axis])
        parts = knot.take(of_knot), knot.take(of_knot + 1), begins.take(of_piece), ends.take(of_piece)
        found[..., axis] = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    turns = geometry.wrap(np.diff(knots[..., 2], axis=1))
    heading = knots[..., 2].take(of_knot) + share * turns.take(of_piece)
    beyond = distance - along[:, -1:]
    if (beyond > 0.0).any():
        beyond = np.maximum(beyond, 0.0)
        found[..., 0] += beyond * np.cos(heading)
        found[..., 1] += beyond * np.sin(heading)
    found[..., 2] = geometry.wrap(heading)
    return found


def _distances(along: Array, speed_mps: float, dt_s: float) -> Array:
    """(N, T) `smooth_distances` at dt, 2 dt, .. up to 4 s, also where dt does not divide the time between points."""
    every = math.ceil(POINT_DT_S / dt_s - 1e-6)
    fine_s = POINT_DT_S / every
    distance = smooth_distances(along, speed_mps, POINT_DT_S, fine_s)
    at = dt_s / fine_s * np.arange(1, int(HORIZON_S / dt_s + 1e-6) + 1)
    after = np.ceil(at - 1e-6).astype(int)
    distance = np.concatenate([np.zeros((len(along), 1)), distance], axis=1)
    return np.asarray(distance[:, after] - (after - at) * (distance[:, after] - distance[:, after - 1]))


def _tangents(way: Array, length: Array, moves: Array) -> Array:
    """(N, P, 2, 2) direction per metre at the start and end of each piece: the mean of the pieces at a knot, with more
    weight for the shorter one; one-sided at the ends and at a stop.
    """
    slope = way / np.where(moves, length, 1.0)[..., None]
    between = np.where(moves[:, :-1] & moves[:, 1:], 1.0, 0.0)[..., None]
    before, after = length[:, :-1, None], length[:, 1:, None]
    middle = (after * slope[:, :-1] + before * slope[:, 1:]) / np.maximum(before + after, SAME_PLACE_M)
    begins, ends = slope.copy(), slope.copy()
    begins[:, 1:] += between * (middle - slope[:, 1:])
    ends[:, :-1] += between * (middle - slope[:, :-1])
    return np.stack([begins, ends], axis=2)
