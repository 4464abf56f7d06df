"""The drivable space of a lanelet map around the car, computed in the background.

A grid takes about 0.2 s, too long for a planning step. It therefore extends further than a plan, and the next one is
started when the car has moved or turned so much that this one will soon be too small. Until the first is ready, and if
the map has no road near the car, the space is unknown, which is reported in one sentence.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, wait
from dataclasses import replace

import numpy as np
import shapely

from .. import geometry
from ..domain import Array, DrivableGrid, EgoState
from ..scoring import drivable
from .convert import BadMessage
from .lanelet_map import LaneletMap

BEHIND_M, AHEAD_M, SIDE_M = 40.0, 180.0, 70.0
UPDATE_DISTANCE_M, UPDATE_TURN_RAD = 25.0, np.deg2rad(25.0)  # since the grid was begun: time for a new one
GRID_OFFSET_MAX_M = 60.0  # a grid begun further away from here does not serve any more
SEAM_M = 0.1  # gaps between lanelets narrower than twice this are none
OFF_THE_MAP_M = -4.5  # a car this far from any road is not on the map


class MapDrivableArea:
    def __init__(self, lanelets: LaneletMap, background: Executor) -> None:
        self.lanelets, self._background = lanelets, background
        self._made: tuple[Array, DrivableGrid | None] | None = None  # map_from_ego when it was begun; None: no road
        self._coming: tuple[Array, Future[DrivableGrid | None]] | None = None

    def around(self, ego: EgoState) -> DrivableGrid:
        """The drivable space in the present ego frame. Raises BadMessage with the reason if it is unknown."""
        here = ego.map_from_ego
        if self._coming is not None and self._coming[1].done():
            self._made, self._coming = (self._coming[0], self._coming[1].result()), None
        if self._coming is None and (self._made is None or needs_update(self._made[0], here)):
            self._coming = here, self._background.submit(build_grid, self.lanelets, here)
        if self._made is None or np.hypot(*(self._made[0] - here)[:2]) > GRID_OFFSET_MAX_M:
            raise BadMessage("the drivable space of the map is being computed")
        (begun_at, grid), source = self._made, self.lanelets.source
        if grid is None:
            raise BadMessage(f"{source.name} has no road near the car: {source.if_misplaced}")
        now_from_then = geometry.compose(geometry.invert(here), begun_at)
        grid = replace(grid, ego_from_grid=geometry.compose(now_from_then, grid.ego_from_grid))
        if drivable.clearances(grid, np.zeros((1, 2)))[0] < OFF_THE_MAP_M:
            raise BadMessage(f"the car is beside the roads of {source.name}: {source.if_misplaced}")
        return grid

    def wait_idle(self) -> None:
        """Waits until no grid is being computed."""
        if self._coming is not None:
            wait([self._coming[1]])


def needs_update(then: Array, now: Array) -> bool:
    far = np.hypot(*(now - then)[:2]) > UPDATE_DISTANCE_M
    return bool(far or abs(geometry.wrap(now[2] - then[2])) > UPDATE_TURN_RAD)


def build_grid(lanelets: LaneletMap, map_from_ego: Array) -> DrivableGrid | None:
    """The grid around a pose, in its frame; None where the map has no road."""
    road = lanelets.road_near(map_from_ego, AHEAD_M + SIDE_M)
    if not road:
        return None
    ego_from_map = geometry.invert(map_from_ego)
    near = shapely.transform(shapely.union_all(road), lambda points: geometry.transform_points(ego_from_map, points))
    closed = near.buffer(SEAM_M, join_style="mitre").buffer(-SEAM_M, join_style="mitre")
    return drivable.grid_around_ego(closed, BEHIND_M, AHEAD_M, SIDE_M)
