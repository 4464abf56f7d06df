"""Many plans drawn at once are the plans drawn one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros import kinematics
from reflectdrive_ros.domain import Trajectory
from reflectdrive_ros.planning.waypoints import drawn, trajectories
from reflectdrive_ros.tokens import Codebook, poses_from_points

BOOK = Codebook()


def resampled(points, dt_s=0.1):
    """Poses (T, 3) of one plan (8, 2)."""
    times_s = dt_s * np.arange(1, round(4.0 / dt_s) + 1)
    return kinematics.resample(Trajectory(poses_from_points(points), 0.5), times_s)


@given(st.lists(st.tuples(st.floats(0.5, 16.0), st.floats(-0.08, 0.08), st.integers(0, 8)), min_size=1, max_size=5))
def test_drawn_at_once_is_drawn_one_by_one(drives):
    """Arcs at any speed that stop at any time; as rounded to tokens, too."""
    times_s = 0.5 * np.arange(1, 9)
    ways = np.stack([kinematics.arc(bend, v * np.minimum(times_s, 0.5 * stop))[:, :2] for v, bend, stop in drives])
    rounded = BOOK.decode(BOOK.encode(ways))
    still = np.hypot(*np.diff(rounded, axis=1, prepend=0.0).transpose(2, 0, 1)) == 0
    goes_on = (still[:, :-1] & ~still[:, 1:]).any(axis=1)  # a slow car that rounding lets stop in between
    for points in (ways, rounded[~goes_on]):
        if len(points):
            singly = np.stack([resampled(one) for one in points])
            np.testing.assert_allclose(drawn(poses_from_points(points)), singly, atol=1e-6)


@pytest.mark.parametrize("pause", [1, 2, 3])
def test_a_plan_that_stops_and_goes_on_stays_within_a_hand(pause):
    points = np.stack([np.r_[1.5, 3.0, [3.0] * pause, 4.5 + 1.5 * np.arange(6 - pause)], 0.02 * np.arange(8) ** 2], 1)
    points[2 : 2 + pause, 1] = points[1, 1]
    apart = drawn(poses_from_points(points[None]))[0, :, :2] - resampled(points)[:, :2]
    assert np.hypot(*apart.T).max() < 0.1


def test_a_car_that_stands_is_drawn_standing():
    np.testing.assert_array_equal(drawn(np.zeros((1, 8, 3))), 0.0)


@pytest.mark.parametrize("dt_s", [0.1, 0.2, 0.5])
def test_published_plans_are_the_drawn_ones_at_any_interval(dt_s):
    ways = np.stack([kinematics.arc(bend, 6.0 * 0.5 * np.arange(1, 9))[:, :2] for bend in (0.0, 0.03)])
    made = trajectories(ways, dt_s)
    assert [plan.dt_s for plan in made] == [dt_s, dt_s]
    for plan, way in zip(made, ways, strict=True):
        assert plan.horizon_s == pytest.approx(4.0)
        np.testing.assert_allclose(plan.poses, resampled(way, dt_s), atol=1e-6)
