"""`reflectdrive compare OUT_A OUT_B`: compares two replays of the same bags plan by plan, with confidence intervals.

OUT_A and OUT_B are outputs of `reflectdrive replay`, of one bag or of many. Plans are paired by bag and stamp.
Differences are B less A. The same folders give the same numbers: no setting (--setting) changes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.domain import Array, PlanSource, Verdict
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.documents import FILE_NAME, array, check_fields, read_json, text
from ..infra.parallel import Workers, map_restartable
from ..infra.provenance import write_numbers
from ..replay.compare import BAGS_MIN, CLUSTER_S, CLUSTERS_MIN, Difference, assign_clusters, difference, pair_stamps
from ..replay.plan_measures import PLANS_FILE, SUMMARY_BYTES, MeasuresError, PlanMeasures, read_measures

NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class Measure:
    """One number per plan; NaN where unknown."""

    heading: str
    less_is_better: bool
    digits: int
    times: float = 1.0  # in the table: 100 for percent

    def of(self, name: str, plans: PlanMeasures) -> Array:
        if name == "ok":
            return np.asarray(plans.verdict == Verdict.OK, float)
        if name == "own":
            return np.asarray(plans.source == PlanSource.PLANNER, float)
        return np.asarray(getattr(plans, name))


MEASURES: Mapping[str, Measure] = {
    "ade_m": Measure("ADE m", True, 3),
    "fde_m": Measure("FDE m", True, 3),
    "lateral_shift_m": Measure("lateral shift m", True, 3),
    "comfortable": Measure("comfortable %", False, 1, 100.0),
    "nc": Measure("NC %", False, 1, 100.0),
    "dac": Measure("DAC %", False, 1, 100.0),
    "ttc": Measure("TTC %", False, 1, 100.0),
    "ep": Measure("EP %", False, 1, 100.0),
    "pdms": Measure("PDMS", False, 1, 100.0),
    "ok": Measure("verdict OK %", False, 1, 100.0),
    "own": Measure("planner's own plan %", False, 1, 100.0),
    "latency_ms": Measure("latency ms", True, 2),
}


@dataclass(frozen=True, eq=False)
class Replays:
    """What one side left behind: its plans by bag, and what made them."""

    out: Path
    origin: Mapping[str, Any]  # planner, device, jobs, ..
    bags: Mapping[str, PlanMeasures]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=arguments.location, metavar="OUT_A", help="output folder of a replay")
    parser.add_argument(
        "b", type=arguments.location, metavar="OUT_B", help="that of the other planner, model or setting"
    )
    arguments.add_workers_arguments(parser, "--workers", 1, "processes that resample the measures of many bags")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    a, b = read_replays(args.a), read_replays(args.b)
    differences, bags = compare_replays(a, b, args.workers)
    write_numbers(args.json, numbers(a, b, differences, bags))
    console.print(table(a, b, differences, bags))
    for note in notes(a, b, differences, bags):
        console.print(note)


def read_replays(out: Path) -> Replays:
    """The replays in a folder. Raises MeasuresError for a folder without a complete one."""
    file = out / "summary.json"
    try:
        summary = read_json(file, SUMMARY_BYTES)
        check_fields(summary, {"bags": array({"name": FILE_NAME})} if "bags" in summary else {"bag": text()})
        names = (
            {one["name"]: out / one["name"] for one in summary["bags"]} if "bags" in summary else {summary["bag"]: out}
        )
        origin = {key: summary.get(key) for key in ("planner", "model_sha256", "device", "jobs", "commit", "command")}
    except (OSError, ValueError, TypeError):
        raise MeasuresError(
            f"{out} holds no finished replay: give the folder that `reflectdrive replay` wrote, or run that again"
        ) from None
    return Replays(out, origin, {name: read_measures(folder / PLANS_FILE) for name, folder in names.items()})


def compare_replays(a: Replays, b: Replays, workers: Workers = 1) -> tuple[dict[str, Difference], list[str]]:
    """The difference of each measure that both sides have, and the paired bags. Raises MeasuresError if there
    are none.
    """
    pairs: dict[str, tuple[PlanMeasures, PlanMeasures, Array, Array]] = {}
    for name in a.bags.keys() & b.bags.keys():
        mine, theirs = a.bags[name], b.bags[name]
        here, there = pair_stamps(mine.stamp_ns, theirs.stamp_ns)
        if len(here):
            pairs[name] = (mine, theirs, here, there)
    bags = sorted(pairs)
    if not bags:
        raise MeasuresError(
            f"no plan of {a.out} has its like in {b.out}: replay the same bags into both "
            f"({a.out} has {', '.join(sorted(a.bags)) or 'none'}; {b.out} has {', '.join(sorted(b.bags)) or 'none'})"
        )
    both_sides = {}
    for key, measure in MEASURES.items():
        values, stamps = {}, {}
        for name in bags:
            mine, theirs, here, there = pairs[name]
            both = np.stack([measure.of(key, mine)[here], measure.of(key, theirs)[there]])
            is_finite = np.isfinite(both).all(axis=0)
            values[name], stamps[name] = both[:, is_finite], mine.stamp_ns[here][is_finite]
        left, right = np.concatenate(list(values.values()), axis=1)
        if len(left):
            clusters = np.concatenate(list(assign_clusters(stamps).values()))
            both_sides[key] = left, right, clusters
    work = partial(_difference, both_sides)
    if workers == 1:
        return {key: work(key) for key in both_sides}, bags
    differences = {}
    with closing(map_restartable(list(both_sides), work, workers, portable=False)) as outcomes:
        for outcome in outcomes:
            if outcome.result is None:
                raise MeasuresError(f"{outcome.task} cannot be compared: {outcome.reason}")
            differences[outcome.task] = outcome.result
    return {key: differences[key] for key in both_sides}, bags


def _difference(
    both_sides: Mapping[str, tuple[Array, Array, Array]], key: str, report: Callable[[Any], None] | None = None
) -> Difference:
    return difference(*both_sides[key], np.random.default_rng(0))


def verdict(name: str, difference: Difference) -> str:
    if difference.interval is None:
        return "too few clusters"
    if not difference.is_significant:
        return NO_DIFFERENCE
    return "B better" if (difference.difference < 0) == MEASURES[name].less_is_better else "A better"


def numbers(a: Replays, b: Replays, differences: Mapping[str, Difference], bags: list[str]) -> dict[str, Any]:
    """Ready for JSON; shares as they are, not in percent."""
    return {
        "a": {"out": str(a.out), **a.origin},
        "b": {"out": str(b.out), **b.origin},
        "bags": bags,
        "measures": {
            name: {
                "plans": one.pairs,
                "clusters": one.clusters,
                "a": round(one.mean_a, 6),
                "b": round(one.mean_b, 6),
                "difference": round(one.difference, 6),
                "difference_95": None if one.interval is None else [round(end, 6) for end in one.interval],
                "p": None if one.p is None else round(one.p, 6),
                "shown": one.is_significant,
            }
            for name, one in differences.items()
        },
    }


def table(a: Replays, b: Replays, differences: Mapping[str, Difference], bags: list[str]) -> Table:
    def row(name: str, one: Difference) -> tuple[str, ...]:
        measure = MEASURES[name]

        def formatted(value: float, sign: str = "") -> str:
            return f"{measure.times * value:{sign}.{measure.digits}f}"

        ends = (
            "-" if one.interval is None else f"{formatted(one.interval[0], '+')} .. {formatted(one.interval[1], '+')}"
        )
        counts = (measure.heading, str(one.pairs), str(one.clusters), formatted(one.mean_a), formatted(one.mean_b))
        p = "-" if one.p is None else f"{one.p:.4f}"
        return (*counts, formatted(one.difference, "+"), ends, p, verdict(name, one))

    title = f"A: {a.out} ({a.origin['planner']}) · B: {b.out} ({b.origin['planner']}) · {len(bags)} bags"
    headings = ("", "plans", "clusters", "A", "B", "B - A", "95 %", "p", "result")
    return make_table(headings, (row(name, one) for name, one in differences.items()), title)


def notes(a: Replays, b: Replays, differences: Mapping[str, Difference], bags: list[str]) -> list[str]:
    remarks = []
    if any(one.interval is None for one in differences.values()):
        remarks.append(
            f"a difference can be shown from {CLUSTERS_MIN} clusters on: {CLUSTERS_MIN} stretches of {CLUSTER_S:.0f} s "
            f"that both replays planned, within one bag or several, or {BAGS_MIN} bags of any length"
        )
    if not any(one.is_significant for one in differences.values()):
        remarks.append(f"{NO_DIFFERENCE} between A and B")
    alone = sorted((a.bags.keys() | b.bags.keys()) - set(bags))
    if alone:
        remarks.append(f"without a partner: {', '.join(alone)}")
    if any(a.origin[key] != b.origin[key] for key in ("device", "jobs")):
        remarks.append("latencies were measured on different machines, or with another number of bags at a time")
    return remarks
