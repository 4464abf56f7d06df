"""Batches: which scenes come in a step, how they are varied, and what is asked about them.

A batch follows from the seed and the number of its step alone. So training goes on in the middle of an epoch as if it
had never stopped, batches can be made ahead in any order, and one that did harm can be made again.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from .. import features
from ..data import distance_map, occupancy
from ..data.cache import PreparedSet
from ..domain import Array
from ..features import PAD, WORDS
from ..tokens import Codebook
from . import augment
from .goal_scores import Worth
from .losses import PARTS, Batch
from .settings import DataConfig

PADDING = WORDS.index(PAD)
AHEAD = 4  # batches in the making
LOOKED = 6  # goals of a scene that are looked at once more: the likeliest, and of the others rather the likely
TINT = 0.4  # of the variation of brightness, each colour by itself


@dataclass(frozen=True, eq=False)
class Source:
    """Makes the batches of a run. `limits` are the ids that the heads know: first and last of x and of y."""

    scenes: PreparedSet
    config: DataConfig
    codebook: Codebook
    limits: tuple[tuple[int, int], tuple[int, int]]
    seed: int
    worth: Worth | None = None  # of the same scenes

    def rows(self, step: int) -> Array:
        """(batch,) scenes of a step: every scene once per epoch, in an order of its own."""
        size, count = self.config.batch, len(self.scenes)
        wanted = np.arange(step * size, (step + 1) * size)
        orders = {
            epoch: np.random.default_rng([self.seed, 1, epoch]).permutation(count)
            for epoch in range(wanted[0] // count, wanted[-1] // count + 1)
        }
        return np.array([orders[at // count][at % count] for at in wanted.tolist()])

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The scenes of one process in a step."""
        config, scenes = self.config, self.scenes
        rng = np.random.default_rng([self.seed, 2, step])
        rows = self.rows(step)
        mirror = rng.random(len(rows)) < config.mirror_share
        lights = light_tables(len(rows), config.light, rng)
        side = np.where(mirror, -1.0, 1.0)[:, None]
        points = scenes.expert[rows] * np.stack([np.ones_like(side), side], axis=-1)
        clean = self._reachable(self.codebook.encode(points))
        blocks = augment.masked_blocks(clean, config.masked_blocks, self.codebook.mask_id, rng)
        if config.perturbed_blocks:
            wrong = augment.perturbed_blocks(points, config.perturbed_blocks, self.codebook, rng)
            blocks = np.concatenate([blocks, self._reachable(wrong)], axis=1)
        mine = np.arange(rank, len(rows), ranks)
        text = np.where(mirror[:, None], scenes.text_mirrored[rows], scenes.text[rows])
        text[rng.random(len(rows)) < config.blank_share] = PADDING
        ego = scenes.ego[rows] * np.concatenate([np.ones_like(side), np.ones_like(side), side], axis=1)
        taken = np.where(mirror[:, None, None, None], occupancy.mirrored(scenes.taken[rows]), scenes.taken[rows])
        goals, worth, parts = self._goals(rows, mirror)
        return Batch(
            images=torch.from_numpy(np.stack([self._pictures(rows[k], mirror[k], lights[k]) for k in mine])),
            text=torch.from_numpy(text[mine].astype(np.int64)),
            ego=torch.from_numpy(ego[mine].astype(np.float32)),
            route=torch.from_numpy(self._routes(rows, side, rng)[mine]),
            clean=torch.from_numpy(clean[mine].astype(np.int64)),
            blocks=torch.from_numpy(blocks[mine].astype(np.int64)),
            distances=torch.from_numpy(np.stack([self._distances(rows[k], mirror[k]) for k in mine])),
            taken=torch.from_numpy(np.ascontiguousarray(taken[mine])),
            goals=torch.from_numpy(goals[mine].astype(np.int64)),
            worth=torch.from_numpy(worth[mine]),
            parts=torch.from_numpy(parts[mine]),
            looked=torch.from_numpy(looked_at(worth.shape, np.random.default_rng([self.seed, 3, step]))[mine]),
            masked=config.masked_blocks,
        )

    def _goals(self, rows: Array, mirror: Array) -> tuple[Array, Array, Array]:
        """(batch, K, 2) ids of goals, (batch, K) scores and (batch, K, 5) their parts; K is 0 where none are known."""
        if self.worth is None:
            nothing = np.zeros((len(rows), 0, len(PARTS)), np.float32)
            return np.zeros((len(rows), 0, 2), int), nothing[..., 0], nothing
        goals = self.worth.goals[rows].astype(int)
        goals[mirror, :, 1] = self.codebook.bins - 1 - goals[mirror, :, 1]
        return goals, self.worth.score[rows], self.worth.parts[rows]

    def _routes(self, rows: Array, side: Array, rng: np.random.Generator) -> Array:
        """(batch, points, 2) ids of routes as a car has them: some are not known, the others lie beside the lane."""
        config = self.config
        routes = self.scenes.route[rows].astype(float)
        aside = rng.normal(0.0, config.route_aside_m, len(rows))
        turned = rng.normal(0.0, config.route_turned_rad, len(rows))
        routes[..., 1] = routes[..., 1] * side + aside[:, None] + turned[:, None] * routes[..., 0]
        routes[rng.random(len(rows)) < config.routeless_share] = np.nan
        return features.encode_route(routes, self.codebook)

    def _pictures(self, row: int, mirror: bool, table: Array) -> Array:
        shard, place = self.scenes.place[row]
        pictures = np.array(self.scenes.pictures[shard][place])
        if mirror:
            pictures = mirrored_pictures(pictures)
        count, height, width, _ = pictures.shape
        lit = cv2.LUT(np.ascontiguousarray(pictures).reshape(count * height, width, 3), table[None])
        return np.asarray(lit).reshape(count, height, width, 3)

    def _distances(self, row: int, mirror: bool) -> Array:
        shard, place = self.scenes.place[row]
        distances = np.array(self.scenes.distances[shard][place])
        return np.ascontiguousarray(distance_map.mirrored(distances)) if mirror else distances

    def _reachable(self, ids: Array) -> Array:
        """Ids within what the heads know; masks stay masks."""
        (x_low, x_high), (y_low, y_high) = self.limits
        low, high = (np.tile(pair, ids.shape[-1] // 2) for pair in ((x_low, y_low), (x_high, y_high)))
        return np.where(ids == self.codebook.mask_id, ids, np.clip(ids, low, high))


def looked_at(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """(B, S) places of goals (B, K) in the order of their likelihood, the first always among them."""
    keys = rng.exponential(1.0, shape) * np.arange(1, shape[1] + 1)  # the smallest win, one K-th as often at place K
    keys[:, :1] = -1.0
    return np.argsort(keys, axis=1)[:, :LOOKED]


def mirrored_pictures(pictures: Array) -> Array:
    """(instants * 3, H, W, 3) of the world seen in a mirror: each picture flipped, the left camera now the right."""
    return pictures.reshape(-1, 3, *pictures.shape[1:])[:, ::-1, :, ::-1].reshape(pictures.shape)


def light_tables(count: int, amount: float, rng: np.random.Generator) -> Array:
    """(count, 256, 3) uint8: what becomes of each value of each colour, one table for all pictures of a scene."""
    gain = 1.0 + amount * rng.uniform(-1, 1, (count, 1, 1)) + TINT * amount * rng.uniform(-1, 1, (count, 1, 3))
    gamma = np.exp(amount * rng.uniform(-1, 1, (count, 1, 1)))
    lift = 0.2 * amount * rng.uniform(-1, 1, (count, 1, 1))
    value = np.linspace(0.0, 1.0, 256)[None, :, None]
    return np.rint(255.0 * np.clip(gain * value**gamma + lift, 0.0, 1.0)).astype(np.uint8)


def batches(source: Source, first: int, rank: int, ranks: int) -> Generator[Batch]:
    """The batches from step `first` on, made ahead by threads."""
    with ThreadPoolExecutor(AHEAD) as pool:
        coming: list[Future[Batch]] = []
        step = first
        try:
            while True:
                while len(coming) < AHEAD:
                    coming.append(pool.submit(source.batch, step, rank, ranks))
                    step += 1
                yield coming.pop(0).result()
        finally:
            for future in coming:
                future.cancel()
