"""Rollouts of the Intelligent Driver Model along the route: merge onto it, slow down for its curves, keep behind the
lead vehicle, stop where it ends.

A rollout has a lateral offset from the route and a target speed; all rollouts of a step are made at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import PLAN_DT_S, Agents, Array, Observation
from ..scoring.limits import RouteLimits
from .planner import PlanningError

# the Intelligent Driver Model, as a calm driver of a car: constants, so that the baseline is the same in every table
IDM_MAX_ACCELERATION_MPS2 = 1.5
IDM_COMFORTABLE_BRAKING_MPS2 = 2.0
IDM_HEADWAY_S = 1.5  # time gap to the car ahead
IDM_MIN_GAP_M = 2.0  # gap at standstill
IDM_LANE_MARGIN_M = 0.3  # objects this close to the path of the vehicle block it
IDM_MAX_LATERAL_ACCELERATION_MPS2 = 2.0  # in curves

PATH_STEP_M = 0.5
THINNED_M = 4.0  # spacing at which others are first compared with the path
MERGE_TIME_S = 3.0  # an offset from the path is brought to zero over the distance of this time ..
MERGE_MIN_M = 10.0  # .. and over at least this distance
ANTICIPATION_S = 2.0  # the planner reacts this long before an agent enters the path
AGENT_STEP_S = 0.5  # others are looked up this often and interpolated between
CURVE_LOOKAHEAD_BRAKING_MPS2 = 1.5  # begins to slow down for a curve early enough for this
SETTLE_S = 0.5  # a speed above what the curve allows is brought down within about this time
OFF_ROUTE_M = 30.0  # further away there is no route to follow


@dataclass(frozen=True, eq=False)
class Leads:
    """A agents that block P paths, at the start of each of T intervals."""

    rear_m: Array  # (A, T) arc length of the rear along the path
    speeds_mps: Array  # (A, T) along the path
    blocks: Array  # (P, A, T) bool

    @staticmethod
    def of_paths(each: list[tuple[Array, Array, Array]]) -> Leads:
        """The leads of several paths, from `others_on_path` of each: an agent on two paths counts as two."""
        rear_m, speeds_mps, blocked = (np.concatenate(part) for part in zip(*each, strict=True))
        path = np.repeat(np.arange(len(each)), [len(rear) for rear, _, _ in each])
        return Leads(rear_m, speeds_mps, (np.arange(len(each))[:, None] == path)[..., None] & blocked)


def rollouts(
    observation: Observation,
    vehicle: VehicleConfig,
    horizon_s: float,
    offsets_m: Array,
    targets_mps: Array,
    limits: RouteLimits,
    max_lateral_mps2: float = IDM_MAX_LATERAL_ACCELERATION_MPS2,
) -> Array:
    """Poses (O, S, T, 3) of the rear axle every PLAN_DT_S up to the horizon, ego frame.

    offsets_m: (O,) lateral offsets from the route, left positive
    targets_mps: (S, T) desired speeds, where the road allows them; infinite for the speed limit alone
    limits: stops and speeds along the route; distances along a path count as distances along the route

    Raises PlanningError where there is no route.
    """
    paths, route_left_m = paths_to_route(observation, horizon_s, offsets_m)
    along = [geometry.arc_lengths(path) for path in paths]
    allowed_mps = np.array(
        [curve_speeds(*path, max_lateral_mps2, observation.speed_limit_mps) for path in zip(paths, along, strict=True)]
    )
    allowed_mps = np.minimum(allowed_mps, limits.allowed_speeds(np.array(along), PLAN_DT_S))
    others, steps = observation.others, targets_mps.shape[1]
    leads = Leads.of_paths([others_on_path(path, others, vehicle, PLAN_DT_S, steps) for path in paths])
    # the rear axle stops at the goal itself
    end_m = route_left_m + (IDM_MIN_GAP_M if observation.route_ends else 0.0)
    reached = drive(
        observation.ego.speed_mps,
        np.repeat(allowed_mps, len(targets_mps), axis=0),
        np.tile(targets_mps, (len(paths), 1)),
        Leads(leads.rear_m, leads.speeds_mps, np.repeat(leads.blocks, len(targets_mps), axis=0)),
        np.append(limits.at_m[np.isinf(limits.until_m)] + IDM_MIN_GAP_M, end_m),
        vehicle,
    ).reshape(len(paths), -1)
    poses = np.array([_poses_along(*each) for each in zip(paths, along, reached, strict=True)])
    return poses.reshape(len(paths), *targets_mps.shape, 3)


def _poses_along(path: Array, along: Array, distances: Array) -> Array:
    """Poses (N, 3) at distances (N,) along a path with arc lengths `along`."""
    poses = geometry.sample(path, distances)
    poses[:, 2] = geometry.wrap(np.interp(distances, along, np.unwrap(path[:, 2])))  # no steps from point to point
    return poses


def paths_to_route(observation: Observation, horizon_s: float, offsets_m: Array) -> tuple[Array, float]:
    """(O, P, 3) poses about every PATH_STEP_M from the ego to each lateral offset (O,) from the route, left positive,
    and along it to the end of the route or the horizon; and how many metres of route there are ahead."""
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

    # A cubic reduces the lateral offset and the heading error at the car to zero on the path.
    merge = max(MERGE_MIN_M, MERGE_TIME_S * observation.ego.speed_mps)
    middle = geometry.sample(route, start + along)
    slope = float(np.tan(np.clip(geometry.wrap(-middle[0, 2]), -0.8, 0.8)))
    u = np.minimum(along / merge, 1.0)
    to_path = (offset - offsets_m[:, None]) * (2 * u**3 - 3 * u**2 + 1) + merge * slope * (u**3 - 2 * u**2 + u)
    lateral = offsets_m[:, None] + to_path
    points = middle[:, :2] + lateral[..., None] * np.stack([-np.sin(middle[:, 2]), np.cos(middle[:, 2])], axis=1)
    points[:, 0] = 0.0
    slopes = np.gradient(points, along, axis=1)
    headings = np.arctan2(slopes[..., 1], slopes[..., 0])
    return np.concatenate([points, headings[..., None]], axis=-1), float(ahead)


def curve_speeds(path: Array, along: Array, max_lateral_mps2: float, limit_mps: float) -> Array:
    """(P,) speed allowed at each path point: the limit, and slow enough for every curve still ahead."""
    heading = np.unwrap(path[:, 2])
    window = 4  # points each side; curvature over 4 m, not over one noisy segment
    ahead = np.minimum(np.arange(len(path)) + window, len(path) - 1)
    behind = np.maximum(np.arange(len(path)) - window, 0)
    curvature = np.abs(heading[ahead] - heading[behind]) / np.maximum(along[ahead] - along[behind], PATH_STEP_M)
    allowed = np.minimum(np.sqrt(max_lateral_mps2 / np.maximum(curvature, 1e-6)), limit_mps).tolist()
    room_m = np.diff(along).tolist()
    for k in range(len(path) - 2, -1, -1):  # floats: an array is ten times slower, element by element
        allowed[k] = min(allowed[k], math.sqrt(allowed[k + 1] ** 2 + 2 * CURVE_LOOKAHEAD_BRAKING_MPS2 * room_m[k]))
    return np.array(allowed)


def drive(
    speed_mps: float, allowed_mps: Array, targets_mps: Array, leads: Leads, walls_m: Array, vehicle: VehicleConfig
) -> Array:
    """(P, T) distances along P paths every PLAN_DT_S of the driver model, rolled out.

    allowed_mps: (P, L) speeds allowed by place, every PATH_STEP_M
    targets_mps: (P, T) speeds allowed by time
    walls_m: (W,) arc lengths behind which the rear axle stops, at IDM_MIN_GAP_M
    """
    front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    rear_m = -0.5 * vehicle.length_m
    path, last = np.arange(len(targets_mps)), allowed_mps.shape[1] - 1
    lead_mps = np.concatenate([leads.speeds_mps, np.zeros((len(walls_m), targets_mps.shape[1]))])
    distance, speed = np.zeros(len(path)), np.full(len(path), max(speed_mps, 0.0))
    distances = np.empty(targets_mps.shape)
    for k in range(targets_mps.shape[1]):
        gap = leads.rear_m[:, k] - (distance + front_m)[:, None]
        # an agent whose rear is level with our rear axle is alongside or behind us, not ahead
        gap[~(leads.blocks[:, :, k] & (gap > rear_m))] = np.inf
        soon = distance + SETTLE_S * speed  # the speed limit there applies now, because following it has the same lag
        desired = np.minimum(allowed_mps[path, np.minimum((soon / PATH_STEP_M).astype(int), last)], targets_mps[:, k])
        slowest = kinematics.idm_acceleration(
            speed[:, None],
            desired[:, None],
            np.concatenate([gap, walls_m - distance[:, None]], axis=1),  # the end of the route is a wall
            lead_mps[:, k],
            max_acceleration_mps2=IDM_MAX_ACCELERATION_MPS2,
            comfortable_braking_mps2=IDM_COMFORTABLE_BRAKING_MPS2,
            headway_s=IDM_HEADWAY_S,
            min_gap_m=IDM_MIN_GAP_M,
        ).min(axis=1)
        # the driver model is lenient above its desired speed; a curve is not
        slowest = np.where(speed > desired, np.minimum(slowest, (desired - speed) / SETTLE_S), slowest)
        acceleration = np.clip(slowest, -3.0 * IDM_COMFORTABLE_BRAKING_MPS2, IDM_MAX_ACCELERATION_MPS2)
        stops = speed + acceleration * PLAN_DT_S < 0.0  # within the interval
        to_stop_m = -0.5 * np.float_power(speed, 2) / np.where(stops, acceleration, -1.0)
        distance = distance + np.where(stops, to_stop_m, speed * PLAN_DT_S + 0.5 * acceleration * PLAN_DT_S**2)
        speed = np.maximum(speed + acceleration * PLAN_DT_S, 0.0)
        distances[:, k] = distance
    return distances


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
