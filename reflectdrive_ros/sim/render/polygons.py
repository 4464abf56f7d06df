"""Polygons in space as arrays: storage, culling, clipping and projection.

A polygon is a flat ring of points with a colour. Thousands of polygons are stored one after the other: polygon `f` owns
`points[first[f] : first[f + 1]]`. Repeated shapes (houses, cars) are templates of unit size, placed by pose and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ...core.domain import Array


class Material(IntEnum):
    """Material of a polygon; each appearance tints materials differently."""

    ASPHALT = 0
    PAINT = 1
    KERB = 2
    PAVING = 3
    CYCLEWAY = 4
    GRASS = 5
    FOLIAGE = 6
    WALL = 7
    METAL = 8
    GLOW = 9  # emits light: sun and shade do not change it
    INLAY = 10  # set into a convex body, as windows are: neighbours of one colour are filled together
    STRIPES = 11  # paint in pieces that lie apart: filled together, too


BATCHED_MATERIALS = (Material.INLAY, Material.STRIPES, Material.KERB)


@dataclass(frozen=True, eq=False)
class Polygons:
    """Polygons in one frame. A polygon with normal zero is visible from both sides."""

    points: Array  # (P, 3) m
    billboard: Array  # (P,) m offset of a point to the right, as seen from the camera
    first: Array  # (F + 1,) index of each face's first point
    normals: Array  # (F, 3)
    albedo: Array  # (F, 3) 0..1
    material: Array  # (F,) Material
    object_index: Array  # (F,) index of the thing that a face belongs to
    draw_order: Array  # (F, 2) drawing order within an object, seen from ahead of it and from behind it

    def __len__(self) -> int:
        return len(self.first) - 1

    def select(self, keep: Array) -> Polygons:
        """Those of indices (K,), in their order."""
        points, first = gather_ranges(self.first, keep)
        return Polygons(
            self.points[points],
            self.billboard[points],
            first,
            self.normals[keep],
            self.albedo[keep],
            self.material[keep],
            self.object_index[keep],
            self.draw_order[keep],
        )

    def circles(self) -> tuple[Array, Array]:
        """Centres (F, 2) and radii (F,) of circles on the ground around the faces."""
        low = np.minimum.reduceat(self.points[:, :2], self.first[:-1])
        high = np.maximum.reduceat(self.points[:, :2], self.first[:-1])
        return 0.5 * (low + high), 0.5 * np.hypot(*(high - low).T)


def gather_ranges(first: Array, keep: Array) -> tuple[Array, Array]:
    """Point indices of the faces `keep` (K,), and where each face begins among them (K + 1,)."""
    count = first[keep + 1] - first[keep]
    begins = np.concatenate([[0], np.cumsum(count)])
    return np.repeat(first[keep] - begins[:-1], count) + np.arange(begins[-1]), begins


def polygon_normals(points: Array, first: Array) -> Array:
    """(F, 3) unit normals by the right hand rule on each face's first three points; zero where those are on a line."""
    a, b, c = (points[first[:-1] + k].T for k in range(3))
    (ux, uy, uz), (vx, vy, vz) = b - a, c - b
    normal = np.stack([uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx], axis=1)
    length = np.sqrt(np.einsum("fk,fk->f", normal, normal))
    normal *= np.where(length > 1e-9, 1.0 / np.maximum(length, 1e-9), 0.0)[:, None]
    return np.asarray(normal)


def concat_polygons(parts: Sequence[Polygons], things: Sequence[int]) -> Polygons:
    """All polygons in one, where part k has `things[k]` objects."""
    parts_and_before = list(zip(parts, np.concatenate([[0], np.cumsum(things)])[:-1], strict=True))
    shift = np.concatenate([[0], np.cumsum([len(part.points) for part in parts])])
    return Polygons(
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.billboard for part in parts]),
        np.concatenate([*(part.first[:-1] + s for part, s in zip(parts, shift[:-1], strict=True)), shift[-1:]]),
        np.concatenate([part.normals for part in parts]),
        np.concatenate([part.albedo for part in parts]),
        np.concatenate([part.material for part in parts]),
        np.concatenate([part.object_index + before for part, before in parts_and_before]),
        np.concatenate([part.draw_order for part in parts]),
    )


