"""What two losses are worth: trainings that are done stay, budgets are never mixed, differences are of one seed."""

import argparse
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import ablations, results
from reflectdrive_ros.cli import train
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index
from reflectdrive_ros.training import settings

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "config/train/reflectdrive2_small.yaml"
MADE_BY = {"scene_version": 1}
NAMES = ("pdms", "nc", "dac", "ttc", "comfort", "ep", "pdms_drafted", "pdms_best", "goal_error_m", "token_accuracy")

# In place of `train sft`: notes that it was called and writes the card of a training that went well. It fails, or
# waits, where a file beside its folder says so.
STUB = """
import json, os, sys, time
from pathlib import Path

words, base = sys.argv[2:], json.loads(Path(sys.argv[1]).read_text())
given = dict(zip(words[1::2], words[2::2]))
out = Path(given["--out"])
with out.with_name("called").open("a") as file:
    file.write(f"{out.name}\\n")
if out.with_name(f"{out.name}.fails").exists():
    sys.exit("no memory left")
if out.with_name("waits").exists() and out.name != "vision":
    out.with_name(f"{out.name}.pid").write_text(str(os.getpid()))
    time.sleep(60.0)
for name, value in zip(words[1::2], words[2::2]):
    if name == "--setting":
        dotted, value = value.split("=")
        *path, last = dotted.split(".")
        at = base
        for part in path:
            at = at[part]
        at[last] = json.loads(value)
card = {"settings": base, "steps": base["schedule"]["steps"], "minutes": 1.5}
card["data"] = {"train": {"scenes": 0, "made_by": {"scene_version": 1}, "used": 12}}
if "--init-from" in given:
    vision = json.loads((Path(given["--init-from"]) / "card.json").read_text())
    card["data"]["init_from"] = {"steps": vision["steps"]}
    pdms = 50.0 + base["seed"] - 2.0 * (base["loss"]["field"] == 0) - 1.0 * (base["data"]["perturbed_actions"] == 0)
    card["validation"] = dict.fromkeys(NAMES, pdms)
out.mkdir(exist_ok=True)
(out / "card.json").write_text(json.dumps(card))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two sets and trainings that take no time."""
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        shards.write_index(tmp_path / name, Index(name, 12, (), MADE_BY))
    stub, base = tmp_path / "stub.py", tmp_path / "base.json"
    stub.write_text(STUB.replace("NAMES", repr(NAMES)))
    base.write_text(json.dumps(dataclasses.asdict(settings.read(RECIPE, settings.TrainConfig()))))
    monkeypatch.setattr(ablations, "TRAIN", (sys.executable, str(stub), str(base)))
    return tmp_path


def command(place, *more):
    sets = ["--train", str(place / "train"), "--val", str(place / "val")]
    return ["bench", "ablations", str(RECIPE), *sets, "--out", str(place / "out"), *more]


def called(place):
    """Names of the trainings that were begun, in their order; forgotten with that."""
    file = place / "out" / "called"
    names = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return names


def pair(seed):
    return [f"{variant}-{seed}" for variant in ablations.VARIANTS]


def test_a_card_is_expected_to_tell_what_train_makes_of_the_same_words(place):
    parser = argparse.ArgumentParser()
    ablations.add_arguments(parser)
    runs = ablations.plan_runs(parser.parse_args(command(place, "--setting", "optimizer.ema_decay=0.5")[2:]))
    training = argparse.ArgumentParser()
    train.add_arguments(training)
    for run in runs:
        assert train._config(training.parse_args(["sft", *run.words])) == run.config
        assert run.config.optimizer.ema_decay == 0.5
    by_name = {run.name: run.config for run in runs}
    assert list(by_name) == ["vision", *pair(0), *pair(1), *pair(2)]
    assert by_name["vision"].optimizer.vision_pretrain_fraction == 0.99
    full = by_name["full-1"]
    assert (full.optimizer.vision_pretrain_fraction, full.schedule.steps, full.seed) == (0.0, 500, 1)
    for name, section, value in (
        ("no-field-1", "loss", {"field": 0.0}),
        ("no-sap-1", "data", {"perturbed_actions": 0}),
    ):
        changed = {section: dataclasses.replace(getattr(full, section), **value)}
        assert by_name[name] == dataclasses.replace(full, **changed)


