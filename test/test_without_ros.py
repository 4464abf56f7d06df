"""Claims of docs/install.md on a machine without ROS: a bag is replayed, and what needs ROS says so."""

import json
import sqlite3

import pytest
import without_ros
from own_bags import short_bag
from test_bag import storage_file, written_by_another

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.ros.bag import BagReader, BagWriter

COMMA = "comma2k19_example"
WORDS = ("--planner", "route_follower", "--setting", "cameras.required=false", "--no-report")


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """One recording as mcap, and as sqlite3 without definitions and hashes, as ROS 2 Humble records it."""
    folder = tmp_path_factory.mktemp("bags")
    mcap, humble = short_bag(folder / "mcap", COMMA, seconds=2.0), folder / "humble"
    with BagReader(mcap) as reader, BagWriter(humble, "sqlite3") as copy:
        for topic in reader.topics:
            copy.add_topic(topic.name, topic.type_name, latched=topic.latched)
        for entry in reader.messages():
            copy.write(entry.topic, entry.received_ns, entry.data)
    (humble / "metadata.yaml").unlink()
    with sqlite3.connect(storage_file(humble)) as connection:
        connection.execute("DELETE FROM message_definitions")
        connection.execute("UPDATE topics SET type_description_hash = ''")
    return mcap, humble


def test_a_bag_gives_the_same_plans_without_ros(bags, tmp_path):
    answers = without_ros.run(*(["replay", bag, "--out", tmp_path / bag.name, *WORDS] for bag in bags))
    assert [answer.code for answer in answers] == [0, 0], answers
    assert main(["replay", str(bags[0]), "--out", str(tmp_path / "ros"), *WORDS]) == 0
    hashes = set()
    for name in ("mcap", "humble", "ros"):
        numbers = json.loads((tmp_path / name / "summary.json").read_text())
        assert numbers["sources"]["PLANNER"] == numbers["plans"] > 10
        hashes.add(numbers["plans_sha256"])
        with BagReader(tmp_path / name / "plans") as plans:
            kinds = {topic.type_name for topic in plans.topics}
            assert kinds == {"autoware_planning_msgs/msg/Trajectory", "reflectdrive/msg/PlannerStatus"}
            plans.require_installed([topic.name for topic in plans.topics])
    assert len(hashes) == 1


def test_the_driven_path_as_route_needs_no_ros(bags, tmp_path):
    ((code, _, errors),) = without_ros.run(["replay", bags[0], "--out", tmp_path, *WORDS, "--route", "driven"])
    assert code == 0, errors


def test_what_needs_ros_or_is_no_bag_is_one_sentence(bags, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.mcap").write_bytes(bytes(range(256)) * 40)
    unknown = written_by_another(tmp_path / "unknown", "moon_msgs/Crater crater\n", [])
    expected = {
        ("replay", bags[0], "--node", "--out", tmp_path / "out", *WORDS): "needs ROS 2",
        ("replay", tmp_path / "empty"): "is not a bag",
        ("replay", tmp_path / "nowhere"): "does not exist",
        ("replay", tmp_path / "noise.mcap"): "is damaged",
        ("replay", unknown, "--route", "driven", "--out", tmp_path / "out", *WORDS): "does not define its messages",
    }
    for words, answer in zip(expected, without_ros.run(*expected), strict=True):
        assert (answer.code, answer.errors.count("\n")) == (2, 1), (words, answer)
        assert expected[words] in answer.errors, (words, answer)
