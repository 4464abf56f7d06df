"""One node, over real DDS: it drives, names what is wrong with its inputs, heals, and tells of itself."""

import re
import time

import pytest
from autoware_vehicle_msgs.msg import TurnIndicatorsCommand, TurnIndicatorsReport
from messages import CAMERAS
from node_car import ERROR, EVERYTHING, OK, car, planned, stopped

from reflectdrive_ros.ros import outputs, topics

pytestmark = pytest.mark.dds


@pytest.fixture(scope="module")
def one_car(tmp_path_factory):
    outputs_read = (*EVERYTHING, "planning_factors", "processing_time_detail")
    with car(tmp_path_factory.mktemp("car"), outputs_read) as sender:
        yield sender


@pytest.fixture
def sender(one_car):
    """The car of the file, driving; each test that takes it may leave it as it likes."""
    one_car.until(planned)
    return one_car


def test_three_cameras_odometry_and_a_route_become_trajectories_with_diagnostics(sender):
    sender.drive(1.0)
    received = sender.harness.received
    assert received["status"][-1][1].planner == "constant_velocity"
    trajectory = received["trajectory"][-1][1]
    assert trajectory.header.frame_id == "map"
    assert len(trajectory.points) == 84  # 0.3 s of the path behind the car, the car, 8 s ahead
    candidates = received["candidates"][-1][1]
    assert len(candidates.generator_info) == len(candidates.candidate_trajectories) == 1
    assert received["turn_indicators"]
    assert received["processing_time"][-1][1].data > 0.0
    sequence = [message.sequence for _, message in received["status"]]
    assert sequence == sorted(set(sequence))
    stamps = [(m.header.stamp.sec, m.header.stamp.nanosec) for _, m in received["trajectory"]]
    assert stamps == sorted(stamps)

    # a shared machine may stall, and a line tell of it for a moment: all is well as soon as it goes on, but for what
    # our own sender left out
    def all_is_well(lines):
        faults = [message for level, message in lines.values() if level != OK]
        lost = [re.search(r": (\d+) messages lost on the way", message) for message in faults]
        return all(match and int(match[1]) <= sender.left_out for match in lost)

    lines = sender.diagnosed(all_is_well)
    assert {"image front", "odometry", "route", "objects", "planner"} <= set(lines)


def test_a_camera_that_dies_stops_the_car_and_its_return_heals_it(sender):
    status = sender.until(stopped, cameras=("front_left", "front"))
    assert "front_right" in status.reason
    two = {"cameras": ("front_left", "front")}
    sender.diagnosed(lambda lines: lines["image front_right"][0] == lines["planner"][0] == ERROR, **two)
    last = sender.harness.received["trajectory"][-1][1]
    assert last.points[-1].longitudinal_velocity_mps == 0.0
    sender.until(planned)


def test_images_that_stop_are_noticed_by_the_watchdog(sender):
    status = sender.until(stopped, cameras=())
    assert "image front" in status.reason or "no new image" in status.reason


def test_a_car_that_is_not_on_its_route_stops_with_an_error_and_drives_on_when_it_is_back(sender):
    away_m = 30.0
    elsewhere = {"ego": {"y": away_m}}
    assert stopped(sender.until(lambda status: "from its route" in status.reason, **elsewhere))
    lines = sender.diagnosed(lambda lines: f"is {away_m:.1f} m from its route" in lines["planner"][1], **elsewhere)
    assert lines["planner"][0] == ERROR
    assert not any(planned(status) for status in sender.drive(0.5, **elsewhere))
    last = sender.harness.received["trajectory"][-1][1]
    assert last.points[-1].longitudinal_velocity_mps == 0.0
    assert abs(last.points[-1].pose.position.y - away_m) < 0.1  # straight on: it does not turn to the route
    sender.until(planned)


def test_factors_and_the_stages_of_each_step_are_published(sender):
    sender.drive(1.0)
    received = sender.harness.received
    stamps = {str(message.header.stamp) for _, message in received["planning_factors"]}
    assert len(stamps & {str(message.header.stamp) for _, message in received["trajectory"]}) >= 5
    nodes = {node.name: node for node in received["processing_time_detail"][-1][1].nodes}
    assert {"overall", "snapshot", "engine", "stop", "plan", "guard", "publish"} <= set(nodes)
    assert nodes["overall"].processing_time >= nodes["engine"].processing_time >= nodes["plan"].processing_time > 0


def test_parameters_tell_the_truth(sender):
    """What the node runs with is what `ros2 param` shows: read-only, described, with its range."""
    from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
    from rclpy.parameter import Parameter

    node = sender.harness.node

    def ask(kind, name, request):
        client = node.create_client(kind, f"/planning/reflectdrive/reflectdrive/{name}")
        assert client.wait_for_service(10.0)
        future = client.call_async(request)
        until = time.perf_counter() + 10.0
        while not future.done() and time.perf_counter() < until:
            time.sleep(0.02)
        return future.result()

    names = ["planner", "engine.watchdog_ms", "cameras.names"]
    values = ask(GetParameters, "get_parameters", GetParameters.Request(names=names)).values
    assert values[0].string_value == "constant_velocity"
    assert values[1].double_value == 400.0
    assert list(values[2].string_array_value) == list(CAMERAS)
    described = ask(DescribeParameters, "describe_parameters", DescribeParameters.Request(names=names)).descriptors
    assert all(entry.read_only and entry.description for entry in described)
    assert described[1].floating_point_range[0].from_value == 20.0
    change = Parameter("engine.watchdog_ms", value=500.0).to_parameter_msg()
    result = ask(SetParameters, "set_parameters", SetParameters.Request(parameters=[change])).results[0]
    assert not result.successful


def test_a_driver_keeps_the_turn_signal_and_the_planner_takes_it_over(sender):
    if not topics.is_installed(topics.OPERATION_MODE_TYPE):
        pytest.skip("autoware_adapi_v1_msgs is not built: tools/setup builds it")
    state = topics.message_class(topics.OPERATION_MODE_TYPE)

    def commanded(command, mode):
        sender.harness.inputs["operation_mode"].publish(state(mode=mode, is_autoware_control_enabled=True))
        until = time.perf_counter() + 15.0
        while time.perf_counter() < until:
            stamp = outputs.time_message(round(sender.now_s() * 1e9))
            report = TurnIndicatorsReport(stamp=stamp, report=TurnIndicatorsReport.ENABLE_LEFT)
            sender.harness.inputs["turn_indicators_status"].publish(report)
            sender.drive(0.2)
            sent = sender.harness.received["turn_indicators"]
            if sent and sent[-1][1].command == command:
                return
        pytest.fail(f"{command} was not commanded, but {sent[-1:]}")

    commanded(TurnIndicatorsCommand.NO_COMMAND, state.LOCAL)
    commanded(TurnIndicatorsCommand.ENABLE_LEFT, state.AUTONOMOUS)  # the driver's
    commanded(TurnIndicatorsCommand.DISABLE, state.AUTONOMOUS)  # the route goes straight on
