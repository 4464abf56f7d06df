"""How long an observed red light counts as red: a minute without messages, a second after localisation jumped."""

from light_inputs import RED, UNKNOWN, car, groups, lamp, map_writer, snapshot_at, state_at  # noqa: F401
from light_maps import JUNCTION
from messages import ns

from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.ros.inputs.channel import Level


def lights_line(inputs, seconds):
    return {line.name: line for line in inputs.statuses(ns(seconds))}["traffic_lights"]


def test_a_red_light_is_forgotten_a_minute_after_the_last_message_and_a_warning_counts_down(write_map):
    inputs = car(write_map())
    inputs.store.put("lights", groups(1.0, lamp(RED)), ns(1.0))
    for seconds, left in ((2.5, 58), (31.0, 30), (60.5, 0)):
        assert state_at(inputs, seconds) is RED
        line = lights_line(inputs, seconds)
        assert line.level is Level.WARN
        assert f"1 groups that were red count as red for {left} s more without messages" in line.message
    assert state_at(inputs, 61.1) is UNKNOWN
    assert lights_line(inputs, 61.1).level is Level.WARN
    inputs.store.put("lights", groups(62.0, lamp(RED)), ns(62.0))
    assert state_at(inputs, 62.1) is RED


def test_while_messages_come_a_red_light_that_they_do_not_mention_stays_red(write_map):
    """A car that waits close to the line may not see its light."""
    inputs = car(write_map())
    inputs.store.put("lights", groups(1.0, lamp(RED)), ns(1.0))
    for k in range(1, 19):
        inputs.store.put("lights", groups(1.0 + 10.0 * k), ns(1.0 + 10.0 * k))
        assert state_at(inputs, 1.0 + 10.0 * k) is RED
    assert "more without messages" not in lights_line(inputs, 181.0).message


def states_after(inputs, jump_m, *seconds, again=None):
    """What a car sees that saw red at 1.0 s and moved by `jump_m` from 1.5 to 1.6 s; `again`: it sees red again."""
    inputs.store.put("lights", groups(1.0, lamp(RED)), ns(1.0))
    snapshot_at(inputs, 1.5, x=40.0)
    states = []
    for when in (1.6, *seconds):
        if again is not None and when >= again:
            inputs.store.put("lights", groups(again, lamp(RED)), ns(again))
        lights = snapshot_at(inputs, when, x=40.0 + jump_m).observation.traffic_lights
        states.append(LightState(int(lights.states[lights.ids.tolist().index(JUNCTION)])))
    return states


def test_after_a_jump_of_localisation_red_counts_for_a_second_more_with_a_warning(write_map):
    inputs = car(write_map())
    assert states_after(inputs, 5.0, 2.5, 2.7) == [RED, RED, UNKNOWN]
    line = lights_line(inputs, 2.5)
    assert line.level is Level.WARN
    jumped = "localisation jumped: 1 groups that were red count as red for 1 s more, unless they are seen again"
    assert jumped in line.message


def test_a_light_that_is_seen_red_again_after_a_jump_stays_red(write_map):
    assert states_after(car(write_map()), 5.0, 2.0, 2.9, 3.8, 30.0, again=2.0) == [RED] * 5


def test_a_movement_that_is_no_jump_of_localisation_leaves_red_lights_red(write_map):
    assert states_after(car(write_map()), 2.4, 2.5, 3.4, 30.0) == [RED] * 4  # 5 m/s and less than 2 m
