"""What Autoware expects of a generator, of every plan that a step can send: planned, carried on, or the stop."""

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import CandidateTrajectories
from input_stream import driving, instant, small
from messages import ns
from operation_modes import driven
from rclpy.serialization import deserialize_message
from scenes import Clock

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.config import Config, ConfigError
from reflectdrive_ros.core.domain import EgoState, PlanSource
from reflectdrive_ros.ros import convert, outputs, plan_messages, topics
from reflectdrive_ros.ros.inputs.control import Signal


def planned():
    """Of the second step, at 1.1 s."""
    core = driving()
    for now_s in (1.0, 1.1):
        instant(core, now_s)
        report = core.step(ns(now_s)).report
    return report


def stopped():
    core = driving()
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
    points = plan_messages.plan_points(report.plan, settings)
    candidates = deserialize_message(
        outputs.candidates(report.plan, points, Signal.OFF, settings), CandidateTrajectories
    )
    stamps = {convert.stamp_ns(each.header) for each in (message, *candidates.candidate_trajectories)}
    assert stamps == {ns(1.1)}


@pytest.mark.parametrize(("first_point", "begin_s"), [("ahead", 0.1), ("now", 0.0), ("driven_path", -0.3)])
@pytest.mark.parametrize("source", SENT, ids=lambda source: source.name)
def test_every_plan_begins_where_the_setting_says_and_goes_on_in_tenths(source, first_point, begin_s):
    report = SENT[source]()
    points = plan_messages.plan_points(report.plan, small(output__first_point=first_point), ego=report.ego)
    times_s = points["sec"] + 1e-9 * points["nanosec"]
    np.testing.assert_allclose(times_s, begin_s + 0.1 * np.arange(len(points)), atol=1e-9)
    assert times_s[-1] >= 4.0 - 1e-9
    here = np.argmin(np.abs(times_s))
    if first_point != "ahead":
        np.testing.assert_allclose([points["x"][here], points["y"][here]], report.ego.map_from_ego[:2], atol=1e-9)


@pytest.mark.parametrize(("first_point", "begin"), [("ahead", "0.1"), ("now", "0.0"), ("driven_path", "-0.3")])
def test_the_page_of_topics_says_where_a_plan_begins(first_point, begin):
    page = topics.as_markdown(small(output__first_point=first_point))
    assert f"the first at {begin} s (`output.first_point`)" in " ".join(page.split())


@pytest.mark.parametrize("source", SENT, ids=lambda source: source.name)
def test_speeds_and_accelerations_belong_to_the_points(source):
    report = SENT[source]()
    points = plan_messages.plan_points(report.plan, small(), ego=report.ego)
    positions = np.stack([points["x"], points["y"]], axis=1)
    speeds, accelerations = points["longitudinal_velocity_mps"], points["acceleration_mps2"]
    np.testing.assert_allclose(speeds[1:], np.hypot(*np.diff(positions, axis=0).T) / 0.1, atol=1e-3)
    np.testing.assert_allclose(accelerations[:-1], np.diff(speeds) / 0.1, atol=1e-2)
    assert accelerations[-1] == 0.0


def test_the_driven_path_is_where_the_car_was_by_its_speed_acceleration_and_yaw_rate():
    car = EgoState(0, np.array([5.0, 2.0, 0.4]), 10.0, -2.0, 0.5)
    poses = kinematics.driven_path(car, 0.1, 4)
    behind_s = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    along = np.append(0.0, np.cumsum(np.hypot(*np.diff(poses[:, :2], axis=0).T)))
    np.testing.assert_allclose(along[-1] - along, 10.0 * behind_s + 0.5 * 2.0 * behind_s**2, rtol=1e-3)
    np.testing.assert_allclose(poses[:, 2], -(along[-1] - along) * 0.5 / 10.0, rtol=1e-3)


def test_a_wrong_first_point_is_one_sentence():
    with pytest.raises(ConfigError, match=r"first_point is 'behind', expected one of ahead, now, driven_path"):
        small(output__first_point="behind")


def test_by_default_a_plan_is_late_before_a_candidate_is_too_old():
    assert Config().engine.deadline_ms < 200.0
