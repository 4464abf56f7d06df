"""The network of ReflectDrive-2: images, words, ego state and route in; logits of each action token out.

One prompt [images | words | ego | route], causal, and action sequences of T tokens (`tokens.TokenLayout`: x1, y1, ..
x8, y8 by default), bidirectional inside. A sequence attends to the whole prompt and to itself; the prompt attends to no
sequence, and no sequence to another. So the prompt's keys and values are computed once for all sequences and all
rounds, and any number of sequences is packed along the token axis after one prompt, exactly.

    net = TokenNet(small_config(words))                                    # words: features.WORDS
    net.initialise(torch.Generator().manual_seed(0))
    inputs = PromptInputs(images, text, ego, route)
    out = net.forward_packed(inputs, actions)                              # one prompt, R sequences: .logits, .hidden
    logits = net.packed_logits(inputs, actions)                            # (B, R, T, bins), the same without .hidden
    y_logits = net.goal_y_logits(out, x_ids)                               # (B, K, Y): y of the goal given K of its x

    images (B, 6, H, W, 3) uint8, oldest instant first, each left to right; text (B, L) int64; ego (B, 3) float32,
    normalised speed, acceleration, yaw rate; route (B, points, 2) int64, ids of x and y, the mask of their codebook
    where it is unknown; actions (B, R, T) int64.

The paper's prompt has no route. A route of which no point is known is the paper's case; training shows it too.

The goal posterior is p(x) p(y | x), read from a sequence that is all mask: a product of two marginals would invent
goals between the true ones. To train it, sequence 0 is all mask: cross-entropy of its logits against the goal's x, and
of `goal_y_logits` given that x against the goal's y less the lowest id of y. The best goals are then evaluated once
more, each in a sequence that holds it alone (`goal_value`). A layout without a goal has none of these heads.

Ids outside the ranges of the layout have logit -1e9 (probability exactly 0): bring targets inside with
`config.clamp_to_range(actions)` first. `forward_packed` is differentiable; `encode` and `decode` are its two halves for
inference (`rollout`), equal to 1e-5. `checkpoint.save` and `load` store all this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.tokens import AXES, DRIVEFINE, ROUTE_DRIVEFINE, ROUTE_FRAME, TokenLayout
from ...core.vector_spec import SMALL_SPEC
from ..layers import DecoderLayer, KeysValues, RmsNorm, Tables, TransformerConfig, rotary_tables
from ..scene_encoder import Encoder, SceneCondition, SceneEncoderConfig, VectorTensors, features_of_route, normalize
from ..vision import Projector, VisionConfig, VisionEncoder
from .axis import SplineHead, TableHead, make_embedding, make_head
from .moe import KEEP_LOGIT, RefineExpert

MASKED_LOGIT = -1e9  # logit of what cannot be
EGO_VALUES = 3  # speed, acceleration, yaw rate; one prompt token each
FOURIER_OCTAVES = 6  # frequencies of the Fourier features of a number


@dataclass(frozen=True)
class TokenNetConfig:
    """The whole network's measures, and what its inputs mean."""

    vision: VisionConfig = field(default_factory=VisionConfig)
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    cameras: int = 3
    instants: int = 2
    text_length: int = 16
    text_vocabulary: int = 64
    words: tuple[str, ...] = ()  # of the vocabulary, in order
    ego_scale: tuple[float, float, float] = (10.0, 3.0, 0.5)  # m/s, m/s^2, rad/s that count as 1
    route_at_m: tuple[float, ...] = (*(3.0 * k for k in range(1, 17)), 54.0, 62.0, 70.0, 80.0)  # along it
    layout: TokenLayout = field(default_factory=TokenLayout)
    goal_hidden: int = 128
    table_stride: int = 1  # bins per row of the tables of the axes; above 1 the rows between are interpolated
    refine_layers: int = 0  # last layers that the refinement expert has copies of; 0: no expert
    images: bool = True  # whether it reads cameras
    scene: SceneEncoderConfig | None = None  # of the agents, static objects and lanes that it reads
    critique: int = 0  # numbers per waypoint of the critique of a plan that edits read (planning/critique.py)

    def __post_init__(self) -> None:
        if not self.images and self.scene is None:
            raise ValueError("TokenNetConfig.images is false and scene is not set, expected one of them")
        if self.instants % self.vision.frames:
            raise ValueError(f"TokenNetConfig.instants is {self.instants}, expected a multiple of vision.frames")
        if len(self.words) > self.text_vocabulary:
            raise ValueError(f"TokenNetConfig.words holds {len(self.words)} words for {self.text_vocabulary} rows")
        if self.table_stride < 1:
            raise ValueError(f"TokenNetConfig.table_stride is {self.table_stride}, expected at least 1")
        if not 0 <= self.refine_layers < self.transformer.layers:
            raise ValueError(
                f"TokenNetConfig.refine_layers is {self.refine_layers}, expected 0 (no refinement expert) or fewer "
                f"than the {self.transformer.layers} layers of the network"
            )
        if self.critique and not self.refine_layers:
            raise ValueError(
                f"TokenNetConfig.critique is {self.critique}, but refine_layers is 0: the expert reads the critique"
            )

    @property
    def image_count(self) -> int:
        return self.cameras * self.instants * self.images

    @property
    def prompt_length(self) -> int:
        return self.image_count // self.vision.frames * self.vision.tokens + self.non_image_length

    @property
    def non_image_length(self) -> int:
        """Tokens of the prompt that are no images."""
        scene = 0 if self.scene is None else self.scene.elements + 1
        return self.text_length + EGO_VALUES + scene + len(self.route_at_m)

    def clamp_to_range(self, actions: Tensor) -> Tensor:
        """Sequences (.., T) with every id clipped to the range of its head; masks stay masks."""
        points = torch.unflatten(actions, -1, (-1, len(self.layout.axes)))
        axes = [points[..., k].clamp(*ids) for k, ids in enumerate(self.layout.id_ranges)]
        return torch.where(actions == self.layout.mask_id, actions, torch.stack(axes, -1).flatten(-2))


