"""Delays a plan where it accelerates or brakes too hard for the bend that it is in.

Autoware's planning_validator refuses plans with more than 7 m/s^3 of 3 v^2 a k: speed v, acceleration a, curvature k. In
a bend at 3 m/s^2 of lateral acceleration that allows 0.8 m/s^2 of braking. Nearly all plans of networks and of the route
follower that exceed it do brake or accelerate in a bend; smoothing their path or their accelerations changes little.

With w = v^4 the quantity is 3/4 k dw/ds: along the path w may rise and fall by so much a metre. The fastest profile below
the plan's own that keeps this slope is found in one pass from the end and one from the start. The plan brakes before the
bend and accelerates after it, and is nowhere ahead of itself. A car that is in the bend already brakes as planned.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array, Trajectory
from ...core.kinematics import with_origin
from .speed_profile import at_distances

LATERAL_JERK_MPS3 = 6.0  # 3 v^2 a k of a plan, below the 7 m/s^3 of the validator
ACCELERATION_MPS2 = 8.0  # below its 9.8 m/s^2
CHORD_M = 1.2  # curvature is that of the circle through points so far apart; the validator's are 1 m or more
CURVATURE_STEP_M = 0.5
BENDING_M = 1.0  # a curvature counts so far before and after it
STRAIGHT_PER_M = 1e-3


def limit_lateral_jerk(trajectory: Trajectory, speed_mps: float) -> Trajectory:
    """The trajectory of a car that drives at `speed_mps`, delayed along its path; itself if it is within the limits."""
    poses = with_origin(trajectory.poses)
    along = geometry.arc_lengths(poses)
    if along[-1] < 2.0 * CHORD_M:
        return trajectory
    # speeds are those of intervals, at their middle; the first is the car's
    nodes_m = np.append(0.0, 0.5 * (along[1:] + along[:-1]))
    planned_mps = np.append(max(speed_mps, 0.0), np.diff(along) / trajectory.dt_s)
    limited_mps = limited_speeds(nodes_m, planned_mps, curvatures_near(poses[:, :2], along, nodes_m))
    if np.allclose(limited_mps, planned_mps, atol=1e-3):
        return trajectory
    times_s = trajectory.dt_s * (np.arange(len(nodes_m)) - 0.5)
    times_s[0] = 0.0
    length_m, mean_mps = np.diff(nodes_m), 0.5 * (limited_mps[1:] + limited_mps[:-1])
    planned_mean_mps = 0.5 * (planned_mps[1:] + planned_mps[:-1])
    moves = mean_mps > 0.0
    delays_s = np.zeros(len(length_m))
    delays_s[moves] = length_m[moves] / mean_mps[moves] - length_m[moves] / planned_mean_mps[moves]
    times_s[1:] += np.cumsum(delays_s)
    reached_m = np.minimum(distances(nodes_m, limited_mps, times_s, trajectory.times_s), along[1:])
    return at_distances(poses, along, np.maximum.accumulate(reached_m), trajectory.dt_s)


def limited_speeds(nodes_m: Array, planned_mps: Array, curvatures: Array) -> Array:
    """(N,) speeds at arc lengths (N,) of a path, at most as planned (N,), within the limits where its curvatures (N,)
    and the first speed allow; never with more braking than planned or the limits."""
    slope = 4.0 / 3.0 * LATERAL_JERK_MPS3 / np.maximum(curvatures, STRAIGHT_PER_M)
    by_jerk = (np.diff(nodes_m) * np.minimum(slope[1:], slope[:-1])).tolist()  # largest change of v^4
    by_engine = (2.0 * ACCELERATION_MPS2 * np.diff(nodes_m)).tolist()  # largest change of v^2
    planned, squares = (planned_mps**2).tolist(), (planned_mps**2).tolist()

    def reachable(square: float, piece: int) -> float:
        return min((square**2 + by_jerk[piece]) ** 0.5, square + by_engine[piece])

    for index in range(len(squares) - 1, 0, -1):
        squares[index - 1] = min(squares[index - 1], reachable(squares[index], index - 1))
    squares[0] = planned[0]
    for index in range(1, len(squares)):
        before = squares[index - 1]
        braked = max(before**2 - by_jerk[index - 1], 0.0) ** 0.5
        braked = min(max(braked, before - by_engine[index - 1]), before - planned[index - 1] + planned[index])
        squares[index] = min(max(squares[index], braked), reachable(before, index - 1), planned[index])
    return np.sqrt(np.maximum(squares, 0.0))


def distances(nodes_m: Array, speeds_mps: Array, node_times_s: Array, times_s: Array) -> Array:
    """(T,) distances at `times_s` (T,) of a car that passes nodes (N,) at these times and speeds, with constant
    acceleration in between."""
    piece = np.clip(np.searchsorted(node_times_s, times_s, side="right") - 1, 0, len(nodes_m) - 2)
    length_s = np.maximum(node_times_s[piece + 1] - node_times_s[piece], 1e-6)
    share_s = times_s - node_times_s[piece]
    acceleration = (speeds_mps[piece + 1] - speeds_mps[piece]) / length_s
    inside = nodes_m[piece] + share_s * speeds_mps[piece] + 0.5 * acceleration * share_s**2
    beyond = nodes_m[piece + 1] + speeds_mps[piece + 1] * (share_s - length_s)
    return np.asarray(np.where(share_s <= length_s, inside, beyond))


def curvatures_near(points: Array, along: Array, at_m: Array) -> Array:
    """(N,) largest curvature within BENDING_M of arc lengths (N,) along points (T, 2) at arc lengths (T,)."""
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
    return np.interp(at_m, middles_m, largest)
