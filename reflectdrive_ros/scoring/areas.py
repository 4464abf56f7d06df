"""Which map polygons a point lies in: exact answers for tens of thousands of points in a few milliseconds.

The polygons are drawn once on a fine grid. Each cell keeps one bit per polygon, whether its reference point lies
inside, and the list of edges that pass through it. A point takes the bits of its cell's reference and flips those of
the polygons whose edges lie between the two: nothing else can differ inside a cell. Most cells have no edge at all.
A point so close to an edge that rounding might decide, or beyond the grid, is put to shapely, so the answer equals
strict containment (NAVSIM's `shapely.vectorized.contains`: a point on an edge is outside).
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
REACH_M = 160.0  # the grid ends this far from the ego; beyond it shapely answers
CLOSE_M = 1e-7  # a point nearer than this to an edge is put to shapely
REFERENCE = (0.4867, 0.5231)  # of a cell; off centre, so that round map coordinates do not run through it


def checked_rings(owner: str, name: str, rings: Sequence[Any]) -> tuple[Array, ...]:
    """Rings as read-only arrays (V >= 3, 2), not closed. Raises ValueError naming the field and the ring."""
    kept = []
    for index, ring in enumerate(rings):
        points = np.array(ring, float)
        where = f"{owner}.{name}[{index}]"
        if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3:
            raise ValueError(f"{where} has shape {points.shape}, expected (3 or more, 2)")
        if not np.isfinite(points).all():
            raise ValueError(f"{where} holds NaN or infinity")
        polygon = shapely.Polygon(points)
        if not polygon.is_valid:
            raise ValueError(f"{where} is not a simple polygon: {shapely.is_valid_reason(polygon)}")
        points.flags.writeable = False
        kept.append(points)
    return tuple(kept)


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

    def __post_init__(self) -> None:
        for name in ("lanes", "roadblocks", "intersections", "carparks"):
            object.__setattr__(self, name, checked_rings("MapAreas", name, getattr(self, name)))
        object.__setattr__(self, "lane_on_route", tuple(bool(flag) for flag in self.lane_on_route))
        if len(self.lane_on_route) != len(self.lanes):
            raise ValueError(f"MapAreas.lane_on_route has {len(self.lane_on_route)} flags for {len(self.lanes)} lanes")

    @cached_property
    def index(self) -> AreaIndex:
        """Built at the first question, kept for the life of the scene."""
        return AreaIndex((*self.lanes, *self.roadblocks, *self.intersections, *self.carparks))

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

    def __init__(self, rings: Sequence[Array]) -> None:
        self.count = len(rings)
        self.words = max(1, -(-self.count // 64))
        self._polygons = np.array([shapely.Polygon(ring) for ring in rings], dtype=object)
        if not self.count:
            return
        shapely.prepare(self._polygons)
        start = np.concatenate(rings)
        stop = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
        owner = np.repeat(np.arange(self.count), [len(ring) for ring in rings])
        self._bounds = start.min(axis=0), start.max(axis=0)
        self._low = np.maximum(self._bounds[0], -REACH_M) - CELL_M
        high = np.minimum(self._bounds[1], REACH_M) + CELL_M
        columns, rows = np.maximum(np.ceil((high - self._low) / CELL_M).astype(int), 1)
        self._shape = (int(rows), int(columns))
        self._draw(start, stop, owner)
        self._list(start, stop, owner)

    def mask(self, polygons: Array) -> Array:
        """(words,) with the bits of the given polygons."""
        return np.bitwise_or.reduce(self._bit(np.asarray(polygons, int)), axis=0, initial=np.uint64(0))

    def _bit(self, polygons: Array) -> Array:
        bits = np.zeros((len(polygons), self.words), np.uint64)
        bits[np.arange(len(polygons)), polygons // 64] = np.uint64(1) << (polygons % 64).astype(np.uint64)
        return bits

    def _references(self, cells: Array) -> Array:
        row, column = np.divmod(cells, self._shape[1])
        return self._low + CELL_M * (np.stack([column, row], axis=-1) + np.array(REFERENCE))

    def _draw(self, start: Array, stop: Array, owner: Array) -> None:
        """The bits of every cell's reference: each row of references is walked from the left, edges flip their bit."""
        rows, columns = self._shape
        y = (self._low[1] + CELL_M * REFERENCE[1], CELL_M)  # of the first row, between rows
        first = np.ceil((np.minimum(start[:, 1], stop[:, 1]) - y[0]) / y[1]).astype(int)
        end = np.ceil((np.maximum(start[:, 1], stop[:, 1]) - y[0]) / y[1]).astype(
            int
        )  # half open: a vertex counts once
        first, end = np.clip(first, 0, rows), np.clip(end, 0, rows)
        edge, row = _expand(first, end)
        share = (y[0] + y[1] * row - start[edge, 1]) / (stop[edge, 1] - start[edge, 1])
        x = start[edge, 0] + share * (stop[edge, 0] - start[edge, 0])
        column = np.ceil((x - self._low[0]) / CELL_M - REFERENCE[0]).astype(int)  # first reference right of the edge
        seen = column < columns
        flips = np.zeros((rows, columns, self.words), np.uint64)
        at = (row[seen], np.maximum(column[seen], 0))
        np.bitwise_xor.at(flips, at, self._bit(owner[edge[seen]]))
        self._reference_bits = np.bitwise_xor.accumulate(flips, axis=1).reshape(rows * columns, self.words)

    def _list(self, start: Array, stop: Array, owner: Array) -> None:
        """For every cell the edges that pass through it, in coordinates relative to the cell's reference."""
        rows, columns = self._shape
        slack = 1e-6
        a, b = start - self._low, stop - self._low
        first = np.floor((np.minimum(a[:, 1], b[:, 1]) - slack) / CELL_M).astype(int)
        end = np.floor((np.maximum(a[:, 1], b[:, 1]) + slack) / CELL_M).astype(int) + 1
        edge, row = _expand(np.clip(first, 0, rows), np.clip(end, 0, rows))
        # Within the band of a row, an edge covers one stretch of columns.
        step = b[edge] - a[edge]
        level = np.abs(step[:, 1]) < slack
        slope = np.where(level, 0.0, step[:, 0] / np.where(level, 1.0, step[:, 1]))
        band = np.stack([row * CELL_M - slack, (row + 1) * CELL_M + slack])
        y = np.clip(band, np.minimum(a[edge, 1], b[edge, 1]), np.maximum(a[edge, 1], b[edge, 1]))
        x = a[edge, 0] + slope * (y - a[edge, 1])
        x = np.where(level, np.stack([a[edge, 0], b[edge, 0]]), x)
        left = np.clip(np.floor((x.min(axis=0) - slack) / CELL_M).astype(int), 0, columns)
        right = np.clip(np.floor((x.max(axis=0) + slack) / CELL_M).astype(int) + 1, 0, columns)
        stretch, column = _expand(left, right)
        edge, cell = edge[stretch], row[stretch] * columns + column
        order = np.argsort(cell, kind="stable")
        edge, cell = edge[order], cell[order]
        self._first = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=rows * columns))])
        self._pair_start = start[edge] - self._references(cell)
        self._pair_step = stop[edge] - start[edge]
        self._pair_stop = stop[edge] - self._references(cell)
        self._pair_left = _cross(self._pair_step, -self._pair_start) > 0
        self._pair_close = CLOSE_M * np.hypot(self._pair_step[:, 0], self._pair_step[:, 1])
        self._pair_bits = self._bit(owner[edge])

    def bits(self, points: Array) -> Array:
        """(P, words) sets of the polygons that strictly contain points (P, 2)."""
        points = np.asarray(points, float)
        if not self.count or not len(points):
            return np.zeros((len(points), self.words), np.uint64)
        place = (points - self._low) / CELL_M
        column, row = np.floor(place[:, 0]).astype(np.intp), np.floor(place[:, 1]).astype(np.intp)
        inside = (column >= 0) & (row >= 0) & (column < self._shape[1]) & (row < self._shape[0])
        if not inside.all():
            bits = np.zeros((len(points), self.words), np.uint64)
            bits[inside] = self.bits(points[inside])
            beyond = ~inside & ((points >= self._bounds[0]) & (points <= self._bounds[1])).all(axis=1)
            bits[beyond] = self._exact(points[beyond])
            return bits
        cell = row * self._shape[1] + column
        bits = self._reference_bits[cell]
        first = self._first[cell]
        edges = self._first[cell + 1] - first
        near = np.flatnonzero(edges)
        if len(near) == 0:
            return bits
        edges, first = edges[near], first[near]
        begin = np.cumsum(edges) - edges
        pair = np.arange(begin[-1] + edges[-1]) + np.repeat(first - begin, edges)
        offset = points[near] - self._references(cell[near])
        qx, qy = np.repeat(offset[:, 0], edges), np.repeat(offset[:, 1], edges)
        start, step, stop = self._pair_start[pair], self._pair_step[pair], self._pair_stop[pair]
        side = step[:, 0] * (qy - start[:, 1]) - step[:, 1] * (qx - start[:, 0])
        crosses = (side > 0) != self._pair_left[pair]
        crosses &= (qx * start[:, 1] > qy * start[:, 0]) != (qx * stop[:, 1] > qy * stop[:, 0])
        flips = np.where(crosses[:, None], self._pair_bits[pair], np.uint64(0))
        bits[near] ^= np.bitwise_xor.reduceat(flips, begin, axis=0)
        close = np.abs(side) < self._pair_close[pair]
        if close.any():
            doubtful = near[np.unique(np.repeat(np.arange(len(near)), edges)[close])]
            bits[doubtful] = self._exact(points[doubtful])
        return bits

    def _exact(self, points: Array) -> Array:
        bits = np.zeros((len(points), self.words), np.uint64)
        for polygon in range(self.count):
            within = shapely.contains_xy(self._polygons[polygon], points[:, 0], points[:, 1])
            bits[within] |= self._bit(np.array([polygon]))[0]
        return bits


def _cross(a: Array, b: Array) -> Array:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])


def _expand(first: Array, end: Array) -> tuple[Array, Array]:
    """All integers of the half-open ranges first..end: which range, which integer."""
    count = np.maximum(end - first, 0)
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - first, count)
