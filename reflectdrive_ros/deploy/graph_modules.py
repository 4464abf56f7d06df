"""The graphs of a token network as modules of tensors only, to be traced by `export`."""

from __future__ import annotations

from torch import Tensor, nn

from ..model.layers import KeysValues
from ..model.token import ops, rollout
from ..model.token.net import TokenNet
from ..model.token.rollout import Decoding


class NetworkGraph(nn.Module):
    """A graph that needs nothing but the network."""

    def __init__(self, net: TokenNet) -> None:
        super().__init__()
        self.net = net


class EncodeViews(NetworkGraph):
    """`TokenNet.encode_views` for uint8 images."""

    def forward(self, views: Tensor) -> Tensor:
        # cast to float32 first: TensorRT accepts uint8 only as an input that is cast this way
        return self.net.encode_views(views.float())


class PrefillGoal(nn.Module):
    """`rollout.prefill_goal` from image features on, with tensors only."""

    def __init__(self, net: TokenNet, decoding: Decoding) -> None:
        super().__init__()
        self.net, self.rules = net, decoding.goals.for_search  # the most goals that a planner may ask for

    def forward(
        self, features: Tensor, text: Tensor, ego: Tensor, route: Tensor, goal_spacing_m: Tensor
    ) -> tuple[Tensor, ...]:
        prompt = self.net.build_prompt(features, text, ego, route)
        prefilled = rollout.prefill_goal_from_prompt(self.net, prompt, self.rules, goal_spacing_m)
        flat = (part for layer in prefilled.keys_values for part in layer)
        return prefilled.actions, prefilled.goal_log_probs, prefilled.valid, *flat


class Prefill(NetworkGraph):
    """`rollout.prefill` from image features on, with tensors only."""

    def forward(self, features: Tensor, text: Tensor, ego: Tensor, route: Tensor) -> tuple[Tensor, ...]:
        layers = self.net.encode(self.net.build_prompt(features, text, ego, route))
        return tuple(part for layer in layers for part in layer)


class Step(nn.Module):
    """`rollout.step` with tensors only and, of a network with a plan value, the predicted scores of its input."""

    def __init__(self, net: TokenNet, decoding: Decoding) -> None:
        super().__init__()
        self.net, self.rules = net, decoding.edits

    def forward(
        self, actions: Tensor, limit: Tensor, edit: Tensor, keys_values: tuple[KeysValues, ...]
    ) -> tuple[Tensor, ...]:
        hidden, layout = self.net.hidden(actions, keys_values), self.net.config.layout
        updated = ops.update(actions, self.net.logits(hidden), layout, limit, edit, self.rules)
        return (*updated, self.net.plan_value(hidden).sigmoid()) if self.net.config.plan_value else updated


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
        return rollout.refine(self.net, actions, keys_values)


class GuidedStep(NetworkGraph):
    """`rollout.guided_logits` and a draft, with tensors only."""

    def forward(
        self,
        actions: Tensor,
        limit: Tensor,
        weight: Tensor,
        keys_values: tuple[KeysValues, ...],
        unconditional: tuple[KeysValues, ...],
    ) -> tuple[Tensor, Tensor]:
        logits = rollout.guided_logits(self.net, actions, keys_values, unconditional, weight)
        return ops.unmask(actions, logits, self.net.config.layout, limit)
