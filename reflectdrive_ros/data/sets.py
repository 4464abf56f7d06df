"""Scene sets: their names, sizes and folders, and how they are made.

A set is split by road network: every shard generates its own towns, from seeds that contain the set's name and the
shard's number. A set depends on its name, its size, the sampler's options and SCENE_VERSION; these four are in its
index, and a folder never holds scenes of two versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
import scipy
import shapely

from ..core.domain import Array
from ..infra import parallel
from ..infra.files import lock_folder
from ..infra.storage import is_remote
from ..scoring.scorer import WAYPOINTS, score
from ..scoring.simulate import HORIZON_S
from . import codec, shards
from .scene import DrivingScene
from .shards import Index, SetError, ShardContent, ShardNote

# Raise it when the bytes of a generated scene change: sets of earlier versions are then made again. test_scene_sets
# holds the hash of two scenes and fails if it was not raised.
SCENE_VERSION = 1
SIZES: Mapping[str, int] = {"train": 20000, "val": 500, "test": 1000, "hard": 300}
SHARD = 250  # scenes; a town takes as long as fifteen scenes, and rare families are searched in several towns
HARD_SHARD = 75  # of SHARD made for it
HARD_FAMILY = "high_lateral_acceleration"  # all of it counts as hard
SETS_FOLDER_VARIABLE = "REFLECTDRIVE_SCENES"  # variable that names the folder of all sets
SCRATCH = ".scratch-"
REMOTE_INDEX_S = 10.0  # between two indices on shared storage: that of a large set has megabytes


class ShardSource(Protocol):
    """Scenes of one shard in the making."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What was retried or skipped so far."""

    def scenes(self) -> Iterator[DrivingScene]: ...


MakeShard = Callable[[str, int, int, Path], ShardSource]  # split, index, number of scenes, working folder