def flat_polygons(rings: Sequence[Array], albedo: Array, material: Array, height_m: float = 0.0) -> Polygons:
    """Faces that lie on the ground, or at a height above it, one per ring (V, 2); albedo (F, 3), material (F,)."""
    count = np.array([len(ring) for ring in rings], np.int64)
    xy = np.concatenate([*rings, np.zeros((0, 2))])
    up = np.tile([0.0, 0.0, 1.0], (len(rings), 1))
    polygons = len(rings)
    return Polygons(
        np.column_stack([xy, np.full(len(xy), height_m)]),
        np.zeros(len(xy)),
        np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        up,
        np.broadcast_to(albedo, (polygons, 3)).astype(float),
        np.broadcast_to(material, (polygons,)).astype(np.int64),
        np.zeros(polygons, np.int64),
        np.zeros((polygons, 2), np.int64),
    )


def clip_and_project(points: Array, first: Array, pixels_from_camera: Array, near_m: float) -> tuple[Array, Array]:
    """Clips polygons in camera axes at the near plane: rings of pixels (Q, 2), and offsets of each (F + 1,).

    Each edge contributes its start point if that is in front of the plane, and its intersection with the plane. A
    polygon behind the plane has no points.
    """
    count = np.diff(first)
    inside = points[:, 2] > near_m
    if not inside.all():
        following = np.arange(1, len(points) + 1)
        following[first[1:][count > 0] - 1] = first[:-1][count > 0]
        crosses = inside != inside[following]
        counts = inside.astype(np.int64) + crosses
        at = np.concatenate([[0], np.cumsum(counts)])
        cut = np.empty((at[-1], 3))
        cut[at[:-1][inside]] = points[inside]
        begin, end = points[crosses], points[following[crosses]]
        share = (near_m - begin[:, 2:]) / (end[:, 2:] - begin[:, 2:])
        cut[at[1:][crosses] - 1] = begin + share * (end - begin)
        points, first = cut, at[first]
    depth = np.maximum(points[:, 2], near_m)
    x = pixels_from_camera[0, 0] * points[:, 0] / depth + pixels_from_camera[0, 2]
    y = pixels_from_camera[1, 1] * points[:, 1] / depth + pixels_from_camera[1, 2]
    return np.stack([x, y], axis=1), first


# --- templates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Template:
    """A shape of unit size: x and y from -0.5 to 0.5, z from 0 to 1, x ahead. Slots get their colours when placed."""

    points: Array  # (P, 3)
    billboard: Array  # (P,) in widths
    first: Array  # (F + 1,)
    slot: Array  # (F,)
    draw_order: Array  # (F, 2)

    def placed(
        self, poses: Array, sizes: Array, albedo: Array, material: Array, base_m: Array | float = 0.0
    ) -> Polygons:
        """One thing per pose (T, 3), box centres; sizes (T, 3); albedo (T, slots, 3), material (T, slots) or (slots,).

        `base_m` is the height of their feet above the ground.
        """
        things, per_thing, corners = len(poses), len(self.first) - 1, len(self.billboard)
        local = self.points * sizes[:, None]
        cos, sin = np.cos(poses[:, 2:]), np.sin(poses[:, 2:])
        points = np.stack(
            [
                poses[:, :1] + cos * local[..., 0] - sin * local[..., 1],
                poses[:, 1:2] + sin * local[..., 0] + cos * local[..., 1],
                np.broadcast_to(np.asarray(base_m).reshape(-1, 1), (things, 1)) + local[..., 2],
            ],
            axis=-1,
        ).reshape(-1, 3)
        starts = (self.first[:-1] + corners * np.arange(things)[:, None]).reshape(-1)
        first = np.concatenate([starts, [len(points)]]).astype(np.int64)
        billboard = (self.billboard * sizes[:, 1:2]).reshape(-1)
        material = np.broadcast_to(material, albedo.shape[:2])
        return Polygons(
            points,
            billboard,
            first,
            polygon_normals(points, first),
            albedo[:, self.slot].reshape(-1, 3),
            material[:, self.slot].reshape(-1),
            np.repeat(np.arange(things), per_thing),
            np.tile(self.draw_order, (things, 1)),
        )


