"""Every JSON of numbers says which command, commit, machine and weights made it."""

import json
import re
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import commands
import pytest

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.infra.provenance import commit_of, provenance, write_numbers
from reflectdrive_ros.runtime import cli_args
from reflectdrive_ros.runtime.model_file import model_config

ROOT = Path(__file__).parents[1]


def test_provenance_names_version_machine_date_and_command():
    record = provenance(["reflectdrive", "replay", "my bag"])
    assert record["command"] == "reflectdrive replay 'my bag'"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["date"])
    assert record["version"]
    assert re.search(r", \d+ cores$", record["device"])
    assert re.fullmatch(r"([0-9a-f]{40}(-dirty)?)?", record["commit"])
    assert "weights_sha256" not in record


@pytest.mark.parametrize(
    ("module", "program", "command"),
    [
        ("reflectdrive_ros.__main__", "/a/checkout/reflectdrive_ros/__main__.py", "reflectdrive --minutes 6"),
        (None, "/a/checkout/.venv/bin/reflectdrive", "reflectdrive --minutes 6"),
        (
            "reflectdrive_ros.replay.conformance",
            "/a/checkout/reflectdrive_ros/replay/conformance.py",
            "python -m reflectdrive_ros.replay.conformance --minutes 6",
        ),
    ],
)
def test_the_recorded_command_is_the_one_that_was_typed(module, program, command, tmp_path, monkeypatch):
    """A module that runs by itself is recorded as such, not as a command of `reflectdrive` that does not exist."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(module, None) if module else None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", [program, "--minutes", "6"])
    write_numbers(tmp_path / "numbers.json", {}, weights_sha256="AB")
    record = json.loads((tmp_path / "numbers.json").read_text())
    assert (record["command"], record["weights_sha256"]) == (command, "ab")


def test_numbers_written_to_docs_do_not_make_the_next_ones_dirty(tmp_path):
    """`make results` writes one table after the other; changed code is told."""
    assert commit_of(tmp_path) == ""
    for name in ("docs/bench/step.json", "planning.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        commands.git(tmp_path, *words)
    commit = commit_of(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "docs/bench/step.json").write_text("2")
    assert commit_of(tmp_path) == commit
    (tmp_path / "planning.py").write_text("2")
    assert commit_of(tmp_path) == f"{commit}-dirty"


def test_the_weights_are_those_that_the_graphs_were_exported_from():
    """The card of graphs has a hash of its own, which differs between precisions of one network."""
    model = ROOT / "models/reflectdrive2_small"
    expected = json.loads((model / "card.json").read_text())["sha256"]
    for file in ("onnx/card.json", "int8/card.json", "weights.safetensors"):
        config = replace(Config(), model=model_config(str(model / file), None))
        assert cli_args.weights_of(config, ["route_follower", "reflectdrive2"]) == expected
    assert cli_args.weights_of(Config(), ["route_follower"]) == ""
