"""The Fabric of a run: device, precision, processes and threads from the settings."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from ..core.config import ConfigError
from ..infra import arguments
from .settings import DiffusionTrainConfig, TrainConfig


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