@dataclass(frozen=True)
class SceneSetSpec:
    """A set that is to be there."""

    name: str  # of SIZES
    size: int
    made_by: Mapping[str, Any]  # see `made_by`

    def shards(self) -> dict[str, tuple[int, int]]:
        """Name of each shard -> its number and its number of scenes.

        Raises SetError for a set that starts in the middle of a shard.
        """
        step = HARD_SHARD if self.name == "hard" else SHARD
        first = int(self.made_by.get("first", 0))
        if first % step:
            raise SetError(f"the set '{self.name}' is made {step} at a time: it can start at {first - first % step}")
        sizes = (min(step, self.size - done) for done in range(0, self.size, step))
        return {f"{self.name}-{k:05d}": (k, size) for k, size in enumerate(sizes, first // step)}


def first_part(wanted: SceneSetSpec, scenes: int) -> SceneSetSpec:
    """The shards of a set that hold its first `scenes` scenes: a smaller set, which a later call completes."""
    step = HARD_SHARD if wanted.name == "hard" else SHARD
    return replace(wanted, size=min(wanted.size, -(-scenes // step) * step))


def made_by(options: Mapping[str, Any], first: int = 0) -> dict[str, Any]:
    """What determines the bytes of a set besides its name and size: version, libraries, arithmetic, sampler options.

    `first` is the number of scenes that are left out at the start of the set, because they were made elsewhere.
    """
    libraries = {module.__name__: str(module.__version__) for module in (cv2, np, scipy, shapely)}
    content = {
        "scene_version": SCENE_VERSION,
        "libraries": {**libraries, "eclipse-sumo": _sumo_version()},
        "arithmetic": parallel.SIMD_BASELINE,
        "codec": codec.FORMAT,
        "options": dict(options),
    }
    if first:
        content["first"] = first
    return dict(json.loads(json.dumps(content)))  # as it will be read back


def _sumo_version() -> str:
    try:
        return version("eclipse-sumo")
    except PackageNotFoundError:
        return "of the system"


def default_folder(name: str, made_by: Mapping[str, Any]) -> Path:
    """Default folder of a set: in $REFLECTDRIVE_SCENES, else in the user's cache."""
    home = os.environ.get(SETS_FOLDER_VARIABLE)
    root = Path(home) if home else Path.home() / ".cache" / "reflectdrive" / "scenes"
    digest = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()
    return root / f"{name}-{digest[:12]}"


# --- making ----------------------------------------------------------------------------------------------------------


def make(
    folder: Path,
    wanted: SceneSetSpec,
    make_shard: MakeShard,
    *,
    workers: parallel.Workers,
    on_progress: Callable[[int], None],
) -> Index:
    """Makes the missing shards of a set, with `workers` processes, and returns its index.

    `on_progress` gets the number of existing scenes. Shards that could not be made are listed in the index with the
    reason. Raises SetError if the folder holds another set, or workers do not start; BlockingIOError if another process
    makes it; OSError naming the file if one cannot be written. Complete shards are kept in any case.
    """
    with lock_folder(folder):
        index = _existing_index(folder, wanted)
        if index is None:
            index = shards.index_of(folder)
            on_progress(index.scenes)
            return index
        _remove_leftovers(folder)
        try:
            return _complete(folder, wanted, index, make_shard, workers, on_progress)
        except parallel.WorkerPoolError as fault:
            raise SetError(f"{folder} cannot be made: {fault}") from None
        finally:
            _remove_leftovers(folder)


def is_complete(folder: Path, wanted: SceneSetSpec) -> bool:
    """Whether the folder holds the set, as large as required or larger. Raises SetError if it holds another set."""
    if not (folder / shards.INDEX).exists():
        return False
    there = shards.index_of(folder)
    if there.set != wanted.name:
        raise SetError(f"{folder} holds the set '{there.set}', not '{wanted.name}': name another folder")
    if there.made_by != wanted.made_by:
        names = {**wanted.made_by, **there.made_by}
        kinds = [name for name in names if there.made_by.get(name) != wanted.made_by.get(name)]
        raise SetError(
            f"{folder} holds a set with other options ({', '.join(kinds)} differ): name another folder or remove it"
        )
    return not there.faults and there.size >= wanted.size


def _existing_index(folder: Path, wanted: SceneSetSpec) -> Index | None:
    """The index of the existing shards; None if the folder holds no other file."""
    if is_complete(folder, wanted):
        return None
    kept, missing = [], {}
    for name, (_, asked) in wanted.shards().items():
        note = shards.note_of(folder, name)
        fits = note is not None and note.asked == asked and note.made_by == wanted.made_by and note.scenes > 0
        if note is not None and fits and _is_intact(folder, note):
            kept.append(note)
        else:
            missing[name] = "the making was interrupted"
    return Index(wanted.name, wanted.size, tuple(kept), wanted.made_by, missing)


def _is_intact(folder: Path, note: ShardNote) -> bool:
    try:
        shards.content_of(folder, note)
    except SetError:
        return False
    return True


def _complete(
    folder: Path,
    wanted: SceneSetSpec,
    index: Index,
    make_shard: MakeShard,
    workers: parallel.Workers,
    on_progress: Callable[[int], None],
) -> Index:
    numbers = wanted.shards()
    tasks = [(name, *numbers[name]) for name in index.missing]
    underway = [0] * len(tasks)
    place = {name: k for k, name in enumerate(index.missing)}

    def progress(k: int, scenes: int) -> None:
        underway[k] = scenes
        on_progress(index.scenes + sum(underway))

    work = partial(_make_shard, folder, make_shard, wanted.made_by)
    shards.write_index(folder, index)
    on_progress(index.scenes)
    if not tasks:  # a larger set was begun here, and this much of it is whole
        return index
    written_s = time.monotonic()
    with closing(parallel.map_restartable(tasks, work, workers, progress)) as outcomes:  # its workers end with it
        for outcome in outcomes:
            name, _, asked = outcome.task
            underway[place[name]] = 0
            missing = {key: reason for key, reason in index.missing.items() if key != name}
            if outcome.result is None:
                index = replace(index, missing={**missing, name: outcome.reason})
            else:
                made = outcome.result
                if isinstance(made, ShardContent):
                    made = shards.write_shard(folder, name, made, asked=asked, made_by=wanted.made_by)
                notes = sorted([*index.shards, made], key=lambda note: note.file)
                index = replace(index, shards=tuple(notes), missing=missing)
            if not is_remote(folder) or time.monotonic() - written_s >= REMOTE_INDEX_S:
                shards.write_index(folder, index)
                written_s = time.monotonic()
            on_progress(index.scenes + sum(underway))
    shards.write_index(folder, index)
    return index


def _make_shard(
    folder: Path,
    make_shard: MakeShard,
    made_by: Mapping[str, Any],
    task: tuple[str, int, int],
    report: Callable[[int], None],
) -> ShardContent | ShardNote:
    """Task of a worker: makes the scenes of one shard, and stores them where the folder is on shared storage.

    Raises SetError if no scene could be made, OSError naming the file or the working folder.
    """
    name, number, asked = task
    split = name.rsplit("-", 1)[0]
    beside = folder if not is_remote(folder) and folder.is_dir() else None  # not on another node of a cluster
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=beside) as scratch:
        if split == "hard":
            source: ShardSource = HardSubset(make_shard(split, number, SHARD, Path(scratch)), asked)
        else:
            source = make_shard(split, number, asked, Path(scratch))

        def counted() -> Iterator[DrivingScene]:
            for count, scene in enumerate(source.scenes(), 1):
                yield scene
                report(count)

        try:
            load = ShardContent.of(counted())
        except OSError as fault:
            if fault.filename is not None or fault.errno is None:
                raise
            raise OSError(fault.errno, fault.strerror, scratch) from None  # writing to an open file names none
    if not load.samples:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(source.counts.items()))
        raise SetError(f"no scene could be made ({counts or 'nothing was tried'})")
    load = replace(load, counts=dict(source.counts))
    return shards.write_shard(folder, name, load, asked=asked, made_by=made_by) if is_remote(folder) else load


def _remove_leftovers(folder: Path) -> None:
    """Removes the scratch folders of a killed process."""
    if is_remote(folder):  # which has none
        return
    for path in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)


# --- the hard set ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HardSubset:
    """Of a shard's scenes all of HARD_FAMILY, and those that driving straight on does worst, `count` together."""

    source: ShardSource
    count: int

    @property
    def counts(self) -> Mapping[str, int]:
        return self.source.counts

    def scenes(self) -> Iterator[DrivingScene]:
        every = list(self.source.scenes())
        order = sorted(
            every, key=lambda scene: (scene.family != HARD_FAMILY, constant_velocity_pdms(scene), _tie_break(scene))
        )
        chosen = {scene.name for scene in order[: self.count]}
        return (scene for scene in every if scene.name in chosen)


def _tie_break(scene: DrivingScene) -> int:
    """Among equals (many score 0) drawn by name: the order of names is that of families."""
    return zlib.crc32(scene.name.encode())


def constant_velocity_plan(scene: DrivingScene) -> Array:
    """(8, 3) on with the present speed and heading."""
    poses = np.zeros((WAYPOINTS, 3))
    poses[:, 0] = max(scene.ego.speed_mps, 0.0) * HORIZON_S / WAYPOINTS * np.arange(1, WAYPOINTS + 1)
    return poses


def constant_velocity_pdms(scene: DrivingScene) -> float:
    return float(score(scene.scored(), constant_velocity_plan(scene)[None]).score[0])
