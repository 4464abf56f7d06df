"""A car that drives by Autoware's map from its topic: its inputs, its replays, and the node that runs in it."""

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from input_stream import small
from lanelet_maps import MAP, TWO_LANES, drive, driven_ids, osm, route_message, settings
from map_archives import archive, cut, map_message, scrambled
from messages import acceleration, ns, odometry, route
from node_car import car, planned, stopped
from rclpy.serialization import serialize_message
from rich.console import Console
from scenes import Clock

from reflectdrive_ros.cli import replay
from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import PlanSource, Verdict
from reflectdrive_ros.maps import vector_map
from reflectdrive_ros.maps.lanelet_elements import MapElements
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.maps.vector_map import VectorMap, read_elements
from reflectdrive_ros.replay import engine, recorded_world
from reflectdrive_ros.replay.bag_topics import recorded_sources
from reflectdrive_ros.ros import convert, topics
from reflectdrive_ros.ros.bag import BagError, BagReader, BagWriter
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime import cli_args as words_given


@pytest.fixture
def two_lanes(tmp_path):
    file = tmp_path / "two_lanes.osm"
    file.write_text(osm(TWO_LANES))
    return file


# --- as it comes -----------------------------------------------------------------------------------------------------


def lanelet_car(**more):
    """Inputs of a car without images that drives by Autoware's route and map."""
    config = small(
        **{"inputs__route_type": "lanelet", "inputs__objects_type": "none", "cameras__required": False, **more}
    )
    return config, Inputs(config)


def drive_on(inputs, k):
    """Odometry of the recorded car, and what the inputs make of it."""
    message = drive()[0][20 * k]
    now_ns = convert.stamp_ns(message.header)
    inputs.store.put("odometry", message, now_ns)
    return inputs.snapshot(now_ns), {status.name: status for status in inputs.statuses(now_ns)}


def the_route():
    positions = drive()[1]
    return route_message(driven_ids(), positions[0], positions[-1])


def test_until_the_map_is_there_the_car_stops_and_says_what_it_waits_for(monkeypatch):
    _, inputs = lanelet_car(inputs__drivable_type="map")
    inputs.store.put("route", the_route(), 0)
    snapshot, lines = drive_on(inputs, 0)
    assert vector_map.NOT_YET in snapshot.problems
    assert snapshot.ego is not None
    assert lines["map"].level is Level.ERROR
    assert lines["drivable"].message == f"drivable: {vector_map.NOT_YET}"
    assert lines["route"].level is Level.OK

    go_on = threading.Event()
    monkeypatch.setattr(vector_map, "read_elements", lambda data: go_on.wait(30.0) and read_elements(data))
    inputs.store.put("map", map_message(), 0)
    snapshot, lines = drive_on(inputs, 1)
    assert snapshot.observation is None
    assert lines["map"].message == vector_map.BEING_READ in snapshot.problems
    go_on.set()
    inputs.wait_idle()
    snapshot, lines = drive_on(inputs, 2)
    assert snapshot.observation is not None
    inputs.wait_idle()
    snapshot, lines = drive_on(inputs, 3)
    assert snapshot.observation.drivable is not None
    assert {lines[name].level for name in ("map", "route", "drivable")} == {Level.OK}


def test_an_observation_by_the_topic_is_the_one_by_the_file():
    observations = []
    for file in ("", str(MAP)):
        _, inputs = lanelet_car(inputs__drivable_type="map", inputs__lanelet_map=file)
        inputs.store.put("route", the_route(), 0)
        if not file:
            inputs.store.put("map", map_message(), 0)
        for k in range(2):
            inputs.wait_idle()
            snapshot, _ = drive_on(inputs, k)
        observations.append(snapshot.observation)
    np.testing.assert_array_equal(observations[0].route, observations[1].route)
    np.testing.assert_array_equal(observations[0].drivable.distance_m, observations[1].drivable.distance_m)


DAMAGED = [
    (lambda: map_message(b""), "the map cannot be read: it is empty"),
    (lambda: map_message(cut(0.4)), "the map cannot be read: lanelet2 says 'input stream error'"),
    (lambda: map_message(frame="odom"), "the map is in frame 'odom', expected 'map'"),
]


@pytest.mark.parametrize(("message", "words"), DAMAGED)
def test_without_a_map_before_it_one_that_cannot_be_used_stops_the_car_until_a_good_one_comes(message, words):
    config, inputs = lanelet_car()
    core = PlanningCore(config, Clock())
    core.inputs = inputs
    inputs.store.put("route", the_route(), 0)
    for k, sent in enumerate((message(), map_message())):
        inputs.store.put("map", sent, 0)
        inputs.wait_idle()
        odometry_now = drive()[0][20 * k]
        now_ns = convert.stamp_ns(odometry_now.header)
        inputs.store.put("odometry", odometry_now, now_ns)
        report, status = core.step(now_ns).report, {status.name: status for status in inputs.statuses(now_ns)}["map"]
        assert (report.source, status.level) == [(PlanSource.STOP, Level.ERROR), (PlanSource.PLANNER, Level.OK)][k]
        assert (words in report.reason, words in status.message) == ((k == 0,) * 2)


