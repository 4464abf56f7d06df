"""The lanelet map around a recorded moment, as the areas that the PDM score uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from ..maps.lanelet_map import LaneletMap
from ..scoring.areas import MapAreas

RADIUS_M = 100.0  # a plan of 4 s gets no further at any limit of a town
LANE_GAP_M = 0.05  # by which lanes are grown to drivable space: adjacent ones have hairline gaps
ROUTE_STEP_M = 2.0


def near_polygons(lanelets: LaneletMap, map_from_ego: Array, reach_m: float) -> list[Any]:
    """Polygons of the lanes for cars within a distance of a pose (3,), map frame."""
    position = map_from_ego[:2]
    point = shapely.Point(position)
    return [part for part in lanelets.road_near(position, reach_m) if shapely.dwithin(part, point, reach_m)]


def areas_around(lanelets: LaneletMap | None, map_from_ego: Array, route: Array) -> MapAreas:
    """Lanes and drivable space within RADIUS_M, ego frame; none without a map. The lanes that contain points of the
    route (L, 3, ego frame) count as on the route. A hole counts as inside."""
    if lanelets is None:
        return MapAreas()
    ego_from_map = geometry.invert(map_from_ego)
    length_m = float(geometry.arc_lengths(route)[-1])
    line = shapely.points(geometry.sample(route, np.arange(0.0, length_m, ROUTE_STEP_M))[:, :2])
    lanes, on_route, roads = [], [], []
    for polygon in near_polygons(lanelets, map_from_ego, RADIUS_M):
        part = shapely.transform(polygon, lambda points: geometry.transform_points(ego_from_map, points))
        shapely.prepare(part)
        lanes.append(geometry.outer_ring(part))
        on_route.append(bool(shapely.contains(part, line).any()))
        roads.append(geometry.outer_ring(part.buffer(LANE_GAP_M, join_style="mitre", mitre_limit=2.0)))
    return MapAreas(tuple(lanes), tuple(on_route), roadblocks=tuple(roads))
