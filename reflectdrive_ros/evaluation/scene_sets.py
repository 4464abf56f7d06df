"""Generates or completes scene sets of the proving ground, with progress on the console."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..data import sets, shards
from ..data.sets import MakeShard, SceneSetSpec
from ..data.shards import Index
from ..infra.parallel import Workers
from ..infra.progress import ShownProgress
from ..maps import sumo

IMAGE_SIZE = (288, 162)  # of an image: the resolution that the shipped network reads


def make_sampler(
    width: int, height: int, *, images: bool, first: int = 0, displaced_share: float = 0.0
) -> tuple[MakeShard, dict[str, Any]]:
    """The shard generator of the proving ground, and the options that its scenes depend on."""
    from ..sim import sampler

    options = sampler.Options(width, height, images, displaced_share)
    named = asdict(options)
    if not displaced_share:
        del named["displaced_share"]  # sets without displaced egos keep the names and indexes that they have
    return partial(sampler.Shard, options=options), sets.made_by(named, first)


def ensure_scene_set(
    folder: Path, spec: SceneSetSpec, make_shard: MakeShard, workers: Workers, console: Console
) -> tuple[Index, float | None]:
    """The index of a set, generated or completed first where needed, and scenes generated per second or None.

    Raises SetError, SumoMissing, OSError, each with one sentence.
    """
    if sets.is_complete(folder, spec):
        return shards.index_of(folder), None
    sumo.binary("netconvert")  # fail here once, not in every shard
    start_s = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with ShownProgress(console, *columns) as progress:
        task = progress.add_task(f"making the set '{spec.name}'", total=spec.size)
        existing: list[int] = []

        def report_progress(scenes: int) -> None:
            if not existing:
                existing.append(scenes)
            progress.update(task, completed=scenes)

        index = sets.make(folder, spec, make_shard, workers=workers, on_progress=report_progress)
    fresh = index.scenes - existing[0]
    return index, fresh / (time.perf_counter() - start_s) if fresh else None


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} scenes/s")
