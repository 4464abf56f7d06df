"""Where a plan has to be slow or to stop: traffic lights, speed limits, the end of the route.

`RouteLimits` holds the points along the route with the speed allowed there, and the stop lines that must not be
crossed. It is built once per step from an observation and shared through `SafetyContext`. Choice and repair use it by
the driving score (`red_lights`) and `first_crossings`, post-processing and the engine by `allowed_speeds`, the guard
by `first_crossings`.

A light is closed if it is red and the car can still stop within `guard.hard_braking_mps2` with its front at most
OVER_LINE_MAX_M over the line; or if it is amber, or unknown and `lights.unknown` is stop, and the car can stop within
AMBER_BRAKING_MPS2 before the line. Lines behind the rear axle, or more than OVER_LINE_MAX_M behind the front, have been
passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import reflectdrive_kernels as kernels

from ..core import geometry
from ..core.config import Config
from ..core.domain import Array, FactorKind, LightState, Observation, PlanningFactor
from .areas import RedLights
from .simulate import STEPS

STOP_GAP_M = 1.5  # from the front to a stop line
LEAST_GAP_M = 0.2  # likewise, where more cannot be kept comfortably
RESPONSE_S = 0.5  # a vehicle brakes this much later than its plan
OVER_LINE_MAX_M = 1.5  # a front that is or would stop further over a line goes on: it would block the junction
CREEP_M = 0.3  # a standing front over a line may move by this much
WAITING_MPS = 0.5  # a slower car can always stop
AMBER_BRAKING_MPS2 = 2.8  # an amber light that asks for more is passed
APPROACH_BRAKING_MPS2 = 1.5  # towards a point where the car has to be slow, where there is room
COMFORT_BRAKING_MPS2 = 2.5  # likewise, for a lower limit that comes late
BESIDE_LINE_M = 0.5  # stop lines may be mapped shorter than their lane is wide
ACROSS = 0.5  # cosine: a line is approached at a smaller angle to its driving direction
STRIP_M = 4.0  # length of the area behind a closed line that the driving score counts as red
BINDING_MPS = 0.3  # a plan this close to an allowed speed is held by it
SLOWER_MPS = 0.5  # limits that are this much below the present speed are reported


@dataclass(frozen=True, eq=False)
class RouteLimits:
    """C points along the route with the speed allowed there, and K closed stop lines.

    Distances are those of the rear axle along the route, 0 where the car is.
    """

    kinds: tuple[FactorKind, ...]
    at_m: Array  # (C,) the speed is allowed from here ..
    until_m: Array  # (C,) .. to here; infinite after a stop
    speeds_mps: Array  # (C,)
    braking_mps2: Array  # (C,) deceleration towards `at_m`
    poses: Array  # (C, 3) of the rear axle there, ego frame
    closed_lines: Array  # (K, 2, 2) m, left and right end in driving direction
    reach_m: Array  # (K,) from the rear axle to the point of the car that must not cross the line

    @staticmethod
    def none() -> RouteLimits:
        empty = np.zeros(0)
        return RouteLimits((), empty, empty, empty, empty, np.zeros((0, 3)), np.zeros((0, 2, 2)), empty)

    @staticmethod
    def of(observation: Observation, config: Config, route: Array | None, here_m: float) -> RouteLimits:
        """The limits that an observation tells of; unknown inputs limit nothing. `route` (L, 3) is that of the
        observation without repeated points, None if there is none, and `here_m` the ego's distance along it."""
        lines = _facing_lines(observation)
        if route is None and not lines:
            return RouteLimits.none()
        builder = _Builder(observation, config, route, here_m)
        for ends, state in lines:
            builder.add_light(ends, state)
        if builder.route is not None:
            builder.add_speed_limits()
            if observation.route_ends:
                builder.add_route_end()
        return builder.build()

    def allowed_speeds(self, at_m: Array, dt_s: float) -> Array:
        """(...) mean speed in m/s that a car at distances (...) may have in the next `dt_s`; infinite if unlimited."""
        return np.asarray(self._allowed_by_place(at_m, dt_s).min(axis=-1, initial=np.inf))

    def _allowed_by_place(self, at_m: Array, dt_s: float) -> Array:
        """(..., C) the speed that each point allows."""
        at_m = np.asarray(at_m, float)[..., None]
        room_m = self.at_m - at_m
        slowing = np.sqrt(self.speeds_mps**2 + 2.0 * self.braking_mps2 * np.maximum(room_m, 0.0))
        # The mean speed of an interval is that of its middle.
        slowing = np.maximum(slowing - 0.5 * self.braking_mps2 * dt_s, self.speeds_mps)
        # No interval ends beyond a stop.
        ending = np.where(np.isinf(self.until_m), np.maximum(room_m, 0.0) / dt_s, np.inf)
        allowed = np.minimum(slowing, ending)
        return np.where(at_m < self.until_m, allowed, np.inf)

    @property
    def for_kernels(self) -> tuple[Array, Array, float]:
        """An argument of the kernels that take closed stop lines."""
        return self.closed_lines, self.reach_m, BESIDE_LINE_M

    def first_crossings(self, poses: Array) -> Array:
        """(N,) first step at which the car has crossed a closed line, of rear-axle poses (N, T, 3) in the ego frame,
        the present one first; T where it crosses none."""
        if not len(self.closed_lines):
            return np.full(len(poses), poses.shape[1])
        steps = np.empty(len(poses), np.int64)
        kernels.first_crossings(self.for_kernels, poses, steps)
        return steps

    def red_lights(self) -> RedLights:
        """The areas behind the closed lines, as the driving score has red lights: for all of the next 4 s."""
        if not len(self.closed_lines):
            return RedLights()
        left, right = self.closed_lines[:, 0], self.closed_lines[:, 1]
        across = (left - right) / np.hypot(*(left - right).T)[:, None]
        ahead = np.stack([across[:, 1], -across[:, 0]], axis=-1)
        rings = np.stack([right, left, left + STRIP_M * ahead, right + STRIP_M * ahead], axis=1)
        return RedLights(tuple(rings), np.ones((len(rings), STEPS + 1), bool))

    def factors(self, poses: Array, speeds_mps: Array, dt_s: float, speed_mps: float) -> tuple[PlanningFactor, ...]:
        """The points that slow a plan down, the nearest first: poses (T, 3) with mean speeds (T,) up to each of them,
        of a car that drives at `speed_mps` now."""
        reported = np.isinf(self.until_m) | (self.speeds_mps <= speed_mps - SLOWER_MPS)  # stops, lower limits
        if not reported.any():
            return ()
        steps = np.hypot(*np.diff(poses[:, :2], axis=0, prepend=np.zeros((1, 2))).T)
        before_m = np.concatenate([[0.0], np.cumsum(steps)[:-1]])
        allowed_mps = self._allowed_by_place(before_m, dt_s)
        binding = reported & (speeds_mps[:, None] > allowed_mps - BINDING_MPS).any(axis=0)
        return tuple(
            PlanningFactor(self.kinds[index], self.poses[index], float(self.at_m[index]), float(self.speeds_mps[index]))
            for index in np.argsort(self.at_m, kind="stable")
            if binding[index]
        )


