"""Weights of a token network as the start of one with another layout: the same positions, other bins.

Tables of x and y are read by position (`axis.resample_rows`), the slots of waypoints by waypoint and axis. What the
other network has no counterpart of, as headings, is None and keeps its random start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.tokens import TokenLayout
from .axis import resample_rows
from .net import TokenNetConfig


def adapt(name: str, value: Tensor, source: TokenNetConfig, target: TokenNetConfig) -> Tensor | None:
    """A parameter `name` of a network of `source` as that of a network of `target`; None if it has no counterpart."""
    if name == "slot":
        return _slots(value, source.layout, target.layout)
    for axis in source.layout.axes:
        other = next((each for each in target.layout.axes if each.name == axis.name), None)
        if other is None or name not in (f"{axis.name}_embedding.weight", f"{axis.name}_head.weight"):
            continue
        mask = name.endswith("embedding.weight")
        rows = resample_rows(value.float(), axis, source.table_stride, mask, other, target.table_stride)
        if mask and target.table_stride == 1:  # rows of ids that only another axis has
            gap = rows[-1:].expand(target.layout.mask_id - other.bins, -1)
            rows = torch.cat([rows[:-1], gap, rows[-1:]])
        return rows
    return None


def _slots(value: Tensor, source: TokenLayout, target: TokenLayout) -> Tensor | None:
    """(T, width) of the target; the slot of an axis that the source lacks is that of the waypoint's last axis."""
    if source.points != target.points:
        return None
    by_point = torch.unflatten(value, 0, (source.points, -1))
    names = [axis.name for axis in source.axes]
    sources = [names.index(axis.name) if axis.name in names else -1 for axis in target.axes]
    return by_point[:, sources].flatten(0, 1)
