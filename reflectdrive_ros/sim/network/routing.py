"""Random routes through a road map, and the lanes and reference line along a route.

A route is a sequence of SUMO road edges. Lanes are chosen by dynamic programming with as few lane changes as possible;
a change on a long edge is cheaper than one on a short edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadError, RoadMap, RoadType, Turn

BEHIND_M = 30.0
AHEAD_M = 150.0
SPACING_M = 1.0  # between the points of a reference line
LOOKAHEAD_M = 200.0  # beyond the end of the line, edges this far ahead count in the choice of lanes
LANE_CHANGE_S = 4.0  # duration of a lane change at the speed limit
MIN_LANE_CHANGE_M = 25.0
LANE_CHANGE_LEAD_M = 3.0  # from the car, or from the start of the lane, to the start of the change
DEAD_END_COST = 100.0  # cost of ending on a lane without successors, in lane changes
TURN_WEIGHTS = {Turn.STRAIGHT: 1.0, Turn.LEFT: 1.4, Turn.RIGHT: 1.2, Turn.BACK: 0.08}  # of random walks, by turn
RARE_ROAD_TYPES = (RoadType.NARROW, RoadType.LANE_DROP, RoadType.DEAD_END)  # a town has few roads of these types


@dataclass(frozen=True, eq=False)
class _RoutingGraph:
    """Lookup tables of one road map, cached."""

    edge_lanes: Mapping[str, tuple[int, ...]]  # of each road edge, from the right
    edge_length_m: Mapping[str, float]
    connections: Mapping[
        int, tuple[tuple[tuple[int, ...], int], ...]
    ]  # lane -> (connector lanes, lane after the junction)
    turns: Mapping[tuple[str, str], Turn]  # by (edge, next edge)


@lru_cache(maxsize=8)
def _routing_graph(road_map: RoadMap) -> _RoutingGraph:
    lanes = road_map.lanes
    edge_lanes: dict[str, list[int]] = {}
    for key, lane in lanes.items():
        if lane.across_junction is None:
            edge_lanes.setdefault(lane.edge, []).append(key)
    connections: dict[int, tuple[tuple[tuple[int, ...], int], ...]] = {}
    turns: dict[tuple[str, str], Turn] = {}
    for key, lane in lanes.items():
        lane_connections = []
        for first in lane.lane.successors:
            crossed = [first]
            while lanes[crossed[-1]].across_junction is not None and lanes[crossed[-1]].lane.successors:
                crossed.append(lanes[crossed[-1]].lane.successors[0])
            if lanes[crossed[-1]].across_junction is None:
                lane_connections.append((tuple(crossed[:-1]), crossed[-1]))
                turns.setdefault((lane.edge, lanes[crossed[-1]].edge), lanes[first].turn)
        connections[key] = tuple(lane_connections)
    return _RoutingGraph(
        edge_lanes={edge: tuple(sorted(keys, key=lambda key: lanes[key].index)) for edge, keys in edge_lanes.items()},
        edge_length_m={
            edge: float(geometry.arc_lengths(lanes[keys[0]].lane.centerline)[-1]) for edge, keys in edge_lanes.items()
        },
        connections=connections,
        turns=turns,
    )


def random_walk(
    road_map: RoadMap,
    generator: np.random.Generator,
    length_m: float,
    start_edge: str | None = None,
    rare_road_weight: float = 1.0,
) -> tuple[str, ...]:
    """Sample consecutive road edges of at least `length_m` in all, or until no edge follows; the start may be random.

    Turns are more frequent than in real traffic, so that routes differ; U-turns are rare where there is a choice.
    Roads of RARE_ROAD_TYPES are `rare_road_weight` times as likely. Raises RoadError for a start that is no road edge.
    """
    graph = _routing_graph(road_map)
    if start_edge is None:
        names = sorted(graph.edge_lanes)
        start_edge = names[int(generator.integers(len(names)))]
    if start_edge not in graph.edge_lanes:
        raise RoadError(f"{road_map.name} has no road edge '{start_edge}' to start from")
    walk, walked_m = [start_edge], graph.edge_length_m[start_edge]
    while walked_m < length_m and (after := road_map.edges_after[walk[-1]]):
        wishes = np.array([_edge_weight(graph, road_map, walk, edge, rare_road_weight) for edge in after])
        walk.append(after[int(generator.choice(len(after), p=wishes / wishes.sum()))])
        walked_m += graph.edge_length_m[walk[-1]]
    return tuple(walk)


def _edge_weight(
    graph: _RoutingGraph, road_map: RoadMap, walk: Sequence[str], edge: str, rare_road_weight: float
) -> float:
    """Sampling weight of `edge` as the next edge of a walk; low inside a roundabout just driven through."""
    road_type = road_map.lanes[graph.edge_lanes[edge][0]].road_type
    around = road_type is RoadType.ROUNDABOUT and edge in walk[-12:]
    liked = 0.02 if around else rare_road_weight if road_type in RARE_ROAD_TYPES else 1.0
    return TURN_WEIGHTS[graph.turns.get((walk[-1], edge), Turn.STRAIGHT)] * liked


def line_ahead(
    road_map: RoadMap, lane_key: int, edges_ahead: Sequence[str], point_xy: Array
) -> tuple[list[int], Array]:
    """Lane keys from `lane_key` along `edges_ahead`, and the reference line (L, 3) along them, one point per metre.

    The line starts BEHIND_M behind the projection of `point_xy` (2,) onto the lane and ends AHEAD_M ahead of it; lane
    changes are gradual. The lane's own edge may come first in `edges_ahead` or be left out. After the last edge the
    line follows the road. Raises RoadError if the edges cannot be reached from that lane.
    """
    graph = _routing_graph(road_map)
    (at,), _ = geometry.project(road_map.lanes[lane_key].lane.centerline, np.asarray(point_xy, float)[None])
    path = _plan_lanes(road_map, graph, lane_key, _remaining_edges(road_map, graph, lane_key, edges_ahead), float(at))
    return path, _reference_line(road_map, path, float(at))


def _remaining_edges(road_map: RoadMap, graph: _RoutingGraph, lane_key: int, edges: Sequence[str]) -> list[str]:
    """The edges after the lane's own; for a connector lane, from the edge that it leads to."""
    lane = road_map.lanes[lane_key]
    if lane.across_junction is None:
        return list(edges[1:] if edges and edges[0] == lane.edge else edges)
    beyond = {road_map.lanes[end].edge for _, end in graph.connections[lane_key]}
    first = next((index for index, edge in enumerate(edges) if edge in beyond), 0)
    return list(edges[first:])


