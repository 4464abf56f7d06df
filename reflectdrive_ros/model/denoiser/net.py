"""The denoiser: agents, static objects, lanes and route lanes in, joint futures of the ego and its neighbours out.

    net = DenoiserNet(small_config())
    context = net.encode(inputs)                  # once per scene
    clean = net.denoise(noisy, times, context)    # once per evaluation of the sampler

The network is that of Diffusion-Planner (Zheng et al., Diffusion-Based Planning for Autonomous Driving with Flexible
Guidance, ICLR 2025): an MLP-Mixer per element, attention among the elements, and a diffusion transformer whose tokens
are whole futures. It predicts the clean futures. Facts of the published code that a port must keep:

- keys and values of the encoder's attention are not normalised, queries are;
- in the decoder, cross-attention and the MLP after it have no residual connection;
- an element whose entries are all zero is masked in the encoder, but not in the cross-attention of the decoder;
- the first element is never masked, so that attention over an empty scene is defined;
- the first pose of each future is the present one, which the sampler keeps.

Extensions of the published network are off in its configuration: `ego_inputs` (speed, acceleration, steering and yaw
rate of the ego condition the decoder), `route_features` (positions of the elements relative to the route),
`VectorSpec.ego_frenet` (the ego's future in Frenet coordinates of the route, whose bends and limits are inputs),
`residual` (without it, all that the decoder knows of the noisy futures, the ego's state and the route passes through
the weights of the cross-attention), the line of the route among the route lanes (`VectorSpec.route_line_rows`), and
free widths of the mixers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.vector_spec import SMALL_SPEC, VectorSpec
from .. import scene_encoder
from ..scene_encoder import (
    POSE,
    ElementAttention,
    Encoder,
    Mlp,
    SceneEncoderConfig,
    VectorTensors,
    features_of_route,
    normalize,
)

FREQUENCIES = 256  # of the time embedding
MAX_PERIOD = 10_000.0
FUTURE_HIDDEN = 512  # of the MLP that reads a noisy future


@dataclass(frozen=True)
class DenoiserNetConfig:
    """Measures of a network; the defaults are the published ones."""

    spec: VectorSpec = field(default_factory=VectorSpec)
    hidden: int = 192
    heads: int = 6
    encoder_layers: int = 3
    decoder_layers: int = 3
    mixer_tokens: int = 64
    mixer_channels: int = 128
    route_tokens: int = 32
    route_channels: int = 64
    ego_inputs: bool = False
    route_features: bool = False  # positions of the elements relative to the line of the route
    residual: bool = False  # of the decoder's cross-attention and of the MLP after it
    dropout: float = 0.1  # in training only

    def __post_init__(self) -> None:
        _ = self.scene

    @property
    def scene(self) -> SceneEncoderConfig:
        """Of the scene encoder. Raises ValueError for measures that it cannot have."""
        return SceneEncoderConfig(
            self.spec,
            self.hidden,
            self.heads,
            self.encoder_layers,
            self.mixer_tokens,
            self.mixer_channels,
            self.route_tokens,
            self.route_channels,
            self.ego_inputs,
            self.route_features,
            self.dropout,
        )


def base_config() -> DenoiserNetConfig:
    """The published measures: 6 M parameters."""
    return DenoiserNetConfig()


def small_config() -> DenoiserNetConfig:
    """2.5 M parameters; trains on a CPU and drives there."""
    return DenoiserNetConfig(
        SMALL_SPEC,
        hidden=128,
        heads=4,
        encoder_layers=2,
        decoder_layers=3,
        mixer_tokens=8,
        mixer_channels=64,
        route_tokens=16,
        ego_inputs=True,
        route_features=True,
        residual=True,
        dropout=0.0,
    )


class Context(NamedTuple):
    """What the decoder needs of B encoded scenes."""

    keys_values: tuple[tuple[Tensor, Tensor], ...]  # of each layer (B, heads, elements, hidden / heads)
    condition: Tensor  # (B, hidden) of the route and, with `ego_inputs`, of the ego's state
    absent: Tensor  # (B, P) bool, futures of no agent


class DenoiserLayer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(width) for _ in range(4))
        self.attn, self.cross_attn = ElementAttention(width, heads, dropout), ElementAttention(width, heads, dropout)
        self.mlp1, self.mlp2 = Mlp(width, 4 * width, width, tanh=True), Mlp(width, 4 * width, width, tanh=True)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, keys_values: tuple[Tensor, Tensor], condition: Tensor, visible: Tensor) -> Tensor:
        """`x` (B K, P, width) with `condition` (B K, width), of K samples per scene; keys and values are (B, ..)."""
        modulation = self.modulation(F.silu(condition))[:, None].chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        inner = self.norm1(x) * (1.0 + scale) + shift
        x = x + gate * self.attn.attend(self.attn.queries(inner), *self.attn.keys_values(inner), visible)
        x = x + mlp_gate * self.mlp1(self.norm2(x) * (1.0 + mlp_scale) + mlp_shift)
        scenes = keys_values[0].shape[0]
        together = self.norm3(x).reshape(scenes, -1, x.shape[-1])  # the samples of a scene share its keys and values
        crossed = self.cross_attn.attend(self.cross_attn.queries(together), *keys_values)
        residual = float(self.residual)
        x = residual * x + crossed.reshape(x.shape)
        return residual * x + self.mlp2(self.norm4(x))  # type: ignore[no-any-return]


class FinalLayer(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.norm_final, self.norm_hidden = nn.LayerNorm(width), nn.LayerNorm(4 * width)
        self.norm_input = nn.LayerNorm(width)
        self.hidden, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, outputs)
        self.modulation = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, dim=-1)
        x = self.norm_input(self.norm_final(x) * (1.0 + scale) + shift)
        out: Tensor = self.output(self.norm_hidden(F.gelu(self.hidden(x), approximate="tanh")))
        return out


class Decoder(nn.Module):
    def __init__(self, config: DenoiserNetConfig) -> None:
        super().__init__()
        spec, hidden = config.spec, config.hidden
        future = (1 + spec.future_steps) * POSE
        of_condition = scene_encoder.condition_modules(config.scene)
        self.route_mixer = of_condition.pop("route_mixer")
        self.agent_embedding = nn.Embedding(2, hidden)  # ego, neighbour
        self.future_mlp = Mlp(future, FUTURE_HIDDEN, hidden)
        self.time1, self.time2 = nn.Linear(FREQUENCIES, hidden), nn.Linear(hidden, hidden)
        self.layers = nn.ModuleList(
            DenoiserLayer(hidden, config.heads, config.dropout, config.residual) for _ in range(config.decoder_layers)
        )
        self.final = FinalLayer(hidden, future)
        for name, module in of_condition.items():
            self.add_module(name, module)

    def keys_values(self, encoded: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """Keys and values of each layer's cross-attention, of encoded scenes (B, elements, hidden)."""
        return tuple(cast(DenoiserLayer, layer).cross_attn.keys_values(encoded) for layer in self.layers)

    def forward(self, x: Tensor, times: Tensor, context: Context) -> Tensor:
        scenes, samples, agents = x.shape[:3]
        which = (torch.arange(agents, device=x.device) > 0).long()
        tokens = self.future_mlp(x.flatten(3)) + self.agent_embedding(which)
        tokens = tokens.flatten(0, 1)
        embedded = self.time2(F.silu(self.time1(time_embedding(times))))
        condition = (context.condition[:, None] + embedded).flatten(0, 1)
        visible = ~context.absent[:, None].expand(scenes, samples, agents).reshape(-1, 1, 1, agents)
        for layer, keys_values in zip(self.layers, context.keys_values, strict=True):
            tokens = layer(tokens, keys_values, condition, visible)
        return self.final(tokens, condition).reshape(x.shape)  # type: ignore[no-any-return]