def test_trainings_that_are_done_are_only_read(place, capsys):
    first, again = place / "first.json", place / "again.json"
    assert main(command(place, "--seeds", "2", "--json", str(first))) == 0
    told = capsys.readouterr()
    assert sum("min" in line for line in told.err.splitlines()) == 7  # a line for each that was done
    assert "no-field" in told.out
    names = called(place)
    assert names[0] == "vision"
    assert sorted(names[1:]) == sorted([*pair(0), *pair(1)])
    assert main(command(place, "--seeds", "2", "--json", str(again))) == 0
    assert called(place) == []
    one, other = (json.loads(file.read_text()) for file in (first, again))
    assert one["runs"] == other["runs"]
    assert one["runs"]["no-sap-1"]["pdms"] == 50.0
    budget = {"steps": 500, "vision_steps": 1800, "batch": 8, "seeds": 2, "scenes_trained_on": 12}
    assert {name: one[name] for name in budget} == budget
    assert main(command(place, "--seeds", "3")) == 0
    assert sorted(called(place)) == sorted(pair(2))


def test_a_training_that_was_stopped_goes_on(place):
    assert main(command(place, "--seeds", "1")) == 0
    called(place)
    card = place / "out/full-0/card.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "steps": 300}))
    assert main(command(place, "--seeds", "1")) == 0
    assert called(place) == ["full-0"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--steps", "600"), "full-0 holds another training (schedule.steps differ)"),
        (("--vision-steps", "900"), "vision holds another training (schedule.steps differ)"),
    ],
)
def test_another_budget_is_refused_before_anything_begins(place, capsys, more, named):
    assert main(command(place, "--seeds", "1")) == 0
    called(place)
    capsys.readouterr()
    assert main(command(place, "--seeds", "2", *more)) == 2
    told = capsys.readouterr().err
    assert named in told
    assert "give another --out" in told
    assert told.count("\n") == 1
    assert called(place) == []


def test_another_set_or_another_vision_pretraining_is_refused(place, capsys):
    assert main(command(place, "--seeds", "1")) == 0
    card = place / "out/full-0/card.json"
    whole = json.loads(card.read_text())
    card.write_text(json.dumps({**whole, "data": {**whole["data"], "init_from": {"steps": 7}}}))
    assert main(command(place, "--seeds", "1")) == 2
    assert "(steps of the vision pretraining differ)" in capsys.readouterr().err
    card.write_text(json.dumps({}))
    assert main(command(place, "--seeds", "1")) == 2
    assert "is not the card of a training" in capsys.readouterr().err
    shards.write_index(place / "train", Index("train", 12, (), {"sources": "later"}))
    assert main(command(place, "--seeds", "1")) == 2
    assert "(scenes differ)" in capsys.readouterr().err


