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

from ...core.vector_spec import Normalization, VectorSpec
from . import route_features
from .route_features import RouteFeatures

POSE = 4  # x, y, cos, sin of one future step
AGENT_KINDS, STATIC_ROW = 3, 10
LIGHTS = 4
SHORTEST = 1e-12  # of a direction, against division by 0
LANE_COLUMNS = 8  # of a lane point, without its light
FREQUENCIES = 256  # of the time embedding
MAX_PERIOD = 10_000.0
FUTURE_HIDDEN = 512  # of the MLP that reads a noisy future
AGENT_TOKEN, STATIC_TOKEN, LANE_TOKEN = range(3)  # kinds of elements


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
        if self.route_features and not self.spec.route_line_rows:
            raise ValueError("route_features is set without route_line_rows, expected the line of the route")
        if self.hidden % self.heads:
            raise ValueError(f"hidden is {self.hidden}, expected a multiple of heads ({self.heads})")

    @property
    def elements(self) -> int:
        """Elements of an encoded scene."""
        return self.spec.agents + self.spec.static_objects + self.spec.lanes


def base_config() -> DenoiserNetConfig:
    """The published measures: 6 M parameters."""
    return DenoiserNetConfig()


def small_config() -> DenoiserNetConfig:
    """2.5 M parameters; trains on a CPU and drives there."""
    return DenoiserNetConfig(
        VectorSpec(
            agents=20,
            lanes=40,
            route_lanes=12,
            route_line_rows=3,
            predicted_agents=6,
            future_steps=40,
            ego_frenet=True,
            normalization=Normalization(ego_future_mean=(20.0, 0.0, 1.0, 0.0), ego_future_std=(12.0, 1.0, 0.2, 0.2)),
        ),
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


class VectorTensors(NamedTuple):
    """`features.vectors.VectorInputs` of B scenes as tensors, ego frame, metres; empty rows are 0."""

    ego: Tensor  # (B, 10)
    agents: Tensor  # (B, A, 21, 11)
    static_objects: Tensor  # (B, S, 10)
    lanes: Tensor  # (B, L, 20, 12)
    lane_limits: Tensor  # (B, L, 1) m/s
    lane_has_limit: Tensor  # (B, L, 1) bool
    route_lanes: Tensor  # (B, R, 20, 12)


class Context(NamedTuple):
    """What the decoder needs of B encoded scenes."""

    keys_values: tuple[tuple[Tensor, Tensor], ...]  # of each layer (B, heads, elements, hidden / heads)
    condition: Tensor  # (B, hidden) of the route and, with `ego_inputs`, of the ego's state
    absent: Tensor  # (B, P) bool, futures of no agent


class Mlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float = 0.0, tanh: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.act = nn.GELU(approximate="tanh" if tanh else "none")
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
        return out


class MixerBlock(nn.Module):
    """Mixes the points of an element, then its channels."""

    def __init__(self, tokens: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.channels_mlp = Mlp(channels, channels, channels, dropout)
        self.tokens_mlp = Mlp(tokens, tokens, tokens, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens_mlp(self.norm1(x).transpose(-1, -2)).transpose(-1, -2)
        return x + self.channels_mlp(self.norm2(x))  # type: ignore[no-any-return]


class ElementMixer(nn.Module):
    """(.., V, C) points of an element -> (.., channels), and (.., channels) -> (.., hidden)."""

    def __init__(
        self, points: int, columns: int, tokens: int, channels: int, layers: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.channel_pre_project = Mlp(columns, channels, channels)
        self.token_pre_project = Mlp(points, tokens, tokens)
        self.blocks = nn.ModuleList(MixerBlock(tokens, channels, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.emb_project = Mlp(channels, hidden, hidden, dropout)

    def pooled(self, x: Tensor) -> Tensor:
        x = self.channel_pre_project(x)
        x = self.token_pre_project(x.transpose(-1, -2)).transpose(-1, -2)
        for block in self.blocks:
            x = block(x)
        return x.mean(-2)

    def project(self, pooled: Tensor) -> Tensor:
        out: Tensor = self.emb_project(self.norm(pooled))
        return out


class Attention(nn.Module):
    """Multi-head attention with the parameters of `nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def queries(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        return self._split(F.linear(x, self.in_proj_weight[:width], self.in_proj_bias[:width]))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        width = x.shape[-1]
        keys, values = F.linear(x, self.in_proj_weight[width:], self.in_proj_bias[width:]).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None = None) -> Tensor:
        """`visible` (B, 1, 1, N) bool, the elements that may be attended to."""
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(queries, keys, values, visible, dropout)
        merged: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return merged

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Attention among elements: queries are normalised, keys and values are not."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.mlp = Mlp(width, 4 * width, width, dropout)
        self.path_dropout = dropout

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        attended = self.attn.attend(self.attn.queries(self.norm1(x)), *self.attn.keys_values(x), visible)
        x = x + self._drop_path(attended)
        return x + self._drop_path(self.mlp(self.norm2(x)))

    def _drop_path(self, x: Tensor) -> Tensor:
        """Drops the whole branch of a share of the scenes (stochastic depth), in training only."""
        if not self.training or self.path_dropout == 0.0:
            return x
        is_active = torch.rand(len(x), 1, 1, device=x.device) >= self.path_dropout
        return x * is_active / (1.0 - self.path_dropout)


class Encoder(nn.Module):
    def __init__(self, config: DenoiserNetConfig) -> None:
        super().__init__()
        spec, hidden, dropout = config.spec, config.hidden, config.dropout
        measures = config.mixer_tokens, config.mixer_channels, config.encoder_layers, hidden, dropout
        self.agent_mixer = ElementMixer(spec.history_steps, LANE_COLUMNS + 1, *measures)
        self.agent_kind = nn.Linear(AGENT_KINDS, config.mixer_channels)
        self.static_mlp = Mlp(STATIC_ROW, hidden, hidden, dropout)
        self.lane_mixer = ElementMixer(spec.lane_points, LANE_COLUMNS, *measures)
        self.speed_limit = nn.Linear(1, config.mixer_channels)
        self.unknown_limit = nn.Embedding(1, config.mixer_channels)
        self.light = nn.Linear(LIGHTS, config.mixer_channels)
        self.position = nn.Linear(POSE + 3, hidden)
        self.route = RouteProjections(hidden) if config.route_features else None
        self.layers = nn.ModuleList(EncoderLayer(hidden, config.heads, dropout) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, inputs: VectorTensors, features: RouteFeatures | None = None) -> Tensor:
        """(B, elements, hidden) of normalised inputs."""
        parts = [self._agents(inputs), self._static_objects(inputs), self._lanes(inputs)]
        tokens, present, poses = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        if self.route is not None and features is not None:
            tokens = tokens + self.route(features)
        x = (tokens + self.position(poses)) * present[..., None]
        first = torch.arange(present.shape[1], device=present.device) == 0
        visible = (present | first)[:, None, None]
        for layer in self.layers:
            x = layer(x, visible)
        encoded: Tensor = self.norm(x)
        return encoded

    def _agents(self, inputs: VectorTensors) -> tuple[Tensor, Tensor, Tensor]:
        rows = inputs.agents[..., :LANE_COLUMNS]
        observed = (rows != 0).any(-1)
        present = observed.any(-1)
        pooled = self.agent_mixer.pooled(torch.cat([rows, observed[..., None].to(rows.dtype)], -1))
        pooled = pooled + self.agent_kind(inputs.agents[..., -1, LANE_COLUMNS:])
        return self.agent_mixer.project(pooled), present, _pose_and_kind(rows[..., -1, :POSE], AGENT_TOKEN)

    def _static_objects(self, inputs: VectorTensors) -> tuple[Tensor, Tensor, Tensor]:
        rows = inputs.static_objects
        return self.static_mlp(rows), (rows != 0).any(-1), _pose_and_kind(rows[..., :POSE], STATIC_TOKEN)

    def _lanes(self, inputs: VectorTensors) -> tuple[Tensor, Tensor, Tensor]:
        rows = inputs.lanes[..., :LANE_COLUMNS]
        pooled = self.lane_mixer.pooled(rows)
        limit = torch.where(inputs.lane_has_limit, self.speed_limit(inputs.lane_limits), self.unknown_limit.weight[0])
        pooled = pooled + limit + self.light(inputs.lanes[..., 0, LANE_COLUMNS:])
        middle = rows[..., rows.shape[-2] // 2, :POSE]
        length = middle[..., 2:].square().sum(-1, keepdim=True).sqrt()  # no arc tangent: TensorRT has none of ONNX's
        ahead = torch.tensor([1.0, 0.0], device=middle.device)
        direction = torch.where(length > 0, middle[..., 2:] / length.clamp(min=SHORTEST), ahead)
        pose = torch.cat([middle[..., :2], direction], -1)
        return self.lane_mixer.project(pooled), (rows != 0).any(-1).any(-1), _pose_and_kind(pose, LANE_TOKEN)


class RouteProjections(nn.Module):
    """Features relative to the route -> (B, elements, hidden)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.agents = Mlp(route_features.MOVING, hidden, hidden)
        self.static_objects = Mlp(route_features.STANDING, hidden, hidden)
        self.lanes = Mlp(route_features.LANE, hidden, hidden)

    def forward(self, features: RouteFeatures) -> Tensor:
        parts = (self.agents(features.agents), self.static_objects(features.static_objects), self.lanes(features.lanes))
        return torch.cat(parts, 1)


def _pose_and_kind(pose: Tensor, kind: int) -> Tensor:
    """(B, N, 7) pose (B, N, 4) and one-hot kind of elements."""
    one_hot = [torch.full_like(pose[..., :1], float(kind == other)) for other in range(3)]
    return torch.cat([pose, *one_hot], -1)


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(width) for _ in range(4))
        self.attn, self.cross_attn = Attention(width, heads, dropout), Attention(width, heads, dropout)
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
        self.route_mixer = ElementMixer(
            spec.route_lanes * spec.lane_points, POSE, config.route_tokens, config.route_channels, 1, hidden,
            config.dropout,
        )  # fmt: skip
        self.agent_embedding = nn.Embedding(2, hidden)  # ego, neighbour
        self.future_mlp = Mlp(future, FUTURE_HIDDEN, hidden)
        self.time1, self.time2 = nn.Linear(FREQUENCIES, hidden), nn.Linear(hidden, hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(hidden, config.heads, config.dropout, config.residual) for _ in range(config.decoder_layers)
        )
        self.final = FinalLayer(hidden, future)
        self.ego_mlp = Mlp(len(spec.normalization.ego_mean) - POSE, hidden, hidden) if config.ego_inputs else None
        self.lead_mlp = Mlp(route_features.EGO, hidden, hidden) if config.route_features else None
        profile = route_features.profile_size(spec.route_line_rows * spec.lane_points)
        self.profile_mlp = Mlp(profile, hidden, hidden) if spec.ego_frenet else None

    def condition(self, inputs: VectorTensors, features: RouteFeatures | None, profile: Tensor | None) -> Tensor:
        """(B, hidden) of normalised inputs, features relative to the route and `route_features.road_profile`."""
        points = inputs.route_lanes[..., :POSE].flatten(1, 2)  # no boundaries, limits or lights
        is_present = (points != 0).any(-1).any(-1)
        condition = self.route_mixer.project(self.route_mixer.pooled(points)) * is_present[:, None]
        if self.ego_mlp is not None:
            state = inputs.ego[:, POSE:]
            condition = condition + self.ego_mlp(state) * (state != 0).any(-1)[:, None]
        if self.lead_mlp is not None and features is not None:
            condition = condition + self.lead_mlp(features.ego)
        if self.profile_mlp is not None and profile is not None:
            condition = condition + self.profile_mlp(profile)
        return condition

    def keys_values(self, encoded: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """Keys and values of each layer's cross-attention, of encoded scenes (B, elements, hidden)."""
        return tuple(cast(DecoderLayer, layer).cross_attn.keys_values(encoded) for layer in self.layers)

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
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights as published: Xavier matrices, small embeddings; a layer's modulation and the output are 0."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight, generator=generator)
                    nn.init.zeros_(module.bias)
                elif isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02, generator=generator)
                elif isinstance(module, Attention):
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
        normal = self.normalize(inputs)
        features, profile = None, None
        line = route_features.route_line(inputs.route_lanes, self.config.spec.route_line_rows)
        if self.config.route_features:
            features = route_features.route_features(inputs.agents, inputs.static_objects, inputs.lanes, line)
        if self.config.spec.ego_frenet:
            profile = route_features.road_profile(line, inputs.lanes, inputs.lane_limits)
        encoded = self.encoder(normal, features)
        keys_values = self.decoder.keys_values(encoded)
        neighbours = normal.agents[:, : self.config.spec.predicted_agents, -1, :POSE]
        absent = torch.cat([torch.zeros_like(normal.ego[:, :1], dtype=torch.bool), (neighbours == 0).all(-1)], 1)
        return Context(keys_values, self.decoder.condition(normal, features, profile), absent)

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
        norm = self.config.spec.normalization
        scaled = {
            "ego": _normalize(inputs.ego, norm.ego_mean, norm.ego_std),
            "agents": _normalize(inputs.agents, norm.agent_mean, norm.agent_std),
            "static_objects": _normalize(inputs.static_objects, norm.static_mean, norm.static_std),
            "lanes": _normalize(inputs.lanes, norm.lane_mean, norm.lane_std),
            "lane_limits": _normalize(inputs.lane_limits, norm.limit_mean, norm.limit_std),
            "route_lanes": _normalize(inputs.route_lanes, norm.route_mean, norm.route_std),
        }
        return inputs._replace(**scaled)


def _normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    is_present = (x != 0).any(-1, keepdim=True)
    scaled = (x - torch.tensor(mean, device=x.device)) / torch.tensor(std, device=x.device)
    return torch.where(is_present, scaled, torch.zeros_like(x))


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
