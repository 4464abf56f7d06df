"""What plans are held against, and how they fare: the others' forecast, the drivable space, the route.

A plan is looked at twice. As it is drawn, pose by pose, which is what the guard refuses by and what a controller is
given; and as the score's car would drive it (`scoring.simulate`), which is what happens when a plan asks too much. The
worse of the two counts, instant by instant, from now to 4 s: 1 where all is well, 0.5 on hitting a cone or barrier, 0
on hitting anybody else or leaving the road. This is ReflectDrive's safety score (NC times DAC, section E.1 of the
paper) with a stricter idea of fault: on the road a side swipe counts too, whoever was in whose lane.

What no plan can undo is not held against it: a contact that is there already, until it ends; a car that stands off the
road already, while it gets no further out; being hit from behind, or while standing. What is unknown is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .. import geometry, kinematics
from ..config import Config, GuardConfig, ScoringConfig, VehicleConfig
from ..domain import Array, DrivableGrid, Forecast, ForecastSource, Observation, Plan, SafetyCheck
from ..scoring import contacts, drivable, metrics, prediction
from ..scoring.contacts import SAMPLES, AgentTracks
from ..scoring.frenet import FrenetFrame, poses_on_road
from ..scoring.metrics import EgoAreas
from ..scoring.scorer import Scene, motion_of, score_states, total
from ..scoring.simulate import DT_S, HEADING, STATE_SIZE, STEPS, VX, X, Y, simulate
from . import guard
from .postprocess.waypoints import POINT_DT_S, POINTS, interpolate

OUTLINE = np.array([(along / 6, side / 2) for side in (-1, 1) for along in (-3, -1, 1, 3)])  # of length and width
CORNERS = OUTLINE[[0, 3, 4, 7]]
OUTLINE_MARGIN_M = 0.15  # a kerb of 5 m radius reaches 0.07 m in between two points of it; the guard adds half a cell
LIKELY_M = 0.05  # what is read between cells of 0.2 m is no more exact
SAFE = 1.0
NEVER = STEPS + 1  # first unsafe step of a plan that has none
OFF_ROUTE_M = 2.5  # a point further from the route is not on it ..
OFF_ROUTE_MORE_M = 0.5  # .. nor one this much further than the car is now
STRAIGHT_ON = np.array([[-20.0, 0.0], [150.0, 0.0]])  # progress is measured along it where there is no route


@dataclass(frozen=True, eq=False)
class SafetyContext:
    """What a plan is held against, in the ego frame of now."""

    scene: Scene  # motion, agents (none where unknown) and route; no drivable space
    grid: DrivableGrid | None
    limits: GuardConfig = field(default_factory=GuardConfig)  # of the car, and the gap to other boxes to be kept
    objects: ForecastSource | None = None  # None: unknown
    objects_age_s: float = 0.0
    drivable_age_s: float = 0.0
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    obstacles: bool = False  # whether the scene's agents hold unclassified obstacles
    route: Array | None = None  # (L, 2+) where to go; None where nobody has told
    road: FrenetFrame | None = None  # the same as a ruler, where the car is on it

    @staticmethod
    def of(observation: Observation, config: Config, forecast: Forecast | None = None) -> SafetyContext:
        """`forecast` replaces the one made from the observation's agents."""
        agents, objects, others = AgentTracks.none(), None, observation.others
        routed = len(geometry.distinct_points(observation.route)) >= 2
        road = FrenetFrame.of(observation.route)
        if others is not None:
            forecast = forecast or prediction.forecast(others, road, DT_S, SAMPLES - 1)
            agents = AgentTracks.of_forecast(forecast, others.kinds)
            objects = None if observation.agents is None else forecast.source
        scene = Scene(
            motion_of(observation.ego),
            agents,
            objects or ForecastSource.CONSTANT_VELOCITY,
            observation.route if routed else STRAIGHT_ON,
            vehicle=config.vehicle,
        )
        return SafetyContext(
            scene,
            observation.drivable,
            config.guard,
            objects,
            observation.agents_age_s,
            observation.drivable_age_s,
            config.scoring,
            observation.obstacles is not None,
            observation.route if routed else None,
            road,
        )

    @property
    def can_check(self) -> bool:
        """Whether there is anything to check against."""
        return self.objects is not None or self.obstacles or self.grid is not None

    @cached_property
    def inflated_agents(self) -> AgentTracks:
        """The scene's agents with the gap around them that a plan must keep."""
        agents, gap_m = self.scene.agents, self.limits.clearance_m
        return replace(agents, sizes=guard.inflate_boxes(agents.poses[:, 0], agents.sizes, self.scene.vehicle, gap_m))


