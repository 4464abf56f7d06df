"""Start of the ego, and its route from any pose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array
from ..core.lanes import lanes_at
from ..maps.roads import RoadError, RoadMap
from . import incidents
from .ego import Ego, ego_at_speed
from .network import navigation
from .network.navigation import DEFAULT_SPEED_LIMIT_MPS, EgoRoute
from .network.routing import random_walk
from .traffic.actors import TrafficSnapshot

MAX_TRIES = 400
WALK_M = 3000.0
MIN_ROUTES_M = (400.0, 100.0)  # shorter routes are not used; the second where the map has none of the first
MAX_OFFSET_M = 0.05  # a start is not in the middle of a lane change
MIN_CLEARANCE_M = 8.0  # no other road user is closer
FROM_START_M, TO_END_M = 12.0, 25.0  # of the lane
STANDING_SHARE = 0.3  # share of drives that begin standing
SHARE_OF_LIMIT = (0.3, 0.7)  # speeds of the others
BRAKING_MPS2 = 1.5  # every start leaves room to stop before others, and before the junction, this gently
MAX_LATERAL_M = 4.0  # agents at a larger lateral distance do not limit the speed
LATERAL_MPS2 = 1.5
LOOK_AHEAD_M = 30.0


@dataclass(frozen=True, eq=False)
class StartState:
    """Ego and route at the start, the arc length of the rear axle on the route, and that of the front on its lane."""

    ego: Ego
    route: EgoRoute
    at_m: float
    edges: tuple[str, ...]
    front_m: float


def sample_start(
    road_map: RoadMap, snapshot: TrafficSnapshot, space: object, generator: np.random.Generator, vehicle: VehicleConfig
) -> StartState:
    """A start on a lane without other road users nearby, at rest or at a moderate speed. Raises RoadError when there is
    none.
    """
    front = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    lanes = {
        key: float(geometry.arc_lengths(lane.lane.centerline)[-1])
        for key, lane in road_map.lanes.items()
        if lane.across_junction is None
    }
    roomy = [key for key, length in lanes.items() if length > FROM_START_M + TO_END_M]
    continued = [key for key in roomy if road_map.edges_after.get(road_map.lanes[key].edge)]
    for attempt in range(2 * MAX_TRIES if roomy else 0):
        min_route_m = MIN_ROUTES_M[attempt // MAX_TRIES]
        key = (continued or roomy)[int(generator.integers(len(continued or roomy)))]
        front_m = float(generator.uniform(FROM_START_M, lanes[key] - TO_END_M))
        at_rest, share = generator.random() < STANDING_SHARE, float(generator.uniform(*SHARE_OF_LIMIT))
        edges = random_walk(road_map, generator, WALK_M, road_map.lanes[key].edge)
        pose = geometry.sample(road_map.lanes[key].lane.centerline, np.array([front_m - front]))[0]
        ego = ego_at_speed(pose, 0.0)
        gaps = incidents.clearances(ego, snapshot.actors, vehicle)
        if gaps.min(initial=np.inf) < MIN_CLEARANCE_M or incidents.off_road(ego, space, vehicle):
            continue
        route = navigation.build_route(road_map, key, edges, begin_m=front_m)
        at_m = float(route.starts_m[0]) + front_m - front
        _, lateral_m = route.project(at_m, pose)
        if route.length_m - at_m < min_route_m or abs(lateral_m) > MAX_OFFSET_M:
            continue
        limit = road_map.lanes[key].lane.speed_limit_mps or DEFAULT_SPEED_LIMIT_MPS
        speed = 0.0 if at_rest else min(share * limit, _safe_speed(route, at_m, ego, snapshot, lanes[key] - front_m))
        return StartState(ego_at_speed(pose, speed), route, at_m, edges, front_m)
    raise RoadError(f"{road_map.name} has no free place on a lane for the ego to start from")


def _safe_speed(route: EgoRoute, at_m: float, ego: Ego, snapshot: TrafficSnapshot, to_junction_m: float) -> float:
    """A speed from which the ego can stop gently before other agents and the junction, and follow the next metres of
    road.
    """
    ahead = geometry.transform_points(geometry.invert(ego.map_from_ego), snapshot.actors.poses[:, :2])
    in_way = ahead[(ahead[:, 0] > 0) & (np.abs(ahead[:, 1]) < MAX_LATERAL_M)]
    room = min(float(in_way[:, 0].min(initial=np.inf)) - 2 * MIN_CLEARANCE_M, to_junction_m)
    line = geometry.sample(route.line, at_m + np.arange(0.0, LOOK_AHEAD_M, 2.0))
    curvature = np.abs(geometry.wrap(np.diff(line[:, 2]))).max() / 2.0
    return float(min(np.sqrt(2 * BRAKING_MPS2 * max(room, 0.0)), np.sqrt(LATERAL_MPS2 / max(curvature, 1e-3))))


def route_from_pose(
    road_map: RoadMap, map_from_ego: Array, generator: np.random.Generator
) -> tuple[EgoRoute, float] | None:
    """A route from the lane of a pose, and the arc length of the pose on it; None if there is none."""
    candidates = {key: lane.lane for key, lane in road_map.lanes.items()}
    for key in sorted(lanes_at(candidates, map_from_ego)):
        for road in _next_roads(road_map, key):
            edges = random_walk(road_map, generator, WALK_M, road_map.lanes[road].edge)
            if len(edges) < 2:
                continue
            route = navigation.build_route(road_map, road, edges)
            at_m, _ = route.project(float(route.starts_m[0]), map_from_ego, behind_m=60.0, ahead_m=float("inf"))
            return route, at_m
    return None


def _next_roads(road_map: RoadMap, key: int) -> list[int]:
    """The lane itself if it belongs to a road, else the road lanes that it leads to."""
    roads: list[int] = []
    todo = [key]
    while todo:
        key = todo.pop()
        lane = road_map.lanes[key]
        if lane.across_junction is None:
            roads.append(key)
        else:
            todo.extend(lane.lane.successors)
    return roads
