"""Reinforcement learning of whole plans: greedy decoding, pairs of changed plans, their rewards, an update.

One step decodes the plans of a batch as the car does, samples pairs of smooth changes around the most probable goal's
plan, scores all of them (`rewards`), and makes one step of the optimizer on the loss of `plan_policy`. With credit for
drafts the pairs are around the plan before its edits, with credit for edits around the finished one, with credit for
the rollout around both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..core.tokens import TokenLayout
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from . import plan_policy, trainer
from .losses import Batch, Losses, prompt_keys_values
from .plan_policy import ChangedPlans, GreedyPlans, PlanBatch, PlanLosses
from .rewards import COLUMNS as REWARDS
from .rewards import RewardPool
from .rl_losses import SAME_REWARD
from .rollouts import draft_rounds_of
from .settings import RlTrainConfig
from .token_job import TokenJob
from .train_state import Progress
from .trainer import Clock, Reporter, Trainer

PANEL = (*(f"reward_{name}" for name in REWARDS), "drafted", "best", "equal_share", "edits_per_plan")
COLUMNS = ("loss", *plan_policy.METRICS, *PANEL, "norm")  # of the log


def train(
    job: TokenJob,
    fabric: Fabric,
    reporter: Reporter,
    rewards: RewardPool,
    stop: Callable[[], bool],
    clock: Clock = time.monotonic,
) -> Progress:
    """As `rl.train`, with `rl.estimator: plans`."""
    config = job.config
    assert isinstance(config, RlTrainConfig)
    rules = job.decoding.goals.for_search

    def make_losses(net: TokenNet, generator: torch.Generator) -> Losses:
        return PlanLosses(net, config.loss, config.rl, config.plans, rules, generator, config.optimizer.trained)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)
    steps = _Steps(loop, config, rewards, rules, job.reference_network(config.rl.kl, fabric.device))
    return loop.run(progress, steps, COLUMNS, stop, clock)


@dataclass(eq=False)
class _Steps:
    loop: Trainer
    config: RlTrainConfig
    rewards: RewardPool
    rules: GoalRules
    reference: TokenNet | None  # the initial network

    def __call__(self, batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        loop, layout = self.loop, self.loop.net.config.layout
        rng = np.random.default_rng([self.config.seed, 6, step, loop.fabric.global_rank])
        greedy = self._decode(batch)
        changed = self._changed_plans(greedy, layout, rng)
        scores = self._score(batch, greedy, changed, layout)
        policy = self._policy(greedy, changed, scores, layout)
        policy.reference = self._reference_log_probs(batch, policy)
        losses = loop.model(batch, policy)
        scalars = {name: losses[name] for name in ("loss", *plan_policy.METRICS)}
        norm = loop.update(scalars, batch, step, {"states": greedy.states})
        values = [value.detach().float() for value in scalars.values()]
        return torch.stack([*values, *self._panel(greedy, scores, layout), norm])

    def _decode(self, batch: Batch) -> GreedyPlans:
        with self.loop.fabric.autocast():
            plans: GreedyPlans = self.loop.losses.run_unsharded(
                lambda net: plan_policy.decode_greedily(net, batch, self.rules, self.config.rl)
            )
        return plans

    def _changed_plans(
        self, greedy: GreedyPlans, layout: TokenLayout, rng: np.random.Generator
    ) -> dict[str, ChangedPlans]:
        """Pairs around the plan before its edits, `drafts`, and after them, `edits`: those with credit."""
        config, drafts = self.config.rl, draft_rounds_of(layout)
        states = greedy.states[:, :, 0].cpu().numpy()
        centers = {"drafts": states[:, drafts], "edits": states[:, -1]}
        stages = tuple(centers) if config.credit == "rollout" else (config.credit,)
        return {name: plan_policy.change_plans(centers[name], layout, rng, self.config.plans.plans) for name in stages}

    def _score(
        self, batch: Batch, greedy: GreedyPlans, changed: dict[str, ChangedPlans], layout: TokenLayout
    ) -> dict[str, Tensor]:
        """Rewards (B, M, len(REWARDS)) of the finished plans, the first of them before its edits, and the pairs."""
        plans = {
            "finished": greedy.plans.cpu().numpy(),
            "drafted": greedy.states[:, draft_rounds_of(layout), :1].cpu().numpy(),
            **{name: each.plans for name, each in changed.items()},
        }
        rewards = self.rewards.score(*batch.scenes, np.concatenate(list(plans.values()), axis=1))
        ends = np.cumsum([each.shape[1] for each in plans.values()])[:-1]
        parts = np.split(rewards, ends, axis=1)
        device = batch.ego.device
        return {name: torch.as_tensor(part, device=device) for name, part in zip(plans, parts, strict=True)}

    def _policy(
        self, greedy: GreedyPlans, changed: dict[str, ChangedPlans], scores: dict[str, Tensor], layout: TokenLayout
    ) -> PlanBatch:
        config, drafts = self.config.rl, draft_rounds_of(layout)
        states, credited = plan_policy.credited_states(greedy, layout, config)
        count = {"drafts": drafts, "edits": greedy.states.shape[1] - 1 - drafts}
        gradients = []
        for name, each in changed.items():
            gradient = plan_policy.reward_gradient(each, scores[name][..., 0], layout)
            gradients.append(gradient[:, None].expand(-1, count[name], -1))
        return PlanBatch(
            goals=greedy.goals,
            valid=greedy.valid,
            goal_reward=scores["finished"][..., 0],
            finished=greedy.plans,
            states=states,
            gradient=torch.cat(gradients, 1) * credited,
        )

    @torch.no_grad()
    def _reference_log_probs(self, batch: Batch, policy: PlanBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with self.loop.fabric.autocast():
            keys_values = prompt_keys_values(self.reference, batch, True)
            return self.reference.decode(policy.states, keys_values).log_softmax(-1)

    def _panel(self, greedy: GreedyPlans, scores: dict[str, Tensor], layout: TokenLayout) -> list[Tensor]:
        """PANEL: mean rewards of the most probable goal's plan in percent; its reward before its edits; that of the
        best goal; the share of scenes whose pairs have equal rewards; tokens that the edits replaced."""
        finished = scores["finished"]
        pairs = torch.cat([each[..., 0] for name, each in scores.items() if name in ("drafts", "edits")], 1)
        equal = (pairs.amax(1) - pairs.amin(1)) <= SAME_REWARD
        first = greedy.states[:, draft_rounds_of(layout) :, 0]
        edits = (first[:, 1:] != first[:, :-1]).sum((1, 2))
        return [
            *(100.0 * finished[:, 0].mean(0)),
            100.0 * scores["drafted"][..., 0].mean(),
            100.0 * finished[..., 0].amax(1).mean(),
            equal.float().mean(),
            edits.float().mean(),
        ]
