"""95 % bootstrap intervals of means and of paired differences, over scenes or drives as independent units.

    low, high = percent_interval(scores)                      # (N,) in 0..1
    mean, (low, high) = paired_difference(scores, reference)  # (N,) each, of the same scenes in the same order

Rows are resampled with replacement by a generator of a fixed seed: the same values give the same interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.domain import Array

BOOTSTRAP_SAMPLES = 1000  # for the interval of a mean
DRAWS_AT_ONCE = 1_000_000
MARK = "* the 95 % interval excludes 0"


def bootstrap_intervals(values: Array) -> Array:
    """(C, 2) ends of the intervals of the means of (N, C) values, N > 0; the columns of a row are drawn together."""
    generator, count = np.random.default_rng(0), len(values)
    at_once = max(1, DRAWS_AT_ONCE // (count * values.shape[1]))
    resampled = [
        values[generator.integers(0, count, (min(at_once, BOOTSTRAP_SAMPLES - first), count))].mean(axis=1)
        for first in range(0, BOOTSTRAP_SAMPLES, at_once)
    ]
    return np.asarray(np.percentile(np.concatenate(resampled), [2.5, 97.5], axis=0).T)


def interval(values: Array) -> list[float]:
    """The interval of the mean of (N,) values, in their unit."""
    (ends,) = bootstrap_intervals(values[:, None])
    return [round(float(end), 3) for end in ends]


def percent_interval(values: Array) -> list[float]:
    """The interval of the mean of (N,) values in 0..1, in percent."""
    (ends,) = bootstrap_intervals(values[:, None])
    return [round(100.0 * float(end), 3) for end in ends]


def paired_difference(values: Array, reference: Array) -> tuple[float | None, list[float | None]]:
    """Mean and interval of `values - reference` (N,), over units where both are finite; else None."""
    differences = values - reference
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return None, [None, None]
    return round(float(differences.mean()), 3), [*interval(differences)]


def difference_cells(means: Mapping[str, Any], first: str, others: Sequence[str]) -> tuple[str, ...]:
    """The cells of differences by measure: the first with its interval, the others with a mark where their interval
    excludes 0; "-" where there is none. `means` has the interval of NAME under `NAME_95`.
    """

    def cell(name: str) -> str:
        low, high = means[f"{name}_95"]
        return "-" if low is None else f"{means[name]:+.1f}{'*' if low > 0.0 or high < 0.0 else ''}"

    low, high = means[f"{first}_95"]
    whole = ("-", "-") if low is None else (f"{means[first]:+.2f}", f"{low:+.2f} .. {high:+.2f}")
    return (*whole, *map(cell, others))


def format_difference(mean: float, ends: tuple[float, float] | list[float]) -> str:
    """A difference and its interval, as "+1.00 (-0.20 .. +2.10)"."""
    return f"{mean:+.2f} ({ends[0]:+.2f} .. {ends[1]:+.2f})"
