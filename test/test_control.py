"""Who drives the car: plans of a car that a driver drives start from its present state, and nothing of them is used."""

import pytest
from autoware_vehicle_msgs.msg import TurnIndicatorsReport
from input_stream import instant, latched, small
from messages import ns
from operation_modes import AUTONOMOUS, LOCAL, STOP, driven, mode
from scenes import Clock, config
from tiny_model import SPEED_MPS, tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.core.domain import PlanSource, StepKind, Verdict
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.inputs.control import Signal, VehicleControl
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import MAX_LATERAL_SHIFT_M


def report(seconds, signal):
    return TurnIndicatorsReport(stamp=outputs.time_message(ns(seconds)), report=signal)


def control(*messages, at_s=1.0):
    """What a snapshot at 1.0 s knows after these messages."""
    inputs = Inputs(small())
    latched(inputs.store)
    for key, message in messages:
        inputs.store.put(key, message, ns(at_s))
    instant(inputs.store, at_s)
    return inputs.snapshot(ns(at_s)).control, {status.name: status for status in inputs.statuses(ns(at_s))}


# --- the two inputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "autonomous"),
    [
        (mode(AUTONOMOUS), True),
        (mode(AUTONOMOUS, transition=True), True),  # being engaged
        (mode(AUTONOMOUS, enabled=False), False),  # chosen, but a driver holds the wheel
        (mode(STOP), False),
        (mode(LOCAL), False),
        (mode(0), False),
    ],
    ids=["autonomous", "in transition", "by hand", "stop", "local", "unknown"],
)
def test_the_planner_drives_where_autoware_controls_the_car_in_the_mode_autonomous(message, autonomous):
    assert control(("operation_mode", message))[0] == VehicleControl(autonomous)


def test_the_mode_stays_valid_and_the_newest_counts():
    assert control(("operation_mode", mode(LOCAL)), ("operation_mode", mode(AUTONOMOUS)))[0].autonomous is True
    inputs = Inputs(small())
    inputs.store.put("operation_mode", mode(LOCAL), ns(0.0))
    latched(inputs.store)
    instant(inputs.store, 1000.0)
    assert inputs.snapshot(ns(1000.0)).control.by_driver


@pytest.mark.parametrize("signal", Signal)
def test_the_signal_of_the_vehicle_is_read(signal):
    assert control(("turn_indicators_status", report(1.0, signal)))[0] == VehicleControl(None, signal)


def test_an_old_report_of_the_signal_is_not_used_and_is_said():
    vehicle_control, statuses = control(("turn_indicators_status", report(-0.5, Signal.LEFT)))
    assert vehicle_control.signal is None
    status = statuses["turn_indicators_status"]
    assert (status.level, status.message) == (
        Level.WARN,
        "turn_indicators_status: newest is 1.50 s old, allowed 1.00 s",
    )


def test_neither_is_missed_where_a_car_has_none():
    vehicle_control, statuses = control()
    assert vehicle_control == VehicleControl()
    assert not {"operation_mode", "turn_indicators_status"} & set(statuses)


def test_what_does_not_exist_is_refused_in_one_sentence():
    vehicle_control, statuses = control(("operation_mode", mode(77)), ("turn_indicators_status", report(1.0, 9)))
    assert vehicle_control == VehicleControl()
    assert "operation mode 77 does not exist" in statuses["operation_mode"].message
    assert "turn signal 9 does not exist, expected 1, 2 or 3" in statuses["turn_indicators_status"].message


# --- what is planned -------------------------------------------------------------------------------------------------


FULL, LITE = StepKind.FULL, StepKind.LITE


@pytest.mark.parametrize(
    ("modes", "steps"),
    [
        ([None] * 3, [FULL, LITE, LITE]),
        ([mode(LOCAL), None, None], [FULL] * 3),
        ([mode(LOCAL), None, mode(AUTONOMOUS), None, None], [FULL, FULL, FULL, LITE, LITE]),
        ([mode(AUTONOMOUS), None, mode(AUTONOMOUS, False), mode(AUTONOMOUS), None], [FULL, LITE, FULL, FULL, LITE]),
    ],
    ids=["unknown", "a driver", "the planner takes over", "a driver for one step"],
)
def test_while_a_driver_drives_and_at_the_first_step_after_it_steps_are_full(modes, steps):
    assert driven(modes)[0] == steps


def test_the_learned_planner_takes_over_with_a_full_step(tiny_model):  # noqa: F811
    settings = config(cameras__width=64, cameras__height=36, **tiny_model.settings)
    core = PlanningCore(settings, Clock())
    latched(core)
    steps = []
    for number, state in enumerate([LOCAL, LOCAL, AUTONOMOUS, AUTONOMOUS]):
        now_s = 1.0 + 0.1 * number
        core.put("operation_mode", mode(state), ns(now_s))
        instant(core, now_s, speed=SPEED_MPS)
        steps.append(core.step(ns(now_s)).report)
    assert [report.step for report in steps] == [FULL, FULL, FULL, LITE]
    assert {report.full_step_reason for report in steps[:3]} == {steps[0].full_step_reason}  # as at the start


def test_a_plan_for_a_driven_car_is_not_shifted_towards_the_last_one():
    by_planner, by_driver = (driven([mode(number), None])[1][-1] for number in (AUTONOMOUS, LOCAL))
    limited_m, free_m = (report.plan.trajectory.poses[-5, 1] for report in (by_planner, by_driver))
    assert limited_m == pytest.approx(MAX_LATERAL_SHIFT_M, abs=0.1)
    assert free_m > 1.7


def test_a_plan_that_is_late_is_not_carried_while_a_driver_drives():
    late = {"engine__deadline_ms": 10.0}
    by_planner = driven([mode(AUTONOMOUS), None], Clock(0.02), **late)[1][-1]
    by_driver = driven([mode(LOCAL), None], Clock(0.02), **late)[1][-1]
    assert (by_planner.verdict, by_planner.source) == (Verdict.LATE, PlanSource.CARRIED)
    assert (by_driver.verdict, by_driver.source) == (Verdict.LATE, PlanSource.STOP)


def test_the_diagnostics_say_who_drives():
    for modes, word in (([None], "unknown"), ([mode(LOCAL)], "driver"), ([mode(AUTONOMOUS)], "planner")):
        core = driven(modes)[2]
        assert core.planner_status(ns(1.0)).values["driven_by"] == word
