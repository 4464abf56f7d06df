"""Quaternions (x, y, z, w) in ROS order, by transforms3d."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transforms3d.quaternions import mat2quat, quat2mat

from ..core.domain import Array

Quaternion = tuple[float, float, float, float]


def quaternion_from_matrix(matrix: Array) -> Quaternion:
    """(x, y, z, w) of the rotation in a (4, 4) or (3, 3) matrix."""
    w, x, y, z = (float(value) for value in mat2quat(np.asarray(matrix, float)[:3, :3]))
    return x, y, z, w


def quaternion_from_yaw(yaw: float) -> Quaternion:
    """(x, y, z, w) of a turn about +z."""
    return 0.0, 0.0, float(np.sin(0.5 * yaw)), float(np.cos(0.5 * yaw))


def matrix_from_quaternion(xyzw: Sequence[float]) -> Array:
    """(4, 4) rotation. Raises ValueError for a quaternion that is zero or not finite."""
    q = np.asarray(xyzw, float)
    length = float(np.linalg.norm(q))
    if not np.isfinite(length) or length < 1e-6:
        raise ValueError(f"quaternion {tuple(q.tolist())} is zero or not finite")
    x, y, z, w = q / length
    matrix = np.eye(4)
    matrix[:3, :3] = quat2mat([w, x, y, z])
    return matrix


def yaw_from_quaternion(xyzw: Quaternion) -> float:
    """Heading of the rotated x axis in the plane, rad. Raises ValueError as `matrix_from_quaternion`."""
    matrix = matrix_from_quaternion(xyzw)
    return float(np.arctan2(matrix[1, 0], matrix[0, 0]))


def quaternions_from_yaw_pitch(yaw: Array, pitch: Array) -> Array:
    """(N, 4) x, y, z, w of turns by pitch (N,), positive nose down, then by yaw (N,); without roll."""
    sin_yaw, cos_yaw = np.sin(0.5 * yaw), np.cos(0.5 * yaw)
    sin_pitch, cos_pitch = np.sin(0.5 * pitch), np.cos(0.5 * pitch)
    # 0 - x: without pitch x is 0 and not -0
    return np.stack([0.0 - sin_yaw * sin_pitch, cos_yaw * sin_pitch, sin_yaw * cos_pitch, cos_yaw * cos_pitch], axis=1)


def pitches_from_quaternions(xyzw: Array) -> Array:
    """(N,) rad, positive nose down, of unit quaternions (N, 4)."""
    x, y, z, w = xyzw.T
    return np.asarray(np.arcsin(np.clip(2.0 * (w * y - z * x), -1.0, 1.0)))
