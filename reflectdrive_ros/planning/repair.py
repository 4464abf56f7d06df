"""Safety-guided regeneration of ReflectDrive: repair of an unsafe plan by token search and redrafting.

    find the first unsafe waypoint; try every token pair near it; keep the best as anchors;
    let the network redraft the rest in one step; evaluate again

All pairs are ranked by safety of the planned poses, violation of the vehicle limits and roughness. The paper scores all
of them and keeps one; here the best ANCHORS are kept, redrafted in one network call, and the results are scored, at
less than half the cost.

The paper does not define what is redrafted. Here the anchors, all waypoints before the predecessor of the unsafe one,
and the goal are kept, the rest is masked. Three variants compete: with the goal kept, with the goal masked, and with
the new pair only. Two more candidates, which the paper does not have, cover plans that no local search can repair: the
path of the plan with stronger braking, and the route.

Once HURRY_DEADLINE_SHARE of the deadline is used, no second iteration begins and the first one tries only the braking
and route candidates, in less than half the time.

The plan that is driven now is continued where it is safe (`continue_last`), before anything is searched. A safe plan
is replaced in one case: it ends off its lane and does not lead back (`return_to_route`). A network may be lost: at
walking pace 2 m off the route, heading 70 degrees away from it, `reflectdrive2` creeps straight on, and without a
known edge of the road nothing in the check contradicts.

No plan is evaluated twice, so the loop cannot cycle. It ends after `max_stalled_iterations` iterations without
improvement; until then the waypoint before is tried. The result is the best evaluated plan, the input included: its
safety never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core import geometry, kinematics
from ..core.config import RepairConfig
from ..core.domain import Array, Plan
from ..core.tokens import TokenLayout
from ..scoring.safety import SAFE, SafetyContext
from ..scoring.search import neighbourhood, search_stride
from .assessment import Assessment, assess, evaluate, limit_violation, rank_as_planned
from .candidates import Candidates
from .planner import PlannerContext, no_deadline
from .postprocess.speed_profile import slow_points
from .postprocess.waypoints import (
    CARRY_MAX_S,
    POINT_DT_S,
    STEP_S,
    limit_curvature,
    postprocess,
    rest_of_plan,
    waypoint_poses,
)
from .select import score_candidates

# Manhattan distance to a waypoint, 61 token pairs; the paper has 10, 221 pairs. On `val` 3, 5 and 10 score the same
SEARCH_RADIUS_BINS = 5
MAX_STALLED_ITERATIONS = 1  # the search ends after as many iterations without improvement: more found nothing on `val`
ANCHORS = 4  # token pairs that are selected per iteration
ANCHOR_SPACING = 3  # Manhattan distance between two anchors, at least, in bins of 0.3 m
HURRY_DEADLINE_SHARE = 0.5  # share of the deadline after which there is no token search and no further iteration
BRAKING_MPS2 = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0)
GENTLE_BRAKINGS_MPS2, HARD_BRAKINGS_MPS2 = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0), (4.0, 5.0, 6.0, 8.0)
GENTLE_JERK_MPS3, HARD_JERK_MPS3 = 4.0, 20.0  # by which a braking grows: comfortable, and what brakes can

CONTINUED_PROGRESS = 0.5  # share of the progress of an unsafe plan that the plan driven now must make to replace it
MERGE_S, MERGE_M = 2.0, 6.0  # the lateral offset to the route vanishes after this time, or this distance
END_OFFSET_M, END_OFFSET_SHARE = 1.0, 0.125  # a plan may end as far off the route, and by this share of its length more
CREEPING_M = 8.0  # a longer plan is that of a network that knows where it is
RETURN_SHARE = 0.7  # of the present distance, at most, is left at the end of a plan that leads back
RETURN_MPS, RETURN_MPS2 = 3.0, 1.0  # speed and acceleration of the path back; a slower car is hardly steered
FINE = 5  # steps per waypoint of the path back

Redraft = Callable[[Array], Array]  # partly masked ids (M, T) int32 -> complete ids, in one step of the network
PointsOf = Callable[[Array], Array]  # ids (M, T) -> post-processed points (M, P, 2) m


@dataclass(frozen=True, eq=False)
class RepairResult:
    """Result of a repair."""

    ids: Array  # (T,) int32
    points: Array  # (P, 2) m
    safe: bool
    iterations: int
    visited: tuple[Array, ...]  # points (P, 2) of the input plan and of the plan after each iteration
    states: Array | None = None  # (41, 11) simulated states; None if the plan was not evaluated


def repair_tokens(
    driven: Array,
    option: int,
    candidates: Candidates,
    planner_context: PlannerContext,
    safety_context: SafetyContext,
    last: Plan | None = None,
) -> tuple[Array, int]:
    """A plan through points `driven` (P, 2), repaired if it is unsafe, and the iterations that this took.

    `option` is the index of its tokens; beyond the candidates the points are encoded. Points may be finer than the
    codebook: they are kept where an id is unchanged. `last` is the plan that is driven now, which is continued if it is
    safe.
    """
    assert candidates.ids is not None
    assert candidates.token_search is not None
    search = candidates.token_search
    layout = search.layout
    if option < len(candidates.ids) and (tokens := candidates.ids[option]) is not None:
        ids, points = tokens, search.waypoints[option, :, :2]
    else:
        ids, points = encode_points(driven[None], safety_context, layout)[0], driven

    def points_of(many: Array) -> Array:
        is_unchanged = (many == ids).reshape(len(many), len(points), -1)[..., :2]
        decoded = np.where(is_unchanged, points, layout.decode(many)[..., :2])
        return postprocess(
            decoded, safety_context.observation.ego, layout.waypoint_noise_m, safety_context.road, safety_context.limits
        )

    result = run_repair(
        ids,
        driven,
        safety_context,
        layout,
        points_of,
        search.redraft,
        planner_context.config.repair,
        planner_context.deadline_used,
        last=last,
    )
    return result.points, result.iterations


def repair_points(points: Array, safety_context: SafetyContext, last: Plan | None = None) -> tuple[Array, int]:
    """A plan through points (P, 2) that is not safe, replaced; and 1, or 0 if nothing is better than the plan.

    `last`, the plan that is driven now, is continued if that is safe. Else the path of the plan, or that of the route,
    is driven with the gentlest braking that is safe: of GENTLE_BRAKINGS_MPS2 the best driving score
    decides, else of HARD_BRAKINGS_MPS2. If nothing is safe, the least unsafe plan is the result.
    """
    start = assess(safety_context, evaluate(safety_context, points[None]))
    far_m = float(start.progress_m[0])
    if (continued := continue_last(last, safety_context, len(points), far_m)) is not None:
        return continued.points[0], 1
    acceleration_mps2 = present_acceleration_mps2(last, safety_context)
    paths = [np.concatenate([np.zeros((1, 2)), points])]
    if safety_context.route is not None:
        along = geometry.arc_lengths(paths[0])
        paths.append(np.concatenate([np.zeros((1, 2)), _merge(along[None, 1:], safety_context)[0]]))
    allowed = float(start.limit_violation.max())
    options = [start.points]
    for group, jerk_mps3 in ((GENTLE_BRAKINGS_MPS2, GENTLE_JERK_MPS3), (HARD_BRAKINGS_MPS2, HARD_JERK_MPS3)):
        braked = np.concatenate(
            [brake_along(path, group, jerk_mps3, acceleration_mps2, safety_context) for path in paths]
        )
        braked = slow_points(braked, safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S)
        evaluation = evaluate(safety_context, braked)
        sound = evaluation.safe & (limit_violation(safety_context, evaluation.poses).max(axis=1) <= allowed)
        if sound.any():
            good = np.flatnonzero(sound)
            best = int(np.argmax(score_candidates(safety_context, braked[good]).scores)) if len(good) > 1 else 0
            return np.asarray(braked[good[best]]), 1
        options.append(braked)
    assessment = assess(safety_context, evaluate(safety_context, np.concatenate(options)), far_m)
    best = assessment.best(allowed)
    return assessment.points[best], int(best > 0)


def present_acceleration_mps2(last: Plan | None, safety_context: SafetyContext) -> float:
    """Acceleration that the plan which is driven now has at this instant; without one, that of the vehicle."""
    observation = safety_context.observation
    if last is None or not 0 < observation.stamp_ns - last.stamp_ns <= CARRY_MAX_S * 1e9:
        return float(observation.ego.acceleration_mps2)
    index = int((observation.stamp_ns - last.stamp_ns) * 1e-9 / last.trajectory.dt_s)
    accelerations = kinematics.accelerations(last.trajectory)
    return float(accelerations[min(index, len(accelerations) - 1)])


def brake_along(
    path: Array,
    brakings_mps2: tuple[float, ...],
    jerk_mps3: float,
    acceleration_mps2: float,
    safety_context: SafetyContext,
) -> Array:
    """(N, P, 2) points on a path (P + 1, 2) from the origin on, never ahead of it, with each braking: the acceleration
    falls from the present one to it, with at most `jerk_mps3`, and stays."""
    along = geometry.arc_lengths(path)
    speed_mps = max(float(safety_context.scene.motion[0]), 0.0)
    times_s = STEP_S * np.arange(1, round(POINT_DT_S / STEP_S) * (len(path) - 1) + 1)
    first = min(acceleration_mps2, 0.0)
    rows = []
    for braking in brakings_mps2:
        acceleration = np.maximum(first - jerk_mps3 * (times_s - 0.5 * STEP_S), -braking)
        speeds = np.maximum(speed_mps + np.cumsum(acceleration) * STEP_S, 0.0)
        rows.append((np.cumsum(speeds) * STEP_S)[round(POINT_DT_S / STEP_S) - 1 :: round(POINT_DT_S / STEP_S)])
    reached = np.minimum(np.stack(rows), along[1:])
    return np.stack([np.interp(reached, along, path[:, axis]) for axis in (0, 1)], axis=-1)


def run_repair(
    ids: Array,
    driven: Array,
    safety_context: SafetyContext,
    layout: TokenLayout,
    points_of: PointsOf,
    redraft: Redraft,
    settings: RepairConfig,
    deadline_used: Callable[[], float] = no_deadline,
    last: Plan | None = None,
) -> RepairResult:
    """The plan of ids (T,) and post-processed points `driven` (P, 2), or a better one if it is unsafe. `deadline_used`
    is the elapsed share of the deadline.

    `last` is the plan that is driven now. If `continue_last` accepts it, its continuation is the result.
    """
    ids = np.asarray(ids, np.int32)
    evaluation = evaluate(safety_context, driven[None])
    if evaluation.safe[0]:
        return RepairResult(ids, evaluation.points[0], True, 0, (evaluation.points[0],), evaluation.states[0])
    start = assess(safety_context, evaluation)
    far_m = float(start.progress_m[0])  # a repaired plan need not get further than the input
    continued = continue_last(last, safety_context, layout.points, far_m) if settings.iterations else None
    if continued is not None:
        return _without_tokens(continued, driven, safety_context, layout)
    tried = {ids.tobytes()}
    present, present_ids = start, ids
    best, best_ids = start, ids
    visited = [start.points[0]]
    anchored = np.zeros(layout.points, bool)
    allowed_violation = float(start.limit_violation.max())
    back = iterations = improved_at = 0
    routed = (
        []
        if safety_context.route is None
        else [encode_points(follow_route(start.points[0], safety_context), safety_context, layout)]
    )
    while iterations < settings.iterations and not present.sound.all():
        if iterations - improved_at >= MAX_STALLED_ITERATIONS or (
            iterations and deadline_used() > HURRY_DEADLINE_SHARE
        ):
            break
        iterations += 1
        wrong = present.safety.waypoints[0] < SAFE
        if not wrong.any():  # safe, but beyond the vehicle limits
            wrong = ~present.sound[0]
        waypoint = max(int(np.argmax(wrong)) - back, 0)
        braked = brake_along_plan(present.points[0], float(safety_context.scene.motion[0]))
        candidates = [encode_points(braked, safety_context, layout), *routed]
        if deadline_used() <= HURRY_DEADLINE_SHARE:
            moved = best_pairs(present_ids, waypoint, tried, allowed_violation, safety_context, layout, points_of)
            if len(moved) == 0:
                if waypoint == 0:
                    break  # all neighbours have been tried
                back += 1
                continue
            candidates = [moved, redraft(mask_around(moved, waypoint, anchored, layout)), *candidates]
        options = drop_tried(np.concatenate(candidates), tried)
        if len(options) == 0:
            break
        assessment = assess(safety_context, evaluate(safety_context, points_of(options)), far_m)
        chosen = assessment.best(allowed_violation)
        anchored[waypoint] = True
        back = 0 if assessment.key(chosen) > present.key(0) else back + 1
        present, present_ids = assessment.one(chosen), options[chosen]
        visited.append(present.points[0])
        if present.key(0) > best.key(0):
            best, best_ids, improved_at = present, present_ids, iterations
    safe = bool(best.safety.worst[0] >= SAFE)
    return RepairResult(best_ids, best.points[0], safe, iterations, tuple(visited), best.states[0])


def _without_tokens(
    assessment: Assessment, driven: Array, safety_context: SafetyContext, layout: TokenLayout
) -> RepairResult:
    """The result of a repair of `driven` (P, 2) to one safe plan that does not come from the token search."""
    ids = encode_points(assessment.points, safety_context, layout)[0]
    return RepairResult(ids, assessment.points[0], True, 1, (driven, assessment.points[0]), assessment.states[0])


def best_pairs(
    ids: Array,
    waypoint: int,
    tried: set[bytes],
    allowed_violation: float,
    safety_context: SafetyContext,
    layout: TokenLayout,
    points_of: PointsOf,
) -> Array:
    """Ids (M, T) of untried plans with the best pairs near a waypoint, best first; may be empty."""
    _, near = neighbourhood(ids, waypoint, layout, SEARCH_RADIUS_BINS)
    near = near[[row.tobytes() not in tried for row in near]]
    if len(near) == 0:
        return near
    ranked = near[rank_as_planned(safety_context, points_of(near), allowed_violation)]
    pairs, selected = ranked[:, layout.waypoint(waypoint)], list[int]()
    free = np.ones(len(ranked), bool)
    while free.any() and len(selected) < ANCHORS:
        selected.append(int(np.argmax(free)))
        free &= np.abs(pairs - pairs[selected[-1]]).sum(axis=1) >= ANCHOR_SPACING * search_stride(layout.codebook)
    return np.asarray(ranked[selected])


def encode_points(points: Array, safety_context: SafetyContext, layout: TokenLayout) -> Array:
    """Ids (M, T) of plans through points (M, P, 2), with the headings of their paths if the layout has headings."""
    return layout.encode(waypoint_poses(points, safety_context.road)[..., : len(layout.axes)])


def mask_around(plans: Array, waypoint: int, anchored: Array, layout: TokenLayout) -> Array:
    """Masked ids (2 M, T) of plans (M, T) to redraft around a waypoint: with the goal kept, then with the goal
    masked."""
    keep = anchored.copy()
    keep[: max(waypoint - 1, 0)] = True
    keep[waypoint] = True
    with_goal = keep.copy()
    with_goal[-1] = True
    actions = [np.where(np.repeat(fixed, len(layout.axes)), plans, layout.mask_id) for fixed in (with_goal, keep)]
    return np.concatenate(actions).astype(np.int32)


def brake_along_plan(points: Array, speed_mps: float) -> Array:
    """(6, P, 2) points on the path of a plan (P, 2), with braking from now on of at least each of BRAKING_MPS2."""
    line = np.concatenate([np.zeros((1, 2)), points])
    along = geometry.arc_lengths(line)
    reached = _brake_profiles(along, speed_mps)
    return np.stack([np.interp(reached, along, line[:, axis]) for axis in (0, 1)], axis=-1)


def follow_route(points: Array, safety_context: SafetyContext) -> Array:
    """(7, P, 2) points along the route, merging within MERGE_S, at the distances of the plan (P, 2) and braked."""
    along = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))
    return _merge(
        np.concatenate([along[None, 1:], _brake_profiles(along, float(safety_context.scene.motion[0]))]), safety_context
    )


def _merge(reached: Array, safety_context: SafetyContext) -> Array:
    """Points (.., P, 2) at distances (.., P) on the path that merges into the route."""
    assert safety_context.route is not None
    (begins_m,), (lateral_m,) = geometry.project(safety_context.route, np.zeros((1, 2)))
    poses = geometry.sample(safety_context.route, (begins_m + reached).ravel()).reshape(*reached.shape, 3)
    left = np.clip(1.0 - reached / max(MERGE_S * float(safety_context.scene.motion[0]), MERGE_M), 0.0, 1.0)
    offsets_m = lateral_m * left**2 * (3.0 - 2.0 * left)
    normal = np.stack([-np.sin(poses[..., 2]), np.cos(poses[..., 2])], axis=-1)
    return np.asarray(poses[..., :2] + offsets_m[..., None] * normal)


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
    path = _merge(fine, safety_context)
    steps = np.diff(path, axis=1, prepend=np.zeros((len(path), 1, 2)))
    poses = np.concatenate([path, np.arctan2(steps[..., 1], steps[..., 0])[..., None]], axis=-1)
    return np.asarray(limit_curvature(poses, fine)[:, FINE - 1 :: FINE, :2])


def continue_last(last: Plan | None, safety_context: SafetyContext, count: int, far_m: float) -> Assessment | None:
    """The rest of the plan that is driven now, as `count` points, if it is not older than CARRY_MAX_S, safe,
    within the vehicle limits, and makes at least CONTINUED_PROGRESS of the progress `far_m` of the unsafe plan.

    Two repairs that are each safe, one around an agent and one that stops before it, are not safe when they alternate.
    """
    points = rest_of_plan(last, safety_context.observation, count)
    if points is None:
        return None
    slowed = slow_points(points[None], safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S)
    assessment = assess(safety_context, evaluate(safety_context, slowed), far_m)
    return assessment if assessment.sound.all() and assessment.progress_m[0] >= CONTINUED_PROGRESS * far_m else None


def _brake_profiles(along: Array, speed_mps: float) -> Array:
    """(6, 8) distances on a plan `along` (9,) with braking of at least each of BRAKING_MPS2 from now on."""
    times_s = POINT_DT_S * np.arange(1, len(along))
    braked = np.stack([kinematics.braking_distances(speed_mps, braking, times_s) for braking in BRAKING_MPS2])
    return np.asarray(np.minimum(braked, along[1:]))


def drop_tried(options: Array, tried: set[bytes]) -> Array:
    """(M, T) options that have not been tried, which are added to `tried`; may be empty."""
    options, selected = np.asarray(options, np.int32), list[int]()
    for index, option in enumerate(options):
        if option.tobytes() not in tried:
            tried.add(option.tobytes())
            selected.append(index)
    return np.asarray(options[selected])
