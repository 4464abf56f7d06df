"""A planning step in calls: `prefill_goal` encodes the scene and decides goals, `prefill` encodes it, `step` drafts or
edits.

    full frame: prefill_goal, then step 3 times drafting (5, 5 and 4 tokens) and 3 times editing
    lite frame: prefill, then step once drafting (what is masked) and once editing, on the last plan's tokens

The goal pass is part of the prefill: a fully masked sequence is packed with the prompt. A lite frame has its goal and
leaves that out. Nothing is copied per goal and there is no host synchronisation, so that calls can be queued, dropped
at a deadline, exported and captured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..layers import KeysValues
from . import ops
from .net import ACTION_TOKENS, GOAL_X, TokenNet
from .ops import EditRules, GoalRules


@dataclass(frozen=True)
class Decoding:
    """How a full frame is decoded; the paper's numbers."""

    goals: GoalRules = field(default_factory=GoalRules)
    edits: EditRules = field(default_factory=EditRules)
    draft_rounds: int = 3
    edit_rounds: int = 3


class Prefilled(NamedTuple):
    """What is known of a scene before the first draft."""

    keys_values: tuple[KeysValues, ...]  # of the prompt, per layer
    actions: Tensor  # (B, K, 16) ids: each goal, the rest masked
    goal_log_probs: Tensor  # (B, K)
    valid: Tensor  # (B, K) bool; a slot that is not real repeats the first goal


class Decoded(NamedTuple):
    actions: Tensor  # (B, M, 16) ids, no mask left
    confidence: Tensor  # (B, M, 16) probability of each token in its last evaluation
    goal_log_probs: Tensor  # (B, K)
    valid: Tensor  # (B, K) bool


def prefill_goal(
    net: TokenNet, images: Tensor, text: Tensor, ego: Tensor, route: Tensor, rules: GoalRules
) -> Prefilled:
    """Keys and values of the prompt, and the goals it suggests."""
    return prefill_goal_from_prompt(net, net.prompt(images, text, ego, route), rules)


def prefill(net: TokenNet, images: Tensor, text: Tensor, ego: Tensor, route: Tensor) -> tuple[KeysValues, ...]:
    """The KV cache of the prompt, equal to that of `prefill_goal`."""
    return net.encode(net.prompt(images, text, ego, route))


def prefill_goal_from_prompt(net: TokenNet, prompt: Tensor, rules: GoalRules) -> Prefilled:
    """`prefill_goal` from the prompt (B, P, width) on.

    Goals are searched where their x is probable (`ops.likely_x_indices`): y is evaluated only there. The goals found
    get a goal value each, and are reweighted by it.
    """
    config, scenes, device = net.config, prompt.shape[0], prompt.device
    nothing = torch.full((scenes, 1, ACTION_TOKENS), config.mask_id, device=device)
    out = net.forward_from_prompt(prompt, nothing)
    (x_low, _), (y_low, y_high) = config.id_ranges
    y_ids = torch.arange(y_low, y_high + 1, device=device)
    x_logits = net.goal_x_logits(out)
    places = ops.likely_x_indices(x_logits)
    x_log_probs, x_ids = x_logits.log_softmax(-1).gather(-1, places), x_low + places
    cells, log_probs, valid = ops.choose_goals(
        x_log_probs, net.goal_y_logits(out, x_ids), config.bin_m * x_ids, config.bin_m * y_ids, rules.for_search
    )
    goals = torch.stack([x_ids.gather(-1, cells[..., 0]), y_low + cells[..., 1]], -1)
    actions = torch.cat([nothing[..., :GOAL_X].expand(-1, goals.shape[1], -1), goals], -1)
    goal_value = net.goal_value(net.hidden(actions, out.keys_values))
    order, log_probs, valid = ops.reweight_goals(log_probs, goal_value, valid, rules)
    actions = actions.gather(1, order[..., None].expand(-1, -1, ACTION_TOKENS))
    return Prefilled(out.keys_values, actions, log_probs, valid)


def step(
    net: TokenNet,
    actions: Tensor,
    keys_values: tuple[KeysValues, ...],
    limit: Tensor | int,
    edit: Tensor | bool,
    rules: EditRules,
) -> tuple[Tensor, Tensor]:
    """One round on blocks (B, M, 16): draft up to `limit` masked tokens each or, where `edit`, replace tokens.

    Returns the blocks and the probability of each of their tokens, 0 where it is still the mask.
    """
    return ops.update(actions, net.decode(actions, keys_values), net.config.mask_id, limit, edit, rules)


def guided_step(
    net: TokenNet,
    actions: Tensor,
    keys_values: tuple[KeysValues, ...],
    unconditional: tuple[KeysValues, ...],
    limit: int,
    weight: float,
) -> tuple[Tensor, Tensor]:
    """As `step` drafting, with classifier-free guidance away from the prompt with an empty `text`; weight 0 is
    `step`.
    """
    logits, without = net.decode(actions, keys_values), net.decode(actions, unconditional)
    return ops.unmask(actions, logits + weight * (logits - without), net.config.mask_id, limit)


def full_step(net: TokenNet, images: Tensor, text: Tensor, ego: Tensor, route: Tensor, decoding: Decoding) -> Decoded:
    """Decide, draft, reflect: 1 + 3 + 3 passes."""
    known = prefill_goal(net, images, text, ego, route, decoding.goals)
    actions, confidence = known.actions, torch.zeros_like(known.actions, dtype=torch.float32)
    for limit in ops.schedule(GOAL_X, decoding.draft_rounds):
        actions, confidence = step(net, actions, known.keys_values, limit, False, decoding.edits)
    for _ in range(decoding.edit_rounds):
        actions, confidence = step(net, actions, known.keys_values, 0, True, decoding.edits)
    return Decoded(actions, confidence, known.goal_log_probs, known.valid)


def lite_step(
    net: TokenNet, images: Tensor, text: Tensor, ego: Tensor, route: Tensor, actions: Tensor, decoding: Decoding
) -> tuple[Tensor, Tensor]:
    """The last plan's tokens, carried into the present and masked where they end, drafted once and edited once."""
    keys_values = prefill(net, images, text, ego, route)
    actions, _ = step(net, actions, keys_values, ACTION_TOKENS, False, decoding.edits)
    return step(net, actions, keys_values, 0, True, decoding.edits)
