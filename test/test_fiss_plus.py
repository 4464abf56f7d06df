"""What the adapter of FISS+ promises: its inputs mean the same as ours, and its plans are driven as it planned them.

`make test-long` installs the package; otherwise these tests are skipped, but for the sentence that names it.
"""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from rubber_band import strip_grid
from scenes import (
    CAR,
    FRONT_M,
    SECOND_NS,
    cars,
    config,
    ego,
    lanes,
    observation,
    straight_route,
    turning_route,
    with_light,
)

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.domain import Agents, LightState
from reflectdrive_ros.planning import PEERS, get_planner
from reflectdrive_ros.planning.peers import fiss_plus
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError

IS_INSTALLED = find_spec(fiss_plus.SPEC.package) is not None
needs_package = pytest.mark.skipif(not IS_INSTALLED, reason="fiss-planner is not installed: make peers")
TWO_LANES = lanes((-20, 0, 220, 3.5, 0, 0), (-20, 3.5, 220, 3.5, 0, 0))
REAR_M = 2.25  # of a standing car of test/scenes.py, from its centre


def proposed(scene, state=None):
    return fiss_plus.generate(state or PlannerState(), scene, PlannerContext(config()))


def drive(scene, seconds):
    """Poses (T, 3) in the first ego frame and speeds (T,) of a car that follows its plans exactly, planned again every
    0.1 s; other cars and stop lines stand."""
    poses, speeds, yaw_rate_rps, state = [np.zeros(3)], [scene.ego.speed_mps], 0.0, PlannerState()
    for step in range(1, round(seconds / 0.1) + 1):
        moved = geometry.invert(poses[-1])
        agents, lines = scene.agents, scene.stop_lines
        here = replace(
            scene,
            stamp_ns=SECOND_NS + round(0.1 * (step - 1) * SECOND_NS),
            ego=ego(speeds[-1], at=poses[-1], yaw_rate_rps=yaw_rate_rps),
            route=geometry.compose(moved, scene.route),
            agents=agents and replace(agents, poses=geometry.compose(moved, agents.poses)),
            stop_lines=lines and replace(lines, ends=geometry.transform_points(moved, lines.ends)),
        )
        candidates = proposed(here, state)
        state = PlannerState(memory=candidates.memory)
        plan = candidates.trajectories[0]
        yaw_rate_rps = plan.poses[0, 2] / 0.1
        poses.append(geometry.compose(poses[-1], plan.poses[0]))
        speeds.append(float(kinematics.speeds(plan)[0]))
    return np.array(poses), np.array(speeds)


