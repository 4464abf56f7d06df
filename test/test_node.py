"""The real node, in its own process, over real DDS: what it answers, and what it says when it cannot.

Each test has the run's own domain (conftest) and ends every process it began, by id, also when it fails.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import rclpy
from autoware_perception_msgs.msg import PredictedObjects
from builtin_interfaces.msg import Time
from messages import CAMERAS, acceleration, camera_info, jpeg, odometry, predicted_objects, raw, route, tf_static
from nav_msgs.msg import Path
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from scenes import config
from scenes import ego as an_ego
from std_msgs.msg import String
from tiny_model import SPEED_MPS, tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.config import as_yaml
from reflectdrive_ros.planning import constant_velocity
from reflectdrive_ros.replay.node import Harness
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.node import PlannerNode, spin_once_safely
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.ros.processes import running_node, stop_process
from reflectdrive_ros.runtime.engine import Engine

pytestmark = pytest.mark.dds

OK, WARN, ERROR = b"\x00", b"\x01", b"\x02"
EVERYTHING = ("trajectory", "status", "candidates", "turn_indicators", "diagnostics", "processing_time")


class Car:
    """Our side: sends what a car sends, stamped with the node's wall clock, and looks at what comes back."""

    def __init__(self, harness, process):
        self.harness, self.process = harness, process
        self.tick = 0
        self.sent_s = None
        self.left_out = 0  # times at which we should have sent and did not

    def now_s(self):
        return self.harness.node.get_clock().now().nanoseconds * 1e-9

    def latch(self):
        self.harness.inputs["route"].publish(route([(float(x), 0.0) for x in range(-20, 200)]))
        self.harness.inputs["tf_static"].publish(tf_static())

    def send(self, cameras=CAMERAS, ego=None, objects=True, shade=None, make=jpeg):
        self.tick += 1
        now = self.now_s()
        self.left_out += round((now - (self.sent_s or now - 0.1)) / 0.1) - 1
        self.sent_s = now
        inputs = self.harness.inputs
        ego = {} if ego is None else ego
        inputs["odometry"].publish(odometry(now, **{"x": 0.5 * self.tick, **ego}))
        inputs["acceleration"].publish(acceleration(now))
        if objects:
            inputs["objects"].publish(predicted_objects(now, (400.0, 0.0, 0.0, 5.0, 4.5)))
        for camera in cameras:
            info = camera_info(camera)
            info.header.stamp = outputs.time_message(round(now * 1e9))
            inputs[f"info:{camera}"].publish(info)
            inputs[f"image:{camera}"].publish(make(now, camera, self.tick if shade is None else shade))

    def drive(self, seconds, **what):
        """Send at 10 Hz; returns the plans' statuses that came meanwhile."""
        before = len(self.harness.received["status"])
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.send(**what)
            time.sleep(0.1)
        return [message for _, message in self.harness.received["status"][before:]]

    def until(self, wanted, timeout_s=15.0, **what):
        """Keep driving until a status fits; returns it."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            for message in self.drive(0.3, **what):
                if wanted(message):
                    return message
        pytest.fail(f"no such status within {timeout_s} s; last: {self.harness.received['status'][-1:]}")

    def diagnosed(self, wanted, timeout_s=15.0, **what):
        """Keep driving until the diagnostics' lines fit; returns them."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            self.drive(0.3, **what)
            if self.harness.received["diagnostics"] and wanted(lines := self.diagnostics()):
                return lines
        pytest.fail(f"no such diagnostics within {timeout_s} s; last: {self.diagnostics()}")

    def diagnostics(self):
        """name -> (level, message) of the newest diagnostics."""
        newest = self.harness.received["diagnostics"][-1][1]
        return {status.name.partition(": ")[2]: (status.level, status.message) for status in newest.status}


@contextmanager
def car(tmp_path, heard=EVERYTHING, **settings):
    made = patient(**settings)
    harness = Harness(made, [*(f"{kind}:{name}" for kind in ("image", "info") for name in CAMERAS), *LATCHED], heard)
    try:
        with running_node(made, {}, tmp_path / "node.log", sim_time=False) as process:
            harness.wait_for_node(process, tmp_path / "node.log")
            sender = Car(harness, process)
            sender.latch()
            yield sender
    finally:
        harness.close()


