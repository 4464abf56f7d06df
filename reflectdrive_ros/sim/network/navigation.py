"""The ego's route: lanes and one line along a sequence of road edges, built once and extended at its end.

The line is not rebuilt at each step: a lane change would then restart at the car's position and never finish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import shapely

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadError, RoadLane, RoadMap

BEHIND_M = 30.0
AHEAD_M = 250.0
LANE_CHANGE_M = 45.0  # length of a lane change where the road is long enough ..
MIN_LANE_CHANGE_M = 15.0  # .. and its minimum
JUNCTION_EXIT_M = 5.0  # from the end of a junction to the start of the next lane change
MAX_SPACING_M = 4.0  # between points of the line
DEFAULT_SPEED_LIMIT_MPS = 13.9  # where the map has none


@dataclass(frozen=True, eq=False)
class EgoRoute:
    """Consecutive lanes (adjacent ones at a lane change) and the line along them, map frame."""

    road_map: RoadMap
    lanes: tuple[int, ...]
    starts_m: Array  # (K,) arc length at which each lane starts; adjacent lanes start together
    line: Array  # (L, 2) map frame
    along_m: Array  # (L,) arc lengths

    @property
    def length_m(self) -> float:
        return float(self.along_m[-1])

    @property
    def last_edge(self) -> str:
        return self.road_map.lanes[self.lanes[-1]].edge

    def project(self, at_m: float, point: Array, behind_m: float = 5.0, ahead_m: float = 40.0) -> tuple[float, float]:
        """Arc length and signed offset (left positive) of a point near the arc length `at_m`."""
        first = max(0, int(np.searchsorted(self.along_m, at_m - behind_m, side="right")) - 1)
        last = max(first + 2, int(np.searchsorted(self.along_m, at_m + ahead_m)) + 1)
        (along,), (offset,) = geometry.project(self.line[first:last], np.asarray(point, float)[None, :2])
        return float(self.along_m[first] + along), float(offset)

    def pose_at(self, at_m: float) -> Array:
        """(3,) pose on the line at an arc length."""
        return np.asarray(geometry.sample(self.line, np.array([at_m]))[0])

    def lanes_from(self, at_m: float) -> tuple[int, ...]:
        """The lane at an arc length and all lanes after it."""
        return self.lanes[self._index(at_m) :]

    def distance_along_lane(self, at_m: float) -> float:
        """Metres from the start of the lane at an arc length."""
        return at_m - float(self.starts_m[self._index(at_m)])

    def lanes_between(self, from_m: float, to_m: float) -> tuple[int, ...]:
        last = int(np.searchsorted(self.starts_m, to_m, side="right"))
        first = int(np.searchsorted(self.starts_m, self.starts_m[self._index(from_m)], side="left"))
        return self.lanes[first : max(last, first + 1)]

    def speed_limit_mps(self, at_m: float) -> float:
        """Limit of the road; on a connector, that of the road before it (its own limit is a turning speed)."""
        return float(self._limits_mps[self._index(at_m)])

    @cached_property
    def _limits_mps(self) -> Array:
        """(K,) `speed_limit_mps` of each lane."""
        limits_mps, limit_mps = [], DEFAULT_SPEED_LIMIT_MPS
        for key in self.lanes:
            lane = self.road_map.lanes[key]
            if lane.across_junction is None:
                limit_mps = lane.lane.speed_limit_mps or DEFAULT_SPEED_LIMIT_MPS
            limits_mps.append(limit_mps)
        return np.array(limits_mps)

    def local_line(self, at_m: float) -> Array:
        """(L, 3) poses of the line from BEHIND_M behind to AHEAD_M ahead of an arc length, cut at its ends."""
        ends, inner = self._local_part(at_m)
        tips = geometry.sample(self.line, ends)[:, :2]
        line = np.concatenate([tips[:1], self.line[inner], tips[1:]])
        return np.concatenate([line, geometry.headings_along(line)[:, None]], axis=1)

    def local_limits_mps(self, at_m: float) -> Array:
        """(L,) speed limit from each point of `local_line` on."""
        ends, inner = self._local_part(at_m)
        arc_lengths_m = np.concatenate([ends[:1], self.along_m[inner], ends[1:]])
        return np.asarray(
            self._limits_mps[np.maximum(np.searchsorted(self.starts_m, arc_lengths_m, side="right") - 1, 0)]
        )

    def ends_within(self, at_m: float) -> bool:
        """Whether the last point of `local_line` is the end of the whole route."""
        return at_m + AHEAD_M >= self.length_m

    def _local_part(self, at_m: float) -> tuple[Array, Array]:
        """(2,) arc lengths of the first and last point of `local_line`, and (N,) bool, the points between them."""
        ends = np.clip([at_m - BEHIND_M, at_m + AHEAD_M], 0.0, self.length_m)
        return ends, (self.along_m > ends[0] + 0.05) & (self.along_m < ends[1] - 0.05)

    def _index(self, at_m: float) -> int:
        return max(0, int(np.searchsorted(self.starts_m, at_m, side="right")) - 1)


def build_route(road_map: RoadMap, start_lane: int, edges: Sequence[str], begin_m: float = 0.0) -> EgoRoute:
    """Build the route from a road lane along road edges; the first edge is the lane's own.

    A lane change on the first lane starts at `begin_m`. Raises RoadError if the edges are not connected.
    """
    path = lane_path(road_map, start_lane, edges)
    line, starts_m = _line(road_map, path, begin_m)
    behind, behind_m = _line_behind(road_map, start_lane)
    return _assemble_route(road_map, path, np.concatenate([behind, line]), starts_m + behind_m)


def extend_route(route: EgoRoute, edges: Sequence[str]) -> EgoRoute:
    """The route with more edges at its end; the first of them is the route's last. Raises RoadError likewise."""
    path = lane_path(route.road_map, route.lanes[-1], edges)
    cut_m = float(route.starts_m[-1])
    line_before = route.line[route.along_m < cut_m - 0.01]
    line, starts_m = _line(route.road_map, path, 0.0)
    return _assemble_route(
        route.road_map,
        (*route.lanes[:-1], *path),
        np.concatenate([line_before, line]),
        np.concatenate([route.starts_m[:-1], starts_m + cut_m]),
    )


