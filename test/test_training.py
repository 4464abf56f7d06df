"""Training: batches follow from seed and step, a kill changes nothing, faults are sentences."""

import argparse
import copy
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console
from safetensors.torch import save_file
from tiny_net import tiny_config, tiny_net, uniform_goal_values
from torch import nn

from reflectdrive_ros import features
from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.config import ConfigError
from reflectdrive_ros.data import cache, shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.domain import Command
from reflectdrive_ros.files import lock_folder
from reflectdrive_ros.model import checkpoint, vision
from reflectdrive_ros.model.layers import TransformerConfig
from reflectdrive_ros.model.token.net import TokenNet
from reflectdrive_ros.model.token.ops import GoalRules
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.model.vision import VisionConfig
from reflectdrive_ros.planning.postprocess.waypoints import postprocess
from reflectdrive_ros.scoring.frenet import FrenetFrame, poses_on_road
from reflectdrive_ros.scoring.scorer import score
from reflectdrive_ros.stopping import Stopped
from reflectdrive_ros.tokens import Codebook
from reflectdrive_ros.training import data, run_log, schedule, self_drafts, settings, sft, train_state, validation
from reflectdrive_ros.training import goal_scores as worths
from reflectdrive_ros.training.data import Source
from reflectdrive_ros.training.fabric import launch_fabric
from reflectdrive_ros.training.losses import Losses
from reflectdrive_ros.training.settings import LossConfig
from reflectdrive_ros.training.sft import Job, TrainingError

warnings.filterwarnings("ignore", module="lightning_fabric")
CODEBOOK = Codebook()
GRAPHS = Path(__file__).parents[1] / "models" / "reflectdrive2_small" / "onnx"
SCENES = 12  # in two shards


def network(**changes):
    words = features.WORDS
    return tiny_config(words=words, text_vocabulary=len(words), text_length=12, **changes)


SHAPE = train_run.shape_of(network())


def make_set(folder, name="train", scenes=SCENES, per_shard=6):
    folder.mkdir()
    notes = []
    for first in range(0, scenes, per_shard):
        shard = f"{name}-{first // per_shard:05d}"
        made = [hand_scenes.scene(f"{shard}-{k:03d}", size=(64, 36), agents=3) for k in range(per_shard)]
        notes.append(shards.write_shard(folder, shard, ShardContent.of(made), asked=per_shard, made_by={}))
    shards.write_index(folder, Index(name, scenes, tuple(notes), {}))
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return make_set(folder / "train"), make_set(folder / "val", "val", 6)


def prepare(folder, workers=1, on_damage=pytest.fail):
    return cache.build_cache(folder, SHAPE, workers, on_damage, lambda done, total: None)


@pytest.fixture(scope="module")
def scenes(sets):
    return prepare(sets[0])


def settings_of(**sections):
    config = settings.TrainConfig()
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


SMALL = {"batch": 4, "masked_actions": 2, "perturbed_actions": 1}
NEVER = {"checkpoint_minutes": 1e6, "validations": 0, "log_steps": 2}


def source(scenes, **changes):
    config = settings_of(data={**SMALL, "text_dropout": 0.0, **changes}).data
    return Source(scenes, config, network().layout, seed=3)


def equal(one, other):
    return all(torch.equal(value, getattr(other, name)) for name, value in vars(one).items() if name != "masked")


# --- scenes made ready -----------------------------------------------------------------------------------------------


def test_scenes_are_what_the_features_say(sets, scenes):
    stored = list(shards.read(sets[0], images=True, on_damage=pytest.fail))
    assert len(scenes) == len(stored) == SCENES
    for row, scene in enumerate(stored):
        inputs = features.model_inputs(scene.observation(), SHAPE.spec)
        shard, place = scenes.location[row]
        np.testing.assert_array_equal(scenes.images[shard][place], inputs.images)
        np.testing.assert_array_equal(scenes.text[row], inputs.text)
        np.testing.assert_array_equal(scenes.ego[row], inputs.ego)
        np.testing.assert_array_equal(features.encode_route(scenes.route[row], SHAPE.codebook), inputs.route)
        np.testing.assert_array_equal(scenes.expert[row], scene.expert[:, :2])


def test_two_processes_make_the_same_and_what_is_ready_is_not_made_again(tmp_path, scenes, monkeypatch):
    folder = make_set(tmp_path / "train")
    again = prepare(folder, workers=2)
    assert again.key == scenes.key
    for one, other in zip((*scenes.images, *scenes.distances), (*again.images, *again.distances), strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(cache, "cache_shard", pytest.fail)
    assert prepare(folder).key == scenes.key


def test_a_damaged_shard_is_named_left_out_and_taken_in_once_it_is_whole(tmp_path):
    folder = make_set(tmp_path / "train")
    path = folder / "train-00001.tar"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000] + bytes(1000)[: 1000 - 1] + b"x")
    said = []
    assert len(prepare(folder, on_damage=said.append)) == 6
    assert len(said) == 1
    assert str(path) in said[0]
    path.write_bytes(whole)
    assert len(prepare(folder)) == SCENES


