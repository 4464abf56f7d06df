"""Checks of plans against agents, road and vehicle limits; `SafetyContext` is built once per step.

`SafetyContext` holds an observation with its route frame, its prediction of the agents and their inflated boxes, each
built on first use. The planner, the repair, the guard and the engine share it.

There are two checks of collision and road, which share the context and nothing else:

- `unsafe_reason` is the guard's, for one trajectory as published, at its own interval.
- `safety_of_states` is that of search and repair, for N plans at 0.1 s: the minimum counts at each instant from 0 to 4
  s, 1 safe, 0.5 collision with a static object (cone, barrier), 0 collision with a road user or off the road. This is
  the safety score of ReflectDrive (NC times DAC, section E.1) with a stricter definition of fault: lateral collisions
  always count. Excluded are a collision that exists at t = 0, until it ends; a vehicle that is off the road at t = 0,
  while it moves no further out; collisions from behind or at standstill.

Unknown inputs are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import reflectdrive_kernels as kernels

from ..core import geometry, kinematics
from ..core.config import Config, GuardConfig, VehicleConfig
from ..core.domain import Agents, Array, DrivableGrid, Forecast, Observation, Plan, SafetyCheck, Trajectory
from ..core.kinematics import box_centres
from . import contacts, drivable, prediction
from .contacts import BEHIND_RAD, FAULT_RULE, SAMPLES, STOPPED_MPS, AgentTracks
from .frenet import FrenetFrame
from .limits import RouteLimits
from .scorer import CLEARANCE_MAX_M, Scene
from .simulate import DT_S, HEADING, STATE_SIZE, STEPS, VX, X, Y

OUTLINE = np.array([(along / 6, side / 2) for side in (-1, 1) for along in (-3, -1, 1, 3)])  # of length and width
OUTLINE_MARGIN_M = (
    0.15  # a kerb of 5 m radius reaches 0.07 m between two outline points; the exact check adds half a cell
)
LIKELY_M = 0.05  # accuracy of the interpolation between cells of 0.2 m
NO_GRID = (np.zeros((2, 2), np.float32), np.zeros(3), 1.0)  # an argument of the kernels, for an unknown grid
SAFE = 1.0
NEAR_WAYPOINT = np.array([0, 8, 13, 18, 23, 28, 33, 38])  # first instant that is nearest to each waypoint
NEVER = STEPS + 1  # first unsafe step of a safe plan
STRAIGHT_ON = np.array([[-20.0, 0.0], [150.0, 0.0]])  # progress is measured along it if there is no route
MIN_CURVATURE_SPEED_MPS = 1.0  # below, curvature is heading noise
MAX_DECELERATION_MPS2 = 9.0  # a plan that brakes harder is beyond the grip of tyres on a dry road
MAX_CURVATURE_PER_M = 0.35  # of a plan: tighter than any car turns, with room for the noise of a 2 Hz plan
BACKWARDS_MPS = 0.1  # beyond noise: a controller would shift into reverse
SAME_GAP_M = 0.02  # smaller changes of a gap are ignored: a replanned stop moves by as much ..
LEAST_GAP_M = 0.15  # .. but none of a gap below this: planned ten times a second, they would add up to a contact
AGENT_GAP_M = 1.0  # plans of search and repair stop before an agent with this gap; with less where less is free
AGENT_GAP_CHOICES = 5  # shares of AGENT_GAP_M that are tried where less than it is free ahead
TOUCH_M = 1e-6  # a box that touches the vehicle now would not be checked at all


# --- context of the checks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SafetyContext:
    """An observation and the inputs of checks, in the ego frame; each part is built on first use and cached."""

    observation: Observation
    config: Config  # vehicle, limits of the guard, scoring

    @cached_property
    def others(self) -> Agents | None:
        """Agents and obstacles; None if neither is known."""
        return self.observation.others

    @cached_property
    def road(self) -> FrenetFrame | None:
        """Frenet frame of the route; None if the vehicle is not on it."""
        return None if self.route_line is None else FrenetFrame.of(self.route_line, self.ego_place)

    @cached_property
    def route(self) -> Array | None:
        """(L, 3) route; None if it has fewer than two different points."""
        return None if self.route_line is None else self.observation.route

    @cached_property
    def route_line(self) -> Array | None:
        """(L, 3) route without points that repeat the one before; None if fewer than two are left."""
        line = geometry.distinct_points(self.observation.route)
        return line if len(line) >= 2 else None

    @cached_property
    def ego_place(self) -> tuple[float, float]:
        """Metres along `route_line`, and to its left, of the ego."""
        assert self.route_line is not None
        return geometry.ego_on_route(self.route_line)

    @cached_property
    def can_check(self) -> bool:
        """Whether agents, obstacles, drivable space or a closed stop line are known."""
        return self.others is not None or self.grid is not None or len(self.limits.closed_lines) > 0

    @cached_property
    def limits(self) -> RouteLimits:
        """Places where a plan has to be slow or to stop, and closed stop lines."""
        here_m = 0.0 if self.route_line is None else self.ego_place[0]
        return RouteLimits.of(self.observation, self.config, self.route_line, here_m)

    @property
    def grid(self) -> DrivableGrid | None:
        return self.observation.drivable

    @cached_property
    def forecast(self) -> Forecast | None:
        """The others at 0, 0.1, .. 5 s; None if they are unknown."""
        if self.others is None:
            return None
        return prediction.forecast(self.others, self.road, DT_S, SAMPLES - 1, self.observation.lanes)

    def forecast_at(self, dt_s: float, steps: int) -> Forecast | None:
        """The others at 0, 1, .. `steps` times `dt_s`: taken from `forecast` if it has these instants."""
        if self.others is None or self.forecast is None:
            return None
        every = round(dt_s / DT_S)
        if every >= 1 and abs(every * DT_S - dt_s) < 1e-9 and steps * every < SAMPLES:
            return replace(self.forecast, poses=self.forecast.poses[:, : steps * every + 1 : every], dt_s=dt_s)
        return prediction.forecast(self.others, self.road, dt_s, steps, self.observation.lanes)

    @cached_property
    def scene(self) -> Scene:
        """Motion, agents (none if unknown) and route for the driving score; no drivable space."""
        centerline = STRAIGHT_ON if self.route is None else self.route
        agents = AgentTracks.none()
        if self.others is not None and self.forecast is not None:
            agents = AgentTracks.of_forecast(self.forecast, self.others.kinds)
        lights, vehicle = self.limits.red_lights(), self.config.vehicle
        return Scene(self.observation.ego.motion, agents, centerline, red_lights=lights, vehicle=vehicle)

    @cached_property
    def inflated_sizes(self) -> Array:
        """(A, 2) sizes of the others, enlarged by the clearance that a plan must keep."""
        if self.forecast is None:
            return np.zeros((0, 2))
        now, sizes = self.forecast.poses[:, 0], self.forecast.sizes
        return inflate_boxes(now, sizes, self.config.vehicle, self.config.guard.clearance_m)

    @cached_property
    def stopping_vehicle(self) -> VehicleConfig:
        """The vehicle, longer in front by AGENT_GAP_M, or by as much as fits between it and what is ahead now.

        Search and repair drive it among the agents: their plans stop before one with this gap.
        """
        vehicle, margin_m = self.config.vehicle, AGENT_GAP_M
        if self.forecast is None or len(self.forecast.poses) == 0:
            return vehicle
        longer, centres, sizes = longer_vehicles(vehicle, margin_m)
        now = self.forecast.poses[:, 0]
        touched = geometry.boxes_overlap(centres[:, None], sizes[:, None], now[None], self.inflated_sizes[None])
        touched &= ~touched[-1]  # those that the vehicle itself touches are not checked with any gap
        return longer[int(np.argmin(touched.any(axis=1)))]

    @cached_property
    def for_kernels(self) -> tuple[Any, ...]:
        """Arguments of `kernels.plan_safety`: agents with `inflated_sizes`, closed lines, the grid."""
        columns, present, _, are_static = self.scene.agents.for_kernels()
        return (
            (columns, present, self.inflated_sizes, are_static),
            self.limits.for_kernels,
            NO_GRID if self.grid is None else drivable.for_kernels(self.grid),
        )

    def road_outline(self, exact: bool) -> tuple[Array, float]:
        """(P, 2) points of the car's outline that have to be on the road, and how much further inside; none if the
        drivable space is unknown.

        `exact`: a point per cell of the grid. Otherwise eight, at a sixth of the cost: corners alone would miss a kerb
        that reaches between them in a curve.
        """
        length_m, width_m = self.config.vehicle.length_m, self.config.vehicle.width_m
        if self.grid is None:
            return np.zeros((0, 2)), 0.0
        if not exact:
            return OUTLINE * (length_m, width_m), OUTLINE_MARGIN_M
        outline, spacing_m = drivable.outline(length_m, width_m, self.grid.resolution_m)
        return outline, 0.5 * spacing_m


@lru_cache(maxsize=8)
def longer_vehicles(vehicle: VehicleConfig, margin_m: float) -> tuple[list[VehicleConfig], Array, Array]:
    """The vehicle longer in front by shares of `margin_m`, from all to none; centre poses (C, 3) and sizes (C, 2)."""
    longer = [longer_in_front(vehicle, share * margin_m) for share in np.linspace(1.0, 0.0, AGENT_GAP_CHOICES)]
    centres = np.array([[each.rear_axle_to_center_m, 0.0, 0.0] for each in longer])
    return longer, centres, np.array([[each.length_m, each.width_m] for each in longer])


def longer_in_front(vehicle: VehicleConfig, by_m: float) -> VehicleConfig:
    """The vehicle with its front bumper further ahead."""
    return replace(
        vehicle,
        length_m=vehicle.length_m + by_m,
        rear_axle_to_center_m=vehicle.rear_axle_to_center_m + 0.5 * by_m,
    )


def inflate_boxes(poses: Array, sizes: Array, vehicle: VehicleConfig, clearance_m: float) -> Array:
    """(A, 2) sizes of agents at poses (A, 3), enlarged by the clearance that a plan must keep.

    Where the present gap is smaller, it must not shrink by more than SAME_GAP_M in a plan, and below LEAST_GAP_M not at
    all: any number of plans leaves a car at least that far away.
    """
    present_m = np.maximum(touching_clearances(poses, sizes, vehicle) - TOUCH_M, 0.0)
    gap_m = np.maximum(present_m - SAME_GAP_M, np.minimum(present_m, LEAST_GAP_M))
    return np.asarray(sizes + 2.0 * np.minimum(gap_m, clearance_m)[:, None])


def touching_clearances(poses: Array, sizes: Array, vehicle: VehicleConfig) -> Array:
    """(A,) metres by which boxes at poses (A, 3) can grow on each side until they touch the vehicle; negative where
    they overlap it.

    A plan that does not touch the grown box leaves at least this growth to the next plan, in every direction.
    """
    here, ego_size = box_centres(np.zeros(3), vehicle), np.array([vehicle.length_m, vehicle.width_m])
    ego_axes, other_axes = geometry.box_gaps(here, ego_size, poses, sizes)
    turn = poses[:, 2] - here[2]
    # Seen along an axis of the ego, a side that grows by 1 m comes nearer by the width of its turned corner.
    nearer = np.abs(np.cos(turn)) + np.abs(np.sin(turn))
    return np.asarray(np.maximum(ego_axes / nearer, other_axes))


# --- one trajectory, as published -----------------------------------------------------------------------------------


def unsafe_reason(trajectory: Trajectory, safety_context: SafetyContext) -> str:
    """The first collision, departure from the road or crossing of a closed stop line within the safe horizon of the
    guard; empty if there is none."""
    steps = min(len(trajectory.poses), int(safety_context.config.guard.safe_horizon_s / trajectory.dt_s + 1e-6))
    poses, dt_s = trajectory.poses[:steps], trajectory.dt_s
    centres = box_centres(poses, safety_context.config.vehicle)
    moving = np.abs(kinematics.speeds(trajectory)[:steps]) > STOPPED_MPS
    return (
        first_collision(poses, dt_s, centres, moving, safety_context)
        or off_road_reason(dt_s, centres, moving, safety_context)
        or red_light_reason(poses, dt_s, safety_context)
    )


def first_safe(choices: Array, dt_s: float, safety_context: SafetyContext, lights: SafetyContext | None) -> Trajectory:
    """The first trajectory of poses (C, T, 3) that is safe and crosses no closed stop line of `lights`; the last if
    none is."""
    for poses in choices:
        trajectory = Trajectory(poses, dt_s)
        crosses = lights is not None and red_light_reason(poses, dt_s, lights)
        if not crosses and not unsafe_reason(trajectory, safety_context):
            break
    return trajectory


def red_light_reason(poses: Array, dt_s: float, safety_context: SafetyContext) -> str:
    """When poses (T, 3) cross a closed stop line; empty if they do not."""
    (step,) = safety_context.limits.first_crossings(kinematics.with_origin(poses)[None])
    return "" if step > len(poses) else f"the plan crosses the stop line of a red light after {step * dt_s:.1f} s"


def first_collision(poses: Array, dt_s: float, centres: Array, moving: Array, safety_context: SafetyContext) -> str:
    """The first collision with an inflated box, except at standstill and from behind; empty if there is none. Of the
    ego's rear-axle poses (T, 3), its box centres (T, 3), and whether it is `moving` (T,)."""
    forecast = safety_context.forecast_at(dt_s, len(centres))
    if forecast is None or len(forecast.poses) == 0:
        return ""
    vehicle, sizes = safety_context.config.vehicle, safety_context.inflated_sizes
    # The first contact with each agent decides, as in the PDM score: after a collision from behind the predicted agent
    # overlaps the ego, which is not a fault of the plan.
    fault = kernels.first_fault(
        centres,
        poses,
        moving,
        (vehicle.length_m, vehicle.width_m),
        forecast.poses[:, 1:],
        sizes,
        BEHIND_RAD,
    )
    if fault < 0:
        return ""
    who, when = divmod(fault, len(centres))
    x, y = forecast.poses[who, 0, :2]
    return f"the plan hits the object now at x {x:.1f} m, y {y:.1f} m after {(when + 1) * dt_s:.1f} s"


