"""Training loss of the denoiser: squared error of the predicted clean futures, ego and neighbours.

    L = ego L_ego + neighbours L_neighbours + reward L_reward

Each scene is noised `samples` times and encoded once. A share of the scenes loses its whole
condition except the route (ReflexDiffusion section 4.1), which classifier-free guidance needs. Source of the loss:
Diffusion-Planner (Zheng et al., ICLR 2025), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.domain import Array
from ..model.denoiser.net import Context, DenoiserNet, without_conditions
from ..model.scene_encoder import POSE, VectorTensors
from ..planning.denoiser import END_TIME, alpha_sigma
from .settings import DiffusionDataConfig, DiffusionLossConfig

CONDITION_DROPOUT = 0.1  # share of scenes without any condition but the route: guidance and reflection need it
TIME_POWER = 0.5  # times are uniform numbers to this power: more noise than the published 1
MOTION = (4, 5, 6, 7, 9)  # columns of the ego's row: velocity, acceleration, yaw rate; its wheels stay turned
METRICS = ("loss", "ego", "neighbours", "ego_error_m")  # means over a batch


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class VectorBatch:
    """B scenes with their futures, K noise samples of each."""

    ego: Tensor  # (B, 10); this and the next six as `model.scene_encoder.VectorTensors`
    agents: Tensor
    static_objects: Tensor
    lanes: Tensor
    lane_limits: Tensor
    lane_has_limit: Tensor
    route_lanes: Tensor
    ego_future: Tensor  # (B, T, 3) poses
    agent_futures: Tensor  # (B, N, T, 3) poses
    agent_valid: Tensor  # (B, N, T) bool
    dropped: Tensor  # (B,) bool, scenes without conditions
    standing: Tensor  # (B,) bool, scenes whose ego stands still instead of its recorded motion: without imitation
    times: Tensor  # (B, K) of the diffusion process
    noise: Tensor  # (B, K, 1 + N, T, 4)
    indices: Tensor  # (B,) samples of the set
    mirrored: Tensor  # (B,) bool

    @staticmethod
    def of(
        arrays: Mapping[str, Array],
        indices: Array,
        mirrored: Array,
        config: DiffusionDataConfig,
        rng: np.random.Generator,
        mine: slice,
    ) -> VectorBatch:
        """The scenes `mine` of a batch of arrays (B, ..), of which some are mirrored (B,); all randomness is sampled
        for the whole batch."""
        samples = config.samples
        count, others, steps, _ = arrays["agent_futures"].shape
        sampled: dict[str, Any] = {
            "dropped": rng.random(count) < CONDITION_DROPOUT,
            "standing": rng.random(count) < config.standing_share,
            "times": np.maximum(rng.random((count, samples)) ** TIME_POWER, END_TIME).astype(np.float32),
            "noise": rng.standard_normal((count, samples, 1 + others, steps, POSE), np.float32),
        }
        whole: dict[str, Any] = {**arrays, **sampled, "indices": indices, "mirrored": mirrored}
        whole["ego"] = np.array(arrays["ego"])
        whole["ego"][np.ix_(sampled["standing"], MOTION)] = 0.0
        for name in ("lane_has_limit", "agent_valid"):
            whole[name] = whole[name] > 0
        return VectorBatch(**{name: torch.from_numpy(np.ascontiguousarray(each[mine])) for name, each in whole.items()})

    @property
    def inputs(self) -> VectorTensors:
        """The network's inputs; dropped scenes have only their route."""
        full = VectorTensors(**{name: getattr(self, name) for name in VectorTensors._fields})
        bare = without_conditions(full)
        masked = []
        for present, absent in zip(full, bare, strict=True):
            shape = (-1, *(1,) * (present.dim() - 1))
            masked.append(torch.where(self.dropped.reshape(shape), absent, present))
        return VectorTensors(*masked)

    def to(self, device: torch.device) -> VectorBatch:
        return VectorBatch(**{name: value.to(device, non_blocking=True) for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class PlanUpdate:
    """How the plans that are predicted at states of the sampler should change (`diffusion_rewards`)."""

    futures: Tensor  # (B, 1 + N, 1 + T, 4) states
    times: Tensor  # (B, 1)
    change: Tensor  # (B, T, 4) of the ego's predicted future, normalised


UpdateOf = Callable[[Context, Tensor], PlanUpdate]  # of encoded scenes and the present states (B, 1 + N, 4)


class DiffusionLosses(nn.Module):
    """The network with its loss: one forward pass per step, as data-parallel training requires."""

    def __init__(self, net: DenoiserNet, weights: DiffusionLossConfig, reward: float = 0.0) -> None:
        super().__init__()
        self.net, self.weights, self.reward = net, weights, reward
        self.mean: Tensor
        self.std: Tensor
        norm, others = net.config.spec.normalization, net.config.spec.predicted_agents
        for name in ("mean", "std"):
            rows = [getattr(norm, f"ego_future_{name}"), *others * (getattr(norm, f"agent_future_{name}"),)]
            self.register_buffer(name, torch.tensor(rows)[:, None], persistent=False)

    def forward(self, batch: VectorBatch, update_of: UpdateOf | None = None) -> dict[str, Tensor]:
        """Scalars METRICS; `ego_error_m` is the mean distance to the expert's future in metres.

        `update_of` computes the update by reward of the encoded scenes, which are encoded once for it and the losses.
        """
        inputs = batch.inputs
        states = self.net.present_states(inputs)
        context = self.net.encode(inputs)
        update = None if update_of is None else update_of(context, states)
        clean, valid = self.targets(batch)
        alpha, sigma = (
            torch.from_numpy(each.astype(np.float32)).to(clean.device)[..., None, None, None]
            for each in alpha_sigma(batch.times.cpu().numpy())
        )
        noisy = alpha * clean[:, None] + sigma * batch.noise
        present = states[:, None, :, None].expand(-1, noisy.shape[1], -1, -1, -1)
        futures, times = torch.cat([present, noisy], 3), batch.times
        if update is not None:  # one more sample of each scene: the state of the sampler
            futures, times = torch.cat([futures, update.futures[:, None]], 1), torch.cat([times, update.times], 1)
        predicted = self.net.denoise(futures, times, context)[..., 1:, :]
        error = (predicted.float() - clean[:, None]).square()
        squared = error.sum(-1)  # (B, K, 1 + N, T)
        imitated = (~batch.standing)[:, None, None].expand_as(squared[:, :, 0])
        ego = (squared[:, :, 0] * imitated).sum() / imitated.sum().clamp(min=1)
        counted = valid[:, None].expand(-1, squared.shape[1], -1, -1)
        neighbours = (squared[:, :, 1:] * counted).sum() / counted.sum().clamp(min=1)
        away = (error[:, :, 0, :, :2] * self.std[0, :, :2].square()).sum(-1).sqrt()
        distance = (away * imitated).sum() / imitated.sum().clamp(min=1)
        loss = self.weights.ego * ego + self.weights.neighbours * neighbours
        if update is not None:
            is_conditioned = ~batch.dropped[:, None, None]
            loss = loss - self.reward * (predicted[:, -1, 0].float() * update.change * is_conditioned).sum(-1).mean()
        return {"loss": loss, "ego": ego.detach(), "neighbours": neighbours.detach(), "ego_error_m": distance.detach()}

    def targets(self, batch: VectorBatch) -> tuple[Tensor, Tensor]:
        """(B, 1 + N, T, 4) normalised futures, 0 where unknown, and (B, N, T) bool, which neighbours' are known."""
        futures = torch.cat([batch.ego_future[:, None], batch.agent_futures], 1)
        heading = futures[..., 2:]
        scaled = (torch.cat([futures[..., :2], heading.cos(), heading.sin()], -1) - self.mean) / self.std
        valid = batch.agent_valid & ~batch.dropped[:, None, None]
        is_valid = torch.cat([torch.ones_like(valid[:, :1]), valid], 1)
        return scaled * is_valid[..., None], valid
