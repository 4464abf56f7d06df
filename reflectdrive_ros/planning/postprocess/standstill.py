"""Removes backward motion of a plan: a car that stands does not creep back by the noise of a network."""

from __future__ import annotations

import numpy as np

from ...core.domain import Array

STANDING_M = 0.003  # a shorter step of 0.1 s is no motion


def without_reversal(poses: Array) -> Array:
    """Poses (T, 3) whose steps against their heading, and steps shorter than STANDING_M, are left out; the heading is
    kept while the car stands."""
    steps = np.diff(poses[:, :2], axis=0, prepend=np.zeros((1, 2)))
    forward = steps[:, 0] * np.cos(poses[:, 2]) + steps[:, 1] * np.sin(poses[:, 2])
    moves = forward > STANDING_M
    points = np.cumsum(steps * moves[:, None], axis=0)
    last = np.maximum.accumulate(np.where(moves, np.arange(len(poses)), -1))
    heading = np.where(last >= 0, poses[np.maximum(last, 0), 2], 0.0)
    return np.column_stack([points, heading])
