"""Images of the proving ground: three pinhole cameras with PandaSet's geometry, drawn polygon by polygon.

Images are schematic, not photorealistic; they show all objects that a driver needs. `gather_visible` selects once per
instant the nearby scenery and actors for all cameras. `render_image` draws them for one camera, distant objects first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import cv2
import numpy as np

from ...core import geometry
from ...core.domain import Array, CameraFrame
from ...features.cameras import Camera as Camera
from ...features.cameras import rig as rig
from ..traffic.actors import Snapshot
from .appearance import Appearance
from .painter_order import sort_for_painting
from .polygons import BATCHED_MATERIALS, Material, clip_and_project, gather_ranges
from .scenery import Scenery
from .visible_scene import VisibleScene, gather_visible

NEAR_M = 0.3
SUPERSAMPLING = 2
SUBPIXEL_BITS = 4
MIN_EXTENT_PX = 0.7  # smaller polygons are left out
MIN_GROUND_PX2, MIN_STANDING_PX2, MIN_INLAY_PX2 = 2.0, 4.0, 25.0  # and so are those on less, unless they shine
MAX_COORDINATE_PX = 1 << 20
RANKS = 16  # more than any thing has parts
LAND_RGB = np.array([0.26, 0.37, 0.16])
SKYLINE_STEPS = 8192
GRAIN_M, TEXEL_M = 1.0, 0.125  # of the ground
_HILLS = ((3, 0.006, 0.4), (7, 0.006, 2.0), (17, 0.003, 1.0))  # waves around the horizon, height (tangent), shift
_WOODS = ((5, 0.005, 1.3), (31, 0.002, 0.2), (97, 0.0015, 0.7), (211, 0.0012, 2.2))
_IS_BATCHED = np.array([material in BATCHED_MATERIALS for material in Material])


@dataclass(frozen=True, eq=False)
class _Projection:
    """A camera on a car with a small tilt, at the rendering resolution."""

    camera_from_ego: Array  # (4, 4)
    ego_from_camera: Array  # (4, 4)
    pixels: Array  # (3, 3) px from camera axes
    sides: Array  # (2, 2) normals of the image's left and right edge on the ground, inwards
    ground_from_pixels: Array  # (3, 3) homogeneous
    grain_from_px: int  # row where the ground's grain begins
    skyline_rgb: Array  # (2, 3) uint8 of hills and woods

    @property
    def position(self) -> Array:
        """(3,) m, ego frame."""
        return self.ego_from_camera[:3, 3]


def render_image(visible: VisibleScene, camera: Camera) -> Array:
    """(H, W, 3) uint8 RGB image of a camera."""
    eye = _projection(camera, visible.appearance)
    image = _sky_and_land(camera, visible.appearance).copy()
    _draw_skyline(image, visible, eye)
    _draw_ground(image, visible, eye)
    _draw_standing(image, visible, eye)
    small = cv2.resize(image, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.add(small, _noise_window(visible, camera), dtype=cv2.CV_8U))


def render_frames(
    scenery: Scenery,
    snapshot: Snapshot,
    map_from_ego: Array,
    stamp_ns: int,
    cameras: Iterable[Camera],
    appearance: Appearance,
) -> tuple[CameraFrame, ...]:
    """One frame per camera; their poses are the nominal ones, without the sway of the car."""
    visible = gather_visible(scenery, snapshot, map_from_ego, appearance)
    return tuple(
        CameraFrame(
            stamp_ns, camera.name, render_image(visible, camera), camera.pixels_from_camera, camera.camera_from_ego
        )
        for camera in cameras
    )


# --- drawing ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _projection(camera: Camera, appearance: Appearance) -> _Projection:
    pixels = np.diag([SUPERSAMPLING, SUPERSAMPLING, 1.0]) @ camera.pixels_from_camera
    pixels[:2, 2] -= 0.5  # OpenCV's pixels are at whole numbers
    width, height = SUPERSAMPLING * camera.width, SUPERSAMPLING * camera.height
    camera_from_ego = _tilt_camera(camera.camera_from_ego, appearance)
    ego_from_camera = geometry.invert_matrix(camera_from_ego)
    edges = [ego_from_camera[:3, :3] @ [(edge - pixels[0, 2]) / pixels[0, 0], 0.0, 1.0] for edge in (0.0, width)]
    sides = np.array([(edges[0][1], -edges[0][0]), (-edges[1][1], edges[1][0])])
    pixels_from_ground = pixels @ np.column_stack([camera_from_ego[:3, :2], camera_from_ego[:3, 3]])
    reach = np.sqrt(GRAIN_M * ego_from_camera[2, 3] * pixels[1, 1])  # a row of pixels is as deep as the grain is wide
    ahead = ego_from_camera[:2, 3] + reach * ego_from_camera[:2, 2] / np.hypot(*ego_from_camera[:2, 2])
    row = pixels_from_ground @ np.array([*ahead, 1.0])
    land = appearance.lit(LAND_RGB[None], np.array([Material.FOLIAGE]), np.array([[0.0, 0.0, 1.0]]))[0]
    faded = np.array([[0.75], [0.45]])
    return _Projection(
        camera_from_ego,
        ego_from_camera,
        pixels,
        sides / np.hypot(*sides.T)[:, None],
        np.linalg.inv(pixels_from_ground),
        int(np.clip(row[1] / row[2], 0, height - 2)) // 2 * 2,
        _to_bytes((1 - faded) * 0.8 * land + faded * appearance.horizon_rgb, appearance),
    )


def _tilt_camera(camera_from_ego: Array, appearance: Appearance) -> Array:
    """The camera's pose with a small tilt of the car."""
    pitch, roll = appearance.pitch_rad, appearance.roll_rad
    nod = np.array([[np.cos(pitch), 0, np.sin(pitch)], [0, 1, 0], [-np.sin(pitch), 0, np.cos(pitch)]])
    lean = np.array([[1, 0, 0], [0, np.cos(roll), -np.sin(roll)], [0, np.sin(roll), np.cos(roll)]])
    ground_from_body = np.eye(4)
    ground_from_body[:3, :3] = nod @ lean
    ground_from_body[2, 3] = appearance.height_m
    return np.asarray(camera_from_ego @ geometry.invert_matrix(ground_from_body))


