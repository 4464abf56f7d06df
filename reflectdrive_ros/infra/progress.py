"""Progress of long work: a bar on terminals, a line per minute where the output is a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

LINE_S = 60.0  # between lines
Item = TypeVar("Item")


class ShownProgress(Progress):
    """rich's bars, which vanish at the end. Where the console is no terminal, a line per minute on the first task.

    hidden: shows nothing.
    """

    def __init__(self, console: Console, *columns: ProgressColumn, hidden: bool = False) -> None:
        super().__init__(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)
        self._prints_lines = not (hidden or console.is_terminal)
        self._begun_s = self.get_time()
        self._line_at = self._begun_s + LINE_S

    def update(self, task_id: TaskID, **options: Any) -> None:
        super().update(task_id, **options)
        self._print_line()

    def advance(self, task_id: TaskID, advance: float = 1.0) -> None:
        super().advance(task_id, advance)
        self._print_line()

    def _print_line(self) -> None:
        now, first = self.get_time(), self.tasks[0]
        if not self._prints_lines or now < self._line_at:
            return
        self._line_at = now + LINE_S
        minutes = (now - self._begun_s) / 60.0
        share = "" if first.total is None else f" {first.percentage:.0f} %"
        self.console.print(f"{first.description}:{share} after {minutes:.0f} min")


def track_progress(items: Iterable[Item], title: str, console: Console, total: int | None = None) -> Iterator[Item]:
    """Yields the items, and shows how many of `total` or of their length are done."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with ShownProgress(console) as progress:
        task = progress.add_task(title, total=total)
        for item in items:
            yield item
            progress.advance(task)
