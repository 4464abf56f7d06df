"""The topic table against Autoware's interface specification: admission refuses any other QoS, stronger ones too."""

import pytest
from scenes import config

from reflectdrive_ros.ros import topics

# autoware_core's component interface specification, the topics that we meet; depth is free
SPEC = {
    "odometry": ("nav_msgs/msg/Odometry", "reliable", "volatile"),
    "acceleration": ("geometry_msgs/msg/AccelWithCovarianceStamped", "reliable", "volatile"),
    "map": ("autoware_map_msgs/msg/LaneletMapBin", "reliable", "transient_local"),
    "route": ("autoware_planning_msgs/msg/LaneletRoute", "reliable", "transient_local"),
    "objects": ("autoware_perception_msgs/msg/PredictedObjects", "reliable", "volatile"),
    "tf_static": ("tf2_msgs/msg/TFMessage", "reliable", "transient_local"),
    "trajectory": ("autoware_planning_msgs/msg/Trajectory", "reliable", "volatile"),
    "candidates": ("autoware_internal_planning_msgs/msg/CandidateTrajectories", "reliable", "volatile"),
    "operation_mode": ("autoware_adapi_v1_msgs/msg/OperationModeState", "reliable", "transient_local"),
    "turn_indicators_status": ("autoware_vehicle_msgs/msg/TurnIndicatorsReport", "reliable", "volatile"),
    "turn_indicators": ("autoware_vehicle_msgs/msg/TurnIndicatorsCommand", "reliable", "volatile"),
}


def table(**settings):
    return {topic.key: topic for topic in (*topics.inputs(config(**settings)), *topics.OUTPUTS)}


@pytest.mark.parametrize("key", sorted(SPEC))
def test_types_and_qos_equal_the_specification(key):
    topic = table(inputs__route_type="lanelet")[key]
    assert (topic.type, *topic.qos.value[:2]) == SPEC[key]


def test_images_are_best_effort_and_never_queue():
    for topic in topics.inputs(config()):
        if topic.key.startswith("image:"):
            assert topic.qos.value == ("best_effort", "volatile", 1)


def test_only_what_everyone_shares_has_a_global_name():
    shared = {topic.name for topic in table().values() if not topic.name.startswith("~/")}
    assert shared == {"/tf_static", "/diagnostics"}


def test_nothing_writes_to_the_trajectory_that_drives_the_car():
    assert not any("/planning/trajectory" in topic.name for topic in table().values())


def test_topics_of_cameras_follow_the_configuration():
    names = ["/a/left", "/a/front", "/a/right"]
    topics_by_key = table(cameras__topics=names, cameras__compressed=False)
    assert [topics_by_key[f"image:{camera}"].name for camera in ("front_left", "front", "front_right")] == names
    assert topics_by_key["image:front"].type == "sensor_msgs/msg/Image"
    assert "objects" not in table(inputs__objects_type="none")
    assert table(inputs__objects_type="tracked")["objects"].type.endswith("TrackedObjects")


def test_the_check_node_has_autowares_qos_and_no_cameras():
    for topic in (topics.CHECK_CANDIDATES, *topics.CHECK_OUTPUTS):
        assert topic.qos.value == ("reliable", "volatile", 10 if topic.key == "diagnostics" else 1)
    keys = {topic.key for topic in topics.check_inputs(config())}
    assert {"odometry", "acceleration", "objects", "route", "tf_static"} <= keys
    assert not any(key.startswith(("image", "info")) for key in keys)


def test_every_type_exists():
    for topic in (*table().values(), topics.CHECK_CANDIDATES, *topics.CHECK_OUTPUTS):
        if topics.is_installed(topic.type) or topic.key != "operation_mode":  # the node drives without this package
            assert topics.message_class(topic.type).get_fields_and_field_types()
