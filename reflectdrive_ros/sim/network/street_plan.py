"""Plan of a generated town: positions of its junctions, the streets between them and their cross sections.

A town is a rotated grid with random offsets and some streets removed. Its style sets the spacing of junctions and the
mix of streets. Every town has at least one roundabout, winding road, narrow road, lane drop and dead end, and two
signalised junctions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadType
from .street_lines import KMH, sample_gentle_curve, sample_winding_curve
from .town_styles import KINDS, STYLES, Style

FRONT_M = 4.05  # from the rear axle to the front of the car: its outer corner swings out in curves
HALF_CAR_M = 1.15
ARM_WIDTH_M = {False: 23.0, True: 32.0}  # width that an arm occupies on the ring, for one lane and for two
MIN_TRAFFIC_LIGHTS = 2
MIN_LANE_DROP_STREET_M = 95.0  # a road on which a lane ends is at least this long, if there is one
LOOP_RADIUS_M = 8.5  # of the turning loop at a dead end
RING_RADIUS_M = (11.0, 20.0)
MIN_ARM_ANGLE_RAD = {
    3: np.radians(100),
    4: np.radians(76),
}  # least angle between the arms of a roundabout, by their number
GRID_SIZES = ((4, 3), (3, 4), (4, 4), (5, 3), (3, 5), (5, 4), (4, 5))


@dataclass(frozen=True, eq=False)
class Street:
    """A street between two junctions. `line` is its centre; each direction lies to the right of it."""

    name: str
    start: str
    end: str
    line: Array  # (V, 2)
    kind: str
    lanes: int  # per direction
    width_m: float
    limit_mps: float
    road_type: RoadType = RoadType.PLAIN
    one_way: bool = False
    verge_m: float = 0.0
    shoulder_m: float = 0.3
    sidewalk_m: float = 0.0  # 0 for none
    cycleway_m: float = 0.0
    ends_lane: str = ""  # "right" or "left": forwards, that lane ends where the street does
    lost_lane: str = ""  # forwards, that lane has ended before this street


@dataclass(frozen=True, eq=False)
class Ring:
    """A roundabout or the turning loop of a dead end: one-way, anticlockwise, through its junctions in order."""

    name: str
    center: Array  # (2,)
    radius_m: float
    angles: tuple[float, ...]  # of its junctions, ascending
    junctions: tuple[str, ...]
    lanes: int
    width_m: float
    road_type: RoadType


@dataclass(frozen=True, eq=False)
class Junction:
    at: Array  # (2,)
    control: str  # SUMO's type of node
    corner_m: float


@dataclass(frozen=True, eq=False)
class StreetPlan:
    style: str
    junctions: Mapping[str, Junction]
    streets: Sequence[Street]
    rings: Sequence[Ring]
    turn_back: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # (street, junction) with U-turns
    crossings: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # (street, junction) with a zebra


@dataclass(eq=False)
class _Draft:
    """A town being planned: positions by number, links between them, their kinds and road types."""

    nodes: dict[int, Array]
    links: list[tuple[int, int]]
    kinds: dict[tuple[int, int], str]
    road_types: dict[tuple[int, int], RoadType] = field(default_factory=dict)
    roundabouts: dict[int, float] = field(default_factory=dict)  # radius m
    dead_ends: list[int] = field(default_factory=list)

    def links_at(self, node: int) -> list[tuple[int, int]]:
        return [link for link in self.links if node in link]

    def bearings(self, node: int) -> Array:
        """(N,) directions in which its links leave, in the order of `links_at`."""
        others = np.array([self.nodes[sum(link) - node] for link in self.links_at(node)])
        steps = others - self.nodes[node]
        return np.asarray(np.arctan2(steps[:, 1], steps[:, 0]))

    def length(self, link: tuple[int, int]) -> float:
        return float(np.hypot(*(self.nodes[link[0]] - self.nodes[link[1]])))


def sample_plan(generator: np.random.Generator) -> StreetPlan:
    """Sample the plan of a town."""
    style = STYLES[int(generator.integers(len(STYLES)))]
    draft = _sample_grid(style, generator)
    _add_dead_ends(draft, generator)
    _choose_roundabouts(draft, style, generator)
    _choose_road_types(draft, style, generator)
    return _build_plan(draft, style, generator)


def _sample_grid(style: Style, generator: np.random.Generator) -> _Draft:
    """Junctions on a grid with random offsets; links are removed while it stays connected with degrees of 2 or more."""
    columns, rows = GRID_SIZES[int(generator.integers(len(GRID_SIZES)))]
    across = np.cumsum(generator.uniform(*style.spacing_m, columns))
    up = np.cumsum(generator.uniform(*style.spacing_m, rows))
    shake = 0.1 * style.spacing_m[0]
    turn = generator.uniform(-np.pi, np.pi)
    nodes = {
        row * columns + column: geometry.rotate(
            np.array([across[column], up[row]]) + generator.uniform(-shake, shake, 2), turn
        )
        for row in range(rows)
        for column in range(columns)
    }
    weights = np.array(list(style.kinds.values()))
    names = list(style.kinds)
    kind_of_row = generator.choice(names, rows, p=weights / weights.sum())
    kind_of_column = generator.choice(names, columns, p=weights / weights.sum())
    kinds = {}
    for node in nodes:
        row, column = divmod(node, columns)
        if column + 1 < columns:
            kinds[node, node + 1] = str(kind_of_row[row])
        if row + 1 < rows:
            kinds[node, node + columns] = str(kind_of_column[column])
    links = list(kinds)
    for index in generator.permutation(len(kinds)):
        link = list(kinds)[index]
        fewer = [other for other in links if other != link]
        degrees = np.bincount(np.ravel(fewer), minlength=len(nodes))
        if generator.random() < style.torn and degrees.min() >= 2 and _is_connected(len(nodes), fewer):
            links = fewer
    return _Draft(nodes, links, {link: kinds[link] for link in links})


def _is_connected(count: int, links: Iterable[tuple[int, int]]) -> bool:
    group = list(range(count))
    for a, b in links:
        if group[a] != group[b]:
            old, new = group[a], group[b]
            group = [new if member == old else member for member in group]
    return len(set(group)) == 1


def _add_dead_ends(draft: _Draft, generator: np.random.Generator) -> None:
    """Add one or two short dead-end streets that lead outwards, where there is room between the other links."""
    middle = np.mean(list(draft.nodes.values()), axis=0)
    rooms = []
    for node in draft.nodes:
        bearings = np.sort(draft.bearings(node))
        gaps = np.diff(np.concatenate([bearings, bearings[:1] + 2 * np.pi]))
        widest = int(np.argmax(gaps))
        bearing = bearings[widest] + gaps[widest] / 2
        outward = draft.nodes[node] - middle
        if gaps[widest] > np.radians(130) and outward @ [np.cos(bearing), np.sin(bearing)] > 0:
            rooms.append((node, bearing))
    for index in generator.permutation(len(rooms))[: int(generator.integers(1, 3))]:
        node, bearing = rooms[index]
        end = len(draft.nodes)
        reach = generator.uniform(55, 95)
        draft.nodes[end] = draft.nodes[node] + reach * np.array([np.cos(bearing), np.sin(bearing)])
        draft.links.append((node, end))
        draft.kinds[node, end] = "lane" if generator.random() < 0.6 else "street"
        draft.road_types[node, end] = RoadType.DEAD_END
        draft.dead_ends.append(end)


def _choose_roundabouts(draft: _Draft, style: Style, generator: np.random.Generator) -> None:
    """Turn junctions with three or more well separated links into roundabouts; their boulevards become avenues."""
    target_count = int(generator.integers(style.roundabouts[0], style.roundabouts[1] + 1))
    candidates = [node for node in draft.nodes if len(draft.links_at(node)) >= 3]
    order = [candidates[index] for index in generator.permutation(len(candidates))]
    for node in sorted(order, key=lambda node: _smallest_angle(draft.bearings(node)) < np.radians(60)):
        if len(draft.roundabouts) == target_count:
            break
        if any(tuple(sorted((node, other))) in draft.links for other in draft.roundabouts):
            continue
        for link in draft.links_at(node):
            if draft.kinds[link] == "boulevard":
                draft.kinds[link] = "avenue"
        two = any(draft.kinds[link] == "avenue" for link in draft.links_at(node))
        least_m = ARM_WIDTH_M[two] / (2 * np.sin(_smallest_angle(_spread_arms(draft.bearings(node))) / 2))
        draft.roundabouts[node] = float(max(least_m, generator.uniform(*RING_RADIUS_M)))


def _smallest_angle(bearings: Array) -> float:
    """The smallest angle between neighbouring bearings, rad."""
    ascending = np.sort(bearings)
    return float(np.diff(np.concatenate([ascending, ascending[:1] + 2 * np.pi])).min())


def _spread_arms(bearings: Array) -> Array:
    """Angles at which the arms of a roundabout meet its ring: the street bearings, pushed apart where too close."""
    order = np.argsort(bearings)
    angles = bearings[order]
    min_angle = MIN_ARM_ANGLE_RAD.get(len(angles), 0.85 * 2 * np.pi / len(angles))
    for _ in range(60):
        lacking = min_angle - (np.roll(angles, -1) - angles + 2 * np.pi * (np.arange(len(angles)) == len(angles) - 1))
        push = 0.25 * np.maximum(lacking, 0.0)
        angles = angles + np.roll(push, 1) - push
    spread = np.empty(len(angles))
    spread[order] = angles
    return spread


def _choose_road_types(draft: _Draft, style: Style, generator: np.random.Generator) -> None:
    """Choose winding and narrow roads among the free links, and lane drops on long roads of two or more lanes."""
    free = [link for link in draft.links if link not in draft.road_types and not set(link) & set(draft.roundabouts)]
    free = [free[index] for index in generator.permutation(len(free))] or list(draft.links)
    sample_winding_curve = int(generator.integers(style.winding[0], style.winding[1] + 1))
    for link in sorted(free, key=draft.length, reverse=True)[: sample_winding_curve + 2][:sample_winding_curve]:
        draft.road_types[link] = RoadType.WINDING
        draft.kinds[link] = "country" if style.name == "country" else "street"
    narrow = int(generator.integers(style.narrow[0], style.narrow[1] + 1))
    for link in [link for link in free if link not in draft.road_types][:narrow]:
        draft.road_types[link] = RoadType.NARROW
        draft.kinds[link] = "lane"
    plain = [link for link in draft.links if link not in draft.road_types]
    plain = [plain[index] for index in generator.permutation(len(plain))]

    def removal_order(link: tuple[int, int]) -> tuple[bool, int]:
        narrow = KINDS[draft.kinds[link]].lanes[1] < 2
        return _straight_length(draft, link) < MIN_LANE_DROP_STREET_M, narrow + (
            narrow and bool(set(link) & set(draft.roundabouts))
        )

    for link in sorted(plain, key=removal_order)[: int(generator.integers(1, 3))]:
        draft.road_types[link] = RoadType.LANE_DROP
        if KINDS[draft.kinds[link]].lanes[1] < 2:
            draft.kinds[link] = "avenue"


def _straight_length(draft: _Draft, link: tuple[int, int]) -> float:
    return draft.length(link) - sum(draft.roundabouts.get(node, 0.0) for node in link)


# --- from the draft to streets ---------------------------------------------------------------------------------------


def _build_plan(draft: _Draft, style: Style, generator: np.random.Generator) -> StreetPlan:
    junctions: dict[str, Junction] = {}
    rings = []
    joints: dict[tuple[int, int], str] = {}  # (node, other node) -> junction where the link begins
    for node, at in draft.nodes.items():
        others = [sum(link) - node for link in draft.links_at(node)]
        bearings = draft.bearings(node)
        if node in draft.roundabouts or node in draft.dead_ends:
            ring, names = _build_ring(draft, node, bearings, generator)
            rings.append(ring)
            for name, angle in zip(ring.junctions, ring.angles, strict=True):
                spot = ring.center + ring.radius_m * np.array([np.cos(angle), np.sin(angle)])
                junctions[name] = Junction(spot, "priority", 6.0)
            joints.update({(node, other): name for other, name in zip(others, names, strict=True)})
        else:
            control = _sample_control(style, len(others), generator)
            junctions[f"n{node}"] = Junction(at, control, float(generator.uniform(*style.corner_m)))
            joints.update({(node, other): f"n{node}" for other in others})
    _add_lights(junctions, draft, generator)
    streets: list[Street] = []
    for number, link in enumerate(draft.links):
        begin, finish = joints[link], joints[link[1], link[0]]
        streets += _build_streets(draft, style, number, link, (begin, finish), junctions, generator)
    streets = _make_one_way_streets(streets, rings, style, generator)
    busy = [name for name in junctions if name.startswith("n") and sum(name in (s.start, s.end) for s in streets) > 2]
    turn_back = {
        (street.name, name)
        for street in streets
        for name in (street.start, street.end)
        if street.verge_m and name in busy and not street.one_way and generator.random() < 0.7
    }
    crossings = {
        (street.name, name)
        for street in streets
        for name in (street.start, street.end)
        if street.sidewalk_m and name in busy and generator.random() < style.crossings
    }
    return StreetPlan(style.name, junctions, streets, rings, frozenset(turn_back), frozenset(crossings))


def _sample_control(style: Style, arms: int, generator: np.random.Generator) -> str:
    lot = generator.random()
    if arms > 2 and lot < style.lights:
        return "traffic_light"
    if arms > 2 and lot < style.lights + style.unregulated:
        return "right_before_left"
    return "priority"


def _add_lights(junctions: dict[str, Junction], draft: _Draft, generator: np.random.Generator) -> None:
    """Signalise further junctions until there are MIN_TRAFFIC_LIGHTS of them."""
    lit = sum(junction.control == "traffic_light" for junction in junctions.values())
    if lit >= MIN_TRAFFIC_LIGHTS:
        return
    unlit = [
        name
        for name, arms in ((f"n{node}", len(draft.links_at(node))) for node in draft.nodes)
        if name in junctions and arms > 2 and junctions[name].control != "traffic_light"
    ]
    for index in generator.permutation(len(unlit))[: MIN_TRAFFIC_LIGHTS - lit]:
        junctions[unlit[index]] = replace(junctions[unlit[index]], control="traffic_light")


def _build_ring(draft: _Draft, node: int, bearings: Array, generator: np.random.Generator) -> tuple[Ring, list[str]]:
    """The ring at a position, and the names of its junctions in the order of the bearings."""
    dead_end = node in draft.dead_ends
    two = any(draft.kinds[link] == "avenue" for link in draft.links_at(node)) and not dead_end
    radius_m = LOOP_RADIUS_M if dead_end else draft.roundabouts[node]
    inner_m = radius_m - (1.8 if two else 0.0)
    width_m = 2 * (HALF_CAR_M + FRONT_M**2 / 2 / inner_m + (0.7 if dead_end else generator.uniform(0.15, 0.4)))
    order = np.argsort(bearings)
    angles = [float(angle) for angle in (bearings if dead_end else _spread_arms(bearings))[order]]
    center = draft.nodes[node]
    if dead_end:  # the loop is beyond the end of its street; it has a second junction, because an edge joins two
        angles = [angles[0], angles[0] + np.pi]
    names = [f"r{node}x{index}" for index in range(len(angles))]
    road_type = RoadType.DEAD_END if dead_end else RoadType.ROUNDABOUT
    ring = Ring(f"r{node}", center, radius_m, tuple(angles), tuple(names), 2 if two else 1, width_m, road_type)
    return ring, [names[int(rank)] for rank in np.argsort(order)]


def _build_streets(
    draft: _Draft,
    style: Style,
    number: int,
    link: tuple[int, int],
    ends: tuple[str, str],
    junctions: dict[str, Junction],
    generator: np.random.Generator,
) -> list[Street]:
    """The street of a link; two consecutive ones where a lane ends between them."""
    kind_name, road_type = draft.kinds[link], draft.road_types.get(link, RoadType.PLAIN)
    kind = KINDS[kind_name]
    start, stop = junctions[ends[0]].at, junctions[ends[1]].at
    width_m = float(generator.uniform(*kind.width_m))
    shoulder_m = 0.6 if kind_name == "country" else 0.3
    limit_mps = int(generator.choice(kind.limit_kmh)) * KMH
    if road_type is RoadType.WINDING:
        line, limit_mps = sample_winding_curve(start, stop, generator)
        width_m, shoulder_m = max(width_m, 3.2), 0.8
    else:
        bend = 0.02 if road_type in (RoadType.NARROW, RoadType.DEAD_END, RoadType.LANE_DROP) else style.bend
        line, limit_mps = sample_gentle_curve(
            start, stop, _end_slopes(draft, link, start, stop), bend, limit_mps, generator
        )
    if road_type is RoadType.NARROW:
        width_m, shoulder_m, limit_mps = float(generator.uniform(2.5, 2.8)), 0.45, 30 * KMH
    walks = road_type not in (RoadType.NARROW, RoadType.WINDING) and generator.random() < style.sidewalks
    at_ring = bool(set(link) & set(draft.roundabouts))  # junctions of a ring lie close together: keep the arms narrow
    cycles = not at_ring and kind_name in ("avenue", "boulevard", "street") and generator.random() < style.cycleways
    street = Street(
        name=f"e{number}",
        start=ends[0],
        end=ends[1],
        line=line,
        kind=kind_name,
        lanes=int(generator.integers(kind.lanes[0], kind.lanes[1] + 1)),
        width_m=round(width_m, 2),
        limit_mps=limit_mps,
        road_type=road_type,
        verge_m=round(float(generator.uniform(*kind.verge_m)), 1),
        shoulder_m=shoulder_m,
        sidewalk_m=round(float(generator.uniform(1.6, 1.8 if at_ring else 2.6)), 1) if walks else 0.0,
        cycleway_m=round(float(generator.uniform(1.3, 1.8)), 1) if cycles and road_type is RoadType.PLAIN else 0.0,
    )
    return [street] if road_type is not RoadType.LANE_DROP else _split_at_lane_drop(street, junctions, generator)


def _end_slopes(draft: _Draft, link: tuple[int, int], start: Array, stop: Array) -> tuple[float, float]:
    """Slopes of a street to its chord at its ends: it meets a roundabout's ring at a right angle."""
    chord = np.arctan2(*(stop - start)[::-1])
    slopes = [0.0, 0.0]
    for end, (node, outwards) in enumerate(zip(link, (start, draft.nodes[link[1]]), strict=True)):
        if node in draft.roundabouts:
            spoke = (outwards - draft.nodes[node]) if end == 0 else (outwards - stop)
            slopes[end] = float(np.tan(np.clip(geometry.wrap(np.arctan2(*spoke[::-1]) - chord), -0.6, 0.6)))
    return slopes[0], slopes[1]


