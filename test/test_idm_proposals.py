"""What the proposals of the Intelligent Driver Model promise, one claim about driving per rule."""

from dataclasses import replace

import numpy as np
import pytest
from rubber_band import strip_grid
from scenes import FRONT_M, NO_LIGHTS, cars, config, observation, straight_route, turning_route, with_light

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import idm_proposals
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState

WIDE_ROAD = strip_grid(6.0)
SHARES, OFFSETS_M = idm_proposals.TARGET_SHARES, idm_proposals.LATERAL_OFFSETS_M
REAR_M = 2.25  # of a standing car of test/scenes.py, from its centre


def proposed(scene):
    """The candidates of a scene whose road is known."""
    return idm_proposals.generate(PlannerState(), scene, PlannerContext(config()))


def chosen(scene):
    return pipeline.plan(idm_proposals.generate, PlannerState(), scene, PlannerContext(config()))[1].trajectory


def speeds(candidates):
    """(M, T) m/s"""
    return np.array([kinematics.speeds(each) for each in candidates.trajectories])


def fronts_m(candidates):
    """(M, T) m ahead of the rear axle now, on a straight road."""
    return np.array([each.poses[:, 0] for each in candidates.trajectories]) + FRONT_M


def test_there_is_a_proposal_for_each_offset_and_target_speed_the_fastest_on_the_route_first():
    candidates = proposed(observation(speed=8.0, drivable=WIDE_ROAD))
    assert candidates.points.shape == (len(OFFSETS_M) * len(SHARES), 8, 2)
    assert len(candidates.trajectories) == len(candidates.points)
    assert candidates.log_probs is None
    ends = candidates.points[:, -1].reshape(len(OFFSETS_M), len(SHARES), 2)
    assert (np.diff(ends[..., 0], axis=1) < -1.0).all()
    assert abs(ends[0, 0, 1]) < 1e-6


def test_each_target_speed_is_a_share_of_the_limit():
    last = speeds(proposed(observation(speed=5.0, speed_limit_mps=10.0)))[:, -1]
    for share, speed in zip(SHARES[1:], last[1:], strict=True):
        assert speed == pytest.approx(10.0 * share, abs=0.8)
    assert 8.5 < last[0] <= 10.0


def test_offsets_are_driven_to_the_left_and_right_of_the_route():
    candidates = proposed(observation(speed=8.0, route=straight_route(left=-0.4), drivable=WIDE_ROAD))
    fastest = candidates.points[:: len(SHARES), -1, 1]
    np.testing.assert_allclose(fastest, np.array(OFFSETS_M) - 0.4, atol=0.05)


def test_offsets_need_a_road_that_is_known():
    """No score tells otherwise whether they leave it."""
    candidates = proposed(observation(speed=8.0))
    assert len(candidates.points) == len(SHARES)
    assert np.abs(candidates.points[..., 1]).max() < 1e-6


@pytest.mark.parametrize("speed_mps", [0.0, 4.0, 10.0])
def test_an_offset_is_reached_without_a_jump_of_the_steering(speed_mps):
    for trajectory in proposed(observation(speed=speed_mps, drivable=WIDE_ROAD)).trajectories:
        lateral_mps2 = kinematics.speeds(trajectory) * kinematics.yaw_rates(trajectory)
        assert np.abs(lateral_mps2).max() < 2.0
        assert np.abs(np.diff(trajectory.poses[:, 2], prepend=0.0)).max() < 0.05


@pytest.mark.parametrize("turn", [np.pi / 2, -np.pi / 2])
def test_all_proposals_are_slow_in_a_bend(turn):
    route = turning_route(radius=12.0, before=20.0)
    if turn < 0.0:
        route = route * [1.0, -1.0, -1.0]
    candidates = proposed(observation(speed=9.0, route=route, drivable=WIDE_ROAD))
    for trajectory in candidates.trajectories:
        lateral = np.abs(kinematics.speeds(trajectory) * kinematics.yaw_rates(trajectory))
        assert np.convolve(lateral, np.ones(5) / 5, mode="valid").max() < 2.6
    assert abs(candidates.trajectories[0].poses[-1, 2]) > 0.5  # it is in the bend


def test_all_proposals_stay_behind_a_standing_car():
    candidates = proposed(observation(speed=8.0, agents=cars((30.0, 0.0, 0.0, 0.0)), drivable=WIDE_ROAD))
    assert (fronts_m(candidates) < 30.0 - REAR_M - 1.0).all()


