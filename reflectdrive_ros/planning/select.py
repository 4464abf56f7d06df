"""Choice among plans by their driving score in the forecast, and among candidates where it does not decide.

The score is that of the driving metric (`scoring.scorer`), with the agents as predicted and the drivable space as
observed. It has the road and the traffic of this instant; it does not know for whom the network waits. So a plan of
another probability, or a variant of a plan, must gain more than its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core.config import ScoringConfig
from ..core.domain import Array
from ..scoring import metrics
from ..scoring.contacts import AgentTracks
from ..scoring.safety import SafetyContext
from ..scoring.scorer import ScoreCard, score, total
from .postprocess.waypoints import POINT_DT_S, waypoint_poses

FORECAST_S = 5.0  # horizon of the agents in the score: 4 s and 1 s for the time to collision
SAME_SCORE = 1e-3  # driving scores that differ by less count as equal
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
    forecast = safety_context.forecast_at(POINT_DT_S, round(FORECAST_S / POINT_DT_S))
    agents = safety_context.scene.agents
    if forecast is not None and safety_context.others is not None:
        agents = AgentTracks.of_forecast(forecast, safety_context.others.kinds)
    scene = replace(safety_context.scene, agents=agents, grid=safety_context.grid)
    card = score(scene, waypoint_poses(points, safety_context.road))
    return CandidateScores.of(card, safety_context.config.scoring, peers)


def knows_what_plans_wait_for(safety_context: SafetyContext) -> bool:
    """Whether a score may choose among plans of different speed: route, agents and traffic lights are known."""
    observation = safety_context.observation
    return (
        safety_context.route is not None and observation.agents is not None and observation.traffic_lights is not None
    )
