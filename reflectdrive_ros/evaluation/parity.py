"""Two backends on the same scenes: how many final tokens are the same."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from ..domain import Array
from ..features import InputSpec, ModelInputs, model_inputs
from ..planning.planner import Network
from ..sim import shards
from ..sim.shards import SetError

Move = tuple[int, bool]  # limit, edit
FULL: tuple[Move, ...] = ((5, False), (5, False), (4, False), (0, True), (0, True), (0, True))
LITE: tuple[Move, ...] = ((16, False), (0, True))


def frame(
    network: Network,
    inputs: ModelInputs,
    moves: Sequence[Move],
    count: int,
    blocks: Array | None = None,
    edited: int | None = None,
) -> tuple[Array, tuple[float, float, float]]:
    """Blocks (M, 16) of a frame on `count` goals, or from `blocks`; milliseconds in prefill, drafts and edits.

    Edits are made on the first `edited` of them, which are what is returned; None: on all.
    """
    begun = time.perf_counter_ns()
    known = network.prefill_goal(inputs)
    spent = [1e-6 * (time.perf_counter_ns() - begun), 0.0, 0.0]
    blocks = known.blocks[:count] if blocks is None else blocks
    for limit, edit in moves:
        begun = time.perf_counter_ns()
        blocks = blocks[:edited] if edit else blocks
        blocks, _ = network.step(known.context, blocks, limit, edit)
        spent[1 + edit] += 1e-6 * (time.perf_counter_ns() - begun)
    return blocks, (spent[0], spent[1], spent[2])


def inputs_of(folder: Path, scenes: int, spec: InputSpec, console: Console) -> Iterator[ModelInputs]:
    """What a network is given of the first scenes of a set. Raises SetError."""
    read = shards.read(
        folder, pictures=True, limit=scenes, on_damage=partial(console.print, soft_wrap=True, highlight=False)
    )
    for scene in track(read, "comparing", total=scenes, console=console, disable=not console.is_terminal):
        yield model_inputs(scene.observation(), spec)


def counted(network: Network, other: Network, scenes: Iterable[ModelInputs]) -> dict[str, Any]:
    """Equal tokens of full frames on all goals, and of lite frames on what `other` planned. Raises SetError."""
    equal = {"scenes": 0, "tokens": 0, "equal_tokens": 0, "equal_blocks": 0, "blocks": 0}
    bins = []
    for inputs in scenes:
        count = len(other.prefill_goal(inputs).blocks)
        written = [frame(of, inputs, FULL, count)[0] for of in (network, other)]
        last = written[1][:1].copy()
        last[:, -2:] = other.codebook.mask_id
        carried = [frame(of, inputs, LITE, 1, last)[0] for of in (network, other)]
        ours, theirs = (np.concatenate(both) for both in zip(written, carried, strict=True))
        same = ours == theirs
        equal["scenes"] += 1
        equal["tokens"] += same.size
        equal["equal_tokens"] += int(same.sum())
        equal["blocks"] += len(same)
        equal["equal_blocks"] += int(same.all(-1).sum())
        bins += np.abs(ours - theirs)[~same].tolist()
    if not equal["scenes"]:
        raise SetError("the set holds no scene to compare on")
    share = equal["equal_tokens"] / equal["tokens"]
    return {**equal, "equal_share": share, "largest_difference_bins": max(bins, default=0)}


def sentence(numbers: Mapping[str, Any]) -> str:
    return (
        f"{numbers['equal_tokens']} of {numbers['tokens']} final tokens are those of eager torch "
        f"({100 * numbers['equal_share']:.3f} %, {numbers['scenes']} scenes)"
    )
