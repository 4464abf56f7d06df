"""What goals and repair are worth, measured with a tiny network on scenes made by hand."""

import json

import cv2
import hand_scenes
import pytest
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import repair
from reflectdrive_ros.bench.repair import BOTH, GOALS
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent

SCENES = 3


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repair") / "val"
    folder.mkdir()
    made = [hand_scenes.scene(f"val-00000-{k:03d}", size=(64, 36), agents=4, speed=8.0) for k in range(SCENES)]
    note = shards.write_shard(folder, "val-00000", ShardContent.of(made), asked=SCENES, made_by={})
    shards.write_index(folder, Index("val", SCENES, (note,), {}))
    return folder


@pytest.mark.parametrize("planner", repair.PLANNERS)
def test_the_ablation_has_the_papers_shape_and_repair_makes_nothing_less_safe(
    scenes,
    tiny_model,  # noqa: F811
    tmp_path,
    capsys,
    planner,
):
    out = tmp_path / "repair.json"
    call = ["bench", "repair", "--scenes", str(scenes), "--model", str(tiny_model.file)]
    call += ["--sha256", tiny_model.sha256, "--planner", planner, "--image", str(tmp_path / "repair.png")]
    assert main([*call, "--random-weights", "--json", str(out)]) == 0
    assert cv2.imread(str(tmp_path / "repair.png")) is not None
    found = json.loads(out.read_text())
    rows = found["rows"]
    assert found["scenes"] == SCENES
    at_random = {repair.with_random_weights(name) for name in repair.RANDOM_WEIGHT_VARIANTS}
    assert set(rows) == set(repair.variants(Config())) | at_random
    for with_repair, without in ((BOTH, GOALS), ("repair", "without both")):
        assert rows[with_repair]["unsafe"] <= rows[without]["unsafe"]
        assert rows[without]["iterations"] == 0.0
    assert rows["iterations 0"]["pdms"] == rows[GOALS]["pdms"]
    assert rows["delta 5"] == rows[BOTH]
    assert rows[BOTH]["difference_95"] == [0.0, 0.0]
    assert rows[GOALS]["difference"] == pytest.approx(rows[GOALS]["pdms"] - rows[BOTH]["pdms"], abs=0.002)
    assert rows["iterations 10"]["iterations"] >= rows[BOTH]["iterations"]
    assert rows["route only"]["iterations"] == 0.0
    assert all(max(row["avoidable"], row["locally_repairable"]) <= row["unsafe"] for row in rows.values())
    assert "goals and repair, futures known" in capsys.readouterr().out


def test_without_a_model_it_says_so(scenes, capsys):
    no_model = ("--setting", "model.file=''", "--setting", "model.sha256=''")
    assert main(["bench", "repair", "--scenes", str(scenes), *no_model]) == 2
    assert "needs a model" in capsys.readouterr().err
