"""Which map polygons contain a point: exact answers for tens of thousands of points in a few milliseconds.

The polygons are rasterised once on a fine grid. Each cell stores one bit per polygon (whether its reference point is
inside) and the list of edges that cross the cell. A point takes the bits of its cell's reference point and flips those
of the polygons whose edges lie between the two. Most cells have no edge. A point outside the grid, or so close to an
edge that rounding might decide, is tested by shapely. The answer therefore equals strict containment (NAVSIM's
`shapely.vectorized.contains`: a point on an edge is outside).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import shapely

from ..domain import Array

CELL_M = 0.5
REACH_M = 100.0  # the grid ends this far from the ego; points beyond it are tested by shapely
CLOSE_M = 1e-7  # a point nearer than this to an edge is put to shapely
AT_ONCE = 8192  # points per batch; intermediate arrays fit in the cache
EDGE_KEY = np.array([1.0, np.sqrt(2.0), np.sqrt(3.0), np.sqrt(5.0)])  # one number for the four of an edge
REFERENCE = (0.4867, 0.5231)  # of a cell; off centre, so that round map coordinates do not run through it


def check_rings(owner: str, name: str, rings: Sequence[Any]) -> tuple[Array, ...]:
    """Rings as read-only arrays (V >= 3, 2), not closed. Raises ValueError naming the field and the ring."""
    kept = []
    for index, ring in enumerate(rings):
        points = np.array(ring, float)
        where = f"{owner}.{name}[{index}]"
        if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3:
            raise ValueError(f"{where} has shape {points.shape}, expected (3 or more, 2)")
        if not np.isfinite(points).all():
            raise ValueError(f"{where} holds NaN or infinity")
        points.flags.writeable = False
        kept.append(points)
    polygons = polygons_of(kept)
    for index in np.flatnonzero(~shapely.is_valid(polygons)).tolist():
        reason = shapely.is_valid_reason(polygons[index])
        raise ValueError(f"{owner}.{name}[{index}] is not a simple polygon: {reason}")
    return tuple(kept)


def polygons_of(rings: Sequence[Array]) -> Array:
    """Rings (V >= 3, 2) as an array of shapely polygons; creating them one at a time takes ten times as long."""
    if len(rings) == 0:
        return np.zeros(0, object)
    owners = np.repeat(np.arange(len(rings)), [len(ring) for ring in rings])
    return np.asarray(shapely.polygons(shapely.linearrings(np.concatenate(rings), indices=owners)))


@dataclass(frozen=True, eq=False)
class MapAreas:
    """The map's polygons near the ego, as rings (V, 2) in metres of the ego frame, not closed, without holes.

    The layers of section 3 of NAVSIM's score. Lanes include the connectors that cross intersections; only roadblocks,
    intersections and carparks are drivable, a lane is not by itself.
    """

    lanes: tuple[Array, ...] = ()
    lane_on_route: tuple[bool, ...] = ()  # one per lane
    roadblocks: tuple[Array, ...] = ()
    intersections: tuple[Array, ...] = ()
    carparks: tuple[Array, ...] = ()
    reach_m: float = REACH_M  # of the index; a small one is built sooner, and answers slowly beyond

    def __post_init__(self) -> None:
        for name in ("lanes", "roadblocks", "intersections", "carparks"):
            object.__setattr__(self, name, check_rings("MapAreas", name, getattr(self, name)))
        object.__setattr__(self, "lane_on_route", tuple(bool(flag) for flag in self.lane_on_route))
        if len(self.lane_on_route) != len(self.lanes):
            raise ValueError(f"MapAreas.lane_on_route has {len(self.lane_on_route)} flags for {len(self.lanes)} lanes")

    @cached_property
    def index(self) -> AreaIndex:
        """Built at the first query and kept for the life of the scene."""
        return AreaIndex((*self.lanes, *self.roadblocks, *self.intersections, *self.carparks), self.reach_m)

    @cached_property
    def lane_bits(self) -> Array:
        return self.index.mask(np.arange(len(self.lanes)))

    @cached_property
    def route_bits(self) -> Array:
        return self.index.mask(np.flatnonzero(self.lane_on_route))

    @cached_property
    def drivable_bits(self) -> Array:
        return self.index.mask(np.arange(len(self.lanes), self.index.count))

    @cached_property
    def intersection_bits(self) -> Array:
        first = len(self.lanes) + len(self.roadblocks)
        return self.index.mask(np.arange(first, first + len(self.intersections)))


class AreaIndex:
    """Polygons prepared for `bits`, the set of polygons that contain a point, as words of 64 bits."""

    def __init__(self, rings: Sequence[Array], reach_m: float = REACH_M) -> None:
        self.count = len(rings)
        self.words = max(1, -(-self.count // 64))
        if not self.count:
            return
        self._rings = rings
        start = np.concatenate(rings)
        lengths = np.array([len(ring) for ring in rings])
        ends = np.cumsum(lengths)
        after = np.arange(1, len(start) + 1)
        after[ends - 1] = ends - lengths  # a ring's last point leads to its first
        stop = start[after]
        owner = self._bit(np.repeat(np.arange(self.count), lengths))
        low, high = start.min(axis=0), start.max(axis=0)
        start, stop, owner = _joined(start, stop, owner)
        self._reach_m = reach_m
        self._cut = bool((low < -reach_m).any() or (high > reach_m).any())
        self._grid = _Grid.over(np.clip(low, -reach_m, reach_m), np.clip(high, -reach_m, reach_m))
        self._draw(start, stop, owner)
        edge, cell, self._first = self._grid.cells_of(start, stop, 0.0)
        references = self._grid.references(cell)
        ax, ay = (start[edge] - references).T
        bx, by = (stop[edge] - references).T
        self._pairs = np.stack([ax, ay, bx, by, ax * by - ay * bx, CLOSE_M * np.hypot(bx - ax, by - ay)])
        self._pair_bits = np.ascontiguousarray(owner[edge].T)  # (words, pairs)

    @cached_property
    def _polygons(self) -> Array:
        """For points that the grid does not decide, which are rare."""
        polygons = polygons_of(self._rings)
        shapely.prepare(polygons)
        return polygons

    def mask(self, polygons: Array) -> Array:
        """(words,) with the bits of the given polygons."""
        return np.asarray(np.bitwise_or.reduce(self._bit(np.asarray(polygons, int)), axis=0, initial=np.uint64(0)))

    def _bit(self, polygons: Array) -> Array:
        bits = np.zeros((len(polygons), self.words), np.uint64)
        bits[np.arange(len(polygons)), polygons // 64] = np.uint64(1) << (polygons % 64).astype(np.uint64)
        return bits

    def _draw(self, start: Array, stop: Array, owner: Array) -> None:
        """The bits of every cell's reference: each row of references is walked from the left, edges flip their bits."""
        grid = self._grid
        low, high = np.minimum(start[:, 1], stop[:, 1]), np.maximum(start[:, 1], stop[:, 1])
        first = np.ceil((low - grid.low[1]) / CELL_M - REFERENCE[1]).astype(int)
        end = np.ceil((high - grid.low[1]) / CELL_M - REFERENCE[1]).astype(int)  # half open: a vertex counts once
        edge, row = _expand(np.clip(first, 0, grid.rows), np.clip(end, 0, grid.rows))
        y = grid.low[1] + CELL_M * (row + REFERENCE[1])
        share = (y - start[edge, 1]) / (stop[edge, 1] - start[edge, 1])
        x = start[edge, 0] + share * (stop[edge, 0] - start[edge, 0])
        column = np.ceil((x - grid.low[0]) / CELL_M - REFERENCE[0]).astype(int)  # first reference right of the edge
        seen = column < grid.columns
        flips = np.zeros((grid.rows, grid.columns, self.words), np.uint64)
        np.bitwise_xor.at(flips, (row[seen], np.maximum(column[seen], 0)), owner[edge[seen]])
        drawn = np.bitwise_xor.accumulate(flips, axis=1)
        self._reference_bits = np.ascontiguousarray(drawn.reshape(-1, self.words).T)  # (words, cells)

    def bits(self, x: Array, y: Array) -> Array:
        """(words, ..) sets of the polygons that strictly contain points with coordinates x and y (..)."""
        bits = np.zeros((self.words, x.size), np.uint64)
        if self.count:
            flat_x, flat_y = x.ravel(), y.ravel()
            for first in range(0, x.size, AT_ONCE):
                part = slice(first, first + AT_ONCE)
                bits[:, part] = self._bits(flat_x[part], flat_y[part])
        return bits.reshape(self.words, *x.shape)

    def _bits(self, x: Array, y: Array) -> Array:
        cell, u, v = self._grid.place(x, y)
        bits = self._reference_bits[:, cell]
        near, begin, edges, pair = _listed(self._first, cell)
        if len(near):
            u, v = np.repeat(u[near], edges), np.repeat(v[near], edges)
            ax, ay, bx, by, left, close = np.take(self._pairs, pair, axis=1)
            side_a, side_b = ax * v - ay * u, bx * v - by * u
            side = side_b - side_a + left
            crosses = ((side > 0) != (left > 0)) & ((side_a > 0) != (side_b > 0))
            for word in range(self.words):
                flips = self._pair_bits[word, pair] * crosses
                bits[word, near] ^= np.bitwise_xor.reduceat(flips, begin)
            doubtful = np.abs(side) < close
            if doubtful.any():
                point = near[np.unique(np.repeat(np.arange(len(near)), edges)[doubtful])]
                bits[:, point] = self._exact(x[point], y[point])
        if self._cut:
            beyond = np.flatnonzero(np.maximum(np.abs(x), np.abs(y)) > self._reach_m)
            if len(beyond):
                bits[:, beyond] = self._exact(x[beyond], y[beyond])
        return bits

    def _exact(self, x: Array, y: Array) -> Array:
        bits = np.zeros((self.words, len(x)), np.uint64)
        for polygon in range(self.count):
            within = shapely.contains_xy(self._polygons[polygon], x, y)
            bits[:, within] |= self._bit(np.array([polygon])).T
        return bits


