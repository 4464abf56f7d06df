"""Exported graphs: they decode what the network decodes, consist of operators of TensorRT, and describe themselves."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from scenes import SECOND_NS, Clock, config, observation
from tiny_graphs import (  # noqa: F401 (fixtures)
    BUILT_IN,
    CAMERA,
    RULES,
    WORDS,
    as_set,
    camera_pixels,
    copied_graphs,
    decoded,
    graphs_folder,
    network,
    of_whatever_is_there,
    one_layer,
    rewrite,
    scene,
    unknown_to_tensorrt,
)
from tiny_model import tiny_model  # noqa: F401 (a fixture)
from tiny_net import random_actions

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.core.domain import CameraFrame, StepKind
from reflectdrive_ros.core.tokens import X
from reflectdrive_ros.deploy.export import describe_model, export
from reflectdrive_ros.deploy.graph_modules import example_prompt
from reflectdrive_ros.model import vision
from reflectdrive_ros.model.card import METADATA, GraphCard, GraphError, required_graphs, sha256_of
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import load_network
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

GRAPHS = required_graphs("token", ("edit", "goals"))


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Its graphs for steps of four action sequences."""
    folder = tmp_path_factory.mktemp("exact")
    export(one_layer(), "0" * 64, folder, {}, RULES, sequences=4)
    return folder


# --- the same plans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_onnx_runtime_and_eager_torch_write_the_same_tokens(folder, seed):
    graphs = OrtNetwork.from_file(folder / "card.json", threads=1)
    torch_known, expected, sure = decoded(TorchNetwork(network(), decoding=RULES), scene(seed))
    prefilled, actions, confidence = decoded(graphs, scene(seed))
    np.testing.assert_array_equal(prefilled.actions, torch_known.actions)
    np.testing.assert_array_equal(prefilled.valid, torch_known.valid)
    np.testing.assert_allclose(prefilled.goal_log_probs, torch_known.goal_log_probs, atol=1e-4)
    np.testing.assert_array_equal(actions, expected)
    np.testing.assert_allclose(confidence, sure, atol=1e-5)
    assert actions.dtype == np.int32


def test_a_scene_that_is_read_alone_is_the_same_scene(folder):
    graphs, actions = OrtNetwork.from_file(folder / "card.json", threads=1), random_actions(network(), 1, 3)[0].numpy()
    contexts = graphs.prefill_goal(scene(3)).context, graphs.prefill(scene(3)), graphs.prefill(scene(4))
    decided, alone, another = (graphs.step(context, actions, 0, False)[1] for context in contexts)
    np.testing.assert_allclose(alone, decided, atol=1e-6)
    assert np.abs(another - decided).max() > 1e-4


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_step_takes_any_number_of_blocks(folder, count):
    graphs, eager = OrtNetwork.from_file(folder / "card.json", threads=1), TorchNetwork(network(), decoding=RULES)
    actions = random_actions(network(), scenes=1, count=count)[0].numpy()
    contexts = [net.prefill_goal(scene(7)).context for net in (graphs, eager)]
    for move in ((3, False), (0, True)):
        written = [net.step(context, actions, *move) for net, context in zip((graphs, eager), contexts, strict=True)]
        np.testing.assert_array_equal(written[0][0], written[1][0])


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_graph_for_a_fixed_number_of_sequences_takes_fewer_and_more(exact, count):
    """It is filled up; a repair redrafts more action sequences than there are goals, in several calls."""
    nets = OrtNetwork.from_file(exact / "card.json", threads=1), TorchNetwork(one_layer(), decoding=RULES)
    actions = random_actions(network(), 1, count)[0].numpy()
    (written, sure), (expected, expects) = (
        net.step(net.prefill_goal(scene(1)).context, actions, 3, False) for net in nets
    )
    np.testing.assert_array_equal(written, expected)
    np.testing.assert_allclose(sure, expects, atol=1e-5)


def test_a_scene_is_not_disturbed_by_the_next_one(folder):
    """Keys and values lie in tensors of their own, not in a buffer that the next prefill writes over."""
    graphs = OrtNetwork.from_file(folder / "card.json", threads=1)
    first = graphs.prefill_goal(scene(0))
    alone = graphs.step(first.context, first.actions, 5, False)
    graphs.prefill_goal(scene(1))
    again = graphs.step(first.context, first.actions, 5, False)
    np.testing.assert_array_equal(alone[0], again[0])
    np.testing.assert_array_equal(alone[1], again[1])


