"""Templates of road users' meshes, and the colours of their paint, clothes and lamps.

An actor's appearance depends on its id only; its lamps on its state; its legs on the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...core.domain import Array
from ..traffic.actors import Actors, Shape
from .polygons import Material, Polygons, Template, TemplateBuilder, gather_ranges, inset_quad

# Slots of every body. A slot is a colour.
PAINT, TRIM, GLASS, TYRE, TAIL, BRAKE, HEAD, LEFT, RIGHT, PLATE, CLOTH, LEGS, SKIN, SECOND, STRIPE, HUB = range(
    SLOTS := 16
)
SLOT_MATERIAL = np.full(SLOTS, Material.METAL)
SLOT_MATERIAL[[GLASS, TYRE, HUB, PLATE]] = Material.INLAY
PAINTS = (
    ((232, 232, 230), 22), ((28, 30, 34), 18), ((128, 132, 138), 18), ((188, 190, 194), 12), ((34, 62, 128), 9),
    ((168, 24, 28), 9), ((70, 78, 66), 3), ((196, 156, 40), 2), ((116, 84, 60), 2), ((38, 112, 124), 3),
    ((210, 90, 30), 2),
)  # fmt: skip
CLOTHES = (
    (40, 44, 58), (150, 34, 40), (60, 90, 140), (196, 190, 176), (34, 34, 36), (90, 110, 70), (220, 160, 60),
    (120, 70, 110), (236, 236, 232), (70, 130, 130),
)  # fmt: skip
SKINS = ((236, 196, 168), (206, 156, 122), (150, 104, 76), (96, 66, 50))
_CARS = ("sedan", "hatchback", "suv")
_WALKING = (Shape.PEDESTRIAN, Shape.BICYCLE)
PHASES = 8
BLINK_HZ, BLINK_SHARE = 1.5, 0.6
STRIDE_M = 1.4  # two steps


def build_actor_meshes(actors: Actors, time_s: float, lights_on: bool) -> Polygons:
    """All actors' faces in the frame of their poses, actor by actor; `object_index` is the actor's index."""
    albedo, material = _slot_colours(actors, time_s, lights_on)
    wardrobe, sizes, poses = _template_library(), actors.sizes, actors.poses
    rows, begins = gather_ranges(wardrobe.first_polygon, _template_indices(actors, time_s))
    actor = np.repeat(np.arange(len(actors)), np.diff(begins))
    indices, first = gather_ranges(wardrobe.first, rows)
    of_point = np.repeat(actor, np.diff(first))
    x, y, z = (wardrobe.points[indices] * sizes[of_point]).T
    cos, sin = np.cos(poses[:, 2]), np.sin(poses[:, 2])
    c, s = cos[of_point], sin[of_point]
    points = np.stack([poses[of_point, 0] + c * x - s * y, poses[of_point, 1] + s * x + c * y, z], axis=1)
    across = (sizes[:, [1, 0, 0]] * sizes[:, [2, 2, 1]])[actor]  # scale of the normals when a body is stretched
    x, y, z = (wardrobe.normals[rows] * across).T
    length = np.sqrt(x * x + y * y + z * z)
    scale = np.where(length > 1e-9, 1.0 / np.maximum(length, 1e-9), 0.0)
    c, s = cos[actor], sin[actor]
    slot = wardrobe.slot[rows]
    return Polygons(
        points,
        wardrobe.billboard[indices] * sizes[of_point, 1],
        first,
        np.stack([(c * x - s * y) * scale, (s * x + c * y) * scale, z * scale], axis=1),
        albedo[actor, slot],
        material[actor, slot],
        actor,
        wardrobe.draw_order[rows],
    )


def _hash_ids(ids: Array, salt: int) -> Array:
    """(A,) int64 from 0 to 2^31, as if random, from ids alone (splitmix64)."""
    salted = np.uint64(salt * 0xD1B54A32D192ED03 & 0xFFFFFFFFFFFFFFFF)
    z = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salted
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((z ^ (z >> np.uint64(33))).astype(np.int64) & 0x7FFFFFFF)


def _template_indices(actors: Actors, time_s: float) -> Array:
    """(A,) index of each actor's template."""
    models = _template_library().of_shape[actors.shapes]
    models[actors.shapes == Shape.CAR] += (_hash_ids(actors.ids, 1) % len(_CARS))[actors.shapes == Shape.CAR]
    walking = np.isin(actors.shapes, _WALKING)
    models[walking] += 1 + _walk_phases(actors, time_s)[walking]
    return np.asarray(models)