def test_a_set_that_is_half_made_is_learnt_from_and_said_in_one_sentence(tmp_path):
    folder = make_set(tmp_path / "train")
    index = shards.index_of(folder)
    shards.write_index(folder, replace(index, missing={f"train-{k:05d}": "interrupted" for k in range(2, 70)}))
    said = []
    assert len(prepare(folder, on_damage=said.append)) == SCENES
    assert len(said) == 1
    assert "68 shards were never made" in said[0]


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
    made = source(scenes)
    coming = data.batches(made, 5, 0, 1)
    for step in range(5, 11):
        assert equal(next(coming), source(scenes).batch(step))
    coming.close()
    assert not equal(made.batch(5), made.batch(6))
    assert not equal(made.batch(5), replace(made, seed=4).batch(5))


def test_processes_share_a_batch(scenes):
    whole = source(scenes).batch(2)
    parts = [source(scenes).batch(2, rank, 2) for rank in range(2)]
    for rank, part in enumerate(parts):
        for name, value in vars(part).items():
            if name != "masked":
                assert torch.equal(value, getattr(whole, name)[rank::2]), name


def test_the_mirrored_scene_is_the_scene_left_for_right(scenes):
    plain, mirrored = (source(scenes, flip_prob=share, color_jitter=0.0).batch(1) for share in (0.0, 1.0))
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
        other = cache._mirror_words(observation)
        assert (other.command, other.instruction) == (expected, "turn right at the junction")


def test_light_changes_images_and_nothing_else(scenes):
    plain, lit = (source(scenes, color_jitter=amount).batch(0) for amount in (0.0, 0.5))
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


@pytest.fixture
def drafter(tmp_path):
    """Weights of a network that can be asked for plans."""
    path = tmp_path / "drafter.safetensors"
    net = tiny_net(words=features.WORDS, text_vocabulary=len(features.WORDS), text_length=12)
    return worths.DraftingWeights(path, checkpoint.save(net, path, {}), fast=False)


def worth_of(folder, drafter, progress=lambda done, total: None, workers=1):
    return worths.score_set(folder, SHAPE, drafter, workers, progress)


def test_goals_are_worth_the_score_of_the_plans_that_the_network_writes_for_them(sets, scenes, drafter):
    found = worth_of(sets[0], drafter)
    goals = worths.GOALS.count + 1
    assert found.goals.shape == (SCENES, goals, 2)
    assert found.score.shape == (SCENES, goals)
    np.testing.assert_array_equal(found.goals[:, -1], CODEBOOK.encode(scenes.expert)[:, 14:])  # the expert's
    stored = list(shards.read(sets[0], images=True, on_damage=pytest.fail))[7:9]
    net = checkpoint.load(drafter.file, drafter.sha256)
    asked = [(scene, features.model_inputs(scene.observation(), SHAPE.spec)) for scene in stored]
    for row, (actions, scene) in enumerate(zip(worths.draft_to_goals(net, asked, fast=False), stored, strict=True)):
        assert (actions[:, 14:] == found.goals[7 + row]).all()
        road = FrenetFrame.of(scene.route)
        points = postprocess(CODEBOOK.decode(actions), scene.ego, CODEBOOK.bin_m, road)
        card = score(scene.scored(), poses_on_road(points, road))
        np.testing.assert_allclose(card.score, found.score[7 + row], atol=1e-6)
        for part, name in zip(found.sub_scores[7 + row].T, ("nc", "dac", "ttc", "comfort", "ep"), strict=True):
            np.testing.assert_allclose(getattr(card, name), part, atol=1e-6)


def test_worth_is_found_once_for_each_network_by_any_number_of_processes(sets, scenes, drafter, monkeypatch):
    first, seen = worth_of(sets[0], drafter, workers=2), []
    monkeypatch.setattr(worths, "score_drafts", pytest.fail)
    again = worth_of(sets[0], drafter, lambda done, total: seen.append((done, total)))
    np.testing.assert_array_equal(again.score, first.score)
    assert seen == [(2, 2)]
    with pytest.raises(checkpoint.CheckpointError, match="SHA-256"):
        worth_of(sets[0], replace(drafter, sha256="0" * 64))


def test_goals_and_what_they_are_worth_are_mirrored_with_their_scene(sets, scenes, drafter):
    worth = worth_of(sets[0], drafter)
    plain, mirrored = (replace(source(scenes, flip_prob=share), goal_scores=worth).batch(1) for share in (0.0, 1.0))
    assert plain.goals.shape == (4, worths.GOALS.count + 1, 2)
    assert torch.equal(mirrored.goal_score, plain.goal_score)
    assert torch.equal(mirrored.sub_scores, plain.sub_scores)
    assert torch.equal(mirrored.goals[..., 0], plain.goals[..., 0])
    assert torch.equal(mirrored.goals[..., 1] - CODEBOOK.zero_id, CODEBOOK.zero_id - plain.goals[..., 1])
    for batch in (plain, mirrored):
        assert torch.equal(batch.goals[:, -1], batch.clean[:, 14:])
    assert source(scenes).batch(1).goals.shape == (4, 0, 2)


