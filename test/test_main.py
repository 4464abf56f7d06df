"""Claims about the command line: a missing extra is one sentence, every command tells what it does, and it works or
says why where text cannot be printed and where the working directory is gone."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
import without_ros

from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.infra.command import Output, make_list, make_table
from reflectdrive_ros.infra.installing import import_advice
from reflectdrive_ros.replay.plan_measures import MEASURES, PlanMeasures, write_measures


def run_python(*words, timeout=120, **environment):
    """A process of Python, with these variables of the environment."""
    options = {"env": {**os.environ, **environment}, "timeout": timeout, "check": False}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)


def run_main(words, before=""):
    """A command in a process of its own, which does something before it imports the package."""
    return run_python(
        "-c", f"import sys\n{before}\nfrom reflectdrive_ros.__main__ import main\nsys.exit(main({words}))"
    )


def refusal_of(done):
    """The sentence with which a process has ended with code 2."""
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 2
    return sentence


@pytest.mark.parametrize(
    ("library", "words", "extra"),
    [
        ("torch", ["train", "sft", "x.yaml"], "train"),
        ("torch", ["bench", "step"], "train"),
        ("onnx_ir", ["export", "x", "--out", "y"], "export"),
    ],
)
def test_a_missing_library_is_one_sentence_that_names_the_extra(library, words, extra):
    sentence = refusal_of(run_main(words, f"sys.modules[{library!r}] = None"))
    assert f"pip install '.[{extra}]' in a clone of reflectdrive" in sentence


OLD_PROCESSOR = """
class Old:
    def find_spec(self, name, path=None, target=None):
        if name == "reflectdrive_kernels":
            raise ImportError("this processor lacks instructions", name=name)
sys.meta_path.insert(0, Old())
"""  # as src/module.cpp raises it on a processor without AVX2


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            'sys.modules["reflectdrive_kernels"] = None',
            "score needs reflectdrive_kernels, which is not compiled: pip install . or `make setup` in a clone",
        ),
        (OLD_PROCESSOR, "score cannot run: this processor lacks instructions"),
    ],
)
def test_kernels_that_cannot_be_loaded_are_one_sentence(before, message):
    assert refusal_of(run_main(["score", "a", "b"], before)).startswith(message)


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (
            ModuleNotFoundError("", name="torch.nn"),
            "needs torch, which is not installed: pip install '.[train]' in a clone",
        ),
        (ModuleNotFoundError("", name="scipy"), "needs scipy, which is not installed: pip install scipy"),
        (
            ModuleNotFoundError("", name="nav_msgs.msg"),
            "needs ROS 2, but there is no nav_msgs: source the setup.bash of",
        ),
        (ImportError("libGL.so.1: cannot open"), "cannot run: a library cannot be imported (libGL.so.1: cannot open)"),
        (ImportError("no 2.0", name="cv2.abi"), "cannot run: cv2 cannot be imported (no 2.0)"),
        (ModuleNotFoundError("", name="reflectdrive_ros.nothing"), ""),  # a fault of ours keeps its traceback
    ],
)
def test_advice_names_the_library_and_what_to_do(fault, advice):
    assert (import_advice(fault) or "").startswith(advice)
    assert bool(import_advice(fault)) == bool(advice)


EVERY_COMMAND = [*COMMANDS, *(f"bench {name}" for name in BENCHES)]
NEED_ROS = ("demo", "make-bag", "bench node", "bench soak")


def help_of(name):
    return [*name.split(), "--help"]


def test_every_command_has_help_and_without_ros_only_those_that_need_it_refuse_and_say_what_to_do():
    """In two processes: most of the time goes into what the commands import."""
    answers = dict(zip(EVERY_COMMAND, without_ros.run(*map(help_of, EVERY_COMMAND)), strict=True))
    assert {name for name, answer in answers.items() if answer.code != 0} == set(NEED_ROS)
    for name in NEED_ROS:
        assert answers[name].code == 2
        needs = rf"{name.split()[-1]} needs ROS 2, but there is no \w+: source the setup\.bash of .*\n"
        assert re.fullmatch(needs, answers[name].errors)
    answers |= dict(zip(NEED_ROS, commands.run_apart(*map(help_of, NEED_ROS)), strict=True))
    for name, answer in answers.items():
        assert answer.code == 0
        assert f"usage: reflectdrive {name}" in answer.out


@pytest.mark.parametrize("name", ["planner", "world"])
def test_without_ros_the_programs_of_ros2_run_are_one_sentence(name):
    done = run_python("-c", f"{without_ros.HIDDEN}\nfrom reflectdrive_ros.__main__ import {name}\nsys.exit({name}())")
    assert refusal_of(done).startswith(f"{name} needs ROS 2, but there is no rclpy: source the setup.bash of ")


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
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding="ascii") as ascii_only:
        monkeypatch.setattr(sys, "stdout", ascii_only)
        assert main(["compare", replays, replays]) == 0
        text = buffer.getvalue().decode("ascii")
    assert "stra?e (route_follower) ? B: " in text
    assert "---" in text


def test_a_working_directory_that_is_gone_is_one_sentence(replays, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["compare", replays, replays]) == 2
    assert capsys.readouterr().err == (
        "reflectdrive: the working directory has been removed: change to one that exists\n"
    )


NO_SUMMARIES = [b"", b"[" * 100_000, b"[1]", b"null", b"\0\xff"]
NO_SUMMARIES += [b'{"bags": 3}', b'{"bags": [{}]}', b'{"bag": {}}', b'{"bags": [{"name": "../replay"}]}']


@pytest.mark.parametrize("content", NO_SUMMARIES)
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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["replay", ""], "argument 2"),
        (["replay", "bag", "--out", ""], "the value of --out"),
        (["replay", "bag", "--out="], "the value of --out"),
        (["eval", "--scenes", "", "--planner", "route_follower"], "the value of --scenes"),
        ([""], "argument 1"),
    ],
    ids=" ".join,
)
def test_an_empty_argument_is_not_the_working_directory(tmp_path, monkeypatch, capsys, words, name):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr().err == f"reflectdrive: {name} is empty: give it a value, or leave it out\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("module", ["numpy", "rich.console"])
def test_ctrl_c_while_libraries_are_imported_is_one_sentence(tmp_path, module):
    press = f"""
