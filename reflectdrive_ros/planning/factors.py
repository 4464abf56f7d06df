"""Why a plan is slow or stops: traffic light, speed limit, end of the route, or an object ahead."""

from __future__ import annotations

import numpy as np

from ..core import geometry, kinematics
from ..core.domain import Array, FactorKind, PlanningFactor, Trajectory
from ..scoring.safety import SafetyContext

STOPPED_MPS = 0.3  # a plan that ends at a lower speed stops
AHEAD_M = 15.0  # an object further beyond the end of a plan is not why it stops
PATH_STEP_M = 1.0
MARGIN_M = 0.3  # on both sides of the car: an object this close to its path blocks it


def planning_factors(trajectory: Trajectory, safety_context: SafetyContext) -> tuple[PlanningFactor, ...]:
    """The factors of a plan in the frame of the observation of `safety_context`, the nearest first."""
    ego_mps = safety_context.observation.ego.speed_mps
    speeds_mps = kinematics.speeds(trajectory)
    factors = safety_context.limits.factors(trajectory.poses, speeds_mps, trajectory.dt_s, ego_mps)
    stops = speeds_mps[-1] < STOPPED_MPS
    if not stops or any(factor.speed_mps == 0.0 for factor in factors):
        return factors
    blocked = object_ahead(trajectory.poses, safety_context)
    return factors if blocked is None else tuple(sorted((*factors, blocked), key=lambda factor: factor.distance_m))


def object_ahead(poses: Array, safety_context: SafetyContext) -> PlanningFactor | None:
    """The end of a plan with poses (T, 3) as a factor, if an object blocks the car there."""
    others = safety_context.others
    if others is None or len(others) == 0:
        return None
    vehicle = safety_context.config.vehicle
    line = geometry.distinct_points(kinematics.with_origin(poses)[:, :2], PATH_STEP_M)
    beyond_m = np.arange(0.0, AHEAD_M, PATH_STEP_M)
    if safety_context.route is None:
        beyond = geometry.compose(poses[-1], kinematics.arc(0.0, beyond_m))
    else:
        (at_m,), (lateral_m,) = geometry.project(safety_context.route, poses[-1:, :2])
        beyond = geometry.compose(
            geometry.sample(safety_context.route, at_m + beyond_m), np.array([0.0, lateral_m, 0.0])
        )
    size = np.array([vehicle.length_m, vehicle.width_m + 2.0 * MARGIN_M])
    blocked = geometry.boxes_overlap(
        kinematics.box_centres(beyond, vehicle)[:, None], size, others.poses[None], others.sizes[None]
    ).any()
    driven_m = float(geometry.arc_lengths(line)[-1]) if len(line) > 1 else 0.0
    return PlanningFactor(FactorKind.OBJECT, poses[-1], driven_m, 0.0) if blocked else None
