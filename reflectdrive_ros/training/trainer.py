"""The training loop: steps, schedule, checkpoints, averaged weights, validation; its state can be saved and restored
after any step.

A step depends on the state, the settings and its number only. Batches, perturbations, drafts and rollouts take their
randomness from the seed and the number. A run that was killed and resumed from its last state therefore ends with the
same weights, bit by bit, as one that was not (on the same machine, if its length is given in steps; if it is given in
minutes, the learning rate follows the clock).
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ..infra.errors import UserError
from . import train_state
from .run_log import RunLog
from .settings import OptimizerConfig, ScheduleConfig
from .train_state import Progress

ADAM_BETA2 = 0.98
GRADIENT_NORM_MAX = 1.0  # a larger gradient is scaled to it
WARMUP_FRACTION = 0.03  # of each part of a run: vision pretraining, then full training
FINAL_LR_FRACTION = 0.02  # of the learning rate, at the end of each part
FIRST_STEPS = 50  # a warm-up by the clock is no shorter than this
NONFINITE_BATCH = "bad_batch.npz"
FIRST_ROWS = (1, 2, 5, 10)  # steps with a row of the log, where they come before the first `log_steps`
TABLES = ("camera", "instant", "slot", "route_position", "queries")  # learned tokens that are no nn.Embedding
Clock = Callable[[], float]


class TrainingError(UserError):
    """Training cannot continue; the message names the reason and what to do."""


@dataclass(frozen=True, eq=False)
class TrainingJob(ABC):
    """What is trained, on which data, and where it is stored."""

    config: Any  # settings with seed, data.batch, optimizer, schedule, checkpointing and device
    network: Any  # configuration of the network, a dataclass
    scenes: Any  # the training set, with a `key` of its content
    validation_set: Any  # None: without validations
    out: Path  # folder of the run
    sets: Mapping[str, Any]  # description of the data for the card
    init_from: Path | None = field(default=None, kw_only=True)  # run, or folder of weights, that initialises this one

    @abstractmethod
    def make_net(self, generator: torch.Generator, fresh: bool) -> nn.Module:
        """The network with random weights or, if the run is `fresh`, with those of public checkpoints."""

    @abstractmethod
    def batches(self, first: int, rank: int, ranks: int) -> Generator[Any]:
        """The part of one process in the batches from step `first` on."""

    @abstractmethod
    def validate(self, net: nn.Module, device: torch.device) -> dict[str, float]:
        """Metrics of a network on the validation set."""

    @abstractmethod
    def save_weights(self, net: nn.Module, path: Path, about: Mapping[str, Any]) -> None:
        """Writes weights for driving, with their card."""


def about_run(job: TrainingJob) -> dict[str, Any]:
    """What a state must have in common with a run that resumes it."""
    return {
        "settings": dataclasses.asdict(job.config),
        "network": dataclasses.asdict(job.network),
        "scenes": job.scenes.key,
        "sets": dict(job.sets),
    }


def begin(
    job: TrainingJob, fabric: Fabric, reporter: RunLog, make_losses: Callable[[Any, torch.Generator], nn.Module]
) -> tuple[Trainer, Progress]:
    """The trainer of a job, from the state in `job.out` or from the start, and how far it is.

    A new run may start with public weights, or with those of another. `make_losses` gets the network and the generator
    of the heads that only training needs. Raises StateError when the state is another network's, CheckpointError when
    public weights are.
    """
    config = job.config
    saved = train_state.read_progress(job.out)
    net = job.make_net(torch.Generator().manual_seed(config.seed), saved is None).to(fabric.device)
    average = copy.deepcopy(net).requires_grad_(False)
    losses = make_losses(net, torch.Generator().manual_seed(config.seed)).to(fabric.device)
    progress = Progress()
    if saved is None and job.init_from is not None:
        reporter.missing_keys(train_state.load_pretrained(job.init_from, losses, average))
    learning: Any = torch.compile(losses) if config.device.compile else losses
    model = fabric.setup_module(learning)
    optimizer = torch.optim.AdamW(_groups(losses, config.weight_decay), lr=0.0, betas=(0.9, ADAM_BETA2), fused=True)
    if saved is not None:
        progress = saved[0]
        train_state.restore(job.out, losses, average, optimizer)
    wrapped = fabric.setup_optimizers(optimizer)
    return Trainer(job, fabric, net, losses, average, model, wrapped, optimizer, reporter), progress


@dataclass(eq=False)
class Trainer:
    """A network in training, its optimizer and its averaged weights."""

    job: TrainingJob
    fabric: Fabric
    net: Any
    losses: Any  # the network and what only training needs
    average: Any
    model: nn.Module  # `losses`, as Fabric wraps it
    wrapped: Any  # the optimizer, likewise
    optimizer: torch.optim.Optimizer
    reporter: RunLog

    def run(
        self,
        progress: Progress,
        step: Callable[[Any, int, float], Tensor],
        names: Sequence[str],
        stop: Callable[[], bool],
        clock: Clock = time.monotonic,
    ) -> Progress:
        """Trains until the schedule ends or `stop` returns True; writes the state, and the averaged weights with their
        card.

        `step(batch, number, at)` makes one step, `at` from 0 to 1 in the schedule, and returns values named `names`.
        """
        config, checkpointing = self.job.config, self.job.config.checkpointing
        began, saved = clock() - progress.elapsed_s, clock()
        sums: list[Tensor] = []
        halted = False
        early_rows = [step for step in FIRST_ROWS if step < checkpointing.log_steps]
        with closing(self.job.batches(progress.step, self.fabric.global_rank, self.fabric.world_size)) as batches:
            for batch in batches:
                at = schedule_progress(config.schedule, progress.step, progress.elapsed_s)
                halted = self._agreed(stop())
                if at >= 1.0 or halted:
                    break
                rate = learning_rate(config.optimizer, at, progress.step)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                sums.append(step(batch.to(self.fabric.device), progress.step, at))
                elapsed_s = self._agreed(clock() - began)
                progress = replace(progress, step=progress.step + 1, elapsed_s=elapsed_s)
                at = schedule_progress(config.schedule, progress.step, elapsed_s)
                self.reporter.step(progress, at)
                whole_row = progress.step % checkpointing.log_steps == 0
                if whole_row or progress.step in early_rows:
                    self._report_row(progress, names, sums, rate)
                    sums.clear()
                if whole_row and self._validation_is_due(progress, at):
                    self._validate(progress)
                    progress = replace(progress, validations=progress.validations + 1)
                if self._agreed(clock() - saved >= 60.0 * checkpointing.checkpoint_minutes):
                    self._save(progress)
                    saved = clock()
        if sums:
            self._report_row(progress, names, sums, rate)
        last = None
        if self.job.validation_set is not None and not halted:
            last = self._validate(progress)
        self._save(progress)
        self._save_weights(progress, last)
        return progress

    def update(self, losses: Mapping[str, Tensor], batch: Any, step: int, more: Mapping[str, Tensor]) -> Tensor:
        """One step of the optimizer and of the average on `losses["loss"]`; the norm of the gradient.

        Raises TrainingError when the loss or the norm is not finite; the batch and the tensors `more` are saved.
        """
        config = self.job.config.optimizer
        self.fabric.backward(losses["loss"])
        norm = nn.utils.clip_grad_norm_(self.losses.parameters(), GRADIENT_NORM_MAX, foreach=True)
        if not torch.isfinite(norm + losses["loss"].detach()):
            raise TrainingError(self._bad_batch(batch, step, losses, more))
        self.wrapped.step()
        self.wrapped.zero_grad(set_to_none=True)
        decay = min(config.ema_decay, (1.0 + step) / (10.0 + step))
        with torch.no_grad():
            torch._foreach_lerp_([*self.average.parameters()], [*self.net.parameters()], 1.0 - decay)
        return norm.detach()

    def generator(self, step: int) -> torch.Generator:
        """The source of randomness of a step on this process."""
        seed = (self.job.config.seed * 1_000_003 + step) * 1024 + self.fabric.global_rank
        return torch.Generator().manual_seed(seed)

    def _bad_batch(self, batch: Any, step: int, losses: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> str:
        """Writes the batch of a failed step and the tensors `more`; returns the sentence that names the file."""
        path = self.job.out / NONFINITE_BATCH
        tensors = {name: value for name, value in {**vars(batch), **more}.items() if isinstance(value, Tensor)}
        arrays: dict[str, Any] = {name: value.cpu().numpy() for name, value in tensors.items()}
        np.savez_compressed(path, step=step, **arrays)
        values = ", ".join(f"{name} {value.item():.4g}" for name, value in losses.items())
        return (
            f"step {step} gave a loss or gradient that is not finite ({values}); its batch is in {path}: "
            "go on from the last state with a lower optimizer.learning_rate"
        )

    def _report_row(self, progress: Progress, names: Sequence[str], values: Sequence[Tensor], rate: float) -> None:
        """A row of the log: means over the steps since the last row and over the processes, and the learning rate."""
        means: Any = torch.stack(list(values)).nanmean(0)
        if self.fabric.world_size > 1:
            means = self.fabric.all_reduce(means)
        self.reporter.row(progress, {**dict(zip(names, means.tolist(), strict=True)), "rate": rate})

    def _validation_is_due(self, progress: Progress, at: float) -> bool:
        """Validations are spread evenly over the schedule, each at a whole row of the log; the last is at its end."""
        validations = self.job.config.checkpointing.validations
        return self.job.validation_set is not None and at < 1.0 and at * validations >= progress.validations + 1

    def _validate(self, progress: Progress) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.fabric.is_global_zero:
            self.average.eval()
            metrics = self.job.validate(self.average, self.fabric.device)
            self.reporter.validated(progress, metrics)
        self.fabric.barrier()
        return metrics

    def _save(self, progress: Progress) -> None:
        if self.fabric.is_global_zero:
            tensors = train_state.tensors_of(self.losses, self.average, self.optimizer)
            train_state.save(self.job.out, progress, about_run(self.job), tensors)
        self.fabric.barrier()

    def _save_weights(self, progress: Progress, metrics: Mapping[str, float] | None) -> None:
        if not self.fabric.is_global_zero:
            return
        about = {
            "data": dict(self.job.sets),
            "settings": dataclasses.asdict(self.job.config),
            "steps": progress.step,
            "minutes": round(progress.elapsed_s / 60.0, 2),
        }
        if metrics:
            about["validation"] = {name: round(value, 3) for name, value in metrics.items()}
        self.job.save_weights(self.average, self.job.out / train_state.WEIGHTS, about)

    def _agreed(self, value: Any) -> Any:
        """The first process decides for all."""
        return self.fabric.broadcast(value) if self.fabric.world_size > 1 else value


def _groups(losses: nn.Module, decay: float) -> Sequence[dict[str, Any]]:
    """Matrices with decay; vectors, positions and tables of tokens without."""
    tables = {id(module.weight) for module in losses.modules() if isinstance(module, nn.Embedding)}
    free: list[nn.Parameter] = []
    bound: list[nn.Parameter] = []
    for name, parameter in losses.named_parameters():
        plain = parameter.dim() < 2 or id(parameter) in tables or name.rpartition(".")[2] in TABLES
        (free if plain else bound).append(parameter)
    return [{"params": bound, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]


# --- the schedule -----------------------------------------------------------------------------------------------------


def schedule_progress(config: ScheduleConfig, step: int, elapsed_s: float) -> float:
    """0 at the beginning, 1 at the end; a run of so many minutes ends when they are over, however slow the machine."""
    if config.minutes > 0.0:
        return min(1.0, elapsed_s / (60.0 * config.minutes))
    return min(1.0, step / config.steps)


def vision_only(config: OptimizerConfig, at: float) -> bool:
    """Whether only the vision encoder is trained."""
    return at < config.vision_pretrain_fraction


def learning_rate(config: OptimizerConfig, at: float, step: int) -> float:
    """In each part of the run a straight rise over the warm-up, then half a cosine down to the final share."""
    start, ended = (
        (0.0, config.vision_pretrain_fraction) if vision_only(config, at) else (config.vision_pretrain_fraction, 1.0)
    )
    at = (at - start) / max(ended - start, 1e-9)
    if at < WARMUP_FRACTION:
        return config.learning_rate * min((step + 1) / FIRST_STEPS, max(at, 1e-3) / WARMUP_FRACTION)
    along = (at - WARMUP_FRACTION) / (1.0 - WARMUP_FRACTION)
    falling = FINAL_LR_FRACTION + (1.0 - FINAL_LR_FRACTION) * 0.5 * (1.0 + math.cos(math.pi * along))
    return config.learning_rate * min((step + 1) / FIRST_STEPS, 1.0) * falling
