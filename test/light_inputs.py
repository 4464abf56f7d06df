"""A car that drives towards a traffic light: lamps, messages, and what its inputs hold."""

import pytest
from autoware_perception_msgs.msg import TrafficLightElement, TrafficLightGroupArray
from input_stream import small
from lanelet_maps import route_message
from light_maps import APPROACH, EXIT, JUNCTION, crossing
from messages import LIGHT_GROUP, acceleration, ns, odometry, route, traffic_lights

from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.inputs.snapshot import Inputs

UNKNOWN, GREEN, AMBER, RED = LightState
COLOURS = {
    UNKNOWN: TrafficLightElement.UNKNOWN,
    GREEN: TrafficLightElement.GREEN,
    AMBER: TrafficLightElement.AMBER,
    RED: TrafficLightElement.RED,
}
CIRCLE, LEFT, UP = TrafficLightElement.CIRCLE, TrafficLightElement.LEFT_ARROW, TrafficLightElement.UP_ARROW
ON, OFF, FLASHING = TrafficLightElement.SOLID_ON, TrafficLightElement.SOLID_OFF, TrafficLightElement.FLASHING
WHOLE_ROUTE = ((APPROACH, JUNCTION, EXIT), (5.0, 1.75), (280.0, 1.75))


def lamp(state, shape=CIRCLE, status=ON):
    return TrafficLightElement(color=COLOURS[state], shape=shape, status=status, confidence=1.0)


def groups(seconds, *lamps, group=LIGHT_GROUP):
    """A message with one group of these lamps; with none a message without groups."""
    return traffic_lights(seconds, *lamps, group=group) if lamps else TrafficLightGroupArray(stamp=stamp(seconds))


def show(inputs, seconds, *lamps):
    """Puts such a message into inputs."""
    inputs.store.put("lights", groups(seconds, *lamps), ns(seconds))


def stamp(seconds):
    return outputs.time_message(ns(seconds))


@pytest.fixture(name="write_map")
def map_writer(tmp_path):
    """Writes a map and gives its path."""

    def write(**how):
        file = tmp_path / "crossing.osm"
        file.write_text(crossing(**how))
        return file

    return write


def car(file, path=False, **more):
    """Inputs of a car without images on a map; it drives from x = 5 m to x = 280 m."""
    kind = {"inputs__drivable_type": "map"} if path else {"inputs__route_type": "lanelet"}
    config = small(inputs__lanelet_map=str(file), inputs__objects_type="none", cameras__required=False, **kind, **more)
    inputs = Inputs(config)
    line = route([(float(x), 1.75) for x in range(5, 281)])
    inputs.store.put("route", line if path else route_message(*WHOLE_ROUTE), 0)
    return inputs


def snapshot_at(inputs, seconds, x=60.0, speed=5.0, **where):
    """The planner's snapshot of a car at this position and time."""
    inputs.store.put("odometry", odometry(seconds, x=x, y=1.75, speed=speed, **where), ns(seconds))
    inputs.store.put("acceleration", acceleration(seconds), ns(seconds))
    return inputs.snapshot(ns(seconds))


def state_at(inputs, seconds, **where):
    """The state of the light of the junction."""
    lights = snapshot_at(inputs, seconds, **where).observation.traffic_lights
    return LightState(int(lights.states[lights.ids.tolist().index(JUNCTION)]))
