"""Training of the expert that corrects finished plans, by the expected score of a choice among plans.

AutoEdit of ReflectDrive-2 and the refinement of DriveFine (sections 3.2 and 3.3) are trained alike: the generator is
fixed, the expert has copies of its last layers, and no gradient reaches what they share. Given the finished draft, and
its critique where the network reads one, the expert's log q of a plan is the sum of the log-probabilities of all tokens
that it may replace. The loss is that of `rl`: one minus the expected score of a choice among the candidates of the
scene (`edit_candidates`), which are computed once. The draft is among them, so that leaving it as it is is an answer.

The choice ranks the candidates and says nothing of the plan that the most probable tokens of all positions make
together, which was never scored. A cross-entropy with the candidates, weighted by exp(score / TEMPERATURE), holds the
probabilities on plans that were (reward-weighted regression).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ..model.checkpoint import EXPERT_PARAMETERS
from ..model.token import ops
from ..model.token.net import TokenNet
from . import trainer
from .edit_candidates import EditCandidates
from .losses import Batch, choice_loss, distinct_plans, plan_log_probs, prompt_keys_values
from .run_log import RunLog
from .settings import RefineLossConfig, RefineTrainConfig
from .token_job import TokenJob
from .train_state import Progress
from .trainer import Clock

TEMPERATURE = 0.05  # of the weights of the candidates in the cross-entropy: 5 points of the score count e times
CRITIQUE_DROPOUT = 0.1  # share of scenes without a critique, as for a car that knows no objects or no road
METRICS = ("edit", "imitation")
PANEL = ("reward_draft", "reward_chosen", "best", "changed")
COLUMNS = ("loss", *METRICS, *PANEL, "norm")  # of the log


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class CandidateBatch:
    """`EditCandidates` of the B scenes of a batch."""

    plans: Tensor  # (B, K, T) int64
    score: Tensor  # (B, K) float32
    critique: Tensor  # (B, points, channels) float32


class RefineLosses(nn.Module):
    """The network with the loss of its expert; everything else in it is fixed."""

    def __init__(self, net: TokenNet, config: RefineLossConfig) -> None:
        super().__init__()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith(EXPERT_PARAMETERS))
        self.net, self.config = net, config

    def forward(self, batch: Batch, candidates: CandidateBatch) -> dict[str, Tensor]:
        """Scalars `loss` and METRICS, and PANEL in percent: mean scores of the draft, of the candidate that the expert
        gives the highest probability, and of the best one; share of the tokens that the expert changes."""
        net, plans, score = self.net, candidates.plans, candidates.score
        draft, keys_values = plans[:, :1], prompt_keys_values(net, batch, True)
        logits = net.refine(draft, keys_values, candidates.critique[:, None])
        editable = ops.editable_positions(net.config.layout, draft.device)
        log_probs = plan_log_probs(logits.log_softmax(-1), plans, editable.expand(len(plans), 1, -1))
        distinct = distinct_plans(plans)
        losses = {
            "edit": choice_loss(log_probs, distinct, score),
            "imitation": weighted_cross_entropy(log_probs, distinct, score) / editable.sum(),
        }
        total = losses["edit"] + self.config.imitation * losses["imitation"]
        chosen = score.gather(1, log_probs.argmax(1, keepdim=True))
        changed = (logits.argmax(-1) != draft)[..., editable].float()
        panel = [score[:, 0], chosen, score.amax(1), changed]
        metrics = {name: value.detach().float() for name, value in losses.items()}
        return {"loss": total, **metrics, **{n: 100.0 * v.mean() for n, v in zip(PANEL, panel, strict=True)}}


def weighted_cross_entropy(log_probs: Tensor, distinct: Tensor, score: Tensor) -> Tensor:
    """Mean over scenes of the cross-entropy of log-probabilities (B, K) with those of K plans that are distinct (B, K),
    weighted by the softmax of their scores (B, K) / TEMPERATURE."""
    weights = torch.where(distinct, score / TEMPERATURE, ops.EXCLUDED).softmax(-1)
    return -(weights * log_probs).sum(-1).mean()


def train(
    job: TokenJob,
    fabric: Fabric,
    reporter: RunLog,
    candidates: EditCandidates,
    stop: Callable[[], bool],
    clock: Clock = time.monotonic,
) -> Progress:
    """As `sft.train`, of the expert. `job.config` is a RefineTrainConfig; the prompts of the job are cached."""
    config = job.config
    assert isinstance(config, RefineTrainConfig)

    def make_losses(net: TokenNet, generator: torch.Generator) -> RefineLosses:
        return RefineLosses(net, config.refine)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)

    def train_step(batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        scored = candidates_of_batch(candidates, batch)
        share = torch.rand(len(scored.plans), generator=loop.generator(step))
        scored.critique *= (share >= CRITIQUE_DROPOUT).to(scored.critique.device)[:, None, None]
        results = loop.model(batch, scored)
        losses = {name: results[name] for name in ("loss", *METRICS)}
        norm = loop.update(losses, batch, step, {"plans": scored.plans})
        return torch.stack([*(results[name].detach().float() for name in COLUMNS[:-1]), norm])

    return loop.run(progress, train_step, COLUMNS, stop, clock)


def candidates_of_batch(candidates: EditCandidates, batch: Batch) -> CandidateBatch:
    """Those of the scenes of a batch."""
    rows, device = batch.rows.cpu().numpy(), batch.clean.device
    plans = torch.from_numpy(candidates.plans[rows].astype(np.int64)).to(device)
    score = torch.from_numpy(candidates.score[rows]).to(device)
    return CandidateBatch(plans, score, torch.from_numpy(candidates.critique[rows].astype(np.float32)).to(device))
