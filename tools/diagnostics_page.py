"""The tables of docs/diagnostics.md, from the sentences that the node can publish: `make generated`.

A sentence is a string of three words or more, or of two and a value, in a module of the node; `…` stands for values.
The modules are read with `ast`. What to do about a sentence is written on the page by hand, and stays there.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "reflectdrive_ros"
PAGE = ROOT / "docs/diagnostics.md"
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

STATUS_HEAD = "| status | unusable | what it is |"
SENTENCE_HEAD = "| sentence | what to do |"
LEVELS = {"True": "ERROR", "False": "WARN"}  # by whether a channel is required
PARTS = frozenset(  # strings that are a part or a value of other sentences
    {
        "No regulatory element found that implements rule",
        "ONNX Runtime … on …, … thread…",
        "OpenVINO … and …",
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
        "on the route",
    }
)


def node_modules():
    """The source of each module whose sentences the node may publish."""
    for name in NODE:
        for file in [PACKAGE / name] if "." in name else sorted((PACKAGE / name).rglob("*.py")):
            if file.relative_to(PACKAGE).as_posix() not in ELSEWHERE:
                yield file.read_text(encoding="utf-8")


def node_sentences():
    return set().union(*map(sentences_of, node_modules()))


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
    return dict(sorted(levels.items()))


def rows_of_page(page, head):
    """The cells of each row of the table below this first line."""
    rows = [line.split(" | ") for line in page.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]]
    return [[cell.strip("| ") for cell in row] for row in rows]


def statuses_of_page(page):
    """Name of each status -> its level while it cannot be used, and what it is."""
    return {name.strip("`"): (level, what) for name, level, what in rows_of_page(page, STATUS_HEAD)}


def sentences_of_page(page):
    """Each sentence -> what to do."""
    return {
        sentence.replace("\\|", "|"): advice
        for sentences, advice in rows_of_page(page, SENTENCE_HEAD)
        for sentence in sentences.strip("`").split("`<br>`")
    }


def written_again(page):
    """The page with the statuses and sentences of the present source; what they are and what to do stays.

    A new sentence that says what to do has the advice "As it says"; the advice of another one is left empty.
    """
    descriptions = {name: what for name, (_, what) in statuses_of_page(page).items()}
    statuses = [f"| `{name}` | {level} | {descriptions.get(name, '')} |" for name, level in node_statuses().items()]
    present, rows = node_sentences() - PARTS, []
    for cells, advice in rows_of_page(page, SENTENCE_HEAD):
        sentences = [each for each in cells.strip("`").split("`<br>`") if each.replace("\\|", "|") in present]
        rows += [(sentences, advice)] if sentences else []
    new = sorted(present - sentences_of_page(page).keys())
    rows += [([each.replace("|", "\\|")], "As it says" if TELLS.search(each) else "") for each in new]
    lines = [f"| {'<br>'.join(f'`{each}`' for each in sentences)} | {advice} |" for sentences, advice in rows]
    return with_table(with_table(page, STATUS_HEAD, statuses), SENTENCE_HEAD, lines)


def with_table(page, head, rows):
    before, _, rest = page.partition(f"{head}\n")
    rule, end = rest.partition("\n")[0], rest.index("\n\n")
    return "\n".join([before + head, rule, *rows]) + rest[end:]


if __name__ == "__main__":
    page = written_again(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    for sentence, todo in sentences_of_page(page).items():
        if not todo:
            sys.stderr.write(f"{PAGE.name}: write what to do about: {sentence}\n")
