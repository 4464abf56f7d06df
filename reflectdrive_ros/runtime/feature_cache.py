"""What a network sees in pictures, part by part in time: what was seen in the same pictures before is known.

    sight = Sight(look, parts=2)        # look: pictures of one part -> what is seen in them
    sight(images)                       # of every part, the oldest first

A network that looks at each instant by itself saw the older one when it was the newest, some steps ago: three new
pictures are looked at in each step, not six. One that looks at both at once has one part, and nothing to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from ..domain import Array

KEPT = 16  # parts; at 20 Hz the older instant, 0.5 s ago, was the newest one ten steps ago

Seen = TypeVar("Seen")


class Sight(Generic[Seen]):
    def __init__(self, look: Callable[[Array], Seen], parts: int) -> None:
        self._look, self._parts = look, parts
        self._ring: deque[tuple[bytes, Seen]] = deque(maxlen=KEPT)

    def __call__(self, images: Array) -> list[Seen]:
        """What is seen in each part of images (parts * n, H, W, 3)."""
        if self._parts == 1:
            return [self._look(images)]
        return [self._known(pictures) for pictures in np.split(images, self._parts)]

    def _known(self, pictures: Array) -> Seen:
        content = pictures.tobytes()
        for before, seen in tuple(self._ring):
            if before == content:
                return seen
        seen = self._look(pictures)
        self._ring.append((content, seen))
        return seen
