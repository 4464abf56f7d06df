"""The part of the route around the ego with its speed limits, and the driving command that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core import geometry
from ...core.domain import Array, Command, EgoState

ROUTE_BEHIND_M, ROUTE_AHEAD_M = 20.0, 250.0  # the part of the route handed to the planner
TURN_AHEAD_M, TURN_RAD = 25.0, np.deg2rad(25.0)  # a route that turns by this angle within this distance is a turn
KEEP_RAD = np.deg2rad(8.0)  # a turn with less than this ahead is over
NEAR_BEHIND_M, NEAR_AHEAD_M, NEAR_OFFSET_M = 30.0, 60.0, 15.0  # the part around its last position, searched first
FACING_WITHIN_M = 5.0  # a part this near that leads where the ego faces goes before nearer ones that do not
PAST_END_MAX_M = 2.0  # a car further past the end of its route has no route
SPEED_LIMIT_MIN_MPS = 0.5  # of Observation.speed_limit_mps


@dataclass(frozen=True, eq=False)
class MapRoute:
    """A whole route in the map frame."""

    poses: Array  # (N, 3)
    limits_mps: Array  # (N,) limit of the map from each point on; NaN: none
    lanelet_ids: frozenset[int] | None = None  # of a LaneletRoute, those beside the preferred ones included


@dataclass(frozen=True, eq=False)
class RouteAhead:
    """The part of a route around the ego."""

    poses: Array  # (L, 3) ego frame
    limits_mps: Array  # (L,) speed limit from each point on
    ends: bool  # whether its last point is the end of the whole route
    position_m: float  # arc length of the ego along the whole route
    limit_here_mps: float  # speed limit at the ego
    past_end_m: float  # how far the ego is ahead of the end of the whole route; 0 before it


def limits_along(route: MapRoute, default_mps: float, max_velocity_mps: float | None) -> MapRoute:
    """The route with a limit at every point: that of the map, `default_mps` where it has none, both at most
    `max_velocity_mps`."""
    limits_mps = np.where(route.limits_mps > 0.0, route.limits_mps, default_mps)
    return MapRoute(route.poses, limits_mps if max_velocity_mps is None else np.minimum(limits_mps, max_velocity_mps))


def position_on_route(poses: Array, map_from_ego: Array) -> tuple[float, float]:
    """Arc length along a polyline (N >= 2, 3) nearest to the ego and its lateral offset there, m, left positive.

    A route may cross itself or come back on the other side of the road: where the nearest part leads more than 90
    degrees away from where the ego faces, the nearest part that does not is taken, if it is within FACING_WITHIN_M.
    """
    here, heading = map_from_ego[None, :2], map_from_ego[2]
    (position_m,), (offset_m,) = geometry.project(poses, here)
    if np.cos(geometry.sample(poses, np.array([position_m]))[0, 2] - heading) >= 0.0:
        return float(position_m), float(offset_m)
    steps = np.diff(poses[:, :2], axis=0)
    is_facing = steps @ (np.cos(heading), np.sin(heading)) > 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_facing, [False]]).astype(int)))
    along, nearest_m = geometry.arc_lengths(poses), FACING_WITHIN_M
    for first, last in edges.reshape(-1, 2):  # parts that lead where the ego faces: points first .. last
        (at_m,), (lateral_m,) = geometry.project(poses[first : last + 1], here)
        if abs(lateral_m) < nearest_m:
            nearest_m, position_m, offset_m = abs(lateral_m), along[first] + at_m, lateral_m
    return float(position_m), float(offset_m)


def route_around_ego(route: MapRoute, ego: EgoState, last_position_m: float | None) -> RouteAhead:
    """The part of a route around the ego.

    `last_position_m`: its position at the last snapshot. The ego is searched near it first, because a route may cross
    itself; without it, or where the ego is NEAR_OFFSET_M or more beside that part, the whole route is searched.
    """
    poses = route.poses
    along = geometry.arc_lengths(poses)
    position_m, offset_m = 0.0, np.inf
    if last_position_m is not None:
        near = np.flatnonzero((along > last_position_m - NEAR_BEHIND_M) & (along < last_position_m + NEAR_AHEAD_M))
        if len(near) >= 2:
            position_m, offset_m = position_on_route(poses[near], ego.map_from_ego)
            position_m += float(along[near[0]])
    if abs(offset_m) >= NEAR_OFFSET_M:
        position_m, _ = position_on_route(poses, ego.map_from_ego)
    is_around = (along >= position_m - ROUTE_BEHIND_M) & (along <= position_m + ROUTE_AHEAD_M)
    after = int(np.clip(np.searchsorted(along, position_m, side="right"), 1, len(poses) - 1))
    is_around[after - 1 : after + 1] = True  # the segment of the ego, or the last one where the ego is past the end
    past_end_m = 0.0
    if position_m > along[-1] - 1e-6:
        x, y, heading = poses[-1]
        past_end_m = max(float((ego.map_from_ego[:2] - (x, y)) @ (np.cos(heading), np.sin(heading))), 0.0)
    return RouteAhead(
        geometry.compose(geometry.invert(ego.map_from_ego), poses[is_around]),
        route.limits_mps[is_around],
        bool(is_around[-1]),
        position_m,
        float(route.limits_mps[after - 1]),
        past_end_m,
    )


def command_along(route: Array) -> Command:
    """The driving command of a route (L, 3, ego frame), from its change of heading within TURN_AHEAD_M."""
    bend_rad = bend_ahead(route)
    if abs(bend_rad) < TURN_RAD:
        return Command.FOLLOW
    return Command.LEFT if bend_rad > 0 else Command.RIGHT


def bend_ahead(route: Array) -> float:
    """Change of heading, rad, left positive, of a route (L, 3, ego frame) within TURN_AHEAD_M; 0 without a route."""
    if len(route) < 2:
        return 0.0
    here, _ = geometry.ego_on_route(route)
    now, then = geometry.sample(route, np.array([here, here + TURN_AHEAD_M]))
    return float(geometry.wrap(then[2] - now[2]))
