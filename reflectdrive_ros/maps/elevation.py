"""Height and pitch of plans. Planning is planar; a plan gets its third dimension here, before it is published.

A plan begins at the vehicle's height. Where the map has elevation, the plan follows that of the lanelets; elsewhere it
lies in the vehicle's plane, over its whole length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import geometry
from ..core.domain import Array

LANE_DISTANCE_MAX_M = 5.0  # from a point on the plan to the middle of a lanelet piece; further away the map is not used
OVERSHOOT_MAX_M = 1.0  # of a point beyond the ends of a piece
SLOPE_MAX = 0.5  # no road is steeper: one of the points has no elevation, and lanelet2 puts it at 0
NEAREST_PIECES = 8  # of lanelets, per point
HEIGHT_WEIGHT = 2.0  # a difference in height counts as this many times the same distance in the plane
LEVEL_GAP_M = 2.5  # a larger step in height between points leads to another level: bridges are 5 m above roads
SAME_LEVEL_M = 1.0  # pieces this close in height are averaged, so that a change of lane makes no step
FLAT_M = 0.01  # a map whose elevations differ by less has none
POINT_SPACING_M, POINTS_MAX = 1.5, 56  # along a plan: this far apart, further on long plans


@dataclass(frozen=True, eq=False)
class VehiclePlane:
    """The plane of the vehicle. It rises along the heading only: the roll of a car in a bend is not the road's."""

    map_from_ego: Array  # (3,)
    z_m: float  # of base_link, map frame
    slope: float  # rise per metre along the heading; positive uphill

    @property
    def gradient(self) -> Array:
        """(2,) rise per metre along the map's x and y."""
        heading = self.map_from_ego[2]
        return self.slope * np.array([np.cos(heading), np.sin(heading)])

    def heights(self, points: Array) -> Array:
        """(N,) z, m, of points (N, 2) in the map."""
        return np.asarray(self.z_m + (points - self.map_from_ego[:2]) @ self.gradient)


class MapElevation:
    """Elevation of a map at the middle of its lanelets. Immutable; queries may come from several threads."""

    def __init__(self, lines: Sequence[Array]) -> None:
        """`lines`: (N, 3) x, y, z of points about 1 m apart, map frame. Pieces that no road has are left out."""
        pieces = [np.concatenate([line[:-1], line[1:] - line[:-1]], axis=1) for line in lines]
        x, y, z, step_x, step_y, rise = np.concatenate([np.zeros((0, 6)), *pieces]).T
        lengths = np.hypot(step_x, step_y)
        usable = (lengths > 1e-3) & (np.abs(rise) <= SLOPE_MAX * lengths)  # NaN is not either
        along_x, along_y, slope = np.stack([step_x, step_y, rise]) / np.where(usable, lengths, 1.0)
        table = np.stack([x, y, z, along_x, along_y, lengths, slope, slope * along_x, slope * along_y], axis=1)
        self._pieces = table[usable]  # (P, 9) start, direction, length, slope, gradient
        from scipy.spatial import cKDTree  # half a second, which a node without a map does not take

        self._tree = cKDTree(self._pieces[:, :2] + 0.5 * self._pieces[:, 3:5] * self._pieces[:, 5:6])

    @property
    def is_flat(self) -> bool:
        """Whether all elevations are equal, as in maps without elevation."""
        return len(self._pieces) == 0 or bool(np.ptp(self._pieces[:, 2]) < FLAT_M)

    def along(self, points: Array, z_m: float) -> tuple[Array, Array]:
        """Elevation (N,) and its gradient (N, 2) at points (N, 2) in order along a plan; NaN where no lanelet is near.

        `z_m`: height at the first point, which selects its level where roads lie above each other. Each further point
        stays on the level of the one before.
        """
        _, near = self._tree.query(points, NEAREST_PIECES, distance_upper_bound=LANE_DISTANCE_MAX_M)
        pieces = self._pieces.take(near, axis=0, mode="clip")  # (N, K, 9)
        x, y, z, along_x, along_y, length, slope = (pieces[..., column] for column in range(7))
        dx, dy = points[:, :1] - x, points[:, 1:] - y
        ahead = dx * along_x + dy * along_y
        inside = np.minimum(np.maximum(ahead, 0.0), length)
        beyond = ahead - inside
        distance2 = beyond * beyond + (dx * along_y - dy * along_x) ** 2
        distance2[(near == len(self._pieces)) | (np.abs(beyond) > OVERSHOOT_MAX_M)] = np.inf
        heights = z + inside * slope

        level = follow_level(distance2, heights, z_m)
        weights = np.abs(heights - level[:, None]) < SAME_LEVEL_M
        weights = weights / (distance2 + 0.01) ** 2  # inverse distance, power 4
        total = weights.sum(axis=1)
        total[total == 0.0] = np.nan
        weights /= total[:, None]
        return np.einsum("nk,nk->n", weights, heights), np.einsum("nk,nkd->nd", weights, pieces[..., 7:])


