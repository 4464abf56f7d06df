"""Relax the longitudinal profile of an uncomfortable plan: same path and end, never ahead of the plan.

Increase the position-noise variance until the smoothed longitudinal profile meets the comfort limits of the driving
score. If no profile is comfortable and safe, the plan is kept: hard braking may be required.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array, EgoState
from ...scoring.safety import SafetyContext
from ..assessment import comfortable, evaluate
from .smoothing import previous_position, smoothing_matrices
from .waypoints import POINT_DT_S

UNCERTAIN_M = (0.6, 1.2, 2.4, 4.8)  # standard deviations of positions
JERK_MPS3 = 1.0  # prior standard deviation of the jerk along the path


def relax_profile(points: Array, known: SafetyContext) -> Array:
    """Points (8, 2), or the first relaxed profile that is comfortable and safe."""
    if comfortable(known, points[None])[0]:
        return points
    options = relaxed_profiles(points[None], known.observation.ego, POINT_DT_S)[0]
    good = comfortable(known, options)
    if known.can_check and good.any():
        good &= evaluate(known, options).safe
    return np.asarray(options[good.argmax()]) if good.any() else points


def relax_profiles(points: Array, known: SafetyContext) -> Array:
    """`relax_profile` of N plans (N, 8, 2) at once, for training rewards. Agents and road must not be known."""
    if known.can_check:
        raise ValueError("relax_profiles got a context with agents or a road, expected neither")
    relaxed: Array = points.copy()
    rough = np.flatnonzero(~comfortable(known, points))
    if not len(rough):
        return relaxed
    options = relaxed_profiles(points[rough], known.observation.ego, POINT_DT_S)
    good = comfortable(known, options.reshape(-1, *points.shape[1:])).reshape(options.shape[:2])
    kept = good.any(axis=1)
    relaxed[rough[kept]] = options[kept, good[kept].argmax(axis=1)]
    return relaxed


def relaxed_profiles(points: Array, ego: EgoState, dt_s: float) -> Array:
    """(N, len(UNCERTAIN_M), 8, 2) points (N, 8, 2) with increasing smoothing; never ahead of them."""
    way = np.concatenate([np.zeros((len(points), 1, 2)), points], axis=1)
    length = np.hypot(*np.moveaxis(np.diff(way, axis=1), -1, 0))
    along = np.concatenate([np.zeros((len(points), 1)), np.cumsum(length, axis=1)], axis=1)
    start = np.array([previous_position(ego, dt_s)[0], 0.0])
    reached = []
    for uncertain_m in UNCERTAIN_M:
        of_points, of_start = smoothing_matrices(points.shape[1], dt_s, uncertain_m, JERK_MPS3)
        smooth = np.stack([of_points @ row + of_start @ start for row in along[:, 1:]])
        reached.append(np.minimum(np.maximum.accumulate(np.maximum(smooth, 0.0), axis=1), along[:, 1:]))
    count = len(reached)
    options = geometry.interpolate_paths(
        np.repeat(way, count, axis=0),
        np.repeat(along, count, axis=0),
        np.stack(reached, axis=1).reshape(-1, points.shape[1]),
    )
    return np.asarray(options.reshape(len(points), count, *points.shape[1:]))
