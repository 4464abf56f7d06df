"""A LaneletRoute becomes a line to follow: on a real Autoware map with a drive on it, and in small scenes."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from lanelet_maps import (
    MAP,
    TWO_LANES,
    drive,
    driven_ids,
    ends_of_the_site,
    ids_along_the_site,
    lanelet2,
    line_of,
    osm,
    route_message,
    settings,
)

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config, ConfigError
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps.lanelet_elements import speed_mps
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.ros.planning_core import PlanningCore

# --- the real map ----------------------------------------------------------------------------------------------------


def test_a_route_through_the_whole_site_is_one_line_without_jumps():
    ids = ids_along_the_site()
    assert len(ids) >= 72
    everything, limits = line_of(ids, *ends_of_the_site())
    steps = np.hypot(*np.diff(everything[:, :2], axis=0).T)
    assert steps.max() < 2.1
    assert geometry.arc_lengths(everything)[-1] == pytest.approx(2050, abs=30)
    assert np.all(limits == pytest.approx(30 / 3.6))
    bends = np.abs(geometry.wrap(np.diff(everything[:, 2])))
    assert np.rad2deg(bends.max()) < 20  # lanelet2's own centreline turns by 92 degrees, the map's corners by 78


def test_the_route_leads_from_start_to_goal():
    start, goal = ends_of_the_site()
    whole, _ = line_of(ids_along_the_site(), start, goal)
    a, b = geometry.sample(whole, np.array([7.3, 1900.0]))
    part, _ = line_of(ids_along_the_site(), a[:2], whole[-3, :2])
    assert np.hypot(*(part[0, :2] - a[:2])) < 0.1
    assert np.hypot(*(part[-1, :2] - whole[-3, :2])) < 1e-6
    assert abs(geometry.wrap(part[0, 2] - a[2])) < 0.1
    assert geometry.project(part, b[None, :2])[1][0] == pytest.approx(0.0, abs=0.2)


def test_the_recorded_car_stays_in_the_lane_of_the_route():
    _, positions = drive()
    line, _ = line_of(driven_ids(), positions[0], positions[-1])
    _, offsets = geometry.project(line, positions)
    assert np.abs(offsets).max() < 0.25  # a lane is 4 m wide
    assert np.abs(offsets).mean() < 0.1
    assert np.hypot(*(line[0, :2] - positions[0])) < 0.6
    assert np.hypot(*(line[-1, :2] - positions[-1])) < 1e-6
    driven_m = np.hypot(*np.diff(positions, axis=0).T).sum()
    assert geometry.arc_lengths(line)[-1] == pytest.approx(driven_m, rel=0.02)


def reasons_along_the_drive(**inputs):
    """Why the guard refused plans along the recorded route, one for every 20th message; empty for those that pass."""
    messages, positions = drive()
    config = replace(Config("route_follower", inputs=settings(objects_type="none", **inputs)), speed_limit_mps=4.0)
    unrepaired = replace(config.pipeline, repair=False)  # the bare plans of the route follower
    config = replace(config, cameras=replace(config.cameras, required=False), pipeline=unrepaired)
    core = PlanningCore(config, clock=lambda: 0.0)
    core.put("route", route_message(driven_ids(), positions[0], positions[-1]), 0)
    reasons = []
    for message in messages[::20]:
        now_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        core.put("odometry", message, now_ns)
        reasons.append(core.step(now_ns).report.reason)
        core.wait_idle()  # the drivable space is computed in the background
    assert len(reasons) > 100
    return reasons


def test_the_drivable_space_of_the_map_refuses_no_plan_along_its_route():
    assert set(reasons_along_the_drive(drivable_type="map")) == {""}


def test_without_tags_in_use_the_map_is_projected_around_the_origin():
    ids = ids_along_the_site()
    by_tags = load_map(settings())._lane(ids[0])
    projected = load_map(settings(lanelet_origin_lat=35.247, lanelet_origin_lon=139.911))._lane(ids[0])
    assert geometry.arc_lengths(projected)[-1] == pytest.approx(geometry.arc_lengths(by_tags)[-1], rel=0.01)
    distance_m = np.hypot(*(projected[0, :2] - by_tags[0, :2]))
    assert distance_m > 100  # another frame
    message = route_message(ids, *ends_of_the_site())
    with pytest.raises(BadMessage, match="different frames; check"):
        load_map(settings(lanelet_origin_lat=35.247, lanelet_origin_lon=139.911)).route(message, "map", 2000)


def test_a_long_route_is_thinned():
    line, limits = line_of(ids_along_the_site(), *ends_of_the_site(), points_max=100)
    assert line.shape == (100, 3)
    assert limits.shape == (100,)


def test_lanes_lead_in_the_direction_that_lanelet2_reads_from_good_degrees():
    origin = {"lanelet_origin_lat": 35.247, "lanelet_origin_lon": 139.911}
    the_map = load_map(settings(**origin))
    projector = lanelet2.projection.UtmProjector(lanelet2.io.Origin(*origin.values()))
    for lanelet in lanelet2.io.load(str(MAP), projector).laneletLayer:
        theirs = np.array([(point.x, point.y) for point in lanelet.centerline])
        assert np.allclose(the_map._lane(lanelet.id)[[0, -1], :2], theirs[[0, -1]], atol=1e-6)


# --- small scenes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_lanes(tmp_path):
    file = tmp_path / "two_lanes.osm"
    file.write_text(osm(TWO_LANES))
    return file


def test_speed_limits_change_where_the_lanelet_changes(two_lanes):
    line, limits = line_of([1, 2], (10, 1.75), (190, 1.75), two_lanes)
    assert np.allclose(line[:, 1], 1.75)
    assert np.allclose(limits[line[:, 0] < 99], 50 / 3.6)
    assert np.allclose(limits[line[:, 0] > 103], 20 * 0.44704)
    assert np.isnan(line_of([3], (10, 5), (90, 5), two_lanes)[1]).all()


def test_a_lane_change_is_slanted_and_not_a_kink(two_lanes):
    line, _ = line_of([1, 4], (10, 1.75), (190, 4.5), two_lanes)
    assert line[0, 1] == pytest.approx(1.75)
    assert line[-1, 1] == pytest.approx(4.5)  # along the centreline that the map's author drew
    assert np.rad2deg(np.abs(line[:, 2]).max()) < 8
    changing = (line[:, 1] > 1.8) & (line[:, 1] < 4.45)
    assert np.ptp(line[changing, 0]) == pytest.approx(30.0, abs=6.0)
    assert np.all(np.diff(line[:, 0]) > 0)


@pytest.mark.parametrize(
    ("ids", "start", "goal", "frame", "sentence"),
    [
        ([], (10, 1), (90, 1), "map", "the route has no segments: set a goal"),
        ([1, 77], (10, 1), (90, 1), "map", "lanelet 77 is not in two_lanes.osm: set inputs.lanelet_map to the map"),
        ([1], (10, 1), (90, 1), "odom", "the route is in frame 'odom', expected 'map'"),
        ([1], (float("nan"), 1), (90, 1), "map", "start or goal holds NaN or infinity"),
        ([1], (90, 1.75), (10, 1.75), "map", "goal is not ahead of its start"),
        ([1], (10, 1.75), (10, 1.75), "map", "goal is not ahead of its start"),
        ([1, 2], (100, 1.75), (100, 1.75), "map", "goal is not ahead of its start"),
        ([2, 1], (110, 1.75), (90, 1.75), "map", "jumps 200 m from lanelet 2 to lanelet 1"),
        ([1], (10, 1.75), (90, 300), "map", "jumps 298 m from lanelet 1 to the goal"),
        ([1], (10, 500), (90, 1.75), "map", "starts 498 m from its first lanelet 1"),
    ],
)
def test_a_route_that_is_not_on_the_map_gets_a_sentence(two_lanes, ids, start, goal, frame, sentence):
    the_map = load_map(settings(two_lanes))
    with pytest.raises(BadMessage) as error:
        the_map.route(route_message(ids, start, goal, frame), "map", 2000)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("none.osm", None, "which does not exist: give the map's .osm file"),
        ("torn.osm", "<osm><node", "cannot be used: it is no XML: "),
        ("empty.osm", "<osm></osm>", "holds no lanelet: give another map"),
        ("map.txt", "words", "which is not an .osm file: give the map's .osm file"),
        ("bare.osm", osm(TWO_LANES, tagged=False), "set inputs.lanelet_origin_lat and inputs.lanelet_origin_lon"),
    ],
)
def test_a_map_that_cannot_be_used_gets_a_sentence(tmp_path, name, text, sentence):
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_map(settings(file))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_without_the_bindings_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lanelet2", None)
    for path in (MAP, ""):  # a file, and Autoware's topic
        with pytest.raises(ConfigError, match="install the ROS package lanelet2, or `pip install lanelet2`"):
            Inputs(Config(inputs=settings(path)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("36", 10.0), ("36 km/h", 10.0), ("36.0kmh", 10.0), ("10 mph", 4.4704), ("fast", None), ("-5", None), ("", None)],
)
def test_speed_limits_are_read_with_their_unit(text, expected):
    assert np.isnan(speed_mps(text)) if expected is None else speed_mps(text) == pytest.approx(expected)
