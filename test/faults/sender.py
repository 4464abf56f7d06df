"""What a car sends, from a thread: images at 10 Hz, odometry at 50 Hz. A fault alters it on the way.

As a program it is one group of sensors in a process of its own, which can be killed:

    python test/faults/sender.py cameras ORIGIN

ORIGIN is the moment of the machine's monotonic clock at which the car was at x = 0.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import rclpy
from messages import CAMERAS, acceleration, odometry, predicted_objects, traffic_lights
from rclpy.node import Node

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import CameraFrame
from reflectdrive_ros.data import shards
from reflectdrive_ros.demo import sensor_messages
from reflectdrive_ros.ros import topics
from reflectdrive_ros.ros.processes import full_topic_name, sender_qos

SPEED_MPS = 5.0
TICK_S = 0.02
TICKS_PER_IMAGE = 5
SCENES = Path(__file__).parents[1] / "data" / "scenes_val"
STRAIGHT = 9  # of these scenes: a straight road, on which the default planner stays within 0.3 m of a straight route
SHADES = 8
SENDING = "sending"
IMAGES = tuple(f"image:{name}" for name in CAMERAS)
INFOS = tuple(f"info:{name}" for name in CAMERAS)
GROUPS = {"cameras": (*INFOS, *IMAGES), "odometry": ("odometry",)}

Alteration = Callable[[str, object], Iterable[object]]  # (key, message) -> the messages to send in its place


@cache
def straight_road() -> tuple[CameraFrame, ...]:
    """Images of a straight road, one per camera, with the rig that took them."""
    scene = next(islice(shards.read(SCENES, images=True, on_damage=sys.exit), STRAIGHT, None))
    return scene.cameras[-len(CAMERAS) :]


def camera_mounts():
    """/tf_static of that rig."""
    return sensor_messages.camera_mounts(
        0,
        {camera: np.linalg.inv(frame.camera_from_ego) for camera, frame in zip(CAMERAS, straight_road(), strict=True)},
    )


def jpegs(frame: CameraFrame) -> list[bytes]:
    """The image at SHADES brightnesses: no two in a row are the same, as of a camera that works."""
    bgr = cv2.cvtColor(frame.pixels, cv2.COLOR_RGB2BGR).astype(int)
    shades = (np.clip(bgr + shade, 0, 255).astype(np.uint8) for shade in range(SHADES))
    return [cv2.imencode(".jpg", shade)[1].tobytes() for shade in shades]


def unaltered(_key: str, message: object) -> Iterable[object]:
    return (message,)


class Sender:
    """Sends the keys it is given until it is closed. `now_s` is the clock of the stamps, `driven_s` tells for how long
    the car has been driving."""

    def __init__(
        self, publishers: dict, now_s: Callable[[], float], driven_s: Callable[[], float], keys: Iterable[str]
    ) -> None:
        self.keys = set(keys)
        self.alter: Alteration = unaltered
        self.paused = False
        self.left_m = 0.0  # y of the car, which drives along x
        self.positions: list[tuple[float, float, float, float]] = []  # (perf_counter, stamp, x m, y m) of odometry
        self._frames = dict(zip(CAMERAS, straight_road(), strict=True))
        self.jpegs = {camera: jpegs(frame) for camera, frame in self._frames.items()}
        self._publishers, self._now_s, self._driven_s = publishers, now_s, driven_s
        self._count = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        tick, due = 0, time.perf_counter()
        while not self._closing.is_set():
            if self.paused:
                position_m = SPEED_MPS * self._driven_s()
                self.positions.append((time.perf_counter(), self._now_s(), position_m, self.left_m))
            else:
                for key, message in self._messages(tick):
                    if key in self.keys:
                        with suppress(rclpy.exceptions.InvalidHandle):  # the other side is being closed
                            for sent in self.alter(key, message):
                                self._publishers[key].publish(sent)
                tick += 1
            due = max(due + TICK_S, time.perf_counter() - 5 * TICK_S)
            time.sleep(max(0.0, due - time.perf_counter()))

    def _messages(self, tick: int) -> Iterable[tuple[str, object]]:
        now, position_m, left_m = self._now_s(), SPEED_MPS * self._driven_s(), self.left_m
        self.positions.append((time.perf_counter(), now, position_m, left_m))
        yield "odometry", odometry(now, x=position_m, y=left_m, speed=SPEED_MPS)
        if tick % TICKS_PER_IMAGE:
            return
        self._count += 1
        yield "acceleration", acceleration(now, 0.0)
        yield "objects", predicted_objects(now, (position_m + 300.0, 0.0, 0.0, SPEED_MPS, 4.5))
        yield "lights", traffic_lights(now)
        stamp_ns = round(now * 1e9)
        for camera, frame in self._frames.items():
            height, width = frame.pixels.shape[:2]
            info = sensor_messages.camera_info(stamp_ns, camera, (width, height), frame.pixels_from_camera)
            yield f"info:{camera}", info
        for camera, shades in self.jpegs.items():
            jpeg = shades[self._count % SHADES]
            yield f"image:{camera}", sensor_messages.compressed_image(stamp_ns, camera, jpeg)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=2.0)


def main(group: str, origin_s: float, wait_for_match: bool) -> None:
    """`wait_for_match`: send only once the middleware has connected every publisher; earlier messages would be lost."""
    rclpy.init()
    node = Node(f"sensors_{group}")
    publishers = {
        topic.key: node.create_publisher(
            topics.message_class(topic.type), full_topic_name(topic.name), sender_qos(topic.qos)
        )
        for topic in topics.inputs(Config())
        if topic.key in GROUPS[group]
    }
    Sender(
        publishers,
        lambda: node.get_clock().now().nanoseconds * 1e-9,
        lambda: time.monotonic() - origin_s,
        GROUPS[group],
    )
    while wait_for_match and not all(publisher.get_subscription_count() for publisher in publishers.values()):
        time.sleep(0.01)
    sys.stdout.write(f"{SENDING}\n")
    sys.stdout.flush()
    rclpy.spin(node)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3] == "heard")
