"""Lanelets and intersection areas as plain arrays: out of lanelet2's objects, and packed for another process.

Imports neither lanelet2 nor anything heavy, so that the short-lived process that reads Autoware's map starts quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.domain import Array

KMH, MPH = 1 / 3.6, 0.44704  # m/s

TURNS = ("", "left", "straight", "right")  # of Autoware's tag turn_direction; empty: none
STOP_LINE_MIN_M = 0.1  # a shorter stop line has no direction and counts as none
INTERSECTION_AREA = "intersection_area"  # Autoware's type of the polygon around a junction
BORDERS = ("road_border", "curbstone", "guard_rail", "fence", "wall")  # types of lines that no car crosses
SHOULDER = "road_shoulder"  # Autoware's subtype of lanelets beside a road, along which no lane leads
NOT_FOR_CARS = ("crosswalk", "walkway", "shared_walkway", "stairs", "bicycle_lane")


@dataclass(frozen=True)
class LaneletLight:
    """A regulatory element of type traffic_light that a lanelet has to obey."""

    group_id: int  # id of the regulatory element, which Autoware publishes as traffic_light_group_id
    stop_line: Array | None  # (2, 2) first and last point of its ref_line, in either order; None: the map has none


@dataclass(frozen=True)
class Lanelet:
    """One lanelet in the map frame, metres. Its bounds may have either direction."""

    left: Array  # (A, 2)
    right: Array  # (B, 2)
    centerline: Array  # (C, 2), empty if the map has none
    for_cars: bool
    limit_mps: float  # NaN where the map has none
    left_z_m: Array  # (A,) elevation of the left bound's points
    right_z_m: Array  # (B,)
    turn: str = ""  # one of TURNS
    lights: tuple[LaneletLight, ...] = ()
    is_shoulder: bool = False  # drivable, but no lane; then it is not `for_cars`


@dataclass(frozen=True, eq=False)
class MapElements:
    """What is read of a map."""

    lanelets: Mapping[int, Lanelet]  # by id
    intersections: tuple[Array, ...] = ()  # (N, 2) outlines of the areas of junctions, map frame, metres
    borders: tuple[Array, ...] = ()  # (N, 2) lines of the types BORDERS, likewise


def elements_of(lanelet2_map: Any) -> MapElements:
    """The elements of a lanelet2.core.LaneletMap."""
    areas, lines = lanelet2_map.polygonLayer, lanelet2_map.lineStringLayer
    # lanelets cover a junction only where they cross it
    intersections = tuple(line_points(area) for area in areas if type_of(area) == INTERSECTION_AREA)
    borders = tuple(line_points(line) for line in lines if type_of(line) in BORDERS)
    return MapElements(_lanelets_of(lanelet2_map), intersections, borders)


def type_of(element: Any) -> str:
    """The tag `type` of an element of lanelet2; "" where it has none."""
    return str(element.attributes["type"]) if "type" in element.attributes else ""


def _lanelets_of(lanelet2_map: Any) -> dict[int, Lanelet]:
    lanelets = {}
    for lanelet in lanelet2_map.laneletLayer:
        tags = lanelet.attributes
        subtype = str(tags["subtype"]) if "subtype" in tags else ""
        lanelets[int(lanelet.id)] = Lanelet(
            line_points(lanelet.leftBound),
            line_points(lanelet.rightBound),
            line_points(lanelet.centerline if lanelet.centerline.id else ()),  # one that lanelet2 computed has no id
            for_cars=subtype not in (*NOT_FOR_CARS, SHOULDER),
            limit_mps=speed_mps(tags["speed_limit"]) if "speed_limit" in tags else np.nan,
            left_z_m=line_elevation(lanelet.leftBound),
            right_z_m=line_elevation(lanelet.rightBound),
            turn=tags["turn_direction"] if "turn_direction" in tags and tags["turn_direction"] in TURNS else "",
            lights=tuple(lights_of(lanelet.regulatoryElements)),
            is_shoulder=subtype == SHOULDER,
        )
    return lanelets


def lights_of(regulatory_elements: Any) -> Iterator[LaneletLight]:
    """The traffic lights among lanelet2's regulatory elements of a lanelet."""
    for element in regulatory_elements:
        tags, roles = element.attributes, element.parameters
        if "subtype" in tags and tags["subtype"] == "traffic_light":
            lines = [line_points(line) for line in roles["ref_line"]] if "ref_line" in roles else []
            stop_lines = [line[[0, -1]] for line in lines if len(line) >= 2 and np.isfinite(line).all()]
            usable = [ends for ends in stop_lines if np.hypot(*(ends[1] - ends[0])) >= STOP_LINE_MIN_M]
            yield LaneletLight(int(element.id), usable[0] if usable else None)


def line_points(line: Any) -> Array:
    """(N, 2) points of a lanelet2 line."""
    return np.array([(point.x, point.y) for point in line], float).reshape(-1, 2)


def line_elevation(line: Any) -> Array:
    """(N,) z of the points of a lanelet2 line: the tag `ele`, 0 where a point has none."""
    return np.array([point.z for point in line], float)


