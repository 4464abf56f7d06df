"""The drivable surface of an OpenDRIVE map: the lanes of each road as polygons, in the map frame.

SUMO's lanes have one width each; the lanes of OpenDRIVE widen, taper and shift. The surface is therefore drawn from the
file itself, by sections 9 to 11 of the standard (ASAM OpenDRIVE 1.8): reference line, lane offset, lane widths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from .roads import RoadError

STEP_M = 1.0  # between points of a reference line; a curve of 10 m radius is 1 cm off its chord
CAR_LANES = frozenset(
    ("driving", "entry", "exit", "onRamp", "offRamp", "mwyEntry", "mwyExit", "connectingRamp", "slipLane")
) | {"bus", "taxi", "HOV"}
DRIVABLE = CAR_LANES | {"stop", "parking", "shoulder", "restricted", "bidirectional"}
SEAM_M = 0.05  # surfaces are grown by this to close gaps between neighbouring roads and lanes
SLIT_M = 0.05  # narrower slits and slivers are inexact drawing
MIN_ISLAND_M2 = 2.0  # a smaller hole between the lanes of a junction is road
MIN_PART_M2 = 0.5


@dataclass(frozen=True, eq=False)
class Surface:
    """Drivable polygons (shapely), by road and by junction."""

    roads: Mapping[str, Any]  # name -> polygon, of roads outside junctions; one or more a road
    junctions: Mapping[str, Any]  # name -> polygon of the connecting roads of a junction
    walkways: tuple[Array, ...]  # rings of sidewalks


def surface(root: Element) -> Surface:
    """The drivable surface of a map. Raises RoadError naming the road that cannot be drawn."""
    parts: dict[tuple[bool, str], list[Any]] = {}
    for road in root.iter("road"):
        junction = road.get("junction", "-1")
        key = (True, junction) if junction != "-1" else (False, road.get("id", ""))
        parts.setdefault(key, []).extend(_lane_polygons(road, DRIVABLE))
    walks = [part for road in root.iter("road") for part in _lane_polygons(road, {"sidewalk"})]
    areas: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    for (across, name), polygons in parts.items():
        for index, part in enumerate(_join(polygons)):
            areas[across][f"{'junction' if across else 'road'} {name}.{index}"] = part
    return Surface(areas[False], areas[True], tuple(_rings(walks)))


def _join(polygons: Sequence[Any]) -> list[Any]:
    """The union of polygons as parts without slits, slivers and small holes."""
    area = shapely.union_all([_buffer(polygon, SEAM_M) for polygon in polygons])
    area = _buffer(_buffer(_buffer(area, SLIT_M), -2 * SLIT_M), SLIT_M)
    return [_without_small_holes(part) for part in shapely.get_parts(area) if part.area > MIN_PART_M2]


def _buffer(area: Any, metres: float) -> Any:
    return area.buffer(metres, join_style="mitre", mitre_limit=2.0)


def _without_small_holes(part: Any) -> Any:
    islands = [ring for ring in part.interiors if shapely.Polygon(ring).area > MIN_ISLAND_M2]
    return shapely.Polygon(part.exterior, islands)


def _rings(polygons: Iterable[Any]) -> list[Array]:
    parts = [part for polygon in polygons for part in shapely.get_parts(polygon) if isinstance(part, shapely.Polygon)]
    return [np.asarray(shapely.get_coordinates(part.exterior)[:-1]) for part in parts]


def _lane_polygons(road: Element, types: Collection[str]) -> list[Any]:
    """Polygons of a road's lanes of some types, one per lane section."""
    name = road.get("id", "?")
    try:
        offsets = _cubics(road.findall("lanes/laneOffset"), "s")
        sections = sorted(road.findall("lanes/laneSection"), key=lambda section: float(section.get("s", "0")))
        begins = [float(section.get("s", "0")) for section in sections]
        length_m = float(road.get("length", "0"))
        polygons = []
        for section, begin, end in zip(sections, begins, [*begins[1:], length_m], strict=True):
            if end - begin < 1e-3:
                continue
            at = np.linspace(begin, end, int(np.ceil((end - begin) / STEP_M)) + 1)
            poses = reference_line(road, at)
            for side, sign in (("left", 1.0), ("right", -1.0)):
                lanes = sorted(section.findall(f"{side}/lane"), key=lambda lane: abs(int(lane.get("id", "0"))))
                inner = offsets(at)
                for lane in lanes:
                    outer = inner + sign * np.maximum(_cubics(lane.findall("width"), "sOffset")(at - begin), 0.0)
                    if lane.get("type") in types:
                        polygons.append(_strip(poses, inner, outer))
                    inner = outer
    except (ValueError, TypeError, KeyError) as fault:
        raise RoadError(f"road {name} cannot be drawn: {fault}") from None
    return [polygon for polygon in polygons if not polygon.is_empty and polygon.area > 0]


