"""Recorded traffic: everybody at every tenth of a second, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..domain import Array
from .actors import KIND_OF_SHAPE, Actors, Shape, Snapshot
from .demand import Demand
from .events import STEP_S
from .roads import RoadMap
from .simulation import Simulation, TrafficError

__all__ = ["Simulation", "TrafficError", "TrafficLog", "record"]

EVENTFUL_S = 5.0  # before a recording begins, so that it begins amid events
DENSITIES = (0.55, 1.3)  # of an ordinary afternoon, drawn by seed


@dataclass(frozen=True, eq=False)
class TrafficLog:
    """One recording; T instants, N road users in the order of `simulation.Cast`, S signals."""

    road_map: RoadMap
    seed: int
    dt_s: float
    times_s: Array  # (T,) since the recording began
    ids: Array  # (N,) int64
    shapes: Array  # (N,) Shape
    sizes: Array  # (N, 3) length, width, height m
    poses: Array  # (T, N, 3) box centres in the map frame, NaN where absent
    speeds_mps: Array  # (T, N) float32
    braking: Array  # (T, N) bool
    indicator: Array  # (T, N) int8: 1 left, -1 right, 2 both
    lane: Array  # (T, N) int32 key of RoadMap.lanes, -1 where on none
    lamps: Array  # (T, S) int8 Lamp of RoadMap.signals
    drivers: int  # the first so many of N
    walkers: int  # the next so many; further people step out between parked cars
    edges: tuple[tuple[str, ...], ...]  # N; road edges along which each drives, empty for who does not
    counts: Mapping[str, int]  # collisions, vehicles removed, events

    @property
    def steps(self) -> int:
        return len(self.times_s)

    @property
    def kinds(self) -> Array:
        """(N,) AgentKind."""
        table = np.array([KIND_OF_SHAPE[shape] for shape in Shape])
        return np.asarray(table[self.shapes])

    def snapshot(self, step: int, without: int | None = None) -> Snapshot:
        """Everybody at a step; `without` leaves out a row: it is the ego."""
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
        return Snapshot(float(self.times_s[step]), actors, self.lamps[step].astype(np.int64))


def record(
    road_map: RoadMap, seed: int, duration_s: float, warm_up_s: float = 20.0, density: float | None = None
) -> TrafficLog:
    """Runs traffic of a town and keeps all of it. Raises RoadError, TrafficError, SumoMissing."""
    if density is None:
        density = float(np.random.default_rng([seed, 44]).uniform(*DENSITIES))
    demand = Demand.of(road_map, seed, density)
    steps = round(duration_s / STEP_S)
    with Simulation(road_map, demand, seed) as traffic:
        eventful_s = min(EVENTFUL_S, warm_up_s)
        traffic.warm_up(warm_up_s - eventful_s)
        for _ in range(round(eventful_s / STEP_S)):
            traffic.step()
        count = len(traffic.cast.ids)
        poses = np.empty((steps, count, 3))
        speeds = np.empty((steps, count), np.float32)
        braking = np.empty((steps, count), bool)
        indicator = np.empty((steps, count), np.int8)
        lane = np.empty((steps, count), np.int32)
        lamps = np.empty((steps, len(road_map.signals)), np.int8)
        before = traffic.counts
        for step in range(steps):
            traffic.step()
            poses[step], speeds[step], braking[step] = traffic.poses, traffic.speeds_mps, traffic.braking
            indicator[step], lane[step], lamps[step] = traffic.indicator, traffic.lane, traffic.lamps()
        return TrafficLog(
            road_map=road_map,
            seed=seed,
            dt_s=STEP_S,
            times_s=STEP_S * np.arange(steps),
            ids=traffic.cast.ids,
            shapes=traffic.cast.shapes,
            sizes=traffic.cast.sizes,
            poses=poses,
            speeds_mps=speeds,
            braking=braking,
            indicator=indicator,
            lane=lane,
            lamps=lamps,
            drivers=traffic.cast.drivers,
            walkers=traffic.cast.walkers,
            edges=traffic.edges,
            counts={name: count - before[name] for name, count in traffic.counts.items()},
        )
