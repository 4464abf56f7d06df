"""`reflectdrive bench cluster`: a Ray cluster on this machine against the local pool, on the same work.

In turn: the local pool with one worker, the local pool with --workers, and Ray with as many; results must be equal.
`--work drives`: closed-loop drives of `route_follower` in the same towns; `eval`: its plans for the scenes of a set,
scored; `scenes`: a set without images. A task is a drive, or a shard of 250 scenes: fewer tasks than workers leave some
idle.
Wall time is that of this machine with its other load. CPU time is that of all processes of a run, from /proc, with
those that Ray keeps for itself; the start of Ray and of its workers, once per command, is not in them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.config import Config, override_dotted
from ..data.sets import SceneSetSpec
from ..evaluation import closed_loop, open_loop, scene_sets
from ..infra import arguments, cluster
from ..infra.cluster import LOCAL, Cluster
from ..infra.command import command, make_table
from ..infra.errors import UserError
from ..infra.parallel import Workers
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..runtime import cli_args

PLANNER = "route_follower"
Work = Callable[[Workers], str]  # what is done with some workers; its result, to compare
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=arguments.process_count(), default=2, metavar="N", help="processes, and cores of the cluster"
    )
    parser.add_argument("--work", choices=WORK, default="drives", help="what is run")
    cli_args.add_scenes_argument(parser, "val")
    parser.add_argument(
        "--limit", type=arguments.positive_int(), default=500, metavar="N", help="scenes of `eval` and of `scenes`"
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
    config = override_dotted(Config(), arguments.settings_of(args.settings))
    work = WORK[args.work](args, config, errors)
    here = Cluster(f"{LOCAL}:{args.workers}")
    ways: dict[str, Workers] = {"one": 1, "local": args.workers, "ray": here}
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in ways}
    found: list[str] = []
    try:
        _, started = measure_call(lambda: cluster.connect(here))
        work(here)  # Ray's workers start with the first tasks
        for _ in track_progress(range(args.repeats), "running", errors):
            for kind, workers in ways.items():
                result, spent = measure_call(partial(work, workers))
                runs[kind].append(spent)
                found.append(result)
    finally:
        cluster.disconnect()
    numbers = {
        "work": args.work,
        **({"drives": args.seeds, "duration_s": args.duration} if args.work == "drives" else {"scenes": args.limit}),
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


def drive_worlds(args: argparse.Namespace, config: Config, errors: Console) -> Work:
    def work(workers: Workers) -> str:
        seeds, quiet = range(args.seeds), Console(quiet=True)
        driven = closed_loop.run_drives([PLANNER], seeds, config, args.duration, quiet, workers=workers)
        if driven.failures:
            raise UserError(f"a drive failed: {next(iter(driven.failures.values()))}")
        return str({one.seed: (one.log, one.scores.tolist()) for one in driven.results})

    return work


def score_scenes(args: argparse.Namespace, config: Config, errors: Console) -> Work:
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, args.limit)

    def work(workers: Workers) -> str:
        quiet = Console(quiet=True)
        return str(open_loop.evaluate(folder, [PLANNER], config, None, args.limit, workers, quiet).scores)

    return work


def make_scenes(args: argparse.Namespace, config: Config, errors: Console) -> Work:
    make_shard, made_by = scene_sets.make_sampler(*scene_sets.IMAGE_SIZE, images=False)
    wanted = SceneSetSpec("val", args.limit, made_by)

    def work(workers: Workers) -> str:
        with tempfile.TemporaryDirectory() as folder:
            index, _ = scene_sets.ensure_scene_set(Path(folder), wanted, make_shard, workers, Console(quiet=True))
            if index.missing:
                raise UserError(f"a shard was not made: {next(iter(index.missing.values()))}")
            return str([note.sha256 for note in index.shards])

    return work


WORK: Mapping[str, Callable[[argparse.Namespace, Config, Console], Work]] = {
    "drives": drive_worlds,
    "eval": score_scenes,
    "scenes": make_scenes,
}


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
    """Medians over the runs. `more_percent`: of Ray over the local pool; `speed_up`: of the local pool over one worker;
    both are medians of the ratios of runs that followed each other.
    """
    middle = {
        kind: {name: round(median(one[name] for one in some), 3) for name in ("wall_s", "cpu_s")}
        for kind, some in runs.items()
    }

    def ratio(above: str, below: str, name: str) -> float:
        return median(one[name] / other[name] for one, other in zip(runs[above], runs[below], strict=True))

    more = {name: round(100.0 * (ratio("ray", "local", name) - 1.0), 1) for name in ("wall_s", "cpu_s")}
    return {**middle, "more_percent": more, "speed_up": round(ratio("one", "local", "wall_s"), 2)}


def table(numbers: Mapping[str, Any]) -> Table:
    size = (
        f"{numbers['drives']} drives of {numbers['duration_s']:g} s"
        if "drives" in numbers
        else f"{numbers['work']}, {numbers['scenes']} scenes"
    )
    title = (
        f"{size}, {numbers['workers']} workers, medians of {numbers['repeats']}; results are "
        f"{'equal' if numbers['equal_results'] else 'NOT equal'}"
    )
    rows = [
        (
            label,
            *(f"{numbers[kind][name]:.1f}" for kind in ("one", "local", "ray")),
            f"{numbers['more_percent'][name]:+.1f}",
            f"{numbers['speed_up']:.2f}" if name == "wall_s" else "",
        )
        for label, name in (("CPU s", "cpu_s"), ("wall s", "wall_s"))
    ]
    start = f"start of Ray: {numbers['start']['cpu_s']:.1f} CPU s, {numbers['start']['wall_s']:.1f} s"
    heads = ("", "one worker", "local pool", "Ray", "Ray, %", "speed-up")
    return make_table(heads, rows, title, caption=start)
