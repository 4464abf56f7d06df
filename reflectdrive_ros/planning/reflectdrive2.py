"""ReflectDrive-2: decide a goal, draft the way there, reflect on the draft token by token.

A full step reads the scene, chooses goals, drafts in three rounds and edits in three. A lite step takes the last plan
instead: the part already driven falls away, the rest is brought into today's ego frame and into tokens, its open end is
masked, one round drafts that end and one edits. Full and lite alternate; whatever makes the last plan doubtful makes
the next step a full one. Between steps the plan is kept in metres: only what the network changed is rounded, and the
jolts of rounding are taken out (`smoothing`), a start that no engine gives is slowed down (`pace`), and what is sent is
driven comfortably where that is possible (`comfort`).

Where objects or drivable space are known, the plan is checked, and repaired only if it is unsafe (`repair`).

With others or drivable space known, all goals are drafted and those that the driving score finds safe and smooth are
kept. Among these, or all where nothing is known, the car goes to the nearest of those about as likely as the likeliest
(the paper takes the likeliest). The one plan that is to be driven is edited; the drafts of others stand beside it.
Paper: ReflectDrive-2 (arXiv 2605.04647); horizon 4 s, 8 points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import geometry, kinematics
from ..config import ReflectDrive2Config, ScoringConfig
from ..domain import Array, Command, EgoState, Observation, Plan, StepKind, Trajectory
from ..scoring import metrics, prediction
from ..scoring.frenet import RoadFrame, poses_on_road
from ..scoring.scorer import Scene, ScoreCard, joined, judge, score, total
from ..scoring.simulate import simulate
from ..tokens import Codebook
from .planner import Network, PlannerState, Prefilled, Tools, no_hurry, trace_of, what_it_sees
from .postprocess.comfort import calmed
from .postprocess.waypoints import FREE, HORIZON_S, POINT_DT_S, POINTS, driven, shares, trajectories
from .repair import mended
from .safety import Known, check_of

STANDING_MPS = 0.3
STANDING_M = 0.1  # a goal that is nearer is to stand at once
GENTLE_MPS2 = 1.5  # doubt is no reason to brake harder
LATE = 0.6  # share of the deadline
FORECAST_S = 5.0  # what the score looks at
EQUAL = 1e-3  # scores closer than this are


@dataclass(frozen=True, eq=False)
class Memory:
    """What the last step leaves behind, beside its plan."""

    ego: EgoState
    command: Command
    confidence: float  # mean probability of the plan's ids
    notes: tuple[str, ...]  # sentences on inputs that were not used as they came
    why_full: str = ""  # why the step was a full one


def plan(state: PlannerState, observation: Observation, tools: Tools) -> tuple[PlannerState, Plan]:
    settings = tools.config.reflectdrive2
    network, inputs = what_it_sees("reflectdrive2", observation, tools)
    why_full = doubts(state, observation, settings)
    known: Prefilled | None = None
    if why_full or state.previous is None:
        known = network.prefill_goal(inputs)
        context = known.context
        begun, log_probs = goals_to_draft(known, observation, tools)
        actions, confidence = drafted(network, context, begun, settings)
        points = network.codebook.decode(actions)
        kind, lite_run, edit_rounds = StepKind.FULL, 0, settings.edit_rounds
    else:
        context, log_probs = network.prefill(inputs), np.zeros(1)  # there is one goal, and nothing to choose
        actions, confidence, points = continued(network, context, carried_points(state.previous, observation))
        kind, lite_run, edit_rounds = StepKind.LITE, state.lite_run + 1, settings.lite_edit_rounds

    against = Known.of(observation, tools.config)
    road = against.road
    ways = driven(points, observation.ego, network.codebook.bin_m, road)
    choice = ranked(ways, log_probs, observation, road, tools)
    best, others = choice.order[0], choice.order[1:]

    rounds = edited(network, context, actions[[best]], confidence[[best]], edit_rounds, tools.spent)
    (ids,), (confidence_of_ids,) = rounds[-1]
    reflected = reflected_points(points[best], actions[best], ids, network.codebook)
    if settings.repair and against.anything:
        as_judged = choice.states(best) if np.array_equal(ids, actions[best]) else None
        found = mended(ids, reflected, observation, context, tools, against, as_judged)
        ids, way, states, repairs = found.ids, found.points, found.states, found.iterations
    else:
        same = np.array_equal(ids, actions[best])
        way = ways[best] if same else driven(reflected, observation.ego, network.codebook.bin_m, road)
        states, repairs = None, 0
    sent = calmed(way, observation.ego, against)
    if sent is not way and choice.card is not None:
        states = simulate(poses_on_road(sent[None], road), against.scene.motion, tools.config.vehicle)[0]
    choice = choice.with_first(states) if repairs or sent is not way else choice

    sent_plan, *candidates = trajectories(
        np.stack([sent, *ways[others]]), observation.ego.speed_mps, tools.config.output.dt_s, road
    )
    made = Plan(
        observation.stamp_ns,
        observation.ego.map_from_ego,
        sent_plan,
        kind,
        tuple(candidates),
        choice.scores(tools.config.scoring),
        ids,
        trace=trace_of(rounds, known, network.codebook),
    )
    made = replace(made, check=check_of(made, against, repairs))
    memory = Memory(observation.ego, observation.command, float(confidence_of_ids.mean()), inputs.notes, why_full)
    return PlannerState(made, lite_run, memory), made


def doubts(state: PlannerState, observation: Observation, settings: ReflectDrive2Config) -> str:
    """Why the last plan is not to be edited but made anew; empty when it may be edited."""
    last, memory, ego = state.previous, state.memory, observation.ego
    if last is None or not isinstance(memory, Memory):
        return "there is no plan to edit"
    if state.lite_run >= settings.lite_steps_per_full:
        return "it is a full step's turn"
    if observation.command is not memory.command:
        return f"the command changed from {memory.command.name} to {observation.command.name}"
    elapsed_s = (observation.stamp_ns - last.stamp_ns) * 1e-9
    if not 0.0 < elapsed_s <= settings.max_gap_s:
        return f"{elapsed_s:.2f} s went by since the last plan"
    if abs(memory.ego.speed_mps) < STANDING_MPS <= abs(ego.speed_mps):
        return "the car starts"
    if memory.confidence < settings.low_confidence:
        return f"the last plan has a confidence of {memory.confidence:.2f}"
    jump_m = distance(driven_on(memory.ego, elapsed_s), ego.map_from_ego)
    if jump_m > settings.max_jump_m:
        return f"localisation jumped by {jump_m:.1f} m"
    deviation_m = distance(planned_place(last, elapsed_s), ego.map_from_ego)
    if deviation_m > settings.max_deviation_m:
        return f"the car is {deviation_m:.1f} m from where the last plan has it"
    return ""


def driven_on(ego: EgoState, elapsed_s: float) -> Array:
    """(3,) map pose of a car that keeps its speed, acceleration and curvature."""
    if abs(ego.speed_mps) < STANDING_MPS:
        return ego.map_from_ego
    along_m = ego.speed_mps * elapsed_s + 0.5 * ego.acceleration_mps2 * elapsed_s**2
    return geometry.compose(ego.map_from_ego, kinematics.arc(ego.yaw_rate_rps / ego.speed_mps, np.array([along_m]))[0])


def planned_place(plan: Plan, elapsed_s: float) -> Array:
    """(2,) m, map: where a plan has the car some time after its stamp; straight between its poses, which are near."""
    times_s, poses = np.append(0.0, plan.trajectory.times_s), kinematics.with_origin(plan.trajectory.poses)
    place = np.array([np.interp(elapsed_s, times_s, poses[:, axis]) for axis in (0, 1)])
    return np.asarray(geometry.transform_points(plan.map_from_ego, place))


def distance(a: Array, b: Array) -> float:
    return float(np.hypot(*(a[:2] - b[:2])))


def judged(observation: Observation) -> bool:
    """Whether there is anything to choose a goal by: someone to hit or somewhere to leave, and a way to get on."""
    seen = observation.others is not None or observation.drivable is not None
    return seen and len(geometry.distinct_points(observation.route)) >= 2


def careful(goals: Array, log_probs: Array, among: Array, ego: EgoState, settings: ReflectDrive2Config) -> int:
    """Which of goals (K, 2) to drive to, `among` (K,) bool those that may be: the nearest of those that are about as
    likely as the likeliest.

    Who is in doubt how far to go goes less far, but for no goal that asks for more than gentle braking unless it is the
    likeliest. A car that stands takes the likeliest, or doubt would hold it for ever.
    """
    allowed = np.where(among, log_probs, -np.inf)
    if abs(ego.speed_mps) < STANDING_MPS:
        return int(np.argmax(allowed))
    away_m = np.hypot(*goals.T)
    gentle = braking_mps2(away_m, ego.speed_mps) <= GENTLE_MPS2
    likely = (allowed >= allowed.max() - settings.careful_nats) & (gentle | (allowed == allowed.max()))
    return int(np.argmin(np.where(likely, away_m, np.inf)))


def braking_mps2(away_m: Array, speed_mps: float) -> Array:
    """(K,) how hard a car brakes, evenly, that is no further than `away_m` (K,) when the plan ends, at rest or not."""
    stopping = speed_mps**2 / (2.0 * np.maximum(away_m, STANDING_M))
    slowing = 2.0 * (HORIZON_S * speed_mps - away_m) / HORIZON_S**2
    return np.asarray(np.where(away_m < 0.5 * HORIZON_S * speed_mps, stopping, slowing))


def goals_to_draft(known: Prefilled, observation: Observation, tools: Tools) -> tuple[Array, Array]:
    """Blocks (M, 16) that hold a goal, and its log-probabilities (M,): all where something can judge them, else one."""
    settings = tools.config.reflectdrive2
    if settings.choose and judged(observation):
        return known.actions[known.valid], known.goal_log_probs[known.valid]
    assert tools.network is not None
    places = tools.network.codebook.decode(known.actions[:, FREE:])[:, 0]
    chosen = careful(places, known.goal_log_probs, known.valid, observation.ego, settings)
    return known.actions[[chosen]], known.goal_log_probs[[chosen]]


def to_draft(known: Prefilled, observation: Observation, tools: Tools) -> tuple[Array, list[int]]:
    """What a full step drafts, and in which rounds: the scene alone decides, so it may be drafted ahead."""
    return goals_to_draft(known, observation, tools)[0], shares(tools.config.reflectdrive2.draft_rounds)


def proposals(observation: Observation, tools: Tools) -> tuple[Trajectory, ...]:
    """The drafts to all goals that the network names, the likeliest first: none is left out, edited or repaired.

    Raises PlanningError as `plan` does.
    """
    config = tools.config
    network, inputs = what_it_sees("reflectdrive2", observation, tools)
    known = network.prefill_goal(inputs)
    actions, _ = drafted(network, known.context, known.actions[known.valid], config.reflectdrive2)
    road = Known.of(observation, config).road
    points = driven(network.codebook.decode(actions), observation.ego, network.codebook.bin_m, road)
    return trajectories(points, observation.ego.speed_mps, config.output.dt_s, road)


def drafted(network: Network, context: Any, actions: Array, settings: ReflectDrive2Config) -> tuple[Array, Array]:
    """Ids (M, 16) and their probabilities, drafted from blocks (M, 16) that hold a goal."""
    return network.draft(context, actions, shares(settings.draft_rounds))


def edited(
    network: Network,
    context: Any,
    actions: Array,
    confidence: Array,
    rounds: int,
    spent: Callable[[], float] = no_hurry,
) -> list[tuple[Array, Array]]:
    """Drafts (M, 16) and their probabilities, then both after each of at most so many rounds of edits: where one
    changes nothing, the next would not either.

    Who is late begins no further one: it is worth little, and time is needed for a repair.
    """
    found = [(actions, confidence)]
    for _ in range(rounds):
        if spent() > LATE:
            break
        before = found[-1][0]
        found.append(network.step(context, before, 0, True))
        if np.array_equal(found[-1][0], before):
            break
    return found


def reflected_points(points: Array, before: Array, after: Array, codebook: Codebook) -> Array:
    """(8, 2) points of a block (16,) after edits: as they were where an id has stayed, from the codebook elsewhere."""
    return np.where((after == before).reshape(POINTS, 2), points, codebook.decode(after))


def carried_points(last: Plan, observation: Observation) -> Array:
    """(8, 2) the last plan at 0.5 .. 4 s from now in today's ego frame; NaN where it does not tell."""
    elapsed_s = (observation.stamp_ns - last.stamp_ns) * 1e-9
    times_s = elapsed_s + POINT_DT_S * np.arange(1, POINTS + 1)
    told = times_s <= last.trajectory.horizon_s + 1e-6
    poses = kinematics.resample(last.trajectory, np.minimum(times_s[told], last.trajectory.horizon_s))
    now_from_then = geometry.compose(geometry.invert(observation.ego.map_from_ego), last.map_from_ego)
    points = np.full((POINTS, 2), np.nan)
    points[told] = geometry.transform_points(now_from_then, poses[:, :2])
    return points