@dataclass(frozen=True, eq=False)
class Safety:
    """Of N plans at 0, 0.1, .. 4 s."""

    by_step: Array  # (N, 41) 1, 0.5 or 0
    excess: Array  # (N,) how much is wrong: instants of contact, plus metres off the road summed over instants

    @property
    def worst(self) -> Array:
        """(N,) the plan's safety."""
        return np.asarray(self.by_step.min(axis=1))

    @property
    def first_unsafe(self) -> Array:
        """(N,) the earliest unsafe instant, in steps of 0.1 s; NEVER where there is none."""
        unsafe = self.by_step < SAFE
        return np.where(unsafe.any(axis=1), unsafe.argmax(axis=1), NEVER)

    @property
    def waypoints(self) -> Array:
        """(N, 8) the worst within a quarter of a second of each waypoint; the first has what comes before, too."""
        nearest = np.clip(np.rint(np.arange(STEPS + 1) / (STEPS // POINTS)).astype(int) - 1, 0, POINTS - 1)
        return np.stack([self.by_step[:, nearest == place].min(axis=1) for place in range(POINTS)], axis=1)

    def combine(self, other: Safety) -> Safety:
        return Safety(np.minimum(self.by_step, other.by_step), self.excess + other.excess)


@dataclass(frozen=True, eq=False)
class Assessment:
    """N plans with their safety and quality."""

    points: Array  # (N, 8, 2) m
    safety: Safety  # by both looks
    guard_safe_steps: Array  # (N,) how many steps it is safe as drawn, as far as the guard looks
    stays_on_road: (
        Array  # (N,) whether its corners, as driven, likely stay on the road: what a careful look cannot rule out
    )
    limit_violation: Array  # (N, 8) how far beyond the guard's limits it asks the car to go, as a share of them
    quality: Array  # (N,) 0..1, as if all were safe
    progress_m: Array  # (N,) along the route in 4 s, as driven
    states: Array  # (N, 41, 11) of the score's car

    def key(self, place: int) -> tuple[float, ...]:
        """Larger is better: safety, then how late it ends, in the guard's eyes first, how little is wrong, whether a
        car can follow, quality."""
        safety = self.safety
        return (
            float(safety.worst[place]),
            float(self.guard_safe_steps[place]),
            float(self.stays_on_road[place]),
            float(safety.first_unsafe[place]),
            -round(float(safety.excess[place]), 3),
            -float(self.limit_violation[place].max()),
            round(float(self.quality[place]), 9),
        )

    @property
    def sound(self) -> Array:
        """(N, 8) bool, waypoints where the plan is safe and a car can follow it."""
        return (self.safety.waypoints >= SAFE) & (self.limit_violation <= 0.0)

    def best(self, strain: float) -> int:
        """The first of the best of those that ask no more of the car than `strain`, or of those that ask least."""
        more = np.maximum(self.limit_violation.max(axis=1) - strain, 0.0)
        return max(range(len(self.points)), key=lambda place: (-more[place], self.key(place), -place))

    def one(self, place: int) -> Assessment:
        here = slice(place, place + 1)
        return Assessment(
            self.points[here],
            Safety(self.safety.by_step[here], self.safety.excess[here]),
            self.guard_safe_steps[here],
            self.stays_on_road[here],
            self.limit_violation[here],
            self.quality[here],
            self.progress_m[here],
            self.states[here],
        )


@dataclass(frozen=True, eq=False)
class SafetyEvaluation:
    """N plans, looked at both ways: all that it takes to tell whether they are safe."""

    points: Array  # (N, 8, 2) m
    poses: Array  # (N, 8, 3)
    states: Array  # (N, 41, 11) of the score's car
    as_planned: Safety
    as_simulated: Safety

    @property
    def safety(self) -> Safety:
        return self.as_planned.combine(self.as_simulated)


def evaluate(known: SafetyContext, points: Array, states: Array | None = None) -> SafetyEvaluation:
    """Plans of points (N, 8, 2) at 0.5 .. 4 s, by both looks; at half the cost of judging them.

    `states` (N, 41, 11) are what the score's car makes of them, where that is known already.
    """
    poses = poses_on_road(points, known.road)
    if states is None:
        states = simulate(poses, known.scene.motion, known.scene.vehicle)
    states.flags.writeable = False  # or the score would keep a copy
    return SafetyEvaluation(points, poses, states, planned_safety(known, poses, closely=True), _safety(known, states))


def assess(known: SafetyContext, looks: SafetyEvaluation, far_m: float | None = None) -> Assessment:
    """What has been looked at, with its quality; who gets further than `far_m`, or the best of these, earns no more."""
    points, poses, sent, safety = looks.points, looks.poses, looks.as_planned, looks.safety
    card = score_states(known.scene, looks.states, known.scoring)
    guard_safe_steps = np.minimum(sent.first_unsafe, int(known.limits.safe_horizon_s / DT_S + 1e-6) + 1)
    # the score multiplies by safety, which has been told already; what it says beyond is quality
    unharmed = np.ones(len(points))
    far_m = float(card.progress_m.max()) if far_m is None else far_m
    ep = metrics.ego_progress(card.progress_m, unharmed, max(far_m, 0.0), masked=False)
    quality = total(replace(card, multiplier=unharmed, ep=ep), known.scoring) * _on_route(known.scene, points)
    return Assessment(
        points,
        safety,
        guard_safe_steps,
        _stays(known, card.states),
        limit_violation(known, poses),
        np.asarray(quality),
        card.progress_m,
        card.states,
    )


def _stays(known: SafetyContext, states: Array) -> Array:
    """(N,) bool of states (N, 41, 11): as the driving score has it, by the corners, with no margin."""
    if known.grid is None:
        return np.ones(len(states), bool)
    vehicle, stays = known.scene.vehicle, np.ones(len(states), bool)
    for x, y in _outline_in_grid(known.grid, metrics.centers(states, vehicle), vehicle, CORNERS):
        stays &= (drivable.likely_in_grid(known.grid, x, y) > LIKELY_M).all(axis=1)
    return stays


def limit_violation(known: SafetyContext, poses: Array) -> Array:
    """(N, 8) how far plans through poses (N, 8, 3) at 0.5 .. 4 s go beyond the limits of a car, as a share of them."""
    demands = guard.vehicle_demands(poses, POINT_DT_S, float(known.scene.motion[0]), known.limits)
    most = np.max([values / limit for _, values, limit, _ in demands], axis=0)
    return np.asarray(np.maximum(most - 1.0, 0.0).round(3))


def roughness(known: SafetyContext, points: Array) -> Array:
    """(N,) m^2: third differences of points (N, 8, 2) from where the car was half a second ago on, squared."""
    before = np.array([[-POINT_DT_S * known.scene.motion[0], 0.0], [0.0, 0.0]])
    path = np.concatenate([np.broadcast_to(before, (len(points), 2, 2)), points], axis=1)
    return np.asarray((np.diff(path, n=3, axis=1) ** 2).sum(axis=(1, 2)))


def planned_safety(known: SafetyContext, poses: Array, closely: bool = False) -> Safety:
    """Safety of plans through poses (N, 8, 3) at 0.5 .. 4 s as they are drawn; `closely`: the road as the guard sees
    it, at six times the cost."""
    return _safety(known, _states(interpolate(poses, float(known.scene.motion[0])), known.scene.motion[0]), closely)


def _states(poses: Array, speed_mps: float) -> Array:
    """(N, 41, 11) of poses (N, 40, 3): place and speed only; the rest is 0."""
    states = np.zeros((len(poses), STEPS + 1, STATE_SIZE))
    states[:, 1:, [X, Y, HEADING]] = poses
    step = np.diff(states[..., [X, Y]], axis=1)
    states[:, 0, VX], states[:, 1:, VX] = speed_mps, np.hypot(step[..., 0], step[..., 1]) / DT_S
    return states


def _safety(known: SafetyContext, states: Array, closely: bool = False) -> Safety:
    """By the places and speeds of states (N, 41, 11)."""
    vehicle, agents = known.scene.vehicle, known.inflated_agents
    centers = metrics.centers(states, vehicle)
    by_step, excess = np.ones(states.shape[:2]), np.zeros(len(states))
    if len(agents):
        anywhere = np.ones(states.shape[:2], bool)  # a side swipe is a fault wherever it happens
        areas = EgoAreas(anywhere, anywhere, anywhere, anywhere)
        by_step = metrics.no_collision(states, centers, vehicle, agents, areas)
        excess += (by_step < SAFE).sum(axis=1)
    if known.grid is not None:
        road_clearance_m = (exact_road_clearances if closely else road_clearances)(known.grid, centers, vehicle)
        moving = np.abs(states[..., VX]) > metrics.STOPPED_MPS
        best_m = np.maximum.accumulate(road_clearance_m, axis=1)
        further_out = road_clearance_m[:, 1:] < best_m[:, :-1] - known.grid.resolution_m
        out = np.zeros(road_clearance_m.shape, bool)
        out[:, 1:] = (road_clearance_m[:, 1:] <= 0.0) & moving[:, 1:] & ((best_m[:, :-1] > 0.0) | further_out)
        by_step = np.where(out, 0.0, by_step)
        excess += np.where(out, -road_clearance_m, 0.0).sum(axis=1)
    return Safety(by_step, excess)


def exact_road_clearances(grid: DrivableGrid, centers: Array, vehicle: VehicleConfig) -> Array:
    """(...) metres from the outline of the car, centres (..., 3), to the edge of the drivable space; never too much."""
    return drivable.outline_clearances(grid, centers, np.array([vehicle.length_m, vehicle.width_m]))


def road_clearances(grid: DrivableGrid, centers: Array, vehicle: VehicleConfig) -> Array:
    """(...) `exact_road_clearances` for many plans, at a sixth of the cost.

    Eight points of the outline are asked: corners alone would not see a kerb that reaches in between them in a curve.
    """
    road_clearance_m = np.full(centers.shape[:-1], np.inf)
    for x, y in _outline_in_grid(grid, centers, vehicle, OUTLINE):
        np.minimum(road_clearance_m, drivable.clearances_in_grid(grid, x, y), out=road_clearance_m)
    return np.asarray(road_clearance_m - OUTLINE_MARGIN_M)


def _outline_in_grid(
    grid: DrivableGrid, centers: Array, vehicle: VehicleConfig, outline: Array
) -> Iterator[tuple[Array, Array]]:
    """Points of cars with centres (..., 3), one of the outline after the other: x (...) and y along the grid's axes."""
    in_grid = geometry.compose(geometry.invert(grid.ego_from_grid), centers)
    x, y, heading = np.ascontiguousarray(np.moveaxis(in_grid, -1, 0))
    cos, sin = np.cos(heading), np.sin(heading)
    for ahead, left in outline * (vehicle.length_m, vehicle.width_m):
        yield x + ahead * cos - left * sin, y + ahead * sin + left * cos


def _on_route(scene: Scene, points: Array) -> Array:
    """(N,) share of the points (N, 8, 2) that are on the route; a fault of the paper's score is not to ask."""
    ends = np.concatenate([np.zeros((1, 2)), points.reshape(-1, 2)])
    _, offset = geometry.project(scene.centerline, ends)
    allowed = max(OFF_ROUTE_M, abs(float(offset[0])) + OFF_ROUTE_MORE_M)
    return np.asarray((np.abs(offset[1:]) <= allowed).reshape(len(points), -1).mean(axis=1))


def safety_check(plan: Plan, known: SafetyContext, repairs: int = 0) -> SafetyCheck:
    """What is to be said of a plan's own poses, as far as they go, up to 4 s."""
    steps = min(STEPS, int(plan.trajectory.horizon_s / DT_S + 1e-6))
    if steps == 0 or not known.can_check:
        return SafetyCheck(repairs=repairs, horizon_s=steps * DT_S)
    poses = kinematics.resample(plan.trajectory, DT_S * np.arange(1, steps + 1))
    padded = np.concatenate([poses, np.repeat(poses[-1:], STEPS - steps, axis=0)])
    states = _states(padded[None], known.scene.motion[0])
    vehicle, scene = known.scene.vehicle, known.scene
    unsafe = int(_safety(known, states, closely=True).first_unsafe[0])
    center = metrics.centers(states, vehicle)[:, 1 : steps + 1]
    gap = room = None
    if known.objects is not None or known.obstacles:
        x, y, heading = np.ascontiguousarray(center.T)
        size, at_most_m = np.array([vehicle.length_m, vehicle.width_m]), known.scoring.clearance_max_m
        samples = np.arange(1, steps + 1)
        gap = float(contacts.clearances(x, y, heading, size, scene.agents, samples, at_most_m).min())
    if known.grid is not None:
        room = float(exact_road_clearances(known.grid, center, vehicle).min())
    return SafetyCheck(
        known.objects,
        known.objects_age_s,
        gap,
        known.grid is not None,
        known.drivable_age_s,
        room,
        None if unsafe > steps else unsafe * DT_S,
        repairs,
        steps * DT_S,
        known.obstacles,
    )
