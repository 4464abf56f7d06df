"""Finds scenes of each family in recorded traffic.

Any car of the log may be the ego at any step, so whole tables (step, car) are evaluated at once. A step belongs to a
family by the events around the car in the log, shortly before it or within a few seconds after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...core import geometry
from ...core.domain import Array
from ...data.recorded_tags import within
from ...data.scene import FUTURE_STEPS, HISTORY_STEPS
from ...maps.roads import RoadMap, RoadType, Turn
from ..traffic.actors import ActorShape, Lamp
from ..traffic.traffic_log import TrafficLog

STRIDE = 5  # steps between evaluated moments
HORIZON_STEPS = 40  # steps of a plan of 4 s
REACTION_STEPS = 25  # steps: a lead has braked, a neighbour has changed lanes
EGO_LENGTH_M, EGO_WIDTH_M = (3.9, 5.3), (1.6, 2.1)  # cars of this size may play the ego
MOVING_MPS = 3.0
LEAD_M = (6.0, 38.0)
CUT_IN_M = (3.0, 30.0)
CUT_IN_LEFT_M = (1.6, 12.0)
BICYCLE_M = (4.0, 26.0)
ONCOMING_M = (6.0, 60.0)
PARKED_M = (9.0, 32.0)
LANE_END_M = 90.0
STOP_LINE_M = (6.0, 48.0)
MIN_PULL_OUT_EGO_MPS = 4.0  # no car pulls out in front of a slower ego
CROSSING_M = (4.0, 36.0)
MIN_SPEED_LOSS_MPS = 2.5  # a lead that loses so much within REACTION_STEPS brakes
LATERAL_MPS2 = 2.6
CURVE_RAD = 0.3
STRAIGHT_RAD = 0.06
BACK_RAD = 2.2


@dataclass(frozen=True, eq=False)
class TagCandidates:
    """Moments (log step, actor) by family; a moment may be in several."""

    steps: Array  # (M,) evaluated steps of the log
    egos: Array  # (E,) actors that may play the ego
    masks: Mapping[str, Array]  # family -> (M, E) bool
    scripted: Mapping[str, Array]  # family -> (M, E) parked actor that has to open its door or pull out, -1: none


def find_candidates(log: TrafficLog) -> TagCandidates:
    """All moments of a log that has 2 s of the past and 5 s of the future of them."""
    steps = np.arange(HISTORY_STEPS, log.steps - FUTURE_STEPS - 1, STRIDE)
    egos = np.flatnonzero(
        (log.shapes == ActorShape.CAR)
        & within(log.sizes[:, 0], EGO_LENGTH_M)
        & within(log.sizes[:, 1], EGO_WIDTH_M)
        & np.array([len(edges) > 0 for edges in log.edges], bool)
    )
    context = _road_context(log, steps, egos)
    others = _relative_actors(log, steps, egos)
    masks = {**_tags_by_road(context), **_tags_by_actors(log, steps, egos, context, others)}
    parked = _parked_ahead(log, others)
    passes_parked = context.moving & (parked >= 0) & (context.bend < 0.15) & ~context.junction_soon
    scripted = {"parked_door": parked, "cut_in": np.where(masks["cut_in"], -1, parked)}
    masks["parked_door"] = passes_parked
    masks["cut_in"] = masks["cut_in"] | (passes_parked & (context.speed > MIN_PULL_OUT_EGO_MPS))
    # The plain families exclude all other events.
    busy = ("lead_brakes", "crossing_pedestrian", "red_light")
    plain = ~np.any([masks[name] for name in busy] + [masks["cut_in"] & (scripted["cut_in"] < 0)], axis=0)
    masks["straight"] &= plain
    masks["curve"] &= plain
    return TagCandidates(steps, egos, {name: mask & context.eligible for name, mask in masks.items()}, scripted)


# --- the road ahead of each car --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _RoadContext:
    """(M, E) each: upcoming road features of a car."""

    eligible: Array  # it was present 2 s ago and is on a lane of the map now
    moving: Array
    speed: Array
    bend: Array  # rad, how far it turns within HORIZON_STEPS
    lateral: Array  # m/s^2, the most within HORIZON_STEPS
    turn: Mapping[Turn, Array]  # the car takes such a turn across a junction within HORIZON_STEPS, or is in it
    road_type: Mapping[RoadType, Array]
    junction_soon: Array
    lane_ends: Array  # its lane ends, or does not lead to its destination
    to_stop_line: Array  # m to a red light's stop line on its lane, inf where there is none


def _road_context(log: TrafficLog, steps: Array, egos: Array) -> _RoadContext:
    road_map = log.road_map
    lanes = road_map.lanes
    count = max(lanes, default=0) + 2  # one more for "no lane", which -1 reads
    turn_of, special_of = np.full(count, -1), np.full(count, -1)
    kinds = list(RoadType)
    leads_on = np.ones(count, bool)
    for key, entry in lanes.items():
        special_of[key] = kinds.index(entry.road_type)
        if entry.across_junction is not None:
            turn_of[key] = entry.turn
        leads_on[key] = bool(entry.lane.successors)
    lane = log.lane[:, egos].astype(int)
    poses, speeds = log.poses[:, egos], log.speeds_mps[:, egos]
    heading = _unwrap_headings(poses[..., 2])
    ahead = heading[np.minimum(steps + HORIZON_STEPS, log.steps - 1)]
    bend = np.abs(np.where(np.isfinite(ahead), ahead, heading[steps]) - heading[steps])
    rate = np.abs(np.diff(heading, axis=0, append=heading[-1:])) * 10.0
    lateral = np.nan_to_num(speeds * np.minimum(rate, 1.5))
    present = np.isfinite(poses[..., 0])
    return _RoadContext(
        eligible=present[steps] & present[steps - HISTORY_STEPS] & (lane[steps] >= 0),
        moving=np.nan_to_num(speeds[steps]) > MOVING_MPS,
        speed=np.nan_to_num(speeds[steps]),
        bend=np.nan_to_num(bend),
        lateral=_reduce_ahead(lateral, steps, np.max),
        turn={turn: _reduce_ahead(turn_of[lane] == turn, steps, np.any) for turn in Turn},
        road_type={kind: _reduce_ahead(special_of[lane] == number, steps, np.any) for number, kind in enumerate(kinds)},
        junction_soon=_reduce_ahead(turn_of[lane] >= 0, steps, np.any),
        lane_ends=(_distance_to_lane_end(road_map, lane[steps], poses[steps], leads_on) < LANE_END_M)
        | _must_change_lane(road_map, lane)[steps],
        to_stop_line=_distance_to_red_light(log, steps, lane[steps], poses[steps]),
    )


def _reduce_ahead(values: Array, steps: Array, reduce: object) -> Array:
    """(M, E) of a table (T, E) over the HORIZON_STEPS steps from each of `steps` on."""
    windows = sliding_window_view(values, HORIZON_STEPS, axis=0)
    return np.asarray(reduce(windows[np.minimum(steps, len(windows) - 1)], axis=-1))  # type: ignore[operator]


def _unwrap_headings(headings: Array) -> Array:
    """(T, E) unwrapped, NaN where absent."""
    filled = np.where(np.isfinite(headings), headings, 0.0)
    step = geometry.wrap(np.diff(filled, axis=0))
    both_present = np.isfinite(headings[1:]) & np.isfinite(headings[:-1])
    total = np.concatenate([np.zeros((1, headings.shape[1])), np.cumsum(np.where(both_present, step, 0.0), axis=0)])
    return np.where(np.isfinite(headings), total, np.nan)


def _lane_ends(road_map: RoadMap) -> Array:
    """(K, 2) last point of each lane, NaN for "no lane"."""
    ends = np.full((max(road_map.lanes, default=0) + 2, 2), np.nan)
    for key, lane in road_map.lanes.items():
        ends[key] = lane.lane.centerline[-1]
    return ends


def _distance_to_lane_end(road_map: RoadMap, lane: Array, poses: Array, leads_on: Array) -> Array:
    """(M, E) m to the end of a lane that leads nowhere, inf on all others."""
    distance_m = np.linalg.norm(_lane_ends(road_map)[lane] - poses[..., :2], axis=-1)
    return np.where(leads_on[lane] | ~np.isfinite(distance_m), np.inf, distance_m)


def _must_change_lane(road_map: RoadMap, lane: Array) -> Array:
    """(T, E) bool: the car's lane does not lead to its destination, and it changes lane within a few seconds."""
    next_edges = {
        key: {road_map.lanes[after].edge for after in _next_road_lanes(road_map, key)} for key in road_map.lanes
    }
    edges = {key: entry.edge for key, entry in road_map.lanes.items() if entry.across_junction is None}
    masks = np.zeros(lane.shape, bool)
    for column, keys in enumerate(lane.T.tolist()):
        changes = [step for step in range(1, len(keys)) if keys[step] != keys[step - 1]]
        for step in changes:
            before, after = keys[step - 1], keys[step]
            if edges.get(before) is None or edges.get(before) != edges.get(after):
                continue
            goes_to = next((edges[key] for key in keys[step:] if key in edges and edges[key] != edges[after]), None)
            if goes_to is not None and goes_to not in next_edges[before]:
                begin = step
                while begin > max(step - HORIZON_STEPS, 0) and keys[begin - 1] == before:
                    begin -= 1
                masks[begin:step, column] = True
    return masks


