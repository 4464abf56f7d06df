"""What is published lies on the road: z and pitch from odometry, and from the lanelets where the map has elevation."""

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import CandidateTrajectories
from lanelet_maps import MAP
from messages import acceleration, ns, odometry, route
from rclpy.serialization import deserialize_message
from scenes import config, ego
from transforms3d.euler import euler2quat

from reflectdrive_ros.core.domain import Plan, PlanSource, StepReport, Trajectory, Verdict
from reflectdrive_ros.core.kinematics import arc
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps.elevation import MapElevation, RoadSurface, VehiclePlane
from reflectdrive_ros.maps.lanelet_elements import Lanelet, MapElements
from reflectdrive_ros.maps.lanelet_map import LaneletMap
from reflectdrive_ros.maps.vector_map import SOURCE
from reflectdrive_ros.planning.stop_plan import stop_plan
from reflectdrive_ros.ros import convert, outputs, plan_messages, rotations
from reflectdrive_ros.ros.inputs.control import Signal
from reflectdrive_ros.ros.planning_core import PlanningCore

SLOPE = 0.08
NOSE_UP = -np.arctan(SLOPE)
BLIND = {"planner": "constant_velocity", "cameras__required": False}


def lanelet(points):
    """A lanelet for cars around a centreline (N, 3)."""
    line = np.asarray(points, float)
    step = np.gradient(line[:, :2], axis=0)
    left = 0.5 * 3.5 * np.stack([-step[:, 1], step[:, 0]], axis=1) / np.hypot(*step.T)[:, None]
    return Lanelet(line[:, :2] + left, line[:, :2] - left, np.zeros((0, 2)), True, np.nan, line[:, 2], line[:, 2])


def straight(z_of_x, y=0.0):
    x = np.arange(-20.0, 201.0, 4.0)
    return lanelet(np.stack([x, np.full(len(x), y), np.array([z_of_x(value) for value in x])], axis=1))


def across(z):
    y = np.arange(-60.0, 61.0, 4.0)
    return lanelet(np.stack([np.full(len(y), 30.0), y, np.full(len(y), z)], axis=1))


def elevation(*lanelets):
    return LaneletMap(MapElements(dict(enumerate(lanelets))), SOURCE).elevation


def ramp(x):
    return 10.0 + SLOPE * max(0.0, x - 24.0)


def plane(x=0.0, y=0.0, yaw=0.0, z=10.0, slope=0.0):
    return VehiclePlane(np.array([x, y, yaw]), z, slope)


def driven(surface, curvature=0.0, length=60.0):
    """Points of a plan of 4 s from the vehicle on: (x, y, z), pitch."""
    at = np.linspace(0.0, length, 41)[1:]
    plan = Plan(0, surface.plane.map_from_ego, Trajectory(arc(curvature, at), 0.1))
    points = plan_messages.plan_points(plan, config(), surface)
    quaternions = np.stack([points[name] for name in ("qx", "qy", "qz", "qw")], axis=1)
    return np.stack([points["x"], points["y"], points["z"]], axis=1), rotations.pitches_from_quaternions(quaternions)


def odometry_on_slope(seconds, z=10.0, slope=0.0, roll=0.0, **more):
    message = odometry(seconds, **more)
    message.pose.pose.position.z = z
    w, x, y, turn = euler2quat(more.get("yaw", 0.0), -np.arctan(slope), roll, "rzyx")
    q = message.pose.pose.orientation
    q.x, q.y, q.z, q.w = x, y, turn, w
    return message


# --- odometry only ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("yaw", [0.0, 1.0, -2.5, np.pi])
@pytest.mark.parametrize("roll", [0.0, 0.05])
def test_height_and_slope_come_from_the_odometry(yaw, roll):
    message = odometry_on_slope(1.0, 42.0, SLOPE, roll, x=3.0, y=-2.0, yaw=yaw)
    vehicle_plane = convert.vehicle_plane(message)
    assert vehicle_plane.z_m == 42.0
    assert vehicle_plane.slope == pytest.approx(SLOPE)
    np.testing.assert_allclose(vehicle_plane.map_from_ego, convert.ego_state(message, "map").map_from_ego)


