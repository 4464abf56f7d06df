"""The map around one pose, ego frame: areas and red lights of the driving score; lanes, lights and stop lines of
observations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array, LanePolylines, LightState, StopLines, TrafficLights
from ..core.lanes import LaneSegments
from ..maps.roads import RoadMap
from ..scoring.areas import REACH_M, MapAreas, RedLights
from ..scoring.simulate import STEPS
from .network.navigation import lanes_by_edge
from .traffic.actors import Lamp

RADIUS_M = 100.0  # a plan of 4 s gets no further at any limit of a town
LIGHTS_RADIUS_M = 250.0  # as far as a route reaches

LIGHT_STATES = {Lamp.RED: LightState.RED, Lamp.AMBER: LightState.AMBER, Lamp.GREEN: LightState.GREEN}
SLIVER_M2 = 1e-4  # a smaller part of a cut area is rounding


@dataclass(frozen=True, eq=False)
class _Layers:
    """The polygons of a map as rings, searched by position."""

    tree: shapely.STRtree
    rings: tuple[Array, ...]  # lanes, then roads, then junctions
    lane_keys: Array  # of the lanes' rings
    roads_from: int
    junctions_from: int


def areas(
    road_map: RoadMap,
    map_from_ego: Array,
    route_lanes: Collection[int],
    radius_m: float = RADIUS_M,
    reach_m: float = REACH_M,
) -> MapAreas:
    """The map's areas within `radius_m` of a pose (3,), in the ego frame, with an index of `reach_m`.

    `route_lanes` and their neighbours in the same direction count as on the route. Takes some milliseconds.
    """
    layers = _layers(road_map)
    near = np.sort(layers.tree.query(shapely.Point(map_from_ego[:2]), "dwithin", radius_m))
    ego_from_map = geometry.invert(map_from_ego)
    lanes = near[near < layers.roads_from]
    roads = near[(near >= layers.roads_from) & (near < layers.junctions_from)]
    junctions = near[near >= layers.junctions_from]
    lane_rings, road_rings, junction_rings = (
        _transform_rings(ego_from_map, [layers.rings[index] for index in part]) for part in (lanes, roads, junctions)
    )
    on_route = route_with_neighbours(road_map, route_lanes)
    return MapAreas(
        lanes=lane_rings,
        lane_on_route=tuple(int(layers.lane_keys[index]) in on_route for index in lanes),
        roadblocks=road_rings,
        intersections=junction_rings,
        reach_m=reach_m,
    )


def _transform_rings(ego_from_map: Array, rings: Sequence[Array]) -> tuple[Array, ...]:
    """Rings in the ego frame, moved all at once."""
    if not rings:
        return ()
    points = geometry.transform_points(ego_from_map, np.concatenate(rings))
    return tuple(np.split(points, np.cumsum([len(ring) for ring in rings])[:-1]))


def route_with_neighbours(road_map: RoadMap, route_lanes: Collection[int]) -> frozenset[int]:
    """The lanes of a route, those of the same edges, and those that join two of them across a junction.

    A car on any of these lanes is on its route.
    """
    lanes = road_map.lanes
    edges = {lanes[key].edge for key in route_lanes if lanes[key].across_junction is None}
    keys = frozenset(route_lanes).union(*(lanes_by_edge(road_map)[edge] for edge in edges))
    joining = {
        after
        for key in keys
        for after in lanes[key].lane.successors
        if lanes[after].across_junction is not None and keys.intersection(lanes[after].lane.successors)
    }
    return keys | joining


def red_lights(
    road_map: RoadMap, lamps_over_time: Array, map_from_ego: Array, route_lanes: Collection[int]
) -> RedLights:
    """Lanes across junctions that are on the route, have a light and are red at some time of the next 4 s.

    `lamps_over_time` (41 or more, S) holds Lamp of `road_map.signals` at 0, 0.1, .. s. Amber is not red. Raises
    ValueError on another shape.
    """
    lamps = np.asarray(lamps_over_time)
    if lamps.ndim != 2 or len(lamps) < STEPS + 1 or lamps.shape[1] != len(road_map.signals):
        expected = f"({STEPS + 1} or more, {len(road_map.signals)})"
        raise ValueError(f"red_lights.lamps_over_time has shape {lamps.shape}, expected {expected}")
    ego_from_map = geometry.invert(map_from_ego)
    on_route = route_with_neighbours(road_map, route_lanes)
    rings, red = [], []
    is_red = lamps[: STEPS + 1] == Lamp.RED
    for index in np.flatnonzero(is_red.any(axis=0)).tolist():
        red_steps = is_red[:, index]
        for key in road_map.signals[index].connectors:
            if key in on_route:
                for ring in (ring for part in road_map.lanes[key].lane.polygons for ring in _simple_rings(part)):
                    rings.append(geometry.transform_points(ego_from_map, ring))
                    red.append(red_steps)
    return RedLights(tuple(rings), np.array(red) if red else np.zeros((0, STEPS + 1), bool))


def lane_polylines(
    road_map: RoadMap, lamps: Array, map_from_ego: Array, route: Array, route_lanes: Collection[int]
) -> tuple[LanePolylines, LanePolylines]:
    """Lanes near a pose (3,), and those of the route's roads. `lamps` (S,) holds Lamp of `road_map.signals`; `route`
    (L, 2+) is in the ego frame."""
    lights = {
        key: int(LIGHT_STATES.get(Lamp(int(lamp)), LightState.UNKNOWN))
        for signal, lamp in zip(road_map.signals, lamps, strict=True)
        for key in signal.connectors
    }
    segments, on_route = _lane_segments(road_map), route_with_neighbours(road_map, route_lanes)
    return segments.near(map_from_ego, lights), segments.along(route, on_route, map_from_ego, lights)


def lights_of_route(
    road_map: RoadMap, lamps: Array, map_from_ego: Array, route_lanes: Collection[int]
) -> tuple[TrafficLights, StopLines]:
    """Lights and their stop lines on the route (`route_with_neighbours`) within LIGHTS_RADIUS_M of a pose (3,), nearest
    first; a light's id is its index in `road_map.signals`."""
    on_route = route_with_neighbours(road_map, route_lanes)
    ids = np.array([k for k, each in enumerate(road_map.signals) if on_route.intersection(each.connectors)], int)
    lines = np.reshape([road_map.signals[index].stop_line for index in ids], (-1, 2, 2))
    ends = geometry.transform_points(geometry.invert(map_from_ego), lines)
    away_m = np.hypot(*ends.mean(axis=1).T)
    order = np.argsort(away_m, kind="stable")
    order = order[away_m[order] < LIGHTS_RADIUS_M]
    states = [int(LIGHT_STATES.get(Lamp(int(lamps[index])), LightState.UNKNOWN)) for index in ids[order]]
    return TrafficLights(ids[order], np.array(states, np.int64)), StopLines(ends[order], ids[order])


