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
from .postprocess.speed_profile import slow_distances

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
class BlockingAgents:
    """A agents that block P paths, at the start of each of T intervals."""

    rear_m: Array  # (A, T) arc length of the rear along the path
    speeds_mps: Array  # (A, T) along the path
    blocks: Array  # (P, A, T) bool


def rollouts(
    observation: Observation,
    vehicle: VehicleConfig,
    horizon_s: float,
    offsets_m: Array,
    targets_mps: Array,
    limits: RouteLimits,
) -> Array:
    """Poses (O, S, T, 3) of the rear axle every PLAN_DT_S up to the horizon, ego frame.

    offsets_m: (O,) lateral offsets from the route, left positive
    targets_mps: (S, T) desired speeds, where the road allows them; infinite for the speed limit alone
    limits: where the rollouts are slow or stop, besides for curves, others and the end of the route

    Raises PlanningError where there is no route.
    """
    paths, route_left_m = paths_to_route(observation, horizon_s, offsets_m)
    along = geometry.arc_lengths(paths)
    allowed_mps = curve_speeds(paths, along, observation.speed_limit_mps)
    leads = leads_on_paths(paths, observation.others, vehicle, targets_mps.shape[1])
    # the rear axle stops at the goal itself
    end_m = route_left_m + (IDM_MIN_GAP_M if observation.route_ends else 0.0)
    reached = drive(
        observation.ego.speed_mps,
        np.repeat(allowed_mps, len(targets_mps), axis=0),
        np.tile(targets_mps, (len(paths), 1)),
        BlockingAgents(leads.rear_m, leads.speeds_mps, np.repeat(leads.blocks, len(targets_mps), axis=0)),
        end_m,
        vehicle,
    )
    if limits.kinds:
        from_here = np.concatenate([np.zeros((len(reached), 1)), reached], axis=1)
        reached = slow_distances(from_here, limits, observation.ego.speed_mps, PLAN_DT_S)[:, 1:]
    reached = reached.reshape(len(paths), -1)
    poses = np.array([poses_along(*each) for each in zip(paths, along, reached, strict=True)])
    return poses.reshape(len(paths), *targets_mps.shape, 3)


def poses_along(path: Array, along: Array, distances: Array) -> Array:
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


def curve_speeds(paths: Array, along: Array, limit_mps: float) -> Array:
    """(O, P) speed allowed at each point of paths (O, P, 3) with arc lengths (O, P): the limit, and slow enough for
    every curve still ahead."""
    count, curvature = paths.shape[1], curvatures(paths, along)
    allowed = np.minimum(np.sqrt(IDM_MAX_LATERAL_ACCELERATION_MPS2 / np.maximum(curvature, 1e-6)), limit_mps).tolist()
    gained = (2 * CURVE_LOOKAHEAD_BRAKING_MPS2 * np.diff(along)).tolist()  # m^2/s^2
    for speeds, gains in zip(allowed, gained, strict=True):
        for k in range(count - 2, -1, -1):  # floats: an array is ten times slower, element by element
            speeds[k] = min(speeds[k], math.sqrt(speeds[k + 1] ** 2 + gains[k]))
    return np.array(allowed)


def curvatures(paths: Array, along: Array) -> Array:
    """(O, P) 1/m, without sign, of paths (O, P, 3) with arc lengths (O, P)."""
    heading, count = np.unwrap(paths[..., 2]), paths.shape[1]
    window = 4  # points each side; curvature over 4 m, not over one noisy segment
    ahead = np.minimum(np.arange(count) + window, count - 1)
    behind = np.maximum(np.arange(count) - window, 0)
    turned = np.abs(heading[:, ahead] - heading[:, behind])
    return np.asarray(turned / np.maximum(along[:, ahead] - along[:, behind], PATH_STEP_M))


def drive(
    speed_mps: float,
    allowed_mps: Array,
    targets_mps: Array,
    leads: BlockingAgents,
    wall_m: float,
    vehicle: VehicleConfig,
    hardest_braking_mps2: float = 3.0 * IDM_COMFORTABLE_BRAKING_MPS2,
) -> Array:
    """(P, T) distances along P paths every PLAN_DT_S of the driver model, rolled out.

    allowed_mps: (P, L) speeds allowed by place, every PATH_STEP_M
    targets_mps: (P, T) speeds allowed by time
    wall_m: arc length of the end of the route; the rear axle stops IDM_MIN_GAP_M before it
    """
    front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    rear_m = -0.5 * vehicle.length_m
    path, last = np.arange(len(targets_mps)), allowed_mps.shape[1] - 1
    rears_m = np.where(leads.blocks, leads.rear_m, np.inf).transpose(2, 0, 1).copy()  # (T, P, A)
    lead_mps = np.concatenate([leads.speeds_mps, np.zeros((1, targets_mps.shape[1]))])
    gap = np.empty((len(path), len(lead_mps)))
    to_agents = gap[:, :-1]
    distance, speed = np.zeros(len(path)), np.full(len(path), max(speed_mps, 0.0))
    distances = np.empty(targets_mps.shape)
    for k in range(targets_mps.shape[1]):
        np.subtract(rears_m[k], (distance + front_m)[:, None], out=to_agents)
        # an agent whose rear is level with our rear axle is alongside or behind us, not ahead
        to_agents[to_agents <= rear_m] = np.inf
        gap[:, -1] = wall_m - distance  # the end of the route is a wall
        soon = distance + SETTLE_S * speed  # the speed limit there applies now, because following it has the same lag
        desired = np.minimum(allowed_mps[path, np.minimum((soon / PATH_STEP_M).astype(int), last)], targets_mps[:, k])
        slowest = kinematics.idm_acceleration(
            speed[:, None],
            desired[:, None],
            gap,
            lead_mps[:, k],
            max_acceleration_mps2=IDM_MAX_ACCELERATION_MPS2,
            comfortable_braking_mps2=IDM_COMFORTABLE_BRAKING_MPS2,
            headway_s=IDM_HEADWAY_S,
            min_gap_m=IDM_MIN_GAP_M,
        ).min(axis=1)
        # the driver model is lenient above its desired speed; a curve is not
        slowest = np.where(speed > desired, np.minimum(slowest, (desired - speed) / SETTLE_S), slowest)
        acceleration = np.minimum(np.maximum(slowest, -hardest_braking_mps2), IDM_MAX_ACCELERATION_MPS2)
        after = speed + acceleration * PLAN_DT_S
        step_m = speed * PLAN_DT_S + 0.5 * acceleration * PLAN_DT_S**2
        if (after < 0.0).any():  # stops within the interval
            to_stop_m = -0.5 * np.float_power(speed, 2) / np.minimum(acceleration, -1e-9)
            step_m = np.where(after < 0.0, to_stop_m, step_m)
        distance = distance + step_m
        speed = np.maximum(after, 0.0)
        distances[:, k] = distance
    return distances


