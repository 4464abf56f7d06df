"""The denoiser in models/ is what its cards say, and drives along lanes around a car."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from scenes import Clock, cars, config, lanes, observation, straight_route

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.network import load_network


def planner_config(**changes):
    return replace(config(**changes), planner="reflexdiffusion", model=Config(planner="reflexdiffusion").model)


@lru_cache
def network():
    settings = planner_config()
    return load_network(replace(settings.model, threads=1), settings.decoding)


def drive(scene, **changes):
    return Engine(planner_config(**changes), Clock(), network=network()).step(scene)


def on_road(**changes):
    road = lanes(*((50.0 * k - 50.0, y, 50.0, 3.5, 13.9, 0) for k in range(4) for y in (0.0, 3.5)))
    route = lanes(*((50.0 * k - 50.0, 0.0, 50.0, 3.5, 13.9, 0) for k in range(4)))
    return observation(speed=8.0, route=straight_route(), lanes=road, route_lanes=route, **changes)


def test_it_does_not_drive_into_a_standing_car():
    report = drive(on_road(agents=cars((25.0, 0.0, 0.0, 0.0))))
    assert report.plan.trajectory.poses[-1, 0] < 25.0


@pytest.mark.parametrize("agents", [None, cars()], ids=["unknown", "none"])
def test_a_car_without_a_map_gets_a_plan_and_a_note(agents):
    report = drive(observation(speed=6.0, route=straight_route(), agents=agents))
    assert len(
        report.plan.trajectory.poses
    )  # the network's, or the stop plan: it has not learned to drive without lanes
    assert any("lanes are unknown" in note for note in report.notes)


def test_without_a_route_it_stops_with_a_sentence():
    report = drive(observation(speed=6.0, route=np.zeros((0, 3)), agents=cars()))
    assert report.source is PlanSource.STOP
    assert "Observation.route is empty" in report.reason
