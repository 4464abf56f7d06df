"""What stands beside the road: houses, trees, hedges, street lamps, traffic lights.

Places are sought along the lanes, in their order, so a town that is moved as a whole keeps its looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import shapely

from .. import geometry
from ..domain import Array
from . import markings
from .actors import Lamp
from .faces import Faces, Material, Shaper, Template, decal, joined
from .roads import RoadMap

CLEARANCE_M = 0.35
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
class Standing:
    faces: Faces
    poses: Array  # (T, 3)
    sizes: Array  # (T, 3)
    lamp_faces: Array
    lamp_signal: Array
    lamp_shows: Array


@dataclass(frozen=True, eq=False)
class _Group:
    """Things of one template."""

    template: Template
    material: Array  # (slots,)
    poses: Array
    sizes: Array
    albedo: Array  # (T, slots, 3)


def of(road_map: RoadMap, rng: np.random.Generator) -> Standing:
    """All that stands in a town."""
    kept_clear = _KeptClear(road_map)
    lights = _traffic_lights(road_map, kept_clear)
    wanted = _wishes(road_map, rng)
    groups = [lights[0]] if len(lights[0].poses) else []
    groups += _settled(wanted, kept_clear, rng)
    placed = [group.template.placed(group.poses, group.sizes, group.albedo, group.material) for group in groups]
    if not placed:
        empty = _tree().placed(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 4, 3)), np.zeros(4, np.int64))
        none = np.zeros(0, np.int64)
        return Standing(empty, np.zeros((0, 3)), np.zeros((0, 3)), none, none, none)
    poses, sizes = (np.concatenate([getattr(group, name) for group in groups]) for name in ("poses", "sizes"))
    return Standing(joined(placed, [len(group.poses) for group in groups]), poses, sizes, *lights[1:])


class _KeptClear:
    """Where nothing may stand."""

    def __init__(self, road_map: RoadMap) -> None:
        areas = [*road_map.roads.values(), *road_map.junctions.values()]
        areas += [shapely.Polygon(ring) for ring in (*road_map.walkways, *road_map.crossings, *road_map.cycleways)]
        self._tree = shapely.STRtree(areas)

    def free(self, poses: Array, sizes: Array) -> Array:
        """(T,) bool, whether boxes (T, 2+) at poses (T, 3) stay clear of all that is driven and walked on."""
        if len(poses) == 0:
            return np.zeros(0, bool)
        boxes = shapely.polygons(geometry.box_corners(poses, sizes[:, :2] + 2 * CLEARANCE_M))
        hit = np.zeros(len(poses), bool)
        hit[self._tree.query(boxes, predicate="intersects")[0]] = True
        return ~hit


@dataclass(frozen=True)
class _Wish:
    kind: str
    pose: Array
    size: Array


def _wishes(road_map: RoadMap, rng: np.random.Generator) -> list[_Wish]:
    """What a town would like to have along its roads, in order of importance."""
    dense = rng.uniform(0.3, 1.0)
    green = rng.uniform(0.4, 1.0)
    tall = rng.uniform(0.0, 1.0)
    wishes: list[_Wish] = []
    for lanes in markings.lanes_by_edge(road_map).values():
        lane = lanes[0]
        length = float(geometry.arc_lengths(lane.lane.centerline)[-1])
        kerb = -0.5 * lane.width_m

        def beside(at: float, aside: float, turn: float = 0.0, line: Array = lane.lane.centerline) -> Array:
            pose = geometry.sample(line, np.array([at]))[0]
            return geometry.compose(pose, np.array([0.0, aside, turn]))

        at = rng.uniform(0, 8)
        while at < length:
            if rng.random() < dense:
                wide, deep = rng.uniform(9, 20), rng.uniform(8, 13)
                floors = 1 + rng.integers(1, 3) + int(tall * rng.uniform(0, 4))
                gap = rng.uniform(3.5, 9.0)
                pose = beside(at + 0.5 * wide, kerb - gap - 0.5 * deep)
                wishes.append(_Wish(f"house{floors}", pose, np.array([wide, deep, 3.0 * floors + 1.6])))
                at += wide
            at += rng.uniform(2, 14)
        for at in np.arange(rng.uniform(3, 15), length, rng.uniform(24, 36)):
            for aside in (1.0, 3.2):
                wishes.append(_Wish("street_lamp", beside(at, kerb - aside, 0.5 * np.pi), np.array([0.3, 0.3, 7.5])))
        at = rng.uniform(0, 6)
        while at < length:
            if rng.random() < green:
                high = rng.uniform(4, 10)
                size = np.array([0.45 * high, 0.45 * high, high]) * rng.uniform(0.85, 1.2, 3)
                wishes.append(_Wish("tree", beside(at, kerb - rng.uniform(3.2, 9.0)), size))
            elif rng.random() < 0.4:
                long = rng.uniform(3, 9)
                wishes.append(
                    _Wish(
                        "hedge", beside(at, kerb - rng.uniform(3.0, 3.6)), np.array([long, 0.8, rng.uniform(0.8, 1.6)])
                    )
                )
            at += rng.uniform(4, 11)
    return wishes


def _settled(wishes: list[_Wish], kept_clear: _KeptClear, rng: np.random.Generator) -> list[_Group]:
    """Those wishes that find room, by template."""
    if not wishes:
        return []
    poses, sizes = np.array([wish.pose for wish in wishes]), np.array([wish.size for wish in wishes])
    trunk = np.array([wish.kind in ("tree", "street_lamp") for wish in wishes])
    stands = np.where(trunk[:, None], 0.6, sizes[:, :2])
    order = np.argsort([wish.kind[:5] != "house" for wish in wishes], kind="stable")
    order = order[kept_clear.free(poses, stands)[order]]
    order = order[_apart(poses[order], np.where(trunk[order, None], 0.5 * sizes[order, :2], sizes[order, :2]))]
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
                    _Group(make(floors, variant), material, poses[rows][some], sizes[rows][some], albedo[some])
                )
    return groups


def _apart(poses: Array, sizes: Array) -> Array:
    """Indices of boxes that touch none kept before them."""
    boxes = shapely.polygons(geometry.box_corners(poses, sizes + 0.6))
    first, second = shapely.STRtree(boxes).query(boxes, predicate="intersects")
    touching: list[list[int]] = [[] for _ in range(len(poses))]
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        if b < a:
            touching[a].append(b)
    kept = np.zeros(len(poses), bool)
    for k, others in enumerate(touching):
        kept[k] = not kept[others].any() if others else True
    return np.flatnonzero(kept)


# --- templates -------------------------------------------------------------------------------------------------------


@cache
def _house(floors: int, variant: int) -> Template:
    """Slots: wall, roof, glass, door."""
    s = Shaper()
    eaves = 0.8 if variant < 2 else 1.0
    walls = s.box((-0.5, 0.5), (-0.5, 0.5), (0.0, eaves), 0, (0, 0))
    columns = (4, 3, 5)[variant]
    for wall, count in zip(walls[:4], (3, 3, columns, columns), strict=True):
        for floor in range(floors):
            low, high = (floor + 0.3) / floors, (floor + 0.8) / floors
            for k in range(count):
                glass = (k + 0.28) / count, (k + 0.72) / count
                if floor == 0 and k == count // 2:
                    s.face(decal(wall, glass, (0.0, 0.75 / floors)), 3)
                else:
                    s.face(decal(wall, glass, (low, high)), 2)
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
    s = Shaper()
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
    for k, ((aside, high, wide, tall), slot) in enumerate(blobs):
        angle = 2 * np.pi * np.arange(11) / 11
        rough = 1 + 0.13 * np.sin(3.7 * np.arange(11) + 2.1 * k + variant)
        ring = np.zeros((11, 3))
        ring[:, 2] = np.minimum(high + tall * rough * np.sin(angle), 1.0)
        s.face(ring, slot, (k + 1, k + 1), (aside if variant else -aside) + wide * rough * np.cos(angle))
    return s.template()


@cache
def _hedge(floors: int, variant: int) -> Template:
    s = Shaper()
    s.frustum((-0.5, 0.5), (-0.5, 0.5), (0.0, 1.0), (-0.48, 0.48), (-0.4, 0.4), (0, 0, 0, 0, 1), (0, 0))
    return s.template()


@cache
def _street_lamp(floors: int, variant: int) -> Template:
    """A post, with an arm over the road (towards -y... its +x)."""
    s = Shaper()
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
    "house": (_house, np.array([Material.WALL, Material.WALL, Material.METAL, Material.WALL]), _house_colours),
    "tree": (_tree, np.array([Material.WALL, *[Material.FOLIAGE] * 3]), _leaf_colours),
    "hedge": (_hedge, np.array([Material.FOLIAGE] * 2), _hedge_colours),
    "street_lamp": (_street_lamp, np.array([Material.METAL] * 2), _post_colours),
}


# --- traffic lights --------------------------------------------------------------------------------------------------

LIGHT_SIZE = np.array([0.4, 0.4, 3.4])
LAMP_AT = {Lamp.RED: 0.92, Lamp.AMBER: 0.825, Lamp.GREEN: 0.73}


@cache
def _traffic_light() -> Template:
    """It looks back, along -x. Slots: post, box, red, amber, green."""
    s = Shaper()
    s.face(
        np.array([(0.3, 0, 0.0), (0.3, 0, 0.0), (0.3, 0, 1.0), (0.3, 0, 1.0)]),
        0,
        (0, 2),
        np.array([-0.15, 0.15, 0.15, -0.15]),
    )
    s.box((-0.3, 0.3), (-0.55, 0.55), (0.66, 0.99), 1, (1, 1))
    angle = 2 * np.pi * (np.arange(10) + 0.5) / 10
    for k, high in enumerate(LAMP_AT.values()):
        ring = np.column_stack([np.full(10, -0.32), -0.42 * np.cos(angle), high + 0.046 * np.sin(angle)])
        s.face(ring, 2 + k, (1, 1))
    return s.template()


def _traffic_lights(road_map: RoadMap, kept_clear: _KeptClear) -> tuple[_Group, Array, Array, Array]:
    """Posts to the right of stop lines, with which of their faces shine when."""
    poses, signals = [], []
    for k, signal in enumerate(road_map.signals):
        left, right = signal.stop_line
        heading = float(np.arctan2(*(left - right)[::-1])) - 0.5 * np.pi
        aside = (right - left) / max(float(np.hypot(*(right - left))), 1e-6)
        tries = np.array([(*(right + gap * aside), heading) for gap in np.arange(0.6, 9.0, 0.3)])
        free = np.flatnonzero(kept_clear.free(tries, np.tile(LIGHT_SIZE, (len(tries), 1))))
        if len(free):
            poses.append(tries[free[0]])
            signals.append(k)
    count = len(poses)
    template = _traffic_light()
    albedo = np.tile(
        [(0.3, 0.31, 0.32), (0.05, 0.05, 0.05), (0.25, 0.04, 0.04), (0.25, 0.18, 0.03), (0.03, 0.2, 0.08)],
        (count, 1, 1),
    )
    group = _Group(
        template,
        np.full(5, int(Material.METAL)),
        np.array(poses).reshape(-1, 3),
        np.tile(LIGHT_SIZE, (count, 1)),
        albedo,
    )
    lamps = np.flatnonzero(template.slot >= 2)
    per_thing = len(template.slot)
    return (
        group,
        (lamps + per_thing * np.arange(count)[:, None]).reshape(-1),
        np.repeat(signals, len(lamps)).astype(np.int64),
        np.tile(template.slot[lamps] - 2, count),
    )