def _plan_lanes(road_map: RoadMap, graph: _RoutingGraph, start: int, edges: Sequence[str], at_m: float) -> list[int]:
    """Cheapest lanes along the edges, by dynamic programming from the last edge; a change steps to an adjacent lane."""
    rows, lengths_m = [_adjacent_lanes(road_map, start)], [_lane_length(road_map, start) - at_m]
    for edge in edges:
        if sum(lengths_m) > AHEAD_M + LOOKAHEAD_M:
            break
        rows.append(graph.edge_lanes.get(edge, ()))
        lengths_m.append(graph.edge_length_m.get(edge, 0.0))
    # A lane without successors is allowed as the last one, at a high cost.
    keep: dict[int, float] = {key: 0.0 if graph.connections[key] else DEAD_END_COST for key in rows[-1]}
    steps: list[dict[int, tuple[tuple[int, ...], int]]] = [{}]
    enter = [_lane_change_costs(road_map, rows[-1], keep, lengths_m[-1])]
    for row, length_m in zip(rows[-2::-1], lengths_m[-2::-1], strict=True):
        keep, step = {}, {}
        for key in row:
            options = [(enter[0][end][0], crossed, end) for crossed, end in graph.connections[key] if end in enter[0]]
            if options:
                keep[key], crossed, end = min(options)
                step[key] = (crossed, end)
        steps.insert(0, step)
        enter.insert(0, _lane_change_costs(road_map, row, keep, length_m))
    if start not in enter[0]:
        where = f"{road_map.name}: lane {road_map.lanes[start].sumo_id}"
        raise RoadError(f"{where} does not lead along {' '.join(edges[:3])}: start from an edge before them")
    path = [start]
    for leave, step in zip(enter, steps, strict=True):
        path += _lanes_between(road_map, path[-1], leave[path[-1]][1])
        if step:
            crossed, end = step[path[-1]]
            path += [*crossed, end]
    return _fit_to_horizon(road_map, graph, path, at_m)