def _facing_lines(observation: Observation) -> list[tuple[Array, LightState]]:
    """Ends (2, 2) and state of each stop line with a light; a line without a light, and one whose light is not among
    the lights, is left out."""
    lines, lights = observation.stop_lines, observation.traffic_lights
    if lines is None or lights is None:
        return []
    states = dict(zip(lights.ids.tolist(), lights.states.tolist(), strict=True))
    return [
        (ends, LightState(states[key]))
        for ends, key in zip(lines.ends, lines.light_ids.tolist(), strict=True)
        if key in states and np.hypot(*(ends[0] - ends[1])) > 0.0
    ]


class _Builder:
    """Collects the limits of one observation."""

    def __init__(self, observation: Observation, config: Config, route: Array | None, here_m: float) -> None:
        self.observation, self.config, self.route, self.here_m = observation, config, route, here_m
        vehicle = config.vehicle
        self.front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
        self.speed_mps = max(observation.ego.speed_mps, 0.0)
        self.kinds: list[FactorKind] = []
        self.rows: list[tuple[float, float, float, float]] = []  # at, until, speed, braking
        self.closed: list[tuple[Array, float]] = []

    def build(self) -> RouteLimits:
        at_m, until_m, speeds_mps, braking_mps2 = np.array(self.rows).reshape(-1, 4).T
        line = np.array([[0.0, 0.0], [1.0, 0.0]]) if self.route is None else self.route
        return RouteLimits(
            tuple(self.kinds),
            at_m,
            until_m,
            speeds_mps,
            braking_mps2,
            geometry.sample(line, self.here_m + at_m),
            np.array([ends for ends, _ in self.closed]).reshape(-1, 2, 2),
            np.array([reach_m for _, reach_m in self.closed]),
        )

    def add_light(self, ends: Array, state: LightState) -> None:
        policy, guard = self.config.lights.unknown, self.config.guard
        if state is LightState.GREEN or (state is LightState.UNKNOWN and policy == "pass"):
            return
        away_m, on_route = self._distance_to(ends)
        if away_m <= 0.0 or self.front_m - away_m > OVER_LINE_MAX_M:
            return  # passed
        if state is LightState.UNKNOWN and policy == "caution":
            if on_route:
                slow_mps = self.config.lights.caution_speed_mps
                self._add(FactorKind.TRAFFIC_LIGHT, away_m - self.front_m, away_m, slow_mps, COMFORT_BRAKING_MPS2)
            return
        room_m, moves = max(away_m - self.front_m, 0.0), self.speed_mps > WAITING_MPS
        red = state is LightState.RED
        most_mps2, over_m = (guard.hard_braking_mps2, OVER_LINE_MAX_M) if red else (AMBER_BRAKING_MPS2, 0.0)
        stopping_m = self._braking_distance(most_mps2) if moves else 0.0
        if moves and stopping_m > away_m - self.front_m + over_m:
            return  # the car cannot stop there
        self.closed.append((ends, float(np.clip(away_m - max(stopping_m, CREEP_M), 0.0, self.front_m))))
        if on_route:
            stop_m, most_mps2 = room_m - STOP_GAP_M, COMFORT_BRAKING_MPS2
            comfortable_m = self._braking_distance(COMFORT_BRAKING_MPS2)
            if moves and comfortable_m > stop_m:  # no more of the gap is used than it needs
                most_mps2 = guard.emergency_braking_mps2
                least_m = room_m - LEAST_GAP_M - RESPONSE_S * self.speed_mps
                stop_m = min(comfortable_m, max(least_m, self._braking_distance(most_mps2)))
            self._add(FactorKind.TRAFFIC_LIGHT, stop_m, np.inf, 0.0, most_mps2)

    def add_speed_limits(self) -> None:
        """A point for each stretch of the route with one limit, from the car on."""
        limits_mps = self.observation.route_limits_mps
        if limits_mps is None:
            return
        assert self.route is not None
        along = geometry.arc_lengths(self.observation.route) - self.here_m
        starts = np.flatnonzero(np.concatenate([[True], ~_same(limits_mps[1:], limits_mps[:-1])]))
        for first, after in zip(starts, [*starts[1:], len(along) - 1], strict=True):
            if along[after] > 0.0 and not np.isnan(limits_mps[first]):
                until_m = np.inf if limits_mps[first] == 0.0 else float(along[after])
                self._add(
                    FactorKind.SPEED_LIMIT,
                    float(along[first]),
                    until_m,
                    float(limits_mps[first]),
                    COMFORT_BRAKING_MPS2,
                )

    def add_route_end(self) -> None:
        assert self.route is not None
        left_m = float(geometry.arc_lengths(self.route)[-1]) - self.here_m
        most_mps2 = self.config.guard.hard_braking_mps2
        stop_m = max(left_m - RESPONSE_S * self.speed_mps, min(left_m, self._braking_distance(most_mps2)))
        self._add(FactorKind.ROUTE_END, stop_m, np.inf, 0.0, most_mps2)

    def _add(self, kind: FactorKind, at_m: float, until_m: float, speed_mps: float, most_mps2: float) -> None:
        """A point to reach at a speed; braking is what that requires, within APPROACH_BRAKING_MPS2 and `most_mps2`."""
        at_m = max(at_m, 0.0)
        needed_mps2 = (self.speed_mps**2 - speed_mps**2) / (2.0 * max(at_m, 1e-3))
        self.kinds.append(kind)
        self.rows.append((at_m, until_m, speed_mps, float(np.clip(needed_mps2, APPROACH_BRAKING_MPS2, most_mps2))))

    def _braking_distance(self, braking_mps2: float) -> float:
        return self.speed_mps**2 / (2.0 * braking_mps2)

    def _distance_to(self, ends: Array) -> tuple[float, bool]:
        """Metres from the rear axle to a stop line, along the route or, of a line off the route, straight on; and
        whether the route crosses the line in its driving direction. 0 of a line that the car does not face."""
        left, right = ends
        across = (left - right) / np.hypot(*(left - right))
        ahead = np.array([across[1], -across[0]])
        straight_m = float(right @ ahead / ahead[0]) if ahead[0] > ACROSS else 0.0
        if self.route is None:
            return straight_m, True
        points = self.route[:, :2]
        beyond, lateral_m = (points - right) @ ahead, (points - right) @ across
        width_m = float(np.hypot(*(left - right)))
        share = beyond[:-1] / np.where(beyond[:-1] != beyond[1:], beyond[:-1] - beyond[1:], 1.0)
        where = lateral_m[:-1] + share * (lateral_m[1:] - lateral_m[:-1])
        on_line = (where > -BESIDE_LINE_M) & (where < width_m + BESIDE_LINE_M)
        along = geometry.arc_lengths(self.route)
        crosses = (beyond[:-1] < 0.0) & (beyond[1:] >= 0.0) & on_line
        at_m = along[:-1] + share * np.diff(along) - self.here_m
        ahead_of_car = np.flatnonzero(crosses & (at_m > 0.0))
        if not len(ahead_of_car):
            return straight_m, False
        return float(at_m[ahead_of_car[0]]), True


def _same(one: Array, other: Array) -> Array:
    """Whether limits are equal; NaN equals NaN."""
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))
