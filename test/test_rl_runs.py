"""Runs by reward: they resume, share the work, and refuse what they cannot train."""

import dataclasses
import json
import signal
from dataclasses import replace
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from tiny_rl import (  # noqa: F401 (fixtures)
    YAML,
    network_to_begin_with,
    rl_command,
    with_words,
)
from tiny_training import (  # noqa: F401 (two_sets is a fixture)
    NEVER,
    Silent,
    command,
    in_processes,
    make_set,
    network,
    prepare,
    same_weights,
    signal_after_two_steps,
    two_sets,
)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.training import rl, run_log, settings, train_state
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.runs import launch_fabric
from reflectdrive_ros.training.token_runs import TokenJob

# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("default_signals")
def test_a_run_that_is_stopped_ends_with_the_same_weights_and_logs_its_panel(sets, init, tmp_path, monkeypatch):
    assert rl_command(sets, tmp_path / "whole", init, "--steps", "6") == 0
    out = tmp_path / "parts"
    with monkeypatch.context() as changes:
        changes.setattr(run_log.RunLog, "step", signal_after_two_steps(signal.SIGINT))
        assert rl_command(sets, out, init, "--steps", "6") == 128 + signal.SIGINT
    assert train_state.read_progress(out)[0].step == 2
    assert rl_command(sets, out, init, "--steps", "6") == 0
    assert same_weights(tmp_path / "whole", out)
    head, *rows = (out / "log.csv").read_text().splitlines()
    assert head.split(",") == ["step", "minutes", *rl.COLUMNS, "rate", "scenes_per_s"]
    values = np.array([row.split(",") for row in rows], float)
    assert len(values) == 6
    for name in ("reward_score", "reward_nc", "reward_dac", "best"):
        assert np.isfinite(values[:, head.split(",").index(name)]).all(), name
    card = json.loads((out / "card.json").read_text())
    assert card["settings"]["rl"]["goals"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("rl: {variants: 0}", "rl.variants is 0"),
        ("data: {prompt_cache: true}", "data.prompt_cache is true, but prompts are trained"),
        ("loss: {goal_score: 1, aux_perception: 0}", "rl.decision takes their place"),
    ],
)
def test_settings_that_cannot_be_trained_with_are_one_sentence(sets, init, tmp_path, capsys, changes, message):
    args = command(sets, tmp_path / "run", "--init-from", str(init), yaml=changes, kind="rl")
    assert train_run.run(args) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert message in sentence


def test_a_network_of_another_layout_is_refused(sets, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    train_state.save_weights(with_words(route_at_m=(5.0,)), other / train_state.WEIGHTS, {})
    args = command(sets, tmp_path / "run", "--init-from", str(other), yaml=YAML, kind="rl")
    assert train_run.run(args) == 2
    assert "holds another network than the setting `network` names" in " ".join(capsys.readouterr().err.split())


def test_a_set_without_roads_is_refused(init, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    stored = []
    for k in range(4):
        scene = hand_scenes.scene(f"bare-00000-{k:03d}", size=(64, 36), agents=2)
        nothing = {field.name: () for field in dataclasses.fields(scene.areas)}
        stored.append(replace(scene, areas=replace(scene.areas, **nothing)))
    note = shards.write_shard(folder, "bare-00000", ShardContent.of(stored), requested=4, generator={})
    shards.write_index(folder, Index("train", 4, (note,), {}))
    with pytest.raises(shards.SetError, match=r"has no roads .*: plans cannot be scored"):
        rl_command((folder, folder), tmp_path / "run", init, "--steps", "1")


def train_in_processes(train_set, out, init):
    """For torchrun."""
    folder = Path(train_set)
    defaults = settings.RlTrainConfig()
    config = replace(
        defaults,
        data=replace(defaults.data, batch=2),
        rl=replace(defaults.rl, goals=2, variants=4),
        schedule=settings.ScheduleConfig(steps=3),
        checkpointing=settings.CheckpointingConfig(**NEVER),
        device=settings.DeviceConfig(accelerator="cpu", threads=1),
    )
    fabric = launch_fabric(config)
    assert fabric.world_size == 2
    whole = network()
    whole = replace(whole, layout=replace(whole.layout, edit_goal=True))
    scenes = prepare(folder)
    job = TokenJob(config, whole, scenes, None, Path(out), {"train": {"folder": "train"}}, init_from=Path(init))
    with RewardPool(folder, scenes, PlanScorer(whole.layout), 1) as pool:
        rl.train(job, fabric, Silent(), pool, lambda: False)


@pytest.mark.long
def test_two_processes_train_one_network(sets, init, tmp_path):
    arguments = ", ".join(repr(str(path)) for path in (sets[0], tmp_path, init))
    in_processes("test_rl_runs", tmp_path, f"train_in_processes({arguments})")
    assert train_state.read_progress(tmp_path)[0].step == 3
    before, after = (train_state.load_network(folder).state_dict() for folder in (init, tmp_path))
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


def test_goals_of_a_network_without_them_are_refused(tmp_path, capsys):
    words = ["train", "rl", "config/train/drivefine_rl.yaml", "--train", str(tmp_path), "--out", str(tmp_path / "out")]
    arguments = [*words, "--init-from", "models/reflectdrive2_small", "--setting", "rl.goals=4"]
    make_set(tmp_path / "train")
    arguments[arguments.index("--train") + 1] = str(tmp_path / "train")
    assert main(arguments) == 2
    assert "network drivefine_small has no goals, but rl.goals is 4" in " ".join(capsys.readouterr().err.split())
