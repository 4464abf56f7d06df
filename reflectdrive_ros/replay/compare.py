"""Statistical comparison of two replays of the same bags: paired differences, with clusters of plans as independent
units.

Errors of consecutive plans are correlated, so 6000 plans are far fewer than 6000 observations. Clusters are resampled
and sign-flipped instead: whole bags if there are enough, else segments of at least CLUSTER_S within bags. The interval
is the percentile bootstrap, widened for few clusters (Hesterberg 2015, "What Teachers Should Know About the Bootstrap",
section 5.3: the plain one covers too little); the p-value is that of sign flips. A difference is significant if
both agree. With errors correlated over 2 s and no true difference, that happens in 5 to 6 of 100 comparisons of whole
bags and in 6 to 8 of segments, whose neighbours are correlated; with plans as independent units it would be more than
50.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ..core.domain import Array

CLUSTER_S = 10.0
BAGS_MIN = 8  # from so many on, whole bags are the clusters
CLUSTERS_MIN = 6  # of fewer, even flips that all agree happen by chance in more than 5 % of all cases
LEVEL = 0.95
BOOTSTRAP_SAMPLES = 10_000
EXACT_CLUSTERS_MAX = 13  # up to so many clusters, every pattern of signs is tried
BATCH_NUMBERS = 2_000_000  # random numbers in memory


@dataclass(frozen=True)
class Difference:
    """Of a measure between two replays, B less A, over the plans where both have it."""

    pairs: int  # plans
    clusters: int
    mean_a: float
    mean_b: float
    interval: tuple[float, float] | None  # of mean_b - mean_a, with 95 %; None with fewer than CLUSTERS_MIN clusters
    p: float | None  # two-sided; of no difference. None with fewer than CLUSTERS_MIN clusters

    @property
    def difference(self) -> float:
        return self.mean_b - self.mean_a

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0, and the sign flips agree."""
        if self.interval is None or self.p is None:
            return False
        return self.p < 1.0 - LEVEL and not self.interval[0] <= 0.0 <= self.interval[1]


def pair_stamps(stamps_a_ns: Array, stamps_b_ns: Array) -> tuple[Array, Array]:
    """Indices (P,) into both of matching plans: each is the other's nearest, within half an interval.

    The interval is the shorter of the two medians between consecutive plans. Stamps are (N,), (M,) int64; pairs are in
    order of time.
    """
    none = np.zeros(0, np.int64)
    if not len(stamps_a_ns) or not len(stamps_b_ns):
        return none, none
    order_a, order_b = np.argsort(stamps_a_ns, kind="stable"), np.argsort(stamps_b_ns, kind="stable")
    stamps_a_ns, stamps_b_ns = stamps_a_ns[order_a], stamps_b_ns[order_b]
    b_of_a, a_of_b = _nearest(stamps_b_ns, stamps_a_ns), _nearest(stamps_a_ns, stamps_b_ns)
    a = np.flatnonzero(a_of_b[b_of_a] == np.arange(len(stamps_a_ns)))
    intervals = [np.median(np.diff(some)) for some in (stamps_a_ns, stamps_b_ns) if len(some) > 1]
    near = np.abs(stamps_a_ns[a] - stamps_b_ns[b_of_a[a]]) <= 0.5 * min(intervals, default=0)
    return order_a[a[near]], order_b[b_of_a[a[near]]]


def _nearest(among: Array, stamps: Array) -> Array:
    """(N,) index of the nearest of `among` (M,) to each stamp (N,); the earlier of two as near."""
    after = np.clip(np.searchsorted(among, stamps), 1, max(len(among) - 1, 1))
    before = after - 1
    if len(among) == 1:
        return np.zeros(len(stamps), np.int64)
    return np.asarray(np.where(stamps - among[before] <= among[after] - stamps, before, after))


def assign_clusters(stamps_ns: Mapping[str, Array]) -> dict[str, Array]:
    """For each bag the cluster (N,) of each of its plans, numbered over all bags: a bag each, or stretches of it."""
    whole = sum(len(some) > 0 for some in stamps_ns.values()) >= BAGS_MIN
    clusters_by_bag, begin = {}, 0
    for bag, stamps in stamps_ns.items():
        clusters = np.zeros(len(stamps), np.int64)
        if len(stamps) and not whole:
            after_s = (stamps - stamps[0]) * 1e-9
            length_s = after_s[-1] * len(stamps) / max(len(stamps) - 1, 1)  # with the interval after the last plan
            stretches = max(1, int(length_s // CLUSTER_S))
            clusters = np.minimum((after_s / max(after_s[-1], 1e-9) * stretches).astype(np.int64), stretches - 1)
        clusters_by_bag[bag] = begin + clusters
        begin += int(clusters.max()) + 1 if len(stamps) else 0
    return clusters_by_bag


def difference(a: Array, b: Array, clusters: Array, generator: np.random.Generator) -> Difference:
    """Between paired values (P,) and (P,), finite, P > 0, of plans in `clusters` (P,) int64."""
    _, index = np.unique(clusters, return_inverse=True)
    counts = np.bincount(index).astype(float)
    sums = np.bincount(index, weights=b - a)
    means = len(a), len(sums), float(a.mean()), float(b.mean())
    if len(sums) < CLUSTERS_MIN:
        return Difference(*means, None, None)
    return Difference(*means, _interval(sums, counts, generator), _sign_flip_share(sums, generator))


def _interval(sums: Array, counts: Array, generator: np.random.Generator) -> tuple[float, float]:
    """Confidence interval of the mean over plans, by resampling clusters with their sums (K,) and numbers of
    plans (K,).
    """
    many = len(sums)
    means = []
    for size in _portions(many):
        samples = generator.integers(many, size=(size, many))
        means.append(sums[samples].sum(axis=1) / counts[samples].sum(axis=1))
    reach = np.sqrt(many / (many - 1)) * stats.t.ppf(0.5 + LEVEL / 2, many - 1)
    low, high = np.quantile(np.concatenate(means), [stats.norm.cdf(-reach), stats.norm.cdf(reach)])
    return float(low), float(high)


def _sign_flip_share(sums: Array, generator: np.random.Generator) -> float:
    """Share of random sign flips of clusters whose difference is at least as large."""
    many = len(sums)
    observed = abs(sums.sum()) * (1.0 - 1e-12)  # sums of the same numbers in another order differ in the last digit
    if many <= EXACT_CLUSTERS_MAX:
        signs = 1.0 - 2.0 * ((np.arange(2**many)[:, None] >> np.arange(many)) & 1)
        return float((np.abs(signs @ sums) >= observed).mean())
    as_much = 0
    for size in _portions(many):
        signs = 1.0 - 2.0 * generator.integers(2, size=(size, many))
        as_much += int((np.abs(signs @ sums) >= observed).sum())
    return (1 + as_much) / (1 + BOOTSTRAP_SAMPLES)


def _portions(many: int) -> list[int]:
    """RESAMPLED in portions that keep memory flat."""
    size = max(1, min(BOOTSTRAP_SAMPLES, BATCH_NUMBERS // many))
    whole, rest = divmod(BOOTSTRAP_SAMPLES, size)
    return [size] * whole + ([rest] if rest else [])
