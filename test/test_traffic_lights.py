"""Traffic lights, speed limits and the goal as inputs: which light holds for which lanelet, how long a state is
believed, where its stop line is, and what limit and end the route has."""

from itertools import permutations

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import VelocityLimit
from autoware_perception_msgs.msg import TrafficLightElement
from input_stream import small, status_of
from lanelet_maps import route_message, settings
from light_inputs import (  # noqa: F401 (fixtures)
    AMBER,
    CIRCLE,
    COLOURS,
    FLASHING,
    GREEN,
    LEFT,
    OFF,
    ON,
    RED,
    UNKNOWN,
    UP,
    WHOLE_ROUTE,
    car,
    groups,
    lamp,
    map_writer,
    show,
    snapshot_at,
    state_at,
)
from light_maps import APPROACH, JUNCTION, STOP_X_M, TURNING
from map_archives import archive, map_message
from messages import LIGHT_GROUP, ns, route
from processor_time import in_loops
from rclpy.serialization import serialize_message

from reflectdrive_ros.core.config import Config, ConfigError, override_dotted
from reflectdrive_ros.maps.lanelet_elements import TURNS, MapElements, pack, unpack
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.maps.lanelet_map import MapLights
from reflectdrive_ros.maps.vector_map import read_elements
from reflectdrive_ros.planning.inputs import uses_lights
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.inputs.lights import of_own_turn, state_for_turn
from reflectdrive_ros.ros.inputs.snapshot import Inputs

# --- which lamp holds ------------------------------------------------------------------------------------------------


def test_an_arrow_decides_for_its_own_turn_beside_a_circle_of_another_colour():
    for lamps in permutations((lamp(RED), lamp(GREEN, LEFT))):
        assert state_for_turn(lamps, "left") is GREEN
        assert {state_for_turn(lamps, turn) for turn in ("", "straight", "right")} == {RED}
    lamps = lamp(GREEN), lamp(RED, LEFT)
    assert (state_for_turn(lamps, "left"), state_for_turn(lamps, "straight")) == (RED, GREEN)


@pytest.mark.parametrize(
    ("lamps", "expected"),
    [
        ((lamp(RED), lamp(AMBER)), RED),  # red and amber together: not yet
        ((lamp(GREEN), lamp(RED, status=OFF)), GREEN),
        ((lamp(RED), lamp(GREEN, status=OFF)), RED),
        ((lamp(RED, status=FLASHING),), RED),
        ((lamp(AMBER, status=FLASHING),), UNKNOWN),  # out of order
        ((lamp(GREEN), lamp(RED)), RED),
        ((lamp(GREEN, UP),), UNKNOWN),  # of another direction
        ((lamp(RED, TrafficLightElement.CROSS),), RED),
        ((lamp(GREEN, TrafficLightElement.CROSS),), UNKNOWN),
        ((lamp(GREEN, TrafficLightElement.UP_LEFT_ARROW), lamp(RED)), RED),
        ((lamp(GREEN, TrafficLightElement.UNKNOWN),), UNKNOWN),
        ((TrafficLightElement(color=TrafficLightElement.WHITE, shape=CIRCLE),), UNKNOWN),
        ((TrafficLightElement(color=200, shape=201, status=202),), UNKNOWN),
        ((), UNKNOWN),
    ],
)
def test_lamps_show_a_left_turn(lamps, expected):
    assert state_for_turn(lamps, "left") is expected


def test_adding_a_red_circle_never_opens_a_light():
    some = [lamp(state, shape, status) for state in COLOURS for shape in (CIRCLE, LEFT, UP) for status in (ON, OFF)]
    for one in some:
        for turn in TURNS:
            if state_for_turn((one,), turn) is not GREEN:
                assert state_for_turn((one, lamp(RED)), turn) is not GREEN


# --- stop lines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right_to_left", [False, True])
def test_a_stop_line_has_its_left_end_first_whichever_way_it_is_drawn(write_map, right_to_left):
    lights = load_map(settings(write_map(right_to_left=right_to_left))).lights
    assert sorted(lights.lanelet_ids) == [JUNCTION, TURNING]
    assert set(lights.group_ids) == {LIGHT_GROUP}
    np.testing.assert_allclose(lights.stop_lines, [[[STOP_X_M, 3.5], [STOP_X_M, 0.0]]] * 2)
    assert lights.without_stop_line == 0


