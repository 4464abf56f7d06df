"""Who touches whom, when: oriented boxes of N candidates against the boxes of A agents over time.

Few of the N x A x T pairs are near each other, so they are sifted: agents outside the box around all candidates of an
instant, then circles, then the two axes of the ego box, and only what is left takes the full separating-axis test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import geometry
from ..domain import AgentKind, Array, Forecast, checked
from .simulate import DT_S

SAMPLES = 51  # 0, 0.1, .. 5.0 s: 4 s of driving and 1 s of looking ahead
PAIRS_AT_ONCE = 2_000_000  # bounds the memory of the circle test


@dataclass(frozen=True, eq=False)
class AgentTracks:
    """Other road users over the next 5 s, in the ego frame of now; poses are box centres."""

    poses: Array  # (A, 51, 3) x m, y m, heading rad at 0, 0.1, .. 5.0 s
    present: Array  # (A, 51) bool; an absent agent touches nobody
    speeds_mps: Array  # (A, 51) over ground
    sizes: Array  # (A, 2) length m, width m
    kinds: Array  # (A,) AgentKind

    def __post_init__(self) -> None:
        count = len(np.atleast_1d(self.poses))
        for name, shape, dtype in (
            ("poses", (count, SAMPLES, 3), np.float64),
            ("present", (count, SAMPLES), np.bool_),
            ("speeds_mps", (count, SAMPLES), np.float64),
            ("sizes", (count, 2), np.float64),
            ("kinds", (count,), np.int64),
        ):
            object.__setattr__(self, name, checked("AgentTracks", name, getattr(self, name), shape, dtype))
        if (self.sizes <= 0).any():
            raise ValueError("AgentTracks.sizes holds a length or width that is not positive")

    def __len__(self) -> int:
        return len(self.poses)

    @staticmethod
    def none() -> AgentTracks:
        return AgentTracks(
            np.zeros((0, SAMPLES, 3)),
            np.zeros((0, SAMPLES), bool),
            np.zeros((0, SAMPLES)),
            np.zeros((0, 2)),
            np.zeros(0, np.int64),
        )

    @staticmethod
    def of_forecast(forecast: Forecast, kinds: Array) -> AgentTracks:
        """A forecast at 10 Hz, linear between its poses; past its end the agents go on as in its last interval."""
        times = DT_S * np.arange(SAMPLES)
        poses = np.asarray(forecast.poses)
        if poses.shape[1] == 1:
            poses = np.repeat(poses, 2, axis=1)  # a forecast of now alone: everybody stands
        heading = np.unwrap(poses[:, :, 2], axis=1)
        place = np.concatenate([poses[:, :, :2], heading[:, :, None]], axis=2)
        before = np.clip((times / forecast.dt_s).astype(int), 0, poses.shape[1] - 2)
        share = (times / forecast.dt_s - before)[:, None]
        step = place[:, before + 1] - place[:, before]
        speeds = np.hypot(step[:, :, 0], step[:, :, 1]) / forecast.dt_s
        turning = np.minimum(share, 1.0)  # past the end they go straight on
        at = place[:, before] + step * np.concatenate([share, share, turning], axis=1)
        at[:, :, 2] = geometry.wrap(at[:, :, 2])
        return AgentTracks(at, np.ones(at.shape[:2], bool), speeds, forecast.sizes, kinds)

    @property
    def first_speeds_mps(self) -> Array:
        """(A,) speed when first present: what the official code calls the agent's speed at all times (quirk Q1)."""
        return np.asarray(self.speeds_mps[np.arange(len(self)), np.argmax(self.present, axis=1)])

    @property
    def are_static(self) -> Array:
        """(A,) bool: cones, barriers and the like. What is of unknown kind is treated as a road user."""
        return np.asarray(self.kinds == AgentKind.STATIC)


