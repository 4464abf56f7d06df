"""Converts a LaneletRoute (lanelet ids) to a line to follow, and gives the road area.

The map holds lanelets in the map frame, by id; it does not depend on files or topics. `lanelet_file.py` reads it from
an .osm file, `vector_map.py` from Autoware's topic.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from ..core.lanes import Lane, LaneSegments
from ..core.messages import BadMessage, require_frame
from .elevation import MapElevation
from .lanelet_elements import Lanelet, MapElements

ROUTE_POINTS_MAX = 2000  # longer routes are thinned
LANE_STEP_M = 2.0  # of points along a lane
ELEVATION_STEP_M = 1.0  # likewise, of those that have elevation
ROUNDING_M = (
    6.0  # corners of the map are rounded over this length: so the car recorded on the test map drove them, to 0.2 m
)
ROUNDING_STEP_M = 0.5
SPACING_M, BEND_RAD = 2.0, 0.1  # spacing of the route's points: this distance, or less after this change of heading
LANE_CHANGE_GAP_M = 0.5  # a lane that begins further than this from the end of the one before is a lane change
GAP_MAX_M = 20.0  # further than any lane change leads: these lanelets do not follow each other
LANE_CHANGE_M = 30.0  # length of a lane change
START_OFFSET_MAX_M = 50.0  # a start further than this from its own lanelet is in another frame
CENTERLINE_TOLERANCE_M = (
    0.1  # a centreline nowhere further from the middle of its bounds was computed, or might have been
)
STOP_LINE_TOLERANCE_M = 2.0  # stop lines of two maps whose middles are closer than this are the same line

NOT_AHEAD = "the route's goal is not ahead of its start: set a goal further on"


@dataclass(frozen=True)
class MapSource:
    """Origin of a map: its name and advice for messages."""

    name: str
    if_misplaced: str  # advice if car or route are far from its lanelets
    if_another: str  # a lanelet of the route is not in it


@dataclass(frozen=True, eq=False)
class MapLights:
    """The traffic lights of a map: one row for each light of each lanelet for cars."""

    lanelet_ids: Array  # (M,) int64
    group_ids: Array  # (M,) int64
    turns: tuple[str, ...]  # of the lanelets, see `lanelet_elements.TURNS`
    stop_lines: Array  # (M, 2, 2) m, map frame: left and right end in driving direction of the lanelet
    without_stop_line: int  # rows whose stop line is the start of the lanelet, because the map has none


class LaneletMap:
    """Lanelets in the map frame, by id, the areas of intersections, and lines that no car crosses."""

    def __init__(self, elements: MapElements, source: MapSource) -> None:
        self.lanelets, self.intersections, self.source = elements.lanelets, elements.intersections, source
        self.borders = [shapely.LineString(line) for line in elements.borders if len(line) >= 2]

    def route(self, message: Any, map_frame: str, points_max: int = ROUTE_POINTS_MAX) -> tuple[Array, Array]:
        """Poses (L, 3) in the map from start to goal of an autoware_planning_msgs/LaneletRoute, and speed limits (L,)
        in m/s, NaN where the map has none.

        Follows the centrelines of the preferred lanelets, corners rounded. Raises BadMessage for a route that is not on
        this map.
        """
        require_frame(message.header, map_frame, "the route")
        if not message.segments:
            raise BadMessage("the route has no segments: set a goal")
        start, goal = (np.array([[p.position.x, p.position.y]]) for p in (message.start_pose, message.goal_pose))
        if not np.isfinite([start, goal]).all():
            raise BadMessage("the route's start or goal holds NaN or infinity")
        ids = [int(segment.preferred_primitive.id) for segment in message.segments]
        lanes = [self._lane(lanelet_id) for lanelet_id in ids]
        (start_m,), (start_off_m,) = geometry.project(lanes[0], start)
        if abs(start_off_m) > START_OFFSET_MAX_M:
            raise BadMessage(
                f"the route starts {abs(start_off_m):.0f} m from its first lanelet {ids[0]}: they are in different "
                f"frames; {self.source.if_misplaced}"
            )
        (goal_m,), _ = geometry.project(lanes[-1], goal)
        if len(ids) == 1 and goal_m < start_m:
            raise BadMessage(NOT_AHEAD)
        begins, ends = [start_m, *[0.0] * (len(ids) - 1)], [*[np.inf] * (len(ids) - 1), goal_m]
        lanes = [cut_lane(lane, begin, end) for lane, begin, end in zip(lanes, begins, ends, strict=True)]
        lanes.append(np.column_stack([goal, lanes[-1][-1:, 2]]))
        line = join_lanes(lanes, [*(f"lanelet {lanelet_id}" for lanelet_id in ids), "the goal"])
        if geometry.arc_lengths(line)[-1] < SPACING_M:
            raise BadMessage(NOT_AHEAD)
        line = thin_line(round_corners(line), points_max)
        return np.column_stack([line[:, :2], geometry.headings_along(line)]), line[:, 2]

    def road_near(self, center: Array, reach_m: float) -> list[Any]:
        """Shapely polygons, in the map, of lanelets for cars, shoulders and intersections within `reach_m` of a point
        (x, y)."""
        low, high = self._road_boxes
        near = ((low <= center[:2] + reach_m) & (high >= center[:2] - reach_m)).all(axis=1)
        return [self.road[index] for index in np.flatnonzero(near)]

    def touches_road(self, outline: Array) -> bool:
        """Whether any part of an outline (N, 2), in the map, is in a lanelet for cars, a shoulder or intersection."""
        low, high = self._road_boxes
        near = ((low <= outline.max(axis=0)) & (high >= outline.min(axis=0))).all(axis=1)
        polygon = shapely.Polygon(outline)
        return any(polygon.intersects(self.road[index]) for index in np.flatnonzero(near))

    @cached_property
    def lane_segments(self) -> LaneSegments:
        """The lanelets for cars that have a length; some 0.1 ms each."""
        lanes = {}
        for lanelet_id, parts in self._polygons.items():
            with suppress(BadMessage):  # a route over it would be refused
                middle, limit_mps = self._lane(lanelet_id)[:, :2], self.lanelets[lanelet_id].limit_mps
                lanes[lanelet_id] = Lane(middle, tuple(parts), (), (), (), limit_mps if limit_mps > 0.0 else None)
        return LaneSegments.of(lanes)

    @cached_property
    def lights(self) -> MapLights:
        """Those of the lanelets for cars; a light without a stop line gets the start of its lanelet."""
        rows: list[tuple[int, int, str, Array]] = []
        without = 0
        for lanelet_id, lanelet in self.lanelets.items():
            if not (lanelet.lights and lanelet.for_cars and len(lanelet.left) and len(lanelet.right)):
                continue
            left, right = align_bounds(lanelet.left, lanelet.right)
            middle = middle_line(lanelet.left, lanelet.right)
            if geometry.arc_lengths(middle)[-1] < 1e-3:
                continue  # a route over it would be refused
            for light in lanelet.lights:
                ends = np.stack([left[0], right[0]])
                if light.stop_line is None:
                    without += 1
                else:
                    ends = order_ends(light.stop_line, middle)
                rows.append((lanelet_id, light.group_id, lanelet.turn, ends))
        return MapLights(
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] for row in rows], np.int64),
            tuple(row[2] for row in rows),
            np.reshape([row[3] for row in rows], (-1, 2, 2)).astype(float),
            without,
        )

    @cached_property
    def elevation(self) -> MapElevation | None:
        """Elevation at the middle of the lanelets for cars; None for a map without elevation. Some 0.1 ms a lanelet."""
        lines = []
        for lanelet in self.lanelets.values():
            if lanelet.for_cars and len(lanelet.left) and len(lanelet.right):
                bounds = (lanelet.left, lanelet.left_z_m), (lanelet.right, lanelet.right_z_m)
                left, right = (np.column_stack(bound) for bound in bounds)
                lines.append(middle_line(left, right, ELEVATION_STEP_M))
        elevation = MapElevation(lines)
        return None if elevation.is_flat else elevation

    @cached_property
    def road(self) -> list[Any]:
        """Polygons of lanelets for cars, shoulders and intersections, of which lanelets leave corners out; some 0.05 ms
        a lanelet."""
        shoulders = (_ring(lanelet) for lanelet in self.lanelets.values() if lanelet.is_shoulder)
        areas = map(_polygons_within, (*shoulders, *self.intersections))
        return [part for parts in (*self._polygons.values(), *areas) for part in parts]

    @cached_property
    def _polygons(self) -> dict[int, list[Any]]:
        """Polygons of each lanelet for cars; one whose bounds cross is repaired."""
        polygons = {}
        for lanelet_id, lanelet in self.lanelets.items():
            if lanelet.for_cars and len(lanelet.left) and len(lanelet.right):
                polygons[lanelet_id] = _polygons_within(_ring(lanelet))
        return polygons

    @cached_property
    def _road_boxes(self) -> tuple[Array, Array]:
        """Least and largest x, y (P, 2) of each polygon of the road."""
        bounds = shapely.bounds(self.road).reshape(-1, 4)
        return bounds[:, :2], bounds[:, 2:]

    def _lane(self, lanelet_id: int) -> Array:
        """(N, 3) x, y and speed limit (m/s or NaN) along the middle of a lanelet."""
        lanelet = self.lanelets.get(lanelet_id)
        if lanelet is None:
            raise BadMessage(f"the route's lanelet {lanelet_id} is not in {self.source.name}: {self.source.if_another}")
        no_length = BadMessage(f"lanelet {lanelet_id} of {self.source.name} has no length: correct the map")
        if not (len(lanelet.left) and len(lanelet.right)):
            raise no_length
        middle = middle_line(lanelet.left, lanelet.right)
        if geometry.arc_lengths(middle)[-1] >= 1e-3 and len(lanelet.centerline):
            middle = select_centerline(lanelet.centerline, middle)
        if geometry.arc_lengths(middle)[-1] < 1e-3:
            raise no_length
        return np.column_stack([middle, np.full(len(middle), lanelet.limit_mps)])


def _ring(lanelet: Lanelet) -> Array:
    """(N, 2) the left bound and back along the right one; empty without one of them."""
    if not (len(lanelet.left) and len(lanelet.right)):
        return np.zeros((0, 2))
    return np.concatenate([lanelet.left, align_direction(lanelet.right, lanelet.left)[::-1]])


def _polygons_within(ring: Array) -> list[Any]:
    """Shapely polygons within a ring of points (N, 2); one that crosses itself is repaired."""
    polygon = shapely.make_valid(shapely.Polygon(ring)) if len(ring) >= 3 else None
    return [part for part in shapely.get_parts(polygon) if part.geom_type == "Polygon" and part.area > 0.01]


def absent_stop_lines(stop_lines: Array, lights: MapLights) -> Array:
    """(K, 2, 2) those of stop lines (N, 2, 2), map frame, that are none of these lights', each once."""
    middles = shapely.points(stop_lines.mean(axis=1).round(1))
    there = shapely.STRtree(shapely.points(lights.stop_lines.mean(axis=1)))
    near, _ = there.query(middles, "dwithin", STOP_LINE_TOLERANCE_M)
    absent = np.setdiff1d(np.arange(len(stop_lines)), near)
    _, first = np.unique(shapely.get_coordinates(middles[absent]), axis=0, return_index=True)
    return np.asarray(stop_lines[absent[np.sort(first)]])


