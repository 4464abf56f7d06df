"""Which map polygons contain a point: exact answers for tens of thousands of points in a millisecond.

The polygons are rasterised once on a fine grid. Each cell stores one bit per polygon (whether its reference point is
inside) and the list of edges that cross the cell. A point takes the bits of its cell's reference point and flips those
of the polygons whose edges lie between the two. Most cells have no edge. A point outside the grid, or so close to an
edge that rounding might decide, is tested by shapely. The answer therefore equals strict containment (NAVSIM's
`shapely.vectorized.contains`: a point on an edge is outside).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import reflectdrive_kernels as kernels
import shapely

from ..core.domain import Array
from ..core.field_checks import check_array
from .simulate import STEPS

CELL_M = 0.5
REACH_M = 100.0  # the grid ends this far from the ego; points beyond it are tested by shapely
EDGE_KEY = np.array([1.0, np.sqrt(2.0), np.sqrt(3.0), np.sqrt(5.0)])  # one number for the four of an edge
REFERENCE = (0.4867, 0.5231)  # of a cell; off centre, so that round map coordinates do not run through it


def check_rings(owner: str, name: str, rings: Sequence[Any]) -> tuple[Array, ...]:
    """Rings as read-only arrays (V >= 3, 2), not closed. Raises ValueError naming the field and the ring."""
    checked = []
    for index, ring in enumerate(rings):
        points = np.array(ring, float)
        where = f"{owner}.{name}[{index}]"
        if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3:
            raise ValueError(f"{where} has shape {points.shape}, expected (3 or more, 2)")
        if not np.isfinite(points).all():
            raise ValueError(f"{where} holds NaN or infinity")
        points.flags.writeable = False
        checked.append(points)
    polygons = polygons_of(checked)
    for index in np.flatnonzero(~shapely.is_valid(polygons)).tolist():
        reason = shapely.is_valid_reason(polygons[index])
        raise ValueError(f"{owner}.{name}[{index}] is not a simple polygon: {reason}")
    return tuple(checked)


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

    def box_flags(self, centers: Array, size: Array, ahead_m: float, road_known: bool) -> Array:
        """(5, B) bool, the fields of `metrics.EgoAreas` of boxes (length, width) at centre poses (B, 3).

        The rear axle is `ahead_m` behind the centre. The second field is undefined if the road is known otherwise.
        """
        kinds = (self.lane_bits, self.route_bits, self.drivable_bits, self.intersection_bits)
        flags, uncertain = np.empty((5, len(centers)), bool), np.ones(len(centers), bool)
        box = (*size.tolist(), ahead_m)
        if self.index.cells and not kernels.area_flags_of_boxes(
            (centers, *box), self.index.cells, kinds, road_known, flags, uncertain
        ):
            return flags
        points, exact = np.empty((int(uncertain.sum()), 6, 2)), np.empty((5, int(uncertain.sum())), bool)
        kernels.box_points((centers[uncertain], *box), points)
        kernels.area_flags(self.index.sets(points), kinds, road_known, exact)
        flags[:, uncertain] = exact
        return flags


@dataclass(frozen=True, eq=False)
class RedLights:
    """Connectors across intersections that are on the route and red at some time."""

    connectors: tuple[Array, ...] = ()  # R rings (V, 2), ego frame
    red: Array = field(default_factory=partial(np.zeros, (0, STEPS + 1), bool))  # (R, 41) at 0, 0.1, .. 4 s

    def __post_init__(self) -> None:
        object.__setattr__(self, "connectors", check_rings("RedLights", "connectors", self.connectors))
        shape = (len(self.connectors), STEPS + 1)
        object.__setattr__(self, "red", check_array("RedLights", "red", self.red, shape, np.bool_))


class AreaIndex:
    """Polygons prepared for `sets`, the set of polygons that contain a point, as words of 64 bits."""

    def __init__(self, rings: Sequence[Array], reach_m: float = REACH_M) -> None:
        self.count = len(rings)
        self.words = max(1, -(-self.count // 64))
        self.cells: tuple[Any, ...] = ()  # an argument of the kernels; empty without polygons
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
        start, stop, owner = _join_shared(start, stop, owner)
        reaches_out = bool((low < -reach_m).any() or (high > reach_m).any())
        low, high = (np.clip(corner, -reach_m, reach_m) for corner in (low, high))
        columns, rows = (np.floor((high - low) / CELL_M).astype(int) + 3).tolist()  # an empty rim on every side
        origin = np.array([*(low - CELL_M), CELL_M, *REFERENCE])
        edges = start, stop, owner, origin, rows, columns
        first, references = np.empty(rows * columns + 1, np.int64), np.zeros((self.words, rows * columns), np.uint64)
        pairs = kernels.count_edge_cells(edges, first)
        edges_of_cells, bits = np.empty((6, pairs)), np.empty((self.words, pairs), np.uint64)
        kernels.fill_edge_cells(edges, first, edges_of_cells, bits)
        kernels.draw_references(edges, references)
        reach_m = reach_m if reaches_out else np.inf
        self.cells = origin, columns, references, first, edges_of_cells, bits, reach_m

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

    def sets(self, points: Array) -> Array:
        """(.., words) sets of the polygons that strictly contain points (.., 2)."""
        points = np.asarray(points, float)
        flat = points.reshape(-1, 2)
        sets = np.zeros((len(flat), self.words), np.uint64)
        if self.count:
            uncertain = np.empty(len(flat), bool)
            if kernels.polygons_around(flat, self.cells, sets, uncertain):
                sets[uncertain] = self._exact(*flat[uncertain].T)
        return sets.reshape(*points.shape[:-1], self.words)

    def _exact(self, x: Array, y: Array) -> Array:
        bits = np.zeros((len(x), self.words), np.uint64)
        for polygon in range(self.count):
            bits[shapely.contains_xy(self._polygons[polygon], x, y)] |= self._bit(np.array([polygon]))
        return bits


def _join_shared(start: Array, stop: Array, bits: Array) -> tuple[Array, Array, Array]:
    """Edges that several polygons share, as one edge with all their bits; direction does not matter for crossings."""
    turned = (start[:, 0] > stop[:, 0]) | ((start[:, 0] == stop[:, 0]) & (start[:, 1] > stop[:, 1]))
    ends = np.where(turned[:, None], np.concatenate([stop, start], axis=1), np.concatenate([start, stop], axis=1))
    # shared edges become neighbours; an edge that does not is only tested twice
    order = np.argsort(ends @ EDGE_KEY, kind="stable")
    ends = ends[order]
    begins = np.flatnonzero(np.concatenate([[True], (ends[1:] != ends[:-1]).any(axis=1)]))
    return ends[begins, :2], ends[begins, 2:], np.bitwise_xor.reduceat(bits[order], begins, axis=0)
