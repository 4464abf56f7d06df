"""The drivable space as exact polygons, and as a conservative signed-distance grid derived from them.

Evaluations query the polygons. The search and the vehicle query the grid, which costs one look-up per point. The grid
is conservative for two reasons: its cells hold the exact signed distance at their centres, rounded down, and signed
distance is 1-Lipschitz. The value of a cell minus the distance from its centre is therefore a lower bound at any point,
also outside the grid. A point that the grid reports as inside is inside. Along a straight edge the bound is up to half
a cell too low.

A point on an edge is off-road, as in NAVSIM (its point-in-polygon test is strict). Unlike NAVSIM, polygons are joined
first, so that the seam between two lanes is road.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import reflectdrive_kernels as kernels
import shapely

from ..core import geometry
from ..core.domain import Array, DrivableGrid

RESOLUTION_M = 0.2  # costs up to 0.1 m along a straight kerb; a lane leaves about 0.6 m on either side of a car
REACH_M = 5.0  # distances are reported up to this: a repair moves a waypoint by 3 m
ROUNDING_M = 1e-4  # pays for float32 cells and for points moved between frames some kilometres across


def union_polygons(polygons: Sequence[Any], name: str = "drivable") -> Any:
    """One shapely geometry, the union of polygons given as rings (V >= 3, 2) in metres or as shapely Polygons.

    Raises ValueError naming `name` and the polygon's index when there is none, or one is empty, crosses itself, has no
    area or holds NaN.
    """
    if len(polygons) == 0:
        raise ValueError(f"{name} holds no polygon, expected at least one")
    return shapely.union_all([_polygon(shape, f"{name}[{index}]") for index, shape in enumerate(polygons)])


def _polygon(shape: Any, name: str) -> Any:
    if not isinstance(shape, shapely.Polygon):
        ring = np.asarray(shape, float)
        if ring.ndim != 2 or ring.shape[1] != 2 or len(ring) < 3:
            raise ValueError(f"{name} has shape {ring.shape}, expected (3 or more, 2)")
        if not np.isfinite(ring).all():
            raise ValueError(f"{name} holds NaN or infinity")
        shape = shapely.Polygon(ring)
    if shape.is_empty or not np.isfinite(shapely.get_coordinates(shape)).all():
        raise ValueError(f"{name} is empty or holds NaN or infinity")
    if not shape.is_valid:
        raise ValueError(f"{name} is not a simple polygon: {shapely.is_valid_reason(shape)}")
    if not shape.area > 0:
        raise ValueError(f"{name} has no area")
    return shape


def contains(space: Any, points: Array) -> Array:
    """Whether points (..., 2) lie strictly inside `space` (of `union_polygons`): (...) bool, exact."""
    points = np.asarray(points, float)
    shapely.prepare(space)
    return np.asarray(shapely.contains_xy(space, points[..., 0], points[..., 1]))


def grid(
    space: Any,
    ego_from_grid: Array,
    size_m: tuple[float, float],
    resolution_m: float = RESOLUTION_M,
) -> DrivableGrid:
    """The signed-distance grid of a space in the ego frame, over a rectangle of `size_m` (along grid x, along grid y).

    `ego_from_grid` (3,) is the rectangle's first corner and axes. The space may reach beyond the rectangle: distances
    are to its true edge, exact up to REACH_M and cut off there, which leaves them 1-Lipschitz. Built once per scene, in
    about 0.1 s; a grid of a map is moved with the car by replacing `ego_from_grid`. Raises ValueError on a rectangle
    without area and on a space that is not made of polygons.
    """
    if not (np.isfinite(size_m).all() and min(size_m) > 0 and resolution_m > 0):
        raise ValueError(f"size_m is {size_m} and resolution_m {resolution_m}, expected positive metres")
    if space.geom_type not in ("Polygon", "MultiPolygon"):
        raise ValueError(
            f"space is a {space.geom_type}, expected the Polygon or MultiPolygon that `union_polygons` makes"
        )
    grid_from_ego = geometry.invert(np.asarray(ego_from_grid, float))
    space = shapely.transform(space, lambda points: geometry.transform_points(grid_from_ego, points))
    x, y = (resolution_m * np.arange(int(np.ceil(side / resolution_m)) + 1) for side in size_m)
    distance = np.full((len(x), len(y)), REACH_M)
    kernels.edge_distances(x, y, _edges(space), REACH_M, distance)
    signed = np.where(_inside(space, x, y, distance, resolution_m), distance, -distance) - ROUNDING_M
    return DrivableGrid(signed.astype(np.float32), resolution_m, ego_from_grid)


def _inside(space: Any, x: Array, y: Array, distance: Array, resolution_m: float) -> Array:
    """(X, Y) bool, `contains` of the points of a grid at these distances (X, Y) from the edge of the space.

    A point further from the edge than from the point before it in its row is on the same side as that one: only the
    others, and the first of each row, are tested.
    """
    tested = distance <= resolution_m + ROUNDING_M
    tested[:, 0] = True
    rows, columns = np.nonzero(tested)
    inside = np.zeros(tested.shape, bool)
    inside[rows, columns] = contains(space, np.stack([x[rows], y[columns]], axis=-1))
    last_tested = np.maximum.accumulate(np.where(tested, np.arange(len(y)), 0), axis=1)
    return np.take_along_axis(inside, last_tested, axis=1)


def _edges(space: Any) -> Array:
    """(S, 2, 2) start and stop of the pieces of a space's edge, none longer than REACH_M, none of length 0."""
    rings = shapely.get_parts(shapely.segmentize(space.boundary, REACH_M))
    pieces = [np.stack([points[:-1], points[1:]], axis=1) for points in map(shapely.get_coordinates, rings)]
    edges = np.concatenate(pieces)
    return np.asarray(edges[(edges[:, 0] != edges[:, 1]).any(axis=1)])


