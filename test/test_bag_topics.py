"""Somebody's own bag: which topics are used, and why no plan came out."""

import cv2
import numpy as np
import pytest
from followed_replay import replayed
from messages import raw
from own_bags import ODOMETRY, ROUTE, odometry_in_odom, odometry_later, short_bag
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from reflectdrive_ros.core.config import Config, override_dotted
from reflectdrive_ros.replay.bag_topics import ambiguous_choices, map_topics
from reflectdrive_ros.replay.counters import ReplayCounters
from reflectdrive_ros.ros.bag import BagError, BagReader
from reflectdrive_ros.ros.inputs.channel import InputStatus, Level

SEEING = override_dotted(Config(), {"planner": "route_follower"})
BLIND = override_dotted(SEEING, {"cameras.required": False})
COMMA = "comma2k19_example"


NO_CAMERAS = ("--no-report", "--setting", "cameras.required=false")


@pytest.fixture(scope="module")
def in_odom(tmp_path_factory):
    return short_bag(tmp_path_factory.mktemp("odom") / "in_odom", COMMA, odometry_in_odom)


# --- no plan ---------------------------------------------------------------------------------------------------------


def test_without_a_plan_the_exit_code_is_1_and_the_reasons_are_counted(in_odom, tmp_path, capsys):
    code, numbers = replayed(in_odom, tmp_path, *NO_CAMERAS)
    errors = capsys.readouterr().err
    assert (code, numbers["plans"]) == (1, 0)
    reason = numbers["diagnostics"][0]
    assert (reason["level"], reason["name"]) == ("ERROR", "odometry")
    assert reason["message"].startswith("odometry is in frame 'odom', expected 'map'")
    assert 25 < reason["count"] < 35  # steps of 0.1 s
    assert "no plan of route_follower was published, nothing was published" in errors
    assert f"{reason['count']} x odometry: {reason['message']}" in errors


def test_stops_alone_are_no_plan_and_the_frame_that_everything_is_in_can_be_named(in_odom, tmp_path, capsys):
    words = (*NO_CAMERAS, "--setting", "output.map_frame=odom")
    code, numbers = replayed(in_odom, tmp_path / "stops", *words)
    assert (code, numbers["sources"]["STOP"]) == (1, numbers["plans"])
    assert numbers["plans"] > 25
    assert f"{numbers['plans']} x route: the route is in frame 'map'" in capsys.readouterr().err
    code, numbers = replayed(in_odom, tmp_path / "driven", *words, "--route", "driven")
    assert (code, numbers["sources"]["PLANNER"]) == (0, numbers["plans"])


def test_the_driven_route_of_another_frame_is_refused_in_a_sentence(in_odom, tmp_path, capsys):
    assert replayed(in_odom, tmp_path, *NO_CAMERAS, "--route", "driven")[0] == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("--route driven: odometry is in frame 'odom'")


def test_a_bag_without_a_plan_in_a_folder_of_bags_makes_the_exit_code_1(in_odom, tmp_path, capsys):
    code, numbers = replayed(in_odom.parent, tmp_path, *NO_CAMERAS)
    printed = capsys.readouterr()
    assert (code, numbers["failures"]) == (1, {})
    assert "bag in_odom: no plan of route_follower was published" in printed.err
    assert f"topics of in_odom: odometry = {ODOMETRY}" in printed.out
    assert "this replay has no deadline; 0 plans over the deadline of 80 ms" in printed.out


def test_without_any_step_the_state_of_the_inputs_is_told(tmp_path, capsys):
    late = short_bag(tmp_path / "bag", COMMA, odometry_later(), seconds=0.5)
    code, numbers = replayed(late, tmp_path / "out", *NO_CAMERAS, "--duration", "0.1")
    assert (code, numbers["plans"]) == (1, 0)
    assert "1 x odometry: odometry: nothing received yet" in capsys.readouterr().err


