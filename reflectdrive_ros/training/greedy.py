"""Plans of a batch in training: greedy drafts, with the states before and after each round, and smooth variants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.domain import Array
from ..core.recipe_config import DriveFineConfig
from ..core.tokens import Round, TokenLayout, decoding_rounds
from ..model.layers import KeysValues
from ..model.token import ops, rollout
from ..model.token.net import TokenNet
from ..model.token.ops import EditRules, GoalRules
from ..planning.critique import VARIANT_MODES
from ..planning.plan_changes import change_actions, sample_offsets
from .losses import Batch, prompt_keys_values

ROUNDS = 3  # of drafts in training, as in a full frame


class GreedyPlans(NamedTuple):
    """Drafts of the car in B scenes: S rounds of a plan to each of G goals, the most probable first."""

    states: Tensor  # (B, S + 1, G, T) int64, before the first round and after each
    goals: Tensor  # (B, G, 2) int64 ids; (B, 0, 2) of a layout without a goal
    valid: Tensor  # (B, G) bool
    keys_values: tuple[KeysValues, ...]  # of the prompts

    @property
    def plans(self) -> Tensor:
        return self.states[:, -1]


def draft_rounds(layout: TokenLayout) -> tuple[Round, ...]:
    """Of a draft with a goal those of training, which may be more than the planner's setting `draft_rounds`; of one
    without a goal those that DriveFine drives with."""
    if not layout.goal:
        return decoding_rounds(layout.length, DriveFineConfig().draft_rounds, 0, "cosine")
    return decoding_rounds(len(layout.free), ROUNDS, 0)


@torch.no_grad()
def decode_greedily(
    net: TokenNet, batch: Batch, rules: GoalRules, goals: int, generator: torch.Generator | None = None
) -> GreedyPlans:
    """The drafts of a full frame to so many goals, in `draft_rounds`: to the most probable goals or, with a generator,
    to the most probable one and others at random."""
    layout, keys_values = net.config.layout, prompt_keys_values(net, batch)
    prefilled = rollout.prefill_sequences_cached(net, keys_values, batch.route, rules)
    first, valid = prefilled.actions, prefilled.valid
    if generator is not None:
        noise = torch.rand(valid.shape, generator=generator).to(valid.device) + valid  # valid goals first
        noise[:, 0] = 3.0
        order = ops.top_indices(noise, min(goals, noise.shape[1]))
        first, valid = first.gather(1, order[..., None].expand(-1, -1, layout.length)), valid.gather(1, order)
    first, valid = first[:, :goals], valid[:, :goals]
    outputs = rollout.rollout(
        lambda actions: net.decode(actions, keys_values), first, layout, draft_rounds(layout), EditRules()
    )
    states = torch.stack([first, *(each.actions for each in outputs)], 1)
    return GreedyPlans(states, first[..., list(layout.goal)], valid, keys_values)


def variants(plans: Array, pairs: int, layout: TokenLayout, rng: np.random.Generator) -> Array:
    """(B, 2 pairs, T) smooth variants of plans (B, T), in opposite pairs."""
    offsets = sample_offsets(len(plans), pairs, layout.points, rng, VARIANT_MODES)
    return np.concatenate([change_actions(plans, each, layout) for each in (offsets, offsets.opposite)], axis=1)
