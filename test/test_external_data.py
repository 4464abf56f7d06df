"""Weights in a file next to their graph: only those whose hash the card holds."""

import os
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tiny_graphs import (  # noqa: F401 (fixtures)
    BUILT_IN,
    as_set,
    copied_graphs,
    graphs_folder,
    of_whatever_is_there,
    rewrite,
    scene,
)

from reflectdrive_ros.model.card import sha256_of
from reflectdrive_ros.model.external_data import external_files
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import load_network
from reflectdrive_ros.runtime.ort_backend import OrtNetwork


@pytest.fixture
def with_external_weights(copy):
    """The same graphs, the weights of `step` in a file of their own, with a row in the card."""
    ir.save(ir.load(copy / "step.onnx"), copy / "step.onnx", external_data="step.weights")
    weights = copy / "step.weights"
    row = {"file": weights.name, "sha256": sha256_of(weights), "bytes": weights.stat().st_size}

    def change(card):
        of_whatever_is_there(card, copy)
        card["graphs"]["step"]["weights"] = row

    rewrite(copy, change)
    return copy


def test_external_weights_are_those_of_the_card(with_external_weights):
    assert external_files((with_external_weights / "step.onnx").read_bytes()) == {"step.weights"}
    assert external_files((with_external_weights / "prefill.onnx").read_bytes()) == set()
    load_network(as_set(with_external_weights), BUILT_IN)
    weights = with_external_weights / "step.weights"
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    with pytest.raises(ModelFileError, match=r"step\.weights has SHA-256 .*, its card has"):
        load_network(as_set(with_external_weights), BUILT_IN)
    weights.unlink()
    with pytest.raises(ModelFileError, match=r"step\.weights cannot be read: No such file"):
        load_network(as_set(with_external_weights), BUILT_IN)


def test_a_card_without_a_hash_of_external_weights_is_refused(with_external_weights):
    rewrite(with_external_weights, lambda card: card["graphs"]["step"].pop("weights"))
    with pytest.raises(ModelFileError, match=r"step\.onnx takes weights from 'step\.weights', which its card has no"):
        load_network(as_set(with_external_weights), BUILT_IN)


@pytest.mark.parametrize("location", ["../step.weights", "/dev/zero", "./step.weights", "*/_ORT_MEM_ADDR_/*"])
def test_a_graph_that_takes_weights_from_elsewhere_is_refused(with_external_weights, location):
    model = onnx.load(with_external_weights / "step.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (with_external_weights / "step.onnx").write_bytes(model.SerializeToString())
    rewrite(with_external_weights, lambda card: of_whatever_is_there(card, with_external_weights))
    with pytest.raises(ModelFileError, match=r"step\.onnx takes weights from '.*', which its card has no hash of"):
        load_network(as_set(with_external_weights), BUILT_IN)


def test_external_weights_are_located_wherever_a_graph_can_hold_a_tensor():
    """In nodes, in graphs inside nodes, in functions, in sparse tensors; ordinary tensors are none."""

    def stored(name):
        tensor = onnx.TensorProto(name=name, data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=name)
        return tensor

    def node(name):
        return onnx.helper.make_node("Constant", [], ["x"], value=stored(name))

    inner = onnx.helper.make_graph([node("in_branch")], "inner", [], [], [stored("of_branch")])
    branch = onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=onnx.GraphProto())
    graph = onnx.helper.make_graph([node("in_node"), branch], "outer", [], [], [stored("of_graph"), onnx.TensorProto()])
    graph.sparse_initializer.add(values=stored("sparse_values"), indices=stored("sparse_indices"), dims=[4])
    model = onnx.helper.make_model(graph)
    model.functions.add(name="f").node.append(node("in_function"))
    model.training_info.add().algorithm.CopyFrom(onnx.helper.make_graph([node("in_training")], "t", [], []))
    assert external_files(model.SerializeToString()) == {
        *("in_branch", "of_branch", "in_node", "of_graph", "sparse_values", "sparse_indices"),
        *("in_function", "in_training"),
    }


def test_a_graph_or_weights_that_are_a_device_or_a_pipe_are_refused(with_external_weights):
    (with_external_weights / "vision_encoder.onnx").unlink()
    (with_external_weights / "vision_encoder.onnx").symlink_to("/dev/zero")
    with pytest.raises(ModelFileError, match=r"vision_encoder\.onnx cannot be read: it is a device"):
        load_network(as_set(with_external_weights), BUILT_IN)
    (with_external_weights / "vision_encoder.onnx").unlink()
    os.mkfifo(with_external_weights / "vision_encoder.onnx")
    with pytest.raises(ModelFileError, match=r"vision_encoder\.onnx cannot be read: it is a pipe"):
        load_network(as_set(with_external_weights), BUILT_IN)


def test_a_wrong_feed_is_refused_by_the_name_of_its_tensor(folder):
    graphs = OrtNetwork.from_file(folder / "card.json", threads=1)
    good = scene(0)
    for changed, complaint in (
        (replace(good, images=good.images[:, :16]), r"views is uint8 \(3, 2, 16, 64, 3\), expected uint8 \(\w+, 2, 32"),
        (replace(good, images=good.images.astype(np.float32)), "tensor views is float32"),
        (replace(good, images=good.images[:5]), "5 images were given, expected 2 of each of 3 cameras"),
        (replace(good, text=good.text[:3]), r"tensor text is int64 \(1, 3\), expected int64 \(1, 16\)"),
        (replace(good, ego=good.ego.astype(float)), "tensor ego is float64"),
        (replace(good, route=good.route[:1]), r"tensor route is int64 \(1, 1, 2\), expected int64 \(1, 2, 2\)"),
    ):
        with pytest.raises(PlanningError, match=complaint):
            graphs.prefill_goal(changed)
    prefilled = graphs.prefill_goal(good)
    with pytest.raises(PlanningError, match="graph step: tensor values_1 was not given"):
        graphs.step({k: v for k, v in prefilled.context.items() if k != "values_1"}, prefilled.actions, 1, False)
    with pytest.raises(PlanningError, match=r"tensor actions is int64 \(1, 4, 15\), expected int64 \(1, \w+, 16\)"):
        graphs.step(prefilled.context, prefilled.actions[:, :15], 1, False)
