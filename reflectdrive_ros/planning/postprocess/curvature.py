"""Limit the curvature of a plan by pure pursuit along it, with unchanged distances.

At walking pace an error of one bin bends the path more tightly than a vehicle can turn.
"""

from __future__ import annotations

import numpy as np

from ... import geometry
from ...domain import Array
from .speed_profile import TELLING_M, interpolate_path

TIGHTEST_PER_M = 0.3  # a small car at full steering angle
LOOK_AHEAD_M = 1.5


def exceeds_curvature(ways: Array) -> Array:
    """(N,) bool: whether paths (N, T + 1, 2+), starting at the present position, have more curvature than a car can
    drive.
    """
    steps = np.diff(ways[..., :2], axis=1)
    length = np.hypot(steps[..., 0], steps[..., 1])
    direction = np.arctan2(steps[..., 1], steps[..., 0])
    before, after = length[:, :-1], length[:, 1:]
    turn = np.abs(geometry.wrap(np.diff(direction, axis=1)))
    sharp = turn > TIGHTEST_PER_M * 0.5 * (before + after)
    starts = (length[:, :1] > TELLING_M) & (np.abs(direction[:, :1]) > TIGHTEST_PER_M * 0.5 * length[:, :1])
    found: Array = (sharp & (np.minimum(before, after) > TELLING_M)).any(axis=1) | starts[:, 0]
    return found


def limit_curvature(poses: Array, distance: Array) -> Array:
    """Poses (N, T, 3) of cars that set out from the origin with heading 0 and follow poses (N, T, 3): they have driven
    `distance` (N, T) by then, with no sharper turn than TIGHTEST_PER_M."""
    last = poses[:, -1]
    ahead = last[:, :2] + LOOK_AHEAD_M * np.stack([np.cos(last[:, 2]), np.sin(last[:, 2])], axis=-1)
    line = np.concatenate([np.zeros((len(poses), 1, 2)), poses[..., :2], ahead[:, None]], axis=1)
    steps = np.hypot(*np.moveaxis(np.diff(line, axis=1), -1, 0))  # (N, T + 1)
    along = np.concatenate([np.zeros((len(poses), 1)), np.cumsum(steps, axis=1)], axis=1)
    aims = np.ascontiguousarray(interpolate_path(line, along, along[:, :-2] + LOOK_AHEAD_M).T)  # (2, T, N)
    driven = np.diff(distance, axis=1, prepend=0.0).T
    x, y, heading = np.zeros((3, len(poses)))
    found = np.empty_like(poses)
    for now, (aim_x, aim_y, way) in enumerate(zip(*aims, driven, strict=True)):
        dx, dy = aim_x - x, aim_y - y
        across = dy * np.cos(heading) - dx * np.sin(heading)
        curvature = 2.0 * across / np.maximum(dx * dx + dy * dy, 1e-6)
        turn = way * np.minimum(np.maximum(curvature, -TIGHTEST_PER_M), TIGHTEST_PER_M)
        middle = heading + 0.5 * turn
        x, y, heading = x + way * np.cos(middle), y + way * np.sin(middle), heading + turn
        found[:, now, 0], found[:, now, 1], found[:, now, 2] = x, y, heading
    found[..., 2] = geometry.wrap(found[..., 2])
    return found
