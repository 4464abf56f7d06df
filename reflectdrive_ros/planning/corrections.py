"""The corrections of a token planner: which tokens of the draft each edit round replaced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from ..core.domain import Array, TokenTrace
from ..core.tokens import TokenLayout


@dataclass(frozen=True)
class Correction:
    """One token that one edit round replaced.

    The probability of the former token is that of the last network call that evaluated it, the draft or the round
    before; that of the new token is of the round that wrote it.
    """

    round: int  # edit round, from 1
    waypoint: int  # from 1
    axis: str  # one of tokens.AXES
    before: float  # m, ego frame of the plan; of a heading radians
    after: float
    probability_before: float  # 0..1
    probability_after: float

    def __post_init__(self) -> None:
        for name in ("round", "waypoint"):
            if getattr(self, name) < 1:
                raise ValueError(f"Correction.{name} is {getattr(self, name)}, expected at least 1")


def corrections(trace: TokenTrace, layout: TokenLayout) -> tuple[Correction, ...]:
    """The replaced tokens by round, then in the order of the action sequence; empty if no round replaced any.

    Raises ValueError for a trace of another layout.
    """
    values = layout.decode(trace.ids).reshape(trace.ids.shape)
    return tuple(
        Correction(
            int(row) + 1,
            int(token) // len(layout.axes) + 1,
            layout.axes[token % len(layout.axes)].name,
            float(values[row, token]),
            float(values[row + 1, token]),
            float(trace.confidence[row, token]),
            float(trace.confidence[row + 1, token]),
        )
        for row, token in zip(*(trace.ids[1:] != trace.ids[:-1]).nonzero(), strict=True)
    )


def draft_and_corrections(trace: TokenTrace | None, layout: TokenLayout | None) -> tuple[Array, tuple[Correction, ...]]:
    """(N, 2) m, ego frame: waypoints of the draft, none of tokens on a route that the trace does not know; and its
    corrections. Both are empty if trace or layout is None, or if the trace is of another layout: for pages, which must
    also show such planners.
    """
    if trace is not None and layout is not None:
        with suppress(ValueError):
            draft = trace.draft if layout.frame == "route" else layout.decode(trace.ids[0])[:, :2]
            return draft, corrections(trace, layout)
    return np.zeros((0, 2)), ()


def correction_rows(changes: Sequence[Correction]) -> list[list[Any]]:
    """JSON rows for the pages: round, waypoint, axis, before, after, probability before, probability after."""
    return [[value if isinstance(value, str) else round(value, 3) for value in astuple(change)] for change in changes]
