"""Training sequences: the expert's tokens with some masked, and perturbed plans for AutoEdit.

Masked: inference needs only a few kinds of masks: everything masked (the goal decision), everything but the goal, or
everything but the goal and tokens written before. Independent masks, as in language models, would give the first of
these once in 17 sequences and the second once in 2000; masks are therefore sampled by kind.

Perturbed: a plan is too fast or too slow (its points are moved along its path, also beyond its end), or rotated about
the car. Some plans stay unchanged, so that the editor learns to keep a good plan; half keep the expert's goal, which
editing never changes; some have a masked end, as in a lite step.
"""

from __future__ import annotations

import numpy as np

from ..core.domain import Array
from ..core.tokens import TokenLayout

KINDS = ("all", "goal", "goal_and_some", "any")
KIND_PROBS = (0.20, 0.25, 0.25, 0.30)
MIN_STEP_M = 1e-3  # m; a step shorter than this has no direction

IDENTITY_PROB = 0.2
SMALL_SCALE, SMALL_SCALE_PROB = (0.85, 1.15), 0.625
LARGE_SCALE = (0.6, 1.4)
SMALL_ROTATION_RAD, SMALL_ROTATION_PROB = np.radians(3.0), 0.7
LARGE_ROTATION_RAD = np.radians(8.0)
CLEAN_GOAL_PROB = 0.5
TRUNCATED_PROB = 0.15  # of one or two points


# --- hidden ----------------------------------------------------------------------------------------------------------


def masked_actions(clean: Array, count: int, layout: TokenLayout, rng: np.random.Generator) -> Array:
    """(B, count, T) of tokens (B, T), part of them masked; the first of each scene is all mask.

    The others are of the kinds that are left, so that of `count` = 5 every kind has its share. Raises ValueError if
    count is less than 1.
    """
    if count < 1:
        raise ValueError(
            f"masked_actions got count {count}, expected at least 1: the goal is read from an all-mask one"
        )
    length = clean.shape[1]
    rest = np.array(KIND_PROBS[1:]) / sum(KIND_PROBS[1:])
    kinds = 1 + rng.choice(len(rest), size=(len(clean), count), p=rest)
    kinds[:, 0] = 0
    free = np.isin(np.arange(length), layout.free)
    order = rng.random((len(clean), count, length)).argsort(-1)  # rank of each position
    order_free = np.where(free, rng.random((len(clean), count, length)), 2.0).argsort(-1).argsort(-1)
    some = rng.integers(1, len(layout.free), (len(clean), count, 1))  # hidden of the free ones, at least one is not
    share = rng.random((len(clean), count, 1))
    hidden = np.select(
        [kinds[..., None] == k for k in range(3)],
        [np.ones((1, 1, length), bool), free[None, None], free & (order_free < some)],
        order < np.maximum(1, np.rint(share * length)),
    )
    return np.where(hidden, layout.mask_id, clean[:, None])


def complementary_actions(clean: Array, count: int, layout: TokenLayout, rng: np.random.Generator) -> Array:
    """(B, count, T) of tokens (B, T) in pairs: the second masks what the first keeps, so that every token is predicted
    once per pair. The masked share of the first is uniform; one in KIND_PROBS[0] of the pairs is all mask and none.

    Source: LaViDa, which DriveFine is trained on. Raises ValueError if count is odd.
    """
    if count % 2:
        raise ValueError(f"complementary_actions got count {count}, expected an even number: they are pairs")
    shape = (len(clean), count // 2, clean.shape[1])
    share = np.where(rng.random(shape[:2]) < KIND_PROBS[0], 1.0, rng.random(shape[:2]))[..., None]
    rank = rng.random(shape).argsort(-1).argsort(-1)
    first = rank < np.rint(share * shape[2])
    hidden = np.stack([first, ~first], axis=2).reshape(len(clean), count, -1)
    return np.where(hidden, layout.mask_id, clean[:, None])


# --- wrong -----------------------------------------------------------------------------------------------------------


def scale_along_path(points: Array, factor: Array) -> Array:
    """Waypoints (N, P, A) moved along their path from the origin to `factor` (N,) times their arc length.

    Beyond the end the path is extended straight, with the last heading; before it headings are interpolated.
    """
    path = np.concatenate([np.zeros_like(points[:, :1]), points], axis=1)
    step = np.diff(path, axis=1)
    length = np.hypot(step[..., 0], step[..., 1])
    along = np.concatenate([np.zeros_like(length[:, :1]), np.cumsum(length, axis=1)], axis=1)
    target_m = factor[:, None] * along[:, 1:]
    moving = length > MIN_STEP_M
    last = np.where(moving.any(axis=1), moving.shape[1] - 1 - moving[:, ::-1].argmax(axis=1), 0)
    passed = (target_m[..., None] >= along[:, None, :-1]) & moving[:, None]  # steps that have passed by then
    at = np.where(passed, np.arange(moving.shape[1]), 0).max(axis=-1)
    at = np.minimum(at, last[:, None])
    row = np.arange(len(points))[:, None]
    size = length[row, at]
    share = np.where(size > MIN_STEP_M, (target_m - along[row, at]) / np.maximum(size, MIN_STEP_M), 0.0)
    moved = path[row, at] + share[..., None] * step[row, at]
    moved[..., 2:] = path[row, at, 2:] + np.minimum(share, 1.0)[..., None] * step[row, at, 2:]
    return np.asarray(moved)


def rotate(points: Array, angle_rad: Array) -> Array:
    """Waypoints (N, P, A) turned about the origin by `angle_rad` (N,), left positive."""
    cos, sin = np.cos(angle_rad)[:, None], np.sin(angle_rad)[:, None]
    x, y = points[..., 0], points[..., 1]
    turned = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
    return np.concatenate([turned, points[..., 2:] + angle_rad[:, None, None]], axis=-1)


def perturbed_actions(points: Array, count: int, layout: TokenLayout, rng: np.random.Generator) -> Array:
    """(B, count, T) tokens of perturbed plans; `points` (B, P, A) are the expert's, in metres and radians."""
    many = np.repeat(points, count, axis=0)
    size = len(many)
    kind = rng.random(size)  # unchanged, then a quarter scaled, a quarter rotated, half of the rest both
    share = (kind - IDENTITY_PROB) / (1.0 - IDENTITY_PROB)
    slides, turns = (share >= 0.0) & (share < 0.75), share >= 0.25
    slight = rng.random(size) < SMALL_SCALE_PROB
    factor = np.where(slight, rng.uniform(*SMALL_SCALE, size), rng.uniform(*LARGE_SCALE, size))
    most = np.where(rng.random(size) < SMALL_ROTATION_PROB, SMALL_ROTATION_RAD, LARGE_ROTATION_RAD)
    angle = most * rng.uniform(-1.0, 1.0, size)
    moved = rotate(scale_along_path(many, np.where(slides, factor, 1.0)), np.where(turns, angle, 0.0))
    keep = rng.random(size) < CLEAN_GOAL_PROB
    if layout.goal:
        goal = layout.goal[0] // len(layout.axes)
        moved[keep, goal, :2] = many[keep, goal, :2]
    tokens = layout.encode(moved)
    missing = np.where(rng.random(size) < TRUNCATED_PROB, rng.integers(1, 3, size), 0)
    lost = np.arange(tokens.shape[1]) >= tokens.shape[1] - len(layout.axes) * missing[:, None]
    return np.where(lost, layout.mask_id, tokens).reshape(len(points), count, -1)
