"""The types that cross from one file to another, with shapes, units and frames.

Metres, seconds, radians, m/s; stamps are int64 nanoseconds of the sensor clock. A pose is (x, y, heading), heading
counter-clockwise from +x. The ego frame is x forward, y left, at the rear-axle centre (`base_link`). A transform is
named by its effect: `map_from_ego` takes ego points to the map.

Every type validates itself in its constructor: wrong shapes, non-finite numbers and impossible values raise a
ValueError that names the field. Arrays are stored as read-only copies, so that a shared observation cannot change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .field_checks import check_finite, check_positive, check_stamp, keep_array

Array = NDArray[Any]
PLAN_DT_S = 0.1  # between the points of a published plan: Autoware's smoothers assume it
PLAN_HORIZON_S = 8.0  # of plans that no network makes: the baselines' and the stop plan


class Command(IntEnum):
    """The route's next manoeuvre, as NAVSIM's driving command."""

    FOLLOW = 0
    LEFT = 1
    STRAIGHT = 2
    RIGHT = 3


class AgentKind(IntEnum):
    """Kinds of road users; the numbers are stored in recordings."""

    UNKNOWN = 0
    VEHICLE = 1
    PEDESTRIAN = 2
    BICYCLE = 3
    STATIC = 4  # cones, barriers, debris


class ForecastSource(Enum):
    """Source of the agents' future. Only evaluations may use LOGGED."""

    CONSTANT_VELOCITY = "constant_velocity"
    ALONG_ROAD = "along_road"  # agents on the ego's road follow it, the others keep their velocity
    ACCELERATION = "acceleration"  # likewise, with accelerations and yaw rates that decay
    PREDICTED = "predicted"
    LOGGED = "logged"


class StepKind(Enum):
    FULL = "full"
    LITE = "lite"
    BASELINE = "baseline"


class Verdict(IntEnum):
    """The guard's verdict on a plan; the numbers are those of PlannerStatus.msg."""

    OK = 0
    LATE = 1
    UNSAFE = 2
    INFEASIBLE = 3


class LightState(IntEnum):
    """What a traffic light shows."""

    UNKNOWN = 0  # or no light
    GREEN = 1
    AMBER = 2
    RED = 3


class FactorKind(Enum):
    """Why a plan slows down or stops."""

    TRAFFIC_LIGHT = "traffic_light"
    OBJECT = "object"
    ROUTE_END = "route_end"
    SPEED_LIMIT = "speed_limit"


class PlanSource(IntEnum):
    """Which plan was published; the numbers are those of PlannerStatus.msg."""

    PLANNER = 0
    CARRIED = 1
    STOP = 2


@dataclass(frozen=True, eq=False)
class EgoState:
    """The vehicle itself at one stamp."""

    stamp_ns: int
    map_from_ego: Array  # (3,) x m, y m, heading rad
    speed_mps: float  # along the heading; negative in reverse
    acceleration_mps2: float = 0.0  # along the heading
    yaw_rate_rps: float = 0.0
    steering_rad: float = 0.0  # at the road wheel, left positive

    def __post_init__(self) -> None:
        check_stamp(self)
        keep_array(self, "map_from_ego", (3,))
        check_finite(self, "speed_mps", "acceleration_mps2", "yaw_rate_rps", "steering_rad")

    @property
    def motion(self) -> Array:
        """(8,) vx, vy, ax, ay, steering, steering rate, yaw rate, yaw acceleration, as the driving score has them."""
        return np.array(
            [self.speed_mps, 0.0, self.acceleration_mps2, 0.0, self.steering_rad, 0.0, self.yaw_rate_rps, 0.0]
        )


@dataclass(frozen=True, eq=False)
class CameraFrame:
    """One image with its intrinsics and camera pose."""

    stamp_ns: int
    name: str
    pixels: Array  # (H, W, 3) uint8 RGB
    pixels_from_camera: Array  # (3, 3) px, pinhole; camera axes are z forward, x right, y down
    camera_from_ego: Array  # (4, 4) m

    def __post_init__(self) -> None:
        check_stamp(self)
        if getattr(self.pixels, "dtype", None) != np.uint8:
            raise ValueError(f"CameraFrame.pixels of {self.name} is not uint8")
        keep_array(self, "pixels", (None, None, 3), np.uint8)
        if self.pixels.size == 0:
            raise ValueError(f"CameraFrame.pixels of {self.name} has no pixels, its shape is {self.pixels.shape}")
        keep_array(self, "pixels_from_camera", (3, 3))
        keep_array(self, "camera_from_ego", (4, 4))


