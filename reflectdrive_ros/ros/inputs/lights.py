"""Traffic lights: what a group of lamps shows to a lanelet, the last known states, and their part of an observation.

Autoware publishes one group for each regulatory element of the map. A message lacks groups that no camera sees, and
lamps may be unrecognised for some frames: the last known state counts until it is older than `lights` of
`inputs.max_age_s`.
Red counts longer where `lights.unknown_after_red` is stop, but not for ever: see `LightMemory.state`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core import geometry
from ...core.domain import Array, EgoState, LightState, StopLines, TrafficLights
from ...maps.lanelet_elements import TURNS
from ...maps.lanelet_map import MapLights
from .channel import CLOCK_TOLERANCE_S, InputStatus, Level

# autoware_perception_msgs/TrafficLightElement
COLOURS = {1: LightState.RED, 2: LightState.AMBER, 3: LightState.GREEN}
CIRCLE, CROSS = 1, 10
ARROWS = {"left": 2, "right": 3, "straight": 4}  # diagonal arrows and those for lanes (down) permit no turn
SOLID_OFF, FLASHING = 1, 3
CAUTIOUS_FIRST = (LightState.RED, LightState.AMBER, LightState.UNKNOWN, LightState.GREEN)
SAME_WAY_M = 0.05  # lanelets whose distances to the route differ by less follow it alike
RED_STAYS_S = 60.0  # without any message of lights: then their sender has failed, and the light may have changed
NO_MAP = "without a map their stop lines are unknown, and the car does not stop at them"
REACH_M = 250.0  # stop lines further away than the route handed to the planner are left out


def state_for_turn(elements: Iterable[Any], turn: str) -> LightState:
    """What the elements of a TrafficLightGroup show to a lanelet with this turn (`lanelet_elements.TURNS`).

    An arrow that points in the direction of the turn decides over the circle: a green arrow permits the turn beside a
    red circle. A red cross counts as a red circle, flashing amber (the lights are out of order) as UNKNOWN. Lamps that
    are off, of an unknown colour or shape, and arrows of other directions do not count. Of several lamps the most
    restrictive one counts.
    """
    lit = [element for element in elements if element.status != SOLID_OFF]
    arrows = [_state(element) for element in lit if element.shape == ARROWS.get(turn)]
    circles = [_state(element) for element in lit if element.shape in (CIRCLE, CROSS)]
    states = [state for state in arrows if state is not LightState.UNKNOWN] or circles
    return most_restrictive(states)


def _state(element: Any) -> LightState:
    state = COLOURS.get(int(element.color), LightState.UNKNOWN)
    if element.shape == CROSS and state is not LightState.RED:
        return LightState.UNKNOWN
    if element.status == FLASHING and state is LightState.AMBER:
        return LightState.UNKNOWN
    return state


def most_restrictive(states: Collection[LightState]) -> LightState:
    """RED before AMBER, UNKNOWN and GREEN; UNKNOWN without any."""
    return min(states, key=CAUTIOUS_FIRST.index, default=LightState.UNKNOWN)


def states_by_group(message: Any) -> dict[int, dict[str, LightState]]:
    """Group id -> turn -> state, of a TrafficLightGroupArray. A group that occurs twice has the elements of both."""
    elements: dict[int, list[Any]] = {}
    for group in message.traffic_light_groups:
        elements.setdefault(int(group.traffic_light_group_id), []).extend(group.elements)
    return {key: {turn: state_for_turn(some, turn) for turn in TURNS} for key, some in elements.items()}


@dataclass
class LightMemory:
    """The last known state of each group and turn."""

    max_age_s: float  # a state that is older is UNKNOWN
    red_stays: bool  # except for RED, which then stays RED until `state` says otherwise
    last_known: dict[tuple[int, str], tuple[int, LightState]] = field(default_factory=dict)  # (stamp, state)
    newest: frozenset[int] = frozenset()  # groups of the newest message
    stamp_ns: int | None = None  # of the newest message; None: none has arrived
    jump_ns: int | None = None  # of the odometry that showed the last jump of localisation; None: none has jumped

    def put(self, stamp_ns: int, states: Mapping[int, Mapping[str, LightState]]) -> None:
        """A state that is UNKNOWN does not replace the last known one."""
        self.stamp_ns, self.newest = stamp_ns, frozenset(states)
        for group, by_turn in states.items():
            for turn, state in by_turn.items():
                if state is not LightState.UNKNOWN:
                    self.last_known[group, turn] = stamp_ns, state

    def state(self, group: int, turn: str, now_ns: int) -> LightState:
        """The last known state; UNKNOWN where it is older than `max_age_s`.

        Where `red_stays`, RED stays RED: for RED_STAYS_S after the newest message and, seen before a jump of
        localisation, which may have taken one light for another, for `max_age_s` after the jump.
        """
        stamp_ns, state = self.last_known.get((group, turn), (now_ns, LightState.UNKNOWN))
        if -CLOCK_TOLERANCE_S <= (now_ns - stamp_ns) * 1e-9 <= self.max_age_s:
            return state
        if not self.red_stays or state is not LightState.RED or self.red_left_s(now_ns) <= 0.0:
            return LightState.UNKNOWN
        jumped_since = self.jump_ns is not None and stamp_ns <= self.jump_ns < now_ns - self.max_age_s * 1e9
        return LightState.UNKNOWN if jumped_since else LightState.RED

    def red_left_s(self, now_ns: int) -> float:
        """How much longer RED stays RED if no message comes, s; 0 or less: it does not any more."""
        return RED_STAYS_S if self.stamp_ns is None else RED_STAYS_S - (now_ns - self.stamp_ns) * 1e-9

    def by_lanelet(self, lights: MapLights, now_ns: int) -> dict[int, LightState]:
        """The state by lanelet id of every lanelet with a light; of several lights the most restrictive."""
        states_by_lanelet: dict[int, list[LightState]] = {}
        for lanelet, group, turn in zip(
            lights.lanelet_ids.tolist(), lights.group_ids.tolist(), lights.turns, strict=True
        ):
            states_by_lanelet.setdefault(lanelet, []).append(self.state(group, turn, now_ns))
        return {lanelet: most_restrictive(states) for lanelet, states in states_by_lanelet.items()}

    def of_lanelet(self, lights: MapLights, lanelet: int, now_ns: int) -> tuple[int, LightState] | None:
        """The most restrictive of the lights of a lanelet, by group and state; None if it has none."""
        rows = np.flatnonzero(lights.lanelet_ids == lanelet).tolist()
        states = [
            (group, self.state(group, lights.turns[row], now_ns))
            for row, group in zip(rows, lights.group_ids[rows].tolist(), strict=True)
        ]
        return min(states, key=lambda one: CAUTIOUS_FIRST.index(one[1]), default=None)

    def red_groups(self, now_ns: int) -> frozenset[int]:
        """The groups that are RED for some turn."""
        return frozenset(group for group, turn in self.last_known if self.state(group, turn, now_ns) is LightState.RED)

    def unmatched(self, lights: MapLights) -> int:
        """How many groups of the newest message belong to no lanelet of the map."""
        return len(self.newest.difference(lights.group_ids.tolist()))


def of_own_turn(lights: MapLights, away_m: Mapping[int, float]) -> frozenset[int]:
    """Of lanelets that share a stop line, those nearest to the route; of the others all.

    `away_m` has the mean distance of each lanelet to the route. The first metres of two turns look alike, but only one
    of them is the route's.
    """
    nearest: dict[bytes, float] = {}
    lines = [line.round(2).tobytes() for line in lights.stop_lines]
    for line, key in zip(lines, lights.lanelet_ids.tolist(), strict=True):
        nearest[line] = min(nearest.get(line, np.inf), away_m.get(key, np.inf))
    other_turns = {
        key
        for line, key in zip(lines, lights.lanelet_ids.tolist(), strict=True)
        if away_m.get(key, np.inf) > nearest[line] + SAME_WAY_M
    }
    return frozenset(away_m) - other_turns


def lights_of_route(
    lights: MapLights, states: Mapping[int, LightState], on_route: Collection[int], ego: EgoState
) -> tuple[TrafficLights, StopLines]:
    """Lights and stop lines of the lanelets `on_route` within REACH_M, ego frame, nearest first; ids are lanelet ids.

    A stop line that lanelets of different turns share occurs once for each of them.
    """
    ends = geometry.transform_points(geometry.invert(ego.map_from_ego), lights.stop_lines)
    away_m = np.hypot(*ends.mean(axis=1).T)
    order = np.argsort(away_m, kind="stable")
    rows: Array = order[(away_m[order] < REACH_M) & np.isin(lights.lanelet_ids[order], list(on_route))]
    ids = list(dict.fromkeys(lights.lanelet_ids[rows].tolist()))  # each once: a lanelet may have two lights
    return (
        TrafficLights(np.array(ids, np.int64), np.array([int(states[each]) for each in ids], np.int64)),
        StopLines(ends[rows], lights.lanelet_ids[rows]),
    )


def lines_near(stop_lines: Array, odometry: tuple[int, Any] | None) -> int:
    """How many of the stop lines (K, 2, 2), map frame, are within REACH_M of the car; all where it is unknown."""
    if odometry is None:
        return len(stop_lines)
    here = odometry[1].pose.pose.position
    away_m = np.hypot(*(stop_lines.mean(axis=1) - (here.x, here.y)).T)
    return int(np.count_nonzero(~(away_m >= REACH_M)))  # NaN counts as near


def lights_status(
    status: InputStatus, memory: LightMemory, lights: MapLights | None, lost_stop_lines: int, now_ns: int
) -> InputStatus:
    """The status of the channel with what the lights and the map have to do with each other. `lights`: None without a
    map. `lost_stop_lines`: how many an earlier map had near the car that this one does not have. A map without lights
    needs no messages."""
    if lights is None:
        return status.with_remark(NO_MAP)
    unmatched = memory.unmatched(lights)
    values = status.values | {
        "groups": str(len(memory.newest)),
        "groups_not_in_map": str(unmatched),
        "lights_in_map": str(len(lights.lanelet_ids)),
        "lights_without_stop_line": str(lights.without_stop_line),
        "lost_stop_lines": str(lost_stop_lines),
    }
    if memory.stamp_ns is None and not len(lights.lanelet_ids) and not lost_stop_lines:
        return replace(status, level=Level.OK, message="the map has no traffic lights", values=values)
    remarks = []
    if lost_stop_lines:
        remarks.append(
            f"{lost_stop_lines} stop lines within {REACH_M:g} m are in an earlier map but not in the newest, and the "
            "car does not stop at them: publish a map that has them, or start the node again if they are gone"
        )
    red = memory.red_groups(now_ns)
    if red and memory.stamp_ns is not None and (now_ns - memory.stamp_ns) * 1e-9 > memory.max_age_s:
        remarks.append(
            f"{len(red)} groups that were red count as red for {memory.red_left_s(now_ns):.0f} s more without messages"
        )
    if unmatched:
        remarks.append(
            f"{unmatched} of {len(memory.newest)} groups belong to no lanelet of the map: use the map of the sender"
        )
    if lights.without_stop_line:
        remarks.append(
            f"{lights.without_stop_line} lights of the map have no stop line, the start of their lanelet is used: add "
            "ref_line"
        )
    status = replace(status, values=values)
    return status.with_remark("; ".join(remarks)) if remarks else status
