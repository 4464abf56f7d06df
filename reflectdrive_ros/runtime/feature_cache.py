"""What a network sees in images, part by part in time: what was seen in the same images before is known.

    sight = Sight(look, parts=2)        # look: images of one part -> what is seen in them
    sight(images)                       # of every part, the oldest first

A network that looks at each instant by itself saw the older one when it was the newest, some steps ago: three new
images are looked at in each step, not six. One that looks at both at once has one part, and nothing to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from ..domain import Array

CAPACITY = 16  # parts; at 20 Hz the older instant, 0.5 s ago, was the newest one ten steps ago

Features = TypeVar("Features")


class FeatureCache(Generic[Features]):
    def __init__(self, encode: Callable[[Array], Features], parts: int) -> None:
        self._encode, self._parts = encode, parts
        self._ring: deque[tuple[bytes, Features]] = deque(maxlen=CAPACITY)

    def __call__(self, images: Array) -> list[Features]:
        """What is seen in each part of images (parts * n, H, W, 3)."""
        if self._parts == 1:
            return [self._encode(images)]
        return [self._cached(part) for part in np.split(images, self._parts)]

    def _cached(self, part: Array) -> Features:
        content = part.tobytes()
        for key, features in tuple(self._ring):
            if key == content:
                return features
        features = self._encode(part)
        self._ring.append((content, features))
        return features
