"""Recorded messages through the planner into both of Autoware's wirings: to the processor, and to the selector."""

from typing import NamedTuple

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import CandidateTrajectories
from autoware_wirings import CANDIDATE_AGE_MAX_S, POINTS_MIN, Processor, Selector
from own_bags import messages_of
from rclpy.serialization import deserialize_message
from scenes import Clock, config

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.ros import outputs, plan_messages
from reflectdrive_ros.ros.convert import stamp_ns
from reflectdrive_ros.ros.inputs.control import Signal
from reflectdrive_ros.ros.planning_core import PlanningCore

AUTOWARE_LAUNCH = {"output__candidates_max": 1, "output__horizon_s": 8.0}  # what autoware.launch.xml sets


class Sent(NamedTuple):
    """One step: what the node sends, and when."""

    now_ns: int
    report: object  # None: nothing is sent
    message: CandidateTrajectories | None


def recorded_steps(
    without=(), signal=Signal.LEFT, node=outputs.NODE_NAME, planner="idm_proposals", seconds=2.0, **settings
):
    """The steps of a planner of many candidates on the first seconds of a recording, `without` some of its inputs."""
    settings = config(planner=planner, cameras__required=False, cameras__width=64, cameras__height=36, **settings)
    core = PlanningCore(settings, Clock())
    keys = {topic.name: topic.key for topic in world_messages.car_topics(Config())}
    begin_ns, steps = None, []
    for topic, now_ns, message in messages_of("pandaset_002", 5):
        begin_ns = now_ns if begin_ns is None else begin_ns
        key = keys.get(topic, "")
        if now_ns > begin_ns + seconds * 1e9 or key in without or key.startswith(("image", "info")) or not key:
            continue
        core.put(key, message, now_ns)
        if core.due(now_ns):
            report, sent = core.step(now_ns).report, None
            if report is not None:
                points = plan_messages.plan_points(report.published, settings)
                content = outputs.candidates(report.published, points, signal, settings, node)
                sent = deserialize_message(content, CandidateTrajectories)
            steps.append(Sent(now_ns, report, sent))
    return steps


@pytest.fixture(scope="module")
def autoware_steps():
    return recorded_steps(**AUTOWARE_LAUNCH, output__generator_name="DiffusionPlanner_reflectdrive")


@pytest.fixture(scope="module")
def steps_of_many():
    return recorded_steps(output__generator_name="DiffusionPlanner_reflectdrive")


# --- generator, processor, validator ---------------------------------------------------------------------------------


def test_every_message_passes_the_processor_as_one_candidate_of_80_points_with_its_header(autoware_steps):
    processor = Processor(odometry_speed_mps=10.0, has_acceleration=True)
    assert len(autoware_steps) >= 15
    for sent in autoware_steps:
        (points,), (header, selected) = processor.process(sent.message)
        assert len(points) == 80
        assert selected == outputs.trajectory(sent.report.published, config()).points
        assert (header.frame_id, stamp_ns(header)) == ("map", sent.report.plan.stamp_ns)
        times_s = [point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec for point in points]
        np.testing.assert_allclose(np.diff(times_s), 0.1, atol=1e-6)  # its QP smoother assumes it
    assert len(set(processor.plugin_calls)) == 1  # its plugins keep the state of one candidate


def test_more_candidates_mix_in_the_state_of_its_plugins(steps_of_many):
    processor = Processor(10.0, has_acceleration=True)
    for sent in steps_of_many:
        processor.process(sent.message)
    assert len(set(processor.plugin_calls)) > 1


@pytest.mark.parametrize("without", ["odometry", "route"])
def test_the_processor_never_gets_fewer_than_three_points(without):
    """Without a route a stop plan is sent. Without odometry nothing is: the processor sends nothing either."""
    steps = recorded_steps(without=(without,), **AUTOWARE_LAUNCH)
    if without == "odometry":
        assert not [sent for sent in steps if sent.message is not None]
        return
    assert {sent.report.source for sent in steps} == {PlanSource.STOP}
    assert min(len(each.points) for sent in steps for each in sent.message.candidate_trajectories) >= POINTS_MIN
    for speed_mps in (0.0, 10.0):
        replaced, _ = Processor(speed_mps, has_acceleration=True).process(steps[0].message)
        assert "stop" not in replaced


def test_without_odometry_or_acceleration_the_processor_sends_nothing(autoware_steps):
    message = autoware_steps[0].message
    assert Processor(None, has_acceleration=True).process(message) is None
    assert Processor(5.0, has_acceleration=False).process(message) is None


