"""Agents of a frame of a recording: their past as of the frame, and where they were recorded in the next 5 s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core import geometry
from ..core.domain import AgentHistory, Agents, Array, Observation
from ..data.scene import FUTURE_STEPS, NOW, TRACK_STEPS, Tracks
from ..replay.scores import MAX_TRACK_GAP_S


@dataclass(frozen=True)
class ObjectSample:
    """One message of objects, in the map."""

    stamp_ns: int
    rows: Mapping[bytes, int]
    agents: Agents


def tracks_of(
    observation: Observation, ids: Sequence[bytes], history: AgentHistory | None, recorded: Iterable[ObjectSample]
) -> Tracks:
    """Agents of an observation, with their ids and history as of then, and the objects recorded in the next 5 s."""
    ego, agents = observation.ego, observation.agents
    if agents is None or history is None:
        return empty_tracks()
    later = [sample for sample in recorded if sample.stamp_ns > ego.stamp_ns]
    appearing = dict.fromkeys(name for sample in later for name in sample.rows if name not in ids)
    count = len(ids) + len(appearing)
    poses, speeds = np.zeros((count, TRACK_STEPS, 3)), np.zeros((count, TRACK_STEPS))
    present = np.zeros((count, TRACK_STEPS), bool)
    sizes, kinds = np.zeros((count, 2)), np.zeros(count, int)
    known = len(ids)
    poses[:known, : NOW + 1], present[:known, : NOW + 1] = history.poses, history.valid
    speeds[:known, : NOW + 1] = np.hypot(*np.moveaxis(history.velocities_mps, -1, 0))
    poses[:known, NOW], present[:known, NOW] = agents.poses, True
    speeds[:known, NOW] = np.hypot(*agents.velocities_mps.T)
    sizes[:known], kinds[:known] = agents.sizes, agents.kinds
    ego_from_map = geometry.invert(ego.map_from_ego)
    at_s = 0.1 * np.arange(1, FUTURE_STEPS + 1)
    later_poses = [geometry.compose(ego_from_map, sample.agents.poses) for sample in later]  # all agents of one at once
    later_speeds = [np.hypot(*sample.agents.velocities_mps.T) for sample in later]
    later_s = [(sample.stamp_ns - ego.stamp_ns) * 1e-9 for sample in later]
    for row, name in enumerate([*ids, *appearing]):
        seen = [(k, sample.rows[name]) for k, sample in enumerate(later) if name in sample.rows]
        times = [later_s[k] for k, _ in seen]
        places = [later_poses[k][at] for k, at in seen]
        moving = [float(later_speeds[k][at]) for k, at in seen]
        if row < known:  # from where it is now
            times, places, moving = [0.0, *times], [agents.poses[row], *places], [speeds[row, NOW], *moving]
        else:
            first, at = later[seen[0][0]], seen[0][1]
            sizes[row], kinds[row] = first.agents.sizes[at], first.agents.kinds[at]
        path, speed, there = interpolate(np.array(times), np.array(places), np.array(moving), at_s)
        poses[row, NOW + 1 :], speeds[row, NOW + 1 :], present[row, NOW + 1 :] = path, speed, there
    return Tracks(np.where(present[..., None], poses, 0.0), np.where(present, speeds, 0.0), present, sizes, kinds)


def interpolate(times_s: Array, poses: Array, speeds_mps: Array, at_s: Array) -> tuple[Array, Array, Array]:
    """Poses (T, 3), speeds (T,) and presence (T,) of an agent at times, linear between observations (S,); it is absent
    where these are more than MAX_TRACK_GAP_S apart."""
    headings = np.unwrap(poses[:, 2])
    columns = (poses[:, 0], poses[:, 1], headings)
    found = np.stack([np.interp(at_s, times_s, column) for column in columns], axis=-1)
    found[:, 2] = geometry.wrap(found[:, 2])
    after = np.searchsorted(times_s, at_s - 1e-6)
    inside = (after < len(times_s)) & ((after > 0) | (at_s >= times_s[0] - 1e-6))
    last, first = times_s[np.minimum(after, len(times_s) - 1)], times_s[np.maximum(after - 1, 0)]
    return found, np.interp(at_s, times_s, speeds_mps), inside & (last - first <= MAX_TRACK_GAP_S)


def empty_tracks() -> Tracks:
    return Tracks(
        np.zeros((0, TRACK_STEPS, 3)),
        np.zeros((0, TRACK_STEPS)),
        np.zeros((0, TRACK_STEPS), bool),
        np.zeros((0, 2)),
        np.zeros(0, int),
    )
