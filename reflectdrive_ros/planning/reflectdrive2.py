"""ReflectDrive-2 (arXiv 2605.04647): select goals, draft a plan to each, edit the selected plan token by token.

A full step encodes the scene, selects goals, drafts in three rounds and edits in three (AutoEdit). A lite step reuses
the last plan: it is transformed to the current ego frame, its last waypoints are masked, one round drafts them and one
round edits. Full and lite steps alternate; `find_full_step_reason` lists what forces a full step. Between steps the
plan is kept in metres; only tokens that the network changed are quantised. Horizon 4 s, 8 waypoints.

Post-processing (`postprocess`) removes the quantisation noise, limits acceleration and relaxes the speed profile to the
comfort limits. If agents or drivable space are known, the plan is checked and repaired if it is unsafe (`repair`).

Goal selection: if agents or drivable space are known, all goals are drafted and those with the best driving score
without progress are kept. Of these the best sum of driving score and weighted log-probability is selected if agents and
traffic lights are known, else the nearest goal whose log-probability is within a margin of the best; the paper selects
the most probable. Only the selected plan is edited; the other drafts are published as candidates. If agents and traffic
lights are known, the edited plan is driven more slowly where that scores better (`choose_deceleration`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import geometry, kinematics
from ..core.domain import PLAN_DT_S, Array, Command, EgoState, Observation, Plan, StepKind, Trajectory
from ..core.recipe_config import ReflectDrive2Config
from ..core.tokens import TokenLayout, draft_schedule
from ..scoring.safety import SafetyContext, safety_check
from .assessment import CandidateScores, choose_deceleration, score_candidates, simulated_states
from .planner import (
    Network,
    PlannerContext,
    PlannerState,
    Prefilled,
    can_score,
    network_inputs,
    no_deadline,
    token_network,
    token_trace,
)
from .postprocess.comfort import relax_profile
from .postprocess.waypoints import HORIZON_S, carried_points, postprocess, trajectories
from .repair import encode_points, repair_plan

NEEDS = frozenset({"goals", "edit"})  # capabilities of its network
LITE_EDIT_ROUNDS = 1  # of AutoEdit in a lite step, as in the paper
MAX_DEVIATION_M = 1.0  # a car further from its position in the last plan takes a full step
LOW_CONFIDENCE = 0.15  # mean token probability of the last plan below which the next step is a full one
STANDING_MPS = 0.3
STANDING_M = 0.1  # a closer goal means an immediate stop
GENTLE_MPS2 = 1.5  # a less probable goal must not require harder braking than this
MAX_GAP_S = 0.35  # longer intervals between steps mean that images were missed
MAX_JUMP_M = 1.0  # largest difference between the map pose and the extrapolated one
EDIT_DEADLINE_SHARE = 0.6  # share of the deadline after which no further AutoEdit round begins
LOG_PROB_WEIGHT = 0.125  # score (0..1) per nat of a goal's log-probability


@dataclass(frozen=True, eq=False)
class Memory:
    """State between steps, in addition to the last plan."""

    ego: EgoState
    command: Command
    confidence: float  # mean probability of the token ids of the plan
    notes: tuple[str, ...]  # sentences on inputs that were replaced, cut or ignored
    full_step_reason: str = ""  # empty after a lite step


def plan(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> tuple[PlannerState, Plan]:
    settings = planner_context.config.reflectdrive2
    network, inputs = network_inputs("reflectdrive2", observation, planner_context, NEEDS)
    full_step_reason = find_full_step_reason(state, observation, settings)
    prefilled: Prefilled | None = None
    if full_step_reason or state.previous is None:
        prefilled = network.prefill_goal(inputs)
        context = prefilled.context
        goal_actions, log_probs = goals_to_draft(prefilled, observation, planner_context)
        actions, confidence = draft_actions(network, context, goal_actions, settings)
        points = network.layout.decode(actions)
        kind, lite_steps_since_full, edit_rounds = StepKind.FULL, 0, settings.edit_rounds
    else:
        context, log_probs = network.prefill(inputs), np.zeros(1)  # a single goal
        actions, confidence, points = lite_draft(
            network, context, carried_points(state.previous, observation, network.layout.points)
        )
        kind, lite_steps_since_full, edit_rounds = (
            StepKind.LITE,
            state.lite_steps_since_full + 1,
            LITE_EDIT_ROUNDS,
        )

    safety_context = planner_context.safety_context(observation)
    road, limits = safety_context.road, safety_context.limits
    noise_m, deadline_used = network.layout.waypoint_noise_m, planner_context.deadline_used
    if len(actions) > 1 and not can_score(observation):
        all_rounds = edit_actions(network, context, actions, confidence, edit_rounds, deadline_used)
        finished = all_rounds[-1][0]
        choice = rank_by_value(network.plan_values(context, finished))
        best, others = choice.order[0], choice.order[1:]
        rounds = [(ids[[best]], confidence[[best]]) for ids, confidence in all_rounds]
        candidate_points = postprocess(network.layout.decode(finished), observation.ego, noise_m, road, limits)
    else:
        candidate_points = postprocess(points, observation.ego, noise_m, road, limits)
        choice = rank_candidates(candidate_points, log_probs, safety_context)
        best, others = choice.order[0], choice.order[1:]
        rounds = edit_actions(network, context, actions[[best]], confidence[[best]], edit_rounds, deadline_used)
    (ids,), (confidence_of_ids,) = rounds[-1]
    edited = edited_points(points[best], actions[best], ids, network.layout)
    unchanged = np.array_equal(ids, actions[best])
    planned = candidate_points[best] if unchanged else postprocess(edited, observation.ego, noise_m, road, limits)
    slows = settings.score_goals and kind is StepKind.FULL  # a lite step would slow the slower plan again
    best_points = choose_deceleration(planned, safety_context) if slows else planned
    slower = best_points is not planned
    if slower:
        ids, edited, unchanged = encode_points(best_points[None], safety_context, network.layout)[0], best_points, False
    states, repairs = None, 0
    if settings.repair and safety_context.can_check:
        simulated = choice.states(best) if unchanged else None
        repair = repair_plan(
            ids, edited, best_points, network, context, planner_context, safety_context, simulated, state.previous
        )
        ids, best_points, states, repairs = repair.ids, repair.points, repair.states, repair.iterations
    sent = relax_profile(best_points, safety_context)
    if choice.scored is not None and (sent is not best_points or (slower and states is None)):
        (states,) = simulated_states(safety_context, sent[None])
    choice = choice.with_first(states) if repairs or slower or sent is not best_points else choice

    sent_plan, *candidates = trajectories(
        np.stack([sent, *candidate_points[others]]), observation.ego.speed_mps, PLAN_DT_S, road
    )
    result = Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        sent_plan,
        kind,
        tuple(candidates),
        choice.scores,
        ids,
        trace=token_trace(rounds, prefilled, network.layout),
    )
    result = replace(result, check=safety_check(result, safety_context, repairs))
    memory = Memory(
        observation.ego, observation.command, float(confidence_of_ids.mean()), inputs.notes, full_step_reason
    )
    return PlannerState(result, lite_steps_since_full, memory), result


def find_full_step_reason(state: PlannerState, observation: Observation, settings: ReflectDrive2Config) -> str:
    """Why the next step must be a full one, as one sentence; empty if the last plan may be edited."""
    last, memory, ego = state.previous, state.memory, observation.ego
    if last is None or not isinstance(memory, Memory):
        return "there is no plan to edit"
    if state.lite_steps_since_full >= settings.lite_steps_per_full:
        return "a full step is due"
    if observation.command is not memory.command:
        return f"the command changed from {memory.command.name} to {observation.command.name}"
    elapsed_s = (observation.stamp_ns - last.stamp_ns) * 1e-9
    if not 0.0 < elapsed_s <= MAX_GAP_S:
        return f"{elapsed_s:.2f} s since the last plan"
    if abs(memory.ego.speed_mps) < STANDING_MPS <= abs(ego.speed_mps):
        return "the car starts"
    if memory.confidence < LOW_CONFIDENCE:
        return f"the last plan has a confidence of {memory.confidence:.2f}"
    jump_m = distance(extrapolate_pose(memory.ego, elapsed_s), ego.map_from_ego)
    if jump_m > MAX_JUMP_M:
        return f"localisation jumped by {jump_m:.1f} m"
    deviation_m = distance(planned_position(last, elapsed_s), ego.map_from_ego)
    if deviation_m > MAX_DEVIATION_M:
        return f"the car is {deviation_m:.1f} m from where the last plan has it"
    return ""


def extrapolate_pose(ego: EgoState, elapsed_s: float) -> Array:
    """(3,) map pose after `elapsed_s` at constant acceleration and curvature."""
    if abs(ego.speed_mps) < STANDING_MPS:
        return ego.map_from_ego
    along_m = ego.speed_mps * elapsed_s + 0.5 * ego.acceleration_mps2 * elapsed_s**2
    return geometry.compose(ego.map_from_ego, kinematics.arc(ego.yaw_rate_rps / ego.speed_mps, np.array([along_m]))[0])


def planned_position(plan: Plan, elapsed_s: float) -> Array:
    """(2,) m, map frame: position in the plan `elapsed_s` after its stamp, interpolated linearly."""
    times_s, poses = np.append(0.0, plan.trajectory.times_s), kinematics.with_origin(plan.trajectory.poses)
    position = np.array([np.interp(elapsed_s, times_s, poses[:, axis]) for axis in (0, 1)])
    return np.asarray(geometry.transform_points(plan.map_from_ego, position))


def distance(a: Array, b: Array) -> float:
    return float(np.hypot(*(a[:2] - b[:2])))


def select_goal(goals: Array, log_probs: Array, among: Array, ego: EgoState, settings: ReflectDrive2Config) -> int:
    """Index of the goal to drive to, among goals (K, 2) with log-probabilities (K,); `among` (K,) bool are allowed.

    It is the nearest goal whose log-probability is within `goal_logprob_margin` of the best, unless it requires braking
    of more than GENTLE_MPS2. A standing vehicle takes the most probable goal, otherwise it might never start.
    """
    allowed = np.where(among, log_probs, -np.inf)
    if abs(ego.speed_mps) < STANDING_MPS:
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
    scored or are ranked by the network, else one."""
    settings = planner_context.config.reflectdrive2
    network = token_network("reflectdrive2", planner_context)
    by_value = settings.rank_plans and "plan_value" in network.capabilities
    if settings.score_goals if can_score(observation) else by_value:
        return prefilled.actions[prefilled.valid], prefilled.goal_log_probs[prefilled.valid]
    goals = network.layout.decode_goal(prefilled.actions)
    chosen = select_goal(goals, prefilled.goal_log_probs, prefilled.valid, observation.ego, settings)
    return prefilled.actions[[chosen]], prefilled.goal_log_probs[[chosen]]


