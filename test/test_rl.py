"""Drafts trained by the expected score of a choice among plans: the loss, its data, the command and its runs."""

import csv
import dataclasses
import json
import signal
from dataclasses import replace
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from tiny_net import POSES, tiny_config, tiny_net
from tiny_scene import SPEC, scene_inputs, scene_net
from tiny_training import (  # noqa: F401 (fixtures)
    NEVER,
    REWARD_RUN,
    Silent,
    a_batch,
    command,
    in_processes,
    make_set,
    network,
    network_to_begin_with,
    prepare,
    rl_command,
    same_weights,
    signal_after_two_steps,
    two_sets,
    with_words,
)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.core.tokens import ROUTE_FRAME, TokenLayout
from reflectdrive_ros.data import cache, shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.features import images as features
from reflectdrive_ros.model.token import rollout
from reflectdrive_ros.model.token.ops import GoalRules
from reflectdrive_ros.training import prompt_cache, rl, run_log, settings, train_state, vector_data
from reflectdrive_ros.training.data import Source, shape_of, with_vectors
from reflectdrive_ros.training.greedy import decode_greedily, draft_rounds
from reflectdrive_ros.training.losses import Batch, standardised
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.rl import ScoredPlans, ScoreLosses
from reflectdrive_ros.training.runs import launch_fabric
from reflectdrive_ros.training.settings import LossConfig, RlConfig
from reflectdrive_ros.training.token_runs import TokenJob

T = ROUTE_FRAME.length
RULES = GoalRules(count=8, floor=0.0)
LOSSES = LossConfig(field=0.0, aux_perception=0.0)
TINY_DATA = "data: {batch: 4, masked_actions: 2, perturbed_actions: 1, route_dropout: 0.0, text_dropout: 0.0}\n"
TINY = TINY_DATA + "loss: {field: 0.0, aux_perception: 0.0}\noptimizer: {vision_pretrain_fraction: 0.0}\n"
TINY_SCORES = TINY_DATA + ("loss: {field: 0.0}\nrl: {goals: 2, variants: 4}\n")


@pytest.fixture(name="tiny_scene_network")
def scene_network_by_name(monkeypatch):
    words = features.WORDS
    config = scene_net(images=False).config
    network = tiny_config(
        words=words,
        text_vocabulary=len(words),
        text_length=0,
        route_at_m=(),
        layout=ROUTE_FRAME,
        images=False,
        scene=config.scene,
    )
    monkeypatch.setitem(settings.NETWORKS, "small", lambda: network)
    return network


def plan(end_m, left_m=0.0):
    along = np.linspace(end_m / 8, end_m, 8)
    return ROUTE_FRAME.encode(np.stack([along, np.full(8, left_m)], axis=1))


def batch_of(net):
    clean = torch.from_numpy(np.stack([plan(20.0), plan(10.0)]).astype(np.int64))
    masked = torch.full((2, 1, T), ROUTE_FRAME.mask_id)
    nothing = torch.zeros(2, 0)
    return Batch(
        *scene_inputs(net)[:4], clean, masked, torch.zeros(2, 0, 0, dtype=torch.int8),
        torch.zeros(2, 0, dtype=torch.bool),
        torch.zeros(2, 0, 2, dtype=torch.int64), nothing, torch.zeros(2, 0, 5), nothing.long(), torch.arange(2),
        torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool), 1,
        scene=scene_inputs(net).scene,
    )  # fmt: skip


def scored_plans():
    """Of each scene the plan itself and two others, of which the last is the best."""
    own, slower, best = plan(20.0), plan(12.0), plan(16.0, 0.3)
    first = np.full(T, ROUTE_FRAME.mask_id)
    first[14:] = own[14:]
    states = np.stack([first, own])
    plans = np.stack([own, slower, best])
    return ScoredPlans(
        goals=torch.from_numpy(np.stack([[own[14:], slower[14:]]] * 2).astype(np.int64)),
        valid=torch.ones(2, 2, dtype=torch.bool),
        goal_reward=torch.tensor([[0.2, 0.9]] * 2),
        states=torch.from_numpy(np.stack([states] * 2).astype(np.int64)),
        plans=torch.from_numpy(np.stack([plans] * 2).astype(np.int64)),
        score=torch.tensor([[0.3, 0.1, 1.0]] * 2),
    )


def test_drafts_and_the_goal_move_to_the_plan_of_the_best_score():
    net, scored = scene_net(images=False), scored_plans()
    losses = ScoreLosses(net, LOSSES, RlConfig(anchor=0.0, decision=1.0), torch.Generator().manual_seed(0), "all")
    optimizer = torch.optim.Adam(losses.parameters(), lr=3e-3)
    history = []
    for _ in range(60):
        result = losses(batch_of(net), scored)
        history.append({name: float(value.detach()) for name, value in result.items()})
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
    assert history[0]["draft"] > 0.1
    assert history[-1]["draft"] < 0.05
    assert history[0]["decision"] > 0.3
    assert history[-1]["decision"] < 0.2


