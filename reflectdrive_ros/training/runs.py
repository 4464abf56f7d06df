"""Common to the runs of `train`: what a run is given, its devices, its folder, how it resumes and how it ends."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from ..core.config import ConfigError
from ..data import shards
from ..infra import arguments
from ..infra.parallel import Workers
from ..infra.progress import ShownProgress
from ..infra.provenance import write_numbers
from ..infra.signals import exit_code, print_stop
from . import settings, train_state
from .run_log import LOG, complete_rows
from .settings import DiffusionTrainConfig, TrainConfig
from .train_state import StateError


@dataclass(frozen=True)
class RunSources:
    """What a run is given besides its settings."""

    sets: Sequence[str]  # training sets: folders and URLs; for denoisers also recordings
    weights: Sequence[float]  # relative frequency of the scenes of each set
    val: Path | None  # validation set
    out: Path
    init_from: Path | None  # run, or folder of weights, that initialises this one
    workers: Workers  # read scenes and score plans
    json: Path | None = None  # file for the numbers of the whole run
    teacher: Path | None = None  # run, or folder of weights, whose plans are the targets instead of the expert's


def launch_fabric(config: TrainConfig | DiffusionTrainConfig) -> Fabric:
    """A launched Fabric. Raises ConfigError for devices that this machine does not have."""
    device = config.device
    if device.accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device.accelerator is cuda, but torch finds no CUDA device: use cpu or auto")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", device.devices))  # set by torchrun
    _check_device(device.accelerator, local, max(device.threads, 1))
    if device.threads:
        torch.set_num_threads(device.threads)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning_fabric")
    nodes = int(os.environ.get("WORLD_SIZE", local)) // local
    # of the last layer the prompt's part is never used, so some parameters have no gradient
    strategy = DDPStrategy(find_unused_parameters=True) if local * nodes > 1 else "auto"
    precision: Any = device.precision
    fabric = Fabric(
        accelerator=device.accelerator, strategy=strategy, devices=local, num_nodes=nodes, precision=precision
    )
    fabric.launch()
    return fabric


def _check_device(accelerator: str, processes: int, threads: int) -> None:
    """Raises ConfigError for more processes than GPUs, or more threads than the cores of this machine can run."""
    if accelerator != "cpu" and torch.cuda.is_available():
        there = torch.cuda.device_count()
        if processes > there:
            raise ConfigError(f"device.devices is {processes}, but this machine has {there} GPUs: set it to {there}")
        processes = 1  # their work is not on the processor
    most = arguments.process_count().high
    if processes * threads > most:
        raise ConfigError(
            f"device.devices times device.threads is {processes} x {threads}, more than "
            f"{arguments.available_cores()} cores can run at a time: set them to {most} together at most"
        )


def check_continues(out: Path, config: TrainConfig | DiffusionTrainConfig, columns: Sequence[str]) -> None:
    """Removes incomplete rows of the log. Raises StateError if `out` holds a run of other settings."""
    saved = train_state.read_progress(out)
    if saved is None:
        return
    other = settings.differences(config, saved[1]["settings"])
    if other:
        names = ", ".join(other)
        raise StateError(f"{out} holds a run with other settings ({names}): use those settings, or give another --out")
    complete_rows(out / LOG, columns)


def check_same_scenes(out: Path, key: str, folder: Path | str) -> None:
    """Raises StateError if `out` holds a run on other scenes than those of `key`."""
    saved = train_state.read_progress(out)
    if saved is not None and saved[1]["scenes"] != key:
        raise StateError(f"{out} holds a run on other scenes than {folder}, or of another teacher: give another --out")


def describe_set(folder: Path) -> dict[str, Any]:
    """A set of scenes, for the card."""
    index = shards.index_of(folder)
    return {"folder": folder.name, "set": index.set, "scenes": index.scenes, "made_by": dict(index.generator)}


@contextmanager
def prepare(
    fabric: Fabric, console: Console, description: str = "preparing scenes, shard by shard"
) -> Iterator[Callable[[int, int], None]]:
    """The first process prepares, then the others find what it stored. Yields the function of a progress bar of what is
    done and of the total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with fabric.rank_zero_first(), ShownProgress(console, *columns, TimeElapsedColumn()) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def resumption(out: Path) -> str:
    """What the same command does after a stop."""
    try:
        saved = train_state.read_progress(out)
    except StateError as fault:
        return str(fault)
    if saved is None:
        return "nothing saved yet, the same command starts from the beginning"
    return f"the same command resumes at step {saved[0].step}"


def finish(
    sources: RunSources, fabric: Fabric, stopped_by: int | None, done: train_state.Progress, console: Console
) -> int:
    """Tells how a run ended and writes its numbers; its exit code. Raises OSError."""
    out = sources.out
    if stopped_by is not None:
        if fabric.is_global_zero:
            print_stop(resumption(out))
        return exit_code(stopped_by)
    if fabric.is_global_zero and sources.json is not None:
        card = train_state.card_of(out)
        numbers = {"steps": done.step, "minutes": round(done.elapsed_s / 60, 2), "validation": card.get("validation")}
        write_numbers(sources.json, {"out": str(out), **numbers}, weights_sha256=card["sha256"])
    console.print(f"{done.step} steps in {done.elapsed_s / 60:.1f} minutes; weights are in {out / train_state.WEIGHTS}")
    return 0
