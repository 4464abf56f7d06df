"""The engine's claims: it always answers, never an old plan as new, and lateness does not hold the car for ever."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_inputs import camera_images
from scenes import Clock, cars, config, ego, later, observation
from tiny_model import SPEED_MPS, tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.domain import Observation, PlanSource, StepKind, Verdict
from reflectdrive_ros.planning import PLANNERS, pipeline
from reflectdrive_ros.planning.generators import constant_velocity
from reflectdrive_ros.planning.planner import PlannerState, PlanningError
from reflectdrive_ros.runtime import engine as engines
from reflectdrive_ros.runtime.engine import Engine


def engine(planner="constant_velocity", clock=None, **settings):
    return Engine(config(planner=planner, **settings), clock or Clock())


def test_without_a_clock_of_ones_own_the_engine_tells_real_times():
    report = Engine(config(planner="constant_velocity", engine__deadline_ms=10_000.0)).step(observation())
    assert report.verdict is Verdict.OK
    assert 0.0 < report.timings_ms["plan"] <= report.timings_ms["total"]


def slow_planner(clock, seconds):
    def plan(state, scene, planner_context):
        clock.now_s += seconds
        return pipeline.plan(constant_velocity.generate, state, scene, planner_context)

    return plan


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_every_planner_drives_an_empty_road(name):
    report = engine(name).step(observation(speed=8.0))
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER)
    assert report.plan.trajectory.poses[-1, 0] > 6.25 * report.plan.trajectory.horizon_s


def test_an_unknown_planner_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match="route_follower"):
        engine("reflectdrive9")


def test_a_planner_that_throws_does_not_drive():
    def broken(state, scene, planner_context):
        raise ZeroDivisionError("by nothing")

    report = Engine(config(), Clock(), broken).step(observation())
    assert (report.verdict, report.source) == (Verdict.INFEASIBLE, PlanSource.STOP)
    assert "ZeroDivisionError" in report.reason


def test_a_planner_that_cannot_plan_says_why_in_one_sentence():
    report = engine("route_follower").step(observation(route=np.zeros((0, 3))))
    assert (report.verdict, report.source) == (Verdict.INFEASIBLE, PlanSource.STOP)
    assert report.reason.startswith("the route is empty")


def test_a_wall_ahead_stops_the_car():
    report = engine(pipeline__repair=False).step(observation(speed=8.0, agents=cars((18.0, 0.0, 0.0, 0.0))))
    assert (report.verdict, report.source) == (Verdict.UNSAFE, PlanSource.STOP)


def test_a_late_plan_resends_the_last_good_one_carried_forward_but_not_into_a_wall():
    clock = Clock()
    pilot = Engine(config(planner="constant_velocity"), clock)
    scene = observation(speed=8.0)
    pilot.step(scene)
    pilot._planner = slow_planner(clock, 0.2)
    report = pilot.step(later(scene, 0.1))
    assert (report.verdict, report.source) == (Verdict.LATE, PlanSource.CARRIED)
    assert report.plan.stamp_ns == scene.stamp_ns + 100_000_000
    np.testing.assert_allclose(report.plan.trajectory.poses[0], [0.8, 0.0, 0.0], atol=1e-9)
    blocked = replace(later(scene, 0.2), agents=cars((15.0, 0.0, 0.0, 0.0)))
    assert pilot.step(blocked).source is PlanSource.STOP


def test_a_car_ahead_of_the_plan_that_would_be_carried_stops_and_does_not_go_back():
    def broken(*_):
        raise RuntimeError("planted")

    driven = engine()
    scene = observation(speed=2.0)
    assert driven.step(scene).verdict is Verdict.OK
    driven._planner = broken
    report = driven.step(later(scene, 0.1, forward=1.1))
    assert report.source is PlanSource.STOP
    assert kinematics.speeds(report.plan.trajectory).min() >= 0.0


def test_a_planner_gets_the_used_share_of_the_deadline():
    clock, shares = Clock(), []

    def planner(state, scene, planner_context):
        for seconds in (0.02, 0.04):
            clock.now_s += seconds
            shares.append(planner_context.deadline_used())
        return pipeline.plan(constant_velocity.generate, state, scene, planner_context)

    driven = Engine(config(engine__deadline_ms=80.0), clock, planner)
    for k in range(2):
        driven.step(later(observation(speed=8.0), 0.1 * k))
    np.testing.assert_allclose(shares, [0.25, 0.75] * 2)


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


def test_the_last_good_plan_is_carried_for_a_limited_time_only(monkeypatch):
    monkeypatch.setattr(engines, "CARRY_MAX_S", 0.5)

    def failing(state, scene, planner_context):
        raise PlanningError("no idea")

    pilot = engine()
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

    def repeating(state, scene, planner_context):
        if "plan" not in old:
            _, old["plan"] = pipeline.plan(constant_velocity.generate, state, scene, planner_context)
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
    pilot._planner = lambda state, scene, planner_context: 1 / 0
    assert pilot.step(later(scene, 0.1)).source is PlanSource.STOP


def test_a_planner_starts_anew_after_a_plan_that_may_not_be_driven():
    states = []

    def planner(state, scene, planner_context):
        states.append((state.previous is None, state.memory))
        _, plan = pipeline.plan(constant_velocity.generate, state, scene, planner_context)
        return PlannerState(plan, "of the last step"), plan

    driven, scene = Engine(config(pipeline__repair=False), Clock(), planner), observation(speed=8.0)
    blocked = replace(later(scene, 0.1), agents=cars((18.0, 0.0, 0.0, 0.0)))
    verdicts = [driven.step(each).verdict for each in (scene, blocked, later(scene, 0.2))]
    assert verdicts == [Verdict.OK, Verdict.UNSAFE, Verdict.OK]
    assert states == [(True, None), (False, "of the last step"), (True, None)]


def test_a_plan_of_a_later_time_is_not_carried_and_holds_no_other_one():
    driven, scene = engine(), observation(speed=8.0)
    driven.step(scene)
    before = later(scene, -0.1, forward=0.0)
    assert driven._recent_plan(scene.stamp_ns) is not None
    assert driven._recent_plan(before.stamp_ns) is None
    driven._planner = lambda state, scene, planner_context: 1 / 0
    assert driven.step(before).source is PlanSource.STOP


def test_timings_name_every_stage():
    report = engine(clock=Clock(step_s=0.001)).step(observation())
    times_ms, stages = report.timings_ms, {"generate", "select", "repair", "finish"}
    assert set(times_ms) == {"stop", *stages, "plan", "guard", "total"}
    assert [times_ms[stage] for stage in stages] == pytest.approx(4 * [1.0])
    assert times_ms["plan"] >= 4.0
    assert times_ms["total"] == pytest.approx(times_ms["stop"] + times_ms["plan"] + times_ms["guard"])


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
def test_any_observation_gives_a_plan_stamped_now(speed, yaw_rate, rows, points, name):
    route = np.array([(x, y, 0.0) for x, y in points]).reshape(-1, 3) if len(points) >= 2 else np.zeros((0, 3))
    scene = Observation(5, ego(speed, 5, yaw_rate_rps=yaw_rate), route, agents=cars(*rows))
    report = engine(name).step(scene)
    assert report.plan.stamp_ns == 5
    assert np.isfinite(report.plan.trajectory.poses).all()
    assert bool(report.reason) == (report.verdict is not Verdict.OK)


# --- a planner that has learned --------------------------------------------------------------------------------------


@pytest.fixture
def learned(tiny_model):  # noqa: F811
    return Engine(config(**tiny_model.settings), Clock())


def camera_observation(**more):
    return observation(**{"speed": SPEED_MPS, "agents": cars(), "cameras": camera_images(), **more})


def test_a_learned_planner_drives_and_tells_what_its_steps_were(learned):
    scene = camera_observation()
    reports = [learned.step(later(scene, 0.1 * k)) for k in range(4)]
    assert [report.verdict for report in reports] == [Verdict.OK] * 4, [report.reason for report in reports]
    assert [report.source for report in reports] == [PlanSource.PLANNER] * 4
    assert [report.step for report in reports] == [StepKind.FULL, StepKind.LITE] * 2
    assert [bool(report.full_step_reason) for report in reports] == [True, False] * 2
    assert reports[2].full_step_reason == "a full step is due"
    for report in reports:
        assert report.plan.trajectory.poses[-1, 0] == pytest.approx(4.0 * SPEED_MPS, abs=0.3)
        assert report.notes == ()


def test_the_hash_of_the_model_in_use_is_reported(learned, tiny_model):  # noqa: F811
    assert learned.model_sha256 == tiny_model.sha256
    blind = Engine(config(**{**tiny_model.settings, "planner": "route_follower"}), Clock())
    assert blind.model_sha256 == ""


def test_the_settings_of_the_recipe_reach_it(tiny_model):  # noqa: F811
    engine = Engine(config(**tiny_model.settings, reflectdrive2__lite_steps_per_full=0), Clock())
    assert [engine.step(later(camera_observation(), 0.1 * k)).step for k in range(3)] == [StepKind.FULL] * 3


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"instruction": "fahren Sie jetzt bitte links ab"}, "the instruction has 6 unknown words"),
        ({"instruction": "\u0645\u0631\u062d\u0628\u0627 \u4f60\u597d \ud83d\ude00 \x00"}, "unknown words"),
        ({"instruction": "turn left " * 1000}, "the instruction has 10000 characters: it was cut after 300"),
        ({"cameras": camera_images(1)}, "the older images are missing"),
    ],
)
def test_an_input_that_was_not_used_as_it_came_is_noted_and_driven_with(learned, more, note):
    report = learned.step(camera_observation(**more))
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER), report.reason
    assert any(note in sentence for sentence in report.notes), report.notes


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"cameras": ()}, "holds 0 images, expected 6"),
        ({"cameras": camera_images(2)[:5]}, "holds 5 images, expected 6"),
        ({"cameras": camera_images(2)[:3] + camera_images(2)[2::-1]}, "front_left, front, front_right in one instant"),
        ({"speed": 1e30}, "speed_mps is 1e+30, expected a number within"),
    ],
)
def test_an_input_that_cannot_be_used_is_a_stop_and_a_sentence(learned, more, sentence):
    report = learned.step(camera_observation(**more))
    assert (report.verdict, report.source) == (Verdict.INFEASIBLE, PlanSource.STOP)
    assert sentence in report.reason
    assert report.step is None


def test_what_is_noted_of_a_failed_step_is_not_that_of_the_one_before(learned):
    scene = camera_observation(instruction="fahren Sie")
    assert learned.step(scene).notes
    assert learned.step(replace(later(scene, 0.1), cameras=())).notes == ()
