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
from .planner import Network, PlannerState, PlanningError, Prefilled, Tools, trace_of, what_it_sees
from .postprocess.waypoints import driven, shares, trajectories
from .repair import mended
from .safety import Known, check_of, judged, looked_at


@runtime_checkable
class GuidedNetwork(Protocol):
    """What classifier-free guidance asks of a `Network` beyond itself."""

    def unconditional(self, inputs: ModelInputs) -> Any:
        """The context of the same scene with a text that is all padding."""
        ...

    def guided_step(
        self, context: Any, unconditional: Any, actions: Array, limit: int, weight: float
    ) -> tuple[Array, Array]:
        """As `Network.step` writing masked ids, by logits u + (weight + 1) (c - u): c with the text, u without."""
        ...


@dataclass(frozen=True, eq=False)
class Memory:
    """What the last step leaves behind, to be told."""

    notes: tuple[str, ...]
    why_full: str = ""


def plan(state: PlannerState, observation: Observation, tools: Tools) -> tuple[PlannerState, Plan]:
    settings = tools.config.reflectdrive
    network, inputs = what_it_sees("reflectdrive", observation, tools)
    scene = network.prefill_goal(inputs)
    against = Known.of(observation, tools.config)

    goals = apart(scene, network, settings)[: settings.goals if against.anything else 1]
    actions, confidence = written(goals, scene, inputs, network, settings)
    points = network.codebook.decode(actions)
    smooth = driven(points, observation.ego, network.codebook.bin_m, against.road)
    order, scores = [0], tuple[float, ...]()
    if len(actions) > 1:
        found = judged(against, looked_at(against, smooth))
        order = sorted(range(len(actions)), key=lambda place: (found.key(place), -place), reverse=True)
        scores = tuple((found.safety.worst * found.quality)[order].tolist())

    best = order[0]
    ids, sent, repairs = actions[best], smooth[best], 0
    if settings.repair and against.anything:
        mend = mended(ids, points[best], observation, scene.context, tools, against)
        ids, sent, repairs = mend.ids, mend.points, mend.iterations
        if repairs and scores:
            again = judged(against, looked_at(against, sent[None]))
            scores = (float(again.safety.worst[0] * again.quality[0]), *scores[1:])
    first, *others = trajectories(
        np.stack([sent, *smooth[order[1:]]]), observation.ego.speed_mps, tools.config.output.dt_s, against.road
    )
    made = Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        first,
        StepKind.FULL,
        tuple(others),
        scores,
        ids,
        trace=trace_of([(actions[[best]], confidence[[best]])], scene, network.codebook),
    )
    made = replace(made, check=check_of(made, against, repairs))
    return PlannerState(made, 0, Memory(inputs.notes, "every step plans anew")), made


def proposals(observation: Observation, tools: Tools) -> tuple[Trajectory, ...]:
    """The ways to all goals that keep their distance, the likeliest first: none is left out or repaired.

    Raises PlanningError as `plan` does.
    """
    settings = tools.config.reflectdrive
    network, inputs = what_it_sees("reflectdrive", observation, tools)
    scene = network.prefill_goal(inputs)
    actions, _ = written(apart(scene, network, settings)[: settings.goals], scene, inputs, network, settings)
    road = Known.of(observation, tools.config).road
    points = driven(network.codebook.decode(actions), observation.ego, network.codebook.bin_m, road)
    return trajectories(points, observation.ego.speed_mps, tools.config.output.dt_s, road)


def apart(scene: Prefilled, network: Network, settings: ReflectDriveConfig) -> Array:
    """Blocks (K, 16) of the likeliest goals that keep their distance, the likeliest first."""
    actions = scene.actions[scene.valid]
    goals_m = network.codebook.to_values(actions[:, -2:])
    kept = list[int]()
    for place, goal_m in enumerate(goals_m):
        if all(np.hypot(*(goal_m - goals_m[other])) >= settings.goal_spacing_m - 1e-3 for other in kept):
            kept.append(place)
    return np.asarray(actions[kept])


def written(
    actions: Array, scene: Prefilled, inputs: ModelInputs, network: Network, settings: ReflectDriveConfig
) -> tuple[Array, Array]:
    """Ids (K, 16) with the way to each goal written, in equal shares, larger ones first; and their probabilities.

    Raises PlanningError where guidance is asked for and the network is no GuidedNetwork.
    """
    if settings.guidance == 0:
        return network.draft(scene.context, actions, shares(settings.draft_rounds))
    if not isinstance(network, GuidedNetwork):
        raise PlanningError("reflectdrive.guidance is set, but the network gives no logits: set it to 0")
    unconditional = network.unconditional(inputs)
    confidence = np.zeros(actions.shape)
    for share in shares(settings.draft_rounds):
        actions, confidence = network.guided_step(scene.context, unconditional, actions, share, settings.guidance)
    return actions, confidence
