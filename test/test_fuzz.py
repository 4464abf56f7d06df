"""Whatever arrives, nothing but the named exceptions gets out: messages, images, settings, files.

A few thousand inputs in the ordinary tests, always the same, shared out among the files test_fuzz*.py. `make fuzz`
tries a million, others each time; what it finds is printed as a small example, which belongs into the tests of the
module at fault. It writes to docs/bench/long_runs/fuzz.json how many inputs each test was called with.
"""

import functools
import os
from array import array
from collections import Counter
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
import pytest
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import (
    CAMERAS,
    acceleration,
    camera_info,
    image,
    jpeg,
    ns,
    odometry,
    predicted_objects,
    route,
    tf_static,
)
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from scenes import Clock, config
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2, PointField
from std_msgs.msg import Header, String
from tf2_msgs.msg import TFMessage

from reflectdrive_ros.core.config import Config, ConfigError, InputsConfig, load, override, override_dotted
from reflectdrive_ros.core.config import settings as leaves
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.ros import convert, image_decoding, obstacles, outputs, raw_images
from reflectdrive_ros.ros.planning_core import PlanningCore

# numpy may grumble where numbers overflow; what comes out is what counts
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LONG = "REFLECTDRIVE_FUZZ_INPUTS" in os.environ
INPUTS = int(os.environ.get("REFLECTDRIVE_FUZZ_INPUTS", "1750"))
SHARES = 70  # the tests of these files share the inputs; those that are cheap take several shares
TRIED: Counter[str] = Counter()  # inputs by test
MAP = load_map(
    InputsConfig(
        route_type="lanelet", lanelet_map=str(Path(__file__).parent / "data/lanelet2_maps/cargo_transport_map.osm")
    )
)
LANES = sorted(MAP.lanelets)