def off_road_reason(dt_s: float, centres: Array, moving: Array, safety_context: SafetyContext) -> str:
    """When the outline of the vehicle leaves the drivable space; empty if it does not, at standstill, or if the space
    is unknown.

    A vehicle that is outside already may drive back: only movement further out counts.
    """
    if safety_context.grid is None:
        return ""
    here = box_centres(np.zeros((1, 3)), safety_context.config.vehicle)
    clearance = exact_road_clearances(
        safety_context.grid, np.concatenate([here, centres]), safety_context.config.vehicle
    )
    best_so_far = np.maximum.accumulate(clearance)[:-1]
    out = (clearance[1:] <= 0.0) & (clearance[1:] < best_so_far - safety_context.grid.resolution_m) & moving
    if not out.any():
        return ""
    return f"the plan leaves the drivable space after {(int(np.argmax(out)) + 1) * dt_s:.1f} s"


def safety_check(plan: Plan, safety_context: SafetyContext, repairs: int = 0) -> SafetyCheck:
    """SafetyCheck of the poses of a plan, up to 4 s."""
    steps = min(STEPS, int(plan.trajectory.horizon_s / DT_S + 1e-6))
    if steps == 0 or not safety_context.can_check:
        return SafetyCheck(repairs=repairs, horizon_s=steps * DT_S)
    poses = kinematics.resample(plan.trajectory, DT_S * np.arange(1, steps + 1))
    padded = np.concatenate([poses, np.repeat(poses[-1:], STEPS - steps, axis=0)])
    vehicle, observation = safety_context.config.vehicle, safety_context.observation
    states = states_of_poses(padded[None], observation.ego.speed_mps)
    safety, centers, road_clearance_m = _check_states(safety_context, states, vehicle, exact=True)
    unsafe = int(safety.first_unsafe[0])
    samples = np.arange(1, steps + 1)
    gap = None
    if safety_context.others is not None:
        size, at_most_m = np.array([vehicle.length_m, vehicle.width_m]), CLEARANCE_MAX_M
        gap = float(
            contacts.clearances(centers[:, samples], size, safety_context.scene.agents, samples, at_most_m).min()
        )
    return SafetyCheck(
        None if observation.agents is None or safety_context.forecast is None else safety_context.forecast.source,
        observation.agents_age_s,
        gap,
        safety_context.grid is not None,
        observation.drivable_age_s,
        None if safety_context.grid is None else float(road_clearance_m[:, samples].min()),
        None if unsafe > steps else unsafe * DT_S,
        repairs,
        steps * DT_S,
        observation.obstacles is not None,
        observation.traffic_lights is not None,
        observation.lights_age_s,
    )


