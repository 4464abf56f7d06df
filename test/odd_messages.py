"""Hypothesis strategies of messages: from good ones to any values that the types can hold."""

from array import array
from pathlib import Path

import cv2
import numpy as np
from autoware_perception_msgs.msg import (
    ObjectClassification,
    PredictedObject,
    PredictedObjects,
    PredictedPath,
    TrackedObject,
    TrackedObjects,
)
from autoware_planning_msgs.msg import LaneletPrimitive, LaneletRoute, LaneletSegment
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import (
    AccelWithCovarianceStamped,
    Point,
    Point32,
    Pose,
    PoseStamped,
    Quaternion,
    TransformStamped,
    Vector3,
)
from hypothesis import strategies as st
from input_stream import moment, once
from messages import CAMERAS, image
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2, PointField
from std_msgs.msg import Header, String
from tf2_msgs.msg import TFMessage

from reflectdrive_ros.core.config import InputsConfig
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.ros.image_decoding import ENCODINGS

MAP = load_map(
    InputsConfig(
        route_type="lanelet", lanelet_map=str(Path(__file__).parent / "data/lanelet2_maps/cargo_transport_map.osm")
    )
)
LANES = sorted(MAP.lanelets)
ODD = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-320, 1e300, -1e300, 1e16]
reals = st.one_of(st.sampled_from(ODD), st.floats(-100.0, 100.0), st.floats())
# numbers of 32 bits: up to what rclpy takes, which is a little less than the largest there is
singles = st.one_of(
    st.sampled_from(ODD[:5]), st.floats(-100.0, 100.0, width=32), st.floats(-(2.0**127), 2.0**127, width=32)
)
words = st.one_of(st.sampled_from(["", "map", "/map", "base_link", "front_optical", "odom"]), st.text(max_size=6))
times = st.builds(
    Time, sec=st.one_of(st.sampled_from([0, 1]), st.integers(-(2**31), 2**31 - 1)), nanosec=st.integers(0, 2**32 - 1)
)
spans = st.builds(Duration, sec=st.integers(-3, 3), nanosec=st.integers(0, 2**32 - 1))
headers = st.builds(Header, stamp=st.one_of(st.just(Time(sec=1)), times), frame_id=words)
points = st.builds(Point, x=reals, y=reals, z=reals)
vectors = st.builds(Vector3, x=reals, y=reals, z=reals)
turns = st.one_of(
    st.just(Quaternion(x=0.0, y=0.0, z=0.0, w=1.0)), st.builds(Quaternion, x=reals, y=reals, z=reals, w=reals)
)
poses = st.builds(Pose, position=points, orientation=turns)
bytes_ = st.binary(max_size=64).map(lambda data: array("B", data))


def filled(message, **values):
    """A message with nested fields set: pose__position=.. is message.pose.position."""
    for name, value in values.items():
        *path, last = name.split("__")
        at = message
        for part in path:
            at = getattr(at, part)
        setattr(at, last, value)
    return message