def test_a_light_without_a_stop_line_holds_at_the_start_of_its_lanelet(write_map):
    file = write_map(stop_line=False)
    lights = load_map(settings(file)).lights
    np.testing.assert_allclose(lights.stop_lines, [[[100.0, 3.5], [100.0, 0.0]]] * 2)
    inputs = car(file)
    show(inputs, 1.0, lamp(RED))
    status = status_of(inputs, "traffic_lights", 1.0)
    assert status.level is Level.WARN
    assert "2 lights of the map have no stop line" in status.message
    assert status.values["lights_without_stop_line"] == "2"
    assert state_at(inputs, 1.0) is RED


def test_lights_are_the_same_from_the_file_and_from_autowares_topic(write_map):
    file = write_map()
    of_file, of_topic = load_map(settings(file)).lanelets, read_elements(archive(file)).lanelets
    for name, lanelet in of_file.items():
        other = of_topic[name]
        assert (lanelet.turn, [light.group_id for light in lanelet.lights]) == (
            other.turn,
            [light.group_id for light in other.lights],
        )
        for one, two in zip(lanelet.lights, other.lights, strict=True):
            np.testing.assert_allclose(one.stop_line, two.stop_line)


def test_packed_lights_come_back_and_rows_that_do_not_fit_are_refused(write_map):
    packed = pack(MapElements(load_map(settings(write_map(stop_line=False))).lanelets))
    back = unpack(packed).lanelets
    assert [light.stop_line for light in back[JUNCTION].lights] == [None]
    assert (back[TURNING].turn, back[APPROACH].turn, back[APPROACH].lights) == ("left", "", ())
    for name, value in (("light_rows", packed["light_rows"] + 100), ("turns", packed["turns"] + 9)):
        with pytest.raises(ValueError, match="do not fit"):
            unpack(packed | {name: value})


# --- what the planner gets -------------------------------------------------------------------------------------------


def test_the_planner_gets_the_lights_of_its_route_and_not_those_of_another_turn(write_map):
    inputs = car(write_map())
    show(inputs, 1.0, lamp(RED), lamp(GREEN, LEFT))
    scene = snapshot_at(inputs, 1.1).observation
    assert scene.traffic_lights.ids.tolist() == scene.stop_lines.light_ids.tolist() == [JUNCTION]
    assert scene.traffic_lights.states.tolist() == [RED]
    np.testing.assert_allclose(scene.stop_lines.ends, [[[38.0, 1.75], [38.0, -1.75]]], atol=1e-6)
    assert scene.lights_age_s == pytest.approx(0.1)


def test_along_a_path_the_lanelets_that_follow_it_count(write_map):
    inputs = car(write_map(), path=True)
    show(inputs, 1.0, lamp(RED), lamp(GREEN, LEFT))
    scene = snapshot_at(inputs, 1.0).observation
    states = dict(zip(scene.traffic_lights.ids.tolist(), scene.traffic_lights.states.tolist(), strict=True))
    assert states[JUNCTION] == RED
    assert len(scene.stop_lines.ends) == len(states)  # one entry for each lanelet that shares the line
    inputs.store.put("route", route([(float(x), 60.0) for x in range(5, 281)]), 0)
    assert len(snapshot_at(inputs, 1.1).observation.stop_lines.ends) == 0


def test_of_two_turns_behind_one_stop_line_the_light_of_the_routes_own_counts():
    line, other = np.array([[98.0, 1.75], [98.0, -1.75]]), np.array([[198.0, 1.75], [198.0, -1.75]])
    lights = MapLights(
        np.array([1, 2, 3]), np.array([10, 11, 12]), ("straight", "left", "straight"), np.stack([line, line, other]), 0
    )
    assert of_own_turn(lights, {1: 0.01, 2: 0.4, 3: 0.6, 4: 0.0}) == {1, 3, 4}
    assert of_own_turn(lights, {1: 0.5, 2: 0.02}) == {2}
    assert of_own_turn(lights, {1: 0.01, 2: 0.02}) == {1, 2}  # both follow the route: both lights count


