"""Delays a plan where it accelerates or brakes too hard for the bend that it is in.

Autoware's planning_validator refuses plans with more than 7 m/s^3 of 3 v^2 a k: speed v, acceleration a, curvature k.
In a bend at 3 m/s^2 of lateral acceleration that allows 0.8 m/s^2 of braking. Most plans that exceed it do brake or
accelerate in a bend: smoothing their path or their accelerations changes little.

With w = v^4 the quantity is 3/4 k dw/ds: it limits the slope of w along the path. The fastest profile below the plan's
own with such slopes results from one pass from the end and one from the start: the plan brakes before the bend and
accelerates after it. A car that is in the bend already brakes less than planned, up to AHEAD_MAX_M ahead of its plan
but not beyond its stop; where that does not suffice it brakes as planned.
"""

from __future__ import annotations

import math

import numpy as np

from ...core import geometry
from ...core.domain import Array, EgoState, Trajectory
from ...core.kinematics import SAME_PLACE_M, arc, curvature_now, with_origin
from .speed_profile import at_distances

LATERAL_JERK_MPS3 = 6.0  # 3 v^2 a k of a plan, below the 7 m/s^3 of the validator
LARGEST_ACCELERATION_MPS2 = 8.0  # below its 9.8 m/s^2
GAINING_MPS2, BRAKING_EARLY_MPS2 = 2.0, 4.0  # where the plan does neither; the driving score calls both comfortable
CHORD_M = 1.2  # curvature is that of the circle through points so far apart; the validator's are 1 m or more
CURVATURE_STEP_M = 0.5
BENDING_M = 1.0  # a curvature counts so far before and after it
STRAIGHT_PER_M = 1e-3
FIRST_PIECE_S, FIRST_PIECE_MIN_M = 0.5, 3.0
FIRST_STEP_M, FIRST_TURN_MAX_RAD = 0.5, 0.3  # the direction of a plan is that of its first step; a larger turn is meant
AHEAD_MAX_M = 0.5  # of where the plan has the car, in a bend where it would have to brake too hard


def limit_lateral_jerk(trajectory: Trajectory, ego: EgoState) -> Trajectory:
    """The trajectory with a path that leaves the car along its heading and with other speeds; itself if it is within
    the limits."""
    poses = with_origin(trajectory.poses)
    if geometry.arc_lengths(poses)[-1] < 2.0 * CHORD_M:
        return trajectory
    _, planned_mps, limited_mps = node_speeds(poses, trajectory.dt_s, ego, keeps_braking=False)
    if np.allclose(limited_mps, planned_mps, atol=1e-3):
        return trajectory
    poses = start_along_heading(poses, ego.speed_mps)
    along = geometry.arc_lengths(poses)
    stops = planned_mps[-1] * trajectory.dt_s < SAME_PLACE_M
    allowed_m = np.minimum(along[1:] + AHEAD_MAX_M, along[-1] + SAME_PLACE_M if stops else math.inf)
    for keeps_braking in (False, True):
        nodes_m, planned_mps, limited_mps = node_speeds(poses, trajectory.dt_s, ego, keeps_braking)
        reached_m = distances(nodes_m, planned_mps, limited_mps, trajectory.dt_s)
        if (reached_m <= allowed_m).all():
            break
    end = poses[-1] + 2.0 * AHEAD_MAX_M * np.array([np.cos(poses[-1, 2]), np.sin(poses[-1, 2]), 0.0])
    path = np.concatenate([poses, end[None]])
    return at_distances(path, geometry.arc_lengths(path), reached_m, trajectory.dt_s)


def start_along_heading(poses: Array, speed_mps: float) -> Array:
    """Poses (T + 1, 3) from the origin on, whose path begins in the direction of the heading there.

    Between waypoints 0.5 s apart the path is a cubic whose first direction is the one to the first of them. The change
    ends there and moves points by centimetres.
    """
    along = geometry.arc_lengths(poses)
    first = int(np.searchsorted(along, FIRST_STEP_M))
    turn = math.atan2(poses[first, 1], poses[first, 0]) if first < len(poses) else math.inf
    if abs(turn) > FIRST_TURN_MAX_RAD:
        return poses
    length_m = max(FIRST_PIECE_S * speed_mps, FIRST_PIECE_MIN_M)
    share = np.minimum(along / length_m, 1.0)
    changed: Array = poses.copy()
    offset_m = -turn * length_m * share * (1.0 - share) ** 2
    changed[:, :2] += offset_m[:, None] * np.column_stack([-np.sin(poses[:, 2]), np.cos(poses[:, 2])])
    changed[:, 2] -= turn * (1.0 - share) * (1.0 - 3.0 * share)
    changed[0] = poses[0]
    return changed


def node_speeds(poses: Array, dt_s: float, ego: EgoState, keeps_braking: bool) -> tuple[Array, Array, Array]:
    """(T + 1,) arc lengths along poses (T + 1, 3), planned and limited speeds there: those of intervals, at their
    middle, after the car's own."""
    along = geometry.arc_lengths(poses)
    nodes_m = np.append(0.0, 0.5 * (along[1:] + along[:-1]))
    planned_mps = np.append(max(ego.speed_mps, 0.0), np.diff(along) / dt_s)
    behind = arc(curvature_now(ego), np.arange(-2.0 * CHORD_M, 0.0, CURVATURE_STEP_M))
    curvatures = curvatures_near(np.concatenate([behind, poses])[:, :2], nodes_m + 2.0 * CHORD_M)
    return nodes_m, planned_mps, limited_speeds(nodes_m, planned_mps, curvatures, keeps_braking)


def limited_speeds(nodes_m: Array, planned_mps: Array, curvatures: Array, keeps_braking: bool) -> Array:
    """(N,) speeds at arc lengths (N,) of a path with curvatures (N,), within the limits, from the first of the planned
    speeds (N,) on.

    They are at most as planned, except where the car would have to brake more than a bend allows. `keeps_braking`:
    there it brakes as planned, beyond the limits.
    """
    length_m, change = np.diff(nodes_m), np.diff(planned_mps**2)
    slope = 4.0 / 3.0 * LATERAL_JERK_MPS3 / np.maximum(curvatures, STRAIGHT_PER_M)
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
    one, two, chord = middle - before, after - middle, after - before
    product = np.hypot(*one.T) * np.hypot(*two.T) * np.hypot(*chord.T)
    curvature = np.abs(2.0 * (one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0])) / np.maximum(product, 1e-9)
    reach = round(BENDING_M / CURVATURE_STEP_M)
    padded = np.pad(curvature, reach, "edge")
    largest = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    return np.asarray(np.interp(at_m, middles_m, largest))