def _walk_phases(actors: Actors, time_s: float) -> Array:
    """(A,) index into PHASES of the leg swing; -1 for agents that stand."""
    speed = np.abs(actors.speeds_mps)
    cycles = time_s * speed / STRIDE_M + actors.ids % PHASES / PHASES
    return np.where(speed < 0.15, -1, (PHASES * cycles).astype(np.int64) % PHASES)


def _slot_colours(actors: Actors, time_s: float, lights_on: bool) -> tuple[Array, Array]:
    """Albedo (A, slots, 3) and material (A, slots) of every slot."""
    count = len(actors)
    albedo = np.zeros((count, SLOTS, 3))
    albedo[:] = np.array(
        [
            (0, 0, 0), (38, 40, 44), (52, 62, 72), (24, 24, 26), (150, 16, 20), (120, 14, 18),
            (226, 228, 220), (176, 110, 40), (176, 110, 40), (226, 222, 200), (0, 0, 0), (44, 48, 66),
            (206, 156, 122), (222, 222, 220), (236, 236, 236), (156, 158, 162),
        ]
    )  # fmt: skip
    material = np.tile(SLOT_MATERIAL, (count, 1))
    weights = np.cumsum([weight for _, weight in PAINTS]) / sum(weight for _, weight in PAINTS)
    pick = np.searchsorted(weights, (_hash_ids(actors.ids, 2) % 1000 + 0.5) / 1000)
    albedo[:, PAINT] = np.array([paint for paint, _ in PAINTS])[pick]
    big = np.isin(actors.shapes, (Shape.VAN, Shape.TRUCK))
    albedo[big, PAINT] = 0.35 * albedo[big, PAINT] + 0.65 * 230
    albedo[:, SECOND] = np.array([paint for paint, _ in PAINTS])[_hash_ids(actors.ids, 3) % len(PAINTS)]
    albedo[:, CLOTH] = np.array(CLOTHES)[_hash_ids(actors.ids, 4) % len(CLOTHES)]
    albedo[:, LEGS] = np.array(CLOTHES)[_hash_ids(actors.ids, 5) % 5]
    albedo[:, SKIN] = np.array(SKINS)[_hash_ids(actors.ids, 6) % len(SKINS)]
    albedo[actors.shapes == Shape.CONE, PAINT] = (236, 92, 24)
    albedo[actors.shapes == Shape.BARRIER, PAINT] = (206, 30, 34)
    blinking = (time_s * BLINK_HZ + _hash_ids(actors.ids, 7) % 97 / 97) % 1.0 < BLINK_SHARE
    always_on = np.full(count, lights_on)
    for slot, on, colour in (
        (HEAD, always_on, (255, 250, 226)),
        (TAIL, always_on, (120, 12, 16)),
        (BRAKE, actors.braking, (255, 40, 34)),
        (TAIL, actors.braking, (255, 40, 34)),
        (LEFT, blinking & (actors.indicator >= 1), (255, 176, 20)),
        (RIGHT, blinking & ((actors.indicator == -1) | (actors.indicator == 2)), (255, 176, 20)),
    ):
        albedo[on, slot] = colour
        material[on, slot] = Material.GLOW
    return albedo / 255.0, material


