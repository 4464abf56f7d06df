"""Who drives the car, and which turn signal is on and should be: Autoware's operation mode, the vehicle's report, and
the bend of the route ahead.

Both inputs are optional. Without them the planner is taken to drive, and the turn signal is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...core.messages import BadMessage
from .route import KEEP_RAD, TURN_RAD

MODES = range(5)  # UNKNOWN, STOP, AUTONOMOUS, LOCAL, REMOTE of autoware_adapi_v1_msgs/OperationModeState
AUTONOMOUS = 2
HOLD_S = 2.0  # a signal stays on for three flashes at least; the slowest legal rate is 60 a minute, the usual one 90


class Signal(IntEnum):
    """A turn signal; the numbers are those of autoware_vehicle_msgs' TurnIndicatorsReport and TurnIndicatorsCommand."""

    OFF = 1
    LEFT = 2
    RIGHT = 3


@dataclass(frozen=True)
class VehicleControl:
    """Who drives the car, and the turn signal that the vehicle shows. None means unknown."""

    autonomous: bool | None = None
    signal: Signal | None = None

    @property
    def by_driver(self) -> bool:
        """Whether it is known that the car does not follow Autoware's plans."""
        return self.autonomous is False


UNKNOWN_CONTROL = VehicleControl()


def is_autonomous(message: Any) -> bool:
    """Whether the car follows Autoware's plans, of an OperationModeState; also while it is being engaged.

    Raises BadMessage for a mode that does not exist.
    """
    if message.mode not in MODES:
        raise BadMessage(f"operation mode {message.mode} does not exist: check the version of autoware_adapi_v1_msgs")
    return bool(message.mode == AUTONOMOUS and message.is_autoware_control_enabled)


def reported_signal(message: Any) -> Signal:
    """The signal of a TurnIndicatorsReport. Raises BadMessage for a number that is none."""
    try:
        return Signal(message.report)
    except ValueError:
        raise BadMessage(f"turn signal {message.report} does not exist, expected 1, 2 or 3: check its sender") from None


class TurnSignal:
    """A signal is switched on where the route turns by TURN_RAD within the next 25 m. It stays on for HOLD_S at least,
    and until less than KEEP_RAD of the turn is ahead, so that it neither flickers nor ends inside of the turn.

    While a driver drives there is no command, and the driver's signal counts as ours when the planner takes over.
    """

    def __init__(self) -> None:
        self._signal: Signal | None = None  # None: no command
        self._since_s = 0.0  # time at which it was switched on or off

    def update(self, bend_rad: float | None, control: VehicleControl, now_s: float) -> Signal | None:
        """The signal to command; None: no command, the driver's own signal stays.

        `bend_rad`: change of heading of the route ahead, left positive; None: unknown, the signal stays.
        `now_s`: any clock; where it goes back the hold begins again.
        """
        if control.by_driver:
            self._signal = None
            return None
        if self._signal is None:  # the planner takes over, or has just been started
            self._signal, self._since_s = control.signal or Signal.OFF, now_s
        requested = self._signal if bend_rad is None else self._requested_signal(bend_rad)
        is_holding = self._signal is not Signal.OFF and 0.0 <= now_s - self._since_s < HOLD_S
        if requested is not self._signal and not is_holding:
            self._signal, self._since_s = requested, now_s
        return self._signal

    def _requested_signal(self, bend_rad: float) -> Signal:
        ahead = Signal.LEFT if bend_rad > 0.0 else Signal.RIGHT
        if abs(bend_rad) >= TURN_RAD:
            return ahead
        return ahead if ahead is self._signal and abs(bend_rad) >= KEEP_RAD else Signal.OFF
