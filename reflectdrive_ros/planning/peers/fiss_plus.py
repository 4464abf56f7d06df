"""FISS+ of `fiss-planner` 1.0.0 (Apache-2.0): a search among Frenet trajectories, with lane changes and fallbacks.

S. Sun, J. Chen, J. Sun, C. Yuan, Y. Li, T. Zhang, M. H. Ang: FISS+: Efficient and Focused Trajectory Generation and
Refinement Using Fast Iterative Search and Sampling Strategy (IROS 2023).

Its `LocalPlanner` drives with its defaults, those of its ROS 2 node. Of ours are the vehicle's dimensions and what all
planners are given: limits, route, goal, lanes, drivable space, forecast of the others, closed stop lines.
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core import geometry, kinematics
from ...core.config import VehicleConfig
from ...core.domain import PLAN_DT_S, AgentKind, Array, DrivableGrid, FactorKind, LanePolylines, Observation, Trajectory
from ...scoring import drivable
from ...scoring.limits import RouteLimits
from ...scoring.safety import SafetyContext
from ..candidates import Candidates, GeneratorSpec, of_trajectories
from ..planner import PlannerContext, PlannerState, PlanningError
from ..postprocess.waypoints import HORIZON_S

PREDICTED_S = 5.5  # half a second more than its longest trajectory, as in its own adapters
STATION_M = 1.0  # between points of lanes, as its corridor has them
LANE_SEGMENT_M = 10.0  # of the lanes that the route is cut into; a neighbour exists for a whole one or not at all
LANE_WIDTH_M = 3.5  # where it is unknown: its own default
SAME_LANE = 0.75  # of the width: a lane whose centre is this close to the route is the route's
BETWEEN_LANES = 0.25  # a route that is further from the centre of its lane changes lanes: both are its own
NEXT_LANE = 1.25  # likewise a neighbour
WIDER_M = 0.5  # the car may leave its lane by this much where the drivable space is known to go on
REACHES_S = 4.0  # mean duration of its trajectories
REBUILD_M = 80.0  # a road is used for this far; a new one begins without the previous plan
COMPARED_M = 100.0  # a route that leaves the road within this distance is another ..
OTHER_ROUTE_M = 0.5  # .. by this much
STOP_LINE_M = 1.0  # length of the box that stands for a closed stop line, as FISS+ places it
GOAL_GAP_M = 2.5  # it stops this far before a box
LEAST_SPEED_MPS = 0.01  # a desired speed of 0 means its default
STEERS_MPS = 1.0  # slower cars have no curvature


@dataclass(frozen=True, eq=False)
class Road:
    """Memory between steps: FISS+ on a road. The object `planner` changes at each step."""

    planner: Any  # LocalPlanner
    route: Array  # (L, 3) of the road, map frame
    start_m: float  # where on it the car was when the road was built


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    """Its trajectory, extended at its last speed to HORIZON_S. Raises PlanningError where there is no route, and where
    the car is on none of its lanes."""
    vehicle = planner_context.config.vehicle
    safety_context = planner_context.safety_context(observation)
    if safety_context.route_line is None:
        raise PlanningError("the route is empty: send a route with at least two different points")
    fiss = importlib.import_module("fiss_planner")
    map_from_ego = observation.ego.map_from_ego
    route = geometry.compose(map_from_ego, safety_context.route_line)
    road = state.memory
    if not isinstance(road, Road) or is_another(road, route, map_from_ego):
        local_planner = new_local_planner(fiss, vehicle, planner_context.config.guard.max_speed_mps)
        bounds = lane_bounds(safety_context.route_line, observation.route_lanes)
        if observation.drivable is not None:
            bounds = widened(bounds, safety_context.route_line, observation.drivable)
        lanes, ids = road_map(fiss, route, bounds)
        local_planner.set_map(lanes, ids)
        road = Road(local_planner, route, along_m(route, map_from_ego))
    result = road.planner.step(
        1e-9 * observation.stamp_ns,
        ego_state(fiss, observation, vehicle),
        obstacles(fiss, safety_context),
        desired_speed(observation, safety_context.limits),
    )
    if not len(result.trajectory):
        raise PlanningError("the vehicle is on no lane of the route: send a route that passes the vehicle")
    centres = geometry.transform_points(geometry.invert(map_from_ego), centre_points(fiss, result))
    poses = rear_axle_poses(centres, vehicle.rear_axle_to_center_m)
    return replace(of_trajectories((Trajectory(poses, PLAN_DT_S),)), memory=road)


def new_local_planner(fiss: Any, vehicle: VehicleConfig, max_speed_mps: float) -> Any:
    """Its defaults, for this vehicle."""
    config = fiss.LocalPlannerConfig()
    config.planner.collision.ignore_rear_in_lane = True  # of its ROS 2 node and its simulations: followers react
    dimensions = fiss.VehicleParams()
    dimensions.length, dimensions.width = vehicle.length_m, vehicle.width_m
    dimensions.wheelbase, dimensions.rear_axle_to_center = vehicle.wheel_base_m, vehicle.rear_axle_to_center_m
    dimensions.max_steer, dimensions.max_speed = vehicle.max_steering_rad, max_speed_mps
    return fiss.LocalPlanner(config, dimensions)


def along_m(route: Array, map_from_ego: Array) -> float:
    """Distance of a car along a route (L, 3), both in the map frame."""
    return float(geometry.project(route, map_from_ego[None, :2])[0][0])


def is_another(road: Road, route: Array, map_from_ego: Array) -> bool:
    """Whether a route (L, 3), map frame, needs a new road: the old one is nearly driven, or leads elsewhere."""
    if along_m(road.route, map_from_ego) - road.start_m > REBUILD_M:
        return True
    ahead_m = along_m(route, map_from_ego) + np.arange(0.0, COMPARED_M, 2.0)
    points = geometry.sample(route, np.minimum(ahead_m, geometry.arc_lengths(route)[-1]))[:, :2]
    at_m, offsets_m = geometry.project(road.route, points)
    away_m = np.hypot(*(geometry.sample(road.route, at_m)[:, :2] - points).T)  # beyond the end, too
    return bool((np.maximum(np.abs(offsets_m), away_m) > OTHER_ROUTE_M).any())


# --- the road ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LaneBounds:
    """Edges of three lanes at S stations along a route, in metres to its left; NaN where there is no neighbour."""

    along_m: Array  # (S,)
    edges_m: Array  # (3, 2, S) left and right edge of the route's own lane, of its left and of its right neighbour


def lane_bounds(route: Array, lanes: LanePolylines | None) -> LaneBounds:
    """Of a route (L, 3) and the lanes of its roads, both in the ego frame; LANE_WIDTH_M where none is known."""
    length_m = geometry.arc_lengths(route)[-1]
    stations_m = np.linspace(0.0, length_m, max(round(length_m / STATION_M), 1) + 1)
    pieces = np.zeros((0, 0, 2)) if lanes is None else lanes.points[lanes.valid]
    widths_m = np.zeros(0) if lanes is None else lanes.widths_m[lanes.valid]
    centres_m = np.full((len(pieces), len(stations_m)), np.nan)
    for row, points in enumerate(pieces):
        at_m, offsets_m = geometry.project(route, points)
        inside = (at_m > 0.0) & (at_m < length_m)
        if inside.sum() >= 2 and (np.diff(at_m[inside]) > 0.0).all():
            centres_m[row] = np.interp(stations_m, at_m[inside], offsets_m[inside], left=np.nan, right=np.nan)
    share = centres_m / widths_m[:, None]
    nearest_share = np.min(np.abs(share), axis=0, initial=np.inf, where=np.isfinite(share))
    own = (np.abs(share) < SAME_LANE) & ((np.abs(share) == nearest_share) | (nearest_share > BETWEEN_LANES))
    half_m = 0.5 * np.broadcast_to(widths_m[:, None], share.shape)
    edges_m = np.full((3, 2, len(stations_m)), np.nan)
    edges_m[0, 0] = filled(np.where(own, centres_m + half_m, -np.inf).max(axis=0, initial=-np.inf), LANE_WIDTH_M / 2)
    edges_m[0, 1] = filled(np.where(own, centres_m - half_m, np.inf).min(axis=0, initial=np.inf), -LANE_WIDTH_M / 2)
    for index, side in ((1, 1.0), (2, -1.0)):
        is_next = (side * share >= SAME_LANE) & (side * share < NEXT_LANE)
        if not is_next.any():
            continue
        nearest = np.where(is_next, np.abs(share), np.inf).argmin(axis=0), np.arange(len(stations_m))
        edges_m[index] = np.where(
            is_next[nearest], [(centres_m + half_m)[nearest], (centres_m - half_m)[nearest]], np.nan
        )
    return LaneBounds(stations_m, edges_m)


def widened(bounds: LaneBounds, route: Array, drivable_space: DrivableGrid) -> LaneBounds:
    """The own lane wider by up to WIDER_M on each side, where the road is: FISS+ finds no trajectory in a lane that is
    hardly wider than the car. `route` (L, 3) in the ego frame."""
    edges_m = bounds.edges_m.copy()
    edge_points = offset_points(geometry.sample(route, bounds.along_m), edges_m[0])
    room_m = np.clip(drivable.clearances(drivable_space, edge_points), 0.0, WIDER_M)
    edges_m[0] += room_m * [[1.0], [-1.0]]
    return replace(bounds, edges_m=edges_m)


def offset_points(line: Array, lateral_m: Array) -> Array:
    """(.., S, 2) points at lateral offsets (.., S) from poses (S, 3), left positive."""
    across = np.stack([-np.sin(line[:, 2]), np.cos(line[:, 2])], axis=1)
    return np.asarray(line[:, :2] + lateral_m[..., None] * across)


def filled(edge_m: Array, default_m: float) -> Array:
    """(S,) interpolated where infinite; the default where all are."""
    finite = np.isfinite(edge_m)
    if not finite.any():
        return np.full(len(edge_m), default_m)
    return np.interp(np.arange(len(edge_m)), np.flatnonzero(finite), edge_m[finite])


def road_map(fiss: Any, route: Array, bounds: LaneBounds) -> tuple[Any, list[int]]:
    """A `RoadMap` of the route (L, 3), map frame, and its neighbours in LANE_SEGMENT_M pieces; the ids of all lanes.
    All are of the route: it may be driven on each as far as it goes."""
    line = geometry.sample(route, bounds.along_m)
    every, last = round(LANE_SEGMENT_M / STATION_M), len(line) - 1
    cuts = [*range(0, max(last - every // 2, 1), every), last]
    exists = {
        (lane, index): not np.isnan(bounds.edges_m[lane, :, start : end + 1]).any()
        for lane in range(3)
        for index, (start, end) in enumerate(itertools.pairwise(cuts))
    }
    ids = {key: key[0] * len(cuts) + key[1] for key, is_there in exists.items() if is_there}
    result = fiss.RoadMap()
    for (lane, index), key in ids.items():
        part = slice(cuts[index], cuts[index + 1] + 1)
        left_m, right_m = bounds.edges_m[lane, :, part]
        offsets_m = np.stack([np.zeros_like(left_m) if lane == 0 else 0.5 * (left_m + right_m), left_m, right_m])
        piece = fiss.MapLane()
        piece.id, piece.successors = key, [ids[lane, index + 1]] if (lane, index + 1) in ids else []
        piece.centerline, piece.left, piece.right = offset_points(line[part], offsets_m)
        left, right = {0: (1, 2), 1: (-1, 0), 2: (0, -1)}[lane]
        piece.left_neighbor = ids.get((left, index), -1)
        piece.right_neighbor = ids.get((right, index), -1)
        piece.can_change_left, piece.can_change_right = piece.left_neighbor >= 0, piece.right_neighbor >= 0
        result.add_lane(piece)
    result.finalize()
    return result, list(ids.values())


def ego_state(fiss: Any, observation: Observation, vehicle: VehicleConfig) -> Any:
    """The motion of the centre of the car's box, map frame: it moves to the outside of the heading in a curve."""
    ego = observation.ego
    x, y, heading = kinematics.box_centres(ego.map_from_ego, vehicle)
    speed_mps = max(ego.speed_mps, 0.0)
    curvature = ego.yaw_rate_rps / speed_mps if speed_mps > STEERS_MPS else 0.0
    slip = float(np.arctan(vehicle.rear_axle_to_center_m * curvature))
    return fiss.EgoState(
        x, y, heading + slip, speed_mps / np.cos(slip), ego.acceleration_mps2, curvature * np.cos(slip)
    )


