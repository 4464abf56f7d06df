"""Graphs of a tiny network for TensorRT, how they are opened, and what is asked of them."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import Clock, config
from tiny_graphs import BUILT_IN, RULES, SEQUENCES, network

from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.deploy import engines
from reflectdrive_ros.deploy.export import export, to_bfloat16
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import golden, load_network, synthetic_inputs
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

MOVES = ((5, False), (5, False), (4, False), (0, True), (0, True))


@pytest.fixture(scope="module", name="nets")
def nets_of_both_precisions():
    """A network that knows nothing, in float32 and in bfloat16."""
    return {"fp32": network(), "bf16": to_bfloat16(network())}


@pytest.fixture(scope="module", name="cards")
def exported_cards(nets, tmp_path_factory):
    """Their graphs, for steps of `SEQUENCES`; and some for any number."""
    made = {}
    for name, net in nets.items():
        folder = tmp_path_factory.mktemp(name)
        export(net, "0" * 64, folder, {}, RULES, SEQUENCES, golden(TorchNetwork(net, decoding=RULES)))
        made[name] = GraphCard.read(folder / "card.json")
    free = tmp_path_factory.mktemp("free")
    export(nets["fp32"], "0" * 64, free, {}, RULES, None, golden(TorchNetwork(nets["fp32"], decoding=RULES)))
    return made | {"free": GraphCard.read(free / "card.json")}


@pytest.fixture(name="built")
def built_engines(trt, cards, tmp_path):
    """Engines of the graphs in float32."""
    list(engines.build(cards["fp32"], "cuda", tmp_path, Clock()))
    return tmp_path


def as_set(card, **changes):
    return ModelConfig(str(card.path), sha256_of(card.path), **changes)


def opened(card, folder, **changes):
    return load_network(as_set(card, engines=str(folder), **changes), BUILT_IN)


def on(card, folder):
    """The whole configuration."""
    whole = replace(config(planner="reflectdrive2"), decoding=BUILT_IN)
    return replace(whole, model=as_set(card, engines=str(folder)))


def refused(ask, kind=ModelFileError):
    with pytest.raises(kind) as fault:
        ask()
    assert "\n" not in str(fault.value)
    return str(fault.value)


def scene(network, seed):
    inputs, random = synthetic_inputs(network), np.random.default_rng(seed)
    return replace(inputs, images=random.integers(0, 256, inputs.images.shape, dtype=np.uint8))


def decoded(network, inputs, count=4):
    known = network.prefill_goal(inputs)
    actions, rows = known.actions[:count], [known.actions, known.goal_log_probs, known.valid]
    for limit, edit in MOVES:
        actions, confidence = network.step(known.context, actions, limit, edit)
        rows += [actions, confidence]
    return rows