def draft_inputs(
    prefilled: Prefilled, observation: Observation, planner_context: PlannerContext
) -> tuple[Array, tuple[int, ...]]:
    """Token sequences that a full step drafts and the tokens per round. The prefill determines them, so the draft can
    be prefetched."""
    free = len(token_network("reflectdrive2", planner_context).layout.free)
    limits = draft_schedule(free, planner_context.config.reflectdrive2.draft_rounds)
    return goals_to_draft(prefilled, observation, planner_context)[0], limits


def proposals(observation: Observation, planner_context: PlannerContext) -> tuple[Trajectory, ...]:
    """Drafts to all goals of the network, most probable first, without selection, editing or repair.

    Raises PlanningError as `plan` does.
    """
    config = planner_context.config
    network, inputs = network_inputs("reflectdrive2", observation, planner_context, NEEDS)
    prefilled = network.prefill_goal(inputs)
    actions, _ = draft_actions(network, prefilled.context, prefilled.actions[prefilled.valid], config.reflectdrive2)
    road = planner_context.safety_context(observation).road
    points = postprocess(network.layout.decode(actions), observation.ego, network.layout.waypoint_noise_m, road)
    return trajectories(points, observation.ego.speed_mps, PLAN_DT_S, road)


def draft_actions(network: Network, context: Any, actions: Array, settings: ReflectDrive2Config) -> tuple[Array, Array]:
    """Ids (M, T) and their probabilities, drafted from sequences (M, T) that hold a goal."""
    return network.draft(context, actions, draft_schedule(len(network.layout.free), settings.draft_rounds))


