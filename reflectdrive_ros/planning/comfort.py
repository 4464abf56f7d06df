"""A plan that jolts is driven more gently: the same way to the same end, never ahead of the plan.

Whether a plan is comfortable hangs on the car and on the plan alone, nobody need be seen for it. So it is asked before
it is sent: the score's car follows it, and where that car jolts, braking that comes too late or too sharply as a rule,
the distances along the way are taken as less and less certain until the likeliest drive through them is comfortable.
Where none is, or none that is safe too, the plan stays as it is: a hard brake may be meant.
"""

from __future__ import annotations

import numpy as np

from ..config import VehicleConfig
from ..domain import Array, EgoState
from ..scoring import metrics
from ..scoring.simulate import simulate
from .pace import places
from .road_frame import poses_on_road
from .safety import SAFE, Known, looked_at
from .smoothing import before, likeliest
from .waypoints import POINT_DT_S

UNCERTAIN_M = (0.6, 1.2, 2.4, 4.8)  # as wide as a bin would have to be
JERK_MPS3 = 1.0  # usual jerk along the way


def calmed(points: Array, ego: EgoState, known: Known, states: Array | None = None) -> tuple[Array, Array]:
    """Points (8, 2) of the ego frame, or, where a car jolts on them, the first gentler ones on which it does not.

    Also what the score's car makes of them, (41, 11); `states` is that of the points that came in, where it is known.
    """
    if states is None:
        states = _driven(points[None], known)[0]
    if comfortable(states[None], known.scene.vehicle)[0]:
        return points, states
    options = gentler(points, ego, POINT_DT_S)
    driven = _driven(options, known)
    good = comfortable(driven, known.scene.vehicle)
    if known.anything and good.any():
        good &= looked_at(known, options, driven).safety.worst >= SAFE
    return (options[good.argmax()], driven[good.argmax()]) if good.any() else (points, states)


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


def comfortable(states: Array, vehicle: VehicleConfig) -> Array:
    """(N,) bool, whether drives (N, 41, 11) keep the limits of comfort."""
    return np.asarray(metrics.comfort_flags(states, vehicle, metrics.COMFORT_SANE).all(axis=-1))


def _driven(options: Array, known: Known) -> Array:
    return simulate(poses_on_road(options, known.road), known.scene.motion, known.scene.vehicle)
