"""The canonical camera rig: the three pinhole cameras that networks are trained with, which are PandaSet's.

    left, front, right = rig(288, 144)      # intrinsics in px of that size, poses in the ego frame

The proving ground renders these cameras; images of another rig are re-projected into them (`reprojection`). Pixel
coordinates count from the corner of an image: the centre of its first pixel is at (0.5, 0.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..core import geometry
from ..core.domain import Array

# PandaSet for 640x360: name, focal length px, principal point px, position m in the ego frame, yaw, pitch up, roll deg
_PANDASET = (
    ("front_left", 310.0, (324.06, 169.34), (1.52, 0.64, 1.92), (57.8, 0.2, -0.1)),
    ("front", 656.67, (323.33, 161.10), (0.85, 0.0, 2.20), (0.3, 0.2, 1.1)),
    ("front_right", 310.0, (321.68, 154.47), (1.49, -0.60, 1.99), (-57.8, 0.9, -0.6)),
)


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera on the car; its axes are z forward, x right, y down."""

    name: str
    width: int
    height: int
    pixels_from_camera: Array  # (3, 3) px
    camera_from_ego: Array  # (4, 4) m


@lru_cache(maxsize=8)
def rig(width: int, height: int) -> tuple[Camera, ...]:
    """The three cameras, left to right, at a resolution in pixels."""
    scale = np.diag([width / 640, height / 360, 1.0])
    cameras = []
    for name, focal, centre, position_m, angles in _PANDASET:
        pixels = scale @ np.array([[focal, 0, centre[0]], [0, focal, centre[1]], [0, 0, 1]])
        cameras.append(
            Camera(name, width, height, pixels, geometry.invert_matrix(_ego_from_camera(position_m, angles)))
        )
    return tuple(cameras)


def _ego_from_camera(position_m: tuple[float, ...], angles_deg: tuple[float, ...]) -> Array:
    yaw, pitch, roll = np.radians(angles_deg)
    forward = np.array([np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch)])
    level = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    below = np.cross(forward, level)
    right = np.cos(roll) * level - np.sin(roll) * below
    matrix = np.eye(4)
    matrix[:3, :3] = np.column_stack([right, np.cross(forward, right), forward])
    matrix[:3, 3] = position_m
    return matrix