def _next_road_lanes(road_map: RoadMap, key: int) -> list[int]:
    """The road lanes that a lane leads to, across the junction."""
    masks, todo = [], list(road_map.lanes[key].lane.successors)
    while todo:
        lane = todo.pop()
        if road_map.lanes[lane].across_junction is None:
            masks.append(lane)
        else:
            todo += road_map.lanes[lane].lane.successors
    return masks


def _distance_to_red_light(log: TrafficLog, steps: Array, lane: Array, poses: Array) -> Array:
    """(M, E) m from the centre of a car to the stop line of its lane while all its connections are red."""
    ends = _lane_ends(log.road_map)
    has_red = np.zeros((len(steps), len(ends)), bool)
    has_other = np.zeros_like(has_red)
    for index, signal in enumerate(log.road_map.signals):
        red = log.lamps[steps, index] == Lamp.RED
        has_red[:, signal.lane] |= red
        has_other[:, signal.lane] |= ~red
    red = np.take_along_axis(has_red & ~has_other, lane, axis=1)
    distance_m = np.linalg.norm(ends[lane] - poses[..., :2], axis=-1)
    return np.where(red & np.isfinite(distance_m), distance_m, np.inf)


def _tags_by_road(context: _RoadContext) -> dict[str, Array]:
    back = context.turn[Turn.BACK] | (context.road_type[RoadType.DEAD_END] & (context.bend > BACK_RAD))
    ring = context.road_type[RoadType.ROUNDABOUT]
    calm = context.moving & ~ring & ~back & ~context.lane_ends
    crossing = context.turn[Turn.LEFT] | context.turn[Turn.RIGHT]
    rolling = context.speed > 1.0
    return {
        "straight": calm & (context.bend < STRAIGHT_RAD) & ~crossing,
        "curve": calm & ~context.junction_soon & (context.bend > CURVE_RAD),
        "turn_left": rolling & context.turn[Turn.LEFT] & ~ring & (context.bend > 0.5),
        "turn_right": rolling & context.turn[Turn.RIGHT] & ~ring & (context.bend > 0.5),
        "roundabout": rolling & ring & (context.bend > 0.2),
        "u_turn": rolling & back & (context.bend > 1.0),
        "lane_end": context.moving & context.lane_ends,
        "high_lateral_acceleration": context.moving & ~ring & ~crossing & (context.lateral > LATERAL_MPS2),
    }


