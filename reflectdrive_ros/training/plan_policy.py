"""The policy gradient of whole plans: pairs of smooth changes around the plan that the car would drive.

Sampled tokens (`rollouts`) change every waypoint by itself: nearly every sample is worse than the greedy plan, and the
effect of one token is hidden by fifteen others. Here a plan x of the most probable tokens is changed as a whole, by
Gaussian changes d that keep it smooth (`plan_changes`), to x + d and to x - d, and both are scored:

    g = 1/K sum_k (r(x + d_k) - r(x - d_k)) / 2 * d_k

g estimates the gradient of the expected reward with respect to the plan, times the covariance of the changes
(antithetic REINFORCE; Salimans et al., Evolution Strategies, 2017). Let p_t be the distribution of token t in a state
of the decoding, before a draft round or before an edit round. The loss

    L = - sum_t sum_b v_t(b) log p_t(b),    v_t = s g_t (p_t(b - n) - p_t(b + n)) / 2, without a gradient

moves all of p_t, and with it the most probable token, along g by a fraction of n bins (STEP_M). It is linear in g:
what cancels out in the mean over scenes leaves no trace. (The mean of p_t as a loss moves probability to far bins,
which have the longest lever; the log-probabilities of the sampled plans grow without end.)

The decision among goals gets the exact gradient of the expected reward of a choice among them, each with its finished
plan, and the plan value learns to predict the rewards of these plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..model.token import ops, rollout
from ..model.token.net import PackedOutput, TokenNet
from ..model.token.ops import EditRules, GoalRules
from ..planning.plan_changes import PlanModes, change_actions, sample_offsets
from .losses import Batch, Losses, plan_value_loss, prompt_keys_values
from .rl_losses import credited_rounds
from .rollouts import draft_rounds_of, rounds_of
from .settings import LossConfig, PlanRewardConfig, RlConfig

RL_MODES = PlanModes(pace_m=1.0, delay_m=0.5, offset_m=0.3, bulge_m=0.2)
LEAST_LOG_PROB = -30.0  # a translated bin that the layout does not reach has no more loss than this
STEP_M, STEP_RAD = 0.3, 0.01  # unit of the moves of distributions: a bin of coarse tokens, several of fine ones
METRICS = ("policy", "shift", "decision", "plan_value", "kl", "anchor", "entropy")


class GreedyPlans(NamedTuple):
    """What the car decodes in B scenes: S intermediate states of a plan for each of G goals, the most probable
    first."""

    states: Tensor  # (B, S + 1, G, T) int64, before the first round and after each
    goals: Tensor  # (B, G, 2) int64 ids; (B, 0, 2) of a layout without a goal
    valid: Tensor  # (B, G) bool

    @property
    def plans(self) -> Tensor:
        return self.states[:, -1]


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class PlanBatch:
    """The decoding of B scenes with its rewards."""

    goals: Tensor  # (B, G, 2) int64
    valid: Tensor  # (B, G) bool
    goal_reward: Tensor  # (B, G) float32, reward of the finished plan to each goal
    finished: Tensor  # (B, G, T) int64
    states: Tensor  # (B, S, T) int64, states of the most probable goal's plan before the rounds with credit
    gradient: Tensor  # (B, S, T) float32 g of each state in steps, 0 of tokens without credit
    reference: Tensor | None = None  # (B, S, T, bins) log-probabilities of the states by the initial network


@torch.no_grad()
def decode_greedily(
    net: TokenNet,
    batch: Batch,
    rules: GoalRules,
    config: RlConfig,
    critique: Callable[[Tensor], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> GreedyPlans:
    """The plans of a full frame to `config.goals` goals, as the car decodes them: the most probable goals or, with a
    generator, the most probable one and others at random.

    critique: (B, G, points, channels) of drafts (B, G, T), of a network that reads it: edited in one round.
    """
    layout, keys_values = net.config.layout, prompt_keys_values(net, batch, True)
    prefilled = rollout.prefill_sequences_cached(net, keys_values, batch.route, rules)
    first, valid = prefilled.actions, prefilled.valid
    if generator is not None:
        noise = torch.rand(valid.shape, generator=generator).to(valid.device) + valid  # valid goals first
        noise[:, 0] = 3.0
        order = ops.top_indices(noise, config.goals)
        first, valid = first.gather(1, order[..., None].expand(-1, -1, layout.length)), valid.gather(1, order)
    first, valid = first[:, : config.goals], valid[:, : config.goals]
    outputs = rollout.rollout(
        lambda actions: net.decode(actions, keys_values),
        first,
        layout,
        rounds_of(layout)[: draft_rounds_of(layout) if critique else None],
        EditRules(),
    )
    if critique:
        drafts = outputs[-1].actions
        outputs = (*outputs, rollout.edit(net, drafts, keys_values, critique(drafts)))
    states = torch.stack([first, *(each.actions for each in outputs)], 1)
    return GreedyPlans(states, first[..., list(layout.goal)], valid)


class ChangedPlans(NamedTuple):
    """2 K plans around each of B plans: K changed by offsets, then K by the opposite offsets."""

    center: Array  # (B, T) ids
    plans: Array  # (B, 2 K, T) ids


def change_plans(
    center: Array, layout: TokenLayout, rng: np.random.Generator, pairs: int, modes: PlanModes = RL_MODES
) -> ChangedPlans:
    """Pairs around plans with ids (B, T). Where edits keep the goal only detours to it are sampled."""
    offsets = sample_offsets(len(center), pairs, layout.points, rng, modes)
    goal_kept = bool(layout.goal) and not layout.edit_goal
    if goal_kept:
        offsets = offsets.vanishing_at(layout.goal[0] // len(layout.axes))
    changes = [change_actions(center, each, layout) for each in (offsets, offsets.opposite)]
    changed = np.concatenate(changes, axis=1)
    if goal_kept:
        changed[..., list(layout.goal)] = center[:, None, list(layout.goal)]
    return ChangedPlans(center, changed)


def steps_in_bins(layout: TokenLayout) -> tuple[int, ...]:
    """(A,) STEP_M or STEP_RAD in bins of each axis, at least one."""
    return tuple(max(round((STEP_RAD if axis.name == "heading" else STEP_M) / axis.bin), 1) for axis in layout.axes)


def reward_gradient(changed: ChangedPlans, reward: Tensor, layout: TokenLayout) -> Tensor:
    """(B, T) float32 g in steps of the tokens, by the rewards (B, 2 K) of the pairs."""
    values = np.asarray(changed.plans, float) / np.tile(steps_in_bins(layout), layout.points)
    count = values.shape[1] // 2
    change = torch.as_tensor(0.5 * (values[:, :count] - values[:, count:]), dtype=torch.float32, device=reward.device)
    half = 0.5 * (reward[:, :count] - reward[:, count:])
    gradient: Tensor = torch.einsum("bk,bkt->bt", half.float(), change) / count
    return gradient


def translation(probability: Tensor, steps: Tensor, layout: TokenLayout) -> Tensor:
    """Change of distributions (.., T, bins) that move by a small number of steps (.., T), to higher ids where it is
    positive.

    It is linear in the number of steps (central differences): moves that cancel out in the mean leave no trace.
    """
    of_axes = torch.unflatten(probability, -2, (layout.points, -1)).unbind(-2)
    slopes = [
        0.5 * (each.roll(bins, -1) - each.roll(-bins, -1))
        for each, bins in zip(of_axes, steps_in_bins(layout), strict=True)
    ]
    return steps[..., None] * torch.stack(slopes, -2).flatten(-3, -2)


class PlanLosses(Losses):
    """The network with the loss of whole plans, and the supervised losses of its anchor."""

    def __init__(
        self,
        net: TokenNet,
        weights: LossConfig,
        config: RlConfig,
        plans: PlanRewardConfig,
        rules: GoalRules,
        generator: torch.Generator,
        trained: str = "actions",
    ) -> None:
        super().__init__(net, weights, generator, trained)
        self.config, self.plan_weight, self.rules = config, plans.weight, rules

    def forward(self, batch: Batch, policy: PlanBatch) -> dict[str, Tensor]:  # type: ignore[override]
        """Scalars `loss` and METRICS."""
        config, layout, net = self.config, self.net.config.layout, self.net
        goal_states = ops.goal_sequences(policy.goals, layout) if layout.goal else policy.finished[:, :0]
        finished = policy.finished if config.plan_value else policy.finished[:, :0]
        parts = [batch.actions, policy.states, goal_states, finished]
        hidden, out = self._outputs(batch, parts)
        _, of_states, of_goals, of_plans = hidden
        supervised = self.supervised_losses(batch, out)

        logits = net.logits(of_states)  # (B, S, T, bins)
        log_probs = logits.log_softmax(-1)
        shift = (self.plan_weight * policy.gradient).clamp(-1.0, 1.0)
        change = translation(log_probs.detach().exp(), shift, layout)
        losses = {"policy": -(change * log_probs.clamp(min=LEAST_LOG_PROB)).sum(-1).mean(), "shift": shift.abs().mean()}
        losses["kl"] = log_probs.new_zeros(())
        if policy.reference is not None:
            losses["kl"] = (policy.reference.exp() * (policy.reference - log_probs)).sum(-1).mean()
        losses["entropy"] = -(log_probs.exp() * log_probs).sum(-1).mean()

        losses["decision"] = losses["plan_value"] = log_probs.new_zeros(())
        if layout.goal and config.decision:
            log_probs_of_goals, value = self.goal_log_probs(out, policy.goals), net.goal_value(of_goals)
            losses["decision"] = -expected_reward(
                log_probs_of_goals + self.rules.value_power * value, policy.valid, policy.goal_reward
            )
        if config.plan_value:
            losses["plan_value"] = plan_value_loss(net.plan_value(of_plans), policy.goal_reward)
        losses["anchor"] = supervised["loss"]
        total = (
            losses["policy"]
            + config.kl * losses["kl"]
            + config.decision * losses["decision"]
            + config.plan_value * losses["plan_value"]
            + config.anchor * losses["anchor"]
        )
        return {"loss": total, **{name: value.detach().float() for name, value in losses.items()}}

    def _outputs(self, batch: Batch, parts: list[Tensor]) -> tuple[list[Tensor], PackedOutput]:
        """The hidden states of each part of the sequences, and the outputs for the first part."""
        keys_values = prompt_keys_values(self.net, batch, self.fixed_prompt)
        hidden = self.net.hidden(torch.cat(parts, 1), keys_values)
        split = list(torch.split(hidden, [each.shape[1] for each in parts], 1))
        nothing = hidden.new_zeros(len(hidden), 0, hidden.shape[-1])
        route = self.net.route_tokens(batch.route)
        return split, PackedOutput(self.net.logits(split[0]), split[0], keys_values, nothing, route)


def expected_reward(chosen: Tensor, valid: Tensor, reward: Tensor) -> Tensor:
    """Mean over scenes of the expected reward (B, G) of a choice among the valid goals by logits `chosen` (B, G)."""
    chance = torch.where(valid, chosen, ops.EXCLUDED).softmax(-1)
    return (chance * reward).sum(-1).mean()


def credited_states(greedy: GreedyPlans, layout: TokenLayout, config: RlConfig) -> tuple[Tensor, Tensor]:
    """(B, S, T) states before the rounds with credit of the first goal's plan, and (B, S, T) bool, the tokens with
    credit: in a draft round those that it wrote, in an edit round all that it may replace."""
    states, drafts = greedy.states[:, :, 0], draft_rounds_of(layout)
    before, after = states[:, :-1], states[:, 1:]
    editable = ops.editable_positions(layout, states.device)
    credited = torch.cat([(before != after)[:, :drafts], editable.expand_as(before)[:, drafts:]], 1)
    rounds = credited_rounds(before.shape[1], layout, config).to(states.device)
    return before[:, rounds], credited[:, rounds]
