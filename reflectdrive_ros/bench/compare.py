"""`reflectdrive bench compare OLD.json NEW.json`: which times of two measurements differ by more than noise.

Machines differ, and one machine differs from minute to minute. A time whose bound was measured in the same run is
therefore compared as a multiple of it. Noise is the spread between the quartiles of both measurements, relative to
their medians and added as independent errors; where a file has no quartiles ASSUMED_NOISE stands for it.

No setting (--setting) changes the comparison.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..infra import files
from ..infra.command import command, make_table
from ..infra.errors import UserError
from ..infra.provenance import write_numbers

FILE_BYTES = 2**24
ASSUMED_NOISE = 0.1  # relative, of a time without quartiles
MILLISECONDS = re.compile(r"(^|_)ms(_|$)")
DERIVED = ("bound_", "roofline_", "quartiles_")  # not times of ours


@dataclass(frozen=True)
class Change:
    """One time of both files."""

    name: str
    old_ms: float
    new_ms: float
    ratio: float  # new / old, of multiples of the bound where both files have it
    noise: float  # relative
    by_bound: bool

    @property
    def verdict(self) -> str:
        if abs(self.ratio - 1.0) <= self.noise:
            return "within noise"
        return "faster" if self.ratio < 1.0 else "slower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, metavar="OLD.json", help="a file that a bench wrote with --json")
    parser.add_argument("new", type=Path, metavar="NEW.json", help="a later one of the same bench")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0, whatever the comparison says; 2 with one sentence on stderr if a file cannot be compared."""
    changes = compare(read_numbers(args.old), read_numbers(args.new))
    if not changes:
        raise UserError(f"{args.old} and {args.new} have no time in ms in common: compare two files of the same bench")
    rows = [
        (
            change.name,
            f"{change.old_ms:.3g}",
            f"{change.new_ms:.3g}",
            f"{change.ratio:.2f}" + ("" if change.by_bound else " *"),
            f"{100.0 * change.noise:.0f} %",
            change.verdict,
        )
        for change in changes
    ]
    headings = ("time", "old, ms", "new, ms", "new / old", "noise", "verdict")
    caption = "ratios of multiples of the bound of each run; * of times, whose file has no bound"
    console.print(make_table(headings, rows, f"{args.old.name} and {args.new.name}", caption, texts=1))
    content = {
        change.name: {"ratio": change.ratio, "noise": change.noise, "verdict": change.verdict} for change in changes
    }
    write_numbers(args.json, content)


def read_numbers(path: Path) -> dict[str, Any]:
    """The numbers of a file by their dotted names. Raises UserError."""
    try:
        content = json.loads(files.read_limited(path, FILE_BYTES))
    except OSError as fault:
        raise UserError(f"{path} cannot be read: {fault.strerror or fault}") from None
    except ValueError as fault:
        raise UserError(f"{path} is no JSON file: {fault}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no numbers by name: name a file that a bench wrote with --json")
    return dict(_flat(content))


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The times that both have, in the order of the old."""
    return [
        _change(name, old, new)
        for name in old
        if MILLISECONDS.search(name)
        and not name.startswith(DERIVED)
        and _is_time(old[name])
        and _is_time(new.get(name))
    ]


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0.0


def _change(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    # `full_ms_p50` of bench planner has the bound `roofline_full_ms`
    names = (f"bound_{name}", "roofline_" + re.sub(r"_p\d+$", "", name))
    bound = next((each for each in names if _is_time(old.get(each)) and _is_time(new.get(each))), None)
    ratio = float(new[name]) / float(old[name])
    if bound is not None:
        ratio *= float(old[bound]) / float(new[bound])
    noise = float(sum(_noise(name, numbers) ** 2 for numbers in (old, new)) ** 0.5)
    return Change(name, float(old[name]), float(new[name]), ratio, noise, bound is not None)


def _noise(name: str, numbers: Mapping[str, Any]) -> float:
    quartiles = numbers.get(f"quartiles_{name}")
    if not isinstance(quartiles, list) or len(quartiles) != 2:
        return ASSUMED_NOISE
    return float(quartiles[1] - quartiles[0]) / float(numbers[name])
