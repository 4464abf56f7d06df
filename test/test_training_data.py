"""Scenes prepared for training, and batches of them that follow from seed and step."""

from dataclasses import replace

import hand_scenes
import numpy as np
import pytest
import torch
from tiny_training import SCENES, SHAPE, equal, make_set, prepare, scenes_ready, source, two_sets, with_words  # noqa: F401 (fixtures)

from reflectdrive_ros.core.domain import Command
from reflectdrive_ros.core.tokens import Codebook
from reflectdrive_ros.data import cache, shards
from reflectdrive_ros.data.shards import SetError
from reflectdrive_ros.features import images as features
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.planning.postprocess.waypoints import postprocess
from reflectdrive_ros.scoring.frenet import FrenetFrame, poses_on_road
from reflectdrive_ros.scoring.scorer import score
from reflectdrive_ros.training import data, sft
from reflectdrive_ros.training import goal_scores as worths

CODEBOOK = Codebook()


# --- scenes made ready -----------------------------------------------------------------------------------------------


def test_scenes_are_what_the_features_say(sets, scenes):
    stored = list(shards.read(sets[0], images=True, on_damage=pytest.fail))
    assert len(scenes) == len(stored) == SCENES
    for row, scene in enumerate(stored):
        inputs = features.model_inputs(scene.observation(), SHAPE.spec)
        shard, index = scenes.location[row]
        np.testing.assert_array_equal(scenes.images[shard][index], inputs.images)
        np.testing.assert_array_equal(scenes.text[row], inputs.text)
        np.testing.assert_array_equal(scenes.ego[row], inputs.ego)
        np.testing.assert_array_equal(features.encode_route(scenes.route[row], SHAPE.codebook), inputs.route)
        np.testing.assert_array_equal(scenes.expert[row], scene.expert)


def test_networks_of_other_tokens_share_a_prepared_set():
    assert replace(SHAPE, bin_m=0.05, bins=4001).key == SHAPE.key
    assert replace(SHAPE, width=SHAPE.width + 32).key != SHAPE.key


def test_two_processes_prepare_the_same_and_what_is_ready_is_not_prepared_again(tmp_path, scenes, monkeypatch):
    folder = make_set(tmp_path / "train")
    again = prepare(folder, workers=2)
    assert again.key == scenes.key
    for one, other in zip((*scenes.images, *scenes.distances), (*again.images, *again.distances), strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(cache, "cache_shard", pytest.fail)
    assert prepare(folder).key == scenes.key


def test_a_damaged_shard_is_named_left_out_and_used_once_it_is_whole(tmp_path):
    folder = make_set(tmp_path / "train")
    path = folder / "train-00001.tar"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000] + bytes(1000)[: 1000 - 1] + b"x")
    messages = []
    assert len(prepare(folder, on_damage=messages.append)) == 6
    assert len(messages) == 1
    assert str(path) in messages[0]
    path.write_bytes(whole)
    assert len(prepare(folder)) == SCENES


def test_an_incomplete_set_is_used_and_reported_in_one_sentence(tmp_path):
    folder = make_set(tmp_path / "train")
    index = shards.index_of(folder)
    shards.write_index(folder, replace(index, missing={f"train-{k:05d}": "interrupted" for k in range(2, 70)}))
    messages = []
    assert len(prepare(folder, on_damage=messages.append)) == SCENES
    assert len(messages) == 1
    assert messages[0].endswith("train-00002.tar was never made: interrupted (and 67 more faults)")


def test_a_set_without_any_whole_shard_is_refused(tmp_path):
    folder = make_set(tmp_path / "train", scenes=6)
    (folder / "train-00000.tar").unlink()
    with pytest.raises(shards.SetError, match="holds no scene"):
        prepare(folder, on_damage=lambda sentence: None)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_every_scene_comes_once_in_an_epoch_in_another_order_each_time(scenes):
    rows = np.concatenate([source(scenes, batch=5).rows(step) for step in range(12)])
    for epoch in range(5):
        assert sorted(rows[epoch * SCENES : (epoch + 1) * SCENES]) == list(range(SCENES))
    assert (rows[:SCENES] != rows[SCENES : 2 * SCENES]).any()