def edit_actions(
    network: Network,
    context: Any,
    actions: Array,
    confidence: Array,
    rounds: int,
    deadline_used: Callable[[], float] = no_deadline,
) -> list[tuple[Array, Array]]:
    """The draft (M, T) with its probabilities, then both after each round of edits.

    Stops after `rounds` rounds, when a round changes nothing (the next would not either), or when more than
    EDIT_DEADLINE_SHARE of the deadline is used, to leave time for the repair.
    """
    rounds_done = [(actions, confidence)]
    for _ in range(rounds):
        if deadline_used() > EDIT_DEADLINE_SHARE:
            break
        before = rounds_done[-1][0]
        rounds_done.append(network.step(context, before, 0, True))
        if np.array_equal(rounds_done[-1][0], before):
            break
    return rounds_done


def edited_points(points: Array, before: Array, after: Array, layout: TokenLayout) -> Array:
    """(P, 2) points of edited ids (T,): unchanged where the ids are unchanged, else decoded from the codebook."""
    return np.where((after == before).reshape(points.shape), points, layout.decode(after))


def lite_draft(network: Network, context: Any, carried: Array) -> tuple[Array, Array, Array]:
    """Draft the masked end of carried points (P, 2): ids (1, T), probabilities, points (1, P, 2)."""
    layout = network.layout
    is_carried = np.isfinite(carried)
    before = np.where(is_carried.reshape(-1), layout.encode(np.where(is_carried, carried, 0.0)), layout.mask_id)[None]
    actions, confidence = network.step(context, before.astype(np.int32), int((~is_carried).sum()), False)
    return actions, confidence, np.where(is_carried, carried, layout.decode(actions))


