"""Lazy CDR messages: fields are decoded on access.

rclpy's own deserialiser has three properties that a node on a vehicle cannot accept: it holds the GIL for 0.2 to 0.7 s
per MB of objects or poses, it allocates what a forged length requests, and an error in it ends the executor. `read`
walks the bytes once, checks every length against the available bytes and creates no objects: 5 to 20 ms per MB. Arrays
of numbers are views of the bytes, so that a large image is not copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.messages import BadMessage
from .topics import message_class

PADDING_MAX = 7  # bytes after the last field: alignment; more belong to another type
HEADER_BYTES = 4  # bytes of the encapsulation header; alignment counts from its end
FORMATS = {  # by the names of the generated classes and those of definitions
    "boolean": "?",
    "bool": "?",
    "octet": "B",
    "byte": "B",
    "char": "B",
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "uint32": "I",
    "int32": "i",
    "uint64": "Q",
    "int64": "q",
    "float": "f",
    "float32": "f",
    "double": "d",
    "float64": "d",
}


class TooLarge(BadMessage):
    """A message may be valid, but reading it would take too long for the node."""


class Buffer:
    """The bytes of one message after their header."""

    __slots__ = ("data", "items", "items_max", "little", "size", "walked")

    def __init__(self, content: bytes, items_max: int) -> None:
        if len(content) < HEADER_BYTES or content[0] != 0 or content[1] not in (0, 1):
            raise BadMessage(f"{len(content)} bytes do not start with the header of plain CDR")
        self.data = memoryview(content)[HEADER_BYTES:]
        self.little = content[1] == 1
        self.size = len(self.data)
        self.items, self.items_max = 0, items_max
        self.walked: dict[tuple[int, SequenceLayout], tuple[list[int], int]] = {}  # by offset and sequence

    def count_items(self, items: int) -> None:
        """Raises TooLarge where the message holds more than `items_max`."""
        self.items += items
        if self.items > self.items_max:
            raise TooLarge(
                f"a message of at least {self.items} items is not read, at most {self.items_max} are: send fewer"
            )

    def run(self, at: int, align: int, size: int) -> int:
        """Where `size` bytes begin that stand at or after `at`, aligned. Raises BadMessage where they are not there."""
        begin = -(-at // align) * align
        if begin + size > self.size:
            raise BadMessage(f"a field of {size} bytes reaches beyond the end of the message at {self.size}")
        return begin


class Unpacker:
    """How numbers are unpacked, in both byte orders."""

    def __init__(self, formats: str) -> None:
        self.little, self.big = (struct.Struct(order + formats).unpack_from for order in "<>")

    def of(self, source: Buffer, at: int) -> tuple[Any, ...]:
        return (self.little if source.little else self.big)(source.data, at)


unpacker = cache(Unpacker)
LENGTH = Unpacker("I")  # of a sequence or a text


def read_length(source: Buffer, at: int) -> tuple[int, int]:
    """A length, and where its content begins."""
    at = source.run(at, 4, 4)
    return LENGTH.of(source, at)[0], at + 4


class Layout(Protocol):
    """Layout of one type. Both methods take an offset and return the offset after the value."""

    format: str  # of the numbers in it, as `struct` has it, where they are of one type
    least: int  # smallest size of a value in bytes

    def end(self, source: Buffer, at: int) -> int:
        """Raises BadMessage if the bytes do not hold a value."""
        ...

    def read(self, source: Buffer, at: int) -> tuple[Any, int]:
        """Reads a value from bytes that `end` has checked."""
        ...


class NumberLayout:
    def __init__(self, name: str) -> None:
        self.format = FORMATS[name]
        self.size = self.least = struct.calcsize("<" + self.format)
        self._numbers = Unpacker(self.format)

    def end(self, source: Buffer, at: int) -> int:
        return source.run(at, self.size, self.size) + self.size

    def read(self, source: Buffer, at: int) -> tuple[Any, int]:
        at = -(-at // self.size) * self.size
        return self._numbers.of(source, at)[0], at + self.size


class StringLayout:
    format, least = "", 4

    def end(self, source: Buffer, at: int) -> int:
        size, at = read_length(source, at)
        return source.run(at, 1, size) + size

    def read(self, source: Buffer, at: int) -> tuple[str, int]:
        size, at = read_length(source, at)
        return bytes(source.data[at : at + size]).removesuffix(b"\0").decode("utf-8", errors="replace"), at + size


class SequenceLayout:
    """A sequence, or an array where `count` is given."""

    def __init__(self, element: Layout, count: int | None = None) -> None:
        self.element, self.count = element, count
        self._run = uniform_run(element)
        self.fixed = (self._run[0], count * self._run[1]) if count and self._run else None
        self.format, self.least = element.format, 4 if count is None else count * element.least
        self._kinds = [np.dtype(order + self.format) for order in ("><" if isinstance(element, NumberLayout) else "")]

    def _begin(self, source: Buffer, at: int) -> tuple[int, int, int | None]:
        """Number of elements, where the first is, and where the last ends if that is known without walking."""
        count, at = read_length(source, at) if self.count is None else (self.count, at)
        if count == 0 or self._run is None:
            return count, at, at if count == 0 else None
        align, size = self._run
        at = source.run(at, align, count * size)
        return count, at, at + count * size

    def end(self, source: Buffer, at: int) -> int:
        count, first, end = self._begin(source, at)
        return self._walk(source, at, count, first)[1] if end is None else end

    def _walk(self, source: Buffer, at: int, count: int, first: int) -> tuple[list[int], int]:
        """The offset of each of the elements, from `first` on, and where the last one ends. A sequence is walked, and
        its items are counted, once."""
        if (walked := source.walked.get((at, self))) is not None:
            return walked
        if count * self.element.least > source.size - first:
            raise BadMessage(f"it declares {count} items in {source.size - first} bytes")
        source.count_items(count)
        offsets, end, element_end = [], first, self.element.end
        for _ in range(count):
            offsets.append(end)
            end = element_end(source, end)
        source.walked[at, self] = offsets, end
        return offsets, end

    def read(self, source: Buffer, at: int) -> tuple[Any, int]:
        count, first, end = self._begin(source, at)
        if self._kinds and end is not None:
            return np.frombuffer(source.data, self._kinds[source.little], count, first if count else 0), end
        if end is not None:
            return Items(self.element, source, range(first, end, self._run[1] if self._run else 1)), end
        offsets, end = self._walk(source, at, count, first)
        if isinstance(self.element, StructLayout):
            return Items(self.element, source, offsets), end
        return [self.element.read(source, offset)[0] for offset in offsets], end


class StructLayout:
    def __init__(self, name: str, fields: dict[str, Layout]) -> None:
        self.name, self.fields = name, fields
        self.least = sum(part.least for part in fields.values())
        self.steps = merge_runs(fields.values())
        self.run = uniform_run(self)
        formats = [part.format for part in fields.values()] if self.run is not None else []
        self.format = formats[0] if len(set(formats)) == 1 else ""
        leaf = self.run is not None and all(isinstance(part, NumberLayout) for part in fields.values())
        self._numbers = Unpacker("".join(formats)) if leaf else None

    def end(self, source: Buffer, at: int) -> int:
        for align, size, part in self.steps:
            if part is None:
                at = -(-at // align) * align + size
                if at > source.size:
                    raise BadMessage(f"a field of {size} bytes reaches beyond the end of the message at {source.size}")
            else:
                at = part.end(source, at)
        return at

    def read(self, source: Buffer, at: int) -> tuple[Message, int]:
        if self.run is not None:
            at = -(-at // self.run[0]) * self.run[0]
            return Message(self, source, at), at + self.run[1]
        return Message(self, source, at), self.end(source, at)

    def read_fields(self, source: Buffer, at: int) -> dict[str, Any]:
        """The fields, one level deep."""
        if self._numbers is not None:
            return dict(zip(self.fields, self._numbers.of(source, at), strict=True))
        fields = {}
        for field, part in self.fields.items():
            fields[field], at = part.read(source, at)
        return fields


class Message:
    """Has the attributes of the ROS message; they are made when the first of them is read."""

    __slots__ = ("__dict__", "_at", "_kind", "_source")

    def __init__(self, kind: StructLayout, source: Buffer, at: int) -> None:
        self._kind, self._source, self._at = kind, source, at

    def __getattr__(self, name: str) -> Any:
        """Called for fields that are not decoded yet, and for unknown names."""
        if name not in self._kind.fields:
            raise AttributeError(f"{self._kind.name} has no field '{name}'")
        self.__dict__ = fields = self._kind.read_fields(self._source, self._at)
        return fields[name]

    def first_numbers(self, count: int) -> tuple[float, ...]:
        """The first numbers, in the order of the definition, of a structure whose numbers all have one type, such as a
        pose with its covariance: without the messages in between."""
        return unpacker(count * self._kind.format).of(self._source, self._at)


class Items(Sequence[Any]):
    """Structures, made when the first of them is read."""

    def __init__(self, element: Any, source: Buffer, offsets: Sequence[int]) -> None:
        self._element, self._source, self._offsets = element, source, offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @cached_property
    def _messages(self) -> list[Message]:
        return [Message(self._element, self._source, offset) for offset in self._offsets]

    def numbers(self) -> NDArray[Any]:
        """(N, K) all numbers of each element, in the order of the definition; of structures of one size whose numbers
        have one type.
        """
        kind = np.dtype(("<" if self._source.little else ">") + self._element.format)
        size, count = self._element.run[1] // kind.itemsize, len(self)
        first = self._offsets[0] if count else 0
        return np.frombuffer(self._source.data, kind, count * size, first).reshape(count, size)


def merge_runs(parts: Any) -> tuple[tuple[int, int, Layout | None], ...]:
    """(alignment, bytes, None) of each run of numbers of one size, (0, 0, part) of what has no fixed size."""
    steps: list[tuple[int, int, Layout | None]] = []
    for part in parts:
        for align, size, variable in runs_of(part):
            if variable is None and steps and steps[-1][2] is None and steps[-1][0] == align:
                steps[-1] = align, steps[-1][1] + size, None
            else:
                steps.append((align, size, variable))
    return tuple(steps)


def runs_of(part: Layout) -> tuple[tuple[int, int, Layout | None], ...]:
    if isinstance(part, NumberLayout):
        return ((part.size, part.size, None),)
    if isinstance(part, StructLayout):
        return part.steps
    if isinstance(part, SequenceLayout) and part.fixed is not None:
        return ((*part.fixed, None),)
    return ((0, 0, part),)


def uniform_run(element: Layout) -> tuple[int, int] | None:
    """(alignment, bytes) of an element that is one run of numbers of one size, so that many of them are too."""
    steps = runs_of(element)
    (align, size, variable) = steps[0]
    return (align, size) if len(steps) == 1 and variable is None else None


@cache
def message_layout(kind: type) -> StructLayout:
    """The layout of a message class."""
    names = kind.get_fields_and_field_types()  # type: ignore[attr-defined]
    parts = map(_field_layout, kind.SLOT_TYPES)  # type: ignore[attr-defined]
    return StructLayout(f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}", dict(zip(names, parts, strict=True)))


def _field_layout(kind: Any) -> Layout:
    from rosidl_parser import definition

    if isinstance(kind, definition.BasicType):
        return NumberLayout(kind.typename)
    if isinstance(kind, definition.AbstractString):
        return StringLayout()
    if isinstance(kind, definition.NamespacedType):
        return message_layout(message_class("/".join((*kind.namespaces, kind.name))))
    if isinstance(kind, definition.AbstractNestedType):
        return SequenceLayout(_field_layout(kind.value_type), kind.size if isinstance(kind, definition.Array) else None)
    raise TypeError(f"fields of type {type(kind).__name__} are not read")  # wide texts; no input has one


def parse(content: bytes, part: StructLayout, items_max: int) -> Any:
    """The message of this layout in serialised bytes.

    `items_max`: limit of structures and texts in its sequences, which take 1 to 2 us each, those of nested sequences
    included; structures of one fixed size, such as poses, are not counted. Raises BadMessage with what is wrong with
    bytes that are not such a message, and TooLarge: one sentence.
    """
    source = Buffer(content, items_max)
    spare = source.size - part.end(source, 0)
    if spare > PADDING_MAX:
        raise BadMessage(f"{spare} bytes are left")
    return Message(part, source, 0)


def read(content: bytes, part: StructLayout, items_max: int) -> Any:
    """As `parse`, of a message from a topic; a BadMessage says what to do."""
    try:
        return parse(content, part, items_max)
    except TooLarge:
        raise
    except BadMessage as fault:
        raise BadMessage(
            f"{len(content)} bytes are no {part.name}: {fault}: send this type, in the version that is installed here"
        ) from None
