"""Geometry that a camera could measure, from the lanes, the road and the agents of a scene: targets of `probe`."""

from __future__ import annotations

import numpy as np
import shapely

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array
from ..data.scene import DrivingScene
from ..data.scene_lanes import centerline_of
from ..scoring.areas import MapAreas

TARGETS = (
    *("lane offset, m", "lane heading, deg", "gap, m", "lead speed, m/s"),
    *(f"{side} edge at {ahead} m, m" for side in ("left", "right") for ahead in (10, 20, 30)),
)
AHEAD_M = np.array([10.0, 20.0, 30.0])  # on the route, where the road's edges are measured
EDGE_MAX_M, EDGE_STEP_M = 8.0, 0.1  # edges further from the route count as EDGE_MAX_M
LANE_ANGLE_MAX_RAD = np.pi / 3  # of the ego to its lane
LEAD_MAX_M, LEAD_OFFSET_MAX_M = 60.0, 1.5  # of a lead's centre along the route and beside it


def geometry_targets(scene: DrivingScene, vehicle: VehicleConfig) -> Array:
    """(10,) TARGETS of a scene with a map and a route; NaN of what is absent, as a lead or a route of 30 m."""
    along_m, _ = geometry.ego_on_route(scene.route)
    return np.concatenate([_lane(scene), _lead(scene, vehicle, along_m), _edges(scene, along_m)])


def _lane(scene: DrivingScene) -> Array:
    """(2,) lateral offset of the ego to the centreline of its lane, left positive, and heading."""
    lanes = []
    for ring, on_route in zip(scene.areas.lanes, scene.areas.lane_on_route, strict=True):
        centerline = (
            centerline_of(np.asarray(ring)) if shapely.Polygon(ring).contains(shapely.Point(0.0, 0.0)) else None
        )
        if centerline is not None:
            at_m, offset_m = geometry.project(centerline, np.zeros((1, 2)))
            heading = -float(geometry.sample(centerline, at_m)[0, 2])
            if abs(heading) < LANE_ANGLE_MAX_RAD:
                lanes.append((not on_route, abs(offset_m[0]), offset_m[0], np.degrees(heading)))
    return np.array(min(lanes)[2:] if lanes else (np.nan, np.nan))


def _lead(scene: DrivingScene, vehicle: VehicleConfig, along_m: float) -> Array:
    """(2,) gap from the ego's front to the rear of the nearest agent ahead on the route, and its speed."""
    agents, front_m = scene.agents, vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    at_m, offset_m = geometry.project(scene.route, agents.poses[:, :2])
    at_m -= along_m
    gap_m = at_m - 0.5 * agents.sizes[:, 0] - front_m
    gap_m[(np.abs(offset_m) > LEAD_OFFSET_MAX_M) | (at_m < vehicle.rear_axle_to_center_m) | (at_m > LEAD_MAX_M)] = (
        np.inf
    )
    if not np.isfinite(gap_m).any():
        return np.array([np.nan, np.nan])
    lead = int(gap_m.argmin())
    return np.array([gap_m[lead], np.hypot(*agents.velocities_mps[lead])])


def _edges(scene: DrivingScene, along_m: float) -> Array:
    """(6,) distances from the route to the edges of the road, left and right, AHEAD_M of the ego."""
    length_m = geometry.arc_lengths(scene.route)[-1] - along_m
    edges_m = edge_distances(scene.areas, geometry.sample(scene.route, along_m + AHEAD_M))
    return np.where(length_m < AHEAD_M, np.nan, edges_m).ravel()


def edge_distances(areas: MapAreas, poses: Array) -> Array:
    """(2, P) distances of poses (P, 3) to the edges of the road, left and right, EDGE_MAX_M at most; NaN off it."""
    steps_m = np.arange(0.0, EDGE_MAX_M + EDGE_STEP_M, EDGE_STEP_M)
    sides = []
    for sign in (1.0, -1.0):
        normals = sign * np.stack([-np.sin(poses[:, 2]), np.cos(poses[:, 2])], -1)
        points = poses[:, None, :2] + steps_m[:, None] * normals[:, None]
        outside: Array = ((areas.index.sets(points) & areas.drivable_bits) == 0).all(axis=-1)
        edge_m = np.where(outside.any(1), steps_m[outside.argmax(1)], EDGE_MAX_M)
        sides.append(np.where(outside[:, 0], np.nan, edge_m))
    return np.stack(sides)
