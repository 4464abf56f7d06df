"""Choice among plans by their driving score in the forecast, and among candidates where it does not decide.

The score is that of the driving metric (`scoring.scorer`), with the agents as predicted and the drivable space as
observed. It has the road and the traffic of this instant; it does not know for whom the network waits. So a plan of
another probability, or a variant of a plan, must gain more than its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core.config import ScoringConfig
from ..core.domain import PLAN_DT_S, Array, Plan, Verdict
from ..scoring import metrics
from ..scoring.contacts import AgentTracks
from ..scoring.safety import SAFE, SafetyContext
from ..scoring.scorer import Scene, ScoreCard, score, total
from . import guard
from .assessment import planned_safety
from .planner import can_score
from .postprocess.comfort import relax_profile
from .postprocess.waypoints import POINT_DT_S, trajectories, waypoint_poses

FORECAST_S = 5.0  # horizon of the agents in the score: 4 s and 1 s for the time to collision
SAME_SCORE = 1e-3  # driving scores that differ by less count as equal
# Score (0..1) of the margins of the check: of plans without contact in the forecast, 7 % of those without the margins
# have one or leave the road in the true future, 3 % of the others. On `val` 0.05 to 0.2 score the same
MARGIN_SCORE = 0.1
LOG_PROB_WEIGHT = 0.125  # score (0..1) per nat of a candidate's log-probability


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """Driving scores of N plans among the predicted agents, the drivable space as observed."""

    card: ScoreCard
    scores: Array  # (N,) with progress relative to the best of the plans, or of the first of them
    scores_without_progress: Array  # (N,)

    @staticmethod
    def of(card: ScoreCard, config: ScoringConfig, peers: int | None = None) -> CandidateScores:
        """`peers`: the first so many plans, to whose best progress is relative; None: all."""
        farthest = float((card.progress_m * card.multiplier)[:peers].max())
        ep = metrics.ego_progress(card.progress_m, card.multiplier, farthest, masked=True)
        scores, without_progress = (total(replace(card, ep=each), config) for each in (ep, np.ones(len(card))))
        return CandidateScores(card, np.asarray(scores), np.asarray(without_progress))

    @property
    def safest(self) -> Array:
        """(N,) bool, plans with the best score without progress."""
        return np.asarray(self.scores_without_progress >= self.scores_without_progress.max() - SAME_SCORE)

    def best(self, bonus: Array) -> int:
        """Index of the plan with the best sum of score and bonus (N,) among the safest; the first of equals."""
        return int(np.argmax(np.where(self.safest, self.scores + bonus, -np.inf)))


def score_candidates(safety_context: SafetyContext, points: Array, peers: int | None = None) -> CandidateScores:
    """Driving scores of plans through points (N, 8, 2) at 0.5 .. 4 s, of an observation with a route.

    `peers`: as in `CandidateScores.of`.
    """
    card = score(forecast_scene(safety_context), waypoint_poses(points, safety_context.road))
    return CandidateScores.of(card, safety_context.config.scoring, peers)


def forecast_scene(safety_context: SafetyContext) -> Scene:
    """What plans are scored in: the agents as predicted, the drivable space as observed."""
    forecast = safety_context.forecast_at(POINT_DT_S, round(FORECAST_S / POINT_DT_S))
    agents = safety_context.scene.agents
    if forecast is not None and safety_context.others is not None:
        agents = AgentTracks.of_forecast(forecast, safety_context.others.kinds)
    return replace(safety_context.scene, agents=agents, grid=safety_context.grid)


def knows_what_plans_wait_for(safety_context: SafetyContext) -> bool:
    """Whether a score may choose among plans of different speed: route, agents and traffic lights are known."""
    observation = safety_context.observation
    return (
        safety_context.route is not None and observation.agents is not None and observation.traffic_lights is not None
    )


def change_pays(points: Array, changed: Array, safety_context: SafetyContext) -> bool:
    """Whether an unsafe plan through points (8, 2) is better `changed`: where only the guard's refusal, a stop, is
    avoided by it, or where its driving score in the forecast, both relaxed, is not lower by more than MARGIN_SCORE,
    which a plan with the margins of the check earns by them.

    A plan without these margins has a contact in the forecast, which scores 0, or passes at a small distance.
    """
    observation = safety_context.observation
    if not (can_score(observation) and knows_what_plans_wait_for(safety_context)):
        return True
    both = np.stack([relax_profile(each, safety_context) for each in (points, changed)])
    refused, still_refused = (
        guard.check(Plan(observation.stamp_ns, observation.ego.map_from_ego, each), safety_context, 0.0).verdict
        is not Verdict.OK
        for each in trajectories(both, observation.ego.speed_mps, PLAN_DT_S, safety_context.road)
    )
    if refused and not still_refused:
        return True
    without, score = score_candidates(safety_context, both).scores
    margins = planned_safety(safety_context, waypoint_poses(changed[None], safety_context.road), exact=True)
    return bool(score + (MARGIN_SCORE if margins.worst[0] >= SAFE else 0.0) >= without)
