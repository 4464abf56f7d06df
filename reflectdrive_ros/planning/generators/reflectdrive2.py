"""ReflectDrive-2 (arXiv 2605.04647): select goals, draft a plan to each, edit the selected plan token by token.

A full step encodes the scene, selects goals, drafts in three rounds and edits in three (AutoEdit). A lite step reuses
the last plan: it is transformed to the current ego frame, its last waypoints are masked, one round drafts them and one
round edits. Full and lite steps alternate; `find_full_step_reason` lists what forces a full step. Between steps the
plan is kept in metres; only tokens that the network changed are quantised. Horizon 4 s, 8 waypoints.

Goal selection: the paper selects the most probable goal (`pipeline.select` false). If agents or drivable space are
known, all goals are drafted and those with the best driving score without progress are kept. Of these the best sum of
driving score and weighted log-probability is selected if agents and traffic lights are known, else the nearest goal
whose log-probability is within a margin of the best. Only the selected plan is edited; the other drafts follow it as
candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...core import geometry, kinematics
from ...core.config import Config
from ...core.domain import PLAN_DT_S, Array, Command, EgoState, Observation, Plan, StepKind, Trajectory
from ...core.recipe_config import ReflectDrive2Config
from ...core.tokens import TokenLayout, draft_schedule
from ...scoring.safety import SafetyContext
from ..candidates import Candidates, GeneratorSpec
from ..planner import (
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
from ..postprocess.waypoints import HORIZON_S, carried_points, postprocess, trajectories
from ..select import LOG_PROB_WEIGHT, knows_what_plans_wait_for, score_candidates

LITE_EDIT_ROUNDS = 1  # of AutoEdit in a lite step, as in the paper
MAX_DEVIATION_M = 1.0  # a car further from its position in the last plan takes a full step
LOW_CONFIDENCE = 0.15  # mean token probability of the last plan below which the next step is a full one
START_SPEED_MPS = 0.3
STANDING_M = 0.1  # a closer goal means an immediate stop
GENTLE_MPS2 = 1.5  # a less probable goal must not require harder braking than this
MAX_GAP_S = 0.35  # longer intervals between steps mean that images were missed
MAX_JUMP_M = 1.0  # largest difference between the map pose and the extrapolated one
EDIT_DEADLINE_SHARE = 0.6  # share of the deadline after which no further AutoEdit round begins


@dataclass(frozen=True, eq=False)
class ReflectDrive2Memory:
    """State between steps, in addition to the last plan."""

    ego: EgoState
    command: Command
    confidence: float  # mean probability of the token ids of the plan
    lite_steps_since_full: int


def needs(config: Config) -> frozenset[str]:
    """Capabilities of its network."""
    return frozenset({"goals", "edit"})


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    settings = planner_context.config.reflectdrive2
    network, inputs = network_inputs("reflectdrive2", observation, planner_context, needs(planner_context.config))
    full_step_reason = find_full_step_reason(state, observation, settings)
    prefilled: Prefilled | None = None
    lite_steps_since_full, kind, edit_rounds = 0, StepKind.FULL, settings.edit_rounds
    if full_step_reason or state.previous is None or not isinstance(state.memory, ReflectDrive2Memory):
        prefilled = network.prefill_goal(inputs)
        context = prefilled.context
        goal_actions, log_probs = goals_to_draft(prefilled, observation, planner_context)
        actions, confidence = draft_actions(network, context, goal_actions, settings)
        waypoints = network.layout.decode(actions)
    else:
        context, log_probs = network.prefill(inputs), np.zeros(1)  # a single goal
        actions, confidence, waypoints = lite_draft(
            network, context, carried_points(state.previous, observation, network.layout.points)
        )
        lite_steps_since_full = state.memory.lite_steps_since_full + 1
        kind, edit_rounds = StepKind.LITE, LITE_EDIT_ROUNDS

    safety_context = planner_context.safety_context(observation)
    finished = partial(
        postprocess,
        ego=observation.ego,
        noise_m=network.layout.waypoint_noise_m,
        road=safety_context.road,
        limits=safety_context.limits,
    )
    values = np.zeros(0)
    if len(actions) > 1 and not can_score(observation):  # the network ranks the edited plans
        rounds = edit_actions(network, context, actions, confidence, edit_rounds, planner_context.deadline_used)
        edited, confidence = rounds[-1]
        waypoints, values = network.layout.decode(edited), network.plan_values(context, edited)
        order = np.argsort(-values, kind="stable")
        points, values = finished(waypoints[order]), values[order]
        actions, waypoints, log_probs = edited[order], waypoints[order], np.zeros(len(order))
    else:
        points = finished(waypoints)
        order = rank(points, log_probs, safety_context)
        actions, waypoints, points, log_probs = (each[order] for each in (actions, waypoints, points, log_probs))
        first = actions[:1].copy()
        rounds = edit_actions(
            network, context, first, confidence[order[:1]], edit_rounds, planner_context.deadline_used
        )
        (ids,), _ = rounds[-1]
        if not np.array_equal(ids, first[0]):
            waypoints[0] = edited_points(waypoints[0], first[0], ids, network.layout)
            actions[0], points[0] = ids, finished(waypoints[0])

    def rounds_of(candidate: int) -> list[tuple[Array, Array]]:
        if len(rounds[0][0]) == len(order):  # all were edited
            return [(ids[order[[candidate]]], its[order[[candidate]]]) for ids, its in rounds]
        return rounds if candidate == 0 else [(actions[[candidate]], confidence[order[[candidate]]])]

    memory = ReflectDrive2Memory(
        observation.ego, observation.command, float(rounds_of(0)[-1][1].mean()), lite_steps_since_full
    )
    return Candidates(
        points,
        log_probs,
        kind,
        ids=actions,
        trace=lambda candidate: token_trace(rounds_of(candidate), prefilled, network.layout),
        scores=values,
        notes=inputs.notes,
        full_step_reason=full_step_reason,
        memory=memory,
    )


def find_full_step_reason(state: PlannerState, observation: Observation, settings: ReflectDrive2Config) -> str:
    """Why the next step must be a full one, as one sentence; empty if the last plan may be edited."""
    last, memory, ego = state.previous, state.memory, observation.ego
    if last is None or not isinstance(memory, ReflectDrive2Memory):
        return "there is no plan to edit"
    if memory.lite_steps_since_full >= settings.lite_steps_per_full:
        return "a full step is due"
    if observation.command is not memory.command:
        return f"the command changed from {memory.command.name} to {observation.command.name}"
    elapsed_s = (observation.stamp_ns - last.stamp_ns) * 1e-9
    if not 0.0 < elapsed_s <= MAX_GAP_S:
        return f"{elapsed_s:.2f} s since the last plan"
    if abs(memory.ego.speed_mps) < START_SPEED_MPS <= abs(ego.speed_mps):
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
    if abs(ego.speed_mps) < START_SPEED_MPS:
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
    scored or are ranked by the network, else one."""
    settings = planner_context.config.reflectdrive2
    network = token_network("reflectdrive2", planner_context)
    by_value = settings.rank_plans and "plan_value" in network.capabilities
    if planner_context.config.pipeline.select if can_score(observation) else by_value:
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
    network, inputs = network_inputs("reflectdrive2", observation, planner_context, needs(planner_context.config))
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


SPEC = GeneratorSpec(
    "reflectdrive2",
    generate,
    "token",
    images=True,
    needs=needs,
    draft_inputs=draft_inputs,
    proposals=proposals,
)