def leads_on_paths(paths: Array, agents: Agents | None, vehicle: VehicleConfig, steps: int) -> BlockingAgents:
    """The agents that block each of the paths (P, L, 3) in `steps` intervals; one on two paths counts twice.

    Unknown agents (None) count as an empty road here; the diagnostics report that nothing was checked.
    """
    if agents is None or len(agents) == 0:
        return BlockingAgents(np.zeros((0, steps)), np.zeros((0, steps)), np.zeros((len(paths), 0, steps), bool))
    coarse = np.arange(0.0, PLAN_DT_S * steps + AGENT_STEP_S, AGENT_STEP_S)
    forecast = kinematics.forecast(agents, AGENT_STEP_S, len(coarse) - 1)
    near = near_paths(paths, forecast.poses, agents.sizes, vehicle)
    poses, sizes = forecast.poses[near], agents.sizes[near]
    along, offset, heading = (np.empty((len(paths), *poses.shape[:2])) for _ in range(3))
    for index, path in enumerate(paths):
        projected = geometry.project(path, poses[..., :2].reshape(-1, 2))
        along[index], offset[index] = (each.reshape(poses.shape[:2]) for each in projected)
        heading[index] = geometry.sample(path, along[index].ravel())[:, 2].reshape(poses.shape[:2])
    turn = poses[..., 2] - heading
    cos, sin = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    half_length = 0.5 * (sizes[:, :1] * cos + sizes[:, 1:] * sin)
    half_width = 0.5 * (sizes[:, :1] * sin + sizes[:, 1:] * cos)
    in_path = np.abs(offset) < half_width + 0.5 * vehicle.width_m + IDM_LANE_MARGIN_M

    times_s = PLAN_DT_S * np.arange(steps)  # IDM reacts to where others are at the start of each interval
    knot = np.searchsorted(coarse, times_s, side="right") - 1
    table = np.stack([along - half_length, np.gradient(along, AGENT_STEP_S, axis=-1)])
    slope = np.diff(table, axis=-1) / AGENT_STEP_S
    rear_m, speeds_mps = slope[..., knot] * (times_s - coarse[knot]) + table[..., knot]
    blocked = in_path[..., np.minimum((times_s / AGENT_STEP_S).round().astype(int), len(coarse) - 1)]
    ever = blocked.any(axis=-1)
    rear_m, speeds_mps, blocked = rear_m[ever], speeds_mps[ever], blocked[ever]
    # The planner stops before the point where an agent will enter the path, some time in advance.
    notice = round(ANTICIPATION_S / PLAN_DT_S)
    for row in np.flatnonzero(~blocked[:, 0]):
        entry = int(np.argmax(blocked[row]))
        before = slice(max(entry - notice, 0), entry)
        rear_m[row, before], speeds_mps[row, before], blocked[row, before] = (
            rear_m[row, entry],
            speeds_mps[row, entry],
            True,
        )
    own_path = np.arange(len(paths))[:, None] == np.nonzero(ever)[0]
    return BlockingAgents(rear_m, speeds_mps, own_path[..., None] & blocked)


def near_paths(paths: Array, poses: Array, sizes: Array, vehicle: VehicleConfig) -> Array:
    """(A,) whether an agent (poses (A, T, 3)) ever comes close enough to one of the paths (P, L, 3) for an exact
    test."""
    first = paths[0, :: max(1, round(THINNED_M / PATH_STEP_M)), :2]
    spread_m = np.hypot(*(paths[..., :2] - paths[0, :, :2]).transpose(2, 0, 1)).max()
    distance_m = np.hypot(*(poses[:, :, None, :2] - first).transpose(3, 0, 1, 2)).min(axis=(1, 2))
    return np.asarray(distance_m < THINNED_M + spread_m + 0.5 * np.hypot(*sizes.T) + vehicle.width_m)
