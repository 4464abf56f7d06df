"""Supervised training: one loop over steps, whose state can be saved and restored after any step.

A step depends on the state, the settings and its number only. Batches, perturbations and drafts take their randomness
from the seed and the number. A run that was killed and resumed from its last state therefore ends with the same
weights, bit by bit, as one that was not (on the same machine, if its length is given in steps; if it is given in
minutes, the learning rate follows the clock).
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ..data.cache import CachedSet
from ..errors import UserError
from ..model import pretrained
from ..model.token.net import TokenNet, TokenNetConfig
from ..model.token.rollout import Decoding
from . import data, fsdp, schedule, self_drafts, train_state, validation
from .data import Source
from .goal_scores import GoalScores
from .losses import Batch, Losses
from .settings import TrainConfig
from .train_state import Progress
from .validation import ValidationSet

NONFINITE_BATCH = "bad_batch.npz"
TABLES = ("camera", "instant", "slot", "route_position", "queries")  # learned tokens that are no nn.Embedding
LOSSES = ("loss", "dlm", "goal", "goal_score", "goal_value", "sap", "field", "aux_perception")


class TrainingError(UserError):
    """Training cannot continue; the message names the reason and what to do."""


@dataclass(frozen=True)
class PretrainedPaths:
    """Folders of public weights that initialise a new run's network."""

    language: Path | None = None  # a Qwen3
    vision: Path | None = None  # a SigLIP2

    @property
    def any_given(self) -> bool:
        return self.language is not None or self.vision is not None

    def fill(self, net: TokenNet) -> None:
        """Raises CheckpointError for weights of other shapes."""
        if self.language is not None:
            pretrained.load_qwen3(net, self.language)
        if self.vision is not None:
            pretrained.load_siglip(net, self.vision)


@dataclass(frozen=True, eq=False)
class Job:
    """What is trained, on which data, and where it is stored."""

    config: TrainConfig
    network: TokenNetConfig
    scenes: CachedSet
    validation_set: ValidationSet | None
    out: Path
    sets: Mapping[str, Any]  # description of the data for the card
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    init_from: Path | None = None  # folder of the run whose weights initialise this one
    pretrained_paths: PretrainedPaths = PretrainedPaths()
    goal_scores: GoalScores | None = None  # of goals of the scenes

    @property
    def about(self) -> dict[str, Any]:
        """What a state must have in common with a run that resumes it; also part of the card."""
        return {
            "settings": dataclasses.asdict(self.config),
            "network": dataclasses.asdict(self.network),
            "scenes": self.scenes.key,
            "sets": dict(self.sets),
        }


