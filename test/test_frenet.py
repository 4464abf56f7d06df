"""Plans are read against the road they follow, and the jolts of rounding go, but no point leaves its bin."""

import numpy as np
import pytest
from scenes import ego

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.tokens import DRIVEFINE, Codebook, TokenLayout
from reflectdrive_ros.planning.postprocess.waypoints import smooth_points
from reflectdrive_ros.scoring.frenet import FrenetFrame, poses_on_road

BOOK = Codebook()
TIMES_S = 0.5 * np.arange(1, 9)
NOWHERE = np.zeros((0, 3))


def roundabout():
    """A route that comes straight and then circles to the left, nearly once around."""
    round_it = kinematics.arc(1.0 / 12.0, np.arange(0.0, 1.9 * np.pi * 12.0, 1.0))
    straight = kinematics.arc(0.0, np.arange(-10.0, 8.0))
    return np.concatenate([straight, geometry.compose(np.array([8.0, 0.0, 0.0]), round_it)])


def along(route, metres, lateral_m=0.0):
    """Poses on a route, so many metres along and lateral to it."""
    here, _ = geometry.ego_on_route(route)
    poses = geometry.sample(route, here + np.asarray(metres, float))
    left = np.stack([-np.sin(poses[:, 2]), np.cos(poses[:, 2])], 1)
    return np.concatenate([poses[:, :2] + lateral_m * left, poses[:, 2:]], 1)


def rounded(points):
    return BOOK.decode(BOOK.encode(points[:, :2]))


@pytest.mark.parametrize("lateral_m", [-2.0, 0.0, 2.0])
def test_points_come_back_from_the_straight_road(lateral_m):
    route = roundabout()
    road = FrenetFrame.of(route)
    metres = 5.0 * np.arange(1, 9)
    points = along(route, metres, lateral_m)[:, :2]
    straight, heading = road.to_frenet(points)
    np.testing.assert_allclose(straight, np.stack([metres, np.full(8, lateral_m)], 1), atol=0.15)
    np.testing.assert_allclose(geometry.wrap(heading - along(route, metres)[:, 2]), 0.0, atol=0.05)
    np.testing.assert_allclose(road.to_cartesian(straight), points, atol=0.1)


def test_rounding_is_removed_better_along_the_road_and_no_point_leaves_its_bin():
    route = roundabout()
    road, rng = FrenetFrame.of(route), np.random.default_rng(1)
    plain, against = [], []
    for _ in range(40):
        speed = rng.uniform(4.0, 8.0)
        truth = along(route, 0.5 * speed * np.arange(1, 9))
        points = rounded(truth)
        for frame, errors in ((None, plain), (road, against)):
            moved = smooth_points(points, ego(speed), 0.5, 0.3, frame)
            assert np.abs(moved - points).max() <= 0.15 + 1e-12
            errors.append(np.hypot(*(moved - truth[:, :2]).T).mean())
    assert np.mean(against) < 0.9 * np.mean(plain)


def test_a_plan_that_leaves_the_road_is_read_without_it():
    road = FrenetFrame.of(np.array([[-10.0, 0.0], [200.0, 0.0]]))
    turn_off = kinematics.arc(1.0 / 15.0, 3.0 * np.arange(1, 9))  # a turn off a road that goes straight on
    back = np.stack([-1.6 * np.arange(1, 9), np.zeros(8)], 1)  # reversing
    for points in (turn_off[:, :2], back):
        np.testing.assert_array_equal(poses_on_road(points, road), poses_on_road(points, None))
        still = smooth_points(points, ego(6.0), 0.5, 0.3)
        np.testing.assert_array_equal(smooth_points(points, ego(6.0), 0.5, 0.3, road), still)
    both = np.stack([turn_off[:, :2], np.stack([3.0 * np.arange(1, 9), np.zeros(8)], 1)])
    np.testing.assert_array_equal(poses_on_road(both, road)[0], poses_on_road(both, None)[0])


