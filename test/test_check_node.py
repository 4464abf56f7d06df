"""The check node in its own process, over real DDS, in the wirings that remapping makes."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import rclpy
from autoware_internal_planning_msgs.msg import CandidateTrajectories
from messages import acceleration, odometry, predicted_objects, route
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from scenes import config
from test_check_core import foreign

from reflectdrive_ros.ros import plan_messages, topics
from reflectdrive_ros.ros.plan_publisher import qos_profile
from reflectdrive_ros.ros.processes import isolated_environment, running_node

pytestmark = pytest.mark.dds
NODE = "/planning/reflectdrive/reflectdrive_check"
PROCESSOR = "/planning/trajectory_processor/input/trajectories"
GENERATOR = "/planning/generator/diffusion_planner/candidate_trajectories"
BACKUP = "/planning/trajectory_selector/input/trajectories_backup"
STAMP = slice(8, 16)  # of the first candidate in a serialised message
SENT = ("candidates", "odometry", "acceleration", "objects", "route")


def is_same(received, sent):
    """Whether the bytes are the same; the middleware fills up their end to a multiple of four."""
    return received[: len(sent)] == sent and received[len(sent) :] in (b"", b"\0", b"\0\0", b"\0\0\0")


class Wired:
    """A generator and a car at one end of the check node, a reader of its outputs at the other."""

    def __init__(self, remaps):
        os.environ.update(isolated_environment())
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node("stack", context=self.context)
        self.received = {topic.key: [] for topic in topics.CHECK_OUTPUTS}
        inputs = [topics.CHECK_CANDIDATES, *topics.check_inputs(config())]
        self.inputs = {
            topic.key: self.node.create_publisher(
                topics.message_class(topic.type), self.full(topic, remaps), qos_profile(topic.qos)
            )
            for topic in inputs
            if topic.key in SENT
        }
        for topic in topics.CHECK_OUTPUTS:
            qos = qos_profile(topic.qos)
            qos.depth = 100
            self.node.create_subscription(
                topics.message_class(topic.type),
                self.full(topic, remaps),
                self.received[topic.key].append,
                qos,
                raw=True,
            )
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    @staticmethod
    def full(topic, remaps):
        return remaps.get(topic.name, topic.name.replace("~", NODE))

    def spin(self, seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.executor.spin_once(timeout_sec=0.02)

    def now_s(self):
        return self.node.get_clock().now().nanoseconds * 1e-9

    def send(self, decelerations):
        """A cycle of the stack; returns the bytes of the candidates."""
        now = self.now_s()
        self.inputs["odometry"].publish(odometry(now, speed=8.0))
        self.inputs["acceleration"].publish(acceleration(now, 0.0))
        self.inputs["objects"].publish(predicted_objects(now, (28.0, 0.0, 0.0, 0.0, 4.5)))
        self.spin(0.05)
        content = serialize_message(foreign(now, decelerations))
        self.inputs["candidates"].publish(content)
        self.spin(0.1)
        return content

    def until_checked(self, decelerations, timeout_s=60.0):
        """Send until the answer to a message has come whose odometry had arrived; returns both as bytes."""
        until = time.perf_counter() + timeout_s
        while time.perf_counter() < until:
            before = len(self.received["trajectory"])
            content = self.send(decelerations)
            answers = [
                each for each in self.received["trajectories"] if each[STAMP] == content[STAMP]
            ]  # others may be late
            if len(self.received["trajectory"]) > before and answers:
                return content, answers[-1]
        pytest.fail(f"no answer within {timeout_s} s; diagnostics: {self.statuses()}")

    def statuses(self):
        if not self.received["diagnostics"]:
            return {}
        kind = topics.message_class("diagnostic_msgs/msg/DiagnosticArray")
        newest = deserialize_message(self.received["diagnostics"][-1], kind)
        return {each.name.partition(": ")[2]: each for each in newest.status}

    def close(self):
        self.executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)


@contextmanager
def wired(tmp_path, remaps, **settings):
    stack = Wired(remaps)
    try:
        # a loaded machine delivers late
        patient = config(**settings, inputs__max_age_s=["candidates=5", "odometry=5", "objects=5"])
        with running_node(patient, remaps, tmp_path / "log", sim_time=False, module="check_node"):
            until = time.perf_counter() + 60.0
            while not all(each.get_subscription_count() for each in stack.inputs.values()):
                stack.spin(0.1)
                assert time.perf_counter() < until, (tmp_path / "log").read_text()
            stack.inputs["route"].publish(route())
            stack.spin(0.3)
            yield stack
    finally:
        stack.close()


def test_before_the_processor_safe_candidates_pass_as_their_bytes_and_others_are_repaired(tmp_path):
    with wired(tmp_path, {"~/input/trajectories": GENERATOR, "~/output/trajectories": PROCESSOR}) as stack:
        content, passed = stack.until_checked((1.6, 1.7))
        assert is_same(passed, content)
        content, repaired = stack.until_checked((1.6, 0.0))
        sent, received = (deserialize_message(each, CandidateTrajectories) for each in (content, repaired))
        assert received.candidate_trajectories[0] == sent.candidate_trajectories[0]
        assert received.generator_info == sent.generator_info
        assert received.candidate_trajectories[1].points[-1].pose.position.x < 22.0
        for key in ("scored_trajectories", "planning_factors", "processing_time"):
            assert stack.received[key], key
        statuses = stack.statuses()
        assert statuses["candidate Foreign_1"].message.startswith("UNSAFE: the plan hits the object")
        assert {"odometry", "route", "objects", "candidates"} <= set(statuses)
        assert not any(name.startswith(("image", "camera", "tf_static")) for name in statuses)

        before = len(stack.received["trajectories"])
        for bad in (b"\0", content[: len(content) // 2], b"\0\1\0\0" + bytes([255]) * 40):
            stack.inputs["candidates"].publish(bad)
            stack.spin(0.2)
        assert len(stack.received["trajectories"]) == before
        content, passed = stack.until_checked((1.6, 1.7))
        assert is_same(passed, content)


def test_as_a_backup_the_candidates_have_ids_of_their_own(tmp_path):
    remaps = {"~/input/trajectories": GENERATOR, "~/output/trajectories": BACKUP}
    with wired(tmp_path, remaps, check__generator_name="DiffusionPlanner_checked") as stack:
        content, sent = stack.until_checked((1.6, 0.0))
        ours = deserialize_message(sent, CandidateTrajectories)
        theirs = deserialize_message(content, CandidateTrajectories)
        ids = [bytes(each.generator_id.uuid) for each in ours.candidate_trajectories]
        assert ids == [plan_messages.slot_uuid("DiffusionPlanner_checked", slot) for slot in (0, 1)]
        assert [bytes(each.generator_id.uuid) for each in ours.generator_info] == ids
        assert [each.generator_name.data for each in ours.generator_info] == [
            "DiffusionPlanner_checked_0",
            "DiffusionPlanner_checked_1",
        ]
        assert ours.candidate_trajectories[0].points == theirs.candidate_trajectories[0].points


@pytest.mark.parametrize("words", [["check.unchecked:=never"], ["guard.max_speed_mps:=fast"]])
def test_a_wrong_setting_is_one_sentence_and_exit_code_two(words):
    command = [sys.executable, "-m", "reflectdrive_ros.ros.check_node", "--ros-args", "-p", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("reflectdrive: ")
    assert words[0].partition(":=")[0] in done.stderr
