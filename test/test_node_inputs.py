"""One node in its own process, over real DDS: it drives, names what is wrong with its inputs, and heals."""

import re

import numpy as np
import pytest
from node_car import ERROR, OK, WARN, car, planned, stopped

pytestmark = pytest.mark.dds


@pytest.fixture(scope="module")
def one_car(tmp_path_factory):
    with car(tmp_path_factory.mktemp("car")) as sender:
        yield sender


@pytest.fixture
def sender(one_car):
    """The car of the file, driving; each test that takes it may leave it as it likes."""
    one_car.until(planned)
    return one_car


def test_three_cameras_odometry_and_a_route_become_trajectories_with_diagnostics(sender):
    sender.drive(1.0)
    received = sender.harness.received
    assert received["status"][-1][1].planner == "constant_velocity"
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

    # a shared machine may stall, and a line tell of it for a moment: all is well as soon as it goes on, but for what
    # our own sender left out
    def all_is_well(lines):
        faults = [message for level, message in lines.values() if level != OK]
        lost = [re.search(r": (\d+) messages lost on the way", message) for message in faults]
        return all(match and int(match[1]) <= sender.left_out for match in lost)

    lines = sender.diagnosed(all_is_well)
    assert {"image front", "odometry", "route", "objects", "planner"} <= set(lines)


def test_a_camera_that_dies_stops_the_car_and_its_return_heals_it(sender):
    status = sender.until(stopped, cameras=("front_left", "front"))
    assert "front_right" in status.reason
    two = {"cameras": ("front_left", "front")}
    sender.diagnosed(lambda lines: lines["image front_right"][0] == lines["planner"][0] == ERROR, **two)
    last = sender.harness.received["trajectory"][-1][1]
    assert last.points[-1].longitudinal_velocity_mps == 0.0
    sender.until(planned)


def test_images_that_stop_are_noticed_by_the_watchdog(sender):
    status = sender.until(stopped, cameras=())
    assert "image front" in status.reason or "no new image" in status.reason


def test_nan_odometry_is_refused_and_healed(sender):
    before = len(sender.harness.received["trajectory"])
    lines = sender.diagnosed(lambda lines: lines["odometry"][0] == ERROR, ego={"x": float("nan")})
    assert "NaN" in lines["odometry"][1]
    sender.drive(0.3, ego={"x": float("nan")})
    for _, trajectory in sender.harness.received["trajectory"][before:]:
        assert np.isfinite([p.pose.position.x for p in trajectory.points]).all()
    sender.until(planned)


def test_missing_objects_are_unchecked_not_free(sender):
    def unchecked(lines):
        level, message = lines["planner"]
        return level == WARN and "unchecked" in message

    sender.diagnosed(unchecked, objects=False)
    sender.diagnosed(lambda lines: "unchecked" not in lines["planner"][1])


@pytest.mark.parametrize("away_m", [30.0, 545.0])
def test_a_car_that_is_not_on_its_route_stops_with_an_error_and_drives_on_when_it_is_back(sender, away_m):
    def says_so(lines):
        level, message = lines["planner"]
        return level == ERROR and f"the car is {away_m:.1f} m from its route" in message

    elsewhere = {"ego": {"y": away_m}}
    status = sender.until(lambda status: "from its route" in status.reason, **elsewhere)
    assert stopped(status)
    sender.diagnosed(says_so, **elsewhere)
    assert not any(planned(status) for status in sender.drive(0.5, **elsewhere))
    last = sender.harness.received["trajectory"][-1][1]
    assert last.points[-1].longitudinal_velocity_mps == 0.0
    assert abs(last.points[-1].pose.position.y - away_m) < 0.1  # straight on: it does not turn to the route
    sender.until(planned)
