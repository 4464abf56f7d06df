"""Candidates of other planners: safe ones stay what they are, others become safe, and what is unknown is told."""

import numpy as np
import pytest
from scenes import NO_LIGHTS, cars, config, later, observation, straight_plan

from reflectdrive_ros.core.domain import Trajectory, Verdict
from reflectdrive_ros.planning import external
from reflectdrive_ros.planning.planner import PlannerContext


def checked(scene, *trajectories, last=(), **settings):
    return external.check_candidates(trajectories, scene, PlannerContext(config(**settings)), last)


BLOCKED = observation(agents=cars((28.0, 0.0, 0.0, 0.0)), traffic_lights=NO_LIGHTS)
FREE = observation(agents=cars((200.0, 0.0, 0.0, 0.0)), traffic_lights=NO_LIGHTS)


def braking(deceleration=1.6, speed=8.0, **more):
    """A trajectory that brakes to a stop."""
    times = 0.1 * np.arange(1, 81)
    times = np.minimum(times, speed / deceleration)
    poses = np.zeros((80, 3))
    poses[:, 0] = speed * times - 0.5 * deceleration * times**2
    return Trajectory(poses, 0.1)


@pytest.mark.parametrize(("dt", "horizon"), [(0.1, 8.0), (0.5, 4.0), (0.25, 3.0), (0.1, 1.0)])
def test_a_safe_candidate_stays_the_object_that_came(dt, horizon):
    trajectory = straight_plan(dt=dt, horizon=horizon).trajectory
    (one,) = checked(FREE, trajectory)
    assert one.plan.trajectory is trajectory
    assert one.judgement.verdict is Verdict.OK
    assert one.is_safe
    assert not one.plan.change
    assert one.sentence.startswith(f"safe for {min(horizon, 4.0):.1f} s")
    assert 0.5 < one.score <= 1.0


@pytest.mark.parametrize(("dt", "horizon"), [(0.1, 8.0), (0.5, 4.0), (0.1, 3.0)])
def test_an_unsafe_candidate_is_repaired_and_then_safe(dt, horizon):
    (one,) = checked(BLOCKED, straight_plan(dt=dt, horizon=horizon).trajectory)
    assert one.judgement.verdict is Verdict.UNSAFE
    assert one.is_safe
    assert one.plan.change == external.REPAIRED
    assert one.plan.check.unsafe_after_s is None
    assert one.plan.trajectory.horizon_s == pytest.approx(4.0)
    assert one.plan.trajectory.poses[:, 0].max() < 28.0 - 4.5 / 2 - 4.0  # the front stays behind the car
    assert one.sentence.startswith("UNSAFE: the plan ")
    assert one.score > 0.0
    (again,) = checked(BLOCKED, one.plan.trajectory)
    assert again.plan.trajectory is one.plan.trajectory  # what was repaired needs no repair


def test_each_candidate_is_repaired_by_itself_and_the_best_is_the_one_that_needs_none():
    stopping, through = braking(), straight_plan().trajectory
    through_checked, stopping_checked = checked(BLOCKED, through, stopping)
    assert stopping_checked.plan.trajectory is stopping
    assert through_checked.plan.change
    assert through_checked.is_safe
    assert stopping_checked.is_safe
    plain = checked(BLOCKED, through, stopping, pipeline__repair=False)
    assert [one.score > 0.0 for one in plain] == [False, True]
    assert external.best(plain) == 1


def test_without_repair_an_unsafe_candidate_stays_with_its_verdict():
    trajectory = straight_plan().trajectory
    (one,) = checked(BLOCKED, trajectory, pipeline__repair=False)
    assert one.plan.trajectory is trajectory
    assert (one.is_safe, one.score, one.judgement.verdict) == (False, 0.0, Verdict.UNSAFE)
    assert "no safe change was found" in one.sentence


def test_what_is_unknown_is_told_and_not_repaired():
    trajectory = straight_plan().trajectory
    (one,) = checked(observation(), trajectory)
    assert one.plan.trajectory is trajectory
    assert one.sentence == "unchecked: no objects, no drivable space"
    (one,) = checked(FREE, trajectory)
    assert one.sentence.endswith("unchecked: no drivable space")


def test_a_candidate_that_no_car_can_follow_is_not_safe():
    jump = Trajectory(straight_plan().trajectory.poses + np.array([0.0, 5.0, 0.0]), 0.1)
    (one,) = checked(FREE, jump)
    assert one.judgement.verdict is Verdict.INFEASIBLE
    assert one.plan.trajectory is not jump
    assert one.is_safe


def test_a_contact_that_nothing_prevents_is_told_and_never_made_worse():
    scene = observation(20.0, agents=cars((12.0, 0.0, 0.0, 0.0)))
    trajectory = straight_plan(20.0).trajectory
    (one,) = checked(scene, trajectory)
    assert (one.is_safe, one.score) == (False, 0.0)
    own = checked(scene, trajectory, pipeline__repair=False)[0].plan.check
    assert one.plan.check.safe_s >= own.safe_s


def test_the_repair_of_the_last_step_goes_on():
    (first,) = checked(BLOCKED, straight_plan().trajectory)
    scene = later(BLOCKED, 0.1, forward=float(first.plan.trajectory.poses[0, 0]))
    (second,) = checked(scene, straight_plan().trajectory, last=(first.plan,))
    moved = second.plan.trajectory.poses[:30, 0] + first.plan.trajectory.poses[0, 0]
    assert np.abs(moved - first.plan.trajectory.poses[1:31, 0]).max() < 0.3
    assert second.is_safe


def test_after_the_deadline_nothing_is_repaired():
    context = PlannerContext(config(), deadline_used=lambda: 1.5)
    (one,) = external.check_candidates((straight_plan().trajectory,), BLOCKED, context)
    assert not one.is_safe
    assert not one.plan.change


def test_no_candidates_are_no_error():
    assert checked(BLOCKED) == ()