LATCHED = ("route", "tf_static", "odometry", "acceleration", "objects", "instruction")


def planned(status):
    return status.source == status.SOURCE_PLANNER


def stopped(status):
    return status.source == status.SOURCE_STOP


def test_three_cameras_odometry_and_a_route_become_trajectories_with_diagnostics(tmp_path):
    with car(tmp_path) as sender:
        status = sender.until(planned)
        sender.drive(2.0)
        received = sender.harness.received
        assert status.planner == "constant_velocity"
        trajectory = received["trajectory"][-1][1]
        assert trajectory.header.frame_id == "map"
        assert len(trajectory.points) == 80
        candidates = received["candidates"][-1][1]
        assert len(candidates.generator_info) == len(candidates.candidate_trajectories) == 1
        assert received["turn_indicators"]
        assert received["processing_time"][-1][1].data > 0.0
        sequence = [message.sequence for _, message in received["status"]]
        assert sequence == sorted(set(sequence))
        stamps = [(m.header.stamp.sec, m.header.stamp.nanosec) for _, m in received["trajectory"]]
        assert stamps == sorted(stamps)

        # a shared machine may stall, and a line tell of it for a moment: all is well as soon as it goes on, but for
        # what our own sender left out
        def all_is_well(lines):
            faults = [message for level, message in lines.values() if level != OK]
            lost = [re.search(r": (\d+) messages lost on the way", message) for message in faults]
            return all(found and int(found[1]) <= sender.left_out for found in lost)

        lines = sender.diagnosed(all_is_well)
        assert {"image front", "odometry", "route", "objects", "planner"} <= set(lines)


def test_a_planner_that_has_learned_drives_and_says_what_it_could_not_use(tmp_path, tiny_model):  # noqa: F811
    with car(tmp_path, (*EVERYTHING, "debug", "goals"), **tiny_model.settings) as sender:
        driving = {"ego": {"speed": SPEED_MPS}}
        status = sender.until(lambda status: planned(status) and status.step_kind == "lite", 30.0, **driving)
        assert (status.planner, status.model_sha256) == ("reflectdrive2", tiny_model.sha256)
        sender.until(lambda status: planned(status) and status.step_kind == "full", **driving)
        sender.diagnosed(lambda lines: lines["planner"][0] == OK, **driving)
        sender.harness.inputs["instruction"].publish(String(data="fahren Sie jetzt links"))
        level, message = sender.diagnosed(lambda lines: "unknown words" in lines["planner"][1], **driving)["planner"]
        assert level == WARN
        assert "4 unknown words: 'fahren Sie jetzt links'" in message
        newest = sender.harness.received["diagnostics"][-1][1]
        (values,) = ({v.key: v.value for v in s.values} for s in newest.status if s.name.endswith(": planner"))
        assert "4 unknown words" in values["notes"]
        assert values["planned"] in ("full", "lite")
        assert bool(values["full_step_reason"]) == (values["planned"] == "full")
        sender.until(planned, **driving)  # and drives on

        # what somebody listens to is told of each step: its goals, and its tokens before and after editing
        goals = {str(message.header.stamp): message for _, message in sender.harness.received["goals"]}
        told = [
            (message, goals[str(message.header.stamp)])
            for _, message in sender.harness.received["debug"]
            if len(message.tokens_after_edit) and str(message.header.stamp) in goals
        ]
        assert {message.step_kind for message, _ in told} == {"full", "lite"}
        for message, weighed in told:
            assert (weighed.chosen >= 0) is (message.step_kind == "full")
            assert len(weighed.x) == len(weighed.y) == len(weighed.probability)
            assert len(message.tokens_before_edit) == len(message.token_confidence) == 16
            assert len(message.round_tokens) == len(message.round_confidence) == 16 * (message.edit_rounds + 1)


