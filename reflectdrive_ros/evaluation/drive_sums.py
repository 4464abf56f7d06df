"""Sums over drives in closed loop: rates per kilometre, shares in percent, means of scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from ..core.domain import Array
from ..infra.command import make_table
from ..scoring.scorer import SUB_SCORES
from ..scoring.simulate import DT_S
from ..sim.drive_log import DriveLog
from .bootstrap import MARK, difference_cells, paired_difference
from .drive_results import DriveResult

PLAN_SCORES = (*SUB_SCORES, "tlc")  # parts of the PDM score of a plan, by their names in a ScoreCard
MEASURES: Mapping[str, str] = {
    "route_completion": "route %",
    "collisions_per_km": "hits/km",
    "at_fault_per_km": "own fault/km",
    "off_road_per_km": "off-road/km",
    "off_road_time": "off-road %",
    "red_lights_per_km": "reds/km",
    "speeding_per_km": "speeding/km",
    "comfort": "comfort %",
    "mean_speed_mps": "m/s",
    "pdms": "PDMS",
}


def drive_metrics(results: Sequence[DriveResult]) -> dict[str, Any]:
    """Totals over drives: rates per kilometre, shares in percent of the total time.

    A value that no drive defines is None.
    """
    logs = [result.log for result in results]
    km = sum(log.distance_m for log in logs) / 1000.0
    seconds = sum(log.duration_s for log in logs)
    scores = np.concatenate([np.zeros(0), *(result.scores for result in results)])
    parts = np.concatenate([np.zeros((0, len(PLAN_SCORES))), *(result.sub_scores for result in results)])

    def per_km(count: float) -> float | None:
        return round(count / km, 3) if km > 0 else None

    def share(part: float, whole: float) -> float | None:
        return round(100.0 * part / max(whole, 1e-9), 2) if logs else None

    return {
        "drives": len(results),
        "km": round(km, 3),
        "seconds": round(seconds, 1),
        "route_completion": share(sum(log.progress_m for log in logs), sum(log.limit_distance_m for log in logs)),
        "collisions": sum(len(log.collisions) for log in logs),
        "at_fault": sum(log.at_fault for log in logs),
        "collisions_per_km": per_km(sum(len(log.collisions) for log in logs)),
        "at_fault_per_km": per_km(sum(log.at_fault for log in logs)),
        "off_road_per_km": per_km(sum(log.count("off_road") for log in logs)),
        "off_road_time": share(sum(log.off_road_s for log in logs), seconds),
        "red_lights": sum(log.count("red_light") for log in logs),
        "red_lights_per_km": per_km(sum(log.count("red_light") for log in logs)),
        "speeding": sum(log.count("speeding") for log in logs),
        "speeding_per_km": per_km(sum(log.count("speeding") for log in logs)),
        "off_route": sum(log.count("off_route") for log in logs),
        "stuck": sum(log.count("stuck") for log in logs),
        "comfort": share(float(np.dot([log.comfort for log in logs], _seconds(logs))), sum(_seconds(logs))),
        "mean_speed_mps": round(1000.0 * km / max(seconds, 1e-9), 3) if logs else None,
        "pdms": round(100.0 * float(scores.mean()), 2) if len(scores) else None,
        "plan_scores": _percent(parts),
        "verdicts": _sum_counts(result.verdicts for result in results),
        "sources": _sum_counts(result.sources for result in results),
        "planning_ms": _planning_ms(results),
    }


PER_DRIVE: Mapping[str, str] = {  # measures of a single drive that are compared, and their headings
    "drive_score": "drive score",
    "pdms": "PDMS",
    "route_completion": "route %",
    "off_road_time": "off-road %",
    "comfort": "comfort %",
    "mean_speed_mps": "m/s",
    "at_fault": "own fault",
    "red_lights": "reds",
    "speeding": "speeding",
}


def difference(
    results: Sequence[DriveResult],
    reference: Sequence[DriveResult],
    metrics_of: Callable[[Sequence[DriveResult]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Means over worlds of the paired differences of PER_DRIVE with 95 % intervals, each world as one unit; under
    `towns` over the drives of each town, where several worlds are of one. `metrics_of` gives PER_DRIVE of a drive.
    """
    own, others = ({result.seed: result for result in some} for some in (results, reference))
    seeds = [seed for seed in own if seed in others]
    pairs = [(metrics_of([own[seed]]), metrics_of([others[seed]])) for seed in seeds]
    towns = np.array([own[seed].town for seed in seeds])

    def means(selected: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
        values: dict[str, Any] = {"worlds": len(selected)}
        for measure in PER_DRIVE:
            columns = np.array([[row[measure] for row in pair] for pair in selected], float).reshape(-1, 2)
            values[measure], values[f"{measure}_95"] = paired_difference(*columns.T)
        return values

    names = sorted(set(towns.tolist())) if len(set(towns.tolist())) < len(seeds) else []
    by_town = {name: means([pair for pair, town in zip(pairs, towns, strict=True) if town == name]) for name in names}
    return {**means(pairs), "towns": by_town}


def difference_table(differences: Mapping[str, Mapping[str, Any]], by_town: bool) -> Table:
    """The drive score of each row less that of its reference with the interval; the other measures with a mark where
    their interval excludes 0."""
    rows: list[tuple[str, ...]] = []
    first, *others = PER_DRIVE
    for name, all_worlds in differences.items():
        parts = {name: all_worlds}
        if by_town:
            parts |= {f"  {town}": means for town, means in all_worlds["towns"].items()}
        rows += [(title, *difference_cells(means, first, others)) for title, means in parts.items()]
    title = f"less {', '.join(dict.fromkeys(each['reference'] for each in differences.values()))}, paired by world"
    headings = ("", PER_DRIVE[first], "95 %", *(PER_DRIVE[name] for name in others))
    return make_table(headings, rows, title, MARK, texts=1)


def _percent(parts: Array) -> dict[str, float]:
    """Means in percent of the parts (S, 6) of the scores of plans; empty without plans."""
    return dict(zip(PLAN_SCORES, (100.0 * parts.mean(axis=0)).round(2).tolist(), strict=True)) if len(parts) else {}


def _planning_ms(results: Sequence[DriveResult]) -> dict[str, Any]:
    """Processor time of planning steps in ms: the mean over all, and mean and count by step kind."""
    times: dict[str, list[float]] = {}
    for result in results:
        for kind, some in result.planning_ms.items():
            times.setdefault(kind, []).extend(some)
    kinds = {kind: {"mean": round(float(np.mean(some)), 3), "steps": len(some)} for kind, some in times.items()}
    every = [value for some in times.values() for value in some]
    return {"mean": round(float(np.mean(every)), 3) if every else None, **kinds}


def _seconds(logs: Sequence[DriveLog]) -> list[float]:
    return [max(log.duration_s, DT_S) for log in logs]


def _sum_counts(counts: Iterator[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))
