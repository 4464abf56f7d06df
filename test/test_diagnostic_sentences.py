"""docs/diagnostics.md has every sentence that the node can publish, and no other: both are read, the node with `ast`.

A sentence is a string of three words or more, or of two and a value, in a module of the node; `…` stands for values.
"""

import ast
import re
from pathlib import Path

import pytest
from messages import CAMERAS, camera_info, jpeg, ns, odometry, predicted_objects, route, tf_static
from scenes import Clock, config

from reflectdrive_ros.ros.planning_core import PlanningCore

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "reflectdrive_ros"
PAGE = (ROOT / "docs/diagnostics.md").read_text(encoding="utf-8").partition("## What each sentence means")[2]
NODE = (
    *("ros", "planning", "scoring", "features", "runtime"),
    *(f"core/{name}.py" for name in ("domain", "field_checks", "lanes", "messages")),
    *(f"maps/{name}.py" for name in ("drivable_area", "elevation", "lanelet_elements", "lanelet_file", "lanelet_map")),
    *("maps/vector_map.py", "maps/vector_map_reader.py"),
)
ELSEWHERE = (  # of these, what says nothing in a running node: bags, pages, launch files, what starts it, the score
    *("ros/__init__.py", "ros/bag.py", "ros/config_schema.py", "ros/launch_topics.py", "ros/mcap_salvage.py"),
    *("ros/processes.py", "ros/sros2_policy.py"),
    *("ros/system_checks.py", "ros/topics.py", "runtime/cli_args.py", "runtime/model_file.py", "runtime/network.py"),
    *("runtime/trt/engine_cache.py", "scoring/areas.py", "scoring/reference.py", "scoring/scorer.py"),
)
SILENT = frozenset(  # calls whose strings are in no diagnostic: the start, the log, descriptions, patterns
    {"ConfigError", "ModelFileError", "exception", "error", "warning", "info", "debug", "ArgumentParser", "Parser"}
    | {"add_argument", "descriptor", "compile", "run_node", "sub", "einsum"}
)
WORD = re.compile(r"[^\W\d_][\w./'-]*")
TELLS = re.compile(  # a sentence that says what to do
    r"[:;,] (or )?(add|build|check|choose|close|correct|draw|export|fill|give|install|play|plan|publish|raise|read|"
    r"restart|send|set|start|synchronise|update|use)\b"
)

LEVELS = {"True": "ERROR", "False": "WARN"}  # by whether a channel is required
PARTS = frozenset(  # strings that are a part or a value of other sentences
    {
        "No regulatory element found that implements rule",
        "ONNX Runtime … on …, … thread…",
        "TensorRT for RTX",
        "TensorRT … on …, …",
        "\\d+(?:\\.\\d+)?|\\w+",
        "\\s*(\\d+(?:\\.\\d+)?)\\s*(km/h|kmh|mph|)\\s*",
        "a speed to the side",
        "a yaw rate",
        "camera …: camera_info …",
        "choose another type",
        "config/fastdds.xml or config/cyclonedds.xml",
        "delta is …, expected 0 or more",
        "engine from ….plan (delete it and …)",
        "failed to initialize rcl:",
        "graph …: tensor … …",
        "inputs.drivable_type is map",
        "inputs.lanelet_map is …",
        "inputs.route_type is lanelet",
        "is not among its inputs",
        "its reader …",
        "launched in parts",
        "launched in parts (…)",
        "leave it empty",
        "or raise inputs.…",
        "or set inputs.lanelet_map to the map's .osm file",
        "replaced by a stop along its path",
        "room to run …",
        "search.ids has shape …, expected (…,)",
        "search.waypoint is …, expected 0..…",
        "send the route as nav_msgs/Path",
        "size_m is … and resolution_m …, expected positive metres",
        "space is a …, expected the Polygon or MultiPolygon that `union_polygons` makes",
        "torch … on …",
        "unchecked: no …",
        "was not given",
        "without a reason",
        "… has no area",
        "… has shape …, expected (3 or more, 2)",
        "… holds no polygon, expected at least one",
        "… is not a simple polygon: …",
        "… m clear",
    }
)


def node_modules():
    """The source of each module whose sentences the node may publish."""
    for name in NODE:
        for file in [PACKAGE / name] if "." in name else sorted((PACKAGE / name).rglob("*.py")):
            if file.relative_to(PACKAGE).as_posix() not in ELSEWHERE:
                yield file.read_text(encoding="utf-8")


def sentences_of(source):
    reader = Strings()
    reader.visit(ast.parse(source))
    sentences = {re.sub("…+", "…", text).strip(" ;,") for text in reader.strings}
    return {sentence for sentence in sentences if len(WORD.findall(sentence)) > (1 if "…" in sentence else 2)}


