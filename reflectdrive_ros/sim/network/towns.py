"""Generated towns: a street plan is written as SUMO plain XML, converted by netconvert and read back.

The same name and seed give the same network, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...maps.roads import RoadMap, RoadType
from ...maps.sumo_network import convert_network, metres_text, shape_text
from .street_plan import Ring, Street, StreetPlan, sample_plan
from .town_styles import KINDS

TOWN_OPTIONS = (
    "--roundabouts.guess=false",  # the plan defines them
    "--junctions.corner-detail=6",
    "--walkingareas",
    "--tls.left-green.time=8",
)
RING_STEP_RAD = np.radians(8)
RING_LIMIT_MPS = 30 / 3.6


def make(name: str, seed: int, folder: Path) -> RoadMap:
    """Generate the town of a name and seed; its network is written to `folder`.

    Raises RoadError when SUMO refuses it or there is no drivable route in it, SumoMissing without SUMO, SumoFailed for
    a passing cause, OSError.
    """
    digest = hashlib.sha256(f"{name} {seed}".encode(errors="surrogatepass")).digest()
    plan = sample_plan(np.random.default_rng(int.from_bytes(digest[:8], "big")))
    return convert_network(name, plain_xml(plan), folder, TOWN_OPTIONS)


@lru_cache(maxsize=4)
def town_hash(road_map: RoadMap) -> str:
    """Hash (16 hex digits) of the lane geometry in millimetres; names are not included."""
    digest = hashlib.sha256()
    for lane in road_map.lanes.values():
        millimetres = np.round(1000 * lane.lane.centerline).astype(np.int64)
        digest.update(np.array([len(millimetres), round(1000 * lane.width_m)], np.int64).tobytes())
        digest.update(millimetres.tobytes())
    return digest.hexdigest()[:16]


def plain_xml(plan: StreetPlan) -> dict[str, str]:
    """A street plan in SUMO's plain XML."""
    nodes = [
        f'<node id="{name}" x="{metres_text(junction.at[0])}" y="{metres_text(junction.at[1])}"'
        f' type="{junction.control}"'
        f' radius="{junction.corner_m:.1f}"/>'
        for name, junction in plan.junctions.items()
    ]
    edges, connections = [], []
    for street in plan.streets:
        edges.append(_edge_xml(street, backwards=False))
        if not street.one_way:
            edges.append(_edge_xml(street, backwards=True))
            connections += _forbid_u_turns(street, plan)
        if street.ends_lane:
            connections += _lane_drop_connections(street)
    for ring in plan.rings:
        edges += _ring_edges(ring)
        connections += _ring_connections(ring, plan.streets)
        if ring.road_type is RoadType.ROUNDABOUT:
            around = " ".join(_ring_edge_names(ring))
            edges.append(f'<roundabout nodes="{" ".join(ring.junctions)}" edges="{around}"/>')
    two_ways = {street.name: not street.one_way for street in plan.streets}
    for street_name, junction in sorted(plan.crossings):
        both = f"{street_name} -{street_name}" if two_ways[street_name] else street_name
        connections.append(f'<crossing node="{junction}" edges="{both}" priority="true" width="3.5"/>')
    types = {road_type.value for road_type in RoadType} | set(KINDS)
    return {
        "types": "\n".join(f'<type id="{name}"/>' for name in sorted(types)),
        "nodes": "\n".join(nodes),
        "edges": "\n".join(edges),
        "connections": "\n".join(connections),
    }


def _edge_xml(street: Street, *, backwards: bool) -> str:
    name, ends, line = street.name, (street.start, street.end), street.line
    if backwards:
        name, ends, line = f"-{name}", ends[::-1], line[::-1]
    road_type = RoadType.PLAIN if backwards and street.ends_lane else street.road_type
    kind = street.kind if road_type is RoadType.PLAIN else road_type.value
    lanes = _lane_attributes(street, backwards=backwards)
    return (
        f'<edge id="{name}" from="{ends[0]}" to="{ends[1]}" type="{kind}" numLanes="{len(lanes)}"'
        f' speed="{street.limit_mps:.3f}" priority="{KINDS[street.kind].priority}"'
        f' spreadType="{"center" if street.one_way else "right"}" shape="{shape_text(line)}">{_lanes_xml(lanes)}</edge>'
    )


