"""A real Autoware map with a recorded drive on it, and small maps of straight lanelets."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from autoware_planning_msgs.msg import LaneletPrimitive, LaneletRoute, LaneletSegment
from geometry_msgs.msg import Pose
from nav_msgs.msg import Odometry
from rclpy.serialization import deserialize_message

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import InputsConfig
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.ros.bag import BagReader

lanelet2 = pytest.importorskip("lanelet2")
DATA = Path(__file__).parent / "data" / "lanelet2_maps"
MAP = DATA / "cargo_transport_map.osm"


def pose(x, y):
    message = Pose()
    message.position.x, message.position.y = float(x), float(y)
    return message


def route_message(ids, start, goal, frame="map"):
    message = LaneletRoute(start_pose=pose(*start), goal_pose=pose(*goal))
    message.header.frame_id = frame
    for lanelet_id in ids:
        lane = LaneletPrimitive(id=lanelet_id, primitive_type="lane")
        message.segments.append(LaneletSegment(preferred_primitive=lane, primitives=[lane]))
    return message


def settings(path=MAP, **changes):
    return InputsConfig(route_type="lanelet", lanelet_map=str(path), **changes)


def line_of(ids, start, goal, path=MAP, points_max=2000):
    return load_map(settings(path)).route(route_message(ids, start, goal), "map", points_max)


@cache
def drive():
    """The recorded odometry on the cargo map: messages, and positions (N, 2)."""
    with BagReader(DATA / "cargo_transport_ego.db3") as bag:
        content = [entry.data for entry in bag.messages(["/localization/kinematic_state"])]
    messages = [deserialize_message(each, Odometry) for each in content]
    return messages, np.array([(m.pose.pose.position.x, m.pose.pose.position.y) for m in messages])


@cache
def ids_along_the_site():
    """The longest route on the cargo map, from lanelet2's own router."""
    projector = lanelet2.projection.UtmProjector(lanelet2.io.Origin(35.247, 139.911))
    the_map = lanelet2.io.load(str(MAP), projector)
    locations, people = lanelet2.traffic_rules.Locations, lanelet2.traffic_rules.Participants
    rules = lanelet2.traffic_rules.create(locations.Germany, people.Vehicle)
    graph = lanelet2.routing.RoutingGraph(the_map, rules)
    route = graph.getRoute(the_map.laneletLayer[211], the_map.laneletLayer[1550])
    return tuple(lanelet.id for lanelet in route.shortestPath())


def ends_of_the_site():
    """Middle of the first lanelet's entry and of the last one's exit, read from the tags."""
    the_map = load_map(settings())
    ids = ids_along_the_site()
    return the_map._lane(ids[0])[0, :2], the_map._lane(ids[-1])[-1, :2]


@cache
def driven_ids():
    """The lanelets of the site's route that the recorded car drove through, from its first to its last position."""
    _, positions = drive()
    lanes = [load_map(settings())._lane(lanelet_id) for lanelet_id in ids_along_the_site()]
    gaps = np.array([np.abs(geometry.project(lane, positions[[0, -1]])[1]) for lane in lanes])
    first, last = np.argmin(gaps, axis=0)
    assert first < last
    return ids_along_the_site()[first : last + 1]


def osm(lanes, tagged=True):
    """A map of straight lanelets along x: id -> (x from, x to, y of the right bound, extra tags or members)."""
    nodes, osm_ways, relations = [], [], []

    def add_way(points, name):
        refs = []
        for x, y in points:
            nodes.append((len(nodes) + 1, x, y))
            refs.append(f'<nd ref="{len(nodes)}"/>')
        osm_ways.append(f'<way id="{name}">{"".join(refs)}<tag k="type" v="line_thin"/></way>')

    for lanelet_id, (begin, end, right_y, extra) in lanes.items():
        add_way([(begin, right_y + 3.5), (end, right_y + 3.5)], 10 * lanelet_id + 1000)
        add_way([(begin, right_y), (end, right_y)], 10 * lanelet_id + 1001)
        if "centerline" in extra:
            add_way([(begin, right_y + 1.0), (end, right_y + 1.0)], 10 * lanelet_id + 1002)
            extra = f'<member type="way" role="centerline" ref="{10 * lanelet_id + 1002}"/>'
        relations.append(
            f'<relation id="{lanelet_id}"><member type="way" role="left" ref="{10 * lanelet_id + 1000}"/>'
            f'<member type="way" role="right" ref="{10 * lanelet_id + 1001}"/>'
            f'<tag k="type" v="lanelet"/><tag k="subtype" v="road"/>{extra}</relation>'
        )
    local = '<tag k="local_x" v="{x}"/><tag k="local_y" v="{y}"/>' if tagged else ""
    # the degrees are left empty, as Autoware's map tool does for maps in a frame of their own
    osm_nodes = "".join(f'<node id="{i}" lat="" lon="">{local.format(x=x, y=y)}</node>' for i, x, y in nodes)
    return f'<?xml version="1.0"?><osm>{osm_nodes}{"".join(osm_ways)}{"".join(relations)}</osm>'


TWO_LANES = {
    1: (0.0, 100.0, 0.0, '<tag k="speed_limit" v="50"/>'),
    2: (100.0, 200.0, 0.0, '<tag k="speed_limit" v="20 mph"/>'),
    3: (0.0, 100.0, 3.5, ""),
    4: (100.0, 200.0, 3.5, "centerline"),
}
