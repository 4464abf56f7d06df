"""ReflectDrive: drafts to several goals, selection by the driving score, repair of an unsafe plan.

    goals by top-k with non-maximum suppression; a draft to each in one round (inpainting)
    the best by safety, then by the driving score
    while it is unsafe: check, search, anchor, redraft (`repair`)

Every step is a full one. If neither objects nor drivable space are known, plans can be neither scored nor repaired: the
most probable goal is used, which is the model of the paper without reflective inference. Paper: Discrete Diffusion for
Reflective Vision-Language-Action Models (ReflectDrive); horizon 4 s, 8 waypoints.

Classifier-free guidance runs the network twice, with and without the text. It needs the capability guidance, which
weights have in torch and graphs have if they were exported with it, and a training that dropped the text of a share of
the scenes (usually a tenth). Without that capability guidance raises PlanningError.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ...core.config import Config
from ...core.domain import PLAN_DT_S, Array, Observation, TokenTrace, Trajectory
from ...core.recipe_config import DecodingConfig, ReflectDriveConfig
from ...core.tokens import decoding_rounds, draft_schedule
from ...features.images import ModelInputs
from ..assessment import assess, evaluate
from ..candidates import Candidates, GeneratorSpec, TokenSearch
from ..planner import (
    Network,
    PlannerContext,
    PlannerState,
    PlanningError,
    Prefilled,
    network_inputs,
    run_rounds,
    token_trace,
)
from ..postprocess.waypoints import postprocess, trajectories


@dataclass(frozen=True)
class ReflectDriveDecoding(DecodingConfig):
    """`decoding` with number and spacing of the goals and the guidance of `reflectdrive`."""

    guidance: float = 0.0  # weight of classifier-free guidance


def decoding_config(config: Config) -> DecodingConfig:
    """Decoding settings of its network."""
    settings = config.reflectdrive
    own = {name: getattr(settings, name) for name in ("goals", "goal_spacing_m", "guidance")}
    return ReflectDriveDecoding(**asdict(config.decoding) | own)


def needs(config: Config) -> frozenset[str]:
    """Capabilities of its network."""
    return frozenset({"goals"})


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    settings = planner_context.config.reflectdrive
    network, inputs = network_inputs("reflectdrive", observation, planner_context, needs(planner_context.config))
    scene = network.prefill_goal(inputs)
    safety_context = planner_context.safety_context(observation)

    goals = scene.actions[scene.valid][: settings.goals if safety_context.can_check else 1]
    ids, confidence = draft_plans(goals, scene, inputs, network, settings)
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
    actions, _ = draft_plans(scene.actions[scene.valid][: settings.goals], scene, inputs, network, settings)
    road = planner_context.safety_context(observation).road
    points = postprocess(network.layout.decode(actions), observation.ego, network.layout.waypoint_noise_m, road)
    return trajectories(points, observation.ego.speed_mps, PLAN_DT_S, road)


def draft_plans(
    actions: Array, scene: Prefilled, inputs: ModelInputs, network: Network, settings: ReflectDriveConfig
) -> tuple[Array, Array]:
    """Ids (K, T) drafted to each goal in rounds of equal size, larger ones first; and their probabilities.

    Raises PlanningError if guidance is set and the network lacks that capability.
    """
    if settings.guidance == 0:
        return network.draft(scene.context, actions, draft_schedule(len(network.layout.free), settings.draft_rounds))
    if "guidance" not in network.capabilities:
        raise PlanningError(
            f"reflectdrive.guidance is {settings.guidance}, but the network lacks the capability guidance: set it to "
            "0, export the graphs with --guidance, or set model.file to the weights (.safetensors)"
        )
    unconditional = network.unconditional(inputs)

    def step(ids: Array, limit: int, _: bool) -> tuple[Array, Array]:
        return network.guided_step(scene.context, unconditional, ids, limit, settings.guidance)

    return run_rounds(step, actions, decoding_rounds(len(network.layout.free), settings.draft_rounds, 0))


SPEC = GeneratorSpec(
    "reflectdrive",
    generate,
    "token",
    images=True,
    needs=needs,
    decoding=decoding_config,
    proposals=proposals,
)
