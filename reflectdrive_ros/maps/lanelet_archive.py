"""Writes a road network as Autoware's map: the boost archive of lanelet2 that a LaneletMapBin holds.

Every lane for cars, also one across a junction, becomes a lanelet with its centreline and speed limit; one across a
junction also has its turn direction and, where a light controls it, a regulatory element with the stop line. A shoulder
becomes a lanelet of the subtype road_shoulder, the surface of a junction, of which lanelets leave corners out, a
polygon of the type intersection_area. Lanelets that follow each other or lie side by side share no points, so
lanelet2's own router finds no route through the map.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from .roads import RoadLane, RoadMap, Signal, Turn

MIN_LENGTH_M = 0.5  # shorter lanes are joints inside a junction
LAMP_WIDTH_M = 0.4  # of the line that stands for the lamps in the map
TURN_DIRECTIONS = {Turn.STRAIGHT: "straight", Turn.LEFT: "left", Turn.RIGHT: "right"}
MITRE_LIMIT = 2.0  # of the corners of bounds, as of the lanes' polygons


def lanelet_id(lane: int) -> int:
    """The id of the lanelet of a lane, a key of `RoadMap.lanes`; lanelet2 reserves 0."""
    return lane + 1


def light_id(road_map: RoadMap, signal: int) -> int:
    """The id of the regulatory element of a light, an index of `RoadMap.signals`; Autoware's group id."""
    return lanelet_id(max(road_map.lanes, default=0)) + 1 + signal


def write_archive(road_map: RoadMap) -> bytes:
    """The bytes of the map, metres in the map frame.

    The same map gives the same bytes, but for the last eight: lanelet2's counter of ids in this process. Raises
    ImportError where lanelet2 is not installed.
    """
    from lanelet2 import core, io, projection  # imported late: an optional dependency

    lanes = {
        key: lane
        for key, lane in road_map.lanes.items()
        if geometry.arc_lengths(lane.lane.centerline)[-1] >= MIN_LENGTH_M
    }
    ids = count(light_id(road_map, len(road_map.signals)))  # of points and lines

    def line_string(points: Array) -> Any:
        return core.LineString3d(next(ids), [core.Point3d(next(ids), x, y, 0.0) for x, y in points.tolist()])

    def strip(own_id: int, centerline: Array, width_m: float, attributes: Mapping[str, str]) -> Any:
        left, right = (line_string(bound(centerline, width_m, side)) for side in (1.0, -1.0))
        lanelet = core.Lanelet(own_id, left, right)
        for name, value in attributes.items():
            lanelet.attributes[name] = value
        return lanelet

    lanelets = {}
    for key, lane in lanes.items():
        lanelets[key] = strip(lanelet_id(key), lane.lane.centerline, lane.width_m, tags(lane))
        lanelets[key].centerline = line_string(lane.lane.centerline)
    for index, signal in enumerate(road_map.signals):
        stop_line, lamps = line_string(signal.stop_line), line_string(lamp_line(road_map, signal))
        stop_line.attributes["type"], lamps.attributes["type"] = "stop_line", "traffic_light"
        light = core.TrafficLight(light_id(road_map, index), core.AttributeMap(), [lamps], stop_line)
        entry = next((key for key in signal.connectors if key in lanelets), None)  # the rest lies inside the junction
        if entry is not None:
            lanelets[entry].addRegulatoryElement(light)
    shoulder_tags = {"type": "lanelet", "subtype": "road_shoulder"}
    shoulders = [strip(next(ids), each.centerline, each.width_m, shoulder_tags) for each in road_map.shoulders]
    lanelet_map = core.createMapFromLanelets([*lanelets.values(), *shoulders])
    for junction in road_map.junctions.values():
        outline = shapely.get_coordinates(junction.exterior)[:-1].tolist()
        corners = [core.Point3d(next(ids), x, y, 0.0) for x, y in outline]
        area = core.Polygon3d(next(ids), corners, core.AttributeMap())
        area.attributes["type"], area.attributes["area"] = "intersection_area", "yes"
        lanelet_map.add(area)
    with tempfile.TemporaryDirectory() as folder:  # lanelet2 writes files only
        file = Path(folder) / "map.bin"
        io.write(str(file), lanelet_map, projection.MercatorProjector(io.Origin(0.0, 0.0)))
        return file.read_bytes()


def lamp_line(road_map: RoadMap, signal: Signal) -> Array:
    """(2, 2) where the lamps hang: beyond the junction, at the end of the lanes that the light controls."""
    line = road_map.lanes[signal.connectors[-1]].lane.centerline
    end, heading = np.split(geometry.sample(line, geometry.arc_lengths(line)[-1:])[0], [2])
    across = 0.5 * LAMP_WIDTH_M * np.concatenate([-np.sin(heading), np.cos(heading)])
    return np.stack([end + across, end - across])


def tags(lane: RoadLane) -> dict[str, str]:
    """The attributes of a lanelet for cars."""
    attributes = {
        "type": "lanelet",
        "subtype": "road",
        "location": "urban",
        "one_way": "yes",
        "participant:vehicle": "yes",
    }
    if lane.lane.speed_limit_mps is not None:
        attributes["speed_limit"] = f"{3.6 * lane.lane.speed_limit_mps:.2f} km/h"
    if lane.across_junction is not None and lane.turn in TURN_DIRECTIONS:
        attributes["turn_direction"] = TURN_DIRECTIONS[lane.turn]
    return attributes


def bound(line: Array, width_m: float, side: float) -> Array:
    """(N, 2) the left (`side` 1) or right (-1) edge, in driving direction, of a lane along a centreline (V, 2)."""
    edge = shapely.offset_curve(
        shapely.LineString(line), side * 0.5 * width_m, join_style="mitre", mitre_limit=MITRE_LIMIT
    )
    parts = [part for part in shapely.get_parts(edge) if part.length > 0.0]
    if parts:
        longest = max(parts, key=lambda part: float(part.length))
        return np.asarray(shapely.get_coordinates(longest))
    # inside a bend that is tighter than the lane is wide, the edge is a point: the ends are joined
    heading = geometry.headings_along(line)[[0, -1]]
    return np.asarray(line[[0, -1]] + side * 0.5 * width_m * np.column_stack([-np.sin(heading), np.cos(heading)]))