@lru_cache(maxsize=8)
def _sky_and_land(camera: Camera, appearance: Appearance) -> Array:
    """(H, W, 3) uint8, supersampled: the sky, and land up to the horizon."""
    up = _tilt_camera(camera.camera_from_ego, appearance)[:3, 2]  # the vertical in camera axes
    inverse = np.linalg.inv(camera.pixels_from_camera)
    across = (np.arange(camera.width) + 0.5) * inverse[0, 0] + inverse[0, 2]
    down = (np.arange(camera.height) + 0.5) * inverse[1, 1] + inverse[1, 2]
    rise = (up[0] * across[None, :] + up[1] * down[:, None] + up[2]).astype(np.float32)  # tangent of the elevation
    land = appearance.lit(LAND_RGB[None], np.array([Material.GRASS]), np.array([[0.0, 0.0, 1.0]]))[0]
    steps = np.linspace(-1.0, 1.0, 1024)
    distance = 2.1 / np.maximum(-steps, 1e-3)
    faded = np.where(steps < 0, 1 - np.exp(-distance / appearance.visibility_m), 0.0)[:, None]
    sky = np.clip(steps / 0.45, 0, 1)[:, None] ** 0.7
    colours = np.where(
        steps[:, None] < 0,
        (1 - faded) * land + faded * appearance.horizon_rgb,
        (1 - sky) * appearance.horizon_rgb + sky * appearance.zenith_rgb,
    )
    table = _to_bytes(colours, appearance)
    small = table[np.clip((rise + 1) * 512, 0, 1023).astype(np.intp)]
    return np.asarray(cv2.resize(small, None, fx=SUPERSAMPLING, fy=SUPERSAMPLING, interpolation=cv2.INTER_LINEAR))


def _to_bytes(rgb: Array, appearance: Appearance) -> Array:
    """Camera response: light to uint8."""
    return np.asarray(np.clip(255 * rgb * appearance.gain_rgb, 0, 255).astype(np.uint8))


def _fill_polygons(image: Array, ring_px: Array, first: Array, rgb: Array, together: Array | None = None) -> None:
    """Fills rings of pixels (Q, 2) with their colours (F, 3), one after the other.

    `together` (F,) marks those that may be filled in one go with the one before, as they do not overlap.
    """
    fixed = np.minimum(np.maximum(ring_px, -MAX_COORDINATE_PX), MAX_COORDINATE_PX)
    fixed *= 1 << SUBPIXEL_BITS
    fixed = np.rint(fixed, out=fixed).astype(np.int32)
    begins, colours = first.tolist(), rgb.tolist()
    rings = [fixed[begin:end] for begin, end in pairwise(begins)]
    starts = list(range(len(rings))) if together is None else np.flatnonzero(~together).tolist()
    for start, end in pairwise([*starts, len(rings)]):
        cv2.fillPoly(image, rings[start:end], colours[start], cv2.LINE_8, SUBPIXEL_BITS)


def _continues_batch(material: Array, rgb: Array) -> Array:
    """(F,) bool, where a face may be filled in one go with the face before it."""
    together = np.zeros(len(material), bool)
    kind = ((material * 256 + rgb[:, 0]) * 256 + rgb[:, 1]) * 256 + rgb[:, 2]
    together[1:] = _IS_BATCHED[material[1:]] & (kind[1:] == kind[:-1])
    return together


