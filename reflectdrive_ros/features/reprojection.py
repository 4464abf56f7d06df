"""Re-projects images of any camera rig into the canonical one, by a rotation about each camera's centre.

    views = plan_views(rig(288, 144), calibrations)      # once per calibration: a table for each canonical camera
    image = reproject(views[0], pixels)                  # (144, 288, 3), pixels that no camera covers are black

A canonical camera is filled by the source camera that covers the largest share of it; among those within COVERAGE_TIE
of it by the one whose axis is the nearest. The source's centre is kept: a rotation is exact for distant things, and
what lies at distance d appears displaced by the angle `moved_m` / d. An image that is displaced by at most
SAME_RIG_PX anywhere needs no table: it is passed through unchanged.

Distortion models are those of sensor_msgs/CameraInfo: plumb_bob, rational_polynomial and equidistant (fisheye), with
the equations of OpenCV. Directions beyond the radius at which a model's image radius stops growing, or beyond 90
degrees from the axis, are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from ..core.domain import Array
from .cameras import Camera

MODELS = {"": (0, 0), "plumb_bob": (4, 5), "rational_polynomial": (8, 8), "equidistant": (4, 4)}  # least, most terms
COEFFICIENT_MAX = 1e4  # no lens has larger ones, and their polynomials would overflow
RADIUS_MAX = 6.0  # tangent of the largest angle to the axis of a lens that is no fisheye, 80.5 degrees
SAME_RIG_PX = 0.5  # of the canonical image; a rotation of 0.1 degrees displaces the front camera's by that
COVERAGE_TIE = 0.01
SHARPNESS = 1.25  # least decoded pixels per pixel of the canonical image in each direction, if the source has as many
SOURCE_MAX_PX = 4096  # largest side of a decoded image
OUTSIDE_PX = -1e4  # a pixel outside of every image


@dataclass(frozen=True, eq=False)
class Calibration:
    """A source camera: intrinsics, distortion and pose."""

    name: str
    width: int  # px, of the images that the intrinsics are for
    height: int
    pixels_from_camera: Array  # (3, 3) px
    model: str  # of MODELS; empty: no distortion
    coefficients: tuple[float, ...]
    camera_from_ego: Array  # (4, 4) m

    def __post_init__(self) -> None:
        if self.model not in MODELS or (self.coefficients and not self.model):
            models = ", ".join(filter(None, MODELS))
            raise ValueError(f"has distortion model '{self.model}', expected one of {models}")
        least, most = MODELS[self.model]
        if not least <= len(self.coefficients) <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            raise ValueError(f"has {len(self.coefficients)} coefficients of {self.model}, expected {count}")
        if not np.all(np.abs(self.coefficients) <= COEFFICIENT_MAX):  # NaN is not either
            raise ValueError(f"has a distortion coefficient that is no number within {COEFFICIENT_MAX:g} of 0")


@dataclass(frozen=True, eq=False)
class View:
    """How a canonical camera is filled from a source camera."""

    camera: Camera  # the canonical one
    source: str  # name of the source camera
    coverage: float  # 0..1, share of the pixels that the source covers
    rotation_deg: float  # from the canonical axes to the source's
    moved_m: float  # from the canonical camera's centre to the source's
    size: tuple[int, int]  # width and height in px at which the source is decoded
    table: tuple[Array, Array] | None  # fixed-point maps of cv2.remap; None: the image is passed through
    camera_from_ego: (
        Array  # (4, 4) of the resulting image: canonical axes at the source's centre; the source's without table
    )

    @property
    def passes_through(self) -> bool:
        return self.table is None


def plan_views(rig: Sequence[Camera], calibrations: Sequence[Calibration]) -> tuple[View, ...]:
    """A view for each canonical camera. Raises ValueError without calibrations."""
    if not calibrations:
        raise ValueError("no camera is calibrated")
    chosen = []
    for camera in rig:
        projections = [_source_pixels(camera, each) for each in calibrations]
        shares = [float(inside.mean()) for _, inside in projections]
        near = [k for k, share in enumerate(shares) if share >= max(shares) - COVERAGE_TIE]
        best = min(near, key=lambda k: _rotation_deg(camera, calibrations[k]))
        chosen.append((camera, calibrations[best], *projections[best], shares[best]))
    sizes: dict[str, tuple[int, int]] = {}
    same = [_is_same(camera, calibration, at, inside) for camera, calibration, at, inside, _ in chosen]
    for (camera, calibration, at, inside, _), unchanged in sorted(zip(chosen, same, strict=True), key=lambda e: e[1]):
        if unchanged:  # the last in this order: its size counts
            sizes[calibration.name] = camera.width, camera.height
        else:
            needed, size_px = _decoded_size(calibration, at, inside), sizes.get(calibration.name, (1, 1))
            sizes[calibration.name] = max(needed[0], size_px[0]), max(needed[1], size_px[1])
    views = []
    for (camera, calibration, at, inside, share), unchanged in zip(chosen, same, strict=True):
        size, pose = sizes[calibration.name], calibration.camera_from_ego
        if not unchanged:
            pose = camera.camera_from_ego.copy()
            pose[:3, 3] = -pose[:3, :3] @ _centre(calibration.camera_from_ego)
        moved_m = math.hypot(*(_centre(calibration.camera_from_ego) - _centre(camera.camera_from_ego)))
        table = None if unchanged else _table(at, inside, size)
        views.append(
            View(camera, calibration.name, share, _rotation_deg(camera, calibration), moved_m, size, table, pose)
        )
    return tuple(views)


def reproject(view: View, pixels: Array) -> Array:
    """(H, W, 3) uint8 of the canonical camera, from the source's image (h, w, 3) of `view.size`."""
    if view.table is None:
        return pixels
    return np.asarray(
        cv2.remap(pixels, *view.table, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(0, 0, 0))
    )


