"""Supervised training: the losses of `losses`, with self-drafts among the plans to be corrected."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..model.token.net import TokenNet
from . import schedule, self_drafts, trainer
from .losses import PARTS, Batch, Losses
from .run_log import RunLog
from .token_job import TokenJob
from .train_state import Progress
from .trainer import Clock, Trainer

LOSSES = ("loss", *PARTS)
COLUMNS = (*LOSSES, "norm")  # of the log


def train(
    job: TokenJob, fabric: Fabric, reporter: RunLog, stop: Callable[[], bool], clock: Clock = time.monotonic
) -> Progress:
    """Trains from the state in `job.out`, or from the start, until the schedule ends or `stop` returns True.

    A new run may start with public weights, or with those of another. Writes the state, and the averaged weights with
    their card. Raises TrainingError when a loss or gradient is not finite, StateError when the state is another
    network's, CheckpointError when public weights are, OSError naming a file that cannot be written.
    """

    def make_losses(net: TokenNet, generator: torch.Generator) -> Losses:
        return Losses(net, job.config.loss, generator, job.config.optimizer.trained)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)
    return loop.run(progress, lambda batch, step, at: _step(loop, batch, step, at), COLUMNS, stop, clock)


def _step(loop: Trainer, batch: Batch, step: int, at: float) -> Tensor:
    """One step; COLUMNS."""
    config = loop.job.config
    vision_only = schedule.vision_only(config.optimizer, at)
    if config.data.draft_fraction > 0.0 and at >= config.data.draft_start and not vision_only:
        drafted = round(config.data.draft_fraction * len(batch.text))
        with loop.fabric.autocast():
            batch = self_drafts.add_self_drafts(loop.net, batch, drafted, loop.generator(step))
    losses = loop.model(batch, vision_only)
    norm = loop.update(losses, batch, step, {})
    return torch.stack([*(losses[name].detach().float() for name in LOSSES), norm])
