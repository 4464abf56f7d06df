"""The loss of reinforcement learning: a clipped policy gradient on drafts, edits and the goal decision.

    L = L_tokens + decision L_decision + plan_value L_plan_value + kl L_kl + anchor L_supervised

L_tokens: every token that a draft or edit round wrote has the ratio r = p_new / p_old of its probability in the state
before the round, and the advantage of its rollout; -min(r A, clip(r) A) is summed over the tokens of a rollout and
averaged over rollouts (ReflectDrive-2, Eq. 2).

L_decision: the same for the probabilities of the sampled goals, p(x8) p(y8 | x8) exp(value) ** power, normalised over
them and weighted by p_old, which makes it the exact gradient of the expected reward of a choice among them.

L_plan_value: cross-entropy of the predicted score of each finished plan with its reward, plus 1 minus the expected
reward of a choice among the plans by their predictions.

L_kl: the k3 estimate of the divergence from the initial network, over written tokens. L_supervised: the losses of
`losses` on the expert's plan.

Old and new log-probabilities come from one function: with one update per batch every ratio is exactly 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.tokens import TokenLayout
from ..model.layers import KeysValues
from ..model.token import ops
from ..model.token.net import PackedOutput, TokenNet
from ..model.token.ops import GoalRules
from .losses import Batch, Losses, plan_value_loss
from .rollouts import Rollouts, draft_rounds_of, written
from .settings import LossConfig, RlConfig

RATIO_CLIP = 0.2  # the ratio of probabilities is clipped to 1 - this .. 1 + this, as in PPO
SAME_REWARD = 1e-6  # rewards that differ by less are equal
METRICS = ("policy", "decision", "plan_value", "kl", "anchor", "entropy", "clipped")


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class PolicyBatch:
    """Of G * D rollouts of each of B scenes: the decision among the goals, and M rollouts with their advantages."""

    goals: Tensor  # (B, G, 2) int64
    valid: Tensor  # (B, G) bool
    goal_reward: Tensor  # (B, G) float32, reward of the greedy plan to each goal
    first: Tensor  # (B, G, T) int64, the state before the first round
    states: Tensor  # (B, S + 1, M, T) int64
    goal_of: Tensor  # (B, M) int64, the goal of each rollout
    finished: Tensor  # (B, V, T) int64, plans for the plan value: the greedy ones and those of the M rollouts
    finished_reward: Tensor  # (B, V) float32
    advantage: Tensor  # (B, M) float32 of the tokens of each rollout
    credited: Tensor  # (B, S, M, T) bool
    sampled: int  # G * D
    old: Tensor | None = None  # (B, S, M, T) float32 log-probabilities; None before the first update
    old_goals: Tensor | None = None  # (B, G)
    reference: Tensor | None = None  # (B, S, M, T) of the initial network


def advantages(reward: Tensor, goals: int) -> Tensor:
    """(B, M) rewards less their mean over the rollouts of the same goal.

    No division by the standard deviation. A group whose rewards are equal has advantage 0.
    """
    groups = torch.unflatten(reward, 1, (goals, -1))
    spread = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    return torch.where(spread > SAME_REWARD, groups - groups.mean(-1, keepdim=True), 0.0).flatten(1)


def credited_tokens(states: Tensor, layout: TokenLayout, config: RlConfig) -> Tensor:
    """(B, S, M, T) bool, tokens whose log-probability counts: those that were written in the rounds with credit."""
    rounds = credited_rounds(states.shape[1] - 1, layout, config).to(states.device)
    return written(states, layout.mask_id) & rounds[:, None, None]


def credited_rounds(rounds: int, layout: TokenLayout, config: RlConfig) -> Tensor:
    """(S,) bool, rounds that get credit."""
    drafts = torch.arange(rounds) < draft_rounds_of(layout)
    return {"rollout": torch.ones_like(drafts), "drafts": drafts, "edits": ~drafts}[config.credit]


def make_policy_batch(
    rollouts: Rollouts, reward: Tensor, greedy_reward: Tensor, layout: TokenLayout, config: RlConfig
) -> PolicyBatch:
    """`reward` (B, G * D) of the rollouts and `greedy_reward` (B, G) of the greedy plans; `config.kept` of the rollouts
    are trained, at most all.
    """
    goals, sampled = rollouts.goals.shape[1], reward.shape[1]
    advantage = advantages(reward, goals)
    selected = ops.top_indices(advantage.abs(), min(config.kept, sampled))  # (B, M)
    states = rollouts.states.gather(
        2, selected[:, None, :, None].expand(-1, rollouts.states.shape[1], -1, layout.length)
    )
    return PolicyBatch(
        goals=rollouts.goals,
        valid=rollouts.valid,
        goal_reward=greedy_reward,
        first=rollouts.states[:, 0, :: rollouts.drafts_per_goal],
        states=states,
        goal_of=selected // rollouts.drafts_per_goal,
        finished=torch.cat([rollouts.greedy_plans, states[:, -1]], 1),
        finished_reward=torch.cat([greedy_reward, reward.gather(1, selected)], 1),
        advantage=advantage.gather(1, selected),
        credited=credited_tokens(states, layout, config),
        sampled=sampled,
    )


class RlLosses(Losses):
    """The network with the policy loss and the supervised losses of its anchor."""

    def __init__(
        self,
        net: TokenNet,
        weights: LossConfig,
        config: RlConfig,
        rules: GoalRules,
        generator: torch.Generator,
        trained: str = "all",
    ) -> None:
        super().__init__(net, weights, generator, trained)
        self.config, self.rules = config, rules

    def forward(self, batch: Batch, policy: PolicyBatch) -> dict[str, Tensor]:  # type: ignore[override]
        """Scalars `loss` and METRICS, and the new log-probabilities: `log_probs` (B, S, M, T) and `goal_log_probs`
        (B, G).
        """
        config = self.config
        supervised, out = self.supervised(batch)
        hidden = hidden_states(self.net, out.keys_values, policy, plans=config.plan_value > 0.0)
        goal_hidden, plan_hidden = hidden.goals, hidden.plans
        log_probs = token_log_probs(self.net, hidden.rounds, policy, config.temperature)
        if self.net.config.layout.goal:
            goal_log_probs = self._decision(out, goal_hidden, policy)
        else:  # one group, which is no choice
            goal_log_probs = log_probs.new_zeros(policy.valid.shape)
        old = log_probs.detach() if policy.old is None else policy.old
        old_goals = goal_log_probs.detach() if policy.old_goals is None else policy.old_goals

        ratio = (log_probs - old).exp()
        gain = clipped_gain(ratio, policy.advantage[:, None, :, None], RATIO_CLIP)
        losses = {"policy": -(gain * policy.credited).sum() / (len(gain) * policy.sampled)}

        weight = old_goals.exp() * policy.valid
        goal_advantage = policy.goal_reward - (weight * policy.goal_reward).sum(-1, keepdim=True)
        goal_gain = clipped_gain((goal_log_probs - old_goals).exp(), goal_advantage, RATIO_CLIP)
        losses["decision"] = -(weight * goal_gain).sum(-1).mean()

        losses["plan_value"] = log_probs.new_zeros(())
        if config.plan_value:
            losses["plan_value"] = plan_value_loss(self.net.plan_value(plan_hidden), policy.finished_reward)

        credited = policy.credited.sum().clamp(min=1)
        losses["kl"] = log_probs.new_zeros(())
        if policy.reference is not None:
            less = policy.reference - log_probs
            losses["kl"] = ((less.exp() - less - 1.0) * policy.credited).sum() / credited
        losses["anchor"] = supervised["loss"]
        total = (
            losses["policy"]
            + config.decision * losses["decision"]
            + config.plan_value * losses["plan_value"]
            + config.kl * losses["kl"]
            + config.anchor * losses["anchor"]
        )
        losses["entropy"] = -(old * policy.credited).sum() / credited
        outside = ((ratio - 1.0).abs() > RATIO_CLIP) & policy.credited
        losses["clipped"] = outside.sum() / credited
        return {
            "loss": total,
            **{name: value.detach().float() for name, value in losses.items()},
            "log_probs": log_probs.detach(),
            "goal_log_probs": goal_log_probs.detach(),
        }

    def _decision(self, out: PackedOutput, goal_hidden: Tensor, policy: PolicyBatch) -> Tensor:
        """(B, G) log-probabilities of the sampled goals, normalised over them."""
        value = self.net.goal_value(goal_hidden)
        weights = self.goal_log_probs(out, policy.goals) + self.rules.value_power * value
        return torch.where(policy.valid, weights / self.config.temperature, ops.EXCLUDED).log_softmax(-1)


class HiddenStates(NamedTuple):
    """Inputs of the heads for the states of rollouts."""

    goals: Tensor  # (B, G, T, width) of the goals alone
    rounds: Tensor  # (B, S, M, T, width) of the state before each round
    plans: Tensor  # (B, V or 0, T, width) of the finished plans


def hidden_states(
    net: TokenNet, keys_values: tuple[KeysValues, ...], policy: PolicyBatch, plans: bool = False
) -> HiddenStates:
    """One pass: the prompt is encoded once, all states are sequences behind it.

    Before the first round the rollouts of a goal are equal, so they are one sequence.
    """
    states, goals = policy.states, policy.goals.shape[1]
    rounds, count = states.shape[1] - 1, states.shape[2]
    sequences = [policy.first, states[:, 1:rounds].flatten(1, 2), *[policy.finished] * plans]
    hidden = net.hidden(torch.cat(sequences, 1), keys_values)
    end = goals + (rounds - 1) * count
    goal_hidden, later = hidden[:, :goals], torch.unflatten(hidden[:, goals:end], 1, (rounds - 1, count))
    before_first = goal_hidden.gather(1, policy.goal_of[..., None, None].expand(-1, -1, *hidden.shape[2:]))
    return HiddenStates(goal_hidden, torch.cat([before_first[:, None], later], 1), hidden[:, end:])


def token_log_probs(net: TokenNet, hidden: Tensor, policy: PolicyBatch, temperature: float) -> Tensor:
    """Log-probabilities (B, S, M, T) float32 of the credited tokens, each under the state before it, 0 elsewhere.

    hidden: `HiddenStates.rounds`. The heads are evaluated at the credited tokens only.
    """
    states, credited = policy.states, policy.credited
    log_probs = hidden.new_zeros(credited.shape, dtype=torch.float32)
    layout, axes = net.config.layout, len(net.config.layout.axes)
    for k, (axis, (low, high)) in enumerate(zip(layout.axes, layout.id_ranges, strict=True)):
        here = credited[..., k::axes]
        head = getattr(net, f"{axis.name}_head")
        logits = head.logits(hidden[..., k::axes, :][here], low, high).float() / temperature
        ids = states[:, 1:, :, k::axes][here] - low
        chosen = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
        log_probs[..., k::axes] = log_probs[..., k::axes].masked_scatter(here, chosen)
    return log_probs


def clipped_gain(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The lesser of ratio * advantage and the same with the ratio clipped to 1 - clip .. 1 + clip (PPO)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
