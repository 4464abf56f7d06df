"""Claims about the command line: a missing extra is one sentence, every command tells what it does."""

import subprocess
import sys

import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS

WITHOUT = (
    "import sys; sys.modules[{library!r}] = None; from reflectdrive_ros.__main__ import main; sys.exit(main({words}))"
)


@pytest.mark.parametrize(
    ("library", "words", "extra"),
    [
        ("torch", ["train", "sft", "x.yaml"], "train"),
        ("torch", ["bench", "blind"], "train"),
        ("onnx_ir", ["export", "x", "--out", "y"], "export"),
    ],
)
def test_a_missing_library_is_one_sentence_that_names_the_extra(library, words, extra):
    program = WITHOUT.format(library=library, words=words)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"pip install 'reflectdrive[{extra}]'" in done.stderr


@pytest.mark.parametrize("words", [[name] for name in COMMANDS] + [["bench", name] for name in BENCHES], ids=" ".join)
def test_every_command_has_help(words):
    program = f"from reflectdrive_ros.__main__ import main; main({[*words, '--help']})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: reflectdrive" in done.stdout
