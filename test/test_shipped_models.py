"""What lies in models/ is what its cards say, and drives."""

from dataclasses import replace
from pathlib import Path

import pytest
from scenes import Clock, later
from test_reflectdrive2 import seen

from reflectdrive_ros.config import Config
from reflectdrive_ros.domain import StepKind, Verdict
from reflectdrive_ros.model.graph_card import GraphCard, sha256_of
from reflectdrive_ros.runtime.engine import Engine

SMALL = Path(__file__).parents[1] / "models/reflectdrive2_small"
GRAPHS = {"fp32": SMALL / "onnx/card.json", "int8": SMALL / "int8/card.json"}


@pytest.mark.parametrize("precision", GRAPHS)
def test_the_graphs_are_those_of_the_weights_beside_them(precision):
    card = GraphCard.read(GRAPHS[precision])
    assert card.precision == precision
    assert card.model["weights_sha256"] == sha256_of(SMALL / "weights.safetensors")


def test_the_default_is_the_graphs_in_float32():
    assert sha256_of(GRAPHS["fp32"]) == Config().model.sha256


def test_eight_bits_have_passed_their_gate_on_a_thousand_scenes():
    gate = GraphCard.read(GRAPHS["int8"]).gate
    assert (gate["passed"], gate["scenes"], gate["limit"]) == (True, 1000, 0.3)
    assert gate["pdms"] >= gate["pdms_fp32"] - 0.3


@pytest.mark.parametrize("precision", GRAPHS)
def test_they_drive_full_and_lite_steps_of_a_car_that_goes_straight_on(precision):
    file = GRAPHS[precision]
    default = Config()
    config = replace(default, model=replace(default.model, file=str(file), sha256=sha256_of(file), threads=1))
    engine, scene = Engine(config, Clock()), seen(speed=8.0)
    assert engine.runs_on.endswith("int8") is (precision == "int8")
    reports = [engine.step(later(scene, 0.1 * k, forward=0.8 * k)) for k in range(4)]
    assert [report.plan.step for report in reports] == [StepKind.FULL, StepKind.LITE] * 2
    assert {report.verdict for report in reports} == {Verdict.OK}