# --- the others around each car --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _RelativeActors:
    """(M, E, N) each: all actors relative to a car, NaN where absent."""

    ahead: Array  # m, between the middles
    left: Array  # m
    turned: Array  # rad, heading against the car's


def _relative_actors(log: TrafficLog, steps: Array, egos: Array) -> _RelativeActors:
    return _relative_to(log.poses[steps][:, egos], log.poses[steps])


def _relative_to(ego: Array, poses: Array) -> _RelativeActors:
    """Actors (M, N, 3) relative to egos (M, E, 3)."""
    delta = poses[:, None, :, :2].astype(np.float32) - ego[:, :, None, :2].astype(np.float32)
    cos, sin = (f(ego[..., 2]).astype(np.float32)[:, :, None] for f in (np.cos, np.sin))
    turned = np.abs(poses[:, None, :, 2].astype(np.float32) - ego[:, :, None, 2].astype(np.float32))
    return _RelativeActors(
        ahead=delta[..., 0] * cos + delta[..., 1] * sin,
        left=delta[..., 1] * cos - delta[..., 0] * sin,
        turned=np.minimum(turned, np.float32(2 * np.pi) - turned),
    )


def _tags_by_actors(
    log: TrafficLog, steps: Array, egos: Array, context: _RoadContext, others: _RelativeActors
) -> dict[str, Array]:
    ahead, left, turned = others.ahead, others.left, others.turned
    vehicle = np.isin(
        log.shapes, (ActorShape.CAR, ActorShape.VAN, ActorShape.TRUCK, ActorShape.BUS, ActorShape.MOTORCYCLE)
    )
    moved = np.array([len(edges) > 0 for edges in log.edges], bool)
    same_way, oncoming = turned < 0.4, turned > np.pi - 0.4
    now, later = log.speeds_mps[steps], log.speeds_mps[np.minimum(steps + REACTION_STEPS, log.steps - 1)]
    brakes = (now - np.nan_to_num(later, nan=np.inf)) > MIN_SPEED_LOSS_MPS
    quick = context.moving & (context.speed > 4.5)
    straight_on = context.bend < 0.3

    lead = vehicle & moved & within(ahead, LEAD_M) & (np.abs(left) < 1.5) & same_way
    alongside = within(ahead, CUT_IN_M) & within(np.abs(left), CUT_IN_LEFT_M) & (turned < 2.0)  # a side road counts
    cut_in = vehicle & moved & alongside & _cuts_in(log, steps, egos)
    rides = (
        (log.shapes == ActorShape.BICYCLE) & moved & within(ahead, BICYCLE_M) & (np.abs(left) < 2.6) & (turned < 0.8)
    )
    meets = vehicle & moved & within(ahead, ONCOMING_M) & (np.abs(left) < 5.0) & oncoming
    first = ~lead.any(axis=2)
    return {
        "lead_brakes": quick & straight_on & (lead & brakes[:, None]).any(axis=2),
        "cut_in": context.moving & cut_in.any(axis=2),
        "bicycle": context.moving & rides.any(axis=2),
        "narrow_oncoming": context.moving & context.road_type[RoadType.NARROW] & meets.any(axis=2),
        "red_light": quick & within(context.to_stop_line, STOP_LINE_M) & first,
        "crossing_pedestrian": (context.speed > 2.0) & _pedestrian_crosses(log, steps, egos, others),
    }


