"""Frenet coordinates along a route: arc length, lateral offset (left positive) and the route's heading at points.

The headings of a plan of rounded points are noisy between the points. Relative to the road, a driven path has almost no
curvature, so noise and turns are easier to separate there than in the ego frame, where a roundabout is one long turn.

A plan that leaves the road (changing lanes does not) is read in the ego frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import reflectdrive_kernels as kernels

from ..core import geometry, tokens
from ..core.domain import Array
from ..core.tokens import TokenLayout

STEP_M = 1.0  # spacing of the route's samples
REACH_M = 130.0  # of it, more than a plan is long
TANGENT_M = 3.0  # to either side, over which a route's direction is taken: maps have kinks
BACK_M = 3.0  # of it, behind the car
NEAR_M = 4.0  # tolerance along the route between a point and its expected position one step after the previous point
ROAD_OFFSET_MAX_M = 5.0  # further away a plan is not on this road
ASTRAY = np.cos(np.radians(70.0))  # a step at a larger angle to the road does not follow it
CURVATURE_CHANGE = 0.04  # of plans, instead of `tokens.CURVATURE_CHANGE`: they turn at junctions, on narrow roads
TELLING_M = 1.0  # shorter steps have no reliable direction
NO_ROAD = "Observation.route does not pass the vehicle, but the network plans relative to it: send one that does"
NO_ROUTE = (np.zeros((0, 2)), np.zeros(0), np.zeros(0))  # instead of `FrenetFrame.for_kernels`
ROUTE_RULE = (
    NEAR_M,
    float(ASTRAY),
    ROAD_OFFSET_MAX_M,
    TELLING_M,
)  # an argument of the kernels: when a plan follows a route


class FrenetPoints(NamedTuple):
    """Points as a straight road has them."""

    points: Array  # (.., T, 2) along the route and to its left
    heading: Array  # (.., T) of the route there, ego frame


@dataclass(frozen=True, eq=False)
class FrenetFrame:
    """A route of the ego frame as a reference line, extended straight beyond its ends."""

    points: Array  # (R, 2) every STEP_M
    heading: Array  # (R,) unwrapped
    at: Array  # (R,) metres along, 0 where the car is

    @staticmethod
    def of(route: Array, ego_place: tuple[float, float] | None = None) -> FrenetFrame | None:
        """Of a route (L, 2+) that leads past the car; None where there is none, or it is elsewhere. `ego_place` is
        `geometry.ego_on_route` of it, if that is known and no point of the route repeats the one before."""
        line = np.asarray(route, float)
        if ego_place is None:
            line = geometry.distinct_points(line)
            if len(line) < 2:
                return None
            ego_place = geometry.ego_on_route(line)
        begins_m, lateral_m = ego_place
        if abs(lateral_m) > ROAD_OFFSET_MAX_M:
            return None
        length_m = geometry.arc_lengths(line)[-1]
        first, last = max(begins_m - BACK_M, 0.0), min(begins_m + REACH_M, length_m)
        at = np.linspace(first, last, max(round((last - first) / STEP_M) + 1, 2))
        ends = (np.clip(at + step_m, 0.0, length_m) for step_m in (-TANGENT_M, TANGENT_M))
        points, behind, ahead = _sample_points(line, np.concatenate([at, *ends])).reshape(3, -1, 2)
        heading = np.unwrap(np.arctan2(*(ahead - behind).T[::-1]))
        return FrenetFrame(points, heading, at - begins_m)

    def to_frenet(self, points: Array) -> FrenetPoints:
        """Points (.., T, 2), each projected to the route near where its step from the one before leads."""
        points = np.asarray(points, float)
        straight, heading = np.empty(points.shape), np.empty(points.shape[:-1])
        plans = (points.reshape(-1, *points.shape[-2:]), straight.reshape(-1, *points.shape[-2:]))
        kernels.to_frenet(self.for_kernels, plans[0], NEAR_M, plans[1], heading.reshape(-1, points.shape[-2]))
        return FrenetPoints(straight, heading)

    @property
    def for_kernels(self) -> tuple[Array, Array, Array]:
        """An argument of the kernels that take a route."""
        return self.points, self.heading, self.at

    @cached_property
    def here(self) -> Array:
        """(3,) the car in Frenet coordinates, and the route's heading there."""
        straight, heading = self.to_frenet(np.zeros((1, 2)))
        return np.array([*straight[0], heading[0]])

    def to_cartesian(self, points: Array) -> Array:
        """Points (.., T, 2) of the ego frame from those of the straight road."""
        along, lateral_m = points[..., 0], points[..., 1]
        heading = np.interp(along, self.at, self.heading)
        on_route = np.stack([np.interp(along, self.at, self.points[:, axis]) for axis in (0, 1)], axis=-1)
        beyond = along - np.clip(along, self.at[0], self.at[-1])
        forward = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
        left = np.stack([-forward[..., 1], forward[..., 0]], axis=-1)
        return np.asarray(on_route + beyond[..., None] * forward + lateral_m[..., None] * left)


def frenet_poses(poses: Array, line: FrenetFrame) -> Array:
    """(.., T, 3) of ego poses (.., T, 3): arc length and lateral offset in m along the line, heading relative to it."""
    along, road_heading = line.to_frenet(poses[..., :2])
    return np.concatenate([along, geometry.wrap(poses[..., 2] - road_heading)[..., None]], axis=-1)


def cartesian_poses(poses: Array, line: FrenetFrame) -> Array:
    """Inverse of `frenet_poses`."""
    heading = geometry.wrap(poses[..., 2] + np.interp(poses[..., 0], line.at, line.heading))
    return np.concatenate([line.to_cartesian(poses[..., :2]), heading[..., None]], axis=-1)


def points_in_layout_frame(points: Array, layout: TokenLayout, road: FrenetFrame | None) -> Array:
    """Inverse of `points_in_ego_frame`, of points (.., P, 2) of the ego frame."""
    if layout.frame == "ego":
        return points
    if road is None:
        raise ValueError(NO_ROAD)
    return road.to_frenet(points).points


def points_in_ego_frame(waypoints: Array, layout: TokenLayout, road: FrenetFrame | None) -> Array:
    """Points (.., P, 2) of the ego frame of waypoints (.., P, A) of tokens. Raises ValueError for a layout in the frame
    of the route where there is none."""
    points: Array = waypoints[..., :2]
    if layout.frame == "ego":
        return points
    if road is None:
        raise ValueError(NO_ROAD)
    return road.to_cartesian(points)


def _sample_points(line: Array, at: Array) -> Array:
    return geometry.sample(line, at)[:, :2]


def poses_on_road(points: Array, road: FrenetFrame | None) -> Array:
    """Poses (.., T, 3) with headings estimated from points (.., T, 2) as `tokens.poses_from_points` does, relative to
    the road if the points follow it, and with a prior that allows the sharper turns of a plan. The points are kept.
    Raises ValueError as `poses_from_points` does.
    """
    if road is None:
        return tokens.poses_from_points(points, CURVATURE_CHANGE)
    points = tokens.check_points(points)
    poses = np.empty((*points.shape[:-1], 3))
    poses[..., :2] = points
    plans = points.reshape(-1, *points.shape[-2:])
    headings = np.empty(plans.shape[:-1])
    prior = tokens.heading_prior(CURVATURE_CHANGE)
    kernels.headings_on_road(road.for_kernels, road.here, plans, ROUTE_RULE, prior, headings)
    poses[..., 2] = headings.reshape(points.shape[:-1])
    return poses
