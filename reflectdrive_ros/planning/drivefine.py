"""DriveFine: masked generation of a plan, then one pass of a refinement expert over all its tokens.

    prefill; draft 24 tokens (x, y, heading) from masks, few at first and more later (cosine schedule)
    refine all tokens at once, by an expert of its own
    choose among several such plans, if they can be scored; check and repair

The first candidate has the most probable tokens, the others are sampled at a temperature; there are no goals. The
random numbers depend on the stamp of the observation only, so that a replay repeats its plans. Candidates are chosen
by the driving score if agents or drivable space are known, else by the plan value if that is set (DriveFine*), else
the first is taken. Headings come from tokens (`postprocess.waypoints.token_headings`).

Every step is a full one. Paper: DriveFine: Refining-Augmented Masked Diffusion VLA; horizon 4 s, 8 waypoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.domain import PLAN_DT_S, Array, Observation, Plan, StepKind, Trajectory
from ..core.recipe_config import DriveFineConfig
from ..core.tokens import cosine_schedule
from ..scoring.safety import safety_check
from .assessment import score_candidates
from .planner import Network, PlannerContext, PlannerState, can_score, network_inputs, token_trace
from .postprocess.comfort import relax_profile
from .postprocess.waypoints import postprocess, token_headings, trajectories
from .repair import repair_plan

TEMPERATURE = 1.0  # sampling temperature of the candidates after the first, as the network was trained


@dataclass(frozen=True, eq=False)
class Memory:
    """Report of the last step."""

    notes: tuple[str, ...]
    full_step_reason: str = ""


@dataclass(frozen=True, eq=False)
class Candidates:
    """M finished plans of a step."""

    context: Any  # of the network, for this scene
    drafts: Array  # (M, T) ids
    draft_confidence: Array  # (M, T)
    ids: Array  # (M, T) after refinement
    confidence: Array  # (M, T)


def plan(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> tuple[PlannerState, Plan]:
    config = planner_context.config
    settings, safety_context = config.drivefine, planner_context.safety_context(observation)
    network, inputs = network_inputs("drivefine", observation, planner_context, needs(settings))
    layout = network.layout

    by_score = can_score(observation)
    by_value = settings.rank_plans and "plan_value" in network.capabilities and not by_score
    count = settings.candidates if by_score or by_value else 1
    finished = candidates(network, network.prefill(inputs), count, settings, observation.stamp_ns)
    waypoints = layout.decode(finished.ids)
    points = postprocess(
        waypoints[..., :2], observation.ego, layout.waypoint_noise_m, safety_context.road, safety_context.limits
    )
    scores = np.zeros(0)
    if by_value:
        scores = network.plan_values(finished.context, finished.ids)
    elif count > 1:
        scores = score_candidates(safety_context, points).scores
    order = np.argsort(-scores, kind="stable") if count > 1 else np.zeros(1, int)

    best = order[0]
    ids, best_points, repairs = finished.ids[best], points[best], 0
    if settings.repair and safety_context.can_check:
        repaired = repair_plan(
            ids,
            waypoints[best, :, :2],
            best_points,
            network,
            finished.context,
            planner_context,
            safety_context,
            last=state.previous,
        )
        ids, best_points, repairs = repaired.ids, repaired.points, repaired.iterations
    points[best] = relax_profile(best_points, safety_context)
    waypoints[best] = layout.decode(ids)
    headings = token_headings(waypoints, points, layout)
    if headings is not None and repairs:
        headings[best] = np.nan  # moved waypoints keep the heading tokens of their former positions
    sent, *others = trajectories(
        points[order],
        observation.ego.speed_mps,
        PLAN_DT_S,
        safety_context.road,
        None if headings is None else headings[order],
    )
    rounds = [(finished.drafts[[best]], finished.draft_confidence[[best]])]
    if settings.refine:
        rounds.append((finished.ids[[best]], finished.confidence[[best]]))
    result = Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        sent,
        StepKind.FULL,
        tuple(others),
        tuple(scores[order].tolist()) if len(scores) else (),
        ids,
        trace=token_trace(rounds, None, layout),
    )
    result = replace(result, check=safety_check(result, safety_context, repairs))
    return PlannerState(result, 0, Memory(inputs.notes, "every step is a full step")), result


def needs(settings: DriveFineConfig) -> frozenset[str]:
    """Capabilities of its network."""
    return frozenset({"refine"} if settings.refine else ()) | frozenset({"sampling"} if settings.candidates > 1 else ())


def candidates(network: Network, context: Any, count: int, settings: DriveFineConfig, seed: int) -> Candidates:
    """`count` finished plans: the first of the most probable tokens, the others sampled."""
    layout = network.layout
    limits = cosine_schedule(layout.length, settings.draft_rounds)
    masked = np.full((count, layout.length), layout.mask_id, np.int32)
    if count == 1:
        drafts, of_drafts = network.draft(context, masked, limits)
    else:
        drafts, rng, temperature = masked, np.random.default_rng(seed), np.full(count, TEMPERATURE)
        temperature[0] = 0.0
        for limit in limits:
            share = rng.random(drafts.shape)
            drafts, of_drafts = network.sampled_step(context, drafts, limit, temperature, share)
    refined = network.refine(context, drafts) if settings.refine else (drafts, of_drafts)
    return Candidates(context, drafts, of_drafts, *refined)


def proposals(observation: Observation, planner_context: PlannerContext) -> tuple[Trajectory, ...]:
    """All candidates, the most probable tokens first, without choice or repair. Raises PlanningError as `plan` does."""
    config = planner_context.config
    settings, road = config.drivefine, planner_context.safety_context(observation).road
    network, inputs = network_inputs("drivefine", observation, planner_context, needs(settings))
    finished = candidates(network, network.prefill(inputs), settings.candidates, settings, observation.stamp_ns)
    waypoints = network.layout.decode(finished.ids)
    points = postprocess(waypoints[..., :2], observation.ego, network.layout.waypoint_noise_m, road)
    headings = token_headings(waypoints, points, network.layout)
    return trajectories(points, observation.ego.speed_mps, PLAN_DT_S, road, headings)
