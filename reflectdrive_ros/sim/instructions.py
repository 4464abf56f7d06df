"""Navigation instructions: the command and one short sentence, from the lanes of the route ahead.

Only junctions with a choice are mentioned: a bend, a joint of two roads or a junction with a single continuation is
part of the road. A dead end is mentioned too, because it requires a U-turn. In a roundabout the choice is the exit: the
command is to continue until the next exit is the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..core import geometry
from ..core.domain import Command
from ..maps.roads import RoadLane, RoadMap, RoadType, Turn

NOTICE_M = 40.0  # a turn is announced this far ahead
FAR_M = 200.0  # the largest roundabout is left by then
CIRCLE_RAD = np.radians(75)  # a lane of a dead end that turns further is part of its turning circle
ROUNDING_M = 10.0  # distances are spoken in these steps; less than half a step is not spoken at all

COMMANDS = {Turn.STRAIGHT: Command.STRAIGHT, Turn.LEFT: Command.LEFT, Turn.RIGHT: Command.RIGHT}
SENTENCES = {
    Turn.STRAIGHT: "go straight at the junction",
    Turn.LEFT: "turn left",
    Turn.RIGHT: "turn right",
    Turn.BACK: "turn back",
}


def next_instruction(road_map: RoadMap, lane_keys: Sequence[int], along_m: float) -> tuple[Command, str]:
    """Command and sentence for a car that is `along_m` metres along the first lane of its route.

    `lane_keys` is the route's lanes from the present one on, lane changes included. Raises ValueError without a lane.
    """
    if len(lane_keys) == 0:
        raise ValueError("instructions.next_instruction got no lane of the route, expected the present one at least")
    starts = _lane_starts(road_map, lane_keys, along_m)
    lane_keys = lane_keys[: len(starts)]
    choices, circles = _junction_choices(road_map), _turning_circles(road_map)
    for index, (start_m, key) in enumerate(zip(starts, lane_keys, strict=True)):
        if start_m > NOTICE_M:
            break
        lane = road_map.lanes[key]
        if lane.road_type is RoadType.ROUNDABOUT:
            return _roundabout(road_map, lane_keys[index:], starts[index:])
        if key in circles:
            return (Command.LEFT if circles[key] > 0 else Command.RIGHT), SENTENCES[Turn.BACK] + _distance_text(start_m)
        if key in choices:
            command = COMMANDS.get(lane.turn, Command.LEFT if _heading_change(lane) > 0 else Command.RIGHT)
            return command, SENTENCES[lane.turn] + _distance_text(start_m)
    return Command.FOLLOW, "follow the road"


def _lane_starts(road_map: RoadMap, lane_keys: Sequence[int], along_m: float) -> list[float]:
    """How far ahead the lanes within FAR_M begin; the target of a lane change begins where the lane before does."""
    starts = [-along_m]
    for key, after in pairwise(lane_keys):
        if starts[-1] > FAR_M:
            break
        lane = road_map.lanes[key].lane
        is_change = after in lane.adjacent and after not in lane.successors
        starts.append(starts[-1] + (0.0 if is_change else float(geometry.arc_lengths(lane.centerline)[-1])))
    return starts


def _roundabout(road_map: RoadMap, lane_keys: Sequence[int], starts: Sequence[float]) -> tuple[Command, str]:
    """`lane_keys` begins with the first lane in the roundabout."""
    ring = 0
    while ring < len(lane_keys) and road_map.lanes[lane_keys[ring]].road_type is RoadType.ROUNDABOUT:
        ring += 1
    if ring == len(lane_keys):  # the exit is beyond the end of `lane_keys`
        return Command.STRAIGHT, "take the roundabout" + _distance_text(starts[0])
    exits = {road_map.lanes[key].edge: index for index, key in enumerate(lane_keys[:ring]) if _has_exit(road_map, key)}
    side, leaving = ("right", Command.RIGHT) if _roundabouts_turn_left(road_map) else ("left", Command.LEFT)
    leave_m = 0.0  # at the exit
    if exits:
        last = list(exits.values())[-1]
        leave_m = starts[last] + float(geometry.arc_lengths(road_map.lanes[lane_keys[last]].lane.centerline)[-1])
    command = leaving if len(exits) < 2 else Command.STRAIGHT
    return command, f"take the roundabout, leave to the {side}" + _distance_text(leave_m)


def _has_exit(road_map: RoadMap, key: int) -> bool:
    """Whether the roundabout has an exit at the end of this lane's edge."""
    lane = road_map.lanes[key]
    if lane.across_junction is not None:
        return False
    onwards = road_map.edges_after.get(lane.edge, ())
    return any(edge not in _ring_edges(road_map) for edge in onwards)


