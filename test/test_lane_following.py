"""Vehicles off the ego's road follow the lanes of the map, along the connector that they have begun to turn into."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import cars, straight_route

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import AgentKind, Agents, LanePolylines
from reflectdrive_ros.scoring import prediction
from reflectdrive_ros.scoring.frenet import FrenetFrame
from reflectdrive_ros.scoring.lane_following import LaneNetwork

ROAD = FrenetFrame.of(straight_route())  # the ego's, along x
DT_S, STEPS, SPEED_MPS, RADIUS_M = 0.1, 40, 5.0, 10.0
JUNCTION = np.array([30.0, -20.0, np.pi / 2])  # the lane of another road ends here, in its direction


def lane(begin, length_m, curvature=0.0):
    """(20, 2) points of a lane that begins at a pose."""
    at_m = np.linspace(0.0, length_m, 20)
    turned = curvature * at_m
    chord = at_m * np.sinc(turned / (2.0 * np.pi))
    return geometry.transform_points(
        begin, np.column_stack([chord * np.cos(turned / 2.0), chord * np.sin(turned / 2.0)])
    )


def lanes_of(*points):
    """As an observation has them: with one row of padding."""
    count = len(points) + 1
    return LanePolylines(
        np.stack([*points, np.zeros((20, 2))]),
        np.full(count, 3.5),
        np.zeros(count),
        np.zeros(count, np.int64),
        np.arange(count) < len(points),
    )


QUARTER_M = RADIUS_M * np.pi / 2
APPROACH = lane(geometry.compose(JUNCTION, np.array([-30.0, 0.0, 0.0])), 30.0)
STRAIGHT, LEFT, RIGHT = (
    lane(JUNCTION, length_m, curvature)
    for length_m, curvature in ((20.0, 0.0), (QUARTER_M, 1.0 / RADIUS_M), (QUARTER_M, -1.0 / RADIUS_M))
)
LEFT_EXIT = geometry.compose(JUNCTION, np.array([RADIUS_M, RADIUS_M, np.pi / 2]))
LANES = lanes_of(APPROACH, STRAIGHT, LEFT, RIGHT, lane(LEFT_EXIT, 30.0))


def car_at(pose, yaw_rate_rps=0.0, speed_mps=SPEED_MPS):
    return replace(cars((*pose, speed_mps)), yaw_rates_rps=np.array([yaw_rate_rps]))


def forecast_poses(agents, lanes=LANES):
    (poses,) = prediction.forecast(agents, ROAD, DT_S, STEPS, lanes).poses
    return poses


def followed(network, pose, yaw_rate_rps=0.0, reach_m=20.0):
    """The path that one vehicle follows."""
    motion = np.array([SPEED_MPS]), np.array([yaw_rate_rps]), np.array([reach_m])
    (path,) = network.paths(np.array([pose]), *motion)
    return path


def distances_m(line, poses):
    at_m, offsets_m = geometry.project(line, poses[:, :2])
    inside = (at_m > 0.0) & (at_m < geometry.arc_lengths(line)[-1])
    return np.abs(offsets_m[inside])


@pytest.mark.parametrize(("connector", "curvature"), [(LEFT, 0.1), (RIGHT, -0.1), (STRAIGHT, 0.0)])
def test_a_vehicle_in_a_junction_follows_the_connector_that_it_has_begun_to_turn_into(connector, curvature):
    turning_pose = geometry.compose(JUNCTION, np.array([3.0, 0.5 * curvature * 9.0, 3.0 * curvature]))
    poses = forecast_poses(car_at(turning_pose, SPEED_MPS * curvature))
    assert len(distances_m(connector, poses)) > 10
    assert distances_m(connector, poses).max() < 0.3


def test_the_turn_goes_on_into_the_lane_behind_the_junction():
    turning_pose = geometry.compose(JUNCTION, np.array([3.0, 0.45, 0.3]))
    poses = forecast_poses(car_at(turning_pose, 0.5))
    np.testing.assert_allclose(geometry.wrap(poses[-1, 2] - LEFT_EXIT[2]), 0.0, atol=0.1)
    assert distances_m(LANES.points[4], poses[-5:]).max() < 0.3
    on_arc = forecast_poses(car_at(turning_pose, 0.5), lanes=None)
    assert np.hypot(*(on_arc[-1] - poses[-1])[:2]) > 4.0  # an arc that decays ends elsewhere


def test_who_does_not_turn_yet_goes_straight_on():
    poses = forecast_poses(car_at(geometry.compose(JUNCTION, np.array([-8.0, 0.0, 0.0]))))
    np.testing.assert_allclose(poses[:, 0], JUNCTION[0], atol=0.05)


def test_an_offset_to_the_middle_of_the_lane_is_kept():
    poses = forecast_poses(car_at(geometry.compose(JUNCTION, np.array([3.0, 0.45 + 0.8, 0.3])), 0.5))
    np.testing.assert_allclose(distances_m(LEFT, poses), 0.8, atol=0.25)


@pytest.mark.parametrize(
    ("agents", "why"),
    [
        (car_at((30.0, -30.0, 0.0), 0.2), "across the lane"),
        (car_at((33.0, -30.0, np.pi / 2), 0.2), "beside all lanes"),
        (replace(car_at((30.0, -30.0, np.pi / 2), 0.2), kinds=np.array([AgentKind.PEDESTRIAN])), "on foot"),
        (car_at((30.0, -30.0, np.pi / 2), 0.2, speed_mps=0.3), "standing"),
    ],
)
def test_others_continue_on_their_arc(agents, why):
    np.testing.assert_array_equal(forecast_poses(agents), forecast_poses(agents, lanes=None), err_msg=why)


def test_distant_vehicles_and_those_with_predicted_paths_follow_no_lane():
    far = lane(np.array([30.0, -120.0, np.pi / 2]), 30.0, 0.05)
    agents = car_at((30.0, -118.0, np.pi / 2))
    np.testing.assert_array_equal(forecast_poses(agents, lanes_of(far)), forecast_poses(agents, lanes=None))
    own = Agents(
        agents.poses, agents.velocities_mps, agents.sizes, agents.kinds, np.tile(agents.poses[:, None], (1, 8, 1)), 0.5
    )
    np.testing.assert_array_equal(forecast_poses(own), forecast_poses(own, lanes=None))


def test_a_vehicle_on_the_ego_road_follows_that_road():
    agents = car_at((20.0, 0.0, 0.0))
    crossing = lanes_of(lane(np.array([18.0, 0.0, 0.0]), 20.0, 0.1))
    np.testing.assert_array_equal(forecast_poses(agents, crossing), forecast_poses(agents, lanes=None))


def test_where_the_lanes_end_or_form_a_circle_the_path_ends():
    path = followed(LaneNetwork.of(lanes_of(APPROACH)), (30.0, -25.0, np.pi / 2), reach_m=40.0)
    np.testing.assert_allclose(path.at[-1], 30.0, atol=0.1)
    half = np.pi * RADIUS_M
    halves = [
        lane(np.array([0.0, 0.0, 0.0]), half, 1.0 / RADIUS_M),
        lane(np.array([0.0, 20.0, np.pi]), half, 1.0 / RADIUS_M),
    ]
    path = followed(LaneNetwork.of(lanes_of(*halves)), (0.1, 0.0, 0.0), 0.5, reach_m=500.0)
    np.testing.assert_allclose(path.at[-1], 2.0 * half, rtol=0.01)


def test_a_map_without_a_lane_here_changes_nothing():
    agents = car_at((30.0, -30.0, np.pi / 2), 0.2)
    empty = replace(LANES, valid=np.zeros(len(LANES.valid), bool))
    np.testing.assert_array_equal(forecast_poses(agents, empty), forecast_poses(agents, lanes=None))
