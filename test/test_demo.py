"""The demo: world and node in two processes, a drive that is recorded, shown and summed up."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import commands
import numpy as np
import pytest
from own_bags import explained_fields, fields_of
from replay_records import embedded

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.cli import demo
from reflectdrive_ros.core.config import FIRST_POINTS, Config
from reflectdrive_ros.maps.sumo import SumoMissing
from reflectdrive_ros.ros.bag import BagReader
from reflectdrive_ros.ros.convert import stamp_ns

ROOT = Path(__file__).parents[1]
TRAJECTORY, STATUS = "/planning/reflectdrive/output/trajectory", "/planning/reflectdrive/output/status"


def command(out, *words):
    return [sys.executable, "-m", "reflectdrive_ros", "demo", "--out", str(out), *words]


def demonstrated(out, *words):
    """A demo in its own process: exit code, what it printed, numbers."""
    done = subprocess.run(
        command(out, "--json", str(out / "copy.json"), *words), cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    return done, json.loads((out / "copy.json").read_text()) if done.returncode == 0 else {}


@pytest.fixture(scope="module")
def five_seconds(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return (*demonstrated(out, "--seconds", "5"), out)


def plans(out):
    """Stamp -> (T, 3) x, y and speed of every plan that went out."""
    with BagReader(out / "plans") as bag:
        messages = [entry.message() for entry in bag.messages([TRAJECTORY])]
    return {
        stamp_ns(m.header): np.array(
            [(p.pose.position.x, p.pose.position.y, p.longitudinal_velocity_mps) for p in m.points]
        )
        for m in messages
    }


@pytest.mark.dds
def test_the_node_drives_the_world_by_full_and_lite_steps_and_every_input_arrives(five_seconds):
    done, numbers, out = five_seconds
    assert done.returncode == 0, done.stderr
    assert numbers["planner"] == "reflectdrive2"
    assert numbers["plans"] >= 48
    assert min(numbers["steps"]["full"], numbers["steps"]["lite"]) > 0
    assert "full" in done.stdout
    world = numbers["world"]
    assert world["ticks"] == 50
    assert world["fresh_plans"] >= 45  # a busy machine may miss one within its second
    assert world["distance_m"] > 3.0
    assert numbers["sources"]["STOP"] == 0
    for name, counters in numbers["inputs"].items():
        assert counters["received"] > 0, f"nothing came for {name}"
        assert counters["refused"] == 0
    with BagReader(out / "plans") as bag:
        reasons = {entry.message().reason for entry in bag.messages([STATUS])}
    assert not [reason for reason in reasons if "nothing received" in reason or "no camera_info" in reason]


@pytest.mark.dds
def test_the_ego_goes_where_its_plans_lead(five_seconds):
    """Each plan says where the car is 0.5 s later; the odometry of that moment agrees."""
    _, _, out = five_seconds
    with BagReader(out / "world") as bag:
        odometry = [entry.message() for entry in bag.messages(["/localization/kinematic_state"])]
    at = {stamp_ns(m.header): (m.pose.pose.position.x, m.pose.pose.position.y) for m in odometry}
    assert len(at) == 50
    plans_by_stamp = plans(out)
    assert set(plans_by_stamp) <= set(at)
    behind = FIRST_POINTS[Config().output.first_point]  # points that are not ahead of the car
    gaps = [
        np.hypot(*(np.array(at[stamp + 500_000_000]) - points[behind + 4, :2]))
        for stamp, points in plans_by_stamp.items()
        if stamp + 500_000_000 in at
    ]
    assert np.median(gaps) < 0.3


@pytest.mark.dds
def test_bag_numbers_and_page_are_left_behind(five_seconds, tmp_path):
    done, numbers, out = five_seconds
    assert json.loads((out / "summary.json").read_text()) == numbers
    assert {"version", "commit", "device", "date", "command", "plans", "verdicts", "latency_ms"} <= set(numbers)
    assert {"distance_m", "collisions", "off_road_s", "score_mean", "red_lights"} <= set(numbers["world"])
    world = numbers["world"]
    assert 0.0 <= world["score_mean"] <= 1.0
    assert world["distance_m"] < world["limit_distance_m"]
    assert min(world["plan_progress_m"], world["reference_progress_m"]) > 0.0
    assert world["standing_s"] <= 5.0
    assert fields_of(numbers) <= explained_fields()
    page = (out / "report.html").read_text()
    assert page.count("/9j/") >= 3 * 40  # images
    data = embedded(out / "report.html")
    assert data["road"]
    lines = [(f["t"], *pair) for f in data["frames"] for pair in zip(data["statuses"], f["diagnostics"], strict=True)]
    assert not [line for line in lines if line[2] and "nothing received yet" in line[2][1]]
    assert all(f["clock"].startswith("simulated, stamp 100") for f in data["frames"])  # the world's clock has no date
    assert "driven" in done.stdout
    code = main(["replay", str(out / "world"), "--out", str(tmp_path), "--no-report"])
    assert code == 0
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again["plans"] == 50
    assert again["sources"]["STOP"] == 0


@pytest.mark.dds
def test_the_same_seed_begins_with_the_same_plan(five_seconds, tmp_path):
    done, _ = demonstrated(tmp_path, "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    first, again = plans(five_seconds[2]), plans(tmp_path)
    assert min(first) == min(again)
    np.testing.assert_array_equal(first[min(first)], again[min(again)])


@pytest.mark.dds
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long), (signal.SIGKILL, -9)],
)
def test_ending_the_demo_ends_the_node_and_leaves_a_whole_bag(tmp_path, number, code):
    process = subprocess.Popen(command(tmp_path, "--seconds", "600"), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    node = None
    try:
        until = time.perf_counter() + 60.0
        while time.perf_counter() < until and not (node and (tmp_path / "node.log").read_text()):
            assert process.poll() is None, process.stderr.read()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            node = next((int(pid) for pid in children if b"reflectdrive_ros.ros.node" in cmdline(int(pid))), None)
            time.sleep(0.1)
        while time.perf_counter() < until and "planner " not in (tmp_path / "node.log").read_text():
            time.sleep(0.1)
        time.sleep(1.0)  # they drive
        process.send_signal(number)
        assert process.wait(20.0) == code
        until = time.perf_counter() + 10.0
        while cmdline(node) and time.perf_counter() < until:
            assert code < 0, "the node outlives the demo"
            time.sleep(0.1)
        assert not cmdline(node)
        if code > 0:
            with BagReader(tmp_path / "world") as bag:
                assert bag.notice == ""
    finally:
        for pid in (process.pid, node):
            if pid and cmdline(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.mark.dds
def test_ctrl_c_ends_a_live_drive_as_planned_with_its_summary_report_and_bag(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("--live", "--port", str(port), "--json", str(tmp_path / "copy.json"), "--planner", "route_follower")
    process = subprocess.Popen(
        command(tmp_path, *words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        ready_line = next((line for line in process.stdout if "shows the drive; Ctrl-C ends it" in line), "nothing")
        assert f"http://127.0.0.1:{port}/" in ready_line
        until = time.perf_counter() + 60.0
        plan = None
        while plan is None and time.perf_counter() < until:
            time.sleep(0.5)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/state.json", timeout=10) as answer:
                plan = json.load(answer)["plan"]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120.0)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in output, output
    assert "speed limits allow" in output
    numbers = json.loads((tmp_path / "summary.json").read_text())
    assert numbers == json.loads((tmp_path / "copy.json").read_text())
    assert 0 < numbers["plans"] <= numbers["world"]["ticks"] < 600
    assert f'"plans":{numbers["plans"]},' in (tmp_path / "report.html").read_text().replace(" ", "")
    with BagReader(tmp_path / "world") as bag:
        assert bag.notice == ""


def cmdline(pid):
    """Of a process that lives; empty for one that does not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_without_sumo_one_sentence_says_what_to_do(tmp_path, monkeypatch, capsys):
    def missing(*_):
        raise SumoMissing

    monkeypatch.setattr("reflectdrive_ros.maps.sumo.binary", missing)
    monkeypatch.setattr("reflectdrive_ros.sim.sumo_library.libsumo", missing)
    assert commands.run(demo, "--out", tmp_path) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message.endswith(
        "SUMO is not installed: pip install '.[sim]' in a clone of reflectdrive; `reflectdrive demo --recording` needs "
        "no world"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--setting inputs.route_type=lanelet", "lanelet, but the proving ground sends routes as nav_msgs/Path"),
        ("--setting inputs.objects_type=tracked", "tracked, but the proving ground sends objects as Predicted"),
        ("--setting inputs.drivable_type=grid", "drivable_type is grid, but the proving ground sends no grid"),
        ("--planner nobody", "planner is 'nobody', expected one of"),
        (
            "--planner reflectdrive2 --setting model.file='' --setting model.sha256=''",
            "reflectdrive2 needs a model: set",
        ),
        ("--out taken", "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("no folder")
    assert commands.run(demo, "--out", "out", *words.split()) == 2
    *_, error = capsys.readouterr().err.strip().splitlines()  # after what it does
    assert sentence in error


@pytest.mark.dds
def test_a_recording_can_be_played_instead(tmp_path):
    done, numbers = demonstrated(tmp_path, "--recording", "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert numbers["mode"] == "node"
    assert "to route_follower, a baseline without a network: the shipped networks that read images are" in done.stdout
    assert numbers["planner_note"] == "route_follower is a baseline without a network"
    assert numbers["plans"] >= 3
    assert (tmp_path / "report.html").is_file()
