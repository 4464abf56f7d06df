"""Runs commands in a process in which neither rclpy nor packages of messages can be imported, as after `pip install` on
a machine without ROS. `test_package.py` installs a wheel in an empty environment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HIDDEN = """
import sys
class NoRos:
    def find_spec(self, name, path=None, target=None):
        first = name.split(".")[0]
        if first in ("rclpy", "ament_index_python", "rosidl_parser", "builtin_interfaces", "reflectdrive") or (
            first.endswith("_msgs")
        ):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoRos())
"""
PROGRAM = f"""{HIDDEN}
import contextlib, io, json
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


class Answer(NamedTuple):
    code: int
    out: str
    errors: str


def run(*commands):
    """An Answer for each command, a list of words."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = json.dumps([[str(word) for word in command] for command in commands])
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return [Answer(*each) for each in json.loads(done.stdout.splitlines()[-1])]
