"""Scene sets from NAVSIM: scenes of the devkit's own loader, with maps and references of its metric cache.

    OUT/frames/LOG.parquet   rows of one log, complete or absent
    OUT/LOG-00000.tar ..     its scenes, with a note each (`data.shards`)

A log is one task. Files carry a hash of what they depend on: the same command keeps what is whole and makes the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..data import cache, codec, frame_index, shards
from ..data.frame_index import FrameRow
from ..data.scene import INSTANTS_S, DrivingScene
from ..data.shards import Index, SetError, ShardContent
from ..features import cameras
from ..infra.documents import DocumentError, read_yaml
from ..infra.errors import UserError
from ..infra.files import shown
from .navsim import FRAME_S as FRAME_S
from .navsim import PAST_FRAMES, scene_of

SET_NAME, FORMAT = "navsim", 1
SHARD_SCENES = 100
FRAMES = "frames"
OF_HYDRA = ("_target_", "_convert_")  # keys of a scene filter's file that are no fields of it


@dataclass(frozen=True)
class NavsimSource:
    """Where the data is."""

    logs: Path  # folder of log pickles
    blobs: Path  # folder of images
    metric_cache: Path | None = None
    scene_filter: Path | None = None  # YAML of the devkit, as scene_filter/navtrain.yaml


@dataclass(frozen=True)
class Job:
    """One log."""

    source: NavsimSource
    log: str
    filter_fields: Mapping[str, Any]
    out: Path
    image_size: tuple[int, int]
    source_sha256: str

    @property
    def drive(self) -> str:
        """The log's name as that of files and scenes."""
        return re.sub(r"[^A-Za-z0-9_-]+", "_", self.log)


def devkit() -> Any:
    """The modules of the devkit that the loader is in. Raises UserError where it is not installed."""
    try:
        from navsim.common import dataclasses, dataloader
    except ImportError as fault:
        raise UserError(
            f"--from navsim needs the NAVSIM devkit, which cannot be imported ({fault}): install it, see docs/navsim.md"
        ) from None
    return dataclasses, dataloader


def make_set(
    source: NavsimSource,
    out: Path,
    image_size: tuple[int, int],
    workers: int,
    progress: Callable[[int, int], None],
) -> tuple[list[FrameRow], Index]:
    """Makes or completes the set in `out`: the rows of all scenes of the filter, and the index.

    Raises UserError without the devkit, SetError where nothing can be made, OSError naming a file.
    """
    devkit()
    check_folder(out)
    fields = read_filter(source.scene_filter)
    logs = log_names(source, fields)
    jobs = [Job(source, log, fields, out, image_size, digest(source, log, fields, image_size)) for log in logs]
    (out / FRAMES).mkdir(parents=True, exist_ok=True)
    todo = [job for job in jobs if whole(job) is None]
    progress(len(jobs) - len(todo), len(jobs))
    for done, _ in enumerate(cache.map_processes(make_log, todo, out, workers), len(jobs) - len(todo) + 1):
        progress(done, len(jobs))
    rows, notes = [], []
    for job in jobs:
        log = whole(job)
        assert log is not None
        rows += log[0]
        notes += log[1]
    if not notes:
        reasons = frame_index.reason_counts(rows)
        explanation = (
            ", ".join(f"{count} as {name}" for name, count in reasons.items()) or "the filter names none of these logs"
        )
        raise SetError(f"{shown(source.logs)} gives no scene: {explanation}")
    generator = {"navsim_format": FORMAT, "codec": codec.FORMAT, "drives": [job.drive for job in jobs]}
    index = Index(SET_NAME, sum(note.scenes for note in notes), tuple(notes), generator)
    shards.write_index(out, index)
    return rows, index


def check_folder(out: Path) -> None:
    """Raises SetError for a folder with another set."""
    if (out / shards.INDEX).exists() and shards.index_of(out).set != SET_NAME:
        raise SetError(f"{shown(out)} holds another set of scenes: name another folder with --out")


def read_filter(path: Path | None) -> dict[str, Any]:
    """Fields of the devkit's SceneFilter. Raises SetError."""
    if path is None:
        return {}
    try:
        content = read_yaml(path)
    except (OSError, DocumentError) as fault:
        raise SetError(f"--scene-filter {shown(path)} cannot be read: {fault}") from None
    if not isinstance(content, dict):
        raise SetError(
            f"--scene-filter {shown(path)} is no scene filter of the devkit: give scene_filter/navtrain.yaml"
        )
    return {name: value for name, value in content.items() if name not in OF_HYDRA}


def log_names(source: NavsimSource, fields: Mapping[str, Any]) -> list[str]:
    """Logs in the folder that the filter names. Raises SetError for a folder without logs."""
    there = sorted(path.stem for path in source.logs.glob("*.pkl"))
    if not there:
        raise SetError(f"{shown(source.logs)} holds no log (*.pkl): give the folder navsim_logs/SPLIT of OpenScene")
    names = fields.get("log_names")
    return there if names is None else [log for log in there if log in set(names)]


