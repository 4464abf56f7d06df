"""The camera images of an observation: those of one instant that match the anchor camera's, and those of an instant
`cameras.pair_interval_s` before."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...domain import CameraFrame
from .. import convert, image_decoding
from ..convert import BadMessage
from .channel import Channel
from .store import MessageStore


class CameraPairs(MessageStore):
    """The stored images as frames, for the planning thread."""

    def _is_awaited(self, name: str, channel: Channel, now_ns: int) -> bool:
        """Whether a step waits for this camera's image: not if no view needs it, or if it is optional and missing."""
        if self._rig is None:
            return True
        return self._rig.needs(name) and not (self._rig.optional and channel.problem(now_ns))

    def _match(self, channel: Channel, stamp_ns: int) -> tuple[int, Any] | None:
        found = channel.nearest(stamp_ns)
        tolerance_ns = self._config.cameras.match_tolerance_s * 1e9
        return found if found is not None and abs(found[0] - stamp_ns) <= tolerance_ns else None

    def _cameras(
        self, image_ns: int | None, images: dict[str, Any], now_ns: int, problems: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        """Frames of both instants, oldest first. Without usable images: () if cameras are optional, else None."""
        faults: list[str] = []
        current = self._current_instant(image_ns, images, now_ns, faults)
        if current is None and not self._config.needs_cameras:
            return ()  # the diagnostics of the images have the faults
        if current is None:
            problems.extend(faults)
            return None
        assert image_ns is not None
        settings = self._config.cameras
        target = image_ns - settings.pair_interval_s * 1e9
        older = min(self._cache.frames, key=lambda item: abs(item[0] - target), default=None)
        self._cache.frames.append((image_ns, current))
        horizon = image_ns - (settings.pair_interval_s + settings.pair_tolerance_s) * 1e9
        while self._cache.frames and self._cache.frames[0][0] < horizon:
            self._cache.frames.popleft()
        if older is None or abs(older[0] - target) > settings.pair_tolerance_s * 1e9:
            return current
        return (*older[1], *current)

    def _current_instant(
        self, image_ns: int | None, images: dict[str, Any], now_ns: int, faults: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        def frame_or_fault(name: str) -> CameraFrame | str:
            """The camera's frame, or why there is none."""
            channel, found = self._images[name], images.get(name)
            if found is None and not channel.problem(now_ns) and image_ns is not None:
                near = channel.nearest(image_ns)
                apart = abs(near[0] - image_ns) * 1e-9 if near else float("inf")
                allowed = self._config.cameras.match_tolerance_s
                return f"image {name}: nearest is {apart:.2f} s from the anchor's image, allowed {allowed:.2f} s"
            try:
                return channel.convert(found, now_ns, partial(self._frame, name))
            except BadMessage as fault:
                return str(fault)

        if self._rig is not None:
            infos = {name: found[1] for name, channel in self._infos.items() if (found := channel.newest())}
            frame_ids = {name: found[1].header.frame_id for name, found in images.items() if found}
            if self._rig.calibrate(infos, frame_ids, self._transforms):
                self._cache.frames.clear()  # made with another calibration
        results = {name: frame_or_fault(name) for name in self._images}
        needed = [name for name in results if self._rig is None or self._rig.needs(name)]
        faults += [fault for name in needed if isinstance(fault := results[name], str)]
        frames = {name: result for name, result in results.items() if not isinstance(result, str)}
        if self._rig is not None and image_ns is not None:
            return self._rig.frames(frames, image_ns, faults)
        return None if faults else tuple(frames.values())

    def _frame(self, name: str, message: Any) -> CameraFrame:
        info = self._infos[name].newest()
        if info is None:
            raise BadMessage(f"camera {name}: no camera_info received")
        if self._rig is not None:
            self._rig.check(name)
        width, height = self._decoded_size(name)
        begun, decoding = self._decoding.get(name, (None, None))
        known = decoding.result() if decoding is not None and begun is message else None
        if known is None or known[0].shape[1::-1] != (width, height):  # decoded before the size was known
            known = image_decoding.pixels(message, name, width, height)
        pixels, (scale_x, scale_y) = known
        if self._rig is not None:
            self._rig.check_size(name, info[1], (width / scale_x, height / scale_y))
        matrix = convert.intrinsics(info[1], name)
        scale = np.diag([width / max(info[1].width, 1), height / max(info[1].height, 1), 1.0])
        return CameraFrame(
            convert.stamp_ns(message.header),
            name,
            pixels,
            scale @ matrix,
            convert.camera_from_ego(self._transforms, name, message.header.frame_id),
        )
