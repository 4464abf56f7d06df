"""Static objects beside the lanes: parked cars and their doors, cones, barriers and mid-block crossing points.

SUMO does not model them, so they keep `LANE_CLEARANCE_M` from the middle of each lane; `events.py` makes SUMO's drivers
react to open doors and to people on the road.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadLane, RoadMap
from .actors import Actors, Shape

LANE_CLEARANCE_M = 1.6  # from the centre of the lane: 0.3 m beside the widest vehicle
JUNCTION_DISTANCE_M = 14.0  # no object is closer to the ends of a lane
MAX_PARKING_SPEED_MPS = 17.0  # no car parks beside faster traffic
PARKED_SHARE = 0.4  # of the roads where one may park
MAX_BEND_RAD = 0.12  # over 12 m; parked cars would cut sharper bends
DOOR_WIDTH_M = 0.75
PEDESTRIAN_CLEARANCE_M = 0.4  # a person keeps this distance to a parked car, from the middle of the body
PARKED_RANGE_M = 6.0
WALK_AROUND_M = 2.5  # ahead of the parked body, where the walk around it begins
MAX_MID_BLOCK_M = 16.0
MIN_MID_BLOCK_ALONG_M = 32.0  # so that a car from the junction can still brake


@dataclass(frozen=True, eq=False)
class LanePoint:
    """Where a lane can be blocked for a while."""

    lane: int  # key of RoadMap.lanes
    along_m: float


@dataclass(frozen=True, eq=False)
class MidBlockCrossing:
    """A straight path across the road, from kerb to kerb, without a marked crossing."""

    start: Array  # (2,) m
    end: Array  # (2,) m
    lanes: tuple[LanePoint, ...]  # that it crosses, as they are met
    at_m: tuple[float, ...]  # distance from the start to the middle of each


@dataclass(frozen=True, eq=False)
class Door:
    """The driver's door of a parked car, when it is open."""

    pose: Array  # (3,) centre of the panel, it reaches into the road
    lane_point: LanePoint


@dataclass(frozen=True, eq=False)
class Kerbside:
    """Static objects beside the lanes, doors of parked cars, and crossings."""

    standing: Actors
    doors: tuple[Door, ...]
    mid_blocks: tuple[MidBlockCrossing, ...]

    def avoid_parked(self, people: Array) -> Array:
        """Positions (P, 2) of people on the sidewalk, moved laterally where a parked body stands on it."""
        if not len(people) or not len(self.standing):
            return people
        poses, sizes = self.standing.poses, self.standing.sizes
        offsets = people[:, None] - poses[:, :2]
        person, body = np.nonzero((offsets**2).sum(axis=-1) < PARKED_RANGE_M**2)
        heading = poses[body, 2]
        local = geometry.rotate(offsets[person, body], -heading)
        near = np.clip((WALK_AROUND_M + 0.5 * sizes[body, 0] - np.abs(local[:, 0])) / WALK_AROUND_M, 0.0, 1.0)
        half = 0.5 * sizes[body, 1] + PEDESTRIAN_CLEARANCE_M
        inside = np.where(np.abs(local[:, 1]) < half, half + local[:, 1], 0.0) * near * near * (3.0 - 2.0 * near)
        shift = inside[:, None] * np.stack([np.sin(heading), -np.cos(heading)], axis=-1)  # away from the road
        largest_last = np.argsort(inside, kind="stable")
        most = np.zeros((len(people), 2))
        most[person[largest_last]] = shift[largest_last]
        return np.asarray(people + most)