def test_a_camera_that_dies_stops_the_car_and_its_return_heals_it(tmp_path):
    with car(tmp_path) as sender:
        sender.until(planned)
        status = sender.until(stopped, cameras=("front_left", "front"))
        assert "front_right" in status.reason
        two = {"cameras": ("front_left", "front")}
        sender.diagnosed(lambda lines: lines["image front_right"][0] == lines["planner"][0] == ERROR, **two)
        last = sender.harness.received["trajectory"][-1][1]
        assert last.points[-1].longitudinal_velocity_mps == 0.0
        sender.until(planned)


def test_images_that_stop_are_noticed_by_the_watchdog(tmp_path):
    with car(tmp_path) as sender:
        sender.until(planned)
        status = sender.until(stopped, cameras=())
        assert "image front" in status.reason or "no new image" in status.reason


def test_a_frozen_image_is_not_driven_on(tmp_path):
    with car(tmp_path, cameras__frozen_after=3) as sender:
        sender.until(planned)
        status = sender.until(stopped, shade=7)
        assert "frozen" in status.reason


def test_nan_odometry_is_refused_and_healed(tmp_path):
    with car(tmp_path) as sender:
        sender.until(planned)
        before = len(sender.harness.received["trajectory"])
        lines = sender.diagnosed(lambda lines: lines["odometry"][0] == ERROR, ego={"x": float("nan")})
        assert "NaN" in lines["odometry"][1]
        sender.drive(0.3, ego={"x": float("nan")})
        for _, trajectory in sender.harness.received["trajectory"][before:]:
            assert np.isfinite([p.pose.position.x for p in trajectory.points]).all()
        sender.until(planned)


def test_raw_images_of_an_unknown_encoding_are_named(tmp_path):
    def depth(now, camera, shade):
        return raw(now, camera, encoding="32FC1")

    with car(tmp_path, cameras__compressed=False) as sender:
        status = sender.until(stopped, make=depth)
        assert status.reason
        sender.diagnosed(lambda lines: "encoding '32FC1' is unknown" in lines["image front"][1], make=depth)


def test_missing_objects_are_unchecked_not_free(tmp_path):
    with car(tmp_path) as sender:
        sender.until(planned, objects=False)
        sender.drive(0.6, objects=False)
        level, message = sender.diagnostics()["planner"]
        assert level == WARN
        assert "unchecked" in message


def test_a_message_too_large_to_be_read_in_time_is_named_and_the_next_one_heals_it(tmp_path):
    with car(tmp_path, inputs__message_max_mb=0.1) as sender:
        sender.until(planned)
        crowd = predicted_objects(sender.now_s(), *[(400.0 + k, 0.0, 0.0, 5.0, 4.5) for k in range(200)])

        def with_a_crowd(now, camera, shade):
            sender.harness.inputs["objects"].publish(crowd)
            return jpeg(now, camera, shade)

        lines = sender.diagnosed(lambda lines: "is not read" in lines["objects"][1], objects=False, make=with_a_crowd)
        assert "inputs.message_max_mb" in lines["objects"][1]
        sender.diagnosed(lambda lines: lines["objects"][0] == OK)


