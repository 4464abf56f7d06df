"""Which camera inputs show what an edit of a plan needs? The tables of docs/lab/2026-11-30-camera-probes.md.

    make camera-probes ARGS="--limit 400"

`training.probe` measures what features of a network tell of the slopes of the score and of the geometry of a scene.
This program does the same for inputs that are not in the package: larger images, a frozen EfficientNet-Lite0 with
ImageNet weights (make camera-probes installs it beside the package), its features at the projected waypoints of the
plan, a crop along the plan, and the ground in the frame of the plan.

All is computed shard by shard and kept in the folder --out: scenes with their larger images, samples, features,
predictions. Stopped at any time, the same command goes on from there, and a larger --limit uses what is there. Each
scene takes 1 MB for its features.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from camera_candidates import Lite0, Stopwatch, larger_folder, make_scenes, read_larger, scene_features
from rich.console import Console

from reflectdrive_ros.core.domain import Array, ForecastSource
from reflectdrive_ros.core.tokens import poses_from_points
from reflectdrive_ros.data.cache import CachedSet, build_cache, cache_file, select_rows, write_arrays
from reflectdrive_ros.data.scene import DrivingScene
from reflectdrive_ros.data.sets import SHARD
from reflectdrive_ros.data.shards import SceneReader, ShardNote
from reflectdrive_ros.infra import arguments
from reflectdrive_ros.infra.command import command, run_program
from reflectdrive_ros.infra.progress import track_progress
from reflectdrive_ros.model.token.net import TokenNet
from reflectdrive_ros.planning.plan_changes import sample_modes
from reflectdrive_ros.scoring.scorer import score
from reflectdrive_ros.training import probe, train_state
from reflectdrive_ros.training.data import VectorRows, shape_of, with_vectors
from reflectdrive_ros.training.probe import CHANGE_NAMES, HEADS, PAIRS, ProbeSamples
from reflectdrive_ros.training.probe_heads import error_intervals, intervals, kernel_of, share_intervals, shares
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.scene_geometry import edge_distances
from reflectdrive_ros.training.vector_data import build_vector_set

NETWORK, SCENE_NETWORK = Path("models/reflectdrive2_small"), Path("models/reflectdrive2_scene")
SCENE_NETWORK_SHARDS = 2  # in which the features of the scene network are probed


@dataclass(frozen=True)
class Candidate:
    """A row of the tables: the parts of its features, which count alike, and the parts that its time includes."""

    name: str
    parts: tuple[str, ...]
    encoded: tuple[str, ...] = ()
    is_mark: bool = False  # features that no camera gives


SAMPLED = ("front_288", "sides", "waypoints_288"), ("front_576", "sides", "waypoints_576")
CANDIDATES = (
    Candidate("none: plan, ego, route only", ()),
    Candidate("camera network, features of the finished plan", ("finished plan",)),
    Candidate("camera network, its 54 image tokens", ("image tokens",)),
    Candidate("Lite0, three images of 288 px now, and 0.5 s ago", ("front_288", "sides"), ("front_288", "sides")),
    Candidate("Lite0, front image of 576 px, others of 288 px", ("front_576", "sides"), ("front_576", "sides")),
    Candidate("Lite0 at the 8 waypoints and 1.5 m beside them, 288 px", ("waypoints_288",), SAMPLED[0]),
    Candidate("the same, 576 px", ("waypoints_576",), SAMPLED[1]),
    Candidate("Lite0, crop of the near half of the corridor from 1152 px", ("crop",), ("crop",)),
    Candidate("ground image of 288 px, Lite0", ("ground_288",), ("ground_288",)),
    Candidate("ground image of 1152 px, Lite0", ("ground_1152",), ("ground_1152",)),
    Candidate(
        "576 px, its samples, crop and ground image",
        ("front_576", "sides", "waypoints_576", "crop", "ground_288"),
        (*SAMPLED[1], "crop", "ground_288"),
    ),
    Candidate("mark: true geometry of the next table", ("geometry",), is_mark=True),
    Candidate("mark: true distances of the waypoints to the road's edges", ("edges",), is_mark=True),
    Candidate("mark: slopes of the score at constant velocity", ("forecast",), is_mark=True),
)


# --- slopes and geometry ---------------------------------------------------------------------------------------------


class ForecastScorer(PlanScorer):
    """Scores plans in the recorded future, and with all agents at constant velocity."""

    def __call__(self, scene: DrivingScene, plans: Array, with_route: bool) -> Array:
        """(M, 2) scores of plans (M, T), 0 to 1."""
        poses = self.sent_poses(scene, plans, with_route)
        sources = (ForecastSource.LOGGED, ForecastSource.CONSTANT_VELOCITY)
        return np.stack([score(scene.scored(source), poses).score for source in sources], axis=-1)


class ForecastPool(RewardPool):
    """Keeps the slopes of the score at constant velocity, for the changes that `probe.collect` samples."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.slopes: dict[int, Array] = {}  # (4,) by row of the set
        self._step = 0

    def score(self, rows: Sequence[int], *plans: Array) -> Array:
        both = super().score(rows, *plans)
        modes = sample_modes(len(rows), PAIRS, np.random.default_rng([0, self._step]))
        gains = 0.5 * (both[:, :PAIRS, 1] - both[:, PAIRS:, 1])
        for row, slopes in zip(np.asarray(rows).tolist(), np.einsum("nk,nkm->nm", gains, modes) / PAIRS, strict=True):
            self.slopes.setdefault(row, slopes)
        self._step += 1
        return both[..., :1]


