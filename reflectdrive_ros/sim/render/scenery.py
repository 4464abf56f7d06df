"""Static scenery of a town, ready to be drawn: the ground with its markings, and roadside objects.

Built once per town from its road map, in the map frame. No object stands on a road or path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadMap
from . import markings, roadside
from .polygons import Material, Polygons, concat_polygons, flat_polygons

ASPHALT, PAVING, KERB, CYCLEWAY, GRASS = (
    (0.30, 0.30, 0.31),
    (0.52, 0.50, 0.47),
    (0.62, 0.61, 0.59),
    (0.46, 0.24, 0.20),
    (0.26, 0.38, 0.16),
)
KERB_HEIGHT_M, KERB_WIDTH_M = 0.12, 0.25
PATCH_SPACING_M = 35.0
SQUARE = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])


@dataclass(frozen=True, eq=False)
class Scenery:
    """The still part of a town, map frame."""

    ground: Polygons  # in the order it is laid; one thing
    ground_centres: Array  # (F, 2)
    ground_radii: Array  # (F,)
    standing: Polygons
    first_polygon: Array  # (T + 1,) of each standing thing; its faces follow each other
    poses: Array  # (T, 3) centres of what stands
    sizes: Array  # (T, 3) m
    lamp_polygons: Array  # (N,) which standing faces are lamps of traffic lights
    lamp_signal: Array  # (N,) of which of RoadMap.signals
    lamp_shows: Array  # (N,) the Lamp at which it shines


def build_scenery(road_map: RoadMap, seed: int) -> Scenery:
    """The scenery of a town. Map and seed determine it."""
    rng = np.random.default_rng([seed, 0x5CE])
    ground = _ground_polygons(road_map, rng)
    standing = roadside.build_roadside(road_map, rng)
    centres, radii = ground.circles()
    begins = np.searchsorted(standing.polygons.object_index, np.arange(len(standing.poses) + 1))
    return Scenery(
        ground,
        centres,
        radii,
        standing.polygons,
        begins,
        standing.poses,
        standing.sizes,
        standing.lamp_polygons,
        standing.lamp_signal,
        standing.lamp_shows,
    )


def _ground_polygons(road_map: RoadMap, rng: np.random.Generator) -> Polygons:
    surfaces = [*road_map.roads.values(), *road_map.junctions.values()]
    asphalt = [ring for surface in surfaces for ring in rings_of(surface)]
    paint = markings.build_markings(road_map, rng)
    tones = 1 + 0.05 * rng.uniform(-1, 1, (len(asphalt), 1))
    patches, patch_tones = _repair_patches(road_map, rng)
    outline = _drivable_outline(surfaces, road_map)
    kerb = [
        ring
        for line in outline
        for ring in markings.strip_rings(markings.offset_line(line, -0.5 * KERB_WIDTH_M), KERB_WIDTH_M)
    ]
    cycleways, walkways = list(road_map.cycleways), list(road_map.walkways)
    parts = [
        flat_polygons(asphalt, np.array(ASPHALT) * tones, np.array(Material.ASPHALT)),
        flat_polygons(patches, np.array(ASPHALT) * patch_tones, np.array(Material.ASPHALT)),
        flat_polygons(cycleways, np.array(CYCLEWAY), np.array(Material.CYCLEWAY)),
        flat_polygons(
            [ring for ring, _, _ in paint],
            np.array([rgb for _, rgb, _ in paint]).reshape(-1, 3),
            np.array([material for _, _, material in paint], np.int64),
        ),
        _kerb_polygons(outline),
        flat_polygons(walkways, np.array(PAVING), np.array(Material.PAVING), KERB_HEIGHT_M),
        flat_polygons(kerb, np.array(KERB), np.array(Material.KERB), KERB_HEIGHT_M),
    ]
    return concat_polygons(parts, [0] * len(parts))


def rings_of(surface: Any) -> list[Array]:
    """Rings (V, 2) that fill a shapely surface; one with holes is cut through them."""
    rings: list[Array] = []
    for part in getattr(surface, "geoms", [surface]):
        if part.is_empty or part.geom_type != "Polygon":
            continue
        if not part.interiors:
            rings.append(geometry.outer_ring(part))
            continue
        x, _ = part.interiors[0].centroid.coords[0]
        low_x, low_y, high_x, high_y = part.bounds
        for half in (shapely.box(low_x, low_y, x, high_y), shapely.box(x, low_y, high_x, high_y)):
            rings += rings_of(part.intersection(half))
    return rings


def _drivable_outline(surfaces: list[Any], road_map: RoadMap) -> list[Array]:
    """Lines (V, 2) around all roads, including cycleways; the drivable space is to their left."""
    grown = [surface.buffer(0.05) for surface in surfaces]
    grown += [shapely.Polygon(ring).buffer(0.05) for ring in road_map.cycleways]
    whole = shapely.simplify(shapely.unary_union(grown), 0.03)
    lines = []
    for part in getattr(whole, "geoms", [whole]):
        part = shapely.geometry.polygon.orient(part)
        lines += [np.array(ring.coords) for ring in (part.exterior, *part.interiors)]
    return lines


def _kerb_polygons(outline: list[Array]) -> Polygons:
    """Vertical polygons along the outline that face the road."""
    a = np.concatenate([line[:-1] for line in outline])
    b = np.concatenate([line[1:] for line in outline])
    along = b - a
    normal = np.column_stack([-along[:, 1], along[:, 0], np.zeros(len(a))])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-9)
    quads = np.zeros((len(a), 4, 3))
    quads[:, 0, :2], quads[:, 1, :2], quads[:, 2, :2], quads[:, 3, :2] = a, b, b, a
    quads[:, 2:, 2] = KERB_HEIGHT_M
    count = len(a)
    return Polygons(
        quads.reshape(-1, 3),
        np.zeros(4 * count),
        4 * np.arange(count + 1),
        normal,
        np.tile(0.8 * np.array(KERB), (count, 1)),
        np.full(count, int(Material.KERB)),
        np.zeros(count, np.int64),
        np.zeros((count, 2), np.int64),
    )


def _repair_patches(road_map: RoadMap, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """Patches of repaired road surface: rings within lanes, and their tones (N, 1)."""
    rings, tones = [], []
    for lanes in markings.lanes_by_edge(road_map).values():
        for lane in lanes:
            line = lane.lane.centerline
            length = float(geometry.arc_lengths(line)[-1])
            count = rng.poisson(length / PATCH_SPACING_M)
            for pose in geometry.sample(line, rng.uniform(0, length, count)):
                half = np.array([rng.uniform(0.4, 4.0), rng.uniform(0.3, 0.9)])
                lateral_m = rng.uniform(-0.4, 0.4) * max(lane.width_m - 2 * half[1], 0.0)
                rings.append(geometry.transform_points(pose, half * SQUARE + (0, lateral_m)))
                tones.append([rng.uniform(0.72, 1.14)])
    return rings, np.array(tones).reshape(-1, 1)
