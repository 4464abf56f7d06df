"""OpenDRIVE maps as SUMO networks: lanes, surfaces, limits, the side of the road, and bridges."""

import gzip
from xml.etree import ElementTree

import numpy as np
import pytest
import shapely
from small_xodr import R, figure_of_eight

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.evaluation import closed_loop, variants
from reflectdrive_ros.maps import opendrive, opendrive_surface, road_file, sumo
from reflectdrive_ros.maps.connectors import parse_shape
from reflectdrive_ros.maps.roads import RoadError
from reflectdrive_ros.sim.network.routing import random_walk
from reflectdrive_ros.sim.traffic.demand import Demand
from reflectdrive_ros.sim.traffic.simulation import Simulation
from reflectdrive_ros.sim.world import WorldOptions

try:
    sumo.binary("netconvert")
except sumo.SumoMissing as fault:
    pytest.skip(str(fault), allow_module_level=True)


ONE_WAY = 'id="1" type="driving"', 'id="1" type="none"'


def load(folder, text, name="eight.xodr", **options):
    file = folder / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return road_file.load(file, folder, **options)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    return load(tmp_path_factory.mktemp("eight"), figure_of_eight())


def test_a_car_can_drive_around_for_long(eight):
    walk = random_walk(eight, np.random.default_rng(0), 3000.0, next(iter(eight.edges_after)))
    lines = {lane.edge: lane.lane.centerline for lane in eight.lanes.values()}
    assert sum(geometry.arc_lengths(lines[edge])[-1] for edge in walk) > 2500.0


def test_lanes_keep_to_the_right_and_lie_on_the_surface_with_its_shoulders(eight):
    space = shapely.union_all([*eight.roads.values(), *eight.junctions.values()])
    for lane in eight.lanes.values():
        assert space.buffer(0.05).covers(lane.lane.polygons[0]), lane.sumo_id
    straight = [
        lane for lane in eight.lanes.values() if np.ptp(lane.lane.centerline[:, 1]) < 0.1 and not lane.across_junction
    ]
    for lane in straight:  # along x: eastbound is south of the middle
        east = lane.lane.centerline[-1, 0] > lane.lane.centerline[0, 0]
        assert lane.lane.centerline[:, 1].mean() == pytest.approx(-1.75 if east else 1.75, abs=0.1)
    assert space.contains(shapely.Point(10.0, 4.3))  # a shoulder
    assert not space.contains(shapely.Point(10.0, 4.7))


def test_limits_are_those_of_the_road_and_at_most_the_requested_one(tmp_path, eight):
    def limits(road_map):
        return {round(lane.lane.speed_limit_mps, 1) for lane in road_map.lanes.values() if not lane.across_junction}

    assert limits(eight) == {13.4}  # 30 mph
    assert limits(load(tmp_path, figure_of_eight(speed=""))) == {13.9}
    assert limits(load(tmp_path, figure_of_eight(speed='<speed max="undefined"/>'))) == {13.9}
    assert limits(load(tmp_path, figure_of_eight(speed='<speed max="no limit"/>'))) == {36.1}
    assert limits(load(tmp_path, figure_of_eight(speed='<speed max="no limit"/>'), max_limit_mps=8.0)) == {8.0}


def test_lanes_without_a_width_get_the_usual_one(tmp_path):
    network = load(tmp_path, figure_of_eight(widths=False))
    assert {lane.width_m for lane in network.lanes.values()} <= {3.2, 3.65}
    assert len(network.roads) >= 8


def test_a_compressed_map_is_the_same_map(tmp_path, eight):
    again = load(tmp_path, figure_of_eight(), "eight.xodr.gz")
    assert again.name == "eight"
    assert again.net_file.read_bytes() == eight.net_file.read_bytes()


