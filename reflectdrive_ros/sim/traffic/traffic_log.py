"""Recorded traffic: all road users at intervals of 0.1 s, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadMap
from .actors import Actors, TrafficSnapshot, kinds_of_shapes
from .demand import Demand
from .events import STEP_S
from .simulation import Simulation, TrafficError

__all__ = ["Simulation", "TrafficError", "TrafficLog", "record"]

EVENT_WARM_UP_S = 5.0  # before a recording begins, so that it begins amid events
SAMPLE_EVERY = 2  # steps per SUMO step; states in between are interpolated
DENSITIES = (0.8, 1.4)  # of an ordinary afternoon, sampled by seed
RARE_ROAD_WEIGHT = 5.0  # drivers choose rare roads more often, so that fewer towns have to be searched


@dataclass(frozen=True, eq=False)
class TrafficLog:
    """One recording; T instants, N road users in the order of `simulation.Roster`, S signals."""

    road_map: RoadMap
    seed: int
    dt_s: float
    times_s: Array  # (T,) since the recording began
    ids: Array  # (N,) int64
    shapes: Array  # (N,) ActorShape
    sizes: Array  # (N, 3) length, width, height m
    poses: Array  # (T, N, 3) box centres in the map frame, NaN where absent
    speeds_mps: Array  # (T, N) float32
    braking: Array  # (T, N) bool
    indicator: Array  # (T, N) int8: 1 left, -1 right, 2 both
    lane: Array  # (T, N) int32 key of RoadMap.lanes, -1 where on none
    lamps: Array  # (T, S) int8 Lamp of RoadMap.signals
    drivers: int  # the first so many of N
    walkers: int  # the next so many; further people step out between parked cars
    edges: tuple[tuple[str, ...], ...]  # N; road edges of each driver's route, empty for other road users
    counts: Mapping[str, int]  # collisions, vehicles removed, events

    @property
    def steps(self) -> int:
        return len(self.times_s)

    @property
    def kinds(self) -> Array:
        """(N,) AgentKind."""
        return kinds_of_shapes(self.shapes)

    def snapshot(self, step: int, without: int | None = None) -> TrafficSnapshot:
        """All road users at a step, without the row `without`, which is the ego."""
        here = ~np.isnan(self.poses[step, :, 0])
        if without is not None:
            here[without] = False
        actors = Actors(
            ids=self.ids[here],
            poses=self.poses[step, here],
            speeds_mps=self.speeds_mps[step, here],
            sizes=self.sizes[here],
            shapes=self.shapes[here],
            braking=self.braking[step, here],
            indicator=self.indicator[step, here].astype(np.int64),
        )
        return TrafficSnapshot(float(self.times_s[step]), actors, self.lamps[step].astype(np.int64))


def record(
    road_map: RoadMap, seed: int, duration_s: float, warm_up_s: float = 20.0, density: float | None = None
) -> TrafficLog:
    """Runs traffic of a town and keeps all of it. Raises RoadError, TrafficError, SumoMissing."""
    if density is None:
        density = float(np.random.default_rng([seed, 44]).uniform(*DENSITIES))
    demand = Demand.sample(road_map, seed, density, RARE_ROAD_WEIGHT)
    steps = round(duration_s / STEP_S)
    samples = -(-steps // SAMPLE_EVERY) + 1
    with Simulation(road_map, demand, seed, SAMPLE_EVERY * STEP_S) as traffic:
        eventful_s = min(EVENT_WARM_UP_S, warm_up_s)
        traffic.warm_up(warm_up_s - eventful_s)
        for _ in range(round(eventful_s / traffic.step_s)):
            traffic.step()
        count = len(traffic.roster.ids)
        poses = np.empty((samples, count, 3))
        speeds = np.empty((samples, count))
        braking = np.empty((samples, count), bool)
        indicator = np.empty((samples, count), np.int8)
        lane = np.empty((samples, count), np.int32)
        lamps = np.empty((samples, len(road_map.signals)), np.int8)
        before = traffic.counts
        for sample in range(samples):
            traffic.step()
            poses[sample], speeds[sample], braking[sample] = traffic.poses, traffic.speeds_mps, traffic.braking
            indicator[sample], lane[sample], lamps[sample] = traffic.indicator, traffic.lane, traffic.lamps()
        at = np.arange(steps) // SAMPLE_EVERY  # index of the sample before
        after = -(-np.arange(steps) // SAMPLE_EVERY)
        poses, speeds = _interpolate_halfway(poses, speeds)
        return TrafficLog(
            road_map=road_map,
            seed=seed,
            dt_s=STEP_S,
            times_s=STEP_S * np.arange(steps),
            ids=traffic.roster.ids,
            shapes=traffic.roster.shapes,
            sizes=traffic.roster.sizes,
            poses=poses[:steps],
            speeds_mps=speeds[:steps].astype(np.float32),
            braking=braking[after],
            indicator=indicator[after],
            lane=lane[at],
            lamps=lamps[at],
            drivers=traffic.roster.drivers,
            walkers=traffic.roster.walkers,
            edges=traffic.edges,
            counts={name: count - before[name] for name, count in traffic.counts.items()},
        )


def _interpolate_halfway(poses: Array, speeds: Array) -> tuple[Array, Array]:
    """Poses (2 T - 1, N, 3) and speeds (2 T - 1, N) with interpolated samples half-way between samples (T, N, 3).

    Speeds (T, N) are the mean speeds since the sample before. The half-way point divides the distance so that the speed
    changes evenly (a Catmull-Rom spline along the path).
    """
    mean_speeds = speeds[1:]
    before, after = speeds[:-1], np.concatenate([speeds[2:], speeds[-1:]])
    share = 0.5 + (before - after) / np.maximum(16.0 * mean_speeds, 1e-9)
    share = np.where(mean_speeds > 0.0, share.clip(0.0, 1.0), 0.5)
    all_poses = np.repeat(poses, 2, axis=0)[:-1]
    turn = poses[1:] - poses[:-1]
    turn[..., 2] = geometry.wrap(turn[..., 2])
    all_poses[1::2] += share[..., None] * turn
    all_poses[1::2, :, 2] = geometry.wrap(all_poses[1::2, :, 2])
    all_speeds = np.repeat(speeds, 2, axis=0)[:-1]
    all_speeds[1::2] = 2.0 * share * mean_speeds
    all_speeds[2::2] = 2.0 * (1.0 - share) * mean_speeds
    return all_poses, all_speeds
