"""`reflectdrive bench cluster`: a Ray cluster on this machine against the local pool, on the same closed-loop drives.

Both run the drives of `route_follower` in the same towns, alternately; results must be equal.
Wall time is that of this machine with its other load. CPU time is that of all processes of a run, from /proc, with
those that Ray keeps for itself; the start of Ray and of its workers, once per command, is not in them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import arguments, cluster
from ..cluster import LOCAL, Cluster
from ..command import command, make_table, track_progress
from ..config import Config, override_dotted
from ..errors import UserError
from ..evaluation import closed_loop
from ..parallel import Workers
from ..provenance import write_numbers

PLANNER = "route_follower"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=arguments.process_count(), default=2, metavar="N", help="processes, and cores of the cluster"
    )
    parser.add_argument("--seeds", type=arguments.positive_int(10_000), default=8, metavar="N", help="drives in a run")
    parser.add_argument(
        "--duration", type=arguments.duration(1.0, 3600.0), default=10.0, metavar="S", help="seconds of each drive"
    )
    parser.add_argument(
        "--repeats", type=arguments.positive_int(100), default=3, metavar="N", help="runs of each of the two, in turn"
    )
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if results differ; 2 with one sentence where Ray or SUMO is missing."""
    quiet = Console(quiet=True)
    config = override_dotted(Config(), arguments.settings_of(args.settings))

    def drive(workers: Workers) -> dict[int, Any]:
        driven = closed_loop.run_drives([PLANNER], range(args.seeds), config, args.duration, quiet, workers=workers)
        if driven.failures:
            raise UserError(f"a drive failed: {next(iter(driven.failures.values()))}")
        return {one.seed: (one.log, one.scores.tolist()) for one in driven.results}

    here = Cluster(f"{LOCAL}:{args.workers}")
    runs: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
    found: list[str] = []
    try:
        _, started = measure_call(lambda: cluster.connect(here))
        for _ in track_progress(range(args.repeats), "driving", errors):
            for kind, workers in (("local", args.workers), ("ray", here)):
                result, spent = measure_call(partial(drive, workers))
                runs[kind].append(spent)
                found.append(str(result))
    finally:
        cluster.disconnect()
    numbers = {
        "drives": args.seeds,
        "duration_s": args.duration,
        "repeats": args.repeats,
        "workers": args.workers,
        "equal_results": len(set(found)) == 1,
        "start": started,
        **medians(runs),
        "runs": runs,
    }
    write_numbers(args.json, numbers)
    console.print(table(numbers))
    return 0 if numbers["equal_results"] else 1


def measure_call(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of a call, its wall time and the CPU time of this process and all below it, in seconds."""
    cpu_s, begun_s = family_cpu_s(), time.perf_counter()
    result = work()
    return result, {"wall_s": time.perf_counter() - begun_s, "cpu_s": family_cpu_s() - cpu_s}


def family_cpu_s() -> float:
    """CPU seconds of this process, of those below it, and of those that these have waited for."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            content = path.read_text()
        except OSError:  # it has ended
            continue
        pid, fields = int(path.parent.name), content.rpartition(")")[2].split()
        parents.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    family, total = [os.getpid()], 0
    while family:
        pid = family.pop()
        total += ticks.get(pid, 0)
        family += parents.get(pid, ())
    return total / TICKS_PER_S


def medians(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Medians over the runs; `more_percent` is that of Ray over the local pool."""
    middle = {
        kind: {name: round(median(one[name] for one in some), 3) for name in ("wall_s", "cpu_s")}
        for kind, some in runs.items()
    }
    more = {name: round(100.0 * (middle["ray"][name] / middle["local"][name] - 1.0), 1) for name in middle["ray"]}
    return {**middle, "more_percent": more}


def table(numbers: Mapping[str, Any]) -> Table:
    title = (
        f"{numbers['drives']} drives of {numbers['duration_s']:g} s, {numbers['workers']} workers, medians of "
        f"{numbers['repeats']}; results are {'equal' if numbers['equal_results'] else 'NOT equal'}"
    )
    rows = [
        (label, *(f"{numbers[kind][name]:.1f}" for kind in ("local", "ray")), f"{numbers['more_percent'][name]:+.1f}")
        for label, name in (("CPU s", "cpu_s"), ("wall s", "wall_s"))
    ]
    start = f"start of Ray: {numbers['start']['cpu_s']:.1f} CPU s, {numbers['start']['wall_s']:.1f} s"
    return make_table(("", "local pool", "Ray", "%"), rows, title, caption=start)