# --- shapes, in units of their size ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _TemplateLibrary:
    """All templates in one sequence, so that all actors are posed at once."""

    points: Array  # (P, 3)
    billboard: Array  # (P,)
    first: Array  # (F + 1,)
    normals: Array  # (F, 3) as long as the face is large
    slot: Array  # (F,)
    draw_order: Array  # (F, 2)
    first_polygon: Array  # (M + 1,) of each template
    of_shape: Array  # (shapes,) first template of each Shape: of a car's variants, or of standing and walking


@cache
def _template_library() -> _TemplateLibrary:
    templates: list[Template] = []
    of_shape = []
    for shape in Shape:
        of_shape.append(len(templates))
        for model in _CARS if shape is Shape.CAR else (shape.name.lower(),):
            templates += [_MODELS[model](phase) for phase in (range(-1, PHASES) if shape in _WALKING else (-1,))]
    starts = np.cumsum([0, *(len(template.points) for template in templates)])
    first = np.concatenate([template.first[:-1] + start for template, start in zip(templates, starts, strict=False)])
    points = np.concatenate([template.points for template in templates])
    a, b, c = (points[first + k] for k in range(3))
    return _TemplateLibrary(
        points,
        np.concatenate([template.billboard for template in templates]),
        np.append(first, starts[-1]),
        np.cross(b - a, c - b),
        np.concatenate([template.slot for template in templates]),
        np.concatenate([template.draw_order for template in templates]),
        np.cumsum([0, *(len(template.slot) for template in templates)]),
        np.array(of_shape),
    )


def _car(phase: int, waist: float, cabin: tuple[float, float, float, float], bonnet: float) -> Template:
    """`cabin`: where the rear window begins and the roof begins and ends and the windscreen ends, along the length."""
    s = TemplateBuilder()
    s.box((-0.47, 0.47), (-0.44, 0.44), (0.06, 0.24), TYRE, (0, 0))  # dark underside
    profile = [(-0.5, 0.2), (0.5, 0.19), (0.5, bonnet - 0.08), (cabin[3], waist), (-0.46, waist), (-0.5, waist - 0.06)]
    s.prism(np.array(profile), (-0.5, 0.5), (PAINT, PAINT, PAINT), (1, 1))
    _add_lamps(s, (0.5 * waist + 0.09, waist - 0.08), (bonnet - 0.24, bonnet - 0.1), 0.34)
    _add_wheels(s, (-0.31, 0.31), 0.17, 0.22)
    slots = (PAINT,) * 5
    walls = s.frustum(
        (cabin[0], cabin[3]), (-0.47, 0.47), (waist, 1.0), (cabin[1], cabin[2]), (-0.39, 0.39), slots, (2, 2)
    )
    for wall, u, v in zip(
        walls[:4], ((0.08, 0.92), (0.06, 0.94), (0.1, 0.9), (0.1, 0.9)), ((0.14, 0.9),) * 4, strict=True
    ):
        s.face(inset_quad(wall, u, v), GLASS, (2, 2))
    for wall in walls[2:4]:
        s.face(inset_quad(wall, (0.47, 0.52), (0.1, 0.92)), PAINT, (2, 2))
    s.face(inset_quad(walls[0], (0.38, 0.62), (0.9, 0.98)), BRAKE, (2, 2))
    return s.template()


def _add_lamps(
    s: TemplateBuilder, tail: tuple[float, float], head: tuple[float, float], inner: float, draw_order: int = 1
) -> None:
    """Lamps, plates and indicators on the rear (x = -0.5) and the front (x = 0.5) of a body."""
    for x, z, slots in ((-0.502, tail, (TAIL, TAIL)), (0.502, head, (HEAD, HEAD))):
        facing = 1 if x < 0 else -1
        for side, slot, turn in ((1, slots[0], LEFT), (-1, slots[1], RIGHT)):
            _add_plate(s, x, (side * (inner - 0.12), side * (inner + 0.06)), z, slot, facing, draw_order)
            _add_plate(s, x, (side * (inner + 0.06), side * 0.49), z, turn, facing, draw_order)
        middle = 0.5 * (z[0] + z[1])
        _add_plate(s, x, (-0.14, 0.14), (middle - 0.1, middle - 0.02), PLATE, facing, draw_order)
    for side, turn in ((1, LEFT), (-1, RIGHT)):  # side view
        for (rear, front), (low, high) in (((-0.5, -0.455), tail), ((0.455, 0.5), head)):
            s.face(
                _side_ring(side, (rear, low), (front, low), (front, high), (rear, high)), turn, (draw_order, draw_order)
            )


