"""A long drive in closed loop with the real node: does it grow, does it lose its rhythm, does it leak descriptors?

    make soak                       # an hour; docs/bench/soak.json
    make soak ARGS="--minutes 3"    # as continuous integration runs it

The world runs here at the pace of real time, the node in its own process. Every second the node's memory, descriptors
and threads are read. Each tick waits for its plan; where drawing is slower than time, ticks are longer than 0.1 s: that
is the world's rhythm and not the node's. Exit code 1 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from ..config import Config, override_dotted
from ..evaluation.provenance import write_numbers
from . import world_bag
from .bag import BagError
from .bench_node import growth_percent, resident_mb
from .demo import Answers
from .replay_node import isolated_environment, running_node
from .world_node import Pace, WorldNode, end_on_sigterm, own_context, remaps, require_running, spinning

MINUTES = 60.0
GROWTH_PERCENT = 2.0
LATE_SHARE = 0.001  # of plans
SETTLED = 0.1  # the first tenth: caches fill, the allocator finds its size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    world_bag.add_world_arguments(parser)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"of our time (default: {MINUTES:.0f})")
    parser.add_argument("--planner", default="route_follower", help="recipe (default: route_follower)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    args = parser.parse_args()
    end_on_sigterm()
    console, errors = Console(), Console(stderr=True)
    try:
        numbers = soaked(args, errors)
    except (BagError, *world_bag.WORLD_FAULTS) as fault:
        errors.print(escape(str(fault)), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("stopped")
        return 130
    if args.json:
        write_numbers(args.json, numbers)
    console.print(table(numbers))
    return 0 if numbers["met"] else 1


def soaked(args: argparse.Namespace, errors: Console) -> dict[str, Any]:
    """Drive for so many minutes; the numbers."""
    config: Config = override_dotted(Config(), {"planner": args.planner})
    os.environ.update(isolated_environment())
    watch = Watch()
    moments = fresh = 0
    context = own_context()
    with TemporaryDirectory() as folder, world_bag.opened_world(args, config) as world:
        log = Path(folder) / "node.log"
        node, answers = WorldNode(world, config, world_bag.rig_of(config), context=context), Answers(context)
        with spinning(node, answers, context=context), running_node(config, remaps(config), log) as process:
            node.wait_for_planner(process, log)
            began = time.perf_counter()
            with Progress(console=errors, transient=True) as progress:
                task = progress.add_task("soaking", total=args.minutes)
                for moment in node.drive(None, Pace(lock_step=True)):
                    require_running(process, log)
                    moments, fresh = moments + 1, fresh + moment.fresh
                    watch.look(process.pid, answers)
                    minutes = (time.perf_counter() - began) / 60.0
                    progress.update(task, completed=minutes)
                    if minutes >= args.minutes:
                        break
    return {**watch.numbers(), "moments": moments, "fresh_plans": fresh, "minutes": args.minutes}


class Watch:
    """What is looked at once a second, and every plan's own times."""

    def __init__(self) -> None:
        self.memory_mb: list[float] = []
        self.descriptors: list[int] = []
        self.threads: list[int] = []
        self.total_ms: list[float] = []
        self.late = self.stops = 0
        self._due = 0.0

    def look(self, pid: int, answers: Answers) -> None:
        for _, status in answers.kept["status"]:
            self.total_ms.append(float(status.time_received_to_published))
            self.late += status.verdict == status.VERDICT_LATE
            self.stops += status.source == status.SOURCE_STOP
        for kept in answers.kept.values():  # the drive is long: what has been counted is let go
            kept.clear()
        if time.perf_counter() >= self._due:
            self._due = time.perf_counter() + 1.0
            self.memory_mb.append(resident_mb(pid))
            self.descriptors.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
            self.threads.append(len(list(Path(f"/proc/{pid}/task").iterdir())))

    def numbers(self) -> dict[str, Any]:
        growth, late = growth_percent(self.memory_mb), self.late / max(len(self.total_ms), 1)
        leaked = grown(self.descriptors)
        limits = {
            "memory_growth_percent": growth <= GROWTH_PERCENT,
            "descriptors_leaked": leaked <= 0,
            "threads_leaked": grown(self.threads) <= 0,
            "late_share": late <= LATE_SHARE,
        }
        return {
            "memory_mb_first": self.memory_mb[0],
            "memory_mb_last": self.memory_mb[-1],
            "memory_growth_percent": growth,
            "descriptors_leaked": leaked,
            "threads_leaked": grown(self.threads),
            "plans": len(self.total_ms),
            "late": self.late,
            "late_share": late,
            "stops": self.stops,
            "total_ms_p50": float(np.percentile(self.total_ms or [np.nan], 50)),
            "total_ms_p99": float(np.percentile(self.total_ms or [np.nan], 99)),
            "total_ms_max": float(np.max(self.total_ms or [np.nan])),
            "limits_met": limits,
            "met": all(limits.values()),
        }


def grown(counts: Sequence[int]) -> int:
    """How many more there are at the end than once things had settled (both: the least over a tenth of the time)."""
    tenth = max(1, round(SETTLED * len(counts)))
    return int(min(counts[-tenth:]) - min(counts[tenth : 2 * tenth] or counts[:1]))


def table(numbers: dict[str, Any]) -> Table:
    made = Table(title=f"soak · {numbers['minutes']:g} min", show_header=False)
    made.add_row(
        "memory",
        f"{numbers['memory_mb_first']:.0f} to {numbers['memory_mb_last']:.0f} MB, "
        f"{numbers['memory_growth_percent']:+.2f} % (allowed {GROWTH_PERCENT:g} %)",
    )
    made.add_row("descriptors, threads more", f"{numbers['descriptors_leaked']}, {numbers['threads_leaked']}")
    made.add_row("plans", f"{numbers['plans']} in {numbers['moments']} moments, {numbers['fresh_plans']} in time")
    made.add_row("late, stops", f"{numbers['late']}, {numbers['stops']}")
    made.add_row(
        "received to published p50 / p99 / max",
        f"{numbers['total_ms_p50']:.1f} / {numbers['total_ms_p99']:.1f} / {numbers['total_ms_max']:.1f} ms",
    )
    made.add_row("met", "yes" if numbers["met"] else ", ".join(k for k, v in numbers["limits_met"].items() if not v))
    return made


if __name__ == "__main__":
    raise SystemExit(main())
