"""Traffic demand of a town: vehicles, pedestrians and their routes, sampled by seed and written as a SUMO route file.

All road users exist from the start, spread over the town, on routes longer than a recording, so that none enters or
leaves in view of the cameras. Each driver has its own vehicle and driver parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadMap
from ..network import lane_permissions
from ..network.routing import random_walk
from . import kerbside
from .actors import ActorShape
from .kerbside import Kerbside

DRIVERS_PER_LANE_KM = 11.0
MIN_DRIVERS, MAX_DRIVERS = 20, 130
SMALL_MAP_PER_LANE_KM = 22.0  # a map too small for MIN_DRIVERS has so many
WALKERS_PER_LANE_KM = 4.5
MIN_WALKERS, MAX_WALKERS = 8, 60
SIDEWALK_PER_WALKER_M = 20.0
ROUTE_M = 1500.0  # `Simulation` extends a route before it ends
LAPS = 4
WALK_M = 800.0  # 7 minutes for a fast pedestrian; one without such a route walks to and fro
IDS_PER_SEED = 4096  # so that appearances, which follow from the id, differ between seeds
SHAPE_SHARES: Mapping[ActorShape, float] = {
    ActorShape.CAR: 0.74,
    ActorShape.VAN: 0.06,
    ActorShape.TRUCK: 0.05,
    ActorShape.BUS: 0.02,
    ActorShape.MOTORCYCLE: 0.03,
    ActorShape.BICYCLE: 0.10,
}


@dataclass(frozen=True, eq=False)
class RoadUser:
    """A driver or walker: body, first route, and SUMO's attributes of its type."""

    id: int
    shape: ActorShape
    size: tuple[float, float, float]  # length, width, height m
    edges: tuple[str, ...]
    attributes: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Demand:
    """All that is on the road of one town for one seed."""

    seed: int
    drivers: tuple[RoadUser, ...]
    walkers: tuple[RoadUser, ...]
    kerbside: Kerbside  # parked vehicles, cones, barriers
    cycling: RoadMap  # the network for bicycles: a cycle lane may not lead everywhere
    next_id: int  # ids from here on are free

    @staticmethod
    def sample(road_map: RoadMap, seed: int, density: float = 1.0, rare_road_weight: float = 1.0) -> Demand:
        """Samples the road users; `density` 1 is an ordinary afternoon.

        Drivers choose rare roads `rare_road_weight` times as often. Raises RoadError if no route continues.
        """
        generator = np.random.default_rng([seed, 41])
        first = int(generator.integers(1, 2**24)) * IDS_PER_SEED
        starts, weights, lane_km = _start_edges(road_map)
        cycling = lane_permissions.restrict_to_bicycles(road_map)
        cycle_starts, cycle_weights, _ = _start_edges(cycling)
        drivers = []
        least = min(MIN_DRIVERS, round(SMALL_MAP_PER_LANE_KM * lane_km))
        for number in range(int(np.clip(round(DRIVERS_PER_LANE_KM * density * lane_km), least, MAX_DRIVERS))):
            shape = list(SHAPE_SHARES)[int(generator.choice(len(SHAPE_SHARES), p=list(SHAPE_SHARES.values())))]
            if shape is ActorShape.BICYCLE and cycle_starts:
                start = cycle_starts[int(generator.choice(len(cycle_starts), p=cycle_weights))]
                edges = random_walk(cycling, generator, ROUTE_M, start, rare_road_weight)
            else:
                shape = ActorShape.CAR if shape is ActorShape.BICYCLE else shape
                start = starts[int(generator.choice(len(starts), p=weights))]
                edges = random_walk(road_map, generator, ROUTE_M, start, rare_road_weight)
            drivers.append(RoadUser(first + number, shape, *_sample_type(shape, generator, edges)))
        walkers: list[RoadUser] = []
        sidewalks = lane_permissions.Sidewalks.read(road_map)
        most = min(MAX_WALKERS, round(sum(sidewalks.lengths_m.values()) / SIDEWALK_PER_WALKER_M))
        for _ in range(min(most, round(max(WALKERS_PER_LANE_KM * density * lane_km, MIN_WALKERS)))):
            if edges := sidewalks.sample_walk(generator, WALK_M):
                person = _sample_type(ActorShape.PEDESTRIAN, generator, edges)
                walkers.append(RoadUser(first + len(drivers) + len(walkers), ActorShape.PEDESTRIAN, *person))
        next_id = first + len(drivers) + len(walkers)
        static = kerbside.sample_kerbside(road_map, generator, next_id)
        return Demand(seed, tuple(drivers), tuple(walkers), static, cycling, next_id + len(static.standing))

    def route_file(self) -> str:
        """The text of a route file for SUMO; ids are those of the road users."""
        lines = ["<routes>"]
        for driver in self.drivers:
            lines.append(_xml_element("vType", {"id": f"t{driver.id}", **driver.attributes}))
            # Bicycles start at the right edge of their lane.
            lane, lateral = ("first", "right") if driver.shape is ActorShape.BICYCLE else ("random", "center")
            lines.append(
                f'<vehicle id="{driver.id}" type="t{driver.id}" depart="0" departLane="{lane}" departPos="random_free"'
                f' departPosLat="{lateral}" departSpeed="max"><route edges="{" ".join(driver.edges)}"/></vehicle>'
            )
        for walker in self.walkers:
            lines.append(_xml_element("vType", {"id": f"t{walker.id}", **walker.attributes}))
            lines.append(
                f'<person id="{walker.id}" type="t{walker.id}" depart="0" departPos="random">'
                f"{self._walk_xml(walker.edges)}</person>"
            )
        return "\n".join([*lines, "</routes>\n"])

    def _walk_xml(self, edges: tuple[str, ...]) -> str:
        there, back = (f'<walk edges="{" ".join(leg)}"/>' for leg in (edges, edges[::-1]))
        return (there + back) * LAPS


