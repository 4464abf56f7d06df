"""The transformer layer of Qwen3 (RMSNorm, rotary positions, q/k norms, grouped heads, SwiGLU), with a second, narrower
FFN for action tokens. Parameter names are Hugging Face's, so that its weights load unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]  # keys, values of one layer, each (B, kv_heads, N, head_dim)
Tables = tuple[Tensor, Tensor]  # cosines, sines of positions, each (N, head_dim)


@dataclass(frozen=True)
class TransformerConfig:
    """Measures of the language model's layers."""

    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 512  # of prompt tokens
    action_ffn: int = 256  # of action tokens
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"BlockConfig.heads is {self.heads}, expected a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"BlockConfig.head_dim is {self.head_dim}, expected an even number for rotary positions")
        if self.action_ffn > self.ffn:
            raise ValueError(f"BlockConfig.action_ffn is {self.action_ffn}, expected at most ffn ({self.ffn})")


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()  # squares overflow and vanish in half precision
        # power, root and quotient: ONNX Runtime and TensorRT fuse this form into one operator
        return self.weight * (wide / (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).to(x.dtype)


def rotary_tables(positions: int, head_dim: int, theta: float) -> Tables:
    """Cosines and sines (positions, head_dim), equal halves, but that the sines of the first are negative."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys (.., N, head_dim) turned by their positions' tables (N, head_dim)."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return x * cos.to(x.dtype) + swapped * sin.to(x.dtype)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """(.., N, head_dim) attention of queries (.., N, head_dim) over values (.., K, head_dim); mask (N, K) is added to
    the logits.

    Written out for training on CPUs: the gradient of torch's fused kernel takes longer there than matrix products.
    """
    if not (queries.requires_grad and queries.device.type == "cpu"):
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    attended: Tensor = scores.softmax(-1).to(values.dtype) @ values
    return attended


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, head = config.width, config.head_dim
        self.q_proj = nn.Linear(width, config.heads * head, bias=False)
        self.k_proj = nn.Linear(width, config.kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, config.kv_heads * head, bias=False)
        self.o_proj = nn.Linear(config.heads * head, width, bias=False)
        self.q_norm = RmsNorm(head, config.norm_eps)
        self.k_norm = RmsNorm(head, config.norm_eps)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> KeysValues:
        """(.., kv_heads, N, head_dim) each, of x (.., N, width)."""
        keys = self.k_norm(self._heads(self.k_proj(x))).transpose(-3, -2)
        return apply_rotary(keys, cos, sin), self._heads(self.v_proj(x)).transpose(-3, -2)

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention of x (B, N, width) over keys and values (B, kv_heads, K, head_dim); mask (N, K) is added to the
        logits.
        """
        shared = self.config.heads // self.config.kv_heads
        return self._project_output(attention(self._grouped_queries(x, cos, sin), keys, values, mask.repeat(shared, 1)))

    def attend_cached(self, x: Tensor, past: KeysValues, own: KeysValues, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention of x (B, R, N, width) over the cache (B, kv_heads, P, ..) and over its own keys (B, R, kv_heads, N,
        ..).

        One softmax over both, with separate products: the cache is not copied per sequence and not concatenated. The
        queries are scaled in advance.
        """
        rows, length = self._grouped_queries(x, cos, sin), past[0].shape[2]
        keys, values = (part[:, None] for part in past)
        own_keys, own_values = own
        scores = torch.cat([rows @ keys.transpose(-2, -1), rows @ own_keys.transpose(-2, -1)], -1)
        weights = scores.float().softmax(-1).to(x.dtype)
        return self._project_output(weights[..., :length] @ values + weights[..., length:] @ own_values)

    def _grouped_queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries (.., kv_heads, shared * N, head_dim) of x (.., N, width).

        Heads that share keys are additional rows, so that keys are not copied.
        """
        queries = apply_rotary(self.q_norm(self._heads(self.q_proj(x))).transpose(-3, -2), cos, sin)
        return torch.unflatten(queries, -3, (self.config.kv_heads, -1)).flatten(-3, -2)

    def _project_output(self, attended: Tensor) -> Tensor:
        """(.., N, width) from the attention output of each row of `_grouped_queries`."""
        shared = self.config.heads // self.config.kv_heads
        by_head = torch.unflatten(attended, -2, (shared, -1)).flatten(-4, -3)
        return self.o_proj(by_head.transpose(-3, -2).flatten(-2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (-1, self.config.head_dim))


class GatedMlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Shared self-attention; the prompt's tokens then pass the full FFN, the action tokens their own."""

    def __init__(self, config: TransformerConfig, encodes_prompt: bool = True) -> None:
        """Without `encodes_prompt` it has no FFN for the prompt's tokens: it reads their keys and values only."""
        super().__init__()
        self.input_layernorm = RmsNorm(config.width, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.width, config.norm_eps)
        if encodes_prompt:
            self.mlp = GatedMlp(config.width, config.ffn)
        self.action_mlp = GatedMlp(config.width, config.action_ffn)

    def forward(
        self, x: Tensor, prompt: int, mask: Tensor, cos: Tensor, sin: Tensor, skip: int = 0
    ) -> tuple[Tensor, KeysValues]:
        """One layer for tokens (B, N, width), the first `prompt` of them the prompt's; also returns keys and values.

        mask (N, N) is 0 where attention is allowed and very negative elsewhere. The first `skip` tokens are only keys:
        the result is (B, N - skip, width).
        """
        normed = self.input_layernorm(x)
        own = self.self_attn.keys_values(normed, cos, sin)
        x = x[:, skip:] + self.self_attn.attend(normed[:, skip:], *own, mask[skip:], cos[skip:], sin[skip:])
        normed = self.post_attention_layernorm(x)
        prompt -= skip
        parts = [
            ffn(part)
            for ffn, part in ((self.mlp, normed[:, :prompt]), (self.action_mlp, normed[:, prompt:]))
            if part.shape[1]
        ]
        return x + torch.cat(parts, 1), own

    def forward_cached(self, x: Tensor, past: KeysValues, key_tables: Tables, query_tables: Tables) -> Tensor:
        """Action tokens (B, R, N, width) after one block, each seeing the prompt's keys and values and its own N."""
        normed = self.input_layernorm(x)
        own = self.self_attn.keys_values(normed, *key_tables)
        x = x + self.self_attn.attend_cached(normed, past, own, *query_tables)
        return x + self.action_mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]