def test_only_the_order_of_the_plans_counts_not_how_sure_the_network_is():
    log_probs = torch.tensor([[-3.0, -9.0, -40.0, -40.0]], requires_grad=True)
    distinct = torch.tensor([[True, True, True, False]])  # the last repeats another
    chosen = standardised(log_probs, distinct).softmax(-1)
    torch.testing.assert_close(standardised(7.0 * log_probs - 5.0, distinct).softmax(-1), chosen)
    assert chosen[0, 3] == 0.0
    (chosen[0] * torch.tensor([0.2, 0.9, 0.1, 0.1])).sum().backward()
    assert log_probs.grad[0, 1] > 0.0
    assert (log_probs.grad * log_probs).sum().abs() < 1e-5  # nothing is gained by scaling all of them
    assert log_probs.grad.sum().abs() < 1e-6


@pytest.mark.parametrize("layout", [TokenLayout(edit_goal=True), TokenLayout(), POSES], ids=["goal", "fixed", "none"])
def test_plans_are_decoded_as_in_the_vehicle(layout):
    net, goals = tiny_net(layout=layout), 2 if layout.goal else 1
    batch = a_batch(net) if layout.goal else poses_batch(net)
    greedy = decode_greedily(net, batch, RULES, goals)
    vehicle = rollout.full_step(net, batch.inputs, replace(rollout.default_decoding(layout), goals=RULES))
    assert greedy.plans.equal(vehicle.rounds[len(draft_rounds(layout)) - 1].actions[:, :goals])
    assert layout.edit_goal or greedy.plans[..., list(layout.goal)].equal(greedy.goals)


def test_other_goals_than_the_first_are_drawn_by_chance():
    net = tiny_net()
    goals = [
        decode_greedily(net, a_batch(net), RULES, 2, generator=torch.Generator().manual_seed(seed)).goals
        for seed in range(6)
    ]
    assert all(each[:, 0].equal(goals[0][:, 0]) for each in goals)
    assert len({each[:, 1].numpy().tobytes() for each in goals}) > 2


@pytest.mark.parametrize("layout", [TokenLayout(), POSES], ids=["goal", "no goal"])
def test_with_a_prompt_cache_losses_and_gradients_are_those_without(layout):
    net = tiny_net(layout=layout)
    plain = a_batch(net) if layout.goal else poses_batch(net)
    with torch.no_grad():
        packed = prompt_cache.pack(net.encode(net.prompt(plain.inputs)))
    cached = replace(plain, images=torch.zeros(2, 0), keys_values=packed)
    greedy = decode_greedily(net, plain, RULES, 1)
    assert decode_greedily(net, cached, RULES, 1).plans.equal(greedy.plans)
    first = greedy.states[:, :, 0]
    plans = torch.stack([first[:, -1], net.config.clamp_to_range(first[:, -1] + 2)], 1)
    score = torch.tensor([[0.2, 0.8]] * 2)
    scored = ScoredPlans(greedy.goals, greedy.valid, score[:, :1], first, plans, score)
    results = []
    for batch in (plain, cached):
        losses = ScoreLosses(
            net, LossConfig(aux_perception=0.0), RlConfig(), torch.Generator().manual_seed(0), "actions"
        )
        net.zero_grad()
        values = losses(batch, scored)
        values["loss"].backward()
        gradients = [each.grad.clone() for each in net.parameters() if each.grad is not None]
        assert gradients
        results.append((values, gradients))
    (values, gradients), (others, other_gradients) = results
    for name, value in values.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=1e-3)
    for one, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=0.05, atol=2e-3)


def poses_batch(net):
    """As `a_batch`, of a layout without a goal."""
    layout, batch = net.config.layout, a_batch(tiny_net())
    share = np.arange(1, 9) / 8.0
    bend = np.stack([30.0 * share, 6.0 * share**2, 0.0 * share], axis=-1)
    clean = torch.from_numpy(layout.clip(layout.encode(np.stack([bend, 0.5 * bend]))).astype(np.int64))
    masked = torch.full_like(clean, layout.mask_id)
    route = torch.full_like(batch.route, layout.codebook.mask_id)
    nothing = {"goals": batch.goals[:, :0], "goal_score": batch.goal_score[:, :0]}
    return replace(batch, clean=clean, actions=torch.stack([masked, clean], 1), masked=1, route=route, **nothing)


