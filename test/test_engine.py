"""The engine's claims: it always answers, never an old plan as new, and lateness does not hold the car for ever."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Clock, cars, config, ego, later, observation

from reflectdrive_ros.config import ConfigError
from reflectdrive_ros.domain import Observation, PlanSource, Verdict
from reflectdrive_ros.planning import PLANNERS, constant_velocity
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.runtime.engine import Engine


def engine(planner="constant_velocity", clock=None, **settings):
    return Engine(config(planner=planner, **settings), clock or Clock())


def slow_planner(clock, seconds):
    def plan(state, scene, tools):
        clock.now_s += seconds
        return constant_velocity.plan(state, scene, tools)

    return plan


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_every_planner_drives_an_empty_road(name):
    report = engine(name).step(observation(speed=8.0))
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER)
    assert report.plan.trajectory.poses[-1, 0] > 50.0


def test_an_unknown_planner_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match="route_follower"):
        engine("reflectdrive9")


def test_a_planner_that_throws_does_not_drive():
    def broken(state, scene, tools):
        raise ZeroDivisionError("by nothing")

    report = Engine(config(), Clock(), broken).step(observation())
    assert (report.verdict, report.source) == (Verdict.INFEASIBLE, PlanSource.STOP)
    assert "ZeroDivisionError" in report.reason


def test_a_planner_that_cannot_plan_says_why_in_one_sentence():
    report = engine("route_follower").step(observation(route=np.zeros((0, 3))))
    assert (report.verdict, report.source) == (Verdict.INFEASIBLE, PlanSource.STOP)
    assert report.reason.startswith("the route is empty")


def test_a_wall_ahead_stops_the_car():
    report = engine().step(observation(speed=8.0, agents=cars((18.0, 0.0, 0.0, 0.0))))
    assert (report.verdict, report.source) == (Verdict.UNSAFE, PlanSource.STOP)


def test_a_late_plan_resends_the_last_good_one_carried_forward():
    clock = Clock()
    pilot = Engine(config(planner="constant_velocity"), clock)
    scene = observation(speed=8.0)
    pilot.step(scene)
    pilot._planner = slow_planner(clock, 0.2)
    report = pilot.step(later(scene, 0.1))
    assert (report.verdict, report.source) == (Verdict.LATE, PlanSource.CARRIED)
    assert report.plan.stamp_ns == scene.stamp_ns + 100_000_000
    np.testing.assert_allclose(report.plan.trajectory.poses[0], [0.8, 0.0, 0.0], atol=1e-9)


def test_a_planner_that_is_always_late_does_not_hold_the_car_at_a_stop_for_ever():
    clock = Clock()
    slow = Engine(config(), clock, slow_planner(clock, 0.12))
    scene, sources = observation(speed=8.0), []
    for _ in range(8):
        report = slow.step(scene)
        assert report.verdict is Verdict.LATE
        sources.append(report.source)
        scene = later(scene, 0.15)
    assert sources == [PlanSource.STOP, *[PlanSource.CARRIED] * 7]


def test_a_late_plan_is_not_carried_into_a_wall():
    clock = Clock()
    pilot = Engine(config(planner="constant_velocity"), clock)
    scene = observation(speed=8.0)
    pilot.step(scene)
    pilot._planner = slow_planner(clock, 0.2)
    blocked = replace(later(scene, 0.1), agents=cars((15.0, 0.0, 0.0, 0.0)))
    report = pilot.step(blocked)
    assert report.source is PlanSource.STOP


def test_the_last_good_plan_is_carried_for_a_limited_time_only():
    def failing(state, scene, tools):
        raise PlanningError("no idea")

    pilot = engine(engine__carry_max_s=0.5)
    scene = observation(speed=8.0)
    pilot.step(scene)
    pilot._planner = failing
    sources = []
    for _ in range(8):
        scene = later(scene, 0.1)
        sources.append(pilot.step(scene).source)
    assert sources == [PlanSource.CARRIED] * 5 + [PlanSource.STOP] * 3


def test_an_old_plan_is_never_sent_as_new():
    old = {}

    def repeating(state, scene, tools):
        if "plan" not in old:
            _, old["plan"] = constant_velocity.plan(state, scene, tools)
        return state, old["plan"]

    pilot = Engine(config(), Clock(), repeating)
    scene = observation()
    assert pilot.step(scene).verdict is Verdict.OK
    report = pilot.step(later(scene, 0.1))
    assert report.verdict is Verdict.INFEASIBLE
    assert report.plan.stamp_ns == scene.stamp_ns + 100_000_000


def test_reset_forgets_the_plan_of_another_time():
    pilot = engine()
    scene = observation(speed=8.0)
    pilot.step(scene)
    pilot.reset()
    pilot._planner = lambda state, scene, tools: 1 / 0
    assert pilot.step(later(scene, 0.1)).source is PlanSource.STOP


def test_timings_name_every_stage():
    report = engine(clock=Clock(step_s=0.001)).step(observation())
    assert set(report.timings_ms) == {"stop", "plan", "guard", "total"}
    assert report.timings_ms["total"] == pytest.approx(3.0)


def test_stop_without_an_observation_gives_the_reason():
    report = engine().stop(ego(6.0), None, "image front: nothing received yet")
    assert (report.source, report.reason) == (PlanSource.STOP, "image front: nothing received yet")
    assert report.plan.trajectory.poses[-1, 0] == pytest.approx(36.0 / 5.0, abs=0.05)


@given(
    speed=st.floats(-3.0, 39.0),
    yaw_rate=st.floats(-1.0, 1.0),
    rows=st.lists(st.tuples(*[st.floats(-80.0, 80.0)] * 2, st.floats(-4, 4), st.floats(-20, 20)), max_size=5),
    points=st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), max_size=6),
    name=st.sampled_from(sorted(PLANNERS)),
)
def test_whatever_is_seen_there_is_a_plan_stamped_now(speed, yaw_rate, rows, points, name):
    route = np.array([(x, y, 0.0) for x, y in points]).reshape(-1, 3) if len(points) >= 2 else np.zeros((0, 3))
    scene = Observation(5, ego(speed, 5, yaw_rate_rps=yaw_rate), route, agents=cars(*rows))
    report = engine(name).step(scene)
    assert report.plan.stamp_ns == 5
    assert np.isfinite(report.plan.trajectory.poses).all()
    assert bool(report.reason) == (report.verdict is not Verdict.OK)
