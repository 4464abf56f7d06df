"""A small map with a traffic light: straight lanelets along x, drawn as in Autoware's maps."""

from lanelet_maps import osm
from messages import LIGHT_GROUP

APPROACH, JUNCTION, TURNING, EXIT = 1, 2, 3, 4
STOP_X_M = 98.0  # of the map that `crossing` draws without arguments


def crossing(stop_line=True, right_to_left=False, lights=True, along_x=(0.0, 100.0, 300.0), right_y=0.0):
    """The text of an .osm file: an approach, a lanelet straight on and one that turns left across the same area with a
    light of the group LIGHT_GROUP each, an exit. `right_to_left`: the stop line is drawn in that order. `along_x`:
    where the approach begins, the junction begins, the exit ends; `right_y`: of all right bounds."""
    begin, junction, end = along_x
    member = f'<member type="relation" role="regulatory_element" ref="{LIGHT_GROUP}"/>' if lights else ""

    def turn(direction):
        return f'{member}<tag k="turn_direction" v="{direction}"/>'

    text = osm(
        {
            APPROACH: (begin, junction, right_y, '<tag k="speed_limit" v="50"/>'),
            JUNCTION: (junction, junction + 20.0, right_y, turn("straight")),
            TURNING: (junction, junction + 20.0, right_y, turn("left")),
            EXIT: (junction + 20.0, end, right_y, '<tag k="speed_limit" v="30"/>'),
        }
    )
    ys = (right_y, right_y + 3.5) if right_to_left else (right_y + 3.5, right_y)
    stop_x, lamp_x = junction - 2.0, junction + 25.0
    nodes = [(901, stop_x, ys[0]), (902, stop_x, ys[1]), (903, lamp_x, right_y + 3.0), (904, lamp_x, right_y + 1.0)]
    osm_nodes = "".join(
        f'<node id="{i}" lat="" lon=""><tag k="local_x" v="{x}"/><tag k="local_y" v="{y}"/></node>' for i, x, y in nodes
    )
    osm_ways = "".join(
        f'<way id="{i}"><nd ref="{a}"/><nd ref="{b}"/><tag k="type" v="{kind}"/></way>'
        for i, a, b, kind in ((910, 901, 902, "stop_line"), (911, 903, 904, "traffic_light"))
    )
    line = '<member type="way" role="ref_line" ref="910"/>' if stop_line else ""
    element = (
        f'<relation id="{LIGHT_GROUP}"><member type="way" role="refers" ref="911"/>{line}'
        '<tag k="type" v="regulatory_element"/><tag k="subtype" v="traffic_light"/></relation>'
    )
    return text.replace("</osm>", f"{osm_nodes}{osm_ways}{element if lights else ''}</osm>")
