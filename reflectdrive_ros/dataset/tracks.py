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
        nothing = np.zeros((0, TRACK_STEPS))
        return Tracks(np.zeros((0, TRACK_STEPS, 3)), nothing, nothing > 0.0, np.zeros((0, 2)), np.zeros(0, np.int64))
    later = [sample for sample in recorded if sample.stamp_ns > ego.stamp_ns]
    appearing = dict.fromkeys(name for sample in later for name in sample.rows if name not in ids)
    count = len(ids) + len(appearing)
    poses, speeds = np.zeros((count, TRACK_STEPS, 3)), np.zeros((count, TRACK_STEPS))
    present = np.zeros((count, TRACK_STEPS), bool)
    sizes, kinds = np.zeros((count, 2)), np.zeros(count, int)
    current_count = len(ids)
    poses[:current_count, : NOW + 1], present[:current_count, : NOW + 1] = history.poses, history.valid
    speeds[:current_count, : NOW + 1] = np.hypot(*np.moveaxis(history.velocities_mps, -1, 0))
    poses[:current_count, NOW], present[:current_count, NOW] = agents.poses, True
    speeds[:current_count, NOW] = np.hypot(*agents.velocities_mps.T)
    sizes[:current_count], kinds[:current_count] = agents.sizes, agents.kinds
    ego_from_map = geometry.invert(ego.map_from_ego)
    at_s = 0.1 * np.arange(1, FUTURE_STEPS + 1)
    later_poses = [geometry.compose(ego_from_map, sample.agents.poses) for sample in later]  # all agents of one at once
    later_speeds = [np.hypot(*sample.agents.velocities_mps.T) for sample in later]
    later_s = [(sample.stamp_ns - ego.stamp_ns) * 1e-9 for sample in later]
    for row, name in enumerate([*ids, *appearing]):
        sightings = [(k, sample.rows[name]) for k, sample in enumerate(later) if name in sample.rows]
        times = [later_s[k] for k, _ in sightings]
        track_poses = [later_poses[k][at] for k, at in sightings]
        moving = [float(later_speeds[k][at]) for k, at in sightings]
        if row < current_count:  # from where it is now
            times, track_poses, moving = [0.0, *times], [agents.poses[row], *track_poses], [speeds[row, NOW], *moving]
        else:
            first, at = later[sightings[0][0]], sightings[0][1]
            sizes[row], kinds[row] = first.agents.sizes[at], first.agents.kinds[at]
        path, speed, there = interpolate(np.array(times), np.array(track_poses), np.array(moving), at_s)
        poses[row, NOW + 1 :], speeds[row, NOW + 1 :], present[row, NOW + 1 :] = path, speed, there
    return Tracks(np.where(present[..., None], poses, 0.0), np.where(present, speeds, 0.0), present, sizes, kinds)


def interpolate(times_s: Array, poses: Array, speeds_mps: Array, at_s: Array) -> tuple[Array, Array, Array]:
    """Poses (T, 3), speeds (T,) and presence (T,) of an agent at times, linear between observations (S,); it is absent
    where these are more than MAX_TRACK_GAP_S apart."""
    headings = np.unwrap(poses[:, 2])
    columns = (poses[:, 0], poses[:, 1], headings)
    interpolated = np.stack([np.interp(at_s, times_s, column) for column in columns], axis=-1)
    interpolated[:, 2] = geometry.wrap(interpolated[:, 2])
    after = np.searchsorted(times_s, at_s - 1e-6)
    inside = (after < len(times_s)) & ((after > 0) | (at_s >= times_s[0] - 1e-6))
    last, first = times_s[np.minimum(after, len(times_s) - 1)], times_s[np.maximum(after - 1, 0)]
    return interpolated, np.interp(at_s, times_s, speeds_mps), inside & (last - first <= MAX_TRACK_GAP_S)
