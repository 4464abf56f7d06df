"""PDM scores of replayed plans, for bags with objects. Agents follow their recorded tracks and do not react.

As in NAVSIM, the score measures a plan against the recorded situation. Progress is normalised by the progress of the
recorded vehicle. Without a drivable area DAC and PDMS are unknown; the other sub-scores are reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..core import geometry, kinematics
from ..core.config import Config
from ..core.domain import Agents, Array, DrivableGrid
from ..scoring import contacts, metrics
from ..scoring.contacts import AgentTracks
from ..scoring.scorer import Reference, Scene, score
from ..scoring.simulate import DT_S, HORIZON_S, STEPS
from .plan_measures import SCORES
from .record import ReplayFrame, ReplayRecord, ego_motion, interpolate_driven_path, plan_poses_in_ego

SCORE_INTERVAL_NS = 500_000_000  # plans closer together are scored no more than once
FUTURE_S = DT_S * (contacts.SAMPLES - 1)  # of agents, used by the score
MAX_TRACK_GAP_S = 0.6  # an agent unobserved for longer is absent in between
TIME_TOLERANCE_S, TIME_TOLERANCE_RATIO = 1e-6, 1e-5  # absolute and relative tolerance of equal times
MAX_SIGHTING_AGE_NS = 500_000_000  # of a sighting before the plan


@dataclass(frozen=True, eq=False)
class ObjectSighting:
    """Objects at one time in map axes; `ids` identify an object across sightings."""

    stamp_ns: int
    ids: Sequence[bytes]
    agents: Agents  # map axes


@dataclass(frozen=True, eq=False)
class ReplayScores:
    """Scores in 0..1, each by the names in SCORES; NaN for a plan that is not scored."""

    plans: dict[str, Array]  # (N,) of the plans
    alternatives: dict[int, dict[str, Array]]  # (P,) of the alternatives of a frame, by its index; only where scored


def score_replay(
    record: ReplayRecord,
    sightings: Iterable[ObjectSighting],
    space_around: Callable[[ReplayFrame], DrivableGrid | None],
    config: Config,
    before_ns: int | None = None,
) -> ReplayScores:
    """Scores of the N plans and of their alternatives.

    Plans are scored at most every SCORE_INTERVAL_NS (`before_ns`: stamp of the last scored plan) if they have a route,
    4 s of recorded driving and 5 s of recorded agents ahead. `sightings` are in order of time; only the next seconds of
    them are kept in memory.
    """
    scores = ReplayScores({name: np.full(len(record.frames), np.nan) for name in SCORES}, {})
    order = sorted(range(len(record.frames)), key=lambda k: record.frames[k].stamp_ns)
    for k, window in _match_sightings([(k, record.frames[k]) for k in order], sightings):
        frame = record.frames[k]
        if before_ns is not None and frame.stamp_ns - before_ns < SCORE_INTERVAL_NS:
            continue
        is_whole = len(frame.plan_poses) * frame.dt_s >= HORIZON_S - 1e-6
        own = plan_poses_in_ego(frame)[None]
        poses = np.concatenate([own[: int(is_whole)], frame.alternatives])
        scene = _recorded_scene(record, frame, window, space_around) if len(poses) else None
        if scene is None:
            continue
        before_ns = frame.stamp_ns
        values = _score_poses(scene, poses, config)
        for name in SCORES:
            scores.plans[name][k] = values[name][0] if is_whole else np.nan
        scores.alternatives[k] = {name: values[name][int(is_whole) :] for name in SCORES}
    return scores


def _match_sightings(
    frames: Sequence[tuple[int, ReplayFrame]], sightings: Iterable[ObjectSighting]
) -> Iterator[tuple[int, list[ObjectSighting]]]:
    """Each plan with the sightings from just before it to FUTURE_S after it, if the recording reaches that far."""
    coming, window = iter(sightings), deque[ObjectSighting]()
    for k, frame in frames:
        until_ns = frame.stamp_ns + round(FUTURE_S * 1e9)
        while not window or window[-1].stamp_ns < until_ns:
            sighting = next(coming, None)
            if sighting is None:
                return
            window.append(sighting)
        while len(window) > 1 and window[0].stamp_ns < frame.stamp_ns - MAX_SIGHTING_AGE_NS:
            window.popleft()
        if window[0].stamp_ns <= frame.stamp_ns:
            yield k, list(window)


def _recorded_scene(
    record: ReplayRecord,
    frame: ReplayFrame,
    sightings: Sequence[ObjectSighting],
    space_around: Callable[[ReplayFrame], DrivableGrid | None],
) -> Scene | None:
    """The situation at a plan's stamp with its recorded future; None where the route or the driving is too short."""
    times_ns = frame.stamp_ns + np.round(DT_S * np.arange(1, STEPS + 1) * 1e9).astype(np.int64)
    route = geometry.distinct_points(_route_at(record, frame.stamp_ns)[:, :2])
    if len(route) < 2 or times_ns[-1] > record.driven_stamps_ns[-1]:
        return None
    ego_from_map = geometry.invert(frame.map_from_ego)
    driven = geometry.compose(ego_from_map, interpolate_driven_path(record, times_ns))
    centres = kinematics.box_centres(kinematics.with_origin(driven), record.vehicle)
    line = geometry.transform_points(ego_from_map, route)
    return Scene(
        ego_motion(frame, record.vehicle),
        build_tracks(sightings, frame.stamp_ns, frame.map_from_ego),
        line,
        grid=space_around(frame),
        reference=Reference(float(metrics.progress(centres[None], line)[0])),
        vehicle=record.vehicle,
    )