def test_drafts_take_the_place_of_wrong_plans_and_keep_the_goal(scenes):
    net = tiny_net(words=features.WORDS, text_vocabulary=len(features.WORDS), text_length=12)
    batch = source(scenes, perturbed_actions=2).batch(0)
    made = [self_drafts.add_self_drafts(net, batch, 3, 1.0, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert equal(*made)
    assert torch.equal(made[0].actions[:, :2], batch.actions[:, :2])
    assert torch.equal(made[0].actions[3:], batch.actions[3:])
    drafted = made[0].actions[:3, 2:]
    assert (drafted != net.config.layout.mask_id).all()
    assert torch.equal(drafted[..., 14:], batch.clean[:3, None, 14:].expand(-1, 2, -1))
    assert torch.equal(drafted, net.config.clamp_to_range(drafted))
    assert (drafted[:, 0] != drafted[:, 1]).any()


def test_routes_are_mirrored_with_their_scene_missing_now_and_then_and_else_a_little_beside_the_lane(scenes):
    exact = {"route_noise_m": 0.0, "route_yaw_noise_rad": 0.0, "route_dropout": 0.0}
    made = source(scenes, flip_prob=0.0, **exact)
    told = features.encode_route(scenes.route[made.rows(0)], CODEBOOK)
    np.testing.assert_array_equal(made.batch(0).route.numpy(), told)
    mirrored = source(scenes, flip_prob=1.0, **exact).batch(0).route.numpy()
    known = told[..., 1] != CODEBOOK.mask_id
    assert known.any()
    np.testing.assert_array_equal(mirrored[known][:, 1], 2 * CODEBOOK.zero_id - told[known][:, 1])
    missing = source(scenes, **{**exact, "route_dropout": 1.0}).batch(0).route
    assert (missing == CODEBOOK.mask_id).all()
    beside = source(scenes, flip_prob=0.0, **{**exact, "route_noise_m": 0.5}).batch(0).route.numpy()
    np.testing.assert_array_equal(beside[known][:, 0], told[known][:, 0])
    off_m = CODEBOOK.bin_m * np.abs(beside[known][:, 1] - told[known][:, 1])
    assert 0.05 < off_m.mean() < 2.0


# --- the loop --------------------------------------------------------------------------------------------------------


class Silent:
    def __init__(self):
        self.steps, self.rows, self.exams = [], [], []

    def step(self, progress, at, scenes):
        self.steps.append((progress.step, at))

    def row(self, progress, values):
        self.rows.append(values)

    def missing_keys(self, names):
        self.anew = names

    def validated(self, progress, found):
        self.exams.append((progress.step, found))


def job_of(scenes, out, steps=8, validation_set=None, config=None, **sections):
    sections = {"data": {**SMALL, "draft_start": 0.5}, "checkpointing": NEVER, "schedule": {"steps": steps}, **sections}
    out.mkdir(exist_ok=True)
    about = {"train": {"folder": "train"}}
    decoding = Decoding(GoalRules(count=2))
    return Job(config or settings_of(**sections), network(), scenes, validation_set, out, about, decoding)


def fabric():
    return Fabric(accelerator="cpu", devices=1)


def train(job, reporter=None, stop=lambda: False):
    return sft.train(job, fabric(), reporter or Silent(), stop)


def weights(out):
    tensors, _ = checkpoint.read_tensors(out / train_state.FILE)
    return tensors


def same(one, other):
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.fixture(scope="module")
def finished(scenes, tmp_path_factory):
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(job_of(scenes, out))
    return out


def train_and_save_every_step(train_set, out):
    """For a process that is killed."""

    class Loud(Silent):
        def step(self, progress, at, scenes):
            sys.stdout.write(f"step {progress.step}\n")
            sys.stdout.flush()

    keeping = {**NEVER, "checkpoint_minutes": 0.0}
    train(job_of(prepare(Path(train_set)), Path(out), checkpointing=keeping), Loud())


def test_a_run_that_is_killed_ends_with_the_same_weights(sets, scenes, finished, tmp_path):
    call = f"import test_training; test_training.train_and_save_every_step({str(sets[0])!r}, {str(tmp_path)!r})"
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    child = subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True, env=environment)
    for line in child.stdout:
        if line.strip() == "step 5":  # after the drafts began, in the middle of an epoch
            child.send_signal(signal.SIGKILL)
            break
    assert child.wait() == -signal.SIGKILL
    begun, _ = train_state.read_progress(tmp_path)
    assert 4 <= begun.step < 8
    reporter = Silent()
    train(job_of(scenes, tmp_path), reporter)
    assert [step for step, _ in reporter.steps] == list(range(begun.step + 1, 9))
    assert same(tmp_path, finished)


def test_a_run_that_is_stopped_goes_on_where_it_was(scenes, finished, tmp_path):
    asked = iter([False, False, False, True])
    progress = train(job_of(scenes, tmp_path), stop=lambda: next(asked))
    assert progress.step == 3
    assert train(job_of(scenes, tmp_path)).step == 8
    assert same(tmp_path, finished)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_tells_the_step_at_which_the_run_resumes(sets, tmp_path, monkeypatch, capsys, number):
    def with_signal(self, progress, at, scenes):
        if progress.step == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(run_log.RunLog, "step", with_signal)
    assert run_tiny(command(sets, tmp_path / "run", "--steps", "8", yaml=TINY)) == 128 + number
    assert capsys.readouterr().err.splitlines()[-1] == "stopped; the same command resumes at step 2"
    assert train_state.read_progress(tmp_path / "run")[0].step == 2


def test_a_signal_before_anything_is_saved_says_that_the_run_begins_anew(sets, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(train_run, "build_cache", interrupted)
    assert train_run.run(command(sets, tmp_path / "run", yaml=TINY)) == 143
    assert capsys.readouterr().err.strip() == "stopped; nothing saved yet, the same command starts from the beginning"
    assert not (tmp_path / "run").exists()


def test_two_cannot_train_into_one_folder(sets, tmp_path, capsys):
    with lock_folder(tmp_path / "run"):
        assert train_run.run(command(sets, tmp_path / "run", yaml=TINY)) == 2
    assert f"{tmp_path / 'run'}: another process writes into it; wait" in " ".join(capsys.readouterr().err.split("\n"))


def test_a_run_begins_with_the_weights_of_another_and_tells_what_did_not_fit(scenes, finished, tmp_path):
    """The earlier run knew fewer points of the route: its table of them does not fit, all else does."""
    state = weights(finished)
    state["average.route_position"] = torch.zeros(1, 32)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    save_file(state, earlier / train_state.FILE)
    reporter = Silent()
    job = replace(job_of(scenes, tmp_path / "later", steps=1), init_from=earlier)
    assert train(job, reporter).step == 1
    assert reporter.anew == ["net.route_position"]
    before, after = weights(finished), weights(tmp_path / "later")
    moved = (after["learning.net.slot"] - before["average.slot"]).abs().max()
    assert moved < 1e-3  # one small step away; from random weights it would be far
    with pytest.raises(train_state.StateError, match=r"cannot be read .*: give another --init-from"):
        train(replace(job_of(scenes, tmp_path / "third", steps=1), init_from=tmp_path / "none"))


def test_a_run_begins_with_a_network_that_was_passed_on_without_its_state(scenes, finished, tmp_path):
    passed_on = tmp_path / "shipped"
    passed_on.mkdir()
    for name in (train_state.WEIGHTS, "card.json"):
        shutil.copy(finished / name, passed_on)
    reporter = Silent()
    train(replace(job_of(scenes, tmp_path / "later", steps=1), init_from=passed_on), reporter)
    assert reporter.anew
    assert all(name.startswith("aux_heads.") for name in reporter.anew)  # what only training needs
    before, after = weights(finished), weights(tmp_path / "later")
    assert (after["learning.net.slot"] - before["average.slot"]).abs().max() < 0.01  # bfloat16, and a small step
    told = train_state.describe_init_run(passed_on)
    assert (told["steps"], told["settings"]["seed"]) == (8, 0)
    assert train_state.describe_init_run(finished)["steps"] == 8
    with pytest.raises(
        train_state.StateError, match=r"is missing, and .*card\.json too: name the --out of another run"
    ):
        train_state.describe_init_run(tmp_path)
    (passed_on / "card.json").write_text("[")
    with pytest.raises(train_state.StateError, match=r"card\.json cannot be used .*: name another folder of weights"):
        train_state.describe_init_run(passed_on)


def test_a_network_that_grows_begins_by_answering_as_the_smaller_did(scenes, finished, tmp_path):
    """Deeper eyes and a deeper body pass on what they are given, until they have learnt."""
    smaller = network()
    deeper = network(vision=replace(smaller.vision, layers=3), transformer=replace(smaller.transformer, layers=3))
    grown = TokenNet(deeper)
    grown.initialise(torch.Generator().manual_seed(1))
    learning = Losses(grown, LossConfig(), torch.Generator().manual_seed(1))
    anew = train_state.load_pretrained(finished, learning, copy.deepcopy(grown))
    assert {name.split(".layers.")[0] for name in anew} == {"net", "net.vision"}
    before = TokenNet(smaller)
    kept = {k.removeprefix("average."): v for k, v in weights(finished).items() if k.startswith("average.")}
    before.load_state_dict(kept)
    asked = source(scenes).batch(0)
    with torch.no_grad():
        found, wanted = (each.forward_packed(*asked.inputs, asked.actions).logits for each in (grown, before))
    torch.testing.assert_close(found, wanted)


def test_a_run_of_the_large_kind_begins_with_public_weights_and_goes_on_without_them(sets, tmp_path, capsys):
    """The base network in small: square images one by one, no stem, words of its own."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e .[dev])")
    eyes = VisionConfig(64, 64, 16, 1, (), 24, 1, 3, 40)
    body = TransformerConfig(32, 2, 4, 2, 16, 48, 20, 1e6)
    large = network(vision=eyes, transformer=body)
    measures = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    qwen = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(vocab_size=40, num_key_value_heads=2, head_dim=16, rope_theta=1e6, **measures)
    )
    qwen.save_pretrained(tmp_path / "qwen", safe_serialization=True)
    (tmp_path / "qwen/vocab.json").write_text(json.dumps({"\u0120left": 7}))
    seeing = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 3}
    siglip = transformers.SiglipModel(
        transformers.SiglipConfig(
            vision_config={**seeing, "image_size": 64, "patch_size": 16}, text_config={**seeing, "vocab_size": 10}
        )
    )
    siglip.save_pretrained(tmp_path / "siglip", safe_serialization=True)
    public = ("--language-weights", str(tmp_path / "qwen"), "--vision-weights", str(tmp_path / "siglip"))

    def run(*more):
        args = command(sets, tmp_path / "run", *more, yaml=TINY)
        return train_run.sft_run(args, train_run._config(args), large, Console(quiet=True), Console(stderr=True))

    quiet = ("--setting", "optimizer.learning_rate=1.0e-9")
    assert run("--steps", "1", *quiet, *public) == 0
    kept = weights(tmp_path / "run")
    for name, theirs in (
        ("layers.0.mlp.gate_proj.weight", qwen.model.layers[0].mlp.gate_proj.weight),
        ("vision.layers.0.mlp.fc1.weight", siglip.vision_model.encoder.layers[0].mlp.fc1.weight),
    ):
        for part in ("learning.net.", "average."):
            torch.testing.assert_close(kept[part + name], theirs.detach(), rtol=0.0, atol=1e-6)
    row = kept["average.embed_tokens.weight"][features.WORDS.index("left")]
    torch.testing.assert_close(row, qwen.model.embed_tokens.weight[7].detach(), rtol=0.0, atol=1e-6)
    card = json.loads((tmp_path / "run/card.json").read_text())
    assert card["data"]["public_weights"] == {"language": "qwen", "vision": "siglip"}
    shutil.rmtree(tmp_path / "qwen")
    assert run("--steps", "2", *quiet, *public) == 0  # a run that goes on has all it needs
    assert train_state.read_progress(tmp_path / "run")[0].step == 2
    with pytest.raises(ConfigError, match="--init-from another run, or with public weights"):
        run("--init-from", str(tmp_path / "run"), *quiet, *public)


def test_the_mean_of_runs_lies_between_them_and_tells_of_each(finished, scenes, tmp_path, capsys):
    train(replace(job_of(scenes, tmp_path / "later", steps=4), init_from=finished))
    parser = argparse.ArgumentParser()
    train_run.add_arguments(parser)

    def run(*folders, out):
        args = parser.parse_args(["mean", *map(str, folders), "--out", str(out)])
        return args.run(args)

    runs = finished, tmp_path / "later"
    assert run(*runs, out=tmp_path / "mean") == 0
    card = json.loads((tmp_path / "mean/card.json").read_text())
    assert card["sha256"] in capsys.readouterr().out
    one, other, found = (
        checkpoint.load(folder / train_state.WEIGHTS, json.loads((folder / "card.json").read_text())["sha256"])
        for folder in (*runs, tmp_path / "mean")
    )
    for each in zip(one.parameters(), other.parameters(), found.parameters(), strict=True):
        torch.testing.assert_close(each[2], (each[0] + each[1]) / 2, rtol=0.01, atol=1e-6)  # kept as bfloat16
    assert not torch.equal(one.slot, found.slot)
    assert [part["steps"] for part in card["data"]["averaged_from"]] == [8, 4]
    assert run(*runs, runs[1], out=tmp_path / "weighed") == 0
    card = json.loads((tmp_path / "weighed/card.json").read_text())
    assert [part["share"] for part in card["data"]["averaged_from"]] == [0.3333, 0.6667]
    weighed = checkpoint.load(tmp_path / "weighed" / train_state.WEIGHTS, card["sha256"])
    torch.testing.assert_close(weighed.slot, (one.slot + 2 * other.slot) / 3, rtol=0.01, atol=1e-6)
    capsys.readouterr()
    assert run(runs[0], out=tmp_path / "none") == 2
    assert "expected two or more" in capsys.readouterr().err
    shutil.copytree(runs[0], tmp_path / "damaged")
    (tmp_path / "damaged" / train_state.WEIGHTS).write_bytes(b"")
    assert run(runs[0], tmp_path / "damaged", out=tmp_path / "none") == 2
    assert "SHA-256" in capsys.readouterr().err
    another = tmp_path / "another"
    another.mkdir()
    digest = checkpoint.save(tiny_net(), another / train_state.WEIGHTS, {})
    assert json.loads((another / "card.json").read_text())["sha256"] == digest
    assert run(runs[0], another, out=tmp_path / "none") == 2
    assert "holds another network" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_patches_of_another_size_answer_alike_to_the_same_patch_enlarged():
    generator = torch.Generator().manual_seed(0)
    weight, patch = (torch.randn(shape, generator=generator) for shape in ((5, 3, 4, 4), (1, 3, 4, 4)))
    enlarged = nn.functional.interpolate(patch, (6, 6), mode="bilinear", align_corners=False)
    found = nn.functional.conv2d(enlarged, vision.resize_patch_embedding(weight, 6))
    torch.testing.assert_close(found, nn.functional.conv2d(patch, weight))
    torch.testing.assert_close(vision.resize_patch_embedding(weight, 4), weight)


def test_a_compiled_step_learns_what_a_plain_one_does(scenes, tmp_path, monkeypatch):
    """As torch traces it, run by torch itself: what a compiler makes of it, it answers for."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    for name, compiled in (("plain", False), ("compiled", True)):
        train(job_of(scenes, tmp_path / name, steps=3, device={"compile": compiled}))
    plain, compiled = weights(tmp_path / "plain"), weights(tmp_path / "compiled")
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-4, atol=1e-5)


def train_in_processes(train_set, out, shards, steps):
    """For torchrun."""
    device = {"shards": shards}
    config = settings_of(
        data={**SMALL, "draft_fraction": 0.0}, checkpointing=NEVER, schedule={"steps": steps}, device=device
    )
    several = launch_fabric(config)
    assert several.world_size == 2
    job = job_of(prepare(Path(train_set)), Path(out), config=config)
    sft.train(job, several, Silent(), lambda: False)


@pytest.mark.long
@pytest.mark.parametrize("shards", [False, True], ids=["each all of it", "in shards"])
def test_two_processes_learn_what_one_does(sets, scenes, tmp_path, shards):
    """Also where they stop half way and go on, with weights in shards at first or at last."""
    for halves, steps in ((shards, 3), (not shards, 6)):
        in_processes(tmp_path, f"train_in_processes({str(sets[0])!r}, {str(tmp_path)!r}, {halves}, {steps})")
    config = settings_of(data={**SMALL, "draft_fraction": 0.0}, checkpointing=NEVER, schedule={"steps": 6})
    job = job_of(scenes, tmp_path / "alone", config=config)
    train(replace(job, config=replace(config, schedule=settings.ScheduleConfig(steps=3))))
    train(job)
    together, alone = weights(tmp_path), weights(tmp_path / "alone")
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)
    net = checkpoint.load(tmp_path / train_state.WEIGHTS, json.loads((tmp_path / "card.json").read_text())["sha256"])
    for name, value in net.named_parameters():
        torch.testing.assert_close(value, together[f"average.{name}"], rtol=0.01, atol=1e-3)


