"""Limit the curvature of a plan by pure pursuit along it, with unchanged distances.

At walking pace an error of one bin bends the path more tightly than a vehicle can turn.
"""

from __future__ import annotations

import numpy as np
import reflectdrive_kernels as kernels

from ...core.domain import Array
from .speed_profile import TELLING_M

TIGHTEST_PER_M = 0.3  # a small car at full steering angle
LOOK_AHEAD_M = 1.5


def exceeds_curvature(ways: Array) -> Array:
    """(N,) bool: whether paths (N, T + 1, 2+), starting at the present position, have more curvature than a car can
    drive.
    """
    found = np.empty(len(ways), bool)
    kernels.bends_too_sharply(ways[..., :2], TIGHTEST_PER_M, TELLING_M, found)
    return found


def limit_curvature(poses: Array, distance: Array) -> Array:
    """Poses (N, T, 3) of cars that set out from the origin with heading 0 and follow poses (N, T, 3): they have driven
    `distance` (N, T) by then, with no sharper turn than TIGHTEST_PER_M."""
    found = np.empty(poses.shape)
    kernels.pursue(poses, distance, TIGHTEST_PER_M, LOOK_AHEAD_M, found)
    return found