def _assemble_route(road_map: RoadMap, lanes: Sequence[int], points: Array, starts_m: Array) -> EgoRoute:
    dense = shapely.get_coordinates(shapely.segmentize(shapely.LineString(points), MAX_SPACING_M))
    line = geometry.drop_reversals(dense, 0.05)
    # Dropped points shorten the line by centimetres: scale the lane starts to its length.
    dense_along_m, along_m = geometry.arc_lengths(dense), geometry.arc_lengths(line)
    return EgoRoute(road_map, tuple(lanes), starts_m * (along_m[-1] / dense_along_m[-1]), line, along_m)


def lane_path(road_map: RoadMap, start_lane: int, edges: Sequence[str]) -> tuple[int, ...]:
    """Lanes along road edges, from a lane of the first, with as few lane changes as possible.

    Raises RoadError where no lane leads from one edge to the next.
    """
    lanes = road_map.lanes
    if not edges or lanes[start_lane].edge != edges[0]:
        raise RoadError(f"lane {lanes[start_lane].sumo_id} is not on the first edge of its route")
    onwards: list[dict[int, tuple[float, tuple[int, ...]]]] = []  # by lane, from the second-last edge backwards
    costs = dict.fromkeys(lanes_by_edge(road_map)[edges[-1]], 0.0)
    for edge, after in zip(edges[-2::-1], edges[:0:-1], strict=True):
        leaving = {}
        for key in lanes_by_edge(road_map)[edge]:
            options = [
                (costs[chain[-1]], chain) for chain in _junction_chains(road_map, key, after) if chain[-1] in costs
            ]
            if options:
                leaving[key] = min(options)
        if not leaving:
            raise RoadError(f"no lane of road {edge} of {road_map.name} leads to road {after}")
        onwards.append(leaving)
        costs = {
            key: min(_count_lane_changes(lanes[key], lanes[other]) + cost for other, (cost, _) in leaving.items())
            for key in lanes_by_edge(road_map)[edge]
        }
    path = [start_lane]
    for leaving in reversed(onwards):
        here = lanes[path[-1]]
        best = min(leaving, key=lambda other: (_count_lane_changes(here, lanes[other]) + leaving[other][0], other))
        if best != path[-1]:
            path.append(best)
        path.extend(leaving[best][1])
    return tuple(path)


