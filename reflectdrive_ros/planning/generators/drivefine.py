"""DriveFine: masked generation of a plan, then one pass of a refinement expert over all its tokens.

    prefill; draft 24 tokens (x, y, heading) from masks, few at first and more later (cosine schedule)
    refine all tokens at once, by an expert of its own
    choose among several such plans, if they can be scored; check and repair

The first candidate has the most probable tokens, the others are sampled at a temperature; there are no goals. The
random numbers depend on the stamp of the observation only, so that a replay repeats its plans. Candidates are chosen
by the driving score if agents or drivable space are known, else the first is taken. Headings come from tokens
(`postprocess.waypoints.token_headings`).

Every step is a full one. Paper: DriveFine: Refining-Augmented Masked Diffusion VLA; horizon 4 s, 8 waypoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.config import Config
from ...core.domain import PLAN_DT_S, Array, Observation, TokenTrace, Trajectory
from ...core.recipe_config import DriveFineConfig
from ...core.tokens import cosine_schedule
from ...scoring.frenet import NO_ROAD, points_in_ego_frame
from ...scoring.safety import SafetyContext
from ..candidates import Candidates, GeneratorSpec
from ..critique import critique
from ..planner import Network, PlannerContext, PlannerState, PlanningError, can_score, network_inputs, token_trace
from ..postprocess.waypoints import postprocess, token_headings, trajectories

TEMPERATURE = 1.0  # sampling temperature of the candidates after the first, as the network was trained


@dataclass(frozen=True, eq=False)
class SampledPlans:
    """M finished plans of a step."""

    context: Any  # of the network, for this scene
    drafts: Array  # (M, T) ids
    draft_confidence: Array  # (M, T)
    ids: Array  # (M, T) after refinement
    confidence: Array  # (M, T)


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    config = planner_context.config
    settings, safety_context = config.drivefine, planner_context.safety_context(observation)
    network, inputs = network_inputs("drivefine", observation, planner_context, needs(config))
    layout, road = network.layout, safety_context.road
    if layout.frame == "route" and road is None:
        raise PlanningError(NO_ROAD)

    by_score = config.pipeline.select and can_score(observation)
    count = settings.candidates if by_score else 1
    plans = sample_plans(network, network.prefill(inputs), count, settings, safety_context)
    waypoints = layout.decode(plans.ids)
    points = points_in_ego_frame(waypoints, layout, road)
    points = postprocess(points, observation.ego, layout.waypoint_noise_m, road, safety_context.limits)

    def trace(candidate: int) -> TokenTrace:
        row = [candidate]
        rounds = [(plans.drafts[row], plans.draft_confidence[row])]
        if settings.refine:
            rounds.append((plans.ids[row], plans.confidence[row]))
        return token_trace(rounds, None, layout, road)

    return Candidates(
        points,
        headings=token_headings(waypoints, points, layout),
        ids=plans.ids,
        trace=trace,
        notes=inputs.notes,
        full_step_reason="every step is a full step",
    )


def needs(config: Config) -> frozenset[str]:
    """Capabilities of its network."""
    settings = config.drivefine
    return frozenset({"refine"} if settings.refine else ()) | frozenset({"sampling"} if settings.candidates > 1 else ())


def sample_plans(
    network: Network, context: Any, count: int, settings: DriveFineConfig, safety_context: SafetyContext
) -> SampledPlans:
    """`count` finished plans: the first of the most probable tokens, the others sampled."""
    layout = network.layout
    limits = cosine_schedule(layout.length, settings.draft_rounds)
    masked = np.full((count, layout.length), layout.mask_id, np.int32)
    if count == 1:
        drafts, of_drafts = network.draft(context, masked, limits)
    else:
        drafts, temperature = masked, np.full(count, TEMPERATURE)
        rng = np.random.default_rng(safety_context.observation.stamp_ns)
        temperature[0] = 0.0
        for limit in limits:
            share = rng.random(drafts.shape)
            drafts, of_drafts = network.sampled_step(context, drafts, limit, temperature, share)
    refined = drafts, of_drafts
    if settings.refine:
        has_critique = "critique" in network.capabilities
        refined = network.refine(context, drafts, critique(safety_context, drafts, layout) if has_critique else None)
    return SampledPlans(context, drafts, of_drafts, *refined)


def proposals(observation: Observation, planner_context: PlannerContext) -> tuple[Trajectory, ...]:
    """All candidates, the most probable tokens first, without choice or repair. Raises PlanningError as `plan` does."""
    config = planner_context.config
    settings, safety_context = config.drivefine, planner_context.safety_context(observation)
    road = safety_context.road
    network, inputs = network_inputs("drivefine", observation, planner_context, needs(config))
    finished = sample_plans(network, network.prefill(inputs), settings.candidates, settings, safety_context)
    waypoints = network.layout.decode(finished.ids)
    points = points_in_ego_frame(waypoints, network.layout, road)
    points = postprocess(points, observation.ego, network.layout.waypoint_noise_m, road)
    headings = token_headings(waypoints, points, network.layout)
    return trajectories(points, observation.ego.speed_mps, PLAN_DT_S, road, headings)


SPEC = GeneratorSpec("drivefine", generate, "token", images=True, needs=needs, proposals=proposals)
