"""A scene set on disk: a folder of WebDataset shards, each with a JSON note, and an index of all.

    test-00000.tar   test-00000.json   test-00001.tar   test-00001.json   ..   index.json

A file appears under its name only when it is complete: it is written under another name, flushed to disk and renamed. A
shard is complete if its note exists and holds its checksum; after a kill, existing files are valid and the missing ones
can be made later. The checksum of a shard is compared before anything is read from it.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from ..infra.documents import (
    FILE_NAME,
    SHA256,
    DocumentError,
    anything,
    array,
    check_fields,
    maybe,
    named,
    read_json,
    text,
    whole,
)
from ..infra.errors import UserError
from ..infra.files import read_limited, shown, write_atomic
from . import codec
from .scene import DrivingScene

FORMAT = 1  # of notes and index; the scenes' own is scene_codec.FORMAT
INDEX = "index.json"
SHARD_BYTES = 1 << 32  # of the largest shard that is read; ours have 30 MB

COUNT = whole(0, 10**9)
NOTE = {
    "file": FILE_NAME,
    "sha256": SHA256,
    "bytes": whole(0, SHARD_BYTES),
    "asked": COUNT,
    "scenes": COUNT,
    "families": named(COUNT),
    "counts": named(COUNT),
    "networks": named(text()),
    "made_by": named(anything),
}
FIELDS = {
    "set": text(),
    "size": COUNT,
    "shards": array(NOTE, 0, 1_000_000),
    "made_by": named(anything),
    "missing": maybe(named(text())),
}


class SetError(UserError, RuntimeError):
    """A scene set cannot be used; the message names it, the fault and what to do."""


@dataclass(frozen=True)
class ShardNote:
    """Description of one shard."""

    file: str
    sha256: str
    bytes: int
    asked: int  # requested number of scenes; the shard may have fewer
    scenes: int
    families: Mapping[str, int]
    counts: Mapping[str, int]  # what was retried or skipped in the making
    networks: Mapping[str, str]  # name -> hash of its geometry
    made_by: Mapping[str, Any]  # what determines the scenes, besides the shard's name


@dataclass(frozen=True)
class Index:
    """Description of a set."""

    set: str
    size: int  # requested number of scenes
    shards: tuple[ShardNote, ...]
    made_by: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)  # shard that is not made -> why

    @property
    def scenes(self) -> int:
        return sum(note.scenes for note in self.shards)

    @property
    def bytes(self) -> int:
        return sum(note.bytes for note in self.shards)

    @property
    def families(self) -> dict[str, int]:
        return _sum_counts(note.families for note in self.shards)

    @property
    def counts(self) -> dict[str, int]:
        return _sum_counts(note.counts for note in self.shards)

    @property
    def networks(self) -> dict[str, str]:
        """Name of each road network -> hash of its geometry."""
        return {name: digest for note in self.shards for name, digest in note.networks.items()}

    @property
    def distinct(self) -> tuple[ShardNote, ...]:
        """The shards without those that are listed again, under the same name or another."""
        hashes: dict[str, ShardNote] = {}
        names: set[str] = set()
        for note in self.shards:
            if note.file not in names:
                hashes.setdefault(note.sha256, note)
            names.add(note.file)
        return tuple(hashes.values())

    @property
    def faults(self) -> list[str]:
        """A sentence for each shard that is listed again, has no scene or was never made."""
        distinct = set(map(id, self.distinct))
        again = [
            f"{INDEX} lists the scenes of {note.file} more than once, they are read once: make the set again"
            for note in self.shards
            if id(note) not in distinct
        ]
        empty = [f"{note.file} holds no scene: make the set again" for note in self.distinct if not note.scenes]
        return [*again, *empty, *(f"{name}.tar was never made: {reason}" for name, reason in self.missing.items())]

    def available(self, note: ShardNote, families: Collection[str] | None) -> int:
        """Number of scenes of some families in a shard."""
        return note.scenes if families is None else sum(note.families.get(family, 0) for family in families)


def _sum_counts(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counts in many:
        total.update(counts)
    return dict(sorted(total.items()))


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardContent:
    """Scenes of one shard, ready to be stored; it may travel between processes."""

    samples: tuple[Mapping[str, Any], ...]
    families: Mapping[str, int]
    networks: Mapping[str, str]
    counts: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(scenes: Iterable[DrivingScene], *, lossless: bool = False) -> ShardContent:
        """`lossless` as in `codec.sample_of`. Raises CodecError if a scene cannot be stored."""
        samples = []
        families: Counter[str] = Counter()
        networks: dict[str, str] = {}
        for scene in scenes:
            samples.append(codec.sample_of(scene, lossless=lossless))
            families[scene.family] += 1
            networks[scene.network] = scene.network_hash
        return ShardContent(tuple(samples), families, networks)


def concat(parts: Sequence[ShardContent]) -> ShardContent:
    """Several contents as one, in their order."""
    families: dict[str, int] = {}
    for part in parts:
        for name, count in part.families.items():
            families[name] = families.get(name, 0) + count
    networks = {name: digest for part in parts for name, digest in part.networks.items()}
    return ShardContent(tuple(sample for part in parts for sample in part.samples), families, networks)


def write_shard(folder: Path, name: str, load: ShardContent, *, asked: int, made_by: Mapping[str, Any]) -> ShardNote:
    """Stores shard `name` with its note. Raises OSError naming the file that could not be written."""
    content = tar_of(load.samples)
    note = ShardNote(
        file=f"{name}.tar",
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        asked=asked,
        scenes=len(load.samples),
        families=dict(sorted(load.families.items())),
        counts=dict(sorted(load.counts.items())),
        networks=dict(sorted(load.networks.items())),
        made_by=made_by,
    )
    write_atomic(folder / note.file, content)
    write_atomic(folder / f"{name}.json", _json({"format": FORMAT, **asdict(note)}))
    return note


def tar_of(samples: Iterable[Mapping[str, Any]]) -> bytes:
    """A shard as a WebDataset tar, as that library writes it; the same samples give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            for name in sorted(sample.keys() - {"__key__"}):
                entry = tarfile.TarInfo(f"{sample['__key__']}.{name}")
                entry.size, entry.mode = len(sample[name]), 0o444
                tar.addfile(entry, io.BytesIO(sample[name]))
    return buffer.getvalue()


