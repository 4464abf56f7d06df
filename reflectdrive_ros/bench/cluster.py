"""`reflectdrive bench cluster`: a Ray cluster on this machine against the local pool, on the same closed-loop drives.

Both run the drives of `route_follower` in the same towns, alternately, with 1, 2, .. workers; results must be equal.
Wall time is that of this machine with its other load. CPU time is that of all processes of a run, from /proc, with
those that Ray keeps for itself; the start of Ray and of its workers, once per command, is a row of its own.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import arguments, cluster
from ..cluster import LOCAL, Cluster
from ..command import command, make_table, track_progress
from ..config import Config
from ..errors import UserError
from ..evaluation import closed_loop
from ..parallel import Workers
from ..provenance import write_numbers

PLANNER = "route_follower"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=arguments.process_count(),
        nargs="+",
        default=[1, 2, 4],
        metavar="N",
        help="numbers of workers",
    )
    parser.add_argument("--seeds", type=arguments.positive_int(10_000), default=8, metavar="N", help="drives in a run")
    parser.add_argument(
        "--duration", type=arguments.duration(1.0, 3600.0), default=10.0, metavar="S", help="seconds of each drive"
    )
    parser.add_argument(
        "--repeats", type=arguments.positive_int(100), default=3, metavar="N", help="runs of each of the two, in turn"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if results differ; 2 with one sentence where Ray or SUMO is missing."""
    quiet = Console(quiet=True)

    def drive(workers: Workers) -> dict[int, Any]:
        driven = closed_loop.run_drives([PLANNER], range(args.seeds), Config(), args.duration, quiet, workers=workers)
        if driven.failures:
            raise UserError(f"a drive failed: {next(iter(driven.failures.values()))}")
        return {one.seed: (one.log, one.scores.tolist()) for one in driven.results}

    rows: dict[int, dict[str, Any]] = {}
    found: list[Any] = []
    turns = [(count, turn) for count in args.workers for turn in range(args.repeats)]
    for count, turn in track_progress(turns, "driving", errors):
        started = None
        if turn == 0:
            cluster.disconnect()
            started = measured(lambda: cluster.connect(Cluster(f"{LOCAL}:{count}")))[1]  # noqa: B023
            rows[count] = {"start": started, "local": [], "ray": []}
        for kind, workers in (("local", count), ("ray", Cluster(f"{LOCAL}:{count}"))):
            result, spent = measured(lambda: drive(workers))  # noqa: B023
            rows[count][kind].append(spent)
            found.append(result)
    cluster.disconnect()
    same = all(str(each) == str(found[0]) for each in found)
    numbers = {
        "drives": args.seeds,
        "duration_s": args.duration,
        "repeats": args.repeats,
        "equal_results": same,
        "workers": {str(count): summary(row) for count, row in rows.items()},
    }
    write_numbers(args.json, numbers)
    console.print(table(numbers))
    return 0 if same else 1


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
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


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Medians over the repeats; `more_percent` is that of Ray over the local pool."""
    medians = {
        kind: {name: round(median(one[name] for one in row[kind]), 3) for name in ("wall_s", "cpu_s")}
        for kind in ("local", "ray")
    }
    more = {
        name: round(100.0 * (medians["ray"][name] / medians["local"][name] - 1.0), 1) for name in ("wall_s", "cpu_s")
    }
    runs = {f"{kind}_runs": row[kind] for kind in ("local", "ray")}
    return {**medians, "more_percent": more, "start": row["start"], **runs}


def table(numbers: Mapping[str, Any]) -> Table:
    title = (
        f"{numbers['drives']} drives of {numbers['duration_s']:g} s, medians of {numbers['repeats']}; results are "
        f"{'equal' if numbers['equal_results'] else 'NOT equal'}"
    )
    rows = []
    for count, row in numbers["workers"].items():
        cells = [f"{row[kind][name]:.1f}" for name in ("cpu_s", "wall_s") for kind in ("local", "ray")]
        more = [f"{row['more_percent'][name]:+.1f}" for name in ("cpu_s", "wall_s")]
        start = f"{row['start']['cpu_s']:.1f}"
        rows.append((count, cells[0], cells[1], more[0], cells[2], cells[3], more[1], start))
    headings = ("workers", "CPU s local", "CPU s Ray", "%", "wall s local", "wall s Ray", "%", "start of Ray CPU s")
    return make_table(headings, rows, title)
