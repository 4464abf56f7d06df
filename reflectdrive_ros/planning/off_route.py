"""Whether the car is on its route: near its line, and not facing against it. No planner plans otherwise.

The engine asks before it plans, so that one rule serves all planners, in the node, in replays and in simulators.
"""

from __future__ import annotations

import numpy as np

from ..core import geometry
from ..core.config import RouteConfig
from ..core.domain import Array

FACING_MAX_DEG = 120.0  # a car further from the direction of its route faces against it ..
FACING_AGAIN_DEG = 90.0  # .. until it is within this of it: then planners that only drive forward get on


def off_route_reason(route: Array, limits: RouteConfig, was_off: bool = False) -> str:
    """Why the car is not on its route (L, 3), ego frame: one sentence; empty if it is, and for a route without length.

    The distance is that of the rear axle to the line, which ends at its ends. The direction is that of the part of the
    whole line within `max_distance_m` which fits the car best. `was_off`: whether the car was not on its route one
    step before; then the limits are tighter, so that a car at a limit does not stop and start in turn.
    """
    line = geometry.distinct_points(route)
    if len(line) < 2:
        return ""
    at_m, offset_m = geometry.ego_on_route(line)
    distance_m, back_m = abs(offset_m), limits.back_within_m
    if distance_m > limits.max_distance_m:
        return (
            f"route: the car is {distance_m:.1f} m from its route, at most {limits.max_distance_m:g} m are allowed: "
            "drive it back to the route, set a new goal from where it is, or raise route.max_distance_m"
        )
    if was_off and distance_m > back_m:
        return (
            f"route: the car is {distance_m:.1f} m from its route, which it had left: drive it back within {back_m:g} m"
        )
    # the whole line: a route that comes back beside the car, or turns tightly, also has a part that fits
    poses = geometry.sample(line, np.append(_near_m(line, limits.max_distance_m), at_m))
    near = np.hypot(poses[:, 0], poses[:, 1]) <= limits.max_distance_m + 0.01  # rounding
    facing_deg = float(np.rad2deg(np.abs(poses[near, 2]).min()))
    if facing_deg > (FACING_AGAIN_DEG if was_off else FACING_MAX_DEG):
        return (
            f"route: the car faces against its route, {facing_deg:.0f} degrees from its direction: publish a route "
            f"that leads ahead of the car, or turn it within {FACING_AGAIN_DEG:.0f} degrees of the route"
        )
    return ""


def _near_m(line: Array, reach_m: float) -> Array:
    """Metres along a line (L, 3) at which its segments that come within `reach_m` of the car are sampled, every metre:
    a route may be hundreds of kilometres long."""
    starts, steps = line[:-1, :2], np.diff(line[:, :2], axis=0)
    lengths_m = np.hypot(*steps.T)
    shares = np.clip(-(starts * steps).sum(axis=1) / lengths_m**2, 0.0, 1.0)
    nearest = np.hypot(*(starts + shares[:, None] * steps).T)
    begins_m = geometry.arc_lengths(line)
    rows = np.flatnonzero(nearest <= reach_m)
    reaches = [np.arange(begins_m[row], begins_m[row + 1]) for row in rows]
    return np.concatenate([*reaches, begins_m[rows + 1]])