def samples_of_shard(
    net: TokenNet, part: CachedSet, file: Path, folder: Path, errors: Console, vectors: VectorRows | None = None
) -> tuple[ProbeSamples, Array]:
    """What `probe.collect` gives for the scenes of a shard, and their slopes at constant velocity (n, 4)."""
    if not file.exists():
        with ForecastPool(folder, part, ForecastScorer(net.config.layout), 1) as pool:
            samples = probe.collect(net, part, pool, len(part), folder, errors, vectors)
        forecast = np.stack([pool.slopes[row] for row in range(len(part))])
        own = {name: getattr(samples, name) for name in ("ego", "inputs", "slopes", "geometry")}
        write_arrays(file, {**own, **samples.features, "forecast": forecast})
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored}
    forecast, own = arrays.pop("forecast"), [arrays.pop(name) for name in ("ego", "inputs")]
    slopes, geometry = arrays.pop("slopes"), arrays.pop("geometry")
    return ProbeSamples(own[0], own[1], arrays, slopes, geometry), forecast


def join(parts: Sequence[ProbeSamples]) -> ProbeSamples:
    features = {name: np.concatenate([part.features[name] for part in parts]) for name in parts[0].features}
    ego, inputs, slopes, geometry = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ego", "inputs", "slopes", "geometry")
    )
    return ProbeSamples(ego, inputs, features, slopes, geometry)


# --- features of the candidates --------------------------------------------------------------------------------------


def features_of_shard(part: CachedSet, samples: ProbeSamples, file: Path, folder: Path, errors: Console) -> None:
    """Writes the features (n, ..) float16 of the scenes of a shard, and the seconds of each part for all of them."""
    if file.exists():
        return
    lite, watch, reader, rows = Lite0(), Stopwatch(), SceneReader(), defaultdict[str, list[Array]](list)
    plans = samples.inputs[:, :16].reshape(-1, 8, 2)
    for row in track_progress(range(len(part)), f"features of {file.parent.name}/{file.stem}", errors):
        shard, in_shard = part.location[row]
        name, images = part.names[row].decode(), np.array(part.images[shard][in_shard])
        large, before = (read_larger(folder, name, instant) for instant in ("now", "before"))
        features = scene_features(lite, images, large, before, plans[row], watch)
        areas = reader.read(folder / part.notes[shard].file, name).areas
        features["edges"] = np.nan_to_num(edge_distances(areas, poses_from_points(plans[row])).ravel())
        for key, values in features.items():
            rows[key].append(values.astype(np.float16))
    seconds = {f"seconds of {name}": np.array(value) for name, value in watch.seconds.items()}
    write_arrays(file, {**{name: np.stack(values) for name, values in rows.items()}, **seconds})


def kernel_of_parts(parts: Sequence[str], files: Sequence[Path], arrays: Mapping[str, Array]) -> Array | None:
    """(N, N) mean of the kernels of some parts; these are in `arrays`, or in a file per shard. None for no part."""
    kernels = []
    for part in parts:
        if part in arrays:
            kernels.append(kernel_of(arrays[part]))
            continue
        blocks = []
        for file in files:
            with np.load(file, allow_pickle=False) as stored:
                blocks.append(stored[part])
        kernels.append(kernel_of(np.concatenate(blocks)))
    return np.asarray(np.mean(kernels, axis=0)) if kernels else None


# --- heads and tables ------------------------------------------------------------------------------------------------