def test_a_map_for_driving_on_the_left_is_mirrored(tmp_path, eight):
    """Mirrored twice, or once with the other rule, a map is itself."""
    root = ElementTree.fromstring(figure_of_eight())
    opendrive.mirror(root)
    assert {road.get("rule") for road in root.iter("road")} == {"LHT"}
    left = load(tmp_path, ElementTree.tostring(root, encoding="unicode"))
    for lane in eight.lanes.values():
        twin = left.lanes[left.by_sumo_id[lane.sumo_id]]
        np.testing.assert_allclose(twin.lane.centerline, lane.lane.centerline, atol=2e-3)


def test_surfaces_follow_widths_offsets_and_all_kinds_of_curves():
    lane = '<lane id="-1" type="driving"><width sOffset="0" a="3" b="0.1"/></lane>'
    curves = (
        '<geometry s="0" x="0" y="0" hdg="0" length="10"><line/></geometry>'
        '<geometry s="10" x="10" y="0" hdg="0" length="20"><spiral curvStart="0" curvEnd="0.05"/></geometry>'
    )
    text = (
        f'<road id="1" length="30" junction="-1"><planView>{curves}</planView><lanes><laneOffset s="0" a="1"/>'
        f'<laneSection s="0"><right>{lane}</right></laneSection></lanes></road>'
    )
    road = ElementTree.fromstring(text)
    (area,) = opendrive_surface.surface(ElementTree.fromstring(f"<OpenDRIVE>{text}</OpenDRIVE>")).roads.values()
    ends = opendrive_surface.reference_line(road, np.array([0.0, 10.0, 30.0]))
    assert ends[-1, 2] == pytest.approx(0.5, abs=1e-3)  # the mean curvature times the length
    inside = [area.contains(shapely.Point(5.0, y)) for y in (1.2, 0.9, -2.4, -2.7)]
    assert inside == [False, True, True, False]
    assert area.area == pytest.approx(30 * 4.5, rel=0.1)


def position_on(lane, along_m):
    """x, y and SUMO's angle on a lane."""
    x, y, heading = geometry.sample(lane.centerline, np.array([along_m]))[0]
    return x, y, float(90.0 - np.degrees(heading)) % 360.0


def test_a_connector_that_turns_back_is_drawn_past_its_spike_and_a_curve_stays_as_it_is():
    before = np.column_stack([np.full(20, -20.2), np.linspace(88.0, 52.2, 20)])
    spiked = np.concatenate([before, [[-29.5, 50.0], [-16.2, 47.1]]])  # as of CARLA's Town04
    line = spiked[opendrive.smooth_indices(spiked)]
    np.testing.assert_array_equal(line[[0, -1]], spiked[[0, -1]])
    assert line[:, 0].min() == -20.2
    assert np.abs(np.diff(geometry.headings_along(line))).max() < np.deg2rad(25.0)
    angles = np.linspace(0.0, np.pi, 13)
    curve = 6.0 * np.column_stack([np.cos(angles), np.sin(angles)])
    assert opendrive.smooth_indices(curve) == list(range(13))
    doubled = np.insert(curve, 7, curve[6] + [0.1, 0.0], axis=0)  # a step back of 10 cm costs one point
    assert len(opendrive.smooth_indices(doubled)) == 13


def network_with_connector(*parts):
    """The XML of two lanes in line, joined by a connector of one part or more; each is a list of points."""

    def shape(line):
        return " ".join(f"{x:.2f},{y:.2f}" for x, y in line)

    lanes = {"in_0": [(0, 0), (20, 0)], "out_0": [(60, 0), (80, 0)]}
    lanes |= {f":j_{index}_0": part for index, part in enumerate(parts)}
    links = [("in", "out", ":j_0_0"), *((f":j_{index}", "out", f":j_{index + 1}_0") for index in range(len(parts) - 1))]
    net = ElementTree.Element("net")
    for key, line in lanes.items():
        length = f"{shapely.LineString(line).length:.2f}"
        ElementTree.SubElement(net, "lane", id=key, shape=shape(line), length=length)
    for source, target, via in links:
        ends = {"from": source, "fromLane": "0", "to": target, "toLane": "0"}
        ElementTree.SubElement(net, "connection", ends, via=via)
    return net


def shape_of(net, key):
    (lane,) = (each for each in net.iter("lane") if each.get("id") == key)
    return parse_shape(lane.get("shape"))


