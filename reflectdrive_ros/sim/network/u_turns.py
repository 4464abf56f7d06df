"""U-turn connectors with a drivable shape; those of netconvert meet their lanes at too sharp an angle."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import numpy as np

from ... import geometry
from ...domain import Array
from .connectors import find_connectors, parse_shape

HANDLE_SHARE = 2 / 3  # of the distance between the lanes: a cubic curve with such handles is almost half a circle
POINTS = 33


def redraw_u_turns(net: Element) -> None:
    """Replace the shape of every U-turn connection of a network by a near half circle across its lanes."""
    lanes = {lane.get("id", ""): lane for lane in net.iter("lane")}
    for connector in find_connectors(net):
        if connector.direction != "t":
            continue
        curve = _u_turn_curve(*(parse_shape(lanes[lane].get("shape")) for lane in (connector.source, connector.target)))
        along = geometry.arc_lengths(curve)
        shares = np.cumsum([0.0, *(float(lanes[part].get("length", "1")) for part in connector.parts)])
        for part, begin, end in zip(connector.parts, shares[:-1] / shares[-1], shares[1:] / shares[-1], strict=True):
            at = np.linspace(begin, end, max(int((end - begin) * POINTS), 2)) * along[-1]
            points = np.column_stack([np.interp(at, along, curve[:, axis]) for axis in (0, 1)])
            lanes[part].set("shape", " ".join(f"{x:.3f},{y:.3f}" for x, y in points))
            lanes[part].set("length", f"{(end - begin) * along[-1]:.3f}")


def _u_turn_curve(leaving: Array, reaching: Array) -> Array:
    """(POINTS, 2) cubic Bezier from the end of one lane to the start of another, (V, 2) each."""
    start, stop = leaving[-1], reaching[0]
    reach = HANDLE_SHARE * np.hypot(*(stop - start))
    ahead = [step / np.hypot(*step) for step in (leaving[-1] - leaving[-2], reaching[1] - reaching[0])]
    controls = np.stack([start, start + reach * ahead[0], stop - reach * ahead[1], stop])
    t = np.linspace(0.0, 1.0, POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=-1)
    return np.asarray(weights @ controls)
