"""Unclassified obstacles: points become boxes where they are and nowhere else, and plans keep clear of them."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_msgs.msg import PointCloud2, PointField

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config, ConfigError, override_dotted
from reflectdrive_ros.core.domain import AgentKind, Agents, EgoState, Observation, Plan, Trajectory
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.ros import obstacles, outputs
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.scoring.safety import SafetyContext, safety_check, unsafe_reason

CONFIG = override_dotted(Config(), {"inputs.obstacles_type": "cloud", "planner": "route_follower"})
VEHICLE = CONFIG.vehicle
NOW_NS = 100_000_000_000
HERE = np.array([500.0, -200.0, 0.7])
STANDING = EgoState(NOW_NS, HERE, 0.0)
ROUTE = np.column_stack([np.arange(-10.0, 150.0, 5.0), np.zeros((32, 2))])


def cloud(points, frame="base_link", stamp_ns=NOW_NS, swapped=False, intensity=True):
    """A PointCloud2 of points (N, 3), with a field in front that is nobody's business here."""
    names = (["intensity"] if intensity else []) + ["x", "y", "z"]
    table = np.zeros((len(points), len(names)), ">f4" if swapped else "<f4")
    table[:, -3:] = points
    return PointCloud2(
        header=outputs.header(stamp_ns, frame),
        height=1,
        width=len(points),
        fields=[PointField(name=n, offset=4 * k, datatype=PointField.FLOAT32, count=1) for k, n in enumerate(names)],
        is_bigendian=swapped,
        point_step=4 * len(names),
        row_step=table.nbytes,
        data=array("B", table.tobytes()),
        is_dense=True,
    )


def block(x, y, length=1.0, width=1.0, height=1.0):
    """Points all over a block that stands at x, y."""
    steps = [np.arange(-0.5 * size + 0.05, 0.5 * size, 0.1) for size in (length, width)]
    points = np.stack(np.meshgrid(steps[0] + x, steps[1] + y, [0.5 * height], indexing="ij"), -1)
    return points.reshape(-1, 3)


def boxes(points, ego=STANDING, users=None, transforms=None, **how):
    return obstacles.obstacle_boxes(cloud(points, **how), transforms or {}, ego, users, VEHICLE)


def covered(agents, points):
    return obstacles.points_in_boxes(
        np.asarray(points, float)[:, :2], agents.poses, agents.sizes - 2 * obstacles.BOX_MARGIN_M + 1e-6
    )


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("intensity", [False, True])
def test_points_are_read_whatever_stands_beside_them(swapped, intensity):
    points = np.random.default_rng(0).normal(0, 20, (50, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        obstacles.cloud_points(cloud(points, swapped=swapped, intensity=intensity)), points.astype(float)
    )
    assert obstacles.cloud_points(cloud(np.zeros((0, 3)))).shape == (0, 3)


def test_an_organised_cloud_with_padded_rows_is_read_row_by_row():
    message = cloud(np.arange(18.0).reshape(6, 3), intensity=False)
    rows = np.frombuffer(message.data, np.uint8).reshape(2, 36)
    message.height, message.width, message.row_step = 2, 3, 40
    message.data = array("B", np.pad(rows, ((0, 0), (0, 4))).tobytes())
    np.testing.assert_array_equal(obstacles.cloud_points(message), np.arange(18.0).reshape(6, 3))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m.fields.pop(), "no field z"),
        (lambda m: setattr(m.fields[0], "datatype", PointField.INT16), "field x of the cloud is no float"),
        (lambda m: setattr(m, "width", 99), "holds 24 bytes"),
        (lambda m: setattr(m, "point_step", 8), "beyond its points"),
        (lambda m: setattr(m.header, "frame_id", "velodyne"), "no transform from base_link to 'velodyne'"),
    ],
)
def test_a_cloud_that_cannot_be_read_is_one_sentence(change, complaint):
    message = cloud([[1, 2, 3], [4, 5, 6]], intensity=False)
    change(message)
    with pytest.raises(BadMessage, match=complaint) as fault:
        obstacles.obstacle_boxes(message, {}, STANDING, None, VEHICLE)
    assert "\n" not in str(fault.value)


