"""Weights in shards: of every weight, of its gradient and of AdamW's moments each process keeps a part (torch's FSDP2).

For networks that no single device holds with all that learning needs. Within a step the weights are gathered and stay
whole until their gradient is known, so whatever the step asks of the network finds it as it is without shards. What a
run leaves on disk is the same with shards and without, and either goes on from the other.
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
    """The losses, every layer of their network a piece that is gathered by itself, and the rest one more."""
    for module in (*losses.net.vision.layers, *losses.net.layers, losses):
        fully_shard(module, mesh=mesh["data_parallel"], reshard_after_forward=False)
    register_fsdp_forward_method(losses, "run_unsharded")
    return losses


def full_tensor(value: Tensor) -> Tensor:
    """A tensor with the parts of all processes, which all have to ask for it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_tensor(value: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def distribute_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A tensor that all processes have, shared out as a parameter is."""
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


@torch.no_grad()
def gather(average: Tensor, kept: Tensor, parameter: Tensor) -> None:
    """Writes into `average` what the processes have `kept`, each the part that it has of a parameter."""
    if isinstance(parameter, DTensor):
        shared = parameter.device_mesh, parameter.placements
        average.copy_(DTensor.from_local(kept, *shared, shape=parameter.shape, stride=parameter.stride()).full_tensor())
