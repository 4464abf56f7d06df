"""The planner's bench: its figures hang together, and its count of equal tokens finds a network that is another."""

import json

import numpy as np
import pytest
from tiny_net import tiny_inputs, tiny_net

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.evaluation.parity import FULL, LITE, counted, frame
from reflectdrive_ros.features import ModelInputs
from reflectdrive_ros.model import probes
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

WORDS = ("<pad>", "<unk>")


def scenes(count=3):
    net = tiny_net(words=WORDS)
    for seed in range(count):
        yield ModelInputs(*(part[0].numpy() for part in tiny_inputs(net, scenes=1, seed=seed)))


def test_figures_of_a_small_run(tmp_path):
    words = ["bench", "planner", "--backend", "torch", "--steps", "2", "--threads", "1", "--json", str(tmp_path / "f")]
    assert main(words) == 0
    told = json.loads((tmp_path / "f").read_text())
    for kind in ("full", "lite"):
        assert 0 < told[f"{kind}_ms_p50"] <= told[f"{kind}_ms_p99"]
        assert told[f"roofline_{kind}_ms"] > 0
    assert told["roofline_lite_ms"] < told["roofline_full_ms"]
    assert list(told["full_by_goals_ms_p50"]) == ["1", "3", "6"]
    assert set(told["parts_ms_p50"]) == {"vision", "prefill", "goal"}
    assert told["reuse_times_faster_one_goal"] > 1
    assert {"version", "commit", "device", "date", "command"} <= set(told)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--parity", "3"], "--parity N and --scenes DIR go together"),
        (["--model", "nowhere.safetensors", "--sha256", "ab"], "nowhere.safetensors cannot be read"),
    ],
)
def test_what_cannot_be_benched_is_one_sentence(words, complaint, capsys):
    assert main(["bench", "planner", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_frames_that_reuse_nothing_write_the_same_tokens():
    net = tiny_net(words=WORDS)
    eager = TorchNetwork(net)
    for inputs in scenes():
        afresh = probes.without_reuse(net, eager.tensors(inputs), eager.decoding, 6)
        np.testing.assert_array_equal(afresh[0].numpy(), frame(eager, inputs, FULL, 6)[0])


def test_a_frame_may_edit_some_of_its_blocks():
    network = TorchNetwork(tiny_net(words=WORDS))
    for inputs in scenes():
        np.testing.assert_array_equal(
            frame(network, inputs, FULL, 6, edited=2)[0], frame(network, inputs, FULL, 6)[0][:2]
        )


def test_equal_networks_write_equal_tokens_and_others_do_not():
    network, same, other = (TorchNetwork(tiny_net(seed, words=WORDS)) for seed in (0, 0, 1))
    equal = counted(network, same, scenes())
    assert equal["equal_share"] == 1.0
    assert equal["tokens"] == 3 * 7 * 16
    assert equal["largest_difference_bins"] == 0
    assert counted(network, other, scenes())["equal_share"] < 0.9


def test_a_frame_tells_where_its_time_went():
    network = TorchNetwork(tiny_net(words=WORDS))
    blocks, (prefill, drafts, edits) = frame(network, next(scenes(1)), LITE, 1)
    assert blocks.shape == (1, 16)
    assert min(prefill, drafts, edits) > 0
