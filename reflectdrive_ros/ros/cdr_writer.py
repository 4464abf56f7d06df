"""Serialised messages without message objects: fields are appended in the order of the definition.

    writer = CdrWriter().header(stamp_ns, "map").numbers("Id", 3, 0.5).text("car")
    publisher.publish(writer.content())

rclpy takes bytes in place of a message. A generated class checks each field as it is set, and the serialiser reads each
one back, both with the GIL held: 50 us per trajectory point, 4 ms per trajectory of eighty.
"""

from __future__ import annotations

import struct

from ..core.domain import Array

ENCAPSULATION = b"\0\1\0\0"  # plain CDR, little endian; alignment counts from its end


class CdrWriter:
    """Plain CDR, little endian. All methods but `content` return the writer."""

    def __init__(self) -> None:
        self._bytes = bytearray(ENCAPSULATION)

    def content(self) -> bytes:
        return bytes(self._bytes)

    def align(self, size: int) -> CdrWriter:
        self._bytes += b"\0" * (-(len(self._bytes) - len(ENCAPSULATION)) % size)
        return self

    def numbers(self, formats: str, *values: float) -> CdrWriter:
        """Numbers by their `struct` formats, each aligned to its size; also the count of a sequence (I)."""
        for each, value in zip(formats, values, strict=True):
            self.align(struct.calcsize(each))
            self._bytes += struct.pack("<" + each, value)
        return self

    def text(self, value: str) -> CdrWriter:
        content = value.encode(errors="replace") + b"\0"
        self.numbers("I", len(content))
        self._bytes += content
        return self

    def octets(self, content: bytes) -> CdrWriter:
        """An array of bytes."""
        self._bytes += content
        return self

    def stamp(self, stamp_ns: int) -> CdrWriter:
        """builtin_interfaces/Time."""
        return self.numbers("iI", *divmod(int(stamp_ns), 1_000_000_000))

    def header(self, stamp_ns: int, frame: str) -> CdrWriter:
        """std_msgs/Header."""
        return self.stamp(stamp_ns).text(frame)

    def records(self, rows: Array, padded_after: int) -> CdrWriter:
        """A sequence of structures (N,) of one NumPy type without gaps, of a multiple of 8 bytes.

        Its doubles stand at multiples of 8: where the first structure does not, it is padded after its first
        `padded_after` bytes, and all others are then in step.
        """
        self.numbers("I", len(rows))
        content = rows.tobytes()
        if content:
            self._bytes += content[:padded_after]
            self.align(8)
            self._bytes += content[padded_after:]
        return self
