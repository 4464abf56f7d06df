"""One step of every planner: generate, vary, select, repair, finish, check.

    candidates = generate(state, observation, context)    plans in the order that the generator prefers
    options = vary(candidates)                            smooth changes of the first, the last plan continued
    best = select(options)                                the best driving score in the forecast, less the change's cost
    repaired = repair(best)                               only if no option is safe
    plan = finish(repaired)                               comfort, interpolation, safety check

Each stage can be switched off (`pipeline.vary`, `pipeline.select`, `pipeline.repair`); without all three the result is
the generator's own plan. What is unknown is not used: without agents or drivable space nothing is selected or repaired,
without traffic lights nothing is varied, because a score does not know then what a plan waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core.domain import PLAN_DT_S, Array, Observation, Plan, StepKind
from ..scoring.safety import SAFE, SafetyContext, safety_check
from . import vary
from .assessment import evaluate, planned_safety
from .candidates import Candidates, Generator
from .planner import PlannerContext, PlannerState, can_score
from .postprocess.comfort import relax_profile
from .postprocess.waypoints import rest_of_plan, trajectories, waypoint_poses
from .repair import repair_points, repair_tokens, return_to_route
from .select import LOG_PROB_WEIGHT, knows_what_plans_wait_for, score_candidates

CHECKED_MAX = 16  # best options whose safety is checked
AS_GENERATED, CONTINUED = "", "the last plan, continued"
DECELERATION_COST = 0.02  # score (0..1) that a variant must gain, per m/s^2 ..
LATERAL_COST = 0.03  # .. per metre of offset and of bulge ..
CHANGE_COST = 0.0  # .. and for any change
CONTINUED_BONUS = 0.0  # score by which the last plan is preferred


@dataclass(frozen=True, eq=False)
class Options:
    """N plans to select from: the M candidates, then variants of the first and the last plan."""

    points: Array  # (N, 8, 2) m
    bonuses: Array  # (N,) score (0..1) that is added to the driving score
    descriptions: tuple[str, ...]  # (N) what was changed; empty for a candidate


def plan(
    generate: Generator, state: PlannerState, observation: Observation, planner_context: PlannerContext
) -> tuple[PlannerState, Plan]:
    """Raises PlanningError, with one sentence, if the generator cannot plan."""
    settings = planner_context.config.pipeline
    safety_context = planner_context.safety_context(observation)
    candidates = generate(state, observation, planner_context)
    options = as_generated(candidates)
    order = np.arange(len(options.points))
    if settings.select and can_score(observation):
        if settings.vary and candidates.step is not StepKind.LITE:  # a lite step keeps the variant of the last plan
            options = with_variants(options, state.previous, safety_context)
        order = rank(options, safety_context)
    best = int(order[0])
    points, repairs = options.points[best], 0
    if settings.repair and safety_context.can_check:
        safe = first_safe(options.points, order[:CHECKED_MAX], safety_context)
        if safe is not None:
            best, points = safe, options.points[safe]
            if planner_context.config.pipeline.x6 and (back := return_to_route(points, safety_context)) is not None:
                points, repairs = back.points[0], 1
        elif planner_context.config.pipeline.x6 == 2:
            points, repairs = repair(points, best, candidates, state.previous, planner_context, safety_context)
        else:
            points, repairs = repair_points(points, safety_context, state.previous)
    changed = options.descriptions[best]
    result = finish(points, best, candidates, safety_context, observation)
    result = replace(result, check=safety_check(result, safety_context, repairs), change=changed)
    return PlannerState(result, candidates.memory, candidates.notes, candidates.full_step_reason), result


def as_generated(candidates: Candidates) -> Options:
    log_probs = candidates.log_probs - candidates.log_probs.max()
    return Options(candidates.points, LOG_PROB_WEIGHT * log_probs, (AS_GENERATED,) * len(log_probs))


def with_variants(options: Options, last: Plan | None, safety_context: SafetyContext) -> Options:
    """The options, variants of the first and the rest of the last plan."""
    if not knows_what_plans_wait_for(safety_context):
        return options
    speed_mps = safety_context.observation.ego.speed_mps
    varied = vary.variants(options.points[0], speed_mps, sideways=safety_context.grid is not None)
    s = safety_context.config.pipeline
    costs = np.abs(varied.changes[1:]) @ (s.x1, s.x2, s.x2) + s.x3
    points, bonuses = [options.points, varied.points[1:]], [options.bonuses, options.bonuses[0] - costs]
    descriptions = [*options.descriptions, *(varied.description(index) for index in range(1, len(varied.points)))]
    rest = rest_of_plan(last, safety_context.observation, options.points.shape[1])
    if rest is not None and s.x4 > 0:
        points.append(rest[None])
        bonuses.append(np.array([s.x4]))
        descriptions.append(CONTINUED)
    return Options(np.concatenate(points), np.concatenate(bonuses), tuple(descriptions))


def rank(options: Options, safety_context: SafetyContext) -> Array:
    """Indices of the options, the best sum of driving score and bonus first."""
    if len(options.points) == 1 or not knows_what_plans_wait_for(safety_context):
        return np.arange(len(options.points))
    scored = score_candidates(safety_context, options.points)
    merit = scored.scores + options.bonuses
    if not safety_context.config.pipeline.x5:
        merit = merit + scored.safest
    return np.argsort(-merit, kind="stable")


def first_safe(points: Array, order: Array, safety_context: SafetyContext) -> int | None:
    """The first of the options `order` that is safe; None if none is."""
    for chunk in (order[:1], order[1:]):
        if len(chunk):
            if safety_context.config.pipeline.x4 < -1:
                safe = evaluate(safety_context, points[chunk]).safe
            else:
                poses = waypoint_poses(points[chunk], safety_context.road)
                safe = planned_safety(safety_context, poses, exact=True).worst >= SAFE
            if safe.any():
                return int(chunk[int(np.argmax(safe))])
    return None


def repair(
    points: Array,
    option: int,
    candidates: Candidates,
    last: Plan | None,
    planner_context: PlannerContext,
    safety_context: SafetyContext,
) -> tuple[Array, int]:
    """Points (8, 2) of a safe plan where there is one, and how often the plan was changed for it."""
    if candidates.tokens is not None:
        return repair_tokens(points, option, candidates.tokens, planner_context, safety_context, last)
    return repair_points(points, safety_context, last)


def finish(
    points: Array, option: int, candidates: Candidates, safety_context: SafetyContext, observation: Observation
) -> Plan:
    """The plan through points (8, 2), relaxed where that is more comfortable and safe; the other candidates follow."""
    relaxed = relax_profile(points, safety_context)
    is_candidate = option < len(candidates.points)
    unchanged = is_candidate and np.array_equal(relaxed, candidates.points[option])
    others = [index for index in range(len(candidates.points)) if index != (option if is_candidate else 0)]
    published = np.stack([relaxed, *candidates.points[others]])
    scores = candidates.scores[[option, *others]] if len(candidates.scores) else np.zeros(0)
    if len(published) > 1 and can_score(observation):
        scored = score_candidates(safety_context, published)
        order = np.argsort(-scored.scores[1:], kind="stable")
        others, published = [others[index] for index in order], published[[0, *(1 + order)]]
        scores = scored.scores[[0, *(1 + order)]]
    headings = None
    if candidates.headings is not None:
        first = candidates.headings[option] if unchanged else np.full(len(points), np.nan)
        headings = np.stack([first, *candidates.headings[others]])
    made = trajectories(published, observation.ego.speed_mps, PLAN_DT_S, safety_context.road, headings)
    if candidates.trajectories is not None:
        first_trajectory = candidates.trajectories[option] if unchanged else made[0]
        made = (first_trajectory, *(candidates.trajectories[index] for index in others))
    return Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        made[0],
        candidates.step,
        made[1:],
        tuple(scores.tolist()),
        None if candidates.tokens is None else candidates.tokens.ids[option if is_candidate else 0],
        trace=candidates.trace,
    )
