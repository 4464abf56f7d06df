"""ADE, FDE and miss rate of plans against the driven path, which is the expert of a scene.

ADE at T is the mean distance of the planned and the driven position of the rear axle at 0.5, 1, .. T s; FDE at T is the
distance at T alone. The miss rate is the share of scenes with an FDE of more than MISS_M at 4 s. A scene without a plan
is a miss, and counts in no mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.domain import Array
from ..scoring.scorer import WAYPOINTS
from .bootstrap import bootstrap_intervals

HORIZONS_S = (1, 2, 3, 4)
MISS_M = 2.0  # as in the motion forecasting challenges of Argoverse and Waymo
NO_PLAN = np.full(WAYPOINTS, np.nan)


def distances(plan: Array, driven: Array) -> Array:
    """(8,) m between two paths (8, 3) at 0.5, 1, .. 4 s."""
    return np.asarray(np.hypot(*(plan[:, :2] - driven[:, :2]).T))


def summarise(rows: Array) -> dict[str, Any]:
    """Means and their 95 % intervals of the distances (N, 8) of N scenes; None without a plan.

    `ade_m` and `fde_m` by horizon in s, `miss_rate` in percent.
    """
    planned = rows[np.isfinite(rows).all(axis=1)]
    ends = np.array([2 * horizon for horizon in HORIZONS_S])
    errors = {
        "ade_m": np.cumsum(planned, axis=1)[:, ends - 1] / ends,
        "fde_m": planned[:, ends - 1],
    }
    summary: dict[str, Any] = {"plans": len(planned)}
    for name, values in errors.items():
        summary[name] = _by_horizon([round(float(mean), 3) for mean in values.mean(axis=0)] if len(values) else None)
        summary[f"{name}_95"] = _by_horizon(bootstrap_intervals(values).round(3).tolist() if len(values) else None)
    missed = ~(rows[:, -1] <= MISS_M)
    summary["miss_rate"] = round(100.0 * float(missed.mean()), 3)
    summary["miss_rate_95"] = (100.0 * bootstrap_intervals(missed[:, None].astype(float))[0]).round(3).tolist()
    return summary


def _by_horizon(values: list[Any] | None) -> dict[str, Any]:
    return {str(horizon): None if values is None else values[k] for k, horizon in enumerate(HORIZONS_S)}
