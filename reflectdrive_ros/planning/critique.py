"""Critique of a plan: what the check says of it and of its nearest variants, as numbers for the network that edits it.

A network that drafts a plan has already used what it sees. What it does not know is the verdict on the finished plan:
whether the box of the car stays on the road and clear of the forecast agents, and whether a plan 0.3 m further to the
left would. The critique of a plan has CRITIQUE_CHANNELS numbers per waypoint: 1, four of the waypoint in the simulation
of the plan, then the sub-scores of the plan, then the scores of its variants relative to its own. Nothing in it is
learned. It is for the edit pass alone, and all 0 where the agents, the lights or the road are unknown.
"""

from __future__ import annotations

import numpy as np

from ..core.config import ScoringConfig
from ..core.domain import Array, EgoState
from ..core.tokens import TokenLayout
from ..scoring.frenet import FrenetFrame, points_in_ego_frame
from ..scoring.safety import SafetyContext
from ..scoring.scorer import Scene, ScoreCard, score
from ..scoring.simulate import AX, DT_S, VX, YAW_RATE
from .plan_changes import PlanModes, change_actions, offsets_of
from .planner import can_score
from .postprocess.waypoints import POINT_DT_S, postprocess, waypoint_poses
from .select import CandidateScores, forecast_scene, knows_what_plans_wait_for

VARIANT_MODES = PlanModes(pace_m=1.0, delay_m=0.5, offset_m=0.3, bulge_m=0.2)
# pace, delay, offset and bulge of the variants, in standard deviations: opposite pairs, one after the other
VARIANT_SIZES = np.array(
    [
        *([1, 0, 0, 0], [-1, 0, 0, 0], [2, 0, 0, 0], [-2, 0, 0, 0], [0, 1, 0, 0], [0, -1, 0, 0]),
        *([0, 0, 1, 0], [0, 0, -1, 0], [0, 0, 2, 0], [0, 0, -2, 0], [0, 0, 0, 1], [0, 0, 0, -1]),
    ],
    float,
)
OF_WAYPOINT = ("clearance", "safety", "lateral_acceleration", "acceleration")
OF_PLAN = ("nc", "dac", "ddc", "tlc", "ttc", "comfort", "ep", "score")
CRITIQUE_CHANNELS = 1 + len(OF_WAYPOINT) + len(OF_PLAN) + 2 * len(VARIANT_SIZES)
CLEARANCE_SCALE_M, ACCELERATION_SCALE_MPS2, GAIN_SCALE = 5.0, 4.0, 0.2  # that count as 1


def critique(safety_context: SafetyContext, actions: Array, layout: TokenLayout) -> Array:
    """(M, P, CRITIQUE_CHANNELS) float32 of complete plans with ids (M, T)."""
    observation = safety_context.observation
    is_complete = can_score(observation) and knows_what_plans_wait_for(safety_context)
    if not is_complete or safety_context.grid is None:
        return np.zeros((len(actions), layout.points, CRITIQUE_CHANNELS), np.float32)
    return critique_in(
        forecast_scene(safety_context),
        observation.ego,
        safety_context.road,
        actions,
        layout,
        safety_context.config.scoring,
    )


def critique_in(
    scene: Scene,
    ego: EgoState,
    road: FrenetFrame | None,
    actions: Array,
    layout: TokenLayout,
    config: ScoringConfig,
) -> Array:
    """As `critique`, of plans that are scored in `scene`, with the agents as forecast."""
    plans = np.concatenate([actions[:, None], variants_of(actions, layout)], axis=1)  # (M, 1 + V, T)
    points = points_in_ego_frame(layout.decode(plans.reshape(-1, layout.length)), layout, road)
    card = score(scene, waypoint_poses(postprocess(points, ego, layout.waypoint_noise_m, road), road), config)
    count = plans.shape[1]
    return np.stack([_of_plan(card.of(np.arange(k, k + count)), config) for k in range(0, len(points), count)])


def variants_of(actions: Array, layout: TokenLayout) -> Array:
    """(M, V, T) ids of the VARIANT_SIZES of plans with ids (M, T)."""
    offsets = offsets_of(np.repeat(VARIANT_SIZES[None], len(actions), axis=0), layout.points, VARIANT_MODES)
    return change_actions(actions, offsets, layout)


def _of_plan(card: ScoreCard, config: ScoringConfig) -> Array:
    """(P, CRITIQUE_CHANNELS) of a plan by the card of it and its variants."""
    scores = CandidateScores.of(card, config)
    clearance = np.minimum(card.clearance_m[0] / CLEARANCE_SCALE_M, 1.0)
    every = round(POINT_DT_S / DT_S)
    states = card.states[0, every::every]
    lateral = states[:, VX] * states[:, YAW_RATE] / ACCELERATION_SCALE_MPS2
    of_waypoints = np.stack(
        [clearance, card.waypoint_safety[0], lateral, states[:, AX] / ACCELERATION_SCALE_MPS2], axis=1
    )
    gains = [each[1:] - each[0] for each in (scores.scores, scores.scores_without_progress)]
    of_plan = [getattr(card, name)[0] for name in OF_PLAN[:-1]]
    whole = np.concatenate([of_plan, [scores.scores[0]], *(np.clip(each / GAIN_SCALE, -1.0, 1.0) for each in gains)])
    ones = np.ones((len(of_waypoints), 1))
    return np.concatenate([ones, of_waypoints, ones * whole], axis=1, dtype=np.float32)


def mirrored(values: Array) -> Array:
    """The critiques (.., CRITIQUE_CHANNELS) of mirrored plans in the mirrored scene."""
    order = np.arange(CRITIQUE_CHANNELS)
    for first in (1 + len(OF_WAYPOINT) + len(OF_PLAN), CRITIQUE_CHANNELS - len(VARIANT_SIZES)):
        for variant in np.flatnonzero(VARIANT_SIZES[:, 2:].any(axis=1)):
            order[first + variant] = first + variant + (1 if variant % 2 == 0 else -1)
    result = values[..., order]
    result[..., 1 + OF_WAYPOINT.index("lateral_acceleration")] *= -1.0
    return np.asarray(result)