def lanelets_of_route(message: Any) -> set[int]:
    """Ids of the lanelets of an autoware_planning_msgs/LaneletRoute, those beside the preferred ones included."""
    preferred = {int(segment.preferred_primitive.id) for segment in message.segments}
    return preferred.union(*({int(lane.id) for lane in segment.primitives} for segment in message.segments))


def select_centerline(centerline: Array, middle: Array) -> Array:
    """(N, 2) the centreline, as dense as the middle of the bounds and in the same direction.

    Autoware's map loader gives each lanelet a centreline with a point every 5 m, which cuts tight bends: if it equals
    the middle of the bounds, the finer one is used.
    """
    _, off_m = geometry.project(middle, centerline)
    if np.abs(off_m).max() <= CENTERLINE_TOLERANCE_M:
        return middle
    return resample_evenly(align_direction(centerline, middle), len(middle))


def align_direction(line: Array, model: Array) -> Array:
    """The line, turned round where that brings its ends nearer to those of the model."""
    there, back = line[[0, -1], :2] - model[[0, -1], :2], line[[-1, 0], :2] - model[[0, -1], :2]
    return line if np.hypot(*there.T).sum() <= np.hypot(*back.T).sum() else line[::-1]


def order_ends(ends: Array, middle: Array) -> Array:
    """(2, 2) the ends of a stop line as its left and right end, seen along the middle (N, 2) of its lanelet."""
    (at,), _ = geometry.project(middle, ends.mean(axis=0, keepdims=True))
    heading = float(geometry.sample(middle, np.array([at]))[0, 2])
    to_left = (ends[0] - ends[1]) @ (-np.sin(heading), np.cos(heading))
    return ends if to_left >= 0.0 else ends[::-1]