@dataclass(frozen=True, eq=False)
class Agents:
    """Other road users at the stamp of the observation, in the ego frame; poses are box centres."""

    poses: Array  # (A, 3) x m, y m, heading rad
    velocities_mps: Array  # (A, 2) in ego axes, over ground
    sizes: Array  # (A, 2) length m, width m
    kinds: Array  # (A,) AgentKind
    predicted_poses: Array | None = None  # (A, P, 3) poses at 1, 2, .. P times predicted_dt_s
    predicted_dt_s: float = 0.5
    accelerations_mps2: Array | None = None  # (A,) along the velocity, negative: slows down; None: unknown
    yaw_rates_rps: Array | None = None  # (A,) None: unknown
    MAX_EXTENT_M = 60.0  # longer than any road vehicle: a larger box is a perception fault

    def __post_init__(self) -> None:
        keep_array(self, "poses", (None, 3))
        count = len(self.poses)
        keep_array(self, "velocities_mps", (count, 2))
        keep_array(self, "sizes", (count, 2))
        keep_array(self, "kinds", (count,), np.int64)
        if (self.sizes <= 0).any():
            raise ValueError("Agents.sizes holds a length or width that is not positive")
        if (self.sizes > self.MAX_EXTENT_M).any():
            raise ValueError(f"Agents.sizes holds a box of {self.sizes.max():.1f} m, more than {self.MAX_EXTENT_M} m")
        if not np.isin(self.kinds, list(AgentKind)).all():
            raise ValueError(f"Agents.kinds holds a number that is no AgentKind: {sorted(set(self.kinds.tolist()))}")
        if self.predicted_poses is not None:
            keep_array(self, "predicted_poses", (count, None, 3))
            check_positive(self, "predicted_dt_s")
        for name in ("accelerations_mps2", "yaw_rates_rps"):
            if getattr(self, name) is not None:
                keep_array(self, name, (count,))

    def __len__(self) -> int:
        return len(self.poses)

    @staticmethod
    def none() -> Agents:
        """An empty road: it is known that there are no agents (None means unknown)."""
        return Agents(np.zeros((0, 3)), np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, np.int64))

    def with_standing(self, standing: Agents) -> Agents:
        """These, then others that stand still where they are."""
        paths = self.predicted_poses
        if paths is not None:
            paths = np.concatenate([paths, np.repeat(standing.poses[:, None], paths.shape[1], axis=1)])
        return Agents(
            np.concatenate([self.poses, standing.poses]),
            np.concatenate([self.velocities_mps, standing.velocities_mps]),
            np.concatenate([self.sizes, standing.sizes]),
            np.concatenate([self.kinds, standing.kinds]),
            paths,
            self.predicted_dt_s,
            _with_zeros(self.accelerations_mps2, len(standing)),
            _with_zeros(self.yaw_rates_rps, len(standing)),
        )


def _with_zeros(rates: Array | None, count: int) -> Array | None:
    return None if rates is None else np.concatenate([rates, np.zeros(count)])


