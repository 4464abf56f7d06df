"""Traffic lights of a recording, as the red connectors of a scene: what the score and the planners read.

record = LightRecord(lanelets, max_age_s)
record.put(message)                              # every TrafficLightGroupArray, in order
lights = record.red_lights(ego, route)           # once the next 4 s have been received
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import shapely

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array, EgoState, LightState
from ..maps.lanelet_map import LaneletMap, align_bounds
from ..ros import convert
from ..ros.inputs.lights import REACH_M, LightMemory, of_own_turn, states_by_group
from ..scoring.areas import RedLights
from ..scoring.simulate import STEPS

STEP_NS = 100_000_000
AHEAD_M = 60.0  # to the stop line, of a scene that counts as one of a red light


@dataclass(frozen=True)
class LightSample:
    """One message: the lanelets that are red."""

    stamp_ns: int
    red: frozenset[int]


class LightRecord:
    """The lights of a map around the present; messages of a few seconds are kept."""

    def __init__(self, lanelets: LaneletMap, max_age_s: float) -> None:
        self._lanelets, self._max_age_s = lanelets, max_age_s
        self._memory = LightMemory(max_age_s, red_stays=False)
        self._samples: deque[LightSample] = deque()

    def put(self, message: object) -> None:
        """Raises BadMessage, as the node's inputs do."""
        stamp_ns = convert.stamp_ns(message)
        if self._samples and stamp_ns <= self._samples[-1].stamp_ns:
            return
        self._memory.put(stamp_ns, states_by_group(message))
        states = self._memory.by_lanelet(self._lanelets.lights, stamp_ns)
        red = frozenset(lanelet for lanelet, state in states.items() if state is LightState.RED)
        self._samples.append(LightSample(stamp_ns, red))

    def forget(self, before_ns: int) -> None:
        while self._samples and self._samples[0].stamp_ns < before_ns:
            self._samples.popleft()

    def clear(self) -> None:
        """Another clock."""
        self._samples.clear()
        self._memory = LightMemory(self._max_age_s, red_stays=False)

    def red_lights(self, ego: EgoState, route: Array) -> RedLights:
        """The lanelets of the route (L, 3), ego frame, that are red at 0, 0.1, .. 4 s after the ego's stamp.

        The state at a time is that of the newest message until then, if it is not older than allowed.
        """
        if not self._samples or len(route) < 2:
            return RedLights()
        map_lights = self._lanelets.lights
        away_m = self._lanelets.lane_segments.keys_along_line(route, ego.map_from_ego, REACH_M)
        on_route = of_own_turn(map_lights, away_m)
        stamps = np.array([sample.stamp_ns for sample in self._samples])
        at_ns = ego.stamp_ns + STEP_NS * np.arange(STEPS + 1)
        newest = np.searchsorted(stamps, at_ns, side="right") - 1
        fresh = (newest >= 0) & ((at_ns - stamps[newest]) * 1e-9 <= self._max_age_s)
        ego_from_map = geometry.invert(ego.map_from_ego)
        rings, red = [], []
        for lanelet, line in zip(map_lights.lanelet_ids.tolist(), map_lights.stop_lines, strict=True):
            if lanelet not in on_route:
                continue
            states = [ok and lanelet in self._samples[k].red for k, ok in zip(newest.tolist(), fresh, strict=True)]
            if any(states):
                rings.append(geometry.transform_points(ego_from_map, self._ring(lanelet, line)))
                red.append(states)
        return RedLights(tuple(rings), np.array(red, bool).reshape(len(rings), STEPS + 1))

    def _ring(self, lanelet_id: int, stop_line: Array) -> Array:
        """(V, 2) of a lanelet from its stop line on, map frame, in the order of `data.scene_lanes`: the stop line's
        left end is last, its right end before it."""
        lanelet = self._lanelets.lanelets[lanelet_id]
        left, right = align_bounds(lanelet.left, lanelet.right)
        ring = np.concatenate([left, right[::-1], stop_line[::-1]])
        if shapely.Polygon(ring).is_valid:
            return ring
        return np.concatenate([left[1:], right[::-1], left[:1]])  # the stop line lies inside: from the lanelet's start


def stop_lines(lights: RedLights) -> Array:
    """(R, 2, 2) left and right end of the stop line of each connector."""
    return np.array([(ring[-1], ring[-2]) for ring in lights.connectors]).reshape(-1, 2, 2)


def red_ahead(lights: RedLights) -> bool:
    """Whether a light is red now whose stop line is ahead, within AHEAD_M."""
    middles = stop_lines(lights)[lights.red[:, 0]].mean(axis=1)
    return bool(((middles[:, 0] > 0.0) & (np.hypot(*middles.T) < AHEAD_M)).any())


def runs_red(path: Array, lights: RedLights, vehicle: VehicleConfig) -> bool:
    """Whether the front of the car on its path (41, 3) at 0, 0.1, .. 4 s crosses the stop line of a light while it is
    red."""
    nose_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    front = geometry.compose(path, np.array([nose_m, 0.0, 0.0]))[:, :2]
    steps = shapely.linestrings(np.stack([front[:-1], front[1:]], axis=1))
    for line, red in zip(stop_lines(lights), lights.red, strict=True):
        if (shapely.intersects(steps, shapely.LineString(line)) & red[:-1]).any():
            return True
    return False
