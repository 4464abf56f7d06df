"""A long closed-loop drive with the real node: memory growth, late plans, descriptor leaks.

    make soak                       # four hours of simulated time; docs/bench/long_runs/soak.json
    make soak ARGS="--minutes 3"    # the last --minutes counts

The world runs in this process, the node in its own. Each tick of 0.1 s simulated time waits for its plan, and the next
begins at once: a planner of 20 ms drives four hours in about two. The node's memory, descriptors and threads are read
every second. A plan is late by `engine.deadline_ms`; `gap_ms` is the time between published plans. Exit code 1 when a
limit is exceeded. A signal ends the drive early: the numbers are those until then.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, override_dotted
from ..demo import world_bag
from ..demo.world_node import WorldNode, new_context, remaps, spin_in_background
from ..infra import arguments
from ..infra.command import command, make_list
from ..infra.progress import ShownProgress
from ..infra.provenance import write_numbers
from ..infra.signals import defer_signals
from ..replay.node import PlannerOutputs
from ..ros.processes import isolated_environment, require_running, running_node
from ..runtime import cli_args
from .node import growth_percent, resident_mb

MINUTES = 60.0
GROWTH_PERCENT = 2.0
LATE_SHARE = 0.001  # of plans
WARM_UP_SHARE = 0.1  # the first tenth: caches fill, the allocator finds its size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    world_bag.add_world_arguments(parser)
    parser.add_argument(
        "--minutes", type=arguments.Range(0.1, 10_080.0, "minutes"), default=MINUTES, help="of simulated time"
    )
    parser.add_argument("--planner", default=Config().planner, help="recipe")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    config = override_dotted(Config(), {**arguments.settings_of(args.settings), "planner": args.planner})
    numbers = run_soak(args, config, errors)
    write_numbers(args.json, numbers, weights_sha256=cli_args.weights_of(config, [args.planner]))
    console.print(table(numbers))
    return 0 if numbers["met"] else 1


def run_soak(args: argparse.Namespace, config: Config, errors: Console) -> dict[str, Any]:
    """Drives for `args.minutes`; returns the numbers."""
    os.environ.update(isolated_environment())
    watch = ProcessMonitor()
    moments, fresh, minutes = 0, 0, 0.0
    context = new_context()
    with TemporaryDirectory() as folder, world_bag.open_world(args, config) as world:
        log = Path(folder) / "node.log"
        node, answers = WorldNode(world, config, world_bag.camera_rig(config), context=context), PlannerOutputs(context)
        with spin_in_background(node, answers, context=context), running_node(config, remaps(config), log) as process:
            node.wait_for_planner(process, log)
            begin_s, begin_ns = time.perf_counter(), world.stamp_ns
            with ShownProgress(errors) as progress, defer_signals() as request:
                task = progress.add_task("soaking", total=args.minutes)
                for moment in node.drive(None, lock_step=True, real_time=False):
                    require_running(process, log)
                    moments, fresh = moments + 1, fresh + moment.fresh
                    watch.sample(process.pid, answers)
                    minutes = (world.stamp_ns - begin_ns) / 60e9
                    progress.update(task, completed=minutes, description=f"soaking, {watch.so_far()}")
                    if minutes >= args.minutes or request.number is not None:
                        break
            wall_minutes = (time.perf_counter() - begin_s) / 60.0
    return {
        "planner": args.planner,
        **watch.numbers(),
        "moments": moments,
        "fresh_plans": fresh,
        "minutes": round(minutes, 1),
        "wall_minutes": round(wall_minutes, 1),
    }


class ProcessMonitor:
    """The values read once a second, and every plan's own times."""

    def __init__(self) -> None:
        self.memory_mb: list[float] = []
        self.descriptors: list[int] = []
        self.threads: list[int] = []
        self.total_ms: list[float] = []
        self.gaps_ms: list[float] = []  # between plans
        self.steps, self.late_steps = Counter[str](), Counter[str]()  # by kind
        self.late = self.stops = 0
        self._due = 0.0
        self._before: float | None = None

    def sample(self, pid: int, answers: PlannerOutputs) -> None:
        for at, status in answers.received["status"]:
            if self._before is not None:
                self.gaps_ms.append(1e3 * (at - self._before))
            self._before = at
            self.total_ms.append(float(status.time_received_to_published))
            self.steps[status.step_kind] += 1
            if status.verdict == status.VERDICT_LATE:
                self.late += 1
                self.late_steps[status.step_kind] += 1
            self.stops += status.source == status.SOURCE_STOP
        for messages in answers.received.values():  # the drive is long: what has been counted is let go
            messages.clear()
        if time.perf_counter() >= self._due:
            self._due = time.perf_counter() + 1.0
            self.memory_mb.append(resident_mb(pid))
            self.descriptors.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
            self.threads.append(len(list(Path(f"/proc/{pid}/task").iterdir())))

    def so_far(self) -> str:
        return f"{len(self.total_ms)} plans, {self.late} late, {self.stops} stops, {self.memory_mb[-1]:.0f} MB"

    def numbers(self) -> dict[str, Any]:
        growth, late = growth_percent(self.memory_mb), self.late / max(len(self.total_ms), 1)
        descriptors, threads = settled_growth(self.descriptors), settled_growth(self.threads)
        limits = {
            "memory_growth_percent": growth <= GROWTH_PERCENT,
            "descriptors_leaked": descriptors <= 0,
            "threads_leaked": threads <= 0,
            "late_share": late <= LATE_SHARE,
        }
        return {
            "memory_mb_first": self.memory_mb[0],
            "memory_mb_last": self.memory_mb[-1],
            "memory_growth_percent": growth,
            "descriptors_leaked": descriptors,
            "threads_leaked": threads,
            "plans": len(self.total_ms),
            "late": self.late,
            "late_share": late,
            "stops": self.stops,
            "steps": dict(self.steps),
            "late_steps": dict(self.late_steps),
            **percentiles("total_ms", self.total_ms),
            **percentiles("gap_ms", self.gaps_ms),
            "limits_met": limits,
            "met": all(limits.values()),
        }


def percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    percentiles = (("p50", 50), ("p99", 99), ("max", 100))
    return {f"{name}_{key}": float(np.percentile(values or [np.nan], at)) for key, at in percentiles}


def settled_growth(counts: Sequence[int]) -> int:
    """How many more there are at the end than once things had settled (both: the least over a tenth of the time)."""
    tenth = max(1, round(WARM_UP_SHARE * len(counts)))
    return int(min(counts[-tenth:]) - min(counts[tenth : 2 * tenth] or counts[:1]))


def table(numbers: dict[str, Any]) -> Table:
    late = ", ".join(
        f"{numbers['late_steps'].get(kind, 0)} of {count} {kind}" for kind, count in numbers["steps"].items()
    )
    rows = {
        "memory": f"{numbers['memory_mb_first']:.0f} to {numbers['memory_mb_last']:.0f} MB, "
        f"{numbers['memory_growth_percent']:+.2f} % (allowed {GROWTH_PERCENT:g} %)",
        "descriptors, threads more": f"{numbers['descriptors_leaked']}, {numbers['threads_leaked']}",
        "plans": f"{numbers['plans']} in {numbers['moments']} moments, {numbers['fresh_plans']} in time",
        "late": late,
        "stops": str(numbers["stops"]),
    }
    for name, key in (("received to published", "total_ms"), ("from plan to plan", "gap_ms")):
        times = " / ".join(f"{numbers[f'{key}_{at}']:.1f}" for at in ("p50", "p99", "max"))
        rows[f"{name} p50 / p99 / max"] = f"{times} ms"
    rows["limits exceeded"] = ", ".join(name for name, met in numbers["limits_met"].items() if not met) or "none"
    return make_list(f"soak · {numbers['planner']} · {numbers['minutes']:g} min", rows)
