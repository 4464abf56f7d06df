"""U-turn connectors with a drivable shape; those of netconvert meet their lanes at too sharp an angle."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from .connectors import U_TURN, cubic, draw, find_connectors, lanes_by_id, parse_shape

HANDLE_SHARE = 2 / 3  # of the distance between the lanes: a cubic curve with such handles is almost half a circle


def redraw_u_turns(net: Element) -> None:
    """Replace the shape of every U-turn connection of a network by a near half circle across its lanes."""
    lanes = lanes_by_id(net)
    for connector in find_connectors(net):
        if connector.direction == U_TURN:
            leaving, reaching = (parse_shape(lanes[key].get("shape")) for key in (connector.source, connector.target))
            draw(lanes, connector.parts, cubic(leaving, reaching, HANDLE_SHARE))