def draft_in_processes(train_set, out):
    """For torchrun: plans that a network in shards drafts beside those of the same network whole."""
    config = settings_of(data={**SMALL, "draft_fraction": 0.5}, checkpointing=NEVER, device={"fsdp": True})
    several = launch_fabric(config)
    scenes = prepare(Path(train_set))
    net, alone = (tiny_net(words=features.WORDS, text_vocabulary=len(features.WORDS), text_length=12) for _ in range(2))
    losses = Losses(net, LossConfig(), torch.Generator().manual_seed(0))
    several.setup_module(losses)
    batch = source(scenes, perturbed_actions=2).batch(0)
    made = losses.run_unsharded(
        lambda net: self_drafts.add_self_drafts(net, batch, 2, 1.0, torch.Generator().manual_seed(0))
    )
    assert equal(made, self_drafts.add_self_drafts(alone, batch, 2, 1.0, torch.Generator().manual_seed(0)))
    Path(out, f"{several.global_rank}").touch()


@pytest.mark.long
def test_a_network_in_shards_drafts_what_it_does_whole(sets, scenes, tmp_path):
    in_processes(tmp_path, f"draft_in_processes({str(sets[0])!r}, {str(tmp_path)!r})")
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()


def in_processes(folder, call):
    """Calls a function of this file in two processes that know of each other."""
    script = folder / "together.py"
    script.write_text(f"import test_training\ntest_training.{call}\n")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, str(script)], env=environment, check=True, timeout=200)


