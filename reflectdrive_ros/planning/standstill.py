"""Leaving a standstill: a plan along the route for a standing car whose planner plans to stay where nothing holds it.

A network that was trained on drives has seen few starts, and a history at rest predicts rest. Autoware's ml_planner
sets the speeds of its input to 1 m/s at the request of a service, diffusion_planner stretches plans. Here a rollout of
the Intelligent Driver Model takes the place of the plan until the car drives at STARTED_MPS. It obeys lights, limits,
others and the end of the route, and has to pass the guard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ..core import geometry, kinematics
from ..core.domain import PLAN_DT_S, PLAN_HORIZON_S, AgentKind, Agents, Plan, StepKind, Trajectory, Verdict
from ..scoring.safety import SafetyContext, safety_check
from . import guard, idm
from .factors import planning_factors
from .planner import PlanningError

STANDING_MPS = 0.3  # a slower car stands
STARTED_MPS = 1.0  # from here on the planner's own plans count
WITHIN_S = 4.0
LEAVES_M = 1.0  # a plan that is shorter within WITHIN_S stays
START_CLEARANCE_M = 1.0  # to others, of a start that was not requested
PEOPLE_M = 4.0  # likewise from the rear axle's path to pedestrians and cyclists: they may be waited for


class StartMode(Enum):
    """Whether a standing car may be started."""

    NEVER = "never"
    IF_STUCK = "if_stuck"  # after `engine.start_after_s` without a reason to stand
    NOW = "now"  # requested


@dataclass(frozen=True)
class Standstill:
    """What is remembered between steps."""

    since_ns: int | None = None  # when the car began to stand without a reason; None: it does not
    starting: bool = False


def leave(
    memory: Standstill, plan: Plan, start: StartMode, safety_context: SafetyContext
) -> tuple[Standstill, Plan | None, str]:
    """The memory of the next step, and a plan that starts the car in place of `plan`, with a sentence; None where
    `plan` counts."""
    observation, after_s = safety_context.observation, safety_context.config.engine.start_after_s
    speed_mps = observation.ego.speed_mps
    if start is StartMode.NEVER or speed_mps >= STARTED_MPS or driven_m(plan) >= LEAVES_M:
        return Standstill(), None, ""
    requested = start is StartMode.NOW
    if not requested and (not after_s or observation.agents is None or has_reason(plan, safety_context)):
        return Standstill(), None, ""
    if speed_mps > STANDING_MPS and not memory.starting:
        return Standstill(), None, ""
    since_ns = observation.stamp_ns if memory.since_ns is None else memory.since_ns
    standing_s = (observation.stamp_ns - since_ns) * 1e-9
    if not requested and not memory.starting and standing_s < after_s:
        return Standstill(since_ns), None, ""
    started = start_plan(plan, safety_context, 0.0 if requested else START_CLEARANCE_M)
    if started is None or (not requested and passes_people(started, observation.agents)):
        return Standstill(since_ns), None, ""
    if requested:
        return Standstill(since_ns, True), started, "a start was requested: the plan along the route is sent"
    sentence = f"the car has stood for {standing_s:.1f} s without a reason: the plan along the route is sent"
    return Standstill(since_ns, True), started, sentence


def driven_m(plan: Plan) -> float:
    """Length of the plan within WITHIN_S."""
    count = max(round(WITHIN_S / plan.trajectory.dt_s), 1)
    return float(geometry.arc_lengths(kinematics.with_origin(plan.trajectory.poses[:count]))[-1])


def has_reason(plan: Plan, safety_context: SafetyContext) -> bool:
    """Whether a light, a limit, the end of the route or an object holds a standing plan."""
    return any(factor.speed_mps == 0.0 for factor in planning_factors(plan.trajectory, safety_context))


def passes_people(plan: Plan, agents: Agents | None) -> bool:
    """Whether the plan comes nearer than PEOPLE_M to where pedestrians or cyclists are now."""
    if agents is None:
        return False
    people = agents.poses[np.isin(agents.kinds, (AgentKind.PEDESTRIAN, AgentKind.BICYCLE)), :2]
    path = plan.trajectory.poses[: round(WITHIN_S / PLAN_DT_S), :2]
    away_m = np.hypot(*(people[:, None] - path).transpose(2, 0, 1))
    return bool((away_m < PEOPLE_M).any())


def start_plan(plan: Plan, safety_context: SafetyContext, clearance_m: float) -> Plan | None:
    """A plan along the route from the car's present state; None where there is none that moves the car, passes the
    guard and keeps `clearance_m` to others."""
    free = np.full((1, round(PLAN_HORIZON_S / PLAN_DT_S)), np.inf)
    vehicle, observation = safety_context.config.vehicle, safety_context.observation
    try:
        poses = idm.rollouts(observation, vehicle, PLAN_HORIZON_S, np.zeros(1), free, safety_context.limits)[0, 0]
    except PlanningError:
        return None
    started = Plan(
        plan.stamp_ns,
        plan.map_from_ego,
        Trajectory(poses, PLAN_DT_S),
        StepKind.BASELINE,
        change="start",
    )
    if driven_m(started) < LEAVES_M or guard.check(started, safety_context, 0.0).verdict is not Verdict.OK:
        return None
    check = safety_check(started, safety_context)
    if check.unsafe_after_s is not None or (check.clearance_m is not None and check.clearance_m < clearance_m):
        return None
    return replace(started, check=check)
