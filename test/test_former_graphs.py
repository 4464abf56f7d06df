"""Graphs of former formats, whose inputs and outputs have other names, drive with the same ids."""

import json

import numpy as np
import onnx_ir as ir
import pytest
from engine_graphs import (  # noqa: F401 (fixtures)
    MOVES,
    decoded,
    exported_cards,
    nets_of_both_precisions,
    opened,
    scene,
)
from fake_gpu import driver, trt  # noqa: F401 (fixtures)
from scenes import Clock

from reflectdrive_ros.deploy import engines
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.model.card import CARD, FORMER_FORMATS, FORMER_TENSORS, GraphCard
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.runtime.trt.backend import TrtNetwork

FORMER = {present: former for former, present in FORMER_TENSORS.items()}


@pytest.fixture(scope="module", name="former")
def graphs_of_a_former_format(cards, tmp_path_factory):
    folder = tmp_path_factory.mktemp("former")
    card, renamed = json.loads(cards["fp32"].path.read_text()), set()
    for name, file in cards["fp32"].files.items():
        model = ir.load(file)
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.name in FORMER:
                value.name = FORMER[value.name]
                renamed.add(value.name)
        ir.save(model, folder / file.name)
        written = folder / file.name
        card["graphs"][name].update(sha256=sha256_of(written), bytes=written.stat().st_size)
    assert renamed == set(FORMER_TENSORS)
    card["format"] = FORMER_FORMATS[0]
    (folder / CARD).write_text(json.dumps(card))
    return GraphCard.read(folder / CARD)


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_former_names_of_tensors_give_the_same_ids(cards, former, trt, backend, tmp_path):  # noqa: F811
    networks = []
    for card, folder in ((cards["fp32"], tmp_path / "present"), (former, tmp_path / "former")):
        if backend == "tensorrt":
            list(engines.build(card, "cuda", folder, Clock()))
        networks.append(opened(card, folder, backend=backend))  # with the self-check of its card
    assert {type(network) for network in networks} == {OrtNetwork if backend == "onnxruntime" else TrtNetwork}
    for seed in range(3):
        present, before = (decoded(network, scene(network, seed)) for network in networks)
        assert len(present) == 3 + 2 * len(MOVES)
        for mine, other in zip(present, before, strict=True):
            np.testing.assert_array_equal(mine, other)