def touching(centers: Array, size: Array, agents: AgentTracks, samples: Array) -> tuple[Array, Array, Array]:
    """Which boxes touch or overlap: indices (candidate, instant, agent) of all contacts, three arrays (C,).

    `centers` (N, K, 3) are poses of the ego box (length, width) at K instants, `samples` (K,) the agents' sample of
    each instant. Equals geometry.boxes_overlap on all pairs.
    """
    nearby = _nearby(centers, 0.5 * float(np.hypot(*size)), agents, samples)
    candidate, instant, agent = nearby
    if len(candidate) == 0:
        return nearby
    ego, other = centers[candidate, instant], agents.poses[agent, samples[instant]]
    turn = other[:, 2] - ego[:, 2]
    cos, sin = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    dx, dy = other[:, 0] - ego[:, 0], other[:, 1] - ego[:, 1]
    half_length, half_width = 0.5 * size
    half = 0.5 * agents.sizes[agent]
    ego_cos, ego_sin = np.cos(ego[:, 2]), np.sin(ego[:, 2])
    touch = np.abs(dx * ego_cos + dy * ego_sin) <= half_length + half[:, 0] * cos + half[:, 1] * sin
    touch &= np.abs(dy * ego_cos - dx * ego_sin) <= half_width + half[:, 0] * sin + half[:, 1] * cos
    left = np.flatnonzero(touch)
    cos, sin, dx, dy, half = cos[left], sin[left], dx[left], dy[left], half[left]
    heading = other[left, 2]
    other_cos, other_sin = np.cos(heading), np.sin(heading)
    touch = np.abs(dx * other_cos + dy * other_sin) <= half[:, 0] + half_length * cos + half_width * sin
    touch &= np.abs(dy * other_cos - dx * other_sin) <= half[:, 1] + half_length * sin + half_width * cos
    left = left[touch]
    return candidate[left], instant[left], agent[left]


def _nearby(centers: Array, radius: float, agents: AgentTracks, samples: Array) -> tuple[Array, Array, Array]:
    """Indices (candidate, instant, agent) of pairs whose circumscribed circles meet."""
    reach = radius + 0.5 * np.hypot(agents.sizes[:, 0], agents.sizes[:, 1])  # (A,)
    at = agents.poses[:, samples, :2]  # (A, K, 2)
    low, high = centers[:, :, :2].min(axis=0), centers[:, :, :2].max(axis=0)  # (K, 2)
    apart = np.maximum(low - at, at - high).max(axis=2)  # (A, K) m outside the box around all candidates
    agent, instant = np.nonzero((apart <= reach[:, None]) & agents.present[:, samples])
    x, y = np.ascontiguousarray(centers[:, :, 0].T), np.ascontiguousarray(centers[:, :, 1].T)  # (K, N)
    found_candidate, found_pair = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    at_once = max(1, PAIRS_AT_ONCE // max(1, len(centers)))
    for first in range(0, len(agent), at_once):
        part = slice(first, first + at_once)
        dx = x[instant[part]] - at[agent[part], instant[part], 0, None]
        dy = y[instant[part]] - at[agent[part], instant[part], 1, None]
        pair, candidate = np.nonzero(dx * dx + dy * dy <= (reach[agent[part]] ** 2)[:, None])
        found_candidate.append(candidate)
        found_pair.append(pair + first)
    pair = np.concatenate(found_pair)
    return np.concatenate(found_candidate), instant[pair], agent[pair]


def clearances(centers: Array, size: Array, agents: AgentTracks, samples: Array, at_most_m: float) -> Array:
    """(N, K) metres from the ego box at poses (N, K, 3) to the nearest agent, 0 where they touch, at most `at_most_m`.

    A lower bound by separating axes (see geometry.box_separation): exact unless corner faces corner.
    """
    clearance = np.full(centers.shape[:2], at_most_m)
    candidate, instant, agent = _nearby(centers, 0.5 * float(np.hypot(*size)) + at_most_m, agents, samples)
    gaps = geometry.box_separation(
        centers[candidate, instant], size, agents.poses[agent, samples[instant]], agents.sizes[agent]
    )
    np.minimum.at(clearance, (candidate, instant), np.maximum(gaps, 0.0))
    return clearance


def grouped(
    candidate: Array, instant: Array, agent: Array, agents: int, *, whole: bool, per_step: int = 1
) -> tuple[Array, Array, Array]:
    """Contacts in groups, each of which is judged by its first contact.

    Returns the order (C,) that sorts contacts by candidate, agent and instant; the group (C,) of each in that order;
    and the places where groups begin. With `whole`, all contacts of a candidate with an agent are one group: the
    official code never looks again at an agent whose first contact was not the ego's fault. Otherwise a group is one
    unbroken contact and a new meeting is judged anew. `per_step` instants make one time step.
    """
    pair = candidate * agents + agent
    order = np.lexsort((instant, pair))
    pair, step = pair[order], instant[order] // per_step
    begins = np.ones(len(order), bool)
    begins[1:] = pair[1:] != pair[:-1]
    if not whole:
        begins[1:] |= step[1:] > step[:-1] + 1
    return order, np.cumsum(begins) - 1, np.flatnonzero(begins)
