"""An uncomfortable plan gets a relaxed profile, on the same path and never ahead of it; others are unchanged."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import cars, config, ego, observation

from reflectdrive_ros.planning.assessment import comfortable, evaluate
from reflectdrive_ros.planning.postprocess.comfort import relax_profile, relaxed_profiles
from reflectdrive_ros.scoring.safety import SAFE, SafetyContext

DT_S = 0.5


def straight(distances):
    return np.column_stack([distances, np.zeros(len(distances))])


def context_of(car, others=None):
    """A safety context without a road."""
    return SafetyContext(replace(observation(agents=others, route=np.zeros((0, 3))), ego=car), config())


def comforts(points, car):
    return comfortable(context_of(car), points[None])[0]


def calm(points, car, safety_context=None):
    return relax_profile(points, safety_context or context_of(car))


def along(points):
    return np.cumsum(np.hypot(*np.diff(points, axis=0, prepend=np.zeros((1, 2))).T))


LATE = straight([5.0, 10.0, 14.0, 16.5, 18.0, 18.6, 18.6, 18.6])  # at 10 m/s straight on for a second, then hard


def test_braking_that_comes_late_comes_sooner_and_stops_where_it_would_have():
    car = ego(10.0)
    assert not comforts(LATE, car)
    relaxed = calm(LATE, car)
    assert comforts(relaxed, car)
    assert (relaxed[:, 0] <= LATE[:, 0] + 1e-9).all()
    assert relaxed[1, 0] < LATE[1, 0] - 0.1
    np.testing.assert_allclose(relaxed[-1], LATE[-1], atol=0.7)


@pytest.mark.parametrize("points", [straight(5.0 * np.arange(1, 9)), straight(np.zeros(8))])
def test_a_comfortable_plan_is_unchanged(points):
    car = ego(points[0, 0] / DT_S)
    assert calm(points, car) is points


def test_an_emergency_brake_stays_one():
    stop = straight([3.5, 5.0, 5.4, 5.4, 5.4, 5.4, 5.4, 5.4])  # from 10 m/s within a second and a half
    assert calm(stop, ego(10.0)) is stop


def test_a_relaxed_profile_does_not_block_another_agent():
    """Who just makes it behind a car that brakes late hits one that brakes sooner."""
    car = ego(10.0)
    safety_context = context_of(car, cars((5.3, -10.85, np.pi / 2, 9.75)))
    first = next(option for option in relaxed_profiles(LATE[None], car, DT_S)[0] if comforts(option, car))
    np.testing.assert_array_equal(evaluate(safety_context, np.stack([LATE, first])).safety.worst >= SAFE, [True, False])
    assert calm(LATE, car, safety_context) is LATE
    np.testing.assert_array_equal(calm(LATE, car), first)


@given(
    st.floats(0.0, 15.0),
    st.floats(-3.0, 2.0),
    st.lists(st.floats(0.0, 8.0), min_size=8, max_size=8),
    st.floats(-0.08, 0.08),
)
def test_relaxed_plans_stay_on_the_path_and_behind_the_plan(speed_mps, acceleration_mps2, steps, bend):
    heading = bend * np.cumsum(steps)
    points = np.cumsum(np.column_stack([steps * np.cos(heading), steps * np.sin(heading)]), axis=0)
    car = ego(speed_mps, acceleration_mps2=acceleration_mps2)
    path = np.concatenate([np.zeros((1, 2)), points])
    pieces = np.diff(path, axis=0)
    for relaxed in (*relaxed_profiles(points[None], car, DT_S)[0], calm(points, car)):
        assert (along(relaxed) <= along(points) + 1e-6).all()
        for point in relaxed:
            share = ((point - path[:-1]) * pieces).sum(1) / np.maximum((pieces**2).sum(1), 1e-12)
            nearest = path[:-1] + np.clip(share, 0, 1)[:, None] * pieces
            assert np.hypot(*(nearest - point).T).min() < 1e-6
