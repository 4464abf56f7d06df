"""Metres <-> ids: the codebook that discrete planners speak.

One uniform grid serves x and y: value a_k = bin_m * (k - half), k = 0 .. bins - 1, with an odd number of bins, so that
there is a bin at exactly 0 and a parked car decodes to where it stands (a grid that starts at -100 m with 0.3 m steps
has none: its nearest value is -0.1 m). A trajectory is x1, y1, .. xN, yN; one id past the values is the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .domain import Array


@dataclass(frozen=True)
class Codebook:
    """The grid: ReflectDrive's 667 bins of 0.3 m by default, DriveFine's finer ones by argument."""

    bin_m: float = 0.3
    bins: int = 667

    def __post_init__(self) -> None:
        if not 0 < self.bin_m < float("inf"):
            raise ValueError(f"Codebook.bin_m is {self.bin_m}, expected a finite number more than 0")
        if not isinstance(self.bins, int) or self.bins < 3 or self.bins % 2 == 0:
            raise ValueError(f"Codebook.bins is {self.bins}, expected an odd number of at least 3 (one bin must be 0)")

    @property
    def zero_id(self) -> int:
        return self.bins // 2

    @property
    def mask_id(self) -> int:
        return self.bins

    @property
    def reach_m(self) -> float:
        """The largest value that has a bin; beyond it values are clipped."""
        return self.bin_m * self.zero_id

    def to_ids(self, values_m: Array) -> Array:
        """int32 ids of the nearest bins, any shape. Raises ValueError on NaN or infinity."""
        values = np.asarray(values_m, float)
        if not np.isfinite(values).all():
            raise ValueError("Codebook.to_ids got NaN or infinity")
        steps = np.rint(np.clip(values, -self.reach_m, self.reach_m) / self.bin_m)
        return np.asarray(steps + self.zero_id, np.int32)

    def to_values(self, ids: Array) -> Array:
        """Metres of ids, any shape. Raises ValueError on ids outside the grid, the mask included, or not whole."""
        ids = np.asarray(ids)
        if ids.size and ids.dtype.kind not in "iu":
            raise ValueError(f"Codebook.to_values got {ids.dtype}, expected whole numbers")
        if ids.size and (ids.min() < 0 or ids.max() >= self.bins):
            raise ValueError(f"Codebook.to_values got ids {ids.min()}..{ids.max()}, expected 0..{self.bins - 1}")
        return np.asarray((ids.astype(np.int64) - self.zero_id) * self.bin_m)

    def encode(self, points: Array) -> Array:
        """Points (..., T, 2) -> int32 ids (..., 2 T). Raises ValueError on another shape, NaN or infinity."""
        points = np.asarray(points, float)
        if points.ndim < 2 or points.shape[-1] != 2:
            raise ValueError(f"Codebook.encode got points of shape {points.shape}, expected (.., T, 2)")
        return self.to_ids(points).reshape(*points.shape[:-2], 2 * points.shape[-2])

    def decode(self, ids: Array) -> Array:
        """Ids (..., 2 T) -> points (..., T, 2). Raises ValueError on an odd number of ids or ids outside the grid."""
        ids = np.asarray(ids)
        if ids.ndim < 1 or ids.shape[-1] % 2:
            raise ValueError(f"Codebook.decode got ids of shape {ids.shape}, expected (.., 2 T)")
        return self.to_values(ids).reshape(*ids.shape[:-1], ids.shape[-1] // 2, 2)
