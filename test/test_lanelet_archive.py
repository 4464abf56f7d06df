"""The proving ground as Autoware's map: a node that reads it knows the lanes of the world, and those of its route."""

import json
import sys

import numpy as np
import pytest
import shapely
from own_bags import world_bag

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.core.lanes import LaneSegments
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.maps.lanelet_archive import lanelet_id, light_id, write_archive
from reflectdrive_ros.maps.lanelet_elements import MapElements
from reflectdrive_ros.maps.lanelet_map import LaneletMap
from reflectdrive_ros.maps.roads import Turn
from reflectdrive_ros.maps.vector_map import SOURCE, read_elements
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.sim.traffic.actors import Lamp
from reflectdrive_ros.sim.world import World, WorldOptions

pytest.importorskip("lanelet2")


@pytest.fixture(scope="module")
def world():
    with World(WorldOptions(seed=3)) as world_3:
        yield world_3


def observed(world):
    """What the node's inputs make of everything that the world sends."""
    inputs = Inputs(Config(planner="reflexdiffusion"))
    sender = world_messages.Sender()
    for key, message in (*sender.introduction(world, ()), *sender.messages(world)):
        inputs.store.put(key, message, world.stamp_ns)
    inputs.wait_idle()
    snapshot = inputs.snapshot(world.stamp_ns)
    assert snapshot.observation is not None, snapshot.problems
    return snapshot.observation


def gaps_m(lanes, others):
    """(N,) of each valid lane: the largest distance of its points to those of the most similar of other lanes."""
    offsets = lanes.points[lanes.valid][:, None] - others.points[others.valid][None]
    return np.hypot(*np.moveaxis(offsets, -1, 0)).max(axis=-1).min(axis=1)


def test_the_archive_has_every_lane_of_the_road_where_it_is(world):
    lanes = world.road_map.lanes
    read = LaneletMap(read_elements(write_archive(world.road_map)), SOURCE).lane_segments
    true = LaneSegments.of({lanelet_id(key): lane.lane for key, lane in lanes.items()})
    order, other = (np.argsort(each.keys, kind="stable") for each in (read, true))
    np.testing.assert_array_equal(read.keys[order], true.keys[other])
    np.testing.assert_allclose(read.points[order], true.points[other], atol=0.15)
    np.testing.assert_allclose(read.widths_m[order], true.widths_m[other], atol=0.05)
    np.testing.assert_allclose(read.speed_limits_mps[order], true.speed_limits_mps[other], atol=0.01)


def test_the_road_of_the_archive_is_that_of_the_world(world):
    """The node checks plans against the road that the score means: shoulders and corners of junctions are part of it,
    though no lane leads there."""
    read = LaneletMap(read_elements(write_archive(world.road_map)), SOURCE)
    road = shapely.union_all(read.road_near(np.zeros(2), 1e5))
    true = shapely.union_all([*world.road_map.roads.values(), *world.road_map.junctions.values()])
    assert true.difference(road.buffer(0.1)).area < 1e-3 * true.area
    assert road.difference(true.buffer(0.1)).area < 1e-3 * true.area
    for_cars = {name: lanelet for name, lanelet in read.lanelets.items() if lanelet.for_cars}
    lanes_only = LaneletMap(MapElements(for_cars), SOURCE).road_near(np.zeros(2), 1e5)
    assert true.difference(shapely.union_all(lanes_only)).area > 0.02 * true.area


def test_the_archive_keeps_the_lights_their_stop_lines_and_their_turns(world):
    signals, lanes = world.road_map.signals, world.road_map.lanes
    lights = LaneletMap(read_elements(write_archive(world.road_map)), SOURCE).lights
    assert set(lights.group_ids) == {light_id(world.road_map, index) for index in range(len(signals))}
    assert lights.without_stop_line == 0
    first, names = light_id(world.road_map, 0), {Turn.STRAIGHT: "straight", Turn.LEFT: "left", Turn.RIGHT: "right"}
    for lanelet, group, turn, ends in zip(
        lights.lanelet_ids, lights.group_ids, lights.turns, lights.stop_lines, strict=True
    ):
        signal, lane = signals[group - first], lanelet - lanelet_id(0)
        assert lane in signal.connectors
        assert turn == names.get(lanes[lane].turn, "")
        np.testing.assert_allclose(ends, signal.stop_line, atol=1e-6)


def test_the_node_sees_the_lights_of_its_route_as_the_world_does(world):
    for _ in range(3):
        received, true = observed(world), world.observation()
        assert len(true.stop_lines.ends) > 0
        by_line = {}
        for observation in (received, true):
            lights, lines = observation.traffic_lights, observation.stop_lines
            states = dict(zip(lights.ids.tolist(), lights.states.tolist(), strict=True))
            by_line[observation is received] = {
                (*np.round(ends.ravel(), 1),): states[light]
                for ends, light in zip(lines.ends, lines.light_ids.tolist(), strict=True)
                if 0.0 < ends[0, 0] < 80.0 and abs(ends[:, 1]).max() < 10.0
            }
        assert by_line[True].items() >= by_line[False].items()
        for _ in range(30):
            world.step(None)


