"""The denoiser in models/ is what its cards say, and drives along lanes around a car."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scenes import Clock, cars, config, lanes, observation, straight_route

from reflectdrive_ros.core.config import SHIPPED_MODELS, Config
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.network import load_network

FOLDER = Path(__file__).parents[1] / "models/reflexdiffusion_small"
CARD = FOLDER / "onnx/card.json"
LARGEST_BYTES = 8_000_000


def asked(**changes):
    return replace(config(**changes), planner="reflexdiffusion", model=Config(planner="reflexdiffusion").model)


@lru_cache
def network():
    settings = asked()
    return load_network(replace(settings.model, threads=1), settings.decoding)


def drive(seen, **changes):
    return Engine(asked(**changes), Clock(), network=network()).step(seen)


def test_the_planner_drives_on_the_graphs_of_the_weights_beside_them():
    file, sha256 = SHIPPED_MODELS["reflexdiffusion"]
    assert FOLDER.parent.parent / file == CARD
    assert sha256 == sha256_of(CARD)
    card = GraphCard.read(CARD)
    assert card.kind == "denoiser"
    assert card.model["weights_sha256"] == sha256_of(FOLDER / "weights.safetensors")
    assert "guidance" in card.capabilities


def test_no_file_is_large():
    for file in FOLDER.rglob("*"):
        assert not file.is_file() or file.stat().st_size <= LARGEST_BYTES, file


def on_road(**changes):
    road = lanes(*((50.0 * k - 50.0, y, 50.0, 3.5, 13.9, 0) for k in range(4) for y in (0.0, 3.5)))
    route = lanes(*((50.0 * k - 50.0, 0.0, 50.0, 3.5, 13.9, 0) for k in range(4)))
    return observation(speed=8.0, route=straight_route(), lanes=road, route_lanes=route, **changes)


def test_it_does_not_drive_into_a_standing_car():
    report = drive(on_road(agents=cars((25.0, 0.0, 0.0, 0.0))))
    assert report.plan.trajectory.poses[-1, 0] < 25.0


@pytest.mark.parametrize("agents", [None, cars()], ids=["unknown", "none"])
def test_a_car_without_a_map_gets_a_plan_and_is_told(agents):
    report = drive(observation(speed=6.0, route=straight_route(), agents=agents))
    assert len(
        report.plan.trajectory.poses
    )  # the network's, or the stop plan: it has not learned to drive without lanes
    assert any("lanes are unknown" in note for note in report.notes)


def test_without_a_route_it_stops_with_a_sentence():
    report = drive(observation(speed=6.0, route=np.zeros((0, 3)), agents=cars()))
    assert report.source is PlanSource.STOP
    assert "Observation.route is empty" in report.reason
