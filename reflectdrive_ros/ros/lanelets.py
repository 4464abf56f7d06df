"""Lanelets as plain arrays: out of lanelet2's objects, and packed to go from one process to another.

Imports neither lanelet2 nor anything heavy, so that the short-lived process that reads Autoware's map starts quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..domain import Array

KMH, MPH = 1 / 3.6, 0.44704  # m/s

NOT_FOR_CARS = ("crosswalk", "walkway", "shared_walkway", "stairs", "bicycle_lane")


@dataclass(frozen=True)
class Lanelet:
    """One lanelet in the map frame, metres. Its bounds may have either direction."""

    left: Array  # (A, 2)
    right: Array  # (B, 2)
    centerline: Array  # (C, 2), empty if the map has none
    for_cars: bool
    limit_mps: float  # NaN where the map has none
    left_z_m: Array  # (A,) elevation of the left bound's points
    right_z_m: Array  # (B,)


def lanelets_of(lanelet2_map: Any) -> dict[int, Lanelet]:
    """All lanelets of a lanelet2.core.LaneletMap, by id."""
    found = {}
    for lanelet in lanelet2_map.laneletLayer:
        tags = lanelet.attributes
        found[int(lanelet.id)] = Lanelet(
            line_points(lanelet.leftBound),
            line_points(lanelet.rightBound),
            line_points(lanelet.centerline if lanelet.centerline.id else ()),  # one that lanelet2 made up has no id
            for_cars=not ("subtype" in tags and tags["subtype"] in NOT_FOR_CARS),
            limit_mps=speed_mps(tags["speed_limit"]) if "speed_limit" in tags else np.nan,
            left_z_m=line_elevation(lanelet.leftBound),
            right_z_m=line_elevation(lanelet.rightBound),
        )
    return found


def line_points(line: Any) -> Array:
    """(N, 2) points of a lanelet2 line."""
    return np.array([(point.x, point.y) for point in line], float).reshape(-1, 2)


def line_elevation(line: Any) -> Array:
    """(N,) z of the points of a lanelet2 line: the tag `ele`, 0 where a point has none."""
    return np.array([point.z for point in line], float)


def speed_mps(text: str) -> float:
    """The tag speed_limit: km/h unless its unit is mph; NaN for any other text."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(km/h|kmh|mph|)\s*", text)
    return float(found[1]) * (MPH if found[2] == "mph" else KMH) if found else float("nan")


# --- packed ----------------------------------------------------------------------------------------------------------


def pack(lanelets: Mapping[int, Lanelet]) -> dict[str, Array]:
    """A few flat arrays: all points one after the other, and where each line of each lanelet ends; elevations of the
    bounds' points likewise."""
    lines = [line for lanelet in lanelets.values() for line in (lanelet.left, lanelet.right, lanelet.centerline)]
    return {
        "ids": np.array(list(lanelets), np.int64),
        "points": np.concatenate([np.zeros((0, 2)), *lines]),
        "ends": np.cumsum([len(line) for line in lines], dtype=np.int64),
        "for_cars": np.array([lanelet.for_cars for lanelet in lanelets.values()], bool),
        "limits_mps": np.array([lanelet.limit_mps for lanelet in lanelets.values()], float),
        "z_m": np.concatenate(
            [np.zeros(0), *(z for each in lanelets.values() for z in (each.left_z_m, each.right_z_m))]
        ),
    }


def unpack(arrays: Mapping[str, Array]) -> dict[int, Lanelet]:
    """The lanelets of packed arrays. Raises ValueError if the arrays do not fit together."""
    ids, points, ends = arrays["ids"], arrays["points"], arrays["ends"]
    for_cars, limits_mps, z_m = arrays["for_cars"], arrays["limits_mps"], arrays["z_m"]
    count = len(ids)
    whole = (
        ends.shape == (3 * count,)
        and for_cars.shape == limits_mps.shape == (count,)
        and points.shape == (ends[-1] if count else 0, 2)
        and [array.dtype.kind for array in (ids, points, ends, for_cars, limits_mps, z_m)] == [*"ifibff"]
        and (np.diff(ends, prepend=0) >= 0).all()
        and z_m.shape == (np.diff(ends, prepend=0).reshape(count, 3)[:, :2].sum(),)
    )
    if not whole:
        raise ValueError("the arrays do not fit together")
    lines = np.split(points, ends[:-1])
    elevations = np.split(z_m, np.cumsum(np.diff(ends, prepend=0).reshape(count, 3)[:, :2])[:-1])
    return {
        int(name): Lanelet(
            left=lines[3 * k],
            right=lines[3 * k + 1],
            centerline=lines[3 * k + 2],
            for_cars=bool(for_cars[k]),
            limit_mps=float(limits_mps[k]),
            left_z_m=elevations[2 * k],
            right_z_m=elevations[2 * k + 1],
        )
        for k, name in enumerate(ids)
    }
