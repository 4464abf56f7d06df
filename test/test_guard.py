"""The guard's claims: what the car cannot follow, what it would hit, and that a stop always exists."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import CAR, FRONT_M, SECOND_NS, SIZE, cars, config, ego, observation, straight_plan

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import PLAN_HORIZON_S, DrivableGrid, Plan, Trajectory, Verdict
from reflectdrive_ros.planning import guard
from reflectdrive_ros.planning.stop_plan import stop_plan
from reflectdrive_ros.scoring import safety
from reflectdrive_ros.scoring.safety import SafetyContext


def verdict(plan, scene, elapsed_ms=0.0, **settings):
    return guard.check(plan, SafetyContext(scene, config(**settings)), elapsed_ms)


def test_a_late_plan_is_sound_before_it_is_late():
    scene = observation(agents=cars((12.0, 0.0, 0.0, 0.0)))
    assert verdict(straight_plan(), observation(), elapsed_ms=90.0).verdict is Verdict.LATE
    assert verdict(straight_plan(), scene, elapsed_ms=90.0).verdict is Verdict.UNSAFE
    assert "90 ms" in verdict(straight_plan(), observation(), elapsed_ms=90.0).reason


def test_a_standing_car_ahead_makes_going_on_unsafe_and_says_where_it_is():
    judged = verdict(straight_plan(), observation(agents=cars((20.0, 0.0, 0.0, 0.0))))
    assert judged.verdict is Verdict.UNSAFE
    assert "x 20.0 m" in judged.reason


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((20.0, 3.5, 0.0, 0.0), "parked in the next lane"),
        ((20.0, 0.0, 0.0, 9.0), "drives away"),
        ((-8.0, 0.0, 0.0, 14.0), "runs into us from behind: not the plan's doing"),
        ((60.0, 0.0, 0.0, 0.0), "further than the safe horizon reaches"),
    ],
)
def test_cars_that_are_not_hit_do_not_stop_us(row, why):
    assert verdict(straight_plan(), observation(agents=cars(row))).verdict is Verdict.OK, why


def parked_beside(gap_m, ahead_m=12.0):
    """A scene with a parked car to the left of the ego's path, `gap_m` between their sides."""
    (width,) = cars((0.0, 0.0, 0.0, 0.0)).sizes[:, 1]
    lateral_m = 0.5 * (config().vehicle.width_m + width) + gap_m
    return observation(agents=cars((ahead_m, lateral_m, 0.0, 0.0)))


@pytest.mark.parametrize(("gap_m", "expected"), [(0.2, Verdict.UNSAFE), (0.5, Verdict.OK)])
def test_a_plan_without_a_gap_to_agents_is_unsafe(gap_m, expected):
    assert verdict(straight_plan(), parked_beside(gap_m), guard__clearance_m=0.0).verdict is Verdict.OK
    assert verdict(straight_plan(), parked_beside(gap_m), guard__clearance_m=0.4).verdict is expected


def test_a_car_that_is_closer_than_the_gap_may_go_on_but_no_closer():
    close = parked_beside(0.15, ahead_m=1.0)
    times = 0.1 * np.arange(1, 81)
    nearer = Plan(SECOND_NS, np.zeros(3), Trajectory(np.stack([8.0 * times, 0.3 * times, 0.0 * times], axis=1), 0.1))
    assert verdict(straight_plan(), close, guard__clearance_m=0.4).verdict is Verdict.OK
    assert verdict(nearer, close, guard__clearance_m=0.4).verdict is Verdict.UNSAFE
    assert verdict(straight_plan(), parked_beside(-0.1), guard__clearance_m=0.4).verdict is Verdict.UNSAFE


@given(st.floats(-8.0, 10.0), st.floats(-5.0, 5.0), st.floats(-np.pi, np.pi), st.floats(0.0, 2.0))
def test_the_required_gap_is_no_more_than_the_present_one(x, y, heading, clearance_m):
    size, here, other = np.array([[4.5, 1.8]]), kinematics.box_centres(np.zeros(3), CAR), np.array([[x, y, heading]])
    inflated = safety.inflate_boxes(other, size, CAR, clearance_m)
    assert ((size <= inflated) & (inflated <= size + 2 * clearance_m + 1e-9)).all()
    touching = geometry.boxes_overlap(here, SIZE, other, size)
    assert (geometry.boxes_overlap(here, SIZE, other, inflated) == touching).all()


