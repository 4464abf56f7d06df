"""A plan that comes too near to others is driven more slowly, on the same path; others stay as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import NO_LIGHTS, cars, config, observation

from reflectdrive_ros.planning.assessment import choose_deceleration, decelerated, evaluate, score_candidates
from reflectdrive_ros.scoring.safety import SafetyContext

STEADY = np.column_stack([5.0 * np.arange(1, 9), np.zeros(8)])  # 10 m/s straight on
AHEAD = cars((20.0, 0.0, 0.0, 7.0))  # a slower car that the plan does not reach within 4 s


def known(agents=AHEAD, traffic_lights=NO_LIGHTS, **more):
    return SafetyContext(observation(10.0, agents=agents, traffic_lights=traffic_lights, **more), config())


def test_behind_a_slower_car_the_distance_is_kept_in_time():
    found = choose_deceleration(STEADY, known())
    assert evaluate(known(), STEADY[None]).safe[0]  # no repair would change it
    before, after = score_candidates(known(), np.stack([STEADY, found])).card.ttc
    assert (before, after) == (0.0, 1.0)
    assert 0.0 < STEADY[-1, 0] - found[-1, 0] <= 16.0


def test_a_plan_on_a_free_road_is_kept():
    assert choose_deceleration(STEADY, known(cars((20.0, 0.0, 0.0, 14.0)))) is STEADY
    assert choose_deceleration(STEADY, known(cars())) is STEADY


@pytest.mark.parametrize("unknown", [{"agents": None}, {"traffic_lights": None}, {"route": np.zeros((0, 3))}])
def test_nothing_changes_where_the_score_does_not_know_what_the_plan_does(unknown):
    assert choose_deceleration(STEADY, known(**unknown)) is STEADY


@given(st.lists(st.floats(0.0, 8.0), min_size=8, max_size=8), st.floats(-0.08, 0.08))
def test_slower_plans_stay_on_the_path_and_behind_the_plan(steps, bend):
    heading = bend * np.cumsum(steps)
    points = np.cumsum(np.column_stack([steps * np.cos(heading), steps * np.sin(heading)]), axis=0)
    way = np.concatenate([np.zeros((1, 2)), points])
    pieces = np.diff(way, axis=0)
    slower = decelerated(points)
    assert (np.diff(along(slower), axis=0) <= 1e-6).all()  # more deceleration is never further
    assert (along(slower) <= along(points) + 1e-6).all()
    for place in slower.reshape(-1, 2):
        share = ((place - way[:-1]) * pieces).sum(1) / np.maximum((pieces**2).sum(1), 1e-12)
        nearest = way[:-1] + np.clip(share, 0, 1)[:, None] * pieces
        assert np.hypot(*(nearest - place).T).min() < 1e-6


def test_a_car_that_starts_starts_later_and_does_not_roll_back():
    start = np.column_stack([0.25 * np.arange(1, 9) ** 2, np.zeros(8)])  # 2 m/s^2
    slower = decelerated(start)
    assert (np.diff(slower[..., 0], axis=1) >= 0.0).all()
    np.testing.assert_allclose(slower[0, -1, 0], start[-1, 0] - 4.0)


def along(points):
    steps = np.diff(points, axis=-2, prepend=np.zeros_like(points[..., :1, :]))
    return np.cumsum(np.hypot(steps[..., 0], steps[..., 1]), axis=-1)