def align_bounds(left: Array, right: Array) -> tuple[Array, Array]:
    """The left and right bound (A, D) and (B, D) of a lanelet, both in driving direction."""
    bounds = left, align_direction(right, left)
    x, y = np.concatenate([bounds[0], bounds[1][::-1]])[:, :2].T  # up on one side and back on the other
    if np.dot(x, np.roll(y, -1)) > np.dot(np.roll(x, -1), y):  # counter-clockwise: against the driving direction
        return bounds[0][::-1], bounds[1][::-1]
    return bounds


def middle_line(left: Array, right: Array, step_m: float = LANE_STEP_M) -> Array:
    """(N, D) the middle of two bounds (A, D) and (B, D) at equal shares of their lengths, as Autoware draws it; D is 2,
    or 3 with elevation.

    lanelet2's own centreline zigzags by up to 90 degrees where the bounds have points at different arc lengths. Nor can
    its sense of direction be used: it is computed at loading from the degrees, which maps in a local frame leave empty.
    """
    bounds = align_bounds(left, right)
    longest_m = max(geometry.arc_lengths(bound)[-1] for bound in bounds)
    count = max(int(np.ceil(longest_m / step_m)) + 1, 2)
    return np.asarray(0.5 * (resample_evenly(bounds[0], count) + resample_evenly(bounds[1], count)))


