"""The pages of results have no number that is older than the code that it describes, unless it is marked."""

import json
from pathlib import Path

import commands
import pytest

from reflectdrive_ros.__main__ import BENCHES, main
from reflectdrive_ros.bench import results, staleness

ROOT = Path(__file__).parents[1]
FILES = ("reflectdrive_ros/planning/guard.py", "reflectdrive_ros/planning/generators/route_follower.py", "README.md")
OTHER = "reflectdrive_ros/planning/generators/drivefine.py"
BENCH = "docs/bench/eval-test.json"


class Clone:
    """A small git repository with the layout of this one, and numbers of `route_follower` measured on its commit."""

    def __init__(self, root):
        self.root = root
        for name in (*FILES, OTHER):
            self.write(name, "LIMIT = 1\n")
        self.git("init", "-q")
        self.commit()
        self.measure(self.head())
        self.commit()  # of the numbers

    def git(self, *words):
        return commands.git(self.root, *words)

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def commit(self):
        self.git("add", ".")
        self.git("commit", "-q", "-m", "a change")

    def head(self):
        return self.git("rev-parse", "HEAD")

    def measure(self, commit):
        measured = json.loads((ROOT / BENCH).read_text())
        command = "reflectdrive eval --scenes test --planner route_follower"
        drivers = {"route_follower (objects)": measured["drivers"]["route_follower (objects)"]}
        about = {"planner": "route_follower (objects)", "drivers": drivers, "differences": {}}
        self.write(BENCH, json.dumps({**measured, **about, "command": command, "commit": commit}))

    def pages(self, *options):
        """Exit code of `reflectdrive bench results`."""
        folders = ("--bench", str(self.root / "docs/bench"), "--out", str(self.root / "docs"))
        return main(["bench", "results", *folders, *options])

    def page(self):
        return (self.root / "docs/results.md").read_text()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_numbers_of_the_present_code_are_written_without_a_mark(clone):
    assert clone.pages() == 0
    assert "stale" not in clone.page()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (OTHER, "LIMIT = 2\n"),
        ("README.md", "another page"),
        (FILES[0], '"""What the guard checks."""\n\nLIMIT = 1  # a reason\n'),
    ],
    ids=["another planner", "a page", "comments"],
)
def test_what_moves_no_number_of_a_planner_makes_none_stale(name, text, clone):
    clone.write(name, text)
    clone.commit()
    assert clone.pages() == 0


@pytest.mark.parametrize("name", FILES[:2], ids=["shared by all planners", "of its planner"])
@pytest.mark.parametrize("committed", [True, False])
def test_numbers_older_than_the_code_of_their_planner_are_refused(name, committed, clone, capsys):
    commit = clone.head()
    clone.write(name, "LIMIT = 2\n")
    if committed:
        clone.commit()
    assert clone.pages() == 2
    sentence = " ".join(capsys.readouterr().err.split())
    assert f"eval-test.json is stale: {name} changed; measure it again: reflectdrive eval" in sentence
    assert "1 of 1 files are stale" in sentence
    assert "reflectdrive bench results --mark-stale" in sentence
    assert not (clone.root / "docs/results.md").exists()
    assert clone.pages("--mark-stale") == 0
    assert f", **stale: {name} changed**\n" in clone.page()
    assert f"not of the code of commit {(clone.head() if committed else commit)[:12]}" in clone.page()


def test_code_that_is_gone_or_new_makes_numbers_stale(clone):
    (clone.root / FILES[0]).rename(clone.root / "reflectdrive_ros/planning/checks.py")
    clone.commit()
    assert clone.pages() == 2


@pytest.mark.parametrize(
    ("commit", "reason"),
    [
        ("0" * 40, "its commit is not in this repository (a shallow clone, or rewritten history)"),
        ("", "measured outside of a git checkout"),
        ("{head}-dirty", "measured uncommitted"),
    ],
)
def test_numbers_that_are_of_no_commit_of_git_are_refused_with_that_reason(commit, reason, clone, capsys):
    clone.measure(commit.format(head=clone.head()))
    assert clone.pages() == 2
    assert f"eval-test.json is stale: {reason};" in capsys.readouterr().err


def test_a_folder_without_git_is_one_sentence(clone, tmp_path, capsys):
    folder = tmp_path / ".git"
    folder.rename(tmp_path / "no_git")
    assert clone.pages() == 2
    assert "cannot be judged" in capsys.readouterr().err


GENERATORS, MODEL = "reflectdrive_ros/planning/generators", "models/drivefine_scene"
SEVERAL = "eval --planner reflexdiffusion+idm_proposals route_follower"


@pytest.mark.parametrize(
    ("command", "path", "used"),
    [
        ("eval --planner route_follower", f"{GENERATORS}/drivefine.py", False),
        ("bench step", f"{GENERATORS}/drivefine.py", True),  # names no planner
        (SEVERAL, f"{GENERATORS}/reflectdrive2.py", False),
        *(
            (SEVERAL, f"{GENERATORS}/{name}.py", True)
            for name in ("reflexdiffusion", "idm_proposals", "route_follower")
        ),
        ("eval --planner drivefine", MODEL, False),
        (f"eval --planner drivefine --model {MODEL}/onnx/card.json", MODEL, True),
    ],
)
def test_numbers_depend_on_all_planners_and_networks_that_their_command_uses_and_on_no_other(command, path, used):
    assert (f":(exclude){path}" in staleness.pathspecs({"command": f"reflectdrive {command}"})) != used


def test_paths_and_commands_of_the_tables_exist():
    paths = {path for some in (*staleness.PATHS.values(), *staleness.ONLY_OF.values()) for path in some}
    for path in (*paths, *staleness.DRIVES, *staleness.OTHERS):
        assert (ROOT / path).exists(), path
    for command in staleness.PATHS:
        assert command == "eval" or command.removeprefix("bench ") in BENCHES
    for numbers in results.read(ROOT / "docs/bench").values():
        words = numbers["command"].split()
        assert words[:2] != ["reflectdrive", "bench"] or " ".join(words[1:3]) in staleness.PATHS, words
