"""Measures of each plan of a replay, stored as `plans.csv` beside the report so that two replays can be compared.

One row per plan. A cell is empty if a measure is undefined: a plan that reaches past the end of the recording has no
error, the first plan no shift.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..core.domain import Array, PlanSource, Verdict
from ..core.field_checks import check_array
from ..infra.errors import UserError
from ..infra.files import MEGABYTE, atomic_file, read_limited

PLANS_FILE = "plans.csv"
SUMMARY_BYTES = 256 * MEGABYTE  # of a summary.json
SCORES = ("nc", "dac", "ttc", "ep", "pdms")
MEASURES = ("ade_m", "fde_m", "lateral_shift_m", "comfortable", "latency_ms", *SCORES)
ENUMS: Mapping[str, type[Verdict] | type[PlanSource]] = {"verdict": Verdict, "source": PlanSource}
WHOLE = ("stamp_ns", *ENUMS)  # columns of integers
DIGITS = 6
MAX_BYTES = 1024 * MEGABYTE


class MeasuresError(UserError, ValueError):
    """A file of measures cannot be used; the message names the file and the reason."""


@dataclass(frozen=True, eq=False)
class PlanMeasures:
    """N plans in the order sent; NaN where a measure is unknown."""

    stamp_ns: Array  # (N,) int64
    ade_m: Array  # (N,) from the driven path, mean over 0.5, 1, .. 4 s
    fde_m: Array  # (N,) at 4 s
    lateral_shift_m: Array  # (N,) the farthest to the side of the plan before
    comfortable: Array  # (N,) 1 within the score's bounds of comfort, 0 not
    verdict: Array  # (N,) int64 Verdict
    source: Array  # (N,) int64 PlanSource
    latency_ms: Array  # (N,) of the engine's step
    nc: Array  # (N,) sub-scores of the driving score, 0..1, if the bag has objects and a map
    dac: Array
    ttc: Array
    ep: Array
    pdms: Array  # (N,) the score itself

    def __post_init__(self) -> None:
        count = len(self.stamp_ns)
        for name in WHOLE:
            checked = check_array("PlanMeasures", name, getattr(self, name), (count,), np.int64)
            object.__setattr__(self, name, checked)
        for name in MEASURES:
            values = np.asarray(getattr(self, name), float)
            if values.shape != (count,):
                raise ValueError(f"PlanMeasures.{name} has shape {values.shape}, expected ({count})")
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.stamp_ns)


def concat_measures(parts: Sequence[PlanMeasures]) -> PlanMeasures:
    """The plans of several replays in one; of none, no plans."""
    names = [entry.name for entry in fields(PlanMeasures)]
    if not parts:
        return PlanMeasures(**{name: np.zeros(0, np.int64) for name in names})
    return PlanMeasures(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def numbers(measures: PlanMeasures) -> dict[str, Any]:
    """Counts, means and percentiles over all plans, ready for JSON; None if no plan has the measure.

    `interventions_share` is the share of the plans that were not the planner's own. `scored` has means of the driving
    score and its sub-scores in percent.
    """
    compared = np.isfinite(measures.fde_m)
    return {
        "plans": len(measures),
        "verdicts": {verdict.name: int((measures.verdict == verdict).sum()) for verdict in Verdict},
        "sources": {source.name: int((measures.source == source).sum()) for source in PlanSource},
        "interventions_share": _mean(np.where(measures.source == PlanSource.PLANNER, 0.0, 1.0)),
        "ade_m": _mean(measures.ade_m),
        "fde_m": _mean(measures.fde_m),
        "plans_compared": int(compared.sum()),
        "lateral_shift_p95_m": _percentile(measures.lateral_shift_m, 95),
        "max_lateral_shift_m": _percentile(measures.lateral_shift_m, 100),
        "comfort_share": _mean(measures.comfortable),
        "scored": {"plans": int(np.isfinite(measures.nc).sum()), **{name: _percent(measures, name) for name in SCORES}},
    }


def percentiles(values: Array) -> dict[str, float | None]:
    """p50, p99 and maximum, ready for JSON."""
    return {name: _percentile(values, at) for name, at in (("p50", 50), ("p99", 99), ("max", 100))}


def _mean(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return round(float(finite.mean()), 4) if len(finite) else None


def _percent(measures: PlanMeasures, name: str) -> float | None:
    mean = _mean(getattr(measures, name))
    return None if mean is None else round(100.0 * mean, 2)


def _percentile(values: Array, at: float) -> float | None:
    finite = values[np.isfinite(values)]
    return round(float(np.percentile(finite, at)), 4) if len(finite) else None


# --- the file --------------------------------------------------------------------------------------------------------


def write_measures(measures: PlanMeasures, path: Path) -> None:
    """As CSV, whole or not at all. Raises OSError where it cannot be written."""
    names = [entry.name for entry in fields(PlanMeasures)]
    columns = ([_cell(name, value) for value in getattr(measures, name).tolist()] for name in names)
    write_csv(path, names, zip(*columns, strict=True))


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table, whole or not at all. Raises OSError where it cannot be written."""
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows])


def _cell(name: str, value: Any) -> str:
    if name in ENUMS:
        return ENUMS[name](value).name
    return number_cell(value)


def number_cell(value: float) -> str:
    """Empty for an unknown number."""
    return repr(round(value, DIGITS)) if np.isfinite(value) else ""


def read_measures(path: Path) -> PlanMeasures:
    """Reads the output of `write_measures`. Raises MeasuresError naming the file and the fault."""
    names = [entry.name for entry in fields(PlanMeasures)]
    try:
        content = read_limited(path, MAX_BYTES).decode()
        head, *rows = list(csv.reader(io.StringIO(content, newline=""))) or [["none"]]
        if head != names:
            raise ValueError(f"its columns are {', '.join(head)}; expected {', '.join(names)}")
        columns = {name: [_value(name, row[i]) for row in rows] for i, name in enumerate(names)}
        dtypes = {name: np.int64 if name in WHOLE else float for name in names}
        return PlanMeasures(**{name: np.array(column, dtypes[name]) for name, column in columns.items()})
    except OSError as fault:
        raise MeasuresError(f"{path} cannot be read: {fault.strerror}") from None
    except (ValueError, KeyError, IndexError, OverflowError, csv.Error) as fault:
        raise MeasuresError(f"{path} holds no measures of plans: {fault}; replay the bag again") from None


def _value(name: str, cell: str) -> float | int:
    if name in ENUMS:
        return int(ENUMS[name][cell])
    if name == "stamp_ns":
        return int(cell)
    return float(cell) if cell else float("nan")
