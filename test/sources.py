"""Syntax trees of the Python files of the repository: each file is parsed once per process."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "reflectdrive_ros"


@cache
def trees(folder=PACKAGE):
    """Path -> syntax tree of each Python file below a folder of the repository."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / folder).rglob("*.py"))}
