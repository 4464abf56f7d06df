"""ReflectDrive: drafts to several goals, selection by the driving score, repair of an unsafe plan.

    goals by top-k with non-maximum suppression; a draft to each in one round (inpainting)
    the best by safety, then by the driving score
    while it is unsafe: check, search, anchor, redraft (`repair`)

Every step is a full one. If neither objects nor drivable space are known, plans can be neither scored nor repaired: the
most probable goal is used, which is the model of the paper without reflective inference. Paper: Discrete Diffusion for
Reflective Vision-Language-Action Models (ReflectDrive); horizon 4 s, 8 waypoints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.config import Config
from ...core.domain import PLAN_DT_S, Array, Observation, TokenTrace, Trajectory
from ...core.recipe_config import DecodingConfig, ReflectDriveConfig
from ...core.tokens import draft_schedule
from ..assessment import assess, evaluate
from ..candidates import Candidates, GeneratorSpec, TokenSearch
from ..planner import Network, PlannerContext, PlannerState, Prefilled, network_inputs, token_trace
from ..postprocess.waypoints import postprocess, trajectories


def decoding_config(config: Config) -> DecodingConfig:
    """Decoding settings of its network: `decoding` with its own number and spacing of the goals."""
    settings = config.reflectdrive
    return replace(config.decoding, goals=settings.goals, goal_spacing_m=settings.goal_spacing_m)


def needs(config: Config) -> frozenset[str]:
    """Capabilities of its network."""
    return frozenset({"goals"})


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    settings = planner_context.config.reflectdrive
    network, inputs = network_inputs("reflectdrive", observation, planner_context, needs(planner_context.config))
    scene = network.prefill_goal(inputs)
    safety_context = planner_context.safety_context(observation)

    goals = scene.actions[scene.valid][: settings.goals if safety_context.can_check else 1]
    ids, confidence = draft_plans(goals, scene, network, settings)
    waypoints = network.layout.decode(ids)
    points = postprocess(
        waypoints, observation.ego, network.layout.waypoint_noise_m, safety_context.road, safety_context.limits
    )
    order = np.zeros(1, int)
    if len(ids) > 1:
        assessment = assess(safety_context, evaluate(safety_context, points))
        order = np.array(sorted(range(len(ids)), key=lambda index: (assessment.key(index), -index), reverse=True))

    def redraft(masked: Array) -> Array:
        return network.step(scene.context, masked, network.layout.length, False)[0]

    def trace(candidate: int) -> TokenTrace:
        row = order[[candidate]]
        return token_trace([(ids[row], confidence[row])], scene, network.layout)

    return Candidates(
        points[order],
        ids=ids[order],
        token_search=TokenSearch(waypoints[order], network.layout, redraft),
        trace=trace,
        notes=inputs.notes,
        full_step_reason="every step is a full step",
    )


def proposals(observation: Observation, planner_context: PlannerContext) -> tuple[Trajectory, ...]:
    """Plans to all goals after non-maximum suppression, most probable first, without selection or repair.

    Raises PlanningError as `plan` does.
    """
    settings = planner_context.config.reflectdrive
    network, inputs = network_inputs("reflectdrive", observation, planner_context, needs(planner_context.config))
    scene = network.prefill_goal(inputs)
    actions, _ = draft_plans(scene.actions[scene.valid][: settings.goals], scene, network, settings)
    road = planner_context.safety_context(observation).road
    points = postprocess(network.layout.decode(actions), observation.ego, network.layout.waypoint_noise_m, road)
    return trajectories(points, observation.ego.speed_mps, PLAN_DT_S, road)


def draft_plans(
    actions: Array, scene: Prefilled, network: Network, settings: ReflectDriveConfig
) -> tuple[Array, Array]:
    """Ids (K, T) drafted to each goal in rounds of equal size, larger ones first; and their probabilities."""
    return network.draft(scene.context, actions, draft_schedule(len(network.layout.free), settings.draft_rounds))


SPEC = GeneratorSpec(
    "reflectdrive",
    generate,
    "token",
    images=True,
    needs=needs,
    decoding=decoding_config,
    proposals=proposals,
)