def concat_agents(agents: Agents | None, standing: Agents | None) -> Agents | None:
    """Both, or the one that is known."""
    if agents is None or standing is None:
        return standing if agents is None else agents
    return agents.with_standing(standing)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Where the agents will be, at equal intervals from now on; index 0 is now."""

    poses: Array  # (A, T, 3) box centres, present ego frame
    sizes: Array  # (A, 2) length m, width m
    dt_s: float
    source: ForecastSource

    def __post_init__(self) -> None:
        keep_array(self, "poses", (None, None, 3))
        keep_array(self, "sizes", (len(self.poses), 2))
        if (self.sizes <= 0).any():
            raise ValueError("Forecast.sizes holds a length or width that is not positive")
        check_positive(self, "dt_s")


@dataclass(frozen=True, eq=False)
class DrivableGrid:
    """Signed distance to the edge of the drivable space, sampled on a grid fixed to the ego frame."""

    distance_m: Array  # (H, W) float32, positive inside; cell (i, j) is centred at (i, j) * resolution_m in grid axes
    resolution_m: float
    ego_from_grid: Array  # (3,) pose of the grid's first cell centre and axes

    def __post_init__(self) -> None:
        keep_array(self, "distance_m", (None, None), np.float32)
        keep_array(self, "ego_from_grid", (3,))
        check_positive(self, "resolution_m")


@dataclass(frozen=True, eq=False)
class LanePolylines:
    """Lanes near the vehicle, ego frame, padded with zeros to N: pieces of P equally spaced points in driving
    direction."""

    points: Array  # (N, P, 2) m, centreline
    widths_m: Array  # (N,)
    speed_limits_mps: Array  # (N,) 0: unknown
    lights: Array  # (N,) LightState of the light that guards the lane
    valid: Array  # (N,) bool, False for padding

    def __post_init__(self) -> None:
        keep_array(self, "points", (None, None, 2))
        for name, dtype in (("widths_m", float), ("speed_limits_mps", float), ("lights", np.int64), ("valid", bool)):
            keep_array(self, name, (len(self.points),), dtype)


@dataclass(frozen=True, eq=False)
class AgentHistory:
    """Agents of an observation over the last 2 s, in its order; present ego frame, oldest first, 0 where invalid."""

    ids: Array  # (A,) int64, the same for one agent in all observations
    poses: Array  # (A, 21, 3) box centres at -2.0, -1.9, .. 0 s
    velocities_mps: Array  # (A, 21, 2) over ground
    valid: Array  # (A, 21) bool, whether the agent was seen
    STEPS = 21
    DT_S = 0.1

    def __post_init__(self) -> None:
        keep_array(self, "ids", (None,), np.int64)
        shape = (len(self.ids), self.STEPS)
        for name, columns, dtype in (("poses", (3,), float), ("velocities_mps", (2,), float), ("valid", (), bool)):
            keep_array(self, name, (*shape, *columns), dtype)


@dataclass(frozen=True, eq=False)
class TrafficLights:
    """Traffic lights near the vehicle whose state is known."""

    ids: Array  # (L,) int64
    states: Array  # (L,) LightState

    def __post_init__(self) -> None:
        keep_array(self, "ids", (None,), np.int64)
        keep_array(self, "states", (len(self.ids),), np.int64)


@dataclass(frozen=True, eq=False)
class StopLines:
    """Stop lines near the vehicle, ego frame, nearest first."""

    ends: Array  # (S, 2, 2) m, left and right end in driving direction
    light_ids: Array  # (S,) id of the traffic light; -1: none

    def __post_init__(self) -> None:
        keep_array(self, "ends", (None, 2, 2))
        keep_array(self, "light_ids", (len(self.ends),), np.int64)


@dataclass(frozen=True, eq=False)
class Observation:
    """All inputs of a planner at one stamp. None means unknown, which differs from empty."""

    stamp_ns: int
    ego: EgoState
    route: Array  # (L, 3) polyline from behind the ego onwards, ego frame; heading along the route
    command: Command = Command.FOLLOW
    speed_limit_mps: float = 13.9
    cameras: tuple[CameraFrame, ...] = ()  # oldest instant first, each instant left to right
    agents: Agents | None = None
    drivable: DrivableGrid | None = None
    instruction: str = ""
    agents_age_s: float = 0.0  # age of the message with the agents
    drivable_age_s: float = 0.0  # likewise; a map does not age
    obstacles: Agents | None = None  # unclassified obstacles as boxes that do not move
    lanes: LanePolylines | None = None  # the nearest, which other vehicles follow in the forecast
    route_lanes: LanePolylines | None = None  # those of the route's roads, in the order of the route
    history: AgentHistory | None = None  # of `agents`
    traffic_lights: TrafficLights | None = None
    stop_lines: StopLines | None = None
    lights_age_s: float = 0.0  # age of the message with the traffic lights
    route_limits_mps: Array | None = None  # (L,) speed limit from each point of the route on; NaN: none
    route_ends: bool = False  # whether the last point of the route is its goal, where the car has to stop

    def __post_init__(self) -> None:
        check_stamp(self)
        check_finite(self, "agents_age_s", "drivable_age_s", "lights_age_s")
        keep_array(self, "route", (None, 3))
        if len(self.route) == 1:
            raise ValueError("Observation.route has 1 point, expected none or at least 2")
        check_positive(self, "speed_limit_mps")
        if self.route_limits_mps is not None:
            limits_mps = np.asarray(self.route_limits_mps, float)
            if limits_mps.shape != (len(self.route),):
                raise ValueError(
                    f"Observation.route_limits_mps has shape {limits_mps.shape}, expected ({len(self.route)},)"
                )
            if (limits_mps < 0.0).any() or np.isinf(limits_mps).any():
                raise ValueError("Observation.route_limits_mps holds a negative or infinite limit")
            limits_mps = limits_mps.copy()
            limits_mps.flags.writeable = False
            object.__setattr__(self, "route_limits_mps", limits_mps)
        if self.history is not None and len(self.history.ids) != (0 if self.agents is None else len(self.agents)):
            raise ValueError(f"Observation.history has {len(self.history.ids)} agents, not those of Observation.agents")

    @property
    def others(self) -> Agents | None:
        """All known agents and obstacles to keep clear of."""
        return concat_agents(self.agents, self.obstacles)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Poses at equal intervals, in the ego frame of the moment it was planned; poses[0] is one interval ahead."""

    poses: Array  # (T, 3)
    dt_s: float

    def __post_init__(self) -> None:
        keep_array(self, "poses", (None, 3))
        if len(self.poses) == 0:
            raise ValueError("Trajectory.poses is empty, expected at least one pose")
        check_positive(self, "dt_s")

    @property
    def horizon_s(self) -> float:
        return len(self.poses) * self.dt_s

    @property
    def times_s(self) -> Array:
        """(T,) seconds after the plan's stamp."""
        return self.dt_s * np.arange(1, len(self.poses) + 1)


