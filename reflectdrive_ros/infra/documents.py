"""Reads JSON, YAML and NPZ of other programs within limits, and checks their fields by name and type.

    card = read_json(path)                                       # OSError, DocumentError
    check_fields(card, {"file": FILE_NAME, "bytes": whole(1, 2**40), "words": maybe(array(text()))})
    check_fields(card["graphs"], named({"sha256": SHA256}), "graphs")   # DocumentError: "has no graphs.step.sha256"

Size and nesting are limited. YAML aliases are refused, because a few lines of them can expand to gigabytes. A message
continues the file's name: "is not JSON: ..", "nests deeper than ..", "has no ..".
"""

from __future__ import annotations

import io
import json
import math
import re
import reprlib
import sys
import zipfile
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from .files import MEGABYTE, read_limited

JSON_BYTES = 16 * MEGABYTE  # cards and indices; the index of 100,000 scenes has 1 MB
YAML_BYTES = MEGABYTE  # settings and bag metadata; PyYAML reads about 0.1 MB in a second
ARRAYS_BYTES = 512 * MEGABYTE  # of an NPZ file's arrays together; the largest recording of our own has 20 MB
DEEPEST = 64  # levels of nesting
LONGEST_NUMBER = 1000  # characters of a YAML scalar that is no string

_short = reprlib.Repr()  # values in messages: they may be long
_short.maxstring = _short.maxother = 60
_short.maxlist = _short.maxdict = 3
_short.maxlevel = 2


class DocumentError(ValueError):
    """A document cannot be used; the message names the field and the fault, without the file's name."""


# --- reading ---------------------------------------------------------------------------------------------------------


def read_json(path: Path, limit_bytes: int = JSON_BYTES) -> Any:
    """Raises OSError as `files.read_limited` does, and DocumentError."""
    return parse_json(read_limited(path, limit_bytes))


def read_yaml(path: Path) -> Any:
    """Raises OSError as `files.read_limited` does, and DocumentError."""
    return parse_yaml(read_limited(path, YAML_BYTES))


def parse_json(content: str | bytes) -> Any:
    """Raises DocumentError."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as fault:
        raise DocumentError(f"is not UTF-8 text: {fault.reason} at byte {fault.start}") from None
    except ValueError as fault:
        raise DocumentError(f"is not JSON: {_line(fault)}") from None
    level, depth = _inside([document]), 1
    while level:
        if depth > DEEPEST:
            raise _too_deep()
        level, depth = [inner for outer in level for inner in _inside(outer)], depth + 1
    return document


def parse_yaml(content: str | bytes) -> Any:
    """Raises DocumentError."""
    try:
        return yaml.load(content.decode() if isinstance(content, bytes) else content, _Loader)
    except DocumentError:
        raise
    except UnicodeDecodeError as fault:
        raise DocumentError(f"is not UTF-8 text: {fault.reason} at byte {fault.start}") from None
    except RecursionError:
        raise _too_deep() from None
    except Exception as fault:  # constructors of tags such as `!!int` raise whatever their input provokes
        raise DocumentError(f"is not YAML: {_line(fault)}") from None


def read_arrays(path: Path, limit_bytes: int = ARRAYS_BYTES) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file by name. Raises OSError as `files.read_limited` does, and DocumentError."""
    return parse_arrays(read_limited(path, limit_bytes), limit_bytes)


def parse_arrays(content: bytes, limit_bytes: int = ARRAYS_BYTES) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file's bytes, at most `limit_bytes` of them when unpacked. Raises DocumentError."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # unpacking stops at the declared sizes
            size = sum(entry.file_size for entry in archive.infolist())
            if size <= limit_bytes:
                return {
                    entry.filename.removesuffix(".npy"): np.lib.format.read_array(
                        io.BytesIO(archive.read(entry)), allow_pickle=False
                    )
                    for entry in archive.infolist()
                }
    except Exception as fault:  # zipfile, zlib and NumPy raise whatever their input provokes
        raise DocumentError(f"is no NPZ file of arrays: {_line(fault)}") from None
    raise DocumentError(f"holds {size} bytes of arrays, more than the limit of {limit_bytes}")


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without aliases, nesting and numbers beyond the limits, and keys given twice."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.composer.ComposerError(problem="an alias is not allowed here", problem_mark=mark)
        self.depth += 1
        if self.depth > DEEPEST:
            raise _too_deep()
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_NUMBER and not node.tag.endswith(":str"):
            raise yaml.composer.ComposerError(
                problem=f"a number has more than {LONGEST_NUMBER} characters", problem_mark=node.start_mark
            )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:  # PyYAML would silently drop the first value
                    raise yaml.constructor.ConstructorError(
                        problem=f"'{key.value}' is given twice", problem_mark=key.start_mark
                    )
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def _inside(value: Any) -> list[Any]:
    """The lists and objects directly inside a list or an object."""
    values = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return [inner for inner in values if isinstance(inner, (list, dict))]


def _too_deep() -> DocumentError:
    return DocumentError(f"nests deeper than {DEEPEST} levels")


def _line(fault: Exception) -> str:
    """A reader's complaint in one line of at most 300 characters, with the line of the document where it is known."""
    if isinstance(fault, yaml.MarkedYAMLError) and fault.problem_mark is not None:
        return f"{fault.problem or fault.context} in line {fault.problem_mark.line + 1}"[:300]
    return (" ".join(str(fault).split()) or type(fault).__name__)[:300]


