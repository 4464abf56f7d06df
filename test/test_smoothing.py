"""Rounding's jolts go and nothing else: no point leaves its bin, a stop is a stop, a steady drive is untouched."""

import numpy as np
import pytest
from scenes import ego

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.tokens import DRIVEFINE, Codebook, TokenLayout
from reflectdrive_ros.planning.postprocess.waypoints import smooth_points

BOOK = Codebook()
TIMES_S = 0.5 * np.arange(1, 9)


def drives():
    """Exact points (8, 2) of drives on arcs at steady acceleration, and the ego states they begin with."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        speed, acceleration, curvature = rng.uniform(4.0, 14.0), rng.uniform(-0.9, 1.0), rng.uniform(-0.02, 0.02)
        along = speed * TIMES_S + 0.5 * acceleration * TIMES_S**2
        points = kinematics.arc(curvature, along)[:, :2]
        yield points, ego(speed, acceleration_mps2=acceleration, yaw_rate_rps=speed * curvature)


def rounded(points):
    return BOOK.decode(BOOK.encode(points))


def hardest(points, state):
    speeds = np.hypot(*np.diff(points, axis=0, prepend=0.0).T) / 0.5
    change = np.diff(speeds, prepend=state.speed_mps)
    change[0] *= 2.0  # over half an interval, from the present speed on
    return np.abs(change / 0.5).max()


def test_the_jolts_of_rounding_go():
    jolts = []
    for points, state in drives():
        smoothed = smooth_points(rounded(points), state, 0.5, 0.3)
        jolts.append([hardest(rounded(points), state), hardest(smoothed, state)])
    jolts = np.array(jolts)
    assert np.median(jolts[:, 0]) > 1.3  # as rounded, a calm drive is a jolty one
    assert np.median(jolts[:, 1]) < 0.7 * np.median(jolts[:, 0])
    assert np.percentile(jolts[:, 1], 95) < 1.5


def test_waypoints_of_fine_tokens_are_as_uncertain_as_the_interval_whose_middle_they_are():
    """Predicted waypoints are off by more than a bin of 0.05 m: smoothed within a bin, a calm drive stays rough."""
    rng, layout = np.random.default_rng(1), DRIVEFINE
    assert layout.codebook.bin_m < 0.1 < layout.waypoint_noise_m
    assert TokenLayout().waypoint_noise_m == BOOK.bin_m
    jolts = []
    for points, state in drives():
        predicted = points + rng.normal(0.0, 0.2, points.shape)
        widths = (layout.codebook.bin_m, layout.waypoint_noise_m)
        jolts.append([hardest(smooth_points(predicted, state, 0.5, each), state) for each in widths])
    of_bin, of_interval = np.median(jolts, axis=0)
    assert of_interval < 0.5 * of_bin


def test_no_point_leaves_its_bin():
    rng = np.random.default_rng(1)
    wild = 0.3 * rng.integers(-40, 40, (50, 8, 2))
    assert np.abs(smooth_points(wild, ego(9.0), 0.5, 0.3) - wild).max() <= 0.15 + 1e-12


@pytest.mark.parametrize("speed", [0.0, 0.2, 5.0])
def test_a_stop_stays_a_stop(speed):
    along = np.minimum(np.round(speed * TIMES_S / 0.3) * 0.3, 4.8)
    points = np.stack([along, np.zeros(8)], axis=1)
    moved = smooth_points(points, ego(speed), 0.5, 0.3)
    still = np.diff(along, prepend=0.0) == 0.0
    assert (np.diff(moved, axis=0, prepend=np.zeros((1, 2)))[still] == 0.0).all()
    if speed == 0.0:
        assert (moved == 0.0).all()


def test_left_and_right_are_symmetric_and_many_are_as_one():
    points, state = next(drives())
    mirrored = ego(state.speed_mps, acceleration_mps2=state.acceleration_mps2, yaw_rate_rps=-state.yaw_rate_rps)
    one = smooth_points(rounded(points), state, 0.5, 0.3)
    np.testing.assert_allclose(smooth_points(rounded(points) * [1, -1], mirrored, 0.5, 0.3), one * [1, -1], atol=1e-12)
    many = smooth_points(np.stack([rounded(points), 2 * rounded(points)]), state, 0.5, 0.3)
    np.testing.assert_allclose(many[0], one, atol=1e-12)
