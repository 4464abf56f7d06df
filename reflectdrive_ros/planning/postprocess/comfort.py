"""A plan that jolts is driven more gently: the same way to the same end, never ahead of the plan.

Whether a plan is comfortable hangs on the car and on the plan alone, nobody need be seen for it. So it is asked before
it is sent: the score's car follows it as it is drawn, and where it jolts, on braking too late or too sharply as a rule,
the distances along the way are taken as less and less certain until the likeliest drive through them is comfortable.
Where none is, or none that is safe too, the plan stays as it is: a hard brake may be meant.
"""

from __future__ import annotations

import numpy as np

from ...domain import Array, EgoState
from ...scoring import metrics
from ...scoring.frenet import poses_on_road
from ...scoring.simulate import simulate
from ..safety import SAFE, SafetyContext, evaluate
from .smoothing import previous_position, smoothing_matrices
from .speed_profile import interpolate_path
from .waypoints import POINT_DT_S, interpolate

UNCERTAIN_M = (0.6, 1.2, 2.4, 4.8)  # as wide as a bin would have to be
JERK_MPS3 = 1.0  # usual jerk along the way


def relax_profile(points: Array, ego: EgoState, known: SafetyContext) -> Array:
    """Points (8, 2) of the ego frame or, where a car jolts on them, the first gentler ones on which it does not."""
    if comfortable(points[None], ego, known)[0]:
        return points
    options = relaxed_profiles(points, ego, POINT_DT_S)
    good = comfortable(options, ego, known)
    if known.can_check and good.any():
        good &= evaluate(known, options).safety.worst >= SAFE
    return np.asarray(options[good.argmax()]) if good.any() else points


def relaxed_profiles(points: Array, ego: EgoState, dt_s: float) -> Array:
    """(len(UNCERTAIN_M), 8, 2) the way of points (8, 2), more and more gently; never ahead of them."""
    way = np.concatenate([np.zeros((1, 2)), points])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(way, axis=0).T))])
    start = np.array([previous_position(ego, dt_s)[0], 0.0])
    reached = []
    for uncertain_m in UNCERTAIN_M:
        of_points, of_start = smoothing_matrices(len(points), dt_s, uncertain_m, JERK_MPS3)
        onward = np.maximum.accumulate(np.maximum(of_points @ along[1:] + of_start @ start, 0.0))
        reached.append(np.minimum(onward, along[1:]))
    count = len(reached)
    return interpolate_path(np.tile(way, (count, 1, 1)), np.tile(along, (count, 1)), np.stack(reached))


def comfortable(options: Array, ego: EgoState, known: SafetyContext) -> Array:
    """(N,) bool, whether the score's car is comfortable on plans of points (N, 8, 2), as they are drawn."""
    vehicle = known.scene.vehicle
    poses = interpolate(poses_on_road(options, known.road), ego.speed_mps)
    states = simulate(poses, known.scene.motion, vehicle)
    return np.asarray(metrics.comfort_flags(states, vehicle, metrics.COMFORT_SANE).all(axis=-1))
