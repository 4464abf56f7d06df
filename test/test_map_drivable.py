"""The drivable space of a map is widened by what a car sweeps along its route, up to kerbs, fences and walls."""

import numpy as np
import pytest
from scenes import ego

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.core.kinematics import box_centres
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps.drivable_area import BORDER_MARGIN_M, MapDrivableArea, build_grid
from reflectdrive_ros.maps.lanelet_elements import Lanelet, MapElements
from reflectdrive_ros.maps.lanelet_map import LaneletMap, MapSource
from reflectdrive_ros.replay.recorded_world import InlineExecutor
from reflectdrive_ros.scoring import drivable

CAR = VehicleConfig()
RADIUS_M, WIDTH_M = 7.0, 3.0  # a quarter circle to the left, in which the car sweeps more than this


def arc(radius_m):
    """(N, 2) 20 m along x, a quarter circle to the left around (20, RADIUS_M), and 20 m along y."""
    angles = np.linspace(0.0, 0.5 * np.pi, 30)
    bend = np.column_stack([20.0 + radius_m * np.sin(angles), RADIUS_M - radius_m * np.cos(angles)])
    begin, end = bend[0] - [20.0, 0.0], bend[-1] + [0.0, 20.0]
    return np.concatenate([[begin], bend, [end]])


def bend_map(border_m=None):
    """A map of one lanelet; with a kerb at this distance from it, outside the bend."""
    left, right = arc(RADIUS_M - 0.5 * WIDTH_M), arc(RADIUS_M + 0.5 * WIDTH_M)
    flat = (np.zeros(len(left)), np.zeros(len(right)))
    lanelet = Lanelet(left, right, np.zeros((0, 2)), True, float("nan"), *flat)
    borders = () if border_m is None else (arc(RADIUS_M + 0.5 * WIDTH_M + border_m),)
    return LaneletMap(MapElements({1: lanelet}, (), borders), MapSource("the map", "check it", "plan again"))


def route():
    line = arc(RADIUS_M)
    return np.column_stack([line, geometry.headings_along(line)])


def room(grid):
    """(P,) lower bounds of the room of a car on the route, every metre, in a grid around the origin of the map."""
    along = np.arange(5.0, geometry.arc_lengths(arc(RADIUS_M))[-1] - 5.0)
    centres = box_centres(geometry.sample(arc(RADIUS_M), along), CAR)
    return drivable.outline_clearances(grid, centres, np.array([CAR.length_m, CAR.width_m]))


def test_a_car_that_sweeps_more_than_its_lanelet_may_follow_its_route():
    lanelets = bend_map()
    assert room(build_grid(lanelets, np.zeros(3), None, CAR)).min() < -0.1  # outside by more than the grid is coarse
    assert room(build_grid(lanelets, np.zeros(3), route(), CAR)).min() > 0.0


def points_outside_bend(outside_m):
    """(20, 2) points this far outside the lanelet, on the outer side of its bend."""
    angles, radius_m = np.linspace(0.5, 1.4, 20), RADIUS_M + 0.5 * WIDTH_M + outside_m
    return np.column_stack([20.0 + radius_m * np.sin(angles), RADIUS_M - radius_m * np.cos(angles)])


def test_the_space_is_widened_up_to_a_kerb_and_not_beyond():
    free, along_lane, half_metre = (build_grid(bend_map(b), np.zeros(3), route(), CAR) for b in (None, 0.0, 0.5))
    lane = build_grid(bend_map(), np.zeros(3), None, CAR)
    assert (drivable.clearances(free, points_outside_bend(0.3)) > 0.0).all()
    assert (drivable.clearances(along_lane, points_outside_bend(0.05)) <= 0.0).all()  # the kerb is the edge of the lane
    assert room(along_lane).min() == pytest.approx(room(lane).min(), abs=0.05)
    assert (drivable.clearances(half_metre, points_outside_bend(0.5 - BORDER_MARGIN_M + 0.05)) <= 0.0).all()
    assert room(lane).min() + 0.1 < room(half_metre).min() < room(free).min()


def test_a_straight_lanelet_is_widened_by_no_more_than_the_margin():
    grid = build_grid(bend_map(), np.zeros(3), route(), CAR)
    points = np.array([[10.0, side * (0.5 * CAR.width_m + 0.65)] for side in (-1.0, 1.0)])
    assert (drivable.clearances(grid, points) <= 0.0).all()


def test_a_new_route_gets_a_new_grid_and_the_old_one_serves_until_it_is_there():
    space, here, to_go = MapDrivableArea(bend_map(), CAR, InlineExecutor()), ego(5.0), route()
    with pytest.raises(BadMessage, match="is being computed"):
        space.around(here)
    assert room(space.around(here)).min() < 0.0
    assert room(space.around(here, to_go)).min() < 0.0
    assert room(space.around(here, to_go)).min() > 0.0
