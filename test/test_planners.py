"""What the baselines promise: one goes straight on, the other follows the route as a calm driver would."""

import numpy as np
import pytest
from scenes import FRONT_M, cars, config, observation, straight_route, turning_route

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.planning.generators import constant_velocity, idm_proposals, route_follower
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError


def planned(generator, scene):
    (trajectory,) = generator.generate(PlannerState(), scene, PlannerContext(config())).trajectories
    return trajectory


def test_constant_velocity_goes_straight_on():
    plan = planned(constant_velocity, observation(speed=7.0))
    np.testing.assert_allclose(kinematics.speeds(plan), 7.0)
    np.testing.assert_array_equal(plan.poses[:, 1:], 0.0)


def test_the_follower_reaches_the_limit_on_a_free_road_and_stays_below_it():
    plan = planned(route_follower, observation(speed=2.0, speed_limit_mps=8.0))
    speeds = kinematics.speeds(plan)
    assert 6.0 < speeds[-1] <= 8.0
    assert (np.diff(speeds) > 0.0).all()
    assert kinematics.accelerations(plan).max() <= 1.5 + 1e-6


def test_the_follower_stops_behind_a_standing_car():
    plan = planned(route_follower, observation(speed=8.0, agents=cars((40.0, 0.0, 0.0, 0.0))))
    assert 40.0 - 2.25 - 6.0 < plan.poses[-1, 0] + FRONT_M < 40.0 - 2.25 - 1.0
    assert kinematics.speeds(plan)[-1] < 0.3


@pytest.mark.parametrize("row", [(40.0, 4.0, 0.0, 0.0), (-12.0, 0.0, 0.0, 9.0), (40.0, -12.0, 0.0, 0.0)])
def test_the_follower_ignores_cars_alongside_and_behind(row):
    free = planned(route_follower, observation(speed=8.0))
    with_agent = planned(route_follower, observation(speed=8.0, agents=cars(row)))
    np.testing.assert_allclose(with_agent.poses, free.poses, atol=1e-9)


def test_the_follower_waits_for_a_crossing_agent():
    crossing = cars((30.0, -14.0, np.pi / 2, 4.0))
    plan = planned(route_follower, observation(speed=8.0, agents=crossing))
    free = planned(route_follower, observation(speed=8.0))
    at_crossing = round(3.5 / plan.dt_s)
    assert plan.poses[at_crossing, 0] < free.poses[at_crossing, 0] - 2.0


def test_the_follower_slows_down_before_a_curve():
    plan = planned(route_follower, observation(speed=10.0, route=turning_route(radius=12.0)))
    lateral = np.abs(kinematics.speeds(plan) * kinematics.yaw_rates(plan))
    smooth = np.convolve(lateral, np.ones(5) / 5, mode="valid")
    assert smooth.max() < 2.4
    assert plan.poses[-1, 2] == pytest.approx(np.pi / 2, abs=0.1)


@pytest.mark.parametrize("left", [-2.0, 1.5])
def test_the_follower_merges_onto_a_parallel_route_without_a_jump_of_the_steering(left):
    plan = planned(route_follower, observation(speed=8.0, route=straight_route(left=left)))
    assert plan.poses[-1, 1] == pytest.approx(left, abs=0.05)
    assert abs(plan.poses[0, 1]) < 0.1
    assert np.abs(kinematics.speeds(plan) * kinematics.yaw_rates(plan)).max() < 2.0


def test_the_follower_stops_where_the_route_ends():
    plan = planned(route_follower, observation(speed=5.0, route=straight_route(length=25.0)))
    assert plan.poses[-1, 0] < 24.0
    assert kinematics.speeds(plan)[-1] < 0.5


def test_the_follower_keeps_its_branch_where_the_route_crosses_itself():
    """Straight on over a crossing that the route comes back to from the side, a loop later."""
    angles = np.linspace(np.pi / 2 - np.pi, np.pi, 100)
    loop = np.stack([30.0 + 40.0 * np.cos(angles), 40.0 + 40.0 * np.sin(angles)], axis=1)
    points = np.concatenate([straight_route(length=30.0)[:, :2], loop, [[-10.0, 0.2], [-10.0, -60.0]]])
    route = np.concatenate([points, geometry.headings_along(points)[:, None]], axis=1)
    scene = observation(speed=6.0, route=route - np.array([-9.9, 0.0, 0.0]))  # right at the crossing
    plan = planned(route_follower, scene)
    assert plan.poses[20, 0] > 5.0
    assert abs(plan.poses[20, 1]) < 0.5


@pytest.mark.parametrize("generator", [route_follower, idm_proposals])
def test_no_route_is_a_sentence(generator):
    with pytest.raises(PlanningError, match="the route is empty"):
        planned(generator, observation(route=np.zeros((0, 3))))
    with pytest.raises(PlanningError, match="80 m away"):
        planned(generator, observation(route=straight_route(left=80.0)))