# --- many plans, for search and repair --------------------------------------------------------------------------------


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
        return np.asarray(np.minimum.reduceat(self.by_step, NEAR_WAYPOINT, axis=1))

    def combine(self, other: Safety) -> Safety:
        return Safety(np.minimum(self.by_step, other.by_step), self.excess + other.excess)


def states_of_poses(poses: Array, speed_mps: float) -> Array:
    """(N, 41, 11) states of poses (N, 40, 3): position, heading and speed; the rest is 0."""
    states = np.zeros((len(poses), STEPS + 1, STATE_SIZE))
    states[:, 1:, [X, Y, HEADING]] = poses
    step = np.diff(states[..., [X, Y]], axis=1)
    states[:, 0, VX], states[:, 1:, VX] = speed_mps, np.hypot(step[..., 0], step[..., 1]) / DT_S
    return states


def safety_of_states(safety_context: SafetyContext, states: Array, exact: bool = False) -> Safety:
    """Safety by the positions and speeds of states (N, 41, 11). `exact` checks the road like the guard, at six times
    the cost."""
    return _check_states(safety_context, states, safety_context.stopping_vehicle, exact)[0]


def _check_states(
    safety_context: SafetyContext, states: Array, vehicle: VehicleConfig, exact: bool
) -> tuple[Safety, Array, Array]:
    """Safety of states (N, 41, 11), with collisions of `vehicle`; the car's box centres (N, 41, 3), and its distances
    (N, 41) to the edge of the road, if it is known."""
    centers, clearances_m = np.empty((len(states), STEPS + 1, 3)), np.empty((len(states), STEPS + 1))
    by_step, excess = np.empty((len(states), STEPS + 1)), np.empty(len(states))
    box = ((vehicle.length_m, vehicle.width_m), vehicle.rear_axle_to_center_m)
    road = (*safety_context.for_kernels, *safety_context.road_outline(exact))
    ahead_m = safety_context.config.vehicle.rear_axle_to_center_m
    kernels.plan_safety(states, *box, ahead_m, *road, FAULT_RULE, centers, clearances_m, by_step, excess)
    return Safety(by_step, excess), centers, clearances_m


