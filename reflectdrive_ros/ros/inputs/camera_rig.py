"""Makes the network's camera images from those of the car's cameras: calibrations from messages, one table per camera.

    rig = RigInput(network_rig, config.cameras)
    changed = rig.calibrate(infos, frame_ids, transforms)     # from camera_info and /tf_static; tables are made once
    frames = rig.frames(decoded, stamp_ns, faults)            # one per camera of the network

Tables are made again when a calibration changes. A rig equal to the network's needs none: its images are passed through
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.config import CamerasConfig
from ...core.domain import Array, CameraFrame
from ...core.messages import BadMessage
from ...features.cameras import Camera
from ...features.reprojection import MODELS, Calibration, View, black, plan_views, reproject, sees_behind
from .. import convert
from .channel import InputStatus, Level

COVERAGE_WARN = 0.6  # of a camera of the network; less is reported
COVERAGE_MIN = 0.01  # less counts as a missing camera
SIZE_TOLERANCE = 0.02  # by which width over height of an image may differ from camera_info


class RigInput:
    """The car's cameras as the network's. `size`, `needs` and `status` are for any thread, the rest for one."""

    def __init__(self, rig: Sequence[Camera], cameras: CamerasConfig, *, optional: bool = False) -> None:
        """`rig`: the network's cameras, left to right. `optional`: the network takes black images of missing ones."""
        self._rig, self._cameras, self.optional = tuple(rig), cameras, optional
        self._calibrations: dict[str, Calibration] = {}
        self._keys: dict[str, Any] = {}  # contents that the calibrations were made from
        self._faults: dict[str, str] = {}  # camera -> why it has no calibration
        self._scaled: dict[str, str] = {}  # camera -> sentence, where its camera_info is for another size
        self._missing: dict[str, str] = {}  # camera of the network -> why its image is black
        self._views: tuple[View, ...] = ()
        self._behind: list[str] = []  # a sentence for each fisheye that sees more than is used
        self._status = InputStatus("camera rig", Level.OK, "not calibrated yet", {})
        self._sizes: dict[str, tuple[int, int]] = {}

    # --- calibration -------------------------------------------------------------------------------------------------

    def calibrate(self, infos: Mapping[str, Any], frame_ids: Mapping[str, str], transforms: dict[str, Any]) -> bool:
        """Reads camera_info and poses of the cameras that have both; returns whether the views have changed.

        infos: the newest camera_info by camera. frame_ids: of its newest image. transforms: of /tf_static.
        """
        changed = False
        for name in infos.keys() & frame_ids.keys():
            try:
                pose = convert.camera_from_ego(transforms, name, frame_ids[name])
                key = self._key(infos[name], pose)
                if key != self._keys.get(name):
                    self._keys[name], changed = key, True
                    self._calibrations.pop(name, None)
                    self._calibrations[name] = calibration(infos[name], name, pose, self._cameras.rectified)
                if name in self._calibrations:
                    self._faults.pop(name, None)
            except BadMessage as fault:
                self._faults[name] = str(fault)
                if self._calibrations.pop(name, None) is not None:
                    changed = True
        if changed:
            # in the order of the names, so that ties do not depend on the order of arrival
            calibrations = [self._calibrations[name] for name in self._cameras.names if name in self._calibrations]
            self._views = plan_views(self._rig, calibrations) if calibrations else ()
            self._sizes = {view.source: view.size for view in self._views}
            self._behind = [
                f"camera {each.name}: what its fisheye sees beyond 90 degrees from its axis is not used"
                for each in calibrations
                if sees_behind(each)
            ]
        self._status = self._make_status()
        return changed

    def _key(self, info: Any, pose: Array) -> tuple[Any, ...]:
        numbers = (*info.k, *info.d, *((*info.p, *info.r) if self._cameras.rectified else ()))
        return info.width, info.height, info.distortion_model, len(info.d), np.array(numbers).tobytes(), pose.tobytes()

    def needs(self, name: str) -> bool:
        """Whether images of a camera are used: not if others cover more. Before it is calibrated they count as used."""
        return name not in self._calibrations or any(view.source == name for view in self._views)

    @property
    def sees_behind(self) -> bool:
        """Whether the image of a fisheye reaches beyond 90 degrees from its axis; the rest is not used."""
        return bool(self._behind)

    def check(self, name: str) -> None:
        """Raises BadMessage for a camera whose calibration cannot be used."""
        if name in self._faults:
            raise BadMessage(self._faults[name])

    def check_size(self, name: str, info: Any, size: tuple[float, float]) -> None:
        """`size`: width and height in px of the image as it was sent. Raises BadMessage if camera_info is for an image
        of other proportions; one of another size but the same proportions is scaled, which the status reports.
        """
        width, height = size
        sentence = f"camera {name}: camera_info is for {info.width} x {info.height} px, its images have {width:.0f} x "
        if not abs(width * info.height / (height * max(info.width, 1)) - 1.0) <= SIZE_TOLERANCE:
            raise BadMessage(f"{sentence}{height:.0f} px: publish the camera_info of these images")
        same = abs(width / info.width - 1.0) <= SIZE_TOLERANCE
        self._scaled[name] = "" if same else f"{sentence}{height:.0f} px: the calibration is scaled"

    def size(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        """Width and height in px at which images of a camera are decoded; `default` before it is calibrated."""
        return self._sizes.get(name, default)

    # --- images ------------------------------------------------------------------------------------------------------

    def frames(
        self, decoded: Mapping[str, CameraFrame], stamp_ns: int, faults: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        """One frame per camera of the network, left to right; None, with sentences in `faults`, where there is none.

        decoded: by camera, at the size of `size`; faults: why others are missing. With `optional` these are black.
        """
        if faults and not self.optional:
            return None
        frames = self._fill(decoded, stamp_ns, faults)
        self._status = self._make_status()
        return frames

    def _fill(
        self, decoded: Mapping[str, CameraFrame], stamp_ns: int, faults: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        frames, self._missing = [], {}
        for view in self._views:
            frame = decoded.get(view.source)
            if frame is not None and view.coverage >= COVERAGE_MIN:
                frames.append(self._frame(view, frame))
                continue
            named = [each for each in faults if f" {view.source}:" in each]
            why = f"no camera covers it (the best one {100 * view.coverage:.0f} %)"
            self._missing[view.camera.name] = why if frame is not None else "; ".join(named) or "no image"
            camera = view.camera
            frames.append(
                CameraFrame(stamp_ns, camera.name, black(camera), camera.pixels_from_camera, camera.camera_from_ego)
            )
        if len(self._missing) == len(frames):
            listed = ", ".join(camera.name for camera in self._rig)
            faults.append(
                f"camera rig: no image for any of the network's cameras {listed}: check camera_info and poses"
            )
            return None
        if self._missing and not self.optional:
            faults += [f"camera rig: {name} of the network is missing: {why}" for name, why in self._missing.items()]
            return None
        faults.clear()  # the status reports them
        return tuple(frames)

    def _frame(self, view: View, source: CameraFrame) -> CameraFrame:
        if view.passes_through:
            return source
        camera, pixels = view.camera, reproject(view, source.pixels)
        return CameraFrame(source.stamp_ns, camera.name, pixels, camera.pixels_from_camera, view.camera_from_ego)

    # --- diagnostics -------------------------------------------------------------------------------------------------

    def status(self) -> InputStatus:
        """How each camera of the network is filled. WARN if less than COVERAGE_WARN of one is."""
        return self._status

    def _make_status(self) -> InputStatus:
        if not self._views:
            return InputStatus("camera rig", Level.OK, "; ".join(self._faults.values()) or "not calibrated yet", {})
        poor = [
            f"{view.camera.name}: {view.source} covers {100 * view.coverage:.0f} % of it, at least "
            f"{100 * COVERAGE_WARN:.0f} % are wanted: the rest is black"
            for view in self._views
            if view.coverage < COVERAGE_WARN
        ]
        black_ones = [f"{name} is black: {why}" for name, why in self._missing.items()]
        warnings = [*poor, *black_ones, *filter(None, self._scaled.values())]
        unchanged = all(view.passes_through for view in self._views)
        about = "the cameras are those of the network" if unchanged else "re-projected into the network's cameras"
        values = {view.camera.name: describe(view) for view in self._views}
        message = "; ".join([*warnings, *self._behind] or [about])
        return InputStatus("camera rig", Level.WARN if warnings else Level.OK, message, values)


def describe(view: View) -> str:
    """How a camera of the network is filled."""
    how = "passed through" if view.passes_through else "re-projected"
    return (
        f"from {view.source}, {how}, {100 * view.coverage:.1f} % covered, rotated by {view.rotation_deg:.2f} degrees, "
        f"{view.moved_m:.2f} m from its place"
    )


def calibration(info: Any, name: str, camera_from_ego: Array, rectified: bool = False) -> Calibration:
    """Of a sensor_msgs/CameraInfo: k and distortion or, for rectified images, p and r without distortion.

    Raises BadMessage for one that cannot be used.
    """
    if not (info.width > 0 and info.height > 0):
        raise BadMessage(f"camera {name}: camera_info has no width and height: publish the size of the images")
    matrix = convert.intrinsics(info, name)
    if rectified:
        projection, turn = np.array(info.p, float).reshape(3, 4), np.array(info.r, float).reshape(3, 3)
        usable = np.isfinite(projection).all() and 0.0 < projection[0, 0] <= convert.K_MAX_PX
        usable &= 0.0 < projection[1, 1] <= convert.K_MAX_PX and np.abs(projection).max() <= convert.K_MAX_PX
        usable &= bool(np.abs(turn).max() < 1.1)  # NaN is not
        if not usable or not np.allclose(turn @ turn.T, np.eye(3), atol=1e-3):
            raise BadMessage(f"camera {name}: camera_info has no p and r of rectified images: fill them")
        pose = np.eye(4)
        pose[:3, :3] = turn
        return Calibration(name, info.width, info.height, projection[:, :3], "", (), pose @ camera_from_ego)
    model, coefficients = str(info.distortion_model), tuple(float(value) for value in info.d)
    if model != "equidistant" and not any(coefficients):  # drivers of ideal cameras leave the model empty
        model, coefficients = "", ()
    most = MODELS.get(model, (0, len(coefficients)))[1]
    if not any(coefficients[most:]):  # OpenCV fills up with zeros
        coefficients = coefficients[:most]
    try:
        return Calibration(name, info.width, info.height, matrix, model, coefficients, camera_from_ego)
    except ValueError as fault:
        raise BadMessage(f"camera {name}: camera_info {fault}") from None