def creeping_plans():
    """Plans that creep at one of a few speeds along an arc for 0.2 to 1 s, then stand."""
    times = 0.1 * np.arange(1, 41)
    for speed in (1.0, 0.5, 0.2, 0.1, 0.06):
        for curvature in (0.0, -0.15, 0.15):
            for until in (0.2, 1.0):
                yield kinematics.arc(curvature, speed * np.minimum(times, until))


def gap_to(pose, other):
    return float(geometry.box_separation(kinematics.box_centres(pose, CAR), SIZE, other.poses[0], other.sizes[0]))


@pytest.mark.parametrize(
    "row",
    [
        (FRONT_M + 2.25 + 0.6, 0.0, 0.0, 0.0),  # ahead
        (FRONT_M + 2.25 + 0.28, 0.0, 0.0, 0.0),  # ahead, nearer than the clearance already
        (FRONT_M + 2.25 + 0.9, 0.5, 0.6, 0.0),  # ahead, turned: corner before corner
        (2.0, 2.3, 0.0, 0.0),  # alongside
        (3.0, 3.1, -0.3, 0.0),  # alongside, turned
    ],
)
def test_plan_after_plan_the_worst_that_the_guard_lets_through_leaves_a_gap(row):
    """Ten plans a second, each the one that gets nearest to the box of all that the guard accepts."""
    box, at, gaps = cars(row), np.zeros(3), []
    for _ in range(120):
        agents = cars((*geometry.compose(geometry.invert(at), box.poses[0]), 0.0))
        safety_context = SafetyContext(observation(speed=0.0, agents=agents), config())
        accepted = [
            poses
            for poses in creeping_plans()
            if not safety.unsafe_reason(Trajectory(poses, 0.1), safety_context)
            and gap_to(poses[0], agents) < gap_to(np.zeros(3), agents)
        ]
        if not accepted:
            break
        at = geometry.compose(at, min((poses[0] for poses in accepted), key=lambda pose: gap_to(pose, agents)))
        gaps.append(gap_to(at, box))
    else:
        pytest.fail("the car never came to rest")
    assert 0.15 - 1e-3 <= min(gaps) < 0.3


@pytest.mark.parametrize(
    ("row", "poses"),
    [
        ((0.5, 2.2, 0.0, 0.0), kinematics.arc(0.0, 0.1 * np.arange(1, 41))),  # along a wall
        ((3.5, 2.2, 0.0, 0.0), kinematics.arc(-0.1, 0.05 * np.arange(1, 41) ** 1.2)),  # away from it
        ((-3.5, 0.0, 0.0, 0.0), kinematics.arc(0.0, 0.2 * np.arange(1, 41))),  # away from a car behind
    ],
)
def test_a_standing_car_gets_away_from_what_is_very_near(row, poses):
    scene = observation(speed=0.0, agents=cars(row))
    assert 0.0 < gap_to(np.zeros(3), scene.agents) < 0.15
    assert safety.unsafe_reason(Trajectory(poses, 0.1), SafetyContext(scene, config())) == ""


def test_contact_while_standing_is_not_the_plans_doing():
    standing = Plan(SECOND_NS, np.zeros(3), Trajectory(np.zeros((80, 3)), 0.1))
    scene = observation(speed=0.0, agents=cars((12.0, 0.0, np.pi, 6.0)))
    assert verdict(standing, scene).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (straight_plan(speed=45.0), "as fast as"),
        (straight_plan(acceleration=6.0, horizon=4.0), "speeds up"),
        (straight_plan(speed=-3.0), "backwards"),
        (straight_plan(stamp_ns=SECOND_NS // 2), "stamped 0.50 s before"),
    ],
)
def test_what_the_car_cannot_do_is_infeasible(plan, word, monkeypatch):
    monkeypatch.setattr(guard, "MAX_START_GAP_M", 10.0)
    speed = float(kinematics.speeds(plan.trajectory)[0])
    judged = verdict(plan, observation(speed=speed))
    assert judged.verdict is Verdict.INFEASIBLE
    assert word in judged.reason


