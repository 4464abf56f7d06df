"""The stop plan: braking along a path. It is computed before any other plan and needs only the ego."""

from __future__ import annotations

import numpy as np

from ..core import geometry, kinematics
from ..core.config import Config
from ..core.domain import PLAN_DT_S, PLAN_HORIZON_S, Agents, Array, EgoState, Observation, Plan
from ..scoring.safety import MAX_CURVATURE_PER_M, SafetyContext, first_safe


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
    guard = config.guard
    times_s = PLAN_DT_S * np.arange(1, round(PLAN_HORIZON_S / PLAN_DT_S) + 1)
    decelerations = (guard.comfort_braking_mps2, guard.hard_braking_mps2, guard.emergency_braking_mps2)
    distances = np.concatenate([kinematics.braking_distances(ego.speed_mps, each, times_s) for each in decelerations])
    poses = along_path(path, distances) if path is not None else along_present_curve(ego, distances, config)
    choices = poses.reshape(len(decelerations), -1, 3)
    safety_context = SafetyContext(Observation(ego.stamp_ns, ego, np.zeros((0, 3)), agents=agents), config)
    return Plan(ego.stamp_ns, ego.map_from_ego, first_safe(choices, PLAN_DT_S, safety_context, lights))


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
    tightest = min(MAX_CURVATURE_PER_M, gripping)
    return kinematics.arc(float(np.clip(ego.yaw_rate_rps / speed, -tightest, tightest)), distances)
