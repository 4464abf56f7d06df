"""Margins of our plans to the limits of Autoware's planning validator: bags through the engine, a table.

    python -m reflectdrive_ros.replay.conformance BAG... --json docs/bench/conformance.json
    python -m reflectdrive_ros.replay.conformance BAG --planner reflectdrive2 route_follower

Exit code 1 when more than 1 % of the plans of a planner exceed a limit.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, override_dotted
from ..core.domain import Array
from ..infra import arguments
from ..infra.command import command, make_table, run_program
from ..infra.provenance import write_numbers
from ..planning import get_planner
from ..ros.bag import BagError
from ..runtime import cli_args
from . import engine
from .validator import Margin, check_values, margins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bags", nargs="+", type=Path, metavar="BAG")
    parser.add_argument("--planner", nargs="+", metavar="PLANNER", help="recipes to use instead of the configured one")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    settings = arguments.settings_of(args.settings)
    named = [{"planner": name} for name in args.planner or ()]
    configs = [override_dotted(Config(), {**settings, **planner}) for planner in named or [{}]]
    for config in configs:
        get_planner(config)
    planners: dict[str, dict[str, Any]] = {}
    for config in configs:
        values = np.concatenate([measure(bag, config, errors) for bag in args.bags])
        if not len(values):
            raise BagError("the bags gave no plan")
        checks = margins(values)
        planners[config.planner] = {"plans": len(values), "checks": rows_of(checks)}
        console.print(table(checks, config.planner, len(values)))
    numbers = {"bags": [bag.name for bag in args.bags], "planners": planners}
    write_numbers(args.json, numbers, weights_sha256=cli_args.weights_of(configs[0], list(planners)))
    return 0 if all(row["met"] for planner in planners.values() for row in planner["checks"].values()) else 1


def rows_of(checks: dict[str, Margin]) -> dict[str, dict[str, float | bool]]:
    return {
        name: {"worst": round(m.worst, 4), "limit": m.limit, "share_over": round(m.share_over, 4), "met": m.met}
        for name, m in checks.items()
    }


def measure(bag: Path, config: Config, errors: Console) -> Array:
    """`check_values` (P, K) of the plans for a bag. Raises BagError."""
    with TemporaryDirectory() as folder:
        record = engine.replay_bag(bag, Path(folder), engine.ReplayOptions(), config, errors, lambda share: None)
    return check_values(record.frames, config.vehicle.wheel_base_m)


def table(checks: dict[str, Margin], planner: str, plans: int) -> Table:
    rows = []
    for name, margin in checks.items():
        used = f"{100 * margin.used:.0f} %" if margin.limit else "-"
        over = f"{100 * margin.share_over:.1f} %" + ("" if margin.met else " (too many)")
        rows.append((name, f"{margin.worst:.3f}", f"{margin.limit:g}", used, over))
    columns = ("check", "worst", "limit", "used", "plans over it")
    return make_table(columns, rows, f"Autoware's planning validator · {planner} · {plans} plans")


if __name__ == "__main__":
    raise SystemExit(run_program(__doc__, add_arguments, run))
