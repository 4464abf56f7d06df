"""Training by reward: drafts and goals by the expected score of a choice among plans.

Imitation shows one plan per scene, and a sampled token changes one waypoint by itself. Here the plan that the car would
draft is decoded greedily, and smooth variants of it (`plan_changes`) are scored in the recorded future. With the K
plans x_k of a scene and their scores r_k the loss of a distribution q over plans is

    L = 1 - sum_k p_k r_k,    p_k = q(x_k)^(1 / t) / sum_j q(x_j)^(1 / t)

one minus the expected score of a choice among them, with an exact gradient (`losses.choice_loss`, which also sets t).
The plan itself is among the K, so that leaving it as it is is an answer. log q sums the log-probabilities of the goal,
in the fully masked sequence, and of the tokens that each round wrote, in the states of the greedy draft. The whole
network is trained. Edits are trained after it, by `refine`.

The decision among goals has the exact gradient of the expected reward of a choice among them, each with its finished
draft. The supervised losses of the expert's plan are an anchor. A layout without a goal has no decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..core.tokens import TokenLayout
from ..model.token import ops
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from . import trainer
from .greedy import GreedyPlans, decode_greedily, variants
from .losses import Batch, Losses, choice_loss, distinct_plans, expected_goal_loss, plan_log_probs
from .rewards import COLUMNS as REWARDS
from .rewards import RewardPool
from .run_log import RunLog
from .settings import LossConfig, RlConfig, RlTrainConfig
from .train_state import Progress
from .trainer import TrainingJob

RULES = GoalRules().for_search
METRICS = ("draft", "decision", "anchor")
PANEL = (*(f"reward_{name}" for name in REWARDS), "best")
COLUMNS = ("loss", *METRICS, *PANEL, "norm")  # of the log


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class ScoredPlans:
    """The decoding of B scenes, and plans of them with their scores."""

    goals: Tensor  # (B, G, 2) int64
    valid: Tensor  # (B, G) bool
    goal_reward: Tensor  # (B, G) float32, score of the finished plan to each goal
    states: Tensor  # (B, D + 1, T) int64 of the most probable goal's plan, before each draft round and after the last
    plans: Tensor  # (B, K, T) int64
    score: Tensor  # (B, K) float32, 0 to 1


def train(
    job: TrainingJob,
    fabric: Fabric,
    reporter: RunLog,
    rewards: RewardPool,
    stop: Callable[[], bool],
) -> Progress:
    """As `sft.train`, by reward. `job.config` is an RlTrainConfig, `job.init_from` the network to begin with."""
    config = job.config
    assert isinstance(config, RlTrainConfig)

    def make_losses(net: TokenNet, generator: torch.Generator) -> Losses:
        return ScoreLosses(net, config.loss, config.rl, generator, config.optimizer.trained)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)

    def train_step(batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        rng = np.random.default_rng([config.seed, 6, step, fabric.global_rank])
        with fabric.autocast():
            generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
            greedy = decode_greedily(loop.net, batch, RULES, config.rl.goals, generator)
        scored, panel = score_plans(batch, greedy, rewards, config.rl.variants, job.network.layout, rng)
        losses = loop.model(batch, scored)
        norm = loop.update(losses, batch, step, {"states": scored.states})
        return torch.stack([*(losses[name].detach().float() for name in ("loss", *METRICS)), *panel, norm])

    return loop.run(progress, train_step, COLUMNS, stop)


def score_plans(
    batch: Batch, greedy: GreedyPlans, pool: RewardPool, pairs: int, layout: TokenLayout, rng: np.random.Generator
) -> tuple[ScoredPlans, list[Tensor]]:
    """The drafts and `pairs` of variants of the first one with their scores, and PANEL of the step in percent."""
    device, finished = batch.ego.device, greedy.plans.cpu().numpy()
    plans = np.concatenate([finished, variants(finished[:, 0], pairs, layout, rng)], axis=1)
    rewards = torch.as_tensor(pool.score(*batch.scenes, plans), device=device)
    goals = finished.shape[1]
    keep = [0, *range(goals, plans.shape[1])]  # the other goals' plans are far from the draft's states
    scored = ScoredPlans(
        goals=greedy.goals,
        valid=greedy.valid,
        goal_reward=rewards[:, :goals, 0],
        states=greedy.states[:, :, 0],
        plans=torch.as_tensor(plans[:, keep], device=device).long(),
        score=rewards[:, keep, 0],
    )
    return scored, [*(100.0 * rewards[:, 0].mean(0)), 100.0 * rewards[..., 0].amax(1).mean()]


class ScoreLosses(Losses):
    """The network with the loss of expected scores, and the supervised losses of its anchor."""

    def __init__(
        self,
        net: TokenNet,
        weights: LossConfig,
        config: RlConfig,
        generator: torch.Generator,
        trained: str = "all",
    ) -> None:
        super().__init__(net, weights, generator, trained)
        self.config = config

    def forward(self, batch: Batch, scored: ScoredPlans) -> dict[str, Tensor]:  # type: ignore[override]
        """Scalars `loss` and METRICS."""
        config, net, layout = self.config, self.net, self.net.config.layout
        goal_states = ops.goal_sequences(scored.goals, layout) if layout.goal else batch.actions[:, :0]
        states = scored.states[:, :-1]  # in the last one nothing is left to write
        sequences = torch.cat([batch.actions, states, goal_states], 1)
        first, drafts = batch.actions.shape[1], states.shape[1]
        out = self.outputs(batch, sequences)
        supervised = self.supervised_losses(batch, out.first(first))

        log_probs = out.logits[:, first : first + drafts].log_softmax(-1)
        written = scored.states[:, 1:] != scored.states[:, :-1]
        of_draft = plan_log_probs(log_probs, scored.plans, written)
        losses = dict.fromkeys(METRICS, of_draft.new_zeros(()))
        if layout.goal:
            of_draft = of_draft + self.goal_log_probs(out, scored.plans[..., list(layout.goal)])
            value = net.goal_value(out.hidden[:, first + drafts :])
            choice = self.goal_log_probs(out, scored.goals) + RULES.value_power * value
            choice = torch.where(scored.valid, choice, ops.EXCLUDED)
            losses["decision"] = expected_goal_loss(choice, scored.goal_reward)
        losses["draft"] = choice_loss(of_draft, distinct_plans(scored.plans), scored.score)
        losses["anchor"] = supervised["loss"]
        total = losses["draft"] + config.decision * losses["decision"] + config.anchor * losses["anchor"]
        return {"loss": total, **{name: each.detach().float() for name, each in losses.items()}}
