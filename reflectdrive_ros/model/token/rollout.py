"""A planning step in calls: `prefill_goal` encodes the scene and decides goals, `prefill` encodes it, `step` drafts or
edits.

    full frame: prefill_goal, then step 3 times drafting (5, 5 and 4 tokens) and 3 times editing
    lite frame: prefill, then step once drafting (what is masked) and once editing, on the last plan's tokens

The goal pass is part of the prefill: a fully masked sequence is packed with the prompt. A lite frame has its goal and
leaves that out. Nothing is copied per goal and there is no host synchronisation, so that calls can be queued, dropped
at a deadline, exported and captured.

`rollout` runs the rounds of `tokens.decoding_rounds`, greedily as in a vehicle or with tokens sampled at a temperature.
It is used by eager inference, validation, self-drafts and goal scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.tokens import Round, TokenLayout, decoding_rounds
from ..layers import KeysValues
from . import ops
from .net import PackedOutput, PromptInputs, TokenNet
from .ops import EditRules, GoalRules


@dataclass(frozen=True)
class Decoding:
    """How a full frame is decoded; the paper's numbers."""

    goals: GoalRules = field(default_factory=GoalRules)
    edits: EditRules = field(default_factory=EditRules)
    draft_rounds: int = 3
    edit_rounds: int = 3
    schedule: str = "equal"  # of the draft rounds, one of tokens.SCHEDULES

    def rounds(self, layout: TokenLayout) -> tuple[Round, ...]:
        """The rounds of a full frame."""
        return decoding_rounds(len(layout.free), self.draft_rounds, self.edit_rounds, self.schedule)


DRIVEFINE_DECODING = Decoding(draft_rounds=4, edit_rounds=0, schedule="cosine")  # the paper's fastest variant


def default_decoding(layout: TokenLayout) -> Decoding:
    """Of ReflectDrive-2 with a goal, of DriveFine without."""
    return Decoding() if layout.goal else DRIVEFINE_DECODING


class PrefilledSequences(NamedTuple):
    """Results of encoding a scene, before the first draft."""

    keys_values: tuple[KeysValues, ...]  # of the prompt, per layer
    actions: Tensor  # (B, K, T) ids: each goal, the rest masked
    goal_log_probs: Tensor  # (B, K)
    valid: Tensor  # (B, K) bool; an invalid slot repeats the first goal


class RoundOutput(NamedTuple):
    """Action sequences after one round."""

    actions: Tensor  # (B, M, T) ids
    confidence: Tensor  # (B, M, T) probability of each token when it was last evaluated, 0 of a mask


@dataclass(frozen=True)
class Sampling:
    """Tokens are sampled from softmax(logits / temperature); temperature 0 takes the most probable."""

    temperature: float
    generator: torch.Generator  # on the CPU, so that every device draws the same numbers


class Decoded(NamedTuple):
    """Result of a full step."""

    rounds: tuple[RoundOutput, ...]  # drafts, then edits; sequences (B, K, T), no mask left in the last
    goal_log_probs: Tensor  # (B, K)
    valid: Tensor  # (B, K) bool

    @property
    def actions(self) -> Tensor:
        return self.rounds[-1].actions

    @property
    def confidence(self) -> Tensor:
        return self.rounds[-1].confidence


def prefill_goal(net: TokenNet, inputs: PromptInputs, rules: GoalRules) -> PrefilledSequences:
    """KV cache of the prompt, and the network's goals."""
    return prefill_goal_from_prompt(net, net.prompt(inputs), rules)


def prefill(net: TokenNet, inputs: PromptInputs) -> tuple[KeysValues, ...]:
    """The KV cache of the prompt, equal to that of `prefill_goal`."""
    return net.encode(net.prompt(inputs))


def prefill_goal_from_prompt(
    net: TokenNet, prompt: Tensor, rules: GoalRules, spacing_m: Tensor | None = None
) -> PrefilledSequences:
    """`prefill_goal` from the prompt (B, P, width) on.

    Goals are searched where their x is probable (`ops.likely_x_indices`): y is evaluated only there. The goals found
    get a goal value each, and are reweighted by it.
    """
    return prefill_goal_from_output(
        net, net.forward_from_prompt(prompt, net.all_masked(prompt.shape[0], prompt.device)), rules, spacing_m
    )


def prefill_goal_from_output(
    net: TokenNet, out: PackedOutput, rules: GoalRules, spacing_m: Tensor | None = None
) -> PrefilledSequences:
    """`prefill_goal` from the outputs of the fully masked sequence on."""
    layout, device = net.config.layout, out.hidden.device
    (x_low, _), (y_low, y_high) = layout.id_ranges[:2]
    y_ids = torch.arange(y_low, y_high + 1, device=device)
    x_bin_m, y_bin_m = (axis.bin for axis in layout.axes[:2])
    x_logits = net.goal_x_logits(out)
    indices = ops.likely_x_indices(x_logits)
    x_log_probs, x_ids = x_logits.log_softmax(-1).gather(-1, indices), x_low + indices
    cells, log_probs, valid = ops.choose_goals(
        x_log_probs, net.goal_y_logits(out, x_ids), x_bin_m * x_ids, y_bin_m * y_ids, rules.for_search, spacing_m
    )
    goals = torch.stack([x_ids.gather(-1, cells[..., 0]), y_low + cells[..., 1]], -1)
    actions = ops.goal_sequences(goals, layout)
    goal_value = net.goal_value(net.hidden(actions, out.keys_values))
    order, log_probs, valid = ops.reweight_goals(log_probs, goal_value, valid, rules)
    actions = actions.gather(1, order[..., None].expand(-1, -1, layout.length))
    return PrefilledSequences(out.keys_values, actions, log_probs, valid)


