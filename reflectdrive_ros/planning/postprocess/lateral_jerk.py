"""Changes a plan that brakes or accelerates too hard for its curvature: a smooth path, other speeds along it.

Autoware's planning_validator refuses plans with more than 7 m/s^3 of 3 v^2 a k: speed v, acceleration a, curvature k.
In a bend at 3 m/s^2 of lateral acceleration that allows 0.8 m/s^2 of braking. Two causes:

Path: a plan that leaves the car at an angle, or has a corner, has a large curvature there. `smooth_path` penalises the
change of curvature, from the path that the car drives now on. It moves points by centimetres; by decimetres where a
plan stops hard within metres.

Speeds: with w = v^4 the quantity is 3/4 k dw/ds: it limits the slope of w along the path. The fastest profile below the
plan's own with such slopes results from one pass from the end and one from the start: the plan brakes before the bend
and accelerates after it. A car that is in the bend already brakes less than planned, up to AHEAD_MAX_M ahead of its
plan but not beyond its stop; where that does not suffice it brakes as planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ...core import geometry
from ...core.config import FIRST_POINTS
from ...core.domain import Array, EgoState, Trajectory
from ...core.kinematics import SAME_PLACE_M, arc, curvature_now, driven_path, with_origin

LIMIT_MPS3 = 7.0  # of the validator, for 3 v^2 a k
ACCEPTED_MPS3 = 6.7  # of a plan that is not changed
TARGETS_MPS3 = (6.0, 4.0, 2.0)  # of limited speeds, tried in turn: curvature between points differs from that in them
BETTER = 0.5  # share of the plan's own that a limited plan beyond the limits may have
LARGEST_ACCELERATION_MPS2 = 8.0  # below the validator's 9.8 m/s^2
GAINING_MPS2, BRAKING_EARLY_MPS2 = 2.0, 4.0  # where the plan does neither; the driving score calls both comfortable
WAVELENGTHS_M = (1.5, 2.5, 5.0)  # wavelength below which a path is smoothed, divided by 2 pi; the last for hard stops
PATH_STEP_M = 0.5  # between points of a smooth path
STATIONS_STEP = 16  # their number is a multiple: matrices are cached
DRIVEN_STATIONS = 3  # points of the driven path that a smooth path begins with: position, direction, curvature
OFF_PATH_MAX_M = 0.5  # of a smooth path from the plan's; as much as successive plans may shift
SPACING_M = 1.0  # the validator's, between the points of its curvatures
CHORD_M = 1.2  # curvature is that of the circle through points so far apart
CURVATURE_STEP_M = 0.5
BENDING_M = 1.0  # a curvature counts so far before and after it
STRAIGHT_PER_M = 1e-3
AHEAD_MAX_M = 3.0  # of where the plan has the car, in a bend where it would have to brake too hard


def limited_trajectories(trajectory: Trajectory, ego: EgoState) -> Iterator[Trajectory]:
    """Trajectories in place of one that is beyond the limits, the less smoothed first; then those that are still
    beyond them, but have half as much. None if it is within the limits, too short, or driven backwards."""
    poses = with_origin(trajectory.poses)
    along = geometry.arc_lengths(poses)
    driven = driven_path(ego, trajectory.dt_s, max(FIRST_POINTS.values()))
    own = published_jerk(trajectory, driven)
    acceleration = np.abs(np.diff(along, n=2)).max(initial=0.0) / trajectory.dt_s**2
    if own <= ACCEPTED_MPS3 and acceleration <= LARGEST_ACCELERATION_MPS2:
        return
    if along[-1] < SPACING_M or ego.speed_mps < 0.0:
        return
    stops = along[-1] - along[-2] < SAME_PLACE_M
    allowed_m = np.minimum(along[1:] + AHEAD_MAX_M, along[-1] + SAME_PLACE_M if stops else math.inf)
    better: list[tuple[float, Trajectory]] = []
    for smoothed_m in WAVELENGTHS_M:
        path, off_m = smooth_path(poses, along, ego, smoothed_m)
        if off_m > OFF_PATH_MAX_M:
            break
        nodes_m, planned_mps, curvatures = nodes_of(poses_at(path, along), trajectory.dt_s, ego)
        for target_mps3, keeps_braking in (*((each, False) for each in TARGETS_MPS3), (TARGETS_MPS3[0], True)):
            limited_mps = limited_speeds(nodes_m, planned_mps, curvatures, target_mps3, keeps_braking)
            reached_m = distances(nodes_m, planned_mps, limited_mps, trajectory.dt_s)
            if not keeps_braking and (reached_m > allowed_m).any():
                continue
            limited = Trajectory(poses_at(path, reached_m), trajectory.dt_s)
            jerk = published_jerk(limited, driven)
            if jerk <= ACCEPTED_MPS3:
                yield limited
                break
            if jerk < min(own, max(BETTER * own, LIMIT_MPS3)) or acceleration > LARGEST_ACCELERATION_MPS2:
                better.append((jerk, limited))
    yield from (limited for _, limited in sorted(better, key=lambda option: option[0]))


def published_jerk(trajectory: Trajectory, driven: Array) -> float:
    """m/s^3, the largest 3 v^2 a k of a trajectory behind the driven path (D, 3), as Autoware's validator has it."""
    line = np.concatenate([driven, trajectory.poses])[:, :2]
    return lateral_jerk(line[1:], np.hypot(*np.diff(line, axis=0).T) / trajectory.dt_s, trajectory.dt_s)


