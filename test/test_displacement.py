"""ADE, FDE and miss rate: by horizon, scenario tag and place, with intervals; what is unknown is left out."""

import json
from dataclasses import replace

import hand_scenes
import numpy as np
import pytest

from reflectdrive_ros.__main__ import run
from reflectdrive_ros.data import shards
from reflectdrive_ros.evaluation import displacement
from reflectdrive_ros.scoring.areas import MapAreas


def path(speed_mps):
    x = speed_mps * 0.5 * np.arange(1, 9)
    return np.stack([x, np.zeros(8), np.zeros(8)], axis=-1)


def test_a_plan_that_is_too_fast_by_1_mps_is_off_by_the_time():
    distances_m = displacement.distances(path(6.0), path(5.0))
    summary = displacement.summarise(np.stack([distances_m, distances_m]))
    assert summary["fde_m"] == {"1": 1.0, "2": 2.0, "3": 3.0, "4": 4.0}
    assert summary["ade_m"] == {"1": 0.75, "2": 1.25, "3": 1.75, "4": 2.25}
    assert summary["miss_rate"] == 100.0
    assert summary["plans"] == 2


def test_two_metres_are_no_miss_and_no_plan_is_one():
    inside, outside = np.full(8, displacement.MISS_M), np.full(8, displacement.MISS_M + 0.01)
    summary = displacement.summarise(np.stack([inside, inside, outside, displacement.NO_PLAN]))
    assert summary["miss_rate"] == 50.0
    assert summary["plans"] == 3
    none = displacement.summarise(displacement.NO_PLAN[None])
    assert none["miss_rate"] == 100.0
    assert none["ade_m"] == none["ade_m_95"] == dict.fromkeys("1234")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A set of six scenes at two places: two without a map, one without objects."""
    folder = tmp_path_factory.mktemp("sets") / "drives"
    folder.mkdir()
    scenes = []
    for k in range(6):
        scene = hand_scenes.scene(f"a-{k:06d}", family="curve" if k < 2 else "straight", images=False)
        notes = {"place": f"map/{k // 4}_0", "objects": k != 5}
        scenes.append(replace(scene, notes=notes, areas=MapAreas() if k in (0, 1) else scene.areas))
    load = shards.ShardContent.of(scenes)
    note = shards.write_shard(folder, "a-00000", load, requested=6, generator={})
    shards.write_index(folder, shards.Index("recordings", 6, (note,), {}))
    words = [
        "eval",
        "--scenes",
        str(folder),
        "--planner",
        "constant_velocity",
        "--privilege",
        "words",
        "--workers",
        "1",
    ]
    assert run([*words, "--json", str(folder / "eval.json")]) == 0
    return json.loads((folder / "eval.json").read_text())


def test_eval_gives_distances_and_scores_by_tag_and_place(written):
    assert {name: part["scenes"] for name, part in written["families"].items()} == {"curve": 2, "straight": 4}
    assert {name: part["scenes"] for name, part in written["places"].items()} == {"map/0_0": 4, "map/1_0": 2}
    for part in (written, *written["families"].values(), *written["places"].values()):
        assert part["displacement"]["plans"] == part["scenes"]
        low, high = part["displacement"]["ade_m_95"]["3"]
        assert low <= part["displacement"]["ade_m"]["3"] <= high
        low, high = part["comfort_95"]
        assert low <= part["comfort"] <= high
    assert "displacement" not in written["drivers"]["expert"]


def test_scenes_without_map_or_objects_leave_out_what_they_do_not_tell(written, capsys):
    assert written["without_map"] == 2
    assert written["without_objects"] == 1
    assert written["families"]["curve"]["pdms"] is written["families"]["curve"]["dac"] is None
    assert written["families"]["curve"]["nc"] is not None
    assert written["families"]["straight"]["dac"] is not None
    assert 0.0 <= written["pdms"] <= 100.0