def digest(source: NavsimSource, log: str, fields: Mapping[str, Any], image_size: tuple[int, int]) -> str:
    cached = None if source.metric_cache is None else str(source.metric_cache)
    other = {name: value for name, value in fields.items() if name != "log_names"}
    content = [__version__, FORMAT, log, cached, other, image_size, (source.logs / f"{log}.pkl").stat().st_size]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def whole(job: Job) -> tuple[list[FrameRow], list[shards.ShardNote]] | None:
    """Rows and notes of a log that is made; None where something is missing or was made of other data."""
    try:
        header, rows = frame_index.read_rows(job.out / FRAMES / f"{job.drive}.parquet")
    except OSError:
        return None
    if header.get("made_by") != job.source_sha256:
        return None
    notes = [shards.note_of(job.out, name) for name in header["shards"]]
    if any(note is None or note.made_by.get("sha256") != job.source_sha256 for note in notes):
        return None
    return rows, [note for note in notes if note is not None]


def make_log(job: Job) -> None:
    """Writes the shards of a log, then its rows."""
    dataclasses, dataloader = devkit()
    loader = dataloader.SceneLoader(  # 1.1 calls the second sensor_blobs_path, 2.x original_sensor_path
        job.source.logs,
        job.source.blobs,
        dataclasses.SceneFilter(**{**job.filter_fields, "log_names": [job.log]}),
        sensor_config=sensors(dataclasses.SensorConfig),
    )
    caches = None if job.source.metric_cache is None else dataloader.MetricCacheLoader(job.source.metric_cache)
    cached_tokens = set() if caches is None else set(caches.tokens)
    rows: list[FrameRow] = []
    names: list[str] = []
    part: list[ShardContent] = []

    def flush() -> None:
        if part:
            names.append(f"{job.drive}-{len(names):05d}")
            generator = {"navsim_format": FORMAT, "drive": job.drive, "sha256": job.source_sha256}
            shards.write_shard(job.out, names[-1], shards.concat(part), asked=len(part), made_by=generator)
            part.clear()

    rig = cameras.rig(*job.image_size)
    for tick, token in enumerate(sorted(loader.tokens)):
        scene, problem = None, ""
        if caches is not None and token not in cached_tokens:
            reasons: tuple[str, ...] = ("missing_input",)
            problem = "no metric cache of this scene: run run_metric_caching.py of the devkit on the split"
        else:
            scene, reasons, problem = load(loader, caches, token, rig, f"{job.drive}-{tick:06d}")
        if scene is not None:
            part.append(ShardContent.of([scene]))
        rows.append(row_of(job.drive, tick, scene, reasons, problem))
        if len(part) == SHARD_SCENES:
            flush()
    flush()
    frame_index.write_rows(
        job.out / FRAMES / f"{job.drive}.parquet", {"made_by": job.source_sha256, "shards": names}, rows
    )


def load(
    loader: Any, caches: Any | None, token: str, rig: Sequence[cameras.Camera], name: str
) -> tuple[DrivingScene | None, tuple[str, ...], str]:
    """The scene of a token; or None with the skip reason and its sentence."""
    try:
        scene = loader.get_scene_from_token(token)
        cached = None if caches is None else caches.get_from_token(token)
    except FileNotFoundError as fault:
        return None, ("missing_input",), f"{fault.filename} is missing"
    if len(scene.frames) <= scene.scene_metadata.num_history_frames + 7:
        return None, ("incomplete_future",), ""
    try:
        return scene_of(scene, cached, rig, len(INSTANTS_S), name), (), ""
    except ValueError as fault:
        return None, ("refused_input",), str(fault)


def sensors(kind: Any) -> Any:
    """The devkit's SensorConfig: three cameras at the two last frames."""
    frames = [PAST_FRAMES - 2, PAST_FRAMES - 1]
    others = dict.fromkeys(("cam_l1", "cam_l2", "cam_r1", "cam_r2", "cam_b0", "lidar_pc"), False)
    return kind(cam_f0=frames, cam_l0=frames, cam_r0=frames, **others)


def row_of(log: str, tick: int, scene: DrivingScene | None, reasons: tuple[str, ...], problem: str) -> FrameRow:
    x_m, y_m = (0.0, 0.0) if scene is None else scene.map_from_ego[:2].tolist()
    return FrameRow(
        drive=log,
        tick=tick,
        stamp_ns=0 if scene is None else scene.ego.stamp_ns,
        valid=scene is not None,
        reasons=reasons,
        problem=problem[:300],
        x_m=round(x_m, 3),
        y_m=round(y_m, 3),
        speed_mps=0.0 if scene is None else round(scene.ego.speed_mps, 3),
        place="" if scene is None else str(scene.notes["place"]),
        tag="" if scene is None else scene.family,
        command="FOLLOW" if scene is None else scene.command.name,
        hindsight=scene is not None and scene.notes["route"] == "driven",
        objects=scene is not None,
        scene="" if scene is None else scene.name,
    )