# --- boxes -----------------------------------------------------------------------------------------------------------


def test_a_block_is_covered_and_what_is_a_cell_away_is_free():
    agents = boxes(block(20.0, 3.0, 2.0, 1.2)).boxes
    assert len(agents) >= 1
    assert covered(agents, block(20.0, 3.0, 2.0, 1.2)).all()
    margin_m = 0.5 + obstacles.CELL_M
    assert not covered(
        agents, [[20, 3 + 0.6 + margin_m], [20, 3 - 0.6 - margin_m], [21 + margin_m, 3], [19 - margin_m, 3]]
    ).any()
    assert (agents.kinds == AgentKind.STATIC).all()
    assert not agents.velocities_mps.any()


def test_a_wall_around_a_corner_leaves_the_corner_free():
    wall = np.concatenate(
        [block(x, 5.0, 1.0, 0.4) for x in range(10, 30)] + [block(29.5, y, 0.4) for y in range(5, 20)]
    )
    agents = boxes(wall).boxes
    assert covered(agents, wall).all()
    assert not covered(agents, [[15.0, 8.0], [25.0, 10.0], [20.0, 15.0]]).any()


def test_a_wall_longer_than_any_vehicle_is_several_boxes():
    wall = block(0.0, 10.0, length=118.0, width=1.0)
    agents = boxes(wall).boxes
    assert (agents.sizes <= Agents.MAX_EXTENT_M).all()
    assert covered(agents, wall[np.abs(wall[:, 0]) < 58.0]).all()  # cells at the rim hold too few points
    assert agents.sizes.prod(axis=1).sum() < 1.7 * 120.0


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60))
def test_boxes_cover_the_occupied_cells_each_once_and_nothing_else(cells_xy):
    cells = np.zeros((12, 12), bool)
    for x, y in cells_xy:
        cells[x, y] = True
    times = np.zeros((12, 12), int)
    for (x0, y0), (x1, y1) in obstacles.cover_cells(cells).astype(int).tolist():
        times[x0:x1, y0:y1] += 1
    np.testing.assert_array_equal(times, cells.astype(int))


def test_the_road_bridges_far_things_single_points_and_the_car_itself_are_no_obstacles():
    low, high = obstacles.LOW_M - 0.1, obstacles.HIGH_M + 0.1
    points = np.concatenate(
        [
            block(20.0, 0.0) * [1, 1, 0] + [0, 0, low],
            block(30.0, 0.0) * [1, 1, 0] + [0, 0, high],
            block(obstacles.RANGE_M + 5.0, 0.0),
            np.array([[15.0, 4.0, 1.0], [np.nan, 4.0, 1.0]]),
            block(VEHICLE.rear_axle_to_center_m, 0.0, VEHICLE.length_m, VEHICLE.width_m),
        ]
    )
    detected = boxes(points)
    assert len(detected.boxes) == 0
    assert detected.ignored == {"points not finite": 1}


def test_known_road_users_are_taken_out_even_when_they_have_moved_a_little():
    users = Agents(
        np.array([[20.0, 0.0, 0.0]]), np.array([[10.0, 0.0]]), np.array([[4.5, 1.9]]), np.array([AgentKind.VEHICLE])
    )
    cloud = np.concatenate([block(21.5, 0.0, 4.5, 1.9), block(20.0, 5.0)])  # 0.15 s later
    agents = boxes(cloud, users=users).boxes
    assert covered(agents, block(20.0, 5.0)).all()
    assert not covered(agents, block(21.5, 0.0, 4.5, 1.9)).any()
    assert len(boxes(cloud, users=None).boxes) > len(agents)


def test_boxes_stay_where_they_are_while_the_car_drives_on():
    driving = replace(STANDING, speed_mps=10.0, yaw_rate_rps=0.2)
    earlier_ns = NOW_NS - 200_000_000
    detected = boxes(block(30.0, 2.0), ego=driving, stamp_ns=earlier_ns)
    nearest, furthest = (f(detected.boxes.poses[:, 0]) for f in (np.min, np.max))
    assert 27.2 < nearest <= furthest < 28.8  # 0.2 s at 10 m/s nearer
    later = replace(
        driving, stamp_ns=NOW_NS + 100_000_000, map_from_ego=geometry.compose(HERE, np.array([1.0, 0, 0.02]))
    )
    again = obstacles.boxes_to_ego_frame(detected, later)
    for one, other in zip(detected.boxes.poses, again.poses, strict=True):
        np.testing.assert_allclose(geometry.compose(HERE, one), geometry.compose(later.map_from_ego, other), atol=1e-9)


