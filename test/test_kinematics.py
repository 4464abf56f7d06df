"""Motion along paths, against closed forms."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import solve_ivp

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import Plan, Trajectory

SECOND_NS = 1_000_000_000
curvatures = st.floats(-0.1, 0.1)
speeds = st.floats(1.0, 20.0)
frames = st.tuples(st.floats(-500.0, 500.0), st.floats(-500.0, 500.0), st.floats(-4.0, 4.0)).map(np.array)
counts = st.integers(2, 40)
intervals = st.sampled_from([0.1, 0.25, 0.5])


def along_arc(curvature, distances, dt_s):
    return Trajectory(kinematics.arc(curvature, distances), dt_s)


def steady(curvature, speed, count, dt_s):
    """A trajectory that drives a circle at constant speed."""
    return along_arc(curvature, speed * dt_s * np.arange(1, count + 1), dt_s)


@st.composite
def smooth_drives(draw):
    """A trajectory along a gentle circle whose speed changes, and may reach zero."""
    dt_s = draw(intervals)
    steps = draw(arrays(float, draw(counts), elements=st.floats(0.0, 5.0)))
    steps = np.where(steps < 0.05, 0.0, steps)  # it moves, or it stands
    return along_arc(draw(st.floats(-0.02, 0.02)), np.cumsum(steps), dt_s)


# --- arcs ------------------------------------------------------------------------------------------------------------


@given(curvatures, st.floats(0.1, 60.0))
def test_an_arc_is_the_integral_of_its_heading(curvature, distance):
    def along(s, pose):
        return [np.cos(pose[2]), np.sin(pose[2]), curvature]

    driven = solve_ivp(along, (0.0, distance), np.zeros(3), rtol=1e-9, atol=1e-9).y[:, -1]
    end = kinematics.arc(curvature, np.array([distance]))[0]
    np.testing.assert_allclose(end[:2], driven[:2], atol=1e-5)
    np.testing.assert_allclose(geometry.wrap(end[2] - driven[2]), 0.0, atol=1e-6)


# --- speeds and their changes ----------------------------------------------------------------------------------------


@given(curvatures, speeds, counts, intervals)
def test_a_steady_circle_has_steady_rates(curvature, speed, count, dt_s):
    assume(abs(curvature) * speed * dt_s < 0.5)
    drive = steady(curvature, speed, count, dt_s)
    half = 0.5 * curvature * speed * dt_s
    chord = np.sinc(half / np.pi)  # a chord is shorter than its arc
    np.testing.assert_allclose(kinematics.speeds(drive), speed * chord, rtol=1e-9)
    np.testing.assert_allclose(kinematics.accelerations(drive), 0.0, atol=1e-9)
    np.testing.assert_allclose(kinematics.yaw_rates(drive), curvature * speed, atol=1e-9)
    np.testing.assert_allclose(kinematics.curvatures(drive, slowest_mps=0.5), curvature / chord, atol=1e-9)


@given(st.floats(0.5, 5.0), counts)
def test_reversing_has_a_negative_speed(speed, count):
    drive = along_arc(0.05, -speed * 0.5 * np.arange(1, count + 1), 0.5)
    assert (kinematics.speeds(drive) < 0).all()
    np.testing.assert_allclose(kinematics.speeds(drive), -speed, rtol=0.01)


@given(smooth_drives())
def test_accelerations_add_up_to_the_last_speed(drive):
    speed, gained = kinematics.speeds(drive), kinematics.accelerations(drive)
    assert speed.shape == gained.shape == (len(drive.poses),)
    assert gained[-1] == 0.0
    np.testing.assert_allclose(speed[0] + drive.dt_s * np.cumsum(gained)[:-1], speed[1:], atol=1e-9)


def test_a_car_that_stands_has_no_curvature_to_speak_of():
    parked = Trajectory(np.zeros((8, 3)), 0.5)
    for rates in (kinematics.speeds, kinematics.accelerations, kinematics.yaw_rates, kinematics.curvatures):
        assert (rates(parked) == 0.0).all()


# --- resampling ------------------------------------------------------------------------------------------------------


@given(smooth_drives())
def test_resampling_at_the_knots_gives_the_knots(drive):
    again = kinematics.resample(drive, drive.times_s)
    np.testing.assert_allclose(again[:, :2], drive.poses[:, :2], atol=1e-6)
    np.testing.assert_allclose(geometry.wrap(again[:, 2] - drive.poses[:, 2]), 0.0, atol=1e-6)
    np.testing.assert_allclose(kinematics.resample(drive, np.array([0.0])), np.zeros((1, 3)), atol=1e-9)


@given(st.floats(-0.02, 0.02), speeds, counts)
def test_resampling_a_circle_stays_on_the_circle(curvature, speed, count):
    drive = steady(curvature, speed, count, 0.5)
    times = np.linspace(0.0, drive.horizon_s, 57)
    truth = kinematics.arc(curvature, speed * times)
    have = kinematics.resample(drive, times)
    bow = abs(curvature) * (0.5 * speed) ** 2 / 8  # m between chord and arc: what straight segments would be off
    np.testing.assert_allclose(have[:, :2], truth[:, :2], atol=0.02 * speed * bow + bow + 1e-6)
    np.testing.assert_allclose(geometry.wrap(have[:, 2] - truth[:, 2]), 0.0, atol=1e-3)


@given(smooth_drives())
def test_resampling_never_drives_back(drive):
    times = np.linspace(0.0, drive.horizon_s, 200)
    fine = kinematics.resample(drive, times)
    step = np.diff(fine[:, :2], axis=0)
    forward = step[:, 0] * np.cos(fine[:-1, 2]) + step[:, 1] * np.sin(fine[:-1, 2])
    assert forward.min() > -1e-6


@given(st.floats(-0.02, 0.02), speeds, st.integers(1, 5), st.integers(2, 8))
def test_a_stop_stays_a_stop(curvature, speed, moving, standing):
    distances = speed * 0.5 * np.concatenate([np.arange(1, moving + 1), np.full(standing, moving)])
    drive = along_arc(curvature, distances, 0.5)
    stop = kinematics.resample(drive, np.linspace(moving * 0.5, drive.horizon_s, 40))
    np.testing.assert_allclose(stop, np.repeat(drive.poses[-1:], 40, axis=0), atol=1e-9)


def test_creeping_is_moving():
    creep = Trajectory(np.stack([0.0008 * np.arange(1, 81), np.zeros(80), np.zeros(80)], axis=1), 0.1)
    end = kinematics.resample(creep, np.array([8.0]))[0]
    assert end[0] == pytest.approx(0.064, abs=kinematics.SAME_PLACE_M)


@pytest.mark.parametrize("time", [-0.1, 4.1])
def test_nothing_is_known_beyond_the_horizon(time):
    with pytest.raises(ValueError, match=r"times_s spans .*, the plan 0..4.00 s"):
        kinematics.resample(Trajectory(np.zeros((8, 3)), 0.5), np.array([1.0, time]))


# --- carrying a plan forward -----------------------------------------------------------------------------------------


@given(smooth_drives(), frames, frames, st.floats(0.0, 1.0))
def test_a_carried_plan_is_the_same_places_in_the_map_at_the_same_times(drive, then, now, share):
    plan = Plan(5 * SECOND_NS, then, drive)
    elapsed_s = round(share * drive.horizon_s * SECOND_NS) / SECOND_NS
    carried = kinematics.carry_forward(plan, 5 * SECOND_NS + round(elapsed_s * SECOND_NS), now)
    if carried is None:
        assert drive.horizon_s - elapsed_s < drive.dt_s
        return
    assert carried.dt_s == drive.dt_s
    assert elapsed_s + carried.horizon_s <= drive.horizon_s + 1e-5 * drive.dt_s
    assert elapsed_s + carried.horizon_s > drive.horizon_s - drive.dt_s - 1e-9
    at_these_times = np.minimum(elapsed_s + carried.times_s, drive.horizon_s)
    in_map = geometry.compose(then, kinematics.resample(drive, at_these_times))
    carried_in_map = geometry.compose(now, carried.poses)
    np.testing.assert_allclose(carried_in_map[:, :2], in_map[:, :2], atol=1e-6)
    np.testing.assert_allclose(geometry.wrap(carried_in_map[:, 2] - in_map[:, 2]), 0.0, atol=1e-6)


@given(smooth_drives(), st.integers(1, 10**10))
def test_a_plan_from_the_future_is_not_carried(drive, early_ns):
    assert kinematics.carry_forward(Plan(early_ns, np.zeros(3), drive), 0, np.zeros(3)) is None


# --- braking, following, steering ------------------------------------------------------------------------------------


@given(st.floats(0.0, 40.0), st.floats(0.5, 10.0), st.floats(0.0, 100.0))
def test_braking_is_the_closed_form(speed, rate, time):
    until = min(time, speed / rate)
    have = kinematics.braking_distances(speed, rate, np.array([time]))[0]
    assert have == pytest.approx(speed * until - 0.5 * rate * until**2, abs=1e-9)
    assert have <= speed**2 / (2 * rate) + 1e-9


def test_a_car_that_rolls_back_is_not_planned_further_back():
    assert (kinematics.braking_distances(-1.0, 2.0, np.linspace(0.0, 5.0, 11)) == 0.0).all()


IDM = {"max_acceleration_mps2": 1.5, "comfortable_braking_mps2": 2.0, "headway_s": 1.5, "min_gap_m": 2.0}


@given(st.floats(0.0, 20.0), st.floats(0.1, 20.0))
def test_idm_keeps_its_equilibrium_gap(speed, margin):
    desired = speed + margin
    gap = (IDM["min_gap_m"] + speed * IDM["headway_s"]) / np.sqrt(1.0 - (speed / desired) ** 4)
    assert abs(kinematics.idm_acceleration(speed, desired, gap, speed, **IDM)) < 1e-9
    assert kinematics.idm_acceleration(speed, desired, gap + 1.0, speed, **IDM) > 0
    assert kinematics.idm_acceleration(speed, desired, gap - 0.5, speed, **IDM) < 0


@given(st.floats(0.1, 30.0))
def test_idm_on_a_free_road_keeps_the_desired_speed(desired):
    assert abs(kinematics.idm_acceleration(desired, desired, np.inf, 0.0, **IDM)) < 1e-9
    assert kinematics.idm_acceleration(0.0, desired, np.inf, 0.0, **IDM) == pytest.approx(1.5)


@given(st.floats(0.0, 30.0), st.floats(1.0, 100.0), st.floats(0.0, 29.0), st.floats(0.1, 10.0))
def test_idm_brakes_more_the_slower_the_car_ahead(speed, gap, lead, slower):
    behind_slow = kinematics.idm_acceleration(speed, 15.0, gap, lead, **IDM)
    behind_fast = kinematics.idm_acceleration(speed, 15.0, gap, lead + slower, **IDM)
    assert behind_slow <= behind_fast


@given(st.floats(-0.3, 0.3), st.floats(1.0, 6.0))
def test_steering_drives_the_curvature(curvature, wheel_base):
    angle = kinematics.steering_from_curvature(curvature, wheel_base)
    assert np.tan(angle) / wheel_base == pytest.approx(curvature, abs=1e-12)
