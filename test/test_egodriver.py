"""Claims about `reflectdrive serve --egodriver`: frames and units, the deadline, isolated sessions."""

import json
import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("carla_driver_interface", reason="the extra egodriver is not installed")

import grpc
from carla_driver_interface.geometry import Pose
from carla_driver_interface.geometry import Trajectory as RigTrajectory
from carla_driver_interface.protocol import (
    DriveRequest,
    DriveSessionCloseRequest,
    DriveSessionRequest,
    DynamicState,
    EgodriverServiceStub,
    RolloutEgoTrajectory,
    RouteRequest,
    Vec3,
)
from carla_driver_interface.testing import FakeCamera, FakeLoop

from reflectdrive_ros import __main__
from reflectdrive_ros.cli import serve
from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import LightState, Trajectory
from reflectdrive_ros.egodriver import convert, driver, service
from reflectdrive_ros.features.cameras import rig
from reflectdrive_ros.features.reprojection import plan_views

HOST = "127.0.0.1"
DEADLINE_S = 5.0  # of a machine that runs other tests, too
FOLLOWER = serve.served_config(replace(Config(), planner="route_follower"))


def three_cameras(width=640, height=360):
    """The canonical rig as the contract's test cameras, which have no roll."""
    mounts = [("left", 92.0, 57.8, 0.64), ("front", 52.0, 0.0, 0.0), ("right", 92.0, -57.8, -0.6)]
    return [
        FakeCamera(name, width, height, fov_deg=fov, x=1.5, y=y, z=1.95, yaw_left_deg=yaw)
        for name, fov, yaw, y in mounts
    ]


# --- frames and units -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", [-3.0, -0.4, 0.0, 2.2])
def test_poses_and_plans_survive_the_conversion_to_the_contract_and_back(heading):
    pose = Pose.from_xyz_yaw(120.5, -33.25, 4.0, heading)
    np.testing.assert_allclose(convert.planar(pose), [120.5, -33.25, heading], atol=1e-9)
    plan = Trajectory(np.stack([np.arange(1.0, 41.0), 0.1 * np.arange(40), 0.02 * np.arange(40)], axis=1), 0.1)
    times, poses = convert.trajectory_us(plan, 7_000_000)
    sent = RigTrajectory(times, [pose @ Pose.from_xyz_yaw(x, y, 0.0, turn) for x, y, turn in poses.tolist()])
    back = RigTrajectory.from_proto(sent.to_proto())
    assert list(back.timestamps_us) == [7_000_000 + 100_000 * step for step in range(1, 41)]
    in_map = np.array([convert.planar(one) for one in back.poses])
    there = geometry.compose(geometry.invert(convert.planar(pose)), in_map)
    np.testing.assert_allclose(there, plan.poses, atol=1e-5)


def test_the_ego_state_has_nanoseconds_and_the_velocities_of_the_rig():
    state = DynamicState(
        linear_velocity=Vec3(x=8.0, y=0.1), angular_velocity=Vec3(z=0.2), linear_acceleration=Vec3(x=-1.5)
    )
    ego = convert.ego_state(1_500_000, Pose.from_xyz_yaw(1.0, 2.0, 0.0, 0.5), state)
    assert (ego.stamp_ns, ego.speed_mps, ego.acceleration_mps2) == (1_500_000_000, 8.0, -1.5)
    assert ego.yaw_rate_rps == pytest.approx(0.2)
    state.linear_velocity.x = float("nan")
    with pytest.raises(convert.BadInput, match="the dynamic state holds NaN"):
        convert.ego_state(0, Pose.identity(), state)


def test_a_route_is_kept_in_the_map_and_one_without_length_is_none():
    here = np.array([10.0, 5.0, np.pi / 2])
    line = convert.route_in_map(np.array([[0.0, 0.0, 0.0], [10.0, 0.0, 0.0], [20.0, 0.0, 0.0]]), here)
    np.testing.assert_allclose(line, [[10, 5, np.pi / 2], [10, 15, np.pi / 2], [10, 25, np.pi / 2]], atol=1e-9)
    assert convert.route_in_map(np.zeros((3, 3)), here).shape == (0, 3)
    assert convert.route_in_map(np.zeros((0, 3)), here).shape == (0, 3)
    with pytest.raises(convert.BadInput, match="the route holds NaN"):
        convert.route_in_map(np.full((2, 3), np.nan), here)
    with pytest.raises(convert.BadInput, match=r"the route is 2e\+06 km long, at most 1000 km are followed"):
        convert.route_in_map(np.array([[-1e9, 0.0, 0.0], [1e9, 0.0, 0.0]]), here)


