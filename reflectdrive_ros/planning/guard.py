"""Final check of a plan: feasible, safe, in time.

`check` tests feasibility first and the deadline last: a plan that is only late is known to be sound, and the engine may
reuse it in the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core import kinematics
from ..core.config import GuardConfig
from ..core.domain import Observation, Plan, Verdict
from ..scoring.safety import BACKWARDS_MPS, SafetyContext, unsafe_reason, vehicle_demands

MAX_START_GAP_M = 2.0  # from where the present speed leads to the first pose: a further plan starts from another place
AVERAGE_S = 0.5  # accelerations are averaged over this time: finer ones are noise of a 2 Hz plan


@dataclass(frozen=True)
class Judgement:
    """Verdict of the guard on a plan."""

    verdict: Verdict
    reason: str = ""  # one sentence when the verdict is not OK


def check(plan: Plan, safety_context: SafetyContext, elapsed_ms: float) -> Judgement:
    """The verdict on a plan for the observation of `safety_context`, made in `elapsed_ms`."""
    config = safety_context.config
    reason = infeasible_reason(plan, safety_context.observation, config.guard)
    if reason:
        return Judgement(Verdict.INFEASIBLE, reason)
    reason = unsafe_reason(plan.trajectory, safety_context)
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
    if gap > MAX_START_GAP_M:
        return f"the plan starts {gap:.1f} m from where the car will be, allowed {MAX_START_GAP_M:.1f} m"

    backwards = -float(kinematics.speeds(trajectory).min())
    if backwards > BACKWARDS_MPS:  # checked at every step
        return f"the plan drives backwards at {backwards:.2f} m/s, allowed {BACKWARDS_MPS:.2f} m/s"

    stride = max(1, round(AVERAGE_S / trajectory.dt_s))
    if len(trajectory.poses) < stride:
        stride = 1
    coarse, dt_s = trajectory.poses[None, stride - 1 :: stride], stride * trajectory.dt_s
    for what, values, limit, unit in vehicle_demands(coarse, dt_s, observation.ego.speed_mps, guard):
        value = float(values.max())
        if value > limit:
            return f"the plan {what} {value:.2f} {unit}, allowed {limit:.2f} {unit}"
    return ""