def follow_level(distance2: Array, heights: Array, z_m: float) -> Array:
    """(N,) height of the candidate chosen at each point, NaN where none continues the level.

    `distance2` (N, K), in the plane, squared, infinite where there is no candidate; `heights` (N, K).
    """
    nearest = heights[np.arange(len(heights)), distance2.argmin(axis=1)]
    spread = np.abs(heights - nearest[:, None])
    spread[distance2 == np.inf] = -1.0
    spreads = spread.max(axis=1).tolist()  # -1: no candidate
    chosen = np.full(len(heights), np.nan)
    gap = np.inf  # at the first point the map may be at another height than the odometry
    for row, height in enumerate(nearest.tolist()):
        if spreads[row] > 0.5 * SAME_LEVEL_M:
            rise = np.abs(heights[row] - z_m)
            height = float(heights[row, np.argmin(np.sqrt(distance2[row]) + HEIGHT_WEIGHT * rise)])
        if spreads[row] >= 0.0 and abs(height - z_m) <= gap:
            chosen[row] = z_m = height
            gap = LEVEL_GAP_M
    return chosen


@dataclass(frozen=True, eq=False)
class RoadSurface:
    """Heights of the road around the vehicle at one instant: the map's elevation, through the vehicle's height."""

    plane: VehiclePlane
    elevation: MapElevation | None = None  # None: no map, or a map without elevation

    def heights_and_pitches(self, poses: Array) -> tuple[Array, Array]:
        """z (T,), m, and pitch (T,), rad, positive nose down, of the poses (T, 3) of a plan in the map."""
        path = np.concatenate([self.plane.map_from_ego[None], poses])
        along = geometry.arc_lengths(path)
        pieces = min(int(along[-1] / POINT_SPACING_M) + 1, POINTS_MAX)
        at = np.arange(pieces + 1) * (along[-1] / pieces)
        profile = None if self.elevation is None else self._profile(self.elevation, at, interpolate(at, along, path))
        if profile is None:
            heights, gradients = self.plane.heights(poses[:, :2]), self.plane.gradient[None]
        else:
            heights = np.interp(along[1:], at, profile[0])
            gradients = interpolate(along[1:], at, profile[1])
        rise = gradients[:, 0] * np.cos(poses[:, 2]) + gradients[:, 1] * np.sin(poses[:, 2])
        return heights, -np.arctan(rise)

    def _profile(self, elevation: MapElevation, at: Array, points: Array) -> tuple[Array, Array] | None:
        """Heights (N,) and gradients (N, 2) at points (N, 2) that are at arc lengths (N,); None if no lanelet is near.

        Before the first lanelet the vehicle's plane leads on, between lanelets heights are linear, and after the last
        one its slope continues.
        """
        heights, gradients = elevation.along(points, self.plane.z_m)
        finite = np.flatnonzero(np.isfinite(heights))
        if not len(finite):
            return None
        first, last = finite[0], finite[-1]
        heights += self.plane.heights(points[first : first + 1])[0] - heights[first]
        if len(finite) < len(at):
            heights = np.interp(at, at[finite], heights[finite])
            gradients = interpolate(at, at[finite], gradients[finite])
            heights[:first], gradients[:first] = self.plane.heights(points[:first]), self.plane.gradient
            heights[last + 1 :] = heights[last] + (points[last + 1 :] - points[last]) @ gradients[last]
        return heights, gradients


def interpolate(at: Array, along: Array, rows: Array) -> Array:
    """(N, 2) the first two columns of rows (M, 2+) at `along` (M,), interpolated at `at` (N,); constant at the ends."""
    return np.stack([np.interp(at, along, rows[:, axis]) for axis in (0, 1)], axis=1)


FLAT_GROUND = RoadSurface(VehiclePlane(np.zeros(3), 0.0, 0.0))  # z = 0