def lateral_jerk(points: Array, speeds: Array, dt_s: float) -> float:
    """m/s^3, the largest 3 v^2 a k of points (T, 2) with speeds (T,) of the intervals that end there."""
    indices = thin_indices(points)
    if len(indices) < 3:
        return 0.0
    accelerations = np.append(np.diff(speeds) / dt_s, 0.0)
    v, a = speeds[indices[1:-1]], accelerations[indices[1:-1]]
    return float(np.abs(3.0 * v**2 * a * three_point_curvature(points[indices])).max())


def thin_indices(points: Array) -> Array:
    """Indices of points (T, 2) at least SPACING_M apart, beginning with the first."""
    indices, line = [0], points[:, :2].tolist()
    for index, point in enumerate(line):
        if math.dist(point, line[indices[-1]]) >= SPACING_M:
            indices.append(index)
    return np.array(indices)


def three_point_curvature(line: Array) -> Array:
    """(N - 2,) signed curvature of the circles through three points in a row of a line (N, 2)."""
    return circle_curvature(line[:-2], line[1:-1], line[2:])


def circle_curvature(before: Array, middle: Array, after: Array) -> Array:
    """(N,) signed curvature of the circles through points (N, 2)."""
    one, two, chord = middle - before, after - middle, after - before
    area2 = one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]
    product = np.hypot(*one.T) * np.hypot(*two.T) * np.hypot(*chord.T)
    return np.asarray(2.0 * area2 / np.maximum(product, 1e-9))


# --- path -------------------------------------------------------------------------------------------------------------


def smooth_path(poses: Array, along: Array, ego: EgoState, smoothed_m: float) -> tuple[Array, float]:
    """Points (S, 2) every PATH_STEP_M of a smooth path, from the driven path on, and its largest distance in m from the
    path of poses (T, 3) with arc lengths `along` (T,); point DRIVEN_STATIONS - 1 is the origin."""
    count = STATIONS_STEP * math.ceil((along[-1] + AHEAD_MAX_M) / PATH_STEP_M / STATIONS_STEP + 0.5)
    points = geometry.sample(geometry.distinct_points(poses), PATH_STEP_M * np.arange(1, count + 1))[:, :2]
    driven = arc(curvature_now(ego), PATH_STEP_M * np.arange(1.0 - DRIVEN_STATIONS, 1.0))[:, :2]
    of_points, of_driven = smoothing(count, smoothed_m)
    smooth = of_points @ points + of_driven @ driven
    planned = slice(0, int(along[-1] / PATH_STEP_M) + 1)
    off_m = float(np.hypot(*(smooth - points)[planned].T).max())
    return np.concatenate([driven, smooth]), off_m


@lru_cache(maxsize=32)
def smoothing(count: int, smoothed_m: float) -> tuple[Array, Array]:
    """(S, S) and (S, DRIVEN_STATIONS): weights of S points, and of the driven ones before, in the points that differ
    little from them and in whose third differences there is little."""
    third = np.diff(np.eye(DRIVEN_STATIONS + count), n=3, axis=0)
    of_driven, of_points = third[:, :DRIVEN_STATIONS], third[:, DRIVEN_STATIONS:]
    weight = (smoothed_m / PATH_STEP_M) ** 6
    inverse = np.linalg.inv(np.eye(count) + weight * of_points.T @ of_points)
    return inverse, -weight * inverse @ of_points.T @ of_driven


def poses_at(path: Array, at_m: Array) -> Array:
    """(N, 3) poses at distances (N,) from the origin along a smooth path (S, 2): a cubic through four of its points."""
    at = np.clip(at_m / PATH_STEP_M + DRIVEN_STATIONS - 1.0, 1.0, len(path) - 2.001)
    index = at.astype(int)
    u = at - index
    near = path[index[:, None] + np.arange(-1, 3)]
    powers, slopes = (
        np.stack([np.ones_like(u), u, u**2, u**3]),
        np.stack([np.zeros_like(u), np.ones_like(u), 2 * u, 3 * u**2]),
    )
    points, steps = (np.einsum("pn,pk,nkd->nd", each, CATMULL_ROM, near) for each in (powers, slopes))
    return np.column_stack([points, np.arctan2(steps[:, 1], steps[:, 0])])


CATMULL_ROM = 0.5 * np.array([[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]])  # by power of u and point


# --- speeds -----------------------------------------------------------------------------------------------------------