# --- checking --------------------------------------------------------------------------------------------------------

Kind = Callable[[Any, str], None]  # (value, its name) -> None; raises DocumentError
Fields = Mapping[str, Any]  # name -> Kind, or Fields again


def check_fields(value: Any, kind: Kind | Fields, name: str = "") -> None:
    """Raises DocumentError naming the first field that is missing, of another type or out of range.

    Fields that `kind` does not name may be there. `name` is of the value itself, empty for a whole document.
    """
    if not isinstance(kind, Mapping):
        kind(value, name)
        return
    _expect(isinstance(value, dict), value, name, "an object")
    for key, inner in kind.items():
        path = f"{name}.{key}" if name else key
        if key not in value and getattr(inner, "optional", False):
            continue
        if key not in value:
            raise DocumentError(f"has no {path}")
        check_fields(value[key], inner, path)


def anything(value: Any, name: str) -> None:
    """Accepts any value, for fields that are not used."""


def _scalar(is_right: Callable[[Any], bool], expected: str) -> Kind:
    def kind(value: Any, name: str) -> None:
        _expect(is_right(value), value, name, expected)

    return kind


def _is_number(value: Any, kinds: Any, low: float, high: float) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def whole(low: int, high: int) -> Kind:
    return _scalar(lambda value: _is_number(value, int, low, high), f"a whole number from {low} to {high}")


def number(low: float = -math.inf, high: float = math.inf) -> Kind:
    bounds = [f" of at least {low:g}"] * (low > -math.inf) + [f" of at most {high:g}"] * (high < math.inf)
    least, most = max(low, -sys.float_info.max), min(high, sys.float_info.max)
    return _scalar(lambda value: _is_number(value, (int, float), least, most), "a finite number" + " and".join(bounds))


def text(pattern: str = r"[^\0\ud800-\udfff]*", most: int = 4096, expected: str = "text") -> Kind:
    """A string of at most `most` characters that matches `pattern` as a whole: by default without NUL and lone
    surrogates.

    `expected` describes the pattern in messages.
    """
    return _scalar(
        lambda value: isinstance(value, str) and len(value) <= most and re.fullmatch(pattern, value) is not None,
        expected,
    )


def array(of: Kind | Fields, least: int = 0, most: int = 1_000_000) -> Kind:
    def kind(value: Any, name: str) -> None:
        _expect(isinstance(value, list), value, name, "a list")
        if not least <= len(value) <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise DocumentError(f"has {len(value)} entries in {name}, expected {expected}")
        for index, inner in enumerate(value):
            check_fields(inner, of, f"{name}[{index}]")

    return kind


def fixed(*kinds: Kind | Fields) -> Kind:
    """A list with one entry of each kind, in their order."""

    def kind(value: Any, name: str) -> None:
        _expect(isinstance(value, list) and len(value) == len(kinds), value, name, f"a list of {len(kinds)}")
        for index, (inner, of) in enumerate(zip(value, kinds, strict=True)):
            check_fields(inner, of, f"{name}[{index}]")

    return kind


def numbers(rows: int | None, columns: int, most: float = math.inf) -> Kind:
    """A list of `rows` lists (None: any count, not 0) of `columns` finite numbers each, of at most `most` in size."""

    def kind(value: Any, name: str) -> None:
        _expect(isinstance(value, list), value, name, "a list")
        try:
            table = np.asarray(value)
        except ValueError:  # rows of different lengths
            raise DocumentError(f"has {name} with rows of different lengths") from None
        if table.dtype.kind not in "iuf" or not np.isfinite(table).all():
            raise DocumentError(f"has {name} = {_short.repr(value)}, expected finite numbers")
        if table.ndim != 2 or table.shape[1] != columns or rows not in (None, len(table)):
            expected = f"({'any' if rows is None else rows}, {columns})"
            raise DocumentError(f"has {name} of shape {table.shape}, expected {expected}")
        if (size := float(np.abs(table.astype(float)).max())) > most:
            raise DocumentError(f"has {name} with a number of size {size:.3g}, expected at most {most:g}")

    return kind


def choice(*allowed: str) -> Kind:
    return _scalar(lambda value: isinstance(value, str) and value in allowed, f"one of {', '.join(allowed)}")


def named(of: Kind | Fields) -> Kind:
    """An object with any names, all values of one kind."""

    def kind(value: Any, name: str) -> None:
        _expect(isinstance(value, dict), value, name, "an object")
        for key, inner in value.items():
            check_fields(inner, of, f"{name}.{_short.repr(key)[1:-1]}")

    return kind


def maybe(of: Kind | Fields) -> Kind:
    """A field that may be missing or null."""

    def kind(value: Any, name: str) -> None:
        if value is not None:
            check_fields(value, of, name)

    kind.optional = True  # type: ignore[attr-defined]
    return kind


def _expect(right: bool, value: Any, name: str, expected: str) -> None:
    if not right:
        where = f"has {name} = " if name else "holds "
        raise DocumentError(f"{where}{_short.repr(value)}, expected {expected}")


flag = _scalar(lambda value: isinstance(value, bool), "true or false")
SHA256 = text(r"[0-9a-fA-F]{64}", expected="a SHA-256 as 64 hexadecimal digits")
FILE_NAME = text(r"(?!\.{1,2}$)[^/\\\0\ud800-\udfff]+", 255, "the name of a file beside it, without a folder")
