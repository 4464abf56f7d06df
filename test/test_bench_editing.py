"""`bench editing`: plans before and after their edits, by training, with paired differences."""

import json

import numpy as np
import pytest
import torch
from tiny_net import tiny_net
from tiny_training import make_set, network

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import editing
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.training import train_state


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Two trainings: one that predicts scores of plans, and one that does not."""
    folders = []
    for seed, plan_value in ((0, False), (1, True)):
        net = tiny_net(
            seed, words=network().words, text_vocabulary=len(network().words), text_length=12, plan_value=plan_value
        )
        if plan_value:
            torch.nn.init.normal_(net.plan_value_head.weight, generator=torch.Generator().manual_seed(seed))
        folders.append(tmp_path_factory.mktemp("run"))
        train_state.save_weights(net, folders[-1] / train_state.WEIGHTS, {})
    return folders


def test_every_training_has_a_row_whose_gain_is_after_less_before(weights, tmp_path, capsys):
    scenes, out = make_set(tmp_path / "val", "val", 6, per_shard=3), tmp_path / "editing.json"
    words = ["bench", "editing", "--model", *weights, "--scenes", scenes, "--limit", "5", "--json", out]
    assert main([str(word) for word in words]) == 0
    content = json.loads(out.read_text())
    assert content["weights_sha256"] == ", ".join(sha256_of(folder / train_state.WEIGHTS) for folder in weights)
    first, second = (content["rows"][str(folder)] for folder in weights)
    for row in (first, second):
        assert row["gain"] == pytest.approx(row["plan"] - row["draft"], abs=2e-3)
        assert row["gain_95"][0] <= row["gain"] <= row["gain_95"][1]
    assert first["to_first"] == 0.0
    assert second["to_first"] == pytest.approx(second["plan"] - first["plan"], abs=2e-3)
    assert "ranked" not in first
    assert second["best"] >= second["ranked"] >= 0.0
    assert "gain (95 %)" in " ".join(capsys.readouterr().out.split())


def test_a_difference_is_paired_by_scene():
    mean, (low, high) = editing._difference(np.array([0.9, 0.1, 0.5]), np.array([0.8, 0.0, 0.4]))
    assert mean == low == high == 10.0  # each scene gains as much, however different they are


def test_weights_that_are_missing_are_one_sentence(tmp_path, capsys):
    assert main(["bench", "editing", "--model", str(tmp_path / "none"), "--scenes", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