# --- images as cameras give them -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def for_cameras(tmp_path_factory):
    folder = tmp_path_factory.mktemp("camera")
    export(network(), "0" * 64, folder, {}, RULES, camera=CAMERA)
    return folder


@pytest.mark.parametrize("seed", range(5))
def test_graphs_for_cameras_write_what_the_network_writes_of_images_brought_to_its_size(for_cameras, seed):
    graphs = OrtNetwork.from_file(for_cameras / "card.json", threads=1)
    images = camera_pixels(seed)
    sized = np.stack([cv2.resize(each, (64, 32), interpolation=cv2.INTER_AREA) for each in images])
    _, expected, sure = decoded(TorchNetwork(network(), decoding=RULES), replace(scene(seed), images=sized))
    _, actions, confidence = decoded(graphs, replace(scene(seed), images=images))
    np.testing.assert_array_equal(actions, expected)
    np.testing.assert_allclose(confidence, sure, atol=1e-3)


@pytest.mark.parametrize("size", [(64, 32), (75, 45), (150, 45), (149, 89), (150, 90)])
def test_the_network_averages_images_down_as_the_host_does(size):
    images = camera_pixels(1)
    expected = np.stack([cv2.resize(each, size, interpolation=cv2.INTER_AREA) for each in images])
    resized = vision.area_resize(torch.from_numpy(images), size[1], size[0]).numpy()
    assert np.abs(resized - expected).max() <= 1.0
    assert (resized == expected).mean() > 0.8  # the rest are halves, which OpenCV rounds up for whole ratios only
    if size == (64, 32):
        assert (resized == expected).mean() > 0.99


def test_an_engine_drives_by_graphs_that_take_the_cameras_images(tiny_model, tmp_path):  # noqa: F811
    words = ["--camera", "160x100", "--setting", "decoding.goal_value_power=2"]
    assert main(["export", str(tiny_model.file.parent), "--out", str(tmp_path), *words]) == 0
    card = tmp_path / "card.json"
    assert GraphCard.read(card).decoding()["goal_value_power"] == 2.0
    engine_config = replace(config(planner="reflectdrive2"), model=ModelConfig(str(card), sha256_of(card)))
    engine_config = replace(engine_config, decoding=replace(engine_config.decoding, goal_value_power=2.0))
    opened = load_network(
        engine_config.model, engine_config.decoding
    )  # its self-check holds it against the card's golden answer
    assert (opened.inputs.width, opened.inputs.height) == (160, 100)
    larger = np.random.default_rng(0).integers(0, 256, (3, 120, 200, 3), np.uint8)  # the host brings them to the size
    frames = [
        CameraFrame(SECOND_NS, name, pixels, np.eye(3), np.eye(4))
        for name, pixels in zip(engine_config.cameras.names, larger, strict=True)
    ]
    report = Engine(engine_config, Clock(), network=opened).step(observation(cameras=tuple(frames)))
    assert report.plan.step is StepKind.FULL