def test_a_change_of_lane_stays_one():
    """The road says where it leads, not that the car keeps to its middle."""
    road = FrenetFrame.of(np.array([[-10.0, 0.0], [200.0, 0.0]]))
    x = 5.0 * np.arange(1, 9)
    y = 3.5 / (1.0 + np.exp(-(x - 20.0) / 5.0)) - 3.5 / (1.0 + np.exp(4.0))
    truth = np.stack([x, y, np.arctan(np.gradient(y, x))], 1)
    poses = poses_on_road(smooth_points(rounded(truth), ego(10.0), 0.5, 0.3, road), road)
    np.testing.assert_allclose(poses[:, 1], y, atol=0.2)
    assert poses[3, 2] > 0.1
    assert np.abs(geometry.wrap(poses[:, 2] - truth[:, 2])).mean() < 0.04


def test_a_route_that_meets_itself_again_does_not_catch_a_plan_that_is_not_there_yet():
    route = roundabout()  # nearly closed: its end lies next to the start of the circle
    road = FrenetFrame.of(route)
    points = along(route, np.linspace(2.0, 16.0, 8), lateral_m=-1.5)[:, :2]
    straight, _ = road.to_frenet(points)
    np.testing.assert_allclose(straight[:, 0], np.linspace(2.0, 16.0, 8), atol=0.4)
    behind_the_end = np.array([[300.0, 0.0], [330.0, 0.0]])
    short = FrenetFrame.of(np.array([[-5.0, 0.0], [10.0, 0.0]]))
    np.testing.assert_allclose(short.to_frenet(behind_the_end).points, behind_the_end, atol=1e-9)


def test_left_is_as_right_and_a_standing_car_keeps_its_heading():
    route = roundabout()
    points = rounded(along(route, 3.0 * np.arange(1, 9)))
    one = poses_on_road(points, FrenetFrame.of(route))
    other = poses_on_road(points * [1, -1], FrenetFrame.of(route * [1, -1, -1]))
    np.testing.assert_allclose(other, one * [1, -1, -1], atol=1e-9)
    np.testing.assert_allclose(poses_on_road(np.zeros((8, 2)), FrenetFrame.of(route)), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    "route", [NOWHERE, np.zeros((3, 3)), np.array([[-10.0, 8.0], [200.0, 8.0]])], ids=["none", "a place", "elsewhere"]
)
def test_without_a_road_points_are_read_as_they_are(route):
    assert FrenetFrame.of(route) is None
    points = rounded(kinematics.arc(0.05, 4.0 * np.arange(1, 9)))
    np.testing.assert_array_equal(poses_on_road(points, None)[:, :2], points)


# --- without a road ---------------------------------------------------------------------------------------------------


def drives():
    """Exact points (8, 2) of drives on arcs at steady acceleration, and the ego states they begin with."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        speed, acceleration, curvature = rng.uniform(4.0, 14.0), rng.uniform(-0.9, 1.0), rng.uniform(-0.02, 0.02)
        along = speed * TIMES_S + 0.5 * acceleration * TIMES_S**2
        points = kinematics.arc(curvature, along)[:, :2]
        yield points, ego(speed, acceleration_mps2=acceleration, yaw_rate_rps=speed * curvature)


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


def test_without_a_road_left_and_right_are_symmetric_and_many_are_as_one():
    points, state = next(drives())
    mirrored = ego(state.speed_mps, acceleration_mps2=state.acceleration_mps2, yaw_rate_rps=-state.yaw_rate_rps)
    one = smooth_points(rounded(points), state, 0.5, 0.3)
    np.testing.assert_allclose(smooth_points(rounded(points) * [1, -1], mirrored, 0.5, 0.3), one * [1, -1], atol=1e-12)
    many = smooth_points(np.stack([rounded(points), 2 * rounded(points)]), state, 0.5, 0.3)
    np.testing.assert_allclose(many[0], one, atol=1e-12)
