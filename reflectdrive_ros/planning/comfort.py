"""A plan that jolts is driven more gently: the same way to the same end, never ahead of the plan.

Whether a plan is comfortable hangs on the car and on the plan alone, nobody need be seen for it. So it is asked before
it is sent: the score's car follows it, and where that car jolts, braking that comes too late or too sharply as a rule,
the distances along the way are taken as less and less certain until the likeliest drive through them is comfortable.
Where none is, the plan stays as it is: a hard brake may be meant.
"""

from __future__ import annotations

import numpy as np

from ..config import VehicleConfig
from ..domain import Array, EgoState
from ..scoring import metrics
from ..scoring.scorer import motion_of
from ..scoring.simulate import simulate
from .pace import places
from .road_frame import RoadFrame, poses_on_road
from .smoothing import before, likeliest

UNCERTAIN_M = (0.6, 1.2, 2.4, 4.8)  # as wide as a bin would have to be
JERK_MPS3 = 1.0  # usual jerk along the way


def calmed(points: Array, ego: EgoState, dt_s: float, road: RoadFrame | None, vehicle: VehicleConfig) -> Array:
    """Points (8, 2) at dt, 2 dt, .. of the ego frame; if a car jolts on them, gentler ones where it does not."""
    options = np.concatenate([points[None], gentler(points, ego, dt_s)])
    for some in (slice(0, 1), slice(1, None)):  # most plans are comfortable as they are
        comfortable = comforts(options[some], ego, road, vehicle)
        if comfortable.any():
            return np.asarray(options[some][comfortable.argmax()])
    return points


def gentler(points: Array, ego: EgoState, dt_s: float) -> Array:
    """(len(UNCERTAIN_M), 8, 2) the way of points (8, 2), more and more gently; never ahead of them."""
    way = np.concatenate([np.zeros((1, 2)), points])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(way, axis=0).T))])
    start = np.array([before(ego, dt_s)[0], 0.0])
    reached = []
    for uncertain_m in UNCERTAIN_M:
        of_points, of_start = likeliest(len(points), dt_s, uncertain_m, JERK_MPS3)
        onward = np.maximum.accumulate(np.maximum(of_points @ along[1:] + of_start @ start, 0.0))
        reached.append(np.minimum(onward, along[1:]))
    count = len(reached)
    return places(np.tile(way, (count, 1, 1)), np.tile(along, (count, 1)), np.stack(reached))


def comforts(options: Array, ego: EgoState, road: RoadFrame | None, vehicle: VehicleConfig) -> Array:
    """(N,) bool, whether the score's car drives points (N, 8, 2) comfortably."""
    states = simulate(poses_on_road(options, road), motion_of(ego), vehicle)
    return np.asarray(metrics.comfort_flags(states, vehicle, metrics.COMFORT_SANE).all(axis=-1))
