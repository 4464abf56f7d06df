"""Which recorded moments are fit to teach a planner.

All positions are in the ego frame of the moment, at the rear axle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import Array
from ..data.scene import NOW, Tracks

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


def problem_reason(problem: str) -> str:
    """The skip reason of a sentence of the node's inputs."""
    if any(words in problem for words in ("nothing received", "no camera_info", "no transform", "no new image")):
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
    centers = kinematics.box_centres(path, vehicle)
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
