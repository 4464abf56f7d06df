"""`ops.update` as one Triton kernel: softmax, confidence, ranks and commit in a single launch.

    written, confidence = fused_update.update(ids, logits, mask_id, limit, edit, rules)

One program per action sequence. It reads the sequence's 16 rows of logits once, tile by tile, and keeps of each row the
largest logit and its first position, the sum of exponentials and the logit of the present token. It then ranks and
writes the 16 values in registers. Eager torch launches about forty kernels for this, which write the probabilities of
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

from .ops import EditRules

TILE = 128  # ids per tile: 128 registers per thread, none spilled; 256 ids would take 234
WARPS = 8
LOWEST = tl.constexpr(-3.4e38)  # of float32; minus infinity would give NaN in a tile that has no other value


def update(
    ids: Tensor, logits: Tensor, mask_id: int, limit: Tensor, edit: Tensor, rules: EditRules
) -> tuple[Tensor, Tensor]:
    """Ids (B, M, 16) after a draft of up to `limit` or, if `edit`, an edit; and the probability of each id, 0 for a
    mask.

    logits (B, M, 16, bins) in float32 or bfloat16; limit and edit are single numbers, bool or int, on the same device.
    Raises ValueError for sequences whose length is not a power of two.
    """
    length, bins = logits.shape[-2:]
    if length & (length - 1):
        raise ValueError(f"a block of {length} tokens does not fit the kernel: expected a power of two")
    ids, logits = ids.contiguous(), logits.contiguous()
    written, confidence = torch.empty_like(ids), torch.empty(ids.shape, device=ids.device)
    programs = (ids.numel() // length,)
    numbers = (mask_id, bins, rules.at_most, length - rules.frozen)
    with torch.cuda.device_of(ids):  # type: ignore[no-untyped-call]  # triton launches on the present device
        kernel[programs](ids, logits, limit, edit, written, confidence, *numbers, length, TILE, num_warps=WARPS)
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
    free: int,
    LENGTH: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """One block; the first six are pointers. `free` positions at its beginning may be edited."""
    place = tl.arange(0, LENGTH)
    here = tl.program_id(0).to(tl.int64) * LENGTH + place
    present = tl.load(ids + here).to(tl.int32)

    top = tl.full((LENGTH,), LOWEST, tl.float32)
    own = tl.full((LENGTH,), LOWEST, tl.float32)
    total = tl.zeros((LENGTH,), tl.float32)  # of exp(logit - top)
    likeliest = tl.zeros((LENGTH,), tl.int32)
    for begin in range(0, bins, TILE):
        column = begin + tl.arange(0, TILE)[None, :]
        x = tl.load(logits + here[:, None] * bins + column, column < bins, -float("inf")).to(tl.float32)
        of_tile = tl.max(x, 1)
        first = tl.min(tl.where(x == of_tile[:, None], column, bins - 1), 1)
        likeliest = tl.where(of_tile > top, first, likeliest)  # an equal value further left stays
        own = tl.maximum(own, tl.max(tl.where(column == present[:, None], x, LOWEST), 1))
        larger = tl.maximum(top, of_tile)
        total = total * tl.exp(top - larger) + tl.sum(tl.exp(x - larger[:, None]), 1)
        top = larger
    confidence_now = tl.div_rn(1.0, total)
    own_probability = tl.div_rn(tl.exp(own - top), total)  # not used for masks

    editing, masked = tl.load(edit) != 0, present == mask_id
    wanted = (place < free) & ~masked & (likeliest != present) & (confidence_now > own_probability)
    among = tl.where(editing, wanted, masked)
    key = tl.where(editing, -own_probability, confidence_now)
    other, mine = key[None, :], key[:, None]
    before = (other > mine) | ((other == mine) & (place[None, :] < place[:, None]))
    rank = tl.sum((before & among[None, :]).to(tl.int32), 1)
    commit = among & (rank < tl.where(editing, at_most, tl.load(limit)))

    tl.store(written + here, tl.where(commit, likeliest, present))
    tl.store(confidence + here, tl.where(commit, confidence_now, tl.where(masked, 0.0, own_probability)))