def test_without_acceleration_and_objects_the_generator_still_sends(autoware_steps):
    steps = recorded_steps(without=("acceleration", "objects"), **AUTOWARE_LAUNCH)
    assert len(steps) == len(autoware_steps)
    assert all(len(sent.message.candidate_trajectories[0].points) == 80 for sent in steps)
    assert {sent.report.plan.check.objects for sent in steps} == {None}  # and says that they are unchecked


# --- selector --------------------------------------------------------------------------------------------------------


def test_each_anchor_message_starts_a_cycle_with_its_candidate_alone(autoware_steps):
    selector = Selector()
    for sent in autoware_steps:
        concatenated, ranked = selector.on_anchor(sent.message, sent.now_ns)
        assert ranked == concatenated == list(sent.message.candidate_trajectories)


def test_a_newer_candidate_replaces_that_of_its_slot_and_a_missing_slot_stays_until_it_is_too_old(steps_of_many):
    first, second = steps_of_many[3], steps_of_many[4]
    count = len(first.message.candidate_trajectories)
    assert count > 2
    shorter = CandidateTrajectories(
        candidate_trajectories=second.message.candidate_trajectories[:1],
        generator_info=second.message.generator_info[:1],
    )
    selector = Selector()
    selector.on_anchor(first.message, first.now_ns)
    _, ranked = selector.on_anchor(shorter, second.now_ns)
    assert len(ranked) == count  # one new, the others of the step before: `output.candidates_max: 1` has none of these
    assert sum(stamp_ns(each.header) == second.report.plan.stamp_ns for each in ranked) == 1
    _, ranked = selector.cycle(second.report.plan.stamp_ns + round(CANDIDATE_AGE_MAX_S * 1e9))
    assert ranked == list(shorter.candidate_trajectories)


def test_a_candidate_lives_for_a_fifth_of_a_second_after_its_odometry(autoware_steps):
    sent = autoware_steps[-1]
    stamp = sent.report.plan.stamp_ns
    for age_s, count in ((Config().engine.deadline_ms * 1e-3, 1), (0.199, 1), (0.21, 0)):
        assert len(Selector().on_anchor(sent.message, stamp + round(age_s * 1e9))[1]) == count


@pytest.mark.parametrize("input_name", ["odometry", "objects", "acceleration", "map"])
def test_without_one_of_its_inputs_the_selector_ranks_nothing(autoware_steps, input_name):
    sent = autoware_steps[0]
    selector = Selector(frozenset({"odometry", "objects", "acceleration", "map"} - {input_name}))
    concatenated, ranked = selector.on_anchor(sent.message, sent.now_ns)
    assert (len(concatenated), ranked) == (1, None)


@pytest.mark.parametrize(
    ("name", "node", "planner", "is_ranked"),
    [
        ("ReflectDrive", outputs.NODE_NAME, "route_follower", False),
        ("DiffusionPlanner_reflectdrive", outputs.NODE_NAME, "route_follower", True),
        ("DiffusionPlanner_reflectdrive", "/planning/other/reflectdrive", "route_follower", True),
        ("DiffusionPlanner_reflectdrive", outputs.NODE_NAME, "route_follower+idm_proposals", True),
    ],
)
def test_the_selector_ranks_names_with_one_of_its_prefixes_only(name, node, planner, is_ranked):
    sent = recorded_steps(node=node, planner=planner, seconds=0.4, output__generator_name=name)[-1]
    _, ranked = Selector().on_anchor(sent.message, sent.now_ns)
    assert len(ranked) == (len(sent.message.candidate_trajectories) if is_ranked else 0)


@pytest.mark.skipif(not outputs.HAS_TURN_INDICATOR, reason="the installed message has no turn signal")
@pytest.mark.parametrize("signal", [Signal.OFF, Signal.LEFT, Signal.RIGHT, None])
def test_the_chosen_candidate_has_the_turn_signal_that_is_sent_beside_it(signal):
    name = "DiffusionPlanner_reflectdrive"
    sent = recorded_steps(signal=signal, seconds=0.4, **AUTOWARE_LAUNCH, output__generator_name=name)[-1]
    _, (chosen,) = Selector().on_anchor(sent.message, sent.now_ns)
    command = outputs.turn_indicators(signal, sent.report.plan.stamp_ns)
    assert chosen.turn_indicators_command == command
