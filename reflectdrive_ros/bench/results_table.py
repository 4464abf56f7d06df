"""Tables of the pages of results in Markdown, and the line below each that says where its numbers are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..infra.errors import UserError

Numbers = Mapping[str, Any]
STALE = "stale"  # the key that `results` adds to numbers that are not of the present code


class ResultsError(UserError):
    """The results cannot be written; the message gives the reason."""


def cell(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def origin(some: Mapping[str, Numbers]) -> str:
    """The origin of a table's numbers. Raises ResultsError when the files are of different weights."""
    weights: dict[str, str] = {}  # hash -> the first file with it
    for stem, numbers in some.items():
        if numbers.get("weights_sha256"):
            weights.setdefault(numbers["weights_sha256"], stem)
    if len(weights) > 1:
        one, other, *_ = weights.items()
        raise ResultsError(
            f"{one[1]}.json and {other[1]}.json are in one table but of different weights ({one[0][:8]}, "
            f"{other[0][:8]}): measure one of them again or remove it"
        )
    return "".join(
        f"- `{stem}.json`: `{numbers['command']}`, {_weights(numbers)}commit {numbers['commit'][:12]}, "
        f"{numbers['date'][:10]}{_device(numbers)}{_stale(numbers)}\n"
        for stem, numbers in some.items()
    )


def _weights(numbers: Numbers) -> str:
    hashes = numbers.get("weights_sha256")  # of several networks, separated by commas
    return f"weights {', '.join(f'`{each[:8]}`' for each in hashes.split(', '))}, " if hashes else ""


def _device(numbers: Numbers) -> str:
    """Of times; scores do not depend on it."""
    return f", {numbers['device']}" if numbers["command"].startswith("reflectdrive bench") else ""


def _stale(numbers: Numbers) -> str:
    return f", **stale: {numbers[STALE]}**" if numbers.get(STALE) else ""