def time_embedding(times: Tensor) -> Tensor:
    """(.., FREQUENCIES) cosines and sines of diffusion times (..)."""
    half = FREQUENCIES // 2
    frequencies = torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, device=times.device) / half)
    angles = times[..., None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], -1)


class DenoiserNet(nn.Module):
    """Predicts clean futures from noisy ones; the module docstring describes it."""

    def __init__(self, config: DenoiserNetConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config.scene), Decoder(config)

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights as published: Xavier matrices, small embeddings; a layer's modulation and the output are 0."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight, generator=generator)
                    nn.init.zeros_(module.bias)
                elif isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02, generator=generator)
                elif isinstance(module, ElementAttention):
                    nn.init.xavier_uniform_(module.in_proj_weight, generator=generator)
            encoder, decoder = self.encoder, self.decoder
            small = (encoder.position, encoder.agent_kind, encoder.speed_limit, encoder.light)
            for linear in (*small, decoder.time1, decoder.time2):
                nn.init.normal_(linear.weight, std=0.02, generator=generator)
            modulations = [layer.modulation for layer in (*decoder.layers, decoder.final)]
            for linear in (*modulations, decoder.final.output):
                nn.init.zeros_(linear.weight)

    def encode(self, inputs: VectorTensors) -> Context:
        """The context of B scenes, from inputs in metres."""
        normal, features = self.normalize(inputs), features_of_route(inputs, self.config.scene)
        encoded = self.encoder(normal, features.elements)
        keys_values = self.decoder.keys_values(encoded)
        neighbours = normal.agents[:, : self.config.spec.predicted_agents, -1, :POSE]
        absent = torch.cat([torch.zeros_like(normal.ego[:, :1], dtype=torch.bool), (neighbours == 0).all(-1)], 1)
        return Context(keys_values, scene_encoder.condition_of(self.decoder, normal, features), absent)

    def denoise(self, x: Tensor, times: Tensor, context: Context) -> Tensor:
        """Clean futures (B, K, P, 1 + T, 4), normalised, of noisy ones (B, K, P, 1 + T, 4) at times (B, K) in 0..1.

        K samples of each scene; P is the ego and its neighbours; index 0 in time is the present pose.
        """
        futures: Tensor = self.decoder(x, times, context)
        return futures

    def present_states(self, inputs: VectorTensors) -> Tensor:
        """(B, P, 4) present poses of the ego and its neighbours, normalised; 0 where absent."""
        normal = self.normalize(inputs)
        neighbours = normal.agents[:, : self.config.spec.predicted_agents, -1, :POSE]
        return torch.cat([normal.ego[:, None, :POSE], neighbours], 1)

    def normalize(self, inputs: VectorTensors) -> VectorTensors:
        """(x - mean) / std of each column; rows of zeros stay 0."""
        return normalize(inputs, self.config.spec.normalization)


def without_conditions(inputs: VectorTensors, ego: bool = True) -> VectorTensors:
    """The decoupled condition of ReflexDiffusion (section 4.1): only the route; neighbours, static objects, lanes with
    their limits and lights and, with `ego`, the ego's speed, acceleration, steering and yaw rate are dropped.

    The present pose of neighbours whose futures are predicted jointly is part of the noisy futures, not of these.
    """
    zeros: Mapping[str, Tensor] = {
        name: torch.zeros_like(getattr(inputs, name))
        for name in ("agents", "static_objects", "lanes", "lane_limits", "lane_has_limit")
    }
    ego_pose = torch.cat([inputs.ego[:, :POSE], torch.zeros_like(inputs.ego[:, POSE:])], 1) if ego else inputs.ego
    return inputs._replace(ego=ego_pose, **zeros)
