"""Auxiliary BEV head: occupancy of a grid around the car from all image tokens. Training only.

The sixteen action tokens alone are a weak training signal for the vision encoder. The network is therefore also trained
to predict, from its image tokens, which cells of a grid around the car are road, and which are occupied now and in one,
two and four seconds. Cells are 1 m wide: in larger ones the share of a pedestrian would be too small. The head is
discarded after training and does not change the planner. Such auxiliary tasks are common in camera planners
(TransFuser, arXiv 2205.15997, section 3.4); ReflectDrive-2 has none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import distance_map
from ..data.occupancy import CELLS, CHANNELS, FUTURE_STEPS, cell_centres_m

PATCH = 8  # cells per side that one query predicts
HEADS = 4
OCCUPIED_WEIGHT = 4.0  # weight of occupied cells relative to free ones


class BevHead(nn.Module):
    """Image tokens to the grid: one round of attention by a query per patch of cells."""

    rows: Tensor
    columns: Tensor
    weights: Tensor

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty((CELLS // PATCH) ** 2, width))
        self.keys_values = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, CHANNELS * PATCH**2)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() < 2:
                    parameter.fill_(1.0 if name == "norm.weight" else 0.0)
                else:
                    scale = 0.5 if name == "queries" else parameter.shape[1] ** -0.5
                    parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        for axis, (name, centres) in enumerate(zip(("rows", "columns"), cell_centres_m(), strict=True)):
            self.register_buffer(name, torch.from_numpy(distance_map.indices_of(centres, axis)), persistent=False)
        weights = torch.tensor([1.0, *[OCCUPIED_WEIGHT] * len(FUTURE_STEPS)])
        self.register_buffer("weights", weights[:, None, None], persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, width) -> logits (B, CHANNELS, CELLS, CELLS)."""
        keys, values = (
            torch.unflatten(part, -1, (HEADS, -1)).transpose(1, 2) for part in self.keys_values(tokens).chunk(2, dim=-1)
        )
        queries = torch.unflatten(self.queries, -1, (HEADS, -1)).transpose(0, 1).expand(len(tokens), -1, -1, -1)
        attended = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)
        outputs = self.fc2(F.gelu(self.fc1(self.norm(self.queries + attended))))
        side = CELLS // PATCH
        patches: Tensor = outputs.view(-1, side, side, CHANNELS, PATCH, PATCH)
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(-1, CHANNELS, CELLS, CELLS)

    def loss(self, tokens: Tensor, distances: Tensor, occupancy: Tensor, has_labels: Tensor) -> Tensor:
        """Mean cross-entropy over cells and channels, 0 of the channels that a scene does not know.

        tokens (B, N, width), distances (B, X, Y) int8 as `fields.distance_map`, occupancy bool as a batch of
        `occupancy`, has_labels (B, 2) bool as of `losses.Batch`.
        """
        road = distances[:, self.rows][:, :, self.columns] <= 0
        target = torch.cat([road[:, None], occupancy], 1).float()
        counts = channel_mask(has_labels)[:, :, None, None].expand_as(target)
        return F.binary_cross_entropy_with_logits(self(tokens).float(), target, counts, pos_weight=self.weights)


def channel_mask(has_labels: Tensor) -> Tensor:
    """(B, CHANNELS) 1 or 0 of (B, 2) bool: the road, then the occupancy at each instant."""
    return torch.cat([has_labels[:, :1], has_labels[:, 1:].expand(-1, len(FUTURE_STEPS))], 1).float()
