"""The neighbourhood of one waypoint: a trajectory with every token pair nearby, to be scored in one batch.

ReflectDrive's local search (its section on safety-guided regeneration; the ball N_delta and delta = 10 are the
paper's): the pair of tokens of an unsafe waypoint is replaced by each pair within a Manhattan distance, all other
tokens are kept, and the pair of the best trajectory becomes an anchor for regeneration.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..core.domain import Array
from ..core.tokens import Codebook, TokenLayout

DELTA = 10  # bins; 221 pairs, 3 m either way with bins of 0.3 m


def ball(codebook: Codebook, pair: Array, delta: int = DELTA) -> Array:
    """Ids (M, 2) within Manhattan distance `delta` of a pair (2,), nearest first, without those outside the codebook.

    The unit of `delta` is the bin of ReflectDrive, 0.3 m; of finer bins every so many are tried. M is 2 delta^2 + 2
    delta + 1 away from the codebook's edge. Pairs of equal Manhattan distance are ordered by their distance from an
    axis, then by id, so that the order is the same on every machine. Raises ValueError on a pair outside the
    codebook.
    """
    if delta < 0:
        raise ValueError(f"delta is {delta}, expected 0 or more")
    center = np.asarray(pair)
    codebook.to_values(center)  # refuses the mask and ids off the grid
    near: Array = center + search_stride(codebook) * _ball_steps(delta)
    return np.asarray(near[((near >= 0) & (near < codebook.bins)).all(axis=1)], np.int32)


@lru_cache(maxsize=8)
def _ball_steps(delta: int) -> Array:
    """(M, 2) steps within Manhattan distance `delta`, in the order of `ball`."""
    reach = np.arange(-delta, delta + 1)
    steps = np.stack(np.meshgrid(reach, reach, indexing="ij"), axis=-1).reshape(-1, 2)
    distance = np.abs(steps).sum(axis=1)
    order = np.lexsort((steps[:, 1], steps[:, 0], (steps**2).sum(axis=1), distance))
    return np.asarray(steps[order][: (distance <= delta).sum()])


def search_stride(codebook: Codebook) -> int:
    """Bins between two neighbours of the search: as many as the 0.3 m of ReflectDrive hold, at least 1."""
    return max(round(Codebook().bin_m / codebook.bin_m), 1)


def neighbourhood(ids: Array, waypoint: int, layout: TokenLayout, delta: int = DELTA) -> tuple[Array, Array]:
    """The pairs (M, 2) of the ball around a waypoint of a trajectory, ids (T,), and the M trajectories (M, T).

    Raises ValueError on ids that hold the mask and on a waypoint that the trajectory does not have.
    """
    ids = np.asarray(ids)
    if ids.shape != (layout.length,):
        raise ValueError(f"search.ids has shape {ids.shape}, expected ({layout.length},)")
    if not 0 <= waypoint < layout.points:
        raise ValueError(f"search.waypoint is {waypoint}, expected 0..{layout.points - 1}")
    here = layout.waypoint(waypoint)
    pairs = ball(layout.codebook, ids[here], delta)
    tried = np.tile(ids.astype(np.int32), (len(pairs), 1))
    tried[:, here] = pairs
    return pairs, tried
