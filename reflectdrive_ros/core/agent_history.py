"""Buffer of observed tracked agents, and their history over the last 2 s, for closed loop and node."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from . import geometry
from .domain import AgentHistory, Agents, Array

KEPT_S = 2.5  # longer than the history, so that its oldest instant has a sighting before it
GAP_MAX_S = 0.5  # between two sightings of an agent; it is invalid within a longer gap
SAME_INSTANT_S = 1e-6
BACK_S = AgentHistory.DT_S * np.arange(1 - AgentHistory.STEPS, 1)  # instants of a history


@dataclass(frozen=True, eq=False)
class Sighting:
    """Agents at one stamp, in the map frame."""

    stamp_ns: int
    rows: dict[Hashable, int]  # tracking id -> row
    poses: Array  # (A, 3)
    velocities_mps: Array  # (A, 2)


class AgentHistoryBuffer:
    """Observed agents in order of time. Tracking ids may be of any type; a history replaces them by numbers."""

    def __init__(self) -> None:
        self._sightings: deque[Sighting] = deque()
        self._numbers: dict[Hashable, int] = {}  # of each tracking id in the buffer
        self._next_number = 0

    def put(self, stamp_ns: int, ids: Sequence[Hashable], poses: Array, velocities_mps: Array) -> None:
        """Adds agents: poses (A, 3) of box centres and velocities (A, 2), map frame. A stamp that is not newer than the
        last is ignored.
        """
        if self._sightings and stamp_ns <= self._sightings[-1].stamp_ns:
            return
        self._sightings.append(Sighting(stamp_ns, {name: row for row, name in enumerate(ids)}, poses, velocities_mps))
        while stamp_ns - self._sightings[0].stamp_ns > KEPT_S * 1e9:
            self._sightings.popleft()

    def clear(self) -> None:
        """Clears the buffer, as after a jump of the clock or of localisation."""
        self._sightings.clear()
        self._numbers.clear()

    def history(self, stamp_ns: int, map_from_ego: Array, ids: Sequence[Hashable], agents: Agents) -> AgentHistory:
        """History of agents at a stamp, in the ego frame of `map_from_ego`, with their tracking ids.

        Interpolated linearly between observations, the last of which is that of `agents`.
        """
        seen = [sighting for sighting in self._sightings if sighting.stamp_ns < stamp_ns]
        seen_s = np.append([(sighting.stamp_ns - stamp_ns) * 1e-9 for sighting in seen], 0.0)  # (S,)
        table = np.full((len(seen_s), len(agents), 5), np.nan)  # x, y, heading, velocity x, y
        ego_from_map = geometry.invert(map_from_ego)
        for place, sighting in enumerate(seen):
            rows = np.array([sighting.rows.get(name, -1) for name in ids], int)
            known, rows = rows >= 0, rows[rows >= 0]
            table[place, known, :3] = geometry.compose(ego_from_map, sighting.poses[rows])
            table[place, known, 3:] = geometry.rotate(sighting.velocities_mps[rows], ego_from_map[2])
        table[-1, :, :3], table[-1, :, 3:] = agents.poses, agents.velocities_mps

        before, after = _brackets(np.isfinite(table[..., 0]), seen_s)  # (21, A)
        gap_s, agent = seen_s[after] - seen_s[before], np.arange(len(agents))
        share = (BACK_S[:, None] - seen_s[before]) / np.where(gap_s > 0.0, gap_s, 1.0)
        first, change = table[before, agent], table[after, agent] - table[before, agent]
        change[..., 2] = geometry.wrap(change[..., 2])
        states = first + np.where(gap_s > 0.0, share, 0.0)[..., None] * change
        states[..., 2] = geometry.wrap(states[..., 2])
        valid = (before >= 0) & (gap_s <= GAP_MAX_S)
        states[-1] = table[-1]
        states = np.where(valid[..., None], states, 0.0).swapaxes(0, 1)
        return AgentHistory(self._numbers_of(ids), states[..., :3], states[..., 3:], valid.T)

    def _numbers_of(self, ids: Sequence[Hashable]) -> Array:
        """(A,) numbers of tracking ids; numbers of agents that are no longer in the buffer are removed."""
        live = set(ids).union(*(sighting.rows for sighting in self._sightings))
        self._numbers = {name: number for name, number in self._numbers.items() if name in live}
        for name in ids:
            if name not in self._numbers:
                self._numbers[name], self._next_number = self._next_number, self._next_number + 1
        return np.array([self._numbers[name] for name in ids], np.int64)


def _brackets(known: Array, seen_s: Array) -> tuple[Array, Array]:
    """(21, A) observations before and after each instant of a history, among those that contain the agent: `known` (S,
    A) at times (S,), of which the last contains all. -1 if there is none before.
    """
    places = np.arange(len(seen_s))[:, None]
    last = np.maximum.accumulate(np.where(known, places, -1))
    following = np.minimum.accumulate(np.where(known, places, len(seen_s) - 1)[::-1])[::-1]
    until = np.searchsorted(seen_s, BACK_S + SAME_INSTANT_S, side="right") - 1
    before = np.where(until[:, None] >= 0, last[until], -1)
    return before, following[np.searchsorted(seen_s, BACK_S - SAME_INSTANT_S)]