def test_the_lead_vehicle_is_expected_on_its_predicted_path_where_there_is_one():
    """It drives now, and is predicted to stop after 5 m."""
    lead = cars((22.0, 0.0, 0.0, 6.0))
    path = np.stack([22.0 + np.minimum(3.0 * np.arange(1, 11), 5.0), np.zeros(10), np.zeros(10)], axis=1)
    stopping = replace(lead, predicted_poses=path[None])
    assert (fronts_m(proposed(observation(speed=8.0, agents=stopping))) < 27.0 - REAR_M).all()
    assert fronts_m(proposed(observation(speed=8.0, agents=lead)))[0, -1] > 27.0 - REAR_M


def test_an_agent_that_will_enter_the_path_is_reacted_to_before_it_does():
    """Its box enters after 1.8 s; one that drives away from the path changes nothing."""
    entering, leaving = (
        proposed(observation(speed=8.0, agents=cars((24.0, 9.0, heading, 3.0)), drivable=WIDE_ROAD))
        for heading in (-np.pi / 2, np.pi / 2)
    )
    np.testing.assert_array_equal(leaving.points, proposed(observation(speed=8.0, drivable=WIDE_ROAD)).points)
    before = round(1.5 / entering.trajectories[0].dt_s) - 1
    fastest = slice(None, None, len(SHARES))
    assert (speeds(entering)[fastest, before] < speeds(leaving)[fastest, before] - 1.0).all()
    assert (fronts_m(entering)[:, -1] < 24.0).all()


def test_a_car_at_the_edge_of_the_lane_stops_the_proposals_on_its_side_alone():
    scene = observation(speed=8.0, agents=cars((30.0, -2.3, 0.0, 0.0)), drivable=WIDE_ROAD)
    fastest = proposed(scene).points[:: len(SHARES), -1, 0]
    on_route, left, right = fastest
    assert left > 33.0
    assert on_route < 27.0
    assert right < 27.0


def test_the_plan_passes_a_car_at_the_edge_of_the_lane_where_the_road_is_wide():
    scene = observation(speed=8.0, agents=cars((30.0, -2.3, 0.0, 0.0)), traffic_lights=NO_LIGHTS)
    passing = chosen(replace(scene, drivable=WIDE_ROAD))
    waiting = chosen(replace(scene, drivable=strip_grid(1.7)))
    assert passing.poses[-1, 1] > 0.6
    assert passing.poses[-1, 0] > waiting.poses[-1, 0] + 5.0
    assert abs(waiting.poses[-1, 1]) < 0.3


@pytest.mark.parametrize(("speed_mps", "line_m"), [(3.0, 12.0), (8.0, 25.0), (8.0, 40.0), (12.0, 50.0)])
def test_all_proposals_stop_before_a_red_light_and_pass_a_green_one(speed_mps, line_m):
    scene = observation(speed=speed_mps, drivable=WIDE_ROAD)
    red = proposed(with_light(scene, LightState.RED, line_m))
    assert (fronts_m(red) < line_m - 0.3).all()
    green, free = proposed(with_light(scene, LightState.GREEN, line_m)), proposed(scene)
    np.testing.assert_array_equal(green.points, free.points)
    assert fronts_m(free)[0, -1] > fronts_m(red)[0, -1] + 2.0


@pytest.mark.parametrize("limit_mps", [4.0, 7.0])
def test_a_lower_limit_ahead_on_the_route_is_kept(limit_mps):
    route = straight_route()
    limits_mps = np.where(route[:, 0] < 15.0, 10.0, limit_mps)
    scene = observation(speed=8.0, route=route, speed_limit_mps=10.0, route_limits_mps=limits_mps)
    candidates = proposed(scene)
    beyond = np.array([each.poses[:, 0] for each in candidates.trajectories]) > 16.0
    assert beyond.any()
    assert speeds(candidates)[beyond].max() < limit_mps + 0.5


def test_a_standing_car_moves_off_smoothly():
    candidates = proposed(observation(speed=0.0, drivable=WIDE_ROAD))
    assert (candidates.points[:, -1, 0] > 4.0).all()
    for trajectory in candidates.trajectories:
        assert kinematics.accelerations(trajectory).max() < 1.6
        assert (np.diff(trajectory.poses[:, 0], prepend=0.0) > 0.0).all()


def test_the_same_scene_gives_the_same_bits():
    agents = cars((25.0, 0.5, 0.1, 3.0), (10.0, -14.0, np.pi / 2, 4.0), (40.0, 3.0, np.pi, 6.0))
    scene = observation(speed=8.0, route=turning_route(), agents=agents, drivable=WIDE_ROAD)
    one, other = proposed(scene), proposed(scene)
    np.testing.assert_array_equal(one.points, other.points)
    for first, second in zip(one.trajectories, other.trajectories, strict=True):
        np.testing.assert_array_equal(first.poses, second.poses)
