"""The camera images of an observation: those of one instant that match the anchor camera's, and those of an instant
PAIR_INTERVAL_S before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ...core.config import Config
from ...core.domain import CameraFrame
from ...core.messages import BadMessage
from ...features.images import PAIR_INTERVAL_S, PAIR_TOLERANCE_S
from ...planning.inputs import needs_cameras
from .. import convert, image_decoding
from .camera_rig import RigInput
from .channel import Channel
from .store import Instant, MessageStore


class CameraPairs:
    """The stored images as frames, for the planning thread."""

    def __init__(self, store: MessageStore, config: Config, rig: RigInput | None) -> None:
        """`rig`: makes the network's images; None: images are only scaled."""
        self._store, self._config, self._rig = store, config, rig

    def is_complete(self, anchor_ns: int, now_ns: int) -> bool:
        """Whether the images of the anchor's instant that a step waits for have arrived; the store's lock is held."""
        return all(
            self._match(channel, anchor_ns) or not self._is_awaited(name, channel, now_ns)
            for name, channel in self._store.images.items()
        )

    def matches(self, anchor: tuple[int, Any] | None) -> dict[str, tuple[int, Any] | None]:
        """By camera: stamp and message of the image that matches the anchor's; the store's lock is held."""
        if anchor is None:
            return {}
        return {name: self._match(channel, anchor[0]) for name, channel in self._store.images.items()}

    def _is_awaited(self, name: str, channel: Channel, now_ns: int) -> bool:
        """Whether a step waits for this camera's image: not if no view needs it, or if it is optional and missing."""
        if self._rig is None:
            return True
        return self._rig.needs(name) and not (self._rig.optional and channel.problem(now_ns))

    def _match(self, channel: Channel, stamp_ns: int) -> tuple[int, Any] | None:
        nearest = channel.nearest(stamp_ns)
        tolerance_ns = self._config.cameras.match_tolerance_s * 1e9
        return nearest if nearest is not None and abs(nearest[0] - stamp_ns) <= tolerance_ns else None

    def frames(
        self, image_ns: int | None, images: dict[str, Any], now_ns: int, problems: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        """Frames of both instants, oldest first. Without usable images: () if cameras are optional, else None."""
        faults: list[str] = []
        self._calibrate(images)
        current = self._frames_of(self._instant(image_ns, images, now_ns), image_ns, faults)
        if current is None and not needs_cameras(self._config):
            return ()  # the diagnostics of the images have the faults
        if current is None:
            problems.extend(faults)
            return None
        assert image_ns is not None
        target = image_ns - PAIR_INTERVAL_S * 1e9
        older = self._nearest_frames(target)
        self._store.cache.frames.append((image_ns, current))
        self._forget(image_ns)
        if older is None or abs(older[0] - target) > PAIR_TOLERANCE_S * 1e9:
            return current
        return (*older[1], *current)

    def skip(self, image_ns: int | None, images: dict[str, Any], now_ns: int) -> tuple[CameraFrame, ...] | None:
        """As `frames`, for images that are decoded only if a later step uses them as its older ones.

        Raw images are scaled at once: they are large. Without a rig all are, as changed calibrations do not clear the
        cache then: each image has that of its time.
        """
        if self._rig is None or not self._config.cameras.compressed:
            return self.frames(image_ns, images, now_ns, [])
        self._calibrate(images)
        if image_ns is not None:
            self._store.cache.skipped.append(Instant(image_ns, self._instant(image_ns, images, now_ns)))
            self._forget(image_ns)
        return None

    def _nearest_frames(self, target_ns: float) -> tuple[int, tuple[CameraFrame, ...]] | None:
        """The stamp and frames of the instant nearest to a time; one that was passed over is decoded."""
        cache = self._store.cache
        ready, skipped = dict(cache.frames), {each.stamp_ns: each for each in cache.skipped}
        for stamp_ns in sorted(ready.keys() | skipped.keys(), key=lambda each: (abs(each - target_ns), each)):
            if stamp_ns in skipped:
                cache.skipped.remove(skipped[stamp_ns])
                frames = self._frames_of(skipped[stamp_ns].images, stamp_ns, [])
                if frames is None:
                    continue
                ready[stamp_ns] = frames
                cache.frames = deque(sorted(ready.items(), key=lambda item: item[0]))
            return stamp_ns, ready[stamp_ns]
        return None

    def _forget(self, image_ns: int) -> None:
        """Drops images that are too old for a later step."""
        horizon = image_ns - (PAIR_INTERVAL_S + PAIR_TOLERANCE_S) * 1e9
        while self._store.cache.frames and self._store.cache.frames[0][0] < horizon:
            self._store.cache.frames.popleft()
        while self._store.cache.skipped and self._store.cache.skipped[0].stamp_ns < horizon:
            self._store.cache.skipped.popleft()

    def _calibrate(self, images: dict[str, Any]) -> None:
        if self._rig is None:
            return
        infos = {name: entry[1] for name, channel in self._store.infos.items() if (entry := channel.newest())}
        frame_ids = {name: entry[1].header.frame_id for name, entry in images.items() if entry}
        if self._rig.calibrate(infos, frame_ids, self._store.transforms):  # what is cached has another calibration
            self._store.cache.frames.clear()
            self._store.cache.skipped.clear()

    def _instant(self, image_ns: int | None, images: dict[str, Any], now_ns: int) -> dict[str, tuple[int, Any] | str]:
        """By camera: stamp and message, or why there is none."""
        entries: dict[str, tuple[int, Any] | str] = {}
        for name, channel in self._store.images.items():
            item = images.get(name)
            if item is None and not channel.problem(now_ns) and image_ns is not None:
                near = channel.nearest(image_ns)
                offset_s = abs(near[0] - image_ns) * 1e-9 if near else float("inf")
                allowed = self._config.cameras.match_tolerance_s
                entries[name] = (
                    f"image {name}: nearest is {offset_s:.2f} s from the anchor's image, allowed {allowed:.2f} s"
                )
                continue
            try:
                entries[name] = channel.usable(item, now_ns)
            except BadMessage as fault:
                entries[name] = str(fault)
        return entries

    def _frames_of(
        self, instant: Mapping[str, tuple[int, Any] | str], image_ns: int | None, faults: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        """The frames of an instant; None, with sentences in `faults`, where there are none."""
        results: dict[str, CameraFrame | str] = {}
        for name, entry in instant.items():
            try:
                results[name] = (
                    entry
                    if isinstance(entry, str)
                    else self._store.images[name].convert_usable(entry, partial(self._frame, name))
                )
            except BadMessage as fault:
                results[name] = str(fault)
        needed = [result for name, result in results.items() if self._rig is None or self._rig.needs(name)]
        faults += [result for result in needed if isinstance(result, str)]
        frames = {name: result for name, result in results.items() if not isinstance(result, str)}
        if self._rig is not None and image_ns is not None:
            return self._rig.frames(frames, image_ns, faults)
        return None if faults else tuple(frames.values())

    def _frame(self, name: str, message: Any) -> CameraFrame:
        info = self._store.infos[name].newest()
        if info is None:
            raise BadMessage(f"camera {name}: no camera_info received")
        if self._rig is not None:
            self._rig.check(name)
        width, height = self._store.decoded_size(name)
        decoding_message, decoding = self._store.decoding.get(name, (None, None))
        decoded = decoding.result() if decoding is not None and decoding_message is message else None
        if decoded is None or decoded[0].shape[1::-1] != (width, height):  # decoded before the size was known
            decoded = image_decoding.pixels(message, name, width, height)
        pixels, (scale_x, scale_y) = decoded
        if self._rig is not None:
            self._rig.check_size(name, info[1], (width / scale_x, height / scale_y))
        matrix = convert.intrinsics(info[1], name)
        scale = np.diag([width / max(info[1].width, 1), height / max(info[1].height, 1), 1.0])
        return CameraFrame(
            convert.stamp_ns(message.header),
            name,
            pixels,
            scale @ matrix,
            convert.camera_from_ego(self._store.transforms, name, message.header.frame_id),
        )
