"""Others keep to the road that they drive along: an oncoming car follows the bend, and a plan past it is sound."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import SECOND_NS, cars, config, observation, straight_route, turning_route

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import AgentKind, Agents, ForecastSource, Plan, Trajectory, Verdict
from reflectdrive_ros.planning import guard
from reflectdrive_ros.scoring import prediction
from reflectdrive_ros.scoring.frenet import FrenetFrame
from reflectdrive_ros.scoring.safety import SafetyContext

BEND = turning_route(radius=20.0, before=12.0)
STEPS, DT_S = 40, 0.1


def in_bend(lateral_m, along_m, speed_mps, turned=0.0):
    """One car at a lateral offset to the bend's route, so far along it from the ego; turned by pi it comes towards
    us."""
    here, _ = geometry.ego_on_route(BEND)
    x, y, heading = geometry.sample(BEND, np.array([here + along_m]))[0]
    x, y = x - lateral_m * np.sin(heading), y + lateral_m * np.cos(heading)
    return cars((x, y, float(geometry.wrap(heading + turned)), speed_mps))


def foreseen(agents, route=BEND):
    return prediction.forecast(agents, FrenetFrame.of(route), DT_S, STEPS)


def lateral_offset(poses):
    return geometry.project(BEND, poses[:, :2])[1]


@pytest.mark.parametrize(("lane_m", "along_m", "turned"), [(3.5, 45.0, np.pi), (0.0, 15.0, 0.0), (-3.5, 10.0, 0.0)])
def test_an_agent_along_the_road_keeps_its_lane_and_its_speed_through_a_bend(lane_m, along_m, turned):
    agents = in_bend(lane_m, along_m, 7.0, turned)
    forecast = foreseen(agents)
    assert forecast.source is ForecastSource.ALONG_ROAD
    (poses,) = forecast.poses
    np.testing.assert_allclose(poses[0], agents.poses[0], atol=1e-9)
    np.testing.assert_allclose(lateral_offset(poses), lane_m, atol=0.25)
    steps = np.diff(poses[:, :2], axis=0)
    np.testing.assert_allclose(np.hypot(*steps.T) / DT_S, 7.0, rtol=0.05)
    facing = geometry.wrap(np.arctan2(steps[:, 1], steps[:, 0]) - poses[1:, 2])
    np.testing.assert_allclose(facing, 0.0, atol=0.12)
    (straight,) = kinematics.forecast(agents, DT_S, STEPS).poses
    assert np.abs(lateral_offset(straight) - lane_m).max() > 2.0


@pytest.mark.parametrize(("speed_mps", "keeps"), [(0.4, False), (2.0, True)])
def test_a_slow_agent_keeps_its_lane_too_but_not_a_standing_one(speed_mps, keeps):
    source = foreseen(in_bend(0.0, 20.0, speed_mps)).source
    assert source is (ForecastSource.ALONG_ROAD if keeps else ForecastSource.CONSTANT_VELOCITY)


@pytest.mark.parametrize(
    ("agents", "why"),
    [
        (in_bend(3.5, 40.0, 0.0, np.pi), "stands"),
        (in_bend(3.5, 40.0, 6.0, np.pi + 0.35), "turns off, or changes lanes"),
        (in_bend(7.5, 40.0, 6.0, np.pi + 0.1), "is on another road"),
        (in_bend(0.0, -15.0, 6.0), "is behind, where the route is not told"),
        (Agents.none(), "is nobody"),
    ],
)
def test_all_others_and_all_where_the_road_is_unknown_go_straight_on(agents, why):
    plain = kinematics.forecast(agents, DT_S, STEPS)
    for forecast in (foreseen(agents), prediction.forecast(agents, None, DT_S, STEPS)):
        np.testing.assert_array_equal(forecast.poses, plain.poses, err_msg=why)
        assert forecast.source is plain.source, why


def on_route(speed_mps, lateral_m=0.0):
    """A plan along the bend, or, at the start of the bend, at that lateral offset."""
    here, _ = geometry.ego_on_route(BEND)
    metres = speed_mps * DT_S * np.arange(1, STEPS + 1)
    poses = geometry.sample(BEND, here + metres)
    offset_m = lateral_m * np.clip(metres / 12.0, 0.0, 1.0)
    poses[:, 0] -= offset_m * np.sin(poses[:, 2])
    poses[:, 1] += offset_m * np.cos(poses[:, 2])
    return Plan(SECOND_NS, np.zeros(3), Trajectory(poses, DT_S))


def test_the_guard_accepts_a_plan_in_its_lane_and_refuses_one_that_cuts_the_bend():
    """A left bend, a bus's length from an oncoming car in the lane to the left: at constant velocity that car leaves
    its lane to where nobody is, so the plan that cuts the bend would pass, and be hit."""
    scene = observation(speed=6.0, route=BEND, agents=in_bend(3.5, 38.0, 6.0, np.pi))
    assert guard.check(on_route(6.0), SafetyContext(scene, config()), 0.0).verdict is Verdict.OK
    cuts = on_route(6.0, lateral_m=2.5)
    judged = guard.check(cuts, SafetyContext(scene, config()), 0.0)
    assert judged.verdict is Verdict.UNSAFE
    blind = guard.check(cuts, SafetyContext(replace(scene, route=np.zeros((0, 3))), config()), 0.0)
    assert blind.verdict is Verdict.OK


def starting(lateral_m, speed_mps, acceleration_mps2, turned=0.0):
    """A car beside a straight route, 15 m ahead of the ego."""
    agents = cars((15.0, lateral_m, turned, speed_mps))
    return replace(agents, accelerations_mps2=np.array([acceleration_mps2]), yaw_rates_rps=np.zeros(1))


@pytest.mark.parametrize("lateral_m", [-2.5, 2.5])
def test_a_parked_car_that_starts_pulls_out_into_the_egos_lane(lateral_m):
    (poses,) = foreseen(starting(lateral_m, 0.5, 1.5), straight_route()).poses
    offset_m = np.abs(poses[:, 1])
    np.testing.assert_allclose(poses[0], [15.0, lateral_m, 0.0], atol=1e-6)
    assert (np.diff(offset_m) <= 1e-9).all()
    assert offset_m[10] > 2.0, "it leaves the roadside slowly"
    assert offset_m[-1] < 0.1, "it is in the lane after 4 s"
    steps = np.diff(poses[:, :2], axis=0)
    turned = geometry.wrap(np.arctan2(steps[:, 1], steps[:, 0]) - poses[1:, 2])
    np.testing.assert_allclose(turned[1:], 0.0, atol=0.06)
    speeds_mps = np.hypot(*steps.T) / DT_S
    assert (np.diff(speeds_mps) > -0.02).all()
    assert 4.0 < speeds_mps[-1] < 7.0


@pytest.mark.parametrize(
    ("agents", "why"),
    [
        (starting(-2.5, 0.0, 0.0), "it is parked"),
        (starting(-2.5, 0.2, 0.3), "its speed is noise"),
        (starting(-3.5, 0.5, 1.5), "it is in the next lane"),
        (starting(-2.5, 6.0, 1.5), "it drives"),
        (starting(-2.5, 2.0, -1.0), "it stops there"),
        (starting(2.5, 0.5, 1.5, np.pi), "it starts in the other direction"),
        (replace(starting(-2.5, 0.5, 1.5), kinds=np.array([AgentKind.BICYCLE])), "it is a bicycle"),
    ],
)
def test_no_other_agent_beside_the_lane_moves_into_it(agents, why):
    (poses,) = foreseen(agents, straight_route()).poses
    np.testing.assert_allclose(poses[:, 1], agents.poses[0, 1], atol=1e-6, err_msg=why)