@lru_cache(maxsize=4)
def lanes_by_edge(road_map: RoadMap) -> Mapping[str, tuple[int, ...]]:
    """Lane keys by edge, connectors included."""
    keys_by_edge: dict[str, list[int]] = {}
    for key, lane in road_map.lanes.items():
        keys_by_edge.setdefault(lane.edge, []).append(key)
    return {edge: tuple(keys) for edge, keys in keys_by_edge.items()}


def _count_lane_changes(one: RoadLane, other: RoadLane) -> float:
    return float(abs(one.index - other.index))


def _junction_chains(road_map: RoadMap, key: int, edge: str) -> list[tuple[int, ...]]:
    """Lane chains from a road lane across the junction to an edge: connectors, then the lane on the edge."""
    chains: list[tuple[int, ...]] = []
    todo: list[tuple[int, ...]] = [(after,) for after in road_map.lanes[key].lane.successors]
    while todo:
        chain = todo.pop()
        lane = road_map.lanes[chain[-1]]
        if lane.across_junction is None:
            if lane.edge == edge:
                chains.append(chain)
        elif len(chain) < 8:  # a junction's lanes are short chains
            todo.extend((*chain, after) for after in lane.lane.successors)
    return sorted(chains)


# --- the line ---------------------------------------------------------------------------------------------------------


def _line(road_map: RoadMap, path: Sequence[int], begin_m: float) -> tuple[Array, Array]:
    """(L, 2) along a path of lanes, and (K,) the arc length at which each starts."""
    pieces, starts, at = [], [], 0.0
    for group, stretch in enumerate(_group_lane_changes(road_map, path)):
        piece = _lane_change_line(road_map, stretch, begin_m if group == 0 else JUNCTION_EXIT_M)
        pieces.append(piece)
        starts += [at] * len(stretch)
        at += float(geometry.arc_lengths(piece)[-1])
    return np.concatenate(pieces), np.array(starts)


def _group_lane_changes(road_map: RoadMap, path: Sequence[int]) -> list[list[int]]:
    """The path as groups of lanes; the lanes of one lane change form one group."""
    stretches: list[list[int]] = []
    for key in path:
        edge = road_map.lanes[key].edge
        if stretches and road_map.lanes[key].across_junction is None and road_map.lanes[stretches[-1][-1]].edge == edge:
            stretches[-1].append(key)
        else:
            stretches.append([key])
    return stretches


def _lane_change_line(road_map: RoadMap, stretch: Sequence[int], begin_m: float) -> Array:
    """The first lane's centreline, or a blend to the last one's that starts at `begin_m`."""
    lines = [road_map.lanes[key].lane.centerline for key in (stretch[0], stretch[-1])]
    if len(stretch) == 1:
        return np.asarray(lines[0])
    length = float(geometry.arc_lengths(lines[0])[-1])
    changes = abs(road_map.lanes[stretch[0]].index - road_map.lanes[stretch[-1]].index)
    begin = min(begin_m, max(length - MIN_LANE_CHANGE_M, 0.5 * length)) / length
    end = min(begin + LANE_CHANGE_M * changes / length, 1.0)
    share = np.linspace(0.0, 1.0, max(2, int(np.ceil(length / 2.0))))
    u = np.clip((share - begin) / (end - begin), 0.0, 1.0)
    weight = (3 * u**2 - 2 * u**3)[:, None]
    sides = [geometry.sample(line, share * geometry.arc_lengths(line)[-1])[:, :2] for line in lines]
    return np.asarray((1 - weight) * sides[0] + weight * sides[1])


def _line_behind(road_map: RoadMap, lane: int) -> tuple[Array, float]:
    """Points along the predecessors of a lane, for BEHIND_M if the network is long enough; and their length."""
    pieces: list[Array] = []
    length, first = 0.0, lane
    while length < BEHIND_M and road_map.lanes[first].lane.predecessors:
        heading = geometry.headings_along(road_map.lanes[first].lane.centerline)[0]
        before = road_map.lanes[first].lane.predecessors
        first = min(before, key=lambda key: (_heading_difference(road_map.lanes[key].lane.centerline, heading), key))
        pieces.insert(0, road_map.lanes[first].lane.centerline)
        length += float(geometry.arc_lengths(pieces[0])[-1])
    return (np.concatenate(pieces), length) if pieces else (np.zeros((0, 2)), 0.0)


def _heading_difference(line: Array, heading: float) -> float:
    """Absolute difference between a line's first heading and a given one, rad."""
    return abs(float(geometry.wrap(geometry.headings_along(line)[0] - heading)))
