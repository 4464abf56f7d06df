"""Relax the longitudinal profile of an uncomfortable plan: same path and end, never ahead of the plan.

Increase the position-noise variance until the smoothed longitudinal profile meets the comfort limits of the driving
score. If no profile is comfortable and safe, the plan is kept: hard braking may be required.
"""

from __future__ import annotations

import numpy as np

from ...domain import Array, EgoState
from ...scoring.safety import SafetyContext
from ..assessment import comfortable, evaluate
from .smoothing import previous_position, smoothing_matrices
from .speed_profile import interpolate_path
from .waypoints import POINT_DT_S

UNCERTAIN_M = (0.6, 1.2, 2.4, 4.8)  # standard deviations of positions
JERK_MPS3 = 1.0  # prior standard deviation of the jerk along the path


def relax_profile(points: Array, known: SafetyContext) -> Array:
    """Points (8, 2), or the first relaxed profile that is comfortable and safe."""
    if comfortable(known, points[None])[0]:
        return points
    options = relaxed_profiles(points, known.observation.ego, POINT_DT_S)
    good = comfortable(known, options)
    if known.can_check and good.any():
        good &= evaluate(known, options).safe
    return np.asarray(options[good.argmax()]) if good.any() else points


def relaxed_profiles(points: Array, ego: EgoState, dt_s: float) -> Array:
    """(len(UNCERTAIN_M), 8, 2) points (8, 2) with increasing smoothing; never ahead of them."""
    way = np.concatenate([np.zeros((1, 2)), points])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(way, axis=0).T))])
    start = np.array([previous_position(ego, dt_s)[0], 0.0])
    reached = []
    for uncertain_m in UNCERTAIN_M:
        of_points, of_start = smoothing_matrices(len(points), dt_s, uncertain_m, JERK_MPS3)
        monotonic = np.maximum.accumulate(np.maximum(of_points @ along[1:] + of_start @ start, 0.0))
        reached.append(np.minimum(monotonic, along[1:]))
    count = len(reached)
    return interpolate_path(np.tile(way, (count, 1, 1)), np.tile(along, (count, 1)), np.stack(reached))
