"""`ops.update` as one Triton kernel: softmax, confidence, ranks and commit in a single launch.

    written, confidence = fused_update.update(ids, logits, mask_id, limit, edit, rules)

One program per action sequence. It reads the sequence's rows of logits once, tile by tile, and keeps of each row the
largest logit and its first position, the sum of exponentials and the logit of the present token. It then ranks and
writes the values in registers. Eager torch launches about forty kernels for this, which write the probabilities of
all ids to memory and read them back.

Limit and edit are read on the device, so that one recorded graph serves drafts and edits. Ties go to the lower position
and the lower id, as in `ops`; confidences that differ by less than rounding may be ranked differently.

Import this late: it needs triton, which comes with torch for CUDA and needs a GPU, except in its interpreter
(test/test_fused_update.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.tokens import TokenLayout
from .ops import EditRules

TILE = 128  # ids per tile: 128 registers per thread, none spilled; 256 ids would take 234
WARPS = 8
LOWEST = tl.constexpr(-3.4e38)  # of float32; minus infinity would give NaN in a tile that has no other value


def update(
    ids: Tensor, logits: Tensor, layout: TokenLayout, limit: Tensor, edit: Tensor, rules: EditRules
) -> tuple[Tensor, Tensor]:
    """Ids (B, M, T) after a draft of up to `limit` or, if `edit`, an edit; and the probability of each id, 0 for a
    mask.

    logits (B, M, T, bins) in float32 or bfloat16; limit and edit are single numbers, bool or int, on the same device.
    A program works on `layout.padded_length` rows, of which those after the sequence are left out of all ranks.
    """
    length, bins = logits.shape[-2:]
    ids, logits = ids.contiguous(), logits.contiguous()
    written, confidence = torch.empty_like(ids), torch.empty(ids.shape, device=ids.device)
    programs = (ids.numel() // length,)
    keeps_goal = bool(layout.goal) and not layout.edit_goal
    goal_begin, goal_end = (layout.goal[0], layout.goal[1] + 1) if keeps_goal else (0, 0)
    numbers = (layout.mask_id, bins, rules.at_most, length, goal_begin, goal_end)
    with torch.cuda.device_of(ids):  # type: ignore[no-untyped-call]  # triton launches on the present device
        kernel[programs](
            ids, logits, limit, edit, written, confidence, *numbers, layout.padded_length, TILE, num_warps=WARPS
        )
    return written, confidence


@triton.jit  # type: ignore[untyped-decorator]
def kernel(
    ids: tl.tensor,
    logits: tl.tensor,
    limit: tl.tensor,
    edit: tl.tensor,
    written: tl.tensor,
    confidence: tl.tensor,
    mask_id: int,
    bins: int,
    at_most: int,
    length: int,
    goal_begin: int,
    goal_end: int,
    LENGTH: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """One sequence of `length` tokens; the first six are pointers. `goal_begin` to `goal_end` are not edited."""
    position = tl.arange(0, LENGTH)
    inside = position < length
    here = tl.program_id(0).to(tl.int64) * length + position
    present = tl.load(ids + here, inside, 0).to(tl.int32)

    top = tl.full((LENGTH,), LOWEST, tl.float32)
    own = tl.full((LENGTH,), LOWEST, tl.float32)
    total = tl.zeros((LENGTH,), tl.float32)  # of exp(logit - top)
    likeliest = tl.zeros((LENGTH,), tl.int32)
    for begin in range(0, bins, TILE):
        column = begin + tl.arange(0, TILE)[None, :]
        x = tl.load(logits + here[:, None] * bins + column, inside[:, None] & (column < bins), -float("inf")).to(
            tl.float32
        )
        of_tile = tl.max(x, 1)
        first = tl.min(tl.where(x == of_tile[:, None], column, bins - 1), 1)
        likeliest = tl.where(of_tile > top, first, likeliest)  # an equal value further left stays
        own = tl.maximum(own, tl.max(tl.where(column == present[:, None], x, LOWEST), 1))
        larger = tl.maximum(top, of_tile)
        total = total * tl.exp(top - larger) + tl.sum(tl.exp(x - larger[:, None]), 1)
        top = larger
    total = tl.where(inside, total, 1.0)
    confidence_now = tl.div_rn(1.0, total)
    own_probability = tl.div_rn(tl.exp(own - top), total)  # not used for masks

    editing, masked = tl.load(edit) != 0, inside & (present == mask_id)
    free = inside & ((position < goal_begin) | (position >= goal_end))
    is_edited = free & ~masked & (likeliest != present) & (confidence_now > own_probability)
    among = tl.where(editing, is_edited, masked)
    key = tl.where(editing, -own_probability, confidence_now)
    other, mine = key[None, :], key[:, None]
    before = (other > mine) | ((other == mine) & (position[None, :] < position[:, None]))
    rank = tl.sum((before & among[None, :]).to(tl.int32), 1)
    commit = among & (rank < tl.where(editing, at_most, tl.load(limit)))

    tl.store(written + here, tl.where(commit, likeliest, present), inside)
    token_confidence = tl.where(commit, confidence_now, tl.where(masked, 0.0, own_probability))
    tl.store(confidence + here, token_confidence, inside)