def _split_at_lane_drop(street: Street, junctions: dict[str, Junction], generator: np.random.Generator) -> list[Street]:
    middle = int(generator.uniform(0.55, 0.65) * len(street.line))
    joint = f"{street.name}d"
    junctions[joint] = Junction(street.line[middle], "priority", 3.0)
    side = "left" if street.verge_m and generator.random() < 0.5 else "right"
    first = replace(street, end=joint, line=street.line[: middle + 1], ends_lane=side)
    rest = street.line[middle:]
    second = replace(street, name=f"{street.name}b", start=joint, line=rest, road_type=RoadType.PLAIN, lost_lane=side)
    return [first, second]


def _make_one_way_streets(
    streets: Sequence[Street], rings: Sequence[Ring], style: Style, generator: np.random.Generator
) -> list[Street]:
    """Make some quiet streets one-way while every street stays reachable from every other."""
    chosen = list(streets)
    for index, street in enumerate(streets):
        quiet = street.kind in ("lane", "street") and street.road_type is RoadType.PLAIN and not street.verge_m
        if not quiet or generator.random() > style.one_way:
            continue
        width_m = max(street.width_m, 3.3)  # no opposite lane to swing into
        single = replace(street, one_way=True, width_m=width_m, lanes=1 + int(generator.random() < 0.3))
        tried = [*chosen[:index], single, *chosen[index + 1 :]]
        if _is_strongly_connected(tried, rings):
            chosen = tried
    return chosen


def _is_strongly_connected(streets: Sequence[Street], rings: Sequence[Ring]) -> bool:
    """Whether every direction of every street reaches every other without U-turns."""
    edges = [(s.name, s.start, s.end) for s in streets]
    edges += [(s.name, s.end, s.start) for s in streets if not s.one_way]
    edges += [(f"{ring.name} {a}", a, b) for ring in rings for a, b in pairwise([*ring.junctions, ring.junctions[0]])]
    after = [
        [index for index, (other, begin, _) in enumerate(edges) if begin == end and other != name]
        for name, _, end in edges
    ]
    before: list[list[int]] = [[] for _ in edges]
    for index, successors in enumerate(after):
        for successor in successors:
            before[successor].append(index)
    return all(len(_reachable(table)) == len(edges) for table in (after, before))


def _reachable(table: Sequence[Sequence[int]]) -> set[int]:
    reached, todo = {0}, [0]
    while todo:
        for other in table[todo.pop()]:
            if other not in reached:
                reached.add(other)
                todo.append(other)
    return reached