def test_a_batch_follows_from_seed_and_step_and_threads_keep_the_order(scenes):
    batches_of = source(scenes)
    coming = data.batches(batches_of, 5, 0, 1)
    for step in range(5, 11):
        assert equal(next(coming), source(scenes).batch(step))
    coming.close()
    assert not equal(batches_of.batch(5), batches_of.batch(6))
    assert not equal(batches_of.batch(5), replace(batches_of, seed=4).batch(5))


def test_processes_share_a_batch(scenes):
    whole = source(scenes).batch(2)
    parts = [source(scenes).batch(2, rank, 2) for rank in range(2)]
    for rank, part in enumerate(parts):
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, getattr(whole, name)[rank::2]), name


def test_the_mirrored_scene_is_the_scene_left_for_right(scenes, monkeypatch):
    monkeypatch.setattr(data, "COLOR_JITTER", 0.0)
    plain, mirrored = (source(scenes, flip_prob=share).batch(1) for share in (0.0, 1.0))
    rows = source(scenes).rows(1)
    for cameras in (slice(0, 3), slice(3, 6)):  # the left camera's image, flipped, is now the right camera's
        assert torch.equal(mirrored.images[:, cameras], plain.images[:, cameras].flip(1).flip(3))
    values = Codebook().decode(plain.clean.numpy()), Codebook().decode(mirrored.clean.numpy())
    np.testing.assert_allclose(values[1], values[0] * [1, -1], atol=1e-9)
    assert torch.equal(mirrored.distances, plain.distances.flip(2))
    assert torch.equal(mirrored.occupancy, plain.occupancy.flip(3))
    assert plain.occupancy.any()
    assert torch.equal(mirrored.ego, plain.ego * torch.tensor([1.0, 1.0, -1.0]))
    words = [[features.WORDS[k] for k in text] for text in (scenes.text[rows[0]], scenes.text_mirrored[rows[0]])]
    swap = {"left": "right", "right": "left"}
    assert words[1] == [swap.get(word, word) for word in words[0]]
    assert "left" in words[0]


def test_commands_are_mirrored_too():
    scene = hand_scenes.scene(images=False)
    for command, expected in ((Command.LEFT, Command.RIGHT), (Command.FOLLOW, Command.FOLLOW)):
        observation = replace(scene.observation(), command=command, instruction="turn left at the junction")
        other = cache.mirror_words(observation)
        assert (other.command, other.instruction) == (expected, "turn right at the junction")


def test_light_changes_images_and_nothing_else(scenes, monkeypatch):
    monkeypatch.setattr(data, "COLOR_JITTER", 0.0)
    plain = source(scenes).batch(0)
    monkeypatch.setattr(data, "COLOR_JITTER", 0.5)
    lit = source(scenes).batch(0)
    assert torch.equal(plain.actions, lit.actions)
    assert not torch.equal(plain.images, lit.images)
    tables = data.color_tables(50, 0.25, np.random.default_rng(0))
    assert (np.diff(tables.astype(int), axis=1) >= 0).all()  # brighter stays brighter
    np.testing.assert_array_equal(
        data.color_tables(1, 0.0, np.random.default_rng(0))[0], np.arange(256)[:, None].repeat(3, 1)
    )


def test_a_share_of_scenes_has_no_words(scenes):
    none, every = (source(scenes, text_dropout=share, flip_prob=0.0).batch(0) for share in (0.0, 1.0))
    assert (none.text != features.WORDS.index(features.PAD)).any(dim=1).all()
    assert (every.text == features.WORDS.index(features.PAD)).all()
    assert torch.equal(none.actions, every.actions)


