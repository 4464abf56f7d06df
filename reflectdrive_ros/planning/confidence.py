"""Confidence of a planned trajectory at the limits of handling: how well curvature, speed, road and traffic agree.

    result = confidence(poses, dt_s, safety_context)  # .kinematic, .geometric, .safety (T,), .value

Source: ReflexDiffusion, section 4.4 (equations 13 to 15). The paper leaves the constants and the combination open. Here
each factor is a number from 0 to 1 per instant, the confidence of an instant is the geometric mean of the three, and
the value of a trajectory is the mean over its instants. What is unknown (no route, no agents, no drivable space) does
not lower the confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core import geometry, kinematics
from ..core.domain import Array
from ..scoring.drivable import corner_clearances
from ..scoring.frenet import FrenetFrame
from ..scoring.safety import SafetyContext

LATERAL_PER_MPS2 = 0.15  # m1: an error of 1 m/s^2 gives a factor of 0.86
CURVATURE_WEIGHT = 0.5  # m2: a curvature 20 % off gives a factor of 0.90
JERK_MAX_MPS3 = 8.37  # comfort bound of nuPlan
RADIUS_MAX_M = 200.0  # of a curve; a straight road has this one
DEVIATION_SAFE_M, DEVIATION_MAX_M = 0.5, 1.75  # lateral distance to the route: no loss below the first
TTC_MIDDLE_S, TTC_SCALE_S, TTC_MAX_S = 2.5, 0.5, 10.0
SLOW_MPS = 1.0  # below, curvature is noise
OFF_ROAD_SCALE_M = 0.1  # clearance over which the probability of leaving the road falls


@dataclass(frozen=True, eq=False)
class Confidence:
    """Factors of the instants of a trajectory, each (T,) from 0 to 1."""

    kinematic: Array
    geometric: Array
    safety: Array

    @property
    def by_instant(self) -> Array:
        """(T,) geometric mean of the factors."""
        return np.asarray(np.cbrt(self.kinematic * self.geometric * self.safety))

    @property
    def value(self) -> float:
        """0 to 1, the mean over the instants."""
        return float(self.by_instant.mean())


def confidence(poses: Array, dt_s: float, safety_context: SafetyContext) -> Confidence:
    """Confidence of a trajectory of poses (T, 3) at dt, 2 dt, .. in the ego frame."""
    speed, curvature = speeds_and_curvatures(poses, dt_s)
    road = safety_context.road
    if road is None:
        road_curvature, deviation, turn = curvature, np.zeros(len(poses)), np.zeros(len(poses))
    else:
        frenet, heading = road.to_frenet(poses[:, :2])
        road_curvature = curvature_at(road, frenet[:, 0])
        deviation, turn = np.abs(frenet[:, 1]), geometry.wrap(poses[:, 2] - heading)
        road_curvature = np.where(speed < SLOW_MPS, 0.0, road_curvature)
    lateral = curvature * speed**2
    jerk = np.gradient(lateral, dt_s)
    return Confidence(
        kinematic_consistency(lateral, road_curvature * speed**2, jerk),
        geometric_alignment(curvature, road_curvature, deviation),
        safety_margin(
            times_to_collision(poses, dt_s, safety_context),
            off_road_probability(poses, safety_context),
            np.asarray(turn),
        ),
    )


def kinematic_consistency(lateral_mps2: Array, reference_mps2: Array, jerk_mps3: Array) -> Array:
    """(T,) equation 13: lateral acceleration against that of the road at the same speed, and lateral jerk."""
    smooth = _sigmoid(JERK_MAX_MPS3 - np.abs(jerk_mps3))
    return np.asarray(np.exp(-LATERAL_PER_MPS2 * np.abs(lateral_mps2 - reference_mps2)) * smooth)


def geometric_alignment(curvature: Array, road_curvature: Array, deviation_m: Array) -> Array:
    """(T,) equation 14: relative error of the curvature, and lateral distance to the route."""
    radius = 1.0 / np.maximum(np.abs(road_curvature), 1.0 / RADIUS_MAX_M)
    beyond = np.maximum(deviation_m - DEVIATION_SAFE_M, 0.0)
    aligned = np.exp(-CURVATURE_WEIGHT * np.abs(curvature - road_curvature) * radius)
    return np.asarray(aligned * np.clip(1.0 - beyond / DEVIATION_MAX_M, 0.0, 1.0))


def safety_margin(time_to_collision_s: Array, off_road: Array, turn_rad: Array) -> Array:
    """(T,) equation 15: time to collision, probability of leaving the road, angle to the route."""
    room = _sigmoid((np.minimum(time_to_collision_s, TTC_MAX_S) - TTC_MIDDLE_S) / TTC_SCALE_S)
    return np.asarray(room * (1.0 - off_road) * np.clip(np.cos(turn_rad), 0.0, 1.0))


# --- what the factors are computed from ------------------------------------------------------------------------------


def speeds_and_curvatures(poses: Array, dt_s: float) -> tuple[Array, Array]:
    """(T,) m/s and 1/m; the curvature of a car that hardly moves is 0."""
    path = np.concatenate([np.zeros((1, 3)), poses])
    step = np.hypot(*np.diff(path[:, :2], axis=0).T)
    turn = geometry.wrap(np.diff(path[:, 2]))
    speed = step / dt_s
    moving = speed >= SLOW_MPS
    return speed, np.where(moving, turn / np.where(moving, step, 1.0), 0.0)


def curvature_at(road: FrenetFrame, along_m: Array) -> Array:
    """(T,) curvature of the route at arc lengths along it, 1/m."""
    slopes = np.gradient(road.heading, road.at) if len(road.at) > 1 else np.zeros(len(road.at))
    return np.asarray(np.interp(along_m, road.at, slopes))


def times_to_collision(poses: Array, dt_s: float, safety_context: SafetyContext) -> Array:
    """(T,) seconds from each instant to the first contact of the plan with a forecast box; TTC_MAX_S without one."""
    none = np.full(len(poses), TTC_MAX_S)
    forecast = safety_context.forecast_at(dt_s, len(poses))
    if forecast is None or len(forecast.poses) == 0:
        return none
    vehicle = safety_context.config.vehicle
    centres, size = kinematics.box_centres(poses, vehicle), np.array([vehicle.length_m, vehicle.width_m])
    others = forecast.poses[:, 1:]
    reach = 0.5 * (np.hypot(*size) + np.hypot(*forecast.sizes.T))
    close = np.hypot(others[..., 0] - centres[:, 0], others[..., 1] - centres[:, 1]) <= reach[:, None]
    agent, instant = np.nonzero(close)
    touching = geometry.boxes_overlap(centres[instant], size, others[agent, instant], forecast.sizes[agent])
    if not touching.any():
        return none
    first = int(instant[touching].min())
    return np.asarray(np.minimum(np.maximum(first - np.arange(len(poses)), 0) * dt_s, TTC_MAX_S))


def off_road_probability(poses: Array, safety_context: SafetyContext) -> Array:
    """(T,) 0 to 1, from the smallest distance of the car's corners to the edge of the drivable space."""
    if safety_context.grid is None:
        return np.zeros(len(poses))
    vehicle = safety_context.config.vehicle
    size = np.array([vehicle.length_m, vehicle.width_m])
    clearance = corner_clearances(safety_context.grid, kinematics.box_centres(poses, vehicle), size)
    return _sigmoid(-clearance / OFF_ROAD_SCALE_M)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))
