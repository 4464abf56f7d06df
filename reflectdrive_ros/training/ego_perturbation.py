"""Augmentation of recorded starts: the ego is displaced, and its future leads back to the drive in two seconds.

A recording has only a driver who stays in his lane. A planner that learns from it alone never sees how to come back.
Source: Diffusion-Planner (Zheng et al., ICLR 2025), data augmentation; its ranges, except that the heading error is
smaller at higher speed, where 0.35 rad would leave the road before two seconds are over.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.interpolate import BPoly

from ..core import geometry
from ..core.domain import Array

LATERAL_M, HEADING_RAD, SPEED_MPS = 0.75, 0.35, 1.0  # largest displacements
LATERAL_SPEED_MPS = 1.0  # the heading error is limited to this lateral speed
MIN_SPEED_MPS = 2.0  # slower egos are not displaced
JOIN_S = 2.0  # the future is kept from here on


def perturb_ego(arrays: Mapping[str, Array], which: Array, rng: np.random.Generator, dt_s: float) -> dict[str, Array]:
    """Samples (B,) of which those `which` (B,) bool are displaced, all arrays in the new ego frame."""
    speed = arrays["ego"][:, 4].astype(float)
    uniform = rng.uniform(-1.0, 1.0, (len(speed), 3))
    which = which & (speed >= MIN_SPEED_MPS)
    moved = {name: np.array(values) for name, values in arrays.items()}
    for row in np.flatnonzero(which):
        turn = min(HEADING_RAD, LATERAL_SPEED_MPS / speed[row])
        pose = np.array([0.0, LATERAL_M * uniform[row, 0], turn * uniform[row, 1]])
        faster = max(speed[row] + SPEED_MPS * uniform[row, 2], 0.0)
        future = rejoin(pose, faster, float(arrays["ego"][row, 6]), arrays["ego_future"][row].astype(float), dt_s)
        sample = {name: moved[name][row] for name in moved}
        sample["ego_future"] = future
        for name, values in in_frame(sample, pose).items():
            moved[name][row] = values
        moved["ego"][row, 4], moved["ego"][row, 7] = faster, faster * arrays["ego"][row, 9]
    return moved


def rejoin(pose: Array, speed_mps: float, acceleration_mps2: float, future: Array, dt_s: float) -> Array:
    """Poses (T, 3) from a displaced pose (3,): a quintic in x and in y that meets the future at JOIN_S."""
    join = round(JOIN_S / dt_s)
    direction = np.array([np.cos(pose[2]), np.sin(pose[2])])
    ends = future[join - 2 : join + 1, :2]  # the pose at JOIN_S is index join - 1
    velocity = (ends[2] - ends[0]) / (2.0 * dt_s)
    bend = (ends[2] - 2.0 * ends[1] + ends[0]) / dt_s**2
    times = dt_s * np.arange(1, join + 1)
    start = pose[:2], speed_mps * direction, acceleration_mps2 * direction
    points = BPoly.from_derivatives([0.0, JOIN_S], np.array([start, (ends[1], velocity, bend)]))(times)
    path = np.concatenate([pose[None, :2], points])
    heading = geometry.headings_along(np.concatenate([path, future[join : join + 1, :2]]))[1 : join + 1]
    return np.concatenate([np.column_stack([points, heading]), future[join:]])


def in_frame(sample: Mapping[str, Array], pose: Array) -> dict[str, Array]:
    """The arrays of one sample in the frame of a pose (3,) of their own frame; the ego's own row is unchanged."""
    new_from_old = geometry.invert(pose)
    changed = {}
    for name, values in sample.items():
        if name in ("agents", "static_objects", "lanes", "route_lanes"):
            rows = values.astype(float)
            is_present = (rows != 0.0).any(axis=-1, keepdims=True)
            rows[..., :2] = geometry.transform_points(new_from_old, rows[..., :2])
            turned = {"agents": (2, 4), "static_objects": (2,)}.get(name, (2, 4, 6))
            for first in turned:
                rows[..., first : first + 2] = geometry.rotate(rows[..., first : first + 2], new_from_old[2])
            changed[name] = np.where(is_present, rows, 0.0)
        elif name == "ego_future":
            changed[name] = geometry.compose(new_from_old, values)
        elif name == "agent_futures":
            changed[name] = (
                geometry.compose(new_from_old, values.astype(float)) * (sample["agent_valid"] > 0)[..., None]
            )
    return changed
