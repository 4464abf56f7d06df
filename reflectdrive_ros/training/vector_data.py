"""Training samples of the denoiser: vector inputs and futures of each scene, computed once and memory-mapped.

    train/ train-00000.tar ..     train.vectors-1a2b3c4d/ train-00000-<hash>.npy ..

A sample is one row of float32: the arrays of `features.vectors.VectorInputs`, then the futures of the ego and of the
first neighbours, one after the other. The ego's future is the expert's plan, or the recorded drive. A shard's file
appears complete or not at all, and its name carries the hash of the shard, so that stale files are never read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..core.domain import Array
from ..core.vector_spec import VectorSpec
from ..data import shards
from ..data.cache import NAME_DTYPE, cache_file, write_array, write_missing
from ..data.scene import NOW, DrivingScene
from ..data.shards import ShardNote
from ..features.vectors import agent_order, vector_inputs
from ..infra.parallel import Workers
from ..planning.ego_future import line_of, reference_line
from ..planning.postprocess.waypoints import interpolate
from ..scoring.frenet import frenet_poses

FORMAT = 2
NAMES = "names.npy"  # file of the names of a shard's samples
# columns that change their sign in the mirrored scene
MIRRORED = {
    "ego": (1, 3, 5, 7, 8, 9),
    "agents": (1, 3, 5),
    "static_objects": (1, 3),
    "lanes": (1, 3, 5, 7),
    "route_lanes": (1, 3, 5, 7),
    "ego_future": (1, 2),
    "agent_futures": (1, 2),
}
SWAPPED_EDGES = [0, 1, 2, 3, 6, 7, 4, 5, 8, 9, 10, 11]  # columns of lanes, left and right edge in each other's place


def sample_shapes(spec: VectorSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a sample, in the order of its row."""
    points, steps, others = spec.lane_points, spec.future_steps, spec.predicted_agents
    return {
        "ego": (10,),
        "agents": (spec.agents, spec.history_steps, 11),
        "static_objects": (spec.static_objects, 10),
        "lanes": (spec.lanes, points, 12),
        "lane_limits": (spec.lanes, 1),
        "lane_has_limit": (spec.lanes, 1),
        "route_lanes": (spec.route_lanes, points, 12),
        "ego_future": (steps, 3),  # poses at dt, 2 dt, ..
        "agent_futures": (others, steps, 3),  # 0 where not valid
        "agent_valid": (others, steps),
    }


ShardNames = tuple[Path, Array]  # a shard, and the names (n,) of the scenes of its samples, bytes


@dataclass(frozen=True, eq=False)
class VectorSet:
    """N samples of one or more sets; rows are read from disk on access."""

    rows: tuple[Array, ...]  # per shard (n, columns) float32
    location: Array  # (N, 2) shard, row
    recorded: Array  # (N,) bool, recorded traffic: its ego starts are not perturbed
    weights: Array  # (N,) relative frequency of each sample
    spec: VectorSpec
    key: str  # of the samples
    scenes: tuple[ShardNames | None, ...]  # per shard; None: recorded traffic, which plans cannot be scored in

    def __len__(self) -> int:
        return len(self.location)

    def scene_of(self, index: int) -> tuple[Path, str] | None:
        """Shard and name of the scene of a sample; None of recorded traffic."""
        shard, row = self.location[index].tolist()
        scenes = self.scenes[shard]
        return None if scenes is None else (scenes[0], scenes[1][row].decode())

    def arrays(self, indices: Array) -> dict[str, Array]:
        """Samples (B,) as arrays by name, with a leading axis."""
        table = np.stack([self.rows[shard][row] for shard, row in self.location[indices].tolist()])
        arrays, at = {}, 0
        for name, shape in sample_shapes(self.spec).items():
            size = math.prod(shape)
            arrays[name] = table[:, at : at + size].reshape(-1, *shape)
            at += size
        return arrays


def merge(sets: Sequence[VectorSet], weights: Sequence[float]) -> VectorSet:
    """Sets as one, each sampled with a share that is proportional to its weight."""
    shifts = np.cumsum([0, *(len(each.rows) for each in sets[:-1])])
    locations = [each.location + np.array([shift, 0]) for each, shift in zip(sets, shifts.tolist(), strict=True)]
    keys = "".join(each.key + str(weight) for each, weight in zip(sets, weights, strict=True))
    shares = [weight / sum(weights) for weight in weights]
    return VectorSet(
        tuple(rows for each in sets for rows in each.rows),
        np.concatenate(locations),
        np.concatenate([each.recorded for each in sets]),
        np.concatenate([np.full(len(each), share / len(each)) for each, share in zip(sets, shares, strict=True)]),
        sets[0].spec,
        hashlib.sha256(keys.encode()).hexdigest(),
        tuple(names for each in sets for names in each.scenes),
    )


