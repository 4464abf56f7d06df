"""A denoiser from its weights to a vehicle: files, graphs, backends, and what is refused."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_gpu import driver, trt  # noqa: F401 (fixtures)
from flop_counter import counted
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scenes import Clock, config
from shipped_planner import SCENES
from tiny_denoiser import SPEC, tiny_denoiser
from tiny_graphs import as_set, rewrite, unknown_to_tensorrt

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench.parity import compare_samples, read_scenes
from reflectdrive_ros.bench.roofline import denoiser_costs
from reflectdrive_ros.core.config import ConfigError, ModelConfig
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.data.shards import SetError
from reflectdrive_ros.deploy import engines
from reflectdrive_ros.deploy.export_denoiser import export_denoiser
from reflectdrive_ros.features.vectors import without_conditions
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.model.card import GraphCard, GraphError
from reflectdrive_ros.model.checkpoint import CheckpointError
from reflectdrive_ros.model.denoiser import checkpoint
from reflectdrive_ros.model.denoiser import net as denoiser_net
from reflectdrive_ros.planning.planner import PlannerContext, PlanningError, token_network
from reflectdrive_ros.runtime import engine, network
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.ort_backend import OrtDenoiser
from reflectdrive_ros.runtime.torch_denoiser import TorchDenoiser
from reflectdrive_ros.runtime.trt.backend import TrtDenoiser

GUIDED = {"capabilities": ["guidance"], "training_domain": "recorded traffic"}
INPUTS = network.synthetic_vectors(SPEC)


def noise(seed=0):
    return np.random.default_rng(seed).normal(size=(SPEC.futures, 1 + SPEC.future_steps, 4))


@pytest.fixture(scope="module")
def net():
    return tiny_denoiser()


@pytest.fixture(scope="module")
def eager(net):
    return TorchDenoiser(net, capabilities=["guidance"])


@pytest.fixture(scope="module")
def weights(net, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    checkpoint.save(net, path, GUIDED)
    return path


@pytest.fixture(scope="module")
def card(weights, tmp_path_factory):
    """Graphs as the command writes them."""
    folder = tmp_path_factory.mktemp("graphs") / "onnx"
    assert main(["export", str(weights), "--out", str(folder)]) == 0
    return GraphCard.read(folder / "card.json")


@pytest.fixture(scope="module")
def pair(net, eager, tmp_path_factory):
    """Graphs of a fixed batch of two, for TensorRT."""
    folder = tmp_path_factory.mktemp("pair")
    export_denoiser(net, "0" * 64, folder, {}, ["guidance"], "recorded traffic", 2, network.golden(eager))
    return GraphCard.read(folder / "card.json")


def opened(path, **changes):
    return network.load_network(ModelConfig(str(path), sha256_of(path), **changes), DecodingConfig())


def assert_same_futures(futures, expected):
    assert futures.dtype == expected.dtype == np.float64
    np.testing.assert_allclose(futures, expected, atol=1e-4)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_a_saved_network_loads_as_it_was_and_its_card_describes_it(net, weights):
    card = json.loads((weights.parent / "card.json").read_text())
    loaded = checkpoint.load(weights, card["sha256"])
    assert loaded.config == net.config
    assert all(torch.equal(mine, other) for mine, other in zip(loaded.parameters(), net.parameters(), strict=True))
    assert (card["kind"], card["dtype"], card["training_domain"]) == ("denoiser", "bfloat16", "recorded traffic")
    assert card["capabilities"] == ["guidance"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c.pop("heads"), "carries has no heads"),
        (lambda c: c.update(heads=3), r"hidden is 16, expected a multiple of heads \(3\)"),
        (lambda c: c["spec"].update(agents=2), r"predicted_agents is 3, expected at most agents \(2\)"),
        (lambda c: c["spec"]["normalization"]["ego_std"].pop(), "has 9 entries in spec.normalization.ego_std"),
        (lambda c: c["spec"]["normalization"].update(limit_std=[0.0]), r"limit_std\[0\] = 0\.0, expected a finite"),
    ],
)
def test_weights_whose_configuration_does_not_fit_are_refused(weights, tmp_path, change, complaint):
    with safe_open(weights, "pt") as stored:
        values = json.loads(stored.metadata()[checkpoint.FORMAT])
    change(values)
    path = tmp_path / "weights.safetensors"
    save_file(load_file(weights), path, {checkpoint.FORMAT: json.dumps(values)})
    with pytest.raises(CheckpointError, match=complaint):
        checkpoint.load(path, sha256_of(path))


def test_another_hash_and_weights_of_another_kind_are_refused(weights, tmp_path):
    with pytest.raises(CheckpointError, match=r"has SHA-256 .*, expected 00"):
        checkpoint.load(weights, "00" * 32)
    path = tmp_path / "weights.safetensors"
    save_file(load_file(weights), path, {"reflectdrive.token_net.4": "{}"})
    with pytest.raises(CheckpointError, match=r"expected weights of the format reflectdrive\.curve_net\.1"):
        checkpoint.load(path, sha256_of(path))


def test_random_weights_are_the_same_each_time_from_weights_and_from_graphs(weights, card):
    first, second = (network.random_network(config_of(path), DecodingConfig()) for path in (weights, card.path))
    assert first.capabilities == second.capabilities == {"guidance"}
    answers = [of.denoise(of.encode(INPUTS, True), noise(), 0.4) for of in (first, second)]
    np.testing.assert_array_equal(*answers)
    states = [checkpoint.random_net(weights, seed).state_dict() for seed in (0, 0, 1)]
    name = "encoder.layers.0.mlp.fc1.weight"
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


def config_of(path):
    return ModelConfig(str(path), sha256_of(path))


# --- the same futures ------------------------------------------------------------------------------------------------


def test_conditions_are_dropped_from_arrays_as_from_tensors(eager):
    dropped = eager.tensors(without_conditions(INPUTS), False)
    for mine, other in zip(dropped, denoiser_net.without_conditions(eager.tensors(INPUTS, False)), strict=True):
        assert torch.equal(mine, other)


def test_an_encoded_scene_is_denoised_as_by_the_whole_network(net, eager):
    context = eager.encode(INPUTS, True)
    tensors = eager.tensors(INPUTS, False)
    for time in (1.0, 0.3):
        denoised = eager.denoise(context, noise(), time)
        for row, conditions in enumerate((tensors, denoiser_net.without_conditions(tensors))):
            noisy = torch.tensor(noise(), dtype=torch.float32)[None, None]
            with torch.inference_mode():
                whole = net.denoise(noisy, torch.full((1, 1), time), net.encode(conditions))
            np.testing.assert_allclose(denoised[row], whole[0, 0].numpy(), atol=1e-5)
    assert np.abs(denoised[0] - denoised[1]).max() > 0.01


@pytest.mark.parametrize("guided", [False, True])
def test_graphs_predict_the_futures_of_torch(card, eager, guided):
    graphs = OrtDenoiser(card, threads=2)
    contexts = [of.encode(INPUTS, guided) for of in (graphs, eager)]
    for seed, time in enumerate((1.0, 0.5, 1e-3)):
        predicted, expected = (
            of.denoise(context, noise(seed), time) for of, context in zip((graphs, eager), contexts, strict=True)
        )
        assert predicted.shape == (1 + guided, *noise().shape)
        assert_same_futures(predicted, expected)


@pytest.mark.parametrize("batch", ["card", "pair"], ids=["free", "fixed"])
def test_engines_predict_the_same_with_and_without_guidance(trt, batch, eager, tmp_path, request):  # noqa: F811
    card = request.getfixturevalue(batch)
    list(engines.build(card, "cuda", tmp_path, Clock()))
    on_gpu = opened(card.path, backend="tensorrt", engines=str(tmp_path))
    assert isinstance(on_gpu, TrtDenoiser)
    assert "fp32, CUDA graphs" in on_gpu.backend_description
    for guided in (False, True):
        predicted, expected = (of.denoise(of.encode(INPUTS, guided), noise(), 0.7) for of in (on_gpu, eager))
        assert_same_futures(predicted, expected)
    former = on_gpu.encode(INPUTS, False)
    on_gpu.encode(INPUTS, True)
    with pytest.raises(PlanningError, match="keys and values of scene"):
        on_gpu.denoise(former, noise(), 0.5)


def test_tensorrt_has_all_operators(card, pair):
    for graphs in (card, pair):
        assert [unknown_to_tensorrt(file) for file in graphs.files.values()] == [[], []]


# --- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weights", "graphs"])
def test_a_model_file_loads_by_the_kind_of_its_card(weights, card, kind):
    network = opened(weights if kind == "weights" else card.path)
    assert isinstance(network, TorchDenoiser if kind == "weights" else OrtDenoiser)
    assert network.spec == SPEC
    assert network.capabilities == {"guidance"}


def test_the_self_check_refuses_graphs_of_other_weights(card, eager, tmp_path):
    folder = tmp_path / "onnx"
    shutil.copytree(card.path.parent, folder)
    other = network.golden(TorchDenoiser(tiny_denoiser(1)))
    assert abs(other["ego_x_m"] - network.golden(eager)["ego_x_m"]) > network.GOLDEN_TOLERANCE
    rewrite(folder, lambda c: c.update(golden=other))
    with pytest.raises(ModelFileError, match=r"fails its self-check: its ego_x_m is .*, its card has"):
        network.load_network(as_set(folder), DecodingConfig())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m.update(capabilities=["goals"]), r"has model.capabilities\[0\] = 'goals'"),
        (lambda m: m.update(batch=3), "has model.batch = 3"),
        (lambda m: m["inputs"].update(agents=6), "has model.inputs that differ from model.config.spec"),
        (lambda m: m["inputs"]["normalization"].pop("lane_mean"), "has no model.inputs.normalization.lane_mean"),
        (lambda m: m.pop("config"), "has no model.config"),
    ],
)
def test_a_card_that_does_not_describe_a_denoiser_is_refused(card, tmp_path, change, complaint):
    folder = tmp_path / "onnx"
    shutil.copytree(card.path.parent, folder)
    rewrite(folder, lambda c: change(c["model"]))
    with pytest.raises(GraphError, match=complaint):
        GraphCard.read(folder / "card.json")


def test_a_planner_refuses_a_network_of_another_kind_by_name(card):
    model = config_of(card.path)
    settings = replace(config(planner="reflectdrive2"), model=model)
    with pytest.raises(ConfigError, match=r"planner reflectdrive2 needs a network of kind token, but .* denoiser"):
        engine.Engine(settings)
    denoiser = opened(card.path)
    with pytest.raises(PlanningError, match="needs a network of kind token"):
        token_network("reflectdrive2", PlannerContext(settings, denoiser))
    own = replace(settings, planner="reflexdiffusion", cameras=replace(settings.cameras, required=False))
    engine.check_network(own, denoiser)  # it needs no camera
    assert engine.image_size({own.planner: denoiser}) is None
    with pytest.raises(ConfigError, match=r"planner reflexdiffusion needs a network of kind denoiser, but .* token"):
        engine.check_network(own, SimpleNamespace(kind="token"))


@pytest.mark.parametrize(
    "option",
    [
        ["--precision", "bf16", "--gate", "."],
        ["--camera", "64x64"],
        ["--batch", "3"],
        ["--setting", "decoding.goals=4"],
    ],
)
def test_options_of_token_networks_are_refused(weights, tmp_path, capsys, option, monkeypatch):
    monkeypatch.setattr("reflectdrive_ros.cli.export.check_options", lambda args: None)
    assert main(["export", str(weights), "--out", str(tmp_path / "out"), *option]) == 2
    assert f"{option[0]}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_futures_of_another_shape_are_refused(card):
    graphs = OrtDenoiser(card)
    with pytest.raises(PlanningError, match=r"noisy futures are \(2, 9, 4\), expected \(4, 9, 4\)"):
        graphs.denoise(graphs.encode(INPUTS, False), noise()[:2], 0.5)


# --- benches ---------------------------------------------------------------------------------------------------------


def test_plans_of_equal_networks_are_equal_and_those_of_others_are_not(eager):
    other = TorchDenoiser(tiny_denoiser(1), capabilities=["guidance"])
    scenes = list(read_scenes(SCENES, 2, Console(quiet=True), images=False))
    same, different = (compare_samples(eager, each, scenes) for each in (eager, other))
    assert (same["scenes"], same["difference_m_max"]) == (2, 0.0)
    assert different["difference_m_max"] >= different["ego_difference_m_max"] > 0.1
    with pytest.raises(SetError, match="no scene to compare on"):
        compare_samples(eager, other, [])


def test_the_counted_products_are_those_that_torch_counts(net, eager):
    tensors = eager.tensors(INPUTS, True)
    context = net.encode(tensors)
    noisy, times = torch.zeros(2, 1, *noise().shape), torch.full((2, 1), 0.5)
    costs = denoiser_costs(net.config, 2)
    assert costs["encode"].flop == pytest.approx(counted(lambda: net.encode(tensors)), rel=0.001)
    assert costs["denoise"].flop == pytest.approx(counted(lambda: net.denoise(noisy, times, context)), rel=0.001)
