"""AutoEdit: the network replaces tokens of a complete plan, in rounds, until it changes nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..scoring.frenet import FrenetFrame, points_in_ego_frame
from .planner import Network, no_deadline

EDIT_DEADLINE_SHARE = 0.6  # share of the deadline after which no further AutoEdit round begins


def edit_actions(
    network: Network,
    context: Any,
    actions: Array,
    confidence: Array,
    rounds: int,
    deadline_used: Callable[[], float] = no_deadline,
) -> list[tuple[Array, Array]]:
    """The draft (M, T) with its probabilities, then both after each round of edits.

    Stops after `rounds` rounds, when a round changes nothing (the next would not either), or when more than
    EDIT_DEADLINE_SHARE of the deadline is used, to leave time for the repair.
    """
    rounds_done = [(actions, confidence)]
    for _ in range(rounds):
        if deadline_used() > EDIT_DEADLINE_SHARE:
            break
        before = rounds_done[-1][0]
        rounds_done.append(network.step(context, before, 0, True))
        if np.array_equal(rounds_done[-1][0], before):
            break
    return rounds_done


def edited_points(
    points: Array, before: Array, after: Array, layout: TokenLayout, road: FrenetFrame | None = None
) -> Array:
    """(P, 2) points of edited ids (T,), ego frame: unchanged where the ids are unchanged, else decoded."""
    is_same = (after == before).reshape(points.shape)
    if layout.frame == "route":  # a token of the route moves both coordinates of its point
        is_same = is_same.all(-1, keepdims=True)
    return np.where(is_same, points, points_in_ego_frame(layout.decode(after), layout, road))
