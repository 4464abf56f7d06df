"""Whatever arrives, nothing but the named exceptions gets out: messages, images, settings, files.

A few thousand inputs in the ordinary tests, always the same, shared out among the files test_fuzz*.py. `make fuzz`
tries a million, others each time; what it finds is printed as a small example, which belongs into the tests of the
module at fault. It writes to docs/bench/long_runs/fuzz.json how many inputs each test was called with.
"""

from array import array
from unittest import mock

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st
from messages import ns, odometry
from odd_messages import (
    MAP,
    STREAM,
    accelerations,
    clouds,
    compressed,
    encodings,
    good,
    images,
    infos,
    lanelet_routes,
    long_paths,
    named,
    odometries,
    paths,
    predicted,
    reals,
    singles,
    tf_messages,
    tracked,
    words,
    xyz,
)
from scenes import Clock, config
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Header

from reflectdrive_ros.core.config import Config, ConfigError, load, override, override_dotted
from reflectdrive_ros.core.config import settings as leaves
from reflectdrive_ros.ros import convert, image_decoding, obstacles, outputs, plan_messages
from reflectdrive_ros.ros.planning_core import PlanningCore

# numpy may grumble where numbers overflow; what comes out is what counts
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# --- what may arrive -------------------------------------------------------------------------------------------------


fitting_images = st.builds(
    lambda height, width, encoding, spare, short: Image(
        header=Header(stamp=Time(sec=1), frame_id="front_optical"), height=height, width=width, encoding=encoding,
        step=width * 3 + spare, data=array("B", bytes(max(0, height * (width * 3 + spare) - short))),
    ),
    st.integers(0, 9), st.integers(0, 9), encodings, st.integers(0, 3), st.integers(0, 2),
)  # fmt: skip
fitting_clouds = st.lists(st.tuples(singles, singles, singles), max_size=30).map(
    lambda points: PointCloud2(
        header=Header(stamp=Time(sec=1), frame_id="base_link"), height=1, width=len(points), fields=xyz, point_step=12,
        row_step=12 * len(points), data=array("B", np.array(points, "<f4").tobytes()),
    )
)  # fmt: skip


# --- each conversion by itself ---------------------------------------------------------------------------------------


@fuzzed(2)
@given(odometries)
def test_odometry(message):
    ego = named(convert.ego_state, message, "map")
    assert ego is None or np.isfinite([*ego.map_from_ego, ego.speed_mps, ego.yaw_rate_rps]).all()


@fuzzed()
@given(accelerations)
def test_acceleration(message):
    acceleration_mps2 = named(convert.acceleration, message)
    assert acceleration_mps2 is None or np.isfinite(acceleration_mps2)


@fuzzed()
@given(st.one_of(paths, paths, paths, long_paths))
def test_paths(message):
    with mock.patch.object(convert, "ROUTE_POINTS_MAX", 50):
        poses = named(convert.path_route, message, "map")
    assert poses is None or (np.isfinite(poses).all() and 2 <= len(poses) <= 51)


@fuzzed()
@given(lanelet_routes)
def test_lanelet_routes(message):
    route_in_map = named(MAP.route, message, "map", 200)
    assert route_in_map is None or np.isfinite(route_in_map[0]).all()


@fuzzed(2)
@given(st.one_of(images, fitting_images, compressed))
def test_images(message):
    image = named(image_decoding.pixels, message, "front", 64, 36)
    assert image is None or (image[0].shape == (36, 64, 3) and image[0].dtype == np.uint8)
    image_decoding.digest(message)


@fuzzed()
@given(infos)
def test_camera_infos(message):
    parameters = named(convert.intrinsics, message, "front")
    assert parameters is None or np.isfinite(parameters).all()


@fuzzed()
@given(tf_messages, words)
def test_transforms(message, frame):
    matrix = named(convert.camera_from_ego, convert.static_transforms(message), "front", frame)
    assert matrix is None or np.isfinite(matrix).all()


@fuzzed(2)
@given(st.one_of(predicted, tracked), st.integers(1, 4))
def test_objects(message, count_max):
    map_agents = named(convert.map_agents, message, "map", np.zeros(2), 40.0, count_max)
    if map_agents is not None:
        ego = convert.ego_state(odometry(1.0), "map")
        agents = convert.agents_to_ego_frame(map_agents, ego)
        assert len(agents) <= count_max
        assert np.isfinite(agents.poses).all()


@fuzzed(2)
@given(st.one_of(clouds, fitting_clouds), st.integers(1, 3))
def test_clouds(message, least):
    ego = convert.ego_state(odometry(1.0), "map")
    with mock.patch.multiple(obstacles, CELL_POINTS_MIN=least, BOXES_MAX=5):
        cloud_boxes = named(obstacles.obstacle_boxes, message, {}, ego, None, Config().vehicle)
    if cloud_boxes is not None:
        assert len(cloud_boxes.boxes) <= 5
        assert np.isfinite(cloud_boxes.boxes.poses).all()
        assert np.abs(cloud_boxes.boxes.poses[:, :2]).max(initial=0.0) < obstacles.RANGE_M + 1.0


# --- all of it together: what the node does with a stream -------------------------------------------------------------

one = st.sampled_from(sorted(STREAM)).flatmap(lambda key: st.tuples(st.just(key), STREAM[key]))


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
            sent = plan_messages.plan_points(report.plan, core.config)
            plan_messages.trajectory_bytes(report.plan.stamp_ns, sent, core.config.output.map_frame)
    outputs.diagnostics(core.statuses(now), now, "reflectdrive")


# --- settings --------------------------------------------------------------------------------------------------------

scalars = st.one_of(st.none(), st.booleans(), st.integers(), reals, st.text(max_size=10), st.binary(max_size=4))
nested = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
NAMES = sorted({leaf.name for leaf in leaves(Config())} | {leaf.name.split(".")[0] for leaf in leaves(Config())})


def configured(how, *arguments):
    try:
        assert isinstance(how(*arguments), Config)
    except ConfigError as fault:
        message = str(fault)
        assert message.strip()


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
