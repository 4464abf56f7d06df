"""The doctor says what is there, what is not and what to do, on a machine with ROS and on one without."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import without_ros

from reflectdrive_ros.cli import doctor
from reflectdrive_ros.core.config import Config, override_dotted
from reflectdrive_ros.ros import system_checks
from reflectdrive_ros.ros.system_checks import State

ROOT = Path(__file__).parents[1]
FAST_DDS, CYCLONE = "FASTRTPS_DEFAULT_PROFILES_FILE", {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}
needs_ros = pytest.mark.skipif(importlib.util.find_spec("rclpy") is None, reason="no rclpy here")


# --- the whole of it -------------------------------------------------------------------------------------------------


@needs_ros
@pytest.mark.dds
def test_on_this_machine_the_planner_can_run(tmp_path, capsys):
    assert commands.run(doctor, "--json", tmp_path / "doctor.json") == 0
    assert "The planner can run." in capsys.readouterr().out
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["ready"] is True
    assert {"version", "commit", "device", "date", "command"} <= written.keys()
    expected = {"ROS 2", "our messages", "Autoware messages", "CandidateTrajectory", "middleware", "talking"}
    assert expected <= {finding["name"] for finding in written["findings"]}
    for finding in written["findings"]:
        assert finding["state"] in ("OK", "WARN", "MISSING")
        assert finding["todo"] or finding["state"] == "OK", f"{finding['name']} does not say what to do"


def test_without_ros_it_says_so_and_what_to_do(tmp_path):
    (answer,) = without_ros.run(["doctor", "--json", tmp_path / "doctor.json"])
    assert (answer.code, answer.errors) == (1, "")
    assert "The planner cannot run" in answer.out
    findings = {one["name"]: one for one in json.loads((tmp_path / "doctor.json").read_text())["findings"]}
    for name in ("ROS 2", "ROS messages", "our messages", "Autoware messages", "CandidateTrajectory"):
        assert findings[name]["state"] == "MISSING", name
        assert findings[name]["todo"], name
    assert "middleware" not in findings  # it is asked of a node, and there is none


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
    assert commands.run(doctor, "--config", tmp_path / "car.yaml", "--setting", "inputs.objects_type=none") == 0
    assert (configs[0].planner, configs[0].inputs.objects_type) == ("route_follower", "none")


def test_what_is_optional_does_not_stop_the_planner(monkeypatch, capsys):
    absent = system_checks.Finding("tensorrt", State.MISSING, "not installed", "nothing", required=False)
    monkeypatch.setattr(doctor, "run_checks", lambda environment, config: iter([absent]))
    assert commands.run(doctor) == 0
    assert "MISSING (optional)" in capsys.readouterr().out


# --- single checks ---------------------------------------------------------------------------------------------------

HASWELL = "fpu sse2 ssse3 fma movbe avx f16c bmi1 avx2 bmi2 erms"
NO_PROFILE = f"export {FAST_DDS}={ROOT / 'config/fastdds.xml'}"


@pytest.mark.parametrize(
    ("check", "facts", "state", "text"),
    [
        ("python", [(3, 9)], State.MISSING, "use Python 3.10 or later"),
        ("python", [(3, 10)], State.OK, "3.10"),
        ("python", [(3, 13)], State.OK, "3.13"),
        ("processor", ["x86_64", f"processor\t: 0\nflags\t\t: {HASWELL}\nbugs\t: x\n"], State.OK, "with AVX2, BMI1"),
        ("processor", ["x86_64", "flags\t\t: fpu sse2 avx\n"], State.MISSING, "without AVX2, BMI1, BMI2, FMA"),
        ("processor", ["x86_64", f"flags\t\t: {HASWELL.replace('bmi2 ', '')}\n"], State.MISSING, "x86_64 without BMI2"),
        ("processor", ["x86_64", ""], State.OK, "x86_64"),  # no /proc
        ("processor", ["aarch64", "processor\t: 0\nFeatures\t: fp asimd\n"], State.OK, "aarch64"),
        ("shared_memory", [Path("nowhere")], State.WARN, ""),
        ("dds_profile", [{FAST_DDS: str(ROOT / "config/fastdds.xml")}], State.OK, "64 MB"),
        ("dds_profile", [{"FASTDDS_DEFAULT_PROFILES_FILE": str(ROOT / "config/fastdds.xml")}], State.OK, "64 MB"),
        ("dds_profile", [{}], State.WARN, "loses images silently"),
        ("dds_profile", [{FAST_DDS: ""}], State.WARN, NO_PROFILE),
        ("dds_profile", [CYCLONE], State.WARN, f"export CYCLONEDDS_URI=file://{ROOT / 'config/cyclonedds.xml'}"),
        ("dds_profile", [{**CYCLONE, "CYCLONEDDS_URI": "file:///etc/cyclone.xml"}], State.OK, ""),
        ("dds_profile", [{"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}], State.OK, ""),
        ("discovery", [{}], State.OK, ""),
        ("discovery", [{"ROS_DOMAIN_ID": "42"}], State.OK, ""),
        ("discovery", [{"ROS_DOMAIN_ID": "150"}], State.WARN, ""),
        ("discovery", [{"ROS_DOMAIN_ID": "home"}], State.WARN, ""),
        ("discovery", [{"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"}], State.WARN, ""),
        ("discovery", [{"ROS_LOCALHOST_ONLY": "1"}], State.OK, "range LOCALHOST"),  # of Humble
        ("load", [2, 1.5], State.OK, ""),
        ("load", [2, 5.0], State.WARN, ""),
        ("middleware", ["rmw_fastrtps_dynamic_cpp"], State.OK, ""),
        ("middleware", ["rmw_cyclonedds_cpp"], State.WARN, "Fast DDS only"),  # for large images
    ],
)
def test_a_check_names_what_is_wrong_and_what_to_do(check, facts, state, text):
    finding = getattr(system_checks, check)(*facts)
    assert finding.state is state
    assert finding.required or state is not State.MISSING
    assert text in f"{finding.detail} {finding.todo}"
    assert finding.todo or state is State.OK


@pytest.mark.parametrize(
    ("blocks", "free", "texts"),
    [
        (16384, 16384, ("64 of 64 MB free", "--shm-size=256m")),  # of a container by default
        (1_000_000, 1000, ("fastdds shm clean",)),
    ],
)
def test_a_small_or_full_shared_memory_is_a_warning_with_the_cure(blocks, free, texts, monkeypatch, tmp_path):
    class Memory:
        f_blocks, f_bavail, f_frsize = blocks, free, 4096

    monkeypatch.setattr(system_checks.os, "statvfs", lambda folder: Memory)
    finding = system_checks.shared_memory(tmp_path)
    assert finding.state is State.WARN
    assert all(text in f"{finding.detail} {finding.todo}" for text in texts)


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
    finding = system_checks.dds_profile({FAST_DDS: str(file)})
    assert finding.state is State.WARN
    assert detail in finding.detail


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


@needs_ros
def test_looking_for_libraries_loads_none_of_the_heavy_ones():
    ask = "import sys; from reflectdrive_ros.ros import system_checks; list(system_checks.libraries())\n"
    ask += "print([name for name in ('torch', 'tensorrt', 'onnxruntime', 'cv2') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout == "[]\n", answer.stderr


# --- two processes that talk -----------------------------------------------------------------------------------------


def process(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_ros
@pytest.mark.dds
def test_two_processes_that_do_not_hear_each_other_stop_the_planner(monkeypatch):
    monkeypatch.setattr(system_checks, "LOOPBACK_S", 1.0)
    speaker = process("print('speaking rmw_fastrtps_cpp', flush=True); input()")
    middleware, talking = system_checks.check_loopback(speaker, "/nobody", {})
    assert (middleware.state, talking.state, talking.required) == (State.OK, State.MISSING, True)
    assert "no message between two processes within 1 s" in talking.detail
    assert speaker.poll() is not None  # nothing is left running


@needs_ros
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


def test_where_discovery_is_off_talking_is_not_tried():
    speaker = process("print('speaking rmw_fastrtps_cpp', flush=True); input()")
    _, talking = system_checks.check_loopback(speaker, "/nobody", {"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"})
    assert (talking.state, talking.required) == (State.WARN, False)