def test_another_seed_learns_something_else(scenes, finished, tmp_path):
    job = job_of(scenes, tmp_path)
    train(replace(job, config=replace(job.config, seed=1)))
    assert not same(tmp_path, finished)


def test_what_is_left_is_a_network_with_its_card(finished):
    card = json.loads((finished / "card.json").read_text())
    net = checkpoint.load(finished / train_state.WEIGHTS, card["sha256"])
    assert net.config == network()
    assert card["steps"] == 8
    for name, value in net.named_parameters():
        stored = weights(finished)[f"average.{name}"]
        torch.testing.assert_close(value, stored, rtol=0.01, atol=1e-3)


def test_a_few_scenes_are_learnt_by_heart_and_driven(sets, scenes, tmp_path):
    validation_set = validation.load_validation_set(sets[0], SHAPE, 4, pytest.fail)
    few = replace(
        scenes,
        **{name: getattr(scenes, name)[:4] for name in ("text", "text_mirrored", "ego", "route", "expert", "location")},
    )
    job = job_of(
        few,
        tmp_path,
        150,
        validation_set,
        data={**SMALL, "flip_prob": 0.0, "color_jitter": 0.0},
        optimizer={"learning_rate": 6e-3, "ema_decay": 0.9},
        checkpointing={**NEVER, "validations": 2, "log_steps": 50},
    )
    reporter = Silent()
    train(job, reporter)
    assert [step for step, _ in reporter.exams] == [75, 150]
    found = reporter.exams[-1][1]
    assert reporter.rows[-1]["dlm"] < 0.35 * reporter.rows[0]["dlm"]
    assert found["goal_error_m"] < 1.5, found
    assert found["pdms"] > 60, found
    assert found["pdms_best"] >= found["pdms"]


