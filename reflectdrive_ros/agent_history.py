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
        self._numbers: dict[Hashable, int] = {}  # of each tracking id that is still in a sighting
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
        back_s = AgentHistory.DT_S * np.arange(1 - AgentHistory.STEPS, 1)
        shape = (len(agents), AgentHistory.STEPS)
        states, valid = np.zeros((*shape, 5)), np.zeros(shape, bool)  # x, y, heading, velocity x, y
        times_s = np.append([(sighting.stamp_ns - stamp_ns) * 1e-9 for sighting in seen], 0.0)
        ego_from_map = geometry.invert(map_from_ego)
        moved = [
            np.column_stack(
                [
                    geometry.compose(ego_from_map, sighting.poses),
                    geometry.rotate(sighting.velocities_mps, ego_from_map[2]),
                ]
            )
            for sighting in seen
        ]
        for agent, name in enumerate(ids):
            rows = [sighting.rows.get(name) for sighting in seen]
            known = [(place, row) for place, row in enumerate(rows) if row is not None]
            track = np.array(
                [
                    *(moved[place][row] for place, row in known),
                    [*agents.poses[agent], *agents.velocities_mps[agent]],
                ]
            )
            at_s = times_s[[*(place for place, _ in known), -1]]
            track[:, 2] = np.unwrap(track[:, 2])
            states[agent] = np.stack([np.interp(back_s, at_s, column) for column in track.T], axis=-1)
            valid[agent] = _is_covered(back_s, at_s)
        states[..., 2] = geometry.wrap(states[..., 2])
        states[:, -1, :3], states[:, -1, 3:] = agents.poses, agents.velocities_mps
        states[~valid] = 0.0
        return AgentHistory(self._numbers_of(ids), states[..., :3], states[..., 3:], valid)

    def _numbers_of(self, ids: Sequence[Hashable]) -> Array:
        """(A,) numbers of tracking ids; numbers of agents that are no longer in the buffer are removed."""
        live = set(ids).union(*(sighting.rows for sighting in self._sightings))
        self._numbers = {name: number for name, number in self._numbers.items() if name in live}
        for name in ids:
            if name not in self._numbers:
                self._numbers[name], self._next_number = self._next_number, self._next_number + 1
        return np.array([self._numbers[name] for name in ids], np.int64)


def _is_covered(times_s: Array, seen_s: Array) -> Array:
    """(T,) bool, whether times are at an observation or between two that are at most GAP_MAX_S apart."""
    after = np.searchsorted(seen_s, times_s - SAME_INSTANT_S)
    before = np.searchsorted(seen_s, times_s + SAME_INSTANT_S, side="right") - 1
    inside = (before >= 0) & (after < len(seen_s))
    gap_s = seen_s[np.minimum(after, len(seen_s) - 1)] - seen_s[np.maximum(before, 0)]
    return np.asarray(inside & (gap_s <= GAP_MAX_S))