def fuzzed(shares=1):
    """So many shares of all inputs; others each time in the long run, the same ones otherwise."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    long = settings(
        max_examples=max(5, shares * INPUTS // SHARES),
        derandomize=not LONG,
        database=None,
        suppress_health_check=checks,
    )

    def decorate(test):
        inner = test.hypothesis.inner_test

        @functools.wraps(inner)
        def counted(*args, **inputs):
            TRIED[test.__name__] += 1
            return inner(*args, **inputs)

        test.hypothesis.inner_test = counted
        return long(test)

    return decorate


# --- what may arrive -------------------------------------------------------------------------------------------------

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
encodings = st.one_of(st.sampled_from([*raw_images.ENCODINGS, "RGB8", ""]), st.text(max_size=5))
images = st.builds(Image, header=headers, height=sizes, width=sizes, step=sizes, encoding=encodings, data=bytes_)
fitting_images = st.builds(
    lambda height, width, encoding, spare, short: Image(
        header=Header(stamp=Time(sec=1), frame_id="front_optical"), height=height, width=width, encoding=encoding,
        step=width * 3 + spare, data=array("B", bytes(max(0, height * (width * 3 + spare) - short))),
    ),
    st.integers(0, 9), st.integers(0, 9), encodings, st.integers(0, 3), st.integers(0, 2),
)  # fmt: skip
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
    made = st.builds(lambda **v: filled(item(), **v), **values)
    header = st.one_of(st.just(Header(stamp=Time(sec=1), frame_id="map")), headers)
    return st.builds(kind, header=header, objects=st.lists(made, max_size=5))


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
fitting_clouds = st.lists(st.tuples(singles, singles, singles), max_size=30).map(
    lambda points: PointCloud2(
        header=Header(stamp=Time(sec=1), frame_id="base_link"), height=1, width=len(points), fields=xyz, point_step=12,
        row_step=12 * len(points), data=array("B", np.array(points, "<f4").tobytes()),
    )
)  # fmt: skip


# --- each conversion by itself ---------------------------------------------------------------------------------------


def named(how, *given):
    """What a conversion makes of its input, or None where it refuses with its one exception and a sentence."""
    try:
        return how(*given)
    except BadMessage as fault:
        said = str(fault)
    assert 0 < len(said.strip()) < 600
    return None


@fuzzed(2)
@given(odometries)
def test_odometry(message):
    made = named(convert.ego_state, message, "map")
    assert made is None or np.isfinite([*made.map_from_ego, made.speed_mps, made.yaw_rate_rps]).all()


@fuzzed()
@given(accelerations)
def test_acceleration(message):
    made = named(convert.acceleration, message)
    assert made is None or np.isfinite(made)


@fuzzed()
@given(st.one_of(paths, paths, paths, long_paths))
def test_paths(message):
    made = named(convert.path_route, message, "map", 50)
    assert made is None or (np.isfinite(made).all() and 2 <= len(made) <= 51)


@fuzzed()
@given(lanelet_routes)
def test_lanelet_routes(message):
    made = named(MAP.route, message, "map", 200)
    assert made is None or np.isfinite(made[0]).all()


@fuzzed(2)
@given(st.one_of(images, fitting_images, compressed))
def test_images(message):
    made = named(image_decoding.pixels, message, "front", 64, 36)
    assert made is None or (made[0].shape == (36, 64, 3) and made[0].dtype == np.uint8)
    image_decoding.digest(message)


@fuzzed()
@given(infos)
def test_camera_infos(message):
    made = named(convert.intrinsics, message, "front")
    assert made is None or np.isfinite(made).all()


@fuzzed()
@given(tf_messages, words)
def test_transforms(message, frame):
    made = named(convert.camera_from_ego, convert.static_transforms(message), "front", frame)
    assert made is None or np.isfinite(made).all()


@fuzzed(2)
@given(st.one_of(predicted, tracked), st.integers(1, 4))
def test_objects(message, count_max):
    made = named(convert.map_agents, message, "map", np.zeros(2), 40.0, count_max)
    if made is not None:
        ego = convert.ego_state(odometry(1.0), "map")
        agents = convert.agents_to_ego_frame(made, ego)
        assert len(agents) <= count_max
        assert np.isfinite(agents.poses).all()


@fuzzed(2)
@given(st.one_of(clouds, fitting_clouds), st.integers(1, 3))
def test_clouds(message, least):
    ego = convert.ego_state(odometry(1.0), "map")
    with mock.patch.multiple(obstacles, CELL_POINTS_MIN=least, BOXES_MAX=5):
        made = named(obstacles.obstacle_boxes, message, {}, ego, None, Config().vehicle)
    if made is not None:
        assert len(made.boxes) <= 5
        assert np.isfinite(made.boxes.poses).all()
        assert np.abs(made.boxes.poses[:, :2]).max(initial=0.0) < obstacles.RANGE_M + 1.0


# --- all of it together: what the node does with a stream -------------------------------------------------------------

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
one = st.sampled_from(sorted(STREAM)).flatmap(lambda key: st.tuples(st.just(key), STREAM[key]))


def good(seconds):
    """A whole good instant."""
    yield "route", route()
    yield "tf_static", tf_static()
    yield "odometry", odometry(seconds, x=5.0 * seconds)
    yield "acceleration", acceleration(seconds)
    yield "objects", predicted_objects(seconds, (60.0, 0.0, 0.0, 5.0, 4.5))
    for camera in CAMERAS:
        yield f"info:{camera}", camera_info(camera)
        yield f"image:{camera}", jpeg(seconds, camera, round(10 * seconds))


@pytest.mark.parametrize("planner", ["constant_velocity", "route_follower"])
@fuzzed()
@given(bad=st.lists(one, min_size=1, max_size=6), mended=st.booleans(), jump_s=st.sampled_from([0.0, 0.1, 10.0, -10.0]))
def test_a_planning_core_answers_whatever_it_is_told(planner, bad, mended, jump_s):
    """After any messages: a plan of finite numbers or none, and diagnostics that can be sent."""
    core = PlanningCore(config(cameras__width=64, cameras__height=36, planner=planner), Clock())
    for key, message in good(1.0):
        core.put(key, message, ns(1.0))
    assert core.step(ns(1.0)).report is not None
    now = ns(1.1 + jump_s)
    for key, message in bad:
        core.put(key, message, now)
    core.due(now)
    stop = core.stop(now, "the watchdog asks")
    reports = [core.step(now).report, stop and stop[0]]
    if mended:  # a good instant on top: the node must not stay broken
        for key, message in good(1.2 + jump_s):
            core.put(key, message, now)
        reports.append(core.step(ns(1.2 + jump_s)).report)
    for report in reports:
        if report is not None:
            points = outputs.trajectory(report.plan, core.config).points
            assert np.isfinite([p.pose.position.x for p in points]).all()
            sent = outputs.plan_points(report.plan, core.config)
            outputs.trajectory_bytes(report.plan.stamp_ns, sent, core.config.output.map_frame)
    outputs.diagnostics(core.statuses(now), now, "reflectdrive")


# --- settings --------------------------------------------------------------------------------------------------------

scalars = st.one_of(st.none(), st.booleans(), st.integers(), reals, st.text(max_size=10), st.binary(max_size=4))
nested = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
NAMES = sorted({leaf.name for leaf in leaves(Config())} | {leaf.name.split(".")[0] for leaf in leaves(Config())})


def configured(how, *given):
    try:
        assert isinstance(how(*given), Config)
    except ConfigError as fault:
        said = str(fault)
        assert said.strip()


@fuzzed()
@given(st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), nested, max_size=3))
def test_dotted_settings(values):
    configured(override_dotted, Config(), values)


@fuzzed()
@given(nested)
def test_nested_settings(values):
    configured(override, Config(), values)


yaml_words = st.sampled_from(
    [*NAMES, ":", " ", "\n", "  ", "- ", "[", "]", "{", "}", "&a", "*a", "!!", "'", '"', "#", "1", "|"]
)


@fuzzed(2)
@given(
    content=st.one_of(
        st.binary(max_size=60), st.lists(yaml_words, max_size=12).map(lambda words: "".join(words).encode())
    )
)
def test_configuration_files(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_bytes(content)
    configured(load, file)
