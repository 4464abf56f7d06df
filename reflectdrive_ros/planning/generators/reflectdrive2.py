"""ReflectDrive-2 (arXiv 2605.04647): select goals, draft a plan to each, edit the selected plan token by token.

A full step encodes the scene, selects goals, drafts in one round and edits in three (AutoEdit). A lite step reuses
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
from functools import partial
from typing import Any

import numpy as np

from ...core.config import Config
from ...core.domain import PLAN_DT_S, Array, Observation, StepKind, Trajectory
from ...core.recipe_config import ReflectDrive2Config
from ...core.tokens import draft_schedule
from ...scoring.frenet import NO_ROAD, points_in_ego_frame
from ...scoring.safety import SafetyContext
from ..candidates import Candidates, GeneratorSpec
from ..critique import critique
from ..goals import goals_to_draft, rank
from ..lite_step import LITE_EDIT_ROUNDS, ReflectDrive2Memory, edited_points, find_full_step_reason, lite_draft
from ..planner import (
    Network,
    PlannerContext,
    PlannerState,
    PlanningError,
    Prefilled,
    network_inputs,
    no_deadline,
    token_network,
    token_trace,
)
from ..postprocess.waypoints import carried_points, postprocess, trajectories

EDIT_DEADLINE_SHARE = 0.6  # share of the deadline after which no further AutoEdit round begins


def needs(config: Config) -> frozenset[str]:
    """Capabilities of its network."""
    return frozenset({"goals", "edit"})


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    settings = planner_context.config.reflectdrive2
    network, inputs = network_inputs("reflectdrive2", observation, planner_context, needs(planner_context.config))
    full_step_reason = find_full_step_reason(state, observation, settings)
    prefilled: Prefilled | None = None
    safety_context = planner_context.safety_context(observation)
    layout, road = network.layout, safety_context.road
    if layout.frame == "route" and road is None:
        raise PlanningError(NO_ROAD)
    lite_steps_since_full, kind, edit_rounds = 0, StepKind.FULL, settings.edit_rounds
    if full_step_reason or state.previous is None or not isinstance(state.memory, ReflectDrive2Memory):
        prefilled = network.prefill_goal(inputs)
        context = prefilled.context
        goal_actions, log_probs = goals_to_draft(prefilled, observation, planner_context)
        actions, confidence = draft_actions(network, context, goal_actions, settings)
        waypoints = points_in_ego_frame(layout.decode(actions), layout, road)
    else:
        context, log_probs = network.prefill(inputs), np.zeros(1)  # a single goal
        actions, confidence, waypoints = lite_draft(
            network, context, carried_points(state.previous, observation, layout.points), road
        )
        lite_steps_since_full = state.memory.lite_steps_since_full + 1
        kind, edit_rounds = StepKind.LITE, LITE_EDIT_ROUNDS

    finished = partial(
        postprocess,
        ego=observation.ego,
        noise_m=layout.waypoint_noise_m,
        road=road,
        limits=safety_context.limits,
    )
    points = finished(waypoints)
    order = rank(points, log_probs, safety_context)
    actions, waypoints, points, log_probs, confidence = (
        each[order] for each in (actions, waypoints, points, log_probs, confidence)
    )
    first = actions[:1].copy()
    rounds = edit_actions(
        network, context, first, confidence[:1], edit_rounds, planner_context.deadline_used, safety_context
    )
    (ids,), edited_confidence = rounds[-1]
    if not np.array_equal(ids, first[0]):
        waypoints[0] = edited_points(waypoints[0], first[0], ids, layout, road)
        actions[0], points[0] = ids, finished(waypoints[0])

    def rounds_of(candidate: int) -> list[tuple[Array, Array]]:
        return rounds if candidate == 0 else [(actions[[candidate]], confidence[[candidate]])]

    memory = ReflectDrive2Memory(
        observation.ego, observation.command, float(edited_confidence.mean()), lite_steps_since_full
    )
    return Candidates(
        points,
        log_probs,
        kind,
        ids=actions,
        trace=lambda candidate: token_trace(rounds_of(candidate), prefilled, layout, road),
        notes=inputs.notes,
        full_step_reason=full_step_reason,
        memory=memory,
    )


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
    waypoints = points_in_ego_frame(network.layout.decode(actions), network.layout, road)
    points = postprocess(waypoints, observation.ego, network.layout.waypoint_noise_m, road)
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
    safety_context: SafetyContext | None = None,
) -> list[tuple[Array, Array]]:
    """The draft (M, T) with its probabilities, then both after each round of edits; a network that reads a critique
    gets that of `safety_context`, and edits in one round.

    Stops after `rounds` rounds, when a round changes nothing (the next would not either), or when more than
    EDIT_DEADLINE_SHARE of the deadline is used, to leave time for the repair.
    """
    rounds_done = [(actions, confidence)]
    if rounds and safety_context is not None and "critique" in network.capabilities:
        return [*rounds_done, network.refine(context, actions, critique(safety_context, actions, network.layout))]
    for _ in range(rounds):
        if deadline_used() > EDIT_DEADLINE_SHARE:
            break
        before = rounds_done[-1][0]
        rounds_done.append(network.step(context, before, 0, True))
        if np.array_equal(rounds_done[-1][0], before):
            break
    return rounds_done


SPEC = GeneratorSpec(
    "reflectdrive2",
    generate,
    "token",
    images=True,
    needs=needs,
    draft_inputs=draft_inputs,
    proposals=proposals,
)