def _add_plate(
    s: TemplateBuilder,
    x: float,
    y: tuple[float, float],
    z: tuple[float, float],
    slot: int,
    facing: int,
    draw_order: int,
) -> None:
    """A rectangle across the body that faces backwards (`facing` 1) or forwards (`facing` -1)."""
    low, high = (max(y), min(y)) if facing > 0 else (min(y), max(y))
    s.face(np.array([(x, low, z[0]), (x, high, z[0]), (x, high, z[1]), (x, low, z[1])]), slot, (draw_order, draw_order))


def _side_ring(side: int, *corners: tuple[float, float]) -> Array:
    """A ring of x and z, counter-clockwise on paper, on the left (1) or right (-1) side of a body."""
    ring = np.array([(x, side * 0.502, z) for x, z in corners])
    return ring[::-1] if side > 0 else ring


def _add_wheels(
    s: TemplateBuilder, along: tuple[float, ...], radius_x: float, radius_z: float, draw_order: int = 1
) -> None:
    angle = 2 * np.pi * (np.arange(10) + 0.5) / 10
    for share, slot in ((1.0, TYRE), (0.55, HUB)):
        for side in (-1, 1):
            for x in along:
                ring = np.column_stack(
                    [
                        x + 0.55 * share * radius_x * np.cos(angle),
                        np.full(10, 0.503 * side),
                        radius_z + share * radius_z * np.sin(angle),
                    ]
                )
                s.face(ring[::-1] if side > 0 else ring, slot, (draw_order, draw_order))


def _van(phase: int) -> Template:
    s = TemplateBuilder()
    s.box((-0.47, 0.47), (-0.45, 0.45), (0.04, 0.2), TYRE, (0, 0))
    profile = [
        (-0.5, 0.15),
        (0.5, 0.15),
        (0.5, 0.42),
        (0.42, 0.52),
        (0.27, 0.97),
        (0.22, 1.0),
        (-0.48, 1.0),
        (-0.5, 0.96),
    ]
    s.prism(np.array(profile), (-0.5, 0.5), (PAINT,) * 3, (1, 1))
    screen = np.array([(0.422, -0.44, 0.54), (0.422, 0.44, 0.54), (0.285, 0.42, 0.94), (0.285, -0.42, 0.94)])
    s.face(screen, GLASS, (1, 1))
    for side in (-1, 1):
        ring = np.array(
            [
                (0.12, side * 0.502, 0.55),
                (0.38, side * 0.502, 0.55),
                (0.25, side * 0.502, 0.9),
                (0.12, side * 0.502, 0.9),
            ]
        )
        s.face(ring[::-1] if side > 0 else ring, GLASS, (1, 1))
    for y in ((-0.42, -0.03), (0.03, 0.42)):
        _add_plate(s, -0.502, y, (0.58, 0.88), GLASS, 1, 1)
    _add_lamps(s, (0.3, 0.5), (0.28, 0.38), 0.38)
    _add_plate(s, -0.503, (-0.12, 0.12), (0.93, 0.97), BRAKE, 1, 1)
    _add_wheels(s, (-0.31, 0.33), 0.14, 0.15)
    return s.template()


