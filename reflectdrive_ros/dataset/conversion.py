"""Scene sets from recordings: an index of all ticks first, then shards of the valid ones.

    OUT/frames/DRIVE.parquet   rows of one bag, complete or absent
    OUT/DRIVE-00000.tar ..   scenes, with a note each (`data.shards`); in OUT/train and OUT/val with a share for val
    OUT/frames.parquet         all rows, with their split and scene
    OUT/dataset.html         report

A bag is streamed twice; a large one is shared by several workers, each of which has a part of it. The files of a task
carry `made_by`, what they depend on: the next run keeps those that would be the same, so that after a kill at any point
the same command completes the set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.config import Config
from ..core.messages import BadMessage
from ..data import codec, frame_index, shards
from ..data.frame_index import FrameRow
from ..data.shards import Index, SetError, ShardContent, ShardNote
from ..infra.errors import UserError
from ..infra.files import resolve
from ..infra.parallel import Workers
from ..infra.progress import ShownProgress
from ..infra.provenance import program_sha256
from ..infra.storage import local_copy
from ..maps.lanelet_map import LaneletMap
from ..replay.bag_topics import TopicMapping, map_topics, recorded_sources
from ..replay.engine import recorded_path
from ..replay.many import collect_failures, find_bags_in, result_dependencies, throttle
from ..replay.recorded_world import BagSlice, find_map
from ..ros import definitions, plan_messages, topics
from ..ros.bag import BagError, BagReader
from ..ros.inputs.control import is_autonomous
from .checks import FrameLimits
from .frames import Drive
from .index import (
    FRAMES,
    SPLITS,
    ConversionJob,
    assign_splits,
    count_parts,
    index_path,
    join_indices,
    no_frame_sentence,
    read_index,
)

SET_NAME = "recordings"
SHARD_SCENES = 100
ALL_FRAMES = "frames.parquet"
INDEX_IMAGE = (32, 18)  # px: while indexing, images are checked and not kept; small ones are decoded faster
DRIVE_CHARACTERS = 80
OVERRIDE_TYPES: Mapping[str, Callable[[Any], bool]] = {  # whether a person drives
    "std_msgs/msg/Bool": lambda message: bool(message.data),
    topics.OPERATION_MODE_TYPE: lambda message: not is_autonomous(message),
}
SHORTEST_S = 6.0  # 2 s before a frame and 4 s after it


@dataclass(frozen=True)
class DatasetOptions:
    """The options of `reflectdrive dataset` on which scenes depend."""

    topic: Sequence[str] = ()  # KEY=NAME: the topic of the bag for an input
    route: str = "auto"  # driven: the driven path, although the bag has a route
    limits: FrameLimits = field(default_factory=FrameLimits)
    tick_s: float = 0.5  # between two frames
    overrides: Mapping[str, Sequence[tuple[float, float]]] | None = None  # drive -> seconds from the bag's start
    override_topic: str = ""  # of the bag, that says when a person drives


@dataclass(frozen=True)
class Dataset:
    """Result of a run."""

    rows: list[FrameRow]
    indices: Mapping[str, Index]  # by folder below OUT, "" for OUT itself
    failures: Mapping[str, str]  # bag -> why it is left out
    notices: Mapping[str, str]  # bag -> what was recovered of it
    tick_s: float


def make_dataset(
    paths: Sequence[Path],
    out: Path,
    options: DatasetOptions,
    config: Config,
    image_size: tuple[int, int],
    val_share: float,
    workers: Workers,
    errors: Console,
) -> Dataset:
    """Makes or completes the set in `out`.

    Raises SetError for a folder with another set, BagError for two drives of one name or no drive left; OSError naming
    a file that cannot be written. A bag that cannot be used is named in `failures`.
    """
    check_folder(out)
    bags, failures = find_bags_in(paths)
    names = drive_names(bags)
    program = program_sha256()
    jobs = []
    for bag, drive in names.items():
        try:
            content = {
                **result_dependencies(bag, replace(options, overrides=None), config, program),
                "size": image_size,
            }
        except OSError as fault:
            failures[str(bag)] = f"{fault.filename or bag} cannot be used: {fault.strerror}"
            continue
        content["overrides"] = (options.overrides or {}).get(drive, [])
        size = sum(file[0] for file in content["bag"].values())
        jobs.append(ConversionJob(bag, drive, out, digest_of(content), size))
    if unknown := sorted(set(options.overrides or {}) - set(names.values())):
        raise BagError(f"the interval file names drive '{unknown[0]}', the bags are {', '.join(names.values())}")
    (out / FRAMES).mkdir(parents=True, exist_ok=True)
    work = partial(_run_job, options=options, config=config, image_size=image_size)
    notices: dict[str, str] = {}
    todo = [job for job in jobs if read_index(job) is None]
    counts = count_parts([job.size for job in todo], workers)
    parts = [replace(job, part=(k, n)) for job, n in zip(todo, counts, strict=True) for k in range(n)]
    failures |= run_jobs([part for part in parts if read_index(part) is None], work, workers, "indexing", errors)
    join_indices(todo, parts)
    rows: dict[str, list[FrameRow]] = {}
    for job in jobs:
        if str(job.bag) not in failures and (bag_index := read_index(job)) is not None:
            header, rows[job.drive] = bag_index
            if header["notice"]:
                notices[str(job.bag)] = header["notice"]
            if not any(row.valid for row in rows[job.drive]):
                failures[str(job.bag)] = no_frame_sentence(job.bag, rows[job.drive])
    rows = assign_splits(rows, val_share)
    jobs = [job for job in jobs if job.drive in rows]
    folders = {folder: plan_shards(rows, folder) for folder in (SPLITS if val_share else ("",))}
    jobs = [replace(job, pending_shards=missing_shards(job, folders, out)) for job in jobs]
    write_indices(folders, jobs, out, failures)  # what is whole now: an interrupted run leaves a readable set
    todo = [job for job in jobs if job.pending_shards]
    counts = count_parts([len(job.pending_shards or ()) for job in todo], workers)
    parts = [part for job, count in zip(todo, counts, strict=True) for part in shard_parts(job, count)]
    failures |= run_jobs(parts, work, workers, "writing scenes", errors)
    indices = write_indices(folders, jobs, out, failures)
    every = [row for drive in rows.values() for row in drive]
    if not any(index.scenes for index in indices.values()):
        reasons = "; ".join(failures.values()) or "no bag is given"
        raise BagError(f"no scene was made: {reasons}")
    frame_index.write_rows(out / ALL_FRAMES, {"val_share": val_share}, every)
    return Dataset(every, indices, failures, notices, options.tick_s)


def check_folder(out: Path) -> None:
    """Raises SetError for a folder with another set or with one of another version."""
    for folder in (out, *(out / split for split in SPLITS)):
        if (folder / shards.INDEX).exists():
            dependencies = shards.index_of(folder).generator
            if "dataset_format" not in dependencies:
                raise SetError(f"{folder} holds another set of scenes: name another folder with --out")
            frame_index.check_format(folder / shards.INDEX, dependencies["dataset_format"])
    if (out / ALL_FRAMES).exists():
        frame_index.read_rows(out / ALL_FRAMES)


def drive_names(bags: Sequence[Path]) -> dict[Path, str]:
    """Bag -> name of its drive, which names scenes and files. Raises BagError for two of one name."""
    bag_by_name: dict[str, Path] = {}
    for bag in bags:
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", resolve(bag).stem if bag.is_file() else resolve(bag).name)
        name = name[:DRIVE_CHARACTERS]
        if name in bag_by_name:
            raise BagError(
                f"two drives have the name '{name}', {bag_by_name[name]} and {bag}: rename one of these folders"
            )
        bag_by_name[name] = bag
    return {bag: name for name, bag in bag_by_name.items()}


def digest_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


# --- shards ----------------------------------------------------------------------------------------------------------

Shards = dict[str, tuple[str, tuple[int, ...]]]  # name of a shard -> its drive, its ticks


def plan_shards(rows: dict[str, list[FrameRow]], folder: str) -> Shards:
    """The shards of a folder; `rows` get the names of their scenes."""
    planned: Shards = {}
    for drive, each in rows.items():
        ticks = tuple(row.tick for row in each if row.valid and row.split == folder)
        for first in range(0, len(ticks), SHARD_SCENES):
            planned[f"{drive}-{first // SHARD_SCENES:05d}"] = drive, ticks[first : first + SHARD_SCENES]
        rows[drive] = [
            replace(row, scene=f"{drive}-{row.tick:06d}") if row.valid and row.split == folder else row for row in each
        ]
    return planned


def shard_dependencies(job: ConversionJob, ticks: Sequence[int]) -> dict[str, Any]:
    return {
        "dataset_format": frame_index.FORMAT,
        "drive": job.drive,
        "sha256": digest_of([job.dependencies_sha256, list(ticks)]),
    }


def whole_note(job: ConversionJob, folder: Path, name: str, ticks: Sequence[int]) -> ShardNote | None:
    """The note of a shard that is intact and would be the same now."""
    note = shards.note_of(folder, name)
    if note is None or note.generator != shard_dependencies(job, ticks):
        return None
    try:
        shards.content_of(folder, note)
    except SetError:
        return None
    return note


def missing_shards(
    job: ConversionJob, folders: Mapping[str, Shards], out: Path
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shards of a drive that are to be made, with their folder."""
    return tuple(
        (str(Path(folder, name)), ticks)
        for folder, planned in folders.items()
        for name, (drive, ticks) in planned.items()
        if drive == job.drive and whole_note(job, out / folder, name, ticks) is None
    )


