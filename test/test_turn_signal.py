"""The turn signal: on before a turn and until its end, never for a moment only, the driver's while a driver drives."""

import numpy as np
import pytest
from scenes import ego, turning_route

from reflectdrive_ros.core import geometry
from reflectdrive_ros.ros.inputs.control import HOLD_S, Signal, TurnSignal, VehicleControl
from reflectdrive_ros.ros.inputs.route import MapRoute, bend_ahead, route_around_ego

OFF, LEFT, RIGHT = Signal
PLANNER, DRIVER = VehicleControl(True), VehicleControl(False)
TURN, REST, STRAIGHT = np.deg2rad([60.0, 12.0, 1.0])


def signals_of(bends, control=PLANNER, dt_s=0.1, signal=None):
    """The commanded signals for bends (N,) that the route ahead has at each step."""
    signal = signal or TurnSignal()
    return [signal.update(bend, control, dt_s * step) for step, bend in enumerate(bends)]


@pytest.mark.parametrize(
    ("bends", "signals"),
    [
        ([STRAIGHT, TURN], [OFF, LEFT]),
        ([STRAIGHT, -TURN], [OFF, RIGHT]),
        ([*[TURN] * 30, *[REST] * 30, *[STRAIGHT] * 2], [*[LEFT] * 60, OFF, OFF]),
        ([REST] * 3, [OFF] * 3),
        ([*[TURN] * 30, *[-TURN] * 30], [*[LEFT] * 30, *[RIGHT] * 30]),
        ([TURN, *[None] * 100], [LEFT] * 101),
    ],
    ids=["left", "right", "until the turn is driven", "not for its rest alone", "two turns", "the route is unknown"],
)
def test_a_signal_is_on_where_a_turn_is_ahead(bends, signals):
    assert signals_of(bends) == signals
    assert signals_of(bends, VehicleControl()) == signals  # also where nobody says who drives
    assert signals_of(bends, DRIVER) == [None] * len(bends)  # no command while a driver drives


def test_a_signal_does_not_flicker_about_its_threshold():
    noise = np.random.default_rng(0).normal(0.0, np.deg2rad(5.0), 300)
    signals = signals_of([STRAIGHT, *(np.deg2rad(22.0) + np.clip(noise, np.deg2rad(-12.0), None))])
    first = signals.index(LEFT)
    assert 0 < first < 10
    assert signals == [OFF] * first + [LEFT] * (301 - first)


def test_even_a_signal_for_a_moment_flashes_three_times():
    signals = signals_of([STRAIGHT, TURN, *[STRAIGHT] * 40])
    assert signals.count(LEFT) * 0.1 == pytest.approx(HOLD_S)
    assert signals[-1] is OFF


def test_the_drivers_signal_is_taken_over_and_not_cut_off():
    signal = TurnSignal()
    assert signal.update(STRAIGHT, VehicleControl(False, RIGHT), 0.0) is None
    assert signal.update(STRAIGHT, VehicleControl(True, RIGHT), 0.1) is RIGHT
    assert signal.update(STRAIGHT, VehicleControl(True, RIGHT), 0.1 + HOLD_S - 0.01) is RIGHT
    assert signal.update(STRAIGHT, VehicleControl(True, RIGHT), 0.1 + HOLD_S) is OFF


def test_the_signal_of_the_last_drive_by_the_planner_does_not_come_back():
    signal = TurnSignal()
    assert signal.update(TURN, PLANNER, 0.0) is LEFT
    assert signal.update(STRAIGHT, DRIVER, 0.1) is None
    assert signal.update(STRAIGHT, VehicleControl(True, OFF), 0.2) is OFF


def test_a_clock_that_goes_back_does_not_hold_a_signal_for_ever():
    signal = TurnSignal()
    assert signal.update(TURN, PLANNER, 1000.0) is LEFT
    assert signal.update(STRAIGHT, PLANNER, 3.0) is OFF


def test_through_a_right_angle_the_signal_goes_on_once_and_off_once_after_the_turn():
    """A car at 5 m/s on a route that turns left between 50 m and 69 m from its begin."""
    route, signal = turning_route(radius=12.0, before=30.0), TurnSignal()
    positions_m = np.arange(5.0, 100.0, 0.5)
    signals = []
    for step, here in enumerate(geometry.sample(route, positions_m)):
        ahead = route_around_ego(MapRoute(route, np.full(len(route), np.nan)), ego(at=here), None)
        signals.append(signal.update(bend_ahead(ahead.poses), PLANNER, 0.1 * step))
    on_m = positions_m[[one is LEFT for one in signals]]
    assert np.diff(on_m).max() == pytest.approx(0.5)
    assert on_m[0] < 35.0
    assert abs(on_m[-1] - 68.0) < 3.0