# --- the data ---------------------------------------------------------------------------------------------------------


def scene_source(network, folder, **changes):
    scenes = cache.build_cache(folder, shape_of(network), 1, pytest.fail, lambda done, total: None)
    vectors = vector_data.build_vector_set(folder, SPEC, 1, pytest.fail, lambda done, total: None)
    scenes, rows = with_vectors(scenes, vectors, seed=3)
    data = settings.DataConfig(batch=4, masked_actions=2, perturbed_actions=1, route_dropout=0.0, **changes)
    return Source(scenes, data, network.layout, 3, vectors=rows), vectors


def test_batches_hold_the_agents_and_lanes_of_their_scenes(sets, tiny_scene_network):
    source, vectors = scene_source(tiny_scene_network, sets[0], flip_prob=0.0)
    batch = source.batch(0)
    assert batch.images.shape == (4, 0)
    for row, ego in zip(batch.rows.tolist(), batch.scene.ego, strict=True):
        name = source.scenes.names[row].decode()
        sample = next(index for index in range(len(vectors)) if vectors.scene_of(index)[1] == name)
        np.testing.assert_array_equal(ego, vectors.arrays(np.array([sample]))["ego"][0])


def test_processes_share_the_scenes_of_a_batch_and_which_of_them_have_no_map(sets, tiny_scene_network):
    source, _ = scene_source(tiny_scene_network, sets[0])
    source = replace(source, vectors=replace(source.vectors, map_dropout=0.5))
    for step in range(4):
        whole = source.batch(step).scene
        for rank in range(2):
            part = source.batch(step, rank, 2).scene
            for name in part._fields:
                assert torch.equal(getattr(part, name), getattr(whole, name)[rank::2]), name


def test_a_mirrored_scene_has_mirrored_agents_and_plans(sets, tiny_scene_network):
    plain, mirrored = (scene_source(tiny_scene_network, sets[0], flip_prob=prob)[0].batch(0) for prob in (0.0, 1.0))
    np.testing.assert_array_equal(plain.scene.agents[..., 0], mirrored.scene.agents[..., 0])
    np.testing.assert_array_equal(plain.scene.agents[..., 1], -mirrored.scene.agents[..., 1])
    one, other = (ROUTE_FRAME.decode(each.clean.numpy()) for each in (plain, mirrored))
    np.testing.assert_allclose(one * [1.0, -1.0], other, atol=1e-9)


def test_the_experts_plan_on_the_route_is_the_experts_plan(sets, tiny_scene_network):
    source, _ = scene_source(tiny_scene_network, sets[0])
    scenes = source.scenes
    assert np.isfinite(scenes.expert_on_route).all()
    assert np.abs(scenes.expert_on_route[:, 0, 0] - np.hypot(*scenes.expert[:, 0, :2].T)).max() < 0.5
    assert not scenes.images


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny_scene_network")
def test_imitation_then_scores_train_a_network_that_reads_the_scene(sets, tmp_path):
    assert train_run.run(command(sets, tmp_path / "sft", "--steps", "3", yaml=TINY)) == 0
    init = ("--init-from", str(tmp_path / "sft"), "--workers", "1", "--steps", "3")
    assert train_run.run(command(sets, tmp_path / "rl", *init, yaml=TINY_SCORES, kind="rl")) == 0
    with (tmp_path / "rl" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {*rl.COLUMNS} <= set(rows[-1])
    assert 0.0 <= float(rows[-1]["reward_score"]) <= 100.0
    assert float(rows[-1]["best"]) >= float(rows[-1]["reward_score"])
    before, after = (train_state.load_network(tmp_path / run) for run in ("sft", "rl"))
    start = before.state_dict()
    changed = [name for name, value in after.state_dict().items() if name in start and not value.equal(start[name])]
    assert any(name.startswith("scene_encoder.") for name in changed)


@pytest.mark.usefixtures("tiny_scene_network")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("loss.field=0.1", "loss.field is 0.1, but network small has tokens on a known route: set it to 0"),
        ("data.route_dropout=0.1", "data.route_dropout is 0.1, but network small has tokens on a known route"),
        ("loss.aux_perception=1", "loss.aux_perception is 1, but network small has no images: set it to 0"),
    ],
)
def test_settings_that_train_what_the_network_does_not_read_are_refused(sets, tmp_path, capsys, changed, reason):
    assert train_run.run(command(sets, tmp_path / "sft", "--setting", changed, yaml=TINY)) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


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
    args = command(sets, tmp_path / "run", "--init-from", str(other), yaml=REWARD_RUN, kind="rl")
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
    in_processes("test_rl", tmp_path, f"train_in_processes({arguments})")
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
