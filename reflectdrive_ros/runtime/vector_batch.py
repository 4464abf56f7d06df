"""The inputs of a denoiser as a batch, shared by its backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.domain import Array
from ..core.vector_spec import VectorSpec
from ..features.vectors import VectorInputs, without_conditions
from ..planning.planner import PlanningError


@dataclass(frozen=True, eq=False)
class EncodedVectors:
    """The context of one scene for `Denoiser.denoise`."""

    tensors: Any  # of the encoder graph, on their device
    rows: int  # 1, or 2 with the decoupled condition; later rows of the batch are padding


def batch(inputs: VectorInputs, with_unconditional: bool, size: int | None = None) -> dict[str, Array]:
    """Arrays (B, ..) by name: the scene and, with `with_unconditional`, its decoupled condition as the second row.

    size: B of graphs with a fixed batch, filled with copies of the scene. Raises PlanningError for more rows than that.
    """
    rows = [inputs, *([without_conditions(inputs)] if with_unconditional else [])]
    if size is not None:
        if len(rows) > size:
            raise PlanningError("the graphs take one scene and no second condition: export them again with --batch 2")
        rows += (size - len(rows)) * [inputs]
    columns = zip(*(each.arrays.items() for each in rows), strict=True)
    return {column[0][0]: np.stack([array for _, array in column]) for column in columns}


def future_shape(spec: VectorSpec) -> tuple[int, int, int]:
    """(P, 1 + T, 4) of noisy and clean futures."""
    return spec.futures, 1 + spec.future_steps, 4


def noisy_futures(futures: Array, spec: VectorSpec) -> Array:
    """Futures (P, 1 + T, 4) in float32. Raises PlanningError for another shape."""
    if futures.shape != future_shape(spec):
        raise PlanningError(f"noisy futures are {futures.shape}, expected {future_shape(spec)}")
    return np.ascontiguousarray(futures, np.float32)
