"""Autoware's displays and evaluators get the forecast that was used, and the next light, in its own messages."""

import numpy as np
import pytest
from autoware_perception_msgs.msg import ObjectClassification, PredictedObjects, TrackedObject, TrackedObjects
from input_stream import instant, latched, small
from light_inputs import GREEN, RED, car, groups, lamp, map_writer, snapshot_at  # noqa: F401 (fixture)
from messages import LIGHT_GROUP, at, ns
from messages import predicted_objects as predicted_message
from rclpy.serialization import deserialize_message
from scenes import Clock

from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.planning_core import PlanningCore


def tracked_message(seconds):
    item = TrackedObject(existence_probability=0.75)
    item.object_id.uuid[:] = range(16)
    item.classification = [
        ObjectClassification(label=ObjectClassification.TRUCK, probability=0.625),
        ObjectClassification(label=ObjectClassification.CAR, probability=0.25),
    ]
    item.kinematics.pose_with_covariance.pose = at(20.0, 1.0, 0.0)
    item.kinematics.pose_with_covariance.pose.position.z = 3.0
    item.kinematics.twist_with_covariance.twist.linear.x = 4.0
    item.shape.dimensions.x, item.shape.dimensions.y, item.shape.dimensions.z = 8.0, 2.5, 3.5
    return TrackedObjects(header=outputs.header(ns(seconds), "map"), objects=[item])


def sent_objects(objects, **settings):
    """PredictedObjects of a step with this message of objects."""
    core = PlanningCore(small(**settings), Clock())
    latched(core)
    instant(core, 1.0, objects=False)
    core.put("objects", objects, ns(1.0))
    step = core.step(ns(1.0))
    content = outputs.predicted_objects(
        step.snapshot.tracked, step.report.forecast, step.report.plan.map_from_ego, ns(1.0), "map"
    )
    return deserialize_message(content, PredictedObjects)


def test_tracked_objects_come_back_with_the_path_that_was_used():
    (item,) = sent_objects(tracked_message(1.0), inputs__objects_type="tracked").objects
    assert bytes(item.object_id.uuid) == bytes(range(16))
    assert item.existence_probability == 0.75
    assert [(each.label, each.probability) for each in item.classification] == [(2, 0.625), (1, 0.25)]
    assert (item.shape.type, item.shape.dimensions.x, item.shape.dimensions.z) == (0, 8.0, 3.5)
    kinematics = item.kinematics
    assert kinematics.initial_twist_with_covariance.twist.linear.x == 4.0
    (path,) = kinematics.predicted_paths
    assert (path.time_step.sec, path.time_step.nanosec, path.confidence) == (0, 500_000_000, 1.0)
    np.testing.assert_allclose([pose.position.x for pose in path.path], 20.0 + 2.0 * np.arange(11), atol=1e-6)
    assert {pose.position.z for pose in path.path} == {3.0}
    assert path.path[0] == kinematics.initial_pose_with_covariance.pose


def test_of_predicted_objects_the_most_probable_path_comes_back():
    message = predicted_message(1.0, (20.0, 0.0, 0.0, 4.0, 4.5), (40.0, 3.0, 1.0, 2.0, 4.5))
    sent = sent_objects(message)
    assert (sent.header.frame_id, sent.header.stamp.sec) == ("map", 1)
    for item, source in zip(sent.objects, message.objects, strict=True):
        (path,), (source_path,) = item.kinematics.predicted_paths, source.kinematics.predicted_paths
        for pose, expected in zip(path.path, source_path.path, strict=True):
            assert pose.position.x == pytest.approx(expected.position.x, abs=1e-6)
            assert pose.position.y == pytest.approx(expected.position.y, abs=1e-6)
            assert pose.orientation.z == pytest.approx(expected.orientation.z, abs=1e-6)


def test_an_empty_road_is_sent_as_one():
    assert sent_objects(predicted_message(1.0)).objects == []


def test_without_objects_there_is_no_forecast_to_send():
    core = PlanningCore(small(), Clock())
    latched(core)
    instant(core, 1.0, objects=False)
    assert core.step(ns(1.0)).report.forecast is None


def test_the_next_light_on_the_route_is_sent_as_one_lamp_with_the_state_that_counts(write_map):
    inputs = car(write_map())
    inputs.store.put("lights", groups(1.0, lamp(RED)), ns(1.0))
    snapshot = snapshot_at(inputs, 1.0)
    assert snapshot.signal_ahead == (LIGHT_GROUP, LightState.RED)
    message = outputs.traffic_signal(snapshot.signal_ahead)
    assert message.traffic_light_group_id == LIGHT_GROUP
    assert [(each.color, each.shape, each.status) for each in message.elements] == [(1, 1, 2)]


def test_a_light_that_is_behind_the_car_is_not_the_next_one(write_map):
    inputs = car(write_map())
    inputs.store.put("lights", groups(1.0, lamp(GREEN)), ns(1.0))
    snapshot = snapshot_at(inputs, 1.0, x=150.0)
    assert snapshot.observation is not None
    assert snapshot.signal_ahead is None
    assert list(outputs.traffic_signal(None).elements) == []
