"""ReflexDiffusion: a plan is denoised; where its confidence is low, a step is taken back and done again.

    encode agents, lanes and the route; start from noise (or from none)
    for each of ten steps: predict the clean futures, with guidance; step to less noise
        if the predicted plan has a low confidence: add noise again without guidance, and do the step once more
    the ego's future is the plan, delayed where no car could speed up so fast

Every step is a full one. Paper: ReflexDiffusion: Reflection-Enhanced Trajectory Planning for High-lateral-acceleration
Scenarios in Autonomous Driving. Guidance (equation 5) and reflection (equations 8 and 9) need a network that was
trained with dropped conditions: capability guidance. Any denoiser can be reflected, whatever its architecture.

The paper computes the confidence of the noisy futures and does not say how often a step is reflected. Here it is that
of the clean futures which the step predicts; a step is reflected once, the last one never, and a reflection that lowers
the confidence is undone. The projection onto the centripetal constraint (equation 10) is left out.
"""

from __future__ import annotations

import numpy as np

from ...core.domain import Array, Observation, Trajectory
from ...core.recipe_config import ReflexDiffusionConfig
from ...features.vectors import VectorInputs, vector_inputs
from ...scoring.safety import SafetyContext
from ..candidates import Candidates, GeneratorSpec
from ..confidence import confidence
from ..denoiser import (
    Denoiser,
    present_states,
    sample,
)
from ..ego_future import ego_poses, line_of
from ..planner import PlannerContext, PlannerState, PlanningError
from ..postprocess.speed_profile import (
    hold_standstill,
    limit_acceleration,
    slow_in_bends,
    slow_trajectory,
    without_reversal,
)
from ..postprocess.waypoints import POINT_DT_S, trajectories, waypoints
from ..reflection import REFLECTION_GUIDANCE, Reflection, Reflector, guided


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    settings = planner_context.config.reflexdiffusion
    denoiser, inputs = denoiser_inputs(observation, planner_context, settings)
    safety_context, speed_mps = planner_context.safety_context(observation), observation.ego.speed_mps

    poses, reflections = sample_plan(denoiser, inputs, safety_context, settings)
    trajectory = Trajectory(without_reversal(poses), denoiser.spec.future_dt_s)
    trajectory = slow_in_bends(reachable(trajectory, speed_mps), speed_mps)
    trajectory = slow_trajectory(trajectory, safety_context.limits, speed_mps)
    # through the points only: from one pose to the next, 0.1 s later, the network is off by up to several m/s
    points = hold_standstill(waypoints(trajectory), speed_mps)
    return Candidates(
        points[None],
        notes=inputs.notes,
        full_step_reason="every step is a full step",
        memory=reflections,
    )


def denoiser_inputs(
    observation: Observation, planner_context: PlannerContext, settings: ReflexDiffusionConfig
) -> tuple[Denoiser, VectorInputs]:
    """The network and its inputs.

    Raises PlanningError if there is no network, if it lacks the capability guidance that the settings need, or if an
    input cannot be used.
    """
    network = planner_context.network
    if network is None:
        raise PlanningError("reflexdiffusion has no network: set model.file and model.sha256 to its weights")
    if network.kind != "denoiser":
        raise PlanningError("reflexdiffusion needs a network of the kind denoiser: set model.file to one")
    if needs_unconditional(settings) and "guidance" not in network.capabilities:
        raise PlanningError(
            "reflexdiffusion.guidance and reflexdiffusion.reflection need the capability guidance, which the network "
            "lacks: set them to 1 and false, or give a network that was trained with dropped conditions"
        )
    try:
        return network, vector_inputs(observation, network.spec)
    except ValueError as fault:
        raise PlanningError(str(fault)) from None


def needs_unconditional(settings: ReflexDiffusionConfig) -> bool:
    """Whether the network also has to predict without conditions."""
    return settings.reflection or settings.guidance != 1.0


def sample_plan(
    denoiser: Denoiser, inputs: VectorInputs, safety_context: SafetyContext, settings: ReflexDiffusionConfig
) -> tuple[Array, tuple[Reflection, ...]]:
    """(T, 3) poses of the ego's future in the ego frame, and the steps that were reflected.

    Raises PlanningError for a route that the network cannot plan along.
    """
    spec = denoiser.spec
    try:
        line = line_of(inputs, spec)
    except ValueError as fault:
        raise PlanningError(str(fault)) from None
    context = denoiser.encode(inputs, needs_unconditional(settings))

    def predict(futures: Array, time: float) -> Array:
        prediction = denoiser.denoise(context, futures, time)
        return guided(prediction, settings.guidance)

    def explore(futures: Array, time: float) -> Array:
        return guided(denoiser.denoise(context, futures, time), REFLECTION_GUIDANCE)

    def confidence_of(futures: Array) -> float:
        return confidence(ego_poses(futures, spec, line), spec.future_dt_s, safety_context).value

    present = present_states(inputs, spec)
    start = np.zeros((spec.futures, 1 + spec.future_steps, 4))
    reflector = Reflector(predict, explore, confidence_of, present, settings)
    correct = reflector if settings.reflection else None
    clean = sample(predict, start, present, settings.steps, correct)
    return ego_poses(clean, spec, line), tuple(reflector.reflections)


# --- the trajectory --------------------------------------------------------------------------------------------------


def reachable(trajectory: Trajectory, speed_mps: float) -> Trajectory:
    """The trajectory, delayed along its path where it speeds up by more than a car can from `speed_mps`.

    A network that knows few starts from a standstill predicts the speed of a car that drives already.
    """
    points = waypoints(trajectory)
    limited = limit_acceleration(points, speed_mps, POINT_DT_S)
    if np.array_equal(limited, points):
        return trajectory
    (delayed,) = trajectories(limited[None], speed_mps, trajectory.dt_s)
    return delayed


SPEC = GeneratorSpec("reflexdiffusion", generate, "denoiser", vectors=True)