def test_a_route_that_begins_ahead_is_joined_to_the_car_and_one_beside_it_is_not():
    """AlpaSim may leave out the first 40 m: the car is on such a route. A car 30 m beside its route is not."""
    here = np.array([10.0, 5.0, 0.0])
    ahead = np.array([[40.0, 3.0, 0.0], [60.0, 3.0, 0.0]])
    np.testing.assert_allclose(convert.route_in_map(ahead, here)[:, :2], [[10, 5], [50, 8], [70, 8]], atol=1e-9)
    offset_route = np.array([[0.5, 30.0, 0.0], [60.0, 30.0, 0.0]])
    assert len(convert.route_in_map(offset_route, here)) == 2


def test_a_light_ahead_is_a_stop_line_across_the_route():
    route = np.stack([np.arange(-5.0, 100.0, 5.0), np.zeros(21), np.zeros(21)], axis=1)
    lights, lines = convert.light_ahead("TRAFFIC_LIGHT_STATE_RED", 30.0, route)
    assert lights.states.tolist() == [LightState.RED]
    np.testing.assert_allclose(lines.ends[0], [[30.0, 2.0], [30.0, -2.0]], atol=1e-9)
    for name, distance_m in (("TRAFFIC_LIGHT_STATE_NONE", 30.0), ("TRAFFIC_LIGHT_STATE_RED", -1.0)):
        assert convert.light_ahead(name, distance_m, route) == (None, None)


def test_declared_cameras_see_what_the_canonical_ones_see():
    declared = [camera.available_camera() for camera in three_cameras()]
    calibrations = [convert.calibration(camera, Pose.from_proto(camera.rig_to_camera)) for camera in declared]
    views = plan_views(rig(288, 144), calibrations)
    assert [view.source for view in views] == ["left", "front", "right"]
    assert min(view.coverage for view in views) > 0.8
    assert max(view.rotation_deg for view in views) < 2.0


def test_cameras_that_cannot_be_used_are_named():
    camera = FakeCamera().available_camera()
    camera.intrinsics.opencv_pinhole_param.thin_prism_coeffs.append(0.1)
    with pytest.raises(convert.BadInput, match="camera camera_front has thin prism distortion"):
        convert.calibration(camera, Pose.identity())
    camera.intrinsics.ClearField("opencv_pinhole_param")
    with pytest.raises(convert.BadInput, match="camera camera_front is neither"):
        convert.calibration(camera, Pose.identity())


# --- the contract -----------------------------------------------------------------------------------------------------


@contextmanager
def loop_of(driver, *cameras, loop=FakeLoop, **start):
    """The contract's closed loop, served by a driver."""
    with (
        service.serving(driver, port=0, host=HOST) as port,
        loop(f"{HOST}:{port}", cameras or [FakeCamera()], **start) as running,
    ):
        yield running


def test_a_hundred_steps_are_answered_within_the_deadline_and_the_car_drives_on():
    driver = serve.make_driver(FOLLOWER, DEADLINE_S)
    with loop_of(driver, FakeCamera(width=96, height=54)) as loop:
        result = loop.run(100)
    assert result.steps == len(result.debug) == 100
    assert max(answer.inference_seconds for answer in result.debug) < DEADLINE_S
    assert not any(answer.scalars["stopped"] for answer in result.debug)
    assert np.abs(result.lateral_offsets_m).max() < 0.2
    assert result.speeds_mps[-1] > 5.0
    numbers = driver.numbers()
    assert (numbers["sessions"], numbers["late"], numbers["plans"]) == (1, 0, {"planner": 100})
    assert 0.0 < numbers["latency_ms"]["total"]["p50"] <= numbers["latency_ms"]["total"]["p99"]


