"""What the backends of exported graphs share: what the network takes, what a graph is fed, how blocks fill it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..domain import Array
from ..features import InputSpec, Tokenizer, WordTokenizer
from ..model.graph_card import GraphCard, GraphError
from ..planning.planner import PlanningError

Kind = tuple[np.dtype, Sequence[int | str]]  # element type and shape of a tensor; a size that is free has a name


def input_spec(card: GraphCard, tokenizer: Tokenizer | None = None) -> InputSpec:
    """What the network takes; `tokenizer` is for networks without words of their own. Raises GraphError."""
    told = card.model["inputs"]
    if tokenizer is None and not told["words"]:
        raise GraphError(f"{card.path}: the network has no words of its own; give the tokenizer it was trained with")
    return InputSpec(
        told["width"],
        told["height"],
        told["text_length"],
        tokenizer or WordTokenizer(told["words"]),
        told["cameras"],
        told["instants"],
        tuple(told["ego_scale"]),
        tuple(told["route_at_m"]),
        card.codebook(),
    )


def check_feeds(graph: str, takes: Mapping[str, Kind], given: Mapping[str, Kind]) -> None:
    """Raises PlanningError naming the first tensor that is missing, not taken, or of another kind."""
    for name in (*takes, *given):
        if name not in given or name not in takes:
            problem = "was not given" if name in takes else "is not among its inputs"
            raise PlanningError(f"graph {graph}: tensor {name} {problem}")
        (kind, shape), (has_kind, has) = takes[name], given[name]
        if kind != has_kind or not _fits(has, shape):
            raise PlanningError(
                f"graph {graph}: tensor {name} is {has_kind} {tuple(has)}, expected {kind} {_shown(shape)}"
            )


def filled_up(blocks: Array, count: int | None) -> Array:
    """Blocks (M, 16) as the batch (1, count, 16) int64 that a step takes, the first one repeated; None: (1, M, 16).

    No block sees another, so what stands behind them changes nothing. Raises PlanningError for more than `count`.
    """
    ids = blocks[None].astype(np.int64)
    if count is None:
        return ids
    if len(blocks) > count:
        raise PlanningError(f"the step graph takes {count} blocks, got {len(blocks)}: export with --blocks")
    return np.concatenate([ids, np.repeat(ids[:, :1], count - len(blocks), axis=1)], axis=1)


def _fits(shape: Sequence[int | str], expected: Sequence[int | str]) -> bool:
    return len(shape) == len(expected) and all(
        not isinstance(want, int) or have == want for have, want in zip(shape, expected, strict=True)
    )


def _shown(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
