"""A tiny network, its graphs, what they must compute, and what TensorRT takes."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx_ir as ir
import pytest
import shared_traces  # noqa: F401 (each graph is traced once)
import torch
from shared import create_once
from tiny_net import ONE_LAYER, VISION, tiny_inputs, tiny_net

from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.deploy import quantise
from reflectdrive_ros.deploy.export import export
from reflectdrive_ros.features.images import WORDS, ModelInputs
from reflectdrive_ros.model.card import sha256_of
from reflectdrive_ros.model.token.ops import EditRules, GoalRules
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.runtime.network import golden
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

RULES = Decoding(GoalRules(4, 1.2, floor=0.0), EditRules())
SEQUENCES = 6  # of a step whose number of action sequences is fixed
MOVES = ((5, False), (5, False), (4, False), (0, True), (0, True), (0, True))
OPERATORS = json.loads((Path(__file__).parent / "data" / "tensorrt_operators.json").read_text())


def network(seed=0, **changes):
    """A tiny network whose weights bfloat16 holds, as those of a checkpoint.

    The files that export share its graphs, and those for steps of `SEQUENCES`: to trace all takes 30 s of a processor.
    """
    net = tiny_net(seed, **{"words": WORDS, "text_vocabulary": len(WORDS), "text_length": 16, **changes})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16())
    return net


def one_layer():
    """A network whose weights bfloat16 would change, and which encodes the images of each instant by themselves."""
    vision = replace(VISION, frames=1)
    return tiny_net(words=WORDS, text_vocabulary=len(WORDS), text_length=16, vision=vision, transformer=ONE_LAYER)


def scene(seed):
    net = network()
    return ModelInputs(*(part[0].numpy() for part in tiny_inputs(net, scenes=1, seed=seed).tensors))


def decoded(net, inputs, moves=MOVES, count=None):
    prefilled = net.prefill_goal(inputs)
    actions, confidence = prefilled.actions[:count], None
    for limit, edit in moves:
        actions, confidence = net.step(prefilled.context, actions, limit, edit)
    return prefilled, actions, confidence


CAMERA = (150, 90)  # neither a whole number of times as large as the network's nor of its shape


def camera_pixels(seed):
    width, height = CAMERA
    small = np.random.default_rng(seed).integers(0, 256, (6, height // 6, width // 6, 3), np.uint8)
    return np.stack([cv2.resize(each, CAMERA, interpolation=cv2.INTER_CUBIC) for each in small])


def unknown_to_tensorrt(file):
    """Operators of a graph, and of what type they are there, that are not in TensorRT's list."""
    graph, unknown = ir.load(file).graph, []
    assert graph.opset_imports == {"": OPERATORS["opset"]}
    for node in graph.all_nodes():
        judged = node.inputs[1 if node.op_type == "Where" else 0] if node.op_type != "Cast" else node.outputs[0]
        kind = None if judged is None or judged.dtype is None else judged.dtype.name
        supported_types = OPERATORS["types"].get(node.op_type) if node.domain == "" else None
        if supported_types is None or (kind is not None and kind not in supported_types):
            unknown.append(f"{node.domain}{node.op_type} of {kind}")
    return unknown


def as_set(folder, **changes):
    card = folder / "card.json"
    return ModelConfig(str(card), sha256_of(card), **changes)


BUILT_IN = DecodingConfig(goals=4)


def rewrite(folder, change):
    card = json.loads((folder / "card.json").read_text())
    change(card)
    (folder / "card.json").write_text(json.dumps(card))


@pytest.fixture(scope="module", autouse=True)
def products_of_tiny_networks_are_worth_it():
    before, quantise.MIN_SIDE = quantise.MIN_SIDE, 16
    yield
    quantise.MIN_SIDE = before


def shared_graphs(name, net, sequences=None):
    """The folder `name` of a network's graphs and their card, which no test changes; `sequences` as of `export`."""

    def make(folder):
        answers = golden(TorchNetwork(net, decoding=RULES))
        export(net, "0" * 64, folder, {"weights": {"steps": 3}}, RULES, sequences, answers)

    return create_once(name, make)


@pytest.fixture(scope="module", name="folder")
def graphs_folder():
    """Of `network()`, for steps of any number of action sequences."""
    return shared_graphs("graphs", network())


@pytest.fixture(name="copy")
def copied_graphs(folder, tmp_path):
    """The exported files once more, to be spoiled."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def of_whatever_is_there(card, folder):
    for row in card["graphs"].values():
        file = folder / row["file"]
        row.update(sha256=sha256_of(file), bytes=file.stat().st_size)
