"""Work on the scenes of a set in several processes, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from ..data.shards import SetError, ShardNote
from ..infra import parallel
from ..infra.progress import ShownProgress

Result = TypeVar("Result")
ShardTask = tuple[ShardNote, int]  # a shard, and how many of its scenes


def plan_shards(
    folder: Path,
    tasks: Sequence[ShardTask],
    work: Callable[[ShardTask, Callable[[Any], None]], list[Result]],
    workers: parallel.Workers,
    errors: Console,
) -> list[Result]:
    """What `work` gives for the scenes of each task, in the order of the tasks. Raises SetError naming a shard that
    fails, or if there is no scene."""
    found: dict[str, list[Result]] = {}
    with ShownProgress(errors) as progress:
        bar = progress.add_task("planning", total=sum(scenes for _, scenes in tasks))
        with closing(parallel.map_restartable(tasks, work, workers)) as outcomes:
            for outcome in outcomes:
                note, scenes = outcome.task
                if outcome.result is None:
                    raise SetError(f"{note.file} could not be planned for: {outcome.reason}")
                found[note.file] = outcome.result
                progress.advance(bar, scenes)
    results = [each for note, _ in tasks for each in found[note.file]]
    if not results:
        raise SetError(f"{folder} holds no scene to plan for")
    return results
