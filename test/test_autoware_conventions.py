"""What Autoware expects of a generator, of every plan that a step can send: planned, carried on, or the stop."""

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import CandidateTrajectories
from input_stream import instant, latched, small
from messages import ns
from operation_modes import driven
from rclpy.serialization import deserialize_message
from scenes import Clock

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.ros import convert, outputs
from reflectdrive_ros.ros.inputs.control import Signal
from reflectdrive_ros.ros.planning_core import PlanningCore


def planned():
    """Of the second step, at 1.1 s."""
    core = PlanningCore(small(), Clock())
    latched(core)
    for now_s in (1.0, 1.1):
        instant(core, now_s)
        report = core.step(ns(now_s)).report
    return report


def stopped():
    core = PlanningCore(small(), Clock())
    latched(core)
    instant(core, 1.1, cameras=("front",))
    return core.step(ns(1.1)).report


SENT = {
    PlanSource.PLANNER: planned,
    PlanSource.CARRIED: lambda: driven([None, None], Clock(0.02), engine__deadline_ms=10.0)[1][-1],
    PlanSource.STOP: stopped,
}


@pytest.mark.parametrize("source", SENT, ids=lambda source: source.name)
def test_every_plan_has_the_stamp_of_the_odometry_so_that_no_candidate_is_old(source):
    """The selector drops candidates older than 0.2 s: a plan carried on counts as new."""
    report, settings = SENT[source](), small()
    assert report.source is source
    message = outputs.trajectory(report.plan, settings)
    points = outputs.plan_points(report.plan, settings)
    candidates = deserialize_message(
        outputs.candidates(report.plan, points, Signal.OFF, settings), CandidateTrajectories
    )
    stamps = {convert.stamp_ns(each.header) for each in (message, *candidates.candidate_trajectories)}
    assert stamps == {ns(1.1)}


@pytest.mark.parametrize("source", SENT, ids=lambda source: source.name)
def test_every_plan_begins_a_tenth_of_a_second_ahead_and_goes_on_in_tenths(source):
    report, settings = SENT[source](), small()
    points = outputs.plan_points(report.plan, settings)
    times_s = points["sec"] + 1e-9 * points["nanosec"]
    np.testing.assert_allclose(times_s, 0.1 * np.arange(1, len(points) + 1), atol=1e-9)
    assert len(points) >= 40  # 4 s


@pytest.mark.parametrize("source", SENT, ids=lambda source: source.name)
def test_speeds_and_accelerations_belong_to_the_points(source):
    report = SENT[source]()
    points = outputs.plan_points(report.plan, small())
    positions = np.stack([points["x"], points["y"]], axis=1)
    speeds, accelerations = points["longitudinal_velocity_mps"], points["acceleration_mps2"]
    np.testing.assert_allclose(speeds[1:], np.hypot(*np.diff(positions, axis=0).T) / 0.1, atol=1e-3)
    np.testing.assert_allclose(accelerations[:-1], np.diff(speeds) / 0.1, atol=1e-2)
    assert accelerations[-1] == 0.0


def test_by_default_a_plan_is_late_before_a_candidate_is_too_old():
    assert Config().engine.deadline_ms < 200.0