def _heading_change(lane: RoadLane) -> float:
    """Radians that a lane turns from begin to end, left positive."""
    headings = np.unwrap(geometry.headings_along(lane.lane.centerline))
    return float(headings[-1] - headings[0])


def _distance_text(metres: float) -> str:
    rounded = ROUNDING_M * round(metres / ROUNDING_M)
    return f" in {rounded:.0f} m" if rounded > 0 else ""


@lru_cache(maxsize=4)
def _ring_edges(road_map: RoadMap) -> frozenset[str]:
    return frozenset(lane.edge for lane in road_map.lanes.values() if lane.road_type is RoadType.ROUNDABOUT)


@lru_cache(maxsize=4)
def _roundabouts_turn_left(road_map: RoadMap) -> bool:
    """As they do where cars keep to the right."""
    ring = [lane for lane in road_map.lanes.values() if lane.edge in _ring_edges(road_map) and not lane.across_junction]
    return sum(map(_heading_change, ring)) >= 0


@lru_cache(maxsize=4)
def _turning_circles(road_map: RoadMap) -> Mapping[int, float]:
    """Lanes of the circles at dead ends, with those that lead in and out, and how far the circle's lane turns."""
    lanes = road_map.lanes
    turn_by_lane: dict[int, float] = {}
    for key, lane in lanes.items():
        if (
            lane.road_type is RoadType.DEAD_END
            and lane.across_junction is None
            and abs(_heading_change(lane)) > CIRCLE_RAD
        ):
            around = (*lane.lane.predecessors, key, *lane.lane.successors)
            turn_by_lane.update(dict.fromkeys(around, _heading_change(lane)))
    return turn_by_lane


@lru_cache(maxsize=4)
def _junction_choices(road_map: RoadMap) -> frozenset[int]:
    """Lanes across junctions that are one of several continuations, and those of U-turns."""
    lanes = road_map.lanes
    roads_by_connector: dict[str, dict[int, frozenset[str]]] = {}
    for lane in lanes.values():
        if lane.across_junction is None:
            for key in lane.lane.successors:
                if lanes[key].across_junction is not None:
                    roads_by_connector.setdefault(lane.edge, {})[key] = _next_roads(lanes, key)
    choices = set()
    for across in roads_by_connector.values():
        onwards = {road for key, roads in across.items() if lanes[key].turn is not Turn.BACK for road in roads}
        for key in across:
            if len(onwards) > 1 or lanes[key].turn is Turn.BACK:
                choices.update(_junction_chain(lanes, key))
    return frozenset(choices)


def _junction_chain(lanes: Mapping[int, RoadLane], key: int) -> list[int]:
    """A lane across a junction with those that continue it inside the junction."""
    chain, todo = [key], [key]
    while todo:
        for after in lanes[todo.pop()].lane.successors:
            if lanes[after].across_junction is not None and after not in chain:
                chain.append(after)
                todo.append(after)
    return chain


def _next_roads(lanes: Mapping[int, RoadLane], key: int) -> frozenset[str]:
    return frozenset(
        lanes[after].edge
        for inner in _junction_chain(lanes, key)
        for after in lanes[inner].lane.successors
        if lanes[after].across_junction is None
    )
