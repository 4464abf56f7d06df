"""RViz configuration and Foxglove layout show topics that exist, with the types and QoS that they have.

Neither program runs here: the check is that they read topics and fields that the node, the world and our bags publish.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.ros import topics
from reflectdrive_ros.ros.processes import full_topic_name

ROOT = Path(__file__).parents[1]
RVIZ = yaml.safe_load((ROOT / "config" / "rviz" / "reflectdrive.rviz").read_text())
LAYOUT = json.loads((ROOT / "config" / "foxglove" / "reflectdrive.json").read_text())
PUBLISHED = {  # name -> (type, QoS)
    **{full_topic_name(topic.name): (topic.type, topic.qos) for topic in topics.OUTPUTS},
    **{topic.name: (topic.type, topic.qos) for topic in world_messages.car_topics(Config())},
    world_messages.ROAD_TOPIC: ("visualization_msgs/msg/MarkerArray", topics.Qos.LATCHED),
}
SHOWS = {  # RViz display -> the types that it takes
    "rviz_default_plugins/MarkerArray": ("visualization_msgs/msg/MarkerArray",),
    "rviz_default_plugins/Path": ("nav_msgs/msg/Path",),
    "rviz_default_plugins/Odometry": ("nav_msgs/msg/Odometry",),
    "rviz_default_plugins/Image": ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"),
}
DISPLAYS = [display for display in RVIZ["Visualization Manager"]["Displays"] if "Topic" in display]


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: display["Name"])
def test_an_rviz_display_hears_its_topic(display):
    topic = display["Topic"]
    kind, qos = PUBLISHED[topic["Value"]]
    assert kind in SHOWS[display["Class"]]
    reliability, durability, _ = qos.value
    assert topic["Reliability Policy"].lower().replace(" ", "_") == reliability
    assert topic["Durability Policy"].lower().replace(" ", "_") == durability


def test_rviz_stands_in_the_frame_of_the_plans():
    assert RVIZ["Visualization Manager"]["Global Options"]["Fixed Frame"] == Config().output.map_frame


def leaves(node):
    return [node] if isinstance(node, str) else [*leaves(node["first"]), *leaves(node["second"])]


def test_every_panel_is_laid_out_once():
    assert sorted(leaves(LAYOUT["layout"])) == sorted(LAYOUT["configById"])


def displayed_paths():
    """Every message path in the layout."""

    def walk(value):
        if isinstance(value, dict):
            yield from (key for key in value if key.startswith("/"))
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)
        elif isinstance(value, str) and value.startswith("/"):
            yield value

    return sorted(set(walk(LAYOUT["configById"])))


@pytest.mark.parametrize("path", displayed_paths())
def test_a_foxglove_path_leads_to_a_field(path):
    name, *fields = path.split(".")
    kind = topics.message_class(PUBLISHED[name][0])
    for field in fields:
        field_types = kind.get_fields_and_field_types()
        bare = re.sub(r"\[\d+\]$", "", field)
        assert bare in field_types, f"{kind.__name__} has no {bare}"
        inner = re.fullmatch(r"(?:sequence<)?(\w+)/(\w+)>?", field_types[bare])
        assert ("[" in field) == field_types[bare].startswith("sequence")
        if inner:
            kind = topics.message_class(f"{inner[1]}/msg/{inner[2]}")


def test_nothing_that_is_looked_at_is_left_out():
    displayed = {display["Topic"]["Value"] for display in DISPLAYS} | {path.split(".")[0] for path in displayed_paths()}
    assert {
        full_topic_name(topic.name) for topic in topics.OUTPUTS if topic.key in ("path", "markers", "status")
    } <= displayed