def test_images_smaller_than_the_networks_are_refused(tiny_model, tmp_path, capsys):  # noqa: F811
    assert main(["export", str(tiny_model.file), "--out", str(tmp_path), "--camera", "40x1080"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--camera 40x1080 is smaller than the images that the network takes, " in message
    with pytest.raises(SystemExit):
        main(["export", str(tiny_model.file), "--out", str(tmp_path), "--camera", "wide"])
    assert "'wide' is no whole number from 16 to 8192 px: expected a size as 1920x1080" in capsys.readouterr().err


# --- the operators of the files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_every_operator_and_its_type_is_one_that_tensorrt_takes(folder, for_cameras, name):
    assert unknown_to_tensorrt(folder / f"{name}.onnx") == []
    assert unknown_to_tensorrt(for_cameras / f"{name}.onnx") == []


def test_weights_of_convolutions_are_constants_of_the_graph(folder):
    """TensorRT's parser takes nothing else for them, not even a Cast of a constant."""
    nodes = [node for node in ir.load(folder / "vision_encoder.onnx").graph.all_nodes() if node.op_type == "Conv"]
    assert nodes
    assert all(value.is_initializer() for node in nodes for value in node.inputs[1:])


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_in_a_graph_depends_on_data_or_names_the_machine_of_the_export(folder, name):
    file = folder / f"{name}.onnx"
    used = {node.op_type for node in ir.load(file).graph.all_nodes()}
    assert not used & {"Loop", "If", "Scan", "NonZero", "TopK", "ScatterND", "ScatterElements", "NonMaxSuppression"}
    content = file.read_bytes()
    assert str(Path(__file__).parents[1]).encode() not in content
    assert b"site-packages" not in content


def stored(folder, name, kind):
    """Weights in a graph's file that are of a kind."""
    values = ir.load(folder / f"{name}.onnx").graph.initializers.values()
    return [value.const_value.numpy() for value in values if value.dtype is kind]


def x_head(net):
    """What is multiplied of the head of x: the rows of ids that x may have."""
    low, high = net.config.layout.id_ranges[0]
    return net.x_head.weight.detach().numpy()[low : high + 1]


@pytest.mark.parametrize("name", ["prefill_goal", "step"])  # to read the scene takes no head
def test_weights_are_stored_in_half_the_bytes_and_come_back_exact(folder, name):
    head = x_head(network())
    halved = [array.astype(np.float32) for array in stored(folder, name, ir.DataType.BFLOAT16)]
    assert any(array.shape in (head.shape, head.T.shape) for array in halved)
    assert any(np.array_equal(array, head) or np.array_equal(array, head.T) for array in halved)


def test_weights_that_bfloat16_would_change_stay_as_they_are(exact):
    net = one_layer()
    head = x_head(net)
    assert (head.astype(ml_dtypes.bfloat16).astype(np.float32) != head).any()
    arrays = stored(exact, "step", ir.DataType.FLOAT)
    assert any(np.array_equal(part, head) or np.array_equal(part, head.T) for part in arrays)


def test_graphs_and_card_tell_what_the_network_takes_and_means(folder):
    net = network()
    card = GraphCard.read(folder / "card.json")
    metadata = json.loads(ir.load(folder / "step.onnx").metadata_props[METADATA])
    assert metadata == {"graph": "step", "model": card.model}
    assert card.model == describe_model(net, "0" * 64, RULES, None)
    assert card.model["inputs"]["words"] == list(WORDS)
    assert card.layout() == net.config.layout
    assert card.about["weights"] == {"steps": 3}
    spec = OrtNetwork.from_file(folder / "card.json", threads=1).inputs
    assert (spec.width, spec.height, spec.cameras, spec.instants) == (64, 32, 3, 2)
    assert example_prompt(net)["features"].shape == (1, 1, 3, 2, net.config.transformer.width)
    assert card.model["experts"] == {"prompt": net.config.transformer.ffn, "action": net.config.transformer.action_ffn}


# --- through the door ------------------------------------------------------------------------------------------------


def test_a_card_opens_the_best_backend_that_reads_it_which_says_what_it_is(folder):
    opened = load_network(as_set(folder, threads=2), BUILT_IN)
    assert isinstance(opened, OrtNetwork)
    assert opened.backend_description.startswith("ONNX Runtime 1.")
    assert opened.backend_description.endswith("on cpu, 2 threads")
    engine_config = replace(config(planner="reflectdrive2"), model=as_set(folder))
    engine = Engine(engine_config, Clock(), network=opened)
    assert engine.backend_description == opened.backend_description


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"backend": "torch"}, r"model.backend is torch, but .*card\.json is read by tensorrt, onnxruntime"),
        ({"device": "cuda:3"}, "model.device is cuda:3, but this ONNX Runtime has no CUDA"),
    ],
)
def test_a_backend_or_device_that_cannot_run_graphs_is_refused(folder, changes, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        load_network(as_set(folder, **changes), BUILT_IN)


def test_graphs_are_opened_without_torch_and_a_missing_onnx_runtime_is_one_sentence(folder):
    program = (
        "import sys; sys.modules[{0!r}] = None\n"
        "from reflectdrive_ros.core.config import ModelConfig\n"
        "from reflectdrive_ros.core.recipe_config import DecodingConfig\n"
        "from reflectdrive_ros.runtime.network import load_network\n"
        "print(load_network(ModelConfig(*sys.argv[1:]), DecodingConfig(4)).backend_description)"
    )
    model = as_set(folder)
    without = {}
    for library in ("torch", "onnxruntime"):
        words = [sys.executable, "-c", program.format(library), model.file, model.sha256]
        without[library] = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert without["torch"].stdout.startswith("ONNX Runtime")
    assert "needs onnxruntime, which is not installed: pip install onnxruntime" in without["onnxruntime"].stderr


# --- what is refused -------------------------------------------------------------------------------------------------


def test_onnx_runtime_reports_nothing_to_its_maker(tmp_path):
    """From 1.29 on it would keep an identifier of the machine and a database of its runs, and send them."""
    program = "import reflectdrive_ros.runtime.ort_backend, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    silencing = {"CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}  # where it is silent anyway, or configured to be
    environment = {name: value for name, value in os.environ.items() if name not in silencing}
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=True, env={**environment, "HOME": str(tmp_path)}
    )
    assert done.stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / "step.onnx").write_bytes(b"!"), r"step\.onnx has SHA-256 .*, its card has"),
        (lambda folder: (folder / "prefill_goal.onnx").unlink(), r"prefill_goal\.onnx cannot be read: No such file"),
        (
            lambda folder: rewrite(folder, lambda card: card["graphs"].update(step=card["graphs"]["prefill_goal"])),
            "is the graph 'prefill_goal', expected 'step'",
        ),
    ],
    ids=["changed", "missing", "swapped"],
)
def test_a_graph_that_is_not_the_one_of_the_card_is_named(copy, damage, complaint):
    damage(copy)
    with pytest.raises(GraphError, match=complaint):
        OrtNetwork.from_file(copy / "card.json")