def _score_poses(scene: Scene, poses: Array, config: Config) -> dict[str, Array]:
    """Scores (P,) of plans (P, 40, 3) in the ego frame, by name; NaN where the scene does not tell them."""
    card = score(scene, poses, config.scoring)
    values = {"nc": card.nc, "dac": card.dac, "ttc": card.ttc, "ep": card.ep, "pdms": card.score}
    unknown = () if scene.grid is not None else ("dac", "pdms")
    return {name: np.full(len(poses), np.nan) if name in unknown else value for name, value in values.items()}


def _route_at(record: ReplayRecord, stamp_ns: int) -> Array:
    """(L, 3) the route that was active at a stamp; the first route before any was received; (0, 3) without routes."""
    led = [route for since_ns, route in record.routes if since_ns <= stamp_ns]
    led = led or [route for _, route in record.routes[:1]] or [np.zeros((0, 3))]
    return led[-1]


def build_tracks(sightings: Sequence[ObjectSighting], stamp_ns: int, map_from_ego: Array) -> AgentTracks:
    """Agent tracks from a stamp on, in the ego frame of that stamp; linear between sightings."""
    ego_from_map = geometry.invert(map_from_ego)
    at_s = DT_S * np.arange(contacts.SAMPLES)
    rows: dict[bytes, list[tuple[float, int, int]]] = {}  # id -> (seconds from the stamp, sighting, row)
    for index, sighting in enumerate(sightings):
        for row, each in enumerate(sighting.ids):
            rows.setdefault(each, []).append(((sighting.stamp_ns - stamp_ns) * 1e-9, index, row))
    parts = []
    for observations in rows.values():
        times_s = np.array([time_s for time_s, _, _ in observations])
        agents = [(sightings[index].agents, row) for _, index, row in observations]
        poses = geometry.compose(ego_from_map, np.array([each.poses[row] for each, row in agents]))
        heading = np.unwrap(poses[:, 2])
        path = [np.interp(at_s, times_s, values) for values in (poses[:, 0], poses[:, 1], heading)]
        speeds = np.array([np.hypot(*each.velocities_mps[row]) for each, row in agents])
        after = np.searchsorted(times_s, at_s)
        since_s = at_s - times_s[np.maximum(after - 1, 0)]
        until_s = times_s[np.minimum(after, len(times_s) - 1)] - at_s
        inside = (at_s >= times_s[0]) & (at_s <= times_s[-1]) & (since_s + until_s <= MAX_TRACK_GAP_S)
        is_observed = (
            np.abs(at_s[:, None] - times_s) <= TIME_TOLERANCE_S + TIME_TOLERANCE_RATIO * np.abs(times_s)
        ).any(axis=1)
        present = inside | is_observed
        if present.any():
            first, row = agents[0]
            track = np.stack([path[0], path[1], geometry.wrap(path[2])], axis=-1)
            parts.append((track, present, np.interp(at_s, times_s, speeds), first.sizes[row], first.kinds[row]))
    if not parts:
        return AgentTracks.none()
    poses, present, speeds, sizes, kinds = (np.array(part) for part in zip(*parts, strict=True))
    return AgentTracks(poses, present, speeds, sizes, kinds)
