"""NVIDIA's own parser and builder take every exported graph of every planner in every precision, without a GPU.

`make test-tensorrt` installs the library and runs these tests. What is built is for another machine's GPU (SM120) and
runs nowhere here: this says nothing about numbers or speed.
"""

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tiny_denoiser import tiny_denoiser
from tiny_graphs import RULES, network, products_of_tiny_networks_are_worth_it, rewrite  # noqa: F401 (a fixture)
from tiny_net import POSES
from tiny_scene import CRITIQUE, SCENE

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core.tokens import ROUTE_FRAME
from reflectdrive_ros.deploy.engines import try_build
from reflectdrive_ros.deploy.export import export, to_bfloat16
from reflectdrive_ros.deploy.export_denoiser import export_denoiser
from reflectdrive_ros.deploy.quantise import activation_ranges, write_calibration_graphs, write_quantised
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.model.card import CARD, QUANTISED, GraphCard
from reflectdrive_ros.runtime.network import synthetic_inputs
from reflectdrive_ros.runtime.ort_backend import CalibrationNetwork
from reflectdrive_ros.runtime.trt.engine_cache import EngineError

pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed: make test-tensorrt")
NETWORKS = {  # planners -> their tiny network; ReflectDrive and ReflectDrive-2 drive on the same graphs
    "reflectdrive": {},
    "drivefine": {"layout": POSES, "refine_layers": 1},
    "reflectdrive2 without images": {
        "images": False,
        "text_length": 0,
        "route_at_m": (),
        "layout": ROUTE_FRAME,
        "scene": SCENE,
        "critique": CRITIQUE,
        "refine_layers": 1,
    },
}
PRECISIONS = ("fp32", "bf16", *QUANTISED)
SEQUENCES = 4
MODELS = Path(__file__).parents[1] / "models"


# one worker makes the graphs of a network, and all its tests
@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in NETWORKS])
def folders(request, tmp_path_factory):
    """Folders of graphs by precision."""
    net = network(**NETWORKS[request.param])
    folders_by_precision = {precision: tmp_path_factory.mktemp(precision) for precision in (*PRECISIONS, "calibration")}
    export(net, "0" * 64, folders_by_precision["fp32"], {}, RULES, SEQUENCES)
    export(to_bfloat16(net), "0" * 64, folders_by_precision["bf16"], {}, RULES, SEQUENCES)
    if not net.config.images:  # is not quantised
        return {precision: folders_by_precision[precision] for precision in ("fp32", "bf16")}
    exact = GraphCard.read(folders_by_precision["fp32"] / CARD)
    write_calibration_graphs(exact, folders_by_precision["calibration"])
    watched = CalibrationNetwork(GraphCard.read(folders_by_precision["calibration"] / CARD))
    run_every_graph(watched, net)
    for precision in QUANTISED:
        write_quantised(exact, folders_by_precision[precision], precision, activation_ranges(watched.recorded))
    return folders_by_precision


def run_every_graph(network, net):
    inputs = synthetic_inputs(network)
    actions = np.zeros((SEQUENCES, net.config.layout.length), np.int64)
    context = network.prefill(inputs)
    network.step(context, actions, 2, False)
    if "goals" in network.capabilities:
        network.prefill_goal(inputs)
    if "sampling" in network.capabilities:
        network.sampled_step(context, actions, 2, np.ones(SEQUENCES), np.full(actions.shape, 0.5))
    if "refine" in network.capabilities:
        network.refine(context, actions)


def assert_built(card):
    rows = list(try_build(card, lambda: 0.0))
    assert {row.graph for row in rows} == set(card.files)
    assert all(row.size > 10_000 for row in rows)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_graphs_of_token_networks_are_built(folders, precision):
    if precision not in folders:
        pytest.skip("networks without images are not quantised")
    assert_built(GraphCard.read(folders[precision] / CARD))


@pytest.mark.parametrize("batch", [1, 2, None])
def test_graphs_of_a_denoiser_are_built(tmp_path, batch):
    export_denoiser(tiny_denoiser(), "0" * 64, tmp_path, {}, ["guidance"], "recorded traffic", batch)
    assert_built(GraphCard.read(tmp_path / CARD))


def test_the_builder_refuses_what_it_cannot_build(folders, tmp_path):
    """A zero point other than zero, as ONNX Runtime alone takes it."""
    if "int8" not in folders:
        pytest.skip("networks without images are not quantised")
    for file in folders["int8"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    graph = ir.load(tmp_path / "step.onnx")
    zero = next(value for name, value in graph.graph.initializers.items() if name.endswith(".zero"))
    zero.const_value = ir.tensor(zero.const_value.numpy() + np.int8(3), name=zero.name)
    ir.save(graph, tmp_path / "step.onnx")
    sha256 = sha256_of(tmp_path / "step.onnx")
    rewrite(tmp_path, lambda card: card["graphs"]["step"].update(sha256=sha256))
    with pytest.raises(EngineError, match=r"TensorRT for RTX 1\.[0-9.]+ cannot .* (z|Z)ero point"):
        assert_built(GraphCard.read(tmp_path / CARD))


def test_the_command_says_what_was_built_and_that_nothing_ran(folders, tmp_path, capsys):
    card = folders["fp32"] / CARD
    assert main(["engine", str(card), "--without-gpu", "--json", str(tmp_path / "told.json")]) == 0
    assert "takes all graphs of" in capsys.readouterr().out.replace("\n", " ")
    report = json.loads((tmp_path / "told.json").read_text())
    assert [row["graph"] for row in report["engines"]] == list(GraphCard.read(card).files)
    assert not (card.parent / "engines").exists()


@pytest.mark.parametrize(
    "folder",
    [
        *("reflectdrive2_small/onnx", "reflectdrive2_small/int8", "reflectdrive2_scene/onnx"),
        *("drivefine_small/onnx", "drivefine_scene/onnx", "reflexdiffusion_small/onnx"),
    ],
)
def test_the_shipped_graphs_are_built_as_they_are(folder):
    """The files that ONNX Runtime runs: the builder fixes the number of action sequences that they leave free."""
    assert_built(GraphCard.read(MODELS / folder / CARD))


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["reflectdrive2_small", "reflexdiffusion_small"])
def test_graphs_of_shipped_weights_are_built(model, precision, tmp_path):
    if precision == "bf16" and "diffusion" in model:
        pytest.skip("a denoiser is exported in float32 only")
    sequences = "2" if "diffusion" in model else "6"
    words = ["export", f"models/{model}/weights.safetensors", "--out", str(tmp_path / "out"), "--batch", sequences]
    assert main([*words, "--precision", precision]) == 0
    assert_built(GraphCard.read(tmp_path / "out" / CARD))
