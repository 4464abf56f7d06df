"""Quaternions (x, y, z, w) in ROS order: by tf_transformations if ROS has it, else by transforms3d.

tf_transformations is a thin wrapper around transforms3d that only exists as a ROS package; both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.domain import Array

try:
    from tf_transformations import quaternion_from_matrix as _quaternion_from_matrix
    from tf_transformations import quaternion_matrix as _matrix_from_quaternion
except ImportError:
    from transforms3d.quaternions import mat2quat, quat2mat

    def _quaternion_from_matrix(matrix: Array) -> Array:
        w, x, y, z = mat2quat(matrix[:3, :3])
        return np.array([x, y, z, w])

    def _matrix_from_quaternion(xyzw: Array) -> Array:
        x, y, z, w = xyzw
        matrix = np.eye(4)
        matrix[:3, :3] = quat2mat([w, x, y, z])
        return matrix


Quaternion = tuple[float, float, float, float]


def quaternion_from_matrix(matrix: Array) -> Quaternion:
    """(x, y, z, w) of the rotation in a (4, 4) or (3, 3) matrix."""
    full = np.eye(4)
    full[:3, :3] = np.asarray(matrix, float)[:3, :3]
    x, y, z, w = (float(value) for value in _quaternion_from_matrix(full))
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
    return np.asarray(_matrix_from_quaternion(q / length), float)


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
