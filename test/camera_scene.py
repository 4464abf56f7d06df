"""A crossroads with traffic lights and actors for the cameras of the proving ground, built without SUMO."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import shapely

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.lanes import Lane
from reflectdrive_ros.maps.roads import RoadLane, RoadMap, RoadType, Signal, Turn
from reflectdrive_ros.sim.render import appearance
from reflectdrive_ros.sim.traffic.actors import Actors, Lamp, Shape

LANE_M = 3.3
JUNCTION_M = 10.0  # from the middle to where its roads end
WAYS = {"east": (0.0, 2), "north": (0.5 * np.pi, 1), "west": (np.pi, 2), "south": (-0.5 * np.pi, 1)}  # heading, lanes
SIZES = {
    Shape.CAR: (4.6, 1.9, 1.5),
    Shape.VAN: (5.6, 2.1, 2.4),
    Shape.TRUCK: (9.0, 2.5, 3.6),
    Shape.BUS: (12.0, 2.55, 3.2),
    Shape.MOTORCYCLE: (2.2, 0.8, 1.5),
    Shape.BICYCLE: (1.8, 0.6, 1.75),
    Shape.PEDESTRIAN: (0.5, 0.6, 1.75),
    Shape.CONE: (0.4, 0.4, 0.7),
    Shape.BARRIER: (0.5, 2.0, 1.0),
    Shape.DOOR: (1.0, 0.15, 1.4),
}
EGO = np.array([-60.0, -0.5 * LANE_M, 0.0])  # in the left lane, towards the junction
ALL_GREEN = np.full(6, Lamp.GREEN)


def crossroads():
    """A road of two lanes each way from west to east, crossed by one of one lane each way, with signals."""
    lanes, roads, signals = {}, {}, []
    for name, (heading, count) in WAYS.items():
        ahead = np.array([np.cos(heading), np.sin(heading)])
        right = np.array([ahead[1], -ahead[0]])
        for direction, (begin, end) in (("to", (-200.0, -JUNCTION_M)), ("from", (JUNCTION_M, 200.0))):
            keys = []
            for index in range(count):
                lateral = (count - index - 0.5) * LANE_M * right
                line = np.linspace(begin, end, 20)[:, None] * ahead + lateral
                key, across = len(lanes), len(lanes) + 1
                arrives = direction == "to"
                lanes[key] = road_lane(line, f"{name}_{direction}", index, None, (across,) if arrives else ())
                keys.append(key)
                if arrives:
                    over = np.linspace(-JUNCTION_M, JUNCTION_M, 5)[:, None] * ahead + lateral
                    lanes[across] = road_lane(over, f":middle_{key}", 0, "middle", ())
                    stop = -(JUNCTION_M + 0.5) * ahead + lateral
                    ends = np.array([stop - 0.5 * LANE_M * right, stop + 0.5 * LANE_M * right])
                    signals.append(Signal("lights", len(signals), key, (across,), ends))
            roads[f"{name}_{direction}"] = shapely.union_all([lanes[key].lane.polygons[0] for key in keys])
    half_m, wide, narrow = JUNCTION_M, 2 * LANE_M, LANE_M
    middle = shapely.MultiPoint([(x, y) for x in (-half_m, half_m) for y in (-wide, wide)]).convex_hull
    middle = middle.union(shapely.box(-narrow, -half_m, narrow, half_m)).convex_hull
    walkways = [box(x, 40.0, y, y + 2.2) for x in (-190.0, 14.0) for y in (wide + 0.3, -wide - 2.5)]
    walkways = [np.array([(a, c), (b, c), (b, d), (a, d)]) for a, b, c, d in (strip for strip in walkways)]
    crossing = np.array([(-18.0, -wide), (-14.0, -wide), (-14.0, wide), (-18.0, wide)])
    return RoadMap(
        "crossroads",
        Path("none.net.xml"),
        lanes,
        roads,
        {"middle": middle},
        tuple(walkways),
        (crossing,),
        (),
        tuple(signals),
        {},
    )


def box(x, long, low, high):
    return x, x + long, low, high


def road_lane(line, edge, index, across, successors):
    area = shapely.LineString(line).buffer(0.5 * LANE_M, cap_style="flat")
    lane = Lane(line, (area,), successors, (), (), 13.9)
    return RoadLane(lane, f"{edge}_{index}", edge, index, LANE_M, across, Turn.STRAIGHT, RoadType.PLAIN)


def actors(*rows):
    """Rows of shape, x, y, heading in the ego frame, and further attributes by name."""
    poses = geometry.compose(EGO, np.array([row[1:4] for row in rows]))
    attributes = [row[4] if len(row) > 4 else {} for row in rows]
    return Actors(
        np.array([tell.get("id", 40 + k) for k, tell in enumerate(attributes)]),
        poses,
        np.array([tell.get("speed", 0.0) for tell in attributes]),
        np.array([SIZES[row[0]] for row in rows]),
        np.array([int(row[0]) for row in rows]),
        np.array([tell.get("braking", False) for tell in attributes]),
        np.array([tell.get("indicator", 0) for tell in attributes]),
    )


PLAIN = replace(appearance.sample_appearance(1), noise=0, pitch_rad=0.0, roll_rad=0.0, height_m=0.0)