def test_a_share_of_scenes_lacks_one_or_two_cameras_at_both_instants(scenes):
    plain, dropped = (source(scenes, camera_dropout=share).batch(0) for share in (0.0, 1.0))
    instants = dropped.images.unflatten(1, (-1, 3))  # (scenes, instants, cameras, ..)
    black = (instants == 0).flatten(3).all(dim=3)
    assert (black[:, 0] == black[:, 1]).all()
    assert set(black[:, 0].sum(dim=1).tolist()) <= {1, 2}
    has_image = ~black.flatten(1)
    assert torch.equal(dropped.images[has_image], plain.images[has_image])  # nothing else changes
    assert torch.equal(dropped.actions, plain.actions)
    assert not (plain.images == 0).flatten(2).all(dim=2).any()


def test_every_camera_is_missing_equally_often_alone_and_with_another():
    dropped = data.dropped_cameras(4000, 3, 0.5, np.random.default_rng(0))
    counts = np.bincount(dropped.sum(axis=1), minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.25, 0.0], atol=0.03)
    np.testing.assert_allclose(dropped.mean(axis=0), [0.25] * 3, atol=0.03)


@pytest.fixture
def drafter(tmp_path):
    """Weights of a network that can draft plans."""
    path = tmp_path / "drafter.safetensors"
    net = with_words()
    return worths.DraftingWeights(path, checkpoint.save(net, path, {}), fast=False)


def goal_scores_of(folder, drafter, progress=lambda done, total: None, workers=1):
    return worths.score_set(folder, SHAPE, drafter, workers, progress)


def test_goal_scores_are_those_of_the_plans_that_the_network_drafts_for_them(sets, scenes, drafter):
    scored = goal_scores_of(sets[0], drafter)
    goals = worths.GOALS.count + 1
    assert scored.goals.shape == (SCENES, goals, 2)
    assert scored.score.shape == (SCENES, goals)
    np.testing.assert_array_equal(scored.goals[:, -1], CODEBOOK.encode(scenes.expert[..., :2])[:, 14:])  # the expert's
    stored = list(shards.read(sets[0], images=True, on_damage=pytest.fail))[7:9]
    net = checkpoint.load(drafter.file, drafter.sha256)
    inputs = [(scene, features.model_inputs(scene.observation(), SHAPE.spec)) for scene in stored]
    for row, (actions, scene) in enumerate(zip(worths.draft_to_goals(net, inputs, fast=False), stored, strict=True)):
        assert (actions[:, 14:] == scored.goals[7 + row]).all()
        road = FrenetFrame.of(scene.route)
        points = postprocess(CODEBOOK.decode(actions), scene.ego, CODEBOOK.bin_m, road)
        card = score(scene.scored(), poses_on_road(points, road))
        np.testing.assert_allclose(card.score, scored.score[7 + row], atol=1e-6)
        for part, name in zip(scored.sub_scores[7 + row].T, ("nc", "dac", "ttc", "comfort", "ep"), strict=True):
            np.testing.assert_allclose(getattr(card, name), part, atol=1e-6)


def test_goal_scores_are_computed_once_for_each_network_by_any_number_of_processes(sets, scenes, drafter, monkeypatch):
    first, progress = goal_scores_of(sets[0], drafter, workers=2), []
    monkeypatch.setattr(worths, "score_drafts", pytest.fail)
    again = goal_scores_of(sets[0], drafter, lambda done, total: progress.append((done, total)))
    np.testing.assert_array_equal(again.score, first.score)
    assert progress == [(2, 2)]
    with pytest.raises(checkpoint.CheckpointError, match="SHA-256"):
        goal_scores_of(sets[0], replace(drafter, sha256="0" * 64))


def test_goals_and_their_scores_are_mirrored_with_their_scene(sets, scenes, drafter):
    goal_scores = goal_scores_of(sets[0], drafter)
    plain, mirrored = (
        replace(source(scenes, flip_prob=share), goal_scores=goal_scores).batch(1) for share in (0.0, 1.0)
    )
    assert plain.goals.shape == (4, worths.GOALS.count + 1, 2)
    assert torch.equal(mirrored.goal_score, plain.goal_score)
    assert torch.equal(mirrored.sub_scores, plain.sub_scores)
    assert torch.equal(mirrored.goals[..., 0], plain.goals[..., 0])
    assert torch.equal(mirrored.goals[..., 1] - CODEBOOK.zero_id, CODEBOOK.zero_id - plain.goals[..., 1])
    for batch in (plain, mirrored):
        assert torch.equal(batch.goals[:, -1], batch.clean[:, 14:])
    assert source(scenes).batch(1).goals.shape == (4, 0, 2)


