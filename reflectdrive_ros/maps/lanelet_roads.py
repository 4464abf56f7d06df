"""Conversion of a Lanelet2 map (.osm) to a SUMO network.

Lanelets that overlap others become connections across a junction with their own shape; all others become lanes, and
adjacent ones lanes of one edge. Priorities are left to netconvert. A two-way lanelet becomes two lanes if it is wide
enough, else one lane in its drawn direction. Maps whose bounds are drawn against the direction of travel are corrected
first (`lanelet_direction`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from . import lanelet_direction
from .lanelet_direction import line_points
from .osm import OsmError, OsmNodes, check_osm
from .roads import RoadError, RoadMap, list_unusable
from .sumo_network import convert_network, shape_text

KMH = 1 / 3.6
STEP_M = 2.0  # between points of a lane
MIN_LANE_WIDTH_M = 2.3  # of a lane for cars
MAX_LANE_WIDTH_M = 6.0
MERGE_WIDTH_TOLERANCE_M = 0.5  # largest width difference of merged lanelets
MAX_JUNCTION_LANELETS = 6  # lanelets across one junction
MIN_OVERLAP_M = 0.3  # bounds of neighbours that cross by less are drawn inexactly; the lanelets do not conflict
DEFAULT_LIMIT_KMH = 50.0  # of lanelets without a usable one
OPTIONS = (
    "--junctions.endpoint-shape",  # the map defines where junctions end
    "--no-turnarounds",
    "--geometry.avoid-overlap=false",
)


@dataclass(frozen=True, eq=False)
class _DirectedLanelet:
    """A lanelet in one driving direction."""

    name: str
    line: Array  # (V, 2) along its middle
    width_m: float
    limit_mps: float
    after: tuple[str, ...]
    left: str | None  # the neighbour in the same direction
    change_left: bool
    overlapped: frozenset[str]
    light: bool  # a traffic light stands at its end


def load(osm: Path, folder: Path, max_limit_mps: float | None = None) -> RoadMap:
    """Load an .osm map; its SUMO network is written to `folder`. Speed limits are at most `max_limit_mps`.

    Raises RoadError for a file that is missing, cannot be read, holds no road lanelets or no drivable route, and where
    lanelet2 is not installed.
    """
    lanelet_map = _read_map(osm)
    pieces, unusable = _directed_lanelets(lanelet_map, osm)
    if max_limit_mps is not None:
        pieces = {name: replace(piece, limit_mps=min(piece.limit_mps, max_limit_mps)) for name, piece in pieces.items()}
    plain = _plain_xml(_merge_chains(pieces))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        road_map = convert_network(osm.stem, plain, folder, OPTIONS)
    except RoadError as fault:
        raise RoadError(f"{fault}{list_unusable('lanelets', unusable)}") from None
    return replace(road_map, crossings=_rings(lanelet_map, "crosswalk"), walkways=_rings(lanelet_map, "walkway"))


# --- the Lanelet2 map ------------------------------------------------------------------------------------------------


def _read_map(osm: Path) -> Any:
    if not osm.is_file():
        raise RoadError(f"{osm} does not exist: give the .osm file of a Lanelet2 map")
    try:
        import lanelet2  # noqa: F401  # imported late: an optional dependency
    except ImportError as fault:
        raise RoadError(f"lanelet2 cannot be imported ({fault}): pip install lanelet2") from None
    try:
        nodes = check_osm(osm)
    except OsmError as fault:
        raise RoadError(f"{osm} cannot be read as a Lanelet2 map: it {fault}") from None
    except OSError as fault:
        raise RoadError(f"{osm} cannot be read: {fault.strerror}") from None
    lanelet_map = _load(osm, nodes, osm)
    if change := lanelet_direction.needed_change(lanelet_map):
        with tempfile.TemporaryDirectory() as scratch:
            corrected = Path(scratch) / "map.osm"
            lanelet_direction.rewrite(osm, corrected, change)
            lanelet_map = _load(corrected, replace(nodes, lat=-nodes.lat) if change.mirror else nodes, osm)
    return lanelet_map


def _load(file: Path, nodes: OsmNodes, osm: Path) -> Any:
    """The map of `file`; messages name `osm`."""
    from lanelet2 import io, projection

    tagged = nodes.has_local_coordinates
    # With local coordinates degrees are unused; Mercator, unlike UTM, accepts any of them.
    project = projection.MercatorProjector if tagged else projection.UtmProjector
    origin = io.Origin(0.0, 0.0) if tagged else io.Origin(round(nodes.lat, 2), round(nodes.lon, 2))
    try:
        lanelet_map, _ = io.loadRobust(str(file), project(origin))
        if tagged:
            for point in lanelet_map.pointLayer:
                point.x, point.y = float(point.attributes["local_x"]), float(point.attributes["local_y"])
    except (RuntimeError, KeyError, ValueError) as fault:
        raise RoadError(f"{osm} cannot be read as a Lanelet2 map: {' '.join(str(fault).split())}") from None
    for lanelet in lanelet_map.laneletLayer:  # routing on a lanelet without a border crashes the process
        if min(len(lanelet.leftBound), len(lanelet.rightBound)) < 2:
            raise RoadError(f"{osm} lacks a border of lanelet {lanelet.id}, or its points: give the whole map")
    return lanelet_map


def _directed_lanelets(lanelet_map: Any, osm: Path) -> tuple[dict[str, _DirectedLanelet], dict[str, list[str]]]:
    """Lanelets for vehicles by name (the id, with an `r` where driven against the drawn direction), and the ids of
    those that cannot be used, by reason."""
    from lanelet2 import routing, traffic_rules

    rules = traffic_rules.create(traffic_rules.Locations.Germany, traffic_rules.Participants.Vehicle)
    graph = routing.RoutingGraph(lanelet_map, rules)
    roads = [lanelet for lanelet in lanelet_map.laneletLayer if rules.canPass(lanelet)]
    if not roads:
        raise RoadError(f"{osm} holds no road lanelets: give a map with lanelets for vehicles")
    areas = {lanelet.id: _area(lanelet) for lanelet in lanelet_map.laneletLayer}
    pieces: dict[str, _DirectedLanelet] = {}
    unusable: dict[str, list[str]] = {}
    for lanelet in roads:
        line, width_m = _centerline(line_points(lanelet.leftBound), line_points(lanelet.rightBound))
        both_ways = not rules.isOneWay(lanelet) and width_m >= 2 * MIN_LANE_WIDTH_M
        if (length_m := float(geometry.arc_lengths(line)[-1])) < 0.5 or width_m < MIN_LANE_WIDTH_M / 2:
            reason = "shorter than 0.5 m" if length_m < 0.5 else f"narrower than {MIN_LANE_WIDTH_M / 2:.2f} m"
            unusable.setdefault(f"are {reason}", []).append(str(lanelet.id))
            continue
        left = graph.left(lanelet) or graph.adjacentLeft(lanelet)
        piece = _DirectedLanelet(
            name=_name(lanelet),
            line=line,
            width_m=min(width_m, MAX_LANE_WIDTH_M),
            limit_mps=_speed_limit_kmh(rules, lanelet) * KMH,
            after=tuple(_name(other) for other in graph.following(lanelet)),
            left=str(left.id) if left is not None and not both_ways else None,
            change_left=graph.left(lanelet) is not None,
            overlapped=frozenset(_overlapping_ids(graph, lanelet, areas)),
            light=any(_subtype(rule) == "traffic_light" for rule in lanelet.regulatoryElements),
        )
        if not both_ways:
            pieces[piece.name] = piece
            continue
        back = lanelet.invert()
        after = tuple(_name(other) for other in graph.following(back))
        half = replace(piece, width_m=min(width_m / 2, MAX_LANE_WIDTH_M), line=_offset_line(line, -width_m / 4))
        pieces[piece.name] = half
        pieces[_name(back)] = replace(half, name=_name(back), line=_offset_line(line[::-1], -width_m / 4), after=after)
    resolved = {name: replace(p, after=tuple(a for a in p.after if a in pieces)) for name, p in pieces.items()}
    linked = {after for piece in resolved.values() for after in piece.after}
    if alone := [name for name, piece in resolved.items() if not piece.after and name not in linked]:
        unusable["neither follow nor precede another"] = alone
    return {name: replace(p, left=p.left if p.left in pieces else None) for name, p in resolved.items()}, unusable


def _speed_limit_kmh(rules: Any, lanelet: Any) -> float:
    try:
        limit_kmh = float(rules.speedLimit(lanelet).speedLimit)
    except (RuntimeError, ValueError):  # a tag that is no speed
        limit_kmh = DEFAULT_LIMIT_KMH
    return float(np.clip(limit_kmh if np.isfinite(limit_kmh) else DEFAULT_LIMIT_KMH, 10.0, 130.0))


def _overlapping_ids(graph: Any, lanelet: Any, areas: Mapping[int, Any]) -> Iterator[str]:
    """Ids of the lanelets whose area and that of `lanelet` share an area wider than MIN_OVERLAP_M."""
    for other in graph.conflicting(lanelet):
        shared = areas[lanelet.id].intersection(areas[other.id]) if other.id in areas else shapely.Polygon()
        if other.id != lanelet.id and not shared.buffer(-MIN_OVERLAP_M / 2).is_empty:
            yield str(other.id)


def _area(lanelet: Any) -> Any:
    left, right = line_points(lanelet.leftBound), line_points(lanelet.rightBound)
    if (
        np.hypot(*(left[0] - right[-1])) + np.hypot(*(left[-1] - right[0]))
        < np.hypot(*(left[[0, -1]] - right[[0, -1]]).T).sum()
    ):
        right = right[::-1]
    return shapely.Polygon(np.concatenate([left, right[::-1]])).buffer(0)


def _name(lanelet: Any) -> str:
    return f"{lanelet.id}r" if lanelet.inverted() else str(lanelet.id)


def _subtype(element: Any) -> str:
    return str(element.attributes["subtype"]) if "subtype" in element.attributes else ""


def _centerline(left: Array, right: Array) -> tuple[Array, float]:
    """Centre line (V, 2) of two bounds in driving direction, and their median distance.

    Left and right are determined from the points: lanelet2 uses degrees, which maps with local coordinates leave empty.
    """
    if np.hypot(*(left[0] - right[-1])) + np.hypot(*(left[-1] - right[0])) < np.hypot(*(left[0] - right[0])) + np.hypot(
        *(left[-1] - right[-1])
    ):
        right = right[::-1]
    x, y = np.concatenate([left, right[::-1]]).T  # up on one side and back on the other
    if np.dot(x, np.roll(y, -1)) > np.dot(np.roll(x, -1), y):  # anticlockwise: left and right are swapped
        left, right = left[::-1], right[::-1]
    count = max(int(np.ceil(max(geometry.arc_lengths(bound)[-1] for bound in (left, right)) / STEP_M)) + 1, 2)
    sides = [_resample(bound, count) for bound in (left, right)]
    return 0.5 * (sides[0] + sides[1]), float(np.median(np.hypot(*(sides[0] - sides[1]).T)))


def _resample(line: Array, count: int) -> Array:
    """(count, 2) equidistant points from end to end of a line."""
    along = geometry.arc_lengths(line)
    at = np.linspace(0.0, along[-1], count)
    return np.column_stack([np.interp(at, along, line[:, axis]) for axis in (0, 1)])


def _offset_line(line: Array, left_m: float) -> Array:
    heading = np.unwrap(geometry.headings_along(line))
    return np.asarray(line + left_m * np.stack([-np.sin(heading), np.cos(heading)], axis=-1))


def _rings(lanelet_map: Any, subtype: str) -> tuple[Array, ...]:
    """(V, 2) outlines of the lanelets of a subtype."""
    lanelets = (lanelet for lanelet in lanelet_map.laneletLayer if _subtype(lanelet) == subtype)
    return tuple(np.concatenate([line_points(one.leftBound), line_points(one.rightBound)[::-1]]) for one in lanelets)


def _merge_chains(pieces: Mapping[str, _DirectedLanelet]) -> dict[str, _DirectedLanelet]:
    """Merge chains of lanelets without branches: SUMO would make a junction at each joint."""
    reached = Counter(name for piece in pieces.values() for name in piece.after)
    grouped = {name for name, piece in pieces.items() if piece.left} | {piece.left for piece in pieces.values()}
    alone = {name for name, piece in pieces.items() if not piece.overlapped & pieces.keys()} - grouped
    merged = dict(pieces)
    for name in pieces:
        while name in merged and len(merged[name].after) == 1:
            one, other = merged[name], merged[merged[name].after[0]]
            is_mergeable = (
                abs(one.width_m - other.width_m) < MERGE_WIDTH_TOLERANCE_M
                and one.limit_mps == other.limit_mps
                and not one.light
            )
            if not (is_mergeable and {name, other.name} <= alone and reached[other.name] == 1 and other is not one):
                break
            line = np.concatenate([one.line, other.line[1:]])
            merged[name] = replace(one, line=line, after=other.after, light=other.light)
            del merged[other.name]
    return merged


# --- lanes, edges and junctions --------------------------------------------------------------------------------------


def _plain_xml(pieces: Mapping[str, _DirectedLanelet]) -> dict[str, str]:
    """SUMO plain XML: edges of adjacent lanes, junctions where edges meet, connections across them."""
    crossing = _junction_lanelets(pieces)
    edges = _edges({name: piece for name, piece in pieces.items() if name not in crossing})
    lane_of = {name: (edge, index) for edge, names in edges.items() for index, name in enumerate(names)}
    paths = [path for name in lane_of for path in _paths_across(pieces, crossing, name)]
    nodes = _UnionFind()
    for edge in edges:
        nodes.union(f"{edge}.begin", f"{edge}.begin")
        nodes.union(f"{edge}.end", f"{edge}.end")
    for path in paths:
        begin, end = f"{lane_of[path[0]][0]}.end", f"{lane_of[path[-1]][0]}.begin"
        nodes.union(begin, end)
        for name in path[1:-1]:
            nodes.union(begin, name)
            for other in pieces[name].overlapped & crossing:
                nodes.union(begin, other)
    node_points: dict[str, list[Array]] = {}
    lights = {nodes.find(name) for path in paths for name in path[1:-1] if pieces[name].light}
    leaves_on: dict[str, str] = {}  # edge -> the edge that holds its second half
    edge_lines, connection_lines = [], []
    for edge, names in edges.items():
        start, end = nodes.find(f"{edge}.begin"), nodes.find(f"{edge}.end")
        lanes = [pieces[name] for name in names]
        middle = _mean_line(lanes)
        node_points.setdefault(start, []).append(middle[0])
        node_points.setdefault(end, []).append(middle[-1])
        if any(lane.light for lane in lanes):
            lights.add(end)
        if start != end:
            edge_lines.append(_edge_xml(edge, start, end, lanes))
            continue
        # SUMO has no edge from a node to itself: split it in the middle.
        leaves_on[edge] = joint = f"{edge}.joint"
        node_points[joint] = [middle[len(middle) // 2]]
        halves = [(_slice_lane(lane, 0.0, 0.5), _slice_lane(lane, 0.5, 1.0)) for lane in lanes]
        edge_lines.append(_edge_xml(edge, start, joint, [half for half, _ in halves]))
        edge_lines.append(_edge_xml(joint, joint, end, [half for _, half in halves]))
        for index in range(len(lanes)):
            connection_lines.append(f'<connection from="{edge}" to="{joint}" fromLane="{index}" toLane="{index}"/>')
    for path in paths:
        (source, from_lane), (target, to_lane) = lane_of[path[0]], lane_of[path[-1]]
        across = _connector_shape([pieces[name].line for name in path]) if len(path) > 2 else None
        shape = "" if across is None else f' shape="{shape_text(across)}"'
        source = leaves_on.get(source, source)
        ends = f'from="{source}" to="{target}" fromLane="{from_lane}" toLane="{to_lane}"'
        connection_lines.append(f"<connection {ends}{shape}/>")
    node_lines = []
    for name, spots in node_points.items():
        x, y = np.mean(spots, axis=0)
        kind = "traffic_light" if name in lights and len(spots) > 2 else "priority"
        node_lines.append(f'<node id="{name}" x="{x:.3f}" y="{y:.3f}" type="{kind}"/>')
    return {
        "nodes": "\n".join(node_lines),
        "edges": "\n".join(edge_lines),
        "connections": "\n".join(connection_lines),
    }


def _connector_shape(lines: Sequence[Array]) -> Array:
    """The inner lines joined and shifted so that they start and end at the outer lines."""
    line = geometry.distinct_points(np.concatenate(lines[1:-1]), closer_than=0.1)
    share = (geometry.arc_lengths(line) / geometry.arc_lengths(line)[-1])[:, None]
    return np.asarray(line + (1 - share) * (lines[0][-1] - line[0]) + share * (lines[-1][0] - line[-1]))


def _slice_lane(lane: _DirectedLanelet, begin: float, end: float) -> _DirectedLanelet:
    """The part of a lane between two fractions of its length."""
    along = geometry.arc_lengths(lane.line)
    count = max(int((end - begin) * len(lane.line)), 2)
    at = np.linspace(begin, end, count) * along[-1]
    line = np.column_stack([np.interp(at, along, lane.line[:, axis]) for axis in (0, 1)])
    return replace(lane, line=line)


def _mean_line(lanes: Sequence[_DirectedLanelet]) -> Array:
    count = max(len(lane.line) for lane in lanes)
    return np.asarray(np.mean([_resample(lane.line, count) for lane in lanes], axis=0))


def _edge_xml(name: str, start: str, end: str, lanes: Sequence[_DirectedLanelet]) -> str:
    inner = []
    for index, lane in enumerate(lanes):
        changes = "" if lane.change_left or index == len(lanes) - 1 else ' changeLeft="emergency"'
        if index and not lanes[index - 1].change_left:
            changes += ' changeRight="emergency"'
        inner.append(
            f'<lane index="{index}" width="{lane.width_m:.2f}" disallow="pedestrian"'
            f' shape="{shape_text(lane.line)}"{changes}/>'
        )
    limit_mps = min(lane.limit_mps for lane in lanes)
    return (
        f'<edge id="{name}" from="{start}" to="{end}" numLanes="{len(lanes)}" speed="{limit_mps:.3f}"'
        f' spreadType="center" shape="{shape_text(_mean_line(lanes))}">{"".join(inner)}</edge>'
    )


def _junction_lanelets(pieces: Mapping[str, _DirectedLanelet]) -> set[str]:
    """Names of the lanelets that overlap another and have both predecessors and successors."""
    entered = {name for piece in pieces.values() for name in piece.after}
    return {
        name for name, piece in pieces.items() if piece.after and name in entered and piece.overlapped & pieces.keys()
    }


def _edges(roads: Mapping[str, _DirectedLanelet]) -> dict[str, tuple[str, ...]]:
    """Edge -> its lanes, from the right."""
    right_of = {piece.left: name for name, piece in roads.items() if piece.left in roads}
    edges = {}
    for name in roads:
        if name in right_of:
            continue
        row = [name]
        while (left := roads[row[-1]].left) in roads and left is not None and left not in row:
            row.append(left)
        edges[f"e{name}"] = tuple(row)
    return edges


def _paths_across(pieces: Mapping[str, _DirectedLanelet], crossing: set[str], name: str) -> Iterator[tuple[str, ...]]:
    """Name paths from a lane across a junction to each lane after it, both ends included."""
    todo: list[tuple[str, ...]] = [(name, other) for other in pieces[name].after]
    while todo:
        path = todo.pop(0)
        if path[-1] not in crossing:
            yield path
        elif len(path) <= MAX_JUNCTION_LANELETS:
            todo += [(*path, other) for other in pieces[path[-1]].after if other not in path]


class _UnionFind:
    """Disjoint sets of names; each set is called after its first member."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def find(self, name: str) -> str:
        while (first := self._first.setdefault(name, name)) != name:
            name = first
        return name

    def union(self, one: str, other: str) -> None:
        self._first[self.find(other)] = self.find(one)
