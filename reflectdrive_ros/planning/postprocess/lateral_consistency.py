"""Limit the lateral shift of a plan against the last one.

Lateral offsets from the last path are scaled down in proportion, so that none exceeds the limit; the distances along
the path, and so the speed profile, are kept. Autoware's validator rejects plans that jump by more than half a metre.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core import geometry
from ...core.domain import Array, Plan, Trajectory

SAME_PLACE_M = 1e-3
SHORTEST_M = 1.0  # a shorter last plan has no defined lateral direction


def limit_lateral_shift(plan: Plan, last: Plan, limit_m: float) -> Plan:
    """The plan with no point more than `limit_m` beside the last plan's path, where they run side by side; the plan
    itself if that holds already, or if the car is not where the last plan had it.
    """
    now_from_then = geometry.compose(geometry.invert(plan.map_from_ego), last.map_from_ego)
    path = np.concatenate([now_from_then[None], geometry.compose(now_from_then, last.trajectory.poses)])
    line = geometry.distinct_points(path, SAME_PLACE_M)
    if len(line) < 2 or geometry.arc_lengths(line)[-1] < SHORTEST_M:
        return plan
    poses = plan.trajectory.poses
    along, aside = geometry.project(line, np.concatenate([np.zeros((1, 2)), poses[:, :2]]))
    beside = (along > 0.0) & (along < geometry.arc_lengths(line)[-1] - 1e-6)
    farthest = np.abs(aside[beside]).max(initial=0.0)
    here, margin_m = aside[0], limit_m - abs(aside[0])
    if farthest <= limit_m or margin_m < 0.5 * limit_m:
        return plan
    share = margin_m / np.abs(aside[beside] - here).max()  # share of the shift from the last plan to this one
    normals = geometry.rotate(np.array([0.0, 1.0]), geometry.sample(line, along)[:, 2])
    moved = ((share - 1.0) * (aside - here))[:, None] * normals
    moved = _kept_on(moved, beside)[1:]  # beyond the last plan's end by as much as there
    return replace(plan, trajectory=Trajectory(_rotate_with_path(poses, poses[:, :2] + moved), plan.trajectory.dt_s))


def _kept_on(values: Array, known: Array) -> Array:
    """Values (N, 2) where valid (N,), else those of the index before; 0 before the first."""
    latest = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where((latest >= 0)[:, None], values[latest], 0.0)


def _rotate_with_path(poses: Array, points: Array) -> Array:
    """Poses (T, 3) at other points (T, 2), each rotated as much as the path to it; standing poses keep the rotation
    before.
    """
    before, after = (np.diff(each, axis=0, prepend=np.zeros((1, 2))) for each in (poses[:, :2], points))
    cross = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    turns = np.arctan2(cross, (before * after).sum(1))[:, None]
    moves = np.hypot(*before.T) > SAME_PLACE_M
    return np.column_stack([points, geometry.wrap(poses[:, 2] + _kept_on(turns, moves)[:, 0])])
