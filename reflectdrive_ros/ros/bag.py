"""Writes and reads rosbag2 folders; every fault of a bag is one sentence.

All functions work on raw CDR bytes; a message object is created only on request. A bag is read by its own message
definitions or those that come with this package, the same with ROS and without.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rosbags.interfaces import Connection, Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.interfaces import MessageDefinition as Definition
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import TypesysError

from ..core.messages import BadMessage
from ..infra.documents import DocumentError, anything, array, check_fields, named, parse_yaml, read_yaml, text
from ..infra.errors import UserError
from ..infra.files import open_limited, path_text
from . import cdr, definitions
from .mcap_salvage import salvage

STORAGES = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}
SUFFIXES = {"mcap": ".mcap", "sqlite3": ".db3"}
FOREVER = QosTime(9223372036, 854775807)
BAG_FILE_BYTES_MAX = 1 << 44  # of the largest file of a bag, 16 TiB
METADATA = {
    "rosbag2_bagfile_information": {
        "storage_identifier": text(),
        # without the leading folder that old recorders wrote, a file is beside metadata.yaml
        "relative_file_paths": array(text(r"(?!/)(?!(.*/)?\.\.(/|$))[^\0\ud800-\udfff]+", 1000), 1),
        "topics_with_message_count": array({"topic_metadata": named(anything)}),
    }
}
PENDING_WRITES_MAX = 8  # records that may wait to be written


class BagError(UserError, ValueError):
    """A bag cannot be read or written; the message is one sentence with the reason and what to do."""


@dataclass(frozen=True)
class BagTopic:
    name: str
    type_name: str  # such as nav_msgs/msg/Odometry
    count: int
    latched: bool  # offered as transient local: late subscribers get the last message
    type_hash: str = ""  # RIHS01_..; empty in bags from before ROS 2 Jazzy


@dataclass(frozen=True)
class BagMessage:
    topic: str
    type_name: str
    received_ns: int  # when the recorder got it; the sensor's own stamp is inside
    data: bytes  # CDR
    layouts: Callable[[str], cdr.StructLayout] = field(compare=False, repr=False)  # by type name

    @property
    def layout(self) -> cdr.StructLayout:
        """Raises BagError where the bag cannot be read by its definition of the type, or has none that is known."""
        return self.layouts(self.type_name)

    def message(self) -> Any:
        """The message, its fields read on access. Raises BadMessage for bytes that are no such message, and BagError as
        `layout` does."""
        try:
            return cdr.parse(self.data, self.layout, definitions.ITEMS_MAX)
        except BadMessage as fault:
            raise BadMessage(f"{len(self.data)} bytes are no {self.type_name}: {fault}") from None


# --- message types ---------------------------------------------------------------------------------------------------


def type_name_of(message_class: type) -> str:
    """nav_msgs/msg/Odometry for the class nav_msgs.msg.Odometry."""
    return f"{message_class.__module__.split('.')[0]}/msg/{message_class.__name__}"


def definition(type_name: str) -> tuple[str, str]:
    """The full text of a message type as rosbag2 stores it, and its RIHS01 hash: as installed, or else as it comes with
    this package. Raises BagError where it is neither."""
    try:
        return definitions.definition(type_name)
    except LookupError:
        package = type_name.partition("/msg/")[0]
        raise BagError(f"the definition of {type_name} is not installed: install the ROS package '{package}'") from None


# --- writing ---------------------------------------------------------------------------------------------------------


def _qos(latched: bool) -> Qos:
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1 if latched else 10,
        reliability=QosReliability.RELIABLE,
        durability=QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        deadline=FOREVER,
        lifespan=FOREVER,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=FOREVER,
        avoid_ros_namespace_conventions=False,
    )


IMAGE_DOMAIN = "image_domain"  # of `BagWriter.describe`: what the images of a bag are


class BagWriter:
    """Writes one bag; used as a context manager, it is closed and readable however the block ends.

    A separate thread writes the file: Ctrl-C interrupts the main thread only, so no record is cut in two.
    """

    def __init__(self, path: str | Path, storage: str = "mcap", *, replace: bool = False) -> None:
        """Raises BagError for an unknown storage, and for a path in use (with `replace`: in use by no bag)."""
        self.path = Path(path)
        if storage not in STORAGES:
            raise BagError(f"storage '{storage}' is unknown; expected {' or '.join(STORAGES)}")
        if self.path.exists():
            if not replace:
                raise BagError(f"{self.path} exists already; choose another name or pass --force to replace it")
            if not _holds_only_bag_files(self.path):
                raise BagError(f"{self.path} is not a bag, so it is not replaced; choose another name")
            shutil.rmtree(self.path)
        self._writer = Writer(self.path, version=9, storage_plugin=STORAGES[storage])
        self._connections: dict[str, Connection] = {}
        self._hand = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bag-writer")
        self._writing = deque[Future[None]]()  # records that are not yet written
        self._torn = False  # a record is in the file only in part

    def __enter__(self) -> BagWriter:
        try:
            self._hand.submit(self._storing, self._writer.open).result()
        except OSError as fault:
            self._hand.shutdown()
            raise BagError(f"bag {self.path} cannot be created: {fault.strerror}") from None
        except BaseException as fault:  # a signal: what was opened is closed
            self.__exit__(type(fault), fault, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        # rosbags' own context manager discards unflushed data when the block fails; a recording must keep it
        closing = self._hand.submit(self._storing, self._writer.close)
        self._hand.shutdown()
        if kind is None:  # otherwise the exception of the block is raised
            self._wait_for_all_but(0)
            closing.result()

    def describe(self, key: str, value: str) -> None:
        """Stores a text in the bag's metadata, for `BagReader.descriptions`."""
        self._writer.set_custom_data(key, value)

    def add_topic(self, name: str, type_name: str, *, latched: bool = False) -> None:
        """Declares a topic; latched ones are offered as transient local. A second identical declaration does
        nothing.
        """
        if name not in self._connections:
            text, digest = definition(type_name)
            self._connections[name] = self._hand.submit(
                self._storing,
                self._writer.add_connection,
                name,
                type_name,
                msgdef=text,
                rihs01=digest,
                offered_qos_profiles=[_qos(latched)],
            ).result()

    def write(self, topic: str, received_ns: int, message: Any) -> None:
        """Adds a message object, or the CDR bytes of one, to a declared topic.

        Writing continues in the background; an error is raised by a later call, or at the end of the block.
        """
        if topic not in self._connections:
            raise BagError(f"topic {topic} was not declared in bag {self.path} before it was written")
        if not isinstance(message, (bytes, memoryview)):
            from rclpy.serialization import serialize_message

            message = serialize_message(message)
        self._wait_for_all_but(PENDING_WRITES_MAX)
        self._writing.append(self._hand.submit(self._record, self._connections[topic], int(received_ns), message))

    def _record(self, connection: Connection, received_ns: int, data: bytes | memoryview) -> None:
        """After a record that could not be written completely, nothing more is written."""
        if not self._torn:
            self._torn = True
            self._storing(self._writer.write, connection, received_ns, data)
            self._torn = False

    def _storing(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Raises BagError where SQLite cannot write, as on a full disk; what mcap raises is an OSError."""
        try:
            return work(*args, **kwargs)
        except sqlite3.Error as fault:
            raise BagError(f"bag {self.path} cannot be written: {fault}") from None

    def _wait_for_all_but(self, last: int) -> None:
        while len(self._writing) > last:
            self._writing.popleft().result()


def _holds_only_bag_files(path: Path) -> bool:
    """Whether a folder holds a bag and no other file, so that replacing it destroys nothing else."""
    if not path.is_dir():
        return False
    names = [entry.name for entry in path.iterdir()]
    return all(name.startswith("metadata.yaml") or Path(name).suffix in SUFFIXES.values() for name in names)


# --- reading ---------------------------------------------------------------------------------------------------------


class _Salvaged:
    """An mcap file without its index, walked from the front; has what `BagReader` uses of a rosbags Reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        counts: Counter[tuple[str, str]] = Counter()
        self.start_ns, self.end_ns = 2**63 - 1, 0
        self.definitions: dict[str, Definition] = {}  # by type name
        for message in salvage(path):
            counts[message.topic, message.type_name] += 1
            self.definitions[message.type_name] = message.definition
            self.start_ns, self.end_ns = min(self.start_ns, message.received_ns), max(self.end_ns, message.received_ns)
        self.topics = [BagTopic(topic, kind, count, latched=False) for (topic, kind), count in counts.items()]

    def messages(
        self, names: Collection[str], start_ns: int | None, stop_ns: int | None
    ) -> Iterator[tuple[str, str, int, bytes]]:
        for message in salvage(self.path):
            late = stop_ns is not None and message.received_ns >= stop_ns
            early = start_ns is not None and message.received_ns < start_ns
            if message.topic in names and not late and not early:
                yield message.topic, message.type_name, message.received_ns, message.data

    def close(self) -> None:
        """No file is open between iterations."""


class _Indexed:
    """A bag folder, or one of its files, as rosbags reads it."""

    def __init__(self, path: Path) -> None:
        self._reader = Reader(path)
        self._reader.open()
        if self._reader.message_count:
            self.start_ns, self.end_ns = self._reader.start_time, self._reader.end_time - 1
        else:
            self.start_ns, self.end_ns = 2**63 - 1, 0
        self.topics = []
        self.definitions = {each.msgtype: each.msgdef for each in self._reader.connections}
        for connection in self._reader.connections:
            profiles = getattr(connection.ext, "offered_qos_profiles", [])
            latched = any(profile.durability is QosDurability.TRANSIENT_LOCAL for profile in profiles)
            self.topics.append(
                BagTopic(connection.topic, connection.msgtype, connection.msgcount, latched, connection.digest)
            )

    def messages(
        self, names: Collection[str], start_ns: int | None, stop_ns: int | None
    ) -> Iterator[tuple[str, str, int, bytes]]:
        connections = [connection for connection in self._reader.connections if connection.topic in names]
        if connections:
            for connection, received_ns, data in self._reader.messages(connections, start=start_ns, stop=stop_ns):
                yield connection.topic, connection.msgtype, received_ns, bytes(data)

    def close(self) -> None:
        self._reader.close()


class BagReader:
    """Reads a bag folder, or a single .mcap or .db3 file. `notice` lists what had to be recovered; usually empty.

    Raises BagError for a path that is missing, holds no bag, or is damaged beyond recovery.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.notice = ""
        self._sources: list[_Indexed | _Salvaged] = []
        if not os.path.exists(self.path):  # False also for names for which Path.exists raises
            raise BagError(f"bag {path_text(self.path)} does not exist")
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self.descriptions = _descriptions(self.path)
        self.topics = _merge_topics([topic for source in self._sources for topic in source.topics])
        self.message_count = sum(topic.count for topic in self.topics)
        self.start_ns = min(source.start_ns for source in self._sources)
        self.end_ns = max(source.end_ns for source in self._sources)
        self._layouts: dict[str, cdr.StructLayout] = {}

    def _open(self) -> None:
        """Opens all files by the bag's metadata; if that fails, each file by its own index; else recovers messages."""
        files, unusable = _storage_files(self.path)
        for file in files:
            try:
                open_limited(file, BAG_FILE_BYTES_MAX).close()
            except OSError as fault:
                raise BagError(f"bag {path_text(self.path)} has a file {file.name!r}: {fault.strerror}") from None
        try:
            if not unusable:
                self._sources = [_Indexed(self.path)]
                return
        except Exception:  # damage shows as many kinds of exception inside the storage readers
            self._sources = []
        for file in files:
            try:
                self._sources.append(_Indexed(file))
            except Exception as fault:  # as above
                self._open_damaged(file, fault)
        if not self.notice:
            self.notice = f"bag {self.path} has no usable metadata.yaml (was its recorder killed?); its files are whole"
            self.notice += f" ({unusable})" * bool(unusable)

    def _open_damaged(self, file: Path, fault: Exception) -> None:
        why = _first_line(fault)
        if file.suffix != ".mcap":
            raise BagError(
                f"bag {self.path} is damaged ({why}); try `sqlite3 {file.name} .recover`, or record it again as mcap"
            ) from None
        salvaged = _Salvaged(file)
        count = sum(topic.count for topic in salvaged.topics)
        if count == 0:
            raise BagError(f"bag {self.path} is damaged ({why}) and holds no message that can be recovered") from None
        self._sources.append(salvaged)
        self.notice = f"bag {self.path} is damaged ({why}); {count} messages of {file.name} were recovered"

    def __enter__(self) -> BagReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for source in self._sources:
            source.close()
        self._sources = []

    @property
    def duration_s(self) -> float:
        return max(0, self.end_ns - self.start_ns) * 1e-9

    def messages(
        self, topics: Collection[str] | None = None, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[BagMessage]:
        """Messages in the order received, of all topics or of those given, from `start` up to but without `stop`.

        Raises BagError if the bag is damaged.
        """
        names = {topic.name for topic in self.topics} if topics is None else set(topics)
        count = 0
        for source in self._sources:
            messages = source.messages(names, start_ns, stop_ns)
            while True:
                try:
                    message = next(messages, None)
                except Exception as fault:  # damage in the middle of a file: the storage reader raises various types
                    raise BagError(
                        f"bag {self.path} is damaged after {count} messages ({_first_line(fault)})"
                    ) from None
                if message is None:
                    break
                yield BagMessage(*message, self.layout)
                count += 1

    def layout(self, type_name: str) -> cdr.StructLayout:
        """How messages of a type are read: by the bag's definition, or else the one that comes with this package.

        Raises BagError where there is neither, and for a definition that cannot be read or lacks a field.
        """
        if type_name not in self._layouts:
            self._layouts[type_name] = self._layout(type_name)
        return self._layouts[type_name]

    def _layout(self, type_name: str) -> cdr.StructLayout:
        texts = [each for source in self._sources if (each := source.definitions.get(type_name)) and each.data]
        if not texts:
            self.require_installed([topic.name for topic in self.topics if topic.type_name == type_name])
        try:
            layout = definitions.layout(type_name, definitions.parse(texts[0], type_name) if texts else {})
        except LookupError:
            raise BagError(
                f"bag {self.path} does not define its messages of type {type_name}: record it as mcap, with ROS 2 Iron "
                "or later"
            ) from None
        except (TypesysError, ValueError, TypeError, RecursionError) as fault:
            raise BagError(
                f"bag {self.path} has a definition of {type_name} that cannot be read ({_first_line(fault)})"
            ) from None
        if lacking := definitions.lacking(layout):
            raise BagError(
                f"bag {self.path} was recorded with another version of {type_name}, without its field '{lacking}': "
                "record it with a version that has it"
            )
        return layout

    def require_installed(self, names: Collection[str]) -> None:
        """Raises BagError where one of these topics was recorded with another definition than that of the installed
        package or, without it, the one that comes with this package."""
        for topic in self.topics:
            if topic.name in names and topic.type_hash and topic.type_hash != definition(topic.type_name)[1]:
                raise BagError(
                    f"{topic.name} in bag {self.path} was recorded with another version of {topic.type_name} than the "
                    "installed one; install the version the bag was recorded with"
                )


def _first_line(fault: Exception) -> str:
    return str(fault).splitlines()[0].rstrip(".") if str(fault) else type(fault).__name__


def _storage_files(path: Path) -> tuple[list[Path], str]:
    """Storage files of a bag in the order of recording: as metadata.yaml lists them, or by name without it.

    The second value is the reason why metadata.yaml cannot be used, else empty. Raises BagError for an unknown storage,
    a missing file, and a path that holds no bag.
    """
    if path.is_file():
        return _files_without_metadata(path), ""
    try:
        information = read_yaml(path / "metadata.yaml")
        check_fields(information, METADATA)
        information = information["rosbag2_bagfile_information"]
        for topic in information["topics_with_message_count"]:
            qos = topic["topic_metadata"].get("offered_qos_profiles")
            if isinstance(qos, str):  # YAML inside YAML, which rosbags will read
                parse_yaml(qos)
    except FileNotFoundError:
        return _files_without_metadata(path), "it is missing"
    except OSError as fault:
        return _files_without_metadata(path), str(fault.strerror)
    except DocumentError as fault:
        return _files_without_metadata(path), f"it {fault}"
    storage, files = information["storage_identifier"], information["relative_file_paths"]
    if storage not in STORAGES:
        raise BagError(f"bag {path} is stored as {storage!r:.40}, which is unknown; expected {' or '.join(STORAGES)}")
    for file in files:
        if not os.path.lexists(path / Path(file).name):
            raise BagError(f"bag {path} lacks its file {Path(file).name}; copy the bag again")
    return [path / Path(file).name for file in files], ""


def _descriptions(path: Path) -> dict[str, str]:
    """The texts of `BagWriter.describe`; none where the metadata cannot be used."""
    try:
        texts = read_yaml(path / "metadata.yaml")["rosbag2_bagfile_information"]["custom_data"]
        return {str(key): str(value) for key, value in texts.items()}
    except (OSError, DocumentError, KeyError, TypeError, AttributeError):
        return {}


def _files_without_metadata(path: Path) -> list[Path]:
    entries = path.iterdir() if path.is_dir() else [path]
    files = [entry for entry in entries if entry.suffix in SUFFIXES.values() and entry.is_file()]
    if not files:
        raise BagError(f"{path} is not a bag: it has no metadata.yaml and no .mcap or .db3 file")
    return sorted(files, key=lambda file: (len(file.name), file.name))  # bag_2 before bag_10


def _merge_topics(topics: list[BagTopic]) -> tuple[BagTopic, ...]:
    """One entry for each name and type, with the counts of all files added."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], BagTopic] = {}
    for topic in topics:
        counts[topic.name, topic.type_name] += topic.count
        first.setdefault((topic.name, topic.type_name), topic)
    return tuple(
        BagTopic(name, kind, counts[name, kind], entry.latched, entry.type_hash)
        for (name, kind), entry in sorted(first.items())
    )
