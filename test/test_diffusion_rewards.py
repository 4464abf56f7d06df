"""Rewards of a denoiser's plans: the change of a plan that sampled plans suggest."""

from dataclasses import replace

import denoiser_training
import numpy as np
import pytest
import torch
from denoiser_training import train
from tiny_training import make_set, same_weights

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.data import shards
from reflectdrive_ros.model.denoiser.net import DenoiserNet
from reflectdrive_ros.planning.plan_changes import PlanModes
from reflectdrive_ros.scoring.scorer import WAYPOINT_TIMES_S, score
from reflectdrive_ros.training import diffusion, diffusion_rewards, settings, vector_data
from reflectdrive_ros.training.diffusion import DiffusionJob
from reflectdrive_ros.training.diffusion_losses import DiffusionLosses, PlanUpdate, VectorBatch
from reflectdrive_ros.training.diffusion_rewards import plan_changes, sampled_changes, waypoint_steps
from reflectdrive_ros.training.rewards import COLUMNS, KeptScenes, ScorePool, score_poses
from reflectdrive_ros.training.settings import DenoiserRewardConfig, DiffusionLossConfig
from reflectdrive_ros.training.vector_data import build_vector_set

SPEC = replace(denoiser_training.SPEC, route_line_rows=3, ego_frenet=True)
TINY = replace(denoiser_training.TINY, spec=SPEC)
SCENES = 6
MANY = PlanModes(pace_m=2.5, delay_m=0.8, offset_m=0.5, bulge_m=0.2)


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch):
    monkeypatch.setattr(diffusion, "PLAN_PAIRS", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("sets") / "train", "train", SCENES, per_shard=3)


@pytest.fixture(scope="module")
def scenes(folder):
    return build_vector_set(folder, SPEC, 1, pytest.fail, lambda done, of: None)


@pytest.fixture(scope="module")
def pool():
    with ScorePool(None, 1) as score_pool:
        yield score_pool


def plans_at(speed_mps, lateral_m=0.0):
    """(SCENES, T, 3) plans with a constant speed that end off the route."""
    u = np.arange(1, SPEC.future_steps + 1) / SPEC.future_steps
    plan = np.stack([speed_mps * SPEC.horizon_s * u, lateral_m * u**2 * (3.0 - 2.0 * u), np.zeros_like(u)], axis=-1)
    return np.repeat(plan[None], SCENES, axis=0)