@pytest.mark.parametrize(("message", "words"), DAMAGED)
def test_after_a_map_that_cannot_be_used_the_car_drives_on_by_the_one_before_and_says_so_until_a_good_one_comes(
    message, words
):
    _, inputs = lanelet_car(inputs__drivable_type="map")
    inputs.store.put("route", the_route(), 0)
    inputs.store.put("map", map_message(), 0)
    for k in range(2):
        inputs.wait_idle()
        drive_on(inputs, k)
    first = inputs._newest_map()
    inputs.store.put("map", message(), 0)
    for k in range(2, 6):  # 0.4 s apart
        inputs.wait_idle()
        snapshot, lines = drive_on(inputs, k)
        assert snapshot.observation.drivable is not None
        assert inputs._newest_map() is first
        assert lines["map"].level is Level.WARN
        assert f"{words}" in lines["map"].message
        assert "the map before it stays in use" in lines["map"].message
        assert lines["map"].values["refused"] == "1"
        assert {lines[name].level for name in ("route", "drivable")} == {Level.OK}
    inputs.store.put("map", map_message(), 0)
    inputs.wait_idle()
    _, lines = drive_on(inputs, 6)
    assert lines["map"].level is Level.OK
    assert inputs._newest_map() is first


def test_bytes_that_are_no_map_message_are_reported_until_a_good_one_comes():
    _, inputs = lanelet_car()
    inputs.store.put("route", the_route(), 0)
    inputs.store.put("map", map_message(), 0)
    inputs.wait_idle()
    whole = serialize_message(map_message())
    assert inputs.store.receive("map", whole[: len(whole) // 2], 0) is None
    for k in range(0, 20, 5):  # 6 s
        snapshot, lines = drive_on(inputs, k)
        assert snapshot.observation is not None
        assert lines["map"].level is Level.WARN
        assert "the one before it stays in use" in lines["map"].message
    inputs.store.receive("map", whole, 0)
    inputs.wait_idle()
    assert drive_on(inputs, 20)[1]["map"].level is Level.OK


def test_a_new_map_replaces_the_old_one_and_the_same_again_changes_nothing(two_lanes):
    _, inputs = lanelet_car()
    inputs.store.put("route", the_route(), 0)
    inputs.store.put("map", map_message(), 0)
    inputs.wait_idle()
    drive_on(inputs, 0)
    first = inputs._newest_map()
    inputs.store.put("map", map_message(), 0)
    drive_on(inputs, 1)  # it does not wait for the map that comes
    inputs.wait_idle()
    assert inputs._newest_map() is first
    inputs.store.put("map", map_message(archive(two_lanes)), 0)
    inputs.wait_idle()
    snapshot, lines = drive_on(inputs, 2)
    assert snapshot.observation is None
    assert lines["route"].message.endswith("is not in Autoware's map: plan the route again on this map")
    inputs.store.put("route", route_message([1, 2], (10, 1.75), (190, 1.75)), 0)
    now_ns = convert.stamp_ns(drive()[0][60].header)
    inputs.store.put("odometry", odometry(now_ns * 1e-9, x=20.0, y=1.75), now_ns)
    assert inputs.snapshot(now_ns).observation is not None


def test_of_many_maps_at_once_the_newest_is_read_and_the_others_are_not_waited_for(monkeypatch):
    read, go_on = [], threading.Event()

    def slowly(data):
        read.append(data)
        go_on.wait(30.0)
        return MapElements({})

    monkeypatch.setattr(vector_map, "read_elements", slowly)
    received = VectorMap("map", ThreadPoolExecutor(1))
    received.put(map_message(b"0"))
    while not read:
        time.sleep(0.001)
    for k in range(1, 50):
        received.put(map_message(str(k).encode()))
    go_on.set()
    received.wait_idle()
    assert read == [b"0", b"49"]


def test_a_car_that_only_asks_for_its_road_drives_without_a_map_and_says_so():
    config, inputs = lanelet_car(inputs__route_type="path", inputs__drivable_type="map")
    assert [topic.required for topic in topics.inputs(config) if topic.key == "map"] == [False]
    inputs.store.put("route", route(), 0)
    inputs.store.put("odometry", odometry(1.0), ns(1.0))
    inputs.store.put("acceleration", acceleration(1.0), ns(1.0))
    assert inputs.snapshot(ns(1.0)).observation.drivable is None
    lines = {status.name: status.level for status in inputs.statuses(ns(1.0))}
    assert lines["map"] is lines["drivable"] is Level.WARN


def test_the_topic_is_there_when_it_is_used():
    def keys(**more):
        return [topic.key for topic in topics.inputs(small(**more))]

    assert "map" not in keys()
    assert "map" not in keys(inputs__route_type="lanelet", inputs__lanelet_map="/maps/town.osm")
    assert "map" in keys(inputs__route_type="lanelet")
    assert "map" in keys(inputs__drivable_type="map")


# --- a replay --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """Four seconds of the recorded drive with Autoware's map and a LaneletRoute."""
    messages, _ = drive()
    path = tmp_path_factory.mktemp("vector_map") / "bag"
    start_ns = convert.stamp_ns(messages[0].header)
    with BagWriter(path) as writer:
        writer.add_topic("/localization/kinematic_state", "nav_msgs/msg/Odometry")
        writer.add_topic("/planning/mission_planning/route", topics.ROUTE_TYPES["lanelet"], latched=True)
        writer.add_topic("/map/vector_map", topics.MAP_TYPE, latched=True)
        writer.write("/map/vector_map", start_ns, map_message())
        writer.write("/planning/mission_planning/route", start_ns, the_route())
        for message in messages[:160]:
            writer.write("/localization/kinematic_state", convert.stamp_ns(message.header), message)
    return path


def replayed(bag, out, *pairs):
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    pairs = ("inputs.route_type=lanelet", "cameras.required=false", *pairs)
    words = ["--planner", "route_follower", *(word for pair in pairs for word in ("--setting", pair))]
    args = parser.parse_args([str(bag), "--out", str(out), *words])
    config = words_given.configuration(args)
    return engine.replay_bag(bag, out, replay.options_of(args), config, Console(stderr=True), lambda share: None)


def test_a_bag_with_its_map_needs_no_file_and_gives_the_same_plans(bag, tmp_path):
    by_topic = [replayed(bag, tmp_path / str(k), "inputs.drivable_type=map") for k in range(2)]
    by_file = replayed(bag, tmp_path / "file", "inputs.drivable_type=map", f"inputs.lanelet_map={MAP}")
    assert {frame.verdict for frame in by_file.frames} == {Verdict.OK}
    assert len({record.details["plans_sha256"] for record in (*by_topic, by_file)}) == 1
    np.testing.assert_array_equal(by_topic[0].routes[-1][1], by_file.routes[-1][1])


def test_plans_are_scored_against_the_bags_map_whatever_the_planner_reads(bag):
    with BagReader(bag) as reader:
        part = recorded_world.BagSlice(reader, recorded_sources(reader))
        vector_map = recorded_world.find_map(part, small())
    assert vector_map.lanelets.keys() == load_map(settings()).lanelets.keys()


def test_a_bag_without_a_map_says_how_to_give_one(tmp_path):
    messages, _ = drive()
    with BagWriter(tmp_path / "bag") as writer:
        for name, kind, message in (
            ("/localization/kinematic_state", "nav_msgs/msg/Odometry", messages[0]),
            ("/planning/mission_planning/route", topics.ROUTE_TYPES["lanelet"], the_route()),
        ):
            writer.add_topic(name, kind)
            writer.write(name, convert.stamp_ns(messages[0].header), message)
    with pytest.raises(
        BagError, match=r"(?s)LaneletMapBin.*--setting inputs.lanelet_map=FILE   \(the map's .osm file\)"
    ):
        replayed(tmp_path / "bag", tmp_path / "out")


# --- the real node ---------------------------------------------------------------------------------------------------


@pytest.mark.dds
def test_the_node_takes_map_and_route_from_autoware_and_drives_on_by_them_after_a_broken_map(tmp_path):
    node = {"inputs__route_type": "lanelet", "inputs__objects_type": "none", "inputs__drivable_type": "map"}
    node |= {"planner": "route_follower", "speed_limit_mps": 4.0, "cameras__required": False}
    ego = convert.ego_state(drive()[0][400], "map")
    where = dict(zip(("x", "y", "yaw"), map(float, ego.map_from_ego), strict=True), speed=ego.speed_mps)
    standing = {"ego": where, "cameras": (), "objects": False}
    with car(tmp_path, route_message=the_route(), **node) as sender:

        def until_map(words, timeout_s=60.0):
            """Send the car's pose until the status of the map has these words and a new plan comes."""
            lines = sender.diagnosed(
                lambda lines: all(word in lines["map"][1] for word in words), timeout_s, **standing
            )
            return lines, sender.until(lambda status: True, **standing)

        _, status = until_map(["the map has not been received yet"])
        assert stopped(status)
        sender.harness.inputs["map"].publish(map_message())
        sender.until(planned, 60.0, **standing)
        sender.diagnosed(lambda lines: lines["drivable"][1] == "from the map", **standing)
        plan = sender.harness.received["trajectory"][-1][1]
        ends = np.array([(p.pose.position.x, p.pose.position.y) for p in plan.points])
        line, _ = load_map(settings()).route(the_route(), "map", 2000)
        assert np.hypot(*(ends[-1] - ends[0])) > 3.0
        assert np.abs(geometry.project(line, ends)[1]).max() < 0.5
        sender.harness.inputs["map"].publish(map_message(scrambled(0)))
        lines, status = until_map(["the map cannot be read", "the map before it stays in use"])
        assert planned(status)
        assert lines["drivable"][1] == "from the map"
        sender.harness.inputs["map"].publish(map_message())
        sender.diagnosed(lambda lines: "cannot be read" not in lines["map"][1], **standing)
        sender.until(planned, **standing)
        assert sender.process.poll() is None
    assert "Traceback" not in (tmp_path / "node.log").read_text()
