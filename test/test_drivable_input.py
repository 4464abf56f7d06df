"""Drivable space from a grid or a map: where the road is, the node knows; else a sentence, and the plan still comes."""

from array import array
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from input_stream import instant, ready, small, status_of
from messages import ns, odometry, route
from nav_msgs.msg import OccupancyGrid
from replay_records import frame
from scenes import Clock, ego

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import InputsConfig, VehicleConfig
from reflectdrive_ros.core.domain import Verdict
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps.drivable_area import MapDrivableArea, build_grid
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.replay import recorded_world
from reflectdrive_ros.ros import convert, outputs
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.ros.rotations import quaternion_from_yaw
from reflectdrive_ros.scoring import drivable


def grid(seconds=0.0, half_width=3.0, resolution=0.2, size=(120.0, 40.0), origin=(-20.0, -20.0, 0.0), frame="map"):
    """A road along x in the grid's frame, free where |y| < half_width; origin is x, y, yaw of the grid's corner."""
    message = OccupancyGrid(header=outputs.header(ns(seconds), frame))
    width, height = (round(side / resolution) for side in size)
    message.info.resolution, message.info.width, message.info.height = resolution, width, height
    message.info.origin.position.x, message.info.origin.position.y = origin[:2]
    q = message.info.origin.orientation
    q.z, q.w = quaternion_from_yaw(origin[2])[2:]
    x, y = np.meshgrid(resolution * (np.arange(width) + 0.5), resolution * (np.arange(height) + 0.5))
    inside = geometry.transform_points(np.array(origin), np.stack([x, y], axis=-1))
    message.data = array("b", np.where(np.abs(inside[..., 1]) < half_width, 0, 100).astype(np.int8).tobytes())
    return message


def converted(message, at=(0.0, 0.0, 0.0), now_s=0.0, speed=5.0):
    state = ego(speed, ns(now_s), at)
    return convert.grid_to_ego_frame(convert.map_grid(message, "map", state), state)


def short_grid():
    message = grid()
    message.data = message.data[:-1]
    return message


def grid_without_orientation():
    message = grid()
    message.info.origin.orientation.w = 0.0
    return message


# --- a grid -----------------------------------------------------------------------------------------------------------


@given(
    st.tuples(st.floats(-5, 30), st.floats(-2, 2), st.floats(-3.1, 3.1)),
    st.floats(-3.1, 3.1),
    st.sampled_from([0.2, 0.5]),
    st.integers(0, 2**32 - 1),
)
def test_a_grid_never_says_that_there_is_more_room_than_there_is(at, turn, resolution, seed):
    """For any pose of grid and car, its clearance is at most the distance to the kerb, and little less on the road."""
    corner = geometry.compose(np.array([12.0, 0.0, turn]), np.array([-50.0, -50.0, 0.0]))
    build_grid = converted(grid(resolution=resolution, size=(100.0, 100.0), origin=tuple(corner)), at)
    points = np.random.default_rng(seed).uniform((-4, -8), (20, 8), (200, 2))
    truth = 3.0 - np.abs(geometry.transform_points(np.array(at), points)[:, 1])
    clearances = drivable.clearances(build_grid, points)
    truth = np.maximum(truth, -drivable.REACH_M)  # distances beyond are capped
    assert (clearances <= truth + 0.72 * resolution).all()  # the road consists of whole cells
    near = truth > -3.0
    assert (clearances >= truth - 2.5 * resolution)[near].all()


def test_a_grid_of_the_car_itself_is_moved_by_what_the_car_drove_since():
    message = grid(seconds=1.0, frame="base_link", half_width=20.0, size=(40.0, 60.0), origin=(-20.0, -30.0, 0.0))
    late = converted(message, at=(500.0, 3.0, 1.0), now_s=1.2, speed=10.0)
    assert drivable.clearances(late, np.array([17.0, 0.0])) > 0.5  # 19 m ahead of where the car was
    assert drivable.clearances(late, np.array([18.5, 0.0])) < 0.0


def test_unknown_cells_and_what_lies_beyond_are_no_road():
    message = grid()
    cells = np.frombuffer(message.data, np.int8).reshape(200, 600).copy()
    cells[:, 300:] = -1
    message.data = array("b", cells.tobytes())
    build_grid = converted(message)
    assert drivable.clearances(build_grid, np.array([30.0, 0.0])) > 2.0
    assert drivable.clearances(build_grid, np.array([45.0, 0.0])) < 0.0
    assert drivable.clearances(build_grid, np.array([-25.0, 0.0])) < 0.0


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (grid(resolution=4.0, size=(120.0, 40.0)), "has a resolution of 4 m, expected 0.02 to 0.5 m"),
        (grid(resolution=0.01, size=(3.0, 3.0), origin=(-1.0, -1.0, 0.0)), "has a resolution of 0.01 m"),
        (grid(frame="odom"), "is in frame 'odom', expected 'map' or 'base_link'"),
        (grid(origin=(100.0, -20.0, 0.0)), "the car is 100 m outside of the drivable grid"),
        (OccupancyGrid(header=outputs.header(0, "map")), "has a resolution of 0 m"),
        (short_grid(), "holds 119999 cells, its width and height are 600 and 200"),
        (grid_without_orientation(), "has no usable origin"),
        (grid(resolution=0.05, size=(120.0, 120.0), origin=(-60.0, -60.0, 0.0)), "has 5760000 cells around the car"),
    ],
)
def test_a_grid_that_would_mislead_is_refused_with_a_sentence(message, words):
    with pytest.raises(BadMessage, match=words):
        converted(message)


