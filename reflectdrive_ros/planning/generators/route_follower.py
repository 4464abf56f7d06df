"""Baseline: follow the route, slower in curves, behind the lead vehicle (Intelligent Driver Model).

It uses no images. It is a reference: a camera planner should score higher.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry, kinematics
from ...core.config import VehicleConfig
from ...core.domain import PLAN_DT_S, PLAN_HORIZON_S, Agents, Array, Observation, StepKind, Trajectory
from ..candidates import Candidates, GeneratorSpec, of_trajectories
from ..planner import PlannerContext, PlannerState, PlanningError

# the Intelligent Driver Model, as a calm driver of a car: constants, so that the baseline is the same in every table
IDM_MAX_ACCELERATION_MPS2 = 1.5
IDM_COMFORTABLE_BRAKING_MPS2 = 2.0
IDM_HEADWAY_S = 1.5  # time gap to the car ahead
IDM_MIN_GAP_M = 2.0  # gap at standstill
IDM_LANE_MARGIN_M = 0.3  # objects this close to the path of the vehicle block it
IDM_MAX_LATERAL_ACCELERATION_MPS2 = 2.0  # in curves

PATH_STEP_M = 0.5
THINNED_M = 4.0  # spacing at which others are first compared with the path
MERGE_TIME_S = 3.0  # an offset from the route is brought to zero over the distance of this time ..
MERGE_MIN_M = 10.0  # .. and over at least this distance
ANTICIPATION_S = 2.0  # the planner reacts this long before an agent enters the path
AGENT_STEP_S = 0.5  # others are looked up this often and interpolated between
CURVE_LOOKAHEAD_BRAKING_MPS2 = 1.5  # begins to slow down for a curve early enough for this
SETTLE_S = 0.5  # a speed above what the curve allows is brought down within about this time
OFF_ROUTE_M = 30.0  # further away there is no route to follow


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    path, route_left_m = path_to_route(observation, PLAN_HORIZON_S)
    distances = follow(path, route_left_m, observation, planner_context.config.vehicle, PLAN_DT_S, PLAN_HORIZON_S)
    poses = geometry.sample(path, distances)
    along = geometry.arc_lengths(path)
    poses[:, 2] = geometry.wrap(np.interp(distances, along, np.unwrap(path[:, 2])))  # no steps from point to point
    return of_trajectories((Trajectory(poses, PLAN_DT_S),), StepKind.BASELINE)


def path_to_route(observation: Observation, horizon_s: float) -> tuple[Array, float]:
    """(P, 3) poses every PATH_STEP_M from the ego onto the route and along it to its end or the horizon; and how many
    metres of route there are ahead."""
    route = geometry.distinct_points(observation.route)
    if len(route) < 2:
        raise PlanningError("the route is empty: send a route with at least two different points")
    start, offset = geometry.ego_on_route(route)
    if abs(offset) > OFF_ROUTE_M:
        raise PlanningError(f"the route is {abs(offset):.0f} m away: send a route that passes the vehicle")
    ahead = geometry.arc_lengths(route)[-1] - start
    fastest = max(observation.ego.speed_mps, observation.speed_limit_mps)
    reach = float(np.clip(fastest * horizon_s + MERGE_MIN_M, MERGE_MIN_M, max(ahead, 2 * PATH_STEP_M)))
    along = np.append(np.arange(0.0, reach, PATH_STEP_M), reach)

    # A cubic reduces the lateral offset and the heading error at the car to zero on the route.
    merge = max(MERGE_MIN_M, MERGE_TIME_S * observation.ego.speed_mps)
    middle = geometry.sample(route, start + along)
    slope = float(np.tan(np.clip(geometry.wrap(-middle[0, 2]), -0.8, 0.8)))
    u = np.minimum(along / merge, 1.0)
    lateral = offset * (2 * u**3 - 3 * u**2 + 1) + merge * slope * (u**3 - 2 * u**2 + u)
    points = middle[:, :2] + lateral[:, None] * np.stack([-np.sin(middle[:, 2]), np.cos(middle[:, 2])], axis=1)
    points[0] = 0.0
    slopes = np.gradient(points, along, axis=0)
    headings = np.arctan2(slopes[:, 1], slopes[:, 0])
    return np.concatenate([points, headings[:, None]], axis=1), float(ahead)


def follow(
    path: Array,
    route_left_m: float,
    observation: Observation,
    vehicle: VehicleConfig,
    dt_s: float,
    horizon_s: float,
) -> Array:
    """(T,) distances along the path at dt, 2 dt, .. horizon: the driver model, rolled out."""
    steps = round(horizon_s / dt_s)
    along = geometry.arc_lengths(path)
    allowed = curve_speeds(path, along, IDM_MAX_LATERAL_ACCELERATION_MPS2, observation.speed_limit_mps)
    lead_rear, lead_speed, in_path = others_on_path(path, observation.others, vehicle, dt_s, steps)
    front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    rear_m = -0.5 * vehicle.length_m
    wall_m = route_left_m + (IDM_MIN_GAP_M if observation.route_ends else 0.0)  # the rear axle stops at the goal itself
    distance, speed = 0.0, max(observation.ego.speed_mps, 0.0)
    distances = np.empty(steps)
    for k in range(steps):
        gap = lead_rear[:, k] - (distance + front_m)
        # an agent whose rear is level with our rear axle is alongside or behind us, not ahead
        ahead = in_path[:, k] & (gap > rear_m)
        soon = distance + SETTLE_S * speed  # the speed limit there applies now, because following it has the same lag
        desired = allowed[min(int(soon / PATH_STEP_M), len(allowed) - 1)]
        acceleration_mps2 = kinematics.idm_acceleration(
            speed,
            desired,
            np.append(gap[ahead], wall_m - distance),  # the end of the route is a wall
            np.append(lead_speed[ahead, k], 0.0),
            max_acceleration_mps2=IDM_MAX_ACCELERATION_MPS2,
            comfortable_braking_mps2=IDM_COMFORTABLE_BRAKING_MPS2,
            headway_s=IDM_HEADWAY_S,
            min_gap_m=IDM_MIN_GAP_M,
        )
        # the driver model is lenient above its desired speed; a curve is not
        slowest = min(float(acceleration_mps2.min()), (desired - speed) / SETTLE_S if speed > desired else np.inf)
        acceleration = min(max(slowest, -3.0 * IDM_COMFORTABLE_BRAKING_MPS2), IDM_MAX_ACCELERATION_MPS2)
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
    allowed: Array = np.minimum(np.sqrt(max_lateral_mps2 / np.maximum(curvature, 1e-6)), limit_mps)
    for k in range(len(path) - 2, -1, -1):
        room = along[k + 1] - along[k]
        allowed[k] = min(allowed[k], np.sqrt(allowed[k + 1] ** 2 + 2 * CURVE_LOOKAHEAD_BRAKING_MPS2 * room))
    return allowed


def near_path(path: Array, poses: Array, sizes: Array, vehicle: VehicleConfig) -> Array:
    """(A,) whether an agent (poses (A, T, 3)) ever comes close enough to the path for an exact test."""
    thinned = path[:: max(1, round(THINNED_M / PATH_STEP_M)), :2]
    distance_m = np.hypot(*(poses[:, :, None, :2] - thinned).transpose(3, 0, 1, 2)).min(axis=(1, 2))
    return np.asarray(distance_m < THINNED_M + 0.5 * np.hypot(*sizes.T) + vehicle.width_m)


def others_on_path(
    path: Array, agents: Agents | None, vehicle: VehicleConfig, dt_s: float, steps: int
) -> tuple[Array, Array, Array]:
    """For each agent (A) and interval (T): arc length of its rear, its speed along the path, whether it blocks the
    path.

    Unknown agents (None) count as an empty road here; the diagnostics report that nothing was checked.
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
    in_path = np.abs(offset) < half_width + 0.5 * vehicle.width_m + IDM_LANE_MARGIN_M
    speed = np.gradient(along, AGENT_STEP_S, axis=1)

    times_s = dt_s * np.arange(steps)  # IDM reacts to where others are at the start of each interval
    interpolated = [
        np.array([np.interp(times_s, coarse, row) for row in table]) for table in (along - half_length, speed)
    ]
    blocked = in_path[:, np.minimum((times_s / AGENT_STEP_S).round().astype(int), len(coarse) - 1)]
    rear, speeds = (table.reshape(len(poses), steps) for table in interpolated)
    # The planner stops before the point where an agent will enter the path, some time in advance.
    notice = round(ANTICIPATION_S / dt_s)
    for row in np.flatnonzero(blocked.any(axis=1) & ~blocked[:, 0]):
        entry = int(np.argmax(blocked[row]))
        before = slice(max(entry - notice, 0), entry)
        rear[row, before], speeds[row, before], blocked[row, before] = rear[row, entry], speeds[row, entry], True
    ever = blocked.any(axis=1)
    return rear[ever], speeds[ever], blocked[ever]


SPEC = GeneratorSpec("route_follower", generate)
