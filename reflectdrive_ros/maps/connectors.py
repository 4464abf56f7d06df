"""Connectors and lane shapes in the XML of a SUMO network: search, parsing and redrawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from ..core import geometry
from ..core.domain import Array

POINTS = 33  # of a curve
U_TURN = "t"  # direction of a connector


class Connector(NamedTuple):
    """The lanes inside a junction that lead from one lane to another."""

    source: str  # lane ids
    target: str
    parts: tuple[str, ...]  # lane ids of the connector, in driving order
    direction: str | None  # SUMO's letter: s straight, l left, r right, U_TURN


def lanes_by_id(net: Element) -> dict[str, Element]:
    return {lane.get("id", ""): lane for lane in net.iter("lane")}


def find_connectors(net: Element) -> Iterator[Connector]:
    """All connectors between lanes outside junctions."""
    links = [link for link in net.iter("connection") if link.get("via")]
    onwards = {lane_at(link, "from"): link.get("via", "") for link in links}
    for link in links:
        source = lane_at(link, "from")
        if source.startswith(":"):
            continue
        parts = [link.get("via", "")]
        while parts[-1] in onwards:
            parts.append(onwards[parts[-1]])
        yield Connector(source, lane_at(link, "to"), tuple(parts), link.get("dir"))


def parse_shape(shape: str | None) -> Array:
    """(V, 2) of SUMO's "x,y x,y" or "x,y,z x,y,z"."""
    return np.array([[float(number) for number in point.split(",")[:2]] for point in (shape or "").split()])


def cubic(leaving: Array, reaching: Array, handle: float) -> Array:
    """(POINTS, 2) cubic Bezier from the end of one lane to the start of another, (V, 2) each.

    handle: length of the curve's handles, as a share of the distance between both ends.
    """
    start, stop = leaving[-1], reaching[0]
    reach = handle * np.hypot(*(stop - start))
    ahead = [step / np.hypot(*step) for step in (leaving[-1] - leaving[-2], reaching[1] - reaching[0])]
    controls = np.stack([start, start + reach * ahead[0], stop - reach * ahead[1], stop])
    t = np.linspace(0.0, 1.0, POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=-1)
    return np.asarray(weights @ controls)


def draw(lanes: Mapping[str, Element], parts: Sequence[str], curve: Array) -> None:
    """Draw the lanes of a connector along a curve (V, 2), in the proportion of their present lengths."""
    along = geometry.arc_lengths(curve)
    shares = np.cumsum([0.0, *(float(lanes[part].get("length", "1")) for part in parts)])
    for part, begin, end in zip(parts, shares[:-1] / shares[-1], shares[1:] / shares[-1], strict=True):
        at = np.linspace(begin, end, max(int((end - begin) * POINTS), 2)) * along[-1]
        points = np.column_stack([np.interp(at, along, curve[:, axis]) for axis in (0, 1)])
        lanes[part].set("shape", " ".join(f"{x:.3f},{y:.3f}" for x, y in points))
        lanes[part].set("length", f"{(end - begin) * along[-1]:.3f}")


def lane_at(connection: Element, end: str) -> str:
    """Id of the lane at an end, `from` or `to`, of a connection."""
    return f"{connection.get(end)}_{connection.get(f'{end}Lane')}"
