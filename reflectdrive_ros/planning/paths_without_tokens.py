"""Candidates of the repair that no network writes: the path of the plan with braking, the route, the way back to it.

A network may be lost: at walking pace 2 m beside the route, heading 70 degrees away from it, `reflectdrive2` creeps
straight on, and without a known edge of the road nothing in the check contradicts. `return_to_route` leads it back.
"""

from __future__ import annotations

import numpy as np

from .. import geometry, kinematics
from ..domain import Array
from ..scoring.safety import SafetyContext
from .assessment import Assessment, assess, evaluate
from .postprocess.curvature import limit_curvature
from .postprocess.route_limits import slow_points
from .postprocess.waypoints import POINT_DT_S

GENTLE_MPS2, JERK_MPS3 = (0.7, 1.4, 2.2, 3.0, 3.6), 2.5  # within the comfort limits of the driving score
HARD_MPS2 = (3.0, 4.5, 6.0, 8.0)  # at once
SUBSTEPS = 5  # of `smooth_braking`, per waypoint
SUBSTEP_S = POINT_DT_S / SUBSTEPS
MERGE_S, MERGE_M = 2.0, 6.0  # the lateral offset to the route vanishes after this time, or this distance
BESIDE_M, BESIDE_SHARE = 1.0, 0.125  # a plan may end as far beside the route, and by this share of its length more ..
MOST_BESIDE_M = 3.0  # .. at most: who passes a parked car swings out by 2.4 m
RETURN_SHARE = 0.7  # of the present distance, at most, is left at the end of a plan that leads back
FINE = 5  # steps per waypoint of the way back


def brake_along_plan(points: Array, known: SafetyContext) -> Array:
    """(B, P, 2) points on the path of a plan (P, 2), with braking from now on of at least each rate."""
    line = np.concatenate([np.zeros((1, 2)), points])
    along = geometry.arc_lengths(line)
    reached = _brake_profiles(along, known)
    return np.stack([np.interp(reached, along, line[:, axis]) for axis in (0, 1)], axis=-1)


def follow_route(points: Array, known: SafetyContext) -> Array:
    """(1 + B, P, 2) points along the route, merging within MERGE_S, at the distances of the plan (P, 2) and braked."""
    along = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))
    return _merge(np.concatenate([along[None, 1:], _brake_profiles(along, known)]), known)


def _merge(reached: Array, known: SafetyContext) -> Array:
    """Points (.., P, 2) at distances (.., P) on the way to the route and along it."""
    assert known.route is not None
    (begins_m,), (aside_m,) = geometry.project(known.route, np.zeros((1, 2)))
    poses = geometry.sample(known.route, (begins_m + reached).ravel()).reshape(*reached.shape, 3)
    left = np.clip(1.0 - reached / max(MERGE_S * float(known.scene.motion[0]), MERGE_M), 0.0, 1.0)
    aside = aside_m * left**2 * (3.0 - 2.0 * left)
    normal = np.stack([-np.sin(poses[..., 2]), np.cos(poses[..., 2])], axis=-1)
    return np.asarray(poses[..., :2] + aside[..., None] * normal)


def return_to_route(points: Array, known: SafetyContext) -> Assessment | None:
    """The way back to the route at the distances of a plan through points (P, 2). None unless the plan ends beside its
    lane and does not lead back, and the way is safe and within the vehicle limits.

    None also where the edge of the road is known, which the plan is checked against, or no agents are: what the plan
    avoids is then unknown here.
    """
    if known.route is None or known.grid is not None or known.others is None:
        return None
    _, offsets = geometry.project(known.route, np.stack([np.zeros(2), points[-1]]))
    now_m, end_m = np.abs(offsets).tolist()
    length_m = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))[-1]
    if end_m <= max(min(BESIDE_M + BESIDE_SHARE * length_m, MOST_BESIDE_M), RETURN_SHARE * now_m):
        return None
    way = slow_points(_pursue_route(points, known)[None], known.limits, float(known.scene.motion[0]), POINT_DT_S)
    found = assess(known, evaluate(known, way))
    return found if found.sound.all() else None


def _pursue_route(points: Array, known: SafetyContext) -> Array:
    """(P, 2) points at the distances of a plan (P, 2) of a car that steers to the route, whatever its heading is."""
    along = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))
    fine = np.interp(np.arange(1, FINE * len(points) + 1) / FINE, np.arange(len(along)), along)
    path = _merge(fine, known)
    steps = np.diff(path, axis=0, prepend=np.zeros((1, 2)))
    poses = np.column_stack([path, np.arctan2(steps[:, 1], steps[:, 0])])
    return np.asarray(limit_curvature(poses[None], fine[None])[0, FINE - 1 :: FINE, :2])


def _brake_profiles(along: Array, known: SafetyContext) -> Array:
    """(B, P) distances on a plan `along` (P + 1,) with braking of at least each of GENTLE_MPS2 and of HARD_MPS2."""
    ego, times_s = known.observation.ego, POINT_DT_S * np.arange(1, len(along))
    gentle = smooth_braking(ego.speed_mps, ego.acceleration_mps2, np.array(GENTLE_MPS2), len(times_s))
    hard = [kinematics.braking_distances(ego.speed_mps, braking, times_s) for braking in HARD_MPS2]
    return np.asarray(np.minimum(np.concatenate([gentle, np.stack(hard)]), along[1:]))


def smooth_braking(speed_mps: float, acceleration_mps2: float, braking_mps2: Array, points: int) -> Array:
    """(B, points) m at 0.5, 1, .. s: braking at rates (B,) that sets in and ends with a jerk of JERK_MPS3."""
    speed, rate = np.full(len(braking_mps2), max(speed_mps, 0.0)), np.full(len(braking_mps2), acceleration_mps2)
    driven, found = np.zeros(len(braking_mps2)), []
    for step in range(1, 1 + SUBSTEPS * points):
        wanted = -np.minimum(braking_mps2, np.sqrt(2.0 * JERK_MPS3 * speed))
        change = JERK_MPS3 * SUBSTEP_S
        rate = rate + np.clip(wanted - rate, -change, change)
        after = np.maximum(speed + rate * SUBSTEP_S, 0.0)
        driven, speed = driven + 0.5 * (speed + after) * SUBSTEP_S, after
        if step % SUBSTEPS == 0:
            found.append(driven)
    return np.stack(found, axis=1)