def build_vector_set(
    folder: Path,
    spec: VectorSpec,
    workers: Workers,
    on_damage: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> VectorSet:
    """The samples of a scene set; missing ones are computed first.

    `workers`, `on_damage`, `progress` and what it raises: as `cache.build_cache`.
    """
    key = format_key(spec)
    home = folder.resolve().with_name(f"{folder.resolve().name}.vectors-{key}")
    write = partial(_write_shard, folder, home, spec=spec)
    notes = write_missing(folder, home, "npy", write, workers, on_damage, progress)
    rows = tuple(np.load(cache_file(home, note, "npy"), mmap_mode="r", allow_pickle=False) for note in notes)
    scenes = tuple((folder / note.file, np.load(cache_file(home, note, NAMES), allow_pickle=False)) for note in notes)
    return set_of_rows(rows, spec, "".join([key, *(note.sha256 for note in notes)]), scenes)


def set_of_rows(
    rows: tuple[Array, ...], spec: VectorSpec, key: str, scenes: tuple[ShardNames, ...] | None
) -> VectorSet:
    """A set of tables (n, columns); all samples are used equally often. `scenes`: of each table; None: of recorded
    traffic."""
    locations = [np.stack([np.full(len(each), k), np.arange(len(each))], axis=1) for k, each in enumerate(rows)]
    location = np.concatenate(locations)
    count = len(location)
    digest = hashlib.sha256(key.encode()).hexdigest()
    weights, recorded = np.full(count, 1.0 / count), np.full(count, scenes is None)
    return VectorSet(rows, location, recorded, weights, spec, digest, scenes or (None,) * len(rows))


def format_key(spec: VectorSpec) -> str:
    """Hash of the input format; normalisation is no part of it."""
    text = json.dumps([FORMAT, dataclasses.asdict(dataclasses.replace(spec, normalization=type(spec.normalization)()))])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _write_shard(folder: Path, home: Path, note: ShardNote, spec: VectorSpec) -> list[str]:
    """Writes the samples of one shard; returns sentences on what was left out."""
    sentences: list[str] = []
    rows, names = [], []
    for scene in shards.read_shard(folder, note, images=False, on_damage=sentences.append):
        try:
            rows.append(flat_row(scene_sample(scene, spec)))
            names.append(scene.name)
        except ValueError as fault:
            sentences.append(f"{folder / note.file}: scene {scene.name} is left out: {fault}")
    if rows:
        write_array(cache_file(home, note, NAMES), np.array(names, NAME_DTYPE))
        write_array(cache_file(home, note, "npy"), np.stack(rows))
    return sentences


def flat_row(sample: Mapping[str, Array]) -> Array:
    """A sample as one row of float32."""
    return np.concatenate([np.asarray(each, np.float32).ravel() for each in sample.values()])


def scene_sample(scene: DrivingScene, spec: VectorSpec) -> dict[str, Array]:
    """The sample of a scene: what the planner observes under the privilege `objects`, the expert's plan, and the logged
    futures of the neighbours. Raises ValueError for a scene that cannot be used."""
    observation = scene.observation(vectors=True)
    inputs = vector_inputs(observation, spec)
    line_of(inputs, spec)  # raises for a scene off its route
    observed = np.flatnonzero(scene.tracks.present[:, NOW])[agent_order(scene.agents, spec)][: spec.predicted_agents]
    later = slice(NOW + 1, NOW + 1 + spec.future_steps)
    future = interpolate(scene.expert[None], scene.ego.speed_mps, spec.future_dt_s)[0, : spec.future_steps]
    return {
        **inputs.arrays,
        **futures(future, scene.tracks.poses[observed, later], scene.tracks.present[observed, later], spec),
    }


def futures(ego: Array, agents: Array, valid: Array, spec: VectorSpec) -> dict[str, Array]:
    """The targets of a sample: poses (T, 3), (N, T, 3) and valid (N, T), padded to the predicted agents.

    Raises ValueError for futures that are shorter than the network's.
    """
    if len(ego) != spec.future_steps or agents.shape[1] != spec.future_steps:
        raise ValueError(f"its futures have {len(ego)} and {agents.shape[1]} steps, expected {spec.future_steps}")
    padded = np.zeros((spec.predicted_agents, spec.future_steps, 3), np.float32)
    is_valid = np.zeros(padded.shape[:2], np.float32)
    padded[: len(agents)], is_valid[: len(agents)] = np.where(valid[..., None], agents, 0.0), valid
    return {"ego_future": ego, "agent_futures": padded, "agent_valid": is_valid}


def row_size(spec: VectorSpec) -> int:
    """Columns of a row."""
    return sum(math.prod(shape) for shape in sample_shapes(spec).values())


def mirror(arrays: Mapping[str, Array], which: Array) -> dict[str, Array]:
    """Samples (B,) of which those `which` (B,) bool are mirrored: left becomes right."""
    mirrored: dict[str, Array] = {}
    for name, values in arrays.items():
        changed: Array = np.array(values)
        if name in MIRRORED:
            signs = np.ones(values.shape[-1], np.float32)
            signs[list(MIRRORED[name])] = -1.0
            changed[which] *= signs
            if name in ("lanes", "route_lanes"):
                changed[which] = changed[which][..., SWAPPED_EDGES]
        mirrored[name] = changed
    return mirrored


def with_frenet_futures(arrays: Mapping[str, Array], spec: VectorSpec) -> dict[str, Array]:
    """Samples (B,) whose ego futures are Frenet coordinates, for networks with `VectorSpec.ego_frenet`."""
    futures = [
        frenet_poses(future.astype(float), reference_line(route_lanes, spec))
        for future, route_lanes in zip(arrays["ego_future"], arrays["route_lanes"], strict=True)
    ]
    return {**arrays, "ego_future": np.stack(futures).astype(np.float32)}


def without_map(arrays: Mapping[str, Array], which: Array, spec: VectorSpec) -> dict[str, Array]:
    """Samples (B,) of which those `which` (B,) bool have no lanes: what `vector_inputs` makes where there is no map.
    The line of the route stays."""
    changed = {name: np.array(values) for name, values in arrays.items()}
    for name in ("lanes", "lane_limits", "lane_has_limit"):
        changed[name][which] = 0.0
    changed["route_lanes"][which, spec.route_line_rows :] = 0.0
    return changed
