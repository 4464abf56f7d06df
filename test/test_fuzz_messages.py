"""Any bytes on a topic and any header of an image: the node plans on, and memory and time are bounded.

The number of inputs is that of fuzzing.py. What the long run finds belongs into the tests below as a small example.
"""

import struct
import tracemalloc
import zlib
from array import array
from itertools import pairwise
from unittest import mock

import cv2
import numpy as np
import odd_messages
import pytest
from autoware_internal_planning_msgs.msg import VelocityLimit
from autoware_map_msgs.msg import LaneletMapBin
from autoware_perception_msgs.msg import TrafficLightElement, TrafficLightGroup, TrafficLightGroupArray
from autoware_planning_msgs.msg import LaneletPrimitive, LaneletRoute, LaneletSegment
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st
from input_stream import status_of
from messages import CAMERAS, camera_info, image, jpeg, ns, odometry, predicted_objects, raw, route, tf_static
from nav_msgs.msg import OccupancyGrid
from processor_time import in_loops
from rclpy.serialization import deserialize_message, serialize_message
from scenes import Clock, config
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header, String

from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.ros import cdr, convert, definitions, image_decoding, topics
from reflectdrive_ros.ros.bag import type_name_of
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.planning_core import PlanningCore

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

HOLD_LOOPS = 8.0  # no message may hold the executor's thread for longer: about 0.1 s, see processor_time.py

grids = st.builds(
    lambda header, cells: OccupancyGrid(header=header, data=array("b", cells)),
    odd_messages.headers, st.lists(st.integers(-128, 127), max_size=20),
)  # fmt: skip
maps = st.builds(
    lambda header, data: LaneletMapBin(header=header, data=data), odd_messages.headers, odd_messages.bytes_
)
elements = st.builds(
    lambda colour, shape, status: TrafficLightElement(color=colour, shape=shape, status=status),
    st.integers(0, 255), st.integers(0, 255), st.integers(0, 255),
)  # fmt: skip
lights = st.builds(
    lambda groups: TrafficLightGroupArray(
        traffic_light_groups=[TrafficLightGroup(traffic_light_group_id=key, elements=some) for key, some in groups]
    ),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.lists(elements, max_size=4)), max_size=5),
)
limits = st.builds(lambda value: VelocityLimit(max_velocity=value), odd_messages.singles)
EVERY = {
    **odd_messages.STREAM,
    "route": odd_messages.paths,
    "lanelet route": odd_messages.lanelet_routes,
    "tracked objects": odd_messages.tracked,
    "raw image": odd_messages.images,
    "obstacles": odd_messages.clouds,
    "drivable": grids,
    "map": maps,
    "lights": lights,
    "max_velocity": limits,
}
messages = st.sampled_from(sorted(EVERY)).flatmap(lambda key: EVERY[key])


def same(read, expected):
    """Asserts that all fields of a message that `cdr` read are those of the ROS message."""
    if hasattr(expected, "get_fields_and_field_types"):
        for name in expected.get_fields_and_field_types():
            same(getattr(read, name), getattr(expected, name))
    elif isinstance(expected, str):
        assert read == expected.encode(errors="replace").decode()
    elif len(expected) if hasattr(expected, "__len__") else False:
        assert len(read) == len(expected)
        if hasattr(expected[0], "get_fields_and_field_types"):
            for mine, its in zip(read, expected, strict=True):
                same(mine, its)
        else:
            np.testing.assert_array_equal(np.asarray(read), np.asarray(expected))
    elif hasattr(expected, "__len__"):
        assert len(read) == 0
    else:
        np.testing.assert_equal(read, expected)


def every_field(message):
    """Reads all of a message; what `cdr.read` let pass must not fail later."""
    if isinstance(message, cdr.Message):
        for name in message._kind.fields:
            every_field(getattr(message, name))
    elif isinstance(message, (list, cdr.Items)):
        for item in message:
            every_field(item)


@fuzzed(4)
@given(messages)
def test_cdr_reads_what_rclpy_reads(message):
    content, kind = serialize_message(message), type(message)
    for layout in (cdr.message_layout(kind), definitions.layout(type_name_of(kind))):
        same(cdr.read(content, layout, 1000), deserialize_message(content, kind))


