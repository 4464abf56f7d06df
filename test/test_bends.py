"""Plans are slowed down before their own bends."""

import numpy as np
import pytest

from reflectdrive_ros.core.domain import Trajectory
from reflectdrive_ros.core.kinematics import speeds, with_origin
from reflectdrive_ros.planning.postprocess.speed_profile import (
    BEND_LATERAL_MPS2,
    BEND_YAW_RATE_RPS,
    bend_limits,
    slow_in_bends,
)


def arc(speed_mps, radius_m, straight_m=0.0, steps=40):
    """A plan at a constant speed that turns left after a straight."""
    along = 0.1 * speed_mps * np.arange(1, steps + 1)
    turn = np.maximum(along - straight_m, 0.0) / radius_m
    x = np.minimum(along, straight_m) + radius_m * np.sin(turn)
    return Trajectory(np.column_stack([x, radius_m * (1.0 - np.cos(turn)), turn]), 0.1)


def lateral_mps2(trajectory):
    """At the end of each step, averaged over half a second as by the guard."""
    headings = np.unwrap(with_origin(trajectory.poses)[:, 2])
    rate = np.diff(headings[::5]) / 0.5
    return np.abs(rate) * speeds(trajectory)[4::5]


@pytest.mark.parametrize("radius_m", [15.0, 25.0])
def test_a_bend_after_a_straight_is_reached_at_a_comfortable_speed(radius_m):
    fast = arc(12.0, radius_m, straight_m=24.0)
    slowed = slow_in_bends(fast, 12.0)
    assert lateral_mps2(fast).max() > 5.5
    assert lateral_mps2(slowed).max() < 1.1 * BEND_LATERAL_MPS2
    assert (np.diff(speeds(slowed)) / 0.1 > -2.9).all()  # it brakes comfortably


@pytest.mark.parametrize("plan", [arc(8.0, 1e6), arc(8.0, 20.0), arc(2.0, 6.0)], ids=["straight", "wide", "slow"])
def test_plans_that_are_slow_enough_stay_themselves(plan):
    assert slow_in_bends(plan, 8.0) is plan


def test_a_tight_bend_is_limited_by_the_yaw_rate():
    limits = bend_limits(arc(4.0, 4.0))
    assert limits.speeds_mps.min() == pytest.approx(BEND_YAW_RATE_RPS * 4.0, rel=0.05)


def test_a_standing_plan_has_no_bends():
    still = Trajectory(np.zeros((40, 3)), 0.1)
    assert slow_in_bends(still, 0.0) is still
    stops = np.concatenate([arc(5.0, 10.0).poses[:20], np.repeat(arc(5.0, 10.0).poses[19:20], 20, axis=0)])
    slowed = slow_in_bends(Trajectory(stops, 0.1), 5.0)
    assert np.isfinite(slowed.poses).all()
