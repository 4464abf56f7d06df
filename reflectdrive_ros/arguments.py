"""Types of the numbers that commands take: argparse refuses all that lies outside of a range with one sentence.

Every numeric option of every command has one of these as its `type` (test/test_arguments.py).
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass

LONGEST = 40  # characters of a refused value that the sentence repeats


@dataclass(frozen=True)
class Whole:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    unit: str = ""

    def __call__(self, text: str) -> int:
        """Raises argparse.ArgumentTypeError, which argparse tells as exit code 2 and one sentence."""
        try:
            value = int(text)
        except ValueError:
            value = self.low - 1
        if not self.low <= value <= self.high:
            raise _refused(text, "whole number", f"{self.low}", f"{self.high}", self.unit)
        return value


@dataclass(frozen=True)
class Real:
    """A finite number from `low` to `high`, both included."""

    low: float
    high: float
    unit: str = ""

    def __call__(self, text: str) -> float:
        """Raises argparse.ArgumentTypeError, which argparse tells as exit code 2 and one sentence."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:  # also of nan
            raise _refused(text, "number", f"{self.low:g}", f"{self.high:g}", self.unit)
        return value


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def count(high: int = 1_000_000) -> Whole:
    """Of things of which there is at least one."""
    return Whole(1, high)


def processes() -> Whole:
    """Of processes or threads at the same time; more than a few for each core only wait for each other."""
    return Whole(1, max(8, 4 * cores()))


def duration(low: float, high: float = 86_400.0) -> Real:
    return Real(low, high, "seconds")


SEED = Whole(0, 2**31 - 1)
PLACE = Whole(0, 2**31 - 1)  # in an order that begins with 0
PORT = Whole(1, 65_535)


def _refused(text: str, kind: str, low: str, high: str, unit: str) -> argparse.ArgumentTypeError:
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}.."
    return argparse.ArgumentTypeError(f"'{shown}' is no {kind} from {low} to {high}{unit and f' {unit}'}")