def _adjacent_lanes(road_map: RoadMap, key: int) -> tuple[int, ...]:
    """The lane and all lanes that lane changes reach from it."""
    keys = [key]
    for lane in keys:
        keys += [other for other in road_map.lanes[lane].lane.adjacent if other not in keys]
    return tuple(keys)


def _lane_length(road_map: RoadMap, key: int) -> float:
    return float(geometry.arc_lengths(road_map.lanes[key].lane.centerline)[-1])


def _lane_change_costs(
    road_map: RoadMap, row: Sequence[int], keep: Mapping[int, float], length_m: float
) -> dict[int, tuple[float, int]]:
    """Lane of a row -> (cost, lane on which to leave the row). A change on a short edge costs more."""
    price = 1.0 + 30.0 / max(length_m, 1.0)
    best = {}
    for key in row:
        reach = _adjacent_lanes(road_map, key)
        index = road_map.lanes[key].index
        options = [
            (keep[other] + price * abs(road_map.lanes[other].index - index), other) for other in reach if other in keep
        ]
        if options:
            best[key] = min(options)
    return best


def _lanes_between(road_map: RoadMap, one: int, other: int) -> list[int]:
    """The lanes passed from `one` (excluded) to `other` (included) on the same edge."""
    passed: list[int] = []
    while one != other:
        ahead = 1 if road_map.lanes[other].index > road_map.lanes[one].index else -1
        next_index = road_map.lanes[one].index + ahead
        one = next(key for key in road_map.lanes[one].lane.adjacent if road_map.lanes[key].index == next_index)
        passed.append(one)
    return passed


def _fit_to_horizon(road_map: RoadMap, graph: _RoutingGraph, path: Sequence[int], at_m: float) -> list[int]:
    """The path cut at AHEAD_M, or extended straight on to it."""
    fitted, ahead_m = [path[0]], _lane_length(road_map, path[0]) - at_m
    for before, key in pairwise(path):
        changed = key in road_map.lanes[before].lane.adjacent
        if ahead_m > AHEAD_M and not changed:
            return fitted
        fitted.append(key)
        ahead_m += 0.0 if changed else _lane_length(road_map, key)
    while ahead_m <= AHEAD_M:
        options = graph.connections[fitted[-1]]
        if not options:  # the lane ends: change to an adjacent lane with a successor
            going_on = [key for key in road_map.lanes[fitted[-1]].lane.adjacent if graph.connections[key]]
            if not going_on:
                break
            fitted.append(going_on[0])
            continue
        crossed, end = min(options, key=lambda option: (_turn_of(road_map, option[0]), option[1]))
        fitted += [*crossed, end]
        ahead_m += sum(_lane_length(road_map, key) for key in (*crossed, end))
    return fitted


def _turn_of(road_map: RoadMap, crossed: Sequence[int]) -> Turn:
    return road_map.lanes[crossed[0]].turn if crossed else Turn.STRAIGHT


def _reference_line(road_map: RoadMap, path: Sequence[int], at_m: float) -> Array:
    """(L, 3) along a path of lanes, from BEHIND_M behind a position on its first lane to AHEAD_M ahead of it.

    Each lane change is a lateral jump whose offset decays with a quintic blend; a change without enough room before a
    junction ends after it.
    """
    segments, jumps = _segments(road_map, path, at_m)
    behind = _line_behind(road_map, path[0], at_m)
    behind_m = float(geometry.arc_lengths(behind)[-1])
    segments[0] = np.concatenate([behind, segments[0]])
    points: list[Array] = []
    headings, along, offset_m = [], [], []
    from_m = 0.0
    for segment in segments:
        length_m = float(geometry.arc_lengths(segment)[-1])
        at = np.linspace(0.0, length_m, max(int(np.ceil(length_m / SPACING_M)) + 1, 2))
        positions = _interpolate(segment, at)
        steps = np.gradient(positions, axis=0)
        once = slice(1 if points else 0, None)  # a segment starts beside the end of the previous one
        points.append(positions[once])
        headings.append(np.arctan2(steps[once, 1], steps[once, 0]))
        along.append(from_m + at[once])
        offset_m.append(np.zeros(len(at[once])))
        from_m += length_m
    begin_m = 0.0
    for index, (jump_m, change_m) in enumerate(jumps):
        begin_m += float(geometry.arc_lengths(segments[index])[-1])
        for later in range(index + 1, len(segments)):
            u = np.clip((along[later] - begin_m) / change_m, 0.0, 1.0)
            offset_m[later] += jump_m * (1.0 - u**3 * (10 - 15 * u + 6 * u**2))  # continuous curvature at both ends
    heading, sideways = np.concatenate(headings), np.concatenate(offset_m)
    line = np.concatenate(points) + sideways[:, None] * np.stack([-np.sin(heading), np.cos(heading)], axis=-1)
    line = geometry.distinct_points(line, closer_than=0.05)
    samples_m = behind_m + at_m + np.arange(-BEHIND_M, AHEAD_M + SPACING_M / 2, SPACING_M)
    points_m = _interpolate(line, samples_m[(samples_m >= 0.0) & (samples_m <= geometry.arc_lengths(line)[-1])])
    steps = np.gradient(points_m, axis=0)
    return np.column_stack([points_m, np.arctan2(steps[:, 1], steps[:, 0])])