def test_without_a_message_or_a_map_lights_are_unknown(write_map):
    inputs = car(write_map())
    scene = snapshot_at(inputs, 1.0).observation
    assert (scene.traffic_lights, scene.stop_lines) == (None, None)
    assert not uses_lights(small(inputs__route_type="path"))
    by_topic = Inputs(small(inputs__route_type="lanelet", inputs__objects_type="none", cameras__required=False))
    show(by_topic, 1.0, lamp(RED))
    assert snapshot_at(by_topic, 1.0).observation is None  # no route without a map
    by_topic.store.put("map", map_message(archive(write_map())), 0)
    by_topic.store.put("route", route_message(*WHOLE_ROUTE), 0)
    by_topic.wait_idle()
    assert state_at(by_topic, 1.1) is RED


def test_a_map_without_lights_needs_no_messages_and_one_with_lights_says_that_they_are_missing(write_map):
    assert status_of(car(write_map(lights=False)), "traffic_lights", 1.0).level is Level.OK
    missing = status_of(car(write_map()), "traffic_lights", 1.0)
    assert (missing.level, missing.message) == (Level.WARN, "traffic_lights: nothing received yet")


def test_vector_planners_get_the_lights_of_their_lanes(write_map):
    inputs = Inputs(
        override_dotted(
            Config(planner="reflexdiffusion"),
            {"inputs.lanelet_map": str(write_map()), "inputs.route_type": "lanelet", "inputs.objects_type": "none"},
        )
    )
    inputs.store.put("route", route_message(*WHOLE_ROUTE), 0)
    assert not snapshot_at(inputs, 0.9).observation.lanes.lights.any()
    show(inputs, 1.0, lamp(RED), lamp(GREEN, LEFT))
    scene = snapshot_at(inputs, 1.0).observation
    assert sorted(scene.lanes.lights[scene.lanes.valid]) == sorted([RED, GREEN, *[0] * (scene.lanes.valid.sum() - 2)])
    assert (scene.route_lanes.lights == RED).sum() == 1


# --- states that are old, missing or flicker -------------------------------------------------------------------------


def test_a_state_is_kept_while_messages_lack_its_group_and_no_longer_than_allowed(write_map):
    inputs = car(write_map(), inputs__max_age_s=("lights=0.5",))
    show(inputs, 1.0, lamp(GREEN))
    for seconds in (1.1, 1.2, 1.4):
        show(inputs, seconds)
        assert state_at(inputs, seconds) is GREEN
    show(inputs, 1.6)
    assert state_at(inputs, 1.6) is UNKNOWN


@pytest.mark.parametrize(
    ("last", "unknown", "after_red", "becomes"),
    [
        (RED, "caution", "stop", RED),
        (RED, "caution", "caution", UNKNOWN),
        (RED, "pass", "pass", UNKNOWN),
        (GREEN, "caution", "stop", UNKNOWN),
        (AMBER, "caution", "stop", UNKNOWN),
    ],
)
def test_an_old_state_is_unknown_and_an_old_red_stays_red_where_the_car_has_to_stop(
    write_map, last, unknown, after_red, becomes
):
    inputs = car(write_map(), lights__unknown=unknown, lights__unknown_after_red=after_red)
    show(inputs, 1.0, lamp(last))
    assert state_at(inputs, 1.9) is last
    assert state_at(inputs, 2.1) is becomes
    assert snapshot_at(inputs, 2.2).observation.lights_age_s == pytest.approx(1.2)
    status = status_of(inputs, "traffic_lights", 2.2)
    assert status.level is Level.WARN
    assert "newest is 1.20 s old, allowed 1.00 s" in status.message


def test_a_policy_after_red_that_equals_the_one_of_unknown_is_refused():
    with pytest.raises(ConfigError, match="unknown_after_red is 'pass', expected stop or 'caution'"):
        override_dotted(Config(), {"lights.unknown_after_red": "pass"})


@pytest.mark.parametrize("state", [RED, AMBER, GREEN])
def test_a_light_that_is_recognised_in_every_other_message_keeps_its_state(write_map, state):
    inputs = car(write_map())
    for k in range(10):
        show(inputs, 1.0 + 0.1 * k, lamp(state if k % 2 == 0 else UNKNOWN))
        assert state_at(inputs, 1.0 + 0.1 * k) is state