@dataclass(frozen=True)
class SafetyCheck:
    """What a plan was checked against, and the result. Unknown inputs are not checked."""

    objects: ForecastSource | None = None  # source of the agents' future; None: objects are unknown
    objects_age_s: float = 0.0
    clearance_m: float | None = None  # smallest gap to another box, reported up to CLEARANCE_MAX_M of the scorer
    drivable: bool = False  # whether the drivable space was known
    drivable_age_s: float = 0.0
    road_clearance_m: float | None = None  # from the car's outline to the road's edge, smallest; negative outside
    unsafe_after_s: float | None = None  # None: the plan is safe
    repairs: int = 0  # repair iterations of this plan
    horizon_s: float = 0.0  # how far ahead it was checked
    obstacles: bool = False  # whether unclassified obstacles were known
    lights: bool = False  # whether traffic lights were known
    lights_age_s: float = 0.0

    @property
    def safe_s(self) -> float:
        """Seconds for which the plan is safe; infinite if it is safe throughout."""
        return math.inf if self.unsafe_after_s is None else self.unsafe_after_s

    def __str__(self) -> str:
        """One sentence."""
        inputs, unknown = [], []
        gap = "" if self.clearance_m is None else f", {self.clearance_m:.1f} m clear"
        if self.objects is None:
            unknown.append("objects")
        else:
            inputs.append(f"objects ({self.objects.value}, {self.objects_age_s:.2f} s old{gap})")
        if self.obstacles:
            inputs.append("obstacles" if self.objects else f"unclassified obstacles (as they stand{gap})")
        if self.drivable:
            room = "" if self.road_clearance_m is None else f", {self.road_clearance_m:.1f} m of room"
            inputs.append(f"drivable space ({self.drivable_age_s:.2f} s old{room})")
        else:
            unknown.append("drivable space")
        if self.lights:
            inputs.append(f"traffic lights ({self.lights_age_s:.2f} s old)")
        if not inputs:
            return "unchecked: no objects, no drivable space"
        verdict = "safe" if self.unsafe_after_s is None else f"unsafe after {self.unsafe_after_s:.1f} s"
        repaired = f", {self.repairs} repairs" if self.repairs else ""
        missing = f"; unchecked: no {unknown[0]}" if unknown else ""
        return f"{verdict}{repaired} for {self.horizon_s:.1f} s against {_join_words(inputs)}{missing}"


