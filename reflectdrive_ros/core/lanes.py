"""The lane graph of a road, the line of a route through it, and the lanes near a vehicle as polylines.

A route follows lanes from the lane of the start with as few lane changes as possible. Its line changes lanes gradually,
and is extended straight where the map ends.

Polylines are the map of Diffusion Planner (Zheng et al. 2025): 70 lanes and 25 lanes of the route, of 20 points each.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely

from . import geometry
from .domain import Array, LanePolylines

SAME_DIRECTION_RAD = np.pi / 3  # a car within this of a lane's direction drives along it
LANE_REACH_M = 5.0  # inside a crossing, the lane that a turning car is about to meet may begin this far away
LANE_CHANGE_COST_M = 1000.0  # a lane change costs as much as this detour
ROUTE_BEHIND_M = 30.0
ROUTE_AHEAD_M = 250.0  # 8 s at the motorway limit
LANES_MAX, ROUTE_LANES_MAX, LANE_POINTS = 70, 25, 20  # of polylines
CHECKED_POINTS = (0, 5, 10, 14, 19)  # of a polyline, whose distance to a route is computed
LANE_RADIUS_M = 100.0  # of polylines, around the vehicle
SEGMENT_M = 50.0  # longer lanes are cut: their points would have a spacing above 2.6 m
MIN_LANE_M = 0.5  # shorter lanes are joints inside a junction
ROUTE_OFFSET_M = 7.5  # lanes this close to a route in its direction are those of its road: two lanes to either side
ROUTE_TURN_RAD = 0.5


@dataclass(frozen=True, eq=False)
class Lane:
    centerline: Array  # (V, 2) m, in driving direction
    polygons: tuple[Any, ...]  # shapely; more than one where the map's ring crosses itself
    successors: tuple[int, ...]
    predecessors: tuple[int, ...]
    adjacent: tuple[int, ...]  # neighbours in the same direction
    speed_limit_mps: float | None


def lanes_at(lanes: Mapping[int, Lane], pose: Array) -> list[int]:
    """Ids of the lanes that contain a pose with a heading along the lane; if there is none, of the nearest lanes in
    reach.
    """
    point = shapely.Point(pose[:2])
    gaps = {key: min(part.distance(point) for part in lane.polygons) for key, lane in lanes.items()}
    along_it = {
        key: gap
        for key, gap in gaps.items()
        if gap < LANE_REACH_M
        and abs(geometry.wrap(_heading_near(lanes[key].centerline, pose) - pose[2])) < SAME_DIRECTION_RAD
    }
    nearest = min(along_it.values(), default=0.0)
    return [key for key, gap in along_it.items() if gap == nearest]


def _heading_near(line: Array, pose: Array) -> float:
    (at,), _ = geometry.project(line, pose[None, :2])
    return float(geometry.sample(line, np.array([at]))[0, 2])


def same_road(lanes: Mapping[int, Lane], some: Sequence[int]) -> set[int]:
    """The lanes `some` with all adjacent lanes of the same direction."""
    road, todo = set(some), list(some)
    while todo:
        for other in lanes[todo.pop()].adjacent:
            if other not in road:
                road.add(other)
                todo.append(other)
    return road


def shortest_path(lanes: Mapping[int, Lane], start: int, ends: set[int]) -> list[int]:
    """The shortest path from a lane to any of `ends` with as few lane changes as possible; empty if there is none."""
    queue: list[tuple[float, int, list[int]]] = [(0.0, start, [start])]
    done = set()
    while queue:
        cost, lane, path = heapq.heappop(queue)
        if lane in ends:
            return path
        if lane in done:
            continue
        done.add(lane)
        length = geometry.arc_lengths(lanes[lane].centerline)[-1]
        for other in lanes[lane].successors:
            heapq.heappush(queue, (cost + length, other, [*path, other]))
        for other in lanes[lane].adjacent:
            heapq.heappush(queue, (cost + LANE_CHANGE_COST_M, other, [*path, other]))
    return []


def route_line(lanes: Mapping[int, Lane], path: Sequence[int], ego: Array) -> Array:
    """The line (L, 2) along a path of lanes, from ROUTE_BEHIND_M behind `ego` (2,) to ROUTE_AHEAD_M ahead of it."""
    before, after = [path[0]], [path[-1]]
    while lanes[before[0]].predecessors and before[0] not in before[1:]:
        before.insert(0, _straightest(lanes, before[0], lanes[before[0]].predecessors, -1))
    while lanes[after[-1]].successors and after[-1] not in after[:-1]:
        after.append(_straightest(lanes, after[-1], lanes[after[-1]].successors, 1))
    pieces = [lanes[key].centerline for key in before[:-1]]
    for changed in _stretches(lanes, [*path, *after[1:]]):
        pieces.append(_crossing(lanes[changed[0]].centerline, lanes[changed[-1]].centerline, ego))
    line = geometry.drop_reversals(np.concatenate(pieces), 0.3)  # at joints, lanes may overlap by some metres
    (at,), _ = geometry.project(line, ego[None])
    ends = geometry.sample(line, at + np.array([-ROUTE_BEHIND_M, ROUTE_AHEAD_M]))[:, :2]
    here = geometry.arc_lengths(line)
    inner = line[(here > at - ROUTE_BEHIND_M + 0.05) & (here < at + ROUTE_AHEAD_M - 0.05)]
    return np.concatenate([ends[:1], inner, ends[1:]])


def _straightest(lanes: Mapping[int, Lane], lane: int, others: Sequence[int], direction: int) -> int:
    """The lane with the smallest turn among those that continue a lane (`direction` 1 ahead, -1 behind)."""

    def turn(other: int) -> float:
        ahead, behind = (other, lane) if direction > 0 else (lane, other)
        end = geometry.headings_along(lanes[behind].centerline)[-1]
        return abs(float(geometry.wrap(_chord(lanes[ahead].centerline) - end)))

    return min(others, key=turn)


def _chord(line: Array) -> float:
    return float(np.arctan2(*(line[-1] - line[0])[::-1]))


def _stretches(lanes: Mapping[int, Lane], path: Sequence[int]) -> Iterator[list[int]]:
    """The path cut at lane changes: [a], [b, c] for a, then b with a change to the adjacent c."""
    stretch = [path[0]]
    for lane in path[1:]:
        if lane in lanes[stretch[-1]].successors:
            yield stretch
            stretch = []
        stretch.append(lane)
    yield stretch


def _crossing(one: Array, other: Array, ego: Array) -> Array:
    """The line that leaves centreline `one` at the ego, or at its start, and reaches `other` where the lanes end."""
    if one is other:
        return one
    length = geometry.arc_lengths(one)[-1]
    (at,), (offset,) = geometry.project(one, ego[None])
    share = np.linspace(0.0, 1.0, max(2, int(np.ceil(length))))
    begin = at / length if abs(offset) < 5.0 else 0.0
    u = np.clip((share - begin) / max(1.0 - begin, 1e-3), 0.0, 1.0)
    weight = (3 * u**2 - 2 * u**3)[:, None]
    lines = [geometry.sample(line, share * geometry.arc_lengths(line)[-1])[:, :2] for line in (one, other)]
    return (1 - weight) * lines[0] + weight * lines[1]


# --- polylines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LaneSegments:
    """The lanes of a map, cut into segments of at most SEGMENT_M; in the frame of the map. Built once per map."""

    keys: Array  # (N,) int64, of the lane of each segment
    points: Array  # (N, LANE_POINTS, 2) m, equally spaced
    widths_m: Array  # (N,) area of the lane over its length
    speed_limits_mps: Array  # (N,) 0: unknown

    @staticmethod
    def of(lanes: Mapping[int, Lane]) -> LaneSegments:
        keys, points, widths_m, limits_mps = [], [np.zeros((0, LANE_POINTS, 2))], list[float](), list[float]()
        for key, lane in lanes.items():
            length_m = float(geometry.arc_lengths(lane.centerline)[-1])
            if length_m < MIN_LANE_M:
                continue
            count = int(np.ceil(length_m / SEGMENT_M))
            ends_m = np.linspace(0.0, length_m, count + 1)
            at_m = np.linspace(ends_m[:-1], ends_m[1:], LANE_POINTS, axis=1)
            points.append(geometry.sample(lane.centerline, at_m.ravel())[:, :2].reshape(count, LANE_POINTS, 2))
            keys += count * [key]
            widths_m += count * [sum(part.area for part in lane.polygons) / length_m]
            limits_mps += count * [lane.speed_limit_mps or 0.0]
        return LaneSegments(np.array(keys, np.int64), np.concatenate(points), np.array(widths_m), np.array(limits_mps))

    def near(self, map_from_ego: Array, lights: Mapping[int, int] | None = None) -> LanePolylines:
        """The LANES_MAX segments nearest to a pose (3,), within LANE_RADIUS_M, nearest first. `lights` has the
        LightState by key of the lane."""
        away_m = self._distances(map_from_ego, LANE_RADIUS_M)
        order = np.argsort(away_m, kind="stable")
        return self._polylines(order[away_m[order] < LANE_RADIUS_M][:LANES_MAX], LANES_MAX, map_from_ego, lights)

    def along(
        self, route: Array, keys: Collection[int], map_from_ego: Array, lights: Mapping[int, int] | None = None
    ) -> LanePolylines:
        """The first ROUTE_LANES_MAX segments of the lanes `keys` that are not behind a pose (3,), within LANE_RADIUS_M,
        in the order of a route (L, 2+), ego frame."""
        chosen = np.flatnonzero(
            np.isin(self.keys, list(keys)) & (self._distances(map_from_ego, LANE_RADIUS_M) < LANE_RADIUS_M)
        )
        return self._ahead(chosen, route, map_from_ego, lights)

    def along_line(self, route: Array, map_from_ego: Array, lights: Mapping[int, int] | None = None) -> LanePolylines:
        """As `along` where the lanes of the route are unknown: those within ROUTE_OFFSET_M of its line and in its
        direction. A lane that leaves the line, such as one that turns off, is not among them."""
        chosen, on_road, _, _ = self._match_line(route, map_from_ego, LANE_RADIUS_M)
        return self._ahead(chosen[on_road], route, map_from_ego, lights)

    def keys_along_line(self, route: Array, map_from_ego: Array, radius_m: float) -> dict[int, float]:
        """Keys of the lanes of which all segments beside a route (L, 2+), ego frame, are those of `along_line`, within
        `radius_m`; each with the mean distance in metres of its points to the line."""
        chosen, on_road, alongside, away_m = self._match_line(route, map_from_ego, radius_m)
        keys = self.keys[chosen]
        leaving = set(keys[alongside & ~on_road].tolist())
        return {
            key: float(away_m[on_road & (keys == key)].mean())
            for key in dict.fromkeys(keys[on_road].tolist())
            if key not in leaving
        }

    def _match_line(self, route: Array, map_from_ego: Array, radius_m: float) -> tuple[Array, Array, Array, Array]:
        """Indices (C,) of the segments within `radius_m`; whether (C,) each follows the route's line; whether (C,) a
        part of it is beside the line, neither before nor beyond it; and the mean distance (C,) of that part."""
        if len(route) < 2:
            return np.zeros(0, int), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0)
        chosen = np.flatnonzero(self._distances(map_from_ego, radius_m) < radius_m)
        points = geometry.transform_points(geometry.invert(map_from_ego), self.points[chosen][:, CHECKED_POINTS])
        at_m, offsets_m = (each.reshape(points.shape[:2]) for each in geometry.project(route, points.reshape(-1, 2)))
        headings = geometry.sample(route, at_m.ravel())[:, 2].reshape(at_m.shape)
        steps = np.diff(points, axis=1)
        steps = np.concatenate([steps, steps[:, -1:]], axis=1)
        turns = np.abs(geometry.wrap(np.arctan2(steps[..., 1], steps[..., 0]) - headings))
        alongside = (at_m > 0.0) & (at_m < geometry.arc_lengths(route)[-1])  # neither before nor beyond the line
        fits = (np.abs(offsets_m) < ROUTE_OFFSET_M) & (turns < ROUTE_TURN_RAD)
        enough = alongside.sum(axis=1) >= 2
        away_m = np.where(alongside, np.abs(offsets_m), 0.0).sum(axis=1) / np.maximum(alongside.sum(axis=1), 1)
        return chosen, (fits | ~alongside).all(axis=1) & enough, enough, away_m

    def _ahead(
        self, chosen: Array, route: Array, map_from_ego: Array, lights: Mapping[int, int] | None
    ) -> LanePolylines:
        """The first ROUTE_LANES_MAX of the segments `chosen` (N,) that are not behind a pose (3,), in the order of a
        route (L, 2+), ego frame."""
        if len(chosen) and len(route) >= 2:
            ends = geometry.transform_points(geometry.invert(map_from_ego), self.points[chosen][:, [0, -1]])
            at_m, _ = geometry.project(route, np.concatenate([np.zeros((1, 2)), ends.reshape(-1, 2)]))
            begins_m, ends_m = at_m[1:].reshape(-1, 2).T
            ahead = ends_m >= at_m[0]
            chosen = chosen[ahead][np.argsort(begins_m[ahead], kind="stable")]
        return self._polylines(chosen[:ROUTE_LANES_MAX], ROUTE_LANES_MAX, map_from_ego, lights)

    def _distances(self, map_from_ego: Array, radius_m: float) -> Array:
        """(N,) m from a pose (3,) to the nearest point of each segment; infinite for those that are certainly beyond
        `radius_m`."""
        begins = self.points[:, 0] - map_from_ego[:2]
        in_reach = np.hypot(begins[:, 0], begins[:, 1]) <= radius_m + SEGMENT_M
        away = self.points[in_reach] - map_from_ego[:2]
        distances_m = np.full(len(self.points), np.inf)
        distances_m[in_reach] = np.sqrt((away**2).sum(axis=-1).min(axis=-1, initial=np.inf))
        return distances_m

    def _polylines(
        self, chosen: Array, count: int, map_from_ego: Array, lights: Mapping[int, int] | None
    ) -> LanePolylines:
        pad = count - len(chosen)
        points = geometry.transform_points(geometry.invert(map_from_ego), self.points[chosen])
        lamps = np.array([(lights or {}).get(key, 0) for key in self.keys[chosen].tolist()], np.int64)
        return LanePolylines(
            np.pad(points, ((0, pad), (0, 0), (0, 0))),
            np.pad(self.widths_m[chosen], (0, pad)),
            np.pad(self.speed_limits_mps[chosen], (0, pad)),
            np.pad(lamps, (0, pad)),
            np.arange(count) < len(chosen),
        )
