"""`bench inputs`: each input is withheld or exchanged, and the plans are compared scene by scene."""

import json
from dataclasses import replace

import hand_scenes
import numpy as np
import pytest
from tiny_net import tiny_net
from tiny_training import make_set, network

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import inputs
from reflectdrive_ros.core.domain import Command
from reflectdrive_ros.evaluation import privilege
from reflectdrive_ros.training import train_state


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    net = tiny_net(0, words=network().words, text_vocabulary=len(network().words), text_length=12)
    folder = tmp_path_factory.mktemp("run")
    train_state.save_weights(net, folder / train_state.WEIGHTS, {})
    return folder / train_state.WEIGHTS


def test_every_input_has_a_row_with_paired_differences(weights, tmp_path, capsys):
    scenes, out = make_set(tmp_path / "val", "val", 6, per_shard=3), tmp_path / "inputs.json"
    words = ["bench", "inputs", "--model", weights, "--scenes", scenes, "--limit", "5", "--json", out, "--card"]
    assert main([str(word) for word in words]) == 0
    content = json.loads(out.read_text())
    card = json.loads((weights.parent / "card.json").read_text())
    assert card["evaluations"]["val"]["variants"] == content["variants"]
    assert card["evaluations"]["val"]["paired_commands"] == content["paired_commands"]
    train_state.load_network(weights.parent)  # still a card of these weights
    assert card["evaluations"]["val"]["families"] == content["families"]
    assert content["scenes"] == 5 == sum(part["scenes"] for part in content["families"].values())
    rows = content["variants"]
    assert set(rows) == {"all inputs", "other images", "black images", "no route", "no words"}
    assert rows["all inputs"]["difference"] == rows["all inputs"]["moved_m"] == 0.0
    for row in rows.values():
        assert row["difference"] == pytest.approx(row["pdms"] - rows["all inputs"]["pdms"], abs=2e-3)
        assert row["difference_95"][0] <= row["difference"] <= row["difference_95"][1]
    assert rows["no route"]["moved_m"] > 0.0
    assert "no route" in capsys.readouterr().out


def test_without_map_or_objects_there_is_no_pdms_but_a_distance_to_the_driven_path():
    scene = inputs.SceneResult(
        {inputs.ALL: float("nan")}, {inputs.ALL: np.zeros(2)}, None, {inputs.ALL: np.arange(1.0, 9.0)}
    )
    row = inputs.summarise([scene])["variants"][inputs.ALL]
    assert row["pdms"] is row["difference_95"] is None
    assert row["displacement"]["ade_m"]["3"] == 3.5
    assert row["displacement"]["fde_m"]["4"] == 8.0


def test_tags_and_places_have_their_own_errors_with_intervals():
    """Two places, one with an error of 3 m and one without, and a scene without a place."""
    scenes = [
        inputs.SceneResult({inputs.ALL: 1.0}, {inputs.ALL: np.zeros(2)}, None, {inputs.ALL: np.full(8, m)}, tag, place)
        for m, tag, place in ((3.0, "curve", "map/0_0"), (3.0, "straight", "map/0_0"), (0.0, "curve", "map/0_1"))
    ]
    scenes.append(replace(scenes[-1], place=""))
    found = inputs.summarise(scenes)
    assert {place: part["displacement"]["ade_m"]["4"] for place, part in found["places"].items()} == {
        "map/0_0": 3.0,
        "map/0_1": 0.0,
    }
    assert found["places"]["map/0_0"]["displacement"]["miss_rate_95"] == [100.0, 100.0]
    curve = found["families"]["curve"]
    low, high = curve["displacement"]["fde_m_95"]["4"]
    assert low < curve["displacement"]["fde_m"]["4"] == 1.0 < high
    assert (curve["scenes"], curve["pdms"]) == (3, 100.0)


def test_a_card_is_written_for_weights_only(tmp_path, capsys):
    assert main(["bench", "inputs", "--scenes", str(tmp_path), "--card"]) == 2
    assert "give --model RUN/weights.safetensors" in capsys.readouterr().err


def test_a_variant_changes_one_input_and_keeps_the_others():
    scene, other = (hand_scenes.scene(f"s-{seed}", size=(64, 36), agents=3) for seed in (1, 2))
    given = privilege.observe(scene, "objects")
    found = inputs.variants(given, other.observation(), "objects", vectors=False)
    assert set(found) == {"all inputs", "other images", "black images", "no route", "no words", "no objects"}
    assert all(each.ego is given.ego for each in found.values())
    assert found["no objects"].others is None
    assert found["no objects"].drivable is None
    assert len(found["no route"].route) == 0
    lent = found["other images"].cameras
    assert all(
        np.array_equal(frame.pixels, own.pixels) for frame, own in zip(lent, other.observation().cameras, strict=True)
    )
    assert [frame.stamp_ns for frame in lent] == [frame.stamp_ns for frame in given.cameras]
    assert not any(frame.pixels.any() for frame in found["black images"].cameras)
    assert len(found["no words"].route) == len(given.route)


def test_paired_commands_differ_in_command_and_words_only():
    scene = hand_scenes.scene("s", size=(64, 36), agents=0)
    observation = replace(scene.observation(), command=Command.LEFT, instruction="turn left at the lights")
    assert inputs.with_command(observation, Command.LEFT).instruction == "turn left at the lights"
    right = inputs.with_command(observation, Command.RIGHT)
    assert right.instruction == "turn right at the lights"
    assert right.command is Command.RIGHT


def test_the_summary_counts_scenes_whose_plan_follows_the_command():
    ends = {inputs.ALL: np.zeros(2)}
    found = [
        inputs.SceneResult({inputs.ALL: 1.0}, ends, paired, {inputs.ALL: np.ones(8)})
        for paired in ((3.0, -3.0), (0.2, 0.0), (-1.0, 1.0), None)
    ]
    paired = inputs.summarise(found)["paired_commands"]
    assert paired["scenes"] == 3
    assert paired["follows"] == pytest.approx(33.3)
    assert paired["left_less_right_m"] == pytest.approx((6.0 + 0.2 - 2.0) / 3, abs=1e-3)
    assert inputs.summarise(found[3:])["paired_commands"] is None


def test_the_last_scene_gets_the_images_of_the_first():
    assert list(inputs.with_next(iter("abc"))) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert list(inputs.with_next(iter("a"))) == [("a", "a")]
    assert list(inputs.with_next(iter(""))) == []