@dataclass(frozen=True, eq=False)
class RankedCandidates:
    """Plans of a step in order of preference, with their scores; a single plan is not scored."""

    order: Array  # (M,) indices, the selected plan first
    scored: CandidateScores | None = None  # of the plans, in the order of the input
    values: Array | None = None  # (M,) predicted scores, likewise

    @property
    def scores(self) -> tuple[float, ...]:
        """Driving score of each plan, in `order`; empty for a single plan. Progress is relative to the best of them.

        If the plans were ranked by the network these are its predictions.
        """
        if self.values is not None:
            return tuple(self.values[self.order].tolist())
        return () if self.scored is None else tuple(self.scored.scores[self.order].tolist())

    def states(self, index: int) -> Array | None:
        """(1, 41, 11) simulated states of a plan, if they are known."""
        return None if self.scored is None else self.scored.card.states[[index]]

    def with_first(self, states: Array | None) -> RankedCandidates:
        """The first plan replaced by one with simulated states (41, 11), its score recomputed."""
        if self.scored is None or states is None:
            return self
        return RankedCandidates(np.arange(len(self.order)), self.scored.with_first(states, self.order[1:]))


def rank_by_value(values: Array) -> RankedCandidates:
    """Order plans by their predicted scores (M,), the best first."""
    return RankedCandidates(np.argsort(-values, kind="stable"), values=values)


def rank_candidates(points: Array, log_probs: Array, safety_context: SafetyContext) -> RankedCandidates:
    """Order plans of points (M, P, 2) by preference.

    The first is one of those with the best driving score without progress. If agents and traffic lights are known, it
    is the one with the best sum of score and weighted log-probability. Otherwise `select_goal` chooses: the goal
    probabilities include what the score does not know then, lights and brake lights. The rest follow by score.
    """
    if len(points) == 1:
        return RankedCandidates(np.zeros(1, int))
    scored = score_candidates(safety_context, points)
    observation = safety_context.observation
    if observation.agents is not None and observation.traffic_lights is not None:
        first = scored.best(LOG_PROB_WEIGHT * log_probs)
    else:
        first = select_goal(
            points[:, -1], log_probs, scored.safest, observation.ego, safety_context.config.reflectdrive2
        )
    order = np.argsort(-scored.scores, kind="stable")
    return RankedCandidates(np.concatenate([[first], order[order != first]]), scored)
