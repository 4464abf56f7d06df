"""The projection of ReflexDiffusion (equation 10): it couples curvature and speed in the noise of a reflection.

    P = [[v^2, 2 kappa v], [0, 1]]

acts on changes of curvature and speed: a plan that gets faster in a bend has to change its lateral acceleration
kappa v^2 too. The paper gives no map from them to futures. Here the noise of the ego's x and y, in metres, displaces
the points of the predicted plan along and beside its path; the changes of curvature and speed are those of the
displaced path, linearised; P is applied; and the displacements with the resulting changes replace the noise, shortened
to the length that it had.
"""

from __future__ import annotations

import numpy as np

from .. import geometry
from ..domain import Array
from ..scoring.frenet import FrenetFrame
from ..vector_spec import VectorSpec
from .confidence import SLOW_MPS, speeds_and_curvatures
from .denoiser import in_metres, poses_of
from .ego_future import cartesian_poses


def couple_noise(noise: Array, clean: Array, spec: VectorSpec, line: FrenetFrame | None) -> Array:
    """Noise (P, 1 + T, 4) whose x and y of the ego are projected; `clean` (P, 1 + T, 4) are the predicted futures, both
    normalised. `line`: of the Frenet coordinates of the ego's future, None for a network of the ego frame.
    """
    poses = poses_of(in_metres(clean, spec)[0, 1:])
    std = np.array(spec.normalization.ego_future_std[:2])
    moved = noise[0, 1:, :2] * std  # m
    # Frenet coordinates are along and beside the road, near enough to along and beside the path
    turn = np.zeros(len(poses)) if line is not None else poses[:, 2]
    path = poses if line is None else cartesian_poses(poses, line)
    speed, curvature = speeds_and_curvatures(path, spec.future_dt_s)
    coupled = geometry.rotate(couple(geometry.rotate(moved, -turn), speed, curvature, spec.future_dt_s), turn) / std
    length, allowed = np.linalg.norm(coupled), np.linalg.norm(noise[0, 1:, :2])
    projected: Array = noise.copy()
    projected[0, 1:, :2] = coupled * min(1.0, allowed / max(float(length), 1e-9))
    return projected


def couple(moved_m: Array, speed_mps: Array, curvature_per_m: Array, dt_s: float) -> Array:
    """(T, 2) displacements along and left of a path whose changes of curvature and speed are those of `moved_m` (T, 2)
    times P; the point before the first is fixed."""
    step_m = np.maximum(speed_mps, SLOW_MPS) * dt_s
    faster_mps = np.diff(moved_m[:, 0], prepend=0.0) / dt_s
    bent_per_m = np.diff(np.diff(moved_m[:, 1], prepend=0.0) / step_m, prepend=0.0) / step_m
    wanted = speed_mps**2 * bent_per_m + 2.0 * curvature_per_m * speed_mps * faster_mps
    left_m = np.cumsum(np.cumsum(wanted * step_m) * step_m)
    return np.stack([moved_m[:, 0], left_m], axis=-1)  # the second row of P keeps the speeds, and with them these
