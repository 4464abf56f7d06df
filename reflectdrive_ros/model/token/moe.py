"""The refinement expert of DriveFine: copies of the network's last layers that correct a finished plan in one pass.

The layers below are shared with the generator, and gradients stop at the expert: training it does not change the
generator, whose outputs stay equal to the last bit (DriveFine, section 3.2). It reads a plan without masks and predicts
all of its tokens. `RefineConfig` names what it has of its own; the paper leaves norm, heads and prompt open.

A logit of its own is added to the present token and, less, to the bins beside it (`keep`). The expert then begins with
keeping the plan, and learns what to change; without it, it would first have to learn to copy tokens of 0.05 m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.tokens import TokenLayout
from ..layers import DecoderLayer, KeysValues, RmsNorm, Tables, TransformerConfig
from .axis import make_head

KEEP_LOGIT, KEEP_BINS = 4.0, 15  # of the present token at the start; it falls to 0 over so many bins


@dataclass(frozen=True)
class RefineConfig:
    """Measures of the refinement expert."""

    layers: int = 0  # copied last layers; 0: no expert
    own_norm: bool = True  # a final norm of its own, else the generator's
    own_heads: bool = True  # heads of its own, else the generator's
    own_prompt: bool = False  # its layers encode the prompt too, else they use the generator's keys and values


class RefineExpert(nn.Module):
    """Layers, norm and heads of the expert."""

    def __init__(self, config: RefineConfig, transformer: TransformerConfig, layout: TokenLayout, stride: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            DecoderLayer(transformer, encodes_prompt=config.own_prompt) for _ in range(config.layers)
        )
        self.keep = nn.Parameter(torch.full((layout.length,), KEEP_LOGIT))
        if config.own_norm:
            self.norm = RmsNorm(transformer.width, transformer.norm_eps)
        if config.own_heads:
            for axis in layout.axes:
                self.add_module(f"{axis.name}_head", make_head(axis, transformer.width, stride))

    @torch.no_grad()
    def copy_generator(self, net: nn.Module, keep: float) -> None:
        """Starts the expert as a copy of the generator's parts, which keeps the tokens that it reads by a logit."""
        theirs = dict(net.named_parameters())
        skipped = len(net.layers) - self.config.layers  # type: ignore[arg-type]
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