def test_big_endian_bytes_are_read_alike():
    little = serialize_message(String(data="turn left"))
    big = bytes([0, 0]) + little[2:4] + struct.pack(">I", 10) + little[8:]
    assert cdr.read(big, cdr.message_layout(String), 10).data == "turn left"
    header = b"\0\0\0\0" + struct.pack(">iII", 7, 8, 4) + b"map\0"
    read = cdr.read(header, cdr.message_layout(Header), 10)
    assert (read.stamp.sec, read.stamp.nanosec, read.frame_id) == (7, 8, "map")


@st.composite
def harmed(draw):
    """(bytes, class) of a message that was cut, filled up, overwritten or is of another type; or of mere noise."""
    message, other = draw(messages), draw(messages)
    content = bytearray(draw(st.sampled_from([serialize_message(message), draw(st.binary(max_size=80))])))
    for _ in range(draw(st.integers(0, 3))):
        if len(content) >= 4:
            at = 4 * draw(st.integers(0, len(content) // 4 - 1))
            words = st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 10**6, 10**9])
            content[at : at + 4] = struct.pack("<I", draw(st.one_of(words, st.integers(0, 2**32 - 1))))
    content = bytes(content)[: draw(st.one_of(st.none(), st.integers(0, len(content))))]
    return content + draw(st.binary(max_size=9)), type(draw(st.sampled_from([message, message, other])))


@fuzzed(6)
@given(harmed())
def test_any_bytes_are_a_message_or_a_sentence(what):
    content, kind = what
    read = odd_messages.named(cdr.read, content, cdr.message_layout(kind), 1000)
    if read is not None:
        every_field(read)


def topic_types(**settings):
    read = [topic for topic in topics.inputs(config(**settings)) if topics.is_installed(topic.type)]
    return {topic.key: topics.message_class(topic.type) for topic in read}


KINDS = [
    {"cameras__width": 64, "cameras__height": 36, "planner": "constant_velocity", **settings}
    for settings in (
        {},
        {"inputs__drivable_type": "grid", "inputs__obstacles_type": "cloud", "inputs__objects_type": "tracked"},
        {"inputs__route_type": "lanelet", "cameras__compressed": False},
    )
]


def set_out(settings):
    """A core that has planned from a good instant at 1.0 s."""
    core = PlanningCore(config(**settings), Clock())
    for key, message in odd_messages.good(1.0):
        core.receive(key, serialize_message(message), ns(1.0))
    assert core.step(ns(1.0)).report.source is PlanSource.PLANNER
    return core