def write_index(folder: Path, index: Index) -> None:
    """Raises OSError naming the file."""
    content = {
        "format": FORMAT,
        **asdict(index),
        "scenes": index.scenes,
        "bytes": index.bytes,
        "families": index.families,
        "counts": index.counts,
        "networks": index.networks,
    }
    write_atomic(folder / INDEX, _json(content))


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


# --- reading ---------------------------------------------------------------------------------------------------------


def index_of(folder: Path) -> Index:
    """The index of a set. Raises SetError if there is none or it is of another format."""
    path = folder / INDEX
    try:
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else None
            raise SetError(
                f"{shown(path)} is no index of scenes of format {FORMAT}, it has {shown(str(found))}: make the set "
                "again, or use the version of reflectdrive that wrote it"
            )
        check_fields(content, FIELDS)
    except FileNotFoundError:
        raise SetError(
            f"{shown(folder)} holds no set of scenes: make one with `reflectdrive scenes --out {shown(folder)}`"
        ) from None
    except OSError as fault:
        raise SetError(f"{shown(path)} cannot be read: {fault.strerror}; make the set again") from None
    except DocumentError as fault:
        raise SetError(
            f"{shown(path)} is damaged, it {fault}: remove it and make the set again, complete shards are kept"
        ) from None
    notes = tuple(_note(each) for each in content["shards"])
    return Index(content["set"], content["size"], notes, content["made_by"], content.get("missing") or {})


def note_of(folder: Path, name: str) -> ShardNote | None:
    """The note of shard `name`; None where there is none that can be used."""
    try:
        content = read_json(folder / f"{name}.json")
        check_fields(content, NOTE)
    except (OSError, DocumentError):
        return None
    return _note(content) if content.get("format") == FORMAT else None


def _note(content: Mapping[str, Any]) -> ShardNote:
    return ShardNote(**{entry.name: content[entry.name] for entry in fields(ShardNote)})


def content_of(folder: Path, note: ShardNote) -> bytes:
    """The bytes of a shard, verified by its note. Raises SetError naming the shard if it is missing or differs."""
    path = folder / note.file
    lost = f"its {note.scenes} scenes are left out; remove it and make the set again"
    try:
        content = read_limited(path, SHARD_BYTES)
    except FileNotFoundError:
        raise SetError(f"{shown(path)} is missing: {lost}") from None
    except OSError as fault:
        raise SetError(f"{shown(path)} cannot be read ({fault.strerror}): {lost}") from None
    if len(content) != note.bytes:
        raise SetError(f"{path} has {len(content)} bytes, expected {note.bytes}: {lost}")
    if hashlib.sha256(content).hexdigest() != note.sha256:
        raise SetError(f"{path} is damaged, its checksum is another: {lost}")
    return content


def read(
    folder: Path,
    *,
    images: bool,
    families: Collection[str] | None = None,
    limit: int | None = None,
    on_damage: Callable[[str], None],
) -> Iterator[DrivingScene]:
    """Scenes of a set in their order, only those of `families`; one shard is in memory at a time.

    At most `limit`: all of the first shards, and of the last one as many as are missing, by `family_quotas`.
    `on_damage` gets one sentence for each shard that is damaged or missing; its scenes are skipped. Raises SetError if
    the folder holds no set.
    """
    index = index_of(folder)
    left = limit
    for note in index.distinct:
        if left == 0:
            return
        for scene in read_shard(folder, note, images=images, families=families, on_damage=on_damage, limit=left):
            left = None if left is None else left - 1
            yield scene
    for fault in index.faults:
        on_damage(f"{folder}/{fault}")


