"""Events of a drive, and the sums and series that tables and pages show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core.config import VehicleConfig
from ..core.domain import Array
from ..maps.roads import RoadMap
from ..scoring import metrics
from ..scoring.simulate import DT_S, STATE_SIZE, STEPS, VX
from . import incidents
from .ego import Ego
from .traffic.actors import Shape, Snapshot

RECONTACT_S = 1.0  # an actor that had no contact for this long may be hit again
BACK_ON_ROAD_S = 0.5  # an excursion ends when the car has been back for this long
STUCK_S = 60.0
STUCK_M = 2.0  # less progress than this in STUCK_S is being stuck
COMFORT_EVERY_S = 1.0  # comfort is judged in windows as long as a plan, one begins each second
STANDING_MPS = 0.1  # slower is standing
SPEEDING_MPS, SPEEDING_S = 0.5, 1.0  # faster than the limit by more, for this long, is speeding
MIN_COMFORT_STATES = 15  # the jerk's window; a shorter drive is not judged


@dataclass(frozen=True)
class Event:
    """An event of a drive: its kind, its time and one sentence."""

    kind: str  # collision, off_road, red_light, speeding, off_route, stuck or end_of_route
    time_s: float  # since the drive began
    text: str  # one sentence


@dataclass(frozen=True)
class Collision:
    time_s: float
    actor: int  # id
    shape: Shape
    at_fault: bool


@dataclass(frozen=True, eq=False)
class DriveLog:
    """A drive up to now. Series have one entry per instant, the start included, 0.1 s apart."""

    stamps_ns: Array  # (T,) int64
    states: Array  # (T, 11) columns of `scoring.simulate`, map frame
    clearances_m: Array  # (T,) to the nearest other, capped
    off_road: Array  # (T,) bool
    events: tuple[Event, ...]
    collisions: tuple[Collision, ...]
    progress_m: float  # along the route
    limit_distance_m: float  # distance that the speed limits allow in the same time
    vehicle: VehicleConfig

    @property
    def poses(self) -> Array:
        """(T, 3) rear axle, map frame."""
        return self.states[:, :3]

    @property
    def speeds_mps(self) -> Array:
        return self.states[:, VX]

    @property
    def duration_s(self) -> float:
        return DT_S * (len(self.states) - 1)

    @cached_property
    def steps_m(self) -> Array:
        """(T - 1,) metres driven in each step."""
        return np.asarray(np.hypot(*np.diff(self.states[:, :2], axis=0).T))

    @property
    def distance_m(self) -> float:
        return float(self.steps_m.sum())

    @property
    def off_road_m(self) -> float:
        return float(self.steps_m[self.off_road[1:]].sum())

    @property
    def off_road_s(self) -> float:
        return DT_S * float(self.off_road[1:].sum())

    @property
    def standing_s(self) -> float:
        return DT_S * float((self.speeds_mps[1:] < STANDING_MPS).sum())

    @property
    def route_completion(self) -> float:
        """Progress as a share of the distance that the speed limits allow; curves and traffic keep it below 1."""
        return min(self.progress_m / self.limit_distance_m, 1.0) if self.limit_distance_m > 0 else 0.0

    @property
    def at_fault(self) -> int:
        return sum(one.at_fault for one in self.collisions)

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    @cached_property
    def comfort(self) -> float:
        """Share of the drive within the score's comfort bounds, in windows of 4 s; 1 for a drive that is too short."""
        length = min(STEPS + 1, len(self.states))
        if length < MIN_COMFORT_STATES:
            return 1.0
        firsts = np.arange(0, len(self.states) - length + 1, round(COMFORT_EVERY_S / DT_S))
        windows = self.states[firsts[:, None] + np.arange(length)]
        return float(metrics.comfort_flags(windows, self.vehicle, metrics.COMFORT_SANE).all(axis=1).mean())