def black(camera: Camera) -> Array:
    """(H, W, 3) uint8, the image of a camera that is missing."""
    return np.zeros((camera.height, camera.width, 3), np.uint8)


def project(calibration: Calibration, directions: Array) -> tuple[Array, Array]:
    """Pixels (N, 2) of directions (N, 3) in the source camera's axes, and where (N,) the camera model holds."""
    x, y, z = directions.T
    ahead = z > 1e-9
    depth = np.where(ahead, z, 1.0)
    x, y = x / depth, y / depth
    radius = np.hypot(x, y)
    if calibration.model == "equidistant":
        angle = np.arctan(radius)
        valid = ahead & (angle <= _largest(calibration, np.pi / 2))
        scale = np.where(radius > 1e-9, _image_radius(calibration, angle) / np.maximum(radius, 1e-9), 1.0)
        x, y = x * scale, y * scale
    else:
        valid = ahead & (radius <= _largest(calibration, RADIUS_MAX))
        x, y, radius = (np.where(valid, each, 0.0) for each in (x, y, radius))
        scale = np.where(radius > 1e-9, _image_radius(calibration, radius) / np.maximum(radius, 1e-9), 1.0)
        p1, p2 = (*calibration.coefficients, *([0.0] * 4))[2:4]
        x, y = (
            x * scale + 2.0 * p1 * x * y + p2 * (radius**2 + 2.0 * x**2),
            y * scale + 2.0 * p2 * x * y + p1 * (radius**2 + 2.0 * y**2),
        )
    pixels = np.column_stack([x, y, np.ones_like(x)]) @ calibration.pixels_from_camera.T
    return pixels[:, :2], valid


def sees_behind(calibration: Calibration) -> bool:
    """Whether the image of a fisheye reaches beyond 90 degrees from its axis."""
    if calibration.model != "equidistant":
        return False
    matrix, largest = calibration.pixels_from_camera, _largest(calibration, np.pi / 2)
    reach_px = matrix[0, 0] * float(_image_radius(calibration, np.array(largest)))
    return bool(reach_px < max(matrix[0, 2], calibration.width - matrix[0, 2]))


def _image_radius(calibration: Calibration, radius: Array) -> Array:
    """Radius in the image plane, over the focal length, of tangents of the angle to the axis; of angles in radians for
    equidistant. Without the tangential terms.
    """
    squared = radius**2
    if calibration.model == "equidistant":
        return np.asarray(radius * (1.0 + _polynomial(calibration.coefficients, squared)))
    k1, k2, _, _, k3, *rest = (*calibration.coefficients, *([0.0] * 5))[: max(5, len(calibration.coefficients))]
    growth = 1.0 + _polynomial((k1, k2, k3), squared)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(radius * growth / (1.0 + _polynomial(rest, squared)))