def test_a_loss_that_is_not_finite_ends_the_run_and_its_batch_is_kept(scenes, tmp_path):
    ego = scenes.ego.copy()
    ego[source(scenes).rows(0)[2]] = np.nan
    job = job_of(
        replace(scenes, ego=ego), tmp_path, optimizer={"vision_pretrain_fraction": 0.0}
    )  # eyes know no ego state
    job = replace(job, config=replace(job.config, seed=3))
    with pytest.raises(TrainingError, match="not finite"):
        train(job)
    kept = np.load(tmp_path / sft.NONFINITE_BATCH)
    assert kept["step"] == 0
    assert kept["images"].shape == (4, 6, 32, 64, 3)
    assert np.isnan(kept["ego"]).any()
    assert not (tmp_path / train_state.FILE).exists()


def test_a_run_by_the_clock_ends_when_the_time_is_over_with_the_schedule_at_its_end(scenes, tmp_path):
    now = iter(np.arange(0.0, 1000.0, 1.0).tolist())
    job = job_of(scenes, tmp_path, schedule={"minutes": 0.5})
    reporter = Silent()
    progress = sft.train(job, fabric(), reporter, lambda: False, lambda: next(now))
    assert 30.0 <= progress.elapsed_s < 34.0
    assert reporter.steps[-1][1] == 1.0