def _interpolate(line: Array, along_m: Array) -> Array:
    """(N, 2) points of a line at distances along it."""
    here = geometry.arc_lengths(line)
    return np.column_stack([np.interp(along_m, here, line[:, axis]) for axis in (0, 1)])


def _segments(road_map: RoadMap, path: Sequence[int], at_m: float) -> tuple[list[Array], list[tuple[float, float]]]:
    """The path as lines (V, 2) that end at lane changes, and per change (offset to the right m, length m)."""
    lanes = road_map.lanes
    segments, jumps = [lanes[path[0]].lane.centerline], []
    from_m, key = at_m, path[0]
    for index, other in enumerate(path[1:], start=1):
        if other not in lanes[path[index - 1]].lane.adjacent:
            segments[-1] = np.concatenate([segments[-1], lanes[other].lane.centerline])
            from_m, key = 0.0, other
            continue
        if index + 1 < len(path) and path[index + 1] in lanes[other].lane.adjacent:
            continue  # one long change over several lanes
        one, new = lanes[key].lane, lanes[other].lane
        length_m = float(geometry.arc_lengths(one.centerline)[-1])
        begin_m = min(from_m + LANE_CHANGE_LEAD_M, length_m - 0.1)
        before = len(segments[-1]) - len(one.centerline)
        head = _cut_at(one.centerline, begin_m)
        segments[-1] = np.concatenate([segments[-1][:before], head])
        (new_m,), (jump_m,) = geometry.project(new.centerline, head[-1:])
        segments.append(_cut_at(new.centerline[::-1], float(geometry.arc_lengths(new.centerline)[-1] - new_m))[::-1])
        usual_m = abs(jump_m) / 3.2 * max(MIN_LANE_CHANGE_M, LANE_CHANGE_S * (one.speed_limit_mps or 13.9))
        jumps.append((float(jump_m), max(min(usual_m, length_m - begin_m), MIN_LANE_CHANGE_M)))
        from_m, key = begin_m, other
    return segments, jumps


def _cut_at(line: Array, end_m: float) -> Array:
    """The first `end_m` metres of a line."""
    inside = line[geometry.arc_lengths(line) < end_m - 0.01]
    return np.concatenate([inside, _interpolate(line, np.array([max(end_m, 0.0)]))])


def _line_behind(road_map: RoadMap, key: int, at_m: float) -> Array:
    """(V, 2) along the predecessors of a lane, straight ones first; extrapolated where there is none."""
    first = road_map.lanes[key].lane.centerline
    pieces = [first[:1]]
    while at_m < BEHIND_M and (before := road_map.lanes[key].lane.predecessors):
        key = min(before, key=lambda other: (road_map.lanes[other].turn, other))
        pieces.insert(0, road_map.lanes[key].lane.centerline)
        at_m += _lane_length(road_map, key)
    if at_m < BEHIND_M:
        start = road_map.lanes[key].lane.centerline[:2]
        back = (start[0] - start[1]) / np.hypot(*(start[0] - start[1]))
        pieces.insert(0, (start[0] + (BEHIND_M + 1.0 - at_m) * back)[None])
    return np.concatenate(pieces)
