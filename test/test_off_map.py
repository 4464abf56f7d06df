"""With a map, a car that drives outside of every lanelet stops and says so; one that stands there may be parked."""

from dataclasses import replace

import numpy as np
import pytest
from autoware_adapi_v1_msgs.msg import OperationModeState
from diagnostic_tree import BY_PATH, TOP, level, levels_of
from lanelet_maps import MAP, drive
from map_archives import map_message
from messages import ns, odometry, predicted_objects, route
from scenes import Clock, config

from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.ros import convert
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.inputs.snapshot import MOVING_MPS, off_map_reason
from reflectdrive_ros.ros.planning_core import PlanningCore

pytest.importorskip("lanelet2", reason="lanelet2 is not installed")
LANE_M = 1.75  # y of the middle of the lane of the map, which leads along x
BESIDE_M = 12.0  # y of a car park beside it


@pytest.fixture
def osm_file(tmp_path):
    from light_maps import crossing

    file = tmp_path / "map.osm"
    file.write_text(crossing(lights=False))
    return file


@pytest.fixture
def core(osm_file):
    """A car with a map whose route leads along a place beside the lane as it does along the lane."""
    settings = {"inputs__drivable_type": "map", "inputs__lanelet_map": str(osm_file)}
    return PlanningCore(config(planner="route_follower", cameras__required=False, **settings), Clock())


def step(core, seconds, y=LANE_M, speed=5.0, x=50.0):
    """The report of a car at (x, y), heading along x, on a route through it."""
    core.put("route", route([(float(at), y) for at in range(-20, 280)]), 0)
    core.put("odometry", odometry(seconds, x=x, y=y, speed=speed), ns(seconds))
    core.put("objects", predicted_objects(seconds, (250.0, y, 0.0, 0.0, 4.5)), ns(seconds))
    report = core.step(ns(seconds)).report
    core.wait_idle()
    return report


def test_a_car_that_drives_beside_the_lanes_stops_with_an_error_and_goes_on_when_it_is_back(core):
    assert step(core, 1.0).source is PlanSource.PLANNER
    report = step(core, 3.0, BESIDE_M)
    assert report.source is PlanSource.STOP
    assert report.reason == (
        "map: the car is outside of every lanelet of map.osm: drive it to a lane, or check inputs.lanelet_map, "
        "inputs.lanelet_origin_lat and inputs.lanelet_origin_lon"
    )
    status = core.planner_status(ns(3.0))
    assert (status.level, status.message) == (Level.ERROR, report.reason)
    assert level(BY_PATH[TOP], levels_of(core, 3.0)) is Level.ERROR
    assert step(core, 5.0).source is PlanSource.PLANNER


def test_a_car_that_stands_in_a_car_park_is_no_error_until_it_drives(core):
    assert step(core, 1.0, BESIDE_M, speed=0.0).source is PlanSource.PLANNER
    assert step(core, 1.1, BESIDE_M, speed=0.3).source is PlanSource.PLANNER
    assert step(core, 1.2, BESIDE_M, speed=0.8).source is PlanSource.STOP


def test_a_car_that_stopped_beside_the_lanes_does_not_start_again_by_itself(core):
    step(core, 1.0, BESIDE_M, speed=2.0)
    sources = {step(core, 1.0 + 0.1 * k, BESIDE_M, speed=0.0).source for k in range(1, 5)}
    assert sources == {PlanSource.STOP}


def test_a_driver_who_parks_there_ends_the_error(core):
    core.put("operation_mode", OperationModeState(mode=OperationModeState.LOCAL), 0)
    assert step(core, 1.0, BESIDE_M, speed=2.0).source is PlanSource.STOP
    assert step(core, 1.1, BESIDE_M, speed=0.0).source is PlanSource.PLANNER


def test_a_part_of_the_car_in_a_lane_is_enough(core):
    half = 0.5 * VehicleConfig().width_m
    assert step(core, 1.0, y=3.5 + half - 0.1).source is PlanSource.PLANNER
    assert step(core, 1.1, y=3.5 + half + 0.1).source is PlanSource.STOP


def test_the_map_of_the_topic_counts_likewise_and_no_map_is_no_error():
    core = PlanningCore(config(planner="route_follower", cameras__required=False, inputs__drivable_type="map"), Clock())
    assert step(core, 1.0).source is PlanSource.PLANNER
    core.put("map", map_message(), 0)  # of a town elsewhere
    core.wait_idle()
    report = step(core, 1.1)
    assert report.source is PlanSource.STOP
    assert report.reason.startswith("map: the car is outside of every lanelet of Autoware's map: drive it to a lane")


def test_a_recorded_drive_is_on_its_map_throughout_and_not_when_it_is_moved():
    lanelets = load_map(config(inputs__lanelet_map=str(MAP)).inputs)
    states = [convert.ego_state(message, "map") for message in drive()[0]]
    assert sum(state.speed_mps > MOVING_MPS for state in states) > 100
    assert not any(off_map_reason(lanelets, state, VehicleConfig(), was_off=True) for state in states)
    moved = [replace(state, map_from_ego=state.map_from_ego + np.array([0.0, 9e4, 0.0])) for state in states]
    off = [bool(off_map_reason(lanelets, state, VehicleConfig(), was_off=False)) for state in moved]
    assert off == [state.speed_mps >= MOVING_MPS for state in states]