def test_a_worlds_lights_are_those_of_the_route_and_stand_where_its_signals_do(world):
    observation, signals = world.observation(), world.road_map.signals
    states = {Lamp.RED: LightState.RED, Lamp.AMBER: LightState.AMBER, Lamp.GREEN: LightState.GREEN, Lamp.OFF: 0}
    for ends, light, state in zip(
        observation.stop_lines.ends, observation.stop_lines.light_ids, observation.traffic_lights.states, strict=True
    ):
        in_map = geometry.transform_points(observation.ego.map_from_ego, ends)
        np.testing.assert_allclose(in_map, signals[light].stop_line)
        assert state == states[Lamp(int(world.snapshot.lamps[light]))]
    driven_over = set(world._route_lanes())
    guarded = {k for k, signal in enumerate(signals) if driven_over.intersection(signal.connectors)}
    assert guarded
    assert guarded <= set(observation.stop_lines.light_ids.tolist())
    assert len(observation.stop_lines.ends) < len(signals)


def test_the_limits_of_a_worlds_route_are_those_of_its_roads(world):
    observation, lanes = world.observation(), world.road_map.lanes
    assert len(observation.route_limits_mps) == len(observation.route)
    assert set(observation.route_limits_mps) <= {lane.lane.speed_limit_mps for lane in lanes.values()}
    (here,), _ = geometry.project(observation.route, np.zeros((1, 2)))
    at = np.searchsorted(geometry.arc_lengths(observation.route), here, side="right") - 1
    assert observation.route_limits_mps[at] == observation.speed_limit_mps
    assert not observation.route_ends  # it goes on for kilometres


def test_the_node_has_the_lanes_of_the_world_and_of_its_route(world):
    received, true = observed(world), world.observation(vectors=True)
    assert received.lanes.valid.sum() == true.lanes.valid.sum()
    assert gaps_m(received.lanes, true.lanes).max() < 0.3
    assert received.route_lanes.valid.any()
    assert gaps_m(received.route_lanes, true.lanes).max() < 0.3  # lanes of the map, not the line
    ahead = received.route[(received.route[:, 0] > 0.0) & (np.hypot(*received.route[:, :2].T) < 80.0), :2]
    ends = received.route_lanes.points[received.route_lanes.valid][:, [0, -1]].reshape(-1, 2)
    assert np.abs(geometry.project(received.route, ends)[1]).max() < 8.0
    nearest = [np.hypot(*(received.route_lanes.points[received.route_lanes.valid] - point).T).min() for point in ahead]
    assert max(nearest) < 4.0  # along the whole route


def test_without_lanelet2_the_world_sends_no_map(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "lanelet2", None)
    assert "map" not in dict(world_messages.Sender().introduction(world, ()))


# --- recorded and through the node -----------------------------------------------------------------------------------


def test_a_bag_of_the_world_replays_with_lanes(tmp_path):
    words = ["--planner", "reflexdiffusion", "--out", str(tmp_path), "--no-report"]
    assert main(["replay", str(world_bag()), *words]) == 0
    numbers = json.loads((tmp_path / "summary.json").read_text())
    assert numbers["plans"] >= 10
    assert numbers["topics"]["map"]["name"] == "/map/vector_map"
    assert numbers["topics"]["lights"]["name"] == "/perception/traffic_light_recognition/traffic_signals"
    assert not [note for note in numbers["notes"] if "lanes" in note]


@pytest.mark.dds
def test_a_node_has_read_the_map_before_a_bag_is_played_to_it(tmp_path):
    patient = ["--setting", "engine.deadline_ms=5000", "--setting", "engine.watchdog_ms=8000"]
    words = ["--planner", "reflexdiffusion", "--node", "--rate", "0.5", "--no-report", *patient]
    assert main(["replay", str(world_bag()), "--out", str(tmp_path), *words]) == 0
    numbers = json.loads((tmp_path / "summary.json").read_text())
    assert numbers["plans"] > 0
    assert not [note for note in numbers["notes"] if "lanes" in note]


@pytest.mark.dds
def test_in_the_demo_the_node_has_lanes_from_the_first_plan(tmp_path):
    assert main(["demo", "--planner", "reflexdiffusion", "--seconds", "1", "--out", str(tmp_path)]) == 0
    numbers = json.loads((tmp_path / "summary.json").read_text())
    assert numbers["inputs"]["map"]["received"] == 1
    assert numbers["inputs"]["traffic_lights"]["received"] >= 9
    assert numbers["plans"] == 10
    assert not [note for note in numbers["notes"] if "unknown" in note]
