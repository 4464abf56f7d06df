"""Training by reward: drafts, edits and goals by the expected score of a choice among plans.

Imitation shows one plan per scene, and a sampled token changes one waypoint by itself. Here the plan that the car would
drive is decoded greedily, before and after its edits, and smooth variants of both (`plan_changes`) are scored in the
recorded future. With the K plans x_k of a scene and their scores r_k the loss of a distribution q over plans is

    L = 1 - sum_k p_k r_k,    p_k = q(x_k)^(1 / t) / sum_j q(x_j)^(1 / t)

one minus the expected score of a choice among them, with an exact gradient. The temperature t gives log q the same
standard deviation (SPREAD) in every scene, so that a network that is sure keeps learning from its other plans. The plan
itself is among the K, so that leaving it as it is is an answer. Of the draft, log q sums the log-probabilities of the
goal, in the fully masked sequence, and of the tokens that each round wrote, in the states of the greedy draft. Of an
edit it sums those of all tokens that edits may replace, given the complete draft and, of a network that reads one, its
critique. Both train the whole network.

The decision among goals has the exact gradient of the expected reward of a choice among them, each with its finished
plan. The supervised losses of the expert's plan are an anchor. A layout without a goal has no decision and no edits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..model.layers import KeysValues
from ..model.token import ops
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from ..planning.critique import VARIANT_MODES, variants_of
from ..planning.plan_changes import change_actions, sample_offsets
from . import trainer
from .greedy import GreedyPlans, decode_greedily, draft_rounds_of
from .losses import Batch, Losses, expected_goal_loss
from .rewards import COLUMNS as REWARDS
from .rewards import RewardPool
from .settings import LossConfig, RlConfig, RlTrainConfig
from .token_job import TokenJob
from .train_state import Progress
from .trainer import Clock, Reporter, Trainer

SPREAD = 2.0  # standard deviation of log q among the plans of a scene, in the choice among them
METRICS = ("draft", "edit", "decision", "anchor")
PANEL = (*(f"reward_{name}" for name in REWARDS), "drafted", "best", "edits_per_plan")
COLUMNS = ("loss", *METRICS, *PANEL, "norm")  # of the log


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class ScoredPlans:
    """The decoding of B scenes, and plans of them with their scores."""

    goals: Tensor  # (B, G, 2) int64
    valid: Tensor  # (B, G) bool
    goal_reward: Tensor  # (B, G) float32, score of the finished plan to each goal
    states: Tensor  # (B, D + 1, T) int64 of the most probable goal's plan, before each draft round and after the last
    critique: Tensor  # (B, 1, points, channels) of the last of the states; no channels for a network without critique
    plans: Tensor  # (B, K, T) int64
    score: Tensor  # (B, K) float32, 0 to 1
    keys_values: tuple[KeysValues, ...] = ()  # of the prompts, for an expert

    @property
    def distinct(self) -> Tensor:
        """(B, K) bool, plans that differ from all earlier ones of their scene."""
        same = (self.plans[:, :, None] == self.plans[:, None]).all(-1)  # (B, K, K)
        return ~same.tril(-1).any(-1)


def train(
    job: TokenJob,
    fabric: Fabric,
    reporter: Reporter,
    rewards: RewardPool,
    stop: Callable[[], bool],
    clock: Clock = time.monotonic,
) -> Progress:
    """As `sft.train`, by reward. `job.config` is an RlTrainConfig, `job.init_from` the network to begin with."""
    config = job.config
    assert isinstance(config, RlTrainConfig)
    rules = job.decoding.goals.for_search

    def make_losses(net: TokenNet, generator: torch.Generator) -> Losses:
        return ScoreLosses(net, config.loss, config.rl, rules, generator, config.optimizer.trained)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)
    return loop.run(progress, _Steps(loop, config, rewards, rules), COLUMNS, stop, clock)


class ScoreLosses(Losses):
    """The network with the loss of expected scores, and the supervised losses of its anchor."""

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
        if config.expert_layers:
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(name.startswith(("refiner.", "critique_")))

    def forward(self, batch: Batch, scored: ScoredPlans) -> dict[str, Tensor]:  # type: ignore[override]
        """Scalars `loss` and METRICS."""
        config, net, layout = self.config, self.net, self.net.config.layout
        if config.expert_layers:
            return self._of_expert(scored)
        goal_states = ops.goal_sequences(scored.goals, layout) if layout.goal else batch.actions[:, :0]
        sequences = torch.cat([batch.actions, scored.states, goal_states], 1)
        first, drafts = batch.actions.shape[1], scored.states.shape[1]
        out = self.outputs(batch, sequences, _of_sequences(scored.critique, first + drafts - 1, sequences))
        supervised = self.supervised_losses(batch, out.first(first))

        log_probs = out.logits[:, first : first + drafts].log_softmax(-1)
        written = scored.states[:, 1:] != scored.states[:, :-1]
        of_draft = plan_log_probs(log_probs[:, :-1], scored.plans, written)
        losses = dict.fromkeys(METRICS, of_draft.new_zeros(()))
        if layout.goal:
            of_draft = of_draft + self.goal_log_probs(out, scored.plans[..., list(layout.goal)])
            losses["edit"] = self._edit_loss(log_probs[:, -1:], scored)
            value = net.goal_value(out.hidden[:, first + drafts :])
            choice = self.goal_log_probs(out, scored.goals) + self.rules.value_power * value
            choice = torch.where(scored.valid, choice, ops.EXCLUDED)
            losses["decision"] = expected_goal_loss(choice, scored.goal_reward)
        losses["draft"] = expected_goal_loss(standardised(of_draft, scored.distinct), scored.score)
        losses["anchor"] = supervised["loss"]
        total = (
            losses["draft"] + losses["edit"] + config.decision * losses["decision"] + config.anchor * losses["anchor"]
        )
        return {"loss": total, **{name: each.detach().float() for name, each in losses.items()}}

    def _of_expert(self, scored: ScoredPlans) -> dict[str, Tensor]:
        """As `forward`, of the expert alone: no other parameter is trained."""
        logits = self.net.refine(scored.states[:, -1:], scored.keys_values, scored.critique)
        loss = self._edit_loss(logits.log_softmax(-1), scored)
        return {"loss": loss, **dict.fromkeys(METRICS, loss.new_zeros(())), "edit": loss.detach().float()}

    def _edit_loss(self, log_probs: Tensor, scored: ScoredPlans) -> Tensor:
        """Of an edit with log-probabilities (B, 1, T, bins) of the tokens, given the complete draft."""
        editable = ops.editable_positions(self.net.config.layout, log_probs.device).expand(len(log_probs), 1, -1)
        of_edit = plan_log_probs(log_probs, scored.plans, editable)
        return expected_goal_loss(standardised(of_edit, scored.distinct), scored.score)


def standardised(log_probs: Tensor, distinct: Tensor) -> Tensor:
    """Logits (B, K) of a choice among distinct plans: log-probabilities (B, K) at the temperature that gives them the
    standard deviation SPREAD. A network that is sure would choose the most probable plan alone, which has no gradient;
    one that is only made surer gains nothing."""
    count = distinct.sum(-1, keepdim=True)
    mean = (distinct * log_probs).sum(-1, keepdim=True) / count
    deviation = ((distinct * (log_probs - mean).square()).sum(-1, keepdim=True) / count).clamp(min=1e-6).sqrt()
    return torch.where(distinct, SPREAD * (log_probs - mean) / deviation.clamp(min=SPREAD), ops.EXCLUDED)


def plan_log_probs(log_probs: Tensor, plans: Tensor, counted: Tensor) -> Tensor:
    """(B, K) sums over S states of the log-probabilities of the tokens of plans (B, K, T) that count there, `counted`
    (B, S, T) bool; log_probs (B, S, T, bins)."""
    total = log_probs.new_zeros(plans.shape[:2])
    for state in range(log_probs.shape[1]):
        of_tokens = log_probs[:, state].gather(-1, plans.transpose(1, 2))  # (B, T, K)
        total = total + (of_tokens * counted[:, state, :, None]).sum(1)
    return total


def _of_sequences(critique: Tensor, index: int, sequences: Tensor) -> Tensor | None:
    """(B, R, points, channels) critiques of sequences (B, R, T): `critique` (B, 1, ..) of one of them, else 0."""
    if not critique.shape[-1]:
        return None
    after = sequences.shape[1] - index - 1
    return torch.nn.functional.pad(critique, (0, 0, 0, 0, index, after))


@dataclass(eq=False)
class _Steps:
    loop: Trainer
    config: RlTrainConfig
    rewards: RewardPool
    rules: GoalRules

    def __call__(self, batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        loop, layout = self.loop, self.loop.net.config.layout
        rng = np.random.default_rng([self.config.seed, 6, step, loop.fabric.global_rank])
        with loop.fabric.autocast():
            critic = partial(_critiques, self.rewards, batch) if loop.net.config.critique else None
            generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
            greedy: GreedyPlans = loop.losses.run_unsharded(
                lambda net: decode_greedily(net, batch, self.rules, self.config.rl.goals, critic, generator)
            )
        scored, panel = self._score(batch, greedy, layout, rng)
        losses = loop.model(batch, scored)
        norm = loop.update(losses, batch, step, {"states": scored.states})
        values = [losses[name].detach().float() for name in ("loss", *METRICS)]
        return torch.stack([*values, *panel, norm])

    def _score(
        self, batch: Batch, greedy: GreedyPlans, layout: TokenLayout, rng: np.random.Generator
    ) -> tuple[ScoredPlans, list[Tensor]]:
        """The plans with their scores, and PANEL of the step in percent."""
        drafts, device = draft_rounds_of(layout), batch.ego.device
        first = greedy.states[:, :, 0].cpu().numpy()
        finished = greedy.plans.cpu().numpy()
        around = [first[:, drafts], first[:, -1]]
        pairs = self.config.rl.variants // len(around)
        parts = [finished, around[0][:, None], *(_variants(each, pairs, layout, rng) for each in around)]
        if self.loop.net.config.critique:
            parts.append(variants_of(around[0], layout))  # of which the critique tells the scores in the forecast
        plans = np.concatenate(parts, axis=1)
        rewards = torch.as_tensor(self.rewards.score(*batch.scenes, plans), device=device)
        goals = finished.shape[1]
        keep = [0, *range(goals, plans.shape[1])]  # the other goals' plans are far from the draft's states
        scored = ScoredPlans(
            goals=greedy.goals,
            valid=greedy.valid,
            goal_reward=rewards[:, :goals, 0],
            states=greedy.states[:, : drafts + 1, 0],
            critique=greedy.critique[:, :1],
            plans=torch.as_tensor(plans[:, keep], device=device).long(),
            score=rewards[:, keep, 0],
            keys_values=greedy.keys_values if self.config.rl.expert_layers else (),
        )
        edits = (first[:, drafts + 1 :] != first[:, drafts:-1]).sum((1, 2)).mean()
        panel = [
            *(100.0 * rewards[:, 0].mean(0)),
            100.0 * rewards[:, goals, 0].mean(),
            100.0 * rewards[..., 0].amax(1).mean(),
            torch.tensor(float(edits), device=device),
        ]
        return scored, panel


def _critiques(rewards: RewardPool, batch: Batch, drafts: Tensor) -> Tensor:
    """(B, G, points, channels) critiques of drafts (B, G, T); 0 in scenes whose map the network does not read."""
    values = torch.as_tensor(rewards.critique(*batch.scenes, drafts.cpu().numpy()), device=drafts.device)
    if batch.scene is None:
        return values
    return values * batch.scene.lanes.flatten(1).any(1)[:, None, None, None]


def _variants(plans: Array, pairs: int, layout: TokenLayout, rng: np.random.Generator) -> Array:
    """(B, 2 pairs, T) smooth variants of plans (B, T), in opposite pairs."""
    offsets = sample_offsets(len(plans), pairs, layout.points, rng, VARIANT_MODES)
    return np.concatenate([change_actions(plans, each, layout) for each in (offsets, offsets.opposite)], axis=1)
