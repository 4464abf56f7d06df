"""Weights of a denoiser on disk, with its configuration in the file and a card beside it; safetensors only.

    about = {"capabilities": ["guidance"], "training_domain": "rendered images"}
    sha256 = save(net, "models/mine/weights.safetensors", about)
    net = load("models/mine/weights.safetensors", sha256)

The capability `guidance` belongs in `about` if the network was trained with dropped conditions. Mismatches raise
CheckpointError, as in `model.checkpoint`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...infra.documents import check_fields
from ..card import DENOISER_CONFIG, DENOISER_HEAD, RENDERED
from ..checkpoint import config_text, network_of, parse_config, read_verified, stored_config, write_weights
from .net import DenoiserNet, DenoiserNetConfig

FORMAT = "reflectdrive.curve_net.1"


def save(net: DenoiserNet, path: str | Path, about: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16) -> str:
    """Writes weights (as `dtype`) and card, atomically; returns the file's SHA-256.

    about: entries of the card. Without `capabilities` there it is a network that was never trained without conditions.
    Raises DocumentError for capabilities that no denoiser has.
    """
    described = {"kind": "denoiser", "capabilities": [], "training_domain": RENDERED, **about}
    check_fields(described, DENOISER_HEAD)
    content = dataclasses.asdict(net.config)
    return write_weights(net.state_dict(), FORMAT, content, {"config": content, **described}, Path(path), dtype)


def load(path: str | Path, sha256: str) -> DenoiserNet:
    """The network of a file, in float32 on the CPU, ready for inference. Raises CheckpointError."""
    path = Path(path)
    tensors, metadata = read_verified(path, sha256)
    return network_of(DenoiserNet, _config(path, config_text(path, metadata, FORMAT)), tensors, path)


def random_net(path: str | Path, seed: int) -> DenoiserNet:
    """The network of a weights file, or of a card of exported graphs, with random weights from a seed.

    In float32 on the CPU, ready for inference. Raises CheckpointError for a file without its configuration.
    """
    path = Path(path)
    return initialised_net(_config(path, stored_config(path, FORMAT)), seed)


def initialised_net(config: DenoiserNetConfig, seed: int) -> DenoiserNet:
    """A network with random weights from a seed, ready for inference."""
    net = DenoiserNet(config)
    net.initialise(torch.Generator().manual_seed(seed))
    return net.eval()


def _config(path: Path, content: str) -> DenoiserNetConfig:
    return parse_config(path, content, DenoiserNetConfig, DENOISER_CONFIG)
