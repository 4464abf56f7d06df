"""Stamps that are no times of this clock: 0, equal, a nanosecond apart, of another clock. Each is a sentence, and the
diagnostics show no rate and no age that no sensor has."""

import re

import pytest
from input_stream import driving, instant, ready, small, status_of
from messages import camera_info, jpeg, ns, odometry

from reflectdrive_ros.ros.inputs.channel import NO_CLOCK, Level
from reflectdrive_ros.ros.inputs.snapshot import Inputs

WALL_S = 1.8e9


def test_simulated_time_without_a_clock_is_named_before_anything_is_received_and_afterwards():
    core = driving()
    planner = status_of(core, "planner", 0.0)
    assert (planner.level, planner.message) == (Level.ERROR, NO_CLOCK)
    assert status_of(core, "planner", 0.1).message.startswith("image front_left: nothing received yet")
    instant(core, 5.0)  # stamps of a bag or a simulator; our time stands at 0
    assert status_of(core, "odometry", 0.0).level is Level.ERROR
    assert core.problems(0) == NO_CLOCK
    assert NO_CLOCK in core.step(0).snapshot.problems[0]
    assert core.problems(ns(5.0)) == ""


@pytest.mark.parametrize(
    ("stamps_s", "now_s", "sentence"),
    [
        ([0.0] * 10, WALL_S, "its stamp is 0: the sender must set header.stamp"),
        ([0.0] * 5 + [WALL_S] * 5, WALL_S, ""),  # a driver that gets its time late
        ([WALL_S] * 10, WALL_S + 0.05, ""),  # equal stamps
        ([12.0 + 1e-9 * k for k in range(10)], 12.1, ""),
        ([WALL_S - 4e8 + 0.1 * k for k in range(10)], WALL_S, "set use_sim_time to true for a bag"),
        ([WALL_S + 0.1 * k for k in range(10)], 12.0, "and to false for sensors"),
        ([WALL_S + 0.1 * k for k in range(10)], 0.0, NO_CLOCK),
        ([12.0 + 0.1 * k for k in range(5)] + [WALL_S + 0.1 * k for k in range(6)], WALL_S + 0.5, ""),  # it is set
    ],
    ids=["0", "0 at first", "equal", "a nanosecond apart", "an old bag", "sensors and /clock", "no /clock", "a jump"],
)
def test_no_rate_and_no_age_is_one_that_no_sensor_has(stamps_s, now_s, sentence):
    inputs = Inputs(small())
    for number, stamp_s in enumerate(stamps_s):
        info = camera_info("front")
        info.header.stamp = odometry(stamp_s).header.stamp
        inputs.store.put("info:front", info, ns(now_s))
        inputs.store.put("odometry", odometry(stamp_s), ns(now_s))
        inputs.store.put("image:front", jpeg(stamp_s, "front", number), ns(now_s))
    statuses = {status.name: status for status in inputs.statuses(ns(now_s))}
    assert sentence in statuses["odometry"].message
    assert sentence in statuses["image front"].message
    assert (statuses["camera_info front"].level, statuses["camera_info front"].values["lost"]) == (Level.OK, "0")
    for status in statuses.values():
        numbers = [float(status.values.get(key, "nan")) for key in ("age_s", "rate_hz")]
        numbers += [float(value) for value in re.findall(r"[\d.]+(?= Hz| s )", status.message)]
        assert not [number for number in numbers if abs(number) > 86_400.0], status


def test_refused_camera_info_is_not_counted_as_lost():
    inputs = ready()
    for k in range(20):
        inputs.store.put("info:front", camera_info("front"), ns(0.1 * k))
        if k % 5 == 4:
            for _ in range(3):
                inputs.store.receive("info:front", b"\0", ns(0.1 * k))
    values = {status.name: status.values for status in inputs.statuses(ns(9.0))}["camera_info front"]
    assert (values["refused"], values["lost"]) == ("12", "0")
