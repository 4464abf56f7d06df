"""The part of the route around the ego, and the driving command that follows from it."""

from __future__ import annotations

import numpy as np

from ... import geometry
from ...domain import Array, Command, EgoState

ROUTE_BEHIND_M, ROUTE_AHEAD_M = 20.0, 250.0  # the part of the route handed to the planner
TURN_AHEAD_M, TURN_RAD = (
    25.0,
    np.deg2rad(25.0),
)  # a route whose heading changes by this much within this distance is a turn


def route_around_ego(route: Array, ego: EgoState, last_position_m: float | None) -> tuple[Array, float]:
    """The part (L, 3) of a route (N, 3, map frame) around the ego, in the ego frame; the ego's arc length along it, m.

    `last_position_m`: that arc length at the last snapshot. The projection is searched near it first, because a route
    may cross itself; without it, or where the ego is 15 m or more beside that part, the whole route is searched.
    """
    along = geometry.arc_lengths(route)
    here = ego.map_from_ego[None, :2]
    place = None
    if last_position_m is not None:
        near = np.flatnonzero((along > last_position_m - 30.0) & (along < last_position_m + 60.0))
        if len(near) >= 2:
            (at,), (offset,) = geometry.project(route[near], here)
            place = along[near[0]] + at if abs(offset) < 15.0 else None
    if place is None:
        (place,), _ = geometry.project(route, here)
    wanted = (along >= place - ROUTE_BEHIND_M) & (along <= place + ROUTE_AHEAD_M)
    after = int(np.clip(np.searchsorted(along, place, side="right"), 1, len(route) - 1))
    wanted[after - 1 : after + 1] = (
        True  # the segment that the ego is on, or the last one where the ego is past the end
    )
    return geometry.compose(geometry.invert(ego.map_from_ego), route[wanted]), float(place)


def command_along(route: Array) -> Command:
    """The driving command of a route (L, 3, ego frame), from its change of heading within TURN_AHEAD_M."""
    if len(route) < 2:
        return Command.FOLLOW
    here, _ = geometry.ego_on_route(route)
    now, then = geometry.sample(route, np.array([here, here + TURN_AHEAD_M]))
    bend = float(geometry.wrap(then[2] - now[2]))
    if abs(bend) < TURN_RAD:
        return Command.FOLLOW
    return Command.LEFT if bend > 0 else Command.RIGHT