def shard_parts(job: ConversionJob, count: int) -> list[ConversionJob]:
    """The job as several, each with shards that follow each other."""
    assert job.pending_shards is not None
    size = -(-len(job.pending_shards) // count)
    return [
        replace(job, pending_shards=job.pending_shards[first : first + size])
        for first in range(0, len(job.pending_shards), size)
    ]


def write_indices(
    folders: Mapping[str, Shards], jobs: Sequence[ConversionJob], out: Path, failures: Mapping[str, str]
) -> dict[str, Index]:
    """Writes the index of each folder from the shards that are whole; shards of earlier runs are removed."""
    by_drive = {job.drive: job for job in jobs}
    indices = {}
    for folder, planned in folders.items():
        notes, missing = [], {}
        for name, (drive, ticks) in planned.items():
            note = whole_note(by_drive[drive], out / folder, name, ticks)
            if note is None:
                missing[name] = failures.get(str(by_drive[drive].bag), "the making was interrupted")
            else:
                notes.append(note)
        dependencies = {
            "dataset_format": frame_index.FORMAT,
            "codec": codec.FORMAT,
            "drives": sorted({drive for drive, _ in planned.values()}),
        }
        size = sum(len(ticks) for _, ticks in planned.values())
        indices[folder] = Index(SET_NAME, size, tuple(notes), dependencies, missing)
        (out / folder).mkdir(exist_ok=True)
        shards.write_index(out / folder, indices[folder])
    for folder in {"", *SPLITS}:
        remove_former(out / folder, folders.get(folder, {}))
    return indices


def remove_former(folder: Path, planned: Shards) -> None:
    """Removes shards of recordings that are no part of the set any more, and its index where none is planned."""
    for path in folder.glob("*-[0-9][0-9][0-9][0-9][0-9].json"):
        note = shards.note_of(folder, path.stem)
        if path.stem not in planned and note is not None and "dataset_format" in note.generator:
            path.unlink()
            (folder / note.file).unlink(missing_ok=True)
    if not planned:
        (folder / shards.INDEX).unlink(missing_ok=True)


# --- the processes ---------------------------------------------------------------------------------------------------


def run_jobs(
    jobs: Sequence[ConversionJob], work: Callable[..., str], workers: Workers, title: str, errors: Console
) -> dict[str, str]:
    """Runs all jobs; returns a sentence for each bag that cannot be used. Raises OSError of a file that cannot be
    written."""
    shares = [0.0] * len(jobs)
    with ShownProgress(errors) as progress:
        bar = progress.add_task(title, total=max(len(jobs), 1))

        def on_progress(index: int, share: float) -> None:
            shares[index] = share
            progress.update(bar, completed=sum(shares))

        return collect_failures(jobs, work, workers, on_progress)


def _run_job(
    job: ConversionJob,
    report: Callable[[float], None],
    *,
    options: DatasetOptions,
    config: Config,
    image_size: tuple[int, int],
) -> str:
    """Indexes one bag, or writes its missing shards; a sentence where that is not possible."""
    try:
        with local_copy(job.bag) as bag, BagReader(bag) as reader:
            if job.pending_shards is None:
                drive, route = open_drive(job, reader, options, config, INDEX_IMAGE)
                ticks: Sequence[int] = ticks_of_part(reader, options.tick_s, job.part)
                frames = drive.frames(reader, route, ticks, with_scenes=False)
                rows = [row for row, _ in reported(frames, ticks, report)]
                notice = "; ".join(filter(None, (reader.notice, drive.notice and f"bag {job.bag}: {drive.notice}")))
                header = {"made_by": job.dependencies_sha256, "notice": notice}
                frame_index.write_rows(index_path(job), header, rows)
            else:
                drive, route = open_drive(job, reader, options, config, image_size)
                ticks = sorted(tick for _, each in job.pending_shards for tick in each)
                write_shards(job, reported(drive.frames(reader, route, ticks, with_scenes=True), ticks, report))
    except UserError as fault:
        sentence = str(fault)
        return sentence if str(job.bag) in sentence else f"bag {job.bag}: {sentence}"
    return ""


def ticks_of_part(reader: BagReader, tick_s: float, part: tuple[int, int]) -> range:
    number, count = part
    ticks = (reader.end_ns - reader.start_ns) // round(tick_s * 1e9) + 1
    return range(ticks * number // count, ticks * (number + 1) // count)


def reported(frames: Any, ticks: Sequence[int], report: Callable[[float], None]) -> Any:
    """The frames of these ticks; `report` gets the share that is done."""
    on_progress = throttle(report)
    for done, frame in enumerate(frames):
        on_progress(done / len(ticks))
        yield frame


def write_shards(job: ConversionJob, frames: Any) -> None:
    """Writes the pending shards of a job as its frames come. Raises BagError if a pending frame does not come again."""
    assert job.pending_shards is not None
    path_by_tick = {tick: path for path, ticks in job.pending_shards for tick in ticks}
    scenes: dict[str, list[Any]] = {path: [] for path, _ in job.pending_shards}
    sizes = {path: len(ticks) for path, ticks in job.pending_shards}
    ticks_of = dict(job.pending_shards)
    parts: dict[str, list[ShardContent]] = {path: [] for path in scenes}
    for row, scene in frames:
        path = path_by_tick.get(row.tick)
        if path is None or scene is None:
            continue
        parts[path].append(ShardContent.of([scene], lossless=True))  # encoded at once: it is smaller
        if len(parts[path]) == sizes[path]:
            load, target = shards.concat(parts.pop(path)), job.out / path
            target.parent.mkdir(exist_ok=True)
            dependencies = shard_dependencies(job, ticks_of[path])
            shards.write_shard(target.parent, target.name, load, requested=sizes[path], generator=dependencies)
    if parts:
        raise BagError(f"bag {job.bag} gave other frames than when it was indexed: run the command again")


def open_drive(
    job: ConversionJob, reader: BagReader, options: DatasetOptions, config: Config, image_size: tuple[int, int]
) -> tuple[Drive, Any | None]:
    """The drive of a bag, and its hindsight route as a message where the bag has none. Raises BagError."""
    if reader.duration_s < SHORTEST_S:
        raise BagError(
            f"bag {job.bag} is {reader.duration_s:.1f} s long: a frame needs 2 s before it and 4 s after it, record "
            f"{SHORTEST_S:.0f} s or more"
        )
    mapping = map_drive_topics(config, reader, options)
    # lights whether or not the planner reads them, unless --topic lights= hides them
    hidden = {"lights"} if "lights=" in options.topic else set()
    sources = recorded_sources(reader, {"map", "objects", "lights"} - hidden) | mapping.sources
    lanelets = find_map(BagSlice(reader, sources), mapping.config)
    keys = {entry.key for entry in topics.inputs(mapping.config)}
    hindsight = "route" not in mapping.sources
    route = None
    if hindsight:
        path = recorded_path(BagSlice(reader, mapping.sources), mapping.config)
        if len(path) >= 2:
            content = plan_messages.route_path(path, mapping.config.output.map_frame)
            route = definitions.read(content, topics.ROUTE_TYPES["path"])
    drive = Drive(
        name=job.drive,
        config=mapping.config,
        image_size=image_size,
        sources={key: name for key, name in sources.items() if key in keys or key == "lights"},
        fed=frozenset(keys),
        lanelets=lanelets,
        map_name=map_name(lanelets, job),
        limits=options.limits,
        overrides=[
            *(options.overrides or {}).get(job.drive, ()),
            *(override_intervals(reader, options.override_topic) if options.override_topic else ()),
        ],
        hindsight=hindsight,
        tick_s=options.tick_s,
    )
    return drive, route


def override_intervals(reader: BagReader, topic: str) -> list[tuple[float, float]]:
    """When a person drives, in s from the bag's start: while the topic's last message says so.

    Raises BagError where the bag has no such topic, or one of another type than OVERRIDE_TYPES.
    """
    kind = next((each.type_name for each in reader.topics if each.name == topic and each.count), "")
    if kind not in OVERRIDE_TYPES:
        raise BagError(
            f"--override-topic {topic}: bag {reader.path} has {f'it as {kind}' if kind else 'no such topic'}, "
            f"expected one of type {' or '.join(OVERRIDE_TYPES)}"
        )
    intervals_ns: list[tuple[float, float]] = []
    since_ns: int | None = None
    for entry in reader.messages([topic]):
        with suppress(BadMessage):
            message = entry.message()
            if OVERRIDE_TYPES[kind](message):
                since_ns = entry.received_ns if since_ns is None else since_ns
            elif since_ns is not None:
                intervals_ns.append((since_ns, entry.received_ns))
                since_ns = None
    if since_ns is not None:
        intervals_ns.append((since_ns, reader.end_ns))
    return [((first - reader.start_ns) * 1e-9, (last - reader.start_ns) * 1e-9) for first, last in intervals_ns]


def map_drive_topics(config: Config, reader: BagReader, options: DatasetOptions) -> TopicMapping:
    """The topics of a bag; its route from the driven path where it has none."""
    kind = topics.ROUTE_TYPES[config.inputs.route_type]
    named = any(pair.startswith("route=") for pair in options.topic)
    has_route = named or any(topic.type_name == kind and topic.count for topic in reader.topics)
    return map_topics(config, reader, options.topic, driven_route=options.route == "driven" or not has_route)


def map_name(lanelets: LaneletMap | None, job: ConversionJob) -> str:
    """Names the map by its lanes: drives on one map share places. Without a map no two drives do."""
    if lanelets is None:
        return job.drive
    digest = hashlib.sha256()
    for lanelet_id, lanelet in sorted(lanelets.lanelets.items()):
        digest.update(f"{lanelet_id} {len(lanelet.left)} {len(lanelet.right)}".encode())
        digest.update(lanelet.left.tobytes())
    return f"map-{digest.hexdigest()[:12]}"