def small_config(words: tuple[str, ...]) -> TokenNetConfig:
    """The network that is trained on two CPU cores and shipped: 7.8 M parameters."""
    return TokenNetConfig(words=words, text_vocabulary=max(64, len(words)))


def drivefine_small_config(words: tuple[str, ...]) -> TokenNetConfig:
    """The small network with DriveFine's tokens: 7.3 M parameters."""
    return replace(small_config(words), layout=DRIVEFINE, table_stride=7)


def scene_small_config(words: tuple[str, ...]) -> TokenNetConfig:
    """A network that reads agents, static objects, lanes and the route, and no images: 2.6 M parameters."""
    return TokenNetConfig(
        transformer=TransformerConfig(128, 4, 4, 4, 32, 256, 256),
        text_length=0,
        words=words,
        route_at_m=(),
        layout=ROUTE_FRAME,
        goal_hidden=64,
        images=False,
        scene=SceneEncoderConfig(
            SMALL_SPEC, 128, 4, 2, mixer_tokens=8, mixer_channels=64, route_tokens=16, ego_inputs=True,
            route_features=True, dropout=0.0,
        ),
    )  # fmt: skip


def drivefine_scene_config(words: tuple[str, ...]) -> TokenNetConfig:
    """The network `scene_small` with DriveFine's tokens in the frame of the route: 2.6 M parameters."""
    return replace(scene_small_config(words), layout=ROUTE_DRIVEFINE, table_stride=4)


def base_config(words: tuple[str, ...] = ()) -> TokenNetConfig:
    """Qwen3-0.6B with SigLIP2-base-patch16-256 and an action FFN of width 1024: 776 M parameters.

    With its own vocabulary it has embeddings for that alone, 156 M parameters less.
    """
    return TokenNetConfig(
        vision=VisionConfig(256, 256, 16, 1, (), 768, 12, 12, 3072, 1e-6),
        transformer=TransformerConfig(1024, 28, 16, 8, 128, 3072, 1024, 1e6, 1e-6),
        text_length=16 if words else 64,
        text_vocabulary=max(64, len(words)) if words else 151_936,
        words=words,
        goal_hidden=512,
    )


