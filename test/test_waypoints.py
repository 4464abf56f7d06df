"""Plans as they are drawn: through their points, along their way, beginning with the car's own speed."""

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


def gaps(poses, way):
    """(T,) metres from poses (T, 3) to a way (L, 3) of dense points."""
    return np.hypot(*(poses[:, None, :2] - way[None, :, :2]).transpose(2, 0, 1)).min(axis=1)


@given(
    st.lists(st.tuples(st.floats(0.5, 16.0), st.floats(-0.08, 0.08), st.integers(0, 8)), min_size=1, max_size=5),
    st.floats(0.0, 16.0),
)
def test_plans_keep_their_way_and_their_points_and_never_go_back(drives, speed):
    """Arcs at any speed that stop at any time, whatever the car does now; as rounded to tokens, too."""
    times_s = 0.5 * np.arange(1, 9)
    ways = np.stack([kinematics.arc(bend, v * np.minimum(times_s, 0.5 * stop))[:, :2] for v, bend, stop in drives])
    rounded = BOOK.decode(BOOK.encode(ways))
    still = np.hypot(*np.diff(rounded, axis=1, prepend=0.0).transpose(2, 0, 1)) == 0
    goes_on = (still[:, :-1] & ~still[:, 1:]).any(axis=1)  # a slow car that rounding lets stop in between
    for points in (ways, rounded[~goes_on]):
        for one in points:
            (found,) = drawn(poses_from_points(one[None]), speed)
            dense = resampled(one, 0.01)
            np.testing.assert_allclose(found[4::5, :2], one, atol=1e-3)
            step = np.hypot(*np.diff(dense[:, :2], axis=0, prepend=0.0).T).max()
            assert gaps(found, np.concatenate([np.zeros((1, 3)), dense])).max() <= 0.5 * step + 2e-3
            assert kinematics.speeds(Trajectory(found, 0.1)).min() >= -1e-6


@pytest.mark.parametrize(("speed", "acceleration"), [(0.0, 2.0), (3.0, 1.0), (8.0, -1.5), (12.0, 0.0)])
def test_a_plan_begins_with_the_speed_of_the_car(speed, acceleration):
    times_s = 0.5 * np.arange(1, 9)
    points = kinematics.arc(0.01, speed * times_s + 0.5 * acceleration * times_s**2)[:, :2]
    (found,) = trajectories(points[None], speed, 0.1)
    first = kinematics.speeds(found)[0]
    assert first == pytest.approx(speed + 0.05 * acceleration, abs=0.05)
    assert np.abs(kinematics.accelerations(found)[:-1] - acceleration).max() < 0.1


@pytest.mark.parametrize("pause", [1, 2, 3])
def test_a_plan_that_stops_and_goes_on_stays_within_a_hand(pause):
    points = np.stack([np.r_[1.5, 3.0, [3.0] * pause, 4.5 + 1.5 * np.arange(6 - pause)], 0.02 * np.arange(8) ** 2], 1)
    points[2 : 2 + pause, 1] = points[1, 1]
    (found,) = drawn(poses_from_points(points[None]), 3.0)
    assert np.hypot(*(found[4::5, :2] - points).T).max() < 1e-3
    assert gaps(found, resampled(points, 0.01)).max() < 0.1


def test_a_car_that_stands_is_drawn_standing():
    np.testing.assert_array_equal(drawn(np.zeros((1, 8, 3)), 0.0), 0.0)


@pytest.mark.parametrize("dt_s", [0.1, 0.2, 0.5])
def test_published_plans_have_any_interval(dt_s):
    ways = np.stack([kinematics.arc(bend, 6.0 * 0.5 * np.arange(1, 9))[:, :2] for bend in (0.0, 0.03)])
    made = trajectories(ways, 6.0, dt_s)
    assert [plan.dt_s for plan in made] == [dt_s, dt_s]
    for plan, way in zip(made, ways, strict=True):
        assert plan.horizon_s == pytest.approx(4.0)
        np.testing.assert_allclose(plan.poses, resampled(way, dt_s), atol=1e-3)