@pytest.mark.parametrize(("lateral_m", "refused"), [(1.9, False), (2.1, True)])
def test_a_plan_that_starts_more_than_two_metres_from_the_car_is_infeasible(lateral_m, refused):
    poses = straight_plan().trajectory.poses + np.array([0.0, lateral_m, 0.0])
    judged = verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(poses, 0.1)), observation())
    assert ("starts 2.1 m from where the car will be" in judged.reason) == refused


def test_braking_harder_than_tyres_grip_is_infeasible_but_an_emergency_stop_is_not():
    scene = observation(speed=15.0)
    for rate, expected in ((8.0, Verdict.OK), (14.0, Verdict.INFEASIBLE)):
        times = 0.1 * np.arange(1, 81)
        poses = np.zeros((80, 3))
        poses[:, 0] = kinematics.braking_distances(15.0, rate, times)
        assert verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(poses, 0.1)), scene).verdict is expected


def test_driving_backwards_for_an_instant_is_infeasible_too():
    """What is a plan's mean over half a second does not tell: the car would shift into reverse and back."""
    poses = straight_plan(speed=2.0, horizon=4.0).trajectory.poses - np.array([0.4, 0.0, 0.0])
    judged = verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(poses, 0.1)), observation(speed=2.0))
    assert judged.verdict is Verdict.INFEASIBLE
    assert judged.reason == "the plan drives backwards at 2.00 m/s, allowed 0.10 m/s"


@pytest.mark.parametrize("dt", [0.1, 0.5])
def test_a_curve_is_judged_by_its_lateral_acceleration(dt):
    times = dt * np.arange(1, round(4.0 / dt) + 1)
    for radius, expected in ((30.0, Verdict.OK), (8.0, Verdict.INFEASIBLE)):
        plan = Plan(SECOND_NS, np.zeros(3), Trajectory(kinematics.arc(1.0 / radius, 8.0 * times), dt))
        assert verdict(plan, observation()).verdict is expected


@pytest.mark.parametrize("push_mps2", [2.0, 12.0])
def test_a_path_that_bends_is_judged_though_its_headings_tell_of_none(push_mps2):
    """A car that goes where the points lie is moved sideways by their bend, whatever their headings are."""
    times = 0.1 * np.arange(1, 41)
    swings_per_s = 0.5
    poses = kinematics.arc(0.0, 8.0 * times)
    poses[:, 1] = push_mps2 / (2 * np.pi * swings_per_s) ** 2 * (1.0 - np.cos(2 * np.pi * swings_per_s * times))
    judged = verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(poses, 0.1)), observation())
    assert judged.verdict is (Verdict.OK if push_mps2 < 6.0 else Verdict.INFEASIBLE)
    assert push_mps2 < 6.0 or "turns with a lateral acceleration of" in judged.reason


def test_predicted_paths_are_believed_over_constant_velocity():
    """A car alongside that, as predicted, turns into our lane: constant velocity does not predict it."""
    scene = observation(agents=cars((14.0, 3.5, 0.0, 4.0)))
    assert verdict(straight_plan(), scene).verdict is Verdict.OK
    times = 0.5 * np.arange(1, 11)
    path = np.stack([14.0 + 4.0 * times, np.maximum(3.5 - 2.0 * times, 0.0), np.zeros(10)], axis=1)
    agents = replace(scene.agents, predicted_poses=path[None], predicted_dt_s=0.5)
    assert verdict(straight_plan(), observation(agents=agents)).verdict is Verdict.UNSAFE


