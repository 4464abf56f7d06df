"""Lanes, history of agents, lights and stop lines of observations: they tell what is there, whoever fills them."""

from dataclasses import replace

import numpy as np
import pytest
import shapely
from lanelet_maps import drive, driven_ids, line_of, route_message, settings
from messages import ns, odometry, predicted_objects
from scenes import cars, ego
from shipped_planner import GRAPHS, SCENES
from track_files import MAPPED

from reflectdrive_ros.bench import parity
from reflectdrive_ros.cli.eval import Console
from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.agent_history import GAP_MAX_S, AgentHistoryBuffer
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import AgentHistory, LightState, Observation
from reflectdrive_ros.core.lanes import LANE_RADIUS_M, LANES_MAX, ROUTE_LANES_MAX, SEGMENT_M, Lane, LaneSegments
from reflectdrive_ros.data import real_tracks, scene_lanes
from reflectdrive_ros.data.scene import NOW
from reflectdrive_ros.evaluation import driving_scores
from reflectdrive_ros.evaluation.privilege import PRIVILEGES, observe
from reflectdrive_ros.planning import get_planner
from reflectdrive_ros.planning.planner import PlannerContext
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.scoring.safety import SafetyContext
from reflectdrive_ros.sim import local_map
from reflectdrive_ros.sim.world import World, WorldOptions

HERE = np.zeros(3)
VECTORS = ("lanes", "route_lanes", "history", "traffic_lights", "stop_lines")


def field_names(observation):
    """The names of those of VECTORS that an observation has."""
    return [name for name in VECTORS if getattr(observation, name) is not None]


def outside_m(lanes, points):
    """(N,) metres by which points lie outside the nearest lane, negative within it."""
    least = np.full(len(points), np.inf)
    for line, width_m in zip(lanes.points[lanes.valid], lanes.widths_m[lanes.valid], strict=True):
        at_m, offset_m = geometry.project(line, points)
        alongside = (at_m > -1.0) & (at_m < geometry.arc_lengths(line)[-1] + 1.0)
        least = np.minimum(least, np.where(alongside, np.abs(offset_m) - 0.5 * width_m, np.inf))
    return least


@pytest.fixture(scope="module")
def stored():
    return list(parity.read_scenes(SCENES, 20, Console(quiet=True)))


@pytest.fixture(scope="module")
def driven():
    """A world after three seconds, and the poses observed until then: stamp -> tracking id -> pose in the map."""
    with World(WorldOptions(seed=2, town="closed-loop-00002")) as world:
        poses_by_stamp = {}
        for _ in range(30):
            actors = world.snapshot.actors
            poses_by_stamp[world.stamp_ns] = dict(zip(actors.ids.tolist(), actors.poses, strict=True))
            world.step(None)
        yield world, poses_by_stamp


# --- lanes -----------------------------------------------------------------------------------------------------------


def straight_lane(length_m, y=0.0, limit_mps=None):
    line = np.array([[0.0, y], [length_m, y]])
    return Lane(line, (shapely.LineString(line).buffer(1.5, cap_style="flat"),), (), (), (), limit_mps)


def test_long_lanes_are_cut_and_padding_is_not_valid():
    lanes = {7: straight_lane(2.2 * SEGMENT_M, limit_mps=8.0), 9: straight_lane(20.0, 4.0), 3: straight_lane(0.1)}
    segments = LaneSegments.of(lanes)
    assert segments.keys.tolist() == [7, 7, 7, 9]
    polylines = segments.near(np.array([10.0, 1.0, np.pi / 2]), {9: LightState.GREEN})
    assert (len(polylines.valid), polylines.valid.sum()) == (LANES_MAX, 4)
    np.testing.assert_allclose(polylines.points[0, 0], [-1.0, 10.0])  # of the nearest: the car faces to the left of it
    np.testing.assert_allclose(polylines.widths_m[:4], 3.0)
    assert polylines.speed_limits_mps[:4].tolist() == [8.0, 0.0, 8.0, 8.0]
    assert polylines.lights[:4].tolist() == [0, LightState.GREEN, 0, 0]
    assert not polylines.points[4:].any()
    assert not LaneSegments.of({}).near(HERE).valid.any()


