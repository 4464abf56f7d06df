"""The real node, in its own process, over real DDS: what it answers, and what it says when it cannot."""

import os
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest
import rclpy
from builtin_interfaces.msg import Time
from messages import CAMERAS, camera_info, raw
from node_car import EVERYTHING, LATCHED, OK, WARN, Car, car, patient, planned, stopped
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message, serialize_message
from reflectdrive.msg import PlannerStatus
from rosgraph_msgs.msg import Clock
from scenes import ego as an_ego
from std_msgs.msg import String
from tiny_model import SPEED_MPS, tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.core.config import as_yaml
from reflectdrive_ros.maps.elevation import FLAT_GROUND
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import constant_velocity
from reflectdrive_ros.replay.node import Harness
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.node import PlannerNode
from reflectdrive_ros.ros.node_process import spin_once_safely
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import Engine

# each test has the run's own domain (conftest) and ends every process it began, by id, also when it fails
pytestmark = pytest.mark.dds


def test_a_planner_that_has_learned_drives_and_says_what_it_could_not_use(tmp_path, tiny_model):  # noqa: F811
    with car(tmp_path, (*EVERYTHING, "debug", "goals"), **tiny_model.settings) as sender:
        driving, received = {"ego": {"speed": SPEED_MPS}}, sender.harness.received
        status = sender.until(lambda status: planned(status) and status.step_kind == "lite", 30.0, **driving)
        assert (status.planner, status.model_sha256) == ("reflectdrive2", tiny_model.sha256)
        sender.until(lambda status: planned(status) and status.step_kind == "full", **driving)
        sender.diagnosed(lambda lines: lines["planner"][0] == OK, **driving)
        sender.harness.inputs["instruction"].publish(String(data="fahren Sie jetzt links"))
        level, message = sender.diagnosed(lambda lines: "unknown words" in lines["planner"][1], **driving)["planner"]
        assert level == WARN
        assert "4 unknown words: 'fahren Sie jetzt links'" in message
        newest = received["diagnostics"][-1][1]
        (values,) = ({v.key: v.value for v in s.values} for s in newest.status if s.name.endswith(": planner"))
        assert "4 unknown words" in values["notes"]
        assert values["planned"] in ("full", "lite")
        assert bool(values["full_step_reason"]) == (values["planned"] == "full")
        sender.until(planned, **driving)  # and drives on

        def debugs():
            """Details and goals of each step. Two steps on one odometry have one stamp, and are left out."""
            stamps = Counter(str(m.header.stamp) for key in ("goals", "debug") for _, m in received[key])
            goals = {str(message.header.stamp): message for _, message in received["goals"]}
            steps = [(message, str(message.header.stamp)) for _, message in received["debug"]]
            return [
                (message, goals[stamp])
                for message, stamp in steps
                if len(message.tokens_after_edit) and stamp in goals and stamps[stamp] == 2
            ]

        sender.until(lambda _: {message.step_kind for message, _ in debugs()} == {"full", "lite"}, 30.0, **driving)
        for message, weighed in debugs():
            assert (weighed.chosen >= 0) is (message.step_kind == "full")
            assert len(weighed.x) == len(weighed.y) == len(weighed.probability)
            assert len(message.tokens_before_edit) == len(message.token_confidence) == 16
            assert len(message.round_tokens) == len(message.round_confidence) == 16 * (message.edit_rounds + 1)