def continued(network: Network, context: Any, carried: Array) -> tuple[Array, Array, Array]:
    """One block from carried points (8, 2), its open end drafted: ids (1, 16), probabilities, points (1, 8, 2)."""
    codebook = network.codebook
    told = np.isfinite(carried)
    before = np.where(told, codebook.to_ids(np.where(told, carried, 0.0)), codebook.mask_id).reshape(1, 2 * POINTS)
    actions, confidence = network.step(context, before.astype(np.int32), int((~told).sum()), False)
    return actions, confidence, np.where(told, carried, codebook.decode(actions))


@dataclass(frozen=True, eq=False)
class Choice:
    """Plans of a step in the order of their worth, and what it was judged by; one alone is not judged."""

    order: Array  # (M,) places, the one to drive first
    scene: Scene | None = None
    card: ScoreCard | None = None  # of the plans in their own order

    def scores(self, config: ScoringConfig) -> tuple[float, ...]:
        """The driving score of each, in this order; none of one alone. Nobody else has driven here, so progress is
        shared out among them."""
        return () if self.card is None else tuple(total(shared_out(self.card), config)[self.order].tolist())

    def states(self, place: int) -> Array | None:
        """(1, 41, 11) what the score's car makes of a plan, where it is known."""
        return None if self.card is None else self.card.states[[place]]

    def with_first(self, states: Array | None) -> Choice:
        """With another plan in place of the first, driven as `states` (41, 11)."""
        if self.card is None or self.scene is None or states is None:
            return self
        mended = judge(self.scene, states[None])
        return Choice(np.arange(len(self.order)), self.scene, joined([mended, self.card.of(self.order[1:])]))