class Reporter(Protocol):
    """Receives the progress of a run."""

    def step(self, progress: Progress, at: float, scenes: int) -> None:
        """A step is done; `at` is 0 to 1."""

    def row(self, progress: Progress, values: Mapping[str, float]) -> None:
        """Means of losses and metrics since the last row."""

    def missing_keys(self, names: Sequence[str]) -> None:
        """Which parameters the run that this one begins with does not have."""

    def validated(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Result of a validation."""


def train(
    job: Job, fabric: Fabric, reporter: Reporter, stop: Callable[[], bool], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Trains from the state in `job.out`, or from the start, until the schedule ends or `stop` returns True.

    A new run may start with public weights, or with those of another. Writes the state, and the averaged weights with
    their card. Raises TrainingError when a loss or gradient is not finite, StateError when the state is another
    network's, CheckpointError when public weights are, OSError naming a file that cannot be written.
    """
    config = job.config
    net = TokenNet(job.network)
    net.initialise(torch.Generator().manual_seed(config.seed))
    found = train_state.read_progress(job.out)
    if found is None:
        job.pretrained_paths.fill(net)
    net = net.to(fabric.device)
    average = copy.deepcopy(net).requires_grad_(False)
    losses = Losses(net, config.loss, torch.Generator().manual_seed(config.seed)).to(fabric.device)
    progress = Progress()
    if found is None and job.init_from is not None:
        reporter.missing_keys(train_state.load_pretrained(job.init_from, losses, average))
    learning: Any = torch.compile(losses) if config.device.compile else losses
    model = fabric.setup_module(learning)  # from here on weights may be sharded
    optimizer = torch.optim.AdamW(
        _groups(losses, config.optimizer.weight_decay), lr=0.0, betas=(0.9, config.optimizer.beta2), fused=True
    )
    if found is not None:
        progress = found[0]
        train_state.restore(job.out, losses, average, optimizer)
    wrapped = fabric.setup_optimizers(optimizer)
    loop = _Loop(job, fabric, net, losses, average, model, wrapped, optimizer, reporter)
    return loop.run(progress, stop, clock)


@dataclass(eq=False)
class _Loop:
    job: Job
    fabric: Fabric
    net: TokenNet
    losses: Losses  # the network and what only training needs
    average: TokenNet
    model: nn.Module  # `losses`, as Fabric wraps it
    wrapped: Any  # the optimizer, likewise
    optimizer: torch.optim.Optimizer
    reporter: Reporter
    kept: list[Tensor] = dataclasses.field(init=False)  # part of the averaged weights on this process

    def __post_init__(self) -> None:
        pairs = zip(self.average.parameters(), self.net.parameters(), strict=True)
        self.kept = [fsdp.local_tensor(fsdp.distribute_like(average, parameter)) for average, parameter in pairs]

    def run(self, progress: Progress, stop: Callable[[], bool], clock: Callable[[], float]) -> Progress:
        config, checkpointing = self.job.config, self.job.config.checkpointing
        began, saved = clock() - progress.elapsed_s, clock()
        sums: list[Tensor] = []
        with closing(self._batches(progress.step)) as batches:
            for batch in batches:
                at = schedule.progress(config.schedule, progress.step, progress.elapsed_s)
                halted = self._agreed(stop())
                if at >= 1.0 or halted:
                    break
                rate = schedule.learning_rate(config.optimizer, at, progress.step)
                sums.append(self._step(batch, progress.step, at, rate))
                elapsed_s = self._agreed(clock() - began)
                progress = replace(progress, step=progress.step + 1, elapsed_s=elapsed_s)
                at = schedule.progress(config.schedule, progress.step, elapsed_s)
                self.reporter.step(progress, at, config.data.batch)
                if progress.step % checkpointing.log_steps == 0:
                    means = self._mean(torch.stack(sums).nanmean(0)).tolist()
                    self.reporter.row(progress, {**dict(zip((*LOSSES, "norm"), means, strict=True)), "rate": rate})
                    sums.clear()
                if self._validation_is_due(progress, at):
                    self._validate(progress)
                    progress = replace(progress, validations=progress.validations + 1)
                if self._agreed(clock() - saved >= 60.0 * checkpointing.checkpoint_minutes):
                    self._save(progress)
                    saved = clock()
        last = None
        if self.job.validation_set is not None and not halted:
            last = self._validate(progress)
        self._save(progress)
        self._save_weights(progress, last)
        return progress

    def _batches(self, first: int) -> Generator[Batch]:
        job = self.job
        source = Source(
            job.scenes,
            job.config.data,
            job.network.layout,
            job.config.seed,
            job.goal_scores,
        )
        return data.batches(source, first, self.fabric.global_rank, self.fabric.world_size)

    def _step(self, batch: Batch, step: int, at: float, rate: float) -> Tensor:
        """One step; the losses and the norm of the gradient."""
        config = self.job.config
        batch = batch.to(self.fabric.device)
        vision_only = schedule.vision_only(config.optimizer, at)
        if config.data.draft_fraction > 0.0 and at >= config.data.draft_start and not vision_only:
            batch = self._with_self_drafts(batch, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        found = self.model(batch, vision_only)
        self.fabric.backward(found["loss"])
        most = config.optimizer.gradient_clip
        norm = fsdp.full_tensor(nn.utils.clip_grad_norm_(self.losses.parameters(), most, foreach=True))
        if not torch.isfinite(norm + found["loss"].detach()):
            raise TrainingError(self._bad_batch(batch, step, found))
        self.wrapped.step()
        self.wrapped.zero_grad(set_to_none=True)
        kept = min(config.optimizer.ema_decay, (1.0 + step) / (10.0 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self.kept, [fsdp.local_tensor(each) for each in self.net.parameters()], 1.0 - kept)
        return torch.stack([*(found[name].detach().float() for name in LOSSES), norm])

    def _with_self_drafts(self, batch: Batch, step: int) -> Batch:
        config = self.job.config
        rank = self.fabric.global_rank
        generator = torch.Generator().manual_seed((config.seed * 1_000_003 + step) * 1024 + rank)
        scenes = round(config.data.draft_fraction * len(batch.text))
        temperature = config.data.draft_temperature
        with self.fabric.autocast():
            return self.losses.run_unsharded(
                lambda net: self_drafts.add_self_drafts(net, batch, scenes, temperature, generator)
            )

    def _bad_batch(self, batch: Batch, step: int, found: Mapping[str, Tensor]) -> str:
        path = self.job.out / NONFINITE_BATCH
        arrays: dict[str, Any] = {
            k: value.cpu().numpy() for k, value in vars(batch).items() if isinstance(value, Tensor)
        }
        np.savez_compressed(path, step=step, **arrays)
        values = ", ".join(f"{name} {found[name].item():.4g}" for name in LOSSES)
        return (
            f"step {step} gave a loss or gradient that is not finite ({values}); its batch is in {path}: "
            "go on from the last state with a lower optimizer.learning_rate"
        )

    def _validation_is_due(self, progress: Progress, at: float) -> bool:
        """Validations are spread evenly over the schedule; the last is at its end."""
        wanted = self.job.config.checkpointing.validations
        return self.job.validation_set is not None and at < 1.0 and at * wanted >= progress.validations + 1

    def _validate(self, progress: Progress) -> dict[str, float]:
        found: dict[str, float] = {}
        self._gather()
        if self.fabric.is_global_zero and self.job.validation_set is not None:
            self.average.eval()
            found = validation.validate(self.average, self.job.validation_set, self.job.decoding, self.fabric.device)
            self.reporter.validated(progress, found)
        self.fabric.barrier()
        return found

    def _gather(self) -> None:
        """Gathers the averaged weights, if they are sharded."""
        for each in zip(self.average.parameters(), self.kept, self.net.parameters(), strict=True):
            fsdp.gather(*each)

    def _save(self, progress: Progress) -> None:
        self._gather()
        tensors = train_state.tensors_of(self.losses, self.average, self.optimizer)
        if self.fabric.is_global_zero:
            train_state.save(self.job.out, progress, self.job.about, tensors)
        self.fabric.barrier()

    def _save_weights(self, progress: Progress, found: Mapping[str, float] | None) -> None:
        if not self.fabric.is_global_zero:
            return
        about = {
            "data": dict(self.job.sets),
            "settings": dataclasses.asdict(self.job.config),
            "steps": progress.step,
            "minutes": round(progress.elapsed_s / 60.0, 2),
        }
        if found:
            about["validation"] = {name: round(value, 3) for name, value in found.items()}
        train_state.save_weights(self.average, self.job.out / train_state.WEIGHTS, about)

    def _mean(self, values: Tensor) -> Tensor:
        """Of all processes."""
        return self.fabric.all_reduce(values) if self.fabric.world_size > 1 else values  # type: ignore[return-value]

    def _agreed(self, value: Any) -> Any:
        """The first process decides for all."""
        return self.fabric.broadcast(value) if self.fabric.world_size > 1 else value


def _groups(losses: Losses, decay: float) -> Sequence[dict[str, Any]]:
    """Matrices with decay; vectors, positions and tables of tokens without."""
    tables = {id(module.weight) for module in losses.modules() if isinstance(module, nn.Embedding)}
    free: list[nn.Parameter] = []
    bound: list[nn.Parameter] = []
    for name, parameter in losses.named_parameters():
        plain = parameter.dim() < 2 or id(parameter) in tables or name.rpartition(".")[2] in TABLES
        (free if plain else bound).append(parameter)
    return [{"params": bound, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]
