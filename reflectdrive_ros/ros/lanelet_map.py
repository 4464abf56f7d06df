"""A LaneletRoute is a list of lanelet ids; the map's .osm file turns it into a line to follow, and tells the road.

Autoware sends its map as a serialised C++ object that Python cannot read, so the file itself is read, with the lanelet2
bindings. Autoware's maps tell every point's place in the map frame with the tags local_x and local_y, which lanelet2
keeps as attributes but does not use; maps without these tags are projected (UTM) around a given origin.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from .. import geometry
from ..config import ConfigError, InputsConfig
from ..domain import Array
from .convert import BadMessage, require_frame

LANE_STEP_M = 2.0  # of points along a lane
ROUND_M = (
    6.0  # corners of the map are rounded over this length: so the car recorded on the test map drove them, to 0.2 m
)
ROUND_STEP_M = 0.5
SPACING_M, BEND_RAD = 2.0, 0.1  # of the route's points: the next comes after this way, or earlier after this bend
SIDESTEP_M = 0.5  # a lane that begins further than this from the end of the one before is a lane change
GAP_MAX_M = 20.0  # further than any lane change leads: these lanelets do not follow each other
LANE_CHANGE_M = 30.0  # a lane change takes this long
START_FAR_M = 50.0  # a start further than this from its own lanelet is in another frame
KMH, MPH = 1 / 3.6, 0.44704  # m/s

NOT_FOR_CARS = ("crosswalk", "walkway", "shared_walkway", "stairs", "bicycle_lane")

NOT_AHEAD = "the route's goal is not ahead of its start: set a goal further on"


class LaneletMap:
    """The lanelets of one .osm file in the map frame."""

    def __init__(self, settings: InputsConfig) -> None:
        """Raises ConfigError: one sentence that says which file or setting cannot be used and what to do."""
        self.path = Path(settings.lanelet_map)
        origin = settings.lanelet_origin_lat, settings.lanelet_origin_lon
        routes = settings.route_type == "lanelet"
        asks = "inputs.route_type is lanelet" if routes else "inputs.drivable_type is map"
        if not settings.lanelet_map:
            needs = "and a LaneletRoute holds lanelet ids only" if routes else "and no map is given"
            raise ConfigError(f"{asks}, {needs}: set inputs.lanelet_map to the map's .osm file")
        if not self.path.is_file():
            raise ConfigError(f"inputs.lanelet_map is {self.path}, which does not exist: give the map's .osm file")
        try:
            from lanelet2 import io, projection  # late: only who drives on lanelets needs it
        except ImportError as fault:
            raise ConfigError(
                f"{asks}, but lanelet2 cannot be imported ({fault}): install the ROS package lanelet2, or "
                "`pip install lanelet2`, or " + ("send the route as nav_msgs/Path" if routes else "choose another type")
            ) from None
        # where the tags decide, degrees only have to get through: UTM refuses what is far from its origin
        project = projection.UtmProjector if any(origin) else projection.MercatorProjector
        try:
            # "robust": elements of Autoware that lanelet2 does not know are no reason to refuse a map
            self._map, complaints = io.loadRobust(str(self.path), project(io.Origin(*origin)))
        except RuntimeError as fault:
            why = " ".join(str(fault).split())
            raise ConfigError(f"inputs.lanelet_map {self.path} cannot be read: {why}") from None
        if not len(self._map.laneletLayer):
            why = next((f" ({c.strip()})" for c in map(str, list(complaints)[1:])), "")
            raise ConfigError(f"inputs.lanelet_map {self.path} holds no lanelet{why}: give another map or origin")
        if not any(origin):
            self._place_by_tags()

    def _place_by_tags(self) -> None:
        """Move every point to its local_x, local_y. Comes before any centreline is asked for: lanelet2 keeps those."""
        for point in self._map.pointLayer:
            tags = point.attributes
            try:
                point.x, point.y = float(tags["local_x"]), float(tags["local_y"])
                usable = math.isfinite(point.x + point.y)
            except (KeyError, ValueError):
                usable = False
            if not usable:
                raise ConfigError(
                    f"inputs.lanelet_map {self.path} has no usable local_x and local_y on node {point.id}: set "
                    "inputs.lanelet_origin_lat and inputs.lanelet_origin_lon to where the map frame has its origin"
                )

    def route(self, message: Any, map_frame: str, points_max: int) -> tuple[Array, Array]:
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
        if abs(start_off_m) > START_FAR_M:
            raise BadMessage(
                f"the route starts {abs(start_off_m):.0f} m from its first lanelet {ids[0]}: they are in different "
                "frames; check inputs.lanelet_map, inputs.lanelet_origin_lat and inputs.lanelet_origin_lon"
            )
        (goal_m,), _ = geometry.project(lanes[-1], goal)
        if len(ids) == 1 and goal_m < start_m:
            raise BadMessage(NOT_AHEAD)
        begins, ends = [start_m, *[0.0] * (len(ids) - 1)], [*[np.inf] * (len(ids) - 1), goal_m]
        lanes = [cut(lane, begin, end) for lane, begin, end in zip(lanes, begins, ends, strict=True)]
        lanes.append(np.column_stack([goal, lanes[-1][-1:, 2]]))
        line = joined(lanes, [*(f"lanelet {lanelet_id}" for lanelet_id in ids), "the goal"])
        if geometry.arc_lengths(line)[-1] < SPACING_M:
            raise BadMessage(NOT_AHEAD)
        line = thinned(rounded(line), points_max)
        return np.column_stack([line[:, :2], geometry.headings_along(line)]), line[:, 2]

    def road_near(self, place: Array, reach_m: float) -> list[Any]:
        """Shapely polygons, in the map, of the lanelets for cars that come within `reach_m` of a place (x, y)."""
        low, high = self._road_boxes
        near = ((low <= place[:2] + reach_m) & (high >= place[:2] - reach_m)).all(axis=1)
        return [self._road[index] for index in np.flatnonzero(near)]

    @cached_property
    def _road(self) -> list[Any]:
        """Polygons of all lanelets for cars; one whose bounds cross themselves is mended."""
        found = []
        for lanelet in self._map.laneletLayer:
            tags = lanelet.attributes
            if "subtype" in tags and tags["subtype"] in NOT_FOR_CARS:
                continue
            left, right = xy(lanelet.leftBound), xy(lanelet.rightBound)
            ring = np.concatenate([left, alike(right, left)[::-1]])
            polygon = shapely.make_valid(shapely.Polygon(ring)) if len(ring) >= 3 else None
            found += [part for part in shapely.get_parts(polygon) if part.geom_type == "Polygon" and part.area > 0.01]
        return found

    @cached_property
    def _road_boxes(self) -> tuple[Array, Array]:
        """Least and largest x, y (P, 2) of each polygon of the road."""
        bounds = shapely.bounds(self._road).reshape(-1, 4)
        return bounds[:, :2], bounds[:, 2:]

    def _lane(self, lanelet_id: int) -> Array:
        """(N, 3) x, y and speed limit (m/s or NaN) along the middle of a lanelet."""
        if not self._map.laneletLayer.exists(lanelet_id):
            raise BadMessage(
                f"the route's lanelet {lanelet_id} is not in {self.path.name}: "
                "set inputs.lanelet_map to the map that the route was planned on"
            )
        lanelet = self._map.laneletLayer[lanelet_id]
        middle = between(xy(lanelet.leftBound), xy(lanelet.rightBound))
        if lanelet.centerline.id:  # drawn by the map's author; one that lanelet2 made up has no id
            middle = evenly(alike(xy(lanelet.centerline), middle), len(middle))
        if geometry.arc_lengths(middle)[-1] < 1e-3:
            raise BadMessage(f"lanelet {lanelet_id} of {self.path.name} has no length: mend the map")
        tags = lanelet.attributes
        limit = speed_mps(tags["speed_limit"]) if "speed_limit" in tags else np.nan
        return np.column_stack([middle, np.full(len(middle), limit)])


def xy(line: Any) -> Array:
    """(N, 2) points of a lanelet2 line."""
    return np.array([(point.x, point.y) for point in line])


def alike(line: Array, model: Array) -> Array:
    """The line, turned round where that brings its ends nearer to those of the model."""
    there, back = line[[0, -1], :2] - model[[0, -1], :2], line[[-1, 0], :2] - model[[0, -1], :2]
    return line if np.hypot(*there.T).sum() <= np.hypot(*back.T).sum() else line[::-1]


def between(left: Array, right: Array) -> Array:
    """(N, 2) the middle of two bounds (A, 2) and (B, 2) at equal shares of their lengths, as Autoware draws it.

    lanelet2's own centreline zigzags by up to 90 degrees where the bounds have points at different places. Nor can its
    sense of direction be used: it is made at loading, from the degrees, which maps in a frame of their own leave empty.
    """
    bounds = [left, alike(right, left)]
    x, y = np.concatenate([bounds[0], bounds[1][::-1]]).T  # up on one side and back on the other
    if np.dot(x, np.roll(y, -1)) > np.dot(np.roll(x, -1), y):  # counter-clockwise: left would be right
        bounds = [bound[::-1] for bound in bounds]
    longest_m = max(geometry.arc_lengths(bound)[-1] for bound in bounds)
    count = max(int(np.ceil(longest_m / LANE_STEP_M)) + 1, 2)
    return np.asarray(0.5 * (evenly(bounds[0], count) + evenly(bounds[1], count)))


def evenly(line: Array, count: int) -> Array:
    """(count, 2) points from end to end of a line, equally far apart."""
    along = geometry.arc_lengths(line)
    at = np.linspace(0.0, along[-1], count)
    return np.column_stack([np.interp(at, along, line[:, axis]) for axis in (0, 1)])


def cut(lane: Array, from_m: float, to_m: float) -> Array:
    """The part of a lane (N, 3) between two places along it; at least one point."""
    along = geometry.arc_lengths(lane)
    inside = lane[(along > from_m) & (along < to_m)]
    at = np.clip([from_m, to_m], 0.0, along[-1])
    ends = np.column_stack([geometry.sample(lane[:, :2], at)[:, :2], lane[[0, -1], 2]])
    if from_m >= to_m:
        return np.asarray(ends[:1])
    return np.concatenate([ends[:1], inside, ends[1:]])


def joined(lanes: list[Array], names: list[str]) -> Array:
    """One line (N, 3) from lanes in order; sidesteps from lane to lane become slanted over LANE_CHANGE_M."""
    gaps = [0.0, *(float(np.hypot(*(b[0, :2] - a[-1, :2]))) for a, b in pairwise(lanes))]
    widest = int(np.argmax(gaps))
    if gaps[widest] > GAP_MAX_M:
        jump = f"{gaps[widest]:.0f} m from {names[widest - 1]} to {names[widest]}"
        raise BadMessage(f"the route jumps {jump}: plan it anew on this map")
    line = np.concatenate(lanes)
    along = geometry.arc_lengths(line)
    first = np.cumsum([0, *(len(lane) for lane in lanes[:-1])])  # index of each lane's first point
    keep = np.ones(len(line), bool)
    for index, gap in zip(first, gaps, strict=True):
        if gap > SIDESTEP_M:
            keep &= np.abs(along - (along[index] - 0.5 * gap)) > 0.5 * LANE_CHANGE_M
    keep[[0, -1]] = True
    return geometry.distinct_points(line[keep], closer_than=1e-3)


def rounded(line: Array) -> Array:
    """The line (N, 3) every ROUND_STEP_M, each point the mean of its neighbourhood; the ends stay where they are."""
    along = geometry.arc_lengths(line)
    count = max(int(np.ceil(along[-1] / ROUND_STEP_M)) + 1, 2)
    at = np.linspace(0.0, along[-1], count)
    index = np.arange(count)
    reach = np.minimum(round(0.5 * ROUND_M / ROUND_STEP_M), np.minimum(index, count - 1 - index))
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(evenly(line, count), axis=0)])
    means = (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)[:, None]
    limits = line[np.clip(np.searchsorted(along, at, side="right") - 1, 0, len(line) - 1), 2]
    return np.column_stack([means, limits])


def thinned(line: Array, points_max: int) -> Array:
    """The points of a line (N, 3) that tell its shape, SPACING_M apart and closer in bends; at most `points_max`."""
    step_m = np.diff(geometry.arc_lengths(line))
    bend = np.abs(geometry.wrap(np.diff(geometry.headings_along(line))))
    worth = np.concatenate([[0.0], np.cumsum(step_m / SPACING_M + bend / BEND_RAD)])
    count = min(max(int(np.ceil(worth[-1])) + 1, 2), points_max)
    kept = np.searchsorted(worth, np.linspace(0.0, worth[-1], count) - 1e-9)
    return np.asarray(line[np.unique(np.minimum(kept, len(line) - 1))])


def speed_mps(text: str) -> float:
    """The tag speed_limit: km/h unless it says mph; NaN for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(km/h|kmh|mph|)\s*", text)
    return float(found[1]) * (MPH if found[2] == "mph" else KMH) if found else float("nan")
