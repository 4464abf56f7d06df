"""`reflectdrive make-bag world`: a drive through the proving ground as a bag, the same from the same seed."""

import json

import numpy as np
import pytest
from own_bags import world_bag
from rclpy.serialization import deserialize_message

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.ros import convert
from reflectdrive_ros.ros.bag import BagReader
from reflectdrive_ros.ros.topics import message_class


@pytest.fixture(scope="module")
def bag():
    return world_bag()


def test_a_drive_becomes_a_bag_with_everything_a_planner_needs(bag, tmp_path):
    with BagReader(bag) as reader:
        counts = {topic.name: topic.count for topic in reader.topics}
        for name in ("front_left", "front", "front_right"):
            assert counts[f"/sensing/camera/{name}/image/compressed"] == 10
        assert counts["/localization/kinematic_state"] == counts["/perception/object_recognition/objects"] == 10
        assert {topic.name for topic in reader.topics if topic.latched} == {
            "/tf_static",
            "/planning/reflectdrive/route",
            "/map/vector_map",
        }
        odometry = list(reader.messages(["/localization/kinematic_state"]))
        egos = [convert.ego_state(entry.message(), "map") for entry in odometry]
    assert [entry.received_ns for entry in odometry] == [ego.stamp_ns for ego in egos]
    travelled_m = np.hypot(*(egos[-1].map_from_ego[:2] - egos[0].map_from_ego[:2]))
    assert travelled_m == pytest.approx(sum(ego.speed_mps for ego in egos) * 0.1, abs=0.5)
    assert egos[-1].speed_mps > egos[0].speed_mps
    assert main(["replay", str(bag), "--out", str(tmp_path), "--no-report", "--planner", "route_follower"]) == 0
    numbers = json.loads((tmp_path / "summary.json").read_text())
    assert numbers["plans"] == 10
    assert numbers["verdicts"]["OK"] == 10


def test_the_same_seed_gives_the_same_drive(bag, tmp_path):
    """Fields, not bytes: the middleware leaves the padding between them uninitialised."""
    assert main(["make-bag", "world", str(tmp_path / "again"), "--seed", "3", "--seconds", "1"]) == 0
    with BagReader(bag) as one, BagReader(tmp_path / "again") as other:
        pairs = zip(one.messages(), other.messages(), strict=True)
        for first, second in pairs:
            assert (first.topic, first.received_ns) == (second.topic, second.received_ns)
            kind = message_class(first.type_name)
            one_message, other_message = (deserialize_message(each.data, kind) for each in (first, second))
            if first.topic == "/map/vector_map":  # the last eight bytes are lanelet2's counter of ids in the process
                one_message.data, other_message.data = one_message.data[:-8], other_message.data[:-8]
            assert one_message == other_message


def test_settings_reach_the_drive(tmp_path):
    out = tmp_path / "bag"
    words = ["--seconds", "0.3", "--setting", "output.map_frame=town", "--setting", "cameras.required=false"]
    assert main(["make-bag", "world", str(out), "--seed", "3", *words]) == 0
    with BagReader(out) as bag:
        assert not [topic.name for topic in bag.topics if "camera" in topic.name and topic.count]
        (odometry, *_) = bag.messages(["/localization/kinematic_state"])
        assert odometry.message().header.frame_id == "town"
