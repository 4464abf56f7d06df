"""The refinement expert of DriveFine: copies of the network's last layers that correct a finished plan in one pass.

The layers below are shared with the generator, and gradients stop at the expert: training it does not change the
generator, whose outputs stay equal to the last bit (DriveFine, section 3.2). It reads a plan without masks and predicts
all of its tokens. It has a final norm of its own, and the generator's heads, keys and values of the prompt; the paper
leaves these open.

A logit of its own is added to the present token and, less, to the bins beside it (`keep`). The expert then begins with
keeping the plan, and learns what to change; without it, it would first have to learn to copy tokens of 0.05 m.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..layers import DecoderLayer, KeysValues, RmsNorm, Tables, TransformerConfig

KEEP_LOGIT, KEEP_BINS = 4.0, 15  # of the present token at the start; it falls to 0 over so many bins


class RefineExpert(nn.Module):
    """Layers and norm of the expert, for sequences of `length` tokens."""

    def __init__(self, layers: int, transformer: TransformerConfig, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(transformer, encodes_prompt=False) for _ in range(layers))
        self.keep = nn.Parameter(torch.full((length,), KEEP_LOGIT))
        self.norm = RmsNorm(transformer.width, transformer.norm_eps)

    @torch.no_grad()
    def copy_generator(self, net: nn.Module, keep: float) -> None:
        """Starts the expert as a copy of the generator's parts, which keeps the tokens that it reads by a logit."""
        theirs = dict(net.named_parameters())
        skipped = len(net.layers) - len(self.layers)  # type: ignore[arg-type]
        nn.init.constant_(self.keep, keep)
        for name, parameter in self.named_parameters():
            if name == "keep":
                continue
            kind, _, rest = name.partition(".")
            index, _, of_layer = rest.partition(".")
            parameter.copy_(theirs[f"layers.{int(index) + skipped}.{of_layer}" if kind == "layers" else name])

    def keep_logits(self, actions: Tensor, bins: int) -> Tensor:
        """(B, R, T, bins) logits that keep the present tokens (B, R, T)."""
        away = (torch.arange(bins, device=actions.device) - actions[..., None]).abs()
        return self.keep[:, None] * (1.0 - away / KEEP_BINS).clamp(min=0.0)

    def hidden(self, x: Tensor, past: Sequence[KeysValues], key_tables: Tables, query_tables: Tables) -> Tensor:
        """(B, R, T, width) after the expert's layers of x (B, R, T, width), the output of the shared layers."""
        for layer, keys_values in zip(self.layers, past, strict=True):
            x = layer.forward_cached(x, keys_values, key_tables, query_tables)  # type: ignore[operator]
        return x
