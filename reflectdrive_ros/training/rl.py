"""Reinforcement learning over decision, draft and edit: rollouts, rewards, updates.

One step samples rollouts of a batch of scenes (`rollouts`), scores their plans (`rewards`), and makes UPDATES
steps of the optimizer on the policy loss (`rl_losses`). The rollouts are sampled by the network in training, not by
its average.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from . import rl_losses, rollouts, trainer
from .losses import Batch, Losses, prompt_keys_values
from .rewards import COLUMNS as REWARDS
from .rewards import RewardPool
from .rl_losses import PolicyBatch, RlLosses
from .rollouts import Rollouts
from .settings import RlTrainConfig
from .token_job import TokenJob
from .train_state import Progress
from .trainer import Clock, Reporter, Trainer, TrainingError

UPDATES = 1  # optimizer steps per batch of rollouts: more reuse plans of a policy that has changed
ENTROPY_MIN, KL_MAX = 0.02, 5.0  # nats, means per written token, beyond which the policy has collapsed
PANEL = (*(f"reward_{name}" for name in REWARDS), "greedy", "decided", "best", "equal_share", "edits_per_plan")
COLUMNS = ("loss", *rl_losses.METRICS, *PANEL, "norm")  # of the log


def train(
    job: TokenJob,
    fabric: Fabric,
    reporter: Reporter,
    rewards: RewardPool,
    stop: Callable[[], bool],
    clock: Clock = time.monotonic,
    sample: Callable[..., Rollouts] = rollouts.sample,
) -> Progress:
    """As `sft.train`, by reward. `job.config` is an RlTrainConfig, `job.init_from` the network to begin with. `sample`
    is `rollouts.sample`, or a RolloutPool instead.

    Raises TrainingError also when the policy collapses: ENTROPY_MIN, KL_MAX.
    """
    config = job.config
    assert isinstance(config, RlTrainConfig)
    assert job.init_from is not None
    rules = job.decoding.goals.for_search

    def make_losses(net: TokenNet, generator: torch.Generator) -> Losses:
        return RlLosses(net, config.loss, config.rl, rules, generator, config.optimizer.trained)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)
    reference = job.reference_network(config.rl.kl, fabric.device)
    steps = _Steps(loop, config, rewards, rules, reference, sample)
    return loop.run(progress, steps, COLUMNS, stop, clock)


@dataclass(eq=False)
class _Steps:
    loop: Trainer
    config: RlTrainConfig
    rewards: RewardPool
    rules: GoalRules
    reference: TokenNet | None  # the initial network
    sample: Callable[..., Rollouts]

    def __call__(self, batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        loop, config = self.loop, self.config.rl
        sampled_rollouts = self._sample(batch, step)
        scores = torch.from_numpy(self._score(batch, sampled_rollouts)).to(batch.ego.device)  # (B, M + G, len(REWARDS))
        count = sampled_rollouts.plans.shape[1]
        sampled, greedy = scores[:, :count, 0], scores[:, count:, 0]
        policy = rl_losses.make_policy_batch(sampled_rollouts, sampled, greedy, loop.net.config.layout, config)
        policy.reference = self._reference_log_probs(batch, policy)
        saved = {"states": sampled_rollouts.states, "scores": scores}
        rows = []
        for update in range(UPDATES):
            losses = loop.model(batch, policy)
            if update == 0:
                policy.old, policy.old_goals = losses["log_probs"], losses["goal_log_probs"]
            self._check_collapse(losses, batch, step, saved)
            scalars = {name: losses[name] for name in ("loss", *rl_losses.METRICS)}
            norm = loop.update(scalars, batch, step, saved)
            rows.append(torch.stack([*(value.detach().float() for value in scalars.values()), norm]))
        mean = torch.stack(rows).mean(0)
        return torch.cat([mean[:-1], self._panel(sampled_rollouts, scores, policy), mean[-1:]])

    def _sample(self, batch: Batch, step: int) -> Rollouts:
        generator, config = self.loop.generator(step), self.config.rl

        def sample(net: TokenNet) -> Rollouts:
            cached = prompt_keys_values(net, batch, True) if batch.has_cache else ()
            return self.sample(net, batch.inputs, self.rules, config, generator, cached)

        with self.loop.fabric.autocast():
            sampled_rollouts: Rollouts = self.loop.losses.run_unsharded(sample)
        return sampled_rollouts

    def _score(self, batch: Batch, sampled_rollouts: Rollouts) -> np.ndarray:
        plans = torch.cat([sampled_rollouts.plans, sampled_rollouts.greedy_plans], 1)
        return self.rewards.score(*batch.scenes, plans.cpu().numpy())

    @torch.no_grad()
    def _reference_log_probs(self, batch: Batch, policy: PolicyBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with self.loop.fabric.autocast():
            keys_values = prompt_keys_values(self.reference, batch, True)
            hidden = rl_losses.hidden_states(self.reference, keys_values, policy)
            return rl_losses.token_log_probs(self.reference, hidden.rounds, policy, self.config.rl.temperature)

    def _panel(self, sampled_rollouts: Rollouts, scores: Tensor, policy: PolicyBatch) -> Tensor:
        """PANEL: mean rewards of sampled rollouts in percent; the reward of greedy plans, as decided, and of the best
        plan; the share of goals whose rollouts have equal rewards; edits.
        """
        assert policy.old_goals is not None
        count = sampled_rollouts.plans.shape[1]
        sampled, decision = scores[:, :count], torch.where(policy.valid, policy.old_goals.exp(), 0.0)
        groups = torch.unflatten(sampled[..., 0], 1, (sampled_rollouts.goals.shape[1], -1))
        equal = (groups.amax(-1) - groups.amin(-1)) <= rl_losses.SAME_REWARD
        layout = self.loop.net.config.layout
        edited = rollouts.written(sampled_rollouts.states, layout.mask_id)[:, rollouts.draft_rounds_of(layout) :]
        return torch.cat(
            [
                100.0 * sampled.mean((0, 1)),
                torch.stack(
                    [
                        100.0 * policy.goal_reward.mean(),
                        100.0 * (decision * policy.goal_reward).sum(1).mean(),
                        100.0 * scores[..., 0].amax(1).mean(),
                        equal.float().mean(),
                        edited.sum((1, 3)).float().mean(),
                    ]
                ),
            ]
        )

    def _check_collapse(self, losses: dict[str, Tensor], batch: Batch, step: int, saved: dict[str, Tensor]) -> None:
        entropy, kl = self.loop.mean_of_processes(torch.stack([losses["entropy"], losses["kl"]])).tolist()
        if entropy >= ENTROPY_MIN and kl <= KL_MAX:
            return
        path = self.loop.save_batch(batch, step, saved)
        raise TrainingError(
            f"step {step}: the policy collapses (entropy {entropy:.3f} nats, at least {ENTROPY_MIN} expected; "
            f"KL {kl:.2f}, at most {KL_MAX}); its batch is in {path}: go on from the last state with a lower "
            "optimizer.learning_rate or a higher rl.kl"
        )
