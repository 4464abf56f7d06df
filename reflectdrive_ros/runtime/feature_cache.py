"""Caches image features by instant, so that each image is encoded once.

    cache = FeatureCache(encode, parts=2)        # encode: images of one part -> features
    cache(images)                                # features of every part, oldest first

A network that encodes each instant by itself has encoded the older one some steps ago: three new images are encoded in
each step instead of six. A network that encodes both instants together has one part, and nothing is reused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from ..core.domain import Array

CAPACITY = 16  # parts; at 20 Hz the older instant, 0.5 s ago, was the newest one ten steps ago

Features = TypeVar("Features")


class FeatureCache(Generic[Features]):
    def __init__(self, encode: Callable[[Array], Features], parts: int) -> None:
        self._encode, self._parts = encode, parts
        self._ring: deque[tuple[bytes, Features]] = deque(maxlen=CAPACITY)

    def __call__(self, images: Array) -> list[Features]:
        """Features of each part of images (parts * n, H, W, 3)."""
        if self._parts == 1:
            return [self._encode(images)]
        return [self._features(part) for part in np.split(images, self._parts)]

    def _features(self, part: Array) -> Features:
        content = part.tobytes()
        for key, features in tuple(self._ring):
            if key == content:
                return features
        features = self._encode(part)
        self._ring.append((content, features))
        return features
