"""Baseline: along the route, slower in curves, behind whoever is ahead (Intelligent Driver Model).

It sees no pictures. It stays for comparison: a camera planner that does not beat it has learned little.
"""

from __future__ import annotations

import numpy as np

from .. import geometry, kinematics
from ..config import IdmConfig, VehicleConfig
from ..domain import Agents, Array, Observation, Plan, Trajectory
from .planner import PlannerState, PlanningError, Tools

PATH_STEP_M = 0.5
THINNED_M = 4.0  # spacing at which others are first compared with the path
MERGE_TIME_S = 3.0  # an offset from the route is brought to zero over the distance of this time ..
MERGE_MIN_M = 10.0  # .. and over at least this distance
AGENT_STEP_S = 0.5  # others are looked up this often and interpolated between
CURVE_LOOKAHEAD_BRAKING_MPS2 = 1.5  # begins to slow down for a curve early enough for this
OFF_ROUTE_M = 30.0  # further away there is no route to follow


def plan(state: PlannerState, observation: Observation, tools: Tools) -> tuple[PlannerState, Plan]:
    config = tools.config
    path = path_to_route(observation, config.output.horizon_s)
    distances = follow(path, observation, config.idm, config.vehicle, config.output.dt_s, config.output.horizon_s)
    poses = geometry.sample(path, distances)
    made = Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(poses, config.output.dt_s))
    return PlannerState(previous=made), made


def path_to_route(observation: Observation, horizon_s: float) -> Array:
    """(P, 3) poses every PATH_STEP_M from the ego onto the route and along it to its end or the horizon."""
    route = geometry.distinct_points(observation.route)
    if len(route) < 2:
        raise PlanningError("the route is empty: send a route with at least two different points")
    (start,), (offset,) = geometry.project(route, np.zeros((1, 2)))
    if abs(offset) > OFF_ROUTE_M:
        raise PlanningError(f"the route is {abs(offset):.0f} m away: send a route that passes the vehicle")
    ahead = geometry.arc_lengths(route)[-1] - start
    fastest = max(observation.ego.speed_mps, observation.speed_limit_mps)
    reach = float(np.clip(fastest * horizon_s + MERGE_MIN_M, MERGE_MIN_M, max(ahead, 2 * PATH_STEP_M)))
    along = np.append(np.arange(0.0, reach, PATH_STEP_M), reach)

    # A cubic takes the lateral offset and the heading error at the car to zero on the route.
    merge = max(MERGE_MIN_M, MERGE_TIME_S * observation.ego.speed_mps)
    middle = geometry.sample(route, start + along)
    slope = float(np.tan(np.clip(geometry.wrap(-middle[0, 2]), -0.8, 0.8)))
    u = np.minimum(along / merge, 1.0)
    lateral = offset * (2 * u**3 - 3 * u**2 + 1) + merge * slope * (u**3 - 2 * u**2 + u)
    points = middle[:, :2] + lateral[:, None] * np.stack([-np.sin(middle[:, 2]), np.cos(middle[:, 2])], axis=1)
    points[0] = 0.0
    return np.concatenate([points, geometry.headings_along(points)[:, None]], axis=1)


def follow(
    path: Array, observation: Observation, idm: IdmConfig, vehicle: VehicleConfig, dt_s: float, horizon_s: float
) -> Array:
    """(T,) distances along the path at dt, 2 dt, .. horizon: the driver model, rolled out."""
    steps = round(horizon_s / dt_s)
    along = geometry.arc_lengths(path)
    allowed = curve_speeds(path, along, idm.max_lateral_acceleration_mps2, observation.speed_limit_mps)
    lead_rear, lead_speed, in_path = others_on_path(path, observation.agents, idm, vehicle, dt_s, steps)
    front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    end, room = float(along[-1]), -0.5 * vehicle.length_m
    distance, speed = 0.0, max(observation.ego.speed_mps, 0.0)
    distances = np.empty(steps)
    for k in range(steps):
        gap = lead_rear[:, k] - (distance + front_m)
        # someone whose rear is level with our seats is beside or behind us, not ahead
        ahead = in_path[:, k] & (gap > room)
        wanted = kinematics.idm_acceleration(
            speed,
            allowed[min(int(distance / PATH_STEP_M), len(allowed) - 1)],
            np.append(gap[ahead], end - distance),  # the end of the route is a wall
            np.append(lead_speed[ahead, k], 0.0),
            max_acceleration_mps2=idm.max_acceleration_mps2,
            comfortable_braking_mps2=idm.comfortable_braking_mps2,
            headway_s=idm.headway_s,
            min_gap_m=idm.min_gap_m,
        )
        acceleration = min(max(float(wanted.min()), -3.0 * idm.comfortable_braking_mps2), idm.max_acceleration_mps2)
        if speed + acceleration * dt_s < 0.0:  # stops within the interval
            distance -= 0.5 * speed**2 / acceleration
        else:
            distance += speed * dt_s + 0.5 * acceleration * dt_s**2
        speed = max(speed + acceleration * dt_s, 0.0)
        distances[k] = distance
    return distances


