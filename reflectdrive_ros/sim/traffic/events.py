"""Scripted events of live traffic: braking leads, cut-ins, breakdowns, opened doors, pedestrians that step out.

They are sampled by seed, and only where nearby drivers can still react. SUMO does not contain these pedestrians and
doors; while they block a lane, `_limit_speeds` slows SUMO's drivers down before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...maps.roads import RoadMap
from .actors import Actors, Shape
from .demand import Demand
from .kerbside import Door, LanePoint, MidBlockCrossing

INTERVALS_S: Mapping[str, float] = {
    "lead_brakes": 1.5,
    "cut_ins": 1.5,
    "steps_out": 3.5,
    "doors": 6.0,
    "breakdowns": 25.0,
}
MAX_PEDESTRIANS, MAX_DOORS = 10, 24
BRAKING_MPS2 = 3.0  # largest braking that an event requires of a driver
REACTION_S = 0.5
STOP_GAP_M = 2.0  # gap between a bumper and a blocked point
MAX_DISTANCE_M = 60.0  # events further from all cars are not visible
FORCED_CHANGE_S = 4.0
STEP_S = 0.1
EGO = "ego"


@dataclass(frozen=True)
class DriverStates:
    """SUMO's drivers now."""

    ids: tuple[str, ...]
    lanes: tuple[str, ...]  # SUMO ids
    speeds_mps: tuple[float, ...]
    ego: tuple[str, float] | None = None  # lane and speed; SUMO does not drive it


@dataclass
class _MidBlockPedestrian:
    """A pedestrian at the kerb who walks to and fro across the road."""

    crossing: MidBlockCrossing
    pace_mps: float
    walked_m: float | None = None  # None: waits
    back: bool = False

    @property
    def length_m(self) -> float:
        return float(np.hypot(*(self.crossing.end - self.crossing.start)))


