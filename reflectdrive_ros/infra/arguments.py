"""Argument types with a range check, and settings as NAME=VALUE.

Every numeric option of every command has a `Range` as its `type` (checked by test/test_arguments.py).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import files, storage
from .cluster import LOCAL, Cluster
from .config_fields import ConfigError
from .documents import DocumentError, parse_yaml

Number = TypeVar("Number", int, float)
MAX_SHOWN_CHARS = 40  # of a rejected value in the error
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML reads 2e-4, without a point, as a text


@dataclass(frozen=True)
class Range(Generic[Number]):
    """Parses a finite number of the type of `low`, from `low` to `high`, both included."""

    low: Number
    high: Number
    unit: str = ""

    def __call__(self, text: str) -> Number:
        """Raises argparse.ArgumentTypeError: argparse prints one sentence and exits with code 2."""
        kind = type(self.low)
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not self.low <= value <= self.high:  # also of nan
            shown = text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}.."
            name, bounds = ("whole number", "{} to {}") if kind is int else ("number", "{:g} to {:g}")
            unit = self.unit and f" {self.unit}"
            raise argparse.ArgumentTypeError(f"'{shown}' is no {name} from {bounds.format(self.low, self.high)}{unit}")
        return value


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def positive_int(high: int = 1_000_000) -> Range[int]:
    """An integer from 1 to `high`."""
    return Range(1, high)


def process_count() -> Range[int]:
    """A number of processes or threads, at most four per core or 8."""
    return Range(1, max(8, 4 * available_cores()))


def add_workers_arguments(parser: argparse._ActionsContainer, name: str, default: int, help: str) -> None:
    """The option `name` for a number of processes, or `--cluster` in its place: one value, `parallel.Workers`."""
    group = parser.add_mutually_exclusive_group()
    # a string, so that argparse sees N beside --cluster also where N is the default
    group.add_argument(name, type=process_count(), default=str(default), metavar="N", help=help)
    group.add_argument(
        "--cluster",
        type=cluster,
        dest=name.removeprefix("--"),
        default=argparse.SUPPRESS,
        metavar="ADDRESS",
        help=f"in its place: the nodes of a Ray cluster, HOST:PORT of its head; {LOCAL} or {LOCAL}:CORES: this machine",
    )


def add_settings_argument(parser: argparse._ActionsContainer, help: str = "one setting, may be repeated") -> None:
    parser.add_argument("--setting", action="append", default=[], dest="settings", metavar="NAME=VALUE", help=help)


def settings_of(pairs: Sequence[str], read: Collection[str] = ()) -> Mapping[str, Any]:
    """Names and values of NAME=VALUE, of a command that reads `read` only: sections or settings; empty: all.

    Raises ConfigError, also for a setting without effect.
    """
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{pair}: expected NAME=VALUE, such as guard.max_speed_mps=15")
        if read and name not in read and name.partition(".")[0] not in read:
            raise ConfigError(f"--setting {files.shown(name)} has no effect here: the command reads {', '.join(read)}")
        try:
            values[name] = float(value) if EXPONENT.fullmatch(value) else parse_yaml(value)
        except DocumentError as fault:
            raise ConfigError(f"{files.shown(pair)}: the value {fault}") from None
    return values


def add_bags_argument(parser: argparse.ArgumentParser) -> None:
    """The recordings that a command reads."""
    help = "rosbag2 folder or file (mcap or sqlite3), or folder of bags"
    parser.add_argument("bags", type=location, nargs="+", metavar="BAG", help=help)


def cluster(text: str) -> Cluster:
    """Raises argparse.ArgumentTypeError."""
    host, _, port = text.rpartition(":")
    if text != LOCAL and not (host and "/" not in host and port.isdecimal() and PORT.low <= int(port) <= PORT.high):
        raise argparse.ArgumentTypeError(f"'{text[:MAX_SHOWN_CHARS]}' is neither HOST:PORT nor {LOCAL}[:CORES]")
    return Cluster(text)


def location(text: str) -> Path:
    """A path, or a URL of shared storage. Raises argparse.ArgumentTypeError."""
    try:
        return storage.location(text)
    except storage.StorageError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None


def duration(low: float, high: float = 86_400.0) -> Range[float]:
    """A time in seconds."""
    return Range(low, high, "seconds")


SEED = Range(0, 2**31 - 1)
INDEX = Range(0, 2**31 - 1)  # counted from 0
PORT = Range(1, 65_535)