def test_of_many_lanes_the_nearest_are_selected_and_none_beyond_reach():
    lanes = {key: straight_lane(20.0, 2.0 * (key - 75)) for key in range(150)}
    polylines = LaneSegments.of(lanes).near(HERE)
    assert polylines.valid.all()
    away_m = np.hypot(*polylines.points.transpose(2, 0, 1)).min(axis=1)
    assert (np.diff(away_m) >= -1e-9).all()
    assert away_m.max() <= LANE_RADIUS_M
    assert len(np.unique(polylines.points[:, 0, 1])) == LANES_MAX


def test_route_lanes_come_in_the_order_of_the_route_and_not_from_behind():
    lane = straight_lane(40.0)
    moved = {key: replace(lane, centerline=lane.centerline + np.array([40.0 * (2 - key), 0.0])) for key in range(5)}
    route = np.array([[-50.0, 0.0], [200.0, 0.0]])
    polylines = LaneSegments.of(moved).along(route, (0, 1, 2, 4), np.array([10.0, 0.0, 0.0]))
    assert len(polylines.valid) == ROUTE_LANES_MAX
    assert polylines.points[polylines.valid][:, 0, 0].tolist() == [-10.0, 30.0, 70.0]


def test_a_ring_of_a_scene_gives_its_lane_and_driving_direction(driven):
    world, _ = driven
    lanes = [lane.lane for lane in world.road_map.lanes.values() if geometry.arc_lengths(lane.lane.centerline)[-1] > 1]
    recovered = 0
    for lane in lanes:
        (ring,) = local_map._simple_rings(lane.polygons[0])
        line = scene_lanes.centerline_of(geometry.transform_points(np.array([90.0, 40.0, 1.0]), ring))
        if line is None:
            continue
        recovered += 1
        expected = geometry.transform_points(np.array([90.0, 40.0, 1.0]), lane.centerline)
        share = np.linspace(0.0, 1.0, 20)
        ends = [geometry.sample(each, share * geometry.arc_lengths(each)[-1])[:, :2] for each in (line, expected)]
        assert np.hypot(*(ends[0] - ends[1]).T).max() < 0.1
    assert recovered > 0.98 * len(lanes)
    square = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 20.0], [0.0, 20.0]])
    assert scene_lanes.centerline_of(square) is None  # counter-clockwise: no lane of the proving ground
    pointed = np.array([[10.0, 1.0], [10.0, 1.0], [10.0, -1.0], [0.0, 0.0], [0.0, 0.0]])
    with np.errstate(all="raise"):
        assert scene_lanes.centerline_of(pointed) is None  # it starts in a point


def test_lanes_of_stored_scenes_contain_the_experts_path_and_route_lanes_the_route(stored):
    for scene in stored:
        observation = observe(scene, "objects", with_drivable=False, with_vectors=True)
        assert outside_m(observation.lanes, scene.expert[:, :2]).max() < 0.0
        along_m, _ = geometry.project(scene.route, np.zeros((1, 2)))
        ahead = geometry.sample(scene.route, along_m + np.arange(4.0, 50.0, 2.0))[:, :2]
        assert outside_m(observation.route_lanes, ahead).max() < 0.0
        assert not np.isin(observation.route_lanes.lights, [LightState.AMBER, LightState.GREEN]).any()


def test_lanes_of_recordings_contain_the_humans_path():
    for path in MAPPED:
        recording = real_tracks.load(path)
        for start in real_tracks.starts(recording, vectors=True):
            assert outside_m(start.observation.lanes, start.human[:, :2]).max() < 0.5
            at_m, _ = geometry.project(start.observation.route, np.zeros((1, 2)))
            ahead = geometry.sample(start.observation.route, at_m + np.arange(30.0, 60.0, 5.0))[:, :2]
            assert outside_m(start.observation.route_lanes, ahead).max() < 0.5
            assert field_names(start.observation) == ["lanes", "route_lanes", "history"]


# --- history ---------------------------------------------------------------------------------------------------------


def test_history_of_a_stored_scene_is_its_recorded_tracks(stored):
    for scene in stored:
        history = observe(scene, "objects", with_drivable=False, with_vectors=True).history
        tracks = scene.tracks
        np.testing.assert_array_equal(history.ids, np.flatnonzero(tracks.present[:, NOW]))
        np.testing.assert_array_equal(history.poses, tracks.poses[history.ids, : NOW + 1])
        np.testing.assert_array_equal(history.valid, tracks.present[history.ids, : NOW + 1])
        np.testing.assert_array_equal(history.poses[:, -1], scene.agents.poses)
        np.testing.assert_allclose(history.velocities_mps[:, -1], scene.agents.velocities_mps)


