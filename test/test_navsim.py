"""The agent for NAVSIM's devkit and scene sets from its data, driven with objects of the documented shapes: the golden
scenes, which the devkit's official code scored."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import navsim_devkit
import numpy as np
import pytest
import yaml

from reflectdrive_ros.__main__ import run
from reflectdrive_ros.core.domain import Command
from reflectdrive_ros.data import frame_index, shards
from reflectdrive_ros.evaluation import golden, navsim
from reflectdrive_ros.features.cameras import rig
from reflectdrive_ros.infra.errors import UserError
from reflectdrive_ros.scoring.scorer import score

ROOT = Path(__file__).parents[1]
RIG = rig(288, 162)
ENTRIES = navsim_devkit.entries(28)


def agent_module(monkeypatch, version):
    navsim_devkit.install(monkeypatch, version)
    return importlib.import_module("reflectdrive_ros.evaluation.navsim_agent")


@pytest.fixture(params=[navsim_devkit.AgentOfVersion1, navsim_devkit.AgentOfVersion2], ids=["1.1", "2.x"])
def module(request, monkeypatch):
    return agent_module(monkeypatch, request.param)


def test_the_agent_plans_eight_poses_that_start_at_its_own_speed(module):
    agent = module.ReflectDriveAgent()
    agent.initialize()
    entry = next(each for each in ENTRIES if each["ego"]["vx"] > 5.0)
    trajectory = agent.compute_trajectory(navsim_devkit.agent_input(entry))
    assert trajectory.poses.shape == (8, 3)
    assert trajectory.poses.dtype == np.float32
    first_m = float(np.hypot(*trajectory.poses[0, :2]))
    assert abs(first_m - 0.5 * entry["ego"]["vx"]) < 1.0


def test_a_sampling_of_a_tenth_of_a_second_is_a_finer_sampling_of_the_same_plan(module):
    entry = ENTRIES[0]
    fine = navsim_devkit.TrajectorySampling(time_horizon=4, interval_length=0.1)
    coarse, finer = (
        module.ReflectDriveAgent(trajectory_sampling=each).compute_trajectory(navsim_devkit.agent_input(entry)).poses
        for each in (None, fine)
    )
    assert finer.shape == (40, 3)
    assert np.abs(finer[4::5] - coarse).max() < 1e-4


def test_the_agent_asks_for_three_cameras_at_the_frames_that_its_network_takes(module):
    config = module.ReflectDriveAgent().get_sensor_config()
    requested = {name: value for name, value in vars(config).items() if value is not False}
    assert requested == {"cam_f0": [2, 3], "cam_l0": [2, 3], "cam_r0": [2, 3]}


def test_its_hydra_file_names_the_class_and_its_arguments(module):
    hydra = yaml.safe_load((ROOT / "config/navsim/agent/reflectdrive_agent.yaml").read_text())
    package, _, name = hydra["_target_"].rpartition(".")
    assert getattr(importlib.import_module(package), name) is module.ReflectDriveAgent
    arguments = {key: value for key, value in hydra.items() if not key.startswith("_")}
    sampling = {key: value for key, value in arguments.pop("trajectory_sampling").items() if not key.startswith("_")}
    agent = module.ReflectDriveAgent(**arguments, trajectory_sampling=module.TrajectorySampling(**sampling))
    assert agent.name() == "reflectdrive_reflectdrive2"


def test_an_agent_without_cameras_is_refused(module):
    with pytest.raises(UserError, match="expected one that reads images"):
        module.ReflectDriveAgent(planner="reflexdiffusion")


def test_without_the_devkit_the_agent_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "reflectdrive_ros.evaluation.navsim_agent", raising=False)
    with pytest.raises(UserError, match=r"the NAVSIM devkit cannot be imported .* install it as docs/navsim.md says"):
        importlib.import_module("reflectdrive_ros.evaluation.navsim_agent")


# --- observations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one_hot", "expected"),
    [
        (navsim_devkit.LEFT, Command.LEFT),
        (navsim_devkit.STRAIGHT, Command.STRAIGHT),
        (navsim_devkit.RIGHT, Command.RIGHT),
        (navsim_devkit.UNKNOWN, Command.FOLLOW),
    ],
)
def test_commands(one_hot, expected):
    observation = navsim.observe(navsim_devkit.agent_input(ENTRIES[0], one_hot), RIG, 2)
    assert observation.command is expected


def test_the_ego_state_is_that_of_the_last_frame_and_its_yaw_rate_from_the_headings():
    entry = next(each for each in ENTRIES if each["kind"] == "curve")
    ego = navsim.observe(navsim_devkit.agent_input(entry), RIG, 2).ego
    headings = np.array(entry["ego_frames"])[2:4, 2]
    assert ego.speed_mps == entry["ego"]["vx"]
    assert ego.acceleration_mps2 == entry["ego"]["ax"]
    assert ego.yaw_rate_rps == pytest.approx(np.diff(headings)[0] / 0.5)
    assert np.abs(ego.map_from_ego).max() < 1e-12


def test_images_are_those_of_the_last_two_frames_from_left_to_right():
    frames = navsim.observe(navsim_devkit.agent_input(ENTRIES[0]), RIG, 2).cameras
    assert [frame.name for frame in frames] == 2 * ["front_left", "front", "front_right"]
    assert [int(frame.pixels[80, 140, 0]) for frame in frames] == [60, 61, 62, 70, 71, 72]
    assert frames[3].stamp_ns - frames[0].stamp_ns == 500_000_000


def test_a_camera_of_the_networks_own_rig_is_passed_through_and_a_distorted_one_is_not():
    same, bent = (
        navsim.observe(navsim_devkit.agent_input(ENTRIES[0], distortion=each), RIG, 2).cameras[4].pixels
        for each in ((0.0,) * 5, (0.3, 0.0, 0.0, 0.0, 0.0))
    )
    assert (same == 71).all()
    assert (bent == 0).any()  # corners that a pincushion lens does not see
    assert (bent[80, 140] == 71).all()


def test_missing_images_and_history_are_named():
    with pytest.raises(ValueError, match=r"Cameras.cam_r0 of history frame 2 has no image"):
        navsim.observe(navsim_devkit.agent_input(ENTRIES[0], names=("cam_l0", "cam_f0")), RIG, 2)
    alone = navsim_devkit.agent_input(ENTRIES[0])
    with pytest.raises(ValueError, match="has 1 frames, expected 4"):
        navsim.observe(replace(alone, ego_statuses=alone.ego_statuses[-1:]), RIG, 2)


# --- scenes ----------------------------------------------------------------------------------------------------------


def test_scores_with_a_metric_cache_are_those_of_the_golden_scenes():
    """NC, DAC, TTC exactly; EP as far as our simulation of the reference planner starts with another yaw rate."""
    for entry in ENTRIES[:12]:
        golden_scene = golden.parse_scene(entry)
        cached_scene = navsim.scene_of(navsim_devkit.scene(entry), navsim_devkit.metric_cache(entry), RIG, 2, "a-0")
        with_lights = replace(golden_scene.first, red_lights=golden_scene.second.red_lights)
        expected = score(with_lights, golden_scene.candidates)
        card = score(cached_scene.scored(vehicle=golden_scene.first.vehicle), golden_scene.candidates)
        for name in ("nc", "dac", "ttc"):
            assert np.array_equal(getattr(card, name), getattr(expected, name)), (entry["scene_id"], name)
        assert np.abs(card.progress_m - expected.progress_m).max() < 1e-4
        assert np.abs(card.ep - expected.ep).max() < 5e-3
        assert cached_scene.reference.multiplier == golden_scene.first.reference.multiplier
        assert abs(cached_scene.reference.progress_m - golden_scene.first.reference.progress_m) < 0.1


def test_the_expert_is_the_human_and_the_history_ends_here():
    for entry in ENTRIES[:5]:
        converted = navsim.scene_of(navsim_devkit.scene(entry), None, RIG, 2, "a-0")
        assert np.abs(converted.expert - golden.parse_scene(entry).human).max() < 1e-5
        assert np.abs(converted.ego_history[-1]).max() < 1e-9
        assert not converted.has_map
        assert converted.notes["route"] == "driven"


def test_a_scene_without_4_s_of_future_is_refused():
    short = navsim_devkit.scene(ENTRIES[0])
    short.frames = short.frames[:10]
    with pytest.raises(ValueError, match="8 later are needed"):
        navsim.scene_of(short, None, RIG, 2, "a-0")


# --- dataset --from navsim -------------------------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("2021.05.12_a", "2021.05.12_b"):
        (folder / f"{name}.pkl").write_bytes(b"not read by the stand-in")
    return folder


def test_a_set_has_the_scenes_of_the_loader_with_map_and_route_of_the_metric_cache(monkeypatch, logs, tmp_path):
    navsim_devkit.install(monkeypatch)
    out = tmp_path / "set"
    words = ["dataset", str(logs), "--from", "navsim", "--sensor-blobs", str(tmp_path), "--out", str(out)]
    assert run([*words, "--metric-cache", str(tmp_path), "--json", str(tmp_path / "set.json")]) == 0
    scenes = list(shards.read(out, images=True, on_damage=pytest.fail))
    assert len(scenes) == 3  # the metric cache knows three of the four
    assert all(scene.has_map and scene.has_objects and len(scene.cameras) == 6 for scene in scenes)
    assert all(scene.notes["route"] == "centreline" for scene in scenes)
    _, rows = frame_index.read_rows(out / "frames" / "2021_05_12_b.parquet")
    assert [row.reasons for row in rows] == [(), ("missing_input",)]
    assert "run_metric_caching.py" in rows[1].problem
    assert json.loads((tmp_path / "set.json").read_text())["skipped"] == {"missing_input": 1}
    assert (out / "dataset.html").exists()
    assert run(["eval", "--scenes", str(out), "--planner", "route_follower", "--workers", "1"]) == 0


def test_the_same_command_keeps_whole_logs_and_a_scene_filter_chooses(monkeypatch, logs, tmp_path):
    navsim_devkit.install(monkeypatch)
    out = tmp_path / "set"
    words = ["dataset", str(logs), "--from", "navsim", "--sensor-blobs", str(tmp_path), "--out", str(out)]
    assert run(words) == 0
    tar = out / "2021_05_12_a-00000.tar"
    written = tar.stat().st_mtime_ns
    (out / "2021_05_12_b-00000.json").unlink()
    assert run(words) == 0
    assert tar.stat().st_mtime_ns == written
    assert (out / "2021_05_12_b-00000.json").exists()
    chosen = tmp_path / "filter.yaml"
    chosen.write_text(
        "_target_: navsim.common.dataclasses.SceneFilter\n_convert_: 'all'\nnum_history_frames: 4\n"
        f"num_future_frames: 10\nlog_names: [2021.05.12_a]\ntokens: ['{ENTRIES[0]['scene_id']}']\n"
    )
    words[words.index(str(out))] = str(tmp_path / "chosen")
    assert run([*words, "--scene-filter", str(chosen)]) == 0
    (scene,) = shards.read(tmp_path / "chosen", images=False, on_damage=pytest.fail)
    assert scene.notes["token"] == ENTRIES[0]["scene_id"]


def refusal(capsys, *words):
    code = run(["dataset", *map(str, words)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    return line


def test_bad_input_is_one_sentence(monkeypatch, logs, tmp_path, capsys):
    out = tmp_path / "set"
    common = ("--from", "navsim", "--sensor-blobs", tmp_path, "--out", out)
    assert "needs the NAVSIM devkit" in refusal(capsys, logs, *common)
    navsim_devkit.install(monkeypatch)
    assert "--sensor-blobs DIR" in refusal(capsys, logs, "--from", "navsim", "--out", out)
    (tmp_path / "empty").mkdir()
    assert "holds no log (*.pkl)" in refusal(capsys, tmp_path / "empty", *common)
    (tmp_path / "list.yaml").write_text("- no filter\n")
    assert "no scene filter" in refusal(capsys, logs, *common, "--scene-filter", tmp_path / "list.yaml")
