"""A road network as the proving ground knows it: lanes, junctions, walkways, signals, all in one map frame.

Towns that are made (`towns.py`) and maps that were drawn (`lanelets.py`) both become a SUMO network, and are read back
from it here: what the traffic drives on, the cameras show and the score judges is one and the same geometry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from ..domain import Array
from ..lanes import Lane


class RoadError(ValueError):
    """A network cannot be made or used; the message says which, why and what to do."""


class Turn(IntEnum):
    """Which way a lane leads across a junction."""

    STRAIGHT = 0
    LEFT = 1
    RIGHT = 2
    BACK = 3


class Special(Enum):
    """What a stretch of road was made to be; scenes are sought there."""

    PLAIN = "plain"
    ROUNDABOUT = "roundabout"
    WINDING = "winding"  # curves that take more than a comfortable lateral acceleration at the limit
    NARROW = "narrow"  # two ways, barely two cars wide
    LANE_DROP = "lane_drop"  # a lane ends ahead
    DEAD_END = "dead_end"  # the only way on is back


@dataclass(frozen=True, eq=False)
class RoadLane:
    """A lane that cars may drive, and how SUMO calls it."""

    lane: Lane  # centreline (V, 2), one polygon or more, successors, predecessors, beside; keys of RoadMap.lanes
    sumo_id: str
    edge: str  # SUMO's edge; of a lane across a junction the internal one, which begins with ":"
    index: int  # on its edge, 0 is the rightmost
    width_m: float
    across_junction: str | None  # id of the junction that the lane crosses, None on a road
    turn: Turn  # of lanes across a junction
    special: Special


@dataclass(frozen=True, eq=False)
class Signal:
    """One traffic light: it holds back a lane at its end."""

    tls: str  # SUMO's traffic light
    link: int  # index into its state string
    lane: int  # key of the lane that ends at the light
    connectors: tuple[int, ...]  # keys of the lanes across the junction that it guards
    stop_line: Array  # (2, 2) m, left and right end


@dataclass(frozen=True, eq=False)
class RoadMap:
    """A whole network. Rings are (V, 2), not closed; all metres in the map frame (x east, y north)."""

    name: str  # as `train-00042`, or the name of a drawn map
    net_file: Path  # for SUMO
    lanes: Mapping[int, RoadLane]
    roads: Mapping[str, Any]  # SUMO edge -> shapely Polygon of its drivable lanes together
    junctions: Mapping[str, Any]  # junction -> shapely Polygon
    walkways: tuple[Array, ...]  # rings of sidewalks and corners where people walk beside the road
    crossings: tuple[Array, ...]  # rings of zebra crossings; they lie on the road
    cycleways: tuple[Array, ...]  # rings of lanes for bicycles only
    signals: tuple[Signal, ...]
    edges_after: Mapping[str, tuple[str, ...]]  # road edge -> edges a car can go on to, left to right unordered

    @property
    def by_sumo_id(self) -> Mapping[str, int]:
        """SUMO lane id -> key of `lanes`."""
        return {lane.sumo_id: key for key, lane in self.lanes.items()}
