"""Batches of a training run: scenes of a step, augmentation, targets.

A batch depends on the seed and the number of its step only. Training therefore resumes within an epoch without a
difference, batches can be prepared ahead in any order, and the batch of a failed step can be reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
import torch

from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..data import cache, distance_map, occupancy
from ..data.cache import CachedSet, Shape
from ..data.shards import SetError
from ..features import images as features
from ..features.images import PAD, WORDS
from ..model.scene_encoder import VectorTensors
from ..model.token.net import TokenNetConfig
from ..scoring.scorer import SUB_SCORES
from . import augment, vector_data
from .goal_scores import GoalScores
from .losses import Batch
from .prompt_cache import PromptCache
from .settings import DataConfig
from .vector_data import VectorSet

Made = TypeVar("Made")
CAMERAS = 3  # of an instant
PADDING = WORDS.index(PAD)
COLOR_JITTER = 0.25  # range of brightness, contrast and tint variation
ROUTE_NOISE_M, ROUTE_YAW_NOISE_RAD = 0.15, 0.005  # standard deviations of the lateral offset and turn of routes
PREFETCHED_BATCHES = 4  # batches in the making
RESCORED_GOALS = 6  # goals of a scene with a goal value: the most probable, and others sampled by probability
BLUR_PX, NOISE_LEVELS = 0.8, 6.0  # largest standard deviations of blur and noise at the network's resolution
TINT = 0.4  # share of the brightness variation that is applied per colour channel


@dataclass(frozen=True, eq=False)
class Source:
    """Makes the batches of a run."""

    scenes: CachedSet
    config: DataConfig
    layout: TokenLayout
    seed: int
    goal_scores: GoalScores | None = None  # of the same scenes
    prompts: PromptCache | None = None  # likewise; instead of images, with an augmentation of its own
    targets: Array | None = None  # (N, 8, 3) poses in the augmented scenes of `prompts`; None: the expert's
    color_jitter: bool = True
    vectors: VectorRows | None = None  # of the same scenes, for a network that reads them

    def rows(self, step: int) -> Array:
        """(batch,) scenes of a step. One set: every scene once per epoch, in a new order each epoch. Several sets:
        sampled by their shares."""
        return batch_rows(step, self.config.batch, len(self.scenes), self.seed, self.scenes.shares)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The scenes of one process in a step."""
        config, scenes, layout = self.config, self.scenes, self.layout
        rng = np.random.default_rng([self.seed, 2, step])
        rows = self.rows(step)
        mirror = rng.random(len(rows)) < config.flip_prob
        if self.prompts is not None:
            mirror = self.prompts.mirrored[rows]
        tables = color_tables(len(rows), COLOR_JITTER * self.color_jitter, rng)
        side = np.where(mirror, -1.0, 1.0)[:, None]
        if self.targets is None:
            experts = scenes.expert if layout.frame == "ego" else scenes.expert_on_route
            targets = experts[rows] * np.stack([np.ones_like(side), side, side], axis=-1)
        else:
            targets = self.targets[rows]
        points = targets[..., : len(layout.axes)]
        clean = layout.clip(layout.encode(points))
        mask = augment.masked_actions if config.masking == "kinds" else augment.complementary_actions
        actions = mask(clean, config.masked_actions, layout, rng)
        if config.perturbed_actions:
            wrong = augment.perturbed_actions(points, config.perturbed_actions, layout, rng)
            actions = np.concatenate([actions, layout.clip(wrong)], axis=1)
        black = dropped_cameras(len(rows), CAMERAS, config.camera_dropout, np.random.default_rng([self.seed, 4, step]))
        seeds = np.random.default_rng([self.seed, 5, step])
        noise = [each if seeds.random() < config.sensor_noise else None for each in seeds.spawn(len(rows))]
        mine = np.arange(rank, len(rows), ranks)
        text = np.where(mirror[:, None], scenes.text_mirrored[rows], scenes.text[rows])
        text[rng.random(len(rows)) < config.text_dropout] = PADDING
        ego = scenes.ego[rows] * np.concatenate([np.ones_like(side), np.ones_like(side), side], axis=1)
        agent_cells = scenes.occupancy[rows]
        if scenes.images:
            agent_cells = np.where(mirror[:, None, None, None], occupancy.mirror(agent_cells), agent_cells)
        goals, goal_score, sub_scores = self._goals(rows, mirror)
        if self.prompts is None:
            routes, with_route = self._routes(rows, side, rng)
            images = np.zeros((len(mine), 0), np.uint8)
            if scenes.images:
                images = np.stack([self._images(rows[k], mirror[k], tables[k], black[k], noise[k]) for k in mine])
            keys_values = np.zeros((0, 0), np.float16)
        else:
            routes, with_route = self.prompts.route[rows], self.prompts.with_route[rows]
            images = np.zeros((len(mine), 0), np.uint8)
            keys_values = self.prompts.keys_values[rows[mine]]
        return Batch(
            images=torch.from_numpy(images),
            text=torch.from_numpy(text[mine].astype(np.int64)),
            ego=torch.from_numpy(ego[mine].astype(np.float32)),
            route=torch.from_numpy(routes[mine]),
            clean=torch.from_numpy(clean[mine].astype(np.int64)),
            actions=torch.from_numpy(actions[mine].astype(np.int64)),
            distances=torch.from_numpy(np.stack([self._distances(rows[k], mirror[k]) for k in mine])),
            occupancy=torch.from_numpy(np.ascontiguousarray(agent_cells[mine])),
            goals=torch.from_numpy(goals[mine].astype(np.int64)),
            goal_score=torch.from_numpy(goal_score[mine]),
            sub_scores=torch.from_numpy(sub_scores[mine]),
            rescored=torch.from_numpy(
                sample_goals(goal_score.shape, np.random.default_rng([self.seed, 3, step]))[mine]
            ),
            rows=torch.from_numpy(rows[mine]),
            mirrored=torch.from_numpy(mirror[mine]),
            with_route=torch.from_numpy(with_route[mine]),
            has_labels=torch.from_numpy(scenes.known[rows[mine]]),
            masked=config.masked_actions,
            keys_values=torch.from_numpy(keys_values),
            scene=None if self.vectors is None else self.vectors.tensors(rows, mirror, mine, step),
        )

    def _goals(self, rows: Array, mirror: Array) -> tuple[Array, Array, Array]:
        """(batch, K, 2) ids of goals, (batch, K) scores and (batch, K, 5) their parts; K is 0 where none are stored."""
        if self.goal_scores is None:
            nothing = np.zeros((len(rows), 0, len(SUB_SCORES)), np.float32)
            return np.zeros((len(rows), 0, 2), int), nothing[..., 0], nothing
        goals = self.goal_scores.goals[rows].astype(int)
        goals[mirror, :, 1] = self.layout.axes[1].bins - 1 - goals[mirror, :, 1]
        return goals, self.goal_scores.score[rows], self.goal_scores.sub_scores[rows]

    def _routes(self, rows: Array, side: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """(batch, points, 2) ids of routes: some are unknown (masked), the others have an offset from the lane; and
        (batch,) bool, which are known.
        """
        config = self.config
        routes = self.scenes.route[rows].astype(float)
        lateral_m = rng.normal(0.0, ROUTE_NOISE_M, len(rows))
        yaw_rad = rng.normal(0.0, ROUTE_YAW_NOISE_RAD, len(rows))
        routes[..., 1] = routes[..., 1] * side + lateral_m[:, None] + yaw_rad[:, None] * routes[..., 0]
        with_route = rng.random(len(rows)) >= config.route_dropout
        routes[~with_route] = np.nan
        return features.encode_route(routes, self.layout.codebook), with_route

    def _images(self, row: int, mirror: bool, table: Array, black: Array, noise: np.random.Generator | None) -> Array:
        """(instants * cameras, H, W, 3); `black` (cameras,) bool, of the mirrored scene; `noise` of scenes with any."""
        shard, row_in_shard = self.scenes.location[row]
        images = np.array(self.scenes.images[shard][row_in_shard])
        if mirror:
            images = flip_images(images)
        count, height, width, _ = images.shape
        lit = cv2.LUT(np.ascontiguousarray(images).reshape(count * height, width, 3), table[None])
        pixels = np.asarray(lit).reshape(-1, len(black), height, width, 3)
        pixels[:, black] = 0
        if noise is not None:
            pixels = noisy(pixels, noise)
        return pixels.reshape(count, height, width, 3)

    def _distances(self, row: int, mirror: bool) -> Array:
        if not self.scenes.images:
            return np.zeros((0, 0), np.int8)
        shard, row_in_shard = self.scenes.location[row]
        distances = np.array(self.scenes.distances[shard][row_in_shard])
        return np.ascontiguousarray(distance_map.mirror(distances)) if mirror else distances


@dataclass(frozen=True, eq=False)
class VectorRows:
    """Agents, static objects and lanes of the scenes of a prepared set."""

    vectors: VectorSet
    rows: Array  # (N,) sample of each scene of the prepared set
    seed: int
    map_dropout: float = 0.05  # share of scenes without lanes, as for a car that has no map

    def tensors(self, rows: Array, mirror: Array, mine: Array, step: int) -> VectorTensors:
        """Of the scenes `mine` (M,) among those of a step, `rows` (B,) of the prepared set, which are mirrored where
        `mirror` (B,) is true."""
        dropped = np.random.default_rng([self.seed, 7, step]).random(len(rows)) < self.map_dropout
        arrays = vector_data.mirror(self.vectors.arrays(self.rows[rows[mine]]), mirror[mine])
        arrays = vector_data.without_map(arrays, dropped[mine], self.vectors.spec)
        arrays["lane_has_limit"] = arrays["lane_has_limit"] > 0.0
        parts = [torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in VectorTensors._fields]
        return VectorTensors(*parts)


def with_vectors(scenes: CachedSet, vectors: VectorSet, seed: int) -> tuple[CachedSet, VectorRows]:
    """The scenes that both sets hold and whose route passes the car, and their samples. Raises SetError for none."""
    named = (vectors.scene_of(index) for index in range(len(vectors)))
    sample_of = {(each[0].name, each[1]): index for index, each in enumerate(named) if each is not None}
    files = [Path(note.file).name for note in scenes.notes]
    shards_and_names = zip(scenes.location[:, 0].tolist(), scenes.names.tolist(), strict=True)
    keys = [(files[shard], name.decode()) for shard, name in shards_and_names]
    samples = np.array([sample_of.get(key, -1) for key in keys])
    rows = np.flatnonzero((samples >= 0) & np.isfinite(scenes.expert_on_route).all((1, 2)))
    if not len(rows):
        raise SetError("no scene has a route that passes the car: the network plans relative to the route")
    return cache.select_rows(scenes, rows), VectorRows(vectors, samples[rows], seed)


def unknown_sentences(scenes: CachedSet) -> list[str]:
    """What is left out of the losses of scenes without a map or without objects."""
    without_map, without_objects = (~scenes.known).sum(axis=0).tolist()
    counts = (
        (without_map, "map: they have no L_field and no road in L_aux"),
        (without_objects, "objects: they have no occupancy in L_aux"),
    )
    return [f"{count} of {len(scenes)} scenes have no {what}" for count, what in counts if count]


def shape_of(network: TokenNetConfig) -> Shape:
    """Shapes of the network's inputs of a scene."""
    return Shape(
        width=network.vision.width,
        height=network.vision.height,
        text_length=network.text_length,
        words=network.words,
        cameras=network.cameras if network.images else 0,
        instants=network.instants,
        ego_scale=network.ego_scale,
        route_at_m=network.route_at_m,
        bin_m=network.layout.codebook.bin_m,
        bins=network.layout.codebook.bins,
    )


def sample_goals(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """(B, S) indices of goals (B, K) in the order of their likelihood, the first always among them."""
    keys = rng.exponential(1.0, shape) * np.arange(1, shape[1] + 1)  # the smallest win, one K-th as often at index K
    keys[:, :1] = -1.0
    return np.argsort(keys, axis=1)[:, :RESCORED_GOALS]


def flip_images(images: Array) -> Array:
    """(instants * 3, H, W, 3) of the mirrored scene: each image flipped, left and right cameras swapped."""
    return images.reshape(-1, CAMERAS, *images.shape[1:])[:, ::-1, :, ::-1].reshape(images.shape)


def dropped_cameras(count: int, cameras: int, share: float, rng: np.random.Generator) -> Array:
    """(count, cameras) bool, the black cameras of scenes: one or two, but never all, of this share of them."""
    most = rng.integers(1, 3, (count, 1)) * (rng.random((count, 1)) < share)
    order = rng.permuted(np.tile(np.arange(cameras), (count, 1)), axis=1)
    return np.asarray(order < np.minimum(most, cameras - 1))


def color_tables(count: int, amount: float, rng: np.random.Generator) -> Array:
    """(count, 256, 3) uint8: what becomes of each value of each colour, one table for all images of a scene."""
    gain = 1.0 + amount * rng.uniform(-1, 1, (count, 1, 1)) + TINT * amount * rng.uniform(-1, 1, (count, 1, 3))
    gamma = np.exp(amount * rng.uniform(-1, 1, (count, 1, 1)))
    lift = 0.2 * amount * rng.uniform(-1, 1, (count, 1, 1))
    value = np.linspace(0.0, 1.0, 256)[None, :, None]
    return np.rint(255.0 * np.clip(gain * value**gamma + lift, 0.0, 1.0)).astype(np.uint8)


def noisy(images: Array, rng: np.random.Generator) -> Array:
    """Images (.., H, W, 3) uint8 with the blur and the noise of a camera: of up to BLUR_PX and NOISE_LEVELS, the same
    in all images of a scene."""
    sigma_px, levels = rng.uniform(0.0, BLUR_PX), rng.uniform(0.0, NOISE_LEVELS)
    flat = images.reshape(-1, *images.shape[-3:])
    soft = np.stack([cv2.GaussianBlur(each, (0, 0), max(sigma_px, 0.1)) for each in flat])
    grain = rng.normal(0.0, levels, soft.shape).astype(np.float32)
    return np.asarray(np.clip(soft + grain, 0.0, 255.0).astype(np.uint8).reshape(images.shape))


def batches(source: Source, first: int, rank: int, ranks: int) -> Generator[Batch]:
    """The batches from step `first` on, prepared ahead by threads."""
    return prefetched(lambda step: source.batch(step, rank, ranks), first, PREFETCHED_BATCHES)


def batch_rows(step: int, size: int, count: int, seed: int, shares: Array | None) -> Array:
    """(size,) of `count` scenes, those of a step: sampled by their shares (count,) or, without these, every scene once
    per epoch, in a new order each epoch."""
    if shares is not None:
        return np.random.default_rng([seed, 1, step]).choice(count, size, p=shares)
    positions = np.arange(step * size, (step + 1) * size)
    orders = {
        epoch: np.random.default_rng([seed, 1, epoch]).permutation(count)
        for epoch in range(positions[0] // count, positions[-1] // count + 1)
    }
    return np.array([orders[at // count][at % count] for at in positions.tolist()])


def prefetched(make: Callable[[int], Made], first: int, ahead: int) -> Generator[Made]:
    """What `make` gives for the steps from `first` on, `ahead` of them prepared in advance by threads."""
    with ThreadPoolExecutor(ahead) as pool:
        coming: list[Future[Made]] = []
        step = first
        try:
            while True:
                while len(coming) < ahead:
                    coming.append(pool.submit(make, step))
                    step += 1
                yield coming.pop(0).result()
        finally:
            for future in coming:
                future.cancel()
