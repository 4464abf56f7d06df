"""Contacts over time between the oriented boxes of N candidates and the boxes of A agents.

Few of the N x A x T pairs are close. Three filters precede the full separating-axis test: the box around all candidates
at an instant, circumscribed circles, and the two axes of the ego box.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .. import geometry
from ..domain import AgentKind, Array, Forecast, check_array
from .simulate import DT_S

SAMPLES = 51  # 0, 0.1, .. 5.0 s: 4 s of driving and 1 s of looking ahead
PAIRS_AT_ONCE = 15_000  # keeps the circle test in the cache


@dataclass(frozen=True, eq=False)
class AgentTracks:
    """Agents over the next 5 s, in the ego frame at t = 0; poses are box centres."""

    poses: Array  # (A, 51, 3) x m, y m, heading rad at 0, 0.1, .. 5.0 s
    present: Array  # (A, 51) bool; an absent agent has no contacts
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
            object.__setattr__(self, name, check_array("AgentTracks", name, getattr(self, name), shape, dtype))
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
            poses = np.repeat(poses, 2, axis=1)  # the forecast holds only the present: all agents stand
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

    @cached_property
    def cosines(self) -> Array:
        """(A, 51) of the headings."""
        return np.cos(self.poses[:, :, 2])

    @cached_property
    def sines(self) -> Array:
        return np.sin(self.poses[:, :, 2])

    @property
    def first_speeds_mps(self) -> Array:
        """(A,) speed when first present, which the official code uses at all times (quirk Q1)."""
        return np.asarray(self.speeds_mps[np.arange(len(self)), np.argmax(self.present, axis=1)])

    @property
    def are_static(self) -> Array:
        """(A,) bool: cones, barriers and the like. Agents of unknown kind count as road users."""
        return np.asarray(self.kinds == AgentKind.STATIC)


def find_contacts(
    x: Array, y: Array, cos: Array, sin: Array, size: Array, agents: AgentTracks, samples: Array
) -> tuple[Array, Array, Array]:
    """Indices (candidate, instant, agent) of all pairs of boxes that touch or overlap, three arrays (C,).

    Ego boxes (length, width) have their centres, and cosines and sines of their headings, in arrays (K, N), at K
    instants of N candidates; `samples` (K,) is the agents' sample of each instant. Equals geometry.boxes_overlap on all
    pairs.
    """
    half_length, half_width = 0.5 * size
    other_length, other_width = 0.5 * agents.sizes.T
    found = [(np.zeros(0, np.intp), np.zeros(0, np.intp))]
    for ego, agent, dx, dy in _nearby(x, y, 0.5 * float(np.hypot(*size)), agents, samples):
        sample = samples[ego // x.shape[1]] + agent * SAMPLES
        other_cos, other_sin = agents.cosines.ravel()[sample], agents.sines.ravel()[sample]
        ego_cos, ego_sin = cos.ravel()[ego], sin.ravel()[ego]
        turn_cos = np.abs(ego_cos * other_cos + ego_sin * other_sin)
        turn_sin = np.abs(ego_cos * other_sin - ego_sin * other_cos)
        # The lateral axis first: on a road most nearby agents are beside the ego, and this axis separates them.
        across = half_width + other_length[agent] * turn_sin + other_width[agent] * turn_cos
        left = np.flatnonzero(np.abs(dy * ego_cos - dx * ego_sin) <= across)
        ego, agent, dx, dy, turn_cos, turn_sin = (each[left] for each in (ego, agent, dx, dy, turn_cos, turn_sin))
        ego_cos, ego_sin, other_cos, other_sin = (each[left] for each in (ego_cos, ego_sin, other_cos, other_sin))
        length, width = other_length[agent], other_width[agent]
        touch = np.abs(dx * ego_cos + dy * ego_sin) <= half_length + length * turn_cos + width * turn_sin
        touch &= np.abs(dx * other_cos + dy * other_sin) <= length + half_length * turn_cos + half_width * turn_sin
        touch &= np.abs(dy * other_cos - dx * other_sin) <= width + half_length * turn_sin + half_width * turn_cos
        found.append((ego[touch], agent[touch]))
    ego, agent = (np.concatenate(parts) for parts in zip(*found, strict=True))
    instant, candidate = np.divmod(ego, x.shape[1])
    return candidate, instant, agent


def _nearby(
    x: Array, y: Array, radius: float, agents: AgentTracks, samples: Array
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Pairs whose circumscribed circles meet, by parts: flat index into (K, N), agent, and dx, dy from ego to agent."""
    reach = radius + 0.5 * np.hypot(agents.sizes[:, 0], agents.sizes[:, 1])  # (A,)
    at_x, at_y = agents.poses[:, samples, 0], agents.poses[:, samples, 1]  # (A, K)
    apart_x = np.maximum(x.min(axis=1) - at_x, at_x - x.max(axis=1))  # outside the box around all candidates
    apart_y = np.maximum(y.min(axis=1) - at_y, at_y - y.max(axis=1))
    near = (np.maximum(apart_x, apart_y) <= reach[:, None]) & agents.present[:, samples]
    agent, instant = np.nonzero(near)
    at_x, at_y, reach2 = at_x[near], at_y[near], reach[agent] ** 2
    count = x.shape[1]
    at_once = max(1, PAIRS_AT_ONCE // count)
    for first in range(0, len(agent), at_once):
        part = slice(first, first + at_once)
        dx, dy = at_x[part, None] - x[instant[part]], at_y[part, None] - y[instant[part]]
        apart2 = dx * dx
        apart2 += dy * dy
        flat = np.flatnonzero(apart2 <= reach2[part, None])
        pair = flat // count
        ego = flat + count * (instant[part] - np.arange(len(dx)))[pair]
        yield ego, agent[part][pair], dx.ravel()[flat], dy.ravel()[flat]


def clearances(
    x: Array, y: Array, heading: Array, size: Array, agents: AgentTracks, samples: Array, at_most_m: float
) -> Array:
    """(N, K) metres from ego boxes, as in `find_contacts`, to the nearest agent: 0 on contact, at most `at_most_m`.

    A lower bound by separating axes (see geometry.box_separation): exact unless corner faces corner.
    """
    clearance = np.full(x.size, at_most_m)
    for ego, agent, dx, dy in _nearby(x, y, 0.5 * float(np.hypot(*size)) + at_most_m, agents, samples):
        origin = np.zeros_like(dx)
        ego_poses = np.stack([origin, origin, heading.ravel()[ego]], axis=-1)
        other = np.stack([dx, dy, agents.poses[agent, samples[ego // x.shape[1]], 2]], axis=-1)
        gaps = geometry.box_separation(ego_poses, size, other, agents.sizes[agent])
        np.minimum.at(clearance, ego, np.maximum(gaps, 0.0))
    return np.asarray(clearance.reshape(x.shape).T)


def group_contacts(
    candidate: Array, instant: Array, agent: Array, agents: int, *, whole: bool, per_step: int = 1
) -> tuple[Array, Array, Array]:
    """Groups contacts, each group judged by its first contact.

    Returns the order (C,) that sorts contacts by candidate, agent and instant; the group (C,) of each in that order;
    and the offsets of the groups. With `whole`, all contacts of a candidate with an agent form one group: the official
    code ignores an agent after a first contact that was not the ego's fault. Otherwise a group is one unbroken contact,
    and a later contact is judged again. `per_step` instants make one time step.
    """
    pair = candidate * agents + agent
    order = np.lexsort((instant, pair))
    pair, step = pair[order], instant[order] // per_step
    begins = np.ones(len(order), bool)
    begins[1:] = pair[1:] != pair[:-1]
    if not whole:
        begins[1:] |= step[1:] > step[:-1] + 1
    return order, np.cumsum(begins) - 1, np.flatnonzero(begins)