def _lanes_xml(lanes: Iterable[str]) -> str:
    return "".join(f'<lane index="{index}" {what}/>' for index, what in enumerate(lanes))


def _roadside_lanes(street: Street) -> list[str]:
    """Lanes to the right of the car lanes: sidewalk, cycleway, shoulder."""
    lanes = [f'width="{street.sidewalk_m}" allow="pedestrian"'] if street.sidewalk_m else []
    lanes += [f'width="{street.cycleway_m}" allow="bicycle"'] if street.cycleway_m else []
    return [*lanes, f'width="{street.shoulder_m}" disallow="all"']


def _lane_attributes(street: Street, *, backwards: bool) -> list[str]:
    """All lanes of one direction, from right to left."""
    lost = "" if backwards else street.lost_lane
    count, verge_m = street.lanes - bool(lost), street.verge_m + (street.width_m if lost == "left" else 0.0)
    others = "pedestrian bicycle" if street.cycleway_m else "pedestrian"
    lanes = _roadside_lanes(street) + [f'width="{street.width_m}" disallow="{others}"'] * count
    if street.one_way:
        lanes.append(f'width="{street.shoulder_m}" disallow="all"')
    if verge_m:
        lanes.append(f'width="{verge_m:.2f}" disallow="all"')
    return lanes


def _forbid_u_turns(street: Street, plan: StreetPlan) -> list[str]:
    """Delete the U-turns that netconvert adds everywhere, except where the plan allows them."""
    u_turns = ((street.end, street.name, f"-{street.name}"), (street.start, f"-{street.name}", street.name))
    return [
        f'<delete from="{one}" to="{other}"/>'
        for junction, one, other in u_turns
        if (street.name, junction) not in plan.turn_back
    ]


def _lane_drop_connections(street: Street) -> list[str]:
    """Connections of the remaining lanes at a lane drop to the continuing street, `name`b."""
    first = len(_roadside_lanes(street))
    ended = int(street.ends_lane == "right")
    lanes = range(first, first + street.lanes - 1)
    ends = f'from="{street.name}" to="{street.name}b"'
    return [f'<connection {ends} fromLane="{lane + ended}" toLane="{lane}"/>' for lane in lanes]


def _ring_edge_names(ring: Ring) -> list[str]:
    return [f"{ring.name}e{index}" for index in range(len(ring.junctions))]


def _ring_edges(ring: Ring) -> list[str]:
    corners = list(zip(ring.junctions, ring.angles, strict=True))
    corners.append((ring.junctions[0], ring.angles[0] + 2 * np.pi))
    lanes = [f'width="{ring.width_m:.2f}" disallow="pedestrian"'] * ring.lanes
    edges = []
    for name, ((start, begin), (end, finish)) in zip(_ring_edge_names(ring), pairwise(corners), strict=True):
        angles = np.linspace(begin, finish, max(3, int((finish - begin) / RING_STEP_RAD)))
        line = ring.center + ring.radius_m * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        edges.append(
            f'<edge id="{name}" from="{start}" to="{end}" type="{ring.road_type.value}" numLanes="{ring.lanes}"'
            f' speed="{RING_LIMIT_MPS:.3f}" priority="12" spreadType="center" shape="{shape_text(line)}">'
            f"{_lanes_xml(lanes)}</edge>"
        )
    return edges


def _ring_connections(ring: Ring, streets: Iterable[Street]) -> list[str]:
    """Deleted connections: a roundabout is left on its rightmost lane only, a turning loop after one round."""
    around = _ring_edge_names(ring)
    if ring.road_type is RoadType.DEAD_END:
        return [f'<delete from="{around[-1]}" to="{around[0]}"/>']
    deleted = []
    for street in streets:
        for name, junction in ((street.name, street.start), (f"-{street.name}", street.end)):
            if junction in ring.junctions and not (street.one_way and name.startswith("-")):
                first = len(_roadside_lanes(street))
                ends = f'from="{around[ring.junctions.index(junction) - 1]}" to="{name}" fromLane="0"'
                deleted += [f'<delete {ends} toLane="{first + lane}"/>' for lane in range(1, street.lanes)]
    return deleted
