"""Graphs of a tiny network for TensorRT, how they are opened, and what they must compute."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import Clock, config
from tiny_graphs import BUILT_IN, SEQUENCES, network, shared_graphs

from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.deploy import engines
from reflectdrive_ros.deploy.export import to_bfloat16
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import load_network, synthetic_inputs

MOVES = ((5, False), (5, False), (4, False), (0, True), (0, True))


@pytest.fixture(scope="module", name="nets")
def nets_of_both_precisions():
    """A network that knows nothing, in float32 and in bfloat16."""
    return {"fp32": network(), "bf16": to_bfloat16(network())}


@pytest.fixture(scope="module", name="cards")
def exported_cards(nets):
    """Their graphs, for steps of `SEQUENCES`; and some for any number."""
    folders = {name: shared_graphs(f"graphs-{name}-{SEQUENCES}", net, SEQUENCES) for name, net in nets.items()}
    folders["free"] = shared_graphs("graphs", nets["fp32"])
    return {name: GraphCard.read(folder / "card.json") for name, folder in folders.items()}


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
    prefilled = network.prefill_goal(inputs)
    actions, rows = prefilled.actions[:count], [prefilled.actions, prefilled.goal_log_probs, prefilled.valid]
    for limit, edit in MOVES:
        actions, confidence = network.step(prefilled.context, actions, limit, edit)
        rows += [actions, confidence]
    return rows
