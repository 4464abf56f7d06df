"""Damaged, strange and poorer maps on the topic while the car drives towards a red light: it forgets no stop line, and
where a readable map has fewer of them the diagnostics say so."""

import random

import numpy as np
import pytest
from light_inputs import RED, groups, lamp
from light_maps import STOP_X_M, crossing
from map_archives import archive, map_message
from messages import acceleration, ns, odometry, route
from scenes import Clock, config

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import PlanSource, Verdict
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.planning_core import PlanningCore

Y_M, SPEED_MPS = 1.75, 8.0  # of the car, along the lane
NOSE_M = 0.5 * Config().vehicle.length_m + Config().vehicle.rear_axle_to_center_m


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """Archives of a crossing with a light, of the same without, and of a crossing a kilometre further on."""
    folder, archives = tmp_path_factory.mktemp("maps"), {}
    for name, how in (("lit", {}), ("unlit", {"lights": False}), ("elsewhere", {"along_x": (1000.0, 1100.0, 1300.0)})):
        (folder / f"{name}.osm").write_text(crossing(**how))
        archives[name] = archive(folder / f"{name}.osm")
    return archives


def core_on(data=None):
    """A car without cameras that drives along a Path through the crossing, by the map of these bytes."""
    settings = {"cameras__required": False, "inputs__objects_type": "none", "inputs__drivable_type": "map"}
    core = PlanningCore(config(planner="route_follower", **settings), Clock())
    core.put("route", route([(float(x), Y_M) for x in range(5, 281)]), 0)
    if data is not None:
        send_map(core, data)
    return core


def send_map(core, data, frame="map"):
    core.put("map", map_message(data, frame), 0)
    core.wait_idle()


def step_at(core, seconds, x=60.0, speed=SPEED_MPS, lights=True):
    """The report of a step, with what the diagnostics say afterwards."""
    if lights:
        core.put("lights", groups(seconds, lamp(RED)), ns(seconds))
    core.put("odometry", odometry(seconds, x=x, y=Y_M, speed=speed), ns(seconds))
    core.put("acceleration", acceleration(seconds, 0.0), ns(seconds))
    report = core.step(ns(seconds)).report
    core.wait_idle()
    return report, {status.name: status for status in core.statuses(ns(seconds))}


