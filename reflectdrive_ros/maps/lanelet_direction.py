"""Lanelet2 maps that are drawn against the direction of travel.

lanelet2 takes the bound on the left as the left one, whatever its role, and so drives such lanelets backwards. There
are three kinds: maps in left-handed coordinates (y to the south, as CARLA's), maps whose left and right bounds are
swapped, and single lanelets with swapped bounds. The direction of travel is then that in which both bounds are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from scipy.spatial import cKDTree

from ..core import geometry
from ..core.domain import Array

BACKWARD_SHARE = 0.8  # of lanelets drawn against the direction of travel: more are no mistakes of single lanelets
ONCOMING_M = 6.0  # between the middles of a lane and of the lane beside it
OPPOSITE_RAD = np.radians(150)
SWAPPED_ROLES = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class Change:
    """The correction of a map's driving direction."""

    mirror: bool  # y is negated
    swap: frozenset[int]  # lanelets whose left and right bounds change their roles


def needed_change(lanelet_map: Any) -> Change | None:
    """The change that a map as loaded by lanelet2 needs; None for none."""
    lanelets = [one for one in lanelet_map.laneletLayer if min(len(one.leftBound), len(one.rightBound)) > 1]
    backward = [one for one in lanelets if _is_backward(*_drawn_bounds(one))]
    if lanelets and len(backward) > BACKWARD_SHARE * len(lanelets):
        if _oncoming_on_the_left(backward):
            return Change(mirror=False, swap=frozenset(one.id for one in backward))
        return Change(mirror=True, swap=frozenset())
    swap = _find_isolated(lanelets, backward)
    return Change(mirror=False, swap=swap) if swap else None


def _drawn_bounds(lanelet: Any) -> tuple[Any, Any]:
    """The left and the right bound in the order in which their points are drawn; lanelet2 inverts both where it thinks
    they are drawn backwards."""
    left, right = (side.invert() if side.inverted() else side for side in (lanelet.leftBound, lanelet.rightBound))
    return left, right


def _is_backward(left: Any, right: Any) -> bool:
    """Whether the left bound lies on the right in the direction of both; False where they are drawn in opposite
    directions."""
    (l0, l1), (r0, r1) = _ends(left), _ends(right)
    if np.hypot(*(l0 - r0)) + np.hypot(*(l1 - r1)) > np.hypot(*(l0 - r1)) + np.hypot(*(l1 - r0)):
        return False
    x, y = np.concatenate([line_points(left), line_points(right)[::-1]]).T
    return bool(np.dot(x, np.roll(y, -1)) > np.dot(np.roll(x, -1), y))  # anticlockwise


def line_points(line: Any) -> Array:
    """(V, 2) points of a lanelet2 line."""
    return np.array([(point.x, point.y) for point in line])


def _ends(side: Any) -> Array:
    return line_points(side)[[0, -1]]


def _oncoming_on_the_left(lanelets: Sequence[Any]) -> bool:
    """Whether traffic keeps to the right where lanelets are driven as drawn: oncoming lanes lie to the left."""
    middles = [_middle(*_drawn_bounds(one)) for one in lanelets]
    heads = [geometry.headings_along(line) for line in middles]
    at = np.array([line[len(line) // 2] for line in middles])
    heading = np.array([head[len(head) // 2] for head in heads])
    pairs = cKDTree(at).query_pairs(ONCOMING_M, output_type="ndarray")
    one, other = np.concatenate([pairs, pairs[:, ::-1]]).T
    opposite = np.abs(geometry.wrap(heading[one] - heading[other])) > OPPOSITE_RAD
    away = (at[other] - at[one])[opposite]
    left = np.stack([-np.sin(heading[one]), np.cos(heading[one])], axis=1)[opposite]
    return bool((np.sign((away * left).sum(axis=1))).sum() > 0)


def _middle(left: Any, right: Any) -> Array:
    """(3, 2) the mean of the bounds at their ends and middles."""
    sides = [line_points(side) for side in (left, right)]
    return np.asarray(0.5 * sum(side[[0, len(side) // 2, -1]] for side in sides))


def _find_isolated(lanelets: Sequence[Any], backward: Sequence[Any]) -> frozenset[int]:
    """Lanelets drawn against the direction of travel that join others only with their bounds swapped."""
    begins = Counter((one.leftBound[0].id, one.rightBound[0].id) for one in lanelets)
    ends = Counter((one.leftBound[-1].id, one.rightBound[-1].id) for one in lanelets)
    isolated = set()
    for one in backward:
        begin, end = (one.leftBound[0].id, one.rightBound[0].id), (one.leftBound[-1].id, one.rightBound[-1].id)
        left, right = _drawn_bounds(one)
        joins_swapped = ends[right[0].id, left[0].id] + begins[right[-1].id, left[-1].id]
        if joins_swapped and not ends[begin] + begins[end]:
            isolated.add(int(one.id))
    return frozenset(isolated)


def rewrite(source: Path, target: Path, change: Change) -> None:
    """Writes the changed map to `target`."""
    tree = ElementTree.parse(source)
    root = tree.getroot()
    if change.mirror:
        for node in root.iter("node"):
            node.set("lat", repr(-float(node.get("lat") or "0")))
            for tag in node.iter("tag"):
                if tag.get("k") == "local_y":
                    tag.set("v", repr(-float(tag.get("v", "0"))))
    for relation in root.iter("relation"):
        if int(relation.get("id", "0")) in change.swap:
            for member in relation.iter("member"):
                member.set("role", SWAPPED_ROLES.get(member.get("role", ""), member.get("role", "")))
    tree.write(target)