class Recorder:
    """Watches a drive step by step."""

    def __init__(self, road_map: RoadMap, space: object, vehicle: VehicleConfig) -> None:
        self._road_map, self._space, self._vehicle = road_map, space, vehicle
        self._lines = incidents.StopLines(road_map)
        self._front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
        self._stamps: list[int] = []
        self._states: list[Array] = []
        self._clearances: list[float] = []
        self._off_road: list[bool] = []
        self._progress: list[float] = []
        self._events: list[Event] = []
        self._collisions: list[Collision] = []
        self._last_contact_s: dict[int, float] = {}  # actor -> when last
        self._left_road_s = -np.inf  # time of the last instant off the road
        self._stuck = False
        self._too_fast_s = 0.0  # for how long the car has been too fast
        self._possible_m = 0.0
        self._before: Ego | None = None

    def watch(
        self,
        stamp_ns: int,
        ego: Ego,
        snapshot: Snapshot,
        route: frozenset[int],
        progress_m: float,
        speed_limit_mps: float,
    ) -> tuple[Event, ...]:
        """Records one instant: contacts and other incidents. `progress_m` is that of the whole drive."""
        time_s = DT_S * len(self._stamps)
        gaps = incidents.clearances(ego, snapshot.actors, self._vehicle)
        outside = incidents.off_road(ego, self._space, self._vehicle)
        events = self._find_collisions(time_s, ego, snapshot, np.flatnonzero(gaps <= 0.0))
        if outside:
            if time_s - self._left_road_s > BACK_ON_ROAD_S:
                events.append(Event("off_road", time_s, "a corner of the car left the drivable space"))
            self._left_road_s = time_s
        before = self._before
        if before is not None:
            self._possible_m += speed_limit_mps * DT_S
            if self._lines.crossed_at_red(before, ego, snapshot, route, self._front_m):
                events.append(Event("red_light", time_s, "the car crossed a stop line at red"))
            self._too_fast_s = self._too_fast_s + DT_S if ego.speed_mps > speed_limit_mps + SPEEDING_MPS else 0.0
            if abs(self._too_fast_s - SPEEDING_S) < 0.5 * DT_S:
                events.append(
                    Event("speeding", time_s, f"{ego.speed_mps:.1f} m/s where {speed_limit_mps:.1f} m/s are allowed")
                )
        self._stamps.append(stamp_ns)
        self._states.append(ego.states())
        self._clearances.append(float(gaps.min(initial=incidents.CLEARANCE_MAX_M)))
        self._off_road.append(outside)
        self._progress.append(progress_m)
        events += self._check_progress(time_s)
        self._before = ego
        self._events += events
        return tuple(events)

    def add(self, event: Event) -> None:
        """Adds an event of the world."""
        self._events.append(event)

    @property
    def time_s(self) -> float:
        return DT_S * max(len(self._stamps) - 1, 0)

    def recently_hit(self, longer_than_s: float) -> list[int]:
        """Actors whose collision is at least this long ago."""
        return [one.actor for one in self._collisions if self.time_s - one.time_s >= longer_than_s]

    def log(self) -> DriveLog:
        return DriveLog(
            np.array(self._stamps, np.int64),
            np.array(self._states).reshape(-1, STATE_SIZE),
            np.array(self._clearances),
            np.array(self._off_road, bool),
            tuple(self._events),
            tuple(self._collisions),
            self._progress[-1] - self._progress[0] if self._progress else 0.0,
            self._possible_m,
            self._vehicle,
        )

    def _find_collisions(self, time_s: float, ego: Ego, snapshot: Snapshot, touching: Array) -> list[Event]:
        events = []
        for index in touching:
            actor = int(snapshot.actors.ids[index])
            if time_s - self._last_contact_s.get(actor, -np.inf) > RECONTACT_S:
                shape = Shape(int(snapshot.actors.shapes[index]))
                fault = incidents.at_fault(ego, snapshot.actors, int(index), self._road_map, self._vehicle)
                self._collisions.append(Collision(time_s, actor, shape, fault))
                whose = "at fault" if fault else "not at fault"
                events.append(Event("collision", time_s, f"the car touched a {shape.name.lower()}, {whose}"))
            self._last_contact_s[actor] = time_s
        return events

    def _check_progress(self, time_s: float) -> list[Event]:
        steps = round(STUCK_S / DT_S)
        stuck = len(self._progress) > steps and self._progress[-1] - self._progress[-1 - steps] < STUCK_M
        fresh = stuck and not self._stuck
        self._stuck = stuck
        return [Event("stuck", time_s, f"no progress for {STUCK_S:.0f} s")] if fresh else []
