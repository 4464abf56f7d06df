"""Safety and quality of N plans at once, for the repair.

A plan is evaluated twice: its poses as planned, which the guard checks and the controller gets, and its simulation
(`scoring.simulate`), which shows what happens if the plan exceeds the vehicle limits. The minimum of both counts.
`scoring.safety` defines what is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core import geometry
from ..core.domain import Array
from ..scoring import metrics
from ..scoring.safety import (
    SAFE,
    Safety,
    SafetyContext,
    safety_of_states,
    states_of_poses,
    stays_on_road,
    vehicle_demands,
)
from ..scoring.scorer import judge_alone, weighted_mean
from ..scoring.simulate import DT_S, simulate
from .postprocess.waypoints import POINT_DT_S, interpolate, waypoint_poses

OFF_ROUTE_M = 2.5  # a point is on the route up to this lateral distance ..
OFF_ROUTE_UNSEEN_M = 1.0  # .. or this, where the edge of the road is unknown: a lane leaves a car about 0.6 m each side
OFF_ROUTE_MORE_M = 0.5  # .. or up to that of the vehicle now plus this


@dataclass(frozen=True, eq=False)
class Assessment:
    """Safety and quality of N plans."""

    points: Array  # (N, 8, 2) m
    safety: Safety  # minimum of both evaluations
    guard_safe_steps: Array  # (N,) safe steps of the planned poses, up to the horizon of the guard
    stays_on_road: (
        # (N,) whether the corners, as driven, probably stay on the road, without the conservative margin of the grid
        Array
    )
    limit_violation: Array  # (N, 8) excess over the vehicle limits of the guard, relative to the limit
    quality: Array  # (N,) 0..1, driving score without its safety multipliers
    progress_m: Array  # (N,) along the route in 4 s, simulated
    states: Array  # (N, 41, 11) simulated states

    @cached_property
    def keys(self) -> tuple[tuple[float, ...], ...]:
        """Sort keys of the plans, larger is better: safety, safe steps of the guard, staying on the road, first unsafe
        instant, less excess, less violation of the vehicle limits; then quality or, of unsafe plans, less progress:
        getting closer to what cannot be avoided is no merit."""
        safety, worst = self.safety, self.safety.worst
        columns = (
            worst,
            self.guard_safe_steps,
            self.stays_on_road,
            safety.first_unsafe,
            -safety.excess.round(3),
            -self.limit_violation.max(axis=1),
            np.where(worst >= SAFE, self.quality.round(9), -self.progress_m.round(2)),
        )
        return tuple(zip(*(column.astype(float).tolist() for column in columns), strict=True))

    def key(self, index: int) -> tuple[float, ...]:
        return self.keys[index]

    @property
    def sound(self) -> Array:
        """(N, 8) bool, waypoints where the plan is safe and within the vehicle limits."""
        return (self.safety.waypoints >= SAFE) & (self.limit_violation <= 0.0)

    def best(self, allowed_violation: float) -> int:
        """Index of the best plan with a limit violation of at most `allowed_violation`, else of the least violation;
        the first of equals."""
        more = np.maximum(self.limit_violation.max(axis=1) - allowed_violation, 0.0).tolist()
        return max(range(len(self.points)), key=lambda index: (-more[index], self.keys[index], -index))

    def of(self, indices: Array) -> Assessment:
        """The assessment of these (K,) plans alone."""
        return Assessment(
            self.points[indices],
            Safety(self.safety.by_step[indices], self.safety.excess[indices]),
            self.guard_safe_steps[indices],
            self.stays_on_road[indices],
            self.limit_violation[indices],
            self.quality[indices],
            self.progress_m[indices],
            self.states[indices],
        )


@dataclass(frozen=True, eq=False)
class SafetyEvaluation:
    """N plans with the safety of their planned poses and of their simulation."""

    points: Array  # (N, 8, 2) m
    poses: Array  # (N, 8, 3)
    states: Array  # (N, 41, 11) simulated states
    as_planned: Safety
    as_simulated: Safety

    @property
    def safety(self) -> Safety:
        return self.as_planned.combine(self.as_simulated)

    @property
    def safe(self) -> Array:
        """(N,) bool"""
        return self.safety.worst >= SAFE


def evaluate(safety_context: SafetyContext, points: Array) -> SafetyEvaluation:
    """Safety of plans through points (N, 8, 2) at 0.5 .. 4 s, as planned and simulated; half the cost of `assess`."""
    poses = waypoint_poses(points, safety_context.road)
    states = simulate(poses, safety_context.scene.motion, safety_context.config.vehicle)
    states.flags.writeable = False  # read-only, so that the scorer keeps no copy
    return SafetyEvaluation(
        points,
        poses,
        states,
        planned_safety(safety_context, poses, exact=True),
        safety_of_states(safety_context, states),
    )


def comfortable(safety_context: SafetyContext, points: Array) -> Array:
    """(N,) bool, whether the simulation of plans through points (N, 8, 2), interpolated, meets the comfort limits."""
    vehicle = safety_context.config.vehicle
    poses = interpolate(waypoint_poses(points, safety_context.road), safety_context.observation.ego.speed_mps)
    states = simulate(poses, safety_context.scene.motion, vehicle)
    return np.asarray(metrics.comfort_flags(states, vehicle, metrics.COMFORT_SANE).all(axis=-1))


def rank_as_planned(safety_context: SafetyContext, points: Array, allowed_violation: float) -> Array:
    """(N,) indices of plans through points (N, 8, 2), best first: least violation of the vehicle limits beyond the
    allowed, safety of the planned poses, roughness. A sixth of the cost of `evaluate`."""
    poses = waypoint_poses(points, safety_context.road)
    safety = planned_safety(safety_context, poses)
    keys = (
        roughness(safety_context, points).round(6),
        safety.excess.round(3),
        -safety.first_unsafe,
        -safety.worst,
        np.maximum(limit_violation(safety_context, poses).max(axis=1) - allowed_violation, 0.0),
    )
    return np.lexsort(keys)


def assess(safety_context: SafetyContext, evaluation: SafetyEvaluation, far_m: Array | None = None) -> Assessment:
    """Safety and quality of N evaluated plans. Progress beyond `far_m` (1,) or (N,) earns no score; None: beyond the
    largest of these."""
    points, poses, planned, safety = evaluation.points, evaluation.poses, evaluation.as_planned, evaluation.safety
    scoring = safety_context.config.scoring
    driven = judge_alone(safety_context.scene, evaluation.states, scoring, lane_keeping=scoring.form == "epdms")
    guard_safe_steps = np.minimum(
        planned.first_unsafe, int(safety_context.config.guard.safe_horizon_s / DT_S + 1e-6) + 1
    )
    far_m = driven.progress_m.max(keepdims=True) if far_m is None else far_m
    earned = np.ones(len(points))  # safety is assessed separately: the multipliers of the score are left out
    ep = metrics.ego_progress(driven.progress_m, earned, np.maximum(far_m, 0.0), masked=False)
    quality = weighted_mean(safety_context.scene, driven, ep, scoring) * _on_route(safety_context, points)
    return Assessment(
        points,
        safety,
        guard_safe_steps,
        stays_on_road(safety_context, driven.center),
        limit_violation(safety_context, poses),
        np.asarray(quality),
        driven.progress_m,
        driven.states,
    )


def limit_violation(safety_context: SafetyContext, poses: Array) -> Array:
    """(N, 8) excess of plans through poses (N, 8, 3) at 0.5 .. 4 s over the vehicle limits, relative to the limit."""
    demands = vehicle_demands(poses, POINT_DT_S, safety_context.observation.ego.speed_mps, safety_context.config.guard)
    most = demands[0][1] / demands[0][2]
    for _, values, limit, _ in demands[1:]:
        np.maximum(most, values / limit, out=most)
    return np.asarray(np.maximum(most - 1.0, 0.0).round(3))


def roughness(safety_context: SafetyContext, points: Array) -> Array:
    """(N,) m^2: sum of squared third differences of points (N, 8, 2), preceded by the positions 0.5 s ago and now."""
    path = np.zeros((len(points), points.shape[1] + 2, 2))
    path[:, 0, 0], path[:, 2:] = -POINT_DT_S * safety_context.scene.motion[0], points
    for _ in range(3):
        path = path[:, 1:] - path[:, :-1]
    return np.asarray((path**2).sum(axis=(1, 2)))


def planned_safety(safety_context: SafetyContext, poses: Array, exact: bool = False) -> Safety:
    """Safety of plans through poses (N, 8, 3) at 0.5 .. 4 s, interpolated. `exact` checks the road like the guard, at
    six times the cost."""
    speed_mps = safety_context.observation.ego.speed_mps
    return safety_of_states(safety_context, states_of_poses(interpolate(poses, speed_mps), speed_mps), exact)


def _on_route(safety_context: SafetyContext, points: Array) -> Array:
    """(N,) fraction of the points (N, 8, 2) on the route. The driving score of the paper does not measure it."""
    ends = np.concatenate([np.zeros((1, 2)), points.reshape(-1, 2)])
    _, offset = geometry.project(safety_context.scene.centerline, ends)
    nominal_m = OFF_ROUTE_UNSEEN_M if safety_context.grid is None else OFF_ROUTE_M
    allowed = max(nominal_m, abs(float(offset[0])) + OFF_ROUTE_MORE_M)
    return np.asarray((np.abs(offset[1:]) <= allowed).reshape(len(points), -1).mean(axis=1))
