"""Rollouts sampled by a worker process, with the weights of the moment: bit by bit those of this process.

A policy gradient needs rollouts of the present weights, so each batch waits for its own: the weights travel with it. A
batch is not split, because a network rounds differently in another batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from ..core.domain import Array
from ..infra.parallel import RestartablePool, Workers
from ..model.layers import KeysValues
from ..model.token.net import PromptInputs, TokenNet, TokenNetConfig
from ..model.token.ops import GoalRules
from . import rollouts
from .rollouts import Rollouts
from .settings import RlConfig
from .trainer import TrainingError


class _Batch(NamedTuple):
    """All that the rollouts of a batch depend on; tensors as arrays, which any process can unpickle."""

    network: TokenNetConfig
    weights: dict[str, Array]
    inputs: tuple[Array, ...]  # `PromptInputs.tensors`
    rules: GoalRules
    config: RlConfig
    random_state: Array
    threads: int
    autocast: torch.dtype | None
    keys_values: tuple[tuple[Array, Array], ...]  # of cached prompts, per layer, as float32


@dataclass(eq=False)
class RolloutPool:
    """Instead of `rollouts.sample`, of a network on the CPU. Raises TrainingError if a worker fails."""

    workers: Workers

    def __post_init__(self) -> None:
        self._pool: RestartablePool[_Batch, tuple[Array, ...]] = RestartablePool(_sample, self.workers, portable=False)

    def __call__(
        self,
        net: TokenNet,
        inputs: PromptInputs,
        rules: GoalRules,
        config: RlConfig,
        generator: torch.Generator,
        keys_values: tuple[KeysValues, ...] = (),
    ) -> Rollouts:
        batch = _Batch(
            net.config,
            {name: value.detach().numpy() for name, value in net.state_dict().items()},
            tuple(each.numpy() for each in inputs.tensors),
            rules,
            config,
            generator.get_state().numpy(),
            torch.get_num_threads(),
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            tuple((keys.float().numpy(), values.float().numpy()) for keys, values in keys_values),
        )
        (outcome,) = self._pool.map([batch])
        if outcome.result is None:
            raise TrainingError(f"rollouts cannot be sampled: {outcome.reason}")
        return Rollouts(*map(torch.from_numpy, outcome.result))


def _sample(batch: _Batch, report: Callable[[Any], None]) -> tuple[Array, ...]:
    """Arrays of Rollouts; the task of a worker."""
    torch.set_num_threads(batch.threads)
    net = _network(batch.network)
    net.load_state_dict({name: torch.from_numpy(value) for name, value in batch.weights.items()})
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(batch.random_state))
    inputs = PromptInputs.of([torch.from_numpy(each) for each in batch.inputs])
    dtype = batch.autocast or torch.float32
    cached = tuple((torch.from_numpy(a).to(dtype), torch.from_numpy(b).to(dtype)) for a, b in batch.keys_values)
    with torch.autocast("cpu", batch.autocast, enabled=batch.autocast is not None):
        sampled = rollouts.sample(net, inputs, batch.rules, batch.config, generator, cached)
    return tuple(each.numpy() for each in sampled)


@cache
def _network(config: TokenNetConfig) -> TokenNet:
    return TokenNet(config)
