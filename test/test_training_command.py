"""The command that trains: its settings, its log, its signals and the public weights it begins with."""

import csv
import io
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_training import command, network, prepare, run, signal_after_two_steps, source, two_sets, weights  # noqa: F401 (a fixture)

from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.core.config import ConfigError, override_from_file
from reflectdrive_ros.data import cache
from reflectdrive_ros.features import images as features
from reflectdrive_ros.infra.files import lock_folder
from reflectdrive_ros.infra.signals import Stopped
from reflectdrive_ros.model.layers import TransformerConfig
from reflectdrive_ros.model.vision import VisionConfig
from reflectdrive_ros.training import run_log, settings, sft, token_runs, train_state

HEAD = run_log.all_columns(sft.COLUMNS)
GRAPHS = Path(__file__).parents[1] / "models" / "reflectdrive2_small" / "onnx"


# --- how a run begins and ends ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_tells_the_step_at_which_the_run_resumes(sets, tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(run_log.RunLog, "step", signal_after_two_steps(number))
    assert run(command(sets, tmp_path / "run", "--steps", "8", yaml=TINY)) == 128 + number
    assert capsys.readouterr().err.splitlines()[-1] == "stopped; the same command resumes at step 2"
    assert train_state.read_progress(tmp_path / "run")[0].step == 2