def _xml_element(tag: str, attributes: Mapping[str, str]) -> str:
    return f"<{tag} {' '.join(f'{name}={quoteattr(value)}' for name, value in attributes.items())}/>"


def _start_edges(road_map: RoadMap) -> tuple[list[str], Array, float]:
    """Road edges with a continuation (all, if none has), probability of a start on each by length, and kilometres of
    lane in all."""
    room: dict[str, float] = {}
    roads = [lane for lane in road_map.lanes.values() if lane.across_junction is None]
    for lane in [lane for lane in roads if road_map.edges_after.get(lane.edge)] or roads:
        room[lane.edge] = room.get(lane.edge, 0.0) + float(geometry.arc_lengths(lane.lane.centerline)[-1])
    total = sum(room.values()) or 1.0
    return list(room), np.array(list(room.values())) / total, total / 1000.0


# --- vehicle and driver ----------------------------------------------------------------------------------------------


def _sample_type(
    shape: ActorShape, generator: np.random.Generator, edges: tuple[str, ...]
) -> tuple[tuple[float, float, float], tuple[str, ...], Mapping[str, str]]:
    """Size, shape and SUMO attributes of one road user."""

    def between(low: float, high: float) -> float:
        return round(float(generator.uniform(low, high)), 3)

    size, habits = _TYPE_SAMPLERS[shape](between)
    attributes = {
        **habits,
        "length": str(size[0]),
        "width": str(size[1]),
        "height": str(size[2]),
        "speedDev": "0",
    }
    return size, edges, attributes


SampleRange = Callable[[float, float], float]
TypeParameters = tuple[tuple[float, float, float], dict[str, str]]


def _driver_attributes(
    between: SampleRange, vehicle_class: str, accel: float, decel: float, speed_factor: float
) -> dict[str, str]:
    return {
        "vClass": vehicle_class,
        "carFollowModel": "IDM",  # human braking and starts; Krauss brakes at the last moment and oscillates
        "accel": str(accel),
        "decel": str(decel),
        "emergencyDecel": "8",
        "tau": str(between(0.8, 1.6)),
        "minGap": str(between(1.5, 3.0)),
        "speedFactor": str(speed_factor),
        "latAlignment": str(between(-0.15, 0.15)),  # lateral offset from the lane's centre
        "minGapLat": str(between(0.4, 0.7)),
        "maxSpeedLat": str(between(0.7, 1.2)),
        "lcMaxSpeedLatFactor": "0.2",  # a very slow car moves little to the side
        "lcMaxSpeedLatStanding": "0",
        "lcAssertive": str(between(0.8, 1.6)),
    }


def _car(between: SampleRange) -> TypeParameters:
    size = (between(4.0, 5.0), between(1.7, 1.95), between(1.45, 1.9))
    return size, _driver_attributes(between, "passenger", between(1.4, 2.6), between(2.5, 4.0), between(0.85, 1.15))


def _van(between: SampleRange) -> TypeParameters:
    size = (between(5.2, 6.6), between(1.95, 2.15), between(2.2, 2.8))
    return size, _driver_attributes(between, "delivery", between(1.2, 2.0), between(2.5, 3.5), between(0.85, 1.05))


def _truck(between: SampleRange) -> TypeParameters:
    size = (between(7.0, 10.5), between(2.3, 2.5), between(3.0, 3.8))
    return size, _driver_attributes(between, "truck", between(0.7, 1.2), between(2.0, 3.0), between(0.8, 0.95))


def _bus(between: SampleRange) -> TypeParameters:
    size = (between(10.5, 12.2), 2.5, between(3.0, 3.3))
    return size, _driver_attributes(between, "bus", between(0.8, 1.2), between(2.0, 3.0), between(0.8, 0.95))


def _motorcycle(between: SampleRange) -> TypeParameters:
    size = (between(2.0, 2.3), between(0.75, 0.9), between(1.5, 1.8))
    return size, _driver_attributes(between, "motorcycle", between(2.0, 3.5), between(3.0, 4.5), between(0.9, 1.15))


def _bicycle(between: SampleRange) -> TypeParameters:
    size = (between(1.6, 1.85), between(0.55, 0.7), between(1.55, 1.85))
    habits = _driver_attributes(between, "bicycle", between(0.8, 1.3), between(2.0, 3.0), 1.0)
    return size, {**habits, "maxSpeed": str(between(3.5, 6.5)), "minGap": "0.8", "latAlignment": "right"}


def _pedestrian(between: SampleRange) -> TypeParameters:
    size = (between(0.4, 0.6), between(0.45, 0.6), between(1.5, 1.95))
    return size, {"vClass": "pedestrian", "maxSpeed": str(between(0.9, 1.8)), "minGap": "0.25"}


_TYPE_SAMPLERS: Mapping[ActorShape, Callable[[SampleRange], TypeParameters]] = {
    ActorShape.CAR: _car,
    ActorShape.VAN: _van,
    ActorShape.TRUCK: _truck,
    ActorShape.BUS: _bus,
    ActorShape.MOTORCYCLE: _motorcycle,
    ActorShape.BICYCLE: _bicycle,
    ActorShape.PEDESTRIAN: _pedestrian,
}