def _polynomial(coefficients: Sequence[float], squared: Array) -> Array:
    """c1 s + c2 s^2 + .. of squared radii s."""
    total = np.zeros_like(squared)
    for coefficient in reversed(coefficients):
        total = (total + coefficient) * squared
    return total


def _largest(calibration: Calibration, most: float) -> float:
    """The largest radius, at most `most`, up to which the image radius grows: beyond it a model is no lens."""
    radii = np.linspace(0.0, most, 2001)
    with np.errstate(invalid="ignore"):  # poles of rational_polynomial
        growing = np.diff(_image_radius(calibration, radii)) > 0.0  # NaN is not
    return float(radii[np.argmin(growing)]) if not growing.all() else most


def _source_pixels(camera: Camera, calibration: Calibration) -> tuple[Array, Array]:
    """Where the source has the pixels of a canonical camera: (H, W, 2) as shares of its width and height, and (H, W)
    bool, whether it covers them.
    """
    u, v = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    rays = np.stack([u, v, np.ones_like(u)], axis=-1).reshape(-1, 3) @ np.linalg.inv(camera.pixels_from_camera).T
    source_from_camera = calibration.camera_from_ego[:3, :3] @ camera.camera_from_ego[:3, :3].T
    pixels, valid = project(calibration, rays @ source_from_camera.T)
    at = (pixels / [calibration.width, calibration.height]).reshape(camera.height, camera.width, 2)
    inside = valid.reshape(at.shape[:2]) & (at > 0.0).all(axis=-1) & (at < 1.0).all(axis=-1)
    return at, inside


def _is_same(camera: Camera, calibration: Calibration, at: Array, inside: Array) -> bool:
    """Whether the source's image, scaled to the canonical size, is displaced by at most SAME_RIG_PX anywhere."""
    u, v = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    away_px = np.hypot(at[..., 0] * camera.width - u, at[..., 1] * camera.height - v)
    return bool(inside.mean() > 0.9 and away_px.max() <= SAME_RIG_PX)


def _decoded_size(calibration: Calibration, at: Array, inside: Array) -> tuple[int, int]:
    """Width and height in px at which a source is decoded: halved, which is fast, as often as SHARPNESS allows."""
    halvings = []
    for axis, full in enumerate((calibration.width, calibration.height)):
        steps = np.hypot(np.diff(at[:-1, :, axis], axis=1), np.diff(at[:, :-1, axis], axis=0))
        steps = steps[inside[:-1, :-1]]
        density = full * float(np.median(steps)) if len(steps) else 1.0  # source pixels per canonical pixel
        halvings.append(math.log2(max(density, SHARPNESS) / SHARPNESS))
        halvings.append(math.log2(max(full, 1)))  # at least 1 px remains
    most = int(min(halvings))
    while max(calibration.width, calibration.height) >> most > SOURCE_MAX_PX:
        most += 1
    return -(-calibration.width >> most), -(-calibration.height >> most)


def _table(at: Array, inside: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    """Maps of cv2.remap, in whole pixels and 1/32 of them."""
    pixels = np.where(inside[..., None], at * size - 0.5, OUTSIDE_PX).astype(np.float32)
    whole, fraction = cv2.convertMaps(pixels[..., 0], pixels[..., 1], cv2.CV_16SC2)
    return np.asarray(whole), np.asarray(fraction)


def _rotation_deg(camera: Camera, calibration: Calibration) -> float:
    turn = calibration.camera_from_ego[:3, :3] @ camera.camera_from_ego[:3, :3].T
    return float(np.degrees(np.arccos(np.clip((np.trace(turn) - 1.0) / 2.0, -1.0, 1.0))))


def _centre(camera_from_ego: Array) -> Array:
    """(3,) m, ego frame."""
    return np.asarray(-camera_from_ego[:3, :3].T @ camera_from_ego[:3, 3])