def sample_kerbside(road_map: RoadMap, generator: np.random.Generator, first_id: int) -> Kerbside:
    """Samples the static objects beside the lanes of a town."""
    occupied = _OccupiedSpace(road_map)
    bodies: list[tuple[Array, Array, Shape]] = []  # pose (3,), size (3,), shape
    doors: list[Door] = []
    mid_blocks: list[MidBlockCrossing] = []
    for key, lane in _rightmost_lanes(road_map):
        length = float(geometry.arc_lengths(lane.lane.centerline)[-1])
        if length < 2 * JUNCTION_DISTANCE_M + 10.0:
            continue
        parks = (lane.lane.speed_limit_mps or 0.0) <= MAX_PARKING_SPEED_MPS and generator.random() < PARKED_SHARE
        along, end = JUNCTION_DISTANCE_M + float(generator.uniform(0, 10)), length - JUNCTION_DISTANCE_M
        while parks and along < end:
            for _ in range(int(generator.integers(1, 6))):
                size = generator.uniform((3.9, 1.68, 1.42), (4.9, 1.92, 1.85))
                right_m = max(LANE_CLEARANCE_M, lane.width_m / 2 + float(generator.uniform(0.0, 0.2))) + size[1] / 2
                pose = _pose_right_of(lane, along + size[0] / 2, right_m, generator.normal(0.0, 0.015))
                if along + size[0] > end or not occupied.free(lane, along, pose, size):
                    break
                bodies.append((pose, size, Shape.CAR))
                doors.append(_open_door(key, pose, size, along + size[0] * 0.6))
                along += size[0] + float(generator.uniform(0.7, 1.6))
            mid_block = (
                _find_mid_block(road_map, occupied, lane, along + 0.6) if along > MIN_MID_BLOCK_ALONG_M else None
            )
            if mid_block and along < end:
                mid_blocks.append(mid_block)
            along += float(generator.uniform(6, 45))
        mid_block = _find_mid_block(road_map, occupied, lane, float(generator.uniform(0.4, 0.8)) * length)
        if mid_block and generator.random() < 0.4:
            mid_blocks.append(mid_block)
        if generator.random() < 0.12:
            bodies += _place_road_works(
                occupied, lane, float(generator.uniform(JUNCTION_DISTANCE_M, length - JUNCTION_DISTANCE_M)), generator
            )
    for lane in road_map.lanes.values():
        if lane.across_junction is None and not lane.lane.successors and lane.lane.adjacent:
            bodies += _close_lane_end(road_map, occupied, lane)
    ids = first_id + np.arange(len(bodies))
    return Kerbside(_static_actors(ids, bodies), tuple(doors), tuple(mid_blocks))


def _rightmost_lanes(road_map: RoadMap) -> list[tuple[int, RoadLane]]:
    """The rightmost lane of each road."""
    outer: dict[str, tuple[int, RoadLane]] = {}
    for key, lane in road_map.lanes.items():
        if lane.across_junction is None and (lane.edge not in outer or lane.index < outer[lane.edge][1].index):
            outer[lane.edge] = key, lane
    return list(outer.values())


class _OccupiedSpace:
    """Occupied ground: lanes, crossings, cycle lanes, and objects placed before."""

    def __init__(self, road_map: RoadMap) -> None:
        lanes = [(key, part) for key, lane in road_map.lanes.items() for part in lane.lane.polygons]
        rings = [shapely.Polygon(ring) for ring in (*road_map.crossings, *road_map.cycleways)]
        self.keys = [key for key, _ in lanes] + [-1] * len(rings)
        self.parts = np.array([part for _, part in lanes] + rings, dtype=object)
        self.tree = shapely.STRtree(self.parts)
        self.standing: list[tuple[Array, Array]] = []

    def free(self, lane: RoadLane, along: float, pose: Array, size: Array) -> bool:
        """Whether a body has room where the lane is not bent; its ground is then occupied."""
        ends = geometry.sample(lane.lane.centerline, np.array([along - 3.0, along + size[0] + 3.0]))
        if abs(geometry.wrap(ends[1, 2] - ends[0, 2])) > MAX_BEND_RAD:
            return False
        corners = geometry.box_corners(pose, size[:2])
        box = shapely.polygons(corners)
        if (shapely.area(shapely.intersection(self.parts[self.tree.query(box)], box)) > 0.05).any():
            return False
        for other_pose, other_size in self.standing:
            if np.hypot(*(other_pose[:2] - pose[:2])) < 12.0 and geometry.boxes_overlap(
                pose, size[:2], other_pose, other_size[:2]
            ):
                return False
        self.standing.append((pose, size))
        return True


def _pose_right_of(lane: RoadLane, along: float, right_m: float, turned: float = 0.0) -> Array:
    """(3,) pose to the right of a lane's middle."""
    pose = geometry.sample(lane.lane.centerline, np.array([along]))[0]
    return geometry.compose(pose, np.array([0.0, -right_m, turned]))


def _open_door(lane: int, pose: Array, size: Array, along: float) -> Door:
    """Hinged 0.9 m behind the front axle's middle, open by 65 degrees."""
    hinge = geometry.compose(pose, np.array([0.18 * size[0], size[1] / 2, 0.0]))
    return Door(geometry.compose(hinge, np.array([-0.16, DOOR_WIDTH_M / 2, 0.0])), LanePoint(lane, along))


