"""The lane graph of a road, and the line of a route through it.

A route follows lanes from the lane of the start with as few lane changes as possible. Its line changes lanes gradually,
and is extended straight where the map ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely

from . import geometry
from .domain import Array

SAME_WAY_RAD = np.pi / 3  # a car within this of a lane's direction drives along it
LANE_REACH_M = 5.0  # inside a crossing, the lane that a turning car is about to meet may begin this far away
LANE_CHANGE_COST_M = 1000.0  # a lane change costs as much as this detour
ROUTE_BEHIND_M = 30.0
ROUTE_AHEAD_M = 250.0  # 8 s at the motorway limit


@dataclass(frozen=True, eq=False)
class Lane:
    centerline: Array  # (V, 2) m, in driving direction
    polygons: tuple[Any, ...]  # shapely; more than one where the drawn ring crosses itself
    successors: tuple[int, ...]
    predecessors: tuple[int, ...]
    beside: tuple[int, ...]  # neighbours in the same direction
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
        and abs(geometry.wrap(_heading_near(lanes[key].centerline, pose) - pose[2])) < SAME_WAY_RAD
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
        for other in lanes[todo.pop()].beside:
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
        for other in lanes[lane].beside:
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
    line = _onwards(np.concatenate(pieces))
    (at,), _ = geometry.project(line, ego[None])
    ends = geometry.sample(line, at + np.array([-ROUTE_BEHIND_M, ROUTE_AHEAD_M]))[:, :2]
    here = geometry.arc_lengths(line)
    inner = line[(here > at - ROUTE_BEHIND_M + 0.05) & (here < at + ROUTE_AHEAD_M - 0.05)]
    return np.concatenate([ends[:1], inner, ends[1:]])


def _onwards(line: Array) -> Array:
    """The line without points that repeat the one before or turn back: at joints, lanes may overlap by some metres."""
    kept = list(geometry.distinct_points(line, closer_than=0.3)[:2])
    for point in line:
        step = point - kept[-1]
        if step @ step > 0.3**2 and step @ (kept[-1] - kept[-2]) > 0:
            kept.append(point)
    return np.array(kept)


def _straightest(lanes: Mapping[int, Lane], lane: int, others: Sequence[int], way: int) -> int:
    """Of the lanes that continue a lane (`way` 1 ahead, -1 behind), the one with the smallest change of direction."""

    def turn(other: int) -> float:
        ahead, behind = (other, lane) if way > 0 else (lane, other)
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
