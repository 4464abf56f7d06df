"""The tables of docs/diagnostics.md: every sentence of the running node, read from its source with `ast`.

    python -m reflectdrive_ros.ros.diagnostic_sentences docs/diagnostics.md      # writes the tables of the page

A sentence is a string of two words or more in a module of the node; `…` stands for values. What to do about it is in
`diagnostic_advice.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .diagnostic_advice import ADVICE, PARTS, STATUSES

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
NODE = (
    *("ros", "planning", "scoring", "features", "runtime"),
    *(f"core/{name}.py" for name in ("domain", "field_checks", "lanes", "messages")),
    *(f"maps/{name}.py" for name in ("drivable_area", "elevation", "lanelet_elements", "lanelet_file", "lanelet_map")),
    *("maps/vector_map.py", "maps/vector_map_reader.py"),
)
ELSEWHERE = (  # of these, what says nothing in a running node: bags, pages, launch files, what starts it, the score
    *("ros/__init__.py", "ros/bag.py", "ros/config_schema.py", "ros/diagnostic_advice.py", "ros/launch_topics.py"),
    *("ros/diagnostic_sentences.py", "ros/mcap_salvage.py", "ros/processes.py", "ros/sros2_policy.py"),
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
BEGIN, END = "<!-- made by make generated: {} -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Row:
    """One row of the page: sentences with the same advice."""

    sentences: tuple[str, ...]
    advice: str


def node_modules(package: Path = PACKAGE_FOLDER) -> list[Path]:
    """The source files whose sentences the node may publish."""
    files = [
        file for name in NODE for file in ([package / name] if "." in name else sorted((package / name).rglob("*.py")))
    ]
    return [file for file in files if file.relative_to(package).as_posix() not in ELSEWHERE]


def node_sentences(package: Path = PACKAGE_FOLDER) -> list[str]:
    """All sentences of the node, each once, in the order of the source."""
    texts = (file.read_text(encoding="utf-8") for file in node_modules(package))
    return list(dict.fromkeys(sentence for text in texts for sentence in sentences_of(text)))


def sentences_of(source: str) -> Iterator[str]:
    """The sentences of a module, with `…` for values."""
    reader = _Strings()
    reader.visit(ast.parse(source))
    for text in reader.strings:
        sentence = re.sub("…+", "…", text).strip(" ;,")
        if len(WORD.findall(sentence)) > 1:
            yield sentence


class _Strings(ast.NodeVisitor):
    """Collects strings with `…` for values; docstrings and those of SILENT calls are left out."""

    def __init__(self) -> None:
        self.strings: list[str] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node.func) not in SILENT:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.strings.append(_text(node))
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.strings.append(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = _text(node)
        if text.strip("…"):  # a sum of strings
            self.strings.append(text)
        else:
            self.generic_visit(node)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _text(node: ast.expr) -> str:
    """The string that an expression makes, with `…` for what is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def rows(sentences: Iterable[str]) -> list[Row]:
    """The rows of the page, in the order of ADVICE; then a row for each other sentence that says what to do."""
    grouped: dict[str, list[str]] = {advice: [] for advice in ADVICE}
    own = []
    for sentence in sentences:
        advice = advice_for(sentence)
        if advice:
            grouped[advice].append(sentence)
        elif advice is None and TELLS.search(sentence):
            own.append(Row((sentence,), "As it says"))
    return [Row(tuple(some), advice) for advice, some in grouped.items() if some] + own


def advice_for(sentence: str) -> str | None:
    """The advice with the longest fragment that the sentence contains; empty for a part of another sentence."""
    if sentence in PARTS:
        return ""
    fragments = {fragment: advice for advice, some in ADVICE.items() for fragment in some}
    fitting = [fragment for fragment in fragments if fragment in sentence]
    return fragments[max(fitting, key=len)] if fitting else None


def unexplained(sentences: Iterable[str]) -> list[str]:
    """Sentences that neither say what to do nor have advice: the page lacks them."""
    return [sentence for sentence in sentences if advice_for(sentence) is None and not TELLS.search(sentence)]


def unused(sentences: Iterable[str]) -> list[str]:
    """Fragments of ADVICE that occur in no sentence, and PARTS that are none."""
    text = "\n".join(sentences)
    return [each for some in ADVICE.values() for each in some if each not in text] + sorted(PARTS.difference(sentences))


# --- statuses --------------------------------------------------------------------------------------------------------

LEVELS = {"True": "ERROR", "False": "WARN"}  # by whether a channel is required


def node_statuses(package: Path = PACKAGE_FOLDER) -> dict[str, str]:
    """Name of each status -> its level while it cannot be used; that of a status without a channel varies."""
    levels: dict[str, str] = {}
    for file in node_modules(package):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in ("Channel", "InputStatus") and node.args:
                name, required = _text(node.args[0]), _name(node.func) == "Channel" and ast.unparse(node.args[1])
                level = LEVELS.get(required, "ERROR if it is needed, else WARN") if required else ""
                if name != "…":
                    levels[name] = levels.get(name) or level
    return dict(sorted(levels.items()))


# --- the page --------------------------------------------------------------------------------------------------------


def status_table(statuses: dict[str, str]) -> str:
    lines = ["| status | unusable | what it is |", "|---|---|---|"]
    lines += [f"| `{name}` | {level} | {STATUSES.get(name, '')} |" for name, level in statuses.items()]
    return "".join(f"{line}\n" for line in lines)


def sentence_table(rows: Iterable[Row]) -> str:
    lines = ["| sentence | what to do |", "|---|---|"]
    for row in rows:
        sentences = "<br>".join(f"`{sentence}`" for sentence in row.sentences)
        lines.append(f"| {sentences.replace('|', chr(92) + '|')} | {row.advice} |")
    return "".join(f"{line}\n" for line in lines)


def write_into(page: str) -> str:
    """The page with its tables written again. Raises ValueError where a table has no place on it."""
    tables = {"statuses": status_table(node_statuses()), "sentences": sentence_table(rows(node_sentences()))}
    for name, table in tables.items():
        begin = BEGIN.format(name)
        before, marker, rest = page.partition(begin)
        _, ended, after = rest.partition(END)
        if not (marker and ended):
            raise ValueError(f"the page lacks the lines {begin.strip()} and {END.strip()}: add them")
        page = f"{before}{begin}{table}{END}{after}"
    return page


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(write_into(file.read_text(encoding="utf-8")), encoding="utf-8")
    for sentence in unexplained(node_sentences()):
        sys.stderr.write(f"no advice in diagnostic_advice.py for: {sentence}\n")
