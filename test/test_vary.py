"""Variants of a plan stay close to it: on its path but slower, or beside it by what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.planning import vary

STEADY = np.column_stack([5.0 * np.arange(1, 9), np.zeros(8)])  # 10 m/s straight on


def decelerated(points):
    """The slower variants of points (8, 2), of one deceleration each."""
    decelerations = np.array(vary.DECELERATIONS_MPS2[1:])
    return vary.decelerate(np.repeat(points[None], len(decelerations), axis=0), decelerations)


def test_the_first_variant_is_the_plan_and_each_says_what_it_changes():
    varied = vary.variants(STEADY, 10.0, sideways=True)
    assert np.array_equal(varied.points[0], STEADY)
    assert varied.description(0) == ""
    slower = int(np.flatnonzero((varied.changes == (1.0, 0.3, 0.0)).all(axis=1))[0])
    assert varied.description(slower) == "1 m/s^2 slower, 0.3 m to the left"
    assert len({varied.description(index) for index in range(len(varied.points))}) == len(varied.points)


def test_an_offset_grows_to_its_size_at_the_end_and_a_bulge_is_gone_there():
    (aside, bulging) = vary.shift(STEADY, np.array([0.6, 0.0]), np.array([0.0, -0.4]))
    assert aside[-1, 1] == pytest.approx(0.6)
    assert (np.diff(aside[:, 1]) > 0.0).all()
    assert bulging[-1, 1] == pytest.approx(0.0, abs=1e-9)
    assert bulging[3, 1] == pytest.approx(-0.4)


def test_without_a_known_road_no_plan_is_varied_sideways():
    assert (vary.variants(STEADY, 10.0, sideways=False).changes[:, 1:] == 0.0).all()


def test_a_slow_car_and_a_short_plan_are_not_varied_sideways():
    for points, speed_mps in ((STEADY, 1.0), (0.1 * STEADY, 10.0)):
        assert (vary.variants(points, speed_mps, sideways=True).changes[:, 1:] == 0.0).all()


@given(st.lists(st.floats(0.0, 8.0), min_size=8, max_size=8), st.floats(-0.08, 0.08))
def test_slower_plans_stay_on_the_path_and_behind_the_plan(steps, bend):
    heading = bend * np.cumsum(steps)
    points = np.cumsum(np.column_stack([steps * np.cos(heading), steps * np.sin(heading)]), axis=0)
    path = np.concatenate([np.zeros((1, 2)), points])
    pieces = np.diff(path, axis=0)
    slower = decelerated(points)
    assert (np.diff(along(slower), axis=0) <= 1e-6).all()  # more deceleration is never further
    assert (along(slower) <= along(points) + 1e-6).all()
    for point in slower.reshape(-1, 2):
        share = ((point - path[:-1]) * pieces).sum(1) / np.maximum((pieces**2).sum(1), 1e-12)
        nearest = path[:-1] + np.clip(share, 0, 1)[:, None] * pieces
        assert np.hypot(*(nearest - point).T).min() < 1e-6


def test_a_car_that_starts_starts_later_and_does_not_roll_back():
    start = np.column_stack([0.25 * np.arange(1, 9) ** 2, np.zeros(8)])  # 2 m/s^2
    slower = decelerated(start)
    assert (np.diff(slower[..., 0], axis=1) >= 0.0).all()
    np.testing.assert_allclose(slower[0, -1, 0], start[-1, 0] - 4.0)


def along(points):
    steps = np.diff(points, axis=-2, prepend=np.zeros_like(points[..., :1, :]))
    return np.cumsum(np.hypot(steps[..., 0], steps[..., 1]), axis=-1)