def _truck(phase: int) -> Template:
    s = TemplateBuilder()
    s.box((-0.49, 0.49), (-0.4, 0.4), (0.08, 0.26), TYRE, (0, 0))
    for draw_order, x in (((1, 3), (0.24, 0.5)), ((3, 1), (-0.5, 0.22))):  # seen from ahead the cargo is behind the cab
        cab = draw_order == (1, 3)
        high = 0.8 if cab else 1.0
        s.box(x, (-0.5, 0.5), (0.14 if cab else 0.28, high), PAINT if cab else SECOND, (3, 1) if cab else (1, 3))
    _add_plate(s, 0.502, (-0.45, 0.45), (0.48, 0.72), GLASS, -1, 3)
    for side in (-1, 1):
        ring = np.array(
            [(0.3, side * 0.502, 0.48), (0.47, side * 0.502, 0.48), (0.47, side * 0.502, 0.7), (0.3, side * 0.502, 0.7)]
        )
        s.face(ring[::-1] if side > 0 else ring, GLASS, (3, 3))
        ring = np.array(
            [
                (-0.48, side * 0.502, 0.32),
                (0.2, side * 0.502, 0.32),
                (0.2, side * 0.502, 0.38),
                (-0.48, side * 0.502, 0.38),
            ]
        )
        s.face(ring[::-1] if side > 0 else ring, STRIPE, (3, 3))
    _add_lamps(s, (0.17, 0.26), (0.22, 0.3), 0.36, 3)
    _add_plate(s, -0.502, (-0.01, 0.01), (0.3, 0.98), TRIM, 1, 3)
    _add_wheels(s, (-0.36, -0.22, 0.36), 0.09, 0.14, 3)
    return s.template()


def _bus(phase: int) -> Template:
    s = TemplateBuilder()
    s.box((-0.48, 0.48), (-0.45, 0.45), (0.03, 0.14), TYRE, (0, 0))
    walls = s.box((-0.5, 0.5), (-0.5, 0.5), (0.1, 1.0), PAINT, (1, 1))
    s.face(inset_quad(walls[0], (0.1, 0.9), (0.55, 0.88)), GLASS, (1, 1))
    s.face(inset_quad(walls[1], (0.05, 0.95), (0.3, 0.82)), GLASS, (1, 1))
    s.face(inset_quad(walls[1], (0.2, 0.8), (0.86, 0.96)), TRIM, (1, 1))
    for wall in walls[2:4]:
        for k in range(6):
            s.face(inset_quad(wall, (0.03 + 0.16 * k, 0.17 + 0.16 * k), (0.42, 0.82)), GLASS, (1, 1))
        s.face(inset_quad(wall, (0.0, 1.0), (0.2, 0.27)), SECOND, (1, 1))
    _add_lamps(s, (0.18, 0.34), (0.14, 0.2), 0.38)
    _add_plate(s, -0.503, (-0.2, 0.2), (0.91, 0.95), BRAKE, 1, 1)
    _add_wheels(s, (-0.28, 0.3), 0.08, 0.15)
    return s.template()


def _add_rider(s: TemplateBuilder, phase: int, seat: float) -> None:
    """Someone on a saddle."""
    swing = 0.09 * np.sin(2 * np.pi * max(phase, 0) / 8)  # feet on pedals
    for side, lift in ((-1, swing), (1, -swing)):
        y = (side * 0.24 - 0.13, side * 0.24 + 0.13)
        s.box((-0.14, 0.1), y, (seat - 0.1 + lift, seat + 0.04), LEGS, (2, 2))
        s.box((0.0, 0.1), y, (seat - 0.32 + lift, seat - 0.08 + lift), LEGS, (2, 2))
    s.frustum((-0.16, 0.0), (-0.34, 0.34), (seat, seat + 0.36), (-0.06, 0.1), (-0.38, 0.38), (CLOTH,) * 5, (3, 3))
    for side in (-1, 1):
        arm = (side * 0.42 - 0.07, side * 0.42 + 0.07)
        s.frustum((0.14, 0.24), arm, (seat + 0.08, seat + 0.3), (-0.04, 0.08), arm, (CLOTH,) * 5, (3, 3))
    s.disc((0.06, 0.0, seat + 0.45), (0.2, 0.075), SKIN)
    s.disc((0.04, 0.0, seat + 0.49), (0.22, 0.05), PAINT)


