"""Calls commands: in this process, or several in one other process; and git and colcon."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from reflectdrive_ros.__main__ import main

PROGRAM = """
import contextlib, io, json, sys
from reflectdrive_ros.__main__ import main

answers = []
for words in json.loads(sys.argv[1]):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    answers.append((code, out.getvalue(), errors.getvalue()))
print(json.dumps(answers))
"""


def run(module, *words, **defaults):
    """The exit code of a command of `cli` or `bench`; `defaults` of options replace its own."""
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    parser.set_defaults(**defaults)
    return module.run(parser.parse_args([str(word) for word in words]))


def refusal(capsys, *words):
    """What `reflectdrive` prints as it exits with code 2, as one line."""
    try:
        code = main([*map(str, words)])
    except SystemExit as stop:  # of argparse
        code = stop.code
    assert code == 2
    return " ".join(capsys.readouterr().err.split())


def git(folder, *words):
    """What git prints in a repository of a test, of which the author of commits is nobody."""
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def colcon_build(source, scratch, package):
    """The prefix of a package, built without symlinks on top of the environment that runs the tests."""
    prefix = Path(sys.prefix)
    if not (prefix / "bin/colcon").exists():
        pytest.skip("colcon is not in this environment")
    command = [prefix / "bin/colcon", "--log-base", scratch / "log", "build", "--base-paths", source]
    command += ["--packages-select", package, "--merge-install"]
    command += ["--build-base", scratch / "build", "--install-base", scratch / "install"]
    command += ["--cmake-args", f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF"]
    environment = {**os.environ, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}", "CMAKE_PREFIX_PATH": str(prefix)}
    built = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stdout + built.stderr
    return scratch / "install"


class Answer(NamedTuple):
    code: int
    out: str
    errors: str


def run_apart(*commands, before=""):
    """An Answer for each command, a list of words, of one process that executes the text `before` first."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = json.dumps([[str(word) for word in command] for command in commands])
    command = [sys.executable, "-W", "ignore", "-c", f"{before}\n{PROGRAM}", words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return [Answer(*each) for each in json.loads(done.stdout.splitlines()[-1])]
