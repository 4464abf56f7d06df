"""Lanes, lights and stop lines of a stored scene, computed from the stored rings of lanes.

A ring of the proving ground is the outline of a widened centreline, clockwise: from after the start of the left side
around the end of the lane to the start of the right side, and last the start of the left side. The ring therefore gives
the driving direction, and the middle of its sides is the centreline. Speed limits other than that of the ego's lane,
and lights that are not red, are not stored.
"""

from __future__ import annotations

import numpy as np
import shapely

from ..core import geometry
from ..core.domain import Array, LightState, StopLines, TrafficLights
from ..core.lanes import LANE_RADIUS_M, Lane, LaneSegments
from ..scoring.areas import MapAreas, RedLights

SAME_WIDTH_M = 1e-3
APART = (0.999, 2.01)  # widths between the two corners of a bend, which is a mitre joint
UNEVEN_APART = (0.9, 1.1)  # widths between sides with different numbers of corners, at equal shares of their lengths
SIDE_POINTS = 20  # of such sides


def centerline_of(ring: Array) -> Array | None:
    """(V, 2) centreline of a lane's ring (4 or more, 2), in driving direction; None if the ring is not a widened line.

    The end of the lane is the edge across it, of its width, whose neighbouring sides are parallel.
    """
    if len(ring) < 4 or shapely.is_ccw(shapely.linearrings(ring)):
        return None
    start_left, start_right, sides = ring[-1], ring[-2], ring[:-2]
    width_m = float(np.hypot(*(start_left - start_right)))
    if width_m == 0.0:  # the lane starts in a point
        return None
    found: list[tuple[float, Array]] = []
    for end in np.flatnonzero(np.abs(np.hypot(*np.diff(sides, axis=0).T) - width_m) < SAME_WIDTH_M):
        left = np.concatenate([start_left[None], sides[: end + 1]])
        right = np.concatenate([start_right[None], sides[end + 1 :][::-1]])
        least, most = APART
        if len(left) != len(right):  # a corner was cut on one side
            left, right = (_resample(side, SIDE_POINTS) for side in (left, right))
            least, most = UNEVEN_APART
        apart = np.hypot(*(left - right).T) / width_m
        if ((apart >= least) & (apart <= most)).all():
            found.append((float(apart.mean()), 0.5 * (left + right)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _resample(line: Array, count: int) -> Array:
    return geometry.sample(line, np.linspace(0.0, geometry.arc_lengths(line)[-1], count))[:, :2]


def lane_segments(areas: MapAreas) -> LaneSegments:
    """The lanes of a scene, ego frame; their keys are their indices in `areas.lanes`."""
    lanes = {}
    for key, ring in enumerate(areas.lanes):
        centerline = centerline_of(np.asarray(ring))
        if centerline is not None:
            lanes[key] = Lane(centerline, (shapely.Polygon(ring),), (), (), (), None)
    return LaneSegments.of(lanes)


def red_now(areas: MapAreas, red_lights: RedLights) -> tuple[dict[int, int], TrafficLights, StopLines]:
    """LightState by lane key, lights and stop lines: of the lanes of the route that are red at t = 0.

    A lane across a junction starts at its stop line. Lanes with one stop line have one light.
    """
    places = {_key(ring): place for place, ring in enumerate(areas.lanes)}
    lights: dict[int, int] = {}
    lines: list[Array] = []
    for ring, red in zip(red_lights.connectors, red_lights.red, strict=True):
        if not red[0]:
            continue
        if _key(ring) in places:
            lights[places[_key(ring)]] = int(LightState.RED)
        ends = np.stack([ring[-1], ring[-2]])
        if np.hypot(*ends.mean(axis=0)) < LANE_RADIUS_M and not any(np.abs(ends - line).max() < 0.5 for line in lines):
            lines.append(ends)
    lines.sort(key=lambda ends: float(np.hypot(*ends.mean(axis=0))))
    ids = np.arange(len(lines))
    states = np.full(len(lines), int(LightState.RED))
    return lights, TrafficLights(ids, states), StopLines(np.reshape(lines, (-1, 2, 2)), ids)


def _key(ring: Array) -> bytes:
    return np.asarray(ring, float).tobytes()