def speed_mps(text: str) -> float:
    """The tag speed_limit: km/h unless its unit is mph; NaN for any other text."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(km/h|kmh|mph|)\s*", text)
    return float(match[1]) * (MPH if match[2] == "mph" else KMH) if match else float("nan")


# --- packed ----------------------------------------------------------------------------------------------------------


def pack(elements: MapElements) -> dict[str, Array]:
    """A few flat arrays: all points one after the other, and where each line of each lanelet ends; elevations of the
    bounds' points likewise; one row for each light of a lanelet, its stop line NaN where the map has none; outlines
    of intersections and borders like the lines."""
    lanelets = elements.lanelets
    lights = [(row, light) for row, lanelet in enumerate(lanelets.values()) for light in lanelet.lights]
    no_line = np.full((2, 2), np.nan)
    lines = [line for lanelet in lanelets.values() for line in (lanelet.left, lanelet.right, lanelet.centerline)]
    points, ends = _join_lines(lines)
    area_points, area_ends = _join_lines(elements.intersections)
    border_points, border_ends = _join_lines(elements.borders)
    return {
        "ids": np.array(list(lanelets), np.int64),
        "points": points,
        "ends": ends,
        "for_cars": np.array([lanelet.for_cars for lanelet in lanelets.values()], bool),
        "shoulders": np.array([lanelet.is_shoulder for lanelet in lanelets.values()], bool),
        "limits_mps": np.array([lanelet.limit_mps for lanelet in lanelets.values()], float),
        "z_m": np.concatenate(
            [np.zeros(0), *(z for each in lanelets.values() for z in (each.left_z_m, each.right_z_m))]
        ),
        "turns": np.array([TURNS.index(lanelet.turn) for lanelet in lanelets.values()], np.int64),
        "light_rows": np.array([row for row, _ in lights], np.int64),
        "light_groups": np.array([light.group_id for _, light in lights], np.int64),
        "stop_lines": np.reshape(
            [no_line if light.stop_line is None else light.stop_line for _, light in lights], (-1, 2, 2)
        ).astype(float),
        "area_points": area_points,
        "area_ends": area_ends,
        "border_points": border_points,
        "border_ends": border_ends,
    }


def _join_lines(lines: Sequence[Array]) -> tuple[Array, Array]:
    """All points (N, 2) of lines, one after the other, and where each line ends."""
    return np.concatenate([np.zeros((0, 2)), *lines]), np.cumsum([len(line) for line in lines], dtype=np.int64)


def unpack(arrays: Mapping[str, Array]) -> MapElements:
    """The elements of packed arrays. Raises ValueError if the arrays do not fit together."""
    return MapElements(
        _unpack_lanelets(arrays),
        _split_lines(arrays["area_points"], arrays["area_ends"]),
        _split_lines(arrays["border_points"], arrays["border_ends"]),
    )


def _split_lines(points: Array, ends: Array) -> tuple[Array, ...]:
    """The lines of `_join_lines`. Raises ValueError."""
    whole = (
        ends.ndim == 1
        and (points.dtype.kind, ends.dtype.kind) == ("f", "i")
        and (np.diff(ends, prepend=0) >= 0).all()
        and points.shape == (ends[-1] if len(ends) else 0, 2)
    )
    if not whole:
        raise ValueError("the points of lines and their ends do not fit together")
    return tuple(np.split(points, ends[:-1])) if len(ends) else ()


def _unpack_lanelets(arrays: Mapping[str, Array]) -> dict[int, Lanelet]:
    ids, ends = arrays["ids"], arrays["ends"]
    lines = _split_lines(arrays["points"], ends)
    for_cars, shoulders, limits_mps, z_m = (arrays[name] for name in ("for_cars", "shoulders", "limits_mps", "z_m"))
    turns, light_rows, light_groups, stop_lines = (
        arrays[name] for name in ("turns", "light_rows", "light_groups", "stop_lines")
    )
    count, kinds = len(ids), [array.dtype.kind for array in (ids, for_cars, shoulders, limits_mps, z_m)]
    light_kinds = [array.dtype.kind for array in (turns, light_rows, light_groups, stop_lines)]
    whole = (
        len(lines) == 3 * count
        and for_cars.shape == shoulders.shape == limits_mps.shape == (count,)
        and kinds == [*"ibbff"]
        and light_kinds == [*"iiif"]
        and z_m.shape == (np.diff(ends, prepend=0).reshape(count, 3)[:, :2].sum(),)
        and turns.shape == (count,)
        and ((turns >= 0) & (turns < len(TURNS))).all()
        and light_rows.shape == light_groups.shape == stop_lines.shape[:1]
        and ((light_rows >= 0) & (light_rows < count)).all()
        and stop_lines.shape[1:] == (2, 2)
    )
    if not whole:
        raise ValueError("the arrays do not fit together")
    elevations = np.split(z_m, np.cumsum(np.diff(ends, prepend=0).reshape(count, 3)[:, :2])[:-1])
    lights: dict[int, list[LaneletLight]] = {}
    for row, group_id, line in zip(light_rows.tolist(), light_groups.tolist(), stop_lines, strict=True):
        lights.setdefault(row, []).append(LaneletLight(group_id, line if np.isfinite(line).all() else None))
    return {
        int(name): Lanelet(
            left=lines[3 * k],
            right=lines[3 * k + 1],
            centerline=lines[3 * k + 2],
            for_cars=bool(for_cars[k]),
            limit_mps=float(limits_mps[k]),
            left_z_m=elevations[2 * k],
            right_z_m=elevations[2 * k + 1],
            turn=TURNS[turns[k]],
            lights=tuple(lights.get(k, ())),
            is_shoulder=bool(shoulders[k]),
        )
        for k, name in enumerate(ids)
    }