@pytest.mark.skipif(IS_INSTALLED, reason="fiss-planner is installed")
def test_without_the_package_a_sentence_says_how_to_install_it():
    sentence = r"^planner fiss_plus needs the package fiss_planner: install it with make peers"
    for planner in ("fiss_plus", "route_follower+fiss_plus"):
        with pytest.raises(ConfigError, match=sentence):
            get_planner(config(planner=planner))
    command = [sys.executable, "-m", "reflectdrive_ros", "eval", "--planner", "route_follower", "fiss_plus"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("planner fiss_plus needs the package fiss_planner")
    assert ended.stderr.count("\n") == 1


def test_peers_are_no_choice_for_a_vehicle():
    from reflectdrive_ros.planning import LEARNED, PLANNERS

    assert not set(PEERS) & {*PLANNERS, *LEARNED}


@needs_package
@pytest.mark.parametrize("limit_mps", [6.0, 12.0])
def test_on_a_free_road_the_car_drives_at_the_limit_in_the_middle_of_its_lane(limit_mps):
    poses, speeds = drive(observation(speed=4.0, speed_limit_mps=limit_mps, agents=Agents.none()), 9.0)
    assert speeds[-1] == pytest.approx(limit_mps, abs=0.3)
    assert speeds.max() < limit_mps + 0.2
    assert np.abs(poses[:, 1]).max() < 0.05


@needs_package
def test_it_passes_a_standing_car_on_a_second_lane_and_not_where_there_is_none():
    scene = observation(speed=8.0, agents=cars((45.0, 0.0, 0.0, 0.0)))
    passing, _ = drive(replace(scene, route_lanes=TWO_LANES), 6.0)
    level = np.abs(passing[:, 0] - 45.0).argmin()
    assert passing[level, 0] == pytest.approx(45.0, abs=1.0)
    assert passing[level, 1] > 2.3
    waiting, _ = drive(scene, 6.0)
    assert waiting[-1, 0] < 45.0 - REAR_M - FRONT_M
    assert np.abs(waiting[:, 1]).max() < 0.7


@needs_package
@pytest.mark.parametrize("speed_mps", [3.0, 8.0])
def test_it_stops_before_a_red_light_and_passes_a_green_one(speed_mps):
    scene = observation(speed=speed_mps, speed_limit_mps=8.0, agents=Agents.none())
    poses, speeds = drive(with_light(scene, LightState.RED, 40.0), 15.0)
    assert 0.2 < 40.0 - FRONT_M - poses[-1, 0] < 8.0
    assert speeds[-1] < 0.3
    poses, _ = drive(with_light(scene, LightState.GREEN, 40.0), 8.0)
    assert poses[-1, 0] > 40.0


@needs_package
def test_the_rear_axle_rolls_without_slip_and_the_centre_moves_where_it_was_planned():
    angles = np.linspace(0.0, 1.0, 41)
    start = np.array([CAR.rear_axle_to_center_m, 0.0])
    centres = start + 12.0 * np.stack([np.sin(angles), 1.0 - np.cos(angles)], axis=1)
    poses = fiss_plus.rear_axle_poses(centres, CAR.rear_axle_to_center_m)
    np.testing.assert_allclose(kinematics.box_centres(poses, CAR)[:, :2], centres[1:], atol=1e-9)
    moves = np.diff(poses[:, :2], axis=0)
    np.testing.assert_allclose(np.arctan2(*moves.T[::-1]), poses[1:, 2], atol=1e-9)


@needs_package
def test_the_same_scene_gives_the_same_bits():
    scene = observation(speed=8.0, route=turning_route(), agents=cars((25.0, 0.5, 0.1, 3.0)), route_lanes=TWO_LANES)
    np.testing.assert_array_equal(proposed(scene).points, proposed(scene).points)


@needs_package
def test_no_route_is_a_sentence():
    with pytest.raises(PlanningError, match="the route is empty"):
        proposed(observation(route=np.zeros((0, 3))))
    with pytest.raises(PlanningError, match="the vehicle is on no lane of the route: send"):
        proposed(observation(route=straight_route(left=80.0)))


def test_lanes_beside_the_route_are_neighbours_as_far_as_they_go():
    pieces = lanes((-20, 0, 220, 3.5, 0, 0), (30, 3.2, 50, 3.0, 0, 0), (-20, -7.0, 220, 3.5, 0, 0))
    bounds = fiss_plus.lane_bounds(straight_route(), pieces)
    x_m = bounds.along_m - 20.0
    own, left, right = bounds.edges_m
    np.testing.assert_allclose(own[0][1:-1], 1.75)
    np.testing.assert_allclose(own[1][1:-1], -1.75)
    exists = ~np.isnan(left[0])
    assert exists[(x_m > 31.0) & (x_m < 79.0)].all()
    assert not exists[(x_m < 29.0) | (x_m > 81.0)].any()
    np.testing.assert_allclose(left[:, exists], [[4.7] * exists.sum(), [1.7] * exists.sum()])
    assert np.isnan(right).all()  # the lane after the next is none


def test_a_lane_that_merges_into_that_of_the_route_does_not_make_it_wider_and_a_change_of_lanes_does():
    pieces = lanes((-20, 0, 220, 3.5, 0, 0), (-20, -1.8, 220, 3.5, 0, 0))
    merging = fiss_plus.lane_bounds(straight_route(), pieces).edges_m[0]
    between = fiss_plus.lane_bounds(straight_route(left=1.75), TWO_LANES).edges_m[0]
    for edges_m, half_m in ((merging, 1.75), (between, 3.5)):
        np.testing.assert_allclose(edges_m[0, 1:-1], half_m)
        np.testing.assert_allclose(edges_m[1, 1:-1], -half_m)


def test_without_lanes_the_road_is_one_lane_of_the_default_width():
    bounds = fiss_plus.lane_bounds(turning_route(), None)
    half_m = 0.5 * fiss_plus.LANE_WIDTH_M
    assert (bounds.edges_m[0, 0] == half_m).all()
    assert (bounds.edges_m[0, 1] == -half_m).all()
    assert np.isnan(bounds.edges_m[1:]).all()


@pytest.mark.parametrize(("half_width_m", "wider_m"), [(1.75, 0.0), (2.0, 0.25), (6.0, 0.5)])
def test_the_own_lane_is_wider_where_the_drivable_space_goes_on(half_width_m, wider_m):
    route = straight_route(length=80.0, behind=10.0)
    bounds = fiss_plus.widened(fiss_plus.lane_bounds(route, None), route, strip_grid(half_width_m))
    np.testing.assert_allclose(bounds.edges_m[0, 0], 1.75 + wider_m, atol=0.15)
    np.testing.assert_allclose(bounds.edges_m[0, 1], -1.75 - wider_m, atol=0.15)


def test_a_road_is_used_until_it_is_driven_or_the_route_leads_elsewhere():
    route = turning_route()
    road = fiss_plus.Road(None, route, fiss_plus.along_m(route, np.zeros(3)))
    assert not fiss_plus.is_another(road, route, np.zeros(3))
    assert not fiss_plus.is_another(road, route[5:], np.array([8.0, 0.0, 0.0]))
    assert fiss_plus.is_another(road, route, np.array([42.0, 50.0, np.pi / 2]))
    assert fiss_plus.is_another(road, straight_route(), np.zeros(3))
    assert fiss_plus.is_another(replace(road, route=route[:60]), route, np.zeros(3))
