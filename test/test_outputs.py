"""What goes out keeps Autoware's conventions: frame, stamp, spacing, stop, identity of candidates."""

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import (
    CandidateTrajectories,
    CandidateTrajectory,
    GeneratorInfo,
    PlanningFactorArray,
)
from autoware_perception_msgs.msg import ObjectClassification, PredictedObjects, TrackedObject, TrackedObjects
from autoware_planning_msgs.msg import Trajectory as TrajectoryMessage
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from input_stream import instant, latched, small
from light_inputs import GREEN, RED, car, groups, lamp, map_writer, snapshot_at  # noqa: F401 (fixture)
from messages import LIGHT_GROUP, at, ns
from messages import predicted_objects as predicted_message
from rclpy.serialization import deserialize_message, serialize_message
from reflectdrive.msg import PlannerStatus
from scenes import SECOND_NS, Clock, config
from std_msgs.msg import String
from unique_identifier_msgs.msg import UUID

from reflectdrive_ros.core.domain import (
    FactorKind,
    LightState,
    Plan,
    PlanningFactor,
    PlanSource,
    StepReport,
    Trajectory,
    Verdict,
)
from reflectdrive_ros.core.kinematics import arc, braking_distances
from reflectdrive_ros.maps.elevation import RoadSurface, VehiclePlane
from reflectdrive_ros.ros import outputs, plan_messages, rotations
from reflectdrive_ros.ros.inputs.channel import InputStatus, Level
from reflectdrive_ros.ros.inputs.control import Signal
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.ros.topics import NODE_NAME

HERE = np.array([100.0, 50.0, np.pi / 2])


def stopping_plan(dt=0.1, count=80, **more):
    poses = np.zeros((count, 3))
    poses[:, 0] = braking_distances(5.0, 2.5, dt * np.arange(1, count + 1))
    return Plan(7 * SECOND_NS + 25, HERE, Trajectory(poses, dt), **more)


def as_received(message):
    return deserialize_message(serialize_message(message), type(message))


def sent_candidates(plan, signal, settings, node=NODE_NAME):
    content = outputs.candidates(plan, plan_messages.plan_points(plan, settings), signal, settings, node)
    return deserialize_message(content, CandidateTrajectories)


def sent_diagnostics(statuses, now_ns, node):
    return deserialize_message(outputs.diagnostics(statuses, now_ns, node), DiagnosticArray)


def test_a_plan_becomes_autoware_points_in_the_map():
    message = outputs.trajectory(stopping_plan(), config())
    assert message.header.frame_id == "map"
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (7, 25)
    times = [p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in message.points]
    np.testing.assert_allclose(times, 0.1 * np.arange(1, 81))
    first = message.points[0]
    assert (first.pose.position.x, first.pose.position.y) == pytest.approx((100.0, 50.0 + 0.4875))
    assert 2 * np.arctan2(first.pose.orientation.z, first.pose.orientation.w) == pytest.approx(np.pi / 2)
    assert first.longitudinal_velocity_mps == pytest.approx(4.875)
    assert first.acceleration_mps2 == pytest.approx(-2.5)