@pytest.mark.parametrize("vision_pretrain_fraction", [0.0, 0.2])
def test_the_learning_rate_rises_and_falls_in_each_part_of_a_run(vision_pretrain_fraction):
    config = settings.OptimizerConfig(vision_pretrain_fraction=vision_pretrain_fraction)
    begun = round(1000 * vision_pretrain_fraction)
    rates = np.array([schedule.learning_rate(config, at, 1000) for at in np.arange(1001) / 1000])
    for part in filter(len, (rates[:begun], rates[begun:])):
        top = int(np.argmax(part))
        assert top == pytest.approx(config.warmup_fraction * len(part), abs=1)
        assert part[top] == pytest.approx(config.learning_rate, rel=0.01)
        assert part[-1] == pytest.approx(config.final_lr_fraction * config.learning_rate, rel=0.01)
        assert (np.diff(part[1 : top + 1]) > 0).all()
        assert (np.diff(part[top:]) < 0).all()


def test_the_eyes_learn_first_and_alone(scenes, tmp_path):
    job = job_of(scenes, tmp_path, optimizer={"vision_pretrain_fraction": 0.5}, data={**SMALL, "draft_start": 0.0})
    net = uniform_goal_values(tiny_net(words=features.WORDS, text_vocabulary=len(features.WORDS), text_length=12))
    before = dict(net.named_parameters())
    asked = iter([False] * 4 + [True])
    reporter = Silent()
    assert train(job, reporter, stop=lambda: next(asked)).step == 4
    state = weights(tmp_path)
    eyes = ("vision.", "projector.", "camera", "instant")
    for name, value in before.items():
        assert torch.equal(state[f"learning.net.{name}"], value) != name.startswith(eyes), name
    assert all(np.isfinite(row["aux_perception"]) and np.isnan(row["dlm"]) for row in reporter.rows)
    assert train(job, reporter).step == 8
    assert np.isfinite(reporter.rows[-1]["dlm"])
    assert not torch.equal(weights(tmp_path)["learning.net.slot"], before["slot"])


# --- the command -----------------------------------------------------------------------------------------------------


def command(sets, out, *more, yaml="", config=None):
    parser = argparse.ArgumentParser()
    train_run.add_arguments(parser)
    path = config or out.parent / f"{out.name}.yaml"
    if config is None:
        path.write_text(yaml)
    given = ["sft", str(path), "--train", str(sets[0]), "--val", str(sets[1]), "--out", str(out), *more]
    return parser.parse_args(given)


TINY = """
data: {batch: 4, masked_actions: 2, perturbed_actions: 1}
checkpointing: {log_steps: 2, validation_scenes: 2, validations: 1}
"""


def run_tiny(args):
    """`train_run.run` with the tiny network."""
    config = train_run._config(args)
    quiet = Console(file=open(os.devnull, "w"))  # noqa: SIM115
    return train_run.sft_run(args, config, network(), quiet, quiet)


def test_the_command_trains_and_goes_on_with_one_log(sets, tmp_path):
    out = tmp_path / "run"
    assert run_tiny(command(sets, out, "--steps", "4", yaml=TINY)) == 0
    assert run_tiny(command(sets, out, "--steps", "8", yaml=TINY)) == 0
    with (out / run_log.LOG).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [2, 4, 6, 8]
    assert all(float(row["loss"]) > 0 for row in rows)
    assert list((out / "tensorboard").iterdir())
    assert (out / train_state.WEIGHTS).exists()


def test_goals_are_learnt_by_scores_from_a_run_that_drafts_already(sets, tmp_path, capsys):
    first, later = tmp_path / "first", tmp_path / "later"
    assert run_tiny(command(sets, first, "--steps", "2", yaml=TINY)) == 0
    worth = ("--setting", "loss.goal_score=2", "--setting", "loss.goal_value=2")
    by_scores = ("--steps", "4", *worth, "--setting", "optimizer.vision_pretrain_fraction=0")
    assert run_tiny(command(sets, later, *by_scores, "--init-from", str(first), yaml=TINY)) == 0
    with (later / run_log.LOG).open() as file:
        assert all(0 < float(row["goal_score"]) <= 1 and float(row["goal_value"]) > 0 for row in csv.DictReader(file))
    assert train_run.run(command(sets, tmp_path / "third", *by_scores, yaml=TINY)) == 2
    assert "--init-from" in capsys.readouterr().err
    card = json.loads((first / "card.json").read_text())
    (first / "card.json").write_text(json.dumps({**card, "sha256": "0" * 64}))
    of_another = ("--init-from", str(first), "--workers", "1")
    assert train_run.run(command(sets, tmp_path / "fourth", *by_scores, *of_another, yaml=TINY)) == 2
    assert "SHA-256" in capsys.readouterr().err


def test_a_setting_on_the_command_line_goes_before_the_file(sets, tmp_path):
    args = command(sets, tmp_path / "run", "--setting", "loss.field=0", "--setting", "data.batch=3", yaml=TINY)
    config = train_run._config(args)
    assert (config.loss.field, config.data.batch, config.data.masked_actions) == (0.0, 3, 2)
    with pytest.raises(ConfigError, match=r"did you mean 'loss\.field'"):
        train_run._config(command(sets, tmp_path / "run", "--setting", "loss.fild=0"))