def _add_inline_wheels(s: TemplateBuilder, radius: float, thickness: float, spokes: bool) -> None:
    """Wheels in line: rings or discs in side view, as thin as they are in front and rear view."""
    angle = 2 * np.pi * np.arange(13) / 12
    for x in (-0.33, 0.33):
        rim = np.column_stack([x + 0.62 * radius * np.cos(angle), np.zeros(13), radius * (1 + np.sin(angle))])
        inner = rim[::-1] * (0.82, 1, 0.82) + np.array([0.18 * x, 0, 0.18 * radius])
        for side in (-1, 1):
            turned = (rim, inner) if side < 0 else (rim[::-1], inner[::-1])
            ring = np.concatenate(turned) if spokes else turned[0][:-1]
            s.face(ring + np.array([0, 0.5 * side * thickness, 0]), TYRE, (0, 0))
            if not spokes:
                hub = rim[:-1] * (0.5, 1, 0.5) + np.array([0.5 * x, 0, 0.5 * radius])
                s.face((hub[::-1] if side > 0 else hub) + (0, 0.5 * side * thickness, 0), HUB, (0, 0))
        upright = np.array([(x, 0, 0.0), (x, 0, 0.0), (x, 0, 2 * radius), (x, 0, 2 * radius)])
        s.face(upright, TRIM, (0, 0), thickness * np.array([-1, 1, 1, -1]))


def _bicycle(phase: int) -> Template:
    s = TemplateBuilder()
    _add_inline_wheels(s, 0.2, 0.04, True)
    for ends in (
        ((-0.33, 0.2), (-0.1, 0.48)),
        ((-0.1, 0.48), (0.25, 0.46)),
        ((-0.02, 0.2), (0.25, 0.46)),
        ((-0.33, 0.2), (-0.02, 0.2)),
        ((0.33, 0.2), (0.24, 0.58)),
    ):
        (x0, z0), (x1, z1) = ends
        bar = np.array([(x0, 0, z0 - 0.02), (x1, 0, z1 - 0.02), (x1, 0, z1 + 0.02), (x0, 0, z0 + 0.02)])
        s.face(bar, PAINT, (1, 1))
        s.face(bar[::-1], PAINT, (1, 1))
    s.box((0.21, 0.27), (-0.45, 0.45), (0.56, 0.6), TRIM, (1, 1))
    _add_plate(s, -0.45, (-0.1, 0.1), (0.36, 0.42), TAIL, 1, 1)
    _add_rider(s, phase, 0.5)
    return s.template()


def _motorcycle(phase: int) -> Template:
    s = TemplateBuilder()
    _add_inline_wheels(s, 0.21, 0.09, False)
    s.box((-0.36, 0.28), (-0.24, 0.24), (0.22, 0.5), PAINT, (1, 1))
    s.box((0.2, 0.26), (-0.5, 0.5), (0.58, 0.62), TRIM, (1, 1))
    _add_plate(s, -0.38, (-0.22, 0.22), (0.36, 0.52), TAIL, 1, 2)
    _add_plate(s, -0.38, (0.22, 0.4), (0.4, 0.5), LEFT, 1, 2)
    _add_plate(s, -0.38, (-0.4, -0.22), (0.4, 0.5), RIGHT, 1, 2)
    _add_plate(s, 0.29, (-0.18, 0.18), (0.42, 0.54), HEAD, -1, 2)
    _add_rider(s, -1, 0.5)
    return s.template()


