"""Traffic lights of a recording as the red connectors of its scenes."""

import numpy as np
import pytest
from lanelet_maps import settings
from light_inputs import GREEN, LEFT, RED, lamp
from light_maps import STOP_X_M, crossing
from messages import traffic_lights

from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.core.domain import EgoState
from reflectdrive_ros.data.scene_lanes import red_now
from reflectdrive_ros.dataset.lights import LightRecord, red_ahead, runs_red, stop_lines
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.scoring.areas import MapAreas

X_M = 70.0  # of the rear axle: 28 m before the stop line
ROUTE = np.stack([np.arange(-20.0, 100.0, 2.0), np.zeros(60), np.zeros(60)], axis=-1)


def ego(seconds=10.0):
    return EgoState(round(seconds * 1e9), np.array([X_M, 1.75, 0.0]), 8.0)


@pytest.fixture
def record(tmp_path):
    (tmp_path / "map.osm").write_text(crossing())
    return LightRecord(load_map(settings(tmp_path / "map.osm")), max_age_s=1.0)


def lights_of(record, *messages):
    for seconds, *lamps in messages:
        record.put(traffic_lights(seconds, *lamps, lamp(GREEN, LEFT)))  # those who turn left may go
    return record


def test_a_red_light_of_the_route_is_a_connector_that_begins_at_its_stop_line(record):
    times = np.arange(9.0, 14.5, 0.5)
    lights = lights_of(record, *((seconds, lamp(RED)) for seconds in times)).red_lights(ego(), ROUTE)
    (line,) = stop_lines(lights)
    np.testing.assert_allclose(line, [[STOP_X_M - X_M, 1.75], [STOP_X_M - X_M, -1.75]])
    assert lights.red.all()
    assert red_ahead(lights)


def test_the_states_of_the_next_4_s_follow_the_messages_and_end_with_their_age(record):
    lights_of(record, (9.9, lamp(RED)), (10.9, lamp(RED)), (11.8, lamp(GREEN)), (12.5, lamp(RED)))
    (red,) = record.red_lights(ego(), ROUTE).red
    assert red[:18].all()  # until 11.7 s
    assert not red[18:25].any()
    assert red[25:35].all()  # until 13.5 s, one second after the last message
    assert not red[36:].any()


def test_a_message_after_the_frame_changes_nothing_at_its_stamp(record):
    lights_of(record, (9.9, lamp(GREEN)), (10.05, lamp(RED)))
    (red,) = record.red_lights(ego(), ROUTE).red
    assert not red[0]
    assert red[1]


def test_without_messages_or_with_green_there_is_no_connector(record):
    assert len(record.red_lights(ego(), ROUTE).connectors) == 0
    assert len(lights_of(record, (9.9, lamp(GREEN))).red_lights(ego(), ROUTE).connectors) == 0


def test_planners_on_vectors_read_its_stop_line(record):
    lights = lights_of(record, (9.9, lamp(RED))).red_lights(ego(), ROUTE)
    _, states, lines = red_now(MapAreas(), lights)
    assert len(states.ids) == 1
    np.testing.assert_allclose(lines.ends[0], stop_lines(lights)[0])


def test_a_drive_over_the_stop_line_while_it_is_red_runs_the_light(record):
    lights = lights_of(record, (9.9, lamp(RED)), (10.9, lamp(RED)), (11.9, lamp(GREEN)), (12.8, lamp(GREEN)))
    lights = record.red_lights(ego(), ROUTE)
    at_s = 0.1 * np.arange(41)

    def driven(speed_mps):
        return np.stack([speed_mps * at_s, np.zeros(41), np.zeros(41)], axis=-1)

    vehicle = VehicleConfig()
    nose_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    gap_m = STOP_X_M - X_M - nose_m
    assert runs_red(driven(gap_m / 1.0), lights, vehicle)  # there after 1 s
    assert not runs_red(driven(gap_m / 2.5), lights, vehicle)  # after 2.5 s it is green
    assert not runs_red(driven(1.0), lights, vehicle)