class TemplateBuilder:
    """Collects the polygons of a template. Polygons of one rank are drawn in order of addition; a convex part has one
    rank.
    """

    def __init__(self) -> None:
        self._rings: list[Array] = []
        self._spread: list[Array] = []
        self._slot: list[int] = []
        self._rank: list[tuple[int, int]] = []

    def face(
        self, ring: Array, slot: int, draw_order: tuple[int, int] = (0, 0), billboard: Array | None = None
    ) -> Array:
        ring = np.asarray(ring, float)
        self._rings.append(ring)
        self._spread.append(np.zeros(len(ring)) if billboard is None else np.asarray(billboard, float))
        self._slot.append(slot)
        self._rank.append(draw_order)
        return ring

    def solid(self, rings: Sequence[Array], slots: Sequence[int], draw_order: tuple[int, int] = (0, 0)) -> list[Array]:
        """The polygons of a convex body, oriented so that each normal points outward."""
        centre = np.concatenate(rings).mean(axis=0)
        outward = []
        for ring, slot in zip(rings, slots, strict=True):
            ring = np.asarray(ring, float)
            normal = np.cross(ring[1] - ring[0], ring[2] - ring[1])
            if normal @ (ring.mean(axis=0) - centre) < 0:
                ring = ring[[1, 0, 3, 2]] if len(ring) == 4 else ring[::-1]  # a quad keeps its foot first, for decals
            outward.append(self.face(ring, slot, draw_order))
        return outward

    def box(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: tuple[float, float],
        slot: int,
        draw_order: tuple[int, int],
    ) -> list[Array]:
        """A box without its underside: rear, front, right, left, top."""
        return self.frustum(x, y, z, x, y, (slot,) * 5, draw_order)

    def frustum(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: tuple[float, float],
        top_x: tuple[float, float],
        top_y: tuple[float, float],
        slots: Sequence[int],
        draw_order: tuple[int, int],
    ) -> list[Array]:
        """A box with another rectangle on top; rear, front, right, left, top."""
        low = [np.array([x[i], y[j], z[0]]) for i in (0, 1) for j in (0, 1)]
        high = [np.array([top_x[i], top_y[j], z[1]]) for i in (0, 1) for j in (0, 1)]
        rings = [
            np.array([low[0], low[1], high[1], high[0]]),
            np.array([low[2], low[3], high[3], high[2]]),
            np.array([low[0], low[2], high[2], high[0]]),
            np.array([low[1], low[3], high[3], high[1]]),
            np.array([high[0], high[1], high[3], high[2]]),
        ]
        return self.solid(rings, slots, draw_order)

    def prism(
        self, profile: Array, y: tuple[float, float], slots: Sequence[int], draw_order: tuple[int, int]
    ) -> list[Array]:
        """A convex side view (V, 2) of x and z drawn out from y[0] to y[1]; right side, left side, then the rim."""
        profile = np.asarray(profile, float)
        right = np.column_stack([profile[:, 0], np.full(len(profile), y[0]), profile[:, 1]])
        left = right + np.array([0.0, y[1] - y[0], 0.0])
        following = np.roll(np.arange(len(profile)), -1)
        rim = [np.array([right[i], right[j], left[j], left[i]]) for i, j in enumerate(following)]
        return self.solid([right, left, *rim], [*slots[:2], *([slots[2]] * len(rim))], draw_order)

    def disc(self, at: tuple[float, float, float], radius: tuple[float, float], slot: int, corners: int = 8) -> None:
        """A billboard disc: radius in widths and in heights."""
        angle = 2 * np.pi * (np.arange(corners) + 0.5) / corners
        ring = np.tile(np.array(at, float), (corners, 1))
        ring[:, 2] += radius[1] * np.sin(angle)
        self.face(ring, slot, (9, 9), radius[0] * np.cos(angle))

    def template(self) -> Template:
        count = np.array([len(ring) for ring in self._rings])
        return Template(
            np.concatenate(self._rings),
            np.concatenate(self._spread),
            np.concatenate([[0], np.cumsum(count)]),
            np.array(self._slot),
            np.array(self._rank),
        )


def inset_quad(ring: Array, u: tuple[float, float], v: tuple[float, float]) -> Array:
    """(4, 3) a quad within a quad (4, 3): u along its first side, v towards the opposite side, each 0..1."""
    a, b, c, d = ring

    def at(s: float, t: float) -> Array:
        return np.asarray((1 - t) * ((1 - s) * a + s * b) + t * ((1 - s) * d + s * c))

    return np.array([at(u[0], v[0]), at(u[1], v[0]), at(u[1], v[1]), at(u[0], v[1])])
