"""The launch files and their tables and arguments, read without a ROS installation."""

import ast
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from reflectdrive_ros.ros.launch_topics import INPUTS, NODE_ARGUMENTS, OUTPUT_SETTINGS, OUTPUTS, TRACKED_OBJECTS

ROOT = Path(__file__).parents[1]
FILE = ROOT / "launch" / "planner.launch.py"
CHECK, REPLAY, DEMO, AUTOWARE = (
    ROOT / "launch" / name for name in ("check.launch.py", "replay.launch.py", "demo.launch.py", "autoware.launch.xml")
)


def table(name, file):
    """A table of a launch file, read from its source."""
    tree = ast.parse(file.read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == [name]
    )
    return ast.literal_eval(value)


def called(function, file):
    """The positional arguments of each call of a function by name: constants, and starred names as text."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
            words = [
                ast.unparse(word) if isinstance(word, ast.Starred) else getattr(word, "value", None)
                for word in node.args
            ]
            yield words, {word.arg: word.value for word in node.keywords}


def declared():
    """Every argument of planner.launch.py."""
    plain = {words[0] for words, _ in called("argument", FILE) if isinstance(words[0], str) and words != ["*row"]}
    return (
        plain
        | {row[0] for row in (*NODE_ARGUMENTS, *INPUTS.values(), *OUTPUTS.values())}
        | {TRACKED_OBJECTS, *OUTPUT_SETTINGS}
    )


def xml_arguments():
    """Arguments of autoware.launch.xml: name -> element."""
    return {entry.get("name"): entry for entry in ElementTree.parse(AUTOWARE).getroot().findall("arg")}
