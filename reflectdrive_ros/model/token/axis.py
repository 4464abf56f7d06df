"""Embedding and head of one axis of the action tokens.

A table has a row per bin. With a stride s above 1 it has a row per s bins, a knot, and the rows of the bins between are
read by a Catmull-Rom spline, which passes through the knots. Bins of 0.05 m need 4001 rows otherwise; neighbouring bins
are neighbouring positions, so that most of these would say the same. Logits are interpolated likewise: the head is
multiplied at the knots only.

    embed = make_embedding(axis, mask_id, width, stride)   # ids (..) -> (.., width)
    head = make_head(axis, width, stride)                  # head.logits(hidden, low, high) -> (.., high - low + 1)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.tokens import Axis


class TableHead(nn.Linear):
    """A row per bin."""

    def __init__(self, bins: int, width: int) -> None:
        super().__init__(width, bins, bias=False)

    def logits(self, hidden: Tensor, low: int, high: int) -> Tensor:
        """(.., high - low + 1) of the ids low .. high from hidden (.., width); the other rows are not multiplied."""
        return F.linear(hidden, self.weight[low : high + 1])


class SplineEmbedding(nn.Module):
    """Rows of knots; the last row is the mask."""

    def __init__(self, bins: int, mask_id: int, width: int, stride: int) -> None:
        super().__init__()
        self.zero_id, self.mask_id, self.stride = bins // 2, mask_id, stride
        self.weight = nn.Parameter(torch.empty(knot_count(bins, stride) + 1, width))

    def forward(self, ids: Tensor) -> Tensor:
        """(.., width) of ids (..)."""
        masked = ids == self.mask_id
        position = (
            torch.where(masked, self.zero_id, ids)
            - self.zero_id
            + self.stride * knots_per_side(self.zero_id, self.stride)
        )
        first = torch.div(position, self.stride, rounding_mode="floor")
        share = (position - self.stride * first).to(self.weight.dtype) / self.stride
        rows = [self.weight[first + k - 1] for k in range(4)]
        weights = spline_weights(share)
        mixed = weights[0][..., None] * rows[0]
        for weight, row in zip(weights[1:], rows[1:], strict=True):
            mixed = mixed + weight[..., None] * row
        return torch.where(masked[..., None], self.weight[-1], mixed)


class SplineHead(nn.Module):
    """Rows of knots."""

    between: Tensor

    def __init__(self, bins: int, width: int, stride: int) -> None:
        super().__init__()
        self.zero_id, self.stride = bins // 2, stride
        self.weight = nn.Parameter(torch.empty(knot_count(bins, stride), width))
        share = torch.arange(stride) / stride
        self.register_buffer("between", torch.stack(spline_weights(share)), persistent=False)  # (4, stride)

    def logits(self, hidden: Tensor, low: int, high: int) -> Tensor:
        """As `TableHead.logits`."""
        shift = self.stride * knots_per_side(self.zero_id, self.stride) - self.zero_id
        first, last = (low + shift) // self.stride, (high + shift) // self.stride  # knots before the first, last id
        knots = F.linear(hidden, self.weight[first - 1 : last + 3])
        count = last - first + 1
        near = torch.stack([knots[..., k : k + count] for k in range(4)], -1)
        begin = low + shift - self.stride * first
        return (near @ self.between.to(near.dtype)).flatten(-2)[..., begin : begin + high - low + 1]


def knots_per_side(half: int, stride: int) -> int:
    """Knots on each side of that at 0: one more than covers `half` bins, for the spline."""
    return -(-half // stride) + 2


def knot_count(bins: int, stride: int) -> int:
    return 2 * knots_per_side(bins // 2, stride) + 1


def spline_weights(share: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Catmull-Rom weights of the knots before, at, after and behind a position, `share` (..) of the distance from the
    second to the third."""
    t, t2, t3 = share, share * share, share * share * share
    return (
        0.5 * (2.0 * t2 - t3 - t),
        0.5 * (3.0 * t3 - 5.0 * t2 + 2.0),
        0.5 * (4.0 * t2 - 3.0 * t3 + t),
        0.5 * (t3 - t2),
    )


def make_embedding(axis: Axis, mask_id: int, width: int, stride: int) -> nn.Module:
    """A table of the layout's ids, `mask_id` the last; with a stride, of knots."""
    if stride == 1:
        return nn.Embedding(mask_id + 1, width)
    return SplineEmbedding(axis.bins, mask_id, width, stride)


def make_head(axis: Axis, width: int, stride: int) -> TableHead | SplineHead:
    return TableHead(axis.bins, width) if stride == 1 else SplineHead(axis.bins, width, stride)


def resample_rows(table: Tensor, axis: Axis, stride: int, mask: bool, new_axis: Axis, new_stride: int) -> Tensor:
    """The rows of a table of one codebook as the rows (or knots) of another's, by position: linear between rows,
    constant beyond the ends. `mask`: the last row is the mask, and stays the last."""
    body = table[:-1] if mask else table
    rows = body[: axis.bins] if stride == 1 else body
    zero = axis.bins // 2 if stride == 1 else knots_per_side(axis.bins // 2, stride)
    if new_stride == 1:
        at_m = new_axis.bin * (torch.arange(new_axis.bins) - new_axis.bins // 2)
    else:
        side = knots_per_side(new_axis.bins // 2, new_stride)
        at_m = new_axis.bin * new_stride * torch.arange(-side, side + 1)
    position = (at_m / (axis.bin * stride) + zero).clamp(0.0, len(rows) - 1.0)
    first = position.floor().long().clamp(max=len(rows) - 2)
    share = (position - first)[:, None].to(rows.dtype)
    mixed = (1.0 - share) * rows[first] + share * rows[first + 1]
    return torch.cat([mixed, table[-1:]]) if mask else mixed
