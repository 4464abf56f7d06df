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
from rich.table import Table

from ..core.config import Config, override_dotted
from ..infra import arguments
from ..infra.command import command, make_table, run_program
from ..infra.provenance import write_numbers
from ..planning import get_planner
from . import engine
from .validator import RAW_FORWARD_SHIFT, Margin, margins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bags", nargs="+", type=Path, metavar="BAG")
    parser.add_argument("--planner", help="recipe to use instead of the configured one")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    planner = {"planner": args.planner} if args.planner else {}
    config = override_dotted(Config(), {**arguments.settings_of(args.settings), **planner})
    get_planner(config)
    worst: dict[str, Margin] = {}
    plans = 0
    for bag in args.bags:
        count, margins = measure(bag, config, errors)
        plans += count
        for name, margin in margins.items():
            worst[name] = max(worst.get(name, margin), margin, key=lambda one: one.worst)
    rows = {name: {"worst": round(m.worst, 4), "limit": m.limit, "met": m.met} for name, m in worst.items()}
    write_numbers(args.json, {"checks": rows, "plans": plans, "bags": [bag.name for bag in args.bags]})
    console.print(table(worst, plans))
    return 0 if all(margin.met for name, margin in worst.items() if name != RAW_FORWARD_SHIFT) else 1


def measure(bag: Path, config: Config, errors: Console) -> tuple[int, dict[str, Margin]]:
    """The number of plans for a bag, and their margins. Raises BagError."""
    with TemporaryDirectory() as folder:
        record = engine.replay_bag(bag, Path(folder), engine.ReplayOptions(), config, errors, lambda share: None)
    return len(record.frames), margins(record.frames, config.vehicle.wheel_base_m)


def table(worst: dict[str, Margin], plans: int) -> Table:
    rows = []
    for name, margin in worst.items():
        used = f"{100 * margin.share:.0f} %" if margin.limit else ("-" if margin.met else "exceeded")
        note = " (without the extender, for information)" if name == RAW_FORWARD_SHIFT else ""
        rows.append((name + note, f"{margin.worst:.3f}", f"{margin.limit:g}", used))
    return make_table(("check", "worst", "limit", "used"), rows, f"Autoware's planning validator · {plans} plans")


if __name__ == "__main__":
    raise SystemExit(run_program(__doc__, add_arguments, run))
