"""Plans are continued to the length that is published: onto the route, no faster, behind others, before red lights."""

import numpy as np
import pytest
from operation_modes import remembering_planner
from scenes import FRONT_M, Clock, cars, config, observation, straight_plan, straight_route, turning_route, with_light

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import LightState, Plan, PlanSource, StepKind, Trajectory
from reflectdrive_ros.planning.continuation import continue_plan, continue_trajectory
from reflectdrive_ros.planning.planner import PlannerState
from reflectdrive_ros.replay.validator import LIMITS, check_shape, three_point_curvature
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.scoring.safety import SafetyContext

EIGHT_S = {"output__horizon_s": 8.0}


def continued(plan, scene, **settings):
    return continue_plan(plan, SafetyContext(scene, config(**EIGHT_S, **settings)))


def four_seconds(speed=8.0, acceleration=0.0):
    return straight_plan(speed, horizon=4.0, acceleration=acceleration)


def test_a_plan_of_4_s_becomes_one_of_8_s_and_begins_with_itself():
    plan = four_seconds()
    result = continued(plan, observation(8.0)).trajectory
    assert len(result.poses) == 80
    np.testing.assert_array_equal(result.poses[:40], plan.trajectory.poses)
    np.testing.assert_allclose(kinematics.speeds(result)[40:], 8.0, atol=0.25)  # the route ends in 170 m


def test_every_candidate_that_is_published_is_continued_and_no_other():
    plan = four_seconds()
    rivals = tuple(four_seconds(speed).trajectory for speed in (6.0, 4.0, 2.0))
    plan = Plan(plan.stamp_ns, plan.map_from_ego, plan.trajectory, candidates=rivals)
    lengths = [len(each.poses) for each in continued(plan, observation(8.0), output__candidates_max=2).candidates]
    assert lengths == [80, 40, 40]


def test_it_never_speeds_up_again():
    result = continued(four_seconds(8.0, -1.0), observation(8.0)).trajectory
    assert kinematics.speeds(result)[39] == pytest.approx(4.05, abs=0.01)
    assert kinematics.speeds(result)[40:].max() < 4.1


def test_it_returns_to_the_route_without_a_kink():
    result = continued(four_seconds(), observation(8.0, straight_route(left=-1.5))).trajectory
    assert result.poses[-1, 1] == pytest.approx(-1.5, abs=0.1)
    turns = np.abs(np.diff(np.unwrap(result.poses[:, 2])))
    assert turns.max() < 0.02  # 0.2 rad/s


def test_where_plan_and_continuation_meet_the_path_has_no_corner():
    """The plan's last heading is wrong by 0.03 rad; the route has corners of 2 degrees every 10 m."""
    bend = kinematics.arc(-0.0035, 0.8 * np.arange(1, 38))
    poses = np.concatenate([bend, geometry.compose(bend[-1], kinematics.arc(0.0, 0.8 * np.arange(1, 4)))])
    poses[-1, 2] += 0.03
    steps = np.radians(-2.0) * np.arange(12)
    corners = np.concatenate([[[0.0, 0.5]], np.cumsum(10.0 * np.stack([np.cos(steps), np.sin(steps)], axis=1), axis=0)])
    route = np.concatenate([corners, geometry.headings_along(corners)[:, None]], axis=1)
    result = continued(Plan(0, np.zeros(3), Trajectory(poses, 0.1)), observation(8.0, route)).trajectory
    line = result.poses[34:60:2, :2]  # 1.6 m apart
    assert np.abs(three_point_curvature(line)).max() < 0.008


def test_it_follows_a_bend_slowly_enough_and_within_the_limits_of_the_validator():
    scene = observation(8.0, turning_route(before=50.0))
    result = continued(four_seconds(), scene).trajectory
    (_,), (away_m,) = geometry.project(scene.route, result.poses[-1:, :2])
    assert abs(away_m) < 0.3
    assert result.poses[-1, 2] > 0.4
    speeds = kinematics.speeds(result)

    class Frame:
        plan_poses, plan_speeds, dt_s = result.poses, speeds, 0.1
        driven_poses, driven_speeds = result.poses[:0], speeds[:0]

    values = check_shape(Frame, config().vehicle.wheel_base_m)
    assert {name: value for name, value in values.items() if value > 0.5 * LIMITS[name]} == {}


def test_it_stays_behind_a_slow_car_that_the_plan_itself_does_not_reach():
    scene = observation(8.0, agents=cars((50.0, 0.0, 0.0, 1.0)))
    result = continued(four_seconds(), scene).trajectory
    assert result.poses[-1, 0] + FRONT_M < 50.0 + 8.0 - 2.25


def test_it_stops_before_a_red_light_beyond_the_plan():
    scene = with_light(observation(8.0), LightState.RED, 62.0)
    result = continue_trajectory(four_seconds().trajectory, SafetyContext(scene, config()), 12.0)
    assert 58.0 < result.poses[-1, 0] + FRONT_M < 62.0
    assert kinematics.speeds(result)[-1] < 0.5


def test_it_stops_at_the_end_of_the_route():
    scene = observation(8.0, straight_route(length=52.0), route_ends=True)
    result = continued(four_seconds(), scene).trajectory
    assert result.poses[-1, 0] < 51.5


def short_plans(state, scene, context):
    plan = Plan(scene.stamp_ns, scene.ego.map_from_ego, four_seconds().trajectory, StepKind.FULL)
    return PlannerState(previous=plan), plan


@pytest.mark.parametrize(("horizon_s", "count"), [(0.0, 40), (8.0, 80)])
def test_the_engine_publishes_the_continued_plan_and_continues_from_its_own(horizon_s, count):
    engine = Engine(config(planner="constant_velocity", output__horizon_s=horizon_s), Clock(), short_plans)
    report = engine.step(observation(8.0, agents=cars((100.0, 0.0, 0.0, 8.0))))
    assert report.source is PlanSource.PLANNER
    assert (len(report.published.trajectory.poses), len(report.plan.trajectory.poses)) == (count, 40)
    assert ("continue" in report.timings_ms) == (count == 80)


def test_a_plan_that_is_long_enough_is_published_as_it_is():
    engine = Engine(config(planner="constant_velocity", **EIGHT_S), Clock(), remembering_planner([]))
    report = engine.step(observation(5.0))
    assert report.published.trajectory is report.plan.trajectory