def test_a_connector_that_leads_off_the_road_is_redrawn_between_its_lanes():
    road = shapely.box(0.0, -2.5, 80.0, 2.5)
    net = network_with_connector([(20, 0), (30, 3), (40, 4)], [(40, 4), (50, 3), (60, 0)])
    opendrive.redraw_strays(net, road)
    first, second = shape_of(net, ":j_0_0"), shape_of(net, ":j_1_0")
    np.testing.assert_allclose(first[0], [20.0, 0.0], atol=1e-3)
    np.testing.assert_allclose(first[-1], second[0], atol=1e-3)
    np.testing.assert_allclose(second[-1], [60.0, 0.0], atol=1e-3)
    assert opendrive.road_margin_m(road, np.concatenate([first, second])) == pytest.approx(2.5, abs=0.01)


def test_cars_on_a_bridge_are_not_ahead_of_a_car_below(eight):
    keys = {lane.edge: key for key, lane in eight.lanes.items() if not lane.across_junction}
    below = next(edge for edge, key in keys.items() if abs(eight.lanes[key].lane.centerline[:, 1]).max() < 3.0)
    above = next(edge for edge, key in keys.items() if abs(eight.lanes[key].lane.centerline[:, 0]).max() < 3.0)
    with Simulation(eight, Demand.sample(eight, 1), 1) as traffic:
        traffic.warm_up(8.0)
        traffic.step()
        walk = random_walk(eight, np.random.default_rng(0), 500.0, below)
        traffic.add_ego(walk, keys[below], R - 4.0, 0.0)
        traffic.step()
        driver = traffic._states.ids[0]
        for edge, visible in ((above, False), (below, True)):
            at = position_on(eight.lanes[keys[edge]].lane, R + 12.0)
            traffic._sumo.vehicle.moveToXY(driver, "", -1, *at, keepRoute=2)
            traffic.step()
            pose = traffic.poses[traffic._row[driver]]
            assert np.hypot(*pose[:2]) < 25.0
            assert (int(driver) in traffic.snapshot().actors.ids) is visible


@pytest.mark.parametrize("is_two_way", [True, False])
def test_a_map_of_one_road_can_be_driven_on(tmp_path, is_two_way):
    """Both ways with turns at its ends, one way to its end."""
    text = figure_of_eight(roads=(1,))
    text = text if is_two_way else text.replace(*ONE_WAY)
    (tmp_path / "one.xodr").write_text(text)
    (row,) = variants.of_planners(Config(), ["route_follower"]).values()
    result = closed_loop.drive(WorldOptions(seed=1, map_file=tmp_path / "one.xodr"), row, 10.0)
    assert result.log.duration_s == pytest.approx(10.0)
    assert result.log.distance_m > 25.0
    assert result.log.off_road_s == 0.0
    assert result.log.count("off_route") == 0


def test_bad_files_are_named(tmp_path):
    (tmp_path / "cut.xodr.gz").write_bytes(gzip.compress(b"<OpenDRIVE>" * 99)[:30])
    for name, complaint in (
        ("missing.xodr", r"missing\.xodr does not exist: give the \.xodr file"),
        ("map.txt", r"map\.txt is no map that can be driven on"),
        ("cut.xodr.gz", "cannot be read"),
    ):
        with pytest.raises(RoadError, match=complaint):
            road_file.load(tmp_path / name, tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no map", "it is no XML"),
        ("<OpenDRIVE/>", "holds no OpenDRIVE roads"),
        (figure_of_eight(roads=(0,)).replace(*ONE_WAY), r"80 m of road for cars, expected at least 150 m"),
        (figure_of_eight().replace("driving", "sidewalk"), "roads 0, 1, 2, 3 have no lanes for cars"),
        (figure_of_eight().replace("geometry", "missing"), "roads 0, 1, 2, 3 have no reference line"),
    ],
)
def test_bad_maps_say_which_roads_and_why(tmp_path, text, complaint):
    with pytest.raises(RoadError, match=complaint):
        load(tmp_path, text)
