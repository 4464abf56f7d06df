"""Who drives the car, and which turn signal is on: Autoware's operation mode and the vehicle's report.

Both inputs are optional. Without them the planner is taken to drive, and the turn signal is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...core.messages import BadMessage

MODES = range(5)  # UNKNOWN, STOP, AUTONOMOUS, LOCAL, REMOTE of autoware_adapi_v1_msgs/OperationModeState
AUTONOMOUS = 2


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