class PromptInputs(NamedTuple):
    """The network's inputs of B scenes. `scene` is that of a network with `TokenNetConfig.scene`."""

    images: Tensor  # (B, instants * cameras, H, W, 3) uint8, oldest instant first, each left to right
    text: Tensor  # (B, text_length) int64
    ego: Tensor  # (B, 3) float32, speed, acceleration and yaw rate over their scales
    route: Tensor  # (B, points, 2) int64 ids of x and y, the mask where the route is unknown
    scene: VectorTensors | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> PromptInputs:
        """The inputs after `change` of each tensor."""
        return PromptInputs.of([change(part) for part in self.tensors])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The four tensors and, with a scene, those of `VectorTensors`."""
        return self.images, self.text, self.ego, self.route, *(self.scene or ())

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> PromptInputs:
        """Inverse of `tensors`."""
        images, text, ego, route, *scene = tensors
        return PromptInputs(images, text, ego, route, VectorTensors(*scene) if scene else None)


class PackedOutput(NamedTuple):
    """Outputs of the network for R sequences."""

    logits: Tensor  # (B, R, T, bins) float32
    hidden: Tensor  # (B, R, T, width), inputs of the heads
    keys_values: tuple[KeysValues, ...]  # of the prompt, per layer
    image_tokens: Tensor  # (B, P', width), the image tokens of the prompt, before the first layer
    route_embedding: Tensor  # (B, points, width), the route tokens of the prompt

    def first(self, count: int) -> PackedOutput:
        """The outputs of the first sequences."""
        return self._replace(logits=self.logits[:, :count], hidden=self.hidden[:, :count])


class TokenNet(nn.Module):
    cos: Tensor
    sin: Tensor
    x_embedding: nn.Embedding
    y_embedding: nn.Embedding
    x_head: TableHead | SplineHead
    y_head: TableHead | SplineHead

    def __init__(self, config: TokenNetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.transformer.width
        if config.images:
            self.vision = VisionEncoder(config.vision)
            self.projector = Projector(config.vision, width)
            self.camera = nn.Parameter(torch.empty(config.cameras, width))
            self.instant = nn.Parameter(torch.empty(config.instants // config.vision.frames, width))
        self.embed_tokens = nn.Embedding(config.text_vocabulary, width)
        self.ego = nn.Sequential(
            nn.Linear(EGO_VALUES * (1 + 2 * FOURIER_OCTAVES), width), nn.SiLU(), nn.Linear(width, EGO_VALUES * width)
        )
        self.route_position = nn.Parameter(torch.empty(len(config.route_at_m), width))
        layout = config.layout
        for axis in layout.axes:
            self.add_module(f"{axis.name}_embedding", make_embedding(axis, layout.mask_id, width, config.table_stride))
        self.slot = nn.Parameter(torch.empty(layout.length, width))
        self.layers = nn.ModuleList(DecoderLayer(config.transformer) for _ in range(config.transformer.layers))
        self.norm = RmsNorm(width, config.transformer.norm_eps)
        for axis in layout.axes:
            self.add_module(f"{axis.name}_head", make_head(axis, width, config.table_stride))
        if layout.goal:
            x, y = layout.axes[:2]
            self.goal_x_embedding = nn.Embedding(x.bins, config.goal_hidden)
            self.goal_hidden = nn.Linear(2 * width, config.goal_hidden)
            self.goal_y_head = TableHead(y.bins, config.goal_hidden)
            self.goal_route = nn.Linear(width, width + config.goal_hidden)
            self.value_hidden = nn.Linear(2 * width, config.goal_hidden)
            self.value_head = nn.Linear(config.goal_hidden, 1)

        if config.critique:
            self.critique_hidden = nn.Linear(config.critique, width)
            self.critique_out = nn.Linear(width, len(layout.axes) * width)

        if config.scene is not None:
            self.scene_encoder = Encoder(config.scene)
            self.scene_condition = SceneCondition(config.scene)
            self.scene_projection = nn.Linear(config.scene.hidden, width)

        if config.refine_layers:
            self.refiner = RefineExpert(config.refine_layers, config.transformer, layout.length)

        cos, sin = rotary_tables(
            config.prompt_length + layout.length, config.transformer.head_dim, config.transformer.rope_theta
        )
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights from a seed: normal, smaller for residual outputs, smooth over bins in the tables."""
        depths = {"vision": len(self.vision.layers)} if self.config.images else {}
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                # all goals and plans are as good to begin with, and a critique says nothing
                if name.endswith(("bias", "value_head.weight", "critique_out.weight")):
                    parameter.zero_()
                elif "norm" in name:
                    parameter.fill_(1.0)
                elif name.removesuffix("_embedding.weight").removeprefix("goal_") in AXES:
                    parameter.copy_(smooth_rows(parameter, generator))
                elif name.removesuffix("_head.weight").removeprefix("goal_") in AXES:
                    parameter.copy_(0.3 * parameter.shape[1] ** -0.5 * smooth_rows(parameter, generator))
                else:
                    fan_in = math.prod(parameter.shape[1:])
                    table = name in ("camera", "instant", "slot", "route_position") or (
                        "embed" in name and parameter.dim() == 2
                    )
                    scale = 0.5 if table else fan_in**-0.5
                    if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")):
                        depth = depths.get(name.partition(".")[0], len(self.layers))
                        scale *= (2 * depth) ** -0.5 if "layers" in name else 1.0
                    parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
            if self.config.refine_layers:
                self.start_expert()

    def start_expert(self) -> None:
        """Starts the expert as a copy of the last layers. A critique says which tokens are to be kept; without one
        they are kept by a logit."""
        self.refiner.copy_generator(self, 0.0 if self.config.critique else KEEP_LOGIT)

    # --- whole passes ------------------------------------------------------------------------------------------------

    def forward_packed(self, inputs: PromptInputs, actions: Tensor) -> PackedOutput:
        """All R sequences (B, R, T) with one prompt, in one pass; each result is independent of the others."""
        return self.forward_from_prompt(self.prompt(inputs), actions)

    def forward_from_prompt(self, prompt: Tensor, actions: Tensor) -> PackedOutput:
        """`forward_packed` from the prompt (B, P, width) on."""
        count, length = actions.shape[1], prompt.shape[1]
        x = torch.cat([prompt, self.action_embeddings(actions).flatten(1, 2)], 1)
        allowed = attention_mask(length, count, self.config.layout.length, prompt.device)
        mask = torch.where(allowed, 0.0, MASKED_LOGIT)
        positions = torch.cat([torch.arange(length, device=x.device), self._block_positions(length, count)])
        cos, sin = self.cos[positions], self.sin[positions]
        layers = []
        for layer in self.layers[:-1]:
            x, keys_values = layer(x, length, mask, cos, sin)
            layers.append(keys_values)
        # of the prompt's last layer only keys and values are needed
        x, keys_values = self.layers[-1](x, length, mask, cos, sin, skip=length)
        layers.append(keys_values)
        hidden = torch.unflatten(self.norm(x), 1, (count, self.config.layout.length))
        of_prompt = tuple((keys[:, :, :length], values[:, :, :length]) for keys, values in layers)
        image_tokens, route_embedding = (
            prompt[:, : length - self.config.non_image_length],
            prompt[:, length - len(self.config.route_at_m) :],
        )
        return PackedOutput(self.logits(hidden), hidden, of_prompt, image_tokens, route_embedding)

    def forward_fixed_prompt(self, prompt: Tensor, actions: Tensor) -> PackedOutput:
        """As `forward_from_prompt`, but no gradient passes through the prompt (B, P, width) and its keys and values."""
        with torch.no_grad():
            keys_values = self.encode(prompt)[: len(self.layers)]
        hidden, length = self.hidden(actions, keys_values), prompt.shape[1]
        image_tokens = prompt[:, : length - self.config.non_image_length].detach()
        route_embedding = prompt[:, length - len(self.config.route_at_m) :].detach()
        return PackedOutput(self.logits(hidden), hidden, keys_values, image_tokens, route_embedding)

    def forward_cached(self, actions: Tensor, keys_values: tuple[KeysValues, ...], route: Tensor) -> PackedOutput:
        """As `forward_fixed_prompt`, from the prompt's KV cache and the route (B, points, 2); without image tokens."""
        hidden = self.hidden(actions, keys_values)
        nothing = hidden.new_zeros(len(hidden), 0, hidden.shape[-1])
        return PackedOutput(self.logits(hidden), hidden, keys_values, nothing, self.route_tokens(route))

    def encode(self, prompt: Tensor) -> tuple[KeysValues, ...]:
        """The KV cache of the prompt (B, P, width), equal to that of `forward_packed`."""
        length = prompt.shape[1]
        mask = torch.where(attention_mask(length, 0, self.config.layout.length, prompt.device), 0.0, MASKED_LOGIT)
        cos, sin = self.cos[:length], self.sin[:length]
        x, cache = prompt, list[KeysValues]()
        for layer in self.layers[:-1]:
            x, keys_values = layer(x, length, mask, cos, sin)
            cache.append(keys_values)
        last = self.layers[-1]  # only its keys and values are needed
        return *cache, last.self_attn.keys_values(last.input_layernorm(x), cos, sin)  # type: ignore[operator, union-attr]

    def packed_logits(self, inputs: PromptInputs, actions: Tensor) -> Tensor:
        """(B, R, T, bins) of actions (B, R, T)."""
        return self.forward_packed(inputs, actions).logits

    def decode(self, actions: Tensor, keys_values: tuple[KeysValues, ...]) -> Tensor:
        """Logits (B, R, T, bins) of sequences (B, R, T) from the prompt's KV cache, which is not changed."""
        return self.logits(self.hidden(actions, keys_values))

    def hidden(self, actions: Tensor, keys_values: tuple[KeysValues, ...]) -> Tensor:
        """(B, R, T, width) inputs of the heads for sequences (B, R, T)."""
        tables = self._sequence_tables(keys_values)
        return self.norm(self._through(self.layers, self.action_embeddings(actions), keys_values, tables))  # type: ignore[no-any-return]

    def refine(self, actions: Tensor, keys_values: tuple[KeysValues, ...], critique: Tensor | None = None) -> Tensor:
        """Logits (B, R, T, bins) of the refinement expert for complete sequences (B, R, T), given the critique
        (B, R, points, channels) of their plans if the network reads one.

        No gradient reaches the layers below it (DriveFine, section 3.2). Raises ValueError without an expert.
        """
        count = self.config.refine_layers
        if not count:
            raise ValueError("the network has no refinement expert")
        tables = self._sequence_tables(keys_values)
        with torch.no_grad():
            shared = self._through(self.layers[:-count], self.action_embeddings(actions), keys_values, tables)
        of_expert = tuple((keys.detach(), values.detach()) for keys, values in keys_values[-count:])
        x = self.refiner.hidden(self._with_critique(shared.detach(), critique), of_expert, *tables)
        logits = self.logits(self.refiner.norm(x))
        return logits + self.refiner.keep_logits(actions, logits.shape[-1])

    def _sequence_tables(self, keys_values: tuple[KeysValues, ...]) -> tuple[Tables, Tables]:
        """Rotary tables of the keys and of the queries of a sequence behind the prompt; the latter hold the scale of
        the softmax."""
        length = keys_values[0][0].shape[2]
        behind_prompt = slice(length, length + self.config.layout.length)  # where each sequence stands
        cos, sin = self.cos[behind_prompt], self.sin[behind_prompt]
        scale = self.config.transformer.head_dim**-0.5
        return (cos, sin), (scale * cos, scale * sin)

    @staticmethod
    def _through(
        layers: nn.ModuleList, x: Tensor, keys_values: tuple[KeysValues, ...], tables: tuple[Tables, Tables]
    ) -> Tensor:
        """x (B, R, T, width) after the first layers of the network, each with its keys and values of the prompt."""
        for layer, past in zip(layers, keys_values, strict=False):
            x = layer.forward_cached(x, past, *tables)  # type: ignore[operator]
        return x

    # --- parts -------------------------------------------------------------------------------------------------------

    def prompt(self, inputs: PromptInputs) -> Tensor:
        """(B, P, width): images, words, ego state, route."""
        images, text, ego, route, scene = inputs
        if not self.config.images:
            return self.build_prompt(None, text, ego, route, scene)
        if images.shape[1] != self.config.image_count:
            raise ValueError(f"images has {images.shape[1]} images, expected {self.config.image_count}")
        return self.build_prompt(self.encode_images(images), text, ego, route, scene)

    def encode_images(self, images: Tensor) -> Tensor:
        """Features (B, S, cameras, tokens, width) of images (B, S * frames * cameras, H, W, 3).

        A network that encodes each instant by itself (vision.frames = 1) may be given the newest instant alone, because
        the features of older images do not change.
        """
        cameras, frames = self.config.cameras, self.config.vision.frames
        views = torch.unflatten(images, 1, (-1, frames, cameras)).transpose(2, 3)
        return torch.unflatten(self.encode_views(views.flatten(0, 2)), 0, (images.shape[0], -1, cameras))

    def encode_views(self, views: Tensor) -> Tensor:
        """Features (N, tokens, width) of views (N, frames, H, W, 3), each of one camera, oldest image first."""
        return self.projector(self.vision(views))  # type: ignore[no-any-return]

    def build_prompt(
        self, features: Tensor | None, text: Tensor, ego: Tensor, route: Tensor, scene: VectorTensors | None = None
    ) -> Tensor:
        """Prompt (B, P, width) of features (B, instants / frames, cameras, tokens, width), oldest first, text, ego,
        scene and route; without features of a network without images."""
        words = self.embed_tokens(text)
        ego_tokens = torch.unflatten(self.ego(fourier_features(ego).to(words.dtype)), -1, (EGO_VALUES, -1))
        parts = [words, ego_tokens, self.route_tokens(route)]
        if features is not None:
            parts.insert(0, self.image_tokens(features))
        if scene is not None:
            parts.insert(-1, self.scene_tokens(scene))
        return torch.cat(parts, 1)

    def scene_tokens(self, scene: VectorTensors) -> Tensor:
        """(B, elements + 1, width) one token per element, then one for the route and the ego's motion."""
        config = self.config.scene
        if config is None:
            raise ValueError("the network reads no scene")
        normal, features = normalize(scene, config.spec.normalization), features_of_route(scene, config)
        elements = self.scene_encoder(normal, features.elements)
        condition = self.scene_condition(normal, features)
        encoded = torch.cat([elements, condition[:, None]], 1).to(self.scene_projection.weight.dtype)
        tokens: Tensor = self.scene_projection(encoded)
        return tokens

    def route_tokens(self, route: Tensor) -> Tensor:
        """The prompt's route tokens (B, points, width) of ids (B, points, 2)."""
        tokens: Tensor = self.x_embedding(route[..., 0]) + self.y_embedding(route[..., 1]) + self.route_position
        return tokens

    def image_tokens(self, features: Tensor) -> Tensor:
        """The prompt's image tokens (B, P', width): features plus embeddings of camera and instant."""
        return (features + self.camera[:, None] + self.instant[:, None, None]).flatten(1, 3)

    def all_masked(self, scenes: int, device: torch.device) -> Tensor:
        """(scenes, 1, T) action sequences of masks."""
        return torch.full((scenes, 1, self.config.layout.length), self.config.layout.mask_id, device=device)

    def action_embeddings(self, actions: Tensor) -> Tensor:
        """(B, R, T, width) of ids (B, R, T)."""
        axes = self.config.layout.axes
        points = torch.unflatten(actions, -1, (-1, len(axes)))
        embedded = [getattr(self, f"{axis.name}_embedding")(points[..., k]) for k, axis in enumerate(axes)]
        return torch.stack(embedded, -2).flatten(2, 3) + self.slot

    def _with_critique(self, tokens: Tensor, critique: Tensor | None) -> Tensor:
        """Action tokens (B, R, T, width) that hold the critique of their plans."""
        if critique is None or not self.config.critique:
            return tokens
        axes = self.config.layout.axes
        embedded = self.critique_out(F.silu(self.critique_hidden(critique.to(tokens.dtype))))
        of_tokens = torch.unflatten(embedded * critique[..., :1], -1, (len(axes), -1)).flatten(2, 3)
        return tokens + of_tokens.to(tokens.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """(.., T, bins) float32 of hidden (.., T, width): the axes by turns, each by its own head."""
        layout = self.config.layout
        points, sides = torch.unflatten(hidden, -2, (-1, len(layout.axes))), []
        for k, (axis, (low, high)) in enumerate(zip(layout.axes, layout.id_ranges, strict=True)):
            head = getattr(self, f"{axis.name}_head")
            reachable = head.logits(points[..., k, :], low, high).float()
            sides.append(F.pad(reachable, (low, layout.bins - 1 - high), value=MASKED_LOGIT))
        return torch.stack(sides, -2).flatten(-3, -2)

    def goal_x_logits(self, out: PackedOutput) -> Tensor:
        """Logits (B, X) of the goal's x, where sequence 0 of `out` is all mask; X are the ids that x may have."""
        low, high = self.config.layout.id_ranges[0]
        return self.x_head.logits(out.hidden[:, 0, self.config.layout.goal[0]], low, high).float()

    def goal_y_logits(self, out: PackedOutput, x_ids: Tensor) -> Tensor:
        """Logits (B, K, Y) of the goal's y given its x (B, K), if sequence 0 of `out` is all mask.

        Y are the allowed ids of y, from the lowest on (`config.id_ranges`). Each x attends to the route points with
        similar x, because the embeddings of close bins are similar.
        """
        hidden, width, (goal_x, goal_y) = out.hidden[:, 0], out.hidden.shape[-1], self.config.layout.goal
        about = self.goal_hidden(hidden[:, goal_x : goal_y + 1].flatten(1))[:, None] + self.goal_x_embedding(x_ids)
        low, high = self.config.layout.id_ranges[1]
        logits: Tensor = self.y_head.logits(hidden[:, None, goal_y], low, high)
        if self.config.route_at_m:
            similarity = self.x_embedding(x_ids) @ out.route_embedding.transpose(1, 2) / math.sqrt(width)
            there = similarity.softmax(-1)  # (B, K, points), weights of the route points
            route_features = self.goal_route(out.route_embedding)
            about = about + there @ route_features[..., width:]
            logits = logits + there @ self.y_head.logits(route_features[..., :width], low, high)
        return (logits + self.goal_y_head.logits(F.silu(about), low, high)).float()

    def goal_value(self, hidden: Tensor) -> Tensor:
        """(B, R) goal-value logits from hidden (B, R, T, width) of sequences that hold one goal each."""
        value: Tensor = self.value_head(F.silu(self.value_hidden(self.pool_goal_features(hidden))))
        return value[..., 0].float()

    def pool_goal_features(self, hidden: Tensor) -> Tensor:
        """(B, R, 2 width) features for the goal value: mean hidden state of the goal's tokens, and of the others."""
        first, end = self.config.layout.goal[0], self.config.layout.goal[1] + 1
        free = hidden[..., :first, :]
        if end < hidden.shape[-2]:
            free = torch.cat([free, hidden[..., end:, :]], -2)
        return torch.cat([hidden[..., first:end, :].mean(-2), free.mean(-2)], -1)

    def _block_positions(self, prompt: int, count: int) -> Tensor:
        """Positions: every sequence follows the prompt directly."""
        return prompt + torch.arange(self.config.layout.length, device=self.cos.device).repeat(count)


def fourier_features(numbers: Tensor) -> Tensor:
    """(.., N * (1 + 2 OCTAVES)) of numbers (.., N): themselves, sines and cosines at wavelengths from 8 to 1/4."""
    octaves = math.pi * 2.0 ** torch.arange(FOURIER_OCTAVES, device=numbers.device) / 4
    angles = (numbers[..., None] * octaves).flatten(-2)
    return torch.cat([numbers, angles.sin(), angles.cos()], -1)


def attention_mask(prompt: int, actions: int, length: int, device: torch.device) -> Tensor:
    """(P + R * T, P + R * T) bool with T = length: whether a row attends to a column.

    The prompt is causal; a sequence attends to the prompt and to itself.
    """
    of_actions = torch.arange(actions, device=device)[:, None].expand(-1, length).flatten()
    sequence = torch.cat([torch.full((prompt,), -1, device=device), of_actions])
    position = torch.arange(prompt + length * actions, device=device)
    own = (sequence[:, None] == sequence) & (sequence >= 0)
    earlier_prompt = (sequence < 0) & (position <= position[:, None])
    return own | earlier_prompt


def smooth_rows(table: Tensor, generator: torch.Generator) -> Tensor:
    """Rows for a table (count, width) that change smoothly, at wavelengths from 4 bins to twice the table.

    Neighbouring bins are neighbouring positions; a table that begins like this need not learn that bin by bin.
    """
    count, width = table.shape
    wavelength = 4.0 * (count / 2.0) ** torch.rand(width, generator=generator)
    phase = 2 * torch.pi * torch.rand(width, generator=generator)
    rows = torch.arange(count, dtype=torch.float32)[:, None]
    return torch.sin(2 * torch.pi * rows / wavelength + phase) * math.sqrt(2.0)