def obstacles(fiss: Any, safety_context: SafetyContext) -> list[Any]:
    """The others with their forecast, and the boxes at which it has to stop; map frame."""
    observation = safety_context.observation
    map_from_ego = observation.ego.map_from_ego
    result = []
    forecast = safety_context.forecast_at(PLAN_DT_S, round(PREDICTED_S / PLAN_DT_S))
    if forecast is not None and observation.others is not None:
        times_s = PLAN_DT_S * np.arange(forecast.poses.shape[1])
        poses = geometry.compose(map_from_ego, forecast.poses)
        are_static = observation.others.kinds == AgentKind.STATIC
        for index, (track, size, is_static) in enumerate(zip(poses, forecast.sizes, are_static, strict=True)):
            x, y, heading = track.T
            result.append(fiss.Obstacle.from_arrays(index, *size, times_s, x, y, np.unwrap(heading), bool(is_static)))
    for index, (pose, width_m) in enumerate(stops(safety_context)):
        x, y, heading = geometry.compose(map_from_ego, pose)
        result.append(fiss.Obstacle.from_arrays(-1000 - index, STOP_LINE_M, width_m, [0.0], [x], [y], [heading], True))
    return result


def stops(safety_context: SafetyContext) -> list[tuple[Array, float]]:
    """Pose (3,), ego frame, and width in m of a box for each closed stop line and for the goal."""
    result = []
    for left, right in safety_context.limits.closed_lines:
        across_x, across_y = left - right
        middle = 0.5 * (left + right)
        result.append((np.array([*middle, np.arctan2(-across_x, across_y)]), float(np.hypot(across_x, across_y))))
    observation, vehicle = safety_context.observation, safety_context.config.vehicle
    if observation.route_ends:
        beyond_m = vehicle.rear_axle_to_center_m + 0.5 * (vehicle.length_m + STOP_LINE_M) + GOAL_GAP_M
        result.append((geometry.compose(observation.route[-1], np.array([beyond_m, 0.0, 0.0])), LANE_WIDTH_M))
    return result