def read_shard(
    folder: Path,
    note: ShardNote,
    *,
    images: bool,
    families: Collection[str] | None = None,
    limit: int | None = None,
    on_damage: Callable[[str], None],
) -> Iterator[DrivingScene]:
    """As `read`, of one shard: at most `limit` scenes by `family_quotas`, the first of each family.

    Its number of scenes is compared with its note.
    """
    available = {name: count for name, count in note.families.items() if families is None or name in families}
    left = Counter(available if limit is None else family_quotas(available, limit))
    try:
        content = content_of(folder, note)
    except SetError as fault:
        on_damage(str(fault))
        return
    count = 0
    try:
        for sample in samples_of(content, images=images):
            count += 1
            if limit is not None and not left.total():
                continue
            try:
                family = codec.meta_of(sample)["family"]
                if (families is not None and family not in families) or (limit is not None and not left[family]):
                    continue
                scene = codec.scene_of(sample, images=images)
            except codec.CodecError as fault:
                on_damage(f"{folder / note.file}: {fault}")
                continue
            left[family] -= 1
            yield scene
    except SetError as fault:
        on_damage(f"{folder / note.file}: {fault}")
        return
    if count != note.scenes:
        sentence = f"holds {count} scenes, expected {note.scenes} by its note"
        on_damage(f"{folder / note.file} {sentence}: remove it and make the set again")


def family_quotas(available: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many scenes of each family to take, `limit` in all: shares as in `available`, but at least one of each family
    where `limit` allows it.
    """
    total = sum(available.values())
    if limit >= total:
        return dict(available)
    exact = {family: limit * count / total for family, count in available.items()}
    least = 1 if limit >= len(available) else 0
    quotas = {family: max(int(share), min(least, available[family])) for family, share in exact.items()}
    while (missing := limit - sum(quotas.values())) > 0:  # the largest remainders
        below = sorted(quotas, key=lambda family: (quotas[family] - exact[family], family))
        for family in [family for family in below if quotas[family] < available[family]][:missing]:
            quotas[family] += 1
    while sum(quotas.values()) > limit:  # what rare families take, frequent ones give
        givers = [family for family in quotas if quotas[family] > 1]
        quotas[max(givers, key=lambda family: (quotas[family] - exact[family], family))] -= 1
    return quotas


class SceneReader:
    """Single scenes of shards, without their images, in any order. The checksum of a shard is not compared."""

    def __init__(self) -> None:
        self._members: dict[Path, dict[str, dict[str, tuple[int, int]]]] = {}  # offset and size, by scene and file

    def read(self, path: Path, name: str) -> DrivingScene:
        """The scene `name` of a shard. Raises SetError naming the shard."""
        try:
            with path.open("rb") as file:
                if path not in self._members:
                    self._members[path] = _offsets(file)
                sample: dict[str, Any] = {"__key__": name}
                for member, (at, size) in self._members[path][name].items():
                    file.seek(at)
                    sample[member] = file.read(size)
            return codec.scene_of(sample, images=False)
        except (OSError, tarfile.TarError, KeyError, codec.CodecError) as fault:
            raise SetError(f"{shown(path)}: scene {shown(name)} cannot be read ({fault}): make the set again") from None


def _offsets(file: BinaryIO) -> dict[str, dict[str, tuple[int, int]]]:
    """Offset and size of the files of each scene of a tar, images left out."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            key, _, name = member.name.partition(".")
            if member.isreg() and not name.endswith(codec.IMAGE_SUFFIXES):
                found.setdefault(key, {})[name] = member.offset_data, member.size
    return found


def samples_of(content: bytes, *, images: bool) -> Iterator[dict[str, Any]]:
    """The samples of a complete shard in their order, as WebDataset reads them.

    A shard is a tar of files named KEY.NAME. The WebDataset library would import torch into every evaluation process.
    Raises SetError if the bytes are not such a tar.
    """
    sample: dict[str, Any] = {}
    for member, read in _members(content):
        key, _, name = member.partition(".")
        if sample and key != sample["__key__"]:
            yield sample
            sample = {}
        sample["__key__"] = key
        if images or not name.endswith(codec.IMAGE_SUFFIXES):
            sample[name] = read()
    if sample:
        yield sample


def _members(content: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name of each file of a tar, and what reads it. Raises SetError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():  # a sparse file may be of any size
                    raise tarfile.ReadError(f"{shown(member.name)} is no regular file")
                at = member.offset_data
                yield member.name, lambda at=at, end=at + member.size: content[at:end]  # type: ignore[misc]
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as fault:
        raise SetError(f"it is no tar of scenes: {fault}") from None


def check(folder: Path) -> Iterator[tuple[ShardNote, str | None]]:
    """Every shard of a set with its fault, None if all its scenes can be read. Raises SetError as `index_of`."""
    for note in index_of(folder).distinct:
        faults: list[str] = []
        for _ in read_shard(folder, note, images=True, on_damage=faults.append):
            pass
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        yield note, faults[0] + more if faults else None
