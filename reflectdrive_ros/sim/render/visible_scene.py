"""What the cameras of the proving ground can see at one instant, gathered once for all of them.

`gather_visible` selects the ground, objects and actors near the ego, moves them into the ego frame, lights them and
fades them with distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ..traffic.actors import Snapshot
from . import actor_meshes
from .appearance import Appearance
from .polygons import Material, Polygons, concat_polygons, gather_ranges
from .scenery import Scenery

GROUND_REACH_M, ACTOR_REACH_M = 140.0, 150.0
STANDING_REACH_M = (100.0, 170.0)  # of small things, traffic lights too, and of large ones
REACH_PER_SIZE = 14.0
LAMP_RGB = np.array([(1.0, 0.10, 0.08), (1.0, 0.72, 0.08), (0.10, 1.0, 0.45)])  # as Lamp
SHADOW_SHIFT_M = 0.35  # of an actor's shadow away from a sun at the horizon, in heights
SIDE_TANGENT = 0.35  # the side cameras cover 104 degrees; tangent of the rest, with a margin
CAMERAS_AT = np.array([1.2, 0.0])  # between the cameras, ego frame


@dataclass(frozen=True, eq=False)
class VisibleScene:
    """The visible objects around the ego at one instant, ego frame; lit and faded by distance, colours 0..1."""

    time_s: float
    appearance: Appearance
    map_from_ego: Array  # (3,)
    ground: Polygons
    ground_rgb: Array  # (F, 3)
    ground_planes: Array  # (F,) offset of each polygon's plane along its normal
    ground_centres: Array  # (F, 2)
    ground_radii: Array  # (F,)
    shadows: Array  # (A, 12, 2) rings on the ground
    shadow_radii: Array  # (A,)
    standing: Polygons
    standing_rgb: Array  # (F, 3)
    standing_planes: Array  # (F,) as of the ground; -inf for polygons that are visible from both sides
    first_polygon: Array  # (T + 1,) of each standing thing
    corners: Array  # (T, 4, 2) their footprints
    centres: Array  # (T, 2)
    radii: Array  # (T,)
    faces_ego: Array  # (T,) bool, whether a thing's front is turned to the cameras


def gather_visible(scenery: Scenery, snapshot: Snapshot, map_from_ego: Array, appearance: Appearance) -> VisibleScene:
    """Visible objects of all cameras at one instant; `map_from_ego` (3,) is the rear axle."""
    map_from_ego = np.asarray(map_from_ego, float)
    ego_from_map = geometry.invert(map_from_ego)
    sun = geometry.rotate(appearance.sun[:2], -map_from_ego[2])

    near = _about(scenery.ground_centres, scenery.ground_radii, ego_from_map, GROUND_REACH_M)
    ground = _in_frame(scenery.ground.select(near), ego_from_map)
    lit = appearance.lit(ground.albedo, ground.material, scenery.ground.normals[near])

    radii = 0.5 * np.hypot(*scenery.sizes[:, :2].T)
    reach = np.clip(REACH_PER_SIZE * scenery.sizes.max(axis=1), *STANDING_REACH_M)
    things = _about(scenery.poses[:, :2], radii, ego_from_map, reach)
    rows, first_polygon = gather_ranges(scenery.first_polygon, things)
    still = scenery.standing.select(rows)
    still.object_index[:] = np.repeat(np.arange(len(things)), np.diff(first_polygon))

    actors = snapshot.actors
    radii = 0.5 * np.hypot(*actors.sizes[:, :2].T) + actors.sizes[:, 2]  # with its shadow
    actors = actors.select(_about(actors.poses[:, :2], radii, ego_from_map, ACTOR_REACH_M))
    moving = actor_meshes.build_actor_meshes(actors, snapshot.time_s, appearance.lights_on)

    poses = geometry.compose(ego_from_map, np.concatenate([scenery.poses[things], actors.poses]))
    sizes = np.concatenate([scenery.sizes[things], actors.sizes])
    standing = concat_polygons([still, moving], [len(things), len(actors)])
    rgb = appearance.lit(standing.albedo, standing.material, standing.normals)
    _switch_lamps(scenery, snapshot, rows, rgb)
    standing = _in_frame(standing, ego_from_map)
    count = np.bincount(standing.object_index, minlength=len(poses))
    towards = CAMERAS_AT - poses[:, :2]
    distance = np.maximum(np.hypot(*towards.T), 1e-3)
    right = np.column_stack([-towards[:, 1], towards[:, 0]]) / distance[:, None]
    billboard = np.flatnonzero(standing.billboard)  # few are
    of_point = standing.object_index[np.searchsorted(standing.first, billboard, side="right") - 1]
    standing.points[billboard, :2] += standing.billboard[billboard, None] * right[of_point]
    ahead = np.einsum("tk,tk->t", towards, np.column_stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])]))
    faded = 1.0 - np.exp(-distance / appearance.visibility_m)
    rgb += (faded[standing.object_index] * (standing.material != Material.GLOW))[:, None] * (
        appearance.horizon_rgb - rgb
    )
    return VisibleScene(
        snapshot.time_s,
        appearance,
        map_from_ego,
        ground,
        lit,
        _planes(ground),
        geometry.transform_points(ego_from_map, scenery.ground_centres[near]),
        scenery.ground_radii[near],
        _shadows(poses[len(things) :], actors.sizes, sun),
        0.7 * np.hypot(*actors.sizes[:, :2].T),
        standing,
        rgb,
        _planes(standing),
        np.concatenate([[0], np.cumsum(count)]),
        geometry.box_corners(poses, sizes[:, :2]),
        poses[:, :2],
        0.5 * np.hypot(*sizes[:, :2].T) + 1.0,
        ahead > 0,
    )


def _about(centres: Array, radii: Array, ego_from_map: Array, reach_m: Array | float) -> Array:
    """Indices of circles (N, 2) of the map in the rig's view: within range, and not behind its outer edges."""
    at = geometry.transform_points(ego_from_map, centres)
    near = np.hypot(*(at - CAMERAS_AT).T) - radii < reach_m
    return np.flatnonzero(
        near & (at[:, 0] + SIDE_TANGENT * np.abs(at[:, 1]) > -radii * np.hypot(1.0, SIDE_TANGENT) - 1.0)
    )