@pytest.mark.parametrize(
    ("yaml", "complaint"),
    [
        ("data: {bach: 4}", "did you mean 'data.batch'"),
        ("network: huge", "expected one of small"),
        ("loss: [1, 2]", "expected settings"),
        ("loss: {aux_perception: 0}", "set optimizer.vision_pretrain_fraction to 0"),
        ("loss: {goal_value: 1}", "set loss.goal_score above 0"),
        ("a: b: c", "is not YAML"),
        ("device: {accelerator: cuda}", "no CUDA device"),
        ("data: {batch: 4000}", "fewer than data.batch"),
        ("device: {devices: 64, accelerator: cpu}", "device.devices times device.threads is 64 x 1, more than"),
        ("device: {threads: 1024, accelerator: cpu}", "device.devices times device.threads is 1 x 1024, more than"),
        ("schedule: {minutes: .nan}", "schedule.minutes"),
        ("schedule: {minutes: .inf}", "schedule.minutes"),
        ("seed: 99999999999999999999", "seed"),
    ],
)
def test_settings_that_cannot_be_used_are_one_sentence(sets, tmp_path, yaml, complaint):
    if "cuda" in yaml and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError) as fault:
        run_tiny(command(sets, tmp_path / "run", yaml=yaml))
    assert complaint in str(fault.value)
    assert "\n" not in str(fault.value)


def test_faults_end_with_exit_code_2_and_one_sentence(sets, tmp_path, capsys):
    missing = tmp_path / "nowhere"
    assert train_run.run(command((missing, sets[1]), tmp_path / "a")) == 2
    assert "holds no set of scenes" in capsys.readouterr().err
    assert train_run.run(command(sets, tmp_path / "b", config=tmp_path / "none.yaml")) == 2
    assert "none.yaml does not exist" in capsys.readouterr().err


def test_sets_and_networks_that_are_not_there_are_said_before_the_work(sets, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train_run, "build_cache", lambda *_: pytest.fail("scenes are made ready first"))
    assert train_run.run(command((sets[0], tmp_path / "nowhere"), tmp_path / "a")) == 2
    assert "nowhere holds no set of scenes" in capsys.readouterr().err
    assert train_run.run(command(sets, tmp_path / "b", "--init-from", str(tmp_path / "nowhere"))) == 2
    assert "name the --out of another run, or a folder of weights" in capsys.readouterr().err
    assert train_run.run(command(sets, tmp_path / "c", "--init-from", str(GRAPHS))) == 2
    assert "onnx holds exported graphs: name the folder of their weights" in capsys.readouterr().err


def test_there_is_no_mean_of_graphs(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    train_run.add_arguments(parser)
    args = parser.parse_args(["mean", str(GRAPHS), str(GRAPHS.parent), "--out", str(tmp_path / "mean")])
    assert args.run(args) == 2
    assert "onnx holds exported graphs: name the folder of their weights" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


def test_a_log_with_garbled_rows_goes_on_with_its_whole_rows(tmp_path):
    log = tmp_path / run_log.LOG
    rows = [",".join([step, *["0.5"] * (len(run_log.COLUMNS) - 1)]) for step in ("2", "4", "nan", "x", "8")]
    log.write_bytes("\r\n".join([run_log.HEAD, rows[0], rows[1], "6,0.5", *rows[2:]]).encode() + b"\r\n\0\0\0\xff")
    run_log._drop_unsaved_rows(log, 6)
    assert log.read_text().splitlines() == [run_log.HEAD, *rows[:2]]
    log.write_bytes(b"")  # a kill between opening and the first row
    run_log._drop_unsaved_rows(log, 6)
    assert log.read_text() == f"{run_log.HEAD}\n"


@pytest.mark.parametrize("content", [b"\0\xff" * 50, b"step,minutes\n1,2\n", b"[" * 10_000])
def test_a_log_that_is_none_is_one_sentence_before_training(sets, tmp_path, capsys, finished, content):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / run_log.LOG).write_bytes(content)
    same_settings = "data: {batch: 4, masked_actions: 2, perturbed_actions: 1, draft_start: 0.5}"
    assert train_run.run(command(sets, tmp_path / "run", yaml=same_settings)) == 2
    assert "log.csv is not a log of this training run: remove it" in capsys.readouterr().err


def test_a_run_is_not_continued_with_other_settings_or_scenes(sets, finished, capsys, tmp_path):
    args = command(sets, finished, yaml="data: {batch: 4, masked_actions: 3}\nloss: {field: 0.3}")
    assert train_run.run(args) == 2
    told = capsys.readouterr().err
    assert "data.masked_actions" in told
    assert "loss.field" in told
    assert "another --out" in told
    assert "schedule" not in told  # may be changed
    (tmp_path / train_state.FILE).write_bytes(b"not safetensors")
    assert train_run.run(command(sets, tmp_path)) == 2
    assert "not a state of a training run" in capsys.readouterr().err


def test_the_shipped_recipe_can_be_read():
    for path in (Path(__file__).parents[1] / "config" / "train").glob("*.yaml"):
        assert settings.read(path).network in settings.NETWORKS