def test_bytes_that_are_no_message_neither_end_the_node_nor_keep_it_from_planning(tmp_path):
    """On every topic: noise, half a message, one of another type, a forged length."""
    rng = np.random.default_rng(0)
    with car(tmp_path) as sender:
        sender.until(planned)
        sent = dict.fromkeys(sender.harness.inputs, 0)
        before = len(sender.harness.received["status"])

        def send_bad(kind):
            for key, publisher in sender.harness.inputs.items():
                good = serialize_message(publisher.msg_type())
                other = serialize_message(String(data="no message" * 5) if key != "instruction" else an_odometry)
                at = 4 if key in ("tf_static", "instruction") else 12  # its first length
                forged = good[:at] + b"\xff\xff\xff\x7f" + good[at + 4 :]
                noise = b"\0\1\0\0" + rng.bytes(int(rng.integers(1, 200)))
                bad = [b"\0", rng.bytes(30), noise, good[: len(good) // 2], other, forged][kind]
                with suppress(RuntimeError):  # the middleware itself sends no more bytes than a type has at most
                    publisher.publish(bad)
                    sent[key] += 1

        an_odometry = odometry(1.0)
        for k in range(18):
            sender.send()
            time.sleep(0.06)  # the good ones are taken first, of which only the newest waits
            send_bad(k % 6)
            time.sleep(0.06)
        assert min(sent.values()) >= 6
        names = {key: key.replace("info:", "camera_info ").replace(":", " ") for key in sent}

        def each_is_named(lines):
            send_bad(2)
            return all("messages refused, the last one" in lines.get(name, (OK, ""))[1] for name in names.values())

        lines = sender.diagnosed(each_is_named)
        assert all(lines[name][0] != OK for name in names.values())
        planning = [planned(status) for _, status in sender.harness.received["status"][before:]]
        assert sum(planning) >= 0.7 * len(planning)  # a shared machine may stall
        sender.until(planned)
        assert sender.process.poll() is None
        said = (tmp_path / "node.log").read_text()
        assert "Traceback" not in said
        assert "Error" not in said


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
            tmp_path, cameras__compressed=False, inputs__image_max_age_s=1.0, inputs__odometry_max_age_s=1.0,
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
def node_in_this_process(tmp_path, made, planner):
    """For what the real process cannot show: a planner that hangs, two threads that send at once."""
    context = Context()
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(made))
    rclpy.init(args=["--ros-args", "-r", "__ns:=/planning/reflectdrive", "-p", f"config_file:={file}"], context=context)
    node = PlannerNode(
        PlanningCore(made, time.perf_counter, engine=Engine(made, time.perf_counter, planner)), context=context
    )
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    spinning = threading.Thread(target=spin, args=(executor,), daemon=True)
    spinning.start()
    try:
        yield node
    finally:
        node.close()
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown(context=context)
        spinning.join(timeout=2.0)


def patient(**settings):
    """Small cameras, and time enough for a busy machine."""
    return config(
        **{"cameras__width": 64, "cameras__height": 36, "planner": "constant_velocity", **settings},
        engine__watchdog_ms=400.0,
        engine__deadline_ms=2000.0,  # shared machines stall; lateness has its own tests
    )


def test_a_planner_that_hangs_is_overruled_and_its_old_plan_is_not_sent_afterwards(tmp_path):
    hang = threading.Event()

    def planner(state, scene, planner_context):
        if hang.is_set():
            hang.clear()
            time.sleep(2.0)
        return constant_velocity.plan(state, scene, planner_context)

    made = patient()
    keys = [f"{kind}:{name}" for kind in ("image", "info") for name in CAMERAS]
    harness = Harness(made, [*keys, *LATCHED], EVERYTHING)
    try:
        with node_in_this_process(tmp_path, made, planner):
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


def test_worker_and_watchdog_never_explain_each_others_plan(tmp_path):
    made = patient()
    said = []
    with node_in_this_process(tmp_path, made, constant_velocity.plan) as node:
        publish = node._publish

        def slowly(key, message):
            time.sleep(0.002)  # time for the other thread to come in between
            publish(key, message)
            if key in ("trajectory", "status"):
                said.append((key, getattr(message, "sequence", 0)))

        node._publish = slowly
        engine = Engine(made, time.perf_counter)
        report = engine.stop(an_ego(), None, "a test")
        threads = [threading.Thread(target=lambda: [node._send(report, 0) for _ in range(20)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [key for key, _ in said] == ["trajectory", "status"] * 40
    assert [sequence for key, sequence in said if key == "status"] == list(range(1, 41))


def spin(executor):
    with suppress(ExternalShutdownException):
        executor.spin()


def run_node(*words, timeout=60, **environment):
    command = [sys.executable, "-m", "reflectdrive_ros.ros.node", *words]
    together = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=together)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-p", "guard.max_speeed_mps:=3.0"], "did you mean 'guard.max_speed_mps'"),
        (["-p", "guard.max_speed_mps:=fast"], "expected float"),
        (["-p", "guard.max_speed_mps:=900.0"], "expected 0.5 to 80.0"),
        (["-p", "planner:=nobody"], "planner is 'nobody'"),
        (["-p", "config_file:=missing.yaml"], "missing.yaml does not exist"),
        (
            ["-p", "planner:=reflectdrive2", "-p", "model.file:=''", "-p", "model.sha256:=''"],
            "planner reflectdrive2 needs a model",
        ),
        (
            ["-p", "planner:=reflectdrive2", "-p", "model.file:=none.onnx", "-p", "model.sha256:=ab"],
            "none.onnx cannot be read",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_two(words, sentence):
    done = run_node("--ros-args", *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_file_of_the_wrong_type_is_one_sentence(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("guard: fast\n")
    done = run_node("--ros-args", "-p", f"config_file:={file}")
    assert done.returncode == 2
    assert "guard" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_with_the_wrong_hash_is_refused(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"weights")
    words = ["-p", "planner:=reflectdrive2", "-p", f"model.file:={model}", "-p", "model.sha256:=abc"]
    done = run_node("--ros-args", *words)
    assert done.returncode == 2
    assert "expected abc" in done.stderr


@pytest.mark.parametrize(
    ("words", "environment", "sentence"),
    [
        (["-r", "foo"], {}, "reflectdrive: ROS cannot start: Couldn't parse remap rule: '-r foo'"),
        (["-p", "use_sim_time:=maybe"], {}, "'use_sim_time' to 'maybe' of type 'STRING', expecting type 'BOOL'"),
        ([], {"ROS_DOMAIN_ID": "abc"}, "reflectdrive: ROS_DOMAIN_ID is 'abc', expected a number from 0 to 232"),
        ([], {"ROS_LOG_DIR": "/proc/logs"}, "Failed to create log directory '/proc/logs'"),
    ],
)
def test_what_ros_does_not_take_is_one_sentence_and_exit_code_two(words, environment, sentence):
    done = run_node("--ros-args", *words, **environment)
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_the_node_ends_quickly_and_cleanly(tmp_path, signal_number):
    with car(tmp_path) as sender:
        sender.until(planned)
        begun = time.perf_counter()
        sender.process.send_signal(signal_number)
        while sender.process.poll() is None and time.perf_counter() - begun < 5.0:  # and again, as `ros2 launch` does
            time.sleep(0.005)
            sender.process.send_signal(signal.SIGINT)
        assert sender.process.wait(10.0) == 0
        assert time.perf_counter() - begun < 5.0
    assert "Traceback" not in (tmp_path / "node.log").read_text()


def test_parameters_tell_the_truth(tmp_path):
    """What the node runs with is what `ros2 param` shows: read-only, described, with its range."""
    from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
    from rclpy.parameter import Parameter

    with car(tmp_path) as sender:
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


def test_a_publisher_that_can_never_reach_us_is_named_in_the_log(tmp_path):
    with car(tmp_path) as sender:
        sender.harness.node.destroy_publisher(sender.harness.inputs.pop("odometry"))
        context = Context()  # a topic has one type in a participant, so the stranger needs its own
        rclpy.init(context=context)
        stranger = Node("stranger", context=context)
        try:
            name = "/planning/reflectdrive/reflectdrive/input"
            stranger.create_publisher(Path, f"{name}/odometry", 1)  # the wrong type
            best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            stranger.create_publisher(PredictedObjects, f"{name}/objects", best_effort)
            log, until = tmp_path / "node.log", time.perf_counter() + 20.0
            while time.perf_counter() < until and log.read_text().count("'stranger'") < 2:
                time.sleep(0.2)
        finally:
            stranger.destroy_node()
            rclpy.try_shutdown(context=context)
    said = log.read_text()
    assert "sends nav_msgs/msg/Path, expected nav_msgs/msg/Odometry" in said
    assert "input/objects: 'stranger' sends, but its QoS cannot reach us" in said


def test_help_needs_no_ros(tmp_path):
    done = run_node("--help")
    assert done.returncode == 0
    assert "config_file" in done.stdout


def test_a_process_that_will_not_end_is_killed():
    stubborn = subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"]
    )
    time.sleep(0.5)
    assert stop_process(stubborn, patience_s=0.5) == -signal.SIGKILL