def test_every_message_counts_also_those_between_two_plans(write_map):
    inputs = car(write_map())
    for seconds, lamps in ((1.0, (lamp(GREEN),)), (1.05, (lamp(RED),)), (1.1, ())):
        show(inputs, seconds, *lamps)
    assert state_at(inputs, 1.1) is RED
    show(inputs, 1.2, lamp(GREEN))
    assert state_at(inputs, 1.2) is GREEN


def test_a_restart_forgets_the_lights_and_a_state_from_the_future_is_not_believed(write_map):
    inputs = car(write_map())
    show(inputs, 100.0, lamp(RED))
    assert state_at(inputs, 100.0) is RED
    assert snapshot_at(inputs, 1.0).observation.traffic_lights is None
    show(inputs, 5.0, lamp(GREEN))
    assert state_at(inputs, 1.0) is UNKNOWN
    assert "in the future" in status_of(inputs, "traffic_lights", 1.0).message


def test_the_diagnostics_count_groups_and_those_that_the_map_has_not(write_map):
    inputs = car(write_map())
    for k in range(5):
        message = groups(1.0 + 0.1 * k, lamp(GREEN))
        message.traffic_light_groups += groups(1.0, lamp(RED), group=77).traffic_light_groups
        inputs.store.put("lights", message, ns(1.0 + 0.1 * k))
    status = status_of(inputs, "traffic_lights", 1.4)
    assert (status.values["groups"], status.values["groups_not_in_map"]) == ("2", "1")
    assert (status.values["rate_hz"], status.values["age_s"]) == ("10.00", "0.000")
    assert "1 of 2 groups belong to no lanelet of the map" in status.message


def test_a_thousand_lamps_do_not_hold_the_node_and_many_more_are_refused(write_map):
    def of(count):
        message = groups(1.0)
        for key in range(count):
            message.traffic_light_groups += groups(1.0, *[lamp(RED)] * 5, group=key).traffic_light_groups
        return bytes(serialize_message(message))

    whole = of(200)
    assert in_loops(lambda inputs: inputs.store.receive("lights", whole, ns(1.0)), lambda: (car(write_map()),)) < 8.0
    inputs = car(write_map())
    assert inputs.store.receive("lights", whole, ns(1.0)) is not None
    assert inputs.store.receive("lights", of(900), ns(1.1)) is None
    status = status_of(inputs, "traffic_lights", 1.1)
    assert "a message of at least 2005 items is not read, at most 2000 are: send fewer" in status.message


# --- how long red counts ---------------------------------------------------------------------------------------------


def test_a_red_light_is_forgotten_a_minute_after_the_last_message_and_a_warning_counts_down(write_map):
    inputs = car(write_map())
    show(inputs, 1.0, lamp(RED))
    for seconds, left in ((2.5, 58), (31.0, 30), (60.5, 0)):
        assert state_at(inputs, seconds) is RED
        line = status_of(inputs, "traffic_lights", seconds)
        assert line.level is Level.WARN
        assert f"1 groups that were red count as red for {left} s more without messages" in line.message
    assert state_at(inputs, 61.1) is UNKNOWN
    assert status_of(inputs, "traffic_lights", 61.1).level is Level.WARN
    show(inputs, 62.0, lamp(RED))
    assert state_at(inputs, 62.1) is RED


def test_while_messages_come_a_red_light_that_they_do_not_mention_stays_red(write_map):
    """A car that waits close to the line may not see its light."""
    inputs = car(write_map())
    show(inputs, 1.0, lamp(RED))
    for k in range(1, 19):
        show(inputs, 1.0 + 10.0 * k)
        assert state_at(inputs, 1.0 + 10.0 * k) is RED
    assert "more without messages" not in status_of(inputs, "traffic_lights", 181.0).message


def states_after(inputs, jump_m, *seconds, again=None):
    """What a car sees that saw red at 1.0 s and moved by `jump_m` from 1.5 to 1.6 s; `again`: it sees red again."""
    show(inputs, 1.0, lamp(RED))
    snapshot_at(inputs, 1.5, x=40.0)
    states = []
    for when in (1.6, *seconds):
        if again is not None and when >= again:
            show(inputs, again, lamp(RED))
        states.append(state_at(inputs, when, x=40.0 + jump_m))
    return states


