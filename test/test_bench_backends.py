"""`doctor --measure`: every file of a model on every backend, and which one to configure."""

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import commands
import pytest
from rich.console import Console
from shipped_planner import GRAPHS, SMALL

from reflectdrive_ros.bench import backends, network_steps
from reflectdrive_ros.bench.backends import Measured, advice, fastest
from reflectdrive_ros.cli import doctor
from reflectdrive_ros.core.config import Config, ConfigError, override_dotted
from reflectdrive_ros.infra.files import sha256_of

FP32 = Measured(str(GRAPHS["fp32"]), "onnxruntime", "fp32", 40.0, 20.0, 1.0)
INT8 = Measured(str(GRAPHS["int8"]), "onnxruntime", "int8", 30.0, 15.0, 0.9)
TORCH = Measured(str(SMALL / "weights.safetensors"), "torch", "fp32", 90.0, 50.0, 1.0)
NOT_RUN = Measured("nowhere/card.json", "tensorrt", "fp32", reason="there is no GPU")


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(backends, "STEPS", 1)
    monkeypatch.setattr(backends, "SCENES", 1)
    monkeypatch.setattr(network_steps, "WARM_UP", 1)


def test_the_fastest_with_the_plans_of_float32_is_named_and_a_faster_one_with_its_price():
    rows = [NOT_RUN, TORCH, FP32, INT8]
    assert fastest(rows, exact=True) is FP32
    assert fastest(rows, exact=False) is INT8
    text = advice(rows)
    assert f"Fastest with the plans of float32: model.file={FP32.file} model.sha256={sha256_of(GRAPHS['fp32'])}" in text
    assert "int8 is 25 % faster and writes 90.0 % of their ids (PDMS 86.6 beside 86.2 on 500 scenes of val)" in text
    assert "faster and writes" not in advice([FP32, TORCH])
    assert advice([NOT_RUN]) == "No backend runs this model: see the reasons above."


def test_weights_and_graphs_of_the_default_planner_are_timed_and_write_the_same_plans(tmp_path, capsys):
    commands.run(doctor, "--measure", "--setting", "model.threads=1", "--json", tmp_path / "doctor.json")
    rows = json.loads((tmp_path / "doctor.json").read_text())["backends"]
    has_openvino = importlib.util.find_spec("openvino") is not None
    assert [(row["backend"], row["precision"]) for row in rows] == [
        ("onnxruntime", "fp32"),
        *[("openvino", "fp32")] * has_openvino,
        ("onnxruntime", "int8"),
        *[("openvino", "int8")] * has_openvino,
        ("torch", "fp32"),
    ]
    assert {row["same_plans"] for row in rows if row["precision"] == "fp32"} == {1.0}
    assert min(row[kind] for row in rows if not row["reason"] for kind in ("full_ms", "lite_ms")) > 0.0
    printed = capsys.readouterr().out
    assert "Fastest with the plans of float32" in printed
    assert f"A node with model.backend auto uses it from now on: {tmp_path}/" in printed


def test_of_several_planners_each_has_its_rows_and_its_advice(monkeypatch):
    rows = [replace(FP32, planner="reflectdrive2"), replace(TORCH, planner="drivefine")]
    _, *sentences = backends.report(rows)
    assert [sentence.partition(":")[0] for sentence in sentences] == ["reflectdrive2", "drivefine"]
    monkeypatch.setattr(backends, "files_and_backends", lambda model: [(Path(model.file).absolute(), "onnxruntime")])
    config = override_dotted(Config(), {"planner": "reflexdiffusion+drivefine", "model.threads": 1})
    measured = backends.measure(config, Console(quiet=True))
    assert [(row.planner, row.runs, row.same_plans) for row in measured] == [
        ("reflexdiffusion", True, 1.0),
        ("drivefine", True, 1.0),
    ]


def test_graphs_that_do_not_load_have_a_reason_and_the_weights_are_timed(tmp_path):
    shutil.copytree(SMALL.parent / "reflexdiffusion_small", tmp_path / "copy")
    (tmp_path / "copy" / "onnx" / "denoiser.onnx").write_bytes(b"no graph")
    weights = tmp_path / "copy" / "weights.safetensors"
    model = {"model.file": str(weights), "model.sha256": sha256_of(weights), "model.threads": 1}
    *spoiled, whole = backends.measure(
        override_dotted(Config(), {"planner": "reflexdiffusion", **model}), Console(quiet=True)
    )
    assert not any(row.runs for row in spoiled)
    assert "denoiser.onnx" in spoiled[0].reason
    assert whole.runs
    assert whole.same_plans == 1.0
    assert whole.full_ms > 0.0


def test_a_planner_without_a_network_is_one_sentence():
    with pytest.raises(ConfigError, match="--measure times a network, but planner route_follower has none"):
        backends.measure(override_dotted(Config(), {"planner": "route_follower"}), Console(quiet=True))
