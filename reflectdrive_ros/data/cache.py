"""Prepared training sets: the network's inputs and targets of each scene, decoded once and memory-mapped.

Reading a scene takes longer than a training step on a fast device. Each shard is therefore read once, in parallel, and
stored beside the set as plain arrays: images at the network's size, words (of the scene and of its mirror image), ego
state, route, the expert's points, the distance map of the road's edge and the occupancy around the car. 20,000 scenes
take 16 GB at 288 x 144.

    train/ train-00000.tar ..     train.prepared-1a2b3c4d/ train-00000-<hash>.images.npy .distances.npy .rest.npz ..

A shard's `rest` is written last, and every file appears complete or not at all, so that after a kill only missing files
are written. File names carry the hash of their shard and the folder's name that of the network's inputs, so that stale
files are never read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..core.domain import Array, Command, Observation
from ..core.tokens import Codebook
from ..features import images as features
from ..features.images import InputSpec, WordTokenizer
from ..infra.documents import DocumentError, read_arrays
from ..infra.files import write_atomic
from ..infra.parallel import Workers, map_restartable
from ..infra.storage import is_remote
from ..scoring.frenet import FrenetFrame, frenet_poses
from . import distance_map, occupancy, shards
from .shards import SetError, ShardNote

Job = TypeVar("Job")
Result = TypeVar("Result")
FORMAT = 9
FILES = {"images": "images.npy", "distances": "distances.npy"}  # arrays that are mapped from the disk
PER_SCENE = (  # arrays of a CachedSet with a row for each scene, but `location`
    *("text", "text_mirrored", "ego", "route", "expert", "expert_on_route"),
    *("occupancy", "names", "known", "tags"),
)
NAME_DTYPE = "S100"  # `codec.NAME`
MIRRORED_COMMANDS = {Command.LEFT: Command.RIGHT, Command.RIGHT: Command.LEFT}
MIRRORED_WORDS = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class Shape:
    """Shapes of the stored arrays; together with `FORMAT` they determine the content."""

    width: int
    height: int
    text_length: int
    words: tuple[str, ...]
    cameras: int  # 0: neither images nor what only camera networks learn (distances, occupancy) is stored
    instants: int
    ego_scale: tuple[float, float, float]
    route_at_m: tuple[float, ...]
    bin_m: float
    bins: int

    @property
    def spec(self) -> InputSpec:
        return InputSpec(
            width=self.width,
            height=self.height,
            text_length=self.text_length,
            tokenizer=WordTokenizer(self.words),
            cameras=self.cameras,
            instants=self.instants,
            ego_scale=self.ego_scale,
            route_at_m=self.route_at_m,
            codebook=self.codebook,
        )

    @property
    def codebook(self) -> Codebook:
        return Codebook(self.bin_m, self.bins)

    @property
    def key(self) -> str:
        """Hash of what determines the stored arrays; they do not depend on the tokens."""
        stored = {name: value for name, value in vars(self).items() if name not in ("bin_m", "bins")}
        text = json.dumps([FORMAT, distance_map.X_RANGE_M, distance_map.Y_RANGE_M, stored], default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, eq=False)
class CachedSet:
    """N scenes as arrays; images and distances are read from disk on access."""

    images: tuple[Array, ...]  # per shard (n, cameras * instants, H, W, 3) uint8
    distances: tuple[Array, ...]  # per shard (n, X, Y) int8, `fields.distance_map`
    text: Array  # (N, T) int64
    text_mirrored: Array  # (N, T) int64
    ego: Array  # (N, 3) float32, scaled
    route: Array  # (N, R, 2) float32 m, NaN where it is not known
    expert: Array  # (N, 8, 3) m, m, rad
    expert_on_route: Array  # (N, 8, 3) the same in Frenet coordinates of the route; NaN off it
    occupancy: Array  # (N, 4, CELLS, CELLS) bool, `occupancy.occupancy`
    location: Array  # (N, 2) shard, row
    names: Array  # (N,) bytes, of the scenes
    known: Array  # (N, 2) bool, whether the road and whether other agents are known
    tags: Array  # (N,) bytes, scenario tags
    notes: tuple[ShardNote, ...]  # of the shards, in the order of `location`
    key: str  # of the scenes and of the stored arrays
    shares: Array | None = None  # (N,) probability of each scene in a batch; None: each once per epoch

    def __len__(self) -> int:
        return len(self.text)


def merge(sets: Sequence[CachedSet], weights: Sequence[float], tags: Mapping[str, float] | None = None) -> CachedSet:
    """Sets of one shape as one, each sampled with a share that is proportional to its weight.

    `tags`: relative frequency of the scenes of a set by their scenario tag, 1 for others. Raises SetError for a set
    without tags, or where no scene is left.
    """
    firsts = np.cumsum([0, *(len(each.images) for each in sets[:-1])]).tolist()
    shares = [weight / sum(weights) * tag_shares(each, tags or {}) for each, weight in zip(sets, weights, strict=True)]
    keys = "".join(each.key + str(weight) for each, weight in zip(sets, weights, strict=True))
    keys += "".join(f"{tag}={weight}" for tag, weight in sorted((tags or {}).items()))
    return CachedSet(
        images=tuple(shard for each in sets for shard in each.images),
        distances=tuple(shard for each in sets for shard in each.distances),
        **{name: np.concatenate([getattr(each, name) for each in sets]) for name in PER_SCENE},
        location=np.concatenate(
            [each.location + np.array([first, 0]) for each, first in zip(sets, firsts, strict=True)]
        ),
        notes=tuple(note for each in sets for note in each.notes),
        key=hashlib.sha256(keys.encode()).hexdigest(),
        shares=np.concatenate(shares),
    )


def tag_shares(scenes: CachedSet, tags: Mapping[str, float]) -> Array:
    """(N,) probabilities of the scenes of a set by their scenario tags. Raises SetError as `merge`."""
    weights = np.array([tags.get(tag.decode(), 1.0) for tag in scenes.tags.tolist()])
    if not weights.sum() > 0.0:
        names = ", ".join(sorted({tag.decode() for tag in scenes.tags.tolist()}))
        raise SetError(f"all scenes of a set have weight 0 by their tags: it has {names}")
    return np.asarray(weights / weights.sum())


def build_cache(
    folder: Path, shape: Shape, workers: Workers, on_damage: Callable[[str], None], progress: Callable[[int, int], None]
) -> CachedSet:
    """The prepared scenes of a set; missing ones are prepared first.

    `progress` gets the number of finished shards and of all shards, `on_damage` a sentence for each shard or scene that
    is left out. Raises SetError if the folder holds no set or no readable scene, OSError naming the file that cannot be
    written.
    """
    home = cache_folder(folder, shape)
    write = partial(cache_shard, folder, home, shape=shape)
    return _open_cache(home, write_missing(folder, home, "rest.npz", write, workers, on_damage, progress), shape)


def write_missing(
    folder: Path,
    home: Path,
    end: str,
    write: Callable[[ShardNote], list[str]],
    workers: Workers,
    on_damage: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> list[ShardNote]:
    """Calls `write` in processes for each shard of a set whose file with this end is missing in `home`; returns the
    shards that have one. `write` returns sentences on what was left out. Otherwise as `build_cache`.
    """
    index = shards.index_of(folder)
    notes = index.distinct
    home.mkdir(parents=True, exist_ok=True)
    todo = [note for note in notes if note.scenes and not cache_file(home, note, end).exists()]
    done = len(notes) - len(todo)
    progress(done, len(notes))
    for sentences in map_processes(write, todo, folder, workers):
        done += 1
        progress(done, len(notes))
        for sentence in sentences:
            on_damage(sentence)
    if index.faults:
        more = f" (and {len(index.faults) - 1} more faults)" if len(index.faults) > 1 else ""
        on_damage(f"{folder}/{index.faults[0]}{more}")
    whole = [note for note in notes if cache_file(home, note, end).exists()]
    if not whole:
        raise SetError(f"{folder} holds no scene that can be read: make the set again")
    return whole


def cache_folder(folder: Path, shape: Shape) -> Path:
    """Folder of a set's prepared files: beside it or, because they are mapped into memory, in the user's cache."""
    if is_remote(folder):
        digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        return Path.home() / ".cache" / "reflectdrive" / "prepared" / f"{folder.name}-{digest}.prepared-{shape.key}"
    return folder.resolve().with_name(f"{folder.resolve().name}.prepared-{shape.key}")


def cached_shards(folder: Path, shape: Shape) -> list[ShardNote]:
    """The shards of a set that are prepared, in their order."""
    home = cache_folder(folder, shape)
    return [note for note in shards.index_of(folder).distinct if cache_file(home, note, "rest.npz").exists()]


def cache_file(home: Path, note: ShardNote, end: str) -> Path:
    """File of a shard's prepared arrays."""
    return home / f"{Path(note.file).stem}-{note.sha256[:16]}.{end}"