def _find_mid_block(
    road_map: RoadMap, occupied: _OccupiedSpace, lane: RoadLane, along: float
) -> MidBlockCrossing | None:
    """The path across the road from an arc length of its outer lane; None if a junction or crossing is near."""
    length = float(geometry.arc_lengths(lane.lane.centerline)[-1])
    if not MIN_MID_BLOCK_ALONG_M <= along <= length - JUNCTION_DISTANCE_M:
        return None
    start = _pose_right_of(lane, along, lane.width_m / 2 + 0.5)[:2]
    ray_end = _pose_right_of(lane, along, -MAX_MID_BLOCK_M)[:2]
    ray = shapely.LineString([start, ray_end])
    met: list[tuple[float, float, int]] = []
    for index in occupied.tree.query(ray, predicate="intersects"):
        part = occupied.parts[index].intersection(ray)
        if part.length < 0.5:
            continue
        key = occupied.keys[index]
        if key < 0 or road_map.lanes[key].across_junction is not None:
            return None
        reached = [float(np.hypot(*(np.array(point) - start))) for point in shapely.get_coordinates(part)]
        met.append((min(reached), max(reached), key))
    met.sort()
    crossed: list[tuple[float, float, int]] = []
    for one in met:
        if one[0] - (crossed[-1][1] if crossed else 0.0) > 1.5:
            break
        crossed.append(one)
    reach = crossed[-1][1] + 0.6 if crossed else 0.0
    if not crossed or reach > MAX_MID_BLOCK_M - 1.0:
        return None
    direction = (ray_end - start) / np.hypot(*(ray_end - start))
    lane_points = []
    for near, distant, key in crossed:
        middle = start + direction * (near + distant) / 2
        (at,), _ = geometry.project(road_map.lanes[key].lane.centerline, middle[None])
        lane_points.append(LanePoint(key, float(at)))
    return MidBlockCrossing(
        start, start + direction * reach, tuple(lane_points), tuple((a + b) / 2 for a, b, _ in crossed)
    )


def _place_road_works(
    occupied: _OccupiedSpace, lane: RoadLane, along: float, generator: np.random.Generator
) -> list[tuple[Array, Array, Shape]]:
    """A small road works at the kerb: a barrier between cones."""
    bodies = []
    for step in range(int(generator.integers(3, 7))):
        shape, size = (Shape.BARRIER, (1.5, 0.35, 1.0)) if step == 2 else (Shape.CONE, (0.38, 0.38, 0.75))
        right_m = max(LANE_CLEARANCE_M, lane.width_m / 2 - 0.1) + size[1] / 2
        at = along + 1.9 * step
        pose = _pose_right_of(lane, at, right_m)
        if occupied.free(lane, at, pose, np.array(size)):
            bodies.append((pose, np.array(size), shape))
    return bodies


def _close_lane_end(road_map: RoadMap, occupied: _OccupiedSpace, lane: RoadLane) -> list[tuple[Array, Array, Shape]]:
    """Barriers and cones beyond the end of a lane that leads nowhere."""
    length = float(geometry.arc_lengths(lane.lane.centerline)[-1])
    bodies = []
    rightmost = all(road_map.lanes[other].index > lane.index for other in lane.lane.adjacent)
    outwards = 1.0 if rightmost else -1.0  # away from the lanes that go on
    for ahead, right_m, shape, size in (
        (1.5, 1.0 * outwards, Shape.BARRIER, (0.35, 1.5, 1.0)),
        (1.2, 2.0 * outwards, Shape.CONE, (0.38, 0.38, 0.75)),
        (2.4, 0.6 * outwards, Shape.CONE, (0.38, 0.38, 0.75)),
    ):
        pose = _pose_right_of(lane, length + ahead, right_m)
        if occupied.free(lane, length, pose, np.array(size)):
            bodies.append((pose, np.array(size), shape))
    return bodies


def _static_actors(ids: Array, bodies: list[tuple[Array, Array, Shape]]) -> Actors:
    if not bodies:
        return Actors.none()
    count = len(bodies)
    return Actors(
        ids=ids,
        poses=np.array([pose for pose, _, _ in bodies]),
        speeds_mps=np.zeros(count),
        sizes=np.array([size for _, size, _ in bodies]),
        shapes=np.array([int(shape) for _, _, shape in bodies]),
        braking=np.zeros(count, bool),
        indicator=np.zeros(count, np.int64),
    )