odometries = st.builds(
    lambda **v: filled(Odometry(), **v),
    header=headers, pose__pose=poses, twist__twist__linear=vectors, twist__twist__angular=vectors,
)  # fmt: skip
accelerations = st.builds(
    lambda **v: filled(AccelWithCovarianceStamped(), **v), header=headers, accel__accel__linear=vectors
)
paths = st.builds(
    PathMessage,
    header=headers,
    poses=st.lists(st.builds(PoseStamped, header=st.just(Header()), pose=poses), max_size=8),
)
long_paths = st.builds(  # the same few points again and again
    lambda path, times: PathMessage(header=path.header, poses=path.poses * times), paths, st.integers(100, 2000)
)
segments = st.builds(
    LaneletSegment,
    preferred_primitive=st.builds(
        LaneletPrimitive,
        id=st.one_of(st.sampled_from(LANES), st.integers(-(2**63), 2**63 - 1)),
        primitive_type=words,
    ),
)
lane_points = st.sampled_from([lane[len(lane) // 2] for lane in (MAP._lane(number) for number in LANES[:20])])
on_lanes = st.builds(lambda at: Pose(position=Point(x=float(at[0]), y=float(at[1]), z=0.0)), lane_points)
lanelet_routes = st.builds(
    LaneletRoute,
    header=st.one_of(st.just(Header(frame_id="map")), headers),
    start_pose=st.one_of(on_lanes, poses),
    goal_pose=st.one_of(on_lanes, poses),
    segments=st.lists(segments, max_size=5),
)
sizes = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))
encodings = st.one_of(st.sampled_from([*ENCODINGS, "RGB8", ""]), st.text(max_size=5))
images = st.builds(Image, header=headers, height=sizes, width=sizes, step=sizes, encoding=encodings, data=bytes_)
GOOD_JPEG, GOOD_PNG = (cv2.imencode(kind, image())[1].tobytes() for kind in (".jpg", ".png"))
torn = st.builds(
    lambda good, begin, at, byte: (good[:at] + bytes([byte]) + good[at + 1 :])[: begin or None],
    st.sampled_from([GOOD_JPEG, GOOD_PNG]), st.integers(0, 900), st.integers(0, 900), st.integers(0, 255),
)  # fmt: skip
compressed = st.builds(
    CompressedImage, header=headers, format=words, data=st.one_of(torn.map(lambda data: array("B", data)), bytes_)
)
infos = st.builds(
    CameraInfo,
    header=headers,
    width=sizes,
    height=sizes,
    k=st.lists(reals, min_size=9, max_size=9).map(np.array),
    distortion_model=words,
    d=st.lists(reals, max_size=6).map(lambda d: array("d", d)),
)
transforms = st.builds(
    lambda header, child, t, q: filled(
        TransformStamped(header=header, child_frame_id=child), transform__translation=t, transform__rotation=q
    ),
    headers, words, vectors, turns,
)  # fmt: skip
tf_messages = st.builds(TFMessage, transforms=st.lists(transforms, max_size=5))
classes = st.builds(ObjectClassification, label=st.integers(0, 255), probability=singles)
corner = st.builds(Point32, x=singles, y=singles, z=singles)


def objects_of(kind, item, names):
    """Strategy of PredictedObjects or TrackedObjects; `names`: where pose and twist are."""
    values = {
        "existence_probability": singles,
        "classification": st.lists(classes, max_size=3),
        f"kinematics__{names[0]}__pose": poses,
        f"kinematics__{names[1]}__twist__linear": vectors,
        "shape__type": st.integers(0, 255),
        "shape__dimensions": st.one_of(st.just(Vector3(x=4.5, y=1.9, z=1.6)), vectors),
        "shape__footprint__points": st.lists(corner, max_size=4),
    }
    if item is PredictedObject:
        path = st.builds(PredictedPath, path=st.lists(poses, max_size=4), time_step=spans, confidence=singles)
        values["kinematics__predicted_paths"] = st.lists(path, max_size=2)
    items = st.builds(lambda **v: filled(item(), **v), **values)
    header = st.one_of(st.just(Header(stamp=Time(sec=1), frame_id="map")), headers)
    return st.builds(kind, header=header, objects=st.lists(items, max_size=5))


predicted = objects_of(
    PredictedObjects, PredictedObject, ("initial_pose_with_covariance", "initial_twist_with_covariance")
)
tracked = objects_of(TrackedObjects, TrackedObject, ("pose_with_covariance", "twist_with_covariance"))
point_fields = st.builds(
    PointField,
    name=st.sampled_from(["x", "y", "z", "z", "intensity"]),
    offset=st.one_of(st.integers(0, 20), st.integers(0, 2**32 - 1)),
    datatype=st.one_of(st.sampled_from([7, 8]), st.integers(0, 255)),
    count=st.sampled_from([0, 1, 1, 2]),
)
xyz = [PointField(name=name, offset=4 * k, datatype=7, count=1) for k, name in enumerate("xyz")]
clouds = st.builds(
    PointCloud2,
    header=st.one_of(st.just(Header(stamp=Time(sec=1), frame_id="base_link")), headers),
    height=st.one_of(st.just(1), sizes),
    width=sizes,
    fields=st.one_of(st.just(xyz), st.lists(point_fields, max_size=5)),
    is_bigendian=st.booleans(),
    point_step=st.one_of(st.just(12), sizes),
    row_step=sizes,
    data=st.one_of(bytes_, st.binary(max_size=400).map(lambda data: array("B", data))),
)


def named(how, *inputs):
    """What a conversion makes of its input, or None where it refuses with its one exception and a sentence."""
    try:
        return how(*inputs)
    except BadMessage as fault:
        message = str(fault)
    assert 0 < len(message.strip()) < 600
    return None


STREAM = {
    "odometry": odometries,
    "acceleration": accelerations,
    "route": st.one_of(paths, long_paths),
    "objects": predicted,
    "tf_static": tf_messages,
    "instruction": st.builds(String, data=st.text(max_size=20)),
    **{f"image:{name}": compressed for name in CAMERAS},
    **{f"info:{name}": infos for name in CAMERAS},
}


def good(seconds):
    """A whole good instant."""
    yield from once()
    yield from moment(seconds)