@pytest.mark.parametrize("settings", KINDS, ids=["default", "grid, cloud, tracked", "lanelet, raw"])
def test_bytes_that_are_no_message_are_counted_and_named_and_change_nothing(settings):
    """On every topic: nothing at all, noise, half a message, one of another type, a forged length, too much."""
    core = set_out(KINDS[0])  # what is good is of the default's types
    core.inputs = type(core.inputs)(config(**settings))
    rng = np.random.default_rng(0)
    for key, kind in topic_types(**settings).items():
        good = serialize_message(kind())
        other = serialize_message(String(data="x" * 50) if kind is not String else odometry(1.0))
        at = 4 if key in ("tf_static", "instruction") else 12  # its first length
        forged = good[:at] + b"\xff\xff\xff\x7f" + good[at + 4 :]
        noise = b"\0\1\0\0" + rng.bytes(200)
        bad = [b"", b"\0\1", rng.bytes(200), noise, good[: len(good) // 2], other, forged, bytes(40_000_000)]
        channel = core.inputs.store.channel(key.partition(":")[0], key.partition(":")[2])
        before = list(channel.messages)
        for content in bad:
            assert core.receive(key, content, ns(1.05)) is None
        assert channel.refused == len(bad), key
        assert list(channel.messages) == before
        status = status_of(core, channel.name, 1.06)
        assert f"{channel.name}: {len(bad)} messages refused, the last one: a message of 40.00 MB" in status.message
        assert status.level >= Level.WARN
        assert status.values["refused"] == str(len(bad))


def test_a_node_plans_on_between_bad_messages():
    core = set_out(KINDS[0])
    rng = np.random.default_rng(1)
    for k in range(1, 20):
        now = 1.0 + 0.1 * k
        for key, message in odd_messages.good(now):
            core.receive(key, serialize_message(message), ns(now))
            core.receive(key, rng.bytes(int(rng.integers(0, 300))), ns(now))
        assert core.step(ns(now)).report.source is PlanSource.PLANNER
    assert {s.level for s in core.statuses(ns(now)) if "refused" in s.values} >= {Level.WARN}
    latched = {"route", "tf_static", *(f"camera_info {camera}" for camera in CAMERAS)}
    later = ns(now + 4.0)
    named = {s.name for s in core.statuses(later) if "messages refused" in s.message}
    assert latched <= named <= {*latched, "instruction", "max_velocity"}  # those are not sent again by themselves
    for key, message in [*odd_messages.good(now + 4.0), ("instruction", String(data="go"))]:
        core.receive(key, serialize_message(message), later)
    assert not any("messages refused" in s.message for s in core.statuses(later))  # and forgotten with a good one


@pytest.mark.parametrize(
    "make",
    [
        lambda: predicted_objects(1.0, (60.0, 0.0, 0.0, 5.0, 4.5)),
        route,
        tf_static,
        lambda: odometry(1.0),
        camera_info,
        lambda: jpeg(1.0),
        lambda: raw(1.0),
    ],
)
def test_a_forged_length_allocates_nothing(make):
    """Each word of a message in turn promises a thousand million elements."""
    message = make()
    good, layout = serialize_message(message), cdr.message_layout(type(message))
    words = range(4, min(len(good), 2000) - 4, 4)
    tracemalloc.start()
    try:
        refused = 0
        for at in words:
            read = odd_messages.named(cdr.read, good[:at] + struct.pack("<I", 10**9) + good[at + 4 :], layout, 20_000)
            refused += read is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused >= 1  # at least one of them is a length
    assert peak < 2_000_000 + 4 * len(good)


# --- time ------------------------------------------------------------------------------------------------------------


def largest():
    """(what, key, message) that come near to a limit, or pass it."""
    yield "objects near 2 MB", "objects", predicted_objects(1.0, *[(k, 0.0, 0.0, 5.0, 4.5) for k in range(1150)])
    yield "path of 20,000 points", "route", route([(k, 0.0) for k in range(20_000)])
    transforms = tf_static()
    transforms.transforms = [transforms.transforms[k % 3] for k in range(1000)]
    yield "1000 transforms", "tf_static", transforms
    transforms = tf_static()
    transforms.transforms = [transforms.transforms[k % 3] for k in range(20_000)]
    yield "20,000 transforms", "tf_static", transforms
    image = CompressedImage(header=jpeg(1.0).header, format="jpeg")
    image.data = array("B", jpeg(1.0).data.tobytes() + bytes(35_900_000))
    yield "JPEG of 36 MB", "image:front", image
    yield "instruction of 60 kB", "instruction", String(data="go " * 20_000)


@pytest.mark.parametrize(("what", "key", "message"), [pytest.param(*each, id=each[0]) for each in largest()])
def test_no_message_holds_the_executor_for_long(what, key, message):
    content = serialize_message(message)
    new_core = lambda: (PlanningCore(config(**KINDS[0]), Clock()),)  # noqa: E731
    assert in_loops(lambda core: core.receive(key, content, ns(1.0)), new_core) < HOLD_LOOPS


def as_sent(points):
    return serialize_message(route([(k, 0.0) for k in range(points)]))


def with_route(points):
    """A core that has received a route of so many points, and its report at 1.0 s."""
    core = PlanningCore(config(**KINDS[0]), Clock())
    for key, message in odd_messages.good(1.0):
        core.receive(key, as_sent(points) if key == "route" else serialize_message(message), ns(1.0))
    return core, core.step(ns(1.0)).report


def test_a_route_of_almost_20000_points_is_driven_and_a_longer_one_stops_the_car_with_both_numbers():
    core, report = with_route(19_999)
    assert (report.source, report.reason) == (PlanSource.PLANNER, "")
    assert core.inputs.store.cache.route[2].poses[-1, 0] == 19_998.0
    assert status_of(core, "route", 1.0).level is Level.OK
    _, report = with_route(20_001)
    assert report.source is PlanSource.STOP
    assert "route: a message of at least 20001 items is not read, at most 20000 are: send fewer" in report.reason


def test_a_car_drives_on_along_its_route_when_one_that_is_too_long_comes():
    core = set_out(KINDS[0])
    core.receive("route", as_sent(20_001), ns(1.0))
    for seconds in (1.1, 10.0):
        for key, message in odd_messages.good(seconds):
            if key != "route":
                core.receive(key, serialize_message(message), ns(seconds))
        assert core.step(ns(seconds)).report.source is PlanSource.PLANNER
        status = status_of(core, "route", seconds)
        assert status.level is Level.WARN
        assert "at most 20000 are: send fewer; the one before it stays in use" in status.message
    assert core.inputs.store.cache.route[2].poses[-1, 0] == 99.0  # of the route before
    core.receive("route", as_sent(200), ns(10.0))
    assert status_of(core, "route", 10.0).level is Level.OK


@pytest.mark.parametrize(
    ("make", "items"),
    [
        (lambda: route([(k, 0.0) for k in range(50)]), 50),
        (lambda: predicted_objects(1.0, *[(k, 0.0, 0.0, 5.0, 4.5) for k in range(40)]), 3 * 40),  # class and path each
        (lambda: lights_of(30, 5), 30 + 30 * 5),
        (lambda: lanelet_route_of(20, 6), 20 + 20 * 6),
        (lambda: tf_static(), 3),
    ],
    ids=["path", "objects", "lights", "lanelet route", "tf"],
)
def test_every_item_of_a_message_counts_once_however_often_it_is_read(make, items):
    message = make()
    content, kind = serialize_message(message), type(message)
    for _ in range(2):
        read = cdr.read(content, cdr.message_layout(kind), items)
        for _ in range(2):
            same(read, message)
    with pytest.raises(cdr.TooLarge, match=f"at least [0-9]+ items is not read, at most {items - 1} are"):
        cdr.read(content, cdr.message_layout(kind), items - 1)


def lights_of(groups, lamps):
    some = [TrafficLightElement(color=TrafficLightElement.RED)] * lamps
    rows = [TrafficLightGroup(traffic_light_group_id=key, elements=some) for key in range(groups)]
    return TrafficLightGroupArray(traffic_light_groups=rows)


def lanelet_route_of(segments, lanes):
    lane = LaneletPrimitive(id=1, primitive_type="lane")
    return LaneletRoute(segments=[LaneletSegment(preferred_primitive=lane, primitives=[lane] * lanes)] * segments)


# --- images ----------------------------------------------------------------------------------------------------------


def png_of(width, height, bits=1):
    """A grey PNG of zeros: few bytes, many pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = bytes((1 + -(-width * bits // 8)) * height)
    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def compressed(data, seconds=1.0, camera="front"):
    message = jpeg(seconds, camera)
    message.data = array("B", data)
    return message


def test_an_image_bomb_is_refused_by_its_header_and_the_node_plans_on():
    bomb = png_of(20_000, 20_000)
    assert cv2.imdecode(np.frombuffer(png_of(200, 200), np.uint8), cv2.IMREAD_COLOR).shape == (200, 200, 3)
    core = set_out(KINDS[0])
    for key, message in odd_messages.good(1.1):
        core.receive(key, serialize_message(message), ns(1.1))
    bombs = {f"image:{camera}": serialize_message(compressed(bomb, 1.15, camera)) for camera in CAMERAS}
    assert in_loops(lambda: [core.receive(key, data, ns(1.15)) for key, data in bombs.items()]) < HOLD_LOOPS
    assert core.step(ns(1.15)).report.source is PlanSource.PLANNER
    status = status_of(core, "image front", 1.15)
    assert "an image of 20000 x 20000 px is not decoded, at most 16 megapixels are" in status.message


@pytest.mark.parametrize("size", [(5000, 4000), (65_535, 65_535)])
def test_a_jpeg_and_a_raw_image_of_too_many_pixels_are_refused(size):
    width, height = size
    good = jpeg(1.0).data.tobytes()
    at = good.index(b"\xff\xc0") + 5
    forged = good[:at] + struct.pack(">HH", height, width) + good[at + 4 :]
    for message in (compressed(forged), Image(width=width, height=height, encoding="mono8", step=width)):
        with pytest.raises(BadMessage, match=f"{width} x {height} px is not decoded"):
            image_decoding.check_image_size(message, "front")


@pytest.mark.parametrize("kind", [".bmp", ".webp", ".tiff", ".jp2", ".ppm", ".hdr", ".gif", ".avif", ".pfm", ".ras"])
def test_formats_other_than_jpeg_and_png_are_refused_in_one_sentence(kind):
    """Whether or not this OpenCV decodes them: what their headers promise is not checked."""
    try:
        pixels = image().astype(np.float32) if kind in (".hdr", ".pfm") else image()
        done, encoded = cv2.imencode(kind, pixels)
    except cv2.error:
        done = False
    if not done:
        pytest.skip(f"this OpenCV writes no {kind}")
    with pytest.raises(BadMessage, match="are no JPEG and no PNG"):
        image_decoding.check_image_size(compressed(encoded.tobytes()), "front")
    with pytest.raises(BadMessage, match="are no JPEG and no PNG"):
        image_decoding.pixels(compressed(encoded.tobytes()), "front", 64, 36)


def test_a_jpeg_of_many_scans_is_refused():
    """Each scan is a pass over the whole image: a few bytes more, a whole image's work."""
    done, encoded = cv2.imencode(".jpg", image(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    assert done
    data = encoded.tobytes()
    image_decoding.check_image_size(compressed(data), "front")
    starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    assert 2 <= len(starts) <= 12
    first = data[starts[0] : starts[1]]
    with pytest.raises(BadMessage, match="a JPEG of more than 32 scans is not decoded"):
        image_decoding.check_image_size(compressed(data[: starts[1]] + first * 40 + data[starts[1] :]), "front")


GOOD = (
    odd_messages.GOOD_JPEG,
    odd_messages.GOOD_PNG,
    cv2.imencode(".jpg", image(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes(),
)


@st.composite
def headers_of_images(draw):
    """Images whose first bytes were overwritten, cut, repeated or filled up."""
    data = bytearray(draw(st.sampled_from(GOOD)))
    sizes = [at + 5 for at in range(len(data) - 9) if data[at] == 0xFF and data[at + 1] in (0xC0, 0xC2)] or [16]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.one_of(st.sampled_from(sizes), st.integers(0, min(len(data), 700) - 1)))
        data[at : at + 4] = draw(st.one_of(st.binary(min_size=1, max_size=4), st.just(struct.pack(">HH", 300, 300))))
    begin, end = sorted(draw(st.tuples(st.integers(0, 200), st.integers(0, 200))))
    where = draw(st.integers(2, 200))
    part = bytes(data[begin:end]) if draw(st.booleans()) else draw(st.binary(max_size=6))
    data = bytes(data)
    return data[:where] + part + data[where:] if draw(st.booleans()) else data


@fuzzed(4)
@given(headers_of_images())
def test_what_passes_by_its_header_decodes_to_no_more_pixels(data):
    message = compressed(data)
    with mock.patch.object(image_decoding, "MEGAPIXELS_MAX", 0.05):
        try:
            image_decoding.check_image_size(message, "front")
            decoded = image_decoding.jpeg_pixels(message, "front")
        except BadMessage:
            return
    assert decoded.shape[0] * decoded.shape[1] <= 50_000
    assert decoded.shape[1::-1] == image_decoding.image_size(message, "front")


def test_a_jpeg_whose_size_stands_behind_too_many_segments_is_refused():
    good = jpeg(1.0).data.tobytes()
    assert image_decoding.jpeg_size(good[:2] + b"\xff\xe1\0\x02" * 200 + good[2:]) == (64, 36)
    many = good[:2] + b"\xff\xe1\0\x02" * 100_000 + good[2:]
    assert image_decoding.jpeg_size(many) is None
    with pytest.raises(BadMessage, match="no JPEG and no PNG"):
        image_decoding.check_image_size(compressed(many), "front")


def test_the_strides_of_items_are_those_of_the_elements():
    poses = predicted_objects(1.0, (60.0, 0.0, 0.3, 5.0, 4.5)).objects[0].kinematics.predicted_paths[0]
    read = cdr.read(serialize_message(poses), cdr.message_layout(type(poses)), 10)
    np.testing.assert_array_equal(convert.planar_poses(read.path), convert.planar_poses(poses.path))
    assert [pose.position.x for pose in read.path[2:5]] == [pose.position.x for pose in poses.path[2:5]]
    assert read.path[-1].position.x == poses.path[-1].position.x
    assert all(a.position.x < b.position.x for a, b in pairwise(read.path))
    assert deserialize_message(serialize_message(poses), type(poses)) == poses
