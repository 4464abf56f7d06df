"""Training runs: a kill changes nothing, a run begins with the weights of another, faults are sentences."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import save_file
from tiny_net import uniform_goal_values, xy_layout
from tiny_training import (  # noqa: F401 (fixtures)
    NEVER,
    SHAPE,
    SMALL,
    Silent,
    command,
    equal,
    in_processes,
    network,
    prepare,
    same_weights,
    scenes_ready,
    settings_of,
    source,
    two_sets,
    weights,
    with_words,
)
from torch import nn

from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.model import checkpoint, vision
from reflectdrive_ros.model.token.net import TokenNet
from reflectdrive_ros.model.token.rollout import default_decoding
from reflectdrive_ros.training import run_log, settings, sft, train_state, trainer, validation
from reflectdrive_ros.training.data import shape_of
from reflectdrive_ros.training.losses import Losses
from reflectdrive_ros.training.rewards import COLUMNS, PlanScorer
from reflectdrive_ros.training.runs import launch_fabric
from reflectdrive_ros.training.settings import LossConfig
from reflectdrive_ros.training.token_runs import TokenJob
from reflectdrive_ros.training.trainer import TrainingError

# --- the loop --------------------------------------------------------------------------------------------------------


def job_of(scenes, out, steps=8, validation_set=None, config=None, **sections):
    sections = {"data": {**SMALL, "draft_start": 0.5}, "checkpointing": NEVER, "schedule": {"steps": steps}, **sections}
    out.mkdir(exist_ok=True)
    about = {"train": {"folder": "train"}}
    return TokenJob(config or settings_of(**sections), network(), scenes, validation_set, out, about)


def fabric():
    return Fabric(accelerator="cpu", devices=1)


def train(job, reporter=None, stop=lambda: False):
    return sft.train(job, fabric(), reporter or Silent(), stop)


@pytest.fixture(scope="module")
def finished(scenes, tmp_path_factory):
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(job_of(scenes, out))
    return out


def train_and_save_every_step(train_set, out):
    """For a process that is killed."""

    class Loud(Silent):
        def step(self, progress, at):
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
    progress, _ = train_state.read_progress(tmp_path)
    assert 4 <= progress.step < 8
    reporter = Silent()
    train(job_of(scenes, tmp_path), reporter)
    assert [step for step, _ in reporter.steps] == list(range(progress.step + 1, 9))
    assert same_weights(tmp_path, finished)


def test_a_run_that_is_stopped_goes_on_where_it_was(scenes, finished, tmp_path):
    stops = iter([False, False, False, True])
    progress = train(job_of(scenes, tmp_path), stop=lambda: next(stops))
    assert progress.step == 3
    assert train(job_of(scenes, tmp_path)).step == 8
    assert same_weights(tmp_path, finished)


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
    described = train_state.describe_init_run(passed_on)
    assert (described["steps"], described["settings"]["seed"]) == (8, 0)
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
    averaged = {k.removeprefix("average."): v for k, v in weights(finished).items() if k.startswith("average.")}
    before.load_state_dict(averaged)
    batch = source(scenes).batch(0)
    with torch.no_grad():
        logits, expected = (each.forward_packed(batch.inputs, batch.actions).logits for each in (grown, before))
    torch.testing.assert_close(logits, expected)


def test_resized_patch_embeddings_give_the_same_output_for_the_enlarged_patch():
    generator = torch.Generator().manual_seed(0)
    weight, patch = (torch.randn(shape, generator=generator) for shape in ((5, 3, 4, 4), (1, 3, 4, 4)))
    enlarged = nn.functional.interpolate(patch, (6, 6), mode="bilinear", align_corners=False)
    embedded = nn.functional.conv2d(enlarged, vision.resize_patch_embedding(weight, 6))
    torch.testing.assert_close(embedded, nn.functional.conv2d(patch, weight))
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


def train_in_processes(train_set, out, steps):
    """For torchrun."""
    config = settings_of(data={**SMALL, "draft_fraction": 0.0}, checkpointing=NEVER, schedule={"steps": steps})
    several = launch_fabric(config)
    assert several.world_size == 2
    job = job_of(prepare(Path(train_set)), Path(out), config=config)
    sft.train(job, several, Silent(), lambda: False)


@pytest.mark.long
def test_two_processes_learn_what_one_does(sets, scenes, tmp_path):
    """Also where they stop half way and go on."""
    for steps in (3, 6):
        in_processes("test_training", tmp_path, f"train_in_processes({str(sets[0])!r}, {str(tmp_path)!r}, {steps})")
    for steps in (3, 6):
        train(job_of(scenes, tmp_path / "alone", steps, data={**SMALL, "draft_fraction": 0.0}))
    together, alone = weights(tmp_path), weights(tmp_path / "alone")
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)
    net = checkpoint.load(tmp_path / train_state.WEIGHTS, json.loads((tmp_path / "card.json").read_text())["sha256"])
    for name, value in net.named_parameters():
        torch.testing.assert_close(value, together[f"average.{name}"], rtol=0.01, atol=1e-3)


def test_a_few_scenes_are_overfitted_and_driven(sets, scenes, tmp_path, monkeypatch):
    monkeypatch.setattr("reflectdrive_ros.training.data.COLOR_JITTER", 0.0)
    whole = validation.load_validation_set(sets[0], SHAPE, len(scenes), pytest.fail)
    validation_set = validation.ValidationSet(whole.scenes[:4], whole.inputs[:4])
    few = replace(
        scenes,
        **{name: getattr(scenes, name)[:4] for name in ("text", "text_mirrored", "ego", "route", "expert", "location")},
    )
    job = job_of(
        few,
        tmp_path,
        150,
        validation_set,
        data={**SMALL, "flip_prob": 0.0},
        optimizer={"learning_rate": 6e-3, "ema_decay": 0.9},
        checkpointing={**NEVER, "validations": 2, "log_steps": 25},
    )
    reporter = Silent()
    train(job, reporter)
    assert [step for step, _ in reporter.exams] == [75, 150]
    means = reporter.exams[-1][1]
    dlm = [row["dlm"] for row in reporter.rows if np.isfinite(row["dlm"])]
    assert dlm[-1] < 0.35 * dlm[0]
    assert means["goal_error_m"] < 1.5, means
    assert means["pdms"] > 60, means
    assert means["pdms_best"] >= means["pdms"]


def test_validation_smooths_a_plan_of_fine_tokens_as_the_car_does(sets, monkeypatch):
    """Tokens of 0.05 m, uncertain within 0.75 m, as DriveFine's: read to the bin, a straight drive would be a
    zigzag."""
    layout = xy_layout(4001, 0.05, goal=(), interval_bins=15)
    net = TokenNet(network(layout=layout))
    validation_set = validation.load_validation_set(sets[1], shape_of(net.config), 4, pytest.fail)
    zigzag_m = 0.25 * np.stack([np.zeros(8), (-1.0) ** np.arange(8)], axis=1)
    plans = np.stack([layout.encode(scene.expert[:, :2] + zigzag_m) for scene in validation_set.scenes])
    decoding = default_decoding(layout)
    rounds = [SimpleNamespace(actions=torch.from_numpy(plans.astype(np.int64))[:, None])] * len(decoding.rounds(layout))
    monkeypatch.setattr(validation.rollout, "full_step", lambda *arguments: SimpleNamespace(rounds=rounds))
    validated = validation.validate(net, validation_set, torch.device("cpu"))
    car = PlanScorer(layout)
    sent = [car(scene, ids[None], True)[0] for scene, ids in zip(validation_set.scenes, plans, strict=True)]
    comfort = 100.0 * np.mean([values[COLUMNS.index("comfort")] for values in sent])
    assert validated["comfort"] == comfort == 100.0


def test_a_loss_that_is_not_finite_ends_the_run_and_its_batch_is_stored(scenes, tmp_path):
    ego = scenes.ego.copy()
    ego[source(scenes).rows(0)[2]] = np.nan
    job = job_of(
        replace(scenes, ego=ego), tmp_path, optimizer={"vision_pretrain_fraction": 0.0}
    )  # eyes know no ego state
    job = replace(job, config=replace(job.config, seed=3))
    with pytest.raises(TrainingError, match="not finite"):
        train(job)
    stored = np.load(tmp_path / trainer.NONFINITE_BATCH)
    assert stored["step"] == 0
    assert stored["images"].shape == (4, 6, 32, 64, 3)
    assert np.isnan(stored["ego"]).any()
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
    first_steps = round(1000 * vision_pretrain_fraction)
    rates = np.array([trainer.learning_rate(config, at, 1000) for at in np.arange(1001) / 1000])
    for part in filter(len, (rates[:first_steps], rates[first_steps:])):
        top = int(np.argmax(part))
        assert top == pytest.approx(trainer.WARMUP_FRACTION * len(part), abs=1)
        assert part[top] == pytest.approx(config.learning_rate, rel=0.01)
        assert part[-1] == pytest.approx(trainer.FINAL_LR_FRACTION * config.learning_rate, rel=0.01)
        assert (np.diff(part[1 : top + 1]) > 0).all()
        assert (np.diff(part[top:]) < 0).all()


def test_the_vision_encoder_learns_first_and_alone(scenes, tmp_path):
    job = job_of(scenes, tmp_path, optimizer={"vision_pretrain_fraction": 0.5}, data={**SMALL, "draft_start": 0.0})
    net = uniform_goal_values(with_words())
    before = dict(net.named_parameters())
    stops = iter([False] * 4 + [True])
    reporter = Silent()
    assert train(job, reporter, stop=lambda: next(stops)).step == 4
    state = weights(tmp_path)
    eyes = ("vision.", "projector.", "camera", "instant")
    for name, value in before.items():
        assert torch.equal(state[f"learning.net.{name}"], value) != name.startswith(eyes), name
    assert all(np.isfinite(row["aux_perception"]) and np.isnan(row["dlm"]) for row in reporter.rows)
    assert train(job, reporter).step == 8
    assert np.isfinite(reporter.rows[-1]["dlm"])
    assert not torch.equal(weights(tmp_path)["learning.net.slot"], before["slot"])


# --- its folder ------------------------------------------------------------------------------------------------------


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
    message = capsys.readouterr().err
    assert "data.masked_actions" in message
    assert "loss.field" in message
    assert "another --out" in message
    assert "schedule" not in message  # may be changed
    (tmp_path / train_state.FILE).write_bytes(b"not safetensors")
    assert train_run.run(command(sets, tmp_path)) == 2
    assert "not a state of a training run" in capsys.readouterr().err