def test_history_in_a_world_is_what_was_observed_before(driven):
    world, poses_by_stamp = driven
    observation = world.observation(vectors=True)
    history, ego_from_map = observation.history, geometry.invert(observation.ego.map_from_ego)
    actors = world.snapshot.actors
    near = np.hypot(*(actors.poses[:, :2] - observation.ego.map_from_ego[:2]).T) < 100.0
    ids, checked = actors.ids[near].tolist(), 0
    assert len(history.ids) == len(ids) == len(observation.agents)
    for row, actor in enumerate(ids):
        for back in range(1, AgentHistory.STEPS):
            pose = poses_by_stamp[world.stamp_ns - back * 100_000_000].get(actor)
            assert history.valid[row, -1 - back] == (pose is not None)
            if pose is not None:
                pose_now, expected = history.poses[row, -1 - back], geometry.compose(ego_from_map, pose)
                np.testing.assert_allclose(pose_now[:2], expected[:2], atol=1e-6)
                assert abs(geometry.wrap(pose_now[2] - expected[2])) < 1e-6
                checked += 1
    assert checked > 100


def test_history_of_recordings_is_that_of_their_tracks():
    recording = real_tracks.load(MAPPED[0])
    (first, second, *_) = real_tracks.starts(recording, vectors=True)
    assert first.observation.history.valid.sum(axis=1).max() == 1  # the recording begins here
    history = second.observation.history
    rows = np.flatnonzero(np.isfinite(recording.agent_centers[:, 20, 0]))
    np.testing.assert_array_equal(history.ids, rows)
    there = geometry.compose(geometry.invert(recording.ego_poses[20]), recording.agent_centers[rows, :21])
    np.testing.assert_allclose(history.poses[history.valid], there[history.valid])
    np.testing.assert_array_equal(history.valid, np.isfinite(there[..., 0]))


def test_an_actor_that_was_out_of_range_has_a_gap_in_its_history_and_keeps_its_number():
    buffer, agents = AgentHistoryBuffer(), cars((20.0, 0.0, 0.0, 5.0))
    for tenth in range(20):
        names = [] if 5 <= tenth < 12 else ["a"]
        poses = np.tile([10.0 + 0.5 * tenth, 0.0, 0.0], (len(names), 1))
        buffer.put(tenth * 100_000_000, names, poses, np.tile([5.0, 0.0], (len(names), 1)))
    history = buffer.history(2_000_000_000, HERE, ["a"], agents)
    assert GAP_MAX_S < 0.8
    assert history.valid[0].tolist() == [not 4 < tenth < 12 for tenth in range(21)]
    np.testing.assert_allclose(history.poses[0, history.valid[0], 0], (10.0 + 0.5 * np.arange(21))[history.valid[0]])
    assert not history.poses[0, ~history.valid[0]].any()
    both = buffer.history(2_000_000_000, HERE, ["b", "a"], cars((0, 9, 0, 0), (20.0, 0.0, 0.0, 5.0)))
    assert both.ids[1] == history.ids[0] != both.ids[0]
    assert both.valid[0].sum() == 1
    buffer.clear()
    assert buffer.history(2_000_000_000, HERE, ["a"], agents).valid.sum() == 1


def test_a_heading_that_passes_half_a_turn_is_interpolated_along_the_shorter_arc():
    buffer = AgentHistoryBuffer()
    buffer.put(0, ["a"], np.array([[0.0, 0.0, np.pi - 0.1]]), np.zeros((1, 2)))
    history = buffer.history(200_000_000, HERE, ["a"], cars((0.0, 0.0, -np.pi + 0.1, 0.0)))
    assert abs(abs(history.poses[0, -2, 2]) - np.pi) < 1e-9


def test_a_history_of_other_agents_is_refused():
    history = AgentHistoryBuffer().history(0, HERE, ["a"], cars((5.0, 0.0, 0.0, 0.0)))
    with pytest.raises(ValueError, match="has 1 agents, not those of Observation"):
        Observation(0, ego(stamp_ns=0), np.zeros((0, 3)), agents=cars(), history=history)


# --- lights and privileges -------------------------------------------------------------------------------------------