def _strip(poses: Array, inner: Array, outer: Array) -> Any:
    """The polygon between two lateral offsets (V,) of a line (V, 3)."""
    left = np.stack([-np.sin(poses[:, 2]), np.cos(poses[:, 2])], axis=1)
    ring = np.concatenate([poses[:, :2] + inner[:, None] * left, (poses[:, :2] + outer[:, None] * left)[::-1]])
    if not np.isfinite(ring).all():
        raise ValueError("its lines hold NaN or infinity")
    # Where a curve is tighter than the offset, the ring crosses itself: the union of its quads is the strip.
    polygon = shapely.Polygon(ring)
    if polygon.is_valid:
        return polygon
    count = len(poses)
    quads = [shapely.Polygon(ring[[k, k + 1, 2 * count - 2 - k, 2 * count - 1 - k]]) for k in range(count - 1)]
    return shapely.union_all([quad.convex_hull for quad in quads])


class _Cubics:
    """Piecewise cubic a + b t + c t^2 + d t^3, t from the start of each piece; 0 where there is none."""

    def __init__(self, starts: Array, terms: Array) -> None:
        self._starts, self._terms = starts, terms

    def __call__(self, at: Array) -> Array:
        if not len(self._starts):
            return np.zeros(len(at))
        piece = np.maximum(np.searchsorted(self._starts, at + 1e-9, side="right") - 1, 0)
        t = at - self._starts[piece]
        a, b, c, d = self._terms[piece].T
        return np.asarray(a + t * (b + t * (c + t * d)))


def _cubics(elements: Sequence[Element], start: str) -> _Cubics:
    rows = sorted([float(one.get(key, "0")) for key in (start, "a", "b", "c", "d")] for one in elements)
    table = np.array(rows).reshape(-1, 5)
    return _Cubics(table[:, 0], table[:, 1:])


# --- reference line ---------------------------------------------------------------------------------------------------


def reference_line(road: Element, at: Array) -> Array:
    """(V, 3) poses of a road's reference line at distances `at` (V,) along it. Raises ValueError."""
    pieces = sorted(road.findall("planView/geometry"), key=lambda piece: float(piece.get("s", "0")))
    if not pieces:
        raise ValueError("it has no reference line")
    starts = np.array([float(piece.get("s", "0")) for piece in pieces])
    which = np.maximum(np.searchsorted(starts, at + 1e-9, side="right") - 1, 0)
    poses = np.zeros((len(at), 3))
    for index, piece in enumerate(pieces):
        mine = which == index
        if mine.any():
            start = np.array([float(piece.get(key, "0")) for key in ("x", "y", "hdg")])
            poses[mine] = geometry.compose(start, _curve(piece, at[mine] - starts[index]))
    return poses


def _curve(piece: Element, t: Array) -> Array:
    """(V, 3) poses at distances `t` from the start of one geometry, relative to its first pose."""
    length_m = float(piece.get("length", "0"))
    shape = next(iter(piece), None)
    kind = "line" if shape is None else shape.tag
    if kind == "line":
        return np.stack([t, np.zeros_like(t), np.zeros_like(t)], axis=1)
    assert shape is not None
    if kind in ("arc", "spiral"):
        begin = float(shape.get("curvature") or shape.get("curvStart") or "0")
        end = begin if kind == "arc" else float(shape.get("curvEnd", "0"))
        return _clothoid(begin, (end - begin) / max(length_m, 1e-9), t)
    if kind == "poly3":
        u, v = np.array([0.0, 1.0, 0.0, 0.0]), _terms(shape, "")
        return _parametric(u, v, t)  # u is nearly the distance along a flat cubic
    if kind == "paramPoly3":
        scale = 1.0 if shape.get("pRange", "arcLength") == "arcLength" else max(length_m, 1e-9)
        return _parametric(_terms(shape, "U"), _terms(shape, "V"), t / scale)
    raise ValueError(f"geometry '{kind}' is none of line, arc, spiral, poly3, paramPoly3")


def _terms(shape: Element, suffix: str) -> Array:
    return np.array([float(shape.get(f"{letter}{suffix}", "0")) for letter in "abcd"])


def _clothoid(curvature: float, change: float, t: Array) -> Array:
    """Poses along a curve whose curvature is `curvature + change * t`; integrated with the midpoint rule."""
    fine = np.linspace(0.0, max(float(t.max(initial=0.0)), 1e-6), 1 + 16 * max(len(t), 8))
    middle = 0.5 * (fine[1:] + fine[:-1])
    heading = curvature * middle + 0.5 * change * middle**2
    step = fine[1] - fine[0]
    x = np.concatenate([[0.0], np.cumsum(np.cos(heading)) * step])
    y = np.concatenate([[0.0], np.cumsum(np.sin(heading)) * step])
    return np.stack([np.interp(t, fine, x), np.interp(t, fine, y), curvature * t + 0.5 * change * t**2], axis=1)


def _parametric(u: Array, v: Array, p: Array) -> Array:
    powers = np.stack([np.ones_like(p), p, p**2, p**3])
    slopes = np.stack([np.zeros_like(p), np.ones_like(p), 2 * p, 3 * p**2])
    return np.stack([u @ powers, v @ powers, np.arctan2(v @ slopes, u @ slopes)], axis=1)
