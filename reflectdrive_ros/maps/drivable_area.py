"""The drivable space of a lanelet map around the car, computed in the background.

A grid takes about 0.2 s, too long for a planning step. It therefore extends further than a plan, and the next one is
started when the car has moved or turned so much that this one will soon be too small. Until the first is ready, and if
the map has no road near the car, the space is unknown, which is reported in one sentence.

In tight bends a car sweeps more than the width of its lanelets. The space is therefore widened by what the car sweeps
along its route, as Autoware's dynamic expansion of the drivable area does, but not beyond kerbs, fences and walls.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array, DrivableGrid, EgoState
from ..core.kinematics import box_centres
from ..core.messages import BadMessage
from ..scoring import drivable
from .lanelet_map import LaneletMap

BEHIND_M, AHEAD_M, SIDE_M = 40.0, 180.0, 70.0
UPDATE_DISTANCE_M, UPDATE_TURN_RAD = 25.0, np.deg2rad(25.0)  # since the request of the grid: time for a new one
GRID_OFFSET_MAX_M = 60.0  # a grid requested further away is not used any more
SEAM_M = 0.1  # gaps between lanelets narrower than twice this are none
OFF_THE_MAP_M = -4.5  # a car this far from any road is not on the map
ROUTE_STEP_M = 0.5  # between the boxes of a car along its route
ROUTE_MARGIN_M = 0.4  # beside them: the grid reports up to 0.24 m too little, and a plan is not exactly on the route
WIDENING_M = 1.0  # a route is trusted this far beside the lanelets
TOUCH_M = 0.01  # a part this near to the road continues it
BORDER_MARGIN_M = 0.2  # before a kerb, fence or wall, where the space is widened towards it


@dataclass(frozen=True, eq=False)
class _Grid:
    """A grid, or that the map has no road near the car, and what it was computed for."""

    map_from_ego: Array  # (3,)
    route: Array | None  # (L, 3)
    future: Future[DrivableGrid | None]

    def serves(self, here: Array, route: Array | None) -> bool:
        """Whether no other grid has to be started for a car here on this route."""
        return self.route is route and not needs_update(self.map_from_ego, here)


class MapDrivableArea:
    def __init__(self, lanelets: LaneletMap, vehicle: VehicleConfig, background: Executor) -> None:
        self.lanelets, self._vehicle, self._background = lanelets, vehicle, background
        self._ready: _Grid | None = None
        self._coming: _Grid | None = None

    def around(self, ego: EgoState, route: Array | None = None) -> DrivableGrid:
        """The drivable space in the present ego frame. Raises BadMessage with the reason if it is unknown.

        Along a route, poses (L, 3) in the map, the space is widened. It must come from the lanelets of this map.
        """
        here = ego.map_from_ego
        if self._coming is not None and self._coming.future.done():
            self._ready, self._coming = self._coming, None
        if self._coming is None and (self._ready is None or not self._ready.serves(here, route)):
            task = self._background.submit(build_grid, self.lanelets, here, route, self._vehicle)
            self._coming = _Grid(here, route, task)
        if self._ready is None or np.hypot(*(self._ready.map_from_ego - here)[:2]) > GRID_OFFSET_MAX_M:
            raise BadMessage("the drivable space of the map is being computed")
        fault, source = self._ready.future.exception(), self.lanelets.source
        if fault is not None:  # of shapes that no map has, such as those of a damaged one
            why = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
            raise BadMessage(f"the drivable space of {source.name} cannot be computed ({why}): correct the map")
        grid = self._ready.future.result()
        if grid is None:
            raise BadMessage(f"{source.name} has no road near the car: {source.if_misplaced}")
        now_from_then = geometry.compose(geometry.invert(here), self._ready.map_from_ego)
        grid = replace(grid, ego_from_grid=geometry.compose(now_from_then, grid.ego_from_grid))
        if drivable.clearances(grid, np.zeros((1, 2)))[0] < OFF_THE_MAP_M:
            raise BadMessage(f"the car is beside the roads of {source.name}: {source.if_misplaced}")
        return grid

    def wait_idle(self) -> None:
        """Waits until no grid is being computed."""
        if self._coming is not None:
            wait([self._coming.future])


def needs_update(then: Array, now: Array) -> bool:
    is_distant = np.hypot(*(now - then)[:2]) > UPDATE_DISTANCE_M
    return bool(is_distant or abs(geometry.wrap(now[2] - then[2])) > UPDATE_TURN_RAD)


def build_grid(
    lanelets: LaneletMap, map_from_ego: Array, route: Array | None, vehicle: VehicleConfig
) -> DrivableGrid | None:
    """The grid around a pose, in its frame, widened along a route (L, 3) in the map; None where the map has no road."""
    reach_m = AHEAD_M + SIDE_M
    polygons = lanelets.road_near(map_from_ego, reach_m)
    if not polygons:
        return None
    road = shapely.union_all(polygons)
    if route is not None:
        boxes = boxes_along(route, map_from_ego[:2], reach_m, vehicle)
        road = shapely.union_all([road, *areas_beside_road(road, boxes, lanelets.borders)])
    ego_from_map = geometry.invert(map_from_ego)
    near = shapely.transform(road, lambda points: geometry.transform_points(ego_from_map, points))
    closed = near.buffer(SEAM_M, join_style="mitre").buffer(-SEAM_M, join_style="mitre")
    return drivable.grid_around_ego(closed, BEHIND_M, AHEAD_M, SIDE_M)


def boxes_along(route: Array, center: Array, reach_m: float, vehicle: VehicleConfig) -> Array:
    """(B,) shapely boxes, in the map, of a car with its rear axle on a route (L, 3), ROUTE_MARGIN_M larger on every
    side, within `reach_m` of `center` (2,)."""
    poses = geometry.sample(route[:, :2], np.arange(0.0, geometry.arc_lengths(route)[-1] + ROUTE_STEP_M, ROUTE_STEP_M))
    near = poses[np.hypot(*(poses[:, :2] - center).T) <= reach_m]
    size = np.array([vehicle.length_m, vehicle.width_m]) + 2.0 * ROUTE_MARGIN_M
    return np.asarray(shapely.polygons(geometry.box_corners(box_centres(near, vehicle), size)))


def areas_beside_road(road: Any, boxes: Array, borders: Sequence[Any]) -> list[Any]:
    """The parts of boxes that are at most WIDENING_M beside the road, with no border between."""
    shapely.prepare(road)
    outside = shapely.difference(boxes[~shapely.covers(road, boxes)], road)
    tree = shapely.STRtree(borders)
    for box, border in tree.query(outside, "dwithin", BORDER_MARGIN_M).T:
        outside[box] = shapely.difference(outside[box], shapely.buffer(borders[border], BORDER_MARGIN_M))
    parts = shapely.get_parts(shapely.intersection(outside, shapely.buffer(road, WIDENING_M)))
    return list(parts[shapely.distance(road, parts) < TOUCH_M])
