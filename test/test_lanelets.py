"""Lanelet2 maps as SUMO networks: lanes lie where the map has them, and traffic can drive on them."""

from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import shapely
from shared import FOLDER

from reflectdrive_ros.core import geometry
from reflectdrive_ros.maps import lanelet_roads, sumo
from reflectdrive_ros.maps.roads import RoadError
from reflectdrive_ros.sim.network import routing

pytest.importorskip("lanelet2")
try:
    sumo.binary("netconvert")
except sumo.SumoMissing as fault:
    pytest.skip(str(fault), allow_module_level=True)

HERE = Path(__file__).parent
CARGO = HERE / "data" / "lanelet2_maps" / "cargo_transport_map.osm"
SHARED = HERE.parents[1] / "shared" / "data" / "lanelet2_maps"
# route length to drive
LONGEST_M = {"cargo_transport_map": 1000, "kashiwa_54SVE036736": 600, "karlsruhe_mapping_example": 150}


@cache
def road_map(name):
    path = CARGO if name == CARGO.stem else SHARED / f"{name}.osm"
    if not path.is_file():
        pytest.skip(f"{name}.osm is not here: it is among the shared data")
    return lanelet_roads.load(path, FOLDER)


@pytest.mark.parametrize("name", LONGEST_M)
def test_a_car_can_drive_3_km_on_a_lanelet2_map(name):
    network = road_map(name)
    starts = list(network.edges_after)
    walks = [
        routing.random_walk(network, np.random.default_rng(seed), 3000.0, starts[seed % len(starts)])
        for seed in range(60)
    ]
    lines = {lane.edge: lane.lane.centerline for lane in network.lanes.values()}
    assert max(sum(geometry.arc_lengths(lines[edge])[-1] for edge in walk) for walk in walks) > LONGEST_M[name]


@pytest.mark.parametrize("name", LONGEST_M)
def test_lanes_of_a_lanelet2_map_join_and_lie_on_the_road(name):
    network = road_map(name)
    space = shapely.union_all([*network.roads.values(), *network.junctions.values()]).buffer(0.2)
    shapely.prepare(space)
    for lane in network.lanes.values():
        assert space.covers(lane.lane.polygons[0]), lane.sumo_id
        for after in lane.lane.successors:
            gap = network.lanes[after].lane.centerline[0] - lane.lane.centerline[-1]
            assert np.hypot(*gap) < 1.5, (lane.sumo_id, network.lanes[after].sumo_id)


def test_lanes_lie_where_the_map_has_them():
    points = []
    for node in ElementTree.parse(CARGO).getroot().iter("node"):
        tags = {tag.get("k"): tag.get("v") for tag in node.iter("tag")}
        points.append((float(tags["local_x"]), float(tags["local_y"])))
    lines = np.concatenate([lane.lane.centerline for lane in road_map(CARGO.stem).lanes.values()])
    assert (lines >= np.min(points, axis=0)).all()
    assert (lines <= np.max(points, axis=0)).all()
    assert np.median(shapely.distance(shapely.MultiPoint(points), shapely.points(lines[::10]))) < 4.0


def test_the_same_map_gives_the_same_network(tmp_path):
    again = lanelet_roads.load(CARGO, tmp_path)
    assert again.net_file.read_bytes() == road_map(CARGO.stem).net_file.read_bytes()


def changed(tmp_path, change):
    """The cargo map with a change of its XML."""
    tree = ElementTree.parse(CARGO)
    change(tree.getroot())
    tree.write(tmp_path / CARGO.name)
    return lanelet_roads.load(tmp_path / CARGO.name, tmp_path)


def swap(relation):
    for member in relation.iter("member"):
        member.set("role", {"left": "right", "right": "left"}.get(member.get("role"), member.get("role")))


def road_lengths(network):
    """Lengths of the lanes outside junctions, whose connectors SUMO divides by the right of way."""
    roads = [lane.lane.centerline for lane in network.lanes.values() if lane.across_junction is None]
    return sorted(float(geometry.arc_lengths(line)[-1]) for line in roads)