def test_a_failed_training_is_one_sentence_with_its_log_and_the_others_stay(place, capsys):
    (place / "out").mkdir()
    fails = place / "out/no-field-0.fails"
    fails.touch()
    assert main(command(place, "--seeds", "1", "--jobs", "1")) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert len(told) == 1
    log = place / "out/no-field-0.log"
    assert str(log) in told[0]
    assert "no memory left" in log.read_text()
    assert called(place) == ["vision", "full-0", "no-field-0"]
    fails.unlink()
    assert main(command(place, "--seeds", "1")) == 0
    assert sorted(called(place)) == ["no-field-0", "no-sap-0"]


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_kill_end_the_trainings_too(place, capsys, number):
    (place / "out").mkdir()
    (place / "out/waits").touch()
    files = [place / f"out/{name}-0.pid" for name in ("full", "no-field")]

    def interrupt():
        while not all(file.exists() and file.read_text() for file in files):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(command(place, "--seeds", "1")) == 128 + number
    assert "resumes from here" in capsys.readouterr().err
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize(
    ("yaml", "complaint"),
    [
        ("schedule: {minutes: 5}", "steps are the budget"),
        ("loss: {fild: 0}", "did you mean 'loss.field'"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(place, capsys, yaml, complaint):
    config = place / "config.yaml"
    config.write_text(yaml)
    words = command(place)
    words[2] = str(config)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


def cards(**pdms):
    """Cards of trainings with these PDMS by seed."""
    return {
        f"{variant.replace('_', '-')}-{seed}": {"validation": dict.fromkeys(NAMES, value), "minutes": 2.0}
        for variant, values in pdms.items()
        for seed, value in enumerate(values)
    }


def test_differences_are_those_of_one_seed():
    """The seeds are far apart and the losses worth little: what is paired tells it nevertheless."""
    found = ablations.numbers(cards(full=[40.0, 60.0], no_field=[38.0, 57.0], no_sap=[41.0, 60.0]), 2)
    assert found["differences"]["field"]["pdms"] == [2.0, 3.0]
    assert found["differences"]["sap"]["dac"] == [-1.0, 0.0]
    assert found["variants"]["full"]["pdms"] == 50.0
    assert found["variants"]["no-field"]["minutes"] == 2.0
    assert found["runs"]["no-sap-1"]["ep"] == 60.0


def test_the_results_page_tells_the_file():
    measured = ablations.numbers(cards(full=[40.0, 60.0], no_field=[38.0, 57.0], no_sap=[41.0, 60.0]), 2)
    budget = {"steps": 500, "vision_steps": 1800, "batch": 8, "seeds": 2, "scenes_trained_on": 90}
    made = {
        "command": "reflectdrive bench ablations X",
        "commit": "c" * 40,
        "date": "2026-11-22T",
        "device": "two cores",
    }
    found = {**budget, "validation_scenes": 500, **measured, **made}
    page = results.render({"ablations": found})["results_settings.md"]
    assert "500 steps of 8 scenes, of 90, after 1800 shared steps of vision pretraining" in page
    assert "| full | 50.0 | 40.0 60.0 | 50.0 |" in page
    assert "| no-field | 47.5 | 38.0 57.0 |" in page
    assert "+2.50 (+2.00 .. +3.00)" in page
    assert "-0.50 (-1.00 .. +0.00)" in page
    assert "- `ablations.json`: `reflectdrive bench ablations X`, commit cccccccccccc" in page
    assert "## Ablations" not in results.render({})["results_settings.md"]


TINY = """
import sys
import tiny_training
from reflectdrive_ros.__main__ import main
from reflectdrive_ros.training import settings
settings.NETWORKS = {"small": tiny_training.network}
sys.exit(main(["train", "sft", *sys.argv[1:]]))
"""


@pytest.mark.long
def test_a_tiny_network_is_really_trained_in_each_way(tmp_path, monkeypatch):
    from tiny_training import make_set

    make_set(tmp_path / "train")
    make_set(tmp_path / "val", "val", 6)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'test'}")
    monkeypatch.setattr(ablations, "TRAIN", (sys.executable, "-c", TINY))
    out = tmp_path / "ablations.json"
    words = command(tmp_path, "--seeds", "1", "--steps", "8", "--vision-steps", "4", "--json", str(out))
    assert main(words) == 0
    found = json.loads(out.read_text())
    assert set(found["runs"]) == set(pair(0))
    assert found["validation_scenes"] == 6
    assert found["scenes_trained_on"] == 12
    networks = {json.loads((tmp_path / f"out/{name}/card.json").read_text())["sha256"] for name in pair(0)}
    assert len(networks) == 3
    results.render({"ablations": found})
    monkeypatch.setattr(ablations, "TRAIN", ("false",))
    assert main(words) == 0
    # killed before it had a card: only its state tells that it is another training
    (tmp_path / "out/full-0/card.json").unlink()
    assert main([*words, "--steps", "9"]) == 2