class LineIndex:
    """A polyline (L >= 2, 2+) prepared for `beyond`: whether points are further away than a given distance."""

    def __init__(self, line: Array, distance_m: float) -> None:
        points = np.asarray(line, float)[:, :2]
        self._distance2 = distance_m**2
        start, stop = points[:-1], points[1:]
        low, high = points.min(axis=0) - distance_m, points.max(axis=0) + distance_m
        self._cut = bool((low < -REACH_M).any() or (high > REACH_M).any())
        self._line = shapely.LineString(points)
        self._distance = distance_m
        self._grid = _Grid.over(np.clip(low, -REACH_M, REACH_M), np.clip(high, -REACH_M, REACH_M))
        edge, cell, self._first = self._grid.cells_of(start, stop, distance_m)
        step = stop - start
        length2 = np.maximum((step**2).sum(axis=1), 1e-18)
        relative = start[edge] - self._grid.references(cell)
        self._pairs = np.stack([*relative.T, *step[edge].T, length2[edge]])

    def beyond(self, x: Array, y: Array) -> Array:
        """(..) bool, whether points with coordinates x and y (..) are further from the line than the distance."""
        shape, x, y = x.shape, x.ravel(), y.ravel()
        cell, u, v = self._grid.place(x, y)
        far = np.ones(len(x), bool)
        near, begin, edges, pair = _listed(self._first, cell)
        if len(near):
            u, v = np.repeat(u[near], edges), np.repeat(v[near], edges)
            sx, sy, step_x, step_y, length2 = np.take(self._pairs, pair, axis=1)
            u, v = u - sx, v - sy
            share = np.minimum(np.maximum((u * step_x + v * step_y) / length2, 0.0), 1.0)
            gap2 = (u - share * step_x) ** 2 + (v - share * step_y) ** 2
            far[near] = np.minimum.reduceat(gap2, begin) > self._distance2
        if self._cut:
            outside = np.flatnonzero(np.maximum(np.abs(x), np.abs(y)) > REACH_M)
            far[outside] = shapely.distance(self._line, shapely.points(x[outside], y[outside])) > self._distance
        return far.reshape(shape)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Square cells over a rectangle, each with a reference point; points beyond it belong to the cells at the
    border.
    """

    low: Array  # (2,)
    rows: int
    columns: int

    @staticmethod
    def over(low: Array, high: Array) -> _Grid:
        columns, rows = np.floor((high - low) / CELL_M).astype(int) + 3  # an empty rim on every side
        return _Grid(low - CELL_M, int(rows), int(columns))

    def references(self, cells: Array) -> Array:
        row = cells // self.columns
        place = np.stack([cells - row * self.columns, row], axis=-1) + np.array(REFERENCE)
        place *= CELL_M
        place += self.low
        return np.asarray(place)

    def place(self, x: Array, y: Array) -> tuple[Array, Array, Array]:
        """Cells of points, and the points relative to their cells' references."""
        u, v = x - self.low[0], y - self.low[1]
        column, row = self._along(u, self.columns), self._along(v, self.rows)
        u -= (column + REFERENCE[0]) * CELL_M
        v -= (row + REFERENCE[1]) * CELL_M
        row *= self.columns
        row += column
        return row, u, v

    @staticmethod
    def _along(way: Array, count: int) -> Array:
        """Rows or columns of distances from the first; those beyond the rim belong to it."""
        place = way * (1.0 / CELL_M)
        np.maximum(place, 0.0, out=place)
        np.minimum(place, count - 1.0, out=place)
        return place.astype(np.intp)

    def cells_of(self, start: Array, stop: Array, margin: float) -> tuple[Array, Array, Array]:
        """Intersects segments with cells: pairs (segment, cell) sorted by cell, and (cells + 1,) offsets of each cell's
        pairs.

        Contains every pair closer than `margin`, and some pairs that are further apart.
        """
        slack = margin + 1e-6
        a, b = start - self.low, stop - self.low
        low, high = np.minimum(a[:, 1], b[:, 1]), np.maximum(a[:, 1], b[:, 1])
        first = np.floor((low - slack) / CELL_M).astype(int)
        end = np.floor((high + slack) / CELL_M).astype(int) + 1
        edge, row = _expand(np.clip(first, 0, self.rows), np.clip(end, 0, self.rows))
        # Within the band of a row, an edge covers one stretch of columns.
        rise = b[edge, 1] - a[edge, 1]
        level = np.abs(rise) < 1e-9
        slope = (b[edge, 0] - a[edge, 0]) / np.where(level, 1.0, rise)
        band = np.stack([row * CELL_M - slack, (row + 1) * CELL_M + slack])
        x = a[edge, 0] + slope * (np.clip(band, low[edge], high[edge]) - a[edge, 1])
        x = np.where(level, np.stack([a[edge, 0], b[edge, 0]]), x)
        left = np.floor((x.min(axis=0) - slack) / CELL_M).astype(int)
        right = np.floor((x.max(axis=0) + slack) / CELL_M).astype(int) + 1
        stretch, column = _expand(np.clip(left, 0, self.columns), np.clip(right, 0, self.columns))
        edge, cell = edge[stretch], row[stretch] * self.columns + column
        order = np.argsort(cell, kind="stable")
        counts = np.bincount(cell, minlength=self.rows * self.columns)
        return edge[order], cell[order], np.concatenate([[0], np.cumsum(counts)])


