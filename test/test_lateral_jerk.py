"""A plan brakes before a bend and accelerates after it, so that Autoware's validator accepts it in the bend."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scenes import Clock, cars, config, ego, observation

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import Plan, PlanSource, Trajectory, Verdict
from reflectdrive_ros.planning.postprocess.lateral_jerk import AHEAD_MAX_M, limited_trajectories
from reflectdrive_ros.replay.validator import LIMITS, check_shape
from reflectdrive_ros.runtime.engine import Engine

DT = 0.1
LIMIT_MPS3 = LIMITS["lateral_jerk_mps3"]


def along_a_bend(speeds_mps, bend_per_m=0.08, begins_m=15.0, ends_m=35.0):
    """A trajectory at these speeds on a straight road with one bend, whose curvature grows over 4 m."""
    driven_m = np.cumsum(DT * np.asarray(speeds_mps, float))
    fine_m = np.arange(0.0, driven_m[-1] + 0.02, 0.01)
    curvature = bend_per_m * np.clip(np.minimum(fine_m - begins_m, ends_m - fine_m) / 4.0, 0.0, 1.0)
    heading = np.cumsum(0.01 * curvature)
    line = np.stack([np.cumsum(0.01 * np.cos(heading)), np.cumsum(0.01 * np.sin(heading)), heading])
    return Trajectory(np.stack([np.interp(driven_m, fine_m, values) for values in line], axis=1), DT)


def checks(trajectory):
    plan = SimpleNamespace(
        plan_poses=trajectory.poses,
        plan_speeds=kinematics.speeds(trajectory),
        driven_poses=np.zeros((0, 3)),
        driven_speeds=np.zeros(0),
        dt_s=trajectory.dt_s,
    )
    return check_shape(plan, 3.0)


def jerk_from_now_on(trajectory, now):
    """m/s^3, with the path that the car has driven before, as it is published."""
    behind = kinematics.driven_path(now, trajectory.dt_s, 4)
    return checks(Trajectory(np.concatenate([behind, trajectory.poses]), trajectory.dt_s))["lateral_jerk_mps3"]


def limit_lateral_jerk(trajectory, now):
    return next(iter(limited_trajectories(trajectory, now)), trajectory)


def driven_m(trajectory):
    return geometry.arc_lengths(kinematics.with_origin(trajectory.poses))[1:]


BRAKES_IN_THE_BEND = np.clip(9.0 - 1.8 * (DT * np.arange(60) - 2.0), 5.0, 9.0)
SPEEDS_UP_IN_THE_BEND = np.clip(6.0 + 1.8 * (DT * np.arange(60) - 3.0), 6.0, 10.0)
STOPS_IN_THE_BEND = np.maximum(8.0 - 2.0 * (DT * np.arange(80) - 1.0).clip(0.0), 0.0)


@pytest.mark.parametrize("speeds_mps", [BRAKES_IN_THE_BEND, SPEEDS_UP_IN_THE_BEND, STOPS_IN_THE_BEND])
@pytest.mark.parametrize("bend_per_m", [0.08, -0.06])
def test_the_plan_changes_its_speed_outside_of_the_bend_and_is_nowhere_ahead(speeds_mps, bend_per_m):
    planned = along_a_bend(speeds_mps, bend_per_m)
    limited = limit_lateral_jerk(planned, ego(speeds_mps[0]))
    assert checks(planned)["lateral_jerk_mps3"] > LIMIT_MPS3
    assert checks(limited)["lateral_jerk_mps3"] <= LIMIT_MPS3
    assert checks(limited)["longitudinal_acceleration_mps2"] <= 4.05
    assert (driven_m(limited) <= driven_m(planned) + 0.02).all()
    _, off_m = geometry.project(kinematics.with_origin(planned.poses), limited.poses[:, :2])
    assert np.abs(off_m).max() < 0.03  # on the same path


def test_a_plan_within_the_limits_is_unchanged():
    for speeds_mps in (np.full(40, 6.0), np.zeros(40), BRAKES_IN_THE_BEND):
        straight = along_a_bend(speeds_mps, bend_per_m=0.0)
        assert limit_lateral_jerk(straight, ego(speeds_mps[0])) is straight


def test_a_car_in_the_bend_brakes_less_than_planned_but_not_much():
    """It cannot have braked before, and is ahead of its plan instead; a hard stop stays a hard stop."""
    in_bend = ego(7.0, yaw_rate_rps=7.0 * 0.05)
    gently = np.maximum(7.0 - 1.5 * DT * np.arange(1, 41), 5.9)
    hard = np.maximum(7.0 - 6.0 * DT * np.arange(1, 41), 1.0)
    planned = along_a_bend(gently, bend_per_m=0.05, begins_m=-10.0, ends_m=90.0)
    limited = limit_lateral_jerk(planned, in_bend)
    assert checks(planned)["lateral_jerk_mps3"] > LIMIT_MPS3 >= checks(limited)["lateral_jerk_mps3"]
    assert 0.1 < (driven_m(limited) - driven_m(planned)).max() <= AHEAD_MAX_M
    stop = along_a_bend(hard, bend_per_m=0.05, begins_m=-10.0, ends_m=90.0)
    assert (driven_m(limit_lateral_jerk(stop, in_bend)) <= driven_m(stop) + 0.05).all()


def test_a_car_in_the_bend_does_not_overshoot_its_stop():
    """A few metres before its stop it could only brake less than planned by passing it."""
    speeds_mps = np.maximum(6.0 - 3.0 * DT * np.arange(1, 41), 0.0)
    planned = along_a_bend(speeds_mps, bend_per_m=0.12, begins_m=-10.0, ends_m=90.0)
    limited = limit_lateral_jerk(planned, ego(6.0, yaw_rate_rps=6.0 * 0.12))
    assert checks(planned)["lateral_jerk_mps3"] > LIMIT_MPS3
    assert driven_m(limited)[-1] <= driven_m(planned)[-1] + 0.01


@pytest.mark.parametrize(("speed_mps", "bend_per_m"), [(6.3, 0.03), (5.2, 0.06)])
def test_a_hard_stop_in_a_slight_bend_is_as_hard_on_a_straighter_path(speed_mps, bend_per_m):
    """The car brakes no less and stops at the same point: over a few metres the bend is decimetres."""
    times_s = DT * np.arange(1, 41)
    speeds_mps = np.maximum(speed_mps - 6.0 * times_s, 3.0 * np.exp(-2.5 * times_s))
    planned = along_a_bend(speeds_mps, bend_per_m, begins_m=-4.0, ends_m=40.0)
    limited = limit_lateral_jerk(planned, ego(speed_mps))
    assert jerk_from_now_on(planned, ego(speed_mps)) > LIMIT_MPS3 >= jerk_from_now_on(limited, ego(speed_mps))
    np.testing.assert_allclose(driven_m(limited), driven_m(planned), atol=0.05)
    _, off_m = geometry.project(kinematics.with_origin(planned.poses), limited.poses[:, :2])
    assert 0.02 < np.abs(off_m).max() < 0.3


def test_no_acceleration_of_a_plan_is_beyond_the_validators():
    jump = np.where(np.arange(40) == 20, 11.0, 8.0)  # two points of a plan that is bent to the side are far apart
    planned = along_a_bend(jump, bend_per_m=0.0)
    assert checks(planned)["longitudinal_acceleration_mps2"] > LIMITS["longitudinal_acceleration_mps2"]
    limited = limit_lateral_jerk(planned, ego(8.0))
    assert checks(limited)["longitudinal_acceleration_mps2"] < LIMITS["longitudinal_acceleration_mps2"]


def test_a_plan_that_leaves_the_car_at_an_angle_is_turned_into_its_heading():
    """The kink counts as curvature. The path is the plan's own again after half a second."""
    kinked = along_a_bend(10.0 - 1.2 * DT * np.arange(40), bend_per_m=0.0)
    poses = np.stack([*geometry.rotate(kinked.poses[:, :2], 0.06).T, np.full(40, 0.06)], axis=1)
    limited = limit_lateral_jerk(Trajectory(poses, DT), ego(10.0))
    assert jerk_from_now_on(Trajectory(poses, DT), ego(10.0)) > LIMIT_MPS3 >= jerk_from_now_on(limited, ego(10.0))
    _, off_m = geometry.project(np.concatenate([np.zeros((1, 3)), poses]), limited.poses[:, :2])
    assert 0.01 < np.abs(off_m).max() < 0.07
    assert np.abs(off_m[6:-2]).max() < 0.01