def curve_speeds(path: Array, along: Array, max_lateral_mps2: float, limit_mps: float) -> Array:
    """(P,) speed allowed at each path point: the limit, and slow enough for every curve still ahead."""
    heading = np.unwrap(path[:, 2])
    window = 4  # points each side; curvature over 4 m, not over one noisy segment
    ahead = np.minimum(np.arange(len(path)) + window, len(path) - 1)
    behind = np.maximum(np.arange(len(path)) - window, 0)
    curvature = np.abs(heading[ahead] - heading[behind]) / np.maximum(along[ahead] - along[behind], PATH_STEP_M)
    allowed = np.minimum(np.sqrt(max_lateral_mps2 / np.maximum(curvature, 1e-6)), limit_mps)
    for k in range(len(path) - 2, -1, -1):
        room = along[k + 1] - along[k]
        allowed[k] = min(allowed[k], np.sqrt(allowed[k + 1] ** 2 + 2 * CURVE_LOOKAHEAD_BRAKING_MPS2 * room))
    return allowed


def near_path(path: Array, poses: Array, sizes: Array, vehicle: VehicleConfig) -> Array:
    """(A,) whether an agent (poses (A, T, 3)) ever comes so close to the path that a closer look is worth it."""
    thinned = path[:: max(1, round(THINNED_M / PATH_STEP_M)), :2]
    apart = np.hypot(*(poses[:, :, None, :2] - thinned).transpose(3, 0, 1, 2)).min(axis=(1, 2))
    return np.asarray(apart < THINNED_M + 0.5 * np.hypot(*sizes.T) + vehicle.width_m)


def others_on_path(
    path: Array, agents: Agents | None, idm: IdmConfig, vehicle: VehicleConfig, dt_s: float, steps: int
) -> tuple[Array, Array, Array]:
    """For each agent (A) and interval (T): arc length of its rear, its speed along the path, whether it is in our way.

    Unknown agents (None) count as an empty road here; that nothing was checked is said in the diagnostics.
    """
    if agents is None or len(agents) == 0:
        return np.zeros((0, steps)), np.zeros((0, steps)), np.zeros((0, steps), bool)
    coarse = np.arange(0.0, dt_s * steps + AGENT_STEP_S, AGENT_STEP_S)
    forecast = kinematics.forecast(agents, AGENT_STEP_S, len(coarse) - 1)
    near = near_path(path, forecast.poses, agents.sizes, vehicle)
    poses, sizes = forecast.poses[near], agents.sizes[near]
    along, offset = geometry.project(path, poses[..., :2].reshape(-1, 2))
    along, offset = along.reshape(poses.shape[:2]), offset.reshape(poses.shape[:2])
    turn = poses[..., 2] - geometry.sample(path, along.ravel())[:, 2].reshape(along.shape)
    half_length = 0.5 * (sizes[:, :1] * np.abs(np.cos(turn)) + sizes[:, 1:] * np.abs(np.sin(turn)))
    half_width = 0.5 * (sizes[:, :1] * np.abs(np.sin(turn)) + sizes[:, 1:] * np.abs(np.cos(turn)))
    in_path = np.abs(offset) < half_width + 0.5 * vehicle.width_m + idm.lane_margin_m
    speed = np.gradient(along, AGENT_STEP_S, axis=1)

    times_s = dt_s * np.arange(steps)  # IDM reacts to where others are at the start of each interval
    interpolated = [
        np.array([np.interp(times_s, coarse, row) for row in table]) for table in (along - half_length, speed)
    ]
    blocked = in_path[:, np.minimum((times_s / AGENT_STEP_S).round().astype(int), len(coarse) - 1)]
    shape = (len(poses), steps)
    ever = blocked.any(axis=1)
    return interpolated[0].reshape(shape)[ever], interpolated[1].reshape(shape)[ever], blocked[ever]
