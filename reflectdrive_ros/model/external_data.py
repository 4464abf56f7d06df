"""Finds the external weight files of an ONNX graph from its bytes, without the library `onnx`.

    external_files(step_onnx)        # {"step.weights"}; empty for a graph with embedded weights

Only messages that can hold a tensor are parsed; the numbers are field numbers of onnx.proto. A tensor names its file in
`external_data`, an entry with the key `location`; a runtime opens whatever path it holds.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
TENSOR, ENTRY = "TensorProto", "StringStringEntryProto"
# message -> number of a field that is a message -> its kind
INNER: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: TENSOR, 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: TENSOR,
        6: "GraphProto",
        10: TENSOR,
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: TENSOR, 2: TENSOR},
    TENSOR: {13: ENTRY},
}
LOCATION = b"location"  # key of an entry that names a file
DEEPEST = 64  # nesting of messages; a graph in a branch of a graph takes three


class OnnxError(ValueError):
    """The bytes are no ONNX graph."""


def external_files(content: bytes | memoryview) -> set[str]:
    """Locations of all external data, as the graph spells them. Raises OnnxError."""
    locations: set[str] = set()
    if LOCATION not in bytes(content):  # then no entry has this key, and a walk of 0.1 s finds nothing
        return locations
    waiting = [("ModelProto", memoryview(content), 0)]
    while waiting:
        message, inside, depth = waiting.pop()
        if depth > DEEPEST:
            raise OnnxError(f"messages nest deeper than {DEEPEST} levels")
        if message == ENTRY:
            entry = {number: bytes(value) for number, kind, value in _fields(inside) if kind == BYTES}
            if entry.get(1) == LOCATION:
                locations.add(entry.get(2, b"").decode(errors="backslashreplace"))
            continue
        inner = INNER[message]
        for number, kind, value in _fields(inside):
            if number in inner and kind == BYTES:
                waiting.append((inner[number], value, depth + 1))
    return locations


def _fields(content: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """(number, wire type, content) of each field of a message; the content is empty for numbers. Raises OnnxError."""
    at, end, nothing = 0, len(content), content[:0]
    while at < end:
        tag, at = _varint(content, at)
        number, kind = tag >> 3, tag & 7
        size = {FIXED64: 8, FIXED32: 4}.get(kind, 0)
        if kind == VARINT:
            _, at = _varint(content, at)
        elif kind == BYTES:
            size, at = _varint(content, at)
        elif not size:
            raise OnnxError(f"a field has the wire type {kind}")
        if number == 0 or at + size > end:
            raise OnnxError("a field reaches beyond the end of its message")
        yield number, kind, content[at : at + size] if kind == BYTES else nothing
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises OnnxError."""
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise OnnxError("a number reaches beyond the end of its message")
