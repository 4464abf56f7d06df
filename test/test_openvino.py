"""The backend openvino: the same plans as with ONNX Runtime alone, and a sentence where it cannot run."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from shipped_planner import GRAPHS, SMALL
from tiny_graphs import BUILT_IN, decoded, graphs_folder, scene  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.model.card import GraphCard
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import backends_of, load_network, synthetic_vectors
from reflectdrive_ros.runtime.ort_backend import OrtDenoiser, OrtNetwork

HAS_OPENVINO = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="openvino is not installed (pip install openvino)")


def on_openvino(card, **changes):
    return ModelConfig(str(card), sha256_of(card), **{"backend": "openvino", "threads": 1, **changes})


@needs_openvino
@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_are_those_of_onnx_runtime(folder, threads):
    card = folder / "card.json"
    network = load_network(on_openvino(card, threads=threads), BUILT_IN)
    assert network.backend_description.startswith("OpenVINO 20")
    assert f" on cpu, {threads} thread" in network.backend_description
    expected_goals, expected, expected_confidence = decoded(OrtNetwork.from_file(card), scene(0))
    goals, actions, confidence = decoded(network, scene(0))
    np.testing.assert_array_equal(goals.actions, expected_goals.actions)
    np.testing.assert_array_equal(actions, expected)
    np.testing.assert_allclose(goals.goal_log_probs, expected_goals.goal_log_probs, atol=1e-4)
    np.testing.assert_allclose(confidence, expected_confidence, atol=1e-4)


@needs_openvino
def test_a_scene_is_not_disturbed_by_the_next_one(folder):
    """What OpenVINO computes is copied out of the memory of its request."""
    network = load_network(on_openvino(folder / "card.json"), BUILT_IN)
    first = network.prefill_goal(scene(1))
    before = network.step(first.context, first.actions, 3, False)
    network.prefill_goal(scene(2))
    np.testing.assert_array_equal(network.step(first.context, first.actions, 3, False), before)


@needs_openvino
def test_a_denoiser_predicts_what_it_does_in_onnx_runtime():
    card = SMALL.parent / "reflexdiffusion_small/onnx/card.json"
    networks = load_network(on_openvino(card), BUILT_IN), OrtDenoiser(GraphCard.read(card))
    spec = networks[0].spec
    inputs, noise = synthetic_vectors(spec), np.zeros((spec.futures, 1 + spec.future_steps, 4))
    clean = [network.denoise(network.encode(inputs, True), noise, 0.5) for network in networks]
    np.testing.assert_allclose(*clean, atol=1e-4)


@needs_openvino
@pytest.mark.parametrize("name", ["reflectdrive2_scene", "drivefine_scene"])
def test_scene_networks_run_on_one_thread(name):
    """Without the option in the backend OpenVINO 2026.4.1 ends the process where it compiles their prefill."""
    assert load_network(on_openvino(SMALL.parent / name / "onnx/card.json"), BUILT_IN) is not None


@needs_openvino
@pytest.mark.parametrize(
    ("card", "changes", "sentence"),
    [
        (GRAPHS["int8"], {}, "is in int8, but OpenVINO takes float32: set model.backend to auto"),
        (GRAPHS["fp32"], {"device": "cuda"}, "model.device is cuda, but OpenVINO runs on the CPU here: set it to auto"),
    ],
)
def test_graphs_and_devices_that_it_does_not_take_are_one_sentence(card, changes, sentence):
    with pytest.raises(ModelFileError, match=sentence):
        load_network(on_openvino(card, **changes), BUILT_IN)


@needs_openvino
def test_openvino_reports_nothing_to_its_maker(tmp_path):
    """Its package openvino-telemetry would keep an identifier of the machine in ~/intel, and send it."""
    program = "import reflectdrive_ros.runtime.openvino_backend"
    environment = {**{name: value for name, value in os.environ.items() if name != "CI"}, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=120, check=True)
    assert list(tmp_path.iterdir()) == []


def test_where_it_is_not_installed_a_command_ends_with_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "reflectdrive_ros.runtime.openvino_backend", raising=False)
    assert main(["bench", "step", "--setting", "model.backend=openvino"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith("needs openvino, which is not installed: pip install openvino")


def test_auto_takes_it_only_where_it_was_measured():
    assert "openvino" not in backends_of(GRAPHS["fp32"], ModelConfig())
    assert backends_of(GRAPHS["fp32"], ModelConfig(backend="openvino")) == ("openvino",)
