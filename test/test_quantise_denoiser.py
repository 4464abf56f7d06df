"""A denoiser in int8: what is quantised, that its plans stay close, and that the command gates it by its own recipe."""

import numpy as np
import onnx_ir as ir
import pytest
from stored_scenes import store
from tiny_denoiser import SPEC, tiny_denoiser
from tiny_graphs import (
    as_set,
    products_of_tiny_networks_are_worth_it,  # noqa: F401 (an automatic fixture)
    unknown_to_tensorrt,
)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import accuracy_gate
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.model.card import CARD, GraphCard
from reflectdrive_ros.model.denoiser import checkpoint
from reflectdrive_ros.runtime.network import load_network, synthetic_vectors
from reflectdrive_ros.runtime.ort_backend import OrtDenoiser

LAST = {"encoder": ("keys_0", "values_0"), "denoiser": ("clean",)}  # what the last products give


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    checkpoint.save(tiny_denoiser(), path, {"capabilities": ["guidance"], "training_domain": "recorded traffic"})
    return path


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The words that name two sets of scenes without images."""
    folder = tmp_path_factory.mktemp("sets")
    for name in ("val", "test"):
        store(folder / name, shards_of=(3,), name=name)
    return ["--calibrate", str(folder / "val"), "--gate", str(folder / "test"), "--gate-scenes", "3"]


@pytest.fixture(scope="module")
def cards(weights, sets, tmp_path_factory):
    """Cards by precision, as the command writes them."""
    folder = tmp_path_factory.mktemp("graphs")
    assert main(["export", str(weights), "--out", str(folder / "fp32")]) == 0
    before, accuracy_gate.MAX_PDMS_DROP = accuracy_gate.MAX_PDMS_DROP, 100.0  # a random network's plans are close calls
    try:
        assert main(["export", str(weights), "--out", str(folder / "int8"), "--precision", "int8", *sets]) == 0
    finally:
        accuracy_gate.MAX_PDMS_DROP = before
    return {precision: GraphCard.read(folder / precision / CARD) for precision in ("fp32", "int8")}


def test_the_card_tells_precision_scores_and_that_guidance_is_left(cards):
    card = cards["int8"]
    assert card.precision == "int8"
    assert card.capabilities == {"guidance"}
    assert (card.gate["set"], card.gate["scenes"], card.gate["planner"]) == ("test", 3, "reflexdiffusion")
    assert card.gate["difference_m_p50"] <= card.gate["difference_m_p99"]


def test_predictions_are_nearly_those_in_float32_with_and_without_conditions(cards):
    mine, theirs = (OrtDenoiser(cards[precision]) for precision in ("int8", "fp32"))
    assert mine.backend_description.endswith("1 thread, int8")
    inputs, noise = synthetic_vectors(SPEC), np.random.default_rng(0).normal(size=(SPEC.futures, 9, 4))
    quantised, expected = (each.denoise(each.encode(inputs, True), noise, 0.5) for each in (mine, theirs))
    assert quantised.shape == expected.shape == (2, SPEC.futures, 9, 4)
    difference = np.abs(quantised - expected).max()
    assert 0 < difference < 0.2 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["encoder", "denoiser"])
def test_the_products_that_give_futures_and_keys_stay_in_float32(cards, name):
    graph = ir.load(cards["int8"].files[name]).graph
    products = [node for node in graph.all_nodes() if node.op_type == "MatMul"]
    rounded = {node for node in products if (of := node.inputs[1].producer()) and of.op_type == "DequantizeLinear"}
    assert len(rounded) > 2
    for output in graph.outputs:
        if output.name in LAST[name]:
            assert nearest_product(output, products) not in rounded


@pytest.mark.parametrize("name", ["encoder", "denoiser"])
def test_quantised_graphs_have_operators_that_tensorrt_knows(cards, name):
    assert unknown_to_tensorrt(cards["int8"].files[name]) == []


def nearest_product(value, products):
    todo = [value.producer()]
    while todo:
        node = todo.pop(0)
        if node in products:
            return node
        todo += [put.producer() for put in node.inputs if put is not None and put.producer() is not None]
    raise AssertionError(f"{value.name} is of no product")


def test_what_has_passed_drives_and_what_cannot_be_quantised_is_one_sentence(cards, weights, sets, tmp_path, capsys):
    card = cards["int8"]
    if card.gate["pdms_fp32"] - card.gate["pdms"] <= 0.3:
        assert load_network(as_set(card.path.parent), DecodingConfig()).backend_description.endswith("int8")
    words = ["export", str(weights), "--out", str(tmp_path / "out"), "--precision"]
    assert main([*words, "fp8", *sets]) == 2
    assert "--precision fp8 is for token networks" in capsys.readouterr().err
    assert main([*words, "int8"]) == 2
    assert "--precision int8 needs two scene sets" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
