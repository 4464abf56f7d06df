"""Recordings that come with the package, as streams of ROS messages.

`pandaset_002`: three cameras (JPEG, with their own stamps), odometry, acceleration, labelled road users, a route.
`comma2k19_example`: odometry and acceleration from GNSS, CAN and gyroscope, a route; it has no video.

Data that a recording lacks is left out; assumptions are stated in the code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from autoware_perception_msgs.msg import ObjectClassification, PredictedObjects
from geometry_msgs.msg import AccelWithCovarianceStamped, Point, Pose
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from sensor_msgs.msg import CameraInfo, CompressedImage
from tf2_msgs.msg import TFMessage

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array
from ..infra.documents import read_arrays
from ..infra.errors import UserError
from ..infra.files import path_text
from ..ros.bag import type_name_of
from ..ros.outputs import header
from ..ros.rotations import quaternion_from_matrix
from .sensor_messages import (
    acceleration,
    camera_info,
    camera_mounts,
    compressed_image,
    odometry,
    planar_pose,
    predicted_object,
    quaternion,
    route,
)

ROUTE_BEYOND_M = 60.0  # the route is extended straight beyond the last pose
ROUTE_SPACING_M = 1.0
PREDICTION_STEP_S, PREDICTION_STEPS = 0.5, 10
PANDASET_CAMERAS = {"front_left": "front_left_camera", "front": "front_camera", "front_right": "front_right_camera"}
PANDASET_SIZE = (640, 360)
GPS_EPOCH_UNIX_S, GPS_LEAP_SECONDS = 315_964_800, 18  # leap seconds since 2017

ROUTE, ODOMETRY = "/planning/reflectdrive/route", "/localization/kinematic_state"
ACCELERATION, OBJECTS = "/localization/acceleration", "/perception/object_recognition/objects"
EGO_TOPICS: Mapping[str, tuple[type, bool]] = {  # message class, latched
    ROUTE: (PathMessage, True),
    ODOMETRY: (Odometry, False),
    ACCELERATION: (AccelWithCovarianceStamped, False),
}

LABELS = {
    "Car": ObjectClassification.CAR,
    "Pickup Truck": ObjectClassification.TRUCK,
    "Medium-sized Truck": ObjectClassification.TRUCK,
    "Semi-truck": ObjectClassification.TRUCK,
    "Other Vehicle - Construction Vehicle": ObjectClassification.TRUCK,
    "Bus": ObjectClassification.BUS,
    "Towed Object": ObjectClassification.TRAILER,
    "Motorcycle": ObjectClassification.MOTORCYCLE,
    "Bicycle": ObjectClassification.BICYCLE,
    "Pedestrian": ObjectClassification.PEDESTRIAN,
    "Pedestrian with Object": ObjectClassification.PEDESTRIAN,
}  # all others (cones, barriers, signs, ..) are UNKNOWN


RECORDING = Path("pandaset_002")  # of SHIPPED: the default recording
SHIPPED_FOLDER = (
    Path(__file__).resolve().parents[2] / "test" / "data"
)  # of a source tree; an installed package has none


class RecordingError(UserError, ValueError):
    """A folder is not a supported recording, or a part of it is missing."""


class RecordedTopic(NamedTuple):
    name: str
    type_name: str
    latched: bool


class RecordedMessage(NamedTuple):
    topic: str
    stamp_ns: int
    message: Any


@dataclass(frozen=True)
class DemoRecording:
    """Topics and their messages in the order of their stamps; `messages` starts a fresh walk each time."""

    name: str
    topics: tuple[RecordedTopic, ...]
    message_count: int
    messages: Callable[[], Iterator[RecordedMessage]]


def open_recording(folder: str | Path) -> DemoRecording:
    """The recording in a folder, or that of this name in the source tree, independent of the working directory.

    Raises RecordingError naming what is missing.
    """
    folder = Path(folder)
    if folder in (Path(folder.name), Path("test", "data", folder.name)) and not os.path.exists(folder):
        folder = SHIPPED_FOLDER / folder.name if os.path.isdir(SHIPPED_FOLDER / folder.name) else folder
    if not os.path.isdir(folder):  # False also for names for which Path.is_dir raises
        where = (
            f"those of {SHIPPED_FOLDER} are used by name"
            if SHIPPED_FOLDER.is_dir()
            else "the source tree has some in test/data"
        )
        raise RecordingError(f"recording {path_text(folder)} does not exist or is no folder; {where}")
    for name, reader in (("sequence.npz", _pandaset), ("segment.npz", _comma2k19)):
        if (folder / name).is_file():
            try:
                return reader(folder, read_arrays(folder / name))
            except KeyError as fault:
                raise RecordingError(f"{folder / name} has no array named {fault}; copy the recording again") from None
            except (OSError, ValueError, TypeError, IndexError) as fault:
                if isinstance(fault, RecordingError):
                    raise
                raise RecordingError(f"{folder / name} is damaged ({fault}); copy the recording again") from None
    raise RecordingError(
        f"{folder} is no known recording: expected pandaset_002 (sequence.npz) or comma2k19_example (segment.npz)"
    )


class _Event(NamedTuple):
    """A message that is created when it is due: all images together would not fit into memory."""

    stamp_ns: int
    topic: str
    make: Callable[[], Any]


def _recording(name: str, topics: Mapping[str, tuple[type, bool]], events: list[_Event]) -> DemoRecording:
    """`topics`: name -> (message class, latched); at equal stamps messages come in the order of this table."""
    rank = {topic: index for index, topic in enumerate(topics)}
    ordered = sorted(events, key=lambda event: (event.stamp_ns, rank[event.topic]))
    table = tuple(RecordedTopic(topic, type_name_of(kind), latched) for topic, (kind, latched) in topics.items())

    def messages() -> Iterator[RecordedMessage]:
        for event in ordered:
            yield RecordedMessage(event.topic, event.stamp_ns, event.make())

    return DemoRecording(name, table, len(ordered), messages)


# --- PandaSet --------------------------------------------------------------------------------------------------------


def _pandaset(folder: Path, data: Mapping[str, Array]) -> DemoRecording:
    stamps = _stamps(data["t_unix0"], data["t"])
    origin_from_base = _origin_from_base(data)
    map_from_base = data["world_T_ego"] @ origin_from_base  # (80, 4, 4)
    base_from_camera = {
        name: geometry.invert_matrix(origin_from_base) @ data[f"{source}_ego_T_cam"]
        for name, source in PANDASET_CAMERAS.items()
    }
    camera_stamps = {name: _stamps(data["t_unix0"], data[f"{c}_t"]) for name, c in PANDASET_CAMERAS.items()}
    begin = min(stamps[0], *(camera_stamps[name][0] for name in PANDASET_CAMERAS))

    topics = {"/tf_static": (TFMessage, True), **EGO_TOPICS, OBJECTS: (PredictedObjects, False)}
    lateral = data["v_forward"] * data["yaw_rate"]  # steady turning; the source measures no lateral acceleration
    accelerations = np.stack([data["accel_forward"], lateral], axis=1)
    twists = np.stack([data["v_forward"], data["v_left"], data["yaw_rate"]], axis=1)
    velocities = _track_velocities(data)
    events = [_Event(begin, "/tf_static", partial(camera_mounts, begin, base_from_camera))]
    events += _ego_events(begin, stamps, map_from_base, data["yaw"], twists, accelerations)
    for i, stamp in enumerate(stamps):
        events.append(_Event(stamp, OBJECTS, partial(_objects, stamp, data, i, velocities, map_from_base[i])))
    for name, source in PANDASET_CAMERAS.items():
        # Without distortion: the published coefficients are those of the lens, but the published images are rectified.
        # Number plates of parked cars lie 8 to 13 px from the rear of their boxes, with the coefficients 24 to 28 px.
        info, image = f"/sensing/camera/{name}/camera_info", f"/sensing/camera/{name}/image/compressed"
        topics |= {info: (CameraInfo, False), image: (CompressedImage, False)}
        for i, stamp in enumerate(camera_stamps[name]):
            file = folder / "images" / source / f"{i:02d}.jpg"
            if not file.is_file():
                raise RecordingError(f"image {file} is missing; copy the recording again")
            events += [
                _Event(stamp, info, partial(camera_info, stamp, name, PANDASET_SIZE, data[f"{source}_K"])),
                _Event(stamp, image, partial(_image, stamp, name, file)),
            ]
    return _recording("pandaset_002", topics, events)


def _origin_from_base(data: Mapping[str, Array]) -> Array:
    """(4, 4) from Autoware's base_link, which is on the road, to the published origin.

    The origin is that of the positioning unit: about 0.35 m above the road, with a roll of 1.2 degrees against it. The
    road is the plane through the bottoms of the labelled cars around the ego, one for the whole drive.
    """
    cars = np.flatnonzero(data["cub_label"] == "Car")
    bottoms = data["cub_xyz"][cars].astype(float)
    bottoms[:, 2] -= 0.5 * data["cub_lwh"][cars, 2]
    origin_from_map = np.stack([geometry.invert_matrix(pose) for pose in data["world_T_ego"]])[data["cub_frame"][cars]]
    at = np.einsum("nij,nj->ni", origin_from_map[:, :3], np.c_[bottoms, np.ones(len(bottoms))])
    at = at[(np.abs(at[:, 1]) < 12.0) & (at[:, 0] > -20.0) & (at[:, 0] < 40.0)]
    (ahead, left, height), *_ = np.linalg.lstsq(np.c_[at[:, :2], np.ones(len(at))], at[:, 2], rcond=None)

    up = np.array([-ahead, -left, 1.0]) / np.linalg.norm([ahead, left, 1.0])
    forward = np.array([1.0, 0.0, ahead]) / np.hypot(1.0, ahead)  # the origin's x axis, laid onto the road
    origin_from_base = np.eye(4)
    origin_from_base[:3, :3] = np.column_stack([forward, np.cross(up, forward), up])
    origin_from_base[2, 3] = height
    return origin_from_base


def _track_velocities(data: Mapping[str, Array]) -> Array:
    """(N, 3) m/s along world x and y, and rad/s, of each labelled box, by differencing its track over 0.4 s.

    The span is centred, because a backward one would lag. Boxes labelled as standing have velocity 0.
    """
    time = np.asarray(data["t"])[data["cub_frame"]]
    poses = np.column_stack([data["cub_xyz"][:, :2], data["cub_yaw"]]).astype(float)
    velocity = np.zeros((len(time), 3))
    for track in np.unique(data["cub_uuid"]):
        rows = np.flatnonzero(data["cub_uuid"] == track)
        rows = rows[np.argsort(time[rows])]
        here = np.arange(len(rows))
        after, before = rows[np.minimum(here + 2, len(rows) - 1)], rows[np.maximum(here - 2, 0)]
        change = poses[after] - poses[before]
        change[:, 2] = geometry.wrap(change[:, 2])
        velocity[rows] = change / np.maximum(time[after] - time[before], 1e-3)[:, None]
    velocity[data["cub_stationary"]] = 0.0
    return velocity


def _objects(stamp: int, data: Mapping[str, Array], frame: int, velocities: Array, map_from_base: Array) -> Any:
    """The boxes of one frame, without the ego's own box, whose centre is inside the ego."""
    vehicle = VehicleConfig()
    rows = np.flatnonzero(data["cub_frame"] == frame)
    in_base = (geometry.invert_matrix(map_from_base) @ np.c_[data["cub_xyz"][rows], np.ones(len(rows))].T)[:2].T
    in_base[:, 0] -= vehicle.rear_axle_to_center_m
    inside = (np.abs(in_base) < 0.5 * np.array([vehicle.length_m, vehicle.width_m])).all(axis=1)
    message = PredictedObjects(header=header(stamp, "map"))
    message.objects = [_object(data, row, velocities[row]) for row in rows[~inside]]
    return message


