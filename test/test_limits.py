"""Claims about lights, limits and the end of the route: where the car stops, how fast it passes, and what it says."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import (
    FRONT_M,
    SECOND_NS,
    Clock,
    config,
    later,
    observation,
    straight_plan,
    straight_route,
    turning_route,
    with_light,
)

from reflectdrive_ros.core.domain import FactorKind, LightState, PlanSource, StopLines, TrafficLights, Verdict
from reflectdrive_ros.planning import guard
from reflectdrive_ros.planning.assessment import evaluate
from reflectdrive_ros.planning.postprocess.waypoints import postprocess
from reflectdrive_ros.planning.repair.brake import repair_points
from reflectdrive_ros.planning.select import score_candidates
from reflectdrive_ros.planning.stop_plan import stop_plan
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.scoring.limits import OVER_LINE_MAX_M, STOP_GAP_M
from reflectdrive_ros.scoring.safety import SafetyContext, safety_check
from reflectdrive_ros.sim.ego import Ego, step_ego


def drive(scene, seconds, planner="constant_velocity", after=None, **settings):
    """Positions (T,), speeds (T,) and reports of a car that follows its plans exactly, planned again every 0.1 s.
    `after` changes the scene by its time."""
    engine = Engine(config(planner=planner, **settings), Clock())
    positions_m, speeds, reports = [0.0], [scene.ego.speed_mps], []
    for step in range(round(seconds / 0.1)):
        now = scene if after is None else after(scene, 0.1 * step)
        report = engine.step(now)
        forward = float(report.plan.trajectory.poses[0, 0])
        reports.append(report)
        positions_m.append(positions_m[-1] + forward)
        speed = float(report.plan.trajectory.poses[1, 0]) / 0.2
        speeds.append(speed)
        lines = scene.stop_lines
        moved = later(scene, 0.1, forward)
        if lines is not None:
            moved = replace(moved, stop_lines=replace(lines, ends=lines.ends - [forward, 0.0]))
        near = moved.route[:, 0] > -25.0  # as the node cuts it
        limits = moved.route_limits_mps
        scene = replace(
            moved,
            ego=replace(moved.ego, speed_mps=speed),
            route=moved.route[near],
            route_limits_mps=None if limits is None else limits[near],
        )
    return np.array(positions_m), np.array(speeds), reports


def test_the_car_stops_before_a_red_light_and_waits():
    positions_m, speeds, reports = drive(with_light(observation(speed=8.0), LightState.RED), 25.0)
    gap_m = 60.0 - FRONT_M - positions_m[-1]
    assert 0.1 < gap_m < 1.6
    assert speeds[-1] < 0.02
    assert np.diff(speeds).min() / 0.1 > -3.0
    assert all(report.verdict is Verdict.OK for report in reports)
    assert reports[-1].factors[0].kind is FactorKind.TRAFFIC_LIGHT
    assert "traffic lights" in str(reports[-1].plan.check)


def drive_with_lag(scene, seconds, planner="constant_velocity"):
    """Places (T,) and speeds (T,) of a car under NAVSIM's controller, which brakes later than planned and rolls on
    slowly."""
    engine, car = Engine(config(planner=planner), Clock()), Ego(np.zeros(3), np.eye(8)[0] * scene.ego.speed_mps)
    positions_m, speeds = [], []
    for step in range(round(seconds / 0.1)):
        forward = car.map_from_ego[0]
        lines = scene.stop_lines
        if lines is not None:
            lines = replace(lines, ends=lines.ends - [forward, 0.0])
        state = car.state(scene.stamp_ns + step * SECOND_NS // 10)
        route = scene.route - [forward, 0.0, 0.0]
        now = replace(scene, stamp_ns=state.stamp_ns, ego=state, route=route[route[:, 0] > -25.0], stop_lines=lines)
        car = step_ego(car, engine.step(now).plan, now.stamp_ns, config().vehicle)
        positions_m.append(car.map_from_ego[0])
        speeds.append(car.speed_mps)
    return np.array(positions_m), np.array(speeds)


@pytest.mark.parametrize(
    ("planner", "speed_mps", "line_m"),
    [
        ("constant_velocity", 3.0, 30.0),
        pytest.param("constant_velocity", 13.0, 60.0, marks=pytest.mark.long),
        pytest.param("route_follower", 8.0, 30.0, marks=pytest.mark.long),
        ("route_follower", 13.0, 60.0),
    ],
)
def test_a_car_that_lags_behind_its_plans_stops_before_the_line(planner, speed_mps, line_m):
    positions_m, speeds = drive_with_lag(
        with_light(observation(speed=speed_mps), LightState.RED, line_m), 25.0, planner
    )
    assert speeds[-1] < 0.02
    assert 0.3 < line_m - FRONT_M - positions_m[-1] < 1.6


@pytest.mark.parametrize(("speed_mps", "line_m"), [(5.0, 10.0), (8.0, 14.0), (13.0, 30.0)])
def test_a_car_that_lags_stops_before_a_red_light_that_comes_late(speed_mps, line_m):
    positions_m, speeds = drive_with_lag(with_light(observation(speed=speed_mps), LightState.RED, line_m), 10.0)
    assert speeds[-1] < 0.02
    assert 0.0 < line_m - FRONT_M - positions_m[-1] < 1.6


def test_a_car_that_cannot_stop_before_a_red_light_may_stop_a_little_over_its_line():
    positions_m, speeds = drive_with_lag(with_light(observation(speed=8.0), LightState.RED, 12.0), 10.0)
    assert speeds[-1] < 0.02
    assert -OVER_LINE_MAX_M < 12.0 - FRONT_M - positions_m[-1] < -0.5


@pytest.mark.parametrize(
    ("speed_mps", "line_m", "stops"), [(8.0, 14.0, False), (8.0, 18.0, True), (13.0, 34.0, False), (13.0, 38.0, True)]
)
def test_a_car_that_lags_stops_at_an_amber_light_or_passes_it_at_its_speed(speed_mps, line_m, stops):
    """It does not brake first and run the light then."""
    positions_m, speeds = drive_with_lag(with_light(observation(speed=speed_mps), LightState.AMBER, line_m), 10.0)
    if stops:
        assert 0.3 < line_m - FRONT_M - positions_m[-1] < 1.6
    else:
        assert speeds.min() > speed_mps - 0.5


def test_the_car_goes_on_when_the_light_turns_green():
    def turned(scene, time_s):
        state = LightState.RED if time_s < 12.0 else LightState.GREEN
        return replace(scene, traffic_lights=replace(scene.traffic_lights, states=np.array([int(state)])))

    scene = with_light(observation(speed=8.0), LightState.RED)
    positions_m, speeds, _ = drive(scene, 20.0, "route_follower", turned)
    assert speeds[115] < 0.1
    assert positions_m[-1] > 60.0


def test_amber_that_turns_red_while_the_car_crosses_does_not_stop_it_in_the_junction():
    def turned(scene, time_s):
        state = LightState.AMBER if time_s < 1.2 else LightState.RED
        return replace(scene, traffic_lights=replace(scene.traffic_lights, states=np.array([int(state)])))

    _, speeds, reports = drive(with_light(observation(speed=13.0), LightState.AMBER, 25.0), 5.0, after=turned)
    assert speeds.min() > 12.9
    assert all(report.source is PlanSource.PLANNER for report in reports)


def test_a_standing_car_whose_front_is_over_the_line_waits():
    scene = with_light(observation(speed=0.0), LightState.RED, FRONT_M - 0.8)
    positions_m, _, _ = drive(scene, 5.0, "route_follower")
    assert positions_m[-1] < 0.35


@pytest.mark.parametrize(
    ("settings", "crossing_mps", "stops"),
    [
        ({"lights__unknown": "caution"}, 5.0, False),
        ({"lights__unknown": "pass"}, 10.0, False),
        ({"lights__unknown": "stop"}, 0.0, True),
    ],
)
def test_an_unknown_light_counts_as_configured(settings, crossing_mps, stops):
    positions_m, speeds, _ = drive(with_light(observation(speed=10.0), LightState.UNKNOWN), 20.0, **settings)
    assert (positions_m[-1] + FRONT_M < 60.0) == stops
    if not stops:
        at_line = np.interp(60.0, positions_m, speeds)
        assert at_line == pytest.approx(crossing_mps, abs=0.4)


def test_a_line_off_the_route_or_against_it_does_not_stop_the_car():
    for scene in (
        with_light(observation(speed=8.0), LightState.RED, left_m=3.5),
        with_light(observation(speed=8.0), LightState.RED, against=True),
    ):
        positions_m, _, reports = drive(scene, 10.0)
        assert positions_m[-1] == pytest.approx(80.0, abs=0.5)
        assert not any(report.factors for report in reports)


def test_a_green_light_and_a_line_whose_light_is_not_reported_limit_nothing():
    green = with_light(observation(speed=8.0), LightState.GREEN)
    untold = replace(green, traffic_lights=TrafficLights(np.array([8]), np.array([int(LightState.RED)])))
    for scene in (green, untold):
        limits = SafetyContext(scene, config()).limits
        assert not limits.kinds
        assert len(limits.closed_lines) == 0


def test_a_stop_line_behind_a_bend_is_located_along_the_route():
    route = turning_route(radius=12.0, before=30.0)
    scene = observation(speed=8.0, route=route)
    ends = np.array([[[42.0 - 1.75, 30.0], [42.0 + 1.75, 30.0]]])  # the car drives north there
    lights = TrafficLights(np.array([1]), np.array([int(LightState.RED)]))
    scene = replace(scene, stop_lines=StopLines(ends, np.array([1])), traffic_lights=lights)
    limits = SafetyContext(scene, config()).limits
    assert limits.at_m[0] == pytest.approx(30.0 + 12.0 * np.pi / 2 + 18.0 - FRONT_M - STOP_GAP_M, abs=0.3)


def test_the_guard_refuses_a_plan_that_crosses_a_closed_line_and_says_when():
    scene = with_light(observation(speed=8.0), LightState.RED, 20.0)
    judged = guard.check(straight_plan(8.0), SafetyContext(scene, config()), 0.0)
    assert judged.verdict is Verdict.UNSAFE
    crossing_s = (20.0 - FRONT_M) / 8.0
    assert f"red light after {np.ceil(10 * crossing_s) / 10:.1f} s" in judged.reason
    unsafe_after_s = safety_check(straight_plan(8.0), SafetyContext(scene, config())).unsafe_after_s
    assert unsafe_after_s == pytest.approx(crossing_s, abs=0.11)


def test_the_score_prefers_a_plan_that_stops_before_the_line():
    scene = with_light(observation(speed=8.0), LightState.RED, 25.0)
    times_s = 0.5 * np.arange(1, 9)
    through = np.stack([8.0 * times_s, np.zeros(8)], axis=1)
    stopping = np.stack([np.minimum(8.0 * times_s - 0.95 * times_s**2, 16.8), np.zeros(8)], axis=1)
    stopping[:, 0] = np.maximum.accumulate(stopping[:, 0])
    scored = score_candidates(SafetyContext(scene, config()), np.stack([through, stopping]))
    assert scored.scores[0] == 0.0
    assert scored.scores[1] > 0.5


def test_postprocessing_and_repair_stop_before_the_line():
    scene = with_light(observation(speed=8.0), LightState.RED, 25.0)
    safety_context = SafetyContext(scene, config())
    through = np.stack([4.0 * np.arange(1, 9), np.zeros(8)], axis=1)
    (repaired,), iterations = repair_points(through[None], safety_context, [None])
    assert iterations == [1]
    assert evaluate(safety_context, repaired[None]).safe.all()
    assert repaired[-1, 0] + FRONT_M < 25.0
    slowed = postprocess(through[None], scene.ego, 0.3, safety_context.road, safety_context.limits)[0]
    assert 24.0 - FRONT_M - STOP_GAP_M < slowed[-1, 0] < 25.0 - FRONT_M


def limited(scene, *stretches):
    """The scene with limits (from x in m on, m/s) along its route."""
    limits = np.full(len(scene.route), np.nan)
    for begin, limit_mps in stretches:
        limits[scene.route[:, 0] >= begin] = limit_mps
    return replace(scene, route_limits_mps=limits)


def test_the_car_is_at_a_lower_limit_where_it_begins_and_brakes_comfortably():
    positions_m, speeds, reports = drive(limited(observation(speed=13.0), (-50.0, 14.0), (130.0, 8.0)), 14.0)
    assert np.interp(130.0, positions_m, speeds) < 8.3
    assert np.diff(speeds).min() / 0.1 > -2.0
    assert [(factor.kind, round(factor.distance_m)) for factor in reports[0].factors] == [(FactorKind.SPEED_LIMIT, 130)]


def test_a_limit_that_comes_late_is_reached_comfortably():
    _, speeds, _ = drive(limited(observation(speed=13.0), (-50.0, 5.0)), 8.0)
    assert np.diff(speeds).min() / 0.1 > -2.8
    assert speeds[-1] == pytest.approx(5.0, abs=0.1)


def test_a_limit_of_0_stops_the_car():
    positions_m, speeds, _ = drive(limited(observation(speed=10.0), (-50.0, 14.0), (50.0, 0.0)), 15.0)
    assert speeds[-1] < 0.02
    assert 48.0 < positions_m[-1] <= 50.01


def test_limits_above_the_speed_of_a_plan_change_nothing():
    scene = observation(speed=8.0)
    free, limit = (
        Engine(config(planner="constant_velocity"), Clock()).step(each)
        for each in (scene, limited(scene, (-50.0, 9.0)))
    )
    np.testing.assert_array_equal(free.plan.trajectory.poses, limit.plan.trajectory.poses)


def test_the_car_stops_at_the_end_of_its_route():
    scene = replace(observation(speed=10.0, route=straight_route(length=61.0)), route_ends=True)
    positions_m, speeds, reports = drive(scene, 20.0)
    assert 59.0 < positions_m[-1] <= 60.01
    assert speeds[-1] < 0.02
    assert reports[-1].factors[0].kind is FactorKind.ROUTE_END


@pytest.mark.parametrize(
    ("planner", "speed_mps", "end_m"),
    [("constant_velocity", 3.0, 30.0), ("constant_velocity", 8.0, 15.0), ("route_follower", 13.0, 30.0)],
)
def test_a_car_that_lags_stops_at_the_end_of_its_route(planner, speed_mps, end_m):
    """Within half of the metre in which Autoware's mission planner takes the goal as reached."""
    scene = observation(speed=speed_mps)
    route = np.column_stack([np.arange(-25.0, end_m + 0.5), np.zeros((2, round(end_m) + 26)).T])
    positions_m, speeds = drive_with_lag(replace(scene, route=route, route_ends=True), 18.0, planner)
    assert speeds[-1] < 0.02
    assert abs(positions_m[-1] - end_m) < 0.5


def test_the_car_does_not_stop_at_the_end_of_a_cut_route():
    positions_m, _, _ = drive(observation(speed=10.0, route=straight_route(length=61.0)), 5.0)
    assert positions_m[-1] == pytest.approx(50.0, abs=0.2)


def test_the_stop_plan_brakes_harder_to_keep_a_red_light():
    scene = with_light(observation(speed=10.0), LightState.RED, 19.0)
    stop = stop_plan(scene.ego, None, None, config(), SafetyContext(scene, config()))
    assert stop.stamp_ns == SECOND_NS
    assert stop.trajectory.poses[-1, 0] + FRONT_M < 19.0
    assert stop_plan(scene.ego, None, None, config()).trajectory.poses[-1, 0] + FRONT_M > 19.0
