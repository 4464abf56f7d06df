"""Connectors and lane shapes in the XML of a SUMO network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from ...domain import Array


class Connector(NamedTuple):
    """The lanes inside a junction that lead from one lane to another."""

    source: str  # lane ids
    target: str
    parts: tuple[str, ...]  # lane ids of the connector, in driving order
    direction: str | None  # SUMO's letter: s straight, l left, r right, t U-turn


def find_connectors(net: Element) -> Iterator[Connector]:
    """All connectors between lanes outside junctions."""
    links = [link for link in net.iter("connection") if link.get("via")]
    onwards = {_lane_id(link, "from"): link.get("via", "") for link in links}
    for link in links:
        source = _lane_id(link, "from")
        if source.startswith(":"):
            continue
        parts = [link.get("via", "")]
        while parts[-1] in onwards:
            parts.append(onwards[parts[-1]])
        yield Connector(source, _lane_id(link, "to"), tuple(parts), link.get("dir"))


def parse_shape(shape: str | None) -> Array:
    """(V, 2) of SUMO's "x,y x,y" or "x,y,z x,y,z"."""
    return np.array([[float(number) for number in point.split(",")[:2]] for point in (shape or "").split()])


def _lane_id(link: Element, end: str) -> str:
    return f"{link.get(end)}_{link.get(f'{end}Lane')}"
