"""Which recorded moments are fit to teach a planner, and what kind of scenario they are.

All positions are in the ego frame of the moment, at the rear axle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely

from .. import geometry
from ..config import VehicleConfig
from ..data.scene import NOW, Tracks
from ..domain import AgentKind, Array

FUTURE_STEPS = 40  # of 0.1 s: the 4 s of a plan


@dataclass(frozen=True)
class FrameLimits:
    """Limits beyond which a tick becomes no scene: options of `reflectdrive dataset`."""

    gap_s: float = 0.5  # between two odometry messages
    position_std_m: float = 0.5  # of the odometry's covariance
    standing_s: float = 3.0  # how long the car may have stood, if it goes on standing
    off_lane_m: float = 2.0  # from the rear axle to the nearest lane
    off_road_m: float = 0.5  # from a corner of the car to the road, on the driven path
    overlap_m: float = 0.2  # of the car and an object, on the driven path: perception's boxes are not exact


STANDING_MPS, STANDING_M = 0.1, 1.0

# scenario tags
TURN_RAD, BACK_RAD, CURVE_RAD = 0.7, 2.2, 0.3
LATERAL_MPS2 = 2.6
LEAD_M, LEAD_SIDE_M, LEAD_TURNED_RAD = (6.0, 38.0), 1.5, 0.4
LEAD_STEPS, SPEED_LOSS_MPS = 25, 2.5
BICYCLE_M, BICYCLE_SIDE_M = (4.0, 26.0), 2.6
CROSSING_M, CROSSING_SIDE_M, CROSSING_STEPS, WALKING_MPS = (4.0, 36.0), 1.4, 35, 0.3


def problem_reason(problem: str) -> str:
    """The skip reason of a sentence of the node's inputs."""
    if "nothing received" in problem or "no camera_info received" in problem or "no transform" in problem:
        return "missing_input"
    if "s old, allowed" in problem or "from the anchor's image" in problem:
        return "stale_input"
    return "refused_input"


def stands(path: Array, stood_s: float, limits: FrameLimits) -> bool:
    """Whether the car has stood longer than allowed and stays within STANDING_M on its path (T, 3)."""
    return stood_s > limits.standing_s and bool(np.hypot(*path[:, :2].T).max() < STANDING_M)


def collides(path: Array, tracks: Tracks, vehicle: VehicleConfig, limits: FrameLimits) -> bool:
    """Whether the car on its path (41, 3) at 0, 0.1, .. 4 s overlaps an object by more than allowed."""
    if not len(tracks):
        return False
    centers = geometry.compose(path, np.array([vehicle.rear_axle_to_center_m, 0.0, 0.0]))
    later = slice(NOW, NOW + len(path))
    gap_m = geometry.box_separation(
        centers[None],
        np.array([vehicle.length_m, vehicle.width_m]),
        tracks.poses[:, later],
        tracks.sizes[:, None],
    )
    return bool(((gap_m < -limits.overlap_m) & tracks.present[:, later]).any())


def distance_to(polygons: Sequence[object], points: Array) -> Array:
    """(N,) metres from points (N, 2) to the nearest polygon, 0 inside; infinite without polygons."""
    if not len(polygons):
        return np.full(len(points), np.inf)
    shapes = np.asarray(polygons, object)
    return np.asarray(shapely.distance(shapes[:, None], shapely.points(points)[None]).min(axis=0))


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
        & _within(ahead[..., 0], CROSSING_M)
    )
    lead = (kinds == AgentKind.VEHICLE) & _within(x, LEAD_M) & (np.abs(y) < LEAD_SIDE_M) & (turned < LEAD_TURNED_RAD)
    brakes = present[:, NOW + LEAD_STEPS] & (speeds[:, NOW] - speeds[:, NOW + LEAD_STEPS] > SPEED_LOSS_MPS)
    rides = (kinds == AgentKind.BICYCLE) & _within(x, BICYCLE_M) & (np.abs(y) < BICYCLE_SIDE_M)
    found = {
        "crossing_pedestrian": moving and bool(crosses.any()),
        "lead_brakes": moving and bool((lead & brakes).any()),
        "u_turn": abs(bend) > BACK_RAD,
        "turn_left": bend > TURN_RAD,
        "turn_right": bend < -TURN_RAD,
        "high_lateral_acceleration": bool((lateral > LATERAL_MPS2).any()),
        "bicycle": moving and bool(rides.any()),
        "curve": abs(bend) > CURVE_RAD,
    }
    return next((name for name, is_so in found.items() if is_so), "straight")


def _within(values: Array, bounds: tuple[float, float]) -> Array:
    return np.asarray((values > bounds[0]) & (values < bounds[1]))
