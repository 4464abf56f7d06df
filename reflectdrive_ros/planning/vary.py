"""Variants of a plan: small smooth changes of its speed and of its path.

A network proposes one good plan, or few that lie metres apart. Whether that plan comes too near to a vehicle, or cuts
the edge of the road, is often a matter of 0.3 m or of 0.5 m/s^2. Each variant keeps the plan's shape:

- deceleration: slower along the same path by a constant deceleration from now on;
- offset: sideways by an offset that grows smoothly to its full size at the end of the plan;
- bulge: sideways by an offset that is largest at half time and zero at both ends.

Faster profiles are not tried: the forecast does not know for whom a plan waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..core import geometry
from ..core.domain import Array
from .postprocess.waypoints import HORIZON_S, POINT_DT_S

DECELERATIONS_MPS2 = (0.0, 0.5, 1.0, 2.0, 3.0)
SHIFTS_M = (0.0, -0.6, -0.3, 0.3, 0.6)
BULGES_M = (0.0, -0.4, 0.4)
LATERAL_MIN_MPS = 2.0  # a slower car is hardly steered: its plans are not varied sideways
LATERAL_LENGTH_MIN_M = 8.0  # nor are shorter plans


@dataclass(frozen=True, eq=False)
class Variants:
    """V smooth changes of one plan; the first is the plan itself."""

    points: Array  # (V, 8, 2) m, at 0.5 .. 4 s, ego frame
    changes: Array  # (V, 3) deceleration m/s^2, offset m to the left at 4 s, bulge m to the left at 2 s

    def description(self, index: int) -> str:
        """As "1 m/s^2 slower, 0.3 m to the left"; empty for the plan itself."""
        return describe(*self.changes[index].tolist())


def variants(points: Array, speed_mps: float, sideways: bool) -> Variants:
    """All combinations of the changes of a plan through points (8, 2) of a car that drives at `speed_mps`.

    `sideways`: whether offsets and bulges are among them. They must not be where the edge of the road is unknown:
    chosen ten times a second, small offsets add up to a lane.
    """
    length_m = float(geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))[-1])
    lateral = sideways and speed_mps >= LATERAL_MIN_MPS and length_m >= LATERAL_LENGTH_MIN_M
    changes = combinations(lateral)
    shifted = shift(points, changes[:, 1], changes[:, 2]) if lateral else np.repeat(points[None], len(changes), axis=0)
    varied = decelerate(shifted, changes[:, 0])
    varied[0] = points
    return Variants(varied, changes)


@lru_cache  # ten times a second for all variants, of which there are few
def describe(deceleration_mps2: float, offset_m: float, bulge_m: float) -> str:
    """The sentence of `Variants.description`."""
    parts = [f"{deceleration_mps2:g} m/s^2 slower"] if deceleration_mps2 else []
    for size_m, where in ((offset_m, ""), (bulge_m, " at half time")):
        if size_m:
            parts.append(f"{abs(size_m):g} m to the {'left' if size_m > 0.0 else 'right'}{where}")
    return ", ".join(parts)


@lru_cache
def combinations(lateral: bool) -> Array:
    """(V, 3) deceleration, offset and bulge of each variant; zeros first."""
    grid = np.meshgrid(
        DECELERATIONS_MPS2,
        SHIFTS_M if lateral else (0.0,),
        BULGES_M if lateral else (0.0,),
        indexing="ij",
    )
    changes = np.stack([axis.ravel() for axis in grid], axis=1)
    changes.flags.writeable = False
    return changes


def shift(points: Array, offsets_m: Array, bulges_m: Array) -> Array:
    """(V, 8, 2) points (8, 2) moved to the left of their path by offsets (V,), which grow to the end, and bulges (V,),
    which are largest in the middle."""
    share = POINT_DT_S * np.arange(1, len(points) + 1) / HORIZON_S
    growing = share**3 * (10.0 - 15.0 * share + 6.0 * share**2)
    passing = np.sin(np.pi * share) ** 2
    lateral_m = offsets_m[:, None] * growing + bulges_m[:, None] * passing
    path = np.concatenate([np.zeros((1, 2)), points])
    steps = np.gradient(path, axis=0)[1:]
    headings = np.arctan2(steps[:, 1], steps[:, 0])
    normals = np.stack([-np.sin(headings), np.cos(headings)], axis=1)
    return np.asarray(points + lateral_m[..., None] * normals)


def decelerate(paths: Array, decelerations_mps2: Array) -> Array:
    """(V, 8, 2) points of plans (V, 8, 2), from now on slower by each deceleration (V,) along their paths."""
    with_origin = np.concatenate([np.zeros((len(paths), 1, 2)), paths], axis=1)
    along = geometry.arc_lengths(with_origin)
    times_s = POINT_DT_S * np.arange(1, paths.shape[1] + 1)
    lost = 0.5 * decelerations_mps2[:, None] * times_s**2
    reached = np.maximum.accumulate(np.maximum(along[:, 1:] - lost, 0.0), axis=1)
    return geometry.interpolate_paths(with_origin, along, reached)
