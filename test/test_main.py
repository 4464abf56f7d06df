"""Claims about the command line: a missing extra is one sentence, every command tells what it does, and it works or
says why where text cannot be printed and where the working directory is gone."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.replay.plan_measures import MEASURES, PlanMeasures, write_measures

WITHOUT = (
    "import sys; sys.modules[{library!r}] = None; from reflectdrive_ros.__main__ import main; sys.exit(main({words}))"
)


@pytest.mark.parametrize(
    ("library", "words", "extra"),
    [
        ("torch", ["train", "sft", "x.yaml"], "train"),
        ("torch", ["bench", "ego-mlp"], "train"),
        ("onnx_ir", ["export", "x", "--out", "y"], "export"),
    ],
)
def test_a_missing_library_is_one_sentence_that_names_the_extra(library, words, extra):
    program = WITHOUT.format(library=library, words=words)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"pip install 'reflectdrive[{extra}]'" in done.stderr


EVERY_COMMAND = [[name] for name in COMMANDS] + [["bench", name] for name in BENCHES]
HELP = """
import contextlib, io, json, sys
from reflectdrive_ros.__main__ import main
told = {}
for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            code = main([*words, "--help"])
        except SystemExit as ended:
            code = ended.code
        except Exception as fault:
            code = repr(fault)
    told[" ".join(words)] = (code, out.getvalue())
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def helps():
    """Exit code and help of every command, of one process: most of the time goes into what they import."""
    words = [sys.executable, "-c", HELP, json.dumps(EVERY_COMMAND)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, timeout=240, check=True).stdout)


@pytest.mark.parametrize("words", EVERY_COMMAND, ids=" ".join)
def test_every_command_has_help(helps, words):
    code, told = helps[" ".join(words)]
    assert code == 0
    assert f"usage: reflectdrive {' '.join(words)}" in told


def test_help_begins_with_what_the_program_does(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    usage, about, *_ = capsys.readouterr().out.split("\n\n")
    assert ended.value.code == 0
    assert usage.startswith("usage: reflectdrive")
    text = " ".join(about.split())
    assert text.startswith("Plans the motion of a car with learned planners")
    (first,) = re.findall(r"To begin: `reflectdrive ([\w-]+)`", text)
    assert first in COMMANDS


@pytest.fixture
def replays(tmp_path):
    """A folder as a replay leaves it behind, with a name that ASCII does not have."""
    folder = tmp_path / "straße"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"bag": "straße", "planner": "route_follower"}))
    numbers = {name: np.ones(3) for name in MEASURES}
    whole = {name: np.arange(3) for name in ("stamp_ns", "verdict", "source")}
    write_measures(PlanMeasures(**numbers, **whole), folder / "plans.csv")
    return str(folder)


@pytest.mark.parametrize("buffering", [-1, 1])
def test_a_full_disk_behind_standard_output_is_one_sentence(replays, monkeypatch, capsys, buffering):
    with Path("/dev/full").open("w", buffering=buffering, encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["compare", replays, replays]) == 2
    assert capsys.readouterr().err == "reflectdrive: standard output cannot be written: No space left on device\n"


def test_a_terminal_of_ascii_shows_a_table_and_marks_what_it_cannot_show(replays, monkeypatch):
    kept = io.BytesIO()
    with io.TextIOWrapper(kept, encoding="ascii") as ascii_only:
        monkeypatch.setattr(sys, "stdout", ascii_only)
        assert main(["compare", replays, replays]) == 0
        shown = kept.getvalue().decode("ascii")
    assert "stra?e (route_follower) ? B: " in shown
    assert "---" in shown


def test_a_working_directory_that_is_gone_is_one_sentence(replays, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["compare", replays, replays]) == 2
    assert capsys.readouterr().err == (
        "reflectdrive: the working directory has been removed: change to one that exists\n"
    )


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b"[1]", b"null", b"\0\xff", b'{"bags": 3}', b'{"bags": [{}]}', b'{"bag": {}}']
)
def test_a_replay_to_compare_with_that_is_none_is_one_sentence(replays, capsys, content):
    (Path(replays) / "summary.json").write_bytes(content)
    assert main(["compare", replays, replays]) == 2
    assert capsys.readouterr().err.endswith(
        "holds no finished replay: give the folder that `reflectdrive replay` wrote, or run that again\n"
    )


def test_a_replay_to_compare_with_that_is_a_device_is_one_sentence(replays, capsys):
    for name, sentence in (("plans.csv", "plans.csv cannot be read: it is a device"), ("summary.json", "no finished")):
        (Path(replays) / name).unlink()
        (Path(replays) / name).symlink_to("/dev/zero")
        assert main(["compare", replays, replays]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("module", ["numpy", "rich.console"])
def test_ctrl_c_while_libraries_are_imported_is_one_sentence(tmp_path, module):
    program = f"""
import os, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
from reflectdrive_ros.__main__ import main
sys.exit(main(["replay", {str(tmp_path)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_ctrl_c_before_the_handlers_ends_a_program_without_a_traceback():
    """`python -m`: the package is imported before the module, whose imports take seconds."""
    program = "import os, signal, sys; sys.argv = ['-m']; import reflectdrive_ros; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("words", [["reflectdrive_ros", "replay", "x"], ["reflectdrive_ros.ros.node"]], ids=" ".join)
def test_a_middleware_that_is_not_installed_is_one_sentence(words):
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "RMW_IMPLEMENTATION": "rmw_of_nobody"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"reflectdrive: RMW_IMPLEMENTATION is rmw_of_nobody, but ROS has rmw_\w+.*\n", done.stderr)