def updates(scenes, pool, plans, mirrored=False, standing=False, pairs=64):
    indices, which = np.arange(SCENES), np.full(SCENES, mirrored)
    arrays = vector_data.mirror(scenes.arrays(indices), which)
    data_config = settings.DiffusionDataConfig(standing_share=float(standing))
    batch = VectorBatch.of(arrays, indices, which, data_config, np.random.default_rng(0), slice(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffusion_rewards, "DENOISER_MODES", MANY)
        return plan_changes(plans, batch, scenes, pool, np.random.default_rng(0), pairs)


def test_changes_begin_with_the_velocity_of_the_car_and_turn_with_the_path():
    plans = plans_at(8.0)
    changes = sampled_changes(plans, np.random.default_rng(0), 500, 0.1)
    assert changes.shape == (SCENES, 500, SPEC.future_steps, 3)
    assert np.abs(changes[:, :, 0]).max() < 0.05  # 0.1 s ahead
    np.testing.assert_allclose(changes[:, :, -1, :2].std(axis=(0, 1)), [1.5, 0.25], rtol=0.1)
    slope = np.gradient(changes[..., 1], 0.1, axis=-1) / 8.0
    np.testing.assert_allclose(changes[..., 2], slope, atol=1e-9)


def test_the_rewards_of_plans_are_their_scores(folder, scenes, pool):
    changes = updates(scenes, pool, plans_at(5.0), pairs=1)
    instants = np.rint(WAYPOINT_TIMES_S / 0.1).astype(int) - 1
    for row, scene in enumerate(shards.read(folder, images=False, on_damage=pytest.fail)):
        line = diffusion_rewards.reference_line(scenes.arrays(np.array([row]))["route_lanes"][0], SPEC)
        plan = diffusion_rewards.cartesian_poses(plans_at(5.0)[row, instants], line)
        card = score(scene.scored(), plan[None])
        np.testing.assert_allclose(changes.rewards[row], [getattr(card, name)[0] for name in COLUMNS], rtol=1e-6)


def test_scenes_that_stay_in_memory_score_as_those_that_are_read(folder, scenes):
    """Three of six stay that are read in turn; the fastest plan ends beyond the index of their areas."""
    cached, read = KeptScenes(3), list(shards.read(folder, images=False, on_damage=pytest.fail))
    plans = np.stack([plans_at(speed)[0, waypoint_steps(SPEC)] for speed in (4.0, 9.0, 16.0)])
    for index in (0, 0, 1, 2, 3, 4, 5, 0, 5, 4):
        scene = cached.read(*scenes.scene_of(index))
        assert scene.name == read[index].name
        np.testing.assert_array_equal(score_poses(scene, plans), score_poses(read[index], plans))


def test_a_plan_that_leaves_the_road_should_move_back(scenes, pool):
    """The road ends 1.8 m to the right of the route and 5.4 m to its left."""
    changes = updates(scenes, pool, plans_at(4.0, lateral_m=-0.9))
    lateral_m = changes.change[:, -1, 1]
    telling = np.abs(lateral_m) > 1e-3  # where sampled plans differ in whether they stay on the road
    assert telling.sum() >= SCENES // 2
    assert (lateral_m[telling] > 0.0).all()


def test_a_plan_that_hardly_moves_should_go_on(scenes, pool):
    changes = updates(scenes, pool, plans_at(1.0))
    safe = changes.rewards[:, COLUMNS.index("nc")] == 1.0
    assert safe.any()
    assert changes.change[safe, -1, 0].mean() > 0.0


def test_the_change_of_a_mirrored_scene_is_mirrored(scenes, pool):
    """Not bit by bit: the sampled offsets are the same in both, so that left and right differ by their noise."""
    plain, mirrored = (updates(scenes, pool, plans_at(4.0, side), side > 0.0) for side in (-0.9, 0.9))
    np.testing.assert_allclose(plain.rewards, mirrored.rewards, atol=1e-5)
    change = plain.change[:, -1, 1]
    assert np.corrcoef(change, -mirrored.change[:, -1, 1])[0, 1] > 0.9


def test_a_standing_ego_is_scored_from_a_standstill(scenes, pool):
    moving, standing = (updates(scenes, pool, plans_at(8.0), standing=still).rewards for still in (False, True))
    ep = COLUMNS.index("ep")
    assert (standing[:, ep] <= moving[:, ep] + 1e-6).all()
    assert standing[:, ep].sum() < 0.9 * moving[:, ep].sum()


def test_a_standing_ego_keeps_its_steering_and_has_no_imitation_loss(scenes):
    indices = np.arange(SCENES)
    arrays = vector_data.with_frenet_futures(scenes.arrays(indices), SPEC)
    data_config = settings.DiffusionDataConfig(standing_share=1.0, samples=1)
    batch = VectorBatch.of(arrays, indices, indices < 0, data_config, np.random.default_rng(0), slice(None))
    assert (batch.ego[:, [4, 5, 6, 7, 9]] == 0.0).all()
    np.testing.assert_array_equal(batch.ego[:, [0, 1, 2, 3, 8]], arrays["ego"][:, [0, 1, 2, 3, 8]])
    assert arrays["ego"][:, 4].all()
    net = DenoiserNet(TINY)
    net.initialise(torch.Generator().manual_seed(0))
    assert DiffusionLosses(net, DiffusionLossConfig())(batch)["ego"] == 0.0


def test_recorded_samples_have_no_reward_and_no_change(scenes, pool):
    rows = tuple(np.asarray(rows) for rows in scenes.rows)
    recorded = vector_data.set_of_rows(rows, SPEC, "recorded", None)
    changes = updates(recorded, pool, plans_at(4.0))
    assert np.isnan(changes.rewards).all()
    assert (changes.change == 0.0).all()


def test_the_loss_moves_plans_along_the_requested_change(scenes, monkeypatch):
    indices = np.arange(4)
    arrays = vector_data.with_frenet_futures(scenes.arrays(indices), SPEC)
    monkeypatch.setattr("reflectdrive_ros.training.diffusion_losses.CONDITION_DROPOUT", 0.0)
    data_config = settings.DiffusionDataConfig(samples=1)
    batch = VectorBatch.of(arrays, indices, np.zeros(4, bool), data_config, np.random.default_rng(0), slice(None))
    net = DenoiserNet(TINY)
    net.initialise(torch.Generator().manual_seed(0))
    present = net.present_states(batch.inputs)
    with torch.no_grad():
        state = diffusion_rewards.sampler_state(net, net.encode(batch.inputs), present, 2, 10)
    change = torch.zeros(4, SPEC.future_steps, 4)
    change[:, :, 0] = torch.linspace(0.0, 1.0, SPEC.future_steps)
    update = PlanUpdate(state.futures, torch.full((4, 1), state.time), change)
    losses = DiffusionLosses(net, DiffusionLossConfig(ego=0.0, neighbours=0.0), reward=1.0)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def end():
        futures = net.denoise(state.futures[:, None], torch.full((4, 1), state.time), net.encode(batch.inputs))
        return futures[:, 0, 0, -1, 0]

    before = end().detach()
    losses(batch, lambda context, states: update)["loss"].backward()
    optimizer.step()
    assert (end() > before).all()


def config(**changes):
    return replace(denoiser_training.config(**changes), reward=DenoiserRewardConfig(weight=1.0))


def test_a_run_with_rewards_that_is_stopped_ends_with_the_same_weights(scenes, tmp_path, pool):
    def job(name):
        return DiffusionJob(config(steps=4), TINY, scenes, None, tmp_path / name, {"train": []})

    train(job("whole"), pool=pool)
    stops = iter([False, False, True])
    assert train(job("parts"), lambda: next(stops), pool=pool).step == 2
    assert train(job("parts"), pool=pool).step == 4
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_the_command_logs_the_scores_of_its_plans(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(settings.DENOISERS, "small", lambda: TINY)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {batch: 4, samples: 1}\nreward: {weight: 1.0}\ncheckpointing: {log_steps: 2}\n")
    words = ["train", "diffusion", str(recipe), "--train", str(folder), "--out", str(tmp_path / "run"), "--steps", "2"]
    assert main([*words, "--workers", "1"]) == 0
    header, row = (tmp_path / "run/log.csv").read_text().split("\n")[:2]
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert all(0.0 <= float(values[name]) <= 100.0 for name in COLUMNS)
