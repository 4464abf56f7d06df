"""Safety and quality of plans, given the predicted agents, the drivable space and the route.

A plan is evaluated twice: its poses as planned, which the guard checks and the controller gets, and its simulation
(`scoring.simulate`), which shows what happens if the plan exceeds the vehicle limits. The minimum counts at each
instant from 0 to 4 s: 1 safe, 0.5 collision with a static object (cone, barrier), 0 collision with a road user or off
the road. This is the safety score of ReflectDrive (NC times DAC, section E.1) with a stricter definition of fault:
lateral collisions always count.

Excluded are: a collision that exists at t = 0, until it ends; a vehicle that is off the road at t = 0, while it moves
no further out; collisions from behind or at standstill. Unknown inputs are not checked.
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
OUTLINE_MARGIN_M = (
    0.15  # a kerb of 5 m radius reaches 0.07 m between two outline points; the exact check adds half a cell
)
LIKELY_M = 0.05  # accuracy of the interpolation between cells of 0.2 m
SAFE = 1.0
NEVER = STEPS + 1  # first unsafe step of a safe plan
OFF_ROUTE_M = 2.5  # a point is on the route up to this lateral distance ..
OFF_ROUTE_MORE_M = 0.5  # .. or up to that of the vehicle now plus this
STRAIGHT_ON = np.array([[-20.0, 0.0], [150.0, 0.0]])  # progress is measured along it if there is no route


@dataclass(frozen=True, eq=False)
class SafetyContext:
    """What plans are checked against, in the current ego frame."""

    scene: Scene  # motion, agents (none where unknown) and route; no drivable space
    grid: DrivableGrid | None
    limits: GuardConfig = field(default_factory=GuardConfig)  # limits of the vehicle and the clearance to other boxes
    objects: ForecastSource | None = None  # source of the prediction; None: objects are unknown
    objects_age_s: float = 0.0
    drivable_age_s: float = 0.0
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    obstacles: bool = False  # whether the agents of the scene include unclassified obstacles
    route: Array | None = None  # (L, 2+); None: unknown
    road: FrenetFrame | None = None  # Frenet frame of the route; None if the vehicle is not on it

    @staticmethod
    def of(observation: Observation, config: Config, forecast: Forecast | None = None) -> SafetyContext:
        """`forecast` replaces the prediction from the agents of the observation."""
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
        """Whether objects, obstacles or drivable space are known."""
        return self.objects is not None or self.obstacles or self.grid is not None

    @cached_property
    def inflated_agents(self) -> AgentTracks:
        """Agents of the scene with boxes enlarged by the clearance that a plan must keep."""
        agents, gap_m = self.scene.agents, self.limits.clearance_m
        return replace(agents, sizes=guard.inflate_boxes(agents.poses[:, 0], agents.sizes, self.scene.vehicle, gap_m))


@dataclass(frozen=True, eq=False)
class Safety:
    """Safety of N plans at 0, 0.1, .. 4 s."""

    by_step: Array  # (N, 41) 1, 0.5 or 0
    excess: Array  # (N,) instants of collision plus metres off the road summed over instants

    @property
    def worst(self) -> Array:
        """(N,) minimum over time."""
        return np.asarray(self.by_step.min(axis=1))

    @property
    def first_unsafe(self) -> Array:
        """(N,) first unsafe instant in steps of 0.1 s; NEVER if there is none."""
        unsafe = self.by_step < SAFE
        return np.where(unsafe.any(axis=1), unsafe.argmax(axis=1), NEVER)

    @property
    def waypoints(self) -> Array:
        """(N, 8) minimum within 0.25 s of each waypoint; the first includes all earlier instants."""
        nearest = np.clip(np.rint(np.arange(STEPS + 1) / (STEPS // POINTS)).astype(int) - 1, 0, POINTS - 1)
        return np.stack([self.by_step[:, nearest == place].min(axis=1) for place in range(POINTS)], axis=1)

    def combine(self, other: Safety) -> Safety:
        return Safety(np.minimum(self.by_step, other.by_step), self.excess + other.excess)


@dataclass(frozen=True, eq=False)
class Assessment:
    """Safety and quality of N plans."""

    points: Array  # (N, 8, 2) m
    safety: Safety  # minimum of both evaluations
    guard_safe_steps: Array  # (N,) safe steps of the planned poses, up to the horizon of the guard
    stays_on_road: (
        Array  # (N,) whether its corners, as driven, likely stay on the road: what a careful look cannot rule out
    )
    limit_violation: Array  # (N, 8) excess over the vehicle limits of the guard, relative to the limit
    quality: Array  # (N,) 0..1, driving score without its safety multipliers
    progress_m: Array  # (N,) along the route in 4 s, simulated
    states: Array  # (N, 41, 11) simulated states

    def key(self, place: int) -> tuple[float, ...]:
        """Sort key, larger is better: safety, safe steps of the guard, staying on the road, first unsafe instant, less
        excess, less violation of the vehicle limits, quality."""
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
        """(N, 8) bool, waypoints where the plan is safe and within the vehicle limits."""
        return (self.safety.waypoints >= SAFE) & (self.limit_violation <= 0.0)

    def best(self, allowed_violation: float) -> int:
        """Index of the best plan with a limit violation of at most `allowed_violation`, else of the least violation;
        the first of equals."""
        more = np.maximum(self.limit_violation.max(axis=1) - allowed_violation, 0.0)
        return max(range(len(self.points)), key=lambda place: (-more[place], self.key(place), -place))

    def one(self, place: int) -> Assessment:
        """The assessment of one plan."""
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
    """N plans with the safety of their planned poses and of their simulation."""

    points: Array  # (N, 8, 2) m
    poses: Array  # (N, 8, 3)
    states: Array  # (N, 41, 11) simulated states
    as_planned: Safety
    as_simulated: Safety

    @property
    def safety(self) -> Safety:
        return self.as_planned.combine(self.as_simulated)


def evaluate(known: SafetyContext, points: Array, states: Array | None = None) -> SafetyEvaluation:
    """Safety of plans through points (N, 8, 2) at 0.5 .. 4 s, as planned and simulated; half the cost of `assess`.

    `states` (N, 41, 11) are the simulated states, if they are known.
    """
    poses = poses_on_road(points, known.road)
    if states is None:
        states = simulate(poses, known.scene.motion, known.scene.vehicle)
    states.flags.writeable = False  # read-only, so that the scorer keeps no copy
    return SafetyEvaluation(points, poses, states, planned_safety(known, poses, exact=True), _safety(known, states))


def assess(known: SafetyContext, evaluation: SafetyEvaluation, far_m: float | None = None) -> Assessment:
    """Safety and quality of evaluated plans. Progress beyond `far_m` (None: the largest of these) earns no score."""
    points, poses, planned, safety = evaluation.points, evaluation.poses, evaluation.as_planned, evaluation.safety
    card = score_states(known.scene, evaluation.states, known.scoring)
    guard_safe_steps = np.minimum(planned.first_unsafe, int(known.limits.safe_horizon_s / DT_S + 1e-6) + 1)
    # Safety is assessed separately, so the multipliers of the score are set to 1.
    ones = np.ones(len(points))
    far_m = float(card.progress_m.max()) if far_m is None else far_m
    ep = metrics.ego_progress(card.progress_m, ones, max(far_m, 0.0), masked=False)
    quality = total(replace(card, multiplier=ones, ep=ep), known.scoring) * _on_route(known.scene, points)
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
    """(N,) bool of states (N, 41, 11): whether the corners stay in the drivable space, without margin, as in the
    driving score."""
    if known.grid is None:
        return np.ones(len(states), bool)
    vehicle, stays = known.scene.vehicle, np.ones(len(states), bool)
    for x, y in _outline_in_grid(known.grid, metrics.centers(states, vehicle), vehicle, CORNERS):
        stays &= (drivable.likely_in_grid(known.grid, x, y) > LIKELY_M).all(axis=1)
    return stays


def limit_violation(known: SafetyContext, poses: Array) -> Array:
    """(N, 8) excess of plans through poses (N, 8, 3) at 0.5 .. 4 s over the vehicle limits, relative to the limit."""
    demands = guard.vehicle_demands(poses, POINT_DT_S, float(known.scene.motion[0]), known.limits)
    most = np.max([values / limit for _, values, limit, _ in demands], axis=0)
    return np.asarray(np.maximum(most - 1.0, 0.0).round(3))


def roughness(known: SafetyContext, points: Array) -> Array:
    """(N,) m^2: sum of squared third differences of points (N, 8, 2), preceded by the positions 0.5 s ago and now."""
    before = np.array([[-POINT_DT_S * known.scene.motion[0], 0.0], [0.0, 0.0]])
    path = np.concatenate([np.broadcast_to(before, (len(points), 2, 2)), points], axis=1)
    return np.asarray((np.diff(path, n=3, axis=1) ** 2).sum(axis=(1, 2)))


def planned_safety(known: SafetyContext, poses: Array, exact: bool = False) -> Safety:
    """Safety of plans through poses (N, 8, 3) at 0.5 .. 4 s, interpolated. `exact` checks the road like the guard, at
    six times the cost."""
    return _safety(known, _states(interpolate(poses, float(known.scene.motion[0])), known.scene.motion[0]), exact)


def _states(poses: Array, speed_mps: float) -> Array:
    """(N, 41, 11) states of poses (N, 40, 3): position, heading and speed; the rest is 0."""
    states = np.zeros((len(poses), STEPS + 1, STATE_SIZE))
    states[:, 1:, [X, Y, HEADING]] = poses
    step = np.diff(states[..., [X, Y]], axis=1)
    states[:, 0, VX], states[:, 1:, VX] = speed_mps, np.hypot(step[..., 0], step[..., 1]) / DT_S
    return states


def _safety(known: SafetyContext, states: Array, exact: bool = False) -> Safety:
    """Safety by the positions and speeds of states (N, 41, 11)."""
    vehicle, agents = known.scene.vehicle, known.inflated_agents
    centers = metrics.centers(states, vehicle)
    by_step, excess = np.ones(states.shape[:2]), np.zeros(len(states))
    if len(agents):
        anywhere = np.ones(states.shape[:2], bool)  # a lateral collision counts everywhere
        areas = EgoAreas(anywhere, anywhere, anywhere, anywhere)
        by_step = metrics.no_collision(states, centers, vehicle, agents, areas)
        excess += (by_step < SAFE).sum(axis=1)
    if known.grid is not None:
        road_clearance_m = (exact_road_clearances if exact else road_clearances)(known.grid, centers, vehicle)
        moving = np.abs(states[..., VX]) > metrics.STOPPED_MPS
        best_m = np.maximum.accumulate(road_clearance_m, axis=1)
        further_out = road_clearance_m[:, 1:] < best_m[:, :-1] - known.grid.resolution_m
        out = np.zeros(road_clearance_m.shape, bool)
        out[:, 1:] = (road_clearance_m[:, 1:] <= 0.0) & moving[:, 1:] & ((best_m[:, :-1] > 0.0) | further_out)
        by_step = np.where(out, 0.0, by_step)
        excess += np.where(out, -road_clearance_m, 0.0).sum(axis=1)
    return Safety(by_step, excess)


def exact_road_clearances(grid: DrivableGrid, centers: Array, vehicle: VehicleConfig) -> Array:
    """(...) lower bound in metres of the distance from the box outline, centres (..., 3), to the edge of the drivable
    space."""
    return drivable.outline_clearances(grid, centers, np.array([vehicle.length_m, vehicle.width_m]))


def road_clearances(grid: DrivableGrid, centers: Array, vehicle: VehicleConfig) -> Array:
    """(...) as `exact_road_clearances`, at a sixth of the cost, for many plans.

    Eight points of the outline are evaluated: corners alone would miss a kerb that reaches between them in a curve.
    """
    road_clearance_m = np.full(centers.shape[:-1], np.inf)
    for x, y in _outline_in_grid(grid, centers, vehicle, OUTLINE):
        np.minimum(road_clearance_m, drivable.clearances_in_grid(grid, x, y), out=road_clearance_m)
    return np.asarray(road_clearance_m - OUTLINE_MARGIN_M)


def _outline_in_grid(
    grid: DrivableGrid, centers: Array, vehicle: VehicleConfig, outline: Array
) -> Iterator[tuple[Array, Array]]:
    """Coordinates x, y (...) along the grid axes of each outline point, for boxes with centres (..., 3)."""
    in_grid = geometry.compose(geometry.invert(grid.ego_from_grid), centers)
    x, y, heading = np.ascontiguousarray(np.moveaxis(in_grid, -1, 0))
    cos, sin = np.cos(heading), np.sin(heading)
    for ahead, left in outline * (vehicle.length_m, vehicle.width_m):
        yield x + ahead * cos - left * sin, y + ahead * sin + left * cos


def _on_route(scene: Scene, points: Array) -> Array:
    """(N,) fraction of the points (N, 8, 2) on the route. The driving score of the paper does not measure it."""
    ends = np.concatenate([np.zeros((1, 2)), points.reshape(-1, 2)])
    _, offset = geometry.project(scene.centerline, ends)
    allowed = max(OFF_ROUTE_M, abs(float(offset[0])) + OFF_ROUTE_MORE_M)
    return np.asarray((np.abs(offset[1:]) <= allowed).reshape(len(points), -1).mean(axis=1))


def safety_check(plan: Plan, known: SafetyContext, repairs: int = 0) -> SafetyCheck:
    """SafetyCheck of the poses of a plan, up to 4 s."""
    steps = min(STEPS, int(plan.trajectory.horizon_s / DT_S + 1e-6))
    if steps == 0 or not known.can_check:
        return SafetyCheck(repairs=repairs, horizon_s=steps * DT_S)
    poses = kinematics.resample(plan.trajectory, DT_S * np.arange(1, steps + 1))
    padded = np.concatenate([poses, np.repeat(poses[-1:], STEPS - steps, axis=0)])
    states = _states(padded[None], known.scene.motion[0])
    vehicle, scene = known.scene.vehicle, known.scene
    unsafe = int(_safety(known, states, exact=True).first_unsafe[0])
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
