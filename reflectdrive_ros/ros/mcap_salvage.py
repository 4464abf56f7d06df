"""Recovers messages from an mcap file whose writer was killed: such a file has no index and may end within a record.

Records are read from the front, as the format allows (https://mcap.dev/spec), until an incomplete one. The stream
reader of the package `mcap` drops an incomplete chunk: of recordings cut after 18 and 30 messages it gave 0 and 23.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from rosbags.interfaces import MessageDefinition
from rosbags.rosbag2.storage_mcap import Schema, decompress, get_msgdef

MAGIC = b"\x89MCAP0\r\n"
SCHEMA, CHANNEL, MESSAGE, CHUNK, DATA_END = 0x03, 0x04, 0x05, 0x06, 0x0F
NO_SCHEMA = Schema(0, "", "", "")


@dataclass(frozen=True)
class SalvagedMessage:
    topic: str
    type_name: str
    received_ns: int
    data: bytes  # CDR
    definition: MessageDefinition


def salvage(path: Path) -> Iterator[SalvagedMessage]:
    """Every complete message of the file, in the order of writing; nothing for a file that is not mcap."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        try:
            yield from _messages(file, path.stat().st_size, {}, {})
        except struct.error:  # a record shorter than its declared size: the rest cannot be read
            return


def _messages(
    stream: BinaryIO, size: int, schemas: dict[int, Schema], channels: dict[int, tuple[str, Schema]]
) -> Iterator[SalvagedMessage]:
    """Messages in `size` bytes of records; fills `schemas` by id and `channels` (topic, schema) by id."""
    while len(head := stream.read(9)) == 9:
        kind, length = struct.unpack("<BQ", head)
        if kind == DATA_END:
            return
        record = stream.read(min(length, size - stream.tell()))  # noise may claim any length
        if kind == CHUNK:  # an incomplete chunk still gives its first messages, unless it is compressed
            try:
                inside = _chunk_records(record, whole=len(record) == length)
            except Exception:  # each decompressor has its own exceptions for damaged data
                return
            yield from _messages(BytesIO(inside), len(inside), schemas, channels)
        if len(record) < length:
            return
        if kind == SCHEMA:
            (schema_id,) = struct.unpack_from("<H", record)
            name, at = _string(record, 2)
            encoding, at = _string(record, at)
            encoding = encoding if encoding in ("ros2msg", "ros2idl") else ""
            schemas[schema_id] = Schema(schema_id, name, encoding, _string(record, at)[0])
        elif kind == CHANNEL:
            channel_id, schema_id = struct.unpack_from("<HH", record)
            channels[channel_id] = (_string(record, 4)[0], schemas.get(schema_id, NO_SCHEMA))
        elif kind == MESSAGE:
            channel_id, _, logged_ns, _ = struct.unpack_from("<HIQQ", record)
            if channel_id in channels:
                topic, schema = channels[channel_id]
                yield SalvagedMessage(topic, schema.name, logged_ns, record[22:], get_msgdef(schema))


def _string(record: bytes, offset: int) -> tuple[str, int]:
    """A length-prefixed string, and where the next field begins."""
    (length,) = struct.unpack_from("<I", record, offset)
    end = offset + 4 + length
    return record[offset + 4 : end].decode(errors="replace"), end


def _chunk_records(record: bytes, whole: bool) -> bytes:
    """The records inside a chunk. Raises for a chunk that is compressed and cut short or damaged."""
    _, _, size, checksum = struct.unpack_from("<QQQI", record)
    compression, offset = _string(record, 28)
    content = record[offset + 8 :]
    if not compression and not whole:
        return content
    return bytes(decompress(content, compression, size, checksum))