def test_lights_of_a_scene_are_those_of_now_and_of_no_future(stored):
    reds = 0
    for scene in stored:
        vectors = scene.vectors
        red = scene.red_lights.red[:, 0]
        assert len(vectors["traffic_lights"].ids) <= red.sum()
        assert (vectors["traffic_lights"].states == LightState.RED).all()
        later = replace(scene, red_lights=replace(scene.red_lights, red=scene.red_lights.red & (np.arange(41) > 0)))
        assert not later.vectors["lanes"].lights.any()
        assert len(later.vectors["stop_lines"].ends) == 0
        for ring in (ring for ring, is_red in zip(scene.red_lights.connectors, red, strict=True) if is_red):
            lines = vectors["stop_lines"].ends
            assert shapely.Polygon(ring).distance(shapely.Point(lines.mean(axis=1)[0])) < 3.0
            reds += (vectors["lanes"].lights == LightState.RED).any()
    assert reds


def test_a_lower_privilege_gets_none_of_the_vectors(stored):
    fields_by_privilege = {name: field_names(observe(stored[0], name, False, with_vectors=True)) for name in PRIVILEGES}
    assert fields_by_privilege == {
        "words": [],
        "route": ["route_lanes"],
        "objects": list(VECTORS),
        "logged": list(VECTORS),
    }
    reds = next(scene for scene in stored if scene.vectors["route_lanes"].lights.any())
    assert not observe(reds, "route", with_vectors=True).route_lanes.lights.any()


def test_the_privilege_objects_includes_red_lights_with_and_without_lanes(stored):
    """A token planner's context then has the closed lines, so that its plans, its repair and the guard heed them."""
    closed = 0
    for scene in stored:
        observation, unaware = (observe(scene, name, with_drivable=False) for name in ("objects", "route"))
        assert field_names(observation) == ["traffic_lights", "stop_lines"]
        assert field_names(unaware) == []
        assert (observation.traffic_lights.states == LightState.RED).all()
        assert len(observation.stop_lines.ends) == len(scene.vectors["stop_lines"].ends)
        assert not len(SafetyContext(unaware, Config()).limits.closed_lines)
        closed += len(SafetyContext(observation, Config()).limits.closed_lines)
    assert closed


def test_the_default_planner_stops_before_a_red_light_of_its_inputs(stored):
    network = OrtNetwork.from_file(GRAPHS["fp32"], 1)
    stopped = 0
    for scene in stored:
        observation = observe(scene, "objects")
        limits = SafetyContext(observation, Config()).limits
        if not len(limits.closed_lines):
            continue
        plan = driving_scores.plan_once(get_planner(Config()), observation, PlannerContext(Config(), network))
        path = kinematics.with_origin(plan.trajectory.poses)[None]
        assert limits.first_crossings(path)[0] == path.shape[1], scene.name
        stopped += 1
    assert stopped


def test_without_a_request_no_vectors_are_computed(stored, driven):
    assert field_names(stored[0].observation()) == []
    assert field_names(driven[0].observation()) == ["traffic_lights", "stop_lines"]  # for the guard of every planner


