"""Drafts and edits trained by the expected score of a choice among plans, and the command that does it."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_scene_prompt import SPEC, scene_inputs, scene_net
from tiny_net import tiny_config
from tiny_training import command, two_sets  # noqa: F401 (a fixture)

from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.core.tokens import ROUTE_FRAME
from reflectdrive_ros.data import cache
from reflectdrive_ros.features import images as features
from reflectdrive_ros.model.token.ops import GoalRules
from reflectdrive_ros.training import edit_scores, settings, train_state, vector_data
from reflectdrive_ros.training.data import Source, shape_of, with_vectors
from reflectdrive_ros.training.edit_scores import ScoredPlans, ScoreLosses
from reflectdrive_ros.training.losses import Batch
from reflectdrive_ros.training.settings import LossConfig, RlConfig

T = ROUTE_FRAME.length
LOSSES = LossConfig(field=0.0, aux_perception=0.0)
TINY_DATA = "data: {batch: 4, masked_actions: 2, perturbed_actions: 1, route_dropout: 0.0, text_dropout: 0.0}\n"
TINY = TINY_DATA + "loss: {field: 0.0, aux_perception: 0.0}\noptimizer: {vision_pretrain_fraction: 0.0}\n"
TINY_SCORES = TINY_DATA + (
    "loss: {field: 0.0}\nrl: {estimator: scores, goals: 2, edit_goal: true, plan_value: 0.0}\nplans: {plans: 4}\n"
)


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


def test_drafts_edits_and_the_goal_move_to_the_plan_of_the_best_score():
    net, scored = scene_net(images=False), scored_plans()
    losses = ScoreLosses(
        net, LOSSES, RlConfig(anchor=0.0, decision=1.0), GoalRules(), torch.Generator().manual_seed(0), "all"
    )
    optimizer = torch.optim.Adam(losses.parameters(), lr=3e-3)
    history = []
    for _ in range(60):
        result = losses(batch_of(net), scored)
        history.append({name: float(value.detach()) for name, value in result.items()})
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
    for name in ("draft", "edit"):
        assert history[0][name] > 0.2, name  # a choice by chance has 1 - 0.47
        assert history[-1][name] < 0.05, name
    assert history[0]["decision"] > 0.3
    assert history[-1]["decision"] < 0.2


def test_a_plan_that_is_best_as_it_is_stays():
    net, scored = scene_net(images=False), scored_plans()
    scored.score = torch.tensor([[1.0, 0.1, 0.3]] * 2)
    losses = ScoreLosses(net, LOSSES, RlConfig(anchor=0.0), GoalRules(), torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(losses.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        losses(batch_of(net), scored)["loss"].backward()
        optimizer.step()
    inputs = scene_inputs(net)
    edited = net.packed_logits(inputs, scored.plans[:, :1]).argmax(-1)[:, 0]
    away = (edited - scored.plans[:, 0]).abs()  # bins; the others are four and more away at the end
    assert away.max() <= 1


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
    assert {*edit_scores.COLUMNS} <= set(rows[-1])
    assert 0.0 <= float(rows[-1]["reward_score"]) <= 100.0
    assert float(rows[-1]["best"]) >= float(rows[-1]["reward_score"])
    before, after = (train_state.load_network(tmp_path / run) for run in ("sft", "rl"))
    changed = [name for name, value in after.state_dict().items() if not torch.equal(value, before.state_dict()[name])]
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
