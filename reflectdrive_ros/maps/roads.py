"""The road network of a town or a map file: lanes, junctions, walkways and signals in one map frame.

Generated towns (`sim.network.towns`) and Lanelet2 maps (`lanelet_roads.py`) are converted to a SUMO network and read
back from it here, so traffic, rendering and scoring use the same geometry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from ..core.lanes import Lane
from ..infra.errors import UserError
from .connectors import U_TURN, lane_at, parse_shape


class RoadError(UserError, ValueError):
    """A network cannot be built or used; the message names it, the reason and what to do."""


MAX_LISTED = 5  # ids named in a message


def list_unusable(kind: str, unusable: Mapping[str, Sequence[str]]) -> str:
    """Parts of a map that cannot be used, by reason, for the end of a sentence; `kind` is roads or lanelets."""
    parts = []
    for reason, names in unusable.items():
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        parts.append(f"; {kind} {', '.join(names[:MAX_LISTED])}{more} {reason}")
    return "".join(parts)


class Turn(IntEnum):
    """Direction of a connector lane across a junction."""

    STRAIGHT = 0
    LEFT = 1
    RIGHT = 2
    BACK = 3


class RoadType(Enum):
    """Type of a road; SUMO stores it as the edge type. Rare types are sampled more often for scenes."""

    PLAIN = "plain"
    ROUNDABOUT = "roundabout"
    WINDING = "winding"  # curves exceed a comfortable lateral acceleration at the limit
    NARROW = "narrow"  # two-way, barely two cars wide
    LANE_DROP = "lane_drop"  # a lane ends ahead
    DEAD_END = "dead_end"  # ends in a turning loop


@dataclass(frozen=True, eq=False)
class RoadLane:
    """A lane for cars, with its SUMO names."""

    lane: Lane  # centreline (V, 2), one polygon or more, successors, predecessors, adjacent; keys of RoadMap.lanes
    sumo_id: str
    edge: str  # SUMO edge; for a connector the internal edge, whose id starts with ":"
    index: int  # on its edge, 0 is the rightmost
    width_m: float
    across_junction: str | None  # id of the junction of a connector, None for a road lane
    turn: Turn  # of connectors; STRAIGHT where only one edge follows, whatever its curvature
    road_type: RoadType


@dataclass(frozen=True, eq=False)
class RoadSignal:
    """One traffic light at the end of a lane."""

    tls: str  # SUMO's traffic light
    link: int  # index into its state string
    lane: int  # key of the lane that ends at the light
    connectors: tuple[int, ...]  # keys of the connectors that it controls
    stop_line: Array  # (2, 2) m, left and right end


@dataclass(frozen=True, eq=False)
class Shoulder:
    """A strip of road beside the lanes, which a car may use and no lane leads along."""

    centerline: Array  # (V, 2) m
    width_m: float


@dataclass(frozen=True, eq=False)
class RoadMap:
    """A whole network. Rings are (V, 2), not closed; all metres in the map frame (x east, y north)."""

    name: str  # such as `train-00042`, or the name of a map file
    net_file: Path  # for SUMO
    lanes: Mapping[int, RoadLane]
    roads: Mapping[str, Any]  # SUMO edge -> shapely Polygon of its drivable lanes together
    junctions: Mapping[str, Any]  # junction -> shapely Polygon
    walkways: tuple[Array, ...]  # rings of sidewalks and street corners
    crossings: tuple[Array, ...]  # rings of zebra crossings, on the road
    cycleways: tuple[Array, ...]  # rings of lanes for bicycles only
    signals: tuple[RoadSignal, ...]
    edges_after: Mapping[str, tuple[str, ...]]  # road edge -> edges that a car can reach next, unordered
    shoulders: tuple[Shoulder, ...] = ()  # part of `roads`

    @property
    def by_sumo_id(self) -> Mapping[str, int]:
        """SUMO lane id -> key of `lanes`."""
        return {lane.sumo_id: key for key, lane in self.lanes.items()}


DEFAULT_WIDTH_M = 3.2  # where the file has none; SUMO's default
MAX_SHOULDER_M = 1.0
MAX_FROM_PATH_M = 8.0  # junction surface further than this from every connector is no road, such as an island
SLIVER_M = 0.3  # parts of a junction narrower than twice this are no road
SEAM_M = 0.05  # roads are grown by this to close gaps between adjacent lanes
OVERLAP_M = 0.4  # a road extends this far into its junctions
MIN_ROADS_M = 150.0  # length of the roads of a usable network
TURNS = {"s": Turn.STRAIGHT, "l": Turn.LEFT, "L": Turn.LEFT, "r": Turn.RIGHT, "R": Turn.RIGHT, U_TURN: Turn.BACK}
ROAD_TYPES = {road_type.value: road_type for road_type in RoadType}


def read(net_file: Path, name: str) -> RoadMap:
    """A SUMO network (.net.xml) as a RoadMap; lanes are numbered in the order of the file.

    Raises RoadError for a file that is missing or no network, and for one with less than MIN_ROADS_M of roads for cars;
    OSError if the file cannot be read.
    """
    try:
        net = ElementTree.parse(net_file).getroot()
    except (FileNotFoundError, ElementTree.ParseError) as fault:
        raise RoadError(f"{net_file} cannot be read as a SUMO network: {fault}") from None
    edges = {edge.get("id", ""): edge for edge in net.iter("edge")}
    cars = [
        (edge, lane)
        for edge in edges.values()
        if edge.get("function") in (None, "normal", "internal")
        for lane in edge.iter("lane")
        if _allows(lane, "passenger")
    ]
    road_edges = {edge.get("id", "") for edge, _ in cars if edge.get("function") != "internal"}
    lengths_m = {edge.get("id", ""): float(lane.get("length", "0")) for edge, lane in cars}
    length_m = sum(lengths_m[edge] for edge in road_edges)
    if length_m < MIN_ROADS_M:
        raise RoadError(
            f"{name} has no drivable route: {length_m:.0f} m of road for cars, expected at least {MIN_ROADS_M:.0f} m"
        )
    keys = {lane.get("id", ""): key for key, (_, lane) in enumerate(cars)}
    links = [link for link in map(_link, net.iter("connection")) if link.source in keys and link.target in keys]
    lanes = _lanes(cars, keys, links, edges)
    walking = _lane_shapes(edges, lambda edge, _: edge.get("function") == "walkingarea")
    areas = [shapely.Polygon(ring).buffer(0) for ring in walking if len(ring) > 2]
    return RoadMap(
        name=name,
        net_file=net_file,
        lanes=lanes,
        roads=_roads(edges, road_edges),
        junctions=_junctions(net, lanes, areas),
        walkways=(*_rings(areas), *_rings(_lane_polygons(edges, _is_sidewalk))),
        crossings=_rings(_lane_polygons(edges, lambda edge, _: edge.get("function") == "crossing")),
        cycleways=_rings(_lane_polygons(edges, _is_cycleway)),
        signals=_signals(net, lanes, keys),
        edges_after=_edges_after(links, lanes, keys, road_edges),
        shoulders=tuple(
            Shoulder(line, width_m)
            for line, width_m in _lane_lines(
                edges, lambda edge, lane: edge.get("id") in road_edges and _is_shoulder(lane)
            )
        ),
    )


@dataclass(frozen=True)
class _Link:
    """A connection between two lanes, through a connector or, from a connector, directly."""

    source: str
    via: str | None
    target: str
    turn: Turn


def _link(connection: Element) -> _Link:
    return _Link(
        source=lane_at(connection, "from"),
        via=connection.get("via"),
        target=lane_at(connection, "to"),
        turn=TURNS.get(connection.get("dir", ""), Turn.STRAIGHT),
    )


def _allows(lane: Element, who: str) -> bool:
    allow, disallow = lane.get("allow"), lane.get("disallow")
    if allow is not None:
        return allow == "all" or who in allow.split()
    return disallow is None or not (disallow == "all" or who in disallow.split())


def _is_sidewalk(edge: Element, lane: Element) -> bool:
    return edge.get("function") in (None, "normal") and lane.get("allow") == "pedestrian"


def _is_cycleway(edge: Element, lane: Element) -> bool:
    on_road = edge.get("function") in (None, "normal")
    return on_road and _allows(lane, "bicycle") and not _allows(lane, "passenger") and not _allows(lane, "pedestrian")


def _is_shoulder(lane: Element) -> bool:
    """Whether a lane without users is a shoulder; a wide one is the median between two directions."""
    return lane.get("disallow") == "all" and _width(lane) <= MAX_SHOULDER_M


def _width(lane: Element) -> float:
    return float(lane.get("width", DEFAULT_WIDTH_M))


def _lanes(
    cars: Sequence[tuple[Element, Element]],
    keys: Mapping[str, int],
    links: Sequence[_Link],
    edges: Mapping[str, Element],
) -> dict[int, RoadLane]:
    successors: dict[int, list[int]] = {key: [] for key in keys.values()}
    predecessors: dict[int, list[int]] = {key: [] for key in keys.values()}
    turns: dict[int, Turn] = {}
    edges_after: dict[str, set[str]] = {}  # edge -> edges after it
    for link in links:
        edges_after.setdefault(_edge_of(link.source), set()).add(_edge_of(link.target))
    ends: dict[int, set[RoadType]] = {}  # road types that a connector joins
    for link in links:
        source, target = keys[link.source], keys[link.target]
        if link.via is not None and link.via in keys:
            target = keys[link.via]
        successors[source].append(target)
        predecessors[target].append(source)
        crossing = source if link.source.startswith(":") else target
        # With a single following edge there is no turn to announce.
        bend = len(edges_after[_edge_of(link.source)]) == 1 and crossing == target and link.turn is not Turn.BACK
        turns.setdefault(crossing, Turn.STRAIGHT if bend else link.turn)
        if (
            link.source.startswith(":") and link.via is not None
        ):  # SUMO splits a connector where traffic waits in the junction
            turns[target] = turns[crossing]
        for lane_id in (link.source, link.target):
            if not lane_id.startswith(":"):
                ends.setdefault(crossing, set()).add(_road_type(edges[_edge_of(lane_id)]))
    lines = [geometry.distinct_points(parse_shape(lane.get("shape")), closer_than=1e-3) for _, lane in cars]
    lines = [line if len(line) > 1 else _stub_line(lane) for line, (_, lane) in zip(lines, cars, strict=True)]
    polygons = _buffer_lines(lines, [_width(lane) / 2 for _, lane in cars])
    lanes = {}
    for key, (edge, lane) in enumerate(cars):
        edge_id = edge.get("id", "")
        inside = edge.get("function") == "internal"
        lanes[key] = RoadLane(
            lane=Lane(
                centerline=lines[key],
                polygons=(polygons[key],),
                successors=tuple(dict.fromkeys(successors[key])),
                predecessors=tuple(dict.fromkeys(predecessors[key])),
                adjacent=() if inside else _adjacent_lanes(edge_id, lane, keys),
                speed_limit_mps=float(lane.get("speed", "13.89")),
            ),
            sumo_id=lane.get("id", ""),
            edge=edge_id,
            index=int(lane.get("index", "0")),
            width_m=_width(lane),
            across_junction=edge_id[1:].rsplit("_", 1)[0] if inside else None,
            turn=turns.get(key, Turn.STRAIGHT),
            road_type=_junction_road_type(ends.get(key, set())) if inside else _road_type(edge),
        )
    return lanes


def _edge_of(lane_id: str) -> str:
    return lane_id.rsplit("_", 1)[0]


def _road_type(edge: Element) -> RoadType:
    return ROAD_TYPES.get(edge.get("type", ""), RoadType.PLAIN)


def _junction_road_type(ends: set[RoadType]) -> RoadType:
    """Road type of a connector: ROUNDABOUT if either end is one, else the common type of both ends, else PLAIN."""
    if RoadType.ROUNDABOUT in ends:
        return RoadType.ROUNDABOUT
    return next(iter(ends)) if len(ends) == 1 else RoadType.PLAIN


def _adjacent_lanes(edge_id: str, lane: Element, keys: Mapping[str, int]) -> tuple[int, ...]:
    index = int(lane.get("index", "0"))
    sides = ((index - 1, lane.get("changeRight")), (index + 1, lane.get("changeLeft")))
    allowed = [other for other, who in sides if who is None or who == "all" or "passenger" in who.split()]
    return tuple(keys[f"{edge_id}_{other}"] for other in allowed if f"{edge_id}_{other}" in keys)


def _stub_line(lane: Element) -> Array:
    """A line of 1 cm for a lane of zero length inside its junction."""
    x, y = parse_shape(lane.get("shape"))[0]
    return np.array([[x, y], [x + 0.01, y]])


def _buffer_lines(lines: Sequence[Array], half_widths: Sequence[float], ahead_m: float = 0.0) -> list[Any]:
    """One polygon per line with flat ends, which are extended by `ahead_m`."""
    line_strings = [shapely.LineString(_extend_ends(line, ahead_m) if ahead_m else line) for line in lines]
    return list(shapely.buffer(line_strings, half_widths, cap_style="flat", join_style="mitre", mitre_limit=2.0))


def _extend_ends(line: Array, ahead_m: float) -> Array:
    first, last = line[0] - line[1], line[-1] - line[-2]
    begin = line[0] + ahead_m * first / max(np.hypot(*first), 1e-9)
    end = line[-1] + ahead_m * last / max(np.hypot(*last), 1e-9)
    return np.concatenate([begin[None], line, end[None]])


def _lane_shapes(edges: Mapping[str, Element], is_selected: Callable[[Element, Element], bool]) -> list[Array]:
    return [
        parse_shape(lane.get("shape"))
        for edge in edges.values()
        for lane in edge.iter("lane")
        if is_selected(edge, lane)
    ]


def _lane_polygons(edges: Mapping[str, Element], is_selected: Callable[[Element, Element], bool]) -> list[Any]:
    """Polygons of the lanes that `is_selected` accepts."""
    lines = _lane_lines(edges, is_selected)
    return _buffer_lines([line for line, _ in lines], [width_m / 2 for _, width_m in lines])


def _lane_lines(
    edges: Mapping[str, Element], is_selected: Callable[[Element, Element], bool]
) -> list[tuple[Array, float]]:
    """Centreline and width in m of the lanes that `is_selected` accepts and that have a length."""
    chosen = [lane for edge in edges.values() for lane in edge.iter("lane") if is_selected(edge, lane)]
    lines = [geometry.distinct_points(parse_shape(lane.get("shape")), closer_than=1e-3) for lane in chosen]
    return [(line, _width(lane)) for line, lane in zip(lines, chosen, strict=True) if len(line) > 1]


def _rings(polygons: Iterable[Any]) -> tuple[Array, ...]:
    """Exterior rings (V, 2), not closed."""
    whole = [_largest_part(polygon) for polygon in polygons if not polygon.is_empty]
    return tuple(shapely.get_coordinates(polygon.exterior)[:-1] for polygon in whole)


def _largest_part(area: Any) -> Any:
    """The largest part of an area without its holes; the scorer takes rings."""
    largest = max(shapely.get_parts(area), key=lambda part: float(part.area))
    return shapely.Polygon(largest.exterior)


def _roads(edges: Mapping[str, Element], road_edges: set[str]) -> dict[str, Any]:
    """Car lanes and shoulders of each edge as one polygon."""
    chosen = [
        (edge_id, lane)
        for edge_id, edge in edges.items()
        if edge_id in road_edges
        for lane in edge.iter("lane")
        if _allows(lane, "passenger") or _is_shoulder(lane)
    ]
    lines = [geometry.distinct_points(parse_shape(lane.get("shape")), closer_than=1e-3) for _, lane in chosen]
    lines = [line if len(line) > 1 else _stub_line(lane) for line, (_, lane) in zip(lines, chosen, strict=True)]
    halves = [_width(lane) / 2 + SEAM_M for _, lane in chosen]
    parts: dict[str, list[Any]] = {}
    for (edge_id, _), polygon in zip(chosen, _buffer_lines(lines, halves, OVERLAP_M), strict=True):
        parts.setdefault(edge_id, []).append(polygon)
    return {edge_id: _largest_part(shapely.union_all(polygons)) for edge_id, polygons in parts.items()}


def _junctions(net: Element, lanes: Mapping[int, RoadLane], walking: Sequence[Any]) -> dict[str, Any]:
    """Surface of each junction without its walking areas, united with its connectors."""
    across: dict[str, list[Any]] = {}
    for lane in lanes.values():
        if lane.across_junction is not None:
            across.setdefault(lane.across_junction, []).extend(lane.lane.polygons)
    corners = shapely.STRtree(walking)
    junctions = {}
    for junction in net.iter("junction"):
        junction_id = junction.get("id", "")
        if junction_id not in across:
            continue
        driven = shapely.union_all(shapely.buffer(across[junction_id], SEAM_M, join_style="mitre"))
        ring = parse_shape(junction.get("shape"))
        if len(ring) > 2:
            surface = shapely.Polygon(ring).buffer(0)
            people = [walking[index] for index in corners.query(surface, predicate="intersects")]
            surface = surface.difference(shapely.union_all(people)) if people else surface
            driven = driven.union(_remove_slivers(surface.intersection(driven.buffer(MAX_FROM_PATH_M))))
        junctions[junction_id] = _largest_part(driven.buffer(SEAM_M, join_style="mitre", mitre_limit=2.0))
    return junctions


def _remove_slivers(area: Any) -> Any:
    eroded = area.buffer(-SLIVER_M, join_style="mitre", mitre_limit=2.0)
    return eroded.buffer(SLIVER_M, join_style="mitre", mitre_limit=2.0)


def _signals(net: Element, lanes: Mapping[int, RoadLane], keys: Mapping[str, int]) -> tuple[RoadSignal, ...]:
    signals: dict[tuple[str, int, int], list[int]] = {}
    for connection in net.iter("connection"):
        source, via = lane_at(connection, "from"), connection.get("via", "")
        if connection.get("tl") is not None and source in keys and via in keys:
            light = (connection.get("tl", ""), int(connection.get("linkIndex", "0")), keys[source])
            signals.setdefault(light, []).extend(_junction_chain(lanes, keys[via]))
    return tuple(
        RoadSignal(tls, link, lane, tuple(connectors), _stop_line(lanes[lane]))
        for (tls, link, lane), connectors in signals.items()
    )


def _junction_chain(lanes: Mapping[int, RoadLane], first: int) -> list[int]:
    """The connectors from `first` on; SUMO splits one where traffic waits in the junction."""
    crossed = [first]
    while (after := lanes[crossed[-1]].lane.successors) and lanes[after[0]].across_junction is not None:
        crossed.append(after[0])
    return crossed


def _stop_line(lane: RoadLane) -> Array:
    line = lane.lane.centerline
    *end, heading = geometry.sample(line, geometry.arc_lengths(line)[-1:])[0]
    left = 0.5 * lane.width_m * np.array([-np.sin(heading), np.cos(heading)])
    return np.stack([end + left, end - left])


def _edges_after(
    links: Sequence[_Link], lanes: Mapping[int, RoadLane], keys: Mapping[str, int], road_edges: set[str]
) -> dict[str, tuple[str, ...]]:
    after: dict[str, dict[str, None]] = {edge: {} for edge in sorted(road_edges)}
    for link in links:
        source, target = lanes[keys[link.source]].edge, lanes[keys[link.target]].edge
        if source in after:
            after[source][target] = None
    return {edge: tuple(targets) for edge, targets in after.items()}
