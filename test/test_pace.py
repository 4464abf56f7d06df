"""A plan with too much acceleration is delayed on its own path; others are unchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import config, ego, observation

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.domain import Plan, Trajectory, Verdict
from reflectdrive_ros.core.tokens import poses_from_points
from reflectdrive_ros.planning import guard
from reflectdrive_ros.planning.postprocess import speed_profile
from reflectdrive_ros.planning.postprocess.waypoints import postprocess, trajectories
from reflectdrive_ros.scoring.safety import SafetyContext
from reflectdrive_ros.scoring.simulate import AX, VX, simulate

DT_S = 0.5
TIMES_S = DT_S * np.arange(1, 9)


def accelerations(speeds, speed_mps):
    """(T,) between mean speeds (T,); the first over half an interval, from the present speed on."""
    change = np.diff(speeds, prepend=speed_mps)
    change[0] *= 2.0
    return change / DT_S


def along(points):
    return np.cumsum(np.hypot(*np.diff(points, axis=0, prepend=np.zeros((1, 2))).T))


def required_accelerations(points, speed_mps):
    return accelerations(np.diff(along(points), prepend=0.0) / DT_S, speed_mps)


def verdict_of(trajectory):
    """The guard's verdict for a standing car."""
    scene = observation(speed=0.0)
    plan = Plan(scene.stamp_ns, scene.ego.map_from_ego, trajectory)
    return guard.check(plan, SafetyContext(scene, config()), 0.0).verdict


@given(st.floats(0.0, 20.0), st.floats(-3.0, 2.1), st.floats(-0.05, 0.05))
def test_a_comfortable_drive_is_left_as_it_is(speed, acceleration, curvature):
    until = np.minimum(TIMES_S, np.inf if acceleration >= 0 else -speed / acceleration)
    points = kinematics.arc(curvature, speed * until + 0.5 * acceleration * until**2)[:, :2]
    assert speed_profile.limit_acceleration(points, speed, DT_S) is points


@given(st.floats(0.0, 15.0), st.lists(st.floats(0.0, 10.0), min_size=8, max_size=8))
def test_whatever_is_planned_the_car_can_speed_up_so_and_is_never_ahead(speed, steps):
    points = np.stack([np.cumsum(steps), np.zeros(8)], axis=1)
    limited = speed_profile.limit_acceleration(points, speed, DT_S)
    assert required_accelerations(limited, speed).max() <= speed_profile.SPEEDING_UP_MPS2 + 1e-6
    assert (limited[:, 0] <= points[:, 0] + 1e-6).all()
    assert np.diff(limited[:, 0], prepend=0.0).max() <= max(steps) + 1e-6  # it does not drive faster to catch up


def test_the_path_stays_the_same():
    points = kinematics.arc(0.05, 6.0 * TIMES_S)[:, :2]
    limited = speed_profile.limit_acceleration(points, 0.0, DT_S)
    assert limited[0, 0] < 1.0 < points[0, 0]
    radius = np.hypot(limited[:, 0], limited[:, 1] - 20.0)
    np.testing.assert_allclose(radius, 20.0, atol=0.06)


def test_a_start_that_no_engine_gives_becomes_one_that_the_guard_lets_pass():
    """From a stand 2 m in half a second, 16 m/s^2, as a network may ask that errs by some bins."""
    points = np.stack([2.0 + 4.0 * (TIMES_S - 0.5), np.zeros(8)], axis=1)
    assert verdict_of(Trajectory(poses_from_points(points), DT_S)) is Verdict.INFEASIBLE
    limited = speed_profile.limit_acceleration(points, 0.0, DT_S)
    assert verdict_of(Trajectory(poses_from_points(limited), DT_S)) is Verdict.OK
    assert verdict_of(*trajectories(limited[None], 0.0, 0.1)) is Verdict.OK
    assert 0.0 < points[-1, 0] - limited[-1, 0] < 4.0  # at 4 m/s the plan has a lead of what the start took longer


@pytest.mark.parametrize("stops_after_m", [2.0, 5.0, 9.0])
def test_a_car_that_catches_up_still_stops_where_the_plan_stops(stops_after_m):
    points = np.stack([np.minimum(6.0 * TIMES_S, stops_after_m), np.zeros(8)], axis=1)
    limited = speed_profile.limit_acceleration(points, 0.0, DT_S)
    assert required_accelerations(limited, 0.0).min() >= -speed_profile.BRAKING_MPS2 - 1e-6
    assert limited[-1, 0] == pytest.approx(stops_after_m, abs=0.05)


def test_a_slip_to_the_side_means_to_stand():
    """As a network wavers that wants to stand: a bin to the side, then back; and some millimetres of smoothing."""
    slips = np.array(
        [(0.9, 0.0), (1.6, 0.0), (1.9, 0.0), (1.91, -0.25), (2.2, -0.33), (2.2, -0.33), (2.1, 0.0), (2.5, 0)]
    )
    forward = speed_profile.drop_reversals(slips)
    np.testing.assert_array_equal(forward[3], forward[2])
    np.testing.assert_array_equal(forward[6], forward[5])
    trembling = np.array(
        [(0.68, 0.0), (1.43, 0.0), (1.429, 0.002), (1.43, 0.0), (1.28, 0.0), (1.28, 0.0), (1.28, 0), (1.2, 0)]
    )
    np.testing.assert_array_equal(speed_profile.drop_reversals(trembling)[1:, 0], 1.43)
    for points in (forward, speed_profile.drop_reversals(trembling)):
        (plan,) = trajectories(points[None], 1.3, 0.1)
        assert kinematics.speeds(plan).min() >= -0.05
        assert np.abs(kinematics.curvatures(plan)).max() < 0.35


