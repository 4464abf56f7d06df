"""ReflectDrive's safety-guided regeneration: an unsafe plan is mended where it first goes wrong, and redrawn around it.

    find the earliest unsafe waypoint; try every pair of tokens near it; keep the best as an anchor;
    let the network write what comes after in one step; look again

The paper leaves open what is redrawn. Here: the anchors, all that lies before the waypoint's predecessor, and the goal
stay; the rest is masked. A goal may be what is wrong, so the same is also tried with the goal masked, in the same call;
and the plan with nothing but the new pair stands beside the two. The best of the three goes on.

No plan is looked at twice, so the loop cannot swing between two boundaries for ever, and where an iteration brings
nothing the next one moves the waypoint before. What is returned is the best plan seen, the first one included: its
safety is never below that of the plan that came in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import tokens
from ..domain import Array
from ..scoring.search import around
from ..tokens import Codebook
from .safety import SAFE, Judged, Known, as_drawn, judged
from .waypoints import POINTS


@dataclass(frozen=True)
class Settings:
    """The paper's numbers where it tells them."""

    iterations: int = 10  # at most; 0 repairs nothing
    delta: int = 10  # bins, Manhattan: 221 pairs
    scored: int = 64  # of these, the safest as drawn and nearest, are simulated and scored: that is what costs time


Redraw = Callable[[Array], Array]  # blocks (M, 16) int32, partly masked -> written full, in one step of the network
PointsOf = Callable[[Array], Array]  # ids (M, 16) -> points (M, 8, 2) m, as the recipe would drive them


@dataclass(frozen=True, eq=False)
class Repaired:
    ids: Array  # (16,) int32
    points: Array  # (8, 2) m
    safe: bool
    iterations: int
    seen: tuple[Array, ...]  # points (8, 2) of the plan that came in and of each that an iteration went on with


def repaired(
    ids: Array, known: Known, codebook: Codebook, points_of: PointsOf, redraw: Redraw, settings: Settings
) -> Repaired:
    """The plan of ids (16,), or a better one if it is unsafe."""
    ids = np.asarray(ids, np.int32)
    start = judged(known, points_of(ids[None]))
    known = known.measured_by(float(start.progress_m[0]))  # a mended plan need not get further than the first
    tried = {ids.tobytes()}
    present, present_ids = start, ids
    best, best_ids = start, ids
    seen = [start.points[0]]
    anchored = np.zeros(POINTS, bool)
    back = iterations = 0
    while iterations < settings.iterations and present.safety.worst[0] < SAFE:
        iterations += 1
        first = int(np.argmax(present.safety.waypoints[0] < SAFE))
        place = max(first - back, 0)
        moved = best_pair(present_ids, place, tried, known, codebook, points_of, settings)
        if moved is None:
            if place == 0:
                break  # the whole neighbourhood has been tried
            back += 1
            continue
        written = redraw(masked(moved, place, anchored, codebook.mask_id))
        options = fresh([moved, *written], tried)
        found = judged(known, points_of(options))
        chosen = found.best()
        anchored[place] = True
        back = 0 if found.key(chosen) > present.key(0) else back + 1
        present, present_ids = one_of(found, chosen), options[chosen]
        seen.append(present.points[0])
        if present.key(0) > best.key(0):
            best, best_ids = present, present_ids
    return Repaired(best_ids, best.points[0], bool(best.safety.worst[0] >= SAFE), iterations, tuple(seen))


def best_pair(
    ids: Array,
    place: int,
    tried: set[bytes],
    known: Known,
    codebook: Codebook,
    points_of: PointsOf,
    settings: Settings,
) -> Array | None:
    """Ids (16,) with the best pair near a waypoint that makes a plan not tried yet; None where there is none."""
    _, near = around(ids, place, codebook, settings.delta)
    near = near[[row.tobytes() not in tried for row in near]]
    if len(near) == 0:
        return None
    points = points_of(near)
    if len(near) > settings.scored:
        safety = as_drawn(known, tokens.poses_from_points(points))
        order = np.lexsort((safety.excess.round(3), -safety.first_unsafe, -safety.worst))  # then the nearest
        kept = np.sort(order[: settings.scored])
        near, points = near[kept], points[kept]
    return np.asarray(near[judged(known, points).best()])


def masked(ids: Array, place: int, anchored: Array, mask_id: int) -> Array:
    """Blocks (2, 16) to be written anew around a waypoint: with the goal kept, and without."""
    keep = anchored.copy()
    keep[: max(place - 1, 0)] = True
    keep[place] = True
    with_goal = keep.copy()
    with_goal[-1] = True
    return np.where(np.repeat(np.stack([with_goal, keep]), 2, axis=1), ids, mask_id).astype(np.int32)


def fresh(options: list[Array], tried: set[bytes]) -> Array:
    """(M, 16) those options that have not been tried before, which they now have; the first is known to be new."""
    kept = []
    for option in options:
        option = np.asarray(option, np.int32)
        if option.tobytes() not in tried:
            tried.add(option.tobytes())
            kept.append(option)
    return np.stack(kept)


def one_of(found: Judged, place: int) -> Judged:
    here = slice(place, place + 1)
    return Judged(found.points[here], found.safety.one(place), found.quality[here], found.progress_m[here])
