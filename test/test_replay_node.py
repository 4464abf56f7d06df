"""What the node sent while a bag was played waits in a file and comes out as plans, whatever order it came in."""

import random
import tempfile

import pytest

pytest.importorskip("rclpy")

from autoware_planning_msgs.msg import Trajectory, TrajectoryPoint
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from reflectdrive_ros.replay import node
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.topics import message_class

STATUS, DEBUG = message_class("reflectdrive/msg/PlannerStatus"), message_class("reflectdrive/msg/PlannerDebug")
SECOND_NS = 1_000_000_000


def parts(count, period_ns=SECOND_NS // 10):
    """Trajectory, status and debug of plans, and diagnostics that count them, as a node sends them."""
    for k in range(count):
        stamp = outputs.time_message(SECOND_NS + k * period_ns)
        trajectory, status, debug = Trajectory(), STATUS(), DEBUG()
        for message in (trajectory, status, debug):
            message.header.stamp = stamp
        trajectory.points = [TrajectoryPoint(longitudinal_velocity_mps=float(k))]
        status.sequence = k
        debug.stage_names, debug.stage_times = ["network"], [float(k)]
        debug.edit_rounds, debug.round_tokens, debug.round_confidence = 1, [k, k, k, k + 1], [0.5, 0.5, 0.5, 0.25]
        diagnostics = DiagnosticArray(status=[DiagnosticStatus(name="reflectdrive: planner", message=str(k))])
        yield [("trajectory", trajectory), ("status", status), ("debug", debug)], ("diagnostics", diagnostics)


def collected(messages, unsent=lambda statuses: None):
    with tempfile.TemporaryFile() as file:
        spool = node.MessageSpool(file)
        for k, (key, message) in enumerate(messages):
            spool.add(key, 0.01 * k, message)
        return list(node.assemble_plans(spool, lambda at_s: int(at_s * 1e9), unsent))


def test_plans_come_out_whole_and_in_order_whatever_order_their_parts_came_in():
    shuffle, messages = random.Random(0), []
    for three, diagnostics in parts(500):
        shuffle.shuffle(three)
        messages += [*three, diagnostics]
    plans = collected(messages)
    assert [plan.status.sequence for plan in plans] == list(range(500))
    assert [plan.points["longitudinal_velocity_mps"][0] for plan in plans] == list(range(500))
    assert [plan.stages_ms["network"] for plan in plans] == list(range(500))
    assert [plan.trace.ids.tolist() for plan in plans] == [[[k, k], [k, k + 1]] for k in range(500)]
    assert plans[0].trace.confidence.tolist() == [[0.5, 0.5], [0.5, 0.25]]
    assert [plan.stamp_ns for plan in plans] == [SECOND_NS + k * SECOND_NS // 10 for k in range(500)]
    assert plans[0].statuses == ()
    # what had been said when a plan came; the last has what was said at the end
    assert [plan.statuses[0].message for plan in plans[1:-1]] == [str(k) for k in range(498)]
    assert plans[-1].statuses[0].message == "499"
    assert all(-1 <= plan.at_ns - k * 40_000_000 <= 20_000_001 for k, plan in enumerate(plans))


def test_what_lacks_a_trajectory_or_a_status_is_no_plan_and_one_without_details_is():
    messages = []
    for k, (three, _) in enumerate(parts(6)):
        messages += [part for part in three if (k, part[0]) not in {(1, "trajectory"), (2, "status"), (4, "debug")}]
    plans = collected(messages)
    assert [plan.status.sequence for plan in plans] == [0, 3, 4, 5]
    assert [plan.stages_ms for plan in plans] == [{"network": 0.0}, {"network": 3.0}, {}, {"network": 5.0}]
    assert [plan.trace is None for plan in plans] == [False, False, True, False]


def test_the_first_of_two_trajectories_of_one_stamp_is_the_one_that_was_driven():
    ((three, _),) = parts(1)
    again = Trajectory(header=three[0][1].header, points=[TrajectoryPoint(longitudinal_velocity_mps=9.0)])
    (plan,) = collected([*three, ("trajectory", again)])
    assert plan.points["longitudinal_velocity_mps"].tolist() == [0.0]


def test_diagnostics_without_a_plan_since_the_ones_before_are_told_apart():
    ((three, diagnostics), (more, last)) = parts(2)
    unsent = []
    assert len(collected([diagnostics, *three, last, diagnostics, *more], unsent.append)) == 2
    assert [[line.message for line in statuses] for statuses in unsent] == [["0"], ["0"]]
