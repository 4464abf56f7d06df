"""Runs by reward: they learn, resume, and take a layout without goals."""

import dataclasses
import json
import time
from dataclasses import replace
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from tiny_net import POSES, tiny_net
from tiny_rl import (  # noqa: F401 (fixtures)
    RULES,
    SMALL,
    YAML,
    kill_after_two_steps,
    network_to_begin_with,
    policy_of,
    rl_command,
    sampled,
    token_log_probs,
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
    two_sets,
    weights,
)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.model.token import ops
from reflectdrive_ros.training import rl, rl_losses, settings, train_state
from reflectdrive_ros.training.fabric import launch_fabric
from reflectdrive_ros.training.losses import Batch
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.rl_losses import RlLosses
from reflectdrive_ros.training.settings import LossConfig
from reflectdrive_ros.training.token_job import TokenJob

# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_killed_ends_with_the_same_weights_and_logs_its_panel(sets, init, tmp_path):
    assert rl_command(sets, tmp_path / "whole", init, "--steps", "6") == 0
    out = tmp_path / "parts"
    kill_after_two_steps("test_rl_runs", sets, out, init)
    assert rl_command(sets, out, init, "--steps", "6") == 0
    whole, parts = weights(tmp_path / "whole"), weights(out)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    head, *rows = (tmp_path / "parts" / "log.csv").read_text().splitlines()
    assert head.split(",") == ["step", "minutes", *rl.COLUMNS, "rate", "scenes_per_s"]
    values = np.array([row.split(",") for row in rows], float)
    assert len(values) == 6
    for name in ("reward_score", "reward_nc", "reward_dac", "equal_share", "entropy", "edits_per_plan", "clipped"):
        assert np.isfinite(values[:, head.split(",").index(name)]).all(), name
    card = json.loads((tmp_path / "parts" / "card.json").read_text())
    assert card["settings"]["rl"]["goals"] == 2


def train_slowly(train_set, val_set, out, init):
    """In a child: a checkpoint after every step, and time to be killed in."""
    torch.set_num_threads(1)
    plain = rl_losses.RlLosses.forward
    rl_losses.RlLosses.forward = lambda *arguments: (time.sleep(0.5), plain(*arguments))[1]
    yaml = YAML.replace("checkpoint_minutes: 100.0", "checkpoint_minutes: 0.0")
    rl_command((Path(train_set), Path(val_set)), Path(out), Path(init), "--steps", "6", yaml=yaml)


def test_a_policy_that_collapses_ends_the_run_with_its_batch(sets, init, tmp_path, monkeypatch):
    monkeypatch.setattr(rl, "ENTROPY_MIN", 9.0)
    with pytest.raises(rl.TrainingError, match=r"step 0: the policy collapses \(entropy .* lower optimizer"):
        rl_command(sets, tmp_path / "run", init, "--steps", "4")
    with np.load(tmp_path / "run" / "bad_batch.npz") as saved:
        assert saved["states"].shape[0] == saved["scores"].shape[0] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("rl: {drafts: 1}", "rl.drafts is 1: a group of one rollout has no advantage"),
        ("rl: {temperature: 0}", "rl.temperature is 0"),
        ("rl: {credit: goals}", "rl.credit is 'goals', expected one of rollout, drafts, edits"),
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


def train_in_processes(train_set, out, init, shards_weights):
    """For torchrun."""
    folder = Path(train_set)
    defaults = settings.RlTrainConfig()
    config = replace(
        defaults,
        data=replace(defaults.data, batch=2),
        rl=replace(defaults.rl, goals=2, drafts=2, kept=3, kl=0.01),
        schedule=settings.ScheduleConfig(steps=3),
        checkpointing=settings.CheckpointingConfig(**NEVER),
        device=settings.DeviceConfig(accelerator="cpu", threads=1, fsdp=shards_weights),
    )
    fabric = launch_fabric(config)
    assert fabric.world_size == 2
    whole = replace(network(), plan_value=True)
    scenes = prepare(folder)
    job = TokenJob(config, whole, scenes, None, Path(out), {"train": {"folder": "train"}}, init_from=Path(init))
    with RewardPool(folder, scenes, PlanScorer(whole.layout), 1) as pool:
        rl.train(job, fabric, Silent(), pool, lambda: False)


@pytest.mark.long
def test_two_processes_learn_the_same_with_whole_weights_and_with_weights_in_shards(sets, init, tmp_path):
    for name, in_shards in (("whole", False), ("shards", True)):
        (tmp_path / name).mkdir()
        arguments = ", ".join(repr(str(path)) for path in (sets[0], tmp_path / name, init))
        in_processes("test_rl_runs", tmp_path / name, f"train_in_processes({arguments}, {in_shards})")
    whole, shards_of = weights(tmp_path / "whole"), weights(tmp_path / "shards")
    assert whole.keys() == shards_of.keys()
    for name, value in whole.items():
        torch.testing.assert_close(shards_of[name], value, rtol=1e-3, atol=1e-5)


