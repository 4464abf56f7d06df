"""Training of a refinement expert on the network's own drafts (DriveFine, sections 3.2 and 3.3).

    L = supervised L_supervised + offline L_offline + keep L_keep + online L_online + plan_value L_plan_value

The generator drafts G plans per scene; it is not trained, and no gradient reaches it. The expert predicts all tokens
of a plan x_j from the plan. L_supervised: cross-entropy with the tokens of the target, the plan of the teacher or of
the expert driver. L_offline: the drafts and the target are corrections of each other, with advantages
A_ij = r_i - r_j (Eq. 5); G passes give log p(x_i | x_j) of all pairs. Pairs with A <= 0 are left out: plan i was not
sampled from the expert, so that lowering its probability has no bound. L_keep: cross-entropy with the draft itself,
which decides where no other plan is better. L_online: K corrections are sampled from the expert for each draft, with
advantages A_ik = r_ik - r_i (Eq. 6), and their clipped policy gradient is taken. L_plan_value: cross-entropy of the
predicted score of drafts and corrections with their rewards. Rewards are those of `rewards.PlanScorer`.

Where the prompts are cached, the drafts and their rewards are too (`draft_cache`); corrections are computed and scored
there only for L_online.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from ..core.tokens import decoding_rounds
from ..model.layers import KeysValues
from ..model.token import ops, rollout
from ..model.token.net import PromptInputs, TokenNet
from ..model.token.ops import EditRules, GoalRules
from ..model.token.rollout import Sampling
from . import trainer
from .draft_cache import EXPERT_PARAMETERS, DraftCache
from .losses import Batch, plan_value_loss, prompt_keys_values
from .rewards import RewardPool
from .settings import RefineLossConfig, RefineTrainConfig
from .token_job import TokenJob
from .train_state import Progress
from .trainer import Clock, Reporter, Trainer

DRAFT_ROUNDS, DRAFT_TEMPERATURE = 4, 1.0  # decoding rounds of a draft, as the car's; sampling of all but the first
TEMPERATURE = 0.7  # sampling temperature of corrections
RATIO_CLIP = 0.2  # the ratio of probabilities is clipped to 1 - this .. 1 + this, as in PPO
UPDATES = 1  # optimizer steps per batch of drafts
METRICS = ("supervised", "offline", "keep", "online", "plan_value", "token_accuracy", "entropy")
PANEL = ("reward_draft", "reward_refined", "reward_drafts", "reward_samples", "best", "changed")
COLUMNS = ("loss", *METRICS, *PANEL, "norm")  # of the log


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class Drafts:
    """Of B scenes: G drafts, their corrections, and K sampled corrections of each if these are rewarded."""

    prompt: Tensor  # (B, P, width); (0,) where the prompts are cached
    keys_values: tuple[KeysValues, ...]
    plans: Tensor  # (B, G, T) int64; the first has the most probable tokens
    refined: Tensor | None = None  # (B, G, T) int64, corrections of the most probable tokens
    samples: Tensor | None = None  # (B, G, K, T) int64, sampled corrections
    reward: Tensor | None = None  # (B, G) float32 of plans
    target_reward: Tensor | None = None  # (B, 1) of the target
    refined_reward: Tensor | None = None  # (B, G)
    sample_reward: Tensor | None = None  # (B, G, K)
    old: Tensor | None = None  # (B, G, K, T) float32 log-probabilities of the samples; None before the first update


class RefineLosses(nn.Module):
    """The network with the losses of its expert; everything else in it is fixed."""

    def __init__(self, net: TokenNet, config: RefineLossConfig) -> None:
        super().__init__()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith(EXPERT_PARAMETERS))
        self.net, self.config = net, config

    def forward(self, batch: Batch, drafts: Drafts) -> dict[str, Tensor]:
        """Scalars `loss` and METRICS, and the log-probabilities `log_probs` (B, G, K, T) of the samples."""
        config, net = self.config, self.net
        keys_values = net.encode(drafts.prompt) if net.config.refine.own_prompt else drafts.keys_values
        layout = net.config.layout
        first_ids = ops.first_ids(layout, drafts.plans.device)
        logits = ops.reachable_bins(net.refine(drafts.plans, keys_values), layout).float()
        target = batch.clean[:, None] - first_ids
        targets, plans = target.expand(-1, logits.shape[1], -1), drafts.plans - first_ids
        log_p = (logits / TEMPERATURE).log_softmax(-1)
        zero = logits.new_zeros(())
        losses = {
            "supervised": F.cross_entropy(logits.flatten(0, 2), targets.flatten()),
            "offline": zero,
            "keep": -log_p.gather(-1, plans[..., None]).mean(),
            "online": zero,
            "plan_value": zero,
        }
        log_probs = zero
        if config.offline and drafts.reward is not None and drafts.target_reward is not None:
            better = torch.cat([plans, target], 1), torch.cat([drafts.reward, drafts.target_reward], 1)
            losses["offline"] = offline_loss(log_p, drafts.reward, *better)
        if drafts.samples is not None and drafts.reward is not None and drafts.sample_reward is not None:
            samples = (drafts.samples - first_ids).transpose(2, 3)
            log_probs = log_p.gather(-1, samples).transpose(2, 3)  # (B, G, K, T)
            old = log_probs.detach() if drafts.old is None else drafts.old
            advantage = drafts.sample_reward - drafts.reward[..., None]
            losses["online"] = online_loss(log_probs, old, advantage)
        if config.plan_value:
            scored = [(drafts.plans, drafts.reward), (drafts.refined, drafts.refined_reward)]
            labelled = [(ids, reward) for ids, reward in scored if ids is not None and reward is not None]
            with torch.no_grad():
                hidden = net.hidden(torch.cat([ids for ids, _ in labelled], 1), drafts.keys_values)
            losses["plan_value"] = plan_value_loss(net.plan_value(hidden), torch.cat([each for _, each in labelled], 1))
        total = zero
        for name, value in losses.items():
            total = total + getattr(config, name) * value
        with torch.no_grad():
            losses["token_accuracy"] = 100.0 * (logits.argmax(-1) == targets).float().mean()
            losses["entropy"] = -(log_p.exp() * log_p).sum(-1).mean()
        metrics = {name: value.detach() for name, value in losses.items()}
        return {"loss": total, **metrics, "log_probs": log_probs.detach()}

    def run_unsharded(self, function: Callable[[TokenNet], Drafts]) -> Drafts:
        """Applies a function to the network; sharded weights (fsdp.py) are gathered meanwhile."""
        return function(self.net)


def offline_loss(log_p: Tensor, reward: Tensor, better: Tensor, better_reward: Tensor) -> Tensor:
    """-mean over pairs and tokens of A_ij log p(x_i | x_j) where A_ij = r_i - r_j is above 0.

    log_p (B, G, T, bins) of the corrections of each draft x_j, reward (B, G) of the drafts; better (B, H, T) indices in
    bins of the plans x_i, better_reward (B, H).
    """
    count = log_p.shape[1]
    of_pairs = log_p.gather(-1, better.transpose(1, 2)[:, None].expand(-1, count, -1, -1)).mean(2)  # (B, G, H)
    gain = (better_reward[:, None, :] - reward[:, :, None]).clamp(min=0.0)
    return -(gain * of_pairs).mean()


def online_loss(log_probs: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """Clipped policy gradient of corrections: log-probabilities (B, G, K, T) now and when they were sampled, advantages
    (B, G, K)."""
    ratio, gain = (log_probs - old).exp(), advantage[..., None]
    return -torch.minimum(ratio * gain, ratio.clamp(1.0 - RATIO_CLIP, 1.0 + RATIO_CLIP) * gain).mean()


@torch.no_grad()
def sample_drafts(
    net: TokenNet,
    inputs: PromptInputs,
    config: RefineLossConfig,
    generator: torch.Generator,
    keys_values: tuple[KeysValues, ...] = (),
) -> Drafts:
    """Drafts of the scenes of `inputs`. keys_values: of cached prompts; images, text and ego are not read then."""
    layout, route, prompt = net.config.layout, inputs.route, torch.zeros(0)
    if not keys_values:
        prompt = net.prompt(inputs)
        keys_values = net.encode(prompt)
    first = rollout.prefill_sequences_cached(net, keys_values, route, GoalRules()).actions[:, :1]
    schedule = rollout.default_decoding(layout).schedule
    rounds = decoding_rounds(len(layout.free), DRAFT_ROUNDS, 0, schedule)

    def logits(actions: Tensor) -> Tensor:
        return net.decode(actions, keys_values)

    plans = [rollout.rollout(logits, first, layout, rounds, EditRules())[-1].actions]
    if config.drafts > 1:
        several = first.expand(-1, config.drafts - 1, -1)
        sampling = Sampling(DRAFT_TEMPERATURE, generator)
        plans.append(rollout.rollout(logits, several, layout, rounds, EditRules(), sampling)[-1].actions)
    return Drafts(prompt, keys_values, torch.cat(plans, 1))


@torch.no_grad()
def correct(net: TokenNet, drafts: Drafts, config: RefineLossConfig, generator: torch.Generator) -> None:
    """Fills in the corrections of drafts, and the sampled ones where the online loss needs them."""
    layout, plans = net.config.layout, drafts.plans
    logits = net.refine(plans, drafts.keys_values)
    drafts.refined, _ = ops.replace_all(logits, layout)
    if config.online:
        share = torch.rand((config.samples, *plans.shape), generator=generator).to(plans.device)
        drafts.samples = torch.stack([ops.draw(logits, layout, TEMPERATURE, each) for each in share], 2)


def train(
    job: TokenJob,
    fabric: Fabric,
    reporter: Reporter,
    rewards: RewardPool | None,
    stop: Callable[[], bool],
    clock: Clock = time.monotonic,
    cache: DraftCache | None = None,
) -> Progress:
    """As `sft.train`, of the refinement expert. `job.config` is a RefineTrainConfig; `rewards` may be None if no loss
    needs them. cache: the drafts of the scenes, where the prompts are cached.
    """
    config = job.config
    assert isinstance(config, RefineTrainConfig)

    def make_losses(net: TokenNet, generator: torch.Generator) -> RefineLosses:
        return RefineLosses(net, config.refine)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)
    return loop.run(progress, _RefineSteps(loop, config.refine, rewards, cache), COLUMNS, stop, clock)


@dataclass(eq=False)
class _RefineSteps:
    loop: Trainer
    config: RefineLossConfig
    rewards: RewardPool | None
    cache: DraftCache | None

    def __call__(self, batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        loop, config = self.loop, self.config
        generator = loop.generator(step)

        def draft(net: TokenNet) -> Drafts:
            keys_values = prompt_keys_values(net, batch, True) if batch.has_cache else ()
            if self.cache is None:
                drafts = sample_drafts(net, batch.inputs, config, generator, keys_values)
            else:
                drafts = cached_drafts(self.cache, batch, keys_values)
            if self.cache is None or config.online:
                correct(net, drafts, config, generator)
            return drafts

        with loop.fabric.autocast():
            drafts: Drafts = loop.losses.run_unsharded(draft)
        if self.rewards is not None and drafts.refined is not None:
            self._score(self.rewards, batch, drafts, drafts.refined)
        rows = []
        for update in range(UPDATES):
            losses = loop.model(batch, drafts)
            if update == 0 and drafts.samples is not None:
                drafts.old = losses["log_probs"]
            scalars = {name: losses[name] for name in ("loss", *METRICS)}
            norm = loop.update(scalars, batch, step, {"drafts": drafts.plans})
            rows.append(torch.stack([*(value.detach().float() for value in scalars.values()), norm]))
        mean = torch.stack(rows).mean(0)
        return torch.cat([mean[:-1], _panel(drafts), mean[-1:]])

    def _score(self, rewards: RewardPool, batch: Batch, drafts: Drafts, refined: Tensor) -> None:
        """Fills in the rewards of corrections and, where they are not cached, of drafts and targets."""
        several = [("refined_reward", refined)]
        if self.cache is None:
            several += [("reward", drafts.plans), ("target_reward", batch.clean[:, None])]
        if drafts.samples is not None:
            several.append(("sample_reward", drafts.samples.flatten(1, 2)))
        plans = torch.cat([ids for _, ids in several], 1).cpu().numpy()
        scores = torch.from_numpy(np.ascontiguousarray(rewards.score(*batch.scenes, plans)[..., 0]))
        ends = np.cumsum([ids.shape[1] for _, ids in several])[:-1].tolist()
        for (name, _), part in zip(several, scores.to(refined.device).tensor_split(ends, 1), strict=True):
            setattr(drafts, name, part)
        if drafts.sample_reward is not None:
            drafts.sample_reward = torch.unflatten(drafts.sample_reward, 1, (refined.shape[1], -1))


def cached_drafts(cache: DraftCache, batch: Batch, keys_values: tuple[KeysValues, ...]) -> Drafts:
    """The drafts of the scenes of a batch."""
    rows, device = batch.rows.cpu().numpy(), batch.clean.device
    plans = torch.from_numpy(cache.plans[rows].astype(np.int64)).to(device)
    drafts = Drafts(torch.zeros(0), keys_values, plans)
    if cache.reward.size:
        drafts.reward = torch.from_numpy(cache.reward[rows]).to(device)
        drafts.target_reward = torch.from_numpy(cache.target_reward[rows, None]).to(device)
    return drafts


def _panel(drafts: Drafts) -> Tensor:
    """PANEL in percent: mean rewards of the most probable draft, of its correction, of all drafts, of the sampled
    corrections, and of the best plan; share of tokens that the correction changes. NaN where it is unknown."""
    unknown = torch.full((), torch.nan, device=drafts.plans.device)
    refined, reward, corrected = drafts.refined, drafts.reward, drafts.refined_reward
    changed = unknown if refined is None else (refined != drafts.plans).float().mean()
    samples = unknown if drafts.sample_reward is None else drafts.sample_reward.mean()
    if reward is None:
        return 100.0 * torch.stack([*[unknown] * (len(PANEL) - 1), changed])
    all_rewards = reward if corrected is None else torch.cat([reward, corrected], 1)
    of_first = unknown if corrected is None else corrected[:, 0].mean()
    best = all_rewards.amax(1).mean()
    return 100.0 * torch.stack([reward[:, 0].mean(), of_first, reward.mean(), samples, best, changed])