def _cuts_in(log: TrafficLog, steps: Array, egos: Array) -> Array:
    """(M, E, N): the actor is on none of the car's upcoming lanes, and will soon be on the car's lane."""
    last = log.steps - 1
    now = log.lane[steps]
    mine = [log.lane[np.minimum(steps + after, last)][:, egos] for after in range(0, 70, 10)]
    elsewhere = np.all([now[:, None] != lane[..., None] for lane in mine], axis=0)
    masks = np.zeros(elsewhere.shape, bool)
    for after in (1, 2, 3):
        then = log.lane[np.minimum(steps + 10 * after, last)]
        masks |= (then[:, None] == mine[after][..., None]) & (then[:, None] >= 0)
    return np.asarray(elsewhere & masks)


def _pedestrian_crosses(log: TrafficLog, steps: Array, egos: Array, others: _RelativeActors) -> Array:
    """(M, E) someone on foot will be in front of where the car is now heading, within 3.5 s."""
    people = np.flatnonzero(log.shapes == ActorShape.PEDESTRIAN)
    masks = np.zeros(others.ahead.shape[:2], bool)
    if len(people) == 0:
        return masks
    near = within(others.ahead[..., people], CROSSING_M) & (np.abs(others.left[..., people]) < 9.0)
    ego = log.poses[steps][:, egos]
    for after in (10, 20, 30, 35):
        relative = _relative_to(ego, log.poses[np.minimum(steps + after, log.steps - 1)][:, people])
        walks = np.nan_to_num(log.speeds_mps[np.minimum(steps + after, log.steps - 1)][:, people]) > 0.3
        masks |= (near & within(relative.ahead, CROSSING_M) & (np.abs(relative.left) < 1.4) & walks[:, None]).any(
            axis=2
        )
    return masks


def _parked_ahead(log: TrafficLog, others: _RelativeActors) -> Array:
    """(M, E) index of a parked car ahead on the right that may open its door or pull out, -1: none."""
    cars = np.array([len(edges) == 0 for edges in log.edges], bool) & np.isin(
        log.shapes, (ActorShape.CAR, ActorShape.VAN)
    )
    fits = cars & within(others.ahead, PARKED_M) & within(-others.left, (1.8, 3.6)) & (others.turned < 0.25)
    return np.where(fits.any(axis=2), fits.argmax(axis=2), -1)
