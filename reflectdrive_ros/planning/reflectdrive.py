"""ReflectDrive: several goals, a plan to each, the best by the score, and repair where it is unsafe.

    goals by top-k without near doubles; the way to each written in five rounds (inpainting)
    the best of them by safety, then by the driving score
    while it is unsafe: check, search, anchor, redraw (`repair`)

Every step plans anew, from the pictures of the moment. Where neither objects nor drivable space are known there is
nothing to choose or to repair by: the likeliest goal is driven to, which is the paper's model without reflective
inference. Paper: Discrete Diffusion for Reflective Vision-Language-Action Models (ReflectDrive); horizon 4 s, 8 points.

Classifier-free guidance asks the network twice, the second time with a blank instruction, and moves away from what the
blank one says. It needs a `GuidedNetwork`, that is two methods more than `Network` has, and a network that has learned
what a blank instruction means: in training a share of scenes (the usual one is a tenth) must come with a text that is
all padding. With a network without the methods, as exported graphs are, a step with guidance is a PlanningError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..config import ReflectDriveConfig
from ..domain import Array, Observation, Plan, StepKind, Trajectory
from ..features import ModelInputs
from .planner import Network, PlannerContext, PlannerState, PlanningError, Prefilled, network_inputs, token_trace
from .postprocess.waypoints import postprocess, tokens_per_round, trajectories
from .repair import repair_plan
from .safety import SafetyContext, assess, evaluate, safety_check


@runtime_checkable
class GuidedNetwork(Protocol):
    """What classifier-free guidance asks of a `Network` beyond itself."""

    def blank(self, inputs: ModelInputs) -> Any:
        """The context of the same scene with a text that is all padding."""
        ...

    def guided_step(self, context: Any, blank: Any, blocks: Array, limit: int, weight: float) -> tuple[Array, Array]:
        """As `Network.step` writing masked ids, by logits u + (weight + 1) (c - u): c with the text, u without."""
        ...


@dataclass(frozen=True, eq=False)
class Memory:
    """What the last step leaves behind, to be told."""

    notes: tuple[str, ...]
    full_step_reason: str = ""


def plan(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> tuple[PlannerState, Plan]:
    settings = planner_context.config.reflectdrive
    network, inputs = network_inputs("reflectdrive", observation, planner_context)
    scene = network.prefill_goal(inputs)
    against = SafetyContext.of(observation, planner_context.config)

    goals = nms_goals(scene, network, settings)[: settings.goals if against.can_check else 1]
    blocks, confidence = draft_plans(goals, scene, inputs, network, settings)
    points = network.codebook.decode(blocks)
    smooth = postprocess(points, observation.ego, network.codebook.bin_m, against.road)
    order, scores = [0], tuple[float, ...]()
    if len(blocks) > 1:
        found = assess(against, evaluate(against, smooth))
        order = sorted(range(len(blocks)), key=lambda place: (found.key(place), -place), reverse=True)
        scores = tuple((found.safety.worst * found.quality)[order].tolist())

    best = order[0]
    ids, sent, repairs = blocks[best], smooth[best], 0
    if settings.repair and against.can_check:
        mend = repair_plan(ids, points[best], observation, scene.context, planner_context, against)
        ids, sent, repairs = mend.ids, mend.points, mend.iterations
        if repairs and scores:
            again = assess(against, evaluate(against, sent[None]))
            scores = (float(again.safety.worst[0] * again.quality[0]), *scores[1:])
    first, *others = trajectories(
        np.stack([sent, *smooth[order[1:]]]),
        observation.ego.speed_mps,
        planner_context.config.output.dt_s,
        against.road,
    )
    made = Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        first,
        StepKind.FULL,
        tuple(others),
        scores,
        ids,
        trace=token_trace([(blocks[[best]], confidence[[best]])], scene, network.codebook),
    )
    made = replace(made, check=safety_check(made, against, repairs))
    return PlannerState(made, 0, Memory(inputs.notes, "every step plans anew")), made


def proposals(observation: Observation, planner_context: PlannerContext) -> tuple[Trajectory, ...]:
    """The ways to all goals that keep their distance, the likeliest first: none is left out or repaired.

    Raises PlanningError as `plan` does.
    """
    settings = planner_context.config.reflectdrive
    network, inputs = network_inputs("reflectdrive", observation, planner_context)
    scene = network.prefill_goal(inputs)
    blocks, _ = draft_plans(nms_goals(scene, network, settings)[: settings.goals], scene, inputs, network, settings)
    road = SafetyContext.of(observation, planner_context.config).road
    points = postprocess(network.codebook.decode(blocks), observation.ego, network.codebook.bin_m, road)
    return trajectories(points, observation.ego.speed_mps, planner_context.config.output.dt_s, road)


def nms_goals(scene: Prefilled, network: Network, settings: ReflectDriveConfig) -> Array:
    """Blocks (K, 16) of the likeliest goals that keep their distance, the likeliest first."""
    blocks = scene.blocks[scene.valid]
    goals_m = network.codebook.to_values(blocks[:, -2:])
    kept = list[int]()
    for place, goal_m in enumerate(goals_m):
        if all(np.hypot(*(goal_m - goals_m[other])) >= settings.goal_spacing_m - 1e-3 for other in kept):
            kept.append(place)
    return np.asarray(blocks[kept])


def draft_plans(
    blocks: Array, scene: Prefilled, inputs: ModelInputs, network: Network, settings: ReflectDriveConfig
) -> tuple[Array, Array]:
    """Ids (K, 16) with the way to each goal written, in equal shares, larger ones first; and their probabilities.

    Raises PlanningError where guidance is asked for and the network is no GuidedNetwork.
    """
    if settings.guidance == 0:
        return network.draft(scene.context, blocks, tokens_per_round(settings.draft_rounds))
    if not isinstance(network, GuidedNetwork):
        raise PlanningError("reflectdrive.guidance is set, but the network gives no logits: set it to 0")
    blank = network.blank(inputs)
    confidence = np.zeros(blocks.shape)
    for share in tokens_per_round(settings.draft_rounds):
        blocks, confidence = network.guided_step(scene.context, blank, blocks, share, settings.guidance)
    return blocks, confidence