def desired_speed(observation: Observation, limits: RouteLimits) -> float:
    """m/s: the limit here, and what lower ones ahead allow by braking evenly. FISS+ reaches a speed by the end of a
    trajectory, so that they count REACHES_S before."""
    speed_mps = observation.speed_limit_mps
    for kind, at_m, until_m, allowed_mps, braking_mps2 in zip(
        limits.kinds, limits.at_m, limits.until_m, limits.speeds_mps, limits.braking_mps2, strict=True
    ):
        if kind is FactorKind.SPEED_LIMIT and until_m > 0.0:
            room_m = max(at_m - REACHES_S * observation.ego.speed_mps, 0.0)
            speed_mps = min(speed_mps, float(np.sqrt(allowed_mps**2 + 2.0 * braking_mps2 * room_m)))
    return max(speed_mps, LEAST_SPEED_MPS)


# --- the trajectory ---------------------------------------------------------------------------------------------------


def centre_points(fiss: Any, result: Any) -> Array:
    """(T + 1, 2) centres of the car at 0, PLAN_DT_S .. HORIZON_S, map frame. Beyond its end, the trajectory goes on
    along its lane at its last speed."""
    trajectory, reference = result.trajectory, result.reference
    times_s = PLAN_DT_S * np.arange(round(HORIZON_S / PLAN_DT_S) + 1)
    points = np.stack([np.interp(times_s, trajectory.t, each) for each in (trajectory.x, trajectory.y)], axis=1)
    end_s, end_m, end_mps, lateral_m = (each[-1] for each in (trajectory.t, trajectory.s, trajectory.s_d, trajectory.d))
    for index in np.flatnonzero(times_s > end_s):
        at_m = end_m + end_mps * (times_s[index] - end_s)
        beyond = reference.to_cartesian(fiss.FrenetState(at_m, end_mps, 0.0, lateral_m, 0.0, 0.0))
        points[index] = beyond.x, beyond.y
    return points


def rear_axle_poses(centres: Array, rear_axle_to_center_m: float) -> Array:
    """(T, 3) of a car whose rear axle rolls without slip while the centre of its box moves through points (T + 1, 2),
    of which the first is that of now; ego frame."""
    poses = np.empty((len(centres) - 1, 3))
    heading = 0.0
    rear = centres[0] - (rear_axle_to_center_m, 0.0)
    for index, centre in enumerate(centres[1:]):
        x, y = centre - rear
        if np.hypot(x, y) > abs(rear_axle_to_center_m) + 1e-6:
            heading = float(np.arctan2(y, x))
        rear = centre - rear_axle_to_center_m * np.array([np.cos(heading), np.sin(heading)])
        poses[index] = *rear, heading
    return poses


SPEC = GeneratorSpec("fiss_plus", generate, vectors=True, package="fiss_planner")