@pytest.mark.parametrize("frame", ["map", "maps", "earth", "a_long_frame_name"])
@pytest.mark.parametrize("dt", [0.1, 0.5])
def test_the_bytes_that_are_sent_are_the_message(frame, dt):
    """The quick way must say what the plain one says, wherever the frame's name puts the padding."""
    settings = config(output__map_frame=frame)
    plan = Plan(-3 * SECOND_NS // 2, HERE, Trajectory(arc(0.07, 0.4 * np.arange(1, 17)), dt))
    points = plan_messages.plan_points(plan, settings)
    sent = deserialize_message(plan_messages.trajectory_bytes(plan.stamp_ns, points, frame), TrajectoryMessage)
    assert sent == as_received(outputs.trajectory(plan, settings))
    np.testing.assert_array_equal(plan_messages.points_from_message(sent), points)


@pytest.mark.parametrize("frame", ["map", "maps", "earth", "a_long_frame_name"])
@pytest.mark.parametrize("rivals", [0, 1, 2])
def test_the_bytes_of_candidates_are_their_message(frame, rivals):
    """As rclpy serialises the message objects, for each padding."""
    settings = config(output__map_frame=frame)
    trajectories = [Trajectory(arc(0.02 * number, 0.4 * np.arange(1, 17)), 0.1) for number in range(1 + rivals)]
    plan = Plan(7 * SECOND_NS + 25, HERE, trajectories[0], candidates=tuple(trajectories[1:]))
    message = CandidateTrajectories()
    for slot, trajectory in enumerate(trajectories):
        identity = UUID(uuid=np.frombuffer(plan_messages.slot_uuid("ReflectDrive", slot), np.uint8))
        points = outputs.trajectory(Plan(plan.stamp_ns, HERE, trajectory), settings).points
        head = outputs.header(plan.stamp_ns, frame)
        candidate = CandidateTrajectory(header=head, generator_id=identity, points=points)
        if outputs.HAS_TURN_INDICATOR:
            candidate.turn_indicators_command = outputs.turn_indicators(Signal.LEFT, plan.stamp_ns)
        message.candidate_trajectories.append(candidate)
        message.generator_info.append(
            GeneratorInfo(generator_id=identity, generator_name=String(data=f"ReflectDrive_{slot}"))
        )
    assert sent_candidates(plan, Signal.LEFT, settings) == as_received(message)


@pytest.mark.parametrize("text", ["", "a", "abc", "\u00e4 \u20ac", "nothing received yet"])
def test_the_bytes_of_diagnostics_are_their_message(text):
    lines = [InputStatus("planner", Level.STALE, text, {"a": text, text: "bcd"}), InputStatus(text, Level.OK, "", {})]
    message = DiagnosticArray(header=outputs.header(3, ""))
    for line in lines:
        values = [KeyValue(key=key, value=value) for key, value in line.values.items()]
        name, level = f"reflectdrive: {line.name}", bytes([line.level])
        status = DiagnosticStatus(
            level=level, name=name, message=line.message, hardware_id="reflectdrive", values=values
        )
        message.status.append(status)
    assert sent_diagnostics(lines, 3, "reflectdrive") == as_received(message)


def test_a_name_of_a_megabyte_is_cut_and_escaped_in_diagnostics_and_status():
    name = "\x1b[31m\n" + "x" * 1_000_000
    line = InputStatus("odometry", Level.ERROR, f"odometry: frame '{name}' is not 'map'", {"frame": name})
    (status,) = sent_diagnostics([line], 3, "reflectdrive").status
    report = StepReport(stopping_plan(), Verdict.LATE, PlanSource.STOP, f"frame '{name}' is unknown")
    reason = plan_messages.status(report, config(), "", 0, 0.0, 0.0).reason
    for text in (status.message, status.values[0].value, reason):
        assert text.isprintable()
        assert len(text) < 300
    assert status.message.startswith(r"odometry: frame")
    assert reason.endswith("is unknown")


def test_a_stop_is_the_last_pose_repeated_at_speed_zero():
    points = outputs.trajectory(stopping_plan(), config()).points
    standing = [p for p in points if p.longitudinal_velocity_mps == 0.0]
    assert len(standing) >= 55
    assert len({(p.pose.position.x, p.pose.position.y) for p in standing}) == 1
    assert points[-1].acceleration_mps2 == 0.0


def test_a_plan_of_half_seconds_is_published_every_tenth():
    poses = np.zeros((8, 3))
    poses[:, 0] = 4.0 * np.arange(1, 9)
    message = outputs.trajectory(Plan(0, np.zeros(3), Trajectory(poses, 0.5)), config())
    assert len(message.points) == 40
    np.testing.assert_allclose([p.longitudinal_velocity_mps for p in message.points], 8.0, atol=1e-4)
    np.testing.assert_allclose([p.pose.position.x for p in message.points], 0.8 * np.arange(1, 41), atol=1e-9)


def test_steering_follows_from_the_curve():
    plan = Plan(0, np.zeros(3), Trajectory(arc(0.1, 0.5 * np.arange(1, 41)), 0.1))
    wheel = [p.front_wheel_angle_rad for p in outputs.trajectory(plan, config()).points]
    np.testing.assert_allclose(wheel, np.arctan(0.1 * 3.089), rtol=1e-2)


def test_each_slot_keeps_its_uuid_from_cycle_to_cycle():
    plan = stopping_plan(candidates=(Trajectory(np.ones((80, 3)), 0.1),))
    cycle, later = (sent_candidates(plan, Signal.LEFT, config()) for _ in range(2))
    first, second = ([bytes(one.generator_id.uuid) for one in each.candidate_trajectories] for each in (cycle, later))
    assert first == second
    assert len(set(first)) == 2
    assert [info.generator_name.data for info in cycle.generator_info] == ["ReflectDrive_0", "ReflectDrive_1"]
    assert [bytes(info.generator_id.uuid) for info in cycle.generator_info] == first


def test_no_more_candidates_are_sent_than_the_setting_allows_and_the_plan_is_the_first():
    plan = stopping_plan(candidates=tuple(Trajectory(np.full((80, 3), at), 0.1) for at in (1.0, 2.0, 3.0)))
    for most, count in ((1, 1), (3, 3), (64, 4)):
        sent = sent_candidates(plan, Signal.OFF, config(output__candidates_max=most))
        assert len(sent.candidate_trajectories) == len(sent.generator_info) == count
        assert sent.candidate_trajectories[0].points == outputs.trajectory(plan, config()).points


def test_nodes_in_different_namespaces_have_no_name_in_common():
    nodes = [NODE_NAME, "/reflectdrive", "/left/reflectdrive", "/right/reflectdrive", "/right/car_reflectdrive"]
    plan, line = stopping_plan(), InputStatus("planner", Level.OK, "", {})
    sent = [sent_candidates(plan, Signal.OFF, config(), node) for node in nodes]
    generators = [message.generator_info[0].generator_name.data for message in sent]
    identities = {bytes(message.generator_info[0].generator_id.uuid) for message in sent}
    statuses = [sent_diagnostics([line], 0, node).status[0] for node in nodes]
    names, hardware = [status.name for status in statuses], [status.hardware_id for status in statuses]
    assert len(set(generators)) == len(identities) == len(set(names)) == len(set(hardware)) == len(nodes)
    assert (generators[0], names[0], hardware[0]) == ("ReflectDrive_0", "reflectdrive: planner", "reflectdrive")
    assert (generators[2], names[2]) == ("ReflectDrive/left/reflectdrive_0", "/left/reflectdrive: planner")
    assert hardware[2] == "/left/reflectdrive"


def test_debug_arrays_are_flat_and_of_equal_length():
    plan = stopping_plan(candidates=(Trajectory(np.ones((60, 3)), 0.1),), scores=(0.9, 0.4), change="1 m/s^2 slower")
    report = StepReport(plan, Verdict.OK, PlanSource.PLANNER, timings_ms={"plan": 1.5})
    message = outputs.debug(report, config(), {"plan": 1.5, "guard": 0.25})
    assert (message.candidate_count, message.points_per_candidate) == (2, 60)
    assert as_received(message).change == "1 m/s^2 slower"
    assert len(message.candidate_x) == len(message.candidate_y) == len(message.candidate_heading) == 120
    np.testing.assert_allclose(message.candidate_score, [0.9, 0.4], rtol=1e-6)
    assert dict(zip(message.stage_names, message.stage_times, strict=True)) == {"plan": 1.5, "guard": 0.25}


def test_status_tells_verdict_source_and_reason():
    report = StepReport(stopping_plan(), Verdict.LATE, PlanSource.CARRIED, "the plan took 90 ms", {"plan": 90.0})
    status = plan_messages.status(report, config(), "abc", 5, 0.05, 95.0)
    message = deserialize_message(plan_messages.status_bytes(status, 7, "map"), PlannerStatus)
    assert (message.header.frame_id, message.header.stamp.nanosec) == ("map", 7)
    assert (message.planner, message.step_kind) == (status.planner, status.step_kind)
    assert (message.verdict, message.source) == (message.VERDICT_LATE, message.SOURCE_CARRIED)
    assert (message.reason, message.sequence, message.model_sha256) == ("the plan took 90 ms", 5, "abc")
    assert message.time_received_to_published == 95.0


def test_markers_and_path_follow_the_plan():
    report = StepReport(stopping_plan(), Verdict.OK, PlanSource.STOP)
    trajectory = outputs.trajectory(report.plan, config())
    ribbon, text = outputs.markers(report, trajectory, config()).markers
    assert len(ribbon.points) == 80
    assert ribbon.scale.x == pytest.approx(2.297)
    assert "stop OK" in text.text
    assert len(outputs.path(trajectory).poses) == 80


# --- planning factors ------------------------------------------------------------------------------------------------


def factor(kind, x, speed_mps, distance_m=None):
    return PlanningFactor(kind, np.array([x, 0.0, 0.0]), x if distance_m is None else distance_m, speed_mps)


def factors_of(*factors, surface=None, plan=None):
    report = StepReport(plan or stopping_plan(), Verdict.OK, PlanSource.PLANNER, factors=factors)
    return outputs.planning_factors(report, config(), *([] if surface is None else [surface]))


def test_where_and_why_the_plan_stops_or_is_slow_is_a_planning_factor():
    message = factors_of(factor(FactorKind.SPEED_LIMIT, 4.0, 3.0), factor(FactorKind.TRAFFIC_LIGHT, 12.0, 0.0, 12.5))
    assert message.header.frame_id == "map"
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (7, 25)
    slow, stop = message.factors
    assert (slow.behavior, stop.behavior) == (slow.SLOW_DOWN, stop.STOP)
    assert {slow.module, stop.module} == {"reflectdrive"}
    assert slow.is_driving_forward
    (point,) = stop.control_points
    assert (point.distance, point.velocity) == (12.5, 0.0)
    assert (point.pose.position.x, point.pose.position.y) == pytest.approx((100.0, 62.0))  # HERE looks to the north
    assert 2 * np.arctan2(point.pose.orientation.z, point.pose.orientation.w) == pytest.approx(np.pi / 2)
    assert slow.control_points[0].velocity == 3.0
    assert as_received(message) == message
    assert factors_of() == PlanningFactorArray(header=message.header)  # also published where there are none
    for kind in FactorKind:
        (each,) = factors_of(factor(kind, 5.0, 0.0)).factors
        assert (each.detail, each.safety_factors.is_safe) == (kind.value, kind is not FactorKind.OBJECT)


def test_a_factor_lies_on_the_road_that_the_plan_is_on():
    """10 % uphill: also a stop beyond the end of the plan has the height and the pitch of the slope."""
    uphill = RoadSurface(VehiclePlane(HERE, 3.0, 0.1))
    near, beyond = factors_of(
        factor(FactorKind.OBJECT, 4.0, 0.0), factor(FactorKind.ROUTE_END, 80.0, 0.0), surface=uphill
    ).factors
    for factor_message, x in ((near, 4.0), (beyond, 80.0)):
        pose = factor_message.control_points[0].pose
        assert pose.position.z == pytest.approx(3.0 + 0.1 * x)
        assert rotations.matrix_from_quaternion(
            (pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w)
        )[2, 0] == pytest.approx(np.sin(np.arctan(0.1)))


# --- processing time -------------------------------------------------------------------------------------------------


def test_the_stages_of_a_step_are_a_tree_whose_parents_come_first():
    """Whatever stages the engine has are below it."""
    stages = {"snapshot": 4.0, "stop": 1.0, "plan": 20.0, "new": 2.0, "total": 23.0, "publish": 1.5, "overall": 30.0}
    nodes = outputs.processing_time_tree(stages).nodes
    names = {node.id: node.name for node in nodes}
    assert list(names) == list(range(1, 8))
    parents = {node.name: names.get(node.parent_id, "") for node in nodes}
    assert parents == {
        "overall": "",
        **dict.fromkeys(("snapshot", "engine", "publish"), "overall"),
        **dict.fromkeys(("stop", "plan", "new"), "engine"),
    }
    times_ms = {("engine" if name == "total" else name): value for name, value in stages.items()}
    assert {node.name: node.processing_time for node in nodes} == times_ms
    assert all(node.parent_id < node.id for node in nodes)


# --- forecast and next traffic light ---------------------------------------------------------------------------------


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
