"""The node among the nodes of a running stack: what it cannot use it reports and stays, and two of it stay apart."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from messages import CAMERAS, jpeg, odometry, route

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.replay.node import Harness
from reflectdrive_ros.ros.processes import stop_process

pytestmark = pytest.mark.dds

LAUNCHED = Path(__file__).parent / "launched"
ERROR = b"\x02"
PLANNER = "reflectdrive: planner"  # of the node in its default namespace
START_S = 90.0  # a shared machine takes long to start Python


@contextmanager
def stack(tmp_path, *nodes):
    """A process for each node, given its namespace and its arguments; and our side of the default one."""
    inputs = ["odometry", "route", *(f"image:{camera}" for camera in CAMERAS)]
    harness = Harness(Config(), inputs, ("trajectory", "status", "candidates", "diagnostics"))
    processes = []
    try:
        for number, (namespace, *words) in enumerate(nodes):
            command = [sys.executable, "-m", "reflectdrive_ros.ros.node", "--ros-args", "-r", f"__ns:={namespace}"]
            with (tmp_path / f"node{number}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        [*command, *words], stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ
                    )
                )
        yield harness, processes
    finally:
        for process in processes:
            stop_process(process)
        harness.close()


def reported(harness, name, fits=lambda status: True, count=1):
    """The times and statuses of this name that fit, once there are enough of them."""
    until = time.perf_counter() + START_S
    while time.perf_counter() < until:
        matches = [
            (at_s, status)
            for at_s, message in harness.received["diagnostics"]
            for status in message.status
            if status.name == name and fits(status)
        ]
        if len(matches) >= count:
            return matches
        time.sleep(0.05)
    pytest.fail(f"no such {name} within {START_S} s; last: {harness.received['diagnostics'][-1:]}")


def of(words):
    return [part for word in words for part in ("-p", word)]


def no_network(tmp_path):
    """A model file that is no network, under its true hash."""
    file = tmp_path / "model.onnx"
    file.write_bytes(b"no network")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return of(["planner:=reflectdrive2", f"model.file:={file}", f"model.sha256:={sha256}"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (lambda _: of(["vehicle.whel_base:=2.79"]), "did you mean 'vehicle.wheel_base_m'?"),
        (lambda _: of(["wheel_base:=long"]), "vehicle_info: wheel_base is 'long', expected a number"),
        pytest.param(no_network, "model.onnx", marks=pytest.mark.long),
    ],
    ids=["misspelt", "vehicle_info", "model"],
)
def test_what_cannot_be_used_is_an_error_that_stays_and_no_plan_is_published(tmp_path, words, sentence):
    arguments = ["/planning/reflectdrive", *of(["strict_start:=false"]), *words(tmp_path)]
    with stack(tmp_path, arguments) as (harness, (process,)):
        first = reported(harness, PLANNER)[0][1]
        for tick in range(10):  # a car that sends what a planner needs
            now = harness.node.get_clock().now().nanoseconds * 1e-9
            harness.inputs["odometry"].publish(odometry(now))
            harness.inputs["route"].publish(route())
            for camera in CAMERAS:
                harness.inputs[f"image:{camera}"].publish(jpeg(now, camera, tick))
            time.sleep(0.1)
        reports = reported(harness, PLANNER, count=8)
        assert {(status.level, status.message) for _, status in reports} == {(ERROR, first.message)}
        assert sentence in first.message
        assert "\n" not in first.message
        times = [at_s for at_s, _ in reports]
        assert 0.1 < (times[-1] - times[0]) / (len(times) - 1) < 1.0  # the usual rate is one in 0.15 s
        assert not [key for key in ("trajectory", "status", "candidates") if harness.received[key]]
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(10.0) == 0
    log = (tmp_path / "node0.log").read_text()
    assert log.count("no plan is published: ") == 1
    assert "Traceback" not in log


def test_an_error_of_this_package_at_the_start_is_reported_too(tmp_path, monkeypatch):
    """With its traceback in the log. An ONNX Runtime that fails when it is imported stands for it."""
    (tmp_path / "onnxruntime.py").write_text("raise RuntimeError('no such\\ndriver')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [
        "/planning/reflectdrive",
        *of(["strict_start:=false", "planner:=reflectdrive2", "model.backend:=onnxruntime"]),
    ]
    monkeypatch.setenv("PYTHONPATH", path)
    with stack(tmp_path, words) as (harness, (process,)):
        _, status = reported(harness, PLANNER)[0]
        assert (status.level, status.message) == (ERROR, "the start failed with RuntimeError: no such driver")
        assert process.poll() is None
    assert "Traceback" in (tmp_path / "node0.log").read_text()


def test_in_autowares_tree_the_car_has_its_measures_and_time_without_a_clock_is_named(tmp_path):
    """vehicle_info and another node's parameters are global, and so is use_sim_time."""
    files = [LAUNCHED / "vehicle_info.param.yaml", LAUNCHED / "another_node.param.yaml"]
    words = [word for file in files for word in ("--params-file", str(file))]
    words += of(["strict_start:=false", "use_sim_time:=true", "planner:=constant_velocity"])
    with stack(tmp_path, ["/planning/reflectdrive", *words]) as (harness, _):
        _, parameters = reported(harness, "reflectdrive: parameters")[0]
        assert "from vehicle_info: vehicle.length_m 4.89, vehicle.width_m 1.896, " in parameters.message
        assert "ignored, no settings of this node: map_height_m" in parameters.message
        _, planner = reported(harness, PLANNER)[-1]
        assert planner.level == ERROR
        assert planner.message.startswith("use_sim_time is true and nothing was received on /clock")


def test_two_nodes_have_no_diagnostic_and_no_hardware_in_common(tmp_path):
    words = of(["planner:=constant_velocity"])
    with stack(tmp_path, ["/planning/reflectdrive", *words], ["/right/reflectdrive", *words]) as (harness, _):
        for name in (PLANNER, "/right/reflectdrive/reflectdrive: planner"):
            reported(harness, name)
        arrays = [message.status for _, message in harness.received["diagnostics"]]
    sent = [{(status.name, status.hardware_id) for status in statuses} for statuses in arrays]
    left, right = (
        set().union(*(each for each in sent if part in dict(each)))
        for part in (PLANNER, "/right/reflectdrive/reflectdrive: planner")
    )
    for part in (0, 1):  # name, hardware
        assert not {each[part] for each in left} & {each[part] for each in right}
