"""A car that stands without a reason is started along the route, if it is engaged or a start is requested."""

from dataclasses import replace

import numpy as np
import pytest
from input_stream import instant, latched, small
from messages import ns
from operation_modes import AUTONOMOUS, STOP, mode
from scenes import Clock, cars, config, later, observation, straight_route, with_light

from reflectdrive_ros.core.domain import AgentKind, LightState, Plan, StepKind, Trajectory, Verdict
from reflectdrive_ros.core.kinematics import speeds
from reflectdrive_ros.planning.planner import PlannerState
from reflectdrive_ros.planning.standstill import STARTED_MPS, StartMode
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import Engine

PEDESTRIAN = np.array([int(AgentKind.PEDESTRIAN)])
FAR = cars((60.0, 0.0, 0.0, 8.0))


def stays(state, scene, context):
    """A planner that plans to stay where the car is."""
    plan = Plan(scene.stamp_ns, scene.ego.map_from_ego, Trajectory(np.zeros((40, 3)), 0.1), StepKind.FULL)
    return PlannerState(previous=plan), plan


def standing(seconds, start=StartMode.IF_STUCK, scene=None, **settings):
    """Reports of a car that stands for so long, each 0.1 s."""
    engine = Engine(config(planner="constant_velocity", **settings), Clock(), stays)
    scene = observation(0.0, agents=FAR) if scene is None else scene
    return [engine.step(later(scene, 0.1 * k), start) for k in range(round(seconds / 0.1) + 1)]


def at_red(scene):
    return with_light(scene, LightState.RED, 5.0)


def starts(report):
    return report.plan.change == "start"


def test_after_three_seconds_without_a_reason_the_car_is_started_and_the_report_says_so():
    reports = standing(3.2)
    assert [starts(report) for report in reports] == [False] * 30 + [True] * 3
    assert reports[30].notes == ("the car has stood for 3.0 s without a reason: the plan along the route is sent",)
    assert reports[30].verdict is Verdict.OK
    assert 0.5 < speeds(reports[30].plan.trajectory)[9] < 1.6  # after a second
    assert reports[30].plan.check.unsafe_after_s is None


def test_a_request_starts_it_at_once_also_where_objects_are_unknown():
    (report,) = standing(0.0, StartMode.NOW, observation(0.0))
    assert starts(report)
    assert report.notes == ("a start was requested: the plan along the route is sent",)


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        (at_red(observation(0.0, agents=FAR)), "red light"),
        (observation(0.0, agents=cars((7.5, 0.0, 0.0, 0.0))), "standing car"),
        (observation(0.0, straight_route(length=1.0), agents=FAR, route_ends=True), "end of the route"),
        (observation(0.0, agents=FAR, route_limits_mps=np.zeros(220)), "limit of the operator"),
        (observation(0.0), "unknown objects"),
        (observation(0.0, agents=cars((4.0, 2.1, 0.0, 0.0))), "a car at its side"),
        (observation(0.0, np.zeros((0, 3)), agents=FAR), "no route"),
        (observation(0.0, agents=replace(cars((12.0, 3.0, 0.0, 0.0)), kinds=PEDESTRIAN)), "someone at the kerb"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_with_a_reason_it_stands(scene, why):
    assert not any(starts(report) for report in standing(4.0, scene=scene))


@pytest.mark.parametrize("start", [StartMode.NEVER, StartMode.IF_STUCK])
def test_a_car_that_is_not_engaged_and_one_whose_setting_is_0_stand(start):
    reports = standing(5.0, start, engine__start_after_s=0.0 if start is StartMode.IF_STUCK else 3.0)
    assert not any(starts(report) for report in reports)


def test_a_request_does_not_drive_through_a_red_light_nor_into_a_car():
    for scene in (at_red(observation(0.0, agents=FAR)), observation(0.0, agents=cars((7.5, 0.0, 0.0, 0.0)))):
        assert not any(starts(report) for report in standing(1.0, StartMode.NOW, scene))


def test_the_reason_counts_from_its_end_and_the_planner_takes_over_at_walking_speed():
    engine = Engine(config(planner="constant_velocity"), Clock(), stays)
    scene, flags = observation(0.0, agents=FAR), []
    for k in range(60):
        now = later(scene, 0.1 * k)
        flags.append(starts(engine.step(at_red(now) if k < 20 else now, StartMode.IF_STUCK)))
    assert flags.index(True) == 50
    for speed_mps, expected in ((0.8, True), (1.2, False), (0.8, False)):
        moving = replace(later(scene, 6.0), ego=replace(later(scene, 6.0).ego, speed_mps=speed_mps))
        assert starts(engine.step(moving, StartMode.IF_STUCK)) is expected
    assert STARTED_MPS == 1.0


def test_a_planner_that_leaves_by_itself_is_left_alone():
    engine = Engine(config(planner="route_follower"), Clock())
    reports = [engine.step(later(observation(0.0, agents=FAR), 0.1 * k), StartMode.NOW) for k in range(3)]
    assert not any(starts(report) or report.notes for report in reports)


# --- the node's core: engaged, requested -----------------------------------------------------------------------------


def core_steps(core, first_s, seconds, speed=0.0):
    for k in range(round(seconds / 0.1)):
        now_s = first_s + 0.1 * k
        instant(core, now_s, speed=speed)
        yield core.step(ns(now_s))


@pytest.mark.parametrize(("message", "expected"), [(None, False), (mode(AUTONOMOUS), True), (mode(STOP), False)])
def test_only_a_car_that_is_known_to_be_engaged_starts_by_itself(message, expected):
    settings = small()
    core = PlanningCore(settings, Clock(), Engine(settings, Clock(), stays))
    latched(core)
    if message is not None:
        core.put("operation_mode", message, 0)
    flags = [starts(step.report) for step in core_steps(core, 1.0, 4.0)]
    assert any(flags) is expected


def test_a_request_ends_when_the_car_moves():
    settings = small()
    core = PlanningCore(settings, Clock(), Engine(settings, Clock(), stays))
    latched(core)
    core.start_requested = True
    assert all(starts(step.report) for step in core_steps(core, 1.0, 0.3))
    assert "a start was requested" in core.planner_status(ns(1.3)).message
    list(core_steps(core, 1.3, 0.3, speed=2.0))
    assert core.start_requested is False
    assert not any(starts(step.report) for step in core_steps(core, 1.6, 0.5))