@pytest.mark.parametrize("left", [0, 100, 20_000])
def test_a_truncated_graph_is_named(copy, left):
    file = copy / "step.onnx"
    file.write_bytes(file.read_bytes()[:left])
    rewrite(copy, lambda card: of_whatever_is_there(card, copy))
    with pytest.raises(GraphError, match=r"step\.onnx (is no ONNX graph|is no graph that ONNX Runtime|carries no)"):
        OrtNetwork.from_file(copy / "card.json")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "is no card"),
        ('{"format": "reflectdrive.graphs.5"}', r"is no card of exported graphs \(format reflectdrive\.graphs\.6\)"),
        ('{"format": "reflectdrive.graphs.6"}', "has no model: export the checkpoint again"),
        ("[" * 100_000, "nests deeper than 64 levels"),
        ("\0", "is not JSON"),
    ],
)
def test_a_card_that_is_none_is_refused(tmp_path, content, complaint):
    (tmp_path / "card.json").write_text(content)
    with pytest.raises(GraphError, match=complaint):
        GraphCard.read(tmp_path / "card.json")


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("model.inputs.words", 3, "has model.inputs.words = 3, expected a list"),
        ("model.inputs.words", ["go", ["left"]], r"has model.inputs.words\[1\] = \['left'\], expected text"),
        ("model.inputs.words", ["go", "go"], "has wrong inputs.words: a vocabulary has different words"),
        ("model.inputs.cameras", "3", "has model.inputs.cameras = '3', expected a whole number"),
        ("model.inputs.frames", 2**70, "has model.inputs.frames = .*, expected a whole number"),
        ("model.inputs.instants", 3, "has inputs.instants that are no multiple of inputs.frames"),
        ("model.inputs.ego_scale", [1.0, 2.0], "has 2 entries in model.inputs.ego_scale, expected 3"),
        ("model.inputs", None, "has model.inputs = None, expected an object"),
        ("model.layout.axes", [vars(X) | {"bins": 668}] * 2, "axis x: Codebook.bins is 668, expected an odd number"),
        ("model.decoding.goals", [], r"has model.decoding.goals = \[\], expected an object"),
        ("model.action_sequences", "4", "has model.action_sequences = '4', expected a whole number"),
        ("graphs.step", [], r"has graphs.step = \[\], expected an object"),
        ("graphs.step.sha256", None, "has graphs.step.sha256 = None, expected a SHA-256"),
        ("graphs.step.file", "../step.onnx", r"has graphs.step.file = '../step.onnx', expected the name of a file"),
        ("graphs.step.file", "/dev/zero", "has graphs.step.file = '/dev/zero', expected the name of a file"),
        ("graphs.step.file", "a\0", "has graphs.step.file = 'a.x00', expected the name of a file"),
        ("graphs.step.weights", "step.weights", "has graphs.step.weights = 'step.weights', expected an object"),
        ("graphs.step.weights", {"file": "a"}, "has no graphs.step.weights.sha256"),
        ("golden", "high", "has golden = 'high', expected an object"),
        ("golden", {"goal_log_prob": "high"}, "has golden.goal_log_prob = 'high', expected a finite number"),
        ("about", 3, "has about = 3, expected an object"),
        ("gate", [], r"has gate = \[\], expected an object"),
    ],
)
def test_a_card_with_a_field_of_a_wrong_type_is_refused_by_its_name(copy, field, value, complaint):
    def change(card):
        *path, last = field.split(".")
        for name in path:
            card = card[name]
        card[last] = value

    rewrite(copy, change)
    with pytest.raises(ModelFileError, match=complaint):
        load_network(as_set(copy), BUILT_IN)
