"""The node's process: the settings it takes or refuses at its start, what it tells of itself, and how it ends."""

import ast
import configparser
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import rclpy
from autoware_perception_msgs.msg import PredictedObjects
from nav_msgs.msg import Path as PathMessage
from node_car import car, planned
from rclpy.context import Context
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from reflectdrive_ros.ros.processes import stop_process

pytestmark = pytest.mark.dds
ROOT = Path(__file__).parents[1]


def run_node(*words, timeout=60, **environment):
    command = [sys.executable, "-m", "reflectdrive_ros.ros.node", *words]
    together = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=together)


def test_the_node_starts_without_libraries_that_it_does_not_use():
    """Each takes up to a second to import."""
    program = "import sys, reflectdrive_ros.ros.node; print({name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    heavy = {"torch", "scipy", "transformers", "rosbags", "rich", "libsumo", "onnx", "lanelet2", "matplotlib"}
    assert heavy & set(ast.literal_eval(done.stdout)) == set()


LEARNED = ["-p", "planner:=reflectdrive2"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-p", "guard.max_speeed_mps:=3.0"], "did you mean 'guard.max_speed_mps'"),
        (["-p", "planner:=nobody"], "planner is 'nobody'"),
        (["-p", "config_file:={file}"], "guard is 'fast'"),
        ([*LEARNED, "-p", "model.file:=''", "-p", "model.sha256:=''"], "planner reflectdrive2 needs a model"),
        ([*LEARNED, "-p", "model.file:={file}", "-p", "model.sha256:=abc"], "expected abc"),
        (["-r", "foo"], "reflectdrive: ROS cannot start: Couldn't parse remap rule: '-r foo'"),
        (["-p", "use_sim_time:=maybe"], "'use_sim_time' to 'maybe' of type 'STRING', expecting type 'BOOL'"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_two(tmp_path, words, sentence):
    (tmp_path / "file").write_text("guard: fast\n")
    assert_refused(run_node("--ros-args", *(word.format(file=tmp_path / "file") for word in words)), sentence)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ROS_DOMAIN_ID", "abc", "reflectdrive: ROS_DOMAIN_ID is 'abc', expected a number from 0 to 232"),
        ("ROS_LOG_DIR", "/proc/logs", "Failed to create log directory '/proc/logs'"),
    ],
)
def test_an_environment_that_ros_does_not_take_is_one_sentence_and_exit_code_two(name, value, sentence):
    assert_refused(run_node("--ros-args", **{name: value}), sentence)


def assert_refused(done, sentence):
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("signal_number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_the_node_ends_quickly_and_cleanly(tmp_path, signal_number):
    with car(tmp_path) as sender:
        sender.until(planned)
        start_s = time.perf_counter()
        sender.process.send_signal(signal_number)
        while sender.process.poll() is None and time.perf_counter() - start_s < 5.0:  # and again, as `ros2 launch` does
            time.sleep(0.005)
            sender.process.send_signal(signal.SIGINT)
        assert sender.process.wait(10.0) == 0
        assert time.perf_counter() - start_s < 5.0
    assert "Traceback" not in (tmp_path / "node.log").read_text()


GROUP = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, lambda number, frame: None)
processes = [subprocess.Popen([sys.executable, "-m", *words.split()]) for words in sys.argv[1:]]
os._exit(max(abs(process.wait()) for process in processes))  # Python's own shutdown drops the handler
"""
NODE = "reflectdrive_ros.ros.node --ros-args -r __ns:=/planning/reflectdrive -p use_sim_time:=true"
NODE += f" -p config_file:={ROOT / 'config' / 'demo.yaml'} -p planner:=route_follower"
WORLD = (
    "reflectdrive_ros.demo.world_node --lock-step --trajectory /planning/reflectdrive/reflectdrive/output/trajectory"
)


def assert_ends_cleanly(interrupt, log, command, *words):
    """Starts a command and interrupts it once its log has these words."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        until = time.perf_counter() + 60.0
        while not all(word in log.read_text() for word in words):
            assert process.poll() is None, log.read_text()
            assert time.perf_counter() < until, log.read_text()
            time.sleep(0.1)
        interrupt(process)
        assert process.wait(10.0) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "Traceback" not in log.read_text()


def test_ctrl_c_ends_the_node_and_the_world_of_a_terminal_within_two_seconds(tmp_path):
    """To the whole group at once, as a terminal sends it, and once more, as `ros2 launch` does."""
    pytest.importorskip("libsumo", reason="SUMO is not installed (extra: sim)")

    def interrupt(process):
        time.sleep(1.0)  # they drive
        start_s = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(10.0)
        assert time.perf_counter() - start_s < 2.0

    command = [sys.executable, "-c", GROUP, NODE, WORLD]
    assert_ends_cleanly(interrupt, tmp_path / "log.txt", command, "planner route_follower", "the world is")


SCRIPT = "import sys; sys.argv[0] = '{name}'; from {module} import {function}; sys.exit({function}())"
WORDS = {"planner": (NODE.split()[1:], "planner route_follower"), "world": ([], "the world is")}


@pytest.mark.parametrize("name", WORDS)
def test_a_console_script_ends_with_exit_code_zero_however_often_ctrl_c_comes(tmp_path, name):
    """`ros2 launch` starts these scripts, and sends each the Ctrl-C that the terminal sends too."""
    if name == "world":
        pytest.importorskip("libsumo", reason="SUMO is not installed (extra: sim)")
    scripts = configparser.ConfigParser()
    scripts.read(ROOT / "setup.cfg")
    entries = dict(line.split(" = ") for line in scripts["options.entry_points"]["console_scripts"].split("\n") if line)
    module, function = entries[name].split(":")
    words, started = WORDS[name]

    def interrupt(process):
        until = time.perf_counter() + 60.0
        while process.poll() is None and time.perf_counter() < until:
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)

    command = [sys.executable, "-c", SCRIPT.format(name=name, module=module, function=function), *words]
    assert_ends_cleanly(interrupt, tmp_path / "log.txt", command, started)


def test_a_publisher_that_can_never_reach_us_is_named_in_the_log(tmp_path):
    with car(tmp_path) as sender:
        sender.harness.node.destroy_publisher(sender.harness.inputs.pop("odometry"))
        context = Context()  # a topic has one type in a participant, so the stranger needs its own
        rclpy.init(context=context)
        stranger = Node("stranger", context=context)
        try:
            name = "/planning/reflectdrive/reflectdrive/input"
            stranger.create_publisher(PathMessage, f"{name}/odometry", 1)  # the wrong type
            best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            stranger.create_publisher(PredictedObjects, f"{name}/objects", best_effort)
            log, until = tmp_path / "node.log", time.perf_counter() + 20.0
            while time.perf_counter() < until and log.read_text().count("'stranger'") < 2:
                time.sleep(0.2)
        finally:
            stranger.destroy_node()
            rclpy.try_shutdown(context=context)
    log_text = log.read_text()
    assert "sends nav_msgs/msg/Path, expected nav_msgs/msg/Odometry" in log_text
    assert "input/objects: 'stranger' sends, but its QoS cannot reach us" in log_text


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
