"""The scene encoder: agents with their history, static objects and lanes in, one feature vector per element out.

    encoder = Encoder(SceneEncoderConfig())
    normal = normalize(inputs, spec.normalization)
    encoded = encoder(normal, features_of_route(inputs, config).elements)     # (B, elements, hidden)

The encoder is that of Diffusion-Planner (Zheng et al., Diffusion-Based Planning for Autonomous Driving with Flexible
Guidance, ICLR 2025): an MLP-Mixer per element and attention among the elements. The denoiser and the token network
import it. Facts of the published code that a port must keep:

- keys and values of the attention are not normalised, queries are;
- an element whose entries are all zero is masked;
- the first element is never masked, so that attention over an empty scene is defined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.vector_spec import Normalization, VectorSpec
from . import route_features
from .route_features import RouteFeatures

POSE = 4  # x, y, cos, sin of one future step
AGENT_KINDS, STATIC_ROW = 3, 10
LIGHTS = 4
SHORTEST = 1e-12  # of a direction, against division by 0
LANE_COLUMNS = 8  # of a lane point, without its light
AGENT_TOKEN, STATIC_TOKEN, LANE_TOKEN = range(3)  # kinds of elements


@dataclass(frozen=True)
class SceneEncoderConfig:
    """Measures of the encoder; the defaults are the published ones."""

    spec: VectorSpec = field(default_factory=VectorSpec)
    hidden: int = 192
    heads: int = 6
    layers: int = 3
    mixer_tokens: int = 64
    mixer_channels: int = 128
    route_tokens: int = 32
    route_channels: int = 64
    ego_inputs: bool = False  # speed, acceleration, steering and yaw rate of the ego are part of the condition
    route_features: bool = False  # positions of the elements relative to the line of the route
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


class VectorTensors(NamedTuple):
    """`features.vectors.VectorInputs` of B scenes as tensors, ego frame, metres; empty rows are 0."""

    ego: Tensor  # (B, 10)
    agents: Tensor  # (B, A, 21, 11)
    static_objects: Tensor  # (B, S, 10)
    lanes: Tensor  # (B, L, 20, 12)
    lane_limits: Tensor  # (B, L, 1) m/s
    lane_has_limit: Tensor  # (B, L, 1) bool
    route_lanes: Tensor  # (B, R, 20, 12)


def empty_scenes(spec: VectorSpec, count: int) -> VectorTensors:
    """Scenes in which all is unknown."""
    scales = spec.normalization
    return VectorTensors(
        torch.zeros(count, len(scales.ego_mean)),
        torch.zeros(count, spec.agents, spec.history_steps, len(scales.agent_mean)),
        torch.zeros(count, spec.static_objects, len(scales.static_mean)),
        torch.zeros(count, spec.lanes, spec.lane_points, len(scales.lane_mean)),
        torch.zeros(count, spec.lanes, 1),
        torch.zeros(count, spec.lanes, 1, dtype=torch.bool),
        torch.zeros(count, spec.route_lanes, spec.lane_points, len(scales.route_mean)),
    )


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


class ElementAttention(nn.Module):
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
        self.attn = ElementAttention(width, heads, dropout)
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
    def __init__(self, config: SceneEncoderConfig) -> None:
        super().__init__()
        spec, hidden, dropout = config.spec, config.hidden, config.dropout
        measures = config.mixer_tokens, config.mixer_channels, config.layers, hidden, dropout
        self.agent_mixer = ElementMixer(spec.history_steps, LANE_COLUMNS + 1, *measures)
        self.agent_kind = nn.Linear(AGENT_KINDS, config.mixer_channels)
        self.static_mlp = Mlp(STATIC_ROW, hidden, hidden, dropout)
        self.lane_mixer = ElementMixer(spec.lane_points, LANE_COLUMNS, *measures)
        self.speed_limit = nn.Linear(1, config.mixer_channels)
        self.unknown_limit = nn.Embedding(1, config.mixer_channels)
        self.light = nn.Linear(LIGHTS, config.mixer_channels)
        self.position = nn.Linear(POSE + 3, hidden)
        self.route = RouteProjections(hidden) if config.route_features else None
        self.layers = nn.ModuleList(EncoderLayer(hidden, config.heads, dropout) for _ in range(config.layers))
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


def normalize(inputs: VectorTensors, norm: Normalization) -> VectorTensors:
    """(x - mean) / std of each column; rows of zeros stay 0."""
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


class SceneCondition(nn.Module):
    """The route and, where configured, the ego's motion, the gap ahead and the bends of the road as one vector."""

    def __init__(self, config: SceneEncoderConfig) -> None:
        super().__init__()
        for name, module in condition_modules(config).items():
            self.add_module(name, module)

    def forward(self, inputs: VectorTensors, features: FeaturesOfRoute) -> Tensor:
        """(B, hidden) of normalised inputs."""
        return condition_of(self, inputs, features)


def condition_modules(config: SceneEncoderConfig) -> dict[str, nn.Module | None]:
    """The modules that `condition_of` reads, by their names."""
    spec, hidden = config.spec, config.hidden
    points = spec.route_lanes * spec.lane_points
    measures = config.route_tokens, config.route_channels, 1, hidden, config.dropout
    profile = route_features.profile_size(spec.route_line_rows * spec.lane_points)
    return {
        "route_mixer": ElementMixer(points, POSE, *measures),
        "ego_mlp": Mlp(len(spec.normalization.ego_mean) - POSE, hidden, hidden) if config.ego_inputs else None,
        "lead_mlp": Mlp(route_features.EGO, hidden, hidden) if config.route_features else None,
        "profile_mlp": Mlp(profile, hidden, hidden) if spec.ego_frenet else None,
    }


def condition_of(modules: nn.Module, inputs: VectorTensors, features: FeaturesOfRoute) -> Tensor:
    """(B, hidden) of normalised inputs by the `condition_modules` that a network holds."""
    points = inputs.route_lanes[..., :POSE].flatten(1, 2)  # no boundaries, limits or lights
    is_present = (points != 0).any(-1).any(-1)
    mixer: ElementMixer = modules.route_mixer  # type: ignore[assignment]
    condition: Tensor = mixer.project(mixer.pooled(points)) * is_present[:, None]
    ego_mlp, lead_mlp, profile_mlp = modules.ego_mlp, modules.lead_mlp, modules.profile_mlp
    if ego_mlp is not None:
        state = inputs.ego[:, POSE:]
        condition = condition + ego_mlp(state) * (state != 0).any(-1)[:, None]  # type: ignore[operator]
    if lead_mlp is not None and features.elements is not None:
        condition = condition + lead_mlp(features.elements.ego)  # type: ignore[operator]
    if profile_mlp is not None and features.profile is not None:
        condition = condition + profile_mlp(features.profile)  # type: ignore[operator]
    return condition


class FeaturesOfRoute(NamedTuple):
    """What a network may read of B scenes relative to the line of the route; None where its configuration has none."""

    elements: RouteFeatures | None
    profile: Tensor | None  # (B, `route_features.profile_size`)


def features_of_route(inputs: VectorTensors, config: SceneEncoderConfig) -> FeaturesOfRoute:
    """Of inputs in metres."""
    line = route_features.route_line(inputs.route_lanes, config.spec.route_line_rows)
    elements, profile = None, None
    if config.route_features:
        elements = route_features.route_features(inputs.agents, inputs.static_objects, inputs.lanes, line)
    if config.spec.ego_frenet:
        profile = route_features.road_profile(line, inputs.lanes, inputs.lane_limits)
    return FeaturesOfRoute(elements, profile)