def test_the_stop_brakes_mildly_on_a_free_road_and_hard_before_a_wall():
    free = stop_plan(ego(10.0), None, None, config())
    assert kinematics.accelerations(free.trajectory).min() == pytest.approx(-2.5, abs=0.05)
    blocked = stop_plan(ego(10.0), cars((19.0, 0.0, 0.0, 0.0)), None, config())
    assert kinematics.accelerations(blocked.trajectory).min() < -4.0
    assert blocked.trajectory.poses[-1, 0] + FRONT_M < 19.0 - 2.25


def test_the_stop_of_a_car_whose_yaw_rate_cannot_be_turns_no_more_than_its_tyres_hold():
    """At 20 m/s and 2 rad/s the lateral acceleration would be 40 m/s^2; 6 m/s^2 are allowed."""
    poses = stop_plan(ego(20.0, yaw_rate_rps=2.0), None, None, config()).trajectory.poses
    assert 20.0**2 * poses[0, 2] / np.hypot(*poses[0, :2]) == pytest.approx(6.0, rel=1e-3)


@given(
    speed=st.floats(-5.0, 40.0),
    yaw_rate=st.floats(-1.5, 1.5),
    where=st.tuples(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5), st.floats(-4.0, 4.0)),
    rows=st.lists(st.tuples(*[st.floats(-60.0, 60.0)] * 2, st.floats(-4, 4), st.floats(-20, 20)), max_size=4),
)
def test_there_is_always_a_stop_and_it_stops(speed, yaw_rate, where, rows):
    settings = config()
    plan = stop_plan(ego(speed, at=where, yaw_rate_rps=yaw_rate), cars(*rows), None, settings)
    assert np.isfinite(plan.trajectory.poses).all()
    speeds = kinematics.speeds(plan.trajectory)
    assert (np.diff(speeds) < 1e-6).all()
    assert speeds[0] <= max(speed, 0.0) + 1e-6
    needed = max(speed, 0.0) / settings.guard.comfort_braking_mps2
    if needed < PLAN_HORIZON_S - 0.1:
        assert speeds[-1] == pytest.approx(0.0, abs=1e-9)


def test_the_stop_follows_the_path_that_was_good():
    path = kinematics.arc(0.05, np.arange(1.0, 40.0))
    plan = stop_plan(ego(8.0), None, path, config())
    end = plan.trajectory.poses[-1]
    assert end[1] > 2.0
    assert np.hypot(end[0], end[1] - 20.0) == pytest.approx(20.0, abs=0.05)


def road(half_width):
    """A straight drivable strip around the x axis as a signed-distance grid."""
    x, y = np.arange(-20.0, 60.0, 0.2), np.arange(-12.0, 12.0, 0.2)
    to_edge_m = half_width - np.abs(y)[None, :]
    ends = np.minimum(x - x[0], x[-1] - x)[:, None]
    return DrivableGrid(np.minimum(to_edge_m, ends).astype(np.float32), 0.2, np.array([x[0], y[0], 0.0]))


def test_leaving_the_drivable_space_is_unsafe():
    assert verdict(straight_plan(), observation(drivable=road(half_width=2.0))).verdict is Verdict.OK
    swerve = straight_plan().trajectory.poses.copy()
    swerve[:, 1] = np.minimum(0.08 * np.arange(80), 2.0)
    judged = verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(swerve, 0.1)), observation(drivable=road(2.0)))
    assert judged.verdict is Verdict.UNSAFE
    assert "leaves the drivable space after" in judged.reason


def test_a_car_that_stands_outside_may_drive_back_in():
    outside = DrivableGrid(road(2.0).distance_m, 0.2, np.array([-20.0, -14.5, 0.0]))  # the strip is 2.5 m to the right
    back, away = (straight_plan().trajectory.poses.copy() for _ in range(2))
    back[:, 1] = np.maximum(-0.05 * np.arange(80), -2.5)
    away[:, 1] = np.minimum(0.05 * np.arange(80), 2.5)
    scene = observation(drivable=outside)
    assert verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(back, 0.1)), scene).verdict is Verdict.OK
    assert verdict(Plan(SECOND_NS, np.zeros(3), Trajectory(away, 0.1)), scene).verdict is Verdict.UNSAFE
