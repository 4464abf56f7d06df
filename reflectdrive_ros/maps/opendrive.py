"""Conversion of an OpenDRIVE map (.xodr, .xodr.gz) to a SUMO network.

netconvert makes lanes, connectors, right of way and traffic lights; the drivable surface is drawn from the file
(`opendrive_surface`). A map for traffic on the left is mirrored at its x axis first. Connectors take the shapes of the
file, are shifted where they miss the ends of their lanes, lose the points at which they turn back, and are redrawn
where a car on them would leave the surface.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array
from ..infra.files import MEGABYTE, read_limited
from . import opendrive_surface, roads, sumo, u_turns
from .connectors import U_TURN, cubic, draw, find_connectors, lanes_by_id, parse_shape
from .roads import RoadError, RoadMap, list_unusable
from .sumo_network import NETCONVERT, network_file

MAX_BYTES = 256 * MEGABYTE
OPTIONS = ("--opendrive.internal-shapes",)  # connectors lie where the file draws them
SUFFIXES = (".xodr", ".xodr.gz")
DEFAULT_LIMIT_MPS = 50 / 3.6  # of roads without one
FREE_LIMIT_MPS = 130 / 3.6  # of roads with "no limit"
MAX_GAP_M = 0.05  # a connector further than this from the end of its lane is shifted onto it
MAX_KINK_RAD = np.deg2rad(60.0)  # of a connector at one of its points; no car drives more
HALF_CAR_M = 1.15  # half the width of the ego: a connector whose middle is nearer to the edge of the road is a stray
HANDLE_SHARE = 0.4  # of a redrawn stray: a cubic curve with such handles is almost a quarter of a circle
MIN_GAIN_M = 0.1  # the new curve must be further from the edge than the stray by this
SPIKE_M = 1.0  # from this length on the points beside a spike are removed with it
UNITS = {"m/s": 1.0, "km/h": 1 / 3.6, "mph": 0.44704}
# What a reflection at the x axis negates: attributes by element.
MIRRORED = {
    "geometry": ("y", "hdg"),
    "arc": ("curvature",),
    "spiral": ("curvStart", "curvEnd"),
    "poly3": ("a", "b", "c", "d"),
    "paramPoly3": ("aV", "bV", "cV", "dV"),
    "laneOffset": ("a", "b", "c", "d"),
    "superelevation": ("a", "b", "c", "d"),
    "signal": ("t", "hOffset"),
    "signalReference": ("t",),
    "object": ("t", "hdg"),
    "laneLink": ("from", "to"),
    "validity": ("fromLane", "toLane"),
}
ID_LINKS = ("predecessor", "successor")  # of lanes: by lane id


def load(xodr: Path, folder: Path, max_limit_mps: float | None = None) -> RoadMap:
    """Load a map; its SUMO network is written to `folder`. Speed limits are at most `max_limit_mps`.

    Raises RoadError for a file that cannot be read or has no drivable route, naming the roads and the reason, and
    SumoMissing without SUMO, SumoFailed for a passing cause, OSError.
    """
    root = _read(xodr)
    if _drives_on_the_left(root):
        mirror(root)
    name = xodr.name.removesuffix(".gz").removesuffix(".xodr")
    unusable = _remove_unusable(root)
    surface = opendrive_surface.surface(root)
    _simplify(root, max_limit_mps or FREE_LIMIT_MPS)
    folder.mkdir(parents=True, exist_ok=True)
    net_file = network_file(folder, name)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = Path(scratch) / "map.xodr"
        ElementTree.ElementTree(root).write(source)
        try:
            net = sumo.convert([*NETCONVERT, *OPTIONS, f"--opendrive-files={source}"], Path(scratch))
        except sumo.SumoRefused as fault:
            raise RoadError(
                f"{xodr} cannot be converted to a SUMO network: {fault}{list_unusable('roads', unusable)}"
            ) from None
    u_turns.redraw_u_turns(net)
    _join_connectors(net)
    _remove_spikes(net)
    redraw_strays(net, shapely.union_all([*surface.roads.values(), *surface.junctions.values()]))
    ElementTree.ElementTree(net).write(net_file)
    try:
        road_map = roads.read(net_file, name)
    except RoadError as fault:
        raise RoadError(f"{fault}{list_unusable('roads', unusable)}") from None
    return replace(
        road_map,
        roads={**road_map.roads, **surface.roads},
        junctions=surface.junctions,
        walkways=surface.walkways,
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(xodr: Path) -> Element:
    try:
        content = read_limited(xodr, MAX_BYTES)
        if xodr.suffix == ".gz":
            with gzip.open(BytesIO(content)) as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise RoadError(f"{xodr} holds more than {MAX_BYTES // MEGABYTE} MB: give a smaller map")
        root = ElementTree.fromstring(content)
    except FileNotFoundError:
        raise RoadError(f"{xodr} does not exist: give the .xodr file of an OpenDRIVE map") from None
    except (EOFError, OSError) as fault:
        raise RoadError(f"{xodr} cannot be read: {getattr(fault, 'strerror', None) or fault}") from None
    except ElementTree.ParseError as fault:
        raise RoadError(f"{xodr} cannot be read as an OpenDRIVE map: it is no XML: {fault}") from None
    if root.tag != "OpenDRIVE" or root.find("road") is None:
        raise RoadError(f"{xodr} holds no OpenDRIVE roads: give a map with <OpenDRIVE> and <road> elements")
    return root


def _drives_on_the_left(root: Element) -> bool:
    rules = [road.get("rule", "RHT") for road in root.iter("road")]
    return rules.count("LHT") > len(rules) / 2


def _remove_unusable(root: Element) -> dict[str, list[str]]:
    """Removes roads without geometry and links to roads that the file does not hold; returns the roads that no car can
    use, by reason."""
    unusable: dict[str, list[str]] = {}
    for road in list(root.findall("road")):
        name = road.get("id", "?")
        lanes = [lane for lane in road.iter("lane") if lane.get("type") in opendrive_surface.CAR_LANES]
        if road.find("planView/geometry") is None:
            unusable.setdefault("have no reference line", []).append(name)
            root.remove(road)
        elif not lanes:
            unusable.setdefault("have no lanes for cars", []).append(name)
    ids = {kind: {one.get("id") for one in root.findall(kind)} for kind in ("road", "junction")}
    for link in root.findall("road/link"):
        for end in list(link):
            if end.get("elementId") not in ids.get(end.get("elementType", "road"), ()):
                link.remove(end)
    for junction in root.findall("junction"):
        for connection in junction.findall("connection"):
            if {connection.get("incomingRoad"), connection.get("connectingRoad")} - ids["road"]:
                junction.remove(connection)
    return unusable


def _simplify(root: Element, max_limit_mps: float) -> None:
    """Parking, stopping and turning lanes are no lanes to drive on; each lane has a limit."""
    for road in root.iter("road"):
        for lane in road.iter("lane"):
            if lane.get("type") in opendrive_surface.DRIVABLE - opendrive_surface.CAR_LANES:
                lane.set("type", "none")
        _set_limits(road, max_limit_mps)


def _set_limits(road: Element, max_limit_mps: float) -> None:
    """The limit of the road at each lane, which is where netconvert looks for it; lanes with limits keep theirs."""
    types = [(float(one.get("s", "0")), one.find("speed")) for one in road.findall("type")]
    for section in road.iter("laneSection"):
        here = float(section.get("s", "0"))
        limits = [_limit_mps(speed) for s, speed in types if s <= here + 1e-6 and speed is not None]
        for lane in section.iter("lane"):
            if not lane.findall("speed"):
                ElementTree.SubElement(lane, "speed", {"sOffset": "0", "max": "", "unit": ""})
            for speed in lane.findall("speed"):
                own = _limit_mps(speed) if speed.get("max") else (limits or [DEFAULT_LIMIT_MPS])[-1]
                speed.set("max", f"{min(own, max_limit_mps):.3f}")
                speed.set("unit", "m/s")


def _limit_mps(speed: Element) -> float:
    text = speed.get("max", "")
    if text == "no limit":
        return FREE_LIMIT_MPS
    try:
        value = float(text) * UNITS[speed.get("unit", "m/s")]
    except (ValueError, KeyError):  # undefined, or no number
        return DEFAULT_LIMIT_MPS
    return value if 0 < value <= FREE_LIMIT_MPS else DEFAULT_LIMIT_MPS


# --- left and right ---------------------------------------------------------------------------------------------------


def mirror(root: Element) -> None:
    """Reflects a map at its x axis: traffic on the left becomes traffic on the right, and the reverse."""
    for element in root.iter():
        for key in MIRRORED.get(element.tag, ()):
            if key in element.attrib:
                element.set(key, _negate(element.attrib[key]))
        if element.tag == "road":
            element.set("rule", "LHT" if element.get("rule") == "RHT" else "RHT")
    for section in root.iter("laneSection"):
        for side in ("left", "right"):
            for half in section.findall(side):
                half.tag = f"{side} before"
        for half in section:
            half.tag = {"left before": "right", "right before": "left"}.get(half.tag, half.tag)
        for lane in section.iter("lane"):
            lane.set("id", _negate(lane.get("id", "0")))
            for link in (one for kind in ID_LINKS for one in lane.findall(f"link/{kind}")):
                link.set("id", _negate(link.get("id", "0")))


def _negate(number: str) -> str:
    return number[1:] if number.startswith("-") else number if float(number) == 0 else f"-{number.lstrip('+')}"


# --- connectors -------------------------------------------------------------------------------------------------------


def _join_connectors(net: Element) -> None:
    """Shifts connectors onto the ends of the lanes that they join: maps exist where both are metres apart."""
    lanes = lanes_by_id(net)
    for connector in find_connectors(net):
        source, target = lanes.get(connector.source), lanes.get(connector.target)
        if source is None or target is None:
            continue
        lines = [_points(lanes[key]) for key in connector.parts]
        before, after = _points(source)[-1], _points(target)[0]
        if max(np.hypot(*(lines[0][0] - before)), np.hypot(*(lines[-1][-1] - after))) < MAX_GAP_M:
            continue
        whole = geometry.distinct_points(np.concatenate(lines), closer_than=1e-3)
        length_m = float(geometry.arc_lengths(whole)[-1]) if len(whole) > 1 else 0.0
        at_m = 0.0
        for key, line in zip(connector.parts, lines, strict=True):
            along = at_m + geometry.arc_lengths(line)
            at_m = float(along[-1])
            share = (along / length_m if length_m > 0 else np.linspace(0.0, 1.0, len(line)))[:, None]
            moved = line + (1 - share) * (before - lines[0][0]) + share * (after - lines[-1][-1])
            _set_points(lanes[key], moved)


def _remove_spikes(net: Element) -> None:
    """Removes the points at which connectors turn back: netconvert draws such where lanes are offset, and routes and
    traffic would follow them."""
    for lane in (lane for edge in net.iter("edge") if edge.get("function") == "internal" for lane in edge.iter("lane")):
        points, line = lane.get("shape", "").split(), _points(lane)
        if len(points) > 2 and len(indices := smooth_indices(line)) < len(points):
            _set_shape(lane, [points[index] for index in indices], line[indices])


def redraw_strays(net: Element, road: Any) -> None:
    """Redraws connectors on which a car would leave the road: netconvert bends some out of the surface, and routes
    and traffic would follow them."""
    lanes = lanes_by_id(net)
    shapely.prepare(road)
    for connector in find_connectors(net):
        source, target = lanes.get(connector.source), lanes.get(connector.target)
        if connector.direction == U_TURN or source is None or target is None:
            continue
        margin_m = road_margin_m(road, np.concatenate([_points(lanes[key]) for key in connector.parts]))
        if margin_m >= HALF_CAR_M:
            continue
        curve = cubic(_points(source), _points(target), HANDLE_SHARE)
        if road_margin_m(road, curve) > margin_m + MIN_GAIN_M:
            draw(lanes, connector.parts, curve)


def road_margin_m(road: Any, line: Array) -> float:
    """Smallest distance of a line (V, 2) from the edge of a road; negative where the line lies off it.

    At one point per metre.
    """
    whole = shapely.LineString(line)
    points = shapely.line_interpolate_point(whole, np.linspace(0.0, whole.length, int(whole.length) + 2))
    distances_m = shapely.distance(road.boundary, points)
    return float(np.where(shapely.contains(road, points), distances_m, -distances_m).min())


def smooth_indices(line: Array) -> list[int]:
    """Indices of the points of a line (V, 2) that stay when it may not turn by more than MAX_KINK_RAD at a point.

    The sharpest point is removed first. Of one with sides of SPIKE_M or more, the points within the length of its
    shorter side go, too, so that the line past it has no jog. Both ends stay.
    """
    indices = [
        0,
        *(index for index in range(1, len(line) - 1) if (line[index] != line[index - 1]).any()),
        len(line) - 1,
    ]
    while len(indices) > 2:
        steps = np.diff(line[indices], axis=0)
        lengths_m, headings = np.hypot(*steps.T), np.arctan2(steps[:, 1], steps[:, 0])
        kinks = np.abs(geometry.wrap(np.diff(headings)))
        if kinks.max() <= MAX_KINK_RAD:
            break
        sharpest = int(np.argmax(kinks)) + 1
        reach_m = float(min(lengths_m[sharpest - 1], lengths_m[sharpest]))
        along_m = np.concatenate([[0.0], np.cumsum(lengths_m)])
        gone = np.zeros(len(indices), bool)
        if reach_m >= SPIKE_M:
            gone = (along_m >= along_m[sharpest - 1] - reach_m) & (along_m <= along_m[sharpest + 1] + reach_m)
        gone[sharpest], gone[0], gone[-1] = True, False, False
        indices = [index for index, lost in zip(indices, gone, strict=True) if not lost]
    return indices


def _points(lane: Element) -> Array:
    return parse_shape(lane.get("shape"))


def _set_points(lane: Element, moved: Array) -> None:
    """Sets x and y of a lane's shape and keeps the heights."""
    before: Sequence[list[str]] = [point.split(",") for point in lane.get("shape", "").split()]
    texts = [",".join([f"{x:.3f}", f"{y:.3f}", *old[2:]]) for (x, y), old in zip(moved, before, strict=True)]
    _set_shape(lane, texts, moved)


def _set_shape(lane: Element, points: Sequence[str], line: Array) -> None:
    """Sets the shape of a lane, as texts of its points, and its length, that of the line (V, 2) through them."""
    lane.set("shape", " ".join(points))
    lane.set("length", f"{max(float(shapely.LineString(line).length), 0.1):.3f}")