def test_the_lanes_of_a_line_are_those_in_its_direction(driven):
    """Two lanes ahead, the one that turns off, the oncoming one, one behind, and one of another road."""
    along, adjacent, behind = straight_lane(40.0), straight_lane(40.0, y=3.5), straight_lane(-40.0, y=0.0)
    corner = np.array([[5.0, 0.0], [8.0, -1.5], [10.0, -5.0], [10.0, -12.0]])
    turning = replace(straight_lane(1.0), centerline=corner)
    oncoming = replace(straight_lane(1.0), centerline=np.array([[40.0, 3.5], [0.0, 3.5]]))
    distant = straight_lane(40.0, y=12.0)
    behind = replace(behind, centerline=np.array([[-60.0, 0.0], [-20.0, 0.0]]))
    every = dict(enumerate([along, adjacent, turning, oncoming, distant, behind]))
    line = np.array([[-10.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    polylines = LaneSegments.of(every).along_line(line, HERE)
    np.testing.assert_allclose(sorted(polylines.points[polylines.valid][:, 0, 1]), [0.0, 3.5])
    assert not LaneSegments.of(every).along_line(line[:1], HERE).valid.any()
    assert LaneSegments.of(every).keys_along_line(line, HERE, 250.0).keys() == {0, 1}
    leaving = replace(along, centerline=np.array([[0.0, 0.0], [55.0, 0.0], [55.0, -55.0]]))  # longer than one segment
    assert LaneSegments.of({7: leaving}).keys_along_line(line, HERE, 250.0) == {}
    world, _ = driven
    observation = world.observation(vectors=True)
    segments = LaneSegments.of({key: lane.lane for key, lane in world.road_map.lanes.items()})
    by_line = segments.along_line(observation.route, observation.ego.map_from_ego)
    of_line, of_lanes = (
        {tuple(row[0]) for row in each.points[each.valid].round(3)} for each in (by_line, observation.route_lanes)
    )
    assert len(of_lanes & of_line) > 0.7 * len(of_lanes)  # this route returns next to itself
    assert of_line <= of_lanes


# --- the node --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven_line():
    """(L, 3) the route of the recorded drive on the cargo map."""
    return line_of(driven_ids(), *drive()[1][[0, -1]])[0]


def inputs_on_the_map():
    """Inputs of a planner without cameras on the route of the recorded drive."""
    config = Config(inputs=settings(objects_type="predicted"))
    config = replace(config, planner="constant_velocity", cameras=replace(config.cameras, required=False))
    inputs, positions = Inputs(config), drive()[1]
    inputs.store.put("route", route_message(driven_ids(), positions[0], positions[-1]), 0)
    return inputs


def drive_on(inputs, driven_line, steps=26, first_s=1.0):
    """The observation after steps of 0.1 s at 5 m/s along the line, behind a car that drives away at 7 m/s."""
    at_m = 20.0 + 0.5 * np.arange(steps)
    for k, (pose, lead) in enumerate(
        zip(geometry.sample(driven_line, at_m), lead_poses(driven_line, steps), strict=True)
    ):
        seconds = first_s + 0.1 * k
        inputs.store.put("odometry", odometry(seconds, *pose), ns(seconds))
        message = predicted_objects(seconds, (*lead, 7.0, 4.5))
        message.objects[0].object_id.uuid = np.full(16, 7, np.uint8)
        inputs.store.put("objects", message, ns(seconds))
        snapshot = inputs.snapshot(ns(seconds))
        inputs.wait_idle()
        assert snapshot.observation is not None
    return snapshot.observation


def lead_poses(driven_line, steps):
    return geometry.sample(driven_line, 35.0 + 0.7 * np.arange(steps))


def test_the_node_provides_the_lanes_of_its_map_and_the_history_of_its_objects(driven_line):
    """Also of a planner that reads neither: other vehicles follow the lanes in the forecast."""
    observation = drive_on(inputs_on_the_map(), driven_line)
    assert field_names(observation) == ["lanes", "route_lanes", "history"]  # no input has lights
    ego_from_map = geometry.invert(observation.ego.map_from_ego)
    there = geometry.compose(ego_from_map, lead_poses(driven_line, 26)[-AgentHistory.STEPS :])
    assert observation.history.valid.all()
    np.testing.assert_allclose(observation.history.poses[0, :, :2], there[:, :2], atol=1e-6)
    np.testing.assert_allclose(np.hypot(*observation.history.velocities_mps[0].T), 7.0)
    ahead = observation.route[(observation.route[:, 0] > 0.0) & (np.hypot(*observation.route[:, :2].T) < 80.0)][:, :2]
    for lanes in (observation.lanes, observation.route_lanes):
        assert outside_m(lanes, ahead).max() < 0.0
        assert ((lanes.widths_m > 2.5) & (lanes.widths_m < 8.0))[lanes.valid].all()
        assert np.isclose(lanes.speed_limits_mps[lanes.valid], 30 / 3.6).any()
    begins = observation.route_lanes.points[observation.route_lanes.valid][:, 0]
    assert (np.diff(geometry.project(observation.route, begins)[0]) >= -1e-6).all()
    towards = np.diff(observation.route_lanes.points[0, :2], axis=0)[0]
    assert towards[0] > 0.0  # in driving direction


def test_after_a_jump_of_localisation_the_node_has_no_history(driven_line):
    inputs = inputs_on_the_map()
    assert drive_on(inputs, driven_line).history.valid.sum() == AgentHistory.STEPS
    assert drive_on(inputs, driven_line, steps=1, first_s=3.6).history.valid.sum() == 1  # 12.5 m back within 0.1 s
