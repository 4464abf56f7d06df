"""Final check of a plan (feasible, safe, in time), and the stop plan, which is computed first.

`check` tests feasibility first and the deadline last: a plan that is only late is known to be sound, and the engine may
reuse it in the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import geometry, kinematics
from ..config import Config, GuardConfig
from ..domain import Agents, Array, EgoState, Observation, Plan, Trajectory, Verdict
from ..scoring.safety import BACKWARDS_MPS, SafetyContext, red_light_reason, unsafe_reason, vehicle_demands

AVERAGE_S = 0.5  # accelerations are averaged over this time: finer ones are noise of a 2 Hz plan


@dataclass(frozen=True)
class Judgement:
    """Verdict of the guard on a plan."""

    verdict: Verdict
    reason: str = ""  # one sentence when the verdict is not OK


def check(plan: Plan, known: SafetyContext, elapsed_ms: float) -> Judgement:
    """The verdict on a plan for the observation of `known`, made in `elapsed_ms`."""
    config = known.config
    reason = infeasible_reason(plan, known.observation, config.guard)
    if reason:
        return Judgement(Verdict.INFEASIBLE, reason)
    reason = unsafe_reason(plan.trajectory, known)
    if reason:
        return Judgement(Verdict.UNSAFE, reason)
    if elapsed_ms > config.engine.deadline_ms:
        return Judgement(
            Verdict.LATE, f"the plan took {elapsed_ms:.0f} ms, the deadline is {config.engine.deadline_ms:.0f} ms"
        )
    return Judgement(Verdict.OK)


def infeasible_reason(plan: Plan, observation: Observation, guard: GuardConfig) -> str:
    """Why the vehicle cannot follow this plan; empty if it can."""
    trajectory = plan.trajectory
    if plan.stamp_ns != observation.stamp_ns:
        return f"the plan is stamped {(observation.stamp_ns - plan.stamp_ns) * 1e-9:.2f} s before its observation"
    expected = np.array([observation.ego.speed_mps * trajectory.dt_s, 0.0])
    gap = float(np.hypot(*(trajectory.poses[0, :2] - expected)))
    if gap > guard.max_start_gap_m:
        return f"the plan starts {gap:.1f} m from where the car will be, allowed {guard.max_start_gap_m:.1f} m"

    backwards = -float(kinematics.speeds(trajectory).min())
    if backwards > BACKWARDS_MPS:  # checked at every step
        return f"the plan drives backwards at {backwards:.2f} m/s, allowed {BACKWARDS_MPS:.2f} m/s"

    stride = max(1, round(AVERAGE_S / trajectory.dt_s))
    coarse = (
        Trajectory(trajectory.poses[stride - 1 :: stride], stride * trajectory.dt_s)
        if (len(trajectory.poses) >= stride)
        else trajectory
    )
    for what, values, limit, unit in vehicle_demands(coarse.poses[None], coarse.dt_s, observation.ego.speed_mps, guard):
        value = float(values.max())
        if value > limit:
            return f"the plan {what} {value:.2f} {unit}, allowed {limit:.2f} {unit}"
    return ""


def stop_plan(
    ego: EgoState,
    agents: Agents | None,
    path: Array | None,
    config: Config,
    lights: SafetyContext | None = None,
) -> Plan:
    """Brake to a stop along `path` (poses (T, 3), current ego frame) or, without one, along the present curvature.

    Uses the weakest of three decelerations without a collision and without crossing a closed stop line of `lights`, the
    strongest if there is none. Never fails: it needs only the ego.
    """
    output, guard = config.output, config.guard
    times_s = output.dt_s * np.arange(1, round(output.horizon_s / output.dt_s) + 1)
    known = SafetyContext(Observation(ego.stamp_ns, ego, np.zeros((0, 3)), agents=agents), config)
    for deceleration in (guard.comfort_braking_mps2, guard.hard_braking_mps2, guard.emergency_braking_mps2):
        distances = kinematics.braking_distances(ego.speed_mps, deceleration, times_s)
        poses = along_path(path, distances) if path is not None else along_present_curve(ego, distances, config)
        plan = Plan(ego.stamp_ns, ego.map_from_ego, Trajectory(poses, output.dt_s))
        crosses = lights is not None and red_light_reason(poses, output.dt_s, lights)
        if not crosses and not unsafe_reason(plan.trajectory, known):
            break
    return plan


def along_path(path: Array, distances: Array) -> Array:
    """Poses (N, 3) at distances along the path of a plan, extended straight."""
    line = geometry.distinct_points(kinematics.with_origin(path), closer_than=0.05)
    if len(line) < 2:
        return kinematics.arc(0.0, distances)
    return geometry.sample(line, distances)


def along_present_curve(ego: EgoState, distances: Array, config: Config) -> Array:
    """Poses (N, 3) at distances along the circle of the present yaw rate."""
    guard, speed = config.guard, max(abs(ego.speed_mps), 1.0)
    gripping = guard.max_lateral_acceleration_mps2 / speed**2
    tightest = min(guard.max_curvature_per_m, gripping)
    return kinematics.arc(float(np.clip(ego.yaw_rate_rps / speed, -tightest, tightest)), distances)