@lru_cache(maxsize=4)
def _lane_segments(road_map: RoadMap) -> LaneSegments:
    return LaneSegments.of({key: lane.lane for key, lane in road_map.lanes.items()})


@lru_cache(maxsize=4)
def _layers(road_map: RoadMap) -> _Layers:
    """Built once per map, in some tens of milliseconds."""
    lanes = [
        (key, ring)
        for key, lane in road_map.lanes.items()
        for part in lane.lane.polygons
        for ring in _simple_rings(part)
    ]
    roads = [ring for road in road_map.roads.values() for ring in _simple_rings(road)]
    junctions = [ring for junction in road_map.junctions.values() for ring in _simple_rings(junction)]
    rings = (*(ring for _, ring in lanes), *roads, *junctions)
    return _Layers(
        shapely.STRtree([shapely.Polygon(ring) for ring in rings]),
        rings,
        np.array([key for key, _ in lanes], int),
        len(lanes),
        len(lanes) + len(roads),
    )


def _simple_rings(area: Any) -> list[Array]:
    """An area as simple rings without holes, as the score requires; an area with a hole is cut."""
    if not isinstance(area, shapely.Polygon):
        return [ring for part in shapely.get_parts(area) for ring in _simple_rings(part) if part.area > SLIVER_M2]
    if not len(area.interiors):
        return [np.asarray(shapely.get_coordinates(area.exterior)[:-1])]
    left, low, right, high = area.bounds
    cut = shapely.Polygon(area.interiors[0]).centroid.x
    return [
        ring
        for half in (shapely.box(left, low, cut, high), shapely.box(cut, low, right, high))
        for ring in _simple_rings(shapely.intersection(area, half))
    ]