class Predictions:
    """Predictions of the heads, kept in a folder for the scenes that they are of."""

    def __init__(self, samples: ProbeSamples, folder: Path) -> None:
        self.samples, self.folder = samples, folder

    def of(
        self, candidate: Candidate, head: str, files: Sequence[Path], arrays: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        """(N, 4) slopes and (N, 10) geometry as `probe.predict_all`."""
        file = self.folder / f"{CANDIDATES.index(candidate):02d}-{head.replace(' ', '_')}.npz"
        if not file.exists():
            kernel = kernel_of_parts(candidate.parts, files, arrays)
            slopes, geometry = probe.predict_all(self.samples, kernel, head)
            write_arrays(file, {"slopes": slopes, "geometry": geometry})
        with np.load(file, allow_pickle=False) as stored:
            return stored["slopes"], stored["geometry"]


def share_cells(slopes: Array, predicted: Array, base: Array | None) -> list[str]:
    """Explained shares in %: of pace and delay, of the lateral offset with its interval, what it has more than the
    first row with its interval, of bulge."""
    pace, delay, offset, bulge = (100.0 * share_intervals(slopes, predicted)).tolist()
    adds = ""
    if base is not None:
        more = intervals(lambda k: shares(slopes[k], predicted[k]) - shares(slopes[k], base[k]), len(slopes))
        adds = interval_cell(100.0 * more[CHANGE_NAMES.index("offset")], ".1f")
    return [f"{pace[0]:.1f}", f"{delay[0]:.1f}", interval_cell(offset, ".1f"), adds, f"{bulge[0]:.1f}"]


def error_cells(geometry: Array, predicted: Array) -> list[str]:
    """Mean absolute errors: m, degrees, m, m/s, and m at the three distances of the left and the right edge."""
    errors = error_intervals(geometry, predicted)[:, 0]
    edges = [", ".join(f"{each:.2f}" for each in side) for side in errors[4:].reshape(2, 3)]
    return [*(f"{each:.2f}" for each in errors[:4]), *edges]


def interval_cell(values: Sequence[float] | Array, form: str) -> str:
    """A value with its interval."""
    middle, low, high = values
    return f"{middle:{form}} ({low:{form}} .. {high:{form}})"


def markdown(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(headings), ["---", *["---:"] * (len(headings) - 1)], *rows]
    return f"\n## {title}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


SLOPE_HEADINGS = ("features", "pace", "delay", "lateral offset", "adds", "bulge")
ERROR_HEADINGS = (
    *("features", "lane offset, m", "heading, deg", "gap, m", "lead, m/s"),
    *("left edge at 10, 20, 30 m, m", "right edge, m"),
)


def tables_of(
    candidates: Sequence[Candidate],
    predictions: Predictions,
    head: str,
    files: Sequence[Path],
    arrays: Mapping[str, Array],
    errors: Console,
) -> str:
    """Shares and errors of candidates with one kind of head."""
    samples, slopes, geometry = predictions.samples, list[list[str]](), list[list[str]]()
    base: Array | None = None
    for candidate in track_progress(candidates, f"heads, {head}", errors):
        of_slopes, of_geometry = predictions.of(candidate, head, files, arrays)
        slopes.append([candidate.name, *share_cells(samples.slopes, of_slopes, base)])
        base = of_slopes if base is None else base
        if not candidate.is_mark:
            geometry.append([candidate.name, *error_cells(samples.geometry, of_geometry)])
    title = f"{len(samples.slopes)} scenes, {head}"
    return markdown(f"Explained share of the slopes, %: {title}", SLOPE_HEADINGS, slopes) + markdown(
        f"Errors of the geometry, mean absolute: {title}", ERROR_HEADINGS, geometry
    )


def time_table(notes: Sequence[ShardNote], count: int, folder: Path, files: Sequence[Path], encode_s: float) -> str:
    """Processor seconds per scene: to render, and to encode the images of each candidate."""
    stored = [np.load(larger_folder(folder) / f"{Path(note.file).stem}.times.npz") for note in notes]
    whole_s, larger_s = (sum(float(each[name]) for each in stored) / count for name in ("all", "larger"))
    rows = [
        ["make a scene with six images of 288 px", f"{whole_s - larger_s:.2f}"],
        ["render the front camera at 1152 px, now and 0.5 s ago", f"{larger_s:.2f}"],
        ["camera network, its 54 image tokens", f"{encode_s:.3f}"],
    ]
    seconds: dict[str, float] = defaultdict(float)
    for file in files:
        with np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                if name.startswith("seconds of "):
                    seconds[name.removeprefix("seconds of ")] += float(arrays[name]) / count
    for candidate in CANDIDATES:
        if candidate.encoded:
            rows.append([candidate.name, f"{sum(seconds[part] for part in candidate.encoded):.3f}"])
    return markdown(f"Seconds per scene, one core, {count} scenes", ("what", "s"), rows)


@torch.inference_mode()
def encode_seconds(net: TokenNet, scenes: CachedSet, count: int = 20) -> float:
    """Seconds per scene of the image tokens of the camera network, one scene at a time."""
    images = [torch.from_numpy(np.array(scenes.images[0][k % len(scenes.images[0])]))[None] for k in range(count)]
    net.encode_images(images[0])
    begin_s = time.process_time()
    for each in images:
        net.encode_images(each)
    return (time.process_time() - begin_s) / count


def scene_network_table(args: argparse.Namespace, head: str, folder: Path, errors: Console) -> str:
    """Shares of the slopes of its own plans, and errors, by the features of the scene network in the first shards."""
    net = train_state.load_network(SCENE_NETWORK).requires_grad_(False)
    assert net.config.scene is not None
    scenes = build_cache(folder, shape_of(net.config), args.workers, errors.print, lambda *done: None)
    vectors = build_vector_set(folder, net.config.scene.spec, args.workers, errors.print, lambda *done: None)
    scenes, rows = with_vectors(scenes, vectors, seed=0)
    parts = []
    for shard, note in enumerate(scenes.notes[:SCENE_NETWORK_SHARDS]):
        of_shard = np.flatnonzero(scenes.location[:, 0] == shard)
        own = replace(rows, rows=rows.rows[of_shard], map_dropout=0.0)
        file = cache_file(args.out, note, "scene_samples.npz")
        parts.append(samples_of_shard(net, select_rows(scenes, of_shard), file, folder, errors, own)[0])
    samples, slopes, geometry = join(parts), list[list[str]](), list[list[str]]()
    for name in ("none: plan, ego, route only", "scene network, features of the finished plan"):
        kernel = kernel_of(samples.features["finished plan"]) if slopes else None
        of_slopes, of_geometry = probe.predict_all(samples, kernel, head)
        shares_95 = (100.0 * share_intervals(samples.slopes, of_slopes)).tolist()
        slopes.append([name, *(interval_cell(each, ".1f") for each in shares_95)])
        geometry.append([name, *error_cells(samples.geometry, of_geometry)])
    title = f"the scene network, {len(samples.slopes)} scenes, {head}"
    return markdown(f"Explained share of the slopes, %: {title}", ("features", *CHANGE_NAMES), slopes) + markdown(
        f"Errors of the geometry, mean absolute: {title}", ERROR_HEADINGS, geometry
    )


# --- the program -----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=arguments.positive_int(100_000), default=3000, metavar="N", help="scenes")
    parser.add_argument(
        "--out", type=Path, default=Path("out/camera_probes"), metavar="DIR", help="folder of all results"
    )
    parser.add_argument("--workers", type=arguments.process_count(), default=1, metavar="N", help="rendering processes")
    parser.add_argument("--heads", nargs="+", choices=tuple(HEADS), default=list(HEADS), metavar="HEAD", help="kinds")


@command("what is complete is kept, the same command resumes")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if a package, a set or weights cannot be used."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    Lite0()  # fails before the work where it is not installed
    folder = args.out / "scenes"
    make_scenes(folder, args.limit, args.workers, errors)
    net = train_state.load_network(NETWORK).requires_grad_(False)
    scenes = build_cache(folder, shape_of(net.config), args.workers, errors.print, lambda *done: None)
    notes = scenes.notes[: -(-args.limit // SHARD)]  # an earlier call may have made more
    parts, forecasts, files = [], [], []
    for shard, note in enumerate(notes):
        part = select_rows(scenes, np.flatnonzero(scenes.location[:, 0] == shard))
        samples, forecast = samples_of_shard(net, part, cache_file(args.out, note, "samples.npz"), folder, errors)
        files.append(cache_file(args.out, note, "features.npz"))
        features_of_shard(part, samples, files[-1], folder, errors)
        parts.append(samples)
        forecasts.append(forecast)
    samples = join(parts)
    geometry = np.concatenate([np.nan_to_num(samples.geometry), np.isnan(samples.geometry)], axis=1)
    arrays = {**samples.features, "geometry": geometry, "forecast": np.concatenate(forecasts)}
    count, spreads = len(samples.slopes), ", ".join(f"{100.0 * std:.1f}" for std in samples.slopes.std(0))
    text = f"Standard deviations of the slopes ({', '.join(CHANGE_NAMES)}), points of score: {spreads}. "
    text += f"{int(np.isfinite(samples.geometry[:, 2]).sum())} of {count} scenes have a lead.\n"
    text += time_table(notes, count, folder, files, encode_seconds(net, scenes))
    predictions = Predictions(samples, args.out / f"heads-{count}-{scenes.key[:16]}")
    predictions.folder.mkdir(exist_ok=True)
    for head in args.heads:
        text += tables_of(CANDIDATES, predictions, head, files, arrays, errors)
        text += scene_network_table(args, head, folder, errors)
    (args.out / "tables.md").write_text(text, encoding="utf-8")
    console.print(text)


if __name__ == "__main__":
    raise SystemExit(run_program(__doc__, add_arguments, run))