def test_a_sensor_elsewhere_on_the_car_sees_the_same_boxes():
    ego_from_roof = np.eye(4)
    ego_from_roof[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    ego_from_roof[:3, 3] = 1.0, 0.5, 1.8
    points = block(20.0, 3.0)
    from_roof = (points - ego_from_roof[:3, 3]) @ ego_from_roof[:3, :3]
    there = boxes(from_roof, frame="roof", transforms={"roof": ("base_link", ego_from_roof)}).boxes
    assert covered(there, points).all()
    assert len(there) == len(boxes(points).boxes)


def test_the_nearest_boxes_are_kept_and_the_rest_counted(monkeypatch):
    points = np.concatenate([block(x, 8.0, 0.3, 0.3) for x in range(5, 55, 2)])
    count = len(boxes(points).boxes)
    monkeypatch.setattr(obstacles, "BOXES_MAX", 4)
    detected = boxes(points)
    assert len(detected.boxes) == 4
    assert detected.boxes.poses[:, 0].max() < 15.0
    assert detected.ignored["boxes beyond the nearest 4"] == count - 4


# --- on the car ------------------------------------------------------------------------------------------------------


def straight_on(speed_mps=8.0):
    times = 0.1 * np.arange(1, 41)
    return Plan(NOW_NS, HERE, Trajectory(np.column_stack([speed_mps * times, 0 * times, 0 * times]), 0.1))


def observed(points, agents=None):
    ego = replace(STANDING, speed_mps=8.0)
    return Observation(NOW_NS, ego, ROUTE, agents=agents, obstacles=None if points is None else boxes(points).boxes)


@pytest.mark.parametrize("agents", [None, Agents.none()])
def test_a_plan_into_an_obstacle_is_unsafe_and_one_past_it_is_not(agents):
    into, past = (SafetyContext(observed(block(16.0, left_m), agents), CONFIG) for left_m in (0.0, 4.0))
    assert unsafe_reason(straight_on().trajectory, into)
    assert not unsafe_reason(straight_on().trajectory, past)
    assert safety_check(straight_on(), into).unsafe_after_s < 2.0
    safe = safety_check(straight_on(), past)
    assert safe.unsafe_after_s is None
    assert safe.clearance_m == pytest.approx(4.0 - 0.5 - 0.5 * VEHICLE.width_m, abs=0.5)
    assert ("objects" in str(safe).split(";")[0]) == (agents is not None)
    assert "obstacles" in str(safe)
    assert ("no objects" in str(safe)) == (agents is None)


def test_objects_with_paths_keep_them_beside_obstacles():
    paths = np.array([10.0, 0.0, 0.0]) + np.cumsum(np.full((1, 6, 3), [2.0, 1.0, 0.0]), axis=1)
    agents = Agents(
        np.array([[10.0, 0.0, 0.0]]), np.array([[4.0, 2.0]]), np.array([[4.0, 2.0]]), np.array([1]), paths, 0.5
    )
    joined = observed(block(20.0, 5.0), agents).others
    np.testing.assert_array_equal(joined.predicted_poses[0], paths[0])
    for pose, path in zip(joined.poses[1:], joined.predicted_poses[1:], strict=True):
        np.testing.assert_array_equal(path, np.tile(pose, (6, 1)))


def test_without_the_setting_there_is_no_such_input_and_an_unknown_kind_is_refused():
    names = [status.name for status in Inputs(override_dotted(CONFIG, {"inputs.obstacles_type": "none"})).statuses(0)]
    assert "obstacles" not in names
    assert "obstacles" in [status.name for status in Inputs(CONFIG).statuses(0)]
    with pytest.raises(ConfigError, match="expected one of none, cloud"):
        override_dotted(CONFIG, {"inputs.obstacles_type": "grid"})