def grid_around_ego(space: Any, behind_m: float = 20.0, ahead_m: float = 140.0, side_m: float = 40.0) -> DrivableGrid:
    """The grid of a space in the ego frame over the reach of a plan of 4 s, also on a motorway."""
    return grid(space, np.array([-behind_m, -side_m, 0.0]), (behind_m + ahead_m, 2 * side_m))


def clearances(lookup: DrivableGrid, points: Array) -> Array:
    """Lower bounds (...) in metres of how far points (..., 2) of the ego frame are inside the drivable space, at most
    REACH_M.

    A positive value guarantees that the point is inside. The value is the best of the bounds from the four cells around
    the point. It is too low by at most half a cell along a straight edge, and by at most a cell's diagonal elsewhere.
    Beyond the grid the bound decreases with the distance to the grid. Any leading shape is accepted.
    """
    points = np.asarray(points, float)
    clearances_m = np.empty(points.shape[:-1])
    kernels.point_clearances(for_kernels(lookup), points.reshape(-1, 2), clearances_m.reshape(-1))
    return clearances_m


def box_clearances(lookup: DrivableGrid, centers: Array, outline: Array) -> Array:
    """(...) the least of these over points (P, 2) in the frames of boxes at centre poses (..., 3)."""
    return _over_boxes(lookup, centers, outline, likely=False)


def likely_box_distances(lookup: DrivableGrid, centers: Array, outline: Array) -> Array:
    """(...) as `box_clearances`, of the signed distance as it likely is, not its bound: linear between four cells."""
    return _over_boxes(lookup, centers, outline, likely=True)


def _over_boxes(lookup: DrivableGrid, centers: Array, outline: Array, likely: bool) -> Array:
    centers = np.asarray(centers, float)
    clearances_m = np.empty(centers.shape[:-1])
    outline = np.asarray(outline, float)
    kernels.box_clearances(for_kernels(lookup), centers.reshape(-1, 3), outline, likely, clearances_m.reshape(-1))
    return clearances_m


def for_kernels(lookup: DrivableGrid) -> tuple[Array, Array, float]:
    """An argument of the kernels: cells, the pose of the ego frame in the grid, size of a cell."""
    return lookup.distance_m, geometry.invert(lookup.ego_from_grid), lookup.resolution_m


def corners(size: Array) -> Array:
    """(4, 2) corners of a box (length, width) in its frame."""
    return np.asarray(0.5 * np.asarray(size, float) * np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]))


def corner_clearances(lookup: DrivableGrid, centers: Array, size: Array) -> Array:
    """(...) the least clearance of the corners of a box (length, width) at centre poses (..., 3): NAVSIM's rule."""
    return box_clearances(lookup, centers, corners(size))


def outline_clearances(lookup: DrivableGrid, centers: Array, size: Array) -> Array:
    """(...) as `corner_clearances`, for the whole outline of the box; it also detects a kerb between two corners.

    The outline is sampled at least once per cell; between two samples the bound falls by half their spacing.
    """
    length, width = np.asarray(size, float).tolist()
    points, spacing_m = outline(length, width, lookup.resolution_m)
    return np.asarray(box_clearances(lookup, centers, points) - 0.5 * spacing_m)


@lru_cache(maxsize=8)
def outline(length: float, width: float, resolution_m: float) -> tuple[Array, float]:
    """(P, 2) points of the outline of a box in its frame, and their spacing."""
    along, across = (np.linspace(-0.5, 0.5, int(np.ceil(s / resolution_m)) + 1) for s in (length, width))
    spacing_m = max(length * (along[1] - along[0]), width * (across[1] - across[0]))
    sides = [np.stack(np.broadcast_arrays(along * length, end * width), axis=-1) for end in (-0.5, 0.5)]
    ends = [np.stack(np.broadcast_arrays(end * length, across * width), axis=-1) for end in (-0.5, 0.5)]
    return np.concatenate(sides + ends), float(spacing_m)
