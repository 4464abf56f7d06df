"""Centre lines of generated streets: gentle curves, and winding roads that are uncomfortable at their limit."""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array

KMH = 1 / 3.6
LIMITS_KMH = (30, 40, 50, 60, 70, 80)
COMFORTABLE_MPS2 = 2.4  # lateral acceleration at the speed limit, except on winding roads
WINDING_MPS2 = (2.9, 3.9)
SPACING_M = 2.5  # between points of a curve


def sample_gentle_curve(
    start: Array,
    stop: Array,
    slopes: tuple[float, float],
    bend: float,
    limit_mps: float,
    generator: np.random.Generator,
) -> tuple[Array, float]:
    """A curve between two points with given end slopes to the chord, and the speed limit for a comfortable drive."""
    sagitta, skew = generator.uniform(-bend, bend), generator.uniform(-0.8, 0.8)
    length = float(np.hypot(*(stop - start)))
    t = np.linspace(0.0, 1.0, max(int(length / SPACING_M), 8))
    wave = np.sin(np.pi * t) ** 2 * (1 + skew * np.cos(np.pi * t))
    leaving = slopes[0] * t * (1 - t) ** 2 - slopes[1] * t**2 * (1 - t)
    line = _offset_from_chord(start, stop, t, length * (leaving + sagitta * wave))
    for _ in range(20):
        if _max_curvature(line) < COMFORTABLE_MPS2 / (30 * KMH) ** 2:
            break
        sagitta *= 0.8
        line = _offset_from_chord(start, stop, t, length * (leaving + sagitta * wave))
    fast = np.sqrt(COMFORTABLE_MPS2 / max(_max_curvature(line), 1e-6))
    allowed = [limit * KMH for limit in LIMITS_KMH if limit * KMH <= min(limit_mps, fast) + 1e-6]
    return line, max(allowed, default=30 * KMH)


def sample_winding_curve(start: Array, stop: Array, generator: np.random.Generator) -> tuple[Array, float]:
    """A road whose curves need a lateral acceleration of WINDING_MPS2 at its speed limit, and that limit."""
    length = float(np.hypot(*(stop - start)))
    limit_mps = int(generator.choice((30, 40) if length < 130 else (30, 40, 50))) * KMH
    target_curvature = generator.uniform(*WINDING_MPS2) / limit_mps**2
    wave_m = generator.uniform(4.6, 5.6) * limit_mps + 8.0
    t = np.linspace(0.0, 1.0, max(int(length / 1.5), 8))
    wave = (
        np.sin(np.pi * t) * np.sin(np.pi * t) ** 0.5 * np.sin(2 * np.pi * t * length / wave_m + generator.uniform(0, 6))
    )
    wave *= np.clip(np.minimum(t, 1 - t) * length / 22.0, 0, 1) ** 2
    height = 3.0
    for _ in range(12):
        line = _offset_from_chord(start, stop, t, height * wave)
        height *= float(np.clip(target_curvature / _max_curvature(line), 0.6, 1.6))
    return _offset_from_chord(start, stop, t, height * wave), limit_mps


def _offset_from_chord(start: Array, stop: Array, t: Array, offset_m: Array) -> Array:
    along = stop - start
    left = np.array([-along[1], along[0]]) / np.hypot(*along)
    return np.asarray(start + t[:, None] * along + offset_m[:, None] * left)


def _max_curvature(line: Array) -> float:
    """1/m."""
    steps = np.diff(line, axis=0)
    lengths = np.hypot(steps[:, 0], steps[:, 1])
    turns = geometry.wrap(np.diff(np.arctan2(steps[:, 1], steps[:, 0])))
    return float(np.abs(2 * turns / (lengths[:-1] + lengths[1:])).max())