def test_drafts_replace_perturbed_plans_and_keep_the_goal(scenes):
    net = with_words()
    batch = source(scenes, perturbed_actions=2).batch(0)
    batches = [sft.add_self_drafts(net, batch, 3, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert equal(*batches)
    assert torch.equal(batches[0].actions[:, :2], batch.actions[:, :2])
    assert torch.equal(batches[0].actions[3:], batch.actions[3:])
    drafted = batches[0].actions[:3, 2:]
    assert (drafted != net.config.layout.mask_id).all()
    assert torch.equal(drafted[..., 14:], batch.clean[:3, None, 14:].expand(-1, 2, -1))
    assert torch.equal(drafted, net.config.clamp_to_range(drafted))
    assert (drafted[:, 0] != drafted[:, 1]).any()


def test_routes_are_mirrored_with_their_scene_dropped_at_times_and_else_shifted_a_little(scenes, monkeypatch):
    monkeypatch.setattr(data, "ROUTE_NOISE_M", 0.0)
    monkeypatch.setattr(data, "ROUTE_YAW_NOISE_RAD", 0.0)
    exact = {"route_dropout": 0.0}
    exact_source = source(scenes, flip_prob=0.0, **exact)
    route_ids = features.encode_route(scenes.route[exact_source.rows(0)], CODEBOOK)
    np.testing.assert_array_equal(exact_source.batch(0).route.numpy(), route_ids)
    mirrored = source(scenes, flip_prob=1.0, **exact).batch(0).route.numpy()
    has_point = route_ids[..., 1] != CODEBOOK.mask_id
    assert has_point.any()
    np.testing.assert_array_equal(mirrored[has_point][:, 1], 2 * CODEBOOK.zero_id - route_ids[has_point][:, 1])
    missing = source(scenes, **{**exact, "route_dropout": 1.0}).batch(0).route
    assert (missing == CODEBOOK.mask_id).all()
    monkeypatch.setattr(data, "ROUTE_NOISE_M", 0.5)
    shifted = source(scenes, flip_prob=0.0, **exact).batch(0).route.numpy()
    np.testing.assert_array_equal(shifted[has_point][:, 0], route_ids[has_point][:, 0])
    off_m = CODEBOOK.bin_m * np.abs(shifted[has_point][:, 1] - route_ids[has_point][:, 1])
    assert 0.05 < off_m.mean() < 2.0


def test_scenario_tags_weigh_the_scenes_of_each_set_and_keep_the_weights_of_the_sets(scenes):
    tag = scenes.tags[0].decode()
    rest = scenes.tags != scenes.tags[0]
    mixed = cache.merge([scenes, scenes], [3.0, 1.0], {tag: 4.0})
    half = len(scenes)
    assert mixed.shares[:half].sum() == pytest.approx(0.75)
    assert mixed.shares[:half][~rest][0] == pytest.approx(4.0 * mixed.shares[:half][rest][0])
    with pytest.raises(SetError, match="all scenes of a set have weight 0"):
        cache.merge([scenes], [1.0], dict.fromkeys((each.decode() for each in scenes.tags), 0.0))


def test_noise_of_a_camera_changes_a_share_of_the_scenes_only():
    clean = np.full((6, 36, 64, 3), 100, np.uint8)
    with_noise = data.noisy(clean, np.random.default_rng(1))
    assert with_noise.shape == clean.shape
    assert abs(with_noise.mean() - 100.0) < 1.0
    assert with_noise.std() > 0.1
    assert np.array_equal(with_noise, data.noisy(clean, np.random.default_rng(1)))