def _join_words(parts: list[str]) -> str:
    """Parts as "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """How a token planner arrived at a plan: the ranked goals, the draft, and the result of each edit round."""

    goals: Array  # (G, 2) m, ego frame of the plan, the most probable first
    goal_probabilities: Array  # (G,) 0..1
    chosen: int  # index of the goal of the draft; -1: the step ranked no goals
    ids: Array  # (R + 1, 2 N) int32: the draft, then the ids after each of R rounds
    confidence: Array  # (R + 1, 2 N) 0..1, probability of each id
    draft: Array = field(default_factory=lambda: np.zeros((0, 2)))  # (N, 2) m, ego frame; none where it is unknown

    def __post_init__(self) -> None:
        keep_array(self, "draft", (None, 2))
        keep_array(self, "goals", (None, 2))
        keep_array(self, "goal_probabilities", (len(self.goals),))
        keep_array(self, "ids", (None, None), np.int32)
        keep_array(self, "confidence", self.ids.shape)
        if not -1 <= self.chosen < len(self.goals):
            raise ValueError(f"TokenTrace.chosen is {self.chosen} of {len(self.goals)} goals")
        if len(self.ids) == 0:
            raise ValueError("TokenTrace.ids is empty, expected at least the draft")


@dataclass(frozen=True, eq=False)
class Plan:
    """A trajectory with its start stamp and start pose."""

    stamp_ns: int
    map_from_ego: Array  # (3,) where the ego stood; the frame of the trajectory
    trajectory: Trajectory
    step: StepKind = StepKind.BASELINE
    candidates: tuple[Trajectory, ...] = ()  # further proposals, best first, same frame
    scores: tuple[float, ...] = ()  # of (trajectory, *candidates), 0..1, where they were scored
    tokens: Array | None = None  # (T,) int32 ids that the network wrote, x1, y1, .. before any change of the plan
    change: str = ""  # of the generator's plan, as "1 m/s^2 slower"; empty if it was not varied
    check: SafetyCheck | None = None  # None: not checked
    trace: TokenTrace | None = None  # how `tokens` were decoded
    planners: tuple[str, ...] = ()  # of (trajectory, *candidates): whose each is; empty: of one planner

    def __post_init__(self) -> None:
        check_stamp(self)
        keep_array(self, "map_from_ego", (3,))
        if self.scores and len(self.scores) != 1 + len(self.candidates):
            raise ValueError(f"Plan.scores has {len(self.scores)} numbers for {1 + len(self.candidates)} trajectories")
        if self.planners and len(self.planners) != 1 + len(self.candidates):
            raise ValueError(
                f"Plan.planners has {len(self.planners)} names for {1 + len(self.candidates)} trajectories"
            )
        if self.tokens is not None:
            keep_array(self, "tokens", (None,), np.int32)

    @property
    def planner(self) -> str:
        """Of several planners that whose plan this is; empty if there is one."""
        return self.planners[0] if self.planners else ""


@dataclass(frozen=True, eq=False)
class PlanningFactor:
    """A position where the plan has to be slow or to stop, and why."""

    kind: FactorKind
    pose: Array  # (3,) of the rear axle there, ego frame
    distance_m: float  # along the route from the rear axle now
    speed_mps: float  # at most, at that position; 0: the plan has to stop

    def __post_init__(self) -> None:
        keep_array(self, "pose", (3,))
        check_finite(self, "distance_m", "speed_mps")


@dataclass(frozen=True, eq=False)
class StepReport:
    """Result of an engine step: the plan to publish, its source, and the verdict on the planner's own plan."""

    plan: Plan
    verdict: Verdict  # of the planner's own plan
    source: PlanSource  # of the plan given here
    reason: str = ""  # one sentence when the verdict is not OK
    timings_ms: Mapping[str, float] = field(default_factory=dict)  # by stage
    step: StepKind | None = None  # of the planner's own plan; None where it has none
    full_step_reason: str = ""  # why that step was a full one
    notes: tuple[str, ...] = ()  # sentences on inputs that the planner could not use unchanged
    factors: tuple[PlanningFactor, ...] = ()  # where the plan given here is slow or stops, the nearest first
    forecast: Forecast | None = None  # that plans were checked against: of agents, then obstacles; None: unknown
    continued: Plan | None = None  # the plan given here at the length of `output.horizon_s`; None: as it is
    ego: EgoState | None = None  # the car at the stamp of the plan; None where another planner's plan was checked

    @property
    def published(self) -> Plan:
        """The plan as it is published."""
        return self.continued or self.plan
