"""Objects beside the road: houses, trees, hedges, street lamps, traffic lights.

Candidate positions follow the lanes in their order, so that a town that is translated keeps its appearance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import shapely

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadMap, Turn
from . import markings
from .polygons import Material, Polygons, Template, TemplateBuilder, concat_polygons, inset_quad

CLEARANCE_M = 0.35
LAMP_POST_M = np.array([0.3, 0.3, 7.5])
WALLS = (
    (0.72, 0.66, 0.56),
    (0.62, 0.34, 0.26),
    (0.80, 0.78, 0.73),
    (0.55, 0.52, 0.50),
    (0.74, 0.58, 0.42),
    (0.50, 0.30, 0.24),
)
ROOFS = ((0.42, 0.22, 0.18), (0.26, 0.26, 0.29), (0.36, 0.30, 0.26))
LEAVES = ((0.16, 0.32, 0.11), (0.21, 0.37, 0.13), (0.13, 0.27, 0.12), (0.28, 0.37, 0.12))


@dataclass(frozen=True, eq=False)
class RoadsideObjects:
    polygons: Polygons
    poses: Array  # (T, 3)
    sizes: Array  # (T, 3)
    lamp_polygons: Array
    lamp_signal: Array
    lamp_shows: Array


@dataclass(frozen=True, eq=False)
class _ObjectGroup:
    """Things of one template."""

    template: Template
    material: Array  # (slots,)
    poses: Array
    sizes: Array
    albedo: Array  # (T, slots, 3)
    base_m: float = 0.0  # how high above the ground they hang


def build_roadside(road_map: RoadMap, rng: np.random.Generator) -> RoadsideObjects:
    """All roadside objects of a town."""
    clear_space = _ClearSpace(road_map)
    lights = _traffic_lights(road_map, clear_space)
    candidates = _sample_candidates(road_map, rng)
    groups = [*lights[0], *_place_candidates(candidates, clear_space, rng)]
    placed = [
        group.template.placed(group.poses, group.sizes, group.albedo, group.material, group.base_m) for group in groups
    ]
    if not placed:
        empty = _tree().placed(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 4, 3)), np.zeros(4, np.int64))
        none = np.zeros(0, np.int64)
        return RoadsideObjects(empty, np.zeros((0, 3)), np.zeros((0, 3)), none, none, none)
    poses, sizes = (np.concatenate([getattr(group, name) for group in groups]) for name in ("poses", "sizes"))
    return RoadsideObjects(concat_polygons(placed, [len(group.poses) for group in groups]), poses, sizes, *lights[1:])


class _ClearSpace:
    """The space that must stay free of objects."""

    def __init__(self, road_map: RoadMap) -> None:
        areas = [*road_map.roads.values(), *road_map.junctions.values()]
        areas += [shapely.Polygon(ring) for ring in (*road_map.walkways, *road_map.crossings, *road_map.cycleways)]
        self._tree = shapely.STRtree(areas)

    def free(self, poses: Array, sizes: Array) -> Array:
        """(T,) bool: whether boxes (T, 2+) at poses (T, 3) are outside all roads and paths."""
        if len(poses) == 0:
            return np.zeros(0, bool)
        boxes = shapely.polygons(geometry.box_corners(poses, sizes[:, :2] + 2 * CLEARANCE_M))
        hit = np.zeros(len(poses), bool)
        hit[self._tree.query(boxes, predicate="intersects")[0]] = True
        return ~hit

    def first_free(self, start: Array, direction: Array, heading: float) -> Array | None:
        """(3,) the first free pose of a post from `start` (2,) along `direction` (2,); None if none is near."""
        tries = np.array([(*(start + gap * direction), heading) for gap in np.arange(0.6, 30.0, 0.3)])
        free = np.flatnonzero(self.free(tries, np.tile(POST_M, (len(tries), 1))))
        return tries[free[0]] if len(free) else None


@dataclass(frozen=True)
class _Candidate:
    kind: str
    pose: Array
    size: Array


def _sample_candidates(road_map: RoadMap, rng: np.random.Generator) -> list[_Candidate]:
    """Candidate objects along the roads of a town, in order of importance."""
    dense = rng.uniform(0.3, 1.0)
    green = rng.uniform(0.4, 1.0)
    tall = rng.uniform(0.0, 1.0)
    wishes: list[_Candidate] = []
    for lanes in markings.lanes_by_edge(road_map).values():
        lane = lanes[0]
        length = float(geometry.arc_lengths(lane.lane.centerline)[-1])
        placements: list[tuple[str, float, float, float, Array]] = []  # kind, along, beyond the kerb, turn, size
        at = rng.uniform(0, 8)
        while at < length:
            if rng.random() < dense:
                wide, deep = rng.uniform(9, 22), rng.uniform(8, 13)
                floors = int(rng.integers(1, 4)) + int(tall * rng.uniform(0, 2.5))
                size = np.array([wide, deep, 3.0 * floors + 1.6])
                placements.append((f"house{floors}", at + 0.5 * wide, rng.uniform(5.0, 14.0) + 0.5 * deep, 0.0, size))
                at += wide
            at += rng.uniform(2, 14)
        for at in np.arange(rng.uniform(3, 15), length, rng.uniform(24, 36)):
            placements += [("street_lamp", at, beyond_kerb_m, 0.5 * np.pi, LAMP_POST_M) for beyond_kerb_m in (1.0, 3.2)]
        at = rng.uniform(0, 6)
        while at < length:
            if rng.random() < green:
                high = rng.uniform(4, 10)
                size = np.array([0.45 * high, 0.45 * high, high]) * rng.uniform(0.85, 1.2, 3)
                placements.append(("tree", at, rng.uniform(3.2, 9.0), 0.0, size))
            elif rng.random() < 0.4:
                size = np.array([rng.uniform(3, 9), 0.8, rng.uniform(0.8, 1.6)])
                placements.append(("hedge", at, rng.uniform(3.0, 3.6), 0.0, size))
            at += rng.uniform(4, 11)
        if placements:
            kinds, along, beyond_kerb_m, turn, sizes = zip(*placements, strict=True)
            lane_from_object = np.column_stack(
                [np.zeros(len(kinds)), -0.5 * lane.width_m - np.array(beyond_kerb_m), turn]
            )
            poses = geometry.compose(geometry.sample(lane.lane.centerline, np.array(along)), lane_from_object)
            wishes += [_Candidate(*wish) for wish in zip(kinds, poses, sizes, strict=True)]
    return wishes


def _place_candidates(
    wishes: list[_Candidate], clear_space: _ClearSpace, rng: np.random.Generator
) -> list[_ObjectGroup]:
    """The candidates that fit, by template."""
    if not wishes:
        return []
    poses, sizes = np.array([wish.pose for wish in wishes]), np.array([wish.size for wish in wishes])
    trunk = np.array([wish.kind in ("tree", "street_lamp") for wish in wishes])
    stands = np.where(trunk[:, None], 0.6, sizes[:, :2])
    order = np.argsort([wish.kind[:5] != "house" for wish in wishes], kind="stable")
    free = clear_space.free(poses, stands)
    lamps = np.flatnonzero([wish.kind == "street_lamp" for wish in wishes])
    free[lamps[1::2]] &= ~free[lamps[::2]]  # the second position is used where the first is occupied
    order = order[free[order]]
    order = order[
        _without_overlaps(poses[order], np.where(trunk[order, None], 0.5 * sizes[order, :2], sizes[order, :2]))
    ]
    kinds = np.array([wish.kind for wish in wishes])[order]
    groups = []
    for kind in sorted(set(kinds.tolist())):
        rows = order[kinds == kind]
        make, material, colour = _KINDS["house" if kind.startswith("house") else kind]
        variants = rng.integers(3, size=len(rows))
        albedo = np.array([colour(rng) for _ in rows])
        for variant in range(3):
            some = variants == variant
            if some.any():
                floors = int(kind[5:]) if kind.startswith("house") else 0
                groups.append(
                    _ObjectGroup(make(floors, variant), material, poses[rows][some], sizes[rows][some], albedo[some])
                )
    return groups


def _without_overlaps(poses: Array, sizes: Array) -> Array:
    """Indices of boxes that overlap none of those selected before them."""
    boxes = shapely.polygons(geometry.box_corners(poses, sizes + 0.6))
    first, second = shapely.STRtree(boxes).query(boxes, predicate="intersects")
    touching: list[list[int]] = [[] for _ in range(len(poses))]
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        if b < a:
            touching[a].append(b)
    selected = np.zeros(len(poses), bool)
    for k, others in enumerate(touching):
        selected[k] = not selected[others].any() if others else True
    return np.flatnonzero(selected)


# --- templates -------------------------------------------------------------------------------------------------------


@cache
def _house(floors: int, variant: int) -> Template:
    """Slots: wall, roof, glass, door. It turns its front, +y, to the road."""
    s = TemplateBuilder()
    eaves = 0.8 if variant < 2 else 1.0
    walls = s.box((-0.5, 0.5), (-0.5, 0.5), (0.0, eaves), 0, (0, 0))
    columns = (4, 5, 4)[variant]
    for wall, count in zip(walls[:4], (2, 2, 3, columns), strict=True):
        for floor in range(floors):
            low, high = (floor + 0.32) / floors, (floor + 0.78) / floors
            for k in range(count):
                glass = (k + 0.32) / count, (k + 0.68) / count
                if floor == 0 and k == count // 2 and count == columns:
                    s.face(inset_quad(wall, glass, (0.0, 0.75 / floors)), 3)
                else:
                    s.face(inset_quad(wall, glass, (low, high)), 2)
    if variant < 2:
        y = 0.54
        ridge = [np.array([x, 0.0, 1.0]) for x in (-0.52, 0.52)]
        foot = [np.array([x, side * y, eaves - 0.02]) for x in (-0.52, 0.52) for side in (-1, 1)]
        s.solid(
            [
                np.array([foot[0], foot[2], ridge[1], ridge[0]]),
                np.array([foot[1], foot[3], ridge[1], ridge[0]]),
                np.array([foot[0], foot[1], ridge[0]]),
                np.array([foot[2], foot[3], ridge[1]]),
            ],
            (1, 1, 0, 0),
            (1, 1),
        )
    return s.template()


@cache
def _tree(floors: int = 0, variant: int = 0) -> Template:
    """Slots: trunk, leaves in shade, leaves, leaves in light."""
    s = TemplateBuilder()
    s.face(
        np.array([(0, 0, 0.0), (0, 0, 0.0), (0, 0, 0.5), (0, 0, 0.5)]),
        0,
        (0, 0),
        np.array([-0.045, 0.045, 0.03, -0.03]),
    )
    if variant == 2:  # a conifer
        for k, slot in enumerate((1, 2, 2)):
            low, high, wide = 0.12 + 0.25 * k, 0.55 + 0.225 * k, 0.42 - 0.1 * k
            ring = np.array([(0, 0, low), (0, 0, low), (0, 0, high)])
            s.face(ring, slot, (1 + k, 1 + k), np.array([-wide, wide, 0.0]))
        return s.template()
    blobs = (
        ((0.0, 0.52, 0.42, 0.22), 1), ((-0.2, 0.6, 0.3, 0.2), 1), ((0.22, 0.62, 0.3, 0.2), 2),
        ((0.0, 0.74, 0.36, 0.24), 2), ((-0.12, 0.82, 0.24, 0.15), 3),
    )  # fmt: skip
    for k, ((lateral, high, wide, tall), slot) in enumerate(blobs):
        angle = 2 * np.pi * np.arange(11) / 11
        rough = 1 + 0.13 * np.sin(3.7 * np.arange(11) + 2.1 * k + variant)
        ring = np.zeros((11, 3))
        ring[:, 2] = np.minimum(high + tall * rough * np.sin(angle), 1.0)
        s.face(ring, slot, (k + 1, k + 1), (lateral if variant else -lateral) + wide * rough * np.cos(angle))
    return s.template()


@cache
def _hedge(floors: int, variant: int) -> Template:
    s = TemplateBuilder()
    s.frustum((-0.5, 0.5), (-0.5, 0.5), (0.0, 1.0), (-0.48, 0.48), (-0.4, 0.4), (0, 0, 0, 0, 1), (0, 0))
    return s.template()


@cache
def _street_lamp(floors: int, variant: int) -> Template:
    """A post, with an arm towards +x."""
    s = TemplateBuilder()
    s.face(
        np.array([(0, 0, 0.0), (0, 0, 0.0), (0, 0, 1.0), (0, 0, 1.0)]), 0, (0, 0), np.array([-0.25, 0.25, 0.18, -0.18])
    )
    s.box((0.0, 6.0), (-0.15, 0.15), (0.985, 1.0), 0, (1, 1))
    s.box((4.0, 7.0), (-0.5, 0.5), (0.97, 0.995), 1, (1, 1))
    return s.template()


_Colour = Callable[[np.random.Generator], Array]


def _house_colours(rng: np.random.Generator) -> Array:
    wall = np.array(WALLS[rng.integers(len(WALLS))]) * rng.uniform(0.85, 1.1)
    return np.array([wall, ROOFS[rng.integers(len(ROOFS))], (0.20, 0.25, 0.30), wall * 0.45])


def _leaf_colours(rng: np.random.Generator) -> Array:
    leaf = np.array(LEAVES[rng.integers(len(LEAVES))]) * rng.uniform(0.8, 1.2)
    return np.array([(0.27, 0.21, 0.16), 0.72 * leaf, leaf, 1.25 * leaf])


def _hedge_colours(rng: np.random.Generator) -> Array:
    leaf = np.array(LEAVES[rng.integers(len(LEAVES))]) * rng.uniform(0.8, 1.1)
    return np.array([leaf, 1.2 * leaf])


def _post_colours(rng: np.random.Generator) -> Array:
    return np.array([(0.34, 0.36, 0.37), (0.7, 0.7, 0.66)])


_KINDS: dict[str, tuple[Callable[[int, int], Template], Array, _Colour]] = {
    "house": (_house, np.array([Material.WALL, Material.WALL, Material.INLAY, Material.WALL]), _house_colours),
    "tree": (_tree, np.array([Material.WALL, *[Material.FOLIAGE] * 3]), _leaf_colours),
    "hedge": (_hedge, np.array([Material.FOLIAGE] * 2), _hedge_colours),
    "street_lamp": (_street_lamp, np.array([Material.METAL] * 2), _post_colours),
}


# --- traffic lights --------------------------------------------------------------------------------------------------

POST_M = np.array([0.4, 0.4, 3.4])
HEAD_M, HEAD_ABOVE_M = np.array([0.4, 0.42, 1.1]), 4.5  # a head that hangs over the road, and how high
LOW_HEAD = (0.66, 0.99)  # of a post's height
HEAD_SPACING_M = 0.6
POLE_M = np.array([0.2, 0.2, HEAD_ABOVE_M + 0.84])
FAR_SIDE_M = (8.0, 40.0)  # how wide a junction may be for its lights to hang beyond it
OFF_RGB = ((0.25, 0.04, 0.04), (0.25, 0.18, 0.03), (0.03, 0.2, 0.08))
BOX_RGB, POST_RGB = (0.05, 0.05, 0.05), (0.3, 0.31, 0.32)


def _add_signal_head(s: TemplateBuilder, low: float, high: float) -> None:
    """A box that faces backwards, along -x, with three lamps. Slots: box 1, red 2, amber 3, green 4."""
    s.box((-0.3, 0.3), (-0.5, 0.5), (low, high), 1, (1, 1))
    angle = 2 * np.pi * (np.arange(10) + 0.5) / 10
    tall = high - low
    for k in range(3):
        middle = high - (k + 0.5) / 3 * tall
        s.face(
            np.column_stack([np.full(10, -0.32), -0.4 * np.cos(angle), middle + 0.145 * tall * np.sin(angle)]),
            2 + k,
            (1, 1),
        )


@cache
def _post_with_head() -> Template:
    s = TemplateBuilder()
    ring = np.array([(0.3, 0, 0.0), (0.3, 0, 0.0), (0.3, 0, 1.0), (0.3, 0, 1.0)])
    s.face(ring, 0, (0, 2), np.array([-0.15, 0.15, 0.15, -0.15]))
    _add_signal_head(s, *LOW_HEAD)
    return s.template()


@cache
def _hanging_head() -> Template:
    s = TemplateBuilder()
    _add_signal_head(s, 0.0, 1.0)
    return s.template()


@cache
def _arm() -> Template:
    """An arm over the road, or its pole."""
    s = TemplateBuilder()
    s.box((-0.5, 0.5), (-0.5, 0.5), (0.0, 1.0), 0, (0, 0))
    return s.template()


def _traffic_lights(road_map: RoadMap, clear_space: _ClearSpace) -> tuple[list[_ObjectGroup], Array, Array, Array]:
    """A post beside each road's stop line, and one head per signal beyond the junction.

    Also returns which polygons are lit in which state.
    """
    roads: dict[str, list[int]] = {}
    for k, signal in enumerate(road_map.signals):
        roads.setdefault(road_map.lanes[signal.lane].edge, []).append(k)
    posts, heads, arms, poles = _LightGroup(), _LightGroup(), _LightGroup(), _LightGroup()
    for signals in roads.values():
        by_lane: dict[int, list[int]] = {}
        for k in signals:
            by_lane.setdefault(road_map.signals[k].lane, []).append(k)
        for same in by_lane.values():
            same.sort(key=lambda k: _TURN_ORDER[_turn_of(road_map, k)])
        lanes = sorted(by_lane, key=lambda key: road_map.lanes[key].index)
        left, right = road_map.signals[by_lane[lanes[0]][0]].stop_line
        rightward = (right - left) / max(float(np.hypot(*(right - left))), 1e-6)
        ahead = np.array([-rightward[1], rightward[0]])
        heading = float(np.arctan2(ahead[1], ahead[0]))
        straight = min(by_lane[lanes[0]], key=lambda k: abs(_TURN_ORDER[_turn_of(road_map, k)]))
        pose = clear_space.first_free(right, rightward, heading)
        if pose is not None:
            posts.add(pose, POST_M, straight)
        beyond = _far_side_distance(road_map, right, ahead)
        ends = []
        for key in lanes:
            left, right = road_map.signals[by_lane[key][0]].stop_line
            for n, k in enumerate(by_lane[key]):
                shift = HEAD_SPACING_M * (n - 0.5 * (len(by_lane[key]) - 1))
                ends.append(0.5 * (left + right) + beyond * ahead + shift * rightward)
                heads.add(np.array([*ends[-1], heading]), HEAD_M, k)
        pose = clear_space.first_free(ends[0], rightward, heading)
        if pose is None:
            pose = clear_space.first_free(ends[-1], -rightward, heading)
        if pose is not None:
            across = [float((end - pose[:2]) @ rightward) for end in ends]
            low, high = min(0.0, *across) - 0.3, max(0.0, *across) + 0.3
            long = high - low
            middle = pose[:2] + 0.5 * (low + high) * rightward + 0.35 * ahead
            arms.add(np.array([*middle, heading]), np.array([0.12, long, 0.14]), -1)
            poles.add(pose + np.array([*(0.35 * ahead), 0.0]), POLE_M, -1)
    groups, polygons, shows, before = [], [], [], 0
    for placed, template, base in (
        (posts, _post_with_head(), 0.0),
        (heads, _hanging_head(), HEAD_ABOVE_M),
        (arms, _arm(), HEAD_ABOVE_M + 0.7),
        (poles, _arm(), 0.0),
    ):
        if placed.poses:
            groups.append(placed.group(template, base))
        lamps = np.flatnonzero(template.slot >= 2)
        per_thing = len(template.slot)
        polygons.append((before + lamps + per_thing * np.arange(len(placed.poses))[:, None]).reshape(-1))
        shows.append(np.tile(template.slot[lamps] - 2, len(placed.poses)))
        before += per_thing * len(placed.poses)
    of_signal = np.repeat(np.array([*posts.signals, *heads.signals], np.int64), 3)
    return groups, np.concatenate(polygons), of_signal, np.concatenate(shows)


_TURN_ORDER = {Turn.BACK: -2, Turn.LEFT: -1, Turn.STRAIGHT: 0, Turn.RIGHT: 1}


def _turn_of(road_map: RoadMap, signal: int) -> Turn:
    return road_map.lanes[road_map.signals[signal].connectors[0]].turn


def _far_side_distance(road_map: RoadMap, stop: Array, ahead: Array) -> float:
    """How far beyond its stop line a road's junction ends."""
    ahead_line = shapely.LineString([stop, stop + 60.0 * ahead])
    near = shapely.Point(stop)
    reach = 0.0
    for junction in road_map.junctions.values():
        if junction.distance(near) < 12.0:
            crossed = ahead_line.intersection(junction)
            if not crossed.is_empty:
                reach = max(
                    reach, *(float((np.array(point) - stop) @ ahead) for point in shapely.get_coordinates(crossed))
                )
    return float(np.clip(reach + 1.0, *FAR_SIDE_M))


class _LightGroup:
    """Traffic lights of one sort with a free position."""

    def __init__(self) -> None:
        self.poses: list[Array] = []
        self.sizes: list[Array] = []
        self.signals: list[int] = []

    def add(self, pose: Array, size: Array, signal: int) -> None:
        self.poses.append(pose)
        self.sizes.append(size)
        self.signals.append(signal)

    def group(self, template: Template, base_m: float) -> _ObjectGroup:
        count = len(self.poses)
        albedo = np.tile([POST_RGB, BOX_RGB, *OFF_RGB], (count, 1, 1))
        material = np.full(5, int(Material.METAL))
        return _ObjectGroup(template, material, np.array(self.poses), np.array(self.sizes), albedo, base_m)
