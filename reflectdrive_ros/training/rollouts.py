"""Sampled rollouts of a token planner: decided goals, drafts, edits, with every state.

Goals are sampled without replacement from the decision that the car makes: the probabilities of the candidates, after
the goal values. Tokens are sampled in every draft and edit round; which of them are written is decided as in the car.
With credit for edits alone, drafts are of the most probable tokens: the rollouts of a goal then differ by edits only.

To each goal there is also the rollout of the most probable tokens, as in the car. The reward of the decision is that of
this plan, because sampling noise costs fast plans more than slow ones.

A layout without a goal (DriveFine) has one group of rollouts, drafted from masks in rounds of the cosine schedule,
and no edits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.recipe_config import DriveFineConfig
from ..core.tokens import Round, TokenLayout, decoding_rounds
from ..model.layers import KeysValues
from ..model.token import ops, rollout
from ..model.token.net import PromptInputs, TokenNet
from ..model.token.ops import EditRules, GoalRules
from ..model.token.rollout import RoundOutput, Sampling
from .settings import RlConfig

DRAFT_ROUNDS, EDIT_ROUNDS = 3, 3  # as in a full frame


class Rollouts(NamedTuple):
    """M = G * D rollouts of each of B scenes, D of each goal, in the order of the goals."""

    states: Tensor  # (B, S + 1, M, T) int64: before the first round and after each of S rounds
    goals: Tensor  # (B, G, 2) int64 ids
    valid: Tensor  # (B, G) bool; a goal that is not valid repeats another and is no choice of the decision
    log_probs: Tensor  # (B, S, M, T) float32 of the tokens as they were sampled, 0 of a mask
    greedy_plans: Tensor  # (B, G, T) int64, of the most probable tokens

    @property
    def plans(self) -> Tensor:
        return self.states[:, -1]

    @property
    def drafts_per_goal(self) -> int:
        return self.states.shape[2] // self.goals.shape[1]


def rounds_of(layout: TokenLayout) -> tuple[Round, ...]:
    """The rounds of a full frame."""
    if not layout.goal:
        return decoding_rounds(layout.length, DriveFineConfig().draft_rounds, 0, "cosine")
    return decoding_rounds(len(layout.free), DRAFT_ROUNDS, EDIT_ROUNDS)


def draft_rounds_of(layout: TokenLayout) -> int:
    """Number of draft rounds among `rounds_of`."""
    return sum(not each.edit for each in rounds_of(layout))


@torch.no_grad()
def sample(
    net: TokenNet,
    inputs: PromptInputs,
    rules: GoalRules,
    config: RlConfig,
    generator: torch.Generator,
    keys_values: tuple[KeysValues, ...] = (),
) -> Rollouts:
    """Rollouts of the scenes of `inputs`.

    generator: on the CPU, so that every device draws the same numbers. keys_values: of cached prompts; images, text
    and ego are not read then.
    """
    layout, sampling = net.config.layout, Sampling(config.temperature, generator)
    if keys_values:
        prefilled = rollout.prefill_sequences_cached(net, keys_values, inputs.route, rules)
    else:
        prefilled = rollout.prefill_sequences(net, inputs, rules)
    chosen, valid = _sample_goals(prefilled.goal_log_probs, prefilled.valid, config.goals, sampling)
    first = prefilled.actions.gather(1, chosen[..., None].expand(-1, -1, layout.length))  # (B, G, T)
    starts, first_logits = first.repeat_interleave(config.drafts, 1), net.decode(first, prefilled.keys_values)

    def logits(actions: Tensor) -> Tensor:
        """Before the first round the rollouts of a goal are equal."""
        if actions is first:
            return first_logits
        if actions is starts:
            return first_logits.repeat_interleave(config.drafts, 1)
        return net.decode(actions, prefilled.keys_values)

    rounds, drafts = rounds_of(layout), draft_rounds_of(layout)
    greedy = rollout.rollout(logits, first, layout, rounds, EditRules(), log_probs=True)
    if config.credit == "edits":  # edits of the plan that the car drafts: their rewards differ by edits alone
        drafted = tuple(_repeat(output, config.drafts) for output in greedy[:drafts])
    else:
        drafted = rollout.rollout(logits, starts, layout, rounds[:drafts], EditRules(), sampling, log_probs=True)
    edited = rollout.rollout(
        logits, drafted[-1].actions, layout, rounds[drafts:], EditRules(), sampling, log_probs=True
    )
    outputs = (*drafted, *edited)
    log_probs = [output.log_probs for output in outputs if output.log_probs is not None]
    return Rollouts(
        torch.stack([starts, *(output.actions for output in outputs)], 1),
        first[..., list(layout.goal)],
        valid,
        torch.stack(log_probs, 1),
        greedy[-1].actions,
    )


def _repeat(output: RoundOutput, count: int) -> RoundOutput:
    """The output of a round with each of its sequences `count` times."""
    actions, confidence, log_probs = (None if each is None else each.repeat_interleave(count, 1) for each in output)
    assert actions is not None
    assert confidence is not None
    return RoundOutput(actions, confidence, log_probs)


def _sample_goals(log_probs: Tensor, valid: Tensor, count: int, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """(B, count) different indices of goals (B, K), sampled one after the other, and which are valid: (B, count)
    bool."""
    noise = torch.rand(log_probs.shape, generator=sampling.generator).to(log_probs.device)
    gumbel = -torch.log(-torch.log(noise.clamp(1e-9, 1.0 - 1e-7)))
    keys = torch.where(valid, log_probs / sampling.temperature + gumbel, ops.EXCLUDED)
    chosen = ops.top_indices(keys, count)
    real = valid.gather(1, chosen)
    return torch.where(real, chosen, chosen[:, :1]), real


def written(states: Tensor, mask_id: int) -> Tensor:
    """(B, S, M, T) bool, tokens that a round wrote or replaced, of states (B, S + 1, M, T)."""
    return (states[:, 1:] != states[:, :-1]) & (states[:, 1:] != mask_id)