def nodes_of(poses: Array, dt_s: float, ego: EgoState) -> tuple[Array, Array, Array]:
    """(T + 1,) arc lengths along poses (T + 1, 3), planned speeds and curvatures there: those of intervals, at their
    middle, after the car's own."""
    along = geometry.arc_lengths(poses)
    nodes_m = np.append(0.0, 0.5 * (along[1:] + along[:-1]))
    planned_mps = np.append(max(ego.speed_mps, 0.0), np.diff(along) / dt_s)
    behind = arc(curvature_now(ego), np.arange(-2.0 * CHORD_M, 0.0, CURVATURE_STEP_M))
    curvatures = curvatures_near(np.concatenate([behind, poses])[:, :2], nodes_m + 2.0 * CHORD_M)
    return nodes_m, planned_mps, curvatures


def limited_speeds(
    nodes_m: Array, planned_mps: Array, curvatures: Array, jerk_mps3: float, keeps_braking: bool
) -> Array:
    """(N,) speeds at arc lengths (N,) of a path with curvatures (N,), within the limits, from the first of the planned
    speeds (N,) on.

    They are at most as planned, except where the car would have to brake more than a bend allows. `keeps_braking`:
    there it brakes as planned, beyond the limits.
    """
    length_m, change = np.diff(nodes_m), np.diff(planned_mps**2)
    slope = 4.0 / 3.0 * jerk_mps3 / np.maximum(curvatures, STRAIGHT_PER_M)
    by_jerk = (length_m * np.minimum(slope[1:], slope[:-1])).tolist()  # largest change of v^4; of v^2 follow
    gains = np.clip(change, 2.0 * GAINING_MPS2 * length_m, 2.0 * LARGEST_ACCELERATION_MPS2 * length_m).tolist()
    losses = np.clip(-change, 2.0 * BRAKING_EARLY_MPS2 * length_m, 2.0 * LARGEST_ACCELERATION_MPS2 * length_m).tolist()
    planned, squares = (planned_mps**2).tolist(), (planned_mps**2).tolist()

    for index in range(len(squares) - 1, 0, -1):
        after, piece = squares[index], index - 1
        squares[piece] = min(squares[piece], (after**2 + by_jerk[piece]) ** 0.5, after + losses[piece])
    squares[0] = planned[0]
    for index in range(1, len(squares)):
        before, piece = squares[index - 1], index - 1
        slowest = max(max(before**2 - by_jerk[piece], 0.0) ** 0.5, before - losses[piece])
        if keeps_braking:
            slowest = min(slowest, before - planned[piece] + planned[index], planned[index])
        fastest = min((before**2 + by_jerk[piece]) ** 0.5, before + gains[piece])
        squares[index] = max(min(squares[index], fastest), slowest)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def distances(nodes_m: Array, planned_mps: Array, limited_mps: Array, dt_s: float) -> Array:
    """(T,) distances at dt, 2 dt, .. of a car that passes nodes (T + 1,) at limited in place of planned speeds, with
    constant acceleration in between; where it stands it waits as planned."""
    node_times_s = dt_s * np.maximum(np.arange(len(nodes_m)) - 0.5, 0.0)
    length_m, (planned, limited) = np.diff(nodes_m), (v[1:] + v[:-1] for v in (planned_mps, limited_mps))
    moves = (planned > 0.0) & (limited > 0.0)
    delays_s = np.zeros(len(length_m))
    delays_s[moves] = 2.0 * length_m[moves] * (1.0 / limited[moves] - 1.0 / planned[moves])
    node_times_s[1:] += np.cumsum(delays_s)
    times_s = dt_s * np.arange(1, len(nodes_m))
    piece = np.clip(np.searchsorted(node_times_s, times_s, side="right") - 1, 0, len(nodes_m) - 2)
    duration_s = np.maximum(node_times_s[piece + 1] - node_times_s[piece], 1e-6)
    into_s = times_s - node_times_s[piece]
    acceleration = (limited_mps[piece + 1] - limited_mps[piece]) / duration_s
    inside_m = nodes_m[piece] + into_s * limited_mps[piece] + 0.5 * acceleration * into_s**2
    beyond_m = nodes_m[piece + 1] + limited_mps[piece + 1] * (into_s - duration_s)
    return np.asarray(np.maximum.accumulate(np.where(into_s <= duration_s, inside_m, beyond_m)))


def curvatures_near(points: Array, at_m: Array) -> Array:
    """(N,) largest curvature within BENDING_M of arc lengths (N,) along points (T, 2)."""
    along = geometry.arc_lengths(points)
    middles_m = np.arange(CHORD_M, along[-1] - CHORD_M + CURVATURE_STEP_M, CURVATURE_STEP_M)
    before, middle, after = (
        np.stack([np.interp(middles_m + offset_m, along, points[:, axis]) for axis in (0, 1)], axis=1)
        for offset_m in (-CHORD_M, 0.0, CHORD_M)
    )
    curvature = np.abs(circle_curvature(before, middle, after))
    reach = round(BENDING_M / CURVATURE_STEP_M)
    padded = np.pad(curvature, reach, "edge")
    largest = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    return np.asarray(np.interp(at_m, middles_m, largest))
