"""Argument types with a range check, and the errors for renamed options.

Every numeric option of every command has `IntRange` or `FloatRange` as its `type` (checked by test/test_arguments.py).
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SHOWN_CHARS = 40  # of a rejected value in the error


@dataclass(frozen=True)
class IntRange:
    """Parses an integer from `low` to `high`, both included."""

    low: int
    high: int
    unit: str = ""

    def __call__(self, text: str) -> int:
        """Raises argparse.ArgumentTypeError: argparse prints one sentence and exits with code 2."""
        try:
            value = int(text)
        except ValueError:
            value = self.low - 1
        if not self.low <= value <= self.high:
            raise _refused(text, "whole number", f"{self.low}", f"{self.high}", self.unit)
        return value


@dataclass(frozen=True)
class FloatRange:
    """Parses a finite number from `low` to `high`, both included."""

    low: float
    high: float
    unit: str = ""

    def __call__(self, text: str) -> float:
        """Raises argparse.ArgumentTypeError: argparse prints one sentence and exits with code 2."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:  # also of nan
            raise _refused(text, "number", f"{self.low:g}", f"{self.high:g}", self.unit)
        return value


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def positive_int(high: int = 1_000_000) -> IntRange:
    """An integer from 1 to `high`."""
    return IntRange(1, high)


def process_count() -> IntRange:
    """A number of processes or threads, at most four per core or 8."""
    return IntRange(1, max(8, 4 * available_cores()))


def duration(low: float, high: float = 86_400.0) -> FloatRange:
    """A time in seconds."""
    return FloatRange(low, high, "seconds")


SEED = IntRange(0, 2**31 - 1)
INDEX = IntRange(0, 2**31 - 1)  # counted from 0
PORT = IntRange(1, 65_535)


def _refused(text: str, kind: str, low: str, high: str, unit: str) -> argparse.ArgumentTypeError:
    shown = text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}.."
    return argparse.ArgumentTypeError(f"'{shown}' is no {kind} from {low} to {high}{unit and f' {unit}'}")


def add_renamed_options(parser: argparse._ActionsContainer, options: Mapping[str, str]) -> None:
    """Rejects former option names (without dashes) with one sentence that names the current option; exit code 2."""
    for former, current in options.items():
        parser.add_argument(
            f"--{former}", action=_Renamed, nargs="*", current=current, dest=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


class _Renamed(argparse.Action):
    def __init__(self, *, current: str, **options: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **options)
        self._current = current

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string} is now called {self._current}")