def map_processes(
    work: Callable[[Job], Result], jobs: Sequence[Job], folder: Path, workers: Workers
) -> Iterator[Result]:
    """Results of `work` for each shard's job as they come. Raises SetError if a process cannot do its job."""
    if workers == 1 or len(jobs) <= 1:
        yield from map(work, jobs)
        return
    calls = map_restartable(jobs, partial(_call, work), workers, portable=False)
    with closing(calls) as outcomes:
        for outcome in outcomes:
            if outcome.reason:
                raise SetError(f"a process that read {folder} failed: {outcome.reason}: try --workers 1")
            yield outcome.result  # type: ignore[misc]


def _call(work: Callable[[Job], Result], job: Job, report: Callable[[Any], None]) -> Result:
    return work(job)


def cache_shard(folder: Path, home: Path, note: ShardNote, shape: Shape) -> list[str]:
    """Writes the arrays of one shard; returns sentences on what was left out. Nothing is written if no scene can be
    read.
    """
    sentences: list[str] = []
    spec = shape.spec
    rows: dict[str, list[Array]] = {}
    for scene in shards.read_shard(folder, note, images=shape.cameras > 0, on_damage=sentences.append):
        observation = scene.observation()
        try:
            inputs = features.model_inputs(observation, spec)
            other = features.model_inputs(mirror_words(observation), spec)
        except ValueError as fault:
            sentences.append(f"{folder / note.file}: scene {scene.name} is left out: {fault}")
            continue
        of_images = {
            "images": inputs.images,
            "distances": distance_map.distance_map(scene.areas),
            "occupancy": occupancy.occupancy(scene),
        }
        arrays = {
            **(of_images if shape.cameras else {"occupancy": np.zeros(0, bool)}),
            "text": inputs.text,
            "text_mirrored": other.text,
            "ego": inputs.ego,
            "route": features.route_ahead(observation.route, spec.route_at_m).astype(np.float32),
            "expert": scene.expert,
            "expert_on_route": on_route(scene.expert, observation.route),
            "names": np.array(scene.name.encode(), NAME_DTYPE),
            "known": np.array([scene.has_map, scene.has_objects]),
            "tags": np.array(scene.family.encode(), NAME_DTYPE),
        }
        for name, value in arrays.items():
            rows.setdefault(name, []).append(value)
    if not rows:
        return sentences
    stacked = {name: np.stack(values) for name, values in rows.items()}
    for name, file in FILES.items() if shape.cameras else ():
        write_array(cache_file(home, note, file), stacked.pop(name))
    write_arrays(cache_file(home, note, "rest.npz"), stacked)
    return sentences


