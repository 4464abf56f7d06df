"""ReflectDrive's safety-guided regeneration: an unsafe plan is mended where it first goes wrong, and redrawn around it.

    find the earliest unsafe waypoint; try every pair of tokens near it; keep the best as anchors;
    let the network write what comes after in one step; look again

Every pair is tried for the safety of the plan as drawn, for whether a car can follow it and for how smooth it is. The
paper scores all of them and keeps one; here the best few, a stride apart, are kept, all are redrawn in one call of the
network, and what comes of them is scored: it costs less than half, and the redrawn plan is what counts.

The paper leaves open what is redrawn. Here: the anchors, all that lies before the waypoint's predecessor, and the goal
stay; the rest is masked. A goal may be what is wrong, so the same is also tried with the goal masked; and the plan with
nothing but the new pair stands beside the two. A goal beyond a wall is out of reach of any search, and so is the road
where the whole way leads off it: so the plan's own way, braked, and the way along the route stand beside them, which
the paper does not have.

On the car an answer in time is worth more than the best one: late, no second iteration is begun, and the first one
tries the braked way and the route's alone, which takes less than half the time.

No plan is looked at twice, so the loop cannot swing between two boundaries for ever; where an iteration brings nothing
it ends, or with more patience the next one moves the waypoint before. What is returned is the best plan seen, the first
one included: its safety is never below that of the plan that came in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import geometry, kinematics
from ..config import RepairConfig
from ..domain import Array, Observation
from ..scoring.frenet import poses_on_road
from ..scoring.search import around
from ..tokens import Codebook
from .planner import Tools, no_hurry
from .postprocess.waypoints import POINT_DT_S, POINTS, driven
from .safety import SAFE, Known, as_drawn, judged, looked_at, overload, roughness

HURRY = 0.5  # share of the deadline: who is later has no time for a search, nor for a second iteration
BRAKING_MPS2 = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0)

JOINED_S, JOINED_M = 2.0, 6.0  # a car beside its route is on it again after this time, or this way

Redraw = Callable[[Array], Array]  # blocks (M, 16) int32, partly masked -> written full, in one step of the network
PointsOf = Callable[[Array], Array]  # ids (M, 16) -> points (M, 8, 2) m, as the recipe would drive them


@dataclass(frozen=True, eq=False)
class Repaired:
    ids: Array  # (16,) int32
    points: Array  # (8, 2) m
    safe: bool
    iterations: int
    seen: tuple[Array, ...]  # points (8, 2) of the plan that came in and of each that an iteration went on with
    states: Array | None = None  # (41, 11) what the score's car makes of it; None where nothing was looked at


def mended(
    ids: Array,
    points: Array,
    observation: Observation,
    context: Any,
    tools: Tools,
    known: Known | None = None,
    states: Array | None = None,
) -> Repaired:
    """A recipe's plan of ids (16,) and points (8, 2), not smoothed yet, smoothed and, where it is unsafe, repaired.

    Points may be finer than their ids: where an id stays, its point does. `context` is the network's of this scene;
    `known` replaces what follows from the observation; `states` (1, 41, 11) are what the score's car makes of the plan
    as it comes in, where that is known already.
    """
    network = tools.network
    assert network is not None
    codebook = network.codebook
    known = known or Known.of(observation, tools.config)

    def points_of(many: Array) -> Array:
        kept = (many == ids).reshape(len(many), POINTS, 2)
        return driven(np.where(kept, points, codebook.decode(many)), observation.ego, codebook.bin_m, known.road)

    def redraw(actions: Array) -> Array:
        return network.step(context, actions, 2 * POINTS, False)[0]

    if not known.anything:
        return Repaired(ids, points_of(ids[None])[0], True, 0, ())
    return repaired(ids, known, codebook, points_of, redraw, tools.config.repair, tools.spent, states)


def repaired(
    ids: Array,
    known: Known,
    codebook: Codebook,
    points_of: PointsOf,
    redraw: Redraw,
    settings: RepairConfig,
    spent: Callable[[], float] = no_hurry,
    states: Array | None = None,
) -> Repaired:
    """The plan of ids (16,), or a better one if it is unsafe; `spent` is the share of the deadline that is gone."""
    ids = np.asarray(ids, np.int32)
    looks = looked_at(known, points_of(ids[None]), states)
    if looks.safety.worst[0] >= SAFE:
        return Repaired(ids, looks.points[0], True, 0, (looks.points[0],), looks.states[0])
    start = judged(known, looks)
    far_m = float(start.progress_m[0])  # a mended plan need not get further than the first
    tried = {ids.tobytes()}
    present, present_ids = start, ids
    best, best_ids = start, ids
    seen = [start.points[0]]
    anchored = np.zeros(POINTS, bool)
    strain = float(start.overload.max())
    back = iterations = improved_at = 0
    routed = [] if known.route is None else [codebook.encode(on_route(start.points[0], known))]
    while iterations < settings.iterations and not present.sound.all():
        if iterations - improved_at >= settings.patience or (iterations and spent() > HURRY):
            break
        iterations += 1
        wrong = present.safety.waypoints[0] < SAFE
        if not wrong.any():  # it is safe, but no car can follow it
            wrong = ~present.sound[0]
        place = max(int(np.argmax(wrong)) - back, 0)
        asked = [codebook.encode(slower(present.points[0], float(known.scene.motion[0]))), *routed]
        if spent() <= HURRY:
            moved = best_pairs(present_ids, place, tried, strain, known, codebook, points_of, settings)
            if len(moved) == 0:
                if place == 0:
                    break  # the whole neighbourhood has been tried
                back += 1
                continue
            asked = [moved, redraw(masked(moved, place, anchored, codebook.mask_id)), *asked]
        options = fresh(np.concatenate(asked), tried)
        if len(options) == 0:
            break
        found = judged(known, looked_at(known, points_of(options)), far_m)
        chosen = found.best(strain)
        anchored[place] = True
        back = 0 if found.key(chosen) > present.key(0) else back + 1
        present, present_ids = found.one(chosen), options[chosen]
        seen.append(present.points[0])
        if present.key(0) > best.key(0):
            best, best_ids, improved_at = present, present_ids, iterations
    safe = bool(best.safety.worst[0] >= SAFE)
    return Repaired(best_ids, best.points[0], safe, iterations, tuple(seen), best.states[0])


def best_pairs(
    ids: Array,
    place: int,
    tried: set[bytes],
    strain: float,
    known: Known,
    codebook: Codebook,
    points_of: PointsOf,
    settings: RepairConfig,
) -> Array:
    """Ids (M, 16) of plans not tried yet with the best pairs near a waypoint, the best first; may be empty."""
    _, near = around(ids, place, codebook, settings.delta)
    near = near[[row.tobytes() not in tried for row in near]]
    if len(near) == 0:
        return near
    points = points_of(near)
    poses = poses_on_road(points, known.road)
    safety = as_drawn(known, poses)
    order = np.lexsort(
        (
            roughness(known, points).round(6),
            safety.excess.round(3),
            -safety.first_unsafe,
            -safety.worst,
            np.maximum(overload(known, poses).max(axis=1) - strain, 0.0),
        )
    )
    ranked = near[order]
    pairs, kept = ranked[:, 2 * place : 2 * place + 2], list[int]()
    free = np.ones(len(ranked), bool)
    while free.any() and len(kept) < settings.anchors:
        kept.append(int(np.argmax(free)))
        free &= np.abs(pairs - pairs[kept[-1]]).sum(axis=1) >= settings.stride
    return np.asarray(ranked[kept])


def masked(plans: Array, place: int, anchored: Array, mask_id: int) -> Array:
    """Blocks (2 M, 16) of plans (M, 16) to be written anew around a waypoint: with the goal kept, and without."""
    keep = anchored.copy()
    keep[: max(place - 1, 0)] = True
    keep[place] = True
    with_goal = keep.copy()
    with_goal[-1] = True
    actions = [np.where(np.repeat(kept, 2), plans, mask_id) for kept in (with_goal, keep)]
    return np.concatenate(actions).astype(np.int32)


def slower(points: Array, speed_mps: float) -> Array:
    """(6, 8, 2) the way of a plan (8, 2) driven no faster than braking at BRAKING_MPS2 from now on allows."""
    line, along = np.concatenate([np.zeros((1, 2)), points]), _along(points)
    reached = _braked(along, speed_mps)
    return np.stack([np.interp(reached, along, line[:, axis]) for axis in (0, 1)], axis=-1)


def on_route(points: Array, known: Known) -> Array:
    """(7, 8, 2) the way along the route, over which the car comes within JOINED_S, as far as the plan (8, 2) has come
    by then, and braked."""
    assert known.route is not None
    speed_mps = float(known.scene.motion[0])
    (begins_m,), (aside_m,) = geometry.project(known.route, np.zeros((1, 2)))
    along = _along(points)
    reached = np.concatenate([along[None, 1:], _braked(along, speed_mps)])
    poses = geometry.sample(known.route, (begins_m + reached).ravel()).reshape(*reached.shape, 3)
    left = np.clip(1.0 - reached / max(JOINED_S * speed_mps, JOINED_M), 0.0, 1.0)
    aside = aside_m * left**2 * (3.0 - 2.0 * left)
    normal = np.stack([-np.sin(poses[..., 2]), np.cos(poses[..., 2])], axis=-1)
    return np.asarray(poses[..., :2] + aside[..., None] * normal)


def _along(points: Array) -> Array:
    """(9,) metres along the way of a plan (8, 2), now included."""
    return np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0, prepend=np.zeros((1, 2))).T))])


def _braked(along: Array, speed_mps: float) -> Array:
    """(6, 8) metres that a car on a plan `along` (9,) comes, braking at BRAKING_MPS2 from now on if not before."""
    times_s = POINT_DT_S * np.arange(1, POINTS + 1)
    braked = np.stack([kinematics.braking_distances(speed_mps, braking, times_s) for braking in BRAKING_MPS2])
    return np.asarray(np.minimum(braked, along[1:]))


def fresh(options: Array, tried: set[bytes]) -> Array:
    """(M, 16) those options that have not been tried before, which they now have; may be empty."""
    options, kept = np.asarray(options, np.int32), list[int]()
    for place, option in enumerate(options):
        if option.tobytes() not in tried:
            tried.add(option.tobytes())
            kept.append(place)
    return np.asarray(options[kept])
