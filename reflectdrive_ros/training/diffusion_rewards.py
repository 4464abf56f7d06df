"""Reward of the denoiser's plans: how a predicted plan should change for a higher expected driving score.

Imitation alone is a poor teacher of what traffic punishes: a plan that is half a metre too long costs as much as one
that is half a metre too short, though only the first may hit the car ahead. So plans around the predicted one are
scored in the recorded future, with the predicted plan mu as the mean of a Gaussian policy:

    x_k = mu + sum_j z_kj m_j,   z ~ N(0, 1),   smooth modes m_j along and lateral to the route
    g = 1 / K sum_k (r_k - r'_k) / 2 (x_k - mu)         r'_k: the reward of mu - (x_k - mu)

g estimates the gradient of the expected reward with respect to mu, times the covariance of the policy (REINFORCE with
antithetic samples; Salimans et al., Evolution Strategies, 2017). The loss is -<mu, g>, so that g passes through the
network. mu is predicted from the states that the sampler visits when it starts without noise, as in the car.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.domain import Array
from ..core.vector_spec import VectorSpec
from ..model.denoiser.net import Context, DenoiserNet
from ..planning import denoiser
from ..planning.ego_future import reference_line
from ..planning.plan_changes import PlanModes, sample_offsets
from ..scoring.frenet import cartesian_poses
from ..scoring.scorer import WAYPOINT_TIMES_S
from .diffusion_losses import VectorBatch
from .rewards import COLUMNS, PlansOfScene, ScorePool
from .vector_data import VectorSet

DENOISER_MODES = PlanModes(pace_m=1.5, delay_m=0.8, offset_m=0.25, bulge_m=0.2)
MIN_SPEED_MPS = 2.0  # of a plan, below which an offset does not turn it


class SamplerState(NamedTuple):
    """Where the sampler is in B scenes."""

    futures: Tensor  # (B, P, 1 + T, 4) noisy, index 0 is the present
    time: float
    plan: Array  # (B, T, 3) ego poses that are predicted there, Frenet coordinates


class PlanChanges(NamedTuple):
    """How the plans of B scenes should change, and their rewards."""

    change: Array  # (B, T, 4) g of x, y, cos, sin, normalised
    rewards: Array  # (B, 6) `rewards.COLUMNS` of the predicted plans; NaN without a scene


@torch.no_grad()
def sampler_state(net: DenoiserNet, context: Context, present: Tensor, evaluations: int, steps: int) -> SamplerState:
    """The DDIM sampler of `steps` steps after some `evaluations`, from a start without noise; `present` (B, P, 4)."""
    spec = net.config.spec
    shape = (*present.shape[:2], 1 + spec.future_steps, present.shape[-1])
    predict = batch_predict(net, context, present)
    flat = present.double().cpu().numpy().reshape(-1, present.shape[-1])
    futures = denoiser.with_present(np.zeros((len(flat), *shape[2:])), flat)
    times = denoiser.sampling_times(steps).tolist()
    for time, after in pairwise(times[: evaluations + 1]):
        futures = denoiser.with_present(denoiser.ddim_step(futures, predict(futures, time), time, after), flat)
    time = times[evaluations]
    clean = denoiser.in_metres(predict(futures, time).reshape(shape), spec)
    plan = np.stack([denoiser.poses_of(future) for future in clean[:, 0, 1:]])
    state = torch.as_tensor(futures.reshape(shape), dtype=torch.float32, device=present.device)
    return SamplerState(state, time, plan)


def batch_predict(net: DenoiserNet, context: Context, present: Tensor) -> denoiser.Predict:
    """Clean futures (B P, 1 + T, 4) of noisy ones at a time, of B scenes at once; `present` (B, P, 4)."""
    count, futures, _ = present.shape

    def predict(noisy: Array, at: float) -> Array:
        x = torch.as_tensor(noisy, dtype=torch.float32, device=present.device)
        times = torch.full((count, 1), at, device=present.device)
        denoised = net.denoise(x.reshape(count, 1, futures, *noisy.shape[1:]), times, context)
        return np.asarray(denoised.double().cpu().numpy()).reshape(noisy.shape)

    return predict


def plan_changes(
    plans: Array, batch: VectorBatch, scenes: VectorSet, pool: ScorePool, rng: np.random.Generator, pairs: int
) -> PlanChanges:
    """Samples and scores plans around plans (B, T, 3) of a batch of `scenes`, Frenet coordinates of its routes.

    Raises SetError for a scene that cannot be scored.
    """
    spec, count = scenes.spec, len(plans)
    route_lanes = batch.route_lanes.double().cpu().numpy()
    changes = sampled_changes(plans, rng, pairs, spec.future_dt_s)  # (B, K, T, 3)
    sampled = np.concatenate([plans[:, None], plans[:, None] + changes, plans[:, None] - changes], axis=1)
    sampled[..., 0] = np.maximum.accumulate(np.maximum(sampled[..., 0], 0.0), axis=2)  # no car reverses
    instants = waypoint_steps(spec)
    tasks = []
    each_scene = zip(batch.indices.tolist(), batch.mirrored.tolist(), batch.standing.tolist(), strict=True)
    for row, (index, mirrored, standing) in enumerate(each_scene):
        scene = scenes.scene_of(index)
        if scene is not None:
            poses = _in_scene(sampled[row][:, instants], route_lanes[row], mirrored, spec)
            tasks.append(PlansOfScene(row, *scene, True, poses, standing))
    rewards = np.full((count, 1 + 2 * changes.shape[1], len(COLUMNS)), np.nan)
    if tasks:
        rewards[[task.row for task in tasks]] = pool.score(tasks)
    ahead, back = np.split(rewards[:, 1:, 0], 2, axis=1)
    advantages = np.nan_to_num(0.5 * (ahead - back))
    mean = np.einsum("bk,bktc->btc", advantages, changes) / changes.shape[1]
    std = np.array(spec.normalization.ego_future_std)
    turned = np.stack([-np.sin(plans[..., 2]), np.cos(plans[..., 2])], axis=-1) * mean[..., 2:]
    return PlanChanges(np.concatenate([mean[..., :2], turned], axis=-1) / std, rewards[:, 0])


def waypoint_steps(spec: VectorSpec) -> Array:
    """(8,) indices of 0.5, 1.0, .. 4 s in a future."""
    return np.asarray(np.rint(WAYPOINT_TIMES_S / spec.future_dt_s).astype(int) - 1)


def sampled_changes(plans: Array, rng: np.random.Generator, pairs: int, dt_s: float) -> Array:
    """(B, K, T, 3) random smooth changes of plans (B, T, 3) along and lateral to the route (`plan_changes`), and of the
    headings with them."""
    forward, left = sample_offsets(plans.shape[0], pairs, plans.shape[1], rng, DENOISER_MODES)
    speed = np.maximum(np.gradient(plans[..., 0], dt_s, axis=1), MIN_SPEED_MPS)
    turn = np.gradient(left, dt_s, axis=-1) / speed[:, None]
    return np.stack([forward, left, turn], axis=-1)


def _in_scene(plans: Array, route_lanes: Array, mirrored: bool, spec: VectorSpec) -> Array:
    """Plans (M, 8, 3) in the ego frame of the scene as it was recorded."""
    poses = cartesian_poses(plans, reference_line(route_lanes, spec))
    return poses * np.array([1.0, -1.0, -1.0]) if mirrored else poses