class Strings(ast.NodeVisitor):
    """Collects strings with `…` for values; docstrings and those of SILENT calls are left out."""

    def __init__(self):
        self.strings = []

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Call(self, node):
        if name_of(node.func) not in SILENT:
            self.generic_visit(node)

    def visit_JoinedStr(self, node):
        self.strings.append(text_of(node))
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self.strings.append(node.value)

    def visit_BinOp(self, node):
        text = text_of(node)
        if text.strip("…"):  # a sum of strings
            self.strings.append(text)
        else:
            self.generic_visit(node)


def name_of(function):
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def text_of(node):
    """The string that an expression makes, with `…` for what is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "…"


def node_statuses():
    """Name of each status -> its level while it cannot be used; that of a status without a channel varies."""
    levels = {}
    for source in node_modules():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and name_of(node.func) in ("Channel", "InputStatus") and node.args:
                name, required = text_of(node.args[0]), name_of(node.func) == "Channel" and ast.unparse(node.args[1])
                level = LEVELS.get(required, "ERROR if it is needed, else WARN") if required else ""
                if name != "…":
                    levels[name] = levels.get(name) or level
    return levels


def rows_of_page(head):
    """The cells of each row of the table below this first line."""
    rows = [line.split(" | ") for line in PAGE.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]]
    return [[cell.strip("| ") for cell in row] for row in rows]


def sentences_of_page():
    """Each sentence -> what to do."""
    return {
        sentence.replace("\\|", "|"): advice
        for sentences, advice in rows_of_page("| sentence | what to do |")
        for sentence in sentences.strip("`").split("`<br>`")
    }


def test_the_page_has_every_status_of_the_node():
    rows = rows_of_page("| status | unusable | what it is |")
    assert {name.strip("`"): level for name, level, _ in rows} == node_statuses()
    assert all(what for *_, what in rows)


def test_the_page_has_every_sentence_of_the_node_and_what_to_do():
    sentences, advice = set().union(*map(sentences_of, node_modules())), sentences_of_page()
    assert len(advice) > 250
    assert sentences - advice.keys() - PARTS == set(), "add a row to docs/diagnostics.md, or the part of one to PARTS"
    assert (advice.keys() | PARTS) - sentences == set(), "no sentence of the node: correct docs/diagnostics.md or PARTS"
    assert all(advice.values())
    assert all(TELLS.search(sentence) for sentence, todo in advice.items() if todo == "As it says")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ('raise BadMessage("far off route")', "far off route"),
        ('raise BadMessage(f"route: {far_m:.0f} m away")', "route: … m away"),
        ('LOST = "the map was lost"', "the map was lost"),
        ('return "" if near else f"{name} is {far_m} m " + f"from its route{cure}"', "… is … m from its route…"),
        ('status = replace(status, message="; ".join([status.message, f"{n} lines lost"]))', "… lines lost"),
        ("problems += [f\"{what}: {why or 'no map at all'}\"]", "no map at all"),
    ],
)
def test_a_sentence_is_read_from_the_source_however_it_is_made(source, sentence):
    module = f'"""A module."""\n\n\ndef check(near):\n    """Its check."""\n    {source}\n'
    assert sentence in sentences_of(module)
    assert not sentences_of(module) & {"A module.", "Its check."}


def published(core, seconds):
    """The messages of all statuses, in parts that are sentences."""
    return [part for status in core.statuses(ns(seconds)) for part in status.message.split("; ") if part]


def test_what_a_node_publishes_is_on_the_page():
    """Before any message, in good order, with a distant route, without images, with a jump and a truncated message."""
    patterns = [re.compile(".*".join(map(re.escape, each.split("…")))) for each in sentences_of_page()]
    core = PlanningCore(config(cameras__width=64, cameras__height=36, planner="route_follower"), Clock())
    sentences = published(core, 0.0)
    for key, message in (("route", route()), ("tf_static", tf_static())):
        core.put(key, message, 0)
    for camera in CAMERAS:
        core.put(f"info:{camera}", camera_info(camera), 0)
    for step, x_m in enumerate((0.0, 0.5, 400.0, 400.5)):
        seconds = 1.0 + 0.1 * step
        core.put("odometry", odometry(seconds, x=x_m), ns(seconds))
        core.put("objects", predicted_objects(seconds, (60.0, 0.0, 0.0, 5.0, 4.5)), ns(seconds))
        for camera in CAMERAS if step % 2 else CAMERAS[:1]:
            core.put(f"image:{camera}", jpeg(seconds, camera, step), ns(seconds))
        core.step(ns(seconds))
        sentences += published(core, seconds)
    core.receive("odometry", b"short", ns(1.5))
    sentences += published(core, 1.5) + published(core, 9.0)
    assert len(set(sentences)) > 10
    for sentence in sentences:
        short = re.fullmatch(r"[\d.]+ (received|Hz)", sentence)
        assert short or any(pattern.search(sentence) for pattern in patterns), sentence