def ranked(points: Array, log_probs: Array, observation: Observation, road: RoadFrame | None, tools: Tools) -> Choice:
    """Points (M, 8, 2) in the order of their worth.

    The driving score without its progress says which are safe and smooth; among equals the network's goals decide
    (`careful`), for it has seen lights and brakes that the score knows nothing of.
    """
    if len(points) == 1:
        return Choice(np.zeros(1, int))
    scene = scene_of(observation, road, tools)
    card = score(scene, poses_on_road(points, road))
    worth = total(replace(card, ep=np.ones(len(card))), tools.config.scoring)
    equal = worth >= worth.max() - EQUAL
    first = careful(points[:, -1], log_probs, equal, observation.ego, tools.config.reflectdrive2)
    order = np.argsort(-total(shared_out(card), tools.config.scoring), kind="stable")
    return Choice(np.concatenate([[first], order[order != first]]), scene, card)


def scene_of(observation: Observation, road: RoadFrame | None, tools: Tools) -> Scene:
    """What the driving score is told: others as they are forecast, the road as it is known."""
    forecast, others = None, observation.others
    if others is not None:
        forecast = prediction.forecast(others, road, POINT_DT_S, round(FORECAST_S / POINT_DT_S))
    return Scene.of_observation(observation, forecast, vehicle=tools.config.vehicle)


def shared_out(card: ScoreCard) -> ScoreCard:
    """The card with its progress measured by who gets furthest of these."""
    farthest = float((card.progress_m * card.multiplier).max())
    return replace(card, ep=metrics.ego_progress(card.progress_m, card.multiplier, farthest, masked=True))