def test_after_a_jump_of_localisation_red_counts_for_a_second_more_with_a_warning(write_map):
    inputs = car(write_map())
    assert states_after(inputs, 5.0, 2.5, 2.7) == [RED, RED, UNKNOWN]
    line = status_of(inputs, "traffic_lights", 2.5)
    assert line.level is Level.WARN
    jumped = "localisation jumped: 1 groups that were red count as red for 1 s more, unless they are seen again"
    assert jumped in line.message


def test_a_light_that_is_seen_red_again_after_a_jump_stays_red(write_map):
    assert states_after(car(write_map()), 5.0, 2.0, 2.9, 3.8, 30.0, again=2.0) == [RED] * 5


def test_a_movement_that_is_no_jump_of_localisation_leaves_red_lights_red(write_map):
    assert states_after(car(write_map()), 2.4, 2.5, 3.4, 30.0) == [RED] * 4  # 5 m/s and less than 2 m


# --- limits and goal -------------------------------------------------------------------------------------------------


def limit_at(scene, x):
    """The limit of the route at this distance ahead of the car, m."""
    return scene.route_limits_mps[np.searchsorted(scene.route[:, 0], x, side="right") - 1]


def test_limits_along_the_route_are_those_of_the_map_and_where_it_has_none_the_setting(write_map):
    scene = snapshot_at(car(write_map(), speed_limit_mps=10.0), 1.0).observation
    assert limit_at(scene, 20.0) == pytest.approx(50 / 3.6)
    assert limit_at(scene, 50.0) == 10.0  # inside the junction
    assert limit_at(scene, 80.0) == pytest.approx(30 / 3.6)
    assert scene.speed_limit_mps == pytest.approx(50 / 3.6)


@pytest.mark.parametrize("path", [False, True])
def test_the_operators_limit_holds_everywhere_and_zero_means_stop(write_map, path):
    inputs = car(write_map(), path=path, speed_limit_mps=12.0)
    assert (snapshot_at(inputs, 1.0).observation.route_limits_mps > 5.0).all()
    inputs.store.put("max_velocity", VelocityLimit(max_velocity=4.0), 0)
    scene = snapshot_at(inputs, 1.1).observation
    assert (scene.route_limits_mps == 4.0).all()
    assert scene.speed_limit_mps == 4.0
    inputs.store.put("max_velocity", VelocityLimit(max_velocity=0.0), 0)
    scene = snapshot_at(inputs, 1.2).observation
    assert (scene.route_limits_mps == 0.0).all()
    assert scene.speed_limit_mps == 0.5  # planners divide by it
    status = status_of(inputs, "max_velocity", 1.2)
    assert (status.level, status.values["limit_mps"]) == (Level.OK, "0.00")


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused_and_the_one_before_it_stays(write_map, value):
    inputs = car(write_map())
    inputs.store.put("max_velocity", VelocityLimit(max_velocity=3.0), ns(1.0))
    inputs.store.put("max_velocity", VelocityLimit(max_velocity=value), ns(1.0))
    assert (snapshot_at(inputs, 1.0).observation.route_limits_mps == 3.0).all()
    status = status_of(inputs, "max_velocity", 1.0)
    assert status.level is Level.WARN
    assert f"a limit of {value:g} m/s cannot be used: publish 0 (stop) or more" in status.message


@pytest.mark.parametrize("path", [False, True])
def test_the_route_ends_where_its_goal_is_in_reach(write_map, path):
    inputs = car(write_map(), path=path)
    assert not snapshot_at(inputs, 1.0, x=10.0).observation.route_ends
    scene = snapshot_at(inputs, 1.1, x=100.0).observation
    assert scene.route_ends
    assert scene.route[-1, 0] == pytest.approx(180.0, abs=0.1)


@pytest.mark.parametrize("path", [False, True])
def test_a_car_past_its_goal_asks_for_a_new_one(write_map, path):
    inputs = car(write_map(), path=path)
    assert snapshot_at(inputs, 1.0, x=281.5).observation is not None
    snapshot = snapshot_at(inputs, 1.1, x=283.0)
    assert snapshot.observation is None
    assert snapshot.problems == (
        "route: the car is 3.0 m past the end of its route, at most 2 m are allowed: set a new goal",
    )
    assert snapshot.ego is not None  # enough for a stop plan
    assert snapshot_at(inputs, 1.2, x=279.0).observation is not None
