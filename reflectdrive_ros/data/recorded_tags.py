"""The scenario tag of a recorded moment. Positions are in the ego frame of the moment, at the rear axle."""

from __future__ import annotations

import numpy as np

from ..core.domain import AgentKind, Array
from .scene import NOW, Tracks

TURN_RAD, BACK_RAD, CURVE_RAD = 0.7, 2.2, 0.3
LATERAL_MPS2 = 2.6
LEAD_M, LEAD_SIDE_M, LEAD_TURNED_RAD = (6.0, 38.0), 1.5, 0.4
LEAD_STEPS, SPEED_LOSS_MPS = 25, 2.5
BICYCLE_M, BICYCLE_SIDE_M = (4.0, 26.0), 2.6
CROSSING_M, CROSSING_SIDE_M, CROSSING_STEPS, WALKING_MPS = (4.0, 36.0), 1.4, 35, 0.3


def scenario_tag(path: Array, speed_mps: float, tracks: Tracks) -> str:
    """The family of a moment, from the driven path (41, 3) of the next 4 s and the objects."""
    later = tracks.present[:, NOW]
    poses, speeds = tracks.poses[later], tracks.speeds_mps[later]
    kinds, present = tracks.kinds[later], tracks.present[later]
    heading = np.unwrap(path[:, 2])
    bend, step_m = float(heading[-1]), np.hypot(*np.diff(path[:, :2], axis=0).T)
    lateral = step_m * 10.0 * np.abs(np.diff(heading)) * 10.0
    x, y, turned = poses[:, NOW, 0], poses[:, NOW, 1], np.abs(poses[:, NOW, 2])
    moving = speed_mps > 2.0
    person = kinds == AgentKind.PEDESTRIAN
    ahead = poses[person, NOW : NOW + CROSSING_STEPS + 1]
    crosses = (
        present[person, NOW : NOW + CROSSING_STEPS + 1]
        & (speeds[person, NOW : NOW + CROSSING_STEPS + 1] > WALKING_MPS)
        & (np.abs(ahead[..., 1]) < CROSSING_SIDE_M)
        & within(ahead[..., 0], CROSSING_M)
    )
    lead = (kinds == AgentKind.VEHICLE) & within(x, LEAD_M) & (np.abs(y) < LEAD_SIDE_M) & (turned < LEAD_TURNED_RAD)
    brakes = present[:, NOW + LEAD_STEPS] & (speeds[:, NOW] - speeds[:, NOW + LEAD_STEPS] > SPEED_LOSS_MPS)
    rides = (kinds == AgentKind.BICYCLE) & within(x, BICYCLE_M) & (np.abs(y) < BICYCLE_SIDE_M)
    conditions = {
        "crossing_pedestrian": moving and bool(crosses.any()),
        "lead_brakes": moving and bool((lead & brakes).any()),
        "u_turn": abs(bend) > BACK_RAD,
        "turn_left": bend > TURN_RAD,
        "turn_right": bend < -TURN_RAD,
        "high_lateral_acceleration": bool((lateral > LATERAL_MPS2).any()),
        "bicycle": moving and bool(rides.any()),
        "curve": abs(bend) > CURVE_RAD,
    }
    return next((name for name, is_so in conditions.items() if is_so), "straight")


def within(values: Array, bounds: tuple[float, float]) -> Array:
    """Which values lie between two bounds, exclusively."""
    return np.asarray((values > bounds[0]) & (values < bounds[1]))
