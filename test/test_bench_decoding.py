"""What each part of the decoding is worth, measured with a tiny network on scenes made by hand."""

import json
from dataclasses import replace

import hand_scenes
import numpy as np
import pytest
from tiny_net import POSES, tiny_net

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import decoding
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.tokens import Axis, Codebook, TokenLayout
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.features import images as features
from reflectdrive_ros.features.images import model_inputs
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.model.token.moe import RefineConfig
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.scoring.scorer import score

SCENES = 2


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A set of scenes and a model's weights."""
    folder = tmp_path_factory.mktemp("decoding")
    scenes = folder / "val"
    scenes.mkdir()
    made = [hand_scenes.scene(f"val-00000-{k:03d}", size=(64, 36), agents=2) for k in range(SCENES)]
    note = shards.write_shard(scenes, "val-00000", ShardContent.of(made), asked=SCENES, made_by={})
    shards.write_index(scenes, Index("val", SCENES, (note,), {}))
    net = tiny_net(words=features.WORDS, text_vocabulary=len(features.WORDS), text_length=12)
    checkpoint.save(net, folder / "model/weights.safetensors", {})
    return scenes, folder / "model/weights.safetensors"


def test_every_way_changes_one_number():
    config = Config()
    ways = decoding.variants(config)
    assert ways.pop(decoding.CONFIGURED) == decoding.Variant(config)
    for name, way in ways.items():
        changed = [
            (part, key)
            for part in ("decoding", "reflectdrive2")
            for key, value in vars(getattr(way.config, part)).items()
            if value != getattr(getattr(config, part), key)
        ]
        assert len(changed) <= 1, name
    assert len(set(ways.values())) > 20


def test_a_layout_changes_the_order_of_tokens_and_not_the_weights():
    net = tiny_net(layout=replace(POSES, last_waypoint_first=True), words=features.WORDS, text_vocabulary=64)
    given = TorchNetwork(net)
    other = given.with_layout(replace(net.config.layout, last_waypoint_first=False))
    assert (given.layout.last_waypoint_first, other.layout.last_waypoint_first) == (True, False)
    assert net.config.layout.last_waypoint_first
    observation = hand_scenes.scene("one", size=(64, 36)).observation()
    masked = np.full((1, POSES.length), POSES.mask_id, np.int32)
    first, free = (
        each.step(each.prefill(model_inputs(observation, each.inputs)), masked, 3, False)[0] for each in (given, other)
    )
    assert (np.flatnonzero(first != POSES.mask_id) == POSES.length - 3 + np.arange(3)).all()
    assert not np.array_equal(first, free)
    with pytest.raises(ValueError, match="other tokens"):
        given.with_layout(TokenLayout())


def test_the_table_has_a_row_for_each_way_and_the_oracle_is_never_worse(given, tmp_path, capsys):
    scenes, model = given
    out = tmp_path / "decoding.json"
    call = ["bench", "decoding", "--scenes", str(scenes), "--model", str(model), "--json", str(out)]
    assert main(call) == 0
    found = json.loads(out.read_text())
    assert found["scenes"] == SCENES
    assert set(found["rows"]) == set(decoding.variants(Config()))
    for name, row in found["rows"].items():
        assert row["best"] >= max(row["single"], row["chosen"]) - 1e-9, name
    assert found["rows"]["configured"]["difference"] == 0.0
    for same in ("draft rounds 3", "edit rounds 3", "goals 6", "goal spacing 1.2 m"):
        assert found["rows"][same] == found["rows"]["configured"]
    one = found["rows"]["goals 1"]
    assert one["single"] == one["best"] == one["chosen"]
    stored = shards.read(scenes, images=False, on_damage=pytest.fail)
    exact = [score(scene.scored(), scene.expert[None]).score[0] for scene in stored]
    assert found["expert"]["exact"] == pytest.approx(100.0 * np.mean(exact), abs=1e-3)
    told = capsys.readouterr().out
    assert "edit rounds 0" in told
    assert f"read relative to the road {found['expert']['tokens']:.1f}, without the road" in told


def test_drivefine_has_rows_of_its_rounds_and_of_the_order_of_its_tokens(given, tmp_path):
    scenes, _ = given
    words = {"words": features.WORDS, "text_vocabulary": len(features.WORDS), "text_length": 12}
    net = tiny_net(layout=replace(POSES, last_waypoint_first=True), refine=RefineConfig(1), **words)
    model, out = tmp_path / "model/weights.safetensors", tmp_path / "decoding.json"
    checkpoint.save(net, model, {})
    call = ["bench", "decoding", "--scenes", str(scenes), "--planner", "drivefine", "--model", str(model)]
    assert main([*call, "--limit", "1", "--setting", "drivefine.candidates=2", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert set(decoding.LAYOUTS) < set(rows)
    assert rows["draft rounds 4, refined"] == rows["configured"]
    assert rows["configured"]["best"] >= rows["configured"]["single"]


def test_what_the_expert_scores_in_tokens_is_told_with_and_without_the_road():
    scene = hand_scenes.scene(size=(64, 36), agents=0, images=False)
    found = decoding.expert_ceiling(scene, TokenLayout())
    assert found.exact >= found.tokens - 0.02  # rounding brings nothing but luck
    points = scene.expert[:, :2]
    np.testing.assert_allclose(Codebook().decode(Codebook().encode(points)), points, atol=0.15 + 1e-9)
    axes = tuple(Axis(name, 0.02, 9999, -99.0, 99.0) for name in ("x", "y"))
    fine = decoding.expert_ceiling(scene, TokenLayout(axes=axes))
    assert fine.tokens_without_road == pytest.approx(fine.exact, abs=0.02)


def test_a_model_that_is_not_there_is_one_sentence(given, tmp_path, capsys):
    call = [
        "bench",
        "decoding",
        "--scenes",
        str(given[0]),
        "--model",
        str(tmp_path / "none.safetensors"),
    ]
    assert main(call) == 2
    assert "none.safetensors" in capsys.readouterr().err


def test_graphs_with_one_way_of_decoding_built_in_are_not_enough(given, capsys):
    scenes, _ = given
    assert main(["bench", "decoding", "--scenes", str(scenes)]) == 2
    assert "needs a model's weights" in capsys.readouterr().err