def test_without_a_map_the_plan_lies_in_the_plane_of_the_vehicle():
    """On a ramp of 8 %: within 2 cm after 60 m, and in its pitch; a plan that turns across the slope stays level."""
    for yaw in (0.0, 2.0):
        points, pitches = driven(RoadSurface(plane(yaw=yaw, slope=SLOPE)))
        assert points[-1, 2] == pytest.approx(10.0 + SLOPE * 60.0, abs=0.02)
        np.testing.assert_allclose(pitches, NOSE_UP, atol=1e-9)
    points, pitches = driven(RoadSurface(plane(slope=SLOPE)), curvature=np.pi / 2 / 60.0)
    np.testing.assert_allclose(points[:, 2], 10.0 + SLOPE * points[:, 0], atol=1e-9)
    assert pitches[-1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("height", [float("nan"), float("inf"), 2e4])
def test_a_height_of_no_road_is_refused_in_one_sentence(height):
    with pytest.raises(BadMessage, match=r"it has a height of .* m, at most 10000 is possible: check localisation"):
        convert.ego_state(odometry_on_slope(1.0, height), "map")


def test_yaw_and_pitch_come_back_from_the_quaternion():
    yaw, pitch = (grid.ravel() for grid in np.meshgrid(np.linspace(-3.1, 3.1, 23), np.linspace(-0.7, 0.7, 15)))
    quaternions = rotations.quaternions_from_yaw_pitch(yaw, pitch)
    np.testing.assert_allclose(np.linalg.norm(quaternions, axis=1), 1.0)
    np.testing.assert_allclose(rotations.pitches_from_quaternions(quaternions), pitch, atol=1e-12)
    np.testing.assert_allclose([rotations.yaw_from_quaternion(q) for q in quaternions], yaw, atol=1e-12)
    np.testing.assert_allclose(2.0 * np.arctan2(quaternions[:, 2], quaternions[:, 3]), yaw, atol=1e-12)
    w, *xyz = euler2quat(1.0, 0.2, 0.0, "rzyx")
    np.testing.assert_allclose(rotations.quaternions_from_yaw_pitch(np.ones(1), 0.2 * np.ones(1))[0], [*xyz, w])
    level = rotations.quaternions_from_yaw_pitch(yaw, np.zeros(len(yaw)))
    np.testing.assert_array_equal(np.signbit(level[:, :2]), False)


# --- with the elevation of the map -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8.0, 60.0, 120.0])
@pytest.mark.parametrize("start", [-15.0, 0.0, 23.0, 60.0])
@pytest.mark.parametrize("bias", [0.0, -10.0])
def test_the_plan_follows_a_ramp_that_begins_ahead(start, length, bias):
    """Flat, then 8 %: within 5 cm of the lanelet, whatever the pitch of the body is, and wherever its zero is."""
    surface = RoadSurface(plane(start, 0.4, z=ramp(start) + bias, slope=0.02), elevation(straight(ramp)))
    points, pitches = driven(surface, length=length)
    np.testing.assert_allclose(points[:, 2], [ramp(x) + bias for x in points[:, 0]], atol=0.05)
    on_it = points[:, 0] > 27.0
    np.testing.assert_allclose(pitches[on_it], NOSE_UP, atol=1e-3)
    np.testing.assert_allclose(pitches[points[:, 0] < 20.0], 0.0, atol=1e-3)


def test_downhill_the_nose_is_down():
    surface = RoadSurface(plane(100.0, yaw=np.pi, z=ramp(100.0)), elevation(straight(ramp)))
    _, pitches = driven(surface)
    np.testing.assert_allclose(pitches, -NOSE_UP, atol=1e-3)


@pytest.mark.parametrize(("z", "level"), [(16.0, 16.0), (10.0, 10.0), (15.4, 16.0)])
def test_a_plan_over_or_under_a_bridge_stays_on_its_level(z, level):
    """A bridge 6 m above a road; along the lane its nearest points are of the other level."""
    lanes = straight(lambda x: level, y=1.5), across(26.0 - level)
    points, pitches = driven(RoadSurface(plane(z=z), elevation(*lanes)))
    np.testing.assert_allclose(points[:, 2], z, atol=1e-6)
    np.testing.assert_allclose(pitches, 0.0, atol=1e-6)


def test_a_deck_above_a_road_is_kept_by_its_height():
    """Two levels exactly above each other, both with the ramp: only the odometry's height distinguishes them."""
    both = elevation(straight(ramp), straight(lambda x: 18.0))
    assert driven(RoadSurface(plane(z=10.1), both), length=40.0)[0][-1, 2] == pytest.approx(0.1 + ramp(40.0), abs=0.05)
    assert driven(RoadSurface(plane(z=17.9), both), length=40.0)[0][-1, 2] == pytest.approx(17.9, abs=0.01)


def test_a_change_to_a_lower_lane_makes_no_step():
    surface = RoadSurface(plane(z=10.0), elevation(straight(lambda x: 10.0), straight(lambda x: 9.9, y=3.5)))
    at = np.linspace(0.0, 60.0, 61)
    poses = np.stack([at, 3.5 * at / 60.0, np.full(61, np.arctan(3.5 / 60.0))], axis=1)
    heights, _ = surface.heights_and_pitches(poses)
    assert heights[-1] == pytest.approx(9.9, abs=0.005)
    assert np.abs(np.diff(heights)).max() < 0.02


@pytest.mark.parametrize("z_of_map", [0.0, 100.0])
def test_a_map_without_elevation_leaves_the_plan_on_the_plane_of_the_vehicle(z_of_map):
    assert elevation(straight(lambda x: z_of_map)) is None
    inputs = ready_with_map(MAP)
    for seconds in (1.0, 1.1):
        inputs.store.put("odometry", odometry_on_slope(seconds, 50.0, SLOPE), ns(seconds))
        inputs.wait_idle()
        surface = inputs.snapshot(ns(seconds)).surface
    assert surface.elevation is None
    points, _ = driven(surface)
    assert points[-1, 2] == pytest.approx(50.0 + SLOPE * 60.0, abs=0.02)


@pytest.mark.parametrize("hole", [0.0, np.nan])
def test_points_without_elevation_are_left_out(hole):
    """Nodes without the tag `ele` are at 0, those of broken maps at NaN: neither pulls the plan off the road."""
    road = straight(lambda x: hole if 30.0 < x < 38.0 else ramp(x))
    points, _ = driven(RoadSurface(plane(), elevation(road)))
    np.testing.assert_allclose(points[:, 2], [ramp(x) for x in points[:, 0]], atol=0.05)


# --- what is published -----------------------------------------------------------------------------------------------


def ready_with_map(path):
    """Inputs of a car without cameras whose drivable space comes from a map."""
    settings_with_map = config(inputs__drivable_type="map", inputs__lanelet_map=str(path), **BLIND)
    core = PlanningCore(settings_with_map, lambda: 0.0)
    core.put("route", route(), 0)
    return core.inputs


def test_every_published_pose_has_height_and_pitch():
    surface = RoadSurface(plane(z=50.0, slope=SLOPE))
    own, other = (Trajectory(arc(curvature, np.arange(1.0, 41.0)), 0.1) for curvature in (0.0, 0.02))
    plan = Plan(0, np.zeros(3), own, candidates=(other,))
    points = plan_messages.plan_points(plan, config(), surface)
    message = outputs.trajectory(plan, config(), points)
    content = outputs.candidates(plan, points, Signal.OFF, config(), surface=surface)
    sent = deserialize_message(content, CandidateTrajectories)
    ribbon, text = outputs.markers(StepReport(plan, Verdict.OK, PlanSource.PLANNER), message, config()).markers
    lines = [message.points, *(candidate.points for candidate in sent.candidate_trajectories)]
    for poses in [[point.pose for point in line] for line in lines] + [[p.pose for p in outputs.path(message).poses]]:
        for pose in poses:
            assert pose.position.z == pytest.approx(50.0 + SLOPE * pose.position.x)
            q = pose.orientation
            forward = rotations.matrix_from_quaternion((q.x, q.y, q.z, q.w))[:3, 0]
            assert forward[2] / np.hypot(*forward[:2]) == pytest.approx(SLOPE * forward[0] / np.hypot(*forward[:2]))
    assert [point.z for point in ribbon.points] == [point.pose.position.z for point in message.points]
    assert text.pose.position.z == pytest.approx(53.08)


@pytest.mark.parametrize("with_map", [False, True])
@pytest.mark.parametrize("speed", [0.0, 8.0])
def test_the_stop_plan_keeps_the_height_of_the_road(speed, with_map):
    surface = RoadSurface(plane(40.0, z=ramp(40.0), slope=SLOPE), elevation(straight(ramp)) if with_map else None)
    stop = stop_plan(ego(speed), None, None, config())
    points = plan_messages.plan_points(Plan(0, surface.plane.map_from_ego, stop.trajectory), config(), surface)
    np.testing.assert_allclose(points["z"], [ramp(x) for x in points["x"]], atol=0.02)
    np.testing.assert_allclose(2.0 * np.arcsin(points["qy"]), NOSE_UP, atol=1e-3)
    assert points["longitudinal_velocity_mps"][-1] == 0.0


def test_plans_and_the_watchdogs_stop_carry_the_height_of_their_odometry():
    core = PlanningCore(config(**BLIND), lambda: 0.0)
    core.put("route", route(), 0)
    core.put("acceleration", acceleration(1.0), ns(1.0))
    core.put("odometry", odometry_on_slope(1.0, 7.0, SLOPE), ns(1.0))
    step = core.step(ns(1.0))
    core.put("odometry", odometry_on_slope(1.1, 7.5, SLOPE), ns(1.1))
    report, surface = core.stop(ns(1.1), "a test")
    for plan, plan_surface, z in ((step.report.plan, step.snapshot.surface, 7.0), (report.plan, surface, 7.5)):
        points = plan_messages.plan_points(plan, core.config, plan_surface)
        np.testing.assert_allclose(points["z"], z + SLOPE * points["x"], atol=1e-9)


def test_a_map_with_elevation_is_used_from_the_step_after_it_was_read(tmp_path):
    text, hill = MAP.read_text(), tmp_path / "hill.osm"
    for k, piece in enumerate(text.split('k="ele" v="100"')):  # no two points at one height
        hill.write_text(piece) if k == 0 else hill.open("a").write(f'k="ele" v="{100 + 0.001 * k}"{piece}')
    inputs, surfaces = ready_with_map(hill), []
    for seconds in (1.0, 1.1):
        inputs.store.put("odometry", odometry_on_slope(seconds, 50.0), ns(seconds))
        surfaces.append(inputs.snapshot(ns(seconds)).surface)
        inputs.wait_idle()
    assert surfaces[0].elevation is None
    assert isinstance(surfaces[1].elevation, MapElevation)