def resample_evenly(line: Array, count: int) -> Array:
    """(count, D) points from end to end of a line (N, D), equally far apart in the plane."""
    along = geometry.arc_lengths(line)
    at = np.linspace(0.0, along[-1], count)
    return np.column_stack([np.interp(at, along, column) for column in line.T])


def cut_lane(lane: Array, from_m: float, to_m: float) -> Array:
    """The part of a lane (N, 3) between two arc lengths; at least one point."""
    along = geometry.arc_lengths(lane)
    inside = lane[(along > from_m) & (along < to_m)]
    at = np.clip([from_m, to_m], 0.0, along[-1])
    ends = np.column_stack([geometry.sample(lane[:, :2], at)[:, :2], lane[[0, -1], 2]])
    if from_m >= to_m:
        return np.asarray(ends[:1])
    return np.concatenate([ends[:1], inside, ends[1:]])


def join_lanes(lanes: list[Array], names: list[str]) -> Array:
    """One line (N, 3) from lanes in order; sidesteps from lane to lane become slanted over LANE_CHANGE_M."""
    gaps = [0.0, *(float(np.hypot(*(b[0, :2] - a[-1, :2]))) for a, b in pairwise(lanes))]
    widest = int(np.argmax(gaps))
    if gaps[widest] > GAP_MAX_M:
        jump = f"{gaps[widest]:.0f} m from {names[widest - 1]} to {names[widest]}"
        raise BadMessage(f"the route jumps {jump}: plan the route again on this map")
    line = np.concatenate(lanes)
    along = geometry.arc_lengths(line)
    first = np.cumsum([0, *(len(lane) for lane in lanes[:-1])])  # index of each lane's first point
    keep = np.ones(len(line), bool)
    for index, gap in zip(first, gaps, strict=True):
        if gap > LANE_CHANGE_GAP_M:
            keep &= np.abs(along - (along[index] - 0.5 * gap)) > 0.5 * LANE_CHANGE_M
    keep[[0, -1]] = True
    return geometry.distinct_points(line[keep], closer_than=1e-3)


def round_corners(line: Array) -> Array:
    """The line (N, 3) every ROUND_STEP_M, each point the mean of its neighbourhood; the ends stay."""
    along = geometry.arc_lengths(line)
    count = max(int(np.ceil(along[-1] / ROUNDING_STEP_M)) + 1, 2)
    at = np.linspace(0.0, along[-1], count)
    index = np.arange(count)
    reach = np.minimum(round(0.5 * ROUNDING_M / ROUNDING_STEP_M), np.minimum(index, count - 1 - index))
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(resample_evenly(line[:, :2], count), axis=0)])
    means = (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)[:, None]
    limits = line[np.clip(np.searchsorted(along, at, side="right") - 1, 0, len(line) - 1), 2]
    return np.column_stack([means, limits])


def thin_line(line: Array, points_max: int) -> Array:
    """The points of a line (N, 3) that define its shape, SPACING_M apart and closer in bends; at most `points_max`."""
    step_m = np.diff(geometry.arc_lengths(line))
    bend = np.abs(geometry.wrap(np.diff(geometry.headings_along(line))))
    density = np.concatenate([[0.0], np.cumsum(step_m / SPACING_M + bend / BEND_RAD)])
    count = min(max(int(np.ceil(density[-1])) + 1, 2), points_max)
    indices = np.searchsorted(density, np.linspace(0.0, density[-1], count) - 1e-9)
    return np.asarray(line[np.unique(np.minimum(indices, len(line) - 1))])