import os, signal
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
"""
    done = run_main(["replay", str(tmp_path)], press)
    assert (done.returncode, done.stderr) == (130, "stopped\n")


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_before_the_handlers_ends_a_program_without_a_traceback():
    """`python -m`: the package is imported before the module, whose imports take seconds."""
    program = "import os, signal, sys; sys.argv = ['-m']; import reflectdrive_ros; os.kill(os.getpid(), signal.SIGINT)"
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("words", [["reflectdrive_ros", "replay", "x"], ["reflectdrive_ros.ros.node"]], ids=" ".join)
def test_a_middleware_that_is_not_installed_is_one_sentence(words):
    sentence = refusal_of(run_python("-m", *words, RMW_IMPLEMENTATION="rmw_of_nobody"))
    assert re.fullmatch(r"reflectdrive: RMW_IMPLEMENTATION is rmw_of_nobody, but ROS has rmw_\w+.*", sentence)


HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold red]x[/bold red]\r\u202e" + "y" * 1_000_000


@pytest.mark.parametrize(
    "words",
    [
        [HOSTILE],
        ["replay", HOSTILE],
        ["replay", HOSTILE, HOSTILE + "z", "--out", "{tmp}/a"],
        ["make-bag", HOSTILE, "{tmp}/a"],
        ["make-bag", "pandaset_002", f"{{tmp}}/{HOSTILE}"],
        ["dataset", HOSTILE, "--out", "{tmp}/a"],
        ["scenes", "--check", HOSTILE],
        ["scenes", "--out", HOSTILE],
        ["scenes", "--scenes", HOSTILE],
        ["eval", "--scenes", HOSTILE],
        ["eval", "--planner", HOSTILE],
        ["eval", "--json", HOSTILE],
        ["demo", "--seed", HOSTILE],
        ["demo", "--setting", f"planner={HOSTILE}"],
        ["score", HOSTILE, "{tmp}/a"],
        ["serve", "--egodriver", "--planner", "route_follower", "--host", HOSTILE],
    ],
    ids=lambda words: "-".join(word[:12] for word in words if word.isprintable()) or "command",
)
def test_a_name_of_a_megabyte_with_control_characters_is_cut_and_escaped_on_the_terminal(words, tmp_path, capfd):
    with contextlib.suppress(SystemExit):
        assert main([word.replace("{tmp}", str(tmp_path)) for word in words]) == 2
    text = "".join(capfd.readouterr())
    assert 0 < len(text) < 5000
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\u202e" in text


def test_names_in_tables_are_neither_markup_nor_commands_to_the_terminal(capsys):
    rows = [("[red]a[/red]", "1"), (HOSTILE, "2")]
    console = Output()
    console.print(make_table(("name", "count"), rows, HOSTILE, "[b]below[/b]"))
    console.print(make_list(HOSTILE, {"[red]a[/red]": HOSTILE}))
    text = capsys.readouterr().out
    assert text.count("[red]a[/red]") == 2
    assert "[b]below[/b]" in text
    assert len(text) < 10_000
    assert all(character.isprintable() or character == "\n" for character in text)


def test_warnings_that_are_errors_are_not_taken_for_damaged_messages(pandaset, tmp_path):
    """`PYTHONWARNINGS=error`: a library warns while the first message is read, and no message is damaged."""
    words = ["replay", str(pandaset), "--planner", "route_follower", "--node", "--out", str(tmp_path)]
    done = run_python("-m", "reflectdrive_ros", *words, timeout=300, PYTHONWARNINGS="error")
    assert "not a message" not in done.stdout
    sentence = r"reflectdrive: a warning ended it \(.*Warning: .*\): unset PYTHONWARNINGS.*"
    assert re.fullmatch(sentence, refusal_of(done))