def stays_on_road(safety_context: SafetyContext, centers: Array) -> Array:
    """(N,) bool of box centres (N, 41, 3): whether the corners stay in the drivable space, without margin, as in the
    driving score."""
    if safety_context.grid is None:
        return np.ones(len(centers), bool)
    vehicle = safety_context.config.vehicle
    corners = drivable.corners(np.array([vehicle.length_m, vehicle.width_m]))
    distances_m = drivable.likely_box_distances(safety_context.grid, centers, corners)
    return np.asarray((distances_m > LIKELY_M).all(axis=1))


def exact_road_clearances(grid: DrivableGrid, centers: Array, vehicle: VehicleConfig) -> Array:
    """(...) lower bound in metres of the distance from the box outline, centres (..., 3), to the edge of the drivable
    space."""
    return drivable.outline_clearances(grid, centers, np.array([vehicle.length_m, vehicle.width_m]))


# --- vehicle limits -------------------------------------------------------------------------------------------------


def vehicle_demands(
    poses: Array, dt_s: float, speed_mps: float, guard: GuardConfig
) -> tuple[tuple[str, Array, float, str], ...]:
    """Demands of N plans (N, T, 3) on a vehicle at this speed: for each a phrase, values (N, T), limit and unit."""
    demands = np.empty((6, *poses.shape[:2]))
    kernels.vehicle_demands(poses, dt_s, speed_mps, MIN_CURVATURE_SPEED_MPS, demands)
    backwards, speed, acceleration, deceleration, lateral, curvature = demands
    return (
        ("drives backwards at", backwards, BACKWARDS_MPS, "m/s"),
        ("is as fast as", speed, guard.max_speed_mps, "m/s"),
        ("speeds up at", acceleration, guard.max_acceleration_mps2, "m/s^2"),
        ("brakes at", deceleration, MAX_DECELERATION_MPS2, "m/s^2"),
        ("turns with a lateral acceleration of", lateral, guard.max_lateral_acceleration_mps2, "m/s^2"),
        ("turns with a curvature of", curvature, MAX_CURVATURE_PER_M, "1/m"),
    )