def planner_of(trajectory):
    return lambda state, seen, context: (state, Plan(seen.stamp_ns, seen.ego.map_from_ego, trajectory))


@pytest.mark.parametrize(("agents", "is_limited"), [((), True), (((14.0, -15.0, np.pi / 2, 6.0),), False)])
def test_the_engine_sends_the_limited_plan_unless_it_is_less_safe(agents, is_limited):
    """A car that crosses just after a plan on time has passed would hit a plan that is later."""
    planned = along_a_bend(BRAKES_IN_THE_BEND[:40])
    report = Engine(config(), Clock(), planner_of(planned)).step(observation(9.0, agents=cars(*agents)))
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER)
    assert report.plan.check.unsafe_after_s is None
    assert (checks(report.plan.trajectory)["lateral_jerk_mps3"] <= LIMIT_MPS3) is is_limited
    assert np.array_equal(report.plan.trajectory.poses, planned.poses) is not is_limited


def test_the_corner_of_a_plan_is_rounded_where_it_brakes():
    along_m = np.cumsum(DT * (9.0 - 1.5 * DT * np.arange(40)))
    after_m = np.maximum(along_m - 16.0, 0.0)
    poses = np.stack([along_m - (1.0 - np.cos(0.12)) * after_m, np.sin(0.12) * after_m, 0.12 * (after_m > 0.0)], axis=1)
    cornered = Trajectory(poses, DT)
    limited = limit_lateral_jerk(cornered, ego(9.0))
    assert checks(cornered)["lateral_jerk_mps3"] > LIMIT_MPS3 >= checks(limited)["lateral_jerk_mps3"]
    _, off_m = geometry.project(kinematics.with_origin(poses), limited.poses[:, :2])
    assert 0.01 < np.abs(off_m).max() < 0.1
    np.testing.assert_allclose(driven_m(limited), driven_m(cornered), atol=0.05)


@pytest.mark.parametrize(
    ("along_m", "left_m", "source"),
    [(0.8, 0.0, PlanSource.CARRIED), (0.8, 0.5, PlanSource.STOP), (-0.8, 0.0, PlanSource.STOP)],
)
def test_a_plan_is_carried_forward_only_for_a_car_that_follows_it(along_m, left_m, source):
    """A person who drives beside the plan, or brakes, would get one that begins with a swerve or a leap."""
    planned = along_a_bend(np.full(40, 8.0), bend_per_m=0.0)
    plans = iter([planned])

    def plan_once(state, seen, context):
        return planner_of(next(plans))(state, seen, context)

    engine = Engine(config(), Clock(), plan_once)
    engine.step(observation(8.0))
    later = observation(8.0, stamp_ns=observation(8.0).stamp_ns + 100_000_000)
    here = replace(later.ego, map_from_ego=geometry.compose(later.ego.map_from_ego, np.array([along_m, left_m, 0.0])))
    assert engine.step(replace(later, ego=here)).source is source