def _visible(ring_px: Array, first: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Indices (K,) of faces with something to draw on an image, and width and height (K, 2) of what they span."""
    some = np.flatnonzero(np.diff(first) > 2)
    if len(some) == 0:
        return some, np.zeros((0, 2))
    low = np.minimum.reduceat(ring_px, first[some])
    extent = np.maximum.reduceat(ring_px, first[some]) - low
    meets = (low > -1 - extent).all(axis=1) & (low[:, 0] < shape[1]) & (low[:, 1] < shape[0])
    meets &= (extent > MIN_EXTENT_PX).any(axis=1)
    return some[meets], extent[meets]


def _in_view(centres: Array, radii: Array, eye: _Projection) -> Array:
    """Indices of circles on the ground (N, 2) that overlap the camera's field of view."""
    inwards = eye.sides @ centres.T - (eye.sides @ eye.position[:2])[:, None]
    return np.flatnonzero(np.minimum(inwards[0], inwards[1]) > -radii - 1.0)


def _draw_ground(image: Array, visible: VisibleScene, eye: _Projection) -> None:
    keep = _in_view(visible.ground_centres, visible.ground_radii, eye)
    keep = keep[visible.ground.normals[keep] @ eye.position > visible.ground_planes[keep]]
    at, first = gather_ranges(visible.ground.first, keep)
    rings, first = _project(visible.ground.points[at], first, eye)
    faces, extent = _visible(rings, first, image.shape)
    faces = faces[extent[:, 0] * extent[:, 1] > MIN_GROUND_PX2]
    picked, begins = gather_ranges(first, faces)
    rgb = _to_bytes(visible.ground_rgb[keep[faces]], visible.appearance)
    together = _continues_batch(visible.ground.material[keep[faces]], rgb)
    _fill_polygons(image, rings[picked], begins, rgb, together)
    _shade_ground(image, visible, eye)


def _project(points: Array, first: Array, eye: _Projection) -> tuple[Array, Array]:
    """Faces of the ego frame as rings of pixels, cut where they are too near."""
    in_camera = points @ eye.camera_from_ego[:3, :3].T
    in_camera += eye.camera_from_ego[:3, 3]
    return clip_and_project(in_camera, first, eye.pixels, NEAR_M)


@lru_cache(maxsize=1)
def _skyline_heights() -> Array:
    """(2, SKYLINE_STEPS) tangents of the elevation of hills and woods all around."""
    angle = 2 * np.pi * np.arange(SKYLINE_STEPS) / SKYLINE_STEPS
    return np.stack(
        [
            base + sum(high * np.sin(count * angle + shift) for count, high, shift in waves)
            for base, waves in ((0.022, _HILLS), (0.008, _WOODS))
        ]
    )


def _draw_skyline(image: Array, visible: VisibleScene, eye: _Projection) -> None:
    """Distant woods and hills, at infinity."""
    forward = eye.camera_from_ego[2, :2]
    bearing = np.arctan2(forward[1], forward[0]) + np.linspace(1.1, -1.1, 64)
    around = np.concatenate([bearing, bearing[[-1, 0]]])
    directions = np.empty((2, len(around), 3))
    directions[..., 0], directions[..., 1], directions[..., 2] = np.cos(around), np.sin(around), -0.01
    step = np.rint((bearing + visible.map_from_ego[2]) * (SKYLINE_STEPS / (2 * np.pi))).astype(np.intp) % SKYLINE_STEPS
    directions[:, : len(bearing), 2] = _skyline_heights()[:, step]
    first = len(around) * np.arange(3)
    in_camera = directions.reshape(-1, 3) @ eye.camera_from_ego[:3, :3].T
    rings, first = clip_and_project(in_camera, first, eye.pixels, 0.05)
    _fill_polygons(image, rings, first, eye.skyline_rgb)


def _shade_ground(image: Array, visible: VisibleScene, eye: _Projection) -> None:
    """Lays the grain of the ground and the actors' shadows on it."""
    top = eye.grain_from_px
    band = image[top:]
    grain_from_map = np.diag([1 / TEXEL_M, 1 / TEXEL_M, 1.0])
    half = np.array([[2.0, 0.0, 0.5], [0.0, 2.0, top + 0.5], [0.0, 0.0, 1.0]])  # the grain is laid at half the size
    turn = geometry.matrix_from_pose(visible.map_from_ego)[np.ix_((0, 1, 3), (0, 1, 3))]
    cover = cv2.warpPerspective(
        _ground_texture(),
        grain_from_map @ turn @ eye.ground_from_pixels @ half,
        (band.shape[1] // 2, len(band) // 2),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_WRAP,
    )
    cover = cv2.resize(cover, (band.shape[1], len(band)), interpolation=cv2.INTER_LINEAR)
    mask = cv2.cvtColor(cover, cv2.COLOR_GRAY2RGB)
    cv2.multiply(band, mask, dst=band, scale=1 / 245)
    _draw_shadows(image, visible, eye)


def _draw_shadows(image: Array, visible: VisibleScene, eye: _Projection) -> None:
    in_view = _in_view(visible.shadows.mean(axis=1), visible.shadow_radii, eye)
    count = len(in_view)
    if count == 0:
        return
    points = np.zeros((count, 12, 3))
    points[..., :2] = visible.shadows[in_view]
    rings, first = _project(points.reshape(-1, 3), 12 * np.arange(count + 1), eye)
    faces, _ = _visible(rings, first, image.shape)
    if len(faces) == 0:
        return
    picked, begins = gather_ranges(first, faces)
    rings = rings[picked]
    blur = max(3, image.shape[1] // 160 | 1)
    top = int(np.clip(rings[:, 1].min() - blur, 0, len(image)))
    bottom = int(np.clip(rings[:, 1].max() + blur + 1, top, len(image)))
    band = image[top:bottom]
    if len(band) == 0:
        return
    mask = np.full(band.shape[:2], 255, np.uint8)
    shade = 255 * (0.3 + 0.45 * visible.appearance.shade)
    _fill_polygons(mask, rings - [0, top], begins, np.full((len(faces), 1), shade))
    cv2.blur(mask, (blur, blur), dst=mask)
    cv2.multiply(band, cv2.cvtColor(mask, cv2.COLOR_GRAY2RGB), dst=band, scale=1 / 255)


@lru_cache(maxsize=1)
def _ground_texture() -> Array:
    """(512, 512) uint8 around 245, blotches of a metre or so; it repeats."""
    rng = np.random.default_rng(11)
    sheet = np.zeros((512, 512))
    for texels, strength in ((4, 3.0), (8, 3.0), (32, 4.0)):
        noise = np.tile(rng.normal(0, 1, (512 // texels,) * 2), (3, 3))
        smooth = cv2.resize(noise, None, fx=texels, fy=texels, interpolation=cv2.INTER_CUBIC)
        middle = len(smooth) // 3
        sheet += strength * smooth[middle : middle + 512, middle : middle + 512]
    return np.asarray(np.clip(245 + sheet, 215, 255).astype(np.uint8))


def _draw_standing(image: Array, visible: VisibleScene, eye: _Projection) -> None:
    things = _in_view(visible.centres, visible.radii, eye)
    if len(things) == 0:
        return
    things = things[sort_for_painting(visible.corners[things], eye.position[:2])]
    rows, thing_first = gather_ranges(visible.first_polygon, things)
    thing_index = np.repeat(np.arange(len(things)), np.diff(thing_first))
    side = np.where(visible.faces_ego[things][thing_index], 0, 1)
    turned = visible.standing.normals[rows] @ eye.position > visible.standing_planes[rows]
    rows, thing_index, side = rows[turned], thing_index[turned], side[turned]
    rows = rows[np.argsort(RANKS * thing_index + visible.standing.draw_order[rows, side], kind="stable")]
    points, first = gather_ranges(visible.standing.first, rows)
    rings, first = _project(visible.standing.points[points], first, eye)
    faces, extent = _visible(rings, first, image.shape)
    material = visible.standing.material[rows[faces]]
    least = np.where(material == Material.INLAY, MIN_INLAY_PX2, MIN_STANDING_PX2)
    tells = (extent[:, 0] * extent[:, 1] > least) | (material == Material.GLOW)
    faces, material = faces[tells], material[tells]
    if len(faces) == 0:
        return
    picked, begins = gather_ranges(first, faces)
    rgb = _to_bytes(visible.standing_rgb[rows[faces]], visible.appearance)
    together = _continues_batch(material, rgb)
    together[1:] &= np.diff(visible.standing.object_index[rows[faces]]) == 0
    _fill_polygons(image, rings[picked], begins, rgb, together)


# --- the sensor ------------------------------------------------------------------------------------------------------


def _noise_window(visible: VisibleScene, camera: Camera) -> Array:
    """(H, W, 3) int8 noise, a window of a fixed sheet; its position follows from appearance, time and camera."""
    lot = zlib.crc32(f"{visible.appearance.seed} {round(1000 * visible.time_s)} {camera.name}".encode())
    x, y = lot % 64, lot // 64 % 64
    return _noise_sheet(camera.width, camera.height, visible.appearance.noise)[
        y : y + camera.height, x : x + camera.width
    ]


@lru_cache(maxsize=16)
def _noise_sheet(width: int, height: int, sigma: int) -> Array:
    noise = np.random.default_rng(7).normal(0.0, sigma, (height + 64, width + 64, 3))
    return np.asarray(np.rint(np.clip(noise, -127, 127)).astype(np.int8))
