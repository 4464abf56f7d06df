"""Choice of the goal to drive to, by the driving score of its plan or by its probability and distance."""

from __future__ import annotations

import numpy as np

from ..core.domain import Array, EgoState, Observation
from ..core.recipe_config import ReflectDrive2Config
from ..scoring.safety import SafetyContext
from .lite_step import START_SPEED_MPS
from .planner import PlannerContext, Prefilled, can_score, token_network
from .postprocess.waypoints import HORIZON_S
from .select import LOG_PROB_WEIGHT, knows_what_plans_wait_for, score_candidates

STANDING_M = 0.1  # a closer goal means an immediate stop
GENTLE_MPS2 = 1.5  # a less probable goal must not require harder braking than this


def rank(points: Array, log_probs: Array, safety_context: SafetyContext) -> Array:
    """(M,) indices of plans through points (M, 8, 2), the one to edit first, the rest by driving score.

    The first is one of those with the best driving score without progress. If agents and traffic lights are known, it
    is the one with the best sum of score and weighted log-probability. Otherwise `select_goal` chooses: the goal
    probabilities include what the score does not know then, lights and brake lights.
    """
    if len(points) == 1:
        return np.zeros(1, int)
    scored = score_candidates(safety_context, points)
    if knows_what_plans_wait_for(safety_context):
        first = scored.best(LOG_PROB_WEIGHT * log_probs)
    else:
        ego, settings = safety_context.observation.ego, safety_context.config.reflectdrive2
        first = select_goal(points[:, -1], log_probs, scored.safest, ego, settings)
    order = np.argsort(-scored.scores, kind="stable")
    return np.concatenate([[first], order[order != first]])


def select_goal(goals: Array, log_probs: Array, among: Array, ego: EgoState, settings: ReflectDrive2Config) -> int:
    """Index of the goal to drive to, among goals (K, 2) with log-probabilities (K,); `among` (K,) bool are allowed.

    It is the nearest goal whose log-probability is within `goal_logprob_margin` of the best, unless it requires braking
    of more than GENTLE_MPS2. A standing vehicle takes the most probable goal, otherwise it might never start.
    """
    allowed = np.where(among, log_probs, -np.inf)
    if abs(ego.speed_mps) < START_SPEED_MPS:
        return int(np.argmax(allowed))
    distance_m = np.hypot(*goals.T)
    gentle = braking_mps2(distance_m, ego.speed_mps) <= GENTLE_MPS2
    likely = (allowed >= allowed.max() - settings.goal_logprob_margin) & (gentle | (allowed == allowed.max()))
    return int(np.argmin(np.where(likely, distance_m, np.inf)))


def braking_mps2(away_m: Array, speed_mps: float) -> Array:
    """(K,) constant deceleration with which the vehicle covers `away_m` (K,) within the horizon, at most to a stop."""
    stopping = speed_mps**2 / (2.0 * np.maximum(away_m, STANDING_M))
    slowing = 2.0 * (HORIZON_S * speed_mps - away_m) / HORIZON_S**2
    return np.asarray(np.where(away_m < 0.5 * HORIZON_S * speed_mps, stopping, slowing))


def goals_to_draft(
    prefilled: Prefilled, observation: Observation, planner_context: PlannerContext
) -> tuple[Array, Array]:
    """Token sequences (M, T) that hold a goal each, and its log-probabilities (M,): all goals if their plans can be
    scored, else one."""
    config = planner_context.config
    if config.pipeline.select and can_score(observation):
        return prefilled.actions[prefilled.valid], prefilled.goal_log_probs[prefilled.valid]
    goals = token_network("reflectdrive2", planner_context).layout.decode_goal(prefilled.actions)
    chosen = select_goal(goals, prefilled.goal_log_probs, prefilled.valid, observation.ego, config.reflectdrive2)
    return prefilled.actions[[chosen]], prefilled.goal_log_probs[[chosen]]
