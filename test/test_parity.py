"""`reflectdrive bench parity`: equal networks are reported as equal, others are not, and what cannot be compared is one
sentence."""

import json
import shutil

import numpy as np
import pytest
import shared_traces  # noqa: F401 (each graph is traced once)
from stored_scenes import store
from tiny_model import tiny_model  # noqa: F401 (a fixture)
from tiny_net import tiny_inputs, tiny_net

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench.parity import count_equal, decode_both
from reflectdrive_ros.features.images import ModelInputs
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.runtime.trt import cuda_device

WORDS = ("<pad>", "<unk>")


def pairs(network, other, count=3):
    for seed in range(count):
        inputs = ModelInputs(
            *(part[0].numpy() for part in tiny_inputs(tiny_net(words=WORDS), scenes=1, seed=seed).tensors)
        )
        yield decode_both(network, other, inputs)


def test_equal_networks_write_equal_ids_and_others_do_not():
    network, same, other = (TorchNetwork(tiny_net(seed, words=WORDS)) for seed in (0, 0, 1))
    equal = count_equal(list(pairs(network, same)))
    assert equal["equal_share"] == 1.0
    assert equal["equal_scenes"] == equal["scenes"] == 3
    assert equal["tokens"] == 3 * 7 * 16
    assert equal["largest_difference_bins"] == 0
    assert count_equal(list(pairs(network, other)))["equal_share"] < 0.9


def test_one_id_that_differs_spoils_its_block_and_its_scene_only():
    ids = np.arange(7 * 16).reshape(7, 16)
    changed = ids.copy()
    changed[2, 3] += 5
    counts = count_equal([(ids, ids), (changed, ids)])
    assert (counts["equal_scenes"], counts["equal_sequences"], counts["equal_tokens"]) == (1, 13, 2 * 7 * 16 - 1)
    assert counts["largest_difference_bins"] == 5


@pytest.fixture(scope="module")
def graphs(tiny_model, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("graphs")
    assert main(["export", str(tiny_model.file), "--out", str(folder)]) == 0
    return folder / "card.json"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "val"
    store(folder, shards_of=(3,), name="val", images=True)
    return folder


def test_graphs_plan_what_eager_torch_plans(tiny_model, graphs, scenes, tmp_path):  # noqa: F811
    words = ["bench", "parity", "--model", str(tiny_model.file), "--graphs", str(graphs), "--scenes", str(scenes)]
    assert main([*words, "--limit", "2", "--json", str(tmp_path / "f")]) == 0
    numbers = json.loads((tmp_path / "f").read_text())
    assert [numbers[name] for name in ("set", "scenes", "precision", "planner")] == ["val", 2, "fp32", "reflectdrive2"]
    assert numbers["equal_plans"] == numbers["equal_scenes"] == 2
    assert numbers["pdms"] == numbers["pdms_reference"]
    assert numbers["pdms_difference_95"] == [0.0, 0.0]
    assert {"version", "commit", "device", "date", "command"} <= set(numbers)


def test_what_cannot_be_compared_is_one_sentence(tiny_model, graphs, scenes, tmp_path, capsys, monkeypatch):  # noqa: F811
    def refused(*words):
        assert main(["bench", "parity", *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    model = ["--model", tiny_model.file]
    assert "holds no scene set" in refused(*model, "--graphs", graphs, "--scenes", tmp_path)
    assert "nowhere/card.json cannot be read" in refused(*model, "--graphs", "nowhere/card.json", "--scenes", scenes)
    monkeypatch.setattr(cuda_device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    options = [*model, "--graphs", graphs, "--scenes", scenes]
    assert "there is no NVIDIA driver" in refused(*options, "--backend", "tensorrt")
    other = shutil.copytree(graphs.parent, tmp_path / "other") / "card.json"
    card = json.loads(graphs.read_text())
    card["model"]["weights_sha256"] = "0" * 64
    other.write_text(json.dumps(card))
    assert "was exported from other weights" in refused(*model, "--graphs", other, "--scenes", scenes)