def at(seconds, message, **settings):
    """The node's inputs after a complete instant with a grid, and what they make of it."""
    inputs = ready(inputs__drivable_type="grid", **settings)
    instant(inputs.store, seconds)
    if message is not None:
        inputs.store.put("drivable", message, ns(seconds))
    return inputs, inputs.snapshot(ns(seconds)).observation


def test_a_grid_becomes_part_of_the_observation_with_its_age():
    _, scene = at(1.0, grid(0.8))
    assert scene.drivable_age_s == pytest.approx(0.2)
    assert drivable.clearances(scene.drivable, np.zeros(2)) == pytest.approx(3.0, abs=0.5)
    np.testing.assert_allclose(scene.drivable.ego_from_grid[:2], [-25.1, -20.1], atol=1e-6)  # the car is at x = 5


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (None, "nothing received yet"),
        (grid(0.2), "newest is 0.80 s old, allowed 0.50 s"),
        (grid(1.0, resolution=2.0), "has a resolution of 2 m"),
    ],
)
def test_without_a_usable_grid_the_plan_comes_all_the_same_and_says_so(message, words):
    inputs, scene = at(1.0, message)
    assert scene.drivable is None
    status = status_of(inputs, "drivable", 1.0)
    assert status.level is Level.WARN
    assert words in status.message
    core = PlanningCore(small(inputs__drivable_type="grid"), Clock())
    core.inputs = inputs
    inputs.store.planned_image_ns = -1
    report = core.step(ns(1.0)).report
    assert report.verdict is Verdict.OK
    assert not report.plan.check.drivable
    assert str(report.plan.check).endswith("unchecked: no drivable space")


# --- a map ------------------------------------------------------------------------------------------------------------


class AtOnce:
    """An executor that runs its work at once."""

    def submit(self, work, *arguments):
        done = Future()
        done.set_result(work(*arguments))
        return done


@pytest.fixture(scope="module")
def lanelets():
    pytest.importorskip("lanelet2")
    from lanelet_maps import MAP

    return load_map(InputsConfig(drivable_type="map", lanelet_map=str(MAP)))


@pytest.fixture(scope="module")
def driven():
    """(N, 3) poses of a car that was really driven on the map."""
    pytest.importorskip("lanelet2")
    from lanelet_maps import drive

    messages, points = drive()
    return np.column_stack([points, geometry.headings_along(points)])[:: max(1, len(points) // 40)], messages


def test_a_recorded_drive_stays_on_the_maps_road(lanelets, driven):
    poses, _ = driven
    space = MapDrivableArea(lanelets, VehicleConfig(), AtOnce())
    with pytest.raises(BadMessage, match="is being computed"):
        space.around(ego(5.0, at=poses[0]))
    rooms = [float(drivable.clearances(space.around(ego(5.0, at=pose)), np.zeros(2))) for pose in poses]
    assert np.mean(np.array(rooms) > 0.0) > 0.95


def test_a_replay_has_the_maps_road_around_every_plan_from_the_first_on(driven):
    from lanelet_maps import MAP

    poses, _ = driven
    around = recorded_world.drivable_grids(load_map(InputsConfig(lanelet_map=str(MAP))), VehicleConfig())
    grids = [around(frame(0.0, (1.0,), map_from_ego=pose)) for pose in (poses[0], poses[len(poses) // 2], poses[-1])]
    assert all(drivable.clearances(grid, np.zeros(2)) > -1.0 for grid in grids)
    assert around(frame(0.0, (1.0,), map_from_ego=poses[0] + np.array([5e4, 0.0, 0.0]))) is None
    assert recorded_world.drivable_grids(None, VehicleConfig())(frame(0.0, (1.0,))) is None


def test_a_reused_grid_equals_a_new_one(lanelets, driven):
    poses, _ = driven
    space = MapDrivableArea(lanelets, VehicleConfig(), AtOnce())
    first_pose = poses[len(poses) // 2]
    with pytest.raises(BadMessage, match="is being computed"):
        space.around(ego(5.0, at=first_pose))
    here = geometry.compose(first_pose, np.array([12.0, 0.5, 0.2]))
    points = np.random.default_rng(0).uniform((-10, -15), (60, 15), (500, 2))
    riding = drivable.clearances(space.around(ego(5.0, at=here)), points)
    anew = drivable.clearances(build_grid(lanelets, here, None, VehicleConfig()), points)
    np.testing.assert_allclose(riding, anew, atol=0.3)


def test_with_a_map_there_is_a_drivable_grid_near_it_and_none_off_it(driven):
    from lanelet_maps import MAP

    poses, _ = driven
    settings = {"inputs__drivable_type": "map", "inputs__lanelet_map": str(MAP), "cameras__required": False}
    inputs = Inputs(small(**settings))
    x, y, yaw = poses[0]
    has_drivable = []
    for k, shift in ((1, 0.0), (2, 0.0), (3, 9e4), (4, 9e4)):
        begin = x + shift
        inputs.store.put("route", route([(begin, y), (begin + 50 * np.cos(yaw), y + 50 * np.sin(yaw))]), 0)
        inputs.store.put("odometry", odometry(0.1 * k, x=x + shift, y=y, yaw=yaw, speed=0.0), ns(0.1 * k))
        has_drivable.append(inputs.snapshot(ns(0.1 * k)).observation.drivable is not None)
        inputs.wait_idle()
    assert has_drivable == [False, True, False, False]
    status = status_of(inputs, "drivable", 0.4)
    assert status.level is Level.WARN
    assert "has no road near the car: check inputs.lanelet_map" in status.message