def test_the_learned_planner_drives_by_the_images_of_the_contract():
    driver = serve.make_driver(serve.served_config(Config()), 60.0)
    with loop_of(driver, *three_cameras(), initial_speed_mps=8.0) as loop:
        result = loop.run(8)
    assert result.steps == 8
    assert not any(answer.scalars["stopped"] for answer in result.debug)
    assert np.abs(result.lateral_offsets_m).max() < 1.0
    assert result.ego.positions[-1, 0] > 3.0


class Faulty(driver.PlannerDriver):
    """Fails in every session that is faster than 5 m/s; takes `slow_s` for a plan."""

    slow_s = 0.0

    def observation(self, own, ctx, ego):
        time.sleep(self.slow_s)
        if ego.speed_mps > 5.0 and not self.slow_s:
            raise RuntimeError("planted")
        return super().observation(own, ctx, ego)


def test_a_session_that_fails_does_not_stop_another():
    ends = {}

    def drive(name, port, speed):
        with FakeLoop(f"{HOST}:{port}", initial_speed_mps=speed) as loop:
            try:
                ends[name] = loop.run(10)
            except grpc.RpcError as fault:
                ends[name] = fault

    with service.serving(Faulty(FOLLOWER, {}, DEADLINE_S), port=0, host=HOST) as port:
        threads = [threading.Thread(target=drive, args=(*one,)) for one in (("good", port, 1.0), ("bad", port, 9.0))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ends["good"].steps == ends["bad"].steps == 10
    assert not any(answer.scalars["stopped"] for answer in ends["good"].debug)
    assert ends["bad"].debug[0].scalars["stopped"] == 1.0
    assert ends["bad"].speeds_mps[-1] < 9.0  # it brakes


def test_a_plan_that_is_late_is_replaced_by_the_stop_plan_at_the_deadline():
    driver = Faulty(FOLLOWER, {}, 0.1)
    driver.slow_s = 1.0
    with loop_of(driver, initial_speed_mps=8.0) as loop:
        result = loop.run(3)
    assert result.steps == 3
    assert max(answer.inference_seconds for answer in result.debug) < 0.9
    assert all(answer.scalars["stopped"] for answer in result.debug)
    assert (driver.numbers()["late"], driver.numbers()["plans"]) == (3, {"stop": 3})


def test_damaged_images_give_the_stop_plan_and_not_an_error():
    class Damaged(FakeLoop):
        def _encode(self, rgb):
            return b"no image"

    driver = serve.make_driver(serve.served_config(Config()), DEADLINE_S)
    with loop_of(driver, *three_cameras(96, 54), loop=Damaged, initial_speed_mps=8.0) as loop:
        result = loop.run(2)
    assert all(answer.scalars["stopped"] for answer in result.debug)


def test_a_planner_that_needs_cameras_refuses_a_session_without_a_view():
    driver = serve.make_driver(serve.served_config(Config()), DEADLINE_S)
    with loop_of(driver, FakeCamera(yaw_left_deg=180.0)) as loop, pytest.raises(grpc.RpcError) as refused:
        loop.run(1)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "no declared camera sees" in refused.value.details()


# --- what comes from the network --------------------------------------------------------------------------------------


@contextmanager
def stub_of(driver, clock=time.monotonic):
    with service.serving(driver, 0, HOST, clock=clock) as port, grpc.insecure_channel(f"{HOST}:{port}") as channel:
        yield EgodriverServiceStub(channel), channel


def start(stub, name):
    stub.start_session(DriveSessionRequest(session_uuid=name))


def refused(call, *words):
    with pytest.raises(grpc.RpcError) as fault:
        call(*words)
    return fault.value.code(), fault.value.details()


def test_sessions_have_a_limit_that_is_reported():
    driver = serve.make_driver(FOLLOWER, DEADLINE_S)
    with stub_of(driver) as (stub, _):
        for number in range(service.SESSIONS_MAX):
            start(stub, f"session-{number}")
        code, sentence = refused(start, stub, "one-more")
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sentence.startswith("64 sessions are open, which is the limit: close one")
        stub.close_session(DriveSessionCloseRequest(session_uuid="session-0"))
        start(stub, "one-more")
    assert driver.numbers()["sessions"] == service.SESSIONS_MAX + 1


def test_a_session_that_nobody_calls_ends_and_one_that_is_called_stays():
    clock, driver = SimpleNamespace(now_s=0.0), serve.make_driver(FOLLOWER, DEADLINE_S)
    with stub_of(driver, lambda: clock.now_s) as (stub, _):
        start(stub, "left alone")
        start(stub, "called")
        clock.now_s = 0.9 * service.IDLE_MAX_S
        stub.submit_route(RouteRequest(session_uuid="called"))
        clock.now_s = 1.1 * service.IDLE_MAX_S
        stub.submit_route(RouteRequest(session_uuid="called"))
        code, sentence = refused(stub.submit_route, RouteRequest(session_uuid="left alone"))
        assert code is grpc.StatusCode.NOT_FOUND
        assert sentence == "no session left alone is open: start it; one without a call for 600 s is ended"
        assert list(driver._sessions) == ["called"]
        start(stub, "left alone")  # its name is free again


@pytest.fixture
def server_log(caplog):
    """The log lines of a server, formatted as `reflectdrive serve` does."""
    caplog.set_level(logging.INFO)
    formatter = service.LogFormatter()
    return lambda: [formatter.format(record) for record in caplog.records]


METHODS = ("start_session", "submit_image_observation", "submit_egomotion_observation", "submit_route", "drive")


@pytest.mark.parametrize("content", [b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256))])
def test_garbage_bytes_are_one_line_of_the_log_and_the_server_goes_on(content, server_log):
    with stub_of(serve.make_driver(FOLLOWER, DEADLINE_S)) as (stub, channel):
        for method in METHODS:
            call = channel.unary_unary(f"/egodriver.EgodriverService/{method}")
            code, _ = refused(call, content)
            assert code is grpc.StatusCode.INTERNAL
        start(stub, "next")
    lines = server_log()
    assert len([line for line in lines if f"is refused: {len(content)} bytes are no request" in line]) == len(METHODS)
    assert not any("\n" in line or "Traceback" in line for line in lines)


