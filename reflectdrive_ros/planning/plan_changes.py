"""Smooth random changes of plans along and lateral to their path, to compare plans around a predicted one.

Independent noise on single waypoints makes every plan jerky, so that all of them score badly. The changes here keep a
plan smooth: the distance driven and the lateral offset change as polynomials of time that vanish at the present with
their first derivative, because a car cannot change where it is, nor its velocity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.domain import Array
from ..core.tokens import TokenLayout, poses_from_points

MIN_STEP_M = 1e-3  # shorter steps have no direction
FULL_OFFSET_M = 8.0  # plans that drive less far have smaller lateral offsets: a standing car has none


class Offsets(NamedTuple):
    """Sampled changes of a plan at its T instants."""

    along_m: Array  # (B, K, T) of the distance driven
    left_m: Array  # (B, K, T) to the left of the path

    @property
    def opposite(self) -> Offsets:
        return Offsets(-self.along_m, -self.left_m)


class PlanModes(NamedTuple):
    """Standard deviations of the smooth changes, m."""

    pace_m: float  # of the distance driven at the end
    delay_m: float  # of a delay that is made up for by the end
    offset_m: float  # of the lateral offset at the end
    bulge_m: float  # of a lateral offset halfway


def sample_offsets(count: int, pairs: int, steps: int, rng: np.random.Generator, modes: PlanModes) -> Offsets:
    """K = `pairs` Gaussian changes of `count` plans of `steps` instants."""
    return offsets_of(sample_modes(count, pairs, rng), steps, modes)


def sample_modes(count: int, pairs: int, rng: np.random.Generator) -> Array:
    """(count, pairs, 4) standard normal numbers: of pace, delay, offset and bulge."""
    return rng.standard_normal((count, pairs, 4))


def offsets_of(samples: Array, steps: int, modes: PlanModes) -> Offsets:
    """The changes of numbers (B, K, 4), in standard deviations, at `steps` instants."""
    u = np.arange(1, steps + 1) / steps
    along = np.stack([modes.pace_m * u**2, modes.delay_m * 6.75 * u**2 * (1.0 - u)])
    lateral = np.stack([modes.offset_m * u**2 * (3.0 - 2.0 * u), modes.bulge_m * 16.0 * u**2 * (1.0 - u) ** 2])
    return Offsets(samples[..., :2] @ along, samples[..., 2:] @ lateral)


def change_actions(actions: Array, offsets: Offsets, layout: TokenLayout) -> Array:
    """(B, K, T) ids of plans with ids (B, T), moved by offsets of their P waypoints.

    The path is the polyline through the origin and the waypoints; beyond its end it continues with the last heading.
    No plan reverses.
    """
    waypoints = layout.decode(actions)
    if layout.frame == "route":
        return layout.clip(layout.encode(_changed_on_route(waypoints, offsets)))
    poses = poses_from_points(waypoints[..., :2])
    path = np.concatenate([np.zeros_like(poses[:, :1]), poses], axis=1)
    length = np.hypot(*np.moveaxis(np.diff(path[..., :2], axis=1), -1, 0))
    along = np.concatenate([np.zeros_like(length[:, :1]), np.cumsum(length, axis=1)], axis=1)
    target_m = np.maximum.accumulate(np.maximum(along[:, None, 1:] + offsets.along_m, 0.0), axis=2)
    moved = np.stack([_at(*each) for each in zip(path, along, target_m, strict=True)])  # (B, K, P, 3)
    left_m = offsets.left_m * np.minimum(target_m[..., -1:] / FULL_OFFSET_M, 1.0)
    moved[..., 0] -= np.sin(moved[..., 2]) * left_m
    moved[..., 1] += np.cos(moved[..., 2]) * left_m
    ids = layout.clip(layout.encode(moved[..., : len(layout.axes)]))
    return np.asarray(ids)


def _changed_on_route(waypoints: Array, offsets: Offsets) -> Array:
    """(B, K, P, 2) waypoints (B, P, 2) in the frame of the route, moved by offsets of their P instants."""
    along_m = np.maximum.accumulate(np.maximum(waypoints[:, None, :, 0] + offsets.along_m, 0.0), axis=2)
    left_m = offsets.left_m * np.minimum(along_m[..., -1:] / FULL_OFFSET_M, 1.0)
    return np.stack([along_m, waypoints[:, None, :, 1] + left_m], axis=-1)


def _at(path: Array, along: Array, target_m: Array) -> Array:
    """(K, P, 3) poses of a path (1 + P, 3) at arc lengths `target_m` (K, P); `along` (1 + P,) are those of the path."""
    moving = np.append(True, np.diff(along) > MIN_STEP_M)
    path, along = path[moving], along[moving]
    poses = np.stack([np.interp(target_m, along, path[:, k]) for k in range(3)], axis=-1)
    beyond = np.maximum(target_m - along[-1], 0.0)
    poses[..., 0] += np.cos(path[-1, 2]) * beyond
    poses[..., 1] += np.sin(path[-1, 2]) * beyond
    return np.asarray(poses)
