"""Positions relative to the line of the route: along, lateral and in the corridor, as `geometry` projects them."""

import numpy as np
import pytest
import torch
from scenes import cars, lanes, observation, straight_route, turning_route

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.features.vectors import vector_inputs
from reflectdrive_ros.model.denoiser.net import DenoiserNetConfig
from reflectdrive_ros.model.route_features import (
    ALONG_MAX_M,
    ALONG_SCALE_M,
    FRONT_M,
    SPEED_SCALE_MPS,
    TIMES_S,
    project,
    route_features,
    route_line,
)

SPEC = VectorSpec(agents=6, lanes=8, route_lanes=6, route_line_rows=3, predicted_agents=2, future_steps=40)


def tensors(**changes):
    inputs = vector_inputs(observation(**{"route": straight_route(), **changes}), SPEC)
    return {name: torch.from_numpy(values)[None] for name, values in inputs.arrays.items()}


def features(**changes):
    inputs = tensors(**changes)
    line = route_line(inputs["route_lanes"], SPEC.route_line_rows)
    return route_features(inputs["agents"], inputs["static_objects"], inputs["lanes"], line)


@pytest.mark.parametrize("route", [straight_route(), turning_route(radius=25.0)], ids=["straight", "turn"])
def test_projections_are_those_of_geometry(route):
    line = route_line(tensors(route=route)["route_lanes"], SPEC.route_line_rows)
    start, _ = geometry.ego_on_route(route)
    rng = np.random.default_rng(0)
    at = start + rng.uniform(2.0, 60.0, 40)
    left = rng.uniform(-4.0, 4.0, 40)
    poses = geometry.sample(route, at)
    points = poses[:, :2] + left[:, None] * np.stack([-np.sin(poses[:, 2]), np.cos(poses[:, 2])], axis=1)
    along, lateral, inside = project(line, torch.from_numpy(points.astype(np.float32))[None])
    expected, offset = geometry.project(route, points)
    np.testing.assert_allclose(along[0], expected - start, atol=0.6)
    np.testing.assert_allclose(lateral[0], offset, atol=0.4)
    assert (inside[0][np.abs(offset) < 0.3] > 0.8).all()
    assert (inside[0][np.abs(offset) > 3.6] < 0.1).all()


def test_a_car_ahead_is_a_gap_with_its_speed_and_one_off_the_route_is_none():
    ahead = features(agents=cars((30.0, 0.0, 0.0, 5.0)))
    gap, speed = ahead.ego[0, 0] * ALONG_SCALE_M, ahead.ego[0, len(TIMES_S)] * SPEED_SCALE_MPS
    half = 0.5 * float(cars((30.0, 0.0, 0.0, 5.0)).sizes[0, 0])
    assert float(gap) == pytest.approx(30.0 - half - FRONT_M, abs=1.0)
    assert float(speed) == pytest.approx(5.0, abs=0.2)
    later = ahead.ego[0, : len(TIMES_S)] * ALONG_SCALE_M
    np.testing.assert_allclose(np.diff(later.numpy()), 5.0, atol=0.5)  # a metre per second and m/s
    lateral_car = features(agents=cars((30.0, 6.0, 0.0, 5.0)))
    assert float(lateral_car.ego[0, 0] * ALONG_SCALE_M) > 90.0
    behind = features(agents=cars((-15.0, 0.0, 0.0, 5.0)))
    assert float(behind.ego[0, 0] * ALONG_SCALE_M) == pytest.approx(ALONG_MAX_M)


def test_a_crossing_car_is_in_the_corridor_when_it_gets_there():
    crossing = features(agents=cars((20.0, -10.0, np.pi / 2, 5.0)))
    gaps = crossing.ego[0, : len(TIMES_S)] * ALONG_SCALE_M
    assert int(gaps.argmin()) == 2  # after two seconds
    assert float(gaps[0]) > 60.0


def test_a_red_lane_on_the_route_is_a_stop_and_a_green_one_is_none():
    red = lanes((25.0, 0.0, 20.0, 3.5, 10.0, LightState.RED))
    green = lanes((25.0, 0.0, 20.0, 3.5, 10.0, LightState.GREEN))
    stop, none = (float(features(lanes=some).ego[0, -1] * ALONG_SCALE_M) for some in (red, green))
    assert stop == pytest.approx(25.0 - FRONT_M, abs=1.0)
    assert none == pytest.approx(ALONG_MAX_M)


def test_an_empty_scene_has_zeros_and_no_gap():
    empty = features(agents=cars())
    for part in (empty.agents, empty.static_objects, empty.lanes):
        assert (part == 0.0).all()
    np.testing.assert_allclose(empty.ego[0, : len(TIMES_S)] * ALONG_SCALE_M, ALONG_MAX_M)


def test_a_scene_without_a_route_is_finite():
    inputs = tensors(agents=cars((30.0, 0.0, 0.0, 5.0)))
    line = route_line(torch.zeros_like(inputs["route_lanes"]), SPEC.route_line_rows)
    without_route = route_features(inputs["agents"], inputs["static_objects"], inputs["lanes"], line)
    assert all(torch.isfinite(part).all() for part in without_route)


def test_a_network_with_these_features_needs_the_line_of_the_route():
    with pytest.raises(ValueError, match="route_features is set without route_line_rows"):
        DenoiserNetConfig(VectorSpec(), route_features=True)