def test_what_a_request_holds_never_ends_in_a_traceback(server_log):
    """Bytes that are a request, whose fields are not what they should be."""
    with stub_of(serve.make_driver(FOLLOWER, DEADLINE_S)) as (stub, _):
        start(stub, "one")
        motion = RolloutEgoTrajectory(session_uuid="one")
        pose = motion.trajectory.poses.add()
        pose.timestamp_us, pose.pose.quat.w = 100, 1.0
        stub.submit_egomotion_observation(motion)
        route = RouteRequest(session_uuid="one")
        route.route.waypoints.add().x = float("nan")
        code, sentence = refused(stub.submit_route, route)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence.startswith("submit_route failed: BadInput: the route holds NaN")
        stub.drive(DriveRequest(session_uuid="one", renderer_data=b"\xff" * 50))
    lines = server_log()
    assert any(sentence in line for line in lines)
    assert not any("Traceback" in line for line in lines)


def test_a_session_id_of_a_megabyte_and_control_characters_is_cut_and_escaped(server_log):
    name = "\x1b]0;owned\x07\nWARNING forged line " + "x" * 1_000_000
    with stub_of(serve.make_driver(FOLLOWER, DEADLINE_S)) as (stub, _):
        start(stub, name)
        stub.drive(DriveRequest(session_uuid=name))
        stub.close_session(DriveSessionCloseRequest(session_uuid=name))
        code, sentence = refused(stub.drive, DriveRequest(session_uuid=name))
    assert code is grpc.StatusCode.NOT_FOUND
    lines = [*server_log(), sentence]
    assert any("forged line" in line for line in lines)
    for line in lines:
        assert line.isprintable()
        assert len(line) < 5000


def test_the_numbers_of_a_server_are_written_when_it_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "run_server", lambda *_: None)
    file = tmp_path / "numbers.json"
    assert __main__.run(["serve", "--egodriver", "--planner", "route_follower", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert (content["planner"], content["sessions"], content["plans"]) == ("route_follower", 0, {})
    assert content["latency_ms"] == {"total": None}
    assert {"version", "commit", "device", "date", "command"} <= content.keys()
    assert "served by route_follower" in capsys.readouterr().out


def test_the_command_names_what_it_needs(capsys):
    assert __main__.run(["serve"]) == 2
    assert "give --egodriver" in capsys.readouterr().err
    assert __main__.run(["serve", "--egodriver", "--planner", "reflexdiffusion"]) == 2
    assert "needs lanes and histories" in capsys.readouterr().err
