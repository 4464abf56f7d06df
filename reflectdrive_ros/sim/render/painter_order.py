"""Painter's algorithm for objects on convex footprints: distant objects are drawn first.

Of two objects that overlap in the image, a separating line between their footprints decides: the one on the camera's
side of it is nearer.
"""

from __future__ import annotations

import heapq

import numpy as np

from ...core.domain import Array

EXACT_WITHIN_M = 50.0  # beyond, distance alone decides


def sort_for_painting(corners: Array, eye: Array) -> Array:
    """(T,) indices of footprints (T, 4, 2), counter-clockwise, in drawing order for a camera at `eye` (2,)."""
    relative = corners - eye
    distance = np.hypot(*relative.mean(axis=1).T)
    by_distance = np.argsort(-distance, kind="stable")
    near = by_distance[distance[by_distance] < EXACT_WITHIN_M]
    distant = by_distance[: len(by_distance) - len(near)]
    return np.concatenate([distant, near[_topological_order(relative[near])]])


def _topological_order(corners: Array) -> Array:
    """Order of painting of footprints relative to the eye, ordered farthest first."""
    count = len(corners)
    if count < 2:
        return np.arange(count)
    before = _must_precede(corners)
    waits = before.sum(axis=0)
    followers = [np.flatnonzero(row).tolist() for row in before]
    ready = np.flatnonzero(waits == 0).tolist()
    left = set(range(count))
    waiting = waits.tolist()
    order = []
    while left:
        k = heapq.heappop(ready) if ready else min(left)  # a ring of three, each before the next: distance decides
        if k not in left:
            continue
        left.discard(k)
        order.append(k)
        for other in followers[k]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, other)
    return np.array(order)


def _must_precede(corners: Array) -> Array:
    """(T, T) bool: [a, b] where a must be painted before b, because b stands before it."""
    ahead = corners.mean(axis=1)
    middle = np.arctan2(ahead[:, 1], ahead[:, 0])
    bearing = np.arctan2(corners[..., 1], corners[..., 0]) - middle[:, None]
    bearing = middle[:, None] + (bearing + np.pi) % (2 * np.pi) - np.pi
    low, high = bearing.min(axis=1), bearing.max(axis=1)
    separation = (middle[None, :] - middle[:, None] + np.pi) % (2 * np.pi) - np.pi
    overlap = (
        np.abs(separation)
        < 0.5 * ((high - low)[:, None] + (high - low)[None, :])
        + np.abs(middle - 0.5 * (low + high))[:, None]
        + np.abs(middle - 0.5 * (low + high))[None, :]
    )

    along = np.roll(corners, -1, axis=1) - corners
    normal = np.stack([along[..., 1], -along[..., 0]], axis=-1)
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-9)
    level = np.einsum("aek,aek->ae", normal, corners)  # the eye is at 0, outside where this is negative
    np.fill_diagonal(overlap, False)
    a, b = np.nonzero(overlap)
    # Smallest distance of b's corners outside each side of a, (K, 4) by pair and side.
    across_x, across_y, x, y = normal[a, :, 0], normal[a, :, 1], corners[b, :, 0], corners[b, :, 1]
    reach = across_x * x[:, :1] + across_y * y[:, :1]
    for c in range(1, 4):
        np.minimum(reach, across_x * x[:, c : c + 1] + across_y * y[:, c : c + 1], out=reach)
    reach -= level[a]
    outside, eye_outside = reach > -0.02, level[a] < 0
    nearer, farther = np.zeros_like(overlap), np.zeros_like(overlap)
    nearer[a, b] = (outside & eye_outside).any(axis=1)  # b on the eye's side of one of a's sides
    farther[a, b] = (outside & ~eye_outside).any(axis=1)  # a between the eye and b
    before = nearer | farther.T
    return np.asarray(before & ~before.T)
