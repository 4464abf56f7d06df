"""Exports a denoiser as two ONNX graphs, `encoder` and `denoiser`, with a card.

    card_sha256 = export_denoiser(net, weights_sha256, "models/mine/onnx", {}, ["guidance"], "rendered images")

    encoder     ego (B, 10), agents (B, A, 21, 11), static_objects (B, S, 10), lanes (B, L, P, 12), lane_limits
                (B, L, 1), lane_has_limit (B, L, 1) bool, route_lanes (B, R, P, 12), as `features.vectors` fills them
                -> condition (B, hidden), absent (B, F) bool, keys_l, values_l of each layer
    denoiser    futures (F, 1 + T, 4), noisy and normalised, time float32, condition, absent, keys_l, values_l
                -> clean (B, F, 1 + T, 4), normalised

F is the ego and its neighbours. B is 1, or 2 of a scene and its decoupled condition, whose arrays the host makes
(`features.vectors.without_conditions`): the same graphs serve both. B is free or fixed (`batch`); all other shapes are
static. Normalisation is inside the graphs. Opset, operators and stored weights are as in `deploy.export`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from ..model.card import LARGEST_BATCH
from ..model.denoiser.net import Context, DenoiserNet, DenoiserNetConfig
from ..model.scene_encoder import VectorTensors, empty_scenes
from .export import keys_values_names, trace, write_graphs


class DenoiserGraph(nn.Module):
    """A graph of a denoiser."""

    def __init__(self, net: DenoiserNet) -> None:
        super().__init__()
        self.net = net


class EncodeVectors(DenoiserGraph):
    """`DenoiserNet.encode` with tensors only."""

    def forward(self, inputs: VectorTensors) -> tuple[Tensor, ...]:
        context = self.net.encode(inputs)
        return context.condition, context.absent, *(part for layer in context.keys_values for part in layer)


class Denoise(DenoiserGraph):
    """`DenoiserNet.denoise` of the same futures in each context of a batch."""

    def forward(
        self,
        futures: Tensor,
        time: Tensor,
        condition: Tensor,
        absent: Tensor,
        keys_values: tuple[tuple[Tensor, Tensor], ...],
    ) -> Tensor:
        scenes = condition.shape[0]
        noisy = futures.expand(scenes, 1, *futures.shape)
        return self.net.denoise(noisy, time.expand(scenes, 1), Context(keys_values, condition, absent))[:, 0]


def export_denoiser(
    net: DenoiserNet,
    weights_sha256: str,
    folder: str | Path,
    about: Mapping[str, Any],
    capabilities: Iterable[str],
    training_domain: str,
    batch: int | None = None,
    golden: Mapping[str, float] | None = None,
) -> str:
    """Write the graphs and their card into a folder; returns the card's SHA-256.

    about: origin of the weights. capabilities, training_domain: of the card of the weights. batch: B; None: free;
    1 has no guidance.
    golden: the answers of `runtime.network.golden`, with which every start of the graphs is compared.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    capabilities = [name for name in capabilities if name != "guidance" or batch != 1]  # it takes two rows
    model = describe_denoiser(net.config, weights_sha256, capabilities, training_domain, batch)
    traced = {"encoder": _trace_encoder(net, batch), "denoiser": _trace_denoiser(net, batch)}
    return write_graphs(folder, model, traced, about, golden, None)


def describe_denoiser(
    config: DenoiserNetConfig, weights_sha256: str, capabilities: Iterable[str], training_domain: str, batch: int | None
) -> dict[str, Any]:
    """Inputs and meaning of the graphs as JSON values: the same for both graphs and their card."""
    measures = dataclasses.asdict(config)
    description = {
        "kind": "denoiser",
        "capabilities": sorted(capabilities),
        "training_domain": training_domain,
        "weights_sha256": weights_sha256,
        "precision": "fp32",
        "config_sha256": hashlib.sha256(json.dumps(measures, sort_keys=True).encode()).hexdigest(),
        "inputs": measures["spec"],
        "batch": batch,
        "config": measures,
    }
    return json.loads(json.dumps(description))  # type: ignore[no-any-return]  # tuples become lists, as a reader sees them


def _trace_encoder(net: DenoiserNet, batch: int | None) -> ir.Model:
    inputs = empty_scenes(net.config.spec, batch or LARGEST_BATCH)
    free = {0: Dim("batch", min=1, max=LARGEST_BATCH)}
    shapes = None if batch else {"inputs": VectorTensors._make([free] * len(inputs))}
    outputs = ["condition", "absent", *keys_values_names(net.config.decoder_layers)]
    return trace(EncodeVectors(net), (inputs,), list(inputs._fields), outputs, shapes)


def _trace_denoiser(net: DenoiserNet, batch: int | None) -> ir.Model:
    config, scenes = net.config, batch or LARGEST_BATCH
    futures = torch.zeros(config.spec.futures, 1 + config.spec.future_steps, 4)
    cached = torch.zeros(scenes, config.heads, config.scene.elements, config.hidden // config.heads)
    keys_values = tuple((cached.clone(), cached.clone()) for _ in range(config.decoder_layers))
    absent = torch.zeros(scenes, config.spec.futures, dtype=torch.bool)
    tensors = futures, torch.tensor(0.5), torch.zeros(scenes, config.hidden), absent, keys_values
    free = {0: Dim("batch", min=1, max=LARGEST_BATCH)}
    layers = tuple((free, free) for _ in keys_values)
    shapes = {"futures": None, "time": None, "condition": free, "absent": free, "keys_values": layers}
    names = ["futures", "time", "condition", "absent", *keys_values_names(config.decoder_layers)]
    return trace(Denoise(net), tensors, names, ["clean"], None if batch else shapes)