def test_a_car_in_a_queue_whose_plans_waver_comes_to_a_stand(monkeypatch):
    """The controller brakes slowly from walking pace: three bins in every other plan would keep the car rolling."""
    assert speed_in_queue(speed_mps=0.4, seconds=6.0) < 0.05
    monkeypatch.setattr(speed_profile, "HOLD_MPS", 0.0)
    assert speed_in_queue(speed_mps=0.4, seconds=6.0) > 0.05


def speed_in_queue(speed_mps, seconds):
    """Speed after alternate plans of 0 m and 0.9 m."""
    stop, creep = np.zeros((8, 2)), np.column_stack([np.minimum(0.3 * np.arange(1, 9), 0.9), np.zeros(8)])
    car = ego(speed_mps)
    for step in range(round(seconds / 0.1)):
        points = postprocess(creep if step % 2 else stop, car, 0.3, None)
        (plan,) = trajectories(points[None], car.speed_mps, DT_S)
        state = simulate(plan.poses[None], car.motion, config().vehicle)[0, 1]
        car = ego(float(state[VX]), acceleration_mps2=float(state[AX]))
    return car.speed_mps


@pytest.mark.parametrize(("end_m", "speed_mps", "stands"), [(0.9, 0.4, True), (1.2, 0.4, False), (0.9, 0.6, False)])
def test_only_a_slow_car_with_a_short_plan_stands(end_m, speed_mps, stands):
    points = np.column_stack([np.linspace(0.1, end_m, 8), np.zeros(8)])
    np.testing.assert_array_equal(speed_profile.hold_standstill(points, speed_mps), 0.0 * points if stands else points)


@given(st.lists(st.tuples(st.floats(-3.0, 9.0), st.floats(-2.0, 2.0)), min_size=8, max_size=8))
def test_no_plan_shifts_into_reverse(steps):
    points = np.cumsum(steps, axis=0)
    forward = speed_profile.drop_reversals(points)
    moves = np.diff(forward, axis=0, prepend=np.zeros((1, 2)))
    moving = moves[np.hypot(*moves.T) > 0.0]
    headings = np.concatenate([[[1.0, 0.0]], moving])
    assert (np.einsum("ij,ij->i", headings[:-1], headings[1:]) > 0.0).all()
    is_plan_point = np.isin(forward, points).all(axis=1) | (forward == 0.0).all(axis=1)
    assert is_plan_point.all()  # each is a point of the plan, or the start


@given(st.floats(0.0, 20.0), st.floats(-1.0, 1.0))
def test_a_path_ahead_is_unchanged(speed, share):
    """Bends as tight as a car can steer and as fast as its tyres hold."""
    points = kinematics.arc(share * min(0.35, 9.0 / max(speed, 0.1) ** 2), speed * TIMES_S)[:, :2]
    np.testing.assert_array_equal(speed_profile.drop_reversals(points), points)


# --- bends -----------------------------------------------------------------------------------------------------------


def around(radius_m, faster_mps2=speed_profile.SPEEDING_UP_MPS2):
    """Points of a car that speeds up from a standstill, straight on first and then around a corner."""
    distance, straight_m = 0.5 * faster_mps2 * TIMES_S**2, 3.0
    angle = np.clip((distance - straight_m) / radius_m, 0.0, np.pi / 2)
    beyond = np.maximum(distance - straight_m - radius_m * np.pi / 2, 0.0)
    x = np.minimum(distance, straight_m) + radius_m * np.sin(angle)
    return np.stack([x, radius_m * (1 - np.cos(angle)) + beyond], axis=1)


@pytest.mark.parametrize("radius_m", [4.0, 5.0, 6.0, 8.0])
def test_a_car_that_stands_before_a_corner_gets_round_it_however_hasty_the_plan(radius_m):
    hasty = around(radius_m)
    assert speed_profile.max_lateral_accelerations(hasty[None], DT_S)[0] > speed_profile.LATERAL_ACCELERATION_MAX_MPS2
    slower = speed_profile.limit_curve_speed(hasty, 0.0, DT_S)
    assert (
        speed_profile.max_lateral_accelerations(slower[None], DT_S)[0]
        <= 1.1 * speed_profile.LATERAL_ACCELERATION_MAX_MPS2
    )
    assert (along(slower) <= along(hasty) + 1e-9).all()
    assert along(slower)[-1] > 0.4 * along(hasty)[-1]  # it does drive
    assert verdict_of(*trajectories(slower[None], 0.0, 0.1)) is Verdict.OK


def test_a_corner_without_haste_and_a_car_in_motion_are_left_alone():
    calm, hasty = around(8.0, 1.0), around(4.0)
    np.testing.assert_array_equal(speed_profile.limit_curve_speed(calm, 0.0, DT_S), calm)
    assert speed_profile.limit_curve_speed(hasty, speed_profile.CREEPING_MPS + 0.1, DT_S) is hasty
    both = speed_profile.limit_curve_speed(np.stack([calm, hasty]), 0.0, DT_S)
    np.testing.assert_allclose(both[0], calm, atol=1e-9)
    np.testing.assert_allclose(both[1], speed_profile.limit_curve_speed(hasty, 0.0, DT_S), atol=1e-9)