def _pedestrian(phase: int) -> Template:
    s = TemplateBuilder()
    swing = 0.42 * np.sin(2 * np.pi * phase / 8) if phase >= 0 else 0.0
    for side, ahead in ((-1, swing), (1, -swing)):
        y = (side * 0.2 - 0.14, side * 0.2 + 0.14)
        s.frustum((ahead - 0.16, ahead + 0.18), y, (0.0, 0.48), (-0.18, 0.18), y, (LEGS,) * 5, (0, 0))
        arm = (side * 0.46 - 0.08, side * 0.46 + 0.08)
        s.frustum((-ahead - 0.12, -ahead + 0.1), arm, (0.42, 0.8), (-0.12, 0.12), arm, (CLOTH,) * 5, (1, 1))
    s.frustum((-0.2, 0.22), (-0.34, 0.34), (0.44, 0.83), (-0.2, 0.22), (-0.42, 0.42), (CLOTH,) * 5, (2, 2))
    s.disc((0.02, 0.0, 0.915), (0.2, 0.075), SKIN)
    s.disc((-0.04, 0.0, 0.955), (0.21, 0.04), TRIM)
    return s.template()


def _cone(phase: int) -> Template:
    s = TemplateBuilder()
    s.box((-0.5, 0.5), (-0.5, 0.5), (0.0, 0.06), TRIM, (0, 0))
    for band, slot in (((0.06, 0.4), PAINT), ((0.4, 0.65), STRIPE), ((0.65, 1.0), PAINT)):
        low, high = (0.36 * (1 - band[0]) + 0.05, 0.36 * (1 - band[1]) + 0.05)
        s.frustum((-low, low), (-low, low), band, (-high, high), (-high, high), (slot,) * 5, (1, 1))
    return s.template()


def _barrier(phase: int) -> Template:
    s = TemplateBuilder()
    for y in (-0.4, 0.4):
        s.box((-0.5, 0.5), (y - 0.06, y + 0.06), (0.0, 0.6), TRIM, (0, 0))
    walls = s.box((-0.3, 0.3), (-0.5, 0.5), (0.45, 1.0), STRIPE, (1, 1))
    for wall in walls[:2]:
        for k in range(4):
            a, b = (
                inset_quad(wall, (0.25 * k, 0.25 * k + 0.125), (0.0, 1.0)),
                inset_quad(wall, (0.25 * k + 0.1, 0.25 * k + 0.225), (0.0, 1.0)),
            )
            s.face(np.array([a[0], a[1], b[2], b[3]]), PAINT, (1, 1))
    for wall in walls[2:4]:
        s.face(inset_quad(wall, (0.0, 1.0), (0.3, 0.7)), PAINT, (1, 1))
    return s.template()


def _door(phase: int) -> Template:
    s = TemplateBuilder()
    walls = s.box((-0.5, 0.5), (-0.5, 0.5), (0.2, 0.62), PAINT, (0, 0))
    frame = s.frustum((-0.5, 0.5), (-0.5, 0.5), (0.62, 1.0), (-0.42, 0.42), (-0.42, 0.42), (TRIM,) * 5, (1, 1))
    for wall in frame[:4]:
        s.face(inset_quad(wall, (0.08, 0.92), (0.08, 0.9)), GLASS, (1, 1))
    for wall in walls[:4]:
        s.face(inset_quad(wall, (0.0, 1.0), (0.0, 0.12)), TRIM, (0, 0))
    return s.template()


_MODELS: dict[str, Callable[[int], Template]] = {
    "sedan": lambda phase: _car(phase, 0.6, (-0.44, -0.26, 0.06, 0.26), 0.56),
    "hatchback": lambda phase: _car(phase, 0.58, (-0.49, -0.4, 0.08, 0.3), 0.56),
    "suv": lambda phase: _car(phase, 0.6, (-0.49, -0.44, 0.1, 0.28), 0.6),
    "van": _van,
    "truck": _truck,
    "bus": _bus,
    "motorcycle": _motorcycle,
    "bicycle": _bicycle,
    "pedestrian": _pedestrian,
    "cone": _cone,
    "barrier": _barrier,
    "door": _door,
}
