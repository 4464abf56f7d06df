"""Contact sheets of scenes: the newest camera images with the expert's path, and the scene from above.

From above: the drivable space, the route (blue), red lights, agents with their paths of the next 4 s, and the expert's
eight waypoints (green). The ego points up.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from ..core import geometry
from ..core.domain import AgentKind, Array, CameraFrame
from .scene import NOW, DrivingScene

ROW_PX = 216  # height of a scene in the sheet
BEV_PX = 300  # width of the view from above
PX_PER_M = 3.4
EGO_AT = (BEV_PX // 2, ROW_PX - 44)  # pixel of the rear axle
TEXT_PX = 16
SUBPIXEL_BITS = 3  # bits of a pixel for drawing between pixels
FUTURE_STEPS = 40
PATH_POINTS = 60  # of the expert's path in an image
NEAREST_M = 1.0  # ahead of the camera, of what is drawn in an image
EGO_SIZE = np.array([5.176, 2.297])
EGO_CENTER_M = 1.461

BACKGROUND, ROAD, JUNCTION, ON_ROUTE = (235, 238, 230), (196, 198, 204), (184, 186, 194), (176, 190, 214)
ROUTE, RED_LANE, EXPERT, EGO, INK = (60, 110, 230), (236, 150, 140), (10, 140, 60), (20, 20, 20), (30, 30, 30)
COLOURS = {
    AgentKind.UNKNOWN: (130, 130, 130),
    AgentKind.VEHICLE: (200, 90, 30),
    AgentKind.PEDESTRIAN: (190, 30, 140),
    AgentKind.BICYCLE: (140, 80, 200),
    AgentKind.STATIC: (90, 90, 90),
}


def contact_sheet(scenes: Sequence[DrivingScene]) -> Array:
    """(H, W, 3) uint8 RGB: a row per scene."""
    rows = [_row(scene) for scene in scenes]
    width = max(row.shape[1] for row in rows)
    padded = [
        cv2.copyMakeBorder(row, 0, 4, 0, width - row.shape[1], cv2.BORDER_CONSTANT, value=(255,) * 3) for row in rows
    ]
    return np.concatenate(padded)


def _row(scene: DrivingScene) -> Array:
    images = [draw_camera(frame, scene.expert, ROW_PX) for frame in newest_images(scene)]
    body = np.concatenate([*images, draw_bev(scene)], axis=1)
    title = np.full((TEXT_PX, body.shape[1], 3), 255, np.uint8)
    words = [scene.name, scene.family, scene.command.name.lower(), f"{scene.ego.speed_mps:.1f} m/s"]
    words += [f"'{scene.instruction}'", *(f"{key} {value}" for key, value in scene.notes.items())]
    text = "   ".join(words)
    cv2.putText(title, text, (3, TEXT_PX - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.38, INK, 1, cv2.LINE_AA)
    return np.concatenate([title, body])


def newest_images(scene: DrivingScene) -> tuple[CameraFrame, ...]:
    """Those of the last instant, left to right."""
    if not scene.cameras:
        return ()
    cameras = len({frame.name for frame in scene.cameras})
    return scene.cameras[-cameras:]


def draw_camera(frame: CameraFrame, path: Array, height_px: int) -> Array:
    """(height_px, W, 3) uint8 RGB: the image with a path (T, 3) of the ego frame on flat ground, from the rear axle."""
    image = camera_image(frame, height_px)
    draw_path(image, frame, path, EXPERT)
    return image


def camera_image(frame: CameraFrame, height_px: int) -> Array:
    """(height_px, W, 3) uint8 RGB."""
    height, width = frame.pixels.shape[:2]
    size = round(width * height_px / height), height_px
    return np.asarray(cv2.resize(frame.pixels, size, interpolation=cv2.INTER_LINEAR))


def draw_path(image: Array, frame: CameraFrame, path: Array, colour: tuple[int, int, int]) -> None:
    """Draws a path (T, 3) of the ego frame on flat ground, from the rear axle, into an image of `camera_image`."""
    line = np.concatenate([np.zeros((1, 2)), path[:, :2]])
    share = np.linspace(0.0, len(line) - 1.0, PATH_POINTS)
    dense = np.stack([np.interp(share, np.arange(len(line)), line[:, axis]) for axis in (0, 1)], axis=-1)
    at = _ground_pixels(image, frame, dense)
    if len(at) >= 2:
        cv2.polylines(image, [at], False, colour, 2, cv2.LINE_AA, SUBPIXEL_BITS)


def _ground_pixels(image: Array, frame: CameraFrame, points: Array) -> Array:
    """(N, 2) int32 fixed-point pixels of those of the ground points (V, 2) that are ahead of the camera."""
    scale, width = image.shape[0] / frame.pixels.shape[0], frame.pixels.shape[1]
    ground = np.column_stack([points, np.zeros(len(points)), np.ones(len(points))])
    in_camera = (ground @ frame.camera_from_ego.T)[:, :3]
    pixels = in_camera[in_camera[:, 2] > NEAREST_M] @ frame.pixels_from_camera.T
    at = scale * pixels[:, :2] / pixels[:, 2:]
    return np.asarray(np.rint(np.clip(at, -10.0 * width, 10.0 * width) * (1 << SUBPIXEL_BITS)).astype(np.int32))


def draw_bev(scene: DrivingScene) -> Array:
    """(ROW_PX, ABOVE_PX, 3) uint8 RGB."""
    image = np.full((ROW_PX, BEV_PX, 3), BACKGROUND, np.uint8)
    areas = scene.areas
    for rings, colour in (
        ((*areas.roadblocks, *areas.carparks), ROAD),
        (areas.intersections, JUNCTION),
        ([ring for ring, on in zip(areas.lanes, areas.lane_on_route, strict=True) if on], ON_ROUTE),
        (
            [ring for ring, red in zip(scene.red_lights.connectors, scene.red_lights.red, strict=True) if red[0]],
            RED_LANE,
        ),
    ):
        for ring in rings:
            cv2.fillPoly(image, [_pixels(ring)], colour, cv2.LINE_AA, SUBPIXEL_BITS)
    for ring in areas.lanes:
        cv2.polylines(image, [_pixels(ring)], True, (225, 225, 228), 1, cv2.LINE_AA, SUBPIXEL_BITS)
    cv2.polylines(image, [_pixels(scene.route[:, :2])], False, ROUTE, 1, cv2.LINE_AA, SUBPIXEL_BITS)
    tracks = scene.tracks
    for agent in range(len(tracks)):
        colour = COLOURS[AgentKind(int(tracks.kinds[agent]))]
        later = slice(NOW, NOW + FUTURE_STEPS + 1)
        path = tracks.poses[agent, later][tracks.present[agent, later], :2]
        if len(path) > 1:
            cv2.polylines(image, [_pixels(path)], False, colour, 1, cv2.LINE_AA, SUBPIXEL_BITS)
        if tracks.present[agent, NOW]:
            corners = geometry.box_corners(tracks.poses[agent, NOW], tracks.sizes[agent])
            cv2.fillPoly(image, [_pixels(corners)], colour, cv2.LINE_AA, SUBPIXEL_BITS)
    ego = geometry.box_corners(np.array([EGO_CENTER_M, 0.0, 0.0]), EGO_SIZE)
    cv2.polylines(image, [_pixels(ego)], True, EGO, 2, cv2.LINE_AA, SUBPIXEL_BITS)
    cv2.polylines(image, [_pixels(scene.expert[:, :2])], False, EXPERT, 1, cv2.LINE_AA, SUBPIXEL_BITS)
    for point in _pixels(scene.expert[:, :2]):
        cv2.circle(image, point.tolist(), 2 << SUBPIXEL_BITS, EXPERT, -1, cv2.LINE_AA, SUBPIXEL_BITS)
    return image


def _pixels(points: Array) -> Array:
    """Points (V, 2) of the ego frame as fixed-point pixels (V, 2) int32, x ahead is up."""
    column = EGO_AT[0] - PX_PER_M * points[:, 1]
    row = EGO_AT[1] - PX_PER_M * points[:, 0]
    return np.asarray(np.rint(np.stack([column, row], axis=1) * (1 << SUBPIXEL_BITS)).astype(np.int32))