def test_a_map_in_left_handed_coordinates_is_mirrored(tmp_path):
    def flip(root):
        for node in root.iter("node"):
            node.set("lat", str(-float(node.get("lat") or "0")))
        for tag in root.iter("tag"):
            if tag.get("k") == "local_y":
                tag.set("v", str(-float(tag.get("v"))))

    assert road_lengths(changed(tmp_path, flip)) == pytest.approx(road_lengths(road_map(CARGO.stem)), abs=0.5)


def test_bounds_that_are_swapped_in_the_whole_map_are_swapped_back(tmp_path):
    network = changed(tmp_path, lambda root: [swap(relation) for relation in root.iter("relation")])
    assert road_lengths(network) == pytest.approx(road_lengths(road_map(CARGO.stem)), abs=0.5)


def test_a_lanelet_with_swapped_bounds_is_driven_as_its_neighbours(tmp_path):
    def swap_one(root):
        swap([one for one in root.iter("relation") if any(m.get("role") == "left" for m in one)][20])

    again = changed(tmp_path, swap_one)
    assert again.net_file.read_bytes() == road_map(CARGO.stem).net_file.read_bytes()


def test_neighbours_whose_bounds_cross_by_millimetres_are_no_junction(tmp_path):
    """As in maps of CARGO's lanes with own points for each lanelet, a few millimetres wider than in the map."""
    before = road_map(CARGO.stem)

    def widen(root):
        nodes = {node.get("id"): node for node in root.iter("node")}
        osm_ways = {osm_way.get("id"): [nd.get("ref") for nd in osm_way.iter("nd")] for osm_way in root.iter("way")}
        for relation in root.iter("relation"):
            sides = {m.get("role"): osm_ways[m.get("ref")] for m in relation.iter("member") if m.get("role") in SIDES}
            for role, other in (SIDES, SIDES[::-1]) if len(sides) == 2 else ():
                here, there = np.array([at(nodes[side[0]]) for side in (sides[role], sides[other])])
                out = 0.004 * (here - there) / np.hypot(*(here - there))
                for name in sides[role]:
                    move(nodes[name], out)

    assert len(changed(tmp_path, widen).lanes) == len(before.lanes)


SIDES = ("left", "right")


def at(node):
    tags = {tag.get("k"): tag for tag in node.iter("tag")}
    return np.array([float(tags[key].get("v")) for key in ("local_x", "local_y")])


def move(node, by):
    tags = {tag.get("k"): tag for tag in node.iter("tag")}
    for key, metres in zip(("local_x", "local_y"), by, strict=True):
        tags[key].set("v", str(float(tags[key].get("v")) + metres))


def test_bad_maps_are_named(tmp_path):
    with pytest.raises(RoadError, match=r"missing\.osm does not exist"):
        lanelet_roads.load(tmp_path / "missing.osm", tmp_path)
    text = tmp_path / "text.osm"
    text.write_text("no map")
    with pytest.raises(RoadError, match=r"text\.osm cannot be read as a Lanelet2 map"):
        lanelet_roads.load(text, tmp_path)
    empty = tmp_path / "empty.osm"
    empty.write_text('<osm version="0.6"><node id="1" lat="49.0" lon="8.4"/></osm>')
    with pytest.raises(RoadError, match=r"empty\.osm holds no road lanelets"):
        lanelet_roads.load(empty, tmp_path)


def test_a_map_of_one_lane_has_no_drivable_route(tmp_path):
    nodes = {1: (0, 2), 2: (50, 2), 3: (0, -2), 4: (50, -2)}
    tags = '<tag k="local_x" v="{}"/><tag k="local_y" v="{}"/>'
    elements = "".join(f'<node id="{k}" lat="0" lon="{k}e-5">{tags.format(*at)}</node>' for k, at in nodes.items())
    elements += '<way id="5"><nd ref="1"/><nd ref="2"/></way><way id="6"><nd ref="3"/><nd ref="4"/></way>'
    elements += '<relation id="7"><member type="way" ref="5" role="left"/><member type="way" ref="6" role="right"/>'
    elements += '<tag k="type" v="lanelet"/><tag k="subtype" v="road"/><tag k="one_way" v="yes"/></relation>'
    (tmp_path / "one.osm").write_text(f'<osm version="0.6">{elements}</osm>')
    text = r"one has no drivable route: 50 m of road for cars, .*; lanelets 7 neither follow nor precede another"
    with pytest.raises(RoadError, match=text):
        lanelet_roads.load(tmp_path / "one.osm", tmp_path)
