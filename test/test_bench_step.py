"""The engine's own time in a step is that of the step without the network's calls."""

import json

import hand_scenes
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench.step import LATER_S, moved_on
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.evaluation.privilege import observe

SCENES = 2


def test_full_and_lite_steps_are_timed_without_the_network(tiny_model, tmp_path, capsys):  # noqa: F811
    folder = tmp_path / "val"
    folder.mkdir()
    made = [hand_scenes.scene(f"val-00000-{k:03d}", size=(64, 36), agents=4, speed=8.0) for k in range(SCENES)]
    note = shards.write_shard(folder, "val-00000", ShardContent.of(made), requested=SCENES, generator={})
    shards.write_index(folder, Index("val", SCENES, (note,), {}))
    out = tmp_path / "step.json"
    call = ["bench", "step", "--scenes", str(folder), "--model", str(tiny_model.file), "--sha256", tiny_model.sha256]
    assert main([*call, "--runs", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["parts"]
    assert found["all"]["steps"] == 2 * SCENES
    assert found["full"]["steps"] >= SCENES
    assert 0.0 < found["all"]["ms_p50"] <= found["all"]["ms_p99"]
    assert "without the network" in capsys.readouterr().out


def test_the_second_observation_is_where_the_car_is_then():
    observation = observe(hand_scenes.scene("val-00000-000", size=(64, 36), agents=1, speed=8.0), "objects")
    later = moved_on(observation)
    assert later.stamp_ns - observation.stamp_ns == round(1e9 * LATER_S)
    driven_m = ((later.ego.map_from_ego - observation.ego.map_from_ego)[:2] ** 2).sum() ** 0.5
    assert abs(driven_m - 8.0 * LATER_S) < 0.01