def test_damaged_messages_are_left_out_and_counted(tmp_path, capsys):
    """A quarter of the odometry and acceleration is noise, cut short or empty; the route and the rest are whole."""
    broken = (b"", b"\x00\x01\x00\x00", b"\x00\x01\x00\x00" + bytes(range(200)))
    names = []

    def damage(topic, message):
        names.append(topic)
        whole = topic == ROUTE or len(names) % 4
        return [(topic, message, None if whole else broken[len(names) % 3])]

    bag = short_bag(tmp_path / "bag", COMMA, damage)
    code, numbers = replayed(bag, tmp_path / "out", *NO_CAMERAS)
    assert (code, numbers["sources"]["PLANNER"]) == (0, numbers["plans"])
    assert numbers["plans"] > 20
    assert numbers["plans_compared"] == 0  # 3 s
    damaged = [line for line in numbers["diagnostics"] if " bytes " in line["message"]]
    assert sum(line["count"] for line in damaged) == len(names) // 4
    code, numbers = replayed(bag, tmp_path / "driven", *NO_CAMERAS, "--route", "driven")
    assert (code, numbers["plans"] > 20) == (0, True)


@pytest.mark.long
@pytest.mark.dds
def test_the_reasons_are_told_through_the_node_too(in_odom, tmp_path, capsys):
    code, numbers = replayed(in_odom, tmp_path, *NO_CAMERAS, "--node")
    assert (code, numbers["plans"]) == (1, 0)
    assert any("is in frame 'odom'" in line["message"] for line in numbers["diagnostics"])
    assert "is in frame 'odom'" in capsys.readouterr().err


def test_diagnostics_are_counted_by_input_errors_first():
    tally = ReplayCounters(80.0)
    late = InputStatus("objects", Level.WARN, "objects: newest is 0.3 s old", {})
    for _ in range(3):
        tally.count_diagnostics([late, InputStatus("odometry", Level.OK, "20.0 Hz", {})])
    tally.count_diagnostics([InputStatus("odometry", Level.ERROR, "odometry: nothing received yet", {})])
    assert tally.details()["diagnostics"] == [
        {"level": "ERROR", "name": "odometry", "message": "odometry: nothing received yet", "count": 1},
        {"level": "WARN", "name": "objects", "message": "objects: newest is 0.3 s old", "count": 3},
    ]


# --- encodings -------------------------------------------------------------------------------------------------------


def as_bayer(topic, message):
    """Images of the recording as a raw camera sends them."""
    if not topic.endswith("image/compressed"):
        return [(topic, message)]
    pixels = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)  # BGR
    mosaic = pixels[..., 1].copy()
    mosaic[::2, ::2], mosaic[1::2, 1::2] = pixels[::2, ::2, 2], pixels[1::2, 1::2, 0]
    image = raw(0.0, pixels=mosaic, encoding="bayer_rggb8")
    image.header = message.header
    return [(topic.replace("image/compressed", "image_raw"), image)]


def test_a_bag_of_raw_bayer_images_is_planned_from(tmp_path):
    bag = short_bag(tmp_path / "bayer", "pandaset_002", as_bayer, seconds=0.5)
    code, numbers = replayed(bag, tmp_path / "out", "--no-report")
    assert (code, numbers["verdicts"]["OK"]) == (0, numbers["plans"])
    assert numbers["topics"]["image:front"] == {
        "name": "/sensing/camera/front/image_raw",
        "type": "sensor_msgs/msg/Image",
        "others": [],
    }


# --- topics ----------------------------------------------------------------------------------------------------------


def topics_of(bag, *pairs, config=BLIND):
    with BagReader(bag) as reader:
        return map_topics(config, reader, pairs, driven_route=False)


def refusal(bag, *pairs, config=BLIND):
    with pytest.raises(BagError) as refused:
        topics_of(bag, *pairs, config=config)
    return str(refused.value).splitlines()


def test_all_that_is_missing_is_named_at_once_with_what_may_be_meant(tmp_path):
    def renamed(topic, message):
        return [(topic.replace("/front/", "/camera0/"), message)] if ODOMETRY not in topic else []

    bag = short_bag(tmp_path / "bag", "pandaset_002", renamed, seconds=0.3)
    lines = refusal(bag, config=override_dotted(SEEING, {"inputs.route_type": "lanelet"}))
    assert "odometry: the bag has no topic of type nav_msgs/msg/Odometry" in lines
    assert "map: the bag has no topic of type autoware_map_msgs/msg/LaneletMapBin" in lines
    at = next(k for k, line in enumerate(lines) if line.startswith("image:front:"))
    assert lines[at + 1 : at + 4] == [
        f"  --topic image:front=/sensing/camera/{camera}/image/compressed"
        for camera in ("camera0", "front_left", "front_right")
    ]
    assert "  --topic info:front=/sensing/camera/camera0/camera_info" in lines
    assert "  --setting inputs.route_type=path   (the bag has a nav_msgs/msg/Path)" in lines
    assert len([line for line in lines if "cameras.required=false" in line]) == 1


