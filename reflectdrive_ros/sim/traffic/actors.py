"""Road users at one instant as arrays in the map frame, from SUMO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from ...core.domain import AgentKind, Array
from ...core.field_checks import check_array


class ActorShape(IntEnum):
    """Shape of a road user; its size is stored separately."""

    CAR = 0
    VAN = 1
    TRUCK = 2
    BUS = 3
    MOTORCYCLE = 4
    BICYCLE = 5
    PEDESTRIAN = 6
    CONE = 7
    BARRIER = 8
    DOOR = 9  # of a parked car, open


KIND_OF_SHAPE: Mapping[ActorShape, AgentKind] = {
    ActorShape.CAR: AgentKind.VEHICLE,
    ActorShape.VAN: AgentKind.VEHICLE,
    ActorShape.TRUCK: AgentKind.VEHICLE,
    ActorShape.BUS: AgentKind.VEHICLE,
    ActorShape.MOTORCYCLE: AgentKind.VEHICLE,
    ActorShape.BICYCLE: AgentKind.BICYCLE,
    ActorShape.PEDESTRIAN: AgentKind.PEDESTRIAN,
    ActorShape.CONE: AgentKind.STATIC,
    ActorShape.BARRIER: AgentKind.STATIC,
    ActorShape.DOOR: AgentKind.STATIC,
}


def kinds_of_shapes(shapes: Array) -> Array:
    """(A,) AgentKind of (A,) ActorShape."""
    return np.array([KIND_OF_SHAPE[shape] for shape in ActorShape])[shapes]


class Lamp(IntEnum):
    """State of a traffic light."""

    RED = 0
    AMBER = 1
    GREEN = 2
    OFF = 3


@dataclass(frozen=True, eq=False)
class Actors:
    """Road users at one instant; `ids` are stable over a run, and the appearance of an actor depends on its id only."""

    ids: Array  # (A,) int64
    poses: Array  # (A, 3) box centres, x m, y m, heading rad, map frame
    speeds_mps: Array  # (A,) along the heading
    sizes: Array  # (A, 3) length, width, height m
    shapes: Array  # (A,) ActorShape
    braking: Array  # (A,) bool, brake lights on
    indicator: Array  # (A,) int: 1 left, -1 right, 0 none, 2 both

    def __post_init__(self) -> None:
        count = len(np.atleast_1d(self.ids))
        for name, shape, dtype in (
            ("ids", (count,), np.int64),
            ("poses", (count, 3), np.float64),
            ("speeds_mps", (count,), np.float64),
            ("sizes", (count, 3), np.float64),
            ("shapes", (count,), np.int64),
            ("braking", (count,), np.bool_),
            ("indicator", (count,), np.int64),
        ):
            object.__setattr__(self, name, check_array("Actors", name, getattr(self, name), shape, dtype))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def kinds(self) -> Array:
        """(A,) AgentKind."""
        return kinds_of_shapes(self.shapes)

    def select(self, keep: Array) -> Actors:
        """Those of a mask or of indices."""
        return Actors(
            self.ids[keep],
            self.poses[keep],
            self.speeds_mps[keep],
            self.sizes[keep],
            self.shapes[keep],
            self.braking[keep],
            self.indicator[keep],
        )

    def concatenate(self, others: Actors) -> Actors:
        return Actors(
            *(
                np.concatenate([getattr(self, name), getattr(others, name)])
                for name in ("ids", "poses", "speeds_mps", "sizes", "shapes", "braking", "indicator")
            )
        )

    @staticmethod
    def none() -> Actors:
        return Actors(
            np.zeros(0, np.int64),
            np.zeros((0, 3)),
            np.zeros(0),
            np.zeros((0, 3)),
            np.zeros(0, np.int64),
            np.zeros(0, bool),
            np.zeros(0, np.int64),
        )


@dataclass(frozen=True, eq=False)
class TrafficSnapshot:
    """The world at one instant, without the ego."""

    time_s: float
    actors: Actors
    lamps: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (S,) Lamp of RoadMap.signals

    def __post_init__(self) -> None:
        object.__setattr__(self, "lamps", check_array("Snapshot", "lamps", self.lamps, (None,), np.int64))
