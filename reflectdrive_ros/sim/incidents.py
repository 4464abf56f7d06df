"""Incidents of one step of a drive: contacts and fault, corners off the road, red lights.

The rules are those of the driving score (`scoring.metrics`), applied to one instant instead of a plan.
"""

from __future__ import annotations

import numpy as np

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import AgentKind, Array
from ..maps.roads import RoadMap
from ..scoring import contacts, drivable, metrics
from . import local_map
from .ego import Ego
from .traffic.actors import Actors, Lamp, TrafficSnapshot

CLEARANCE_MAX_M = 20.0  # gaps to agents are reported up to this
NEAR_M = 30.0  # the map this far around decides between which lanes a car is


def clearances(ego: Ego, actors: Actors, vehicle: VehicleConfig) -> Array:
    """(A,) metres from the ego's box to each actor's, 0 on contact; a lower bound, at most CLEARANCE_MAX_M."""
    size = np.array([vehicle.length_m, vehicle.width_m])
    gaps = np.full(len(actors), CLEARANCE_MAX_M)
    center = ego.box_center(vehicle)
    reach = CLEARANCE_MAX_M + 0.5 * np.hypot(*size) + 0.5 * np.hypot(actors.sizes[:, 0], actors.sizes[:, 1])
    near = np.flatnonzero(np.hypot(*(actors.poses[:, :2] - center[:2]).T) < reach)
    separation = geometry.box_separation(center, size, actors.poses[near], actors.sizes[near, :2])
    gaps[near] = np.clip(separation, 0.0, CLEARANCE_MAX_M)
    return gaps


def at_fault(ego: Ego, actors: Actors, index: int, road_map: RoadMap, vehicle: VehicleConfig) -> bool:
    """Whether a contact with an actor is the ego's fault (section 4 of the score's spec).

    It is if the ego moves, and the actor stands, or is hit by the front bumper, or is beside the ego while the ego is
    between lanes or off the road; never if the actor comes from behind.
    """
    if abs(ego.speed_mps) <= contacts.STOPPED_MPS:
        return False
    static = actors.kinds[index] == AgentKind.STATIC
    if static or abs(actors.speeds_mps[index]) <= contacts.STOPPED_MPS:
        return True
    x, y = geometry.transform_points(geometry.invert(ego.map_from_ego), actors.poses[index, :2])
    if abs(np.arctan2(y, x)) > contacts.BEHIND_RAD:
        return False
    front = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    bumper = geometry.compose(ego.map_from_ego, np.array([front, 0.0, 0.0]))
    width = np.array([0.0, vehicle.width_m])
    if geometry.boxes_overlap(bumper, width, actors.poses[index], actors.sizes[index, :2]):
        return True
    return between_lanes(ego, road_map, vehicle)


def between_lanes(ego: Ego, road_map: RoadMap, vehicle: VehicleConfig) -> bool:
    """Whether the car is over two lanes and within neither, or off the road."""
    around = local_map.areas(road_map, ego.map_from_ego, (), NEAR_M)
    center = np.array([[[vehicle.rear_axle_to_center_m, 0.0, 0.0]]])
    flags = metrics.ego_areas(center, np.array([vehicle.length_m, vehicle.width_m]), around, None)
    return bool(flags.multiple_lanes[0, 0] or flags.off_road[0, 0])


def off_road(ego: Ego, space: object, vehicle: VehicleConfig) -> bool:
    """Whether a corner of the car is off the drivable space (of `scoring.drivable.union_polygons`)."""
    corners = geometry.box_corners(ego.box_center(vehicle), np.array([vehicle.length_m, vehicle.width_m]))
    return not drivable.contains(space, corners).all()


class LinesToCross:
    """The stop lines of a map, and which of them a step crosses."""

    def __init__(self, road_map: RoadMap) -> None:
        self._signals = road_map.signals
        lines = np.array([signal.stop_line for signal in road_map.signals]).reshape(-1, 2, 2)
        self._left, self._across = lines[:, 0], lines[:, 1] - lines[:, 0]

    def crossed_at_red(
        self, before: Ego, after: Ego, snapshot: TrafficSnapshot, route: frozenset[int], front_m: float
    ) -> bool:
        """Whether the front (`front_m` ahead of the rear axle) crosses a red stop line in forward direction.

        If a line has one light per direction, the light of the route counts; off the route, all of them must be red.
        """
        if not len(self._left):
            return False
        tips = [
            geometry.transform_points(ego.map_from_ego, np.array([front_m, 0.0]))[None] - self._left
            for ego in (before, after)
        ]
        # Coordinates along and across the line: driving direction is its left-to-right turned left.
        length2 = np.maximum((self._across**2).sum(axis=1), 1e-9)
        sides = [(self._across[:, 0] * tip[:, 1] - self._across[:, 1] * tip[:, 0]) for tip in tips]
        share = (tips[1] * self._across).sum(axis=1) / length2
        crossed = np.flatnonzero((sides[0] <= 0) & (sides[1] > 0) & (share >= 0) & (share <= 1))
        ours = [index for index in crossed if route.intersection(self._signals[index].connectors)]
        judged = ours or list(crossed)
        return bool(judged) and all(snapshot.lamps[index] == Lamp.RED for index in judged)