def twice(topic, message):
    return [("/odometry/gps", message), ("/odometry/wheel", message)] if topic == ODOMETRY else [(topic, message)]


def test_of_two_odometries_none_is_taken_silently(tmp_path, capsys):
    bag = short_bag(tmp_path / "bag", COMMA, twice, seconds=1.0)
    assert refusal(bag)[1:] == [
        "odometry: 2 topics are of type nav_msgs/msg/Odometry; choose one:",
        "  --topic odometry=/odometry/gps",
        "  --topic odometry=/odometry/wheel",
    ]
    code, numbers = replayed(bag, tmp_path / "out", *NO_CAMERAS, "--topic", "odometry=/odometry/wheel")
    printed = capsys.readouterr()
    assert code == 0
    assert numbers["topics"]["odometry"] == {
        "name": "/odometry/wheel",
        "type": "nav_msgs/msg/Odometry",
        "others": ["/odometry/gps"],
    }
    assert "odometry: /odometry/wheel is used; the bag also has /odometry/gps of this type" in printed.err
    assert "odometry = /odometry/wheel" in printed.out
    assert f"route = {ROUTE}" in printed.out


def test_autowares_name_decides_among_two_and_is_said(tmp_path):
    def and_wheels(topic, message):
        return [(topic, message), ("/a", message)] if topic == ODOMETRY else [(topic, message)]

    mapping = topics_of(short_bag(tmp_path / "bag", COMMA, and_wheels, seconds=0.3))
    assert mapping.sources["odometry"] == ODOMETRY
    (note,) = ambiguous_choices(mapping.details())
    assert note.startswith(f"odometry: {ODOMETRY} is used; the bag also has /a of this type: --topic odometry=/a")


def test_moving_transforms_and_any_text_are_not_taken_for_camera_poses_and_instructions(tmp_path):
    def with_more(topic, message):
        more = [("/tf", TFMessage()), ("/rosout_text", String(data="hello"))]
        return [(topic, message), *more] if topic == ODOMETRY else [(topic, message)]

    bag = short_bag(tmp_path / "bag", "pandaset_002", with_more, seconds=0.3)
    mapping = topics_of(bag, config=SEEING)
    assert mapping.sources["tf_static"] == "/tf_static"
    assert "instruction" not in mapping.sources


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("objects", "--topic objects: expected KEY=NAME; objects= leaves this input out"),
        ("odometer=/x", "--topic odometer: no such input"),
        ("objects=/typo", "objects: /typo is not in the bag, expected a topic of type autoware_perception_msgs/msg/"),
        (f"odometry={ROUTE}", f"odometry: {ROUTE} is of type nav_msgs/msg/Path, expected a topic of type nav_msgs/"),
    ],
)
def test_a_topic_option_that_cannot_be_meant_is_refused(tmp_path, pair, sentence):
    bag = short_bag(tmp_path / "bag", COMMA, seconds=0.3)
    assert any(line.startswith(sentence) for line in refusal(bag, pair))


def test_a_named_topic_says_of_which_kind_it_is(tmp_path):
    def both(topic, message):
        if not topic.endswith("image/compressed"):
            return [(topic, message)]
        image = raw(0.0)
        image.header = message.header
        return [(topic, message), (topic.replace("image/compressed", "image_raw"), image)]

    bag = short_bag(tmp_path / "bag", "pandaset_002", both, seconds=0.3)
    assert topics_of(bag, config=SEEING).types["image:front"] == "sensor_msgs/msg/CompressedImage"
    pairs = [f"image:{name}=/sensing/camera/{name}/image_raw" for name in SEEING.cameras.names]
    assert topics_of(bag, *pairs, config=SEEING).types["image:front"] == "sensor_msgs/msg/Image"
