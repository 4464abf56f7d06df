"""Images to prompt tokens: a ViT with SigLIP2's structure and names, a 2 x 2 pixel shuffle, a projector.

The small model has a few strided convolutions before the patch embedding: they learn edges from few images, and cost
less than attention layers. It encodes both instants of a camera as one image of six channels: motion is visible in the
first layer, and there are half as many images and prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.domain import Array
from .layers import attention

SHUFFLE = 2  # patches per side that become one token


@dataclass(frozen=True)
class VisionConfig:
    """Configuration of the vision encoder and its input images."""

    height: int = 144  # px
    width: int = 288  # px
    patch: int = 24  # px
    frames: int = 2  # instants of a camera that are encoded as one image; SigLIP2 takes 1
    stem: tuple[int, ...] = (16, 32)  # channels of strided convolutions before the patches; SigLIP2 has none
    channels: int = 128
    layers: int = 7
    heads: int = 4
    ffn: int = 512
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        side = self.patch * SHUFFLE
        if self.height % side or self.width % side:
            raise ValueError(f"VisionConfig is {self.width} x {self.height} px, expected multiples of {side}")
        if self.patch % 2 ** len(self.stem) or self.channels % self.heads:
            raise ValueError("VisionConfig.patch must divide by 2 per stem layer, and channels by heads")

    @property
    def grid(self) -> tuple[int, int]:
        return self.height // self.patch, self.width // self.patch

    @property
    def tokens(self) -> int:
        """Prompt tokens of one image."""
        rows, columns = self.grid
        return rows * columns // SHUFFLE**2


class VisionAttention(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj = nn.Linear(config.channels, config.channels)
        self.k_proj = nn.Linear(config.channels, config.channels)
        self.v_proj = nn.Linear(config.channels, config.channels)
        self.out_proj = nn.Linear(config.channels, config.channels)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class VisionMlp(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.channels, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))  # type: ignore[no-any-return]


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.channels, config.norm_eps)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.channels, config.norm_eps)
        self.mlp = VisionMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))  # type: ignore[no-any-return]


class VisionEncoder(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        inside = 3 * config.frames
        for channels in config.stem:
            layers += [nn.Conv2d(inside, channels, 3, 2, 1), nn.GELU(approximate="tanh")]
            inside = channels
        self.stem = nn.Sequential(*layers)
        patch = config.patch // 2 ** len(config.stem)
        self.patch_embedding = nn.Conv2d(inside, config.channels, patch, patch)
        rows, columns = config.grid
        self.position_embedding = nn.Embedding(rows * columns, config.channels)
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.layers))
        self.post_layernorm = nn.LayerNorm(config.channels, config.norm_eps)

    def forward(self, views: Tensor) -> Tensor:
        """Views (N, frames, H, W, 3) uint8 -> features (N, rows * columns, channels).

        Larger images than its own are averaged down to them.
        """
        weight = self.patch_embedding.weight
        size = self.config.height, self.config.width
        whole = views
        if views.shape[2:4] != size:
            whole = torch.unflatten(area_resize(views.flatten(0, 1), *size), 0, views.shape[:2])
        channels = whole.permute(0, 1, 4, 2, 3).flatten(1, 2)  # of the oldest image first
        pixels = (channels.to(weight.dtype) / 127.5 - 1.0).contiguous()
        x = self.patch_embedding(self.stem(pixels)).flatten(2).transpose(1, 2) + self.position_embedding.weight
        for layer in self.layers:
            x = layer(x)
        return self.post_layernorm(x)  # type: ignore[no-any-return]


def area_resize(images: Tensor, height: int, width: int) -> Tensor:
    """Images (N, H, W, C) of whole values, averaged over areas: float32 (N, height, width, C).

    Equals OpenCV's INTER_AREA on the host, as two matrix products on the network's device; TensorRT's Resize does not
    average.
    """
    pixels = images.float()
    for size in (height, width):  # rows; turned over, columns; turned back
        across, channels = pixels.shape[2:]
        shares = torch.from_numpy(area_weights(pixels.shape[1], size)).to(pixels.device)
        pixels = torch.unflatten(shares @ pixels.flatten(2), 2, (across, channels)).transpose(1, 2)
    return pixels.round()


def resize_patch_embedding(weight: Tensor, side: int) -> Tensor:
    """Patch embedding (C, I, S, S) for patches of `side` x `side` with the same output for the same patch enlarged.

    The solution of smallest norm (FlexiViT, arXiv 2212.08013, section 3.4).
    """
    before = weight.shape[-1]
    each = torch.eye(before * before).view(-1, 1, before, before)
    enlarged = F.interpolate(each, (side, side), mode="bilinear", align_corners=False).flatten(1)
    flat = weight.flatten(2) @ torch.linalg.pinv(enlarged).T  # of (S * S, side * side)
    patches: Tensor = torch.unflatten(flat, -1, (side, side))
    return patches


def area_weights(before: int, after: int) -> Array:
    """(after, before) float32: how much each of `before` pixels of a line counts in each of `after`, fewer, ones."""
    edges = np.arange(after + 1) * before / after
    pixels = np.arange(before)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.asarray(np.maximum(covered, 0.0) * after / before, np.float32)


class Projector(nn.Module):
    """Features of 2 x 2 neighbouring patches side by side, then two layers into the language model's width."""

    def __init__(self, config: VisionConfig, width: int) -> None:
        super().__init__()
        self.grid = config.grid
        self.fc1 = nn.Linear(SHUFFLE**2 * config.channels, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """(N, rows * columns, channels) -> (N, tokens, width), row by row."""
        rows, columns = self.grid
        x = features.reshape(-1, rows // SHUFFLE, SHUFFLE, columns // SHUFFLE, SHUFFLE, features.shape[-1])
        x = x.transpose(2, 3).flatten(3).flatten(1, 2)
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))  # type: ignore[no-any-return]
