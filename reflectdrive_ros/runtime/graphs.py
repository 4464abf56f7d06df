"""What the backends of exported graphs share: what the network takes, what graphs are fed, how blocks are dealt out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..domain import Array
from ..features import InputSpec, ModelInputs, Tokenizer, WordTokenizer
from ..model.card import GraphCard, GraphError
from ..planning.planner import PlanningError
from .feature_cache import Sight

Pair = tuple[Array, Array]  # ids (M, 16), and their probabilities
Kind = tuple[np.dtype, Sequence[int | str]]  # element type and shape of a tensor; a size that is free has a name


def input_spec(card: GraphCard, tokenizer: Tokenizer | None = None) -> InputSpec:
    """What the network takes; `tokenizer` is for networks without words of their own. Raises GraphError."""
    told = card.model["inputs"]
    if tokenizer is None and not told["words"]:
        raise GraphError(f"{card.path}: the network has no words of its own; give the tokenizer it was trained with")
    try:
        tokenizer = tokenizer or WordTokenizer(told["words"])
    except ValueError as fault:
        raise GraphError(f"{card.path} has wrong inputs.words: {fault}") from None
    return InputSpec(
        told["width"],
        told["height"],
        told["text_length"],
        tokenizer,
        told["cameras"],
        told["instants"],
        tuple(told["ego_scale"]),
        tuple(told["route_at_m"]),
        card.codebook(),
    )


def sight_of(card: GraphCard, look: Callable[[Array], Array]) -> Sight[Array]:
    """What is seen in pictures, by `look`: views (V, F, H, W, 3) to seen (V, P, width)."""
    told = card.model["inputs"]
    return Sight(lambda pictures: look(views_of(card, pictures)), told["instants"] // told["frames"])


def views_of(card: GraphCard, pictures: Array) -> Array:
    """(V, F, H, W, 3) of pictures (N, H, W, 3): for each camera those F that are looked at together, the oldest first.

    Raises PlanningError for a number of pictures that cannot be dealt out so.
    """
    frames, cameras = card.model["inputs"]["frames"], card.model["inputs"]["cameras"]
    if len(pictures) % (frames * cameras):
        raise PlanningError(f"{len(pictures)} pictures were given, expected {frames} of each of {cameras} cameras")
    together = pictures.reshape(-1, frames, cameras, *pictures.shape[1:]).swapaxes(1, 2)
    return np.asarray(together.reshape(-1, frames, *pictures.shape[1:]))


def fed(inputs: ModelInputs, sight: Sight[Array]) -> dict[str, Array]:
    """What a graph that reads the scene is fed: a batch of one. Raises PlanningError as `views_of` does."""
    told = {name: part[None] for name, part in inputs.arrays.items() if name != "images"}
    return {"seen": np.stack(sight(inputs.images))[None], **told}


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


def in_portions(call: Callable[[Array], Pair], blocks: Array, count: int | None) -> Pair:
    """What `call` makes of blocks (M, 16), in as many calls as a step that takes `count` needs; None: any number.

    Each call is given a batch (1, count, 16) int64, a block repeated where there are fewer, and gives (ids, confidence)
    of each of them. No block sees another, so it does not matter which share a call. A repair redraws more blocks than
    there are goals.
    """
    done = []
    for at in range(0, len(blocks), count or len(blocks)):
        portion = blocks[at : at + count] if count else blocks
        ids = np.concatenate([portion, np.repeat(portion[:1], (count or len(portion)) - len(portion), axis=0)])
        written, confidence = call(ids[None].astype(np.int64))
        done.append((written[: len(portion)].astype(np.int32), confidence[: len(portion)]))
    return joined(done)


def joined(done: Sequence[Pair]) -> Pair:
    """Ids and confidence of several calls as those of one."""
    written, confidence = (np.concatenate(parts) for parts in zip(*done, strict=True))
    return written, confidence


def _fits(shape: Sequence[int | str], expected: Sequence[int | str]) -> bool:
    return list(shape) == list(expected) or (  # most have no free size, and are looked at in every call
        len(shape) == len(expected)
        and all(not isinstance(want, int) or have == want for have, want in zip(shape, expected, strict=True))
    )


def _shown(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
