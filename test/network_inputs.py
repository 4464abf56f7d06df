"""The input settings of a small network, and camera images for it."""

import numpy as np

from reflectdrive_ros.core.domain import CameraFrame
from reflectdrive_ros.features.images import WORDS, InputSpec, WordTokenizer

SPEC = InputSpec(width=24, height=12, text_length=16, tokenizer=WordTokenizer(WORDS), route_at_m=(5.0, 10.0, 40.0))
NAMES = ("front_left", "front", "front_right")


def frame(name="front", value=0, stamp_ns=0, size=(36, 64)):
    return CameraFrame(stamp_ns, name, np.full((*size, 3), value, np.uint8), np.eye(3), np.eye(4))


def camera_images(instants=2, size=(36, 64)):
    return tuple(frame(name, 10 * (3 * i + c), i, size) for i in range(instants) for c, name in enumerate(NAMES))
