"""One step of every planner: generate, vary, select, repair, finish, check.

    candidates = generate(state, observation, context)    plans in the order that the generator prefers
    options = vary(candidates)                            smooth changes of the first, and the plan that is driven now
    option = select(options)                              the best driving score in the forecast that is safe as planned
    points = repair(option)                               only if no option is safe
    plan = finish(points)                                 comfort, interpolation, safety check

Three stages can be switched off (`pipeline.vary`, `pipeline.select`, `pipeline.repair`); without all three the result
is the generator's own plan. What is unknown is not used: without agents or drivable space nothing is selected or
repaired; without traffic lights nothing is varied, because a score does not know then what a plan waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core import geometry
from ..core.domain import PLAN_DT_S, Array, Observation, Plan, StepKind
from ..scoring.safety import SAFE, SafetyContext, safety_check
from . import vary
from .assessment import limit_violation, planned_safety
from .candidates import Candidates, Generator
from .planner import PlannerContext, PlannerState, can_score
from .postprocess.comfort import relax_profile
from .postprocess.waypoints import POINTS, follows, rest_of_plan, trajectories, waypoint_poses
from .repair.brake import repair_points
from .repair.return_to_route import along_route, return_to_route
from .repair.search import repair_tokens
from .select import LOG_PROB_WEIGHT, change_pays, knows_what_plans_wait_for, score_candidates
from .stage_times import StageTimes

CHECKED_MAX = 16  # best options whose safety is checked
DECELERATION_COST = 0.02  # score (0..1) that a variant must gain, per m/s^2
LATERAL_COST = 0.03  # likewise per metre of offset and of bulge
PLANNER_COST = 0.1  # likewise a plan of another planner than the first of several
OFF_ROUTE_COST, ON_ROUTE_M = 0.3, 0.8  # likewise per metre that a plan is on average further than this from the route
ON_ROUTE_COST = 0.02  # likewise the path back to the route
CONTINUED_BONUS = 0.05  # score that a plan must gain over the one that is driven now ..
CONTINUED_MAX_S = 1.0  # .. which is continued for so long
ON_ROUTE = "on the route"  # the change of a path back to the route
CONTINUED = "continued"  # the change of a plan that is the rest of the previous one


@dataclass(frozen=True, eq=False)
class PlanOptions:
    """N plans to select from: the M candidates, then variants of the first and the rest of the previous plan."""

    points: Array  # (N, 8, 2) m
    bonuses: Array  # (N,) score (0..1) that is added to the driving score
    changes: tuple[str, ...]  # (N) what was varied; empty for a candidate


def plan(
    generate: Generator, state: PlannerState, observation: Observation, planner_context: PlannerContext
) -> tuple[PlannerState, Plan]:
    """Raises PlanningError, with one sentence, if the generator cannot plan."""
    settings = planner_context.config.pipeline
    safety_context = planner_context.safety_context(observation)
    times = StageTimes(planner_context)
    with times.of("generate"):
        candidates = generate(state, observation, planner_context)
    with times.of("select"):
        options = as_generated(candidates)
        if settings.vary and settings.select:
            if candidates.step is not StepKind.LITE:  # a lite step keeps the profile of the plan that it edits
                options = with_variants(options, safety_context)
            options = with_previous(options, state, safety_context)
        order = rank(options, safety_context) if settings.select else np.arange(len(options.points))
    with times.of("repair"):
        option, points, repairs = int(order[0]), options.points[order[0]], 0
        if settings.repair and safety_context.can_check:
            option, points, repairs = make_safe(
                options, order[:CHECKED_MAX], candidates, state.previous, planner_context, safety_context
            )
    with times.of("finish"):
        result = finish(points, option, candidates, safety_context, observation)
        result = replace(result, check=safety_check(result, safety_context, repairs), change=options.changes[option])
    generated: Plan | None = result
    if options.changes[option] == CONTINUED and state.previous is not None:
        generated = state.generated
        result = replace(result, planners=(*state.previous.planners[:1], *result.planners[1:]))
    notes, reason = candidates.notes, candidates.full_step_reason
    return PlannerState(result, candidates.memory, notes, reason, times.ms, generated), result


def as_generated(candidates: Candidates) -> PlanOptions:
    """The candidates, with a bonus for more probable ones and a cost of planners after the first.

    A candidate without a probability counts as the most probable.
    """
    bonuses = np.zeros(len(candidates.points))
    if candidates.log_probs is not None:
        log_probs = candidates.log_probs - np.nanmax(candidates.log_probs)
        bonuses = LOG_PROB_WEIGHT * np.where(np.isnan(log_probs), 0.0, log_probs)
    if candidates.planners:
        bonuses -= PLANNER_COST * (np.array(candidates.planners) != candidates.planners[0])
    return PlanOptions(candidates.points, bonuses, ("",) * len(bonuses))


def with_variants(options: PlanOptions, safety_context: SafetyContext) -> PlanOptions:
    """The options and the variants of the first, if a score may choose among plans of different speed.

    Where the edge of the road is known, these include paths back to the route: all changes of a plan that has drifted
    off its lane are off it.
    """
    if not knows_what_plans_wait_for(safety_context):
        return options
    speed_mps = safety_context.observation.ego.speed_mps
    sideways = safety_context.grid is not None
    variants = vary.variants(options.points[0], speed_mps, sideways)
    points, costs = variants.points, np.abs(variants.changes) @ (DECELERATION_COST, LATERAL_COST, LATERAL_COST)
    changes = [variants.description(index) for index in range(1, len(points))]
    if sideways and speed_mps >= vary.LATERAL_MIN_MPS:
        is_straight = ~variants.changes[:, 1:].any(axis=1)
        points = np.concatenate([points, along_route(points[is_straight], safety_context)])
        costs = np.append(costs, ON_ROUTE_COST + costs[is_straight])
        changes += [ON_ROUTE] * int(is_straight.sum())
    return PlanOptions(
        np.concatenate([options.points, points[1:]]),
        np.concatenate([options.bonuses, options.bonuses[0] - costs[1:]]),
        (*options.changes, *changes),
    )


def with_previous(options: PlanOptions, state: PlannerState, safety_context: SafetyContext) -> PlanOptions:
    """The options and the rest of the previous plan, unless that was generated longer than CONTINUED_MAX_S ago, or the
    car is not where it was to be.

    Ten times a second the best of plans of nearly the same score is a matter of noise: a car that takes each of them
    sways, and brakes and accelerates in turns. A plan that begins beside the car would begin with a swerve.
    """
    observation, generated = safety_context.observation, state.generated
    if generated is None or observation.stamp_ns - generated.stamp_ns > CONTINUED_MAX_S * 1e9:
        return options
    rest = rest_of_plan(state.previous, observation, POINTS)
    if rest is None or not follows(observation.ego, generated) or not knows_what_plans_wait_for(safety_context):
        return options
    return PlanOptions(
        np.concatenate([options.points, rest[None]]),
        np.append(options.bonuses, options.bonuses[0] + CONTINUED_BONUS),
        (*options.changes, CONTINUED),
    )


def rank(options: PlanOptions, safety_context: SafetyContext) -> Array:
    """(N,) indices of the options, the best first: best driving score without progress, then score and bonus.

    Where a score does not know what the plans wait for, the generator's order takes the place of score and bonus.
    """
    if len(options.points) == 1 or not can_score(safety_context.observation):
        return np.arange(len(options.points))
    scored = score_candidates(safety_context, options.points)
    merit = scored.safest.astype(float)
    if knows_what_plans_wait_for(safety_context):
        merit += scored.scores + options.bonuses - OFF_ROUTE_COST * off_route_m(options.points, safety_context)
    return np.argsort(-merit, kind="stable")


def off_route_m(points: Array, safety_context: SafetyContext) -> Array:
    """(N,) metres by which plans through points (N, 8, 2) are on average further than ON_ROUTE_M from the route.

    The driving score does not see on whose side of the road a plan is.
    """
    _, lateral_m = geometry.project(safety_context.scene.centerline, points.reshape(-1, 2))
    return np.asarray(np.maximum(np.abs(lateral_m) - ON_ROUTE_M, 0.0).reshape(len(points), -1).mean(axis=1))


def make_safe(
    options: PlanOptions,
    order: Array,
    candidates: Candidates,
    last: Plan | None,
    planner_context: PlannerContext,
    safety_context: SafetyContext,
) -> tuple[int, Array, int]:
    """Index of the first of the options `order` that is safe as planned, its points (8, 2) and 0. If none is, the first
    option, points of its repair, and how often it was changed for it. The first option and 0 also where the change does
    not pay."""
    first, points = int(order[0]), options.points[order[0]]
    has_tokens = candidates.ids is not None and candidates.ids[source_of(first, candidates)] is not None
    option = first_safe(options.points, order, safety_context)
    if option is not None:
        back = return_to_route(options.points[option], safety_context)
        changed, repairs = (options.points[option], 0) if back is None else (back, 1)
    elif candidates.token_search is not None and has_tokens and safety_context.config.repair.iterations:
        changed, repairs = repair_tokens(points, first, candidates, planner_context, safety_context, last)
    else:
        repaired, counts = repair_points(points[None], safety_context, [last])
        changed, repairs = repaired[0], int(counts[0])
    if option == first or change_pays(points, changed, safety_context):
        return first if option is None else option, changed, repairs
    return first, points, 0


def first_safe(points: Array, order: Array, safety_context: SafetyContext) -> int | None:
    """The first of the plans `order` that is safe as planned, if possible within the vehicle limits; None if none is
    safe."""
    first = None
    for indices in (order[:1], order[1:]):
        if len(indices):
            poses = waypoint_poses(points[indices], safety_context.road)
            safe = planned_safety(safety_context, poses, exact=True).worst >= SAFE
            sound = safe & (limit_violation(safety_context, poses).max(axis=1) <= 0.0)
            if sound.any():
                return int(indices[int(np.argmax(sound))])
            if first is None and safe.any():
                first = int(indices[int(np.argmax(safe))])
    return first


def finish(
    points: Array, option: int, candidates: Candidates, safety_context: SafetyContext, observation: Observation
) -> Plan:
    """The plan through points (8, 2), relaxed where that is more comfortable and safe; the other candidates follow, the
    best first. A trajectory that the generator gives is published as it is."""
    source = source_of(option, candidates)
    is_unchanged = np.array_equal(points, candidates.points[source])
    own = (None,) * len(candidates.points) if candidates.trajectories is None else candidates.trajectories
    keeps_trajectory = is_unchanged and own[source] is not None
    relaxed = points if keeps_trajectory else relax_profile(points, safety_context)
    others = [index for index in range(len(candidates.points)) if index != source]
    published = np.stack([relaxed, *candidates.points[others]])
    scores = np.zeros(0)
    if others and can_score(observation):
        scores = score_candidates(safety_context, published).scores
        order = np.concatenate([[0], 1 + np.argsort(-scores[1:], kind="stable")])
        published, scores, others = published[order], scores[order], [others[index - 1] for index in order[1:]]
    headings = None
    if candidates.headings is not None:
        headings = candidates.headings[[source, *others]]
        headings[0] = headings[0] if np.array_equal(relaxed, candidates.points[source]) else np.nan
    result = list(trajectories(published, observation.ego.speed_mps, PLAN_DT_S, safety_context.road, headings))
    result[1:] = [own[index] or other for index, other in zip(others, result[1:], strict=True)]
    result[0] = (own[source] if is_unchanged else None) or result[0]
    return Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        result[0],
        candidates.step,
        tuple(result[1:]),
        tuple(scores.tolist()),
        None if candidates.ids is None else candidates.ids[source],
        trace=None if candidates.trace is None else candidates.trace(source),
        planners=tuple(candidates.planners[index] for index in (source, *others)) if candidates.planners else (),
    )


def source_of(option: int, candidates: Candidates) -> int:
    """Index of the candidate that an option is, or whose variant it is: those of the first follow the candidates."""
    return option if option < len(candidates.points) else 0