def prefill_sequences(net: TokenNet, inputs: PromptInputs, rules: GoalRules) -> PrefilledSequences:
    """`prefill_goal` or, of a layout without a goal, one masked sequence."""
    if net.config.layout.goal:
        return prefill_goal(net, inputs, rules)
    return prefill_sequences_cached(net, prefill(net, inputs), inputs.route, rules)


def prefill_sequences_cached(
    net: TokenNet, keys_values: tuple[KeysValues, ...], route: Tensor, rules: GoalRules
) -> PrefilledSequences:
    """`prefill_sequences` from the KV cache of the prompts, and the route (B, points, 2)."""
    masked = net.all_masked(len(route), route.device)
    if net.config.layout.goal:
        return prefill_goal_from_output(net, net.forward_cached(masked, keys_values, route), rules)
    certain = torch.zeros(len(route), 1, device=route.device)
    return PrefilledSequences(keys_values, masked, certain, certain == 0.0)


def step(
    net: TokenNet,
    actions: Tensor,
    keys_values: tuple[KeysValues, ...],
    limit: Tensor | int,
    edit: Tensor | bool,
    rules: EditRules,
) -> tuple[Tensor, Tensor]:
    """One round on actions (B, M, T): draft up to `limit` masked tokens each or, where `edit`, replace tokens.

    Returns the actions and the probability of each of their tokens, 0 where it is still the mask.
    """
    return ops.update(actions, net.decode(actions, keys_values), net.config.layout, limit, edit, rules)


def refine(
    net: TokenNet, actions: Tensor, keys_values: tuple[KeysValues, ...], critique: Tensor | None = None
) -> RoundOutput:
    """Complete sequences (B, M, T) after one pass of the expert, which replaces every token that edits may replace.

    critique: (B, M, points, channels) of the plans, of a network that reads it. Raises ValueError without an expert.
    """
    ids, confidence = ops.replace_all(net.refine(actions, keys_values, critique), net.config.layout)
    editable = ops.editable_positions(net.config.layout, actions.device)
    return RoundOutput(torch.where(editable, ids, actions), confidence)


def sampled_step(
    net: TokenNet,
    actions: Tensor,
    keys_values: tuple[KeysValues, ...],
    limit: Tensor | int,
    temperature: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor]:
    """As `step` drafting, with tokens sampled at a temperature (B, M, 1) by uniform numbers `share` (B, M, T);
    sequences of temperature 0 take the most probable tokens."""
    logits, layout = net.decode(actions, keys_values), net.config.layout
    greedy = temperature == 0.0
    samples = ops.draw(logits, layout, torch.where(greedy, 1.0, temperature)[..., None], share)
    return ops.unmask(actions, logits, layout, limit, torch.where(greedy, ops.replace_all(logits, layout)[0], samples))


def rollout(
    logits: Callable[[Tensor], Tensor],
    actions: Tensor,
    layout: TokenLayout,
    rounds: Sequence[Round],
    rules: EditRules,
    sampling: Sampling | None = None,
) -> tuple[RoundOutput, ...]:
    """Run decoding rounds on action sequences (B, M, T); returns the output of each round.

    logits: (B, M, T, bins) of action sequences, called once a round; gradients pass through it where they are enabled.
    sampling: tokens are sampled from softmax(logits / temperature); which of them are written is decided by the
    probabilities without noise, as in a vehicle; None is greedy.
    """
    outputs = list[RoundOutput]()
    for limit, edit in rounds:
        scores = logits(actions)
        samples = None if sampling is None else _draw(scores, layout, sampling)
        actions, confidence = ops.update(actions, scores, layout, limit, edit, rules, samples)
        outputs.append(RoundOutput(actions, confidence))
    return tuple(outputs)


def _draw(scores: Tensor, layout: TokenLayout, sampling: Sampling) -> Tensor | None:
    """(B, M, T) ids sampled at the temperature; None at temperature 0."""
    if sampling.temperature == 0.0:
        return None
    share = torch.rand(scores.shape[:-1], generator=sampling.generator).to(scores.device)
    return ops.draw(scores.detach(), layout, sampling.temperature, share)


def full_step(
    net: TokenNet, inputs: PromptInputs, decoding: Decoding, critique: Callable[[Tensor], Tensor] | None = None
) -> Decoded:
    """Decide, draft, reflect: 1 + 3 + 3 passes. A layout without a goal is drafted from masks alone. A refinement
    expert, if there is one, has the last pass. critique: (B, K, points, channels) of drafts (B, K, T), of a network
    that reads it: they are edited in one pass."""
    layout, prefilled = net.config.layout, prefill_sequences(net, inputs, decoding.goals)
    rounds = rollout(
        lambda actions: net.decode(actions, prefilled.keys_values),
        prefilled.actions,
        layout,
        decoding.rounds(layout)[: decoding.draft_rounds if critique else None],
        decoding.edits,
    )
    if critique:
        plans = rounds[-1].actions
        rounds = (*rounds, refine(net, plans, prefilled.keys_values, critique(plans)))
    elif net.config.refine_layers:
        rounds = (*rounds, refine(net, rounds[-1].actions, prefilled.keys_values))
    return Decoded(rounds, prefilled.goal_log_probs, prefilled.valid)
