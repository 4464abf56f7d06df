"""The doctor says what is there, what is not and what to do, on a machine with ROS and on one without."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reflectdrive_ros.cli import doctor
from reflectdrive_ros.core.config import Config, override_dotted
from reflectdrive_ros.ros import system_checks
from reflectdrive_ros.ros.system_checks import State

ROOT = Path(__file__).parents[1]
HAS_ROS = importlib.util.find_spec("rclpy") is not None


def arguments(*words):
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return parser.parse_args([str(one) for one in words])


# --- the whole of it -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_ROS, reason="no rclpy here")
@pytest.mark.dds
def test_on_this_machine_the_planner_can_run(tmp_path, capsys):
    assert doctor.run(arguments("--json", tmp_path / "doctor.json")) == 0
    out = capsys.readouterr().out
    assert "The planner can run." in out
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["ready"] is True
    assert {"version", "commit", "device", "date", "command"} <= written.keys()
    states = {finding["name"]: finding["state"] for finding in written["findings"]}
    assert {
        "ROS 2",
        "our messages",
        "Autoware messages",
        "CandidateTrajectory",
        "middleware",
        "talking",
    } <= states.keys()
    for finding in written["findings"]:
        assert finding["state"] in ("OK", "WARN", "MISSING")
        assert finding["todo"] or finding["state"] == "OK", f"{finding['name']} does not say what to do"


def test_without_ros_it_says_so_and_what_to_do(tmp_path):
    blocked = "import sys, argparse\n"
    blocked += "class No:\n"
    blocked += "    def find_spec(self, name, path=None, target=None):\n"
    blocked += "        first = name.split('.')[0]\n"
    blocked += "        if first in ('rclpy', 'reflectdrive', 'builtin_interfaces') or first.endswith('_msgs'):\n"
    blocked += "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
    blocked += "sys.meta_path.insert(0, No())\n"
    blocked += "import importlib.util as u\n"
    blocked += "find = u.find_spec\n"
    blocked += "u.find_spec = lambda name: None if name == 'rclpy' else find(name)\n"
    blocked += "from reflectdrive_ros.cli import doctor\n"
    blocked += "parser = argparse.ArgumentParser(); doctor.add_arguments(parser)\n"
    blocked += "sys.exit(doctor.run(parser.parse_args(sys.argv[1:])))\n"
    answer = subprocess.run(
        [sys.executable, "-c", blocked, "--json", str(tmp_path / "doctor.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in answer.stderr
    assert answer.returncode == 1, answer.stdout
    assert "The planner cannot run" in answer.stdout
    findings = {one["name"]: one for one in json.loads((tmp_path / "doctor.json").read_text())["findings"]}
    for name in ("ROS 2", "ROS messages", "our messages", "Autoware messages", "CandidateTrajectory"):
        assert findings[name]["state"] == "MISSING", name
        assert findings[name]["todo"], name
    assert "middleware" not in findings  # it is asked of a node, and there is none


HASWELL = "fpu sse2 ssse3 fma movbe avx f16c bmi1 avx2 bmi2 erms"


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "state", "text"),
    [
        ("x86_64", f"processor\t: 0\nflags\t\t: {HASWELL}\nbugs\t\t: spectre_v1\n", State.OK, "with AVX2, BMI1"),
        ("x86_64", "processor\t: 0\nflags\t\t: fpu sse2 avx\n", State.MISSING, "without AVX2, BMI1, BMI2, FMA"),
        ("x86_64", f"flags\t\t: {HASWELL.replace('bmi2 ', '')}\n", State.MISSING, "x86_64 without BMI2"),
        ("x86_64", "", State.OK, "x86_64"),  # no /proc
        ("aarch64", "processor\t: 0\nFeatures\t: fp asimd\n", State.OK, "aarch64"),
    ],
)
def test_a_processor_that_the_kernels_do_not_run_on_is_told(machine, cpuinfo, state, text):
    finding = system_checks.processor(machine, cpuinfo)
    assert (finding.state, finding.required) == (state, True)
    assert text in finding.detail
    assert finding.todo or state is State.OK


def test_numbers_that_cannot_be_written_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run_checks", lambda environment, config: iter([system_checks.python((3, 11))]))
    assert doctor.run(arguments("--json", tmp_path / "nowhere" / "doctor.json")) == 2
    assert "doctor.json cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "state", "detail"),
    [
        ({}, State.OK, "reflectdrive2: "),
        ({"planner": "route_follower"}, State.OK, "route_follower, which needs no model"),
        ({"planner": "nobody"}, State.MISSING, "planner is 'nobody', expected one of"),
        ({"model.file": "nowhere.safetensors"}, State.MISSING, "nowhere.safetensors"),
        ({"model.sha256": "0" * 64}, State.MISSING, f"expected {'0' * 64}"),
        ({"model.backend": "torch"}, State.MISSING, "is read by tensorrt, onnxruntime"),
    ],
)
def test_the_configured_planner_is_checked(settings, state, detail):
    finding = system_checks.planner(override_dotted(Config(), settings))
    assert (finding.state, finding.required) == (state, True)
    assert detail in finding.detail
    assert finding.todo or state is State.OK


def test_a_backend_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(system_checks.importlib.util, "find_spec", lambda name: None)
    finding = system_checks.planner(Config())
    assert finding.state is State.MISSING
    assert "needs onnxruntime" in finding.detail
    assert "pip install onnxruntime" in finding.todo


def test_settings_and_files_reach_the_checks(monkeypatch, tmp_path):
    configs = []
    monkeypatch.setattr(doctor, "run_checks", lambda environment, config: configs.append(config) or iter([]))
    (tmp_path / "car.yaml").write_text("planner: route_follower\ninputs: {objects_type: tracked}\n")
    assert doctor.run(arguments("--config", tmp_path / "car.yaml", "--setting", "inputs.objects_type=none")) == 0
    assert (configs[0].planner, configs[0].inputs.objects_type) == ("route_follower", "none")


def test_what_is_optional_does_not_stop_the_planner(monkeypatch, capsys):
    absent = system_checks.Finding("tensorrt", State.MISSING, "not installed", "nothing", required=False)
    monkeypatch.setattr(doctor, "run_checks", lambda environment, config: iter([absent]))
    assert doctor.run(arguments()) == 0
    assert "MISSING (optional)" in capsys.readouterr().out


# --- single checks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "state"), [((3, 9), State.MISSING), ((3, 10), State.OK), ((3, 13), State.OK)])
def test_python(version, state):
    assert system_checks.python(version).state is state


def test_a_small_shared_memory_is_a_warning_with_the_cure(monkeypatch, tmp_path):
    class Docker:  # what a container gets when nobody asks for more
        f_blocks, f_bavail, f_frsize = 16384, 16384, 4096

    monkeypatch.setattr(system_checks.os, "statvfs", lambda folder: Docker)
    finding = system_checks.shared_memory(tmp_path)
    assert finding.state is State.WARN
    assert "64 of 64 MB free" in finding.detail
    assert "--shm-size=256m" in finding.todo


def test_a_full_shared_memory_is_a_warning_too(monkeypatch, tmp_path):
    class Full:
        f_blocks, f_bavail, f_frsize = 1_000_000, 1000, 4096

    monkeypatch.setattr(system_checks.os, "statvfs", lambda folder: Full)
    assert "fastdds shm clean" in system_checks.shared_memory(tmp_path).todo


def test_no_shared_memory_at_all(tmp_path):
    assert system_checks.shared_memory(tmp_path / "shm").state is State.WARN


@pytest.mark.parametrize("variable", ["FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"])
def test_the_shipped_profile_is_a_good_one(variable):
    finding = system_checks.dds_profile({variable: str(ROOT / "config/fastdds.xml")})
    assert finding.state is State.OK
    assert "64 MB" in finding.detail


def test_a_profile_of_fast_dds_is_not_asked_of_cyclone_dds():
    cyclone = {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}
    finding = system_checks.dds_profile(cyclone)
    assert finding.state is State.WARN
    assert "FASTRTPS" not in finding.detail + finding.todo
    assert f"export CYCLONEDDS_URI=file://{ROOT / 'config/cyclonedds.xml'}" in finding.todo
    assert system_checks.dds_profile({**cyclone, "CYCLONEDDS_URI": "file:///etc/cyclone.xml"}).state is State.OK
    assert system_checks.dds_profile({"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}).state is State.OK


@pytest.mark.parametrize("environment", [{}, {"FASTRTPS_DEFAULT_PROFILES_FILE": ""}])
def test_without_a_profile_the_command_that_sets_it_is_given(environment):
    finding = system_checks.dds_profile(environment)
    assert finding.state is State.WARN
    assert "loses images silently" in finding.detail
    assert f"export FASTRTPS_DEFAULT_PROFILES_FILE={ROOT / 'config/fastdds.xml'}" in finding.todo


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (None, "No such file or directory"),
        ("<dds>", "is not XML"),
        ("<dds/>", "segment of 0.0 MB"),
        ("<dds><segment_size>524288</segment_size></dds>", "segment of 0.5 MB"),
        ("<dds><segment_size>much</segment_size></dds>", "segment of 0.0 MB"),
    ],
)
def test_a_profile_that_does_not_help_is_a_warning(tmp_path, content, detail):
    file = tmp_path / "profile.xml"
    if content is not None:
        file.write_text(content)
    finding = system_checks.dds_profile({"FASTRTPS_DEFAULT_PROFILES_FILE": str(file)})
    assert finding.state is State.WARN
    assert detail in finding.detail


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, State.OK),
        ({"ROS_DOMAIN_ID": "42"}, State.OK),
        ({"ROS_DOMAIN_ID": "150"}, State.WARN),
        ({"ROS_DOMAIN_ID": "home"}, State.WARN),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"}, State.WARN),
    ],
)
def test_discovery(environment, state):
    assert system_checks.discovery(environment).state is state


def test_humbles_variable_for_this_machine_only_is_read():
    assert "range LOCALHOST" in system_checks.discovery({"ROS_LOCALHOST_ONLY": "1"}).detail


@pytest.mark.parametrize(("content", "state"), [("212992\n", State.WARN), ("4194304\n", State.OK), ("?", State.OK)])
def test_receive_buffer(tmp_path, content, state):
    (tmp_path / "rmem_max").write_text(content)
    assert system_checks.receive_buffer(tmp_path / "rmem_max").state is state


def test_ros_wants_a_place_for_its_logs(tmp_path):
    logs, here = system_checks.writable({})
    assert logs.state is State.MISSING
    assert "neither HOME nor ROS_LOG_DIR" in logs.detail
    logs, here = system_checks.writable({"HOME": str(tmp_path)})
    assert (logs.state, here.state) == (State.OK, State.OK)
    assert logs.detail.endswith(".ros/log")
    (tmp_path / "file").write_text("")
    logs, _ = system_checks.writable({"ROS_LOG_DIR": str(tmp_path / "file" / "log")})
    assert logs.state is State.MISSING
    assert "export ROS_LOG_DIR" in logs.todo


def test_a_busy_machine_is_a_warning():
    assert system_checks.load(2, 1.5).state is State.OK
    assert system_checks.load(2, 5.0).state is State.WARN


def test_without_a_driver_nvidia_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = system_checks.nvidia()
    assert (finding.state, finding.required) == (State.MISSING, False)


@pytest.mark.parametrize(
    ("script", "state", "detail"),
    [
        ("echo 'NVIDIA Thor, 580.00'", State.OK, "NVIDIA Thor, 580.00"),
        ("echo 'no devices were found'; exit 9", State.WARN, "returned non-zero exit status 9"),
    ],
)
def test_nvidia_is_what_its_tool_says(monkeypatch, tmp_path, script, state, detail):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    finding = system_checks.nvidia()
    assert finding.state is state
    assert detail in finding.detail


@pytest.mark.skipif(not HAS_ROS, reason="no rclpy here")
def test_looking_for_libraries_loads_none_of_the_heavy_ones():
    ask = "import sys; from reflectdrive_ros.ros import system_checks; list(system_checks.libraries())\n"
    ask += "print([name for name in ('torch', 'tensorrt', 'onnxruntime', 'cv2') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout == "[]\n", answer.stderr


# --- two processes that talk -----------------------------------------------------------------------------------------


def process(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(not HAS_ROS, reason="no rclpy here")
@pytest.mark.dds
def test_two_processes_that_do_not_hear_each_other_stop_the_planner(monkeypatch):
    monkeypatch.setattr(system_checks, "LOOPBACK_S", 1.0)
    speaker = process("print('speaking rmw_fastrtps_cpp', flush=True); input()")
    middleware, talking = system_checks.check_loopback(speaker, "/nobody", {})
    assert (middleware.state, talking.state, talking.required) == (State.OK, State.MISSING, True)
    assert "no message between two processes within 1 s" in talking.detail
    assert speaker.poll() is not None  # nothing is left running


@pytest.mark.skipif(not HAS_ROS, reason="no rclpy here")
@pytest.mark.dds
def test_a_middleware_that_is_not_installed_is_missing(monkeypatch):
    monkeypatch.setenv("RMW_IMPLEMENTATION", "rmw_of_nobody")
    (middleware,) = system_checks.check_loopback(system_checks.start_talker("/nobody"), "/nobody", {})
    assert middleware.state is State.MISSING
    assert middleware.required
    assert "unset RMW_IMPLEMENTATION" in middleware.todo


def test_a_process_that_ends_without_a_word_is_said():
    (middleware,) = system_checks.check_loopback(process("raise SystemExit(7)"), "/nobody", {})
    assert middleware.detail == "a process with a node ended with exit code 7"


def test_another_middleware_is_a_warning_for_the_sake_of_the_images():
    assert system_checks.middleware("rmw_fastrtps_dynamic_cpp").state is State.OK
    finding = system_checks.middleware("rmw_cyclonedds_cpp")
    assert finding.state is State.WARN
    assert "Fast DDS only" in finding.todo


def test_where_discovery_is_off_talking_is_not_tried():
    speaker = process("print('speaking rmw_fastrtps_cpp', flush=True); input()")
    _, talking = system_checks.check_loopback(speaker, "/nobody", {"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"})
    assert (talking.state, talking.required) == (State.WARN, False)
