"""The graphs of a token network as modules of tensors only, to be traced by `export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..model.card import SCENE
from ..model.layers import KeysValues
from ..model.scene_encoder import VectorTensors, empty_scenes
from ..model.token import rollout
from ..model.token.net import EGO_VALUES, TokenNet


def example_prompt(net: TokenNet) -> dict[str, Tensor]:
    """What a prompt is built of, by name, of one scene: no words, a standing car, no route and nothing around it.
    Without what the network does not read."""
    config, kind = net.config, net.x_head.weight.dtype
    instants = config.instants // config.vision.frames
    tensors = {
        "features": torch.zeros(
            1, instants, config.cameras * config.images, config.vision.tokens, config.transformer.width, dtype=kind
        ),
        "text": torch.zeros(1, config.text_length, dtype=torch.int64),
        "ego": torch.zeros(1, EGO_VALUES),
        "route": torch.full((1, len(config.route_at_m), 2), config.layout.codebook.mask_id),
    }
    if config.scene is not None:
        scene = empty_scenes(config.scene.spec, 1)
        tensors |= {f"{SCENE}{name}": part for name, part in scene._asdict().items()}
    return {name: tensor for name, tensor in tensors.items() if tensor.numel()}


def prompt_of(net: TokenNet, tensors: Sequence[Tensor]) -> Tensor:
    """Prompt (1, P, width) of tensors in the order of `example_prompt`."""
    by_name = dict(zip(example_prompt(net), tensors, strict=True))
    ego = by_name["ego"]
    text = by_name.get("text", ego.new_zeros(1, 0, dtype=torch.int64))
    route = by_name.get("route", ego.new_zeros(1, 0, 2, dtype=torch.int64))
    scene = [tensor for name, tensor in by_name.items() if name.startswith(SCENE)]
    return net.build_prompt(by_name.get("features"), text, ego, route, VectorTensors(*scene) if scene else None)


class NetworkGraph(nn.Module):
    """A graph of a network, with the rules of its decoding if it has any."""

    def __init__(self, net: TokenNet, rules: Any = None) -> None:
        super().__init__()
        self.net, self.rules = net, rules


class EncodeViews(NetworkGraph):
    """`TokenNet.encode_views` for uint8 images."""

    def forward(self, views: Tensor) -> Tensor:
        # cast to float32 first: TensorRT accepts uint8 only as an input that is cast this way
        return self.net.encode_views(views.float())


class PrefillGoal(NetworkGraph):
    """`rollout.prefill_goal` by GoalRules from image features on, with tensors only: those of `example_prompt`, then
    the spacing."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        *parts, goal_spacing_m = tensors
        prompt = prompt_of(self.net, parts)
        prefilled = rollout.prefill_goal_from_prompt(self.net, prompt, self.rules, goal_spacing_m)
        flat = (part for layer in prefilled.keys_values for part in layer)
        return prefilled.actions, prefilled.goal_log_probs, prefilled.valid, *flat


class Prefill(NetworkGraph):
    """`rollout.prefill` from image features on, with tensors only: those of `example_prompt`."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        layers = self.net.encode(prompt_of(self.net, tensors))
        return tuple(part for layer in layers for part in layer)


class StepGraph(NetworkGraph):
    """`rollout.step` by EditRules with tensors only."""

    def forward(
        self, actions: Tensor, limit: Tensor, edit: Tensor, keys_values: tuple[KeysValues, ...]
    ) -> tuple[Tensor, Tensor]:
        return rollout.step(self.net, actions, keys_values, limit, edit, self.rules)


class SampledStep(NetworkGraph):
    """`rollout.sampled_step` with tensors only."""

    def forward(
        self,
        actions: Tensor,
        limit: Tensor,
        temperature: Tensor,
        share: Tensor,
        keys_values: tuple[KeysValues, ...],
    ) -> tuple[Tensor, Tensor]:
        return rollout.sampled_step(self.net, actions, keys_values, limit, temperature, share)


class Refine(NetworkGraph):
    """`rollout.refine` with tensors only."""

    def forward(self, actions: Tensor, keys_values: tuple[KeysValues, ...]) -> tuple[Tensor, Tensor]:
        output = rollout.refine(self.net, actions, keys_values)
        return output.actions, output.confidence


class Edit(NetworkGraph):
    """`rollout.refine` of a network that reads a critique, with tensors only."""

    def forward(self, actions: Tensor, critique: Tensor, keys_values: tuple[KeysValues, ...]) -> tuple[Tensor, Tensor]:
        output = rollout.refine(self.net, actions, keys_values, critique)
        return output.actions, output.confidence