class Events:
    """Events of a simulation. Call `act` before each step of SUMO; the arrays hold pedestrians and doors after it."""

    def __init__(
        self, road_map: RoadMap, demand: Demand, generator: np.random.Generator, step_s: float = STEP_S
    ) -> None:
        self._generator = generator
        self._step_s = step_s
        self._sumo_ids = {key: lane.sumo_id for key, lane in road_map.lanes.items()}
        self._lane_count = _lane_indices(road_map)
        mid_blocks, doors = demand.kerbside.mid_blocks, demand.kerbside.doors
        chosen = generator.permutation(len(mid_blocks))[:MAX_PEDESTRIANS]
        self._pedestrians = [
            _MidBlockPedestrian(mid_blocks[index], float(generator.uniform(1.0, 2.2))) for index in sorted(chosen)
        ]
        self._doors: list[Door] = [doors[index] for index in sorted(generator.permutation(len(doors))[:MAX_DOORS])]
        self._door_poses = np.array([door.pose for door in self._doors]).reshape(-1, 3)
        self._door_open_until_s = np.zeros(len(self._doors))
        self._release_s: dict[str, float] = {}  # braking leads, and when they go on
        self._slow_mps: dict[str, tuple[float, float]] = {}  # braking leads: from when they keep which speed
        self._forced_until_s: dict[str, float] = {}  # vehicle that cuts in -> end of the forced change
        self._limited: set[str] = set()
        self._broken_s: dict[str, float] = {}
        self._next_s = {name: float(generator.uniform(0, every)) for name, every in INTERVALS_S.items()}
        self.counts = dict.fromkeys(INTERVALS_S, 0)
        self.actors = self._make_actors(demand, generator)
        self.poses = np.array(self.actors.poses)  # (E, 3), NaN for a door that is shut
        self.speeds_mps = np.zeros(len(self.actors))
        self._update_actors(0.0)

    def _make_actors(self, demand: Demand, generator: np.random.Generator) -> Actors:
        people, doors = len(self._pedestrians), len(self._doors)
        count = people + doors
        tall = generator.uniform(1.5, 1.95, people)
        sizes = np.array([[0.5, 0.55, height] for height in tall] + [[0.12, 0.75, 1.2]] * doors).reshape(-1, 3)
        return Actors(
            ids=demand.next_id + np.arange(count),
            poses=np.zeros((count, 3)),
            speeds_mps=np.zeros(count),
            sizes=sizes,
            shapes=np.array([int(Shape.PEDESTRIAN)] * people + [int(Shape.DOOR)] * doors, np.int64),
            braking=np.zeros(count, bool),
            indicator=np.zeros(count, np.int64),
        )

    @property
    def broken_down(self) -> tuple[str, ...]:
        return tuple(self._broken_s)

    def act(self, sumo: Any, states: DriverStates, time_s: float) -> None:
        """Starts, carries on and ends events for the step that follows."""
        self._drop_departed(states)
        for name, start in (
            ("lead_brakes", self._lead_brakes),
            ("cut_ins", self._cut_in),
            ("steps_out", self._step_out),
            ("doors", self._open_door),
            ("breakdowns", self._break_down),
        ):
            if time_s >= self._next_s[name] and states.ids:
                done = start(sumo, states, time_s)
                self.counts[name] += done
                # An event without an occasion is tried again soon, not at once: the search costs time.
                wait = INTERVALS_S[name] * self._generator.uniform(0.5, 1.5) if done else 0.5
                self._next_s[name] = time_s + float(wait)
        self._end_events(sumo, time_s)
        self._limit_speeds(sumo, states, time_s)
        self._update_actors(time_s)

    def _drop_departed(self, states: DriverStates) -> None:
        here = set(states.ids)
        for by_driver in (self._release_s, self._slow_mps, self._forced_until_s, self._broken_s):
            for key in [key for key in by_driver if key not in here]:
                del by_driver[key]
        self._limited &= here

    # --- drivers ------------------------------------------------------------------------------------------------------

    def _free_drivers(self, states: DriverStates, faster_than_mps: float) -> list[tuple[str, str, float]]:
        """Moving drivers on roads, shuffled, without those that take part in an event."""
        busy = self._release_s.keys() | self._forced_until_s.keys() | self._broken_s.keys() | self._limited
        free = [
            one
            for one in zip(states.ids, states.lanes, states.speeds_mps, strict=True)
            if one[2] > faster_than_mps and not one[1].startswith(":") and one[0] not in busy
        ]
        return [free[index] for index in self._generator.permutation(len(free))]

    def _lead_brakes(self, sumo: Any, states: DriverStates, time_s: float) -> bool:
        """A driver with a follower brakes hard for a few seconds."""
        for key, _, speed in self._free_drivers(states, 5.0):
            follower, gap = sumo.vehicle.getFollower(key, 0.0)
            if follower and gap < 45.0:
                slow = speed * float(self._generator.uniform(0.0, 0.4))
                duration = float(self._generator.uniform(1.0, 2.5))
                sumo.vehicle.slowDown(key, slow, duration)
                self._slow_mps[key] = time_s + duration, slow
                self._release_s[key] = time_s + duration + float(self._generator.uniform(0.5, 3.0))
                return True
        return False

    def _cut_in(self, sumo: Any, states: DriverStates, time_s: float) -> bool:
        """A driver changes to the adjacent lane closely ahead of another."""
        on_lane: dict[str, list[str]] = {}
        for key, lane in zip(states.ids, states.lanes, strict=True):
            on_lane.setdefault(lane, []).append(key)
        for key, lane, _ in self._free_drivers(states, 4.0):
            edge, index = lane.rsplit("_", 1)
            adjacent = [n for n in (int(index) - 1, int(index) + 1) if n in self._lane_count.get(edge, ())]
            if not adjacent:
                continue
            target = adjacent[int(self._generator.integers(len(adjacent)))]
            at = sumo.vehicle.getLanePosition(key)
            length = sumo.vehicle.getLength(key)
            gaps = [at - length - sumo.vehicle.getLanePosition(other) for other in on_lane.get(f"{edge}_{target}", ())]
            if any(-length - 8.0 < gap < 4.0 for gap in gaps) or not any(4.0 <= gap < 30.0 for gap in gaps):
                continue
            self._force_lane_change(sumo, key, target, time_s)
            return True
        return False

    def force_merge(self, sumo: Any, key: str, time_s: float) -> None:
        """Makes a driver that waits on a lane without a connection to its route change lane."""
        here = sumo.vehicle.getLaneID(key)
        for lane in sumo.vehicle.getBestLanes(key):
            if lane[0] == here and lane[3] != 0 and key not in self._forced_until_s:
                index = int(here.rsplit("_", 1)[1]) + int(np.sign(lane[3]))
                self._force_lane_change(sumo, key, index, time_s)

    def _force_lane_change(self, sumo: Any, key: str, lane: int, time_s: float) -> None:
        sumo.vehicle.setLaneChangeMode(key, 0b010101010101)  # only collision avoidance stays active
        sumo.vehicle.changeLane(key, lane, FORCED_CHANGE_S)
        self._forced_until_s[key] = time_s + FORCED_CHANGE_S

    def _break_down(self, sumo: Any, states: DriverStates, time_s: float) -> bool:
        """A car stops in its lane and blinks."""
        for key, lane, speed in self._free_drivers(states, 3.0):
            edge, index = lane.rsplit("_", 1)
            stop = sumo.vehicle.getLanePosition(key) + speed**2 / 4.0 + 8.0
            if stop < sumo.lane.getLength(lane) - 25.0 and sumo.vehicle.getLength(key) < 7.0:
                duration = float(self._generator.uniform(20.0, 40.0))
                sumo.vehicle.setStop(key, edge, stop, int(index), duration)
                self._broken_s[key] = time_s + duration
                return True
        return False

    def _end_events(self, sumo: Any, time_s: float) -> None:
        for key in [key for key, (when, _) in self._slow_mps.items() if time_s >= when]:
            sumo.vehicle.setSpeed(key, self._slow_mps.pop(key)[1])
        for key in [key for key, when in self._release_s.items() if time_s >= when]:
            sumo.vehicle.setSpeed(key, -1)
            del self._release_s[key]
        for key in [key for key, when in self._forced_until_s.items() if time_s >= when]:
            sumo.vehicle.setLaneChangeMode(key, 1621)  # SUMO's own
            del self._forced_until_s[key]
        for key in [key for key, when in self._broken_s.items() if time_s >= when + 10.0]:
            del self._broken_s[key]

    # --- people and doors ---------------------------------------------------------------------------------------------

    def _step_out(self, sumo: Any, states: DriverStates, time_s: float) -> bool:
        for index in self._generator.permutation(len(self._pedestrians)):
            pedestrian = self._pedestrians[index]
            if pedestrian.walked_m is None and self._can_be_avoided(sumo, states, pedestrian.crossing.lanes):
                pedestrian.walked_m = 0.0
                return True
        return False

    def _open_door(self, sumo: Any, states: DriverStates, time_s: float) -> bool:
        for index in self._generator.permutation(len(self._doors)):
            if self._door_open_until_s[index] < time_s and self._can_be_avoided(
                sumo, states, (self._doors[index].lane_point,)
            ):
                self._door_open_until_s[index] = time_s + float(self._generator.uniform(3.0, 7.0))
                return True
        return False

    def _can_be_avoided(self, sumo: Any, states: DriverStates, points: tuple[LanePoint, ...]) -> bool:
        """Whether at least one driver has to react, and all that come near can."""
        at = {self._sumo_ids[point.lane]: point.along_m for point in points}
        near = False
        drivers = [*zip(states.ids, states.lanes, states.speeds_mps, strict=True)]
        if states.ego is not None:
            drivers.append((EGO, *states.ego))
        for key, lane, speed in drivers:
            if lane in at:
                gap = at[lane] - sumo.vehicle.getLanePosition(key)
                if -sumo.vehicle.getLength(key) - 3.0 < gap < _stopping_distance(speed) + STOP_GAP_M + 2.0:
                    return False
                near = near or 0.0 < gap < MAX_DISTANCE_M
        return near

    def _limit_speeds(self, sumo: Any, states: DriverStates, time_s: float) -> None:
        """Drivers before a blocked point drive no faster than allows them to stop there."""
        blocked: dict[str, list[float]] = {}
        for point in self._blocked_points(time_s):
            blocked.setdefault(self._sumo_ids[point.lane], []).append(point.along_m)
        limited = set()
        for key, lane, speed in zip(states.ids, states.lanes, states.speeds_mps, strict=True):
            if lane not in blocked:
                continue
            at = sumo.vehicle.getLanePosition(key)
            gaps = [along - at for along in blocked[lane] if along > at]
            if gaps:
                safe = _safe_speed(min(gaps) - STOP_GAP_M)
                if speed > safe - 1.0:
                    sumo.vehicle.setSpeed(key, safe)
                    limited.add(key)
        for key in sorted(self._limited - limited):
            sumo.vehicle.setSpeed(key, -1)
        self._limited = limited

    def _blocked_points(self, time_s: float) -> list[LanePoint]:
        """Points that a pedestrian or door blocks now or soon; a lane is free again as soon as it is passed."""
        points = []
        for pedestrian in self._pedestrians:
            if pedestrian.walked_m is not None:
                reach = pedestrian.length_m - pedestrian.walked_m if pedestrian.back else pedestrian.walked_m
                for point, at in zip(pedestrian.crossing.lanes, pedestrian.crossing.at_m, strict=True):
                    passed = reach < at - 2.0 if pedestrian.back else reach > at + 2.0
                    if not passed:
                        points.append(point)
        points += [
            door.lane_point for door, until in zip(self._doors, self._door_open_until_s, strict=True) if time_s < until
        ]
        return points

    def _update_actors(self, time_s: float) -> None:
        self.speeds_mps[:] = 0.0
        for row, pedestrian in enumerate(self._pedestrians):
            if pedestrian.walked_m is None and time_s > 0.0:
                continue
            start, end = pedestrian.crossing.start, pedestrian.crossing.end
            if pedestrian.back:
                start, end = end, start
            if pedestrian.walked_m is not None:
                pedestrian.walked_m = min(pedestrian.walked_m + pedestrian.pace_mps * self._step_s, pedestrian.length_m)
                self.speeds_mps[row] = pedestrian.pace_mps
            share = (pedestrian.walked_m or 0.0) / pedestrian.length_m
            self.poses[row] = *(start + share * (end - start)), np.arctan2(*(end - start)[::-1])
            if share >= 1.0:
                pedestrian.walked_m, pedestrian.back = None, not pedestrian.back
        is_open = self._door_open_until_s > time_s
        self.poses[len(self._pedestrians) :] = np.where(is_open[:, None], self._door_poses, np.nan)


def _lane_indices(road_map: RoadMap) -> dict[str, set[int]]:
    """Indices of the lanes of each road edge."""
    indices: dict[str, set[int]] = {}
    for lane in road_map.lanes.values():
        if lane.across_junction is None:
            indices.setdefault(lane.edge, set()).add(lane.index)
    return indices


def _stopping_distance(speed_mps: float) -> float:
    return speed_mps * REACTION_S + speed_mps**2 / (2 * BRAKING_MPS2)


def _safe_speed(gap_m: float) -> float:
    """The speed from which one can still stop within a gap."""
    if gap_m <= 0.0:
        return 0.0
    slack = BRAKING_MPS2 * REACTION_S
    return float(np.sqrt(slack**2 + 2 * BRAKING_MPS2 * gap_m) - slack)