def on_route(poses: Array, route: Array) -> Array:
    """(.., T, 3) poses of the ego frame in Frenet coordinates of a route (L, 3); NaN where it does not pass the car."""
    line = FrenetFrame.of(route)
    if line is None:
        return np.full(poses.shape, np.nan)
    return frenet_poses(poses, line)


def select_rows(scenes: CachedSet, rows: Array) -> CachedSet:
    """The scenes `rows` (M,) of a set."""
    parts = {name: getattr(scenes, name)[rows] for name in (*PER_SCENE, "location")}
    return replace(scenes, **parts, shares=None if scenes.shares is None else scenes.shares[rows])


def mirror_words(observation: Observation) -> Observation:
    """The observation with the command and words of its mirror image."""
    words = (MIRRORED_WORDS.get(word, word) for word in observation.instruction.split(" "))
    command = MIRRORED_COMMANDS.get(observation.command, observation.command)
    return replace(observation, command=command, instruction=" ".join(words))


def _open_cache(home: Path, notes: Sequence[ShardNote], shape: Shape) -> CachedSet:
    rest: dict[str, list[Array]] = {}
    images, distances, location = [], [], []
    for number, note in enumerate(notes):
        for name, values in read_stored(cache_file(home, note, "rest.npz")).items():
            rest.setdefault(name, []).append(values)
        count = len(rest["text"][-1])
        location.append(np.stack([np.full(count, number), np.arange(count)], axis=1))
        if not shape.cameras:
            continue
        images.append(np.load(cache_file(home, note, FILES["images"]), mmap_mode="r", allow_pickle=False))
        distances.append(np.load(cache_file(home, note, FILES["distances"]), mmap_mode="r", allow_pickle=False))
    text = "".join([shape.key, *(note.sha256 for note in notes)])
    return CachedSet(
        images=tuple(images),
        distances=tuple(distances),
        **{name: np.concatenate(values) for name, values in rest.items()},
        location=np.concatenate(location),
        notes=tuple(notes),
        key=hashlib.sha256(text.encode()).hexdigest(),
    )


def read_stored(path: Path) -> dict[str, Array]:
    """The arrays of a file that `write_arrays` wrote. Raises SetError where it is damaged, OSError."""
    try:
        return read_arrays(path)
    except DocumentError as fault:
        raise SetError(f"{path} {fault}: remove it, and it is written again") from None


def write_array(path: Path, array: Array) -> None:
    """A file of one array, whole or not at all."""
    write_atomic(path, _to_bytes(np.save, array))


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """A file of arrays by name, whole or not at all."""
    write_atomic(path, _to_bytes(lambda to, each: np.savez(to, **each), arrays))


def _to_bytes(write: Callable[[Any, Any], None], value: Any) -> bytes:
    buffer = io.BytesIO()
    write(buffer, value)
    return buffer.getvalue()