def _object(data: Mapping[str, Array], row: int, velocity: Array) -> Any:
    """One box with its twist in its own axes and a path at constant velocity whose first pose is the present one, as in
    Autoware.
    """
    (x, y, z), yaw = data["cub_xyz"][row].astype(float), float(data["cub_yaw"][row])
    times = PREDICTION_STEP_S * np.arange(PREDICTION_STEPS + 1)
    return predicted_object(
        UUID(str(data["cub_uuid"][row])).bytes,
        LABELS.get(str(data["cub_label"][row]), ObjectClassification.UNKNOWN),
        planar_pose(x, y, z, yaw),
        (*geometry.rotate(velocity[:2], -yaw), velocity[2]),
        data["cub_lwh"][row],
        np.array([x, y]) + times[:, None] * velocity[:2],
        PREDICTION_STEP_S,
    )


def _image(stamp: int, camera: str, file: Path) -> Any:
    """The JPEG bytes, read on access."""
    return compressed_image(stamp, camera, file.read_bytes())


# --- comma2k19 -------------------------------------------------------------------------------------------------------


def _comma2k19(folder: Path, data: Mapping[str, Array]) -> DemoRecording:
    """Speed from CAN, turning from the gyroscope, position from GNSS; heading is the camera's, less its mounting angle.

    The pose is that of the device behind the windscreen: where it sits on the car is not recorded, so it is not moved.
    """
    time = np.asarray(data["frame_t"])
    week, second = (float(value) for value in data["gps_time"][0])
    begin_s = GPS_EPOCH_UNIX_S + 604_800 * int(week) + second - GPS_LEAP_SECONDS
    stamps = _stamps(np.asarray(begin_s), time - time[0])

    course = np.arctan2(data["enu_vel"][:, 1], data["enu_vel"][:, 0])
    mounting = float(np.median(geometry.wrap(course - data["yaw"])))
    yaw = np.asarray(data["yaw"]) + mounting
    speed = np.interp(time, data["can_speed_t"], data["can_speed"])
    yaw_rate = np.interp(time, data["imu_t"], _moving_mean(-data["gyro_frd"][:, 2], 11))  # about 0.1 s of samples
    forward = np.interp(time, data["can_speed_t"], _derivative(data["can_speed_t"], data["can_speed"], 0.25))
    poses = np.column_stack([data["enu_xyz"][:, :2], yaw])
    heights = np.asarray(data["enu_xyz"])[:, 2]
    map_from_base = np.stack([geometry.matrix_from_pose(pose, z) for pose, z in zip(poses, heights, strict=True)])

    twists = np.stack([speed, np.zeros(len(speed)), yaw_rate], axis=1)
    accelerations = np.stack([forward, speed * yaw_rate], axis=1)
    events = _ego_events(stamps[0], stamps, map_from_base, yaw, twists, accelerations)
    return _recording("comma2k19_example", EGO_TOPICS, events)


