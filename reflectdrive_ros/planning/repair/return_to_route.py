"""Paths back to the route.

Where the edge of the road is known they are among the variants of a plan (`along_route`). Where it is not, a safe plan
is replaced in one case: it ends off its lane and does not lead back (`return_to_route`). A network may be lost: at
walking pace 2 m off the route, heading 70 degrees away from it, `reflectdrive2` creeps straight on, and without a known
edge of the road nothing in the check contradicts.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...scoring.safety import SafetyContext
from ..assessment import assess, evaluate
from ..postprocess.speed_profile import slow_points
from ..postprocess.waypoints import POINT_DT_S, limit_curvature

MERGE_S, MERGE_M = 2.0, 6.0  # the lateral offset to the route vanishes after this time, or this distance
END_OFFSET_M, END_OFFSET_SHARE = 1.0, 0.125  # a plan may end as far off the route, and by this share of its length more
CREEPING_M = 8.0  # a longer plan is that of a network that knows where it is
RETURN_SHARE = 0.7  # of the present distance, at most, is left at the end of a plan that leads back
RETURN_MPS, RETURN_MPS2 = 3.0, 1.0  # speed and acceleration of the path back; a slower car is hardly steered
FINE = 5  # steps per waypoint of the path back


def return_to_route(points: Array, safety_context: SafetyContext) -> Array | None:
    """Points (P, 2) of the path back to the route from a plan through points (P, 2). None unless the plan is short,
    ends off its lane and does not lead back, and a path back is safe and within the vehicle limits.

    The path has the distances of the plan. The controller hardly steers a creeping car: a second path accelerates to
    RETURN_MPS, if traffic lights are known (the plan may be slow because of one that is not). The path whose simulation
    ends nearer to the route is selected.

    None also where the edge of the road is known, which the plan is checked against, or no agents are: what the plan
    avoids is then unknown here.
    """
    if safety_context.route is None or safety_context.grid is not None or safety_context.others is None:
        return None
    _, offsets = geometry.project(safety_context.route, np.stack([np.zeros(2), points[-1]]))
    now_m, end_m = np.abs(offsets).tolist()
    along = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))
    length_m = along[-1]
    if length_m > CREEPING_M or end_m <= max(END_OFFSET_M + END_OFFSET_SHARE * length_m, RETURN_SHARE * now_m):
        return None
    speed_mps = float(safety_context.scene.motion[0])
    options = [along]
    if speed_mps < RETURN_MPS and safety_context.observation.traffic_lights is not None:
        options.append(np.maximum(along, _return_distances(speed_mps, len(points))))
    paths = slow_points(_pursue_route(np.stack(options), safety_context), safety_context.limits, speed_mps, POINT_DT_S)
    assessment = assess(safety_context, evaluate(safety_context, paths))
    sound = assessment.sound.all(axis=1)
    if not sound.any():
        return None
    _, left = geometry.project(safety_context.route, assessment.states[:, -1, :2])
    return np.asarray(assessment.points[int(np.argmin(np.where(sound, np.abs(left), np.inf)))])


def _return_distances(speed_mps: float, count: int) -> Array:
    """(count + 1,) distances, from 0 on, of a car that accelerates at RETURN_MPS2 to RETURN_MPS."""
    times_s = POINT_DT_S * np.arange(count + 1)
    until_s = (RETURN_MPS - speed_mps) / RETURN_MPS2
    accelerated_s = np.minimum(times_s, until_s)
    return np.asarray(speed_mps * times_s + RETURN_MPS2 * accelerated_s * (times_s - 0.5 * accelerated_s))


def _pursue_route(along: Array, safety_context: SafetyContext) -> Array:
    """(K, P, 2) points at distances `along` (K, P + 1), from 0 on, of a car that steers to the route from any
    heading."""
    count = along.shape[1]
    at = np.arange(1, FINE * (count - 1) + 1) / FINE
    fine = np.stack([np.interp(at, np.arange(count), row) for row in along])
    path = merge_into_route(fine, safety_context)
    steps = np.diff(path, axis=1, prepend=np.zeros((len(path), 1, 2)))
    poses = np.concatenate([path, np.arctan2(steps[..., 1], steps[..., 0])[..., None]], axis=-1)
    return np.asarray(limit_curvature(poses, fine)[:, FINE - 1 :: FINE, :2])


def along_route(plans: Array, safety_context: SafetyContext) -> Array:
    """(N, P, 2) points on the path that merges into the route, at the distances of plans (N, P, 2); slower where the
    route demands it."""
    return slow_points(
        merging_paths(plans, safety_context), safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S
    )


def merging_paths(plans: Array, safety_context: SafetyContext) -> Array:
    """(N, P, 2) points on the path that merges into the route, at the distances of plans (N, P, 2)."""
    along_m = geometry.arc_lengths(np.concatenate([np.zeros((len(plans), 1, 2)), plans], axis=1))
    return merge_into_route(along_m[:, 1:], safety_context)


def merge_into_route(reached: Array, safety_context: SafetyContext) -> Array:
    """Points (.., P, 2) at distances (.., P) on the path that merges into the route."""
    assert safety_context.route is not None
    (begins_m,), (lateral_m,) = geometry.project(safety_context.route, np.zeros((1, 2)))
    poses = geometry.sample(safety_context.route, (begins_m + reached).ravel()).reshape(*reached.shape, 3)
    left = np.clip(1.0 - reached / max(MERGE_S * float(safety_context.scene.motion[0]), MERGE_M), 0.0, 1.0)
    offsets_m = lateral_m * left**2 * (3.0 - 2.0 * left)
    normal = np.stack([-np.sin(poses[..., 2]), np.cos(poses[..., 2])], axis=-1)
    return np.asarray(poses[..., :2] + offsets_m[..., None] * normal)