def test_a_signal_before_anything_is_saved_says_that_the_run_begins_anew(sets, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(token_runs, "build_cache", interrupted)
    assert train_run.run(command(sets, tmp_path / "run", yaml=TINY)) == 143
    assert capsys.readouterr().err.strip() == "stopped; nothing saved yet, the same command starts from the beginning"
    assert not (tmp_path / "run").exists()


def test_two_cannot_train_into_one_folder(sets, tmp_path, capsys):
    with lock_folder(tmp_path / "run"):
        assert train_run.run(command(sets, tmp_path / "run", yaml=TINY)) == 2
    assert f"{tmp_path / 'run'}: another process writes into it; wait" in " ".join(capsys.readouterr().err.split("\n"))


def test_a_run_of_the_large_kind_begins_with_public_weights_and_goes_on_without_them(sets, tmp_path, capsys):
    """The base network in small: square images one by one, no stem, words of its own."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e .[dev])")
    vision = VisionConfig(64, 64, 16, 1, (), 24, 1, 3, 40)
    body = TransformerConfig(32, 2, 4, 2, 16, 48, 20, 1e6)
    large = network(vision=vision, transformer=body)
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

    def run_large(*more):
        return run(command(sets, tmp_path / "run", *more, yaml=TINY), errors=Console(stderr=True), net=large)

    quiet = ("--setting", "optimizer.learning_rate=1.0e-9")
    assert run_large("--steps", "1", *quiet, *public) == 0
    stored = weights(tmp_path / "run")
    for name, theirs in (
        ("layers.0.mlp.gate_proj.weight", qwen.model.layers[0].mlp.gate_proj.weight),
        ("vision.layers.0.mlp.fc1.weight", siglip.vision_model.encoder.layers[0].mlp.fc1.weight),
    ):
        for part in ("learning.net.", "average."):
            torch.testing.assert_close(stored[part + name], theirs.detach(), rtol=0.0, atol=1e-6)
    row = stored["average.embed_tokens.weight"][features.WORDS.index("left")]
    torch.testing.assert_close(row, qwen.model.embed_tokens.weight[7].detach(), rtol=0.0, atol=1e-6)
    card = json.loads((tmp_path / "run/card.json").read_text())
    assert card["data"]["public_weights"] == {"language": "qwen", "vision": "siglip"}
    shutil.rmtree(tmp_path / "qwen")
    assert run_large("--steps", "2", *quiet, *public) == 0  # a run that goes on has all it needs
    assert train_state.read_progress(tmp_path / "run")[0].step == 2
    with pytest.raises(ConfigError, match="--init-from another run, or with weights"):
        run_large("--init-from", str(tmp_path / "run"), *quiet, *public)


# --- the command -----------------------------------------------------------------------------------------------------

TINY = """
data: {batch: 4, masked_actions: 2, perturbed_actions: 1}
checkpointing: {log_steps: 2, validation_scenes: 2, validations: 1}
"""


def test_two_sets_are_mixed_by_their_weights_and_the_card_names_both(sets, tmp_path, monkeypatch):
    out = tmp_path / "run"
    arguments = command(sets, out, "--steps", "2", yaml=TINY)
    arguments.train = [str(sets[0]), str(sets[1])]
    arguments.weights = [0.7, 0.3, 1.0]
    with pytest.raises(ConfigError, match="--weights has 3 numbers for 2 sets"):
        run(arguments)
    arguments.weights = [0.75, 0.25]
    assert run(arguments) == 0
    described = json.loads((out / "card.json").read_text())["data"]["train"]
    assert [(each["folder"], each["used"], each["weight"]) for each in described] == [
        ("train", 12, 0.75),
        ("val", 6, 0.25),
    ]
    one, other = prepare(sets[0]), prepare(sets[1])
    mixed = cache.merge([one, other], [0.75, 0.25])
    rows = np.concatenate([source(mixed).rows(step) for step in range(1000)])
    assert np.mean(rows < len(one)) == pytest.approx(0.75, abs=0.03)
    monkeypatch.setattr("reflectdrive_ros.training.data.COLOR_JITTER", 0.0)
    batch = source(mixed, flip_prob=0.0).batch(0)
    for index, row in enumerate(source(mixed).rows(0)):
        own, at = (one, row) if row < len(one) else (other, row - len(one))
        shard, in_shard = own.location[at]
        np.testing.assert_array_equal(batch.images[index].numpy(), own.images[shard][in_shard])


def test_goals_of_a_mixture_cannot_be_scored(sets, tmp_path):
    arguments = command(sets, tmp_path / "run", "--setting", "loss.goal_score=1.0", yaml=TINY)
    arguments.train = [str(sets[0]), str(sets[1])]
    with pytest.raises(ConfigError, match="scores the goals of one set, but --train names 2"):
        run(arguments)


def test_the_command_trains_and_goes_on_with_one_log(sets, tmp_path):
    out = tmp_path / "run"
    assert run(command(sets, out, "--steps", "4", yaml=TINY)) == 0
    assert run(command(sets, out, "--steps", "8", yaml=TINY)) == 0
    with (out / run_log.LOG).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 4, 6, 8]
    assert all(float(row["loss"]) > 0 for row in rows)
    assert list((out / "tensorboard").iterdir())
    assert (out / train_state.WEIGHTS).exists()


def test_the_losses_of_the_first_steps_are_printed_at_once_and_validation_waits_until_the_end(sets, tmp_path):
    out, console = tmp_path / "run", Console(file=io.StringIO(), width=400)
    arguments = command(sets, out, "--steps", "6", yaml="data: {batch: 4}\ncheckpointing: {validation_scenes: 2}\n")
    assert run(arguments, console, console) == 0
    lines = console.file.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines if ": loss " in line] == ["step 1", "step 2", "step 5", "step 6"]
    assert [line.split(",")[0] for line in lines if "PDMS" in line] == ["step 6"]
    with (out / run_log.LOG).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 5, 6]
    assert all(float(row["scenes_per_s"]) > 0.0 for row in rows)


def test_what_the_weights_of_another_run_lack_is_reported_by_module(sets, tmp_path):
    first, published = tmp_path / "first", tmp_path / "published"
    assert run(command(sets, first, "--steps", "1", yaml=TINY)) == 0
    published.mkdir()
    for name in (train_state.WEIGHTS, "card.json"):
        shutil.copy(first / name, published / name)
    console = Console(file=io.StringIO(), width=400)
    arguments = command(sets, tmp_path / "next", "--steps", "1", "--init-from", str(published), yaml=TINY)
    assert run(arguments, console, console) == 0
    (line,) = [line for line in console.file.getvalue().splitlines() if "--init-from" in line]
    assert line.endswith("initialised as in a new run: aux_heads (11 parameters)")


def test_goals_are_learned_by_scores_from_a_run_that_drafts_already(sets, tmp_path, capsys):
    first, later = tmp_path / "first", tmp_path / "later"
    assert run(command(sets, first, "--steps", "2", yaml=TINY)) == 0
    weights_of_scores = ("--setting", "loss.goal_score=2", "--setting", "loss.goal_value=2")
    by_scores = ("--steps", "4", *weights_of_scores, "--setting", "optimizer.vision_pretrain_fraction=0")
    assert run(command(sets, later, *by_scores, "--init-from", str(first), yaml=TINY)) == 0
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
        run(command(sets, tmp_path / "run", yaml=yaml))
    assert complaint in str(fault.value)
    assert "\n" not in str(fault.value)


def test_missing_files_sets_and_networks_are_one_sentence_before_the_work(sets, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(token_runs, "build_cache", lambda *_: pytest.fail("scenes are made ready first"))
    nowhere, out = tmp_path / "nowhere", tmp_path / "out"
    for arguments, sentence in (
        (command((nowhere, sets[1]), out), "nowhere holds no set of scenes"),
        (command((sets[0], nowhere), out), "nowhere holds no set of scenes"),
        (command(sets, out, config=tmp_path / "none.yaml"), "none.yaml does not exist"),
        (command(sets, out, "--init-from", str(nowhere)), "name the --out of another run, or a folder of weights"),
        (
            command(sets, out, "--init-from", str(GRAPHS)),
            "onnx holds exported graphs: name the folder of their weights",
        ),
    ):
        assert train_run.run(arguments) == 2
        assert sentence in capsys.readouterr().err


def test_a_log_with_garbled_rows_goes_on_with_its_whole_rows(tmp_path):
    log = tmp_path / run_log.LOG
    rows = [",".join([step, *["0.5"] * (len(HEAD) - 1)]) for step in ("2", "4", "nan", "x", "8")]
    log.write_bytes("\r\n".join([",".join(HEAD), rows[0], rows[1], "6,0.5", *rows[2:]]).encode() + b"\r\n\0\0\0\xff")
    run_log._drop_unsaved_rows(log, sft.COLUMNS, 6)
    assert log.read_text().splitlines() == [",".join(HEAD), *rows[:2]]
    log.write_bytes(b"")  # a kill between opening and the first row
    run_log._drop_unsaved_rows(log, sft.COLUMNS, 6)
    assert log.read_text() == f"{','.join(HEAD)}\n"


def test_the_shipped_recipe_can_be_read():
    for path in (Path(__file__).parents[1] / "config" / "train").glob("*.yaml"):
        if path.stem.startswith("reflexdiffusion"):
            assert override_from_file(settings.DiffusionTrainConfig(), path).network in settings.DENOISERS
            continue
        kinds = {"rl": settings.RlTrainConfig(), "refine": settings.RefineTrainConfig()}
        defaults = kinds.get(path.stem.rpartition("_")[2], settings.TrainConfig())
        assert override_from_file(defaults, path).network in settings.NETWORKS
