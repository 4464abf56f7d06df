"""Check of candidates of a foreign planner, from bytes to bytes: what is safe leaves as it came."""

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import (
    CandidateTrajectories,
    CandidateTrajectory,
    GeneratorInfo,
    ScoredCandidateTrajectories,
)
from autoware_planning_msgs.msg import Trajectory, TrajectoryPoint
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Pose, Quaternion
from messages import acceleration, at, ns, odometry, predicted_objects, route
from rclpy.serialization import deserialize_message, serialize_message
from scenes import config

from reflectdrive_ros.ros import candidates, outputs, plan_messages
from reflectdrive_ros.ros.check_core import CheckCore
from reflectdrive_ros.ros.inputs.channel import Level

NOW_S = 100.0


def foreign(seconds, decelerations=(0.0,), x=0.0, speed=8.0, timed=True, ids=None):
    """What another planner sends: one candidate for each deceleration, 80 points of 0.1 s along the map's x axis."""
    message = CandidateTrajectories()
    for index, deceleration in enumerate(decelerations):
        one = CandidateTrajectory(header=outputs.header(ns(seconds), "map"))
        one.generator_id.uuid = np.full(16, (ids or range(1, 99))[index], np.uint8)
        if outputs.HAS_TURN_INDICATOR:
            one.turn_indicators_command.stamp = one.header.stamp
            one.turn_indicators_command.command = 2
        for step in range(80):
            t = 0.1 * step
            until = t if not deceleration else min(t, speed / deceleration)
            point = TrajectoryPoint(pose=at(x + speed * until - 0.5 * deceleration * until**2, 0.0, 0.0))
            point.pose.position.z = 0.125
            point.longitudinal_velocity_mps = float(speed - deceleration * until)
            point.acceleration_mps2 = -deceleration
            if timed:
                point.time_from_start = Duration(sec=int(step // 10), nanosec=int(step % 10) * 100_000_000)
            one.points.append(point)
        message.candidate_trajectories.append(one)
        info = GeneratorInfo(generator_id=one.generator_id)
        info.generator_name.data = f"Foreign_{index}"
        message.generator_info.append(info)
    return message


class Stack:
    """A core that has received what a car sends: a standing car 28 m ahead of one that drives 8 m/s."""

    def __init__(self, objects=((28.0, 0.0, 0.0, 0.0, 4.5),), with_route=True, **settings):
        self.core = CheckCore(config(**settings), lambda: 0.0, has_signal=outputs.HAS_TURN_INDICATOR)
        self.drive(NOW_S, objects, with_route)

    def drive(self, seconds, objects=None, with_route=True, **ego):
        messages = {"odometry": odometry(seconds, **{"speed": 8.0, **ego}), "acceleration": acceleration(seconds, 0.0)}
        if objects is not None:
            messages["objects"] = predicted_objects(seconds, *objects)
        if with_route:
            messages["route"] = route()
        for key, message in messages.items():
            self.core.receive(key, serialize_message(message), ns(seconds))

    def check(self, message, now_s=NOW_S + 0.02):
        content = message if isinstance(message, bytes) else serialize_message(message)
        return content, self.core.check(content, ns(now_s))

    def statuses(self, now_s=NOW_S + 0.02):
        return {each.name: each for each in self.core.statuses(ns(now_s))}


def test_safe_candidates_leave_as_the_bytes_that_came():
    stack = Stack(objects=((90.0, 0.0, 0.0, 0.0, 4.5),))
    content, step = stack.check(foreign(NOW_S, (0.0, 0.5, 1.0)))
    assert step.trajectories == content
    scored = deserialize_message(step.scored_trajectories, ScoredCandidateTrajectories)
    scores = [each.score for each in scored.scored_candidate_trajectories]
    assert scores == sorted(scores, reverse=True)
    assert 0.0 < scores[-1] < scores[0] <= 1.0
    sent = deserialize_message(content, CandidateTrajectories)
    assert [each.candidate_trajectory for each in scored.scored_candidate_trajectories] == sent.candidate_trajectories
    assert scored.generator_info == sent.generator_info
    best = deserialize_message(step.trajectory, Trajectory)
    assert best.points == sent.candidate_trajectories[0].points
    assert best.header == sent.candidate_trajectories[0].header
    assert stack.statuses()["candidate Foreign_0"].message.startswith("safe for 4.0 s")
    _, step = Stack().check(foreign(NOW_S, (1.6,)))
    assert [factor.kind.value for factor in step.report.factors] == ["object"]  # of the best


def test_an_unsafe_candidate_is_repaired_between_safe_ones_that_stay():
    stack = Stack()
    message = foreign(NOW_S, (1.6, 0.0, 1.6))
    content, step = stack.check(message)
    assert step.trajectories != content
    result = deserialize_message(step.trajectories, CandidateTrajectories)
    sent = deserialize_message(content, CandidateTrajectories).candidate_trajectories
    received = result.candidate_trajectories
    assert (received[0], received[2]) == (sent[0], sent[2])
    assert result.generator_info == message.generator_info
    repaired = received[1]
    assert (repaired.header, repaired.generator_id) == (sent[1].header, sent[1].generator_id)
    if outputs.HAS_TURN_INDICATOR:
        assert repaired.turn_indicators_command == sent[1].turn_indicators_command
    assert max(point.pose.position.x for point in repaired.points) < 28.0 - 4.5 / 2 - 4.0
    times = [point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec for point in repaired.points]
    np.testing.assert_allclose(times, 0.1 * np.arange(1, 41))
    status = stack.statuses()["candidate Foreign_1"]
    assert status.level is Level.WARN
    assert status.message.startswith("UNSAFE: the plan hits the object now at x 28.0 m")
    assert status.values["change"] == "repaired"
    _, step = stack.check(CandidateTrajectories(candidate_trajectories=[repaired]))
    again = deserialize_message(step.trajectories, CandidateTrajectories)
    assert again.candidate_trajectories == [repaired]  # what was repaired is safe


def stamp(seconds):
    return outputs.time_message(ns(seconds))


NO_TURN = Quaternion(w=0.0)
SPOILED = {  # a change of a candidate that cannot be checked then -> the reason
    "frame": (lambda bad: setattr(bad.header, "frame_id", "odom"), "its frame is 'odom', expected 'map'"),
    "empty": (lambda bad: setattr(bad, "points", []), "it has no points"),
    "nan": (lambda bad: setattr(bad.points[40].pose.position, "y", float("nan")), "not finite"),
    "infinite": (lambda bad: setattr(bad.points[7], "longitudinal_velocity_mps", float("inf")), "not finite"),
    "stale": (lambda bad: setattr(bad.header, "stamp", stamp(NOW_S - 0.5)), "it is 0.52 s old, allowed 0.20 s"),
    "future": (lambda bad: setattr(bad.header, "stamp", stamp(NOW_S + 5.0)), "in the future"),
    "times": (lambda bad: setattr(bad.points[9], "time_from_start", Duration()), "do not increase"),
    "orientation": (lambda bad: setattr(bad.points[3], "pose", Pose(orientation=NO_TURN)), "without orientation"),
}


@pytest.mark.parametrize("case", SPOILED)
@pytest.mark.parametrize("rule", ["pass", "drop"])
def test_what_cannot_be_checked_is_passed_on_or_left_out_with_a_sentence(case, rule):
    stack = Stack(objects=(), check__unchecked=rule)
    spoil, reason = SPOILED[case]
    message = foreign(NOW_S, (1.0, 1.0))
    spoil(message.candidate_trajectories[1])
    content, step = stack.check(message)
    result = deserialize_message(step.trajectories, CandidateTrajectories)
    if rule == "pass":
        assert step.trajectories == content
    else:
        assert [each.generator_id.uuid[0] for each in result.candidate_trajectories] == [1]
        assert [each.generator_name.data for each in result.generator_info] == ["Foreign_0"]
    scored = deserialize_message(step.scored_trajectories, ScoredCandidateTrajectories).scored_candidate_trajectories
    assert scored[0].score > 0.0
    assert [each.score for each in scored[1:]] == ([0.0] if rule == "pass" else [])
    status = stack.statuses()["candidate Foreign_1"]
    assert status.level is Level.WARN
    assert status.message.startswith("unchecked and " + ("passed on: " if rule == "pass" else "left out: "))
    assert reason in status.message


def forged_count(content):
    return content[:4] + b"\xff\xff\xff\x7f" + content[8:]


@pytest.mark.parametrize("harm", [*(slice(cut) for cut in (1, 5, 30, -1, -40)), forged_count])
def test_bytes_that_are_no_message_are_counted_and_nothing_is_sent(harm):
    stack = Stack()
    content = serialize_message(foreign(NOW_S, (0.0, 1.0)))
    assert stack.check(content[harm] if isinstance(harm, slice) else harm(content))[1] is None
    status = stack.statuses()["candidates"]
    assert "1 messages refused" in status.message
    assert status.values["refused"] == "1"
    assert stack.check(content)[1] is not None


def test_without_objects_the_sentence_tells_and_nothing_is_changed():
    stack = Stack(objects=None)
    content, step = stack.check(foreign(NOW_S, (0.0,)))
    assert step.trajectories == content
    status = stack.statuses()["candidate Foreign_0"]
    assert (status.level, status.message) == (Level.WARN, "unchecked: no objects, no drivable space")


@pytest.mark.parametrize("rule", ["pass", "drop"])
def test_without_a_route_nothing_is_checked(rule):
    stack = Stack(with_route=False, check__unchecked=rule)
    content, step = stack.check(foreign(NOW_S, (0.0,)))
    assert (step.trajectories == content) is (rule == "pass")
    assert step.trajectory is None
    assert "route: nothing received yet" in stack.statuses()["candidate Foreign_0"].message


def test_a_candidate_with_speeds_and_no_times_is_checked_by_its_speeds():
    stack = Stack()
    stack.check(foreign(NOW_S, (0.0,), timed=False))
    assert stack.statuses()["candidate Foreign_0"].message.startswith("UNSAFE: the plan hits the object")
    content, step = stack.check(foreign(NOW_S, (1.6,), timed=False))
    assert step.trajectories == content


def test_an_older_candidate_is_checked_from_where_it_is_now_and_its_repair_keeps_its_stamp():
    """Stamped 0.1 s before the odometry: its first point is where the car was."""
    older = foreign(NOW_S - 0.1, (0.0,), x=-0.8)
    stack = Stack(objects=())
    content, step = stack.check(older)
    assert step.trajectories == content
    assert stack.statuses()["candidate Foreign_0"].values["verdict"] == "OK"
    _, step = Stack().check(older)
    (repaired,) = deserialize_message(step.trajectories, CandidateTrajectories).candidate_trajectories
    assert repaired.header == outputs.header(ns(NOW_S - 0.1), "map")
    first = repaired.points[0]
    assert first.time_from_start == Duration(sec=0, nanosec=200_000_000)
    assert first.pose.position.x == pytest.approx(0.8, abs=0.05)


def test_two_candidates_of_one_generator_id_have_two_verdicts():
    stack = Stack()
    stack.check(foreign(NOW_S, (0.0, 2.0), ids=(7, 7)))
    names = [name for name in stack.statuses() if name.startswith("candidate ")]
    assert len(names) == len(set(names)) == 2


@pytest.mark.parametrize("has_signal", [True, False])
def test_both_layouts_are_read_and_written(has_signal):
    signal = (5, 2) if has_signal else None
    points = np.zeros(3, plan_messages.POINT)
    points["x"], points["qw"] = (1.0, 2.0, 3.0), 1.0
    many = tuple(candidates.CandidateMessage(10, "map" * k, bytes(range(16)), points, signal) for k in range(1, 5))
    message = candidates.CandidateMessages(many, ((bytes(16), "one"), (bytes(16), "")))
    content = candidates.write(message)
    again = candidates.read(content, has_signal)
    assert candidates.write(again) == content
    assert [each.frame for each in again.candidates] == [each.frame for each in many]
    assert all(np.array_equal(each.points, points) for each in again.candidates)
    assert again.generators == message.generators
    with pytest.raises(candidates.BadMessage):
        candidates.read(content, not has_signal)
