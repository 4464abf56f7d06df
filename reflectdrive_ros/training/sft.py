"""Supervised training: the losses of `losses`, with self-drafts among the plans to be corrected."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..core.tokens import decoding_rounds
from ..model.token import ops, rollout
from ..model.token.net import TokenNet
from ..model.token.ops import EditRules
from ..model.token.rollout import Sampling
from . import trainer
from .greedy import ROUNDS
from .losses import PARTS, Batch, Losses
from .run_log import RunLog
from .train_state import Progress
from .trainer import Clock, TrainingJob

LOSSES = ("loss", *PARTS)
COLUMNS = (*LOSSES, "norm")  # of the log
TEMPERATURE = 1.0  # at which the tokens of self-drafts are sampled


def train(
    job: TrainingJob, fabric: Fabric, reporter: RunLog, stop: Callable[[], bool], clock: Clock = time.monotonic
) -> Progress:
    """Trains from the state in `job.out`, or from the start, until the schedule ends or `stop` returns True.

    A new run may start with public weights, or with those of another. Writes the state, and the averaged weights with
    their card. Raises TrainingError when a loss or gradient is not finite, StateError when the state is another
    network's, CheckpointError when public weights are, OSError naming a file that cannot be written.
    """
    config = job.config

    def make_losses(net: TokenNet, generator: torch.Generator) -> Losses:
        return Losses(net, config.loss, generator, config.optimizer.trained)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)

    def train_step(batch: Batch, step: int, at: float) -> Tensor:
        """One step; COLUMNS."""
        vision_only = trainer.vision_only(config.optimizer, at)
        if config.data.draft_fraction > 0.0 and at >= config.data.draft_start and not vision_only:
            drafted = round(config.data.draft_fraction * len(batch.text))
            with fabric.autocast():
                batch = add_self_drafts(loop.net, batch, drafted, loop.generator(step))
        losses = loop.model(batch, vision_only)
        norm = loop.update(losses, batch, step, {})
        return torch.stack([*(losses[name].detach().float() for name in LOSSES), norm])

    return loop.run(progress, train_step, COLUMNS, stop, clock)


@torch.no_grad()
def add_self_drafts(net: TokenNet, batch: Batch, scenes: int, generator: torch.Generator) -> Batch:
    """The batch with self-drafts instead of the perturbed plans of its first scenes: the mistakes that an editor will
    meet.

    They are drafted from the expert's goal, so that the errors to correct are on the path to it.
    """
    count = batch.actions.shape[1] - batch.masked
    if scenes == 0 or count == 0:
        return batch
    first, layout = slice(0, scenes), net.config.layout
    masked = ops.mask_free(batch.clean[first], layout)[:, None].expand(-1, count, -1)
    out = net.forward_packed(batch.inputs.map(lambda part: part[first]), masked[:, :1])

    def logits(drafts: Tensor) -> Tensor:
        """Of the first round all sequences are equal: the pass that encodes the prompt has theirs."""
        is_first = drafts is masked
        return out.logits.expand(-1, count, -1, -1) if is_first else net.decode(drafts, out.keys_values)

    rounds, sampling = decoding_rounds(len(layout.free), ROUNDS, 0), Sampling(TEMPERATURE, generator)
    actions = batch.actions.clone()
    actions[first, batch.masked :] = rollout.rollout(logits, masked, layout, rounds, EditRules(), sampling)[-1].actions
    return replace(batch, actions=actions)
