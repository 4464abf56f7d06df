"""Margins of our plans to the limits of Autoware's planning validator: bags through the engine, a table.

    python -m reflectdrive_ros.replay.conformance BAG... --json docs/bench/conformance.json
    python -m reflectdrive_ros.replay.conformance BAG --planner constant_velocity

Exit code 1 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config import ConfigError
from ..provenance import write_numbers
from ..ros.bag import BagError
from ..runtime import cli_args
from . import engine
from .validator import RAW_FORWARD_SHIFT, Margin, margins


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bags", nargs="+", type=Path, metavar="BAG")
    parser.add_argument("--planner", help="recipe to use instead of the configured one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    args = parser.parse_args()
    console, errors = Console(), Console(stderr=True)
    worst: dict[str, Margin] = {}
    plans = 0
    try:
        for bag in args.bags:
            count, found = measure(bag, args.planner, errors)
            plans += count
            for name, margin in found.items():
                worst[name] = max(worst.get(name, margin), margin, key=lambda one: one.worst)
    except (BagError, ConfigError) as fault:
        errors.print(escape(str(fault)), soft_wrap=True)
        return 2
    if args.json:
        rows = {name: {"worst": round(m.worst, 4), "limit": m.limit, "met": m.met} for name, m in worst.items()}
        write_numbers(args.json, {"checks": rows, "plans": plans, "bags": [bag.name for bag in args.bags]})
    console.print(table(worst, plans))
    return 0 if all(margin.met for name, margin in worst.items() if name != RAW_FORWARD_SHIFT) else 1


def measure(bag: Path, planner: str | None, errors: Console) -> tuple[int, dict[str, Margin]]:
    """The plans of a bag, and their margins. Raises BagError or ConfigError."""
    with TemporaryDirectory() as folder:
        parser = argparse.ArgumentParser()
        engine.add_arguments(parser)
        words = [str(bag), "--out", folder, *(["--planner", planner] if planner else [])]
        args = parser.parse_args(words)
        config = cli_args.configuration(args)
        record, _ = engine.replay(args, config, errors)
    return len(record.frames), margins(record.frames, config.vehicle.wheel_base_m)


def table(worst: dict[str, Margin], plans: int) -> Table:
    made = Table("check", "worst", "limit", "used", title=f"Autoware's planning validator · {plans} plans")
    for name, margin in worst.items():
        used = f"{100 * margin.share:.0f} %" if margin.limit else ("-" if margin.met else "exceeded")
        note = " (without the extender, for information)" if name == RAW_FORWARD_SHIFT else ""
        made.add_row(name + note, f"{margin.worst:.3f}", f"{margin.limit:g}", used)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