def _in_frame(polygons: Polygons, ego_from_map: Array) -> Polygons:
    """The faces moved in place; they must be a copy."""
    polygons.points[:, :2] = geometry.transform_points(ego_from_map, polygons.points[:, :2])
    polygons.normals[:, :2] = geometry.rotate(polygons.normals[:, :2], ego_from_map[2])
    return polygons


def _planes(polygons: Polygons) -> Array:
    along = np.einsum("fk,fk->f", polygons.normals, polygons.points[polygons.first[:-1]])
    along[~polygons.normals.any(axis=1)] = -np.inf
    return np.asarray(along)


def _switch_lamps(scenery: Scenery, snapshot: Snapshot, rows: Array, rgb: Array) -> None:
    """Lights the lamps that are on; `rows` are the standing polygons at the start of `rgb`, ascending."""
    if len(snapshot.lamps) == 0 or len(rows) == 0:
        return
    on = snapshot.lamps[scenery.lamp_signal] == scenery.lamp_shows
    polygons, shows = scenery.lamp_polygons[on], scenery.lamp_shows[on]
    at = np.minimum(np.searchsorted(rows, polygons), len(rows) - 1)
    here = rows[at] == polygons
    rgb[at[here]] = LAMP_RGB[shows[here]]


def _shadows(poses: Array, sizes: Array, sun: Array) -> Array:
    """(A, 12, 2) rounded rings under boxes, drawn out away from the sun."""
    angle = 2 * np.pi * (np.arange(12) + 0.5) / 12
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    rounded = np.sign(circle) * np.sqrt(np.abs(circle)) * 0.53
    rings = geometry.transform_points(poses[:, None], rounded * sizes[:, None, :2])
    return np.asarray(rings - SHADOW_SHIFT_M * sizes[:, None, 2:] * sun)
