"""Interpolated plans: along their path, as a car drives it, from the car's own speed on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import Trajectory
from reflectdrive_ros.core.tokens import Codebook
from reflectdrive_ros.planning.postprocess.speed_profile import LEAST_MPS2, MOST_MPS2, drop_reversals
from reflectdrive_ros.planning.postprocess.waypoints import exceeds_curvature, interpolate, trajectories
from reflectdrive_ros.scoring.frenet import poses_on_road

BOOK = Codebook()


def posed(points):
    """With headings, as without a road."""
    return poses_on_road(points, None)


def resampled(points, dt_s=0.1):
    """Poses (T, 3) of one plan (8, 2)."""
    times_s = dt_s * np.arange(1, round(4.0 / dt_s) + 1)
    return kinematics.resample(Trajectory(posed(points), 0.5), times_s)


def gaps(poses, path):
    """(T,) metres from poses (T, 3) to a path (L, 3) of dense points."""
    return np.hypot(*(poses[:, None, :2] - path[None, :, :2]).transpose(2, 0, 1)).min(axis=1)


def required_accelerations(poses, speed):
    """(T,) accelerations along the path, the first from the present speed on."""
    speeds = np.hypot(*np.diff(poses[:, :2], axis=0, prepend=0.0).T) / 0.1
    return np.diff(speeds, prepend=speed) / 0.1


@given(
    st.lists(st.tuples(st.floats(0.5, 16.0), st.floats(-4.0, 4.0), st.integers(0, 8)), min_size=1, max_size=5),
    st.floats(0.0, 16.0),
)
def test_plans_keep_their_path_and_need_what_a_car_can_do(drives, speed):
    """Arcs at any speed that stop at any time, whatever the car does now; as rounded to tokens, too."""
    times_s = 0.5 * np.arange(1, 9)
    paths = np.stack(
        [
            kinematics.arc(lateral_mps2 / max(v, speed, 5.0) ** 2, v * np.minimum(times_s, 0.5 * stop))[:, :2]
            for v, lateral_mps2, stop in drives
        ]
    )
    rounded = drop_reversals(BOOK.decode(BOOK.encode(paths)))
    for one in (*paths, *rounded):
        poses = posed(one[None])
        (interpolated,) = interpolate(poses, speed)
        accelerations = required_accelerations(interpolated, speed)
        assert accelerations.max() <= MOST_MPS2 + 3.0  # round a rounded bend, speed is even to some hundredths
        assert accelerations.min() >= LEAST_MPS2 - 3.0
        origin = np.zeros((1, 3))
        if exceeds_curvature(np.concatenate([origin, poses[0]])[None])[0]:
            continue
        end = resampled(one)[-1]
        straight_on = geometry.compose(end, kinematics.arc(0.0, np.arange(0.0, 40.0, 0.05)))
        dense = np.concatenate([origin, resampled(one, 0.01), straight_on])
        step = np.hypot(*np.diff(dense[:-800, :2], axis=0, prepend=0.0).T).max()
        assert gaps(interpolated, dense).max() <= 0.5 * step + 0.03


def test_a_plan_that_wavers_is_driven_evenly():
    """Points that are up to a bin off along the path: no controller should speed up and brake by turns."""
    rng = np.random.default_rng(0)
    times_s = 0.5 * np.arange(1, 9)
    for _ in range(100):
        speed = rng.uniform(4.0, 14.0)
        along = speed * times_s + rng.uniform(-0.3, 0.3, 8)
        interpolated = interpolate(posed(np.stack([along, np.zeros(8)], axis=1)[None]), speed)[0]
        assert np.abs(required_accelerations(interpolated, speed)).max() < 2.0
        assert np.abs(interpolated[4::5, 0] - along).max() < 0.4


STARTS_MPS = (0.0, 1.0, 2.5)


@pytest.mark.parametrize(
    ("stops_after_m", "speeds_mps"), [(1.0, STARTS_MPS), (2.0, STARTS_MPS), (6.0, STARTS_MPS), (15.0, STARTS_MPS[2:])]
)
def test_a_plan_that_stops_has_stopped_where_it_says(stops_after_m, speeds_mps):
    points = np.stack([np.minimum(5.0 * 0.5 * np.arange(1, 9), stops_after_m), np.zeros(8)], axis=1)
    for speed in speeds_mps:
        (interpolated,) = interpolate(posed(points[None]), speed)
        assert interpolated[-1, 0] == pytest.approx(stops_after_m, abs=0.05)
        assert interpolated[:, 0].max() <= stops_after_m + 0.02
        assert required_accelerations(interpolated, speed).min() >= LEAST_MPS2 - 1e-6


def test_a_car_that_cannot_stop_in_time_brakes_as_hard_as_possible_and_goes_straight_on():
    (interpolated,) = interpolate(posed(np.zeros((1, 8, 2))), 8.0)
    assert interpolated[-1, 0] == pytest.approx(8.0**2 / 12.0, abs=0.5)
    np.testing.assert_allclose(interpolated[:, 1:], 0.0, atol=1e-9)
    np.testing.assert_allclose(required_accelerations(interpolated, 8.0)[:10], LEAST_MPS2)


@pytest.mark.parametrize(("speed", "acceleration"), [(0.0, 2.0), (3.0, 1.0), (8.0, -1.5), (12.0, 0.0)])
def test_a_steady_plan_is_driven_as_it_is(speed, acceleration):
    times_s = 0.5 * np.arange(1, 9)
    points = kinematics.arc(0.01, speed * times_s + 0.5 * acceleration * times_s**2)[:, :2]
    (trajectory,) = trajectories(points[None], speed, 0.1)
    assert kinematics.speeds(trajectory)[0] == pytest.approx(speed + 0.05 * acceleration, abs=0.01)
    assert np.abs(kinematics.accelerations(trajectory)[:-1] - acceleration).max() < 0.1
    np.testing.assert_allclose(trajectory.poses[4::5, :2], points, atol=1e-3)


@pytest.mark.parametrize("pause", [1, 2, 3])
def test_a_plan_that_stops_and_goes_on_stays_within_a_hand(pause):
    points = np.stack([np.r_[1.5, 3.0, [3.0] * pause, 4.5 + 1.5 * np.arange(6 - pause)], 0.02 * np.arange(8) ** 2], 1)
    points[2 : 2 + pause, 1] = points[1, 1]
    (interpolated,) = interpolate(posed(points[None]), 3.0)
    assert np.hypot(*(interpolated[4::5, :2] - points).T).max() < 0.6  # it brakes before and speeds up after
    assert gaps(interpolated, resampled(points, 0.01)).max() < 0.1


@pytest.mark.parametrize("dt_s", [0.02, 0.03, 0.1, 0.2, 0.5, 1.0])
def test_published_plans_have_any_interval(dt_s):
    paths = np.stack([kinematics.arc(bend, 6.0 * 0.5 * np.arange(1, 9))[:, :2] for bend in (0.0, 0.03)])
    published = trajectories(paths, 6.0, dt_s)
    assert [plan.dt_s for plan in published] == [dt_s, dt_s]
    for plan, path in zip(published, paths, strict=True):
        assert plan.horizon_s == pytest.approx(4.0, abs=dt_s)
        np.testing.assert_allclose(plan.poses, resampled(path, dt_s), atol=1e-3)