# --- a layout without goals ------------------------------------------------------------------------------------------

WITHOUT_GOAL = replace(SMALL, goals=1, drafts=4, kept=4, decision=0.0)


def test_without_goals_drafts_from_masks_are_one_group_and_ratios_begin_at_one():
    net = tiny_net(layout=POSES)
    inputs, sampled_rollouts = sampled(net, WITHOUT_GOAL)
    assert sampled_rollouts.states.shape == (2, 5, 4, 24)  # before and after each of four rounds
    assert (sampled_rollouts.states[:, 0] == POSES.mask_id).all()
    assert [int((state[0, 0] != POSES.mask_id).sum()) for state in sampled_rollouts.states.transpose(0, 1)] == [
        0,
        2,
        8,
        15,
        24,
    ]
    policy = policy_of(net, sampled_rollouts, WITHOUT_GOAL)
    torch.testing.assert_close(policy.advantage.sum(1), torch.zeros(2), atol=1e-6, rtol=0.0)
    new = token_log_probs(net, inputs, policy, WITHOUT_GOAL.temperature)
    selected = ops.top_indices(rl_losses.advantages(policy.finished_reward[:, 1:], 1).abs(), 4)
    assert selected.shape == (2, 4)
    assert policy.credited.sum((1, 3)).tolist() == [[24] * 4] * 2
    sampled_log_probs = sampled_rollouts.log_probs.sum((1, 3))
    assert torch.isfinite(sampled_log_probs).all()
    assert (new[policy.credited] <= 0.0).all()


def test_without_goals_a_token_is_learned_by_its_reward():
    net = tiny_net(layout=POSES)
    config = replace(WITHOUT_GOAL, anchor=0.0, temperature=1.0, drafts=16, kept=16)
    weights_of = LossConfig(goal=0.0, sap=0.0, field=0.0, aux_perception=0.0)
    losses = RlLosses(net, weights_of, config, RULES, torch.Generator().manual_seed(0), trained="actions")
    trained = {name for name, each in net.named_parameters() if each.requires_grad}
    assert not any(name.startswith(("vision", "embed_tokens", "x_embedding")) for name in trained)
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], lr=0.03)
    position, low, high = 4, *POSES.token_ranges[4]
    middle = (low + high) // 2
    share = []
    for step in range(30):
        inputs, sampled_rollouts = sampled(net, config, seed=step)
        reward = (sampled_rollouts.plans[..., position] > middle).float()
        share.append(float(reward.mean()))
        policy = policy_of(net, sampled_rollouts, config, reward)
        batch = of_inputs(net, inputs)
        optimizer.zero_grad()
        losses(batch, policy)["loss"].backward()
        optimizer.step()
    assert share[0] < 0.7
    assert np.mean(share[-5:]) > 0.95


def of_inputs(net, inputs):
    """A batch whose anchor has no weight: one masked sequence of a plan at rest."""
    scenes, length = len(inputs[0]), net.config.layout.length
    still = torch.from_numpy(net.config.layout.encode(np.zeros((scenes, 8, 3))).astype(np.int64))
    masked = torch.full((scenes, 1, length), net.config.layout.mask_id)
    nothing = torch.zeros(scenes, 0, dtype=torch.int64)
    return Batch(
        *inputs.tensors, still, masked,
        torch.zeros(scenes, 301, 235, dtype=torch.int8), torch.zeros(scenes, 4, 1, 1, dtype=torch.bool),
        torch.zeros(scenes, 0, 2, dtype=torch.int64), torch.zeros(scenes, 0), torch.zeros(scenes, 0, 5), nothing,
        torch.arange(scenes), torch.zeros(scenes, dtype=torch.bool), torch.ones(scenes, dtype=torch.bool),
        torch.ones(scenes, 2, dtype=torch.bool), 1,
    )  # fmt: skip


def test_goals_of_a_network_without_them_are_refused(tmp_path, capsys):
    words = ["train", "rl", "config/train/drivefine_rl.yaml", "--train", str(tmp_path), "--out", str(tmp_path / "out")]
    arguments = [*words, "--init-from", "models/reflectdrive2_small", "--setting", "rl.goals=4"]
    make_set(tmp_path / "train")
    arguments[arguments.index("--train") + 1] = str(tmp_path / "train")
    assert main(arguments) == 2
    assert "network drivefine_small has no goals, but rl.goals is 4" in " ".join(capsys.readouterr().err.split())
