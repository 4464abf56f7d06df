"""Estimates accelerations and yaw rates of agents from their history.

Both are slopes of a least-squares line through the newest instants, times the share of such a slope that lasts. The
share is measured on the same history, over all agents: slopes of 1 s ago are compared with the changes that followed.
It is near 1 for smooth tracks and near 0 where derivatives are noise, as in tracks from overhead video.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .domain import AgentHistory, AgentKind, Agents, Array

TURNING_MPS = 1.0  # headings of slower agents are noise
TURNING_MAX_RPS = 1.0
ACCELERATION_RANGE_MPS2 = (-8.0, 3.0)  # emergency braking, a quick start


@dataclass(frozen=True)
class SlopeFit:
    """How a slope is estimated. `prior_share` counts as one agent whose slope predicted a change of `prior_change`."""

    instants: int  # of the line
    decay_s: float  # time constant of a slope
    lag: int  # instants between the two windows that give the share
    prior_share: float
    prior_change: float  # in the unit of the values


SPEED_FIT = SlopeFit(instants=4, decay_s=1.0, lag=10, prior_share=1.0, prior_change=1.0)
HEADING_FIT = SlopeFit(instants=4, decay_s=1.0, lag=10, prior_share=0.0, prior_change=0.1)


def with_motion(agents: Agents, history: AgentHistory) -> Agents:
    """Agents with the accelerations and yaw rates of their history (its rows in the order of the agents).

    Both are 0 for agents that were seen in less than three instants of the window; accelerations of pedestrians are 0.
    """
    if len(agents) == 0:
        return replace(agents, accelerations_mps2=np.zeros(0), yaw_rates_rps=np.zeros(0))
    speeds_mps = np.hypot(history.velocities_mps[..., 0], history.velocities_mps[..., 1])  # (A, 21)
    headings = np.unwrap(np.where(history.valid, history.poses[..., 2], agents.poses[:, 2:]), axis=1)
    rolling = agents.kinds != AgentKind.PEDESTRIAN  # they start and stop within a step
    accelerations = np.where(rolling, expected_slopes(speeds_mps, history.valid, rolling, SPEED_FIT), 0.0)
    turning = speeds_mps[:, -1] > TURNING_MPS
    yaw_rates = np.where(turning, expected_slopes(headings, history.valid, turning, HEADING_FIT), 0.0)
    return replace(
        agents,
        accelerations_mps2=np.clip(accelerations, *ACCELERATION_RANGE_MPS2),
        yaw_rates_rps=np.clip(yaw_rates, -TURNING_MAX_RPS, TURNING_MAX_RPS),
    )


def expected_slopes(values: Array, valid: Array, measured: Array, fit: SlopeFit) -> Array:
    """(A,) slopes per second of values (A, 21) at the last instant, times the share that lasts.

    The share, 0 to 1, is measured on the agents `measured` (A,) bool that were seen in all instants.
    """
    last = values.shape[1] - 1
    whole = measured & valid.all(axis=1)
    lag_s = fit.lag * AgentHistory.DT_S
    past = values[whole, : last - fit.lag + 1]
    expected = _slopes(past, np.ones(past.shape, bool), fit.instants) * decayed(lag_s, fit.decay_s)
    change = values[whole, last] - values[whole, last - fit.lag]
    prior = fit.prior_change**2
    share = (expected @ change + fit.prior_share * prior) / (expected @ expected + prior)
    # Squared: a share that is measured as small is mostly noise itself.
    return np.asarray(np.clip(share, 0.0, 1.0) ** 2 * _slopes(values, valid, fit.instants))


def decayed(times_s: Array | float, decay_s: Array | float) -> Array:
    """The integral of exp(-t / decay_s) from 0 to `times_s`, s: how long a decaying rate has acted."""
    return np.asarray(decay_s * -np.expm1(-np.asarray(times_s) / decay_s))


def _slopes(values: Array, valid: Array, instants: int) -> Array:
    """(A,) slopes per second of the lines through the last `instants` values (A, T); 0 for less than three."""
    values, weight = values[:, -instants:], valid[:, -instants:].astype(float)
    times_s = AgentHistory.DT_S * np.arange(values.shape[1])
    count = np.maximum(weight.sum(axis=1, keepdims=True), 1.0)
    offset_s = weight * (times_s - (weight @ times_s)[:, None] / count)
    spread = np.einsum("at,at->a", offset_s, offset_s)
    slopes = np.einsum("at,at->a", offset_s, values) / np.maximum(spread, 1e-9)
    return np.where(weight.sum(axis=1) >= 3.0, slopes, 0.0)
