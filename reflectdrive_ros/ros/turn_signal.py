"""The turn signal of the car, from the bend of the route ahead. It does not flicker and does not overrule a driver."""

from __future__ import annotations

from .inputs.control import Signal, VehicleControl
from .inputs.route import KEEP_RAD, TURN_RAD

HOLD_S = 2.0  # a signal stays on for three flashes at least; the slowest legal rate is 60 a minute, the usual one 90


class TurnSignal:
    """A signal is switched on where the route turns by TURN_RAD within the next 25 m. It stays on for HOLD_S at least,
    and until less than KEEP_RAD of the turn is ahead, so that it does not end inside of the turn.

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