def _joined(start: Array, stop: Array, bits: Array) -> tuple[Array, Array, Array]:
    """Edges that several polygons share, made one edge with all their bits; direction does not matter for crossings."""
    turned = (start[:, 0] > stop[:, 0]) | ((start[:, 0] == stop[:, 0]) & (start[:, 1] > stop[:, 1]))
    ends = np.where(turned[:, None], np.concatenate([stop, start], axis=1), np.concatenate([start, stop], axis=1))
    # shared edges become neighbours; an edge that does not is only tested twice
    order = np.argsort(ends @ EDGE_KEY, kind="stable")
    ends = ends[order]
    begins = np.flatnonzero(np.concatenate([[True], (ends[1:] != ends[:-1]).any(axis=1)]))
    return ends[begins, :2], ends[begins, 2:], np.bitwise_xor.reduceat(bits[order], begins, axis=0)


def _listed(first: Array, cell: Array) -> tuple[Array, Array, Array, Array]:
    """Points whose cells have entries, the offset of each point's entries, their counts, and all the entries."""
    begin = first[cell]
    count = first[cell + 1] - begin
    near = np.flatnonzero(count)
    begin, count = begin[near], count[near]
    place = np.cumsum(count) - count
    total = int(place[-1] + count[-1]) if len(near) else 0
    return near, place, count, np.arange(total) + np.repeat(begin - place, count)


def _expand(first: Array, end: Array) -> tuple[Array, Array]:
    """All integers of the half-open ranges first..end: which range, which integer."""
    count = np.maximum(end - first, 0)
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - first, count)
