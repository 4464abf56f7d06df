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

No plan is evaluated twice, so the loop cannot cycle. It ends after `max_stalled_iterations` iterations without
improvement; until then the waypoint before is tried. The result is the best evaluated plan, the input included: its
safety never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...core.config import RepairConfig
from ...core.domain import Array, Plan
from ...core.tokens import TokenLayout
from ...scoring.safety import SAFE, SafetyContext
from ...scoring.search import neighbourhood, search_stride
from ..assessment import Assessment, assess, evaluate, rank_as_planned
from ..candidates import Candidates
from ..planner import PlannerContext, no_deadline
from ..postprocess.waypoints import postprocess, waypoint_poses
from .brake import brake_along_plan, follow_route
from .continue_last import continue_last

# Manhattan distance to a waypoint, 61 token pairs; the paper has 10, 221 pairs. On `val` 3, 5 and 10 score the same
SEARCH_RADIUS_BINS = 5
MAX_STALLED_ITERATIONS = 1  # the search ends after as many iterations without improvement: more found nothing on `val`
ANCHORS = 4  # token pairs that are selected per iteration
ANCHOR_SPACING = 3  # Manhattan distance between two anchors, at least, in bins of 0.3 m
HURRY_DEADLINE_SHARE = 0.5  # share of the deadline after which there is no token search and no further iteration

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
    far_m = start.progress_m  # a repaired plan need not get further than the input
    if settings.iterations:
        _, continued = continue_last([last], safety_context, layout.points, far_m)
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
        present, present_ids = assessment.of(np.array([chosen])), options[chosen]
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


def drop_tried(options: Array, tried: set[bytes]) -> Array:
    """(M, T) options that have not been tried, which are added to `tried`; may be empty."""
    options, selected = np.asarray(options, np.int32), list[int]()
    for index, option in enumerate(options):
        if option.tobytes() not in tried:
            tried.add(option.tobytes())
            selected.append(index)
    return np.asarray(options[selected])
