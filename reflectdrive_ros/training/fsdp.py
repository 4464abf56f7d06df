"""Sharded training (torch's FSDP2): each process holds a part of every weight, gradient and AdamW moment.

For networks that do not fit into one device with their training state. Within a step the weights are gathered until
their gradient is computed, so that all operations of the step are the same as without shards. Files of a run are the
same with and without shards, and either can resume the other.
"""

from __future__ import annotations

import torch
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from .losses import Losses


def strategy(processes: int) -> ModelParallelStrategy:
    """For a Fabric of so many processes, one per device."""
    return ModelParallelStrategy(shard_losses, processes, tensor_parallel_size=1, save_distributed_checkpoint=False)


def shard_losses(losses: Losses, mesh: DeviceMesh) -> Losses:
    """Shards the losses: every layer of their network is gathered by itself, and the rest as one unit."""
    for module in (*losses.net.vision.layers, *losses.net.layers, losses):
        fully_shard(module, mesh=mesh["data_parallel"], reshard_after_forward=False)
    register_fsdp_forward_method(losses, "run_unsharded")
    return losses


def full_tensor(value: Tensor) -> Tensor:
    """A tensor with the parts of all processes, which all have to ask for it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_tensor(value: Tensor) -> Tensor:
    """The part of a tensor on this process."""
    return value.to_local() if isinstance(value, DTensor) else value


def distribute_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A tensor of all processes, distributed as a parameter is."""
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


@torch.no_grad()
def gather(average: Tensor, shard: Tensor, parameter: Tensor) -> None:
    """Writes `shard` of all processes into `average`; each process has its part of every parameter."""
    if isinstance(parameter, DTensor):
        shared = parameter.device_mesh, parameter.placements
        average.copy_(
            DTensor.from_local(shard, *shared, shape=parameter.shape, stride=parameter.stride()).full_tensor()
        )
