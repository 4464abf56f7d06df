"""Slower profiles on the path of a plan: the one with the best driving score is driven.

The goals of a network lie some metres apart, and a network does not know how fast the others drive. A plan that comes
too near to another vehicle may keep its distance with a little less speed, long before it is unsafe and repaired. The
score of a profile is that of the forecast agents, so nothing is gained by faster ones: they are limited only by what
the forecast does not know.
"""

from __future__ import annotations

import numpy as np

from ... import geometry
from ...domain import Array
from ...scoring.safety import SafetyContext
from ..assessment import score_candidates
from .speed_profile import interpolate_path
from .waypoints import POINT_DT_S

DECELERATIONS_MPS2 = (0.5, 1.0, 2.0)  # in addition to the plan's own; chosen on `val` and worlds 760 to 775
COST = 0.02  # score (0..1) that a slower profile must gain, per m/s^2
SAME_SCORE = 1e-3  # scores that differ by less count as equal


def choose_deceleration(points: Array, known: SafetyContext) -> Array:
    """Points (P, 2) m, or those of the same path with more deceleration that have the best driving score.

    `points` itself without a route, agents and traffic lights: the score does not know then what the plan brakes for.
    """
    observation = known.observation
    if known.route is None or observation.agents is None or observation.traffic_lights is None:
        return points
    options = np.concatenate([points[None], decelerated(points)])
    scored = score_candidates(known, options)
    equal = scored.scores_without_progress >= scored.scores_without_progress.max() - SAME_SCORE
    gain = scored.scores - COST * np.array([0.0, *DECELERATIONS_MPS2])
    best = int(np.argmax(np.where(equal, gain, -np.inf)))
    return np.asarray(options[best]) if best else points


def decelerated(points: Array) -> Array:
    """(len(DECELERATIONS_MPS2), P, 2) points on the path of a plan (P, 2), from now on slower by each deceleration."""
    way = np.concatenate([np.zeros((1, 2)), points])
    along = geometry.arc_lengths(way)
    times_s = POINT_DT_S * np.arange(1, len(points) + 1)
    lost = 0.5 * np.array(DECELERATIONS_MPS2)[:, None] * times_s**2
    reached = np.maximum.accumulate(np.maximum(along[1:] - lost, 0.0), axis=1)
    count = len(reached)
    return interpolate_path(np.repeat(way[None], count, axis=0), np.repeat(along[None], count, axis=0), reached)
