"""Confidence of a trajectory: each factor is between 0 and 1 and falls as the plan gets worse."""

import numpy as np
import pytest
from scenes import cars, config, observation, straight_route, turning_route

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.planning.confidence import (
    RADIUS_MAX_M,
    TTC_MAX_S,
    confidence,
    geometric_alignment,
    kinematic_consistency,
    off_road_probability,
    safety_margin,
    times_to_collision,
)
from reflectdrive_ros.scoring.safety import SafetyContext

DT_S = 0.1


def straight(left=0.0):
    return np.column_stack([8.0 * DT_S * np.arange(1, 41), np.full(40, left), np.zeros(40)])


def bend(radius, speed=8.0, steps=40):
    return kinematics.arc(1.0 / radius, speed * DT_S * np.arange(1, steps + 1))


def context_of(**changes):
    return SafetyContext(observation(**changes), config())


def test_factors_are_shares_for_any_plan():
    rng = np.random.default_rng(0)
    for _ in range(30):
        poses = np.cumsum(rng.normal([0.8, 0.0, 0.0], [0.8, 0.4, 0.3], (40, 3)), axis=0)
        factors = confidence(poses, DT_S, context_of(route=turning_route(), agents=cars((20, 0, 0, 3))))
        for factor in (factors.kinematic, factors.geometric, factors.safety, factors.by_instant):
            assert factor.shape == (40,)
            assert (factor >= 0.0).all()
            assert (factor <= 1.0).all()
        assert 0.0 <= factors.value <= 1.0


@pytest.mark.parametrize(
    "factor",
    [
        lambda x: kinematic_consistency(x, np.zeros_like(x), np.zeros_like(x)),
        lambda x: kinematic_consistency(np.zeros_like(x), x, np.zeros_like(x)),
        lambda x: kinematic_consistency(np.zeros_like(x), np.zeros_like(x), x),
        lambda x: geometric_alignment(0.05 + 0.01 * x, np.full_like(x, 0.05), np.zeros_like(x)),
        lambda x: geometric_alignment(np.zeros_like(x), np.zeros_like(x), x),
        lambda x: safety_margin(TTC_MAX_S - x, np.zeros_like(x), np.zeros_like(x)),
        lambda x: safety_margin(np.full_like(x, TTC_MAX_S), 0.1 * x, np.zeros_like(x)),
        lambda x: safety_margin(np.full_like(x, TTC_MAX_S), np.zeros_like(x), 0.1 * x),
    ],
    ids=["lateral", "road", "jerk", "curvature", "deviation", "collision", "off_road", "turn"],
)
def test_a_factor_falls_with_each_of_its_arguments(factor):
    values = factor(np.linspace(0.0, 9.0, 40))
    assert (np.diff(values) <= 1e-12).all()
    assert values[0] > values[-1] + 0.05
    assert values[0] > 0.99


def test_published_constants_give_their_stated_values():
    one = np.ones(1)
    assert kinematic_consistency(one, 0 * one, 0 * one)[0] == pytest.approx(0.86, abs=0.005)
    assert geometric_alignment(0.06 * one, 0.05 * one, 0 * one)[0] == pytest.approx(0.905, abs=0.005)
    assert geometric_alignment(one / RADIUS_MAX_M, 0 * one, 0 * one)[0] == pytest.approx(np.exp(-0.5), abs=1e-9)
    assert safety_margin(2.5 * one, 0 * one, 0 * one)[0] == pytest.approx(0.5)


def test_a_plan_on_its_road_has_a_higher_confidence_than_one_off_it():
    along = confidence(straight(), DT_S, context_of(route=straight_route())).value
    off_lane = confidence(straight(left=1.5), DT_S, context_of(route=straight_route())).value
    assert along > 0.98
    assert off_lane < 0.85


def test_a_bend_driven_with_the_curvature_of_the_road_has_a_high_confidence():
    behind = np.column_stack([np.arange(-30.0, 0.0), np.zeros(30), np.zeros(30)])
    route = np.concatenate([behind, bend(40.0, speed=10.0, steps=60)])  # the bend begins where the car is
    along, wider, ahead = (
        confidence(poses, DT_S, context_of(route=route)).value for poses in (bend(40.0), bend(80.0), straight())
    )
    assert along > wider + 0.05
    assert along > ahead + 0.1


def test_driving_into_a_standing_car_lowers_the_confidence_up_to_the_contact():
    blocked = context_of(route=straight_route(), agents=cars((25.0, 0.0, 0.0, 0.0)))
    seconds = times_to_collision(straight(), DT_S, blocked)
    contact = int(np.argmin(seconds))
    assert seconds[contact] == 0.0
    np.testing.assert_allclose(np.diff(seconds[: contact + 1]), -DT_S, atol=1e-9)
    free = context_of(route=straight_route(), agents=cars((25.0, 6.0, 0.0, 0.0)))
    assert (times_to_collision(straight(), DT_S, free) == TTC_MAX_S).all()
    assert confidence(straight(), DT_S, blocked).value < confidence(straight(), DT_S, free).value - 0.2


def test_what_is_unknown_does_not_lower_the_confidence():
    unknown = SafetyContext(observation(route=np.zeros((0, 3)), agents=None), config())
    assert confidence(straight(), DT_S, unknown).value > 0.99
    assert (off_road_probability(straight(), unknown) == 0.0).all()