def test_bytes_that_are_no_message_neither_end_the_node_nor_keep_it_from_planning(tmp_path):
    """Half a message on every topic; test_fuzz_messages.py has other bytes."""
    with car(tmp_path) as sender:
        sender.until(planned)
        names = [key.replace("info:", "camera_info ").replace(":", " ") for key in sender.harness.inputs]

        def each_is_named(lines):
            for publisher in sender.harness.inputs.values():
                whole = serialize_message(publisher.msg_type())
                publisher.publish(whole[: len(whole) // 2])
            time.sleep(0.6)  # camera_info is taken twice a second, and the newest only
            return all("messages refused, the last one" in lines.get(name, (OK, ""))[1] for name in names)

        lines = sender.diagnosed(each_is_named, 30.0)
        assert all(lines[name][0] != OK for name in names)
        sender.until(planned)
        assert sender.process.poll() is None
        log = (tmp_path / "node.log").read_text()
        assert "Traceback" not in log
        assert "Error" not in log


def test_what_rclpy_itself_cannot_take_does_not_end_the_executor():
    """A /clock before 1970 raises in rclpy's own callback."""
    context = Context()
    rclpy.init(context=context)
    node = Node("clockwork", context=context, parameter_overrides=[Parameter("use_sim_time", value=True)])
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    publisher = node.create_publisher(Clock, "/clock", 10)
    try:
        until = time.perf_counter() + 20.0

        def unguarded():
            while time.perf_counter() < until:
                publisher.publish(Clock(clock=Time(sec=-5)))
                executor.spin_once(timeout_sec=0.1)

        with pytest.raises(ValueError, match="negative"):
            unguarded()
        while node.get_clock().now().nanoseconds != 77 * 10**9:
            assert time.perf_counter() < until
            for sec in (-5, 77):
                publisher.publish(Clock(clock=Time(sec=sec)))
            spin_once_safely(executor, node)
    finally:
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown(context=context)


def test_three_full_hd_streams_are_survived_and_the_newest_wins(tmp_path):
    """Raw 1920x1080 at 10 Hz from three cameras: plans keep coming, from fresh images, with no queue behind them."""
    pixels = np.random.default_rng(0).integers(0, 255, (1080, 1920, 3), dtype=np.uint8)
    messages = {camera: raw(0.0, camera, pixels=pixels) for camera in CAMERAS}

    def full_hd(now, camera, shade):
        message = messages[camera]
        message.data[:64] = type(message.data)("B", [shade % 256] * 64)
        message.header.stamp = outputs.time_message(round(now * 1e9))
        return message

    environment = os.environ.pop("ROS_PYTHON_CHECK_FIELDS")  # checking 6 MB byte by byte takes half a second
    try:
        with car(
            tmp_path, cameras__compressed=False, inputs__max_age_s=("image=1.0", "odometry=1.0"),
            cameras__match_tolerance_s=0.3,
        ) as sender:  # fmt: skip
            sender.until(planned, make=full_hd, timeout_s=30.0)
            statuses, until = [], time.perf_counter() + 60.0  # a busy machine loses most of 186 MB/s; some must come
            while len(statuses) < 5 and time.perf_counter() < until:
                statuses += [s for s in sender.drive(1.0, make=full_hd) if planned(s)]
    finally:
        os.environ["ROS_PYTHON_CHECK_FIELDS"] = environment
    assert len(statuses) >= 5
    late = statuses[len(statuses) // 2 :]
    assert np.median([s.age_of_image for s in late]) < 0.5  # a queue would age without end


@contextmanager
def node_in_this_process(tmp_path, config, planner):
    """For what the real process cannot show: a planner that hangs, two threads that send at once."""
    context = Context()
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config))
    rclpy.init(args=["--ros-args", "-r", "__ns:=/planning/reflectdrive", "-p", f"config_file:={file}"], context=context)
    node = PlannerNode(
        PlanningCore(config, time.perf_counter, engine=Engine(config, time.perf_counter, planner)), context=context
    )
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin():
        with suppress(ExternalShutdownException):
            executor.spin()

    spinning = threading.Thread(target=spin, daemon=True)
    spinning.start()
    try:
        yield node
    finally:
        node.close()
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown(context=context)
        spinning.join(timeout=2.0)


def test_a_planner_that_hangs_is_overruled_and_its_old_plan_is_not_sent_afterwards(tmp_path):
    hang = threading.Event()

    def planner(state, scene, planner_context):
        if hang.is_set():
            hang.clear()
            time.sleep(2.0)
        return pipeline.plan(constant_velocity.generate, state, scene, planner_context)

    config = patient()
    keys = [f"{kind}:{name}" for kind in ("image", "info") for name in CAMERAS]
    harness = Harness(config, [*keys, *LATCHED], EVERYTHING)
    try:
        with node_in_this_process(tmp_path, config, planner):
            sender = Car(harness, None)
            until = time.perf_counter() + 20.0
            while any(publisher.get_subscription_count() == 0 for publisher in harness.inputs.values()):
                assert time.perf_counter() < until
                time.sleep(0.05)
            sender.latch()
            sender.until(planned)
            hang.set()
            status = sender.until(stopped)
            assert "busy" in status.reason
            sender.until(planned)
            stamps = [m.header.stamp.sec + 1e-9 * m.header.stamp.nanosec for _, m in harness.received["trajectory"]]
            assert stamps == sorted(stamps)
    finally:
        harness.close()


def test_a_camera_info_that_says_nothing_new_is_not_read_again(tmp_path):
    """Drivers send one with every image; another calibration counts at once."""
    with node_in_this_process(tmp_path, patient(), partial(pipeline.plan, constant_velocity.generate)) as node:
        store, channel = node._store_callback("info:front", False), node._core.inputs.store.infos["front"]
        for width, stamp_ns, read in ((64, 1, 1), (64, 2, 1), (80, 3, 2), (80, 4, 2)):
            message = camera_info("front", width)
            message.header.stamp = outputs.time_message(stamp_ns)
            store(serialize_message(message))
            assert channel.received == read
        for _ in range(2):  # one that cannot be read is counted each time
            store(b"\0\1\0\0 no camera_info")
        assert channel.refused == 2


def test_worker_and_watchdog_never_explain_each_others_plan(tmp_path):
    config = patient()
    published = []
    with node_in_this_process(tmp_path, config, partial(pipeline.plan, constant_velocity.generate)) as node:
        publish = node._publisher.publish

        def slowly(key, message):
            time.sleep(0.002)  # time for the other thread to come in between
            publish(key, message)
            if key in ("trajectory", "status"):
                is_status = key == "status"
                published.append((key, deserialize_message(message, PlannerStatus).sequence if is_status else 0))

        node._publisher.publish = slowly
        engine = Engine(config, time.perf_counter)
        report = engine.stop(an_ego(), None, "a test")
        again = [(report, FLAT_GROUND, 0)] * 20
        threads = [threading.Thread(target=lambda: [node._send(*plan) for plan in again]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [key for key, _ in published] == ["trajectory", "status"] * 40
    assert [sequence for key, sequence in published if key == "status"] == list(range(1, 41))


def test_a_start_is_requested_by_the_service_and_ends_when_the_car_moves(tmp_path):
    """The planner `constant_velocity` plans to stay where a standing car is."""
    set_bool = pytest.importorskip("std_srvs.srv", reason="std_srvs is not installed").SetBool
    with car(tmp_path) as sender:
        standing, moving = {"ego": {"speed": 0.0, "x": 0.0}}, {"ego": {"speed": 2.0}}
        sender.until(planned, **standing)
        client = sender.harness.node.create_client(set_bool, "/planning/reflectdrive/reflectdrive/service/start")
        assert client.wait_for_service(10.0)
        answer = client.call_async(set_bool.Request(data=True))
        sender.diagnosed(lambda lines: "a start was requested" in lines["planner"][1], **standing)
        assert (answer.result().success, answer.result().message) == (True, "requested")
        assert sender.harness.received["trajectory"][-1][1].points[-1].longitudinal_velocity_mps > 2.0
        sender.diagnosed(lambda lines: "requested" not in lines["planner"][1], **moving)
        sender.diagnosed(lambda lines: "requested" not in lines["planner"][1], **standing)