def _moving_mean(values: Array, width: int) -> Array:
    """Moving mean over `width` samples, shorter at the ends."""
    kernel = np.ones(width)
    return np.asarray(np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same"))


def _derivative(time: Array, values: Array, half_span_s: float) -> Array:
    """Rate of change over a span centred on each sample: a simple gradient would amplify the steps of the CAN speed."""
    before, after = np.maximum(time - half_span_s, time[0]), np.minimum(time + half_span_s, time[-1])
    return np.asarray((np.interp(after, time, values) - np.interp(before, time, values)) / (after - before))


# --- messages that both have -----------------------------------------------------------------------------------------


def _stamps(unix0_s: Array, seconds: Array) -> list[int]:
    """Nanoseconds since 1970, from whole and fractional seconds: a double holds Unix time only to 0.2 microseconds."""
    whole, broken = divmod(float(unix0_s), 1.0)
    return [int(whole) * 10**9 + round((broken + float(second)) * 1e9) for second in seconds]


def _ego_events(
    begin: int, stamps: Sequence[int], map_from_base: Array, yaw: Array, twists: Array, accelerations: Array
) -> list[_Event]:
    """The route from the start on; odometry and acceleration (forward, left) at each stamp."""
    events = [_Event(begin, ROUTE, partial(_route, begin, map_from_base[:, :3, 3], yaw))]
    for stamp, pose, twist, forward_left in zip(stamps, map_from_base, twists, accelerations, strict=True):
        events.append(_Event(stamp, ODOMETRY, partial(_odometry, stamp, pose, twist)))
        events.append(_Event(stamp, ACCELERATION, partial(acceleration, stamp, forward_left)))
    return events


def _odometry(stamp: int, map_from_base: Array, twist: Sequence[float] | Array) -> Any:
    """`twist`: m/s forward, m/s left, rad/s about z, in base_link."""
    x, y, z = map_from_base[:3, 3].tolist()
    pose = Pose(position=Point(x=x, y=y, z=z), orientation=quaternion(quaternion_from_matrix(map_from_base)))
    return odometry(stamp, "map", pose, twist)


def _route(stamp: int, driven: Array, yaw: Array) -> Any:
    """The driven path (N, 3), every metre, and straight on from the last pose along its heading (N,)."""
    selected = [0]
    for i in range(1, len(driven)):  # a standing car's poses jitter: a point counts once the car has moved on
        if np.hypot(*(driven[i, :2] - driven[selected[-1], :2])) >= ROUTE_SPACING_M:
            selected.append(i)
    if selected[-1] != len(driven) - 1 and len(selected) > 1:
        selected.pop()  # the last pose replaces the one before, so that no short segment bends the route
    if selected[-1] != len(driven) - 1:
        selected.append(len(driven) - 1)
    beyond = driven[-1] + ROUTE_BEYOND_M * np.array([np.cos(yaw[-1]), np.sin(yaw[-1]), 0.0])
    line = np.concatenate([driven[selected], beyond[None]])
    along = geometry.arc_lengths(line)
    poses = geometry.sample(line, np.arange(0.0, along[-1], ROUTE_SPACING_M))
    heights = np.interp(np.arange(0.0, along[-1], ROUTE_SPACING_M), along, line[:, 2])
    return route(stamp, poses, "map", heights)
