"""Training of the expert that corrects finished plans, by the expected score of a choice among plans.

AutoEdit of ReflectDrive-2 and the refinement of DriveFine (sections 3.2 and 3.3) are trained alike: the generator is
fixed, the expert has copies of its last layers, and no gradient reaches what they share. Given the finished draft, and
its critique where the network reads one, the expert's log q of a plan is the sum of the log-probabilities of all tokens
that it may replace. The loss is that of `rl`: one minus the expected score of a choice among the candidates of the
scene. The draft is among them, so that leaving it as it is is an answer.

The candidates are computed once: the prompts are cached (`prompt_cache`), so that the draft of a scene is the same in
every epoch. It is decoded as the car decodes it, and the expert with which the run begins corrects it. Smooth variants
of both (`plan_changes`), and the fixed variants of the draft of which a critique tells the scores, are scored in the
recorded future. Files are named by a hash of all that they depend on: a further run, begun with the trained expert, has
candidates around the plans of that expert.

The choice ranks the candidates and says nothing of the plan that the most probable tokens of all positions make
together, which was never scored. A cross-entropy with the candidates, weighted by exp(score / TEMPERATURE), holds the
probabilities on plans that were (reward-weighted regression).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ..core.domain import Array
from ..model.checkpoint import EXPERT_PARAMETERS
from ..model.token import ops, rollout
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from ..planning.critique import variants_of
from . import trainer
from .greedy import decode_greedily, variants
from .losses import Batch, choice_loss, distinct_plans, plan_log_probs, prompt_keys_values
from .prompt_cache import compute_once, hash_weights
from .rewards import RewardPool
from .run_log import RunLog
from .settings import RefineLossConfig, RefineTrainConfig
from .train_state import Progress
from .trainer import TrainingJob

FORMAT = 3  # raise it when candidates or their scores change
TEMPERATURE = 0.05  # of the weights of the candidates in the cross-entropy: 5 points of the score count e times
CRITIQUE_DROPOUT = 0.1  # share of scenes without a critique, as for a car that knows no objects or no road
METRICS = ("edit", "imitation")
PANEL = ("reward_draft", "reward_chosen", "best", "changed")
COLUMNS = ("loss", *METRICS, *PANEL, "norm")  # of the log


@dataclass(frozen=True, eq=False)
class EditCandidates:
    """Of N scenes: the finished draft, its critique, and K plans of T tokens with their scores 0 to 1."""

    plans: Array  # (N, K, T) int16; the first is the draft, the second what the expert made of it
    score: Array  # (N, K) float32
    critique: Array  # (N, points, channels) float16 of the draft; no channels for a network without critique


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
        draft, keys_values = plans[:, :1], prompt_keys_values(net, batch)
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
    job: TrainingJob,
    fabric: Fabric,
    reporter: RunLog,
    candidates: EditCandidates,
    stop: Callable[[], bool],
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

    return loop.run(progress, train_step, COLUMNS, stop)


def candidates_of_batch(candidates: EditCandidates, batch: Batch) -> CandidateBatch:
    """Those of the scenes of a batch."""
    rows, device = batch.rows.cpu().numpy(), batch.clean.device
    plans = torch.from_numpy(candidates.plans[rows].astype(np.int64)).to(device)
    score = torch.from_numpy(candidates.score[rows]).to(device)
    return CandidateBatch(plans, score, torch.from_numpy(candidates.critique[rows].astype(np.float32)).to(device))


# --- candidates -------------------------------------------------------------------------------------------------------


def candidates_file(prompt_file: Path, net: TokenNet, about: Mapping[str, Any]) -> Path:
    """The file of the candidates of a network, next to the prompts that it reads. about: all else that they and their
    scores depend on."""
    weights = hash_weights(net)
    key = hashlib.sha256(json.dumps([FORMAT, weights, about], sort_keys=True).encode()).hexdigest()
    return prompt_file.with_suffix(f".candidates-{key[:12]}.npz")


def build_candidates(
    file: Path,
    count: int,
    batches: Callable[[], Iterator[Batch]],
    net: TokenNet,
    rewards: RewardPool,
    pairs: int,
    progress: Callable[[int, int], None],
) -> EditCandidates:
    """The candidates of a set of `count` scenes, by `prompt_cache.compute_once`; the batches have cached prompts.

    pairs: of random variants of a scene. Raises SetError for a scene that cannot be scored.
    """

    def arrays_of(batch: Batch, number: int) -> dict[str, Array]:
        return vars(candidates_of(batch, net, rewards, pairs, np.random.default_rng([8, number])))

    return EditCandidates(**compute_once(file, count, batches, arrays_of, progress))


@torch.no_grad()
def candidates_of(
    batch: Batch, net: TokenNet, rewards: RewardPool, pairs: int, rng: np.random.Generator
) -> EditCandidates:
    """The candidates of the scenes of a batch."""
    layout, device = net.config.layout, batch.ego.device
    greedy = decode_greedily(net, batch, GoalRules(), 1)
    draft = greedy.plans.cpu().numpy()  # (B, 1, T)
    critique = np.zeros((len(draft), 1, layout.points, 0), np.float32)
    if net.config.critique:
        critique = rewards.critique(*batch.scenes, draft)
        if batch.scene is not None:  # what the car has no map for is not criticised
            critique *= batch.scene.lanes.flatten(1).any(1).cpu().numpy()[:, None, None, None]
    edits = rollout.refine(net, greedy.plans, greedy.keys_values, torch.from_numpy(critique).to(device))
    edited = edits.actions.cpu().numpy()
    around = draft[:, 0], edited[:, 0]
    random = [variants(each, pairs // len(around), layout, rng) for each in around]
    fixed = [variants_of(draft[:, 0], layout)] if net.config.critique else []
    plans = np.concatenate([draft, edited, *random, *fixed], 1)
    score = rewards.score(*batch.scenes, plans)[..., 0]
    return EditCandidates(plans.astype(np.int16), score, critique[:, 0].astype(np.float16))