def flipped(data, seed):
    """One bit of the bytes after the header is another."""
    chance, changed = random.Random(seed), bytearray(data)
    changed[chance.randrange(len(data) // 4, len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


UNREADABLE = {
    "empty": (lambda data: b"", "map"),
    "truncated": (lambda data: data[: len(data) // 2], "map"),
    "a bit flipped": (lambda data: flipped(data, 0), "map"),
    "noise": (lambda data: random.Random(0).randbytes(5000), "map"),
    "of another frame": (lambda data: data, "odom"),
}


@pytest.mark.parametrize(
    "what",
    [
        "empty",
        "a bit flipped",
        "of another frame",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("truncated", "noise")),
    ],
)
def test_a_damaged_map_before_a_red_light_does_not_make_the_car_drive_through_it(maps, what):
    damage, frame = UNREADABLE[what]
    core = core_on(maps["lit"])
    step_at(core, 0.9, x=39.2)
    x, speed, verdicts = 40.0, SPEED_MPS, []
    for k in range(150):
        if k == 10:
            send_map(core, damage(maps["lit"]), frame)
        report, lines = step_at(core, 1.0 + 0.1 * k, x, speed)
        verdicts.append((report.source, report.verdict))
        next_x = x + float(report.plan.trajectory.poses[0, 0])
        x, speed = next_x, (next_x - x) / report.plan.trajectory.dt_s
        assert report.plan.trajectory.dt_s == pytest.approx(0.1)
        assert lines["traffic_lights"].level is Level.OK
        assert (lines["map"].level is Level.WARN) == (k >= 10)
        assert ("the map before it stays in use" in lines["map"].message) == (k >= 10)
    assert set(verdicts) == {(PlanSource.PLANNER, Verdict.OK)}
    assert speed < 0.1
    assert STOP_X_M - 5.0 < x + NOSE_M < STOP_X_M + 0.5


@pytest.mark.parametrize("flips", [10, pytest.param(24, marks=pytest.mark.long)])
def test_a_bit_flipped_in_a_map_leaves_its_stop_lines_or_the_diagnostics_say_which_are_missing(maps, flips):
    """Of one flip in two a readable map comes, of one in ten one with a point elsewhere."""
    core = core_on(maps["lit"])
    step_at(core, 1.0)
    readable = 0
    for seed in range(flips):
        refused = core.inputs.store.vector_map.refused
        send_map(core, flipped(maps["lit"], seed))
        is_readable = core.inputs.store.vector_map.refused == refused
        readable += is_readable
        report, lines = step_at(core, 1.1 + 0.1 * seed)
        assert report is not None
        assert (lines["map"].level is Level.WARN) == (not is_readable)
        away_m = np.abs(core.inputs._newest_map().lights.stop_lines.mean(axis=1) - (STOP_X_M, Y_M))
        is_there = len(away_m) > 0 and np.hypot(*away_m.T).min() <= 2.0
        assert is_there or lines["traffic_lights"].level is Level.WARN
        send_map(core, maps["lit"])
        assert {s.name: s for s in core.statuses(ns(1.1 + 0.1 * seed))}["map"].level is Level.OK
    assert 0 < readable < flips


@pytest.mark.parametrize("name", ["unlit", "elsewhere"])
@pytest.mark.parametrize("lights", [True, False])
def test_while_stop_lines_are_missing_that_an_earlier_map_had_the_lights_are_not_ok(maps, name, lights):
    """Whether or not any message of lights has come."""
    core = core_on(maps["lit"])
    assert (step_at(core, 1.0, lights=lights)[1]["traffic_lights"].level is Level.OK) == lights
    send_map(core, maps[name])
    for k in range(3):
        status = step_at(core, 1.1 + 0.1 * k, lights=lights)[1]["traffic_lights"]
        assert status.level is Level.WARN
        assert "1 stop lines within 250 m are in an earlier map but not in the newest" in status.message
        assert status.values["lost_stop_lines"] == "1"
    send_map(core, maps["lit"][: len(maps["lit"]) // 2])  # a damaged one changes nothing
    assert step_at(core, 1.5, lights=lights)[1]["traffic_lights"].values["lost_stop_lines"] == "1"
    send_map(core, maps["lit"])
    status = step_at(core, 1.6, lights=lights)[1]["traffic_lights"]
    assert (status.level is Level.OK, status.values["lost_stop_lines"]) == (lights, "0")


def test_stop_lines_of_another_road_that_the_car_has_left_are_no_warning(maps):
    core = core_on(maps["lit"])
    step_at(core, 1.0)
    send_map(core, maps["elsewhere"])
    lines = step_at(core, 1.1, x=1050.0)[1]
    assert lines["traffic_lights"].values["lost_stop_lines"] == "0"
    assert "earlier map" not in lines["traffic_lights"].message


def test_lights_without_any_map_are_a_warning(maps):
    core = core_on()
    status = step_at(core, 1.0)[1]["traffic_lights"]
    assert status.level is Level.WARN
    assert "without a map their stop lines are unknown, and the car does not stop at them" in status.message
    send_map(core, maps["lit"][:-4])
    assert step_at(core, 1.1)[1]["traffic_lights"].level is Level.WARN
    send_map(core, maps["lit"])
    assert step_at(core, 1.2)[1]["traffic_lights"].level is Level.OK


def test_a_map_with_a_point_far_away_is_refused_before_it_fills_the_memory(maps, tmp_path):
    file = tmp_path / "far.osm"
    file.write_text(crossing().replace('k="local_x" v="100.0"', 'k="local_x" v="1e8"', 1))
    core = core_on(maps["lit"])
    send_map(core, archive(file))
    lines = step_at(core, 1.0)[1]
    assert "a line of it has two points 1e+08 m apart, at most 10000 m are read" in lines["map"].message
    assert lines["traffic_lights"].level is Level.OK
