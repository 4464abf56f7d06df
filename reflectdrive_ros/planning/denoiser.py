"""The network of a diffusion planner, and the samplers that call it.

A denoiser predicts the clean futures of the ego and its neighbours from noisy ones. Futures are arrays (P, 1 + T, 4):
P agents, the ego first; x, y, cos, sin at 0, dt, .. T dt, normalised. Index 0 is the present pose, which is known, so
that samplers keep it.

The process is the variance-preserving SDE with a linear schedule: x_t = alpha(t) x_0 + sigma(t) noise, t from 0 to 1.
Samplers are DPM-Solver++ of second order (Lu et al. 2022, multistep, equal steps of log(alpha / sigma)) and DDIM, which
is its first order. Both end with the prediction at the smallest time, as Diffusion-Planner does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from ..core.domain import Array
from ..core.vector_spec import VectorSpec
from ..features.vectors import VectorInputs

BETA_MIN, BETA_MAX = 0.1, 20.0  # of the noise schedule
END_TIME = 1e-3  # the last evaluation
START_SCALE = 0.5  # of the noise that a sample starts from, as published

Predict = Callable[[Array, float], Array]  # noisy futures (P, 1 + T, 4), time -> clean futures


class Denoiser(Protocol):
    """A denoiser on some backend. Inputs and outputs are arrays; the context stays on its device."""

    @property
    def kind(self) -> Literal["denoiser"]:
        """As the card of the network says."""
        ...

    @property
    def spec(self) -> VectorSpec:
        """Format of the inputs and of the futures."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """guidance: the network was trained with dropped conditions, so that it also predicts without them."""
        ...

    def encode(self, inputs: VectorInputs, with_unconditional: bool) -> Any:
        """Encode the scene, and with `with_unconditional` also its decoupled condition, which has only the route."""
        ...

    def denoise(self, context: Any, futures: Array, time: float) -> Array:
        """Clean futures (B, P, 1 + T, 4) of noisy ones (P, 1 + T, 4).

        B is 1, or 2 of a context with the decoupled condition: with all conditions, then with the route only.
        """
        ...


# --- the noise schedule ----------------------------------------------------------------------------------------------


def alpha_sigma(time: Array | float) -> tuple[Array, Array]:
    """Factors of the clean futures and of the noise at diffusion times."""
    log_alpha = np.asarray(-0.25 * np.square(time) * (BETA_MAX - BETA_MIN) - 0.5 * np.asarray(time) * BETA_MIN)
    return np.exp(log_alpha), np.sqrt(-np.expm1(2.0 * log_alpha))


def log_snr(time: Array | float) -> Array:
    """log(alpha / sigma)"""
    alpha, sigma = alpha_sigma(time)
    return np.asarray(np.log(alpha) - np.log(sigma))


def time_of_log_snr(value: Array) -> Array:
    """Inverse of `log_snr`."""
    doubled = 2.0 * (BETA_MAX - BETA_MIN) * np.logaddexp(-2.0 * value, 0.0)
    return np.asarray(doubled / (np.sqrt(BETA_MIN**2 + doubled) + BETA_MIN) / (BETA_MAX - BETA_MIN))


def sampling_times(steps: int) -> Array:
    """(steps + 1,) decreasing times from 1 to END_TIME, equal steps of `log_snr`."""
    return time_of_log_snr(np.linspace(log_snr(1.0), log_snr(END_TIME), steps + 1))


def noise_of(futures: Array, clean: Array, time: float) -> Array:
    """The noise in futures at a time whose clean futures are given."""
    alpha, sigma = alpha_sigma(time)
    return np.asarray((futures - alpha * clean) / sigma)


# --- steps -----------------------------------------------------------------------------------------------------------


def ddim_step(futures: Array, clean: Array, time: float, after: float) -> Array:
    """Futures at an earlier time, from those at a time and their predicted clean futures; deterministic DDIM."""
    (alpha, sigma), before = alpha_sigma(after), alpha_sigma(time)[1]
    growth = np.expm1(log_snr(time) - log_snr(after))
    return np.asarray(sigma / before * futures - alpha * growth * clean)


def dpm_step(futures: Array, clean: Array, earlier: tuple[float, Array], time: float, after: float) -> Array:
    """Second-order multistep DPM-Solver++; `earlier` is the time of the step before and its predicted clean futures."""
    last_time, last_clean = earlier
    now = log_snr(time)
    ratio = (now - log_snr(last_time)) / (log_snr(after) - now)
    return ddim_step(futures, clean + 0.5 / ratio * (clean - last_clean), time, after)


def ddim_inverse(futures: Array, noise: Array, time: float, after: float) -> Array:
    """Futures at a time from those `after` it and a noise: the inverse of `ddim_step` for the noise of that step.

    ReflexDiffusion equation 8: sqrt(alpha_t) x + b noise, with alpha_t the ratio of squared alphas.
    """
    (alpha, sigma), (alpha_after, sigma_after) = alpha_sigma(time), alpha_sigma(after)
    shrink = alpha / alpha_after
    return np.asarray(shrink * futures + (sigma - shrink * sigma_after) * noise)


# --- samplers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StepResult:
    """One step of a sampler."""

    time: float
    after: float
    clean: Array  # predicted at `time`
    futures: Array  # at `after`


Correct = Callable[[StepResult, int], StepResult]  # a step and its number, from 0 -> that step, or a better one


def sample(predict: Predict, start: Array, present: Array, steps: int, correct: Correct | None = None) -> Array:
    """Clean futures (P, 1 + T, 4) sampled from noise `start`; `present` (P, 4) are the poses at index 0.

    `correct` may replace a step; the next one continues from its result.
    """
    times = sampling_times(steps).tolist()
    futures, earlier = with_present(start, present), None
    for number, (time, after) in enumerate(pairwise(times)):
        clean = predict(futures, time)
        if earlier is None:
            following = ddim_step(futures, clean, time, after)
        else:
            following = dpm_step(futures, clean, earlier, time, after)
        step = StepResult(time, after, clean, with_present(following, present))
        if correct is not None:
            step = correct(step, number)
        futures, earlier = step.futures, (time, step.clean)
    return with_present(predict(futures, times[-1]), present)


def with_present(futures: Array, present: Array) -> Array:
    """Futures whose index 0 is the present pose of each agent (P, 4)."""
    return np.concatenate([present[:, None], futures[:, 1:]], axis=1)


# --- normalised and in metres ----------------------------------------------------------------------------------------


def present_states(inputs: VectorInputs, spec: VectorSpec) -> Array:
    """(P, 4) present poses of the ego and its neighbours, normalised as inputs are; 0 where there is no neighbour."""
    norm = spec.normalization
    neighbours = inputs.agents[: spec.predicted_agents, -1]
    is_present = (neighbours[:, :4] != 0.0).any(axis=1, keepdims=True)
    scaled = (neighbours[:, :4] - np.array(norm.agent_mean[:4])) / np.array(norm.agent_std[:4])
    ego = (inputs.ego[:4] - np.array(norm.ego_mean[:4])) / np.array(norm.ego_std[:4])
    return np.concatenate([ego[None], np.where(is_present, scaled, 0.0)])


def in_metres(futures: Array, spec: VectorSpec) -> Array:
    """Futures (P, T, 4) with positions in metres."""
    norm, others = spec.normalization, spec.predicted_agents
    mean = np.array([norm.ego_future_mean, *others * (norm.agent_future_mean,)])
    std = np.array([norm.ego_future_std, *others * (norm.agent_future_std,)])
    return np.asarray(futures * std[:, None] + mean[:, None])


def poses_of(future: Array) -> Array:
    """(T, 3) poses of one future (T, 4) in metres."""
    return np.concatenate([future[:, :2], np.arctan2(future[:, 3:], future[:, 2:3])], axis=1)
