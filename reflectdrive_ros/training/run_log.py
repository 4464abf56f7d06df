"""Progress output of a training run: a progress bar, log.csv and TensorBoard."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch.utils.tensorboard import SummaryWriter

from ..infra.files import MEGABYTE, read_limited
from . import train_state
from .train_state import StateError

LOG = "log.csv"
LOG_BYTES = 64 * MEGABYTE


class RunLog:
    """Progress bar, log.csv and TensorBoard, by the first process alone."""

    def __init__(
        self,
        out: Path,
        batch: int,
        columns: Sequence[str],
        summarize: Callable[[Mapping[str, float]], str],
        console: Console,
        enabled: bool,
    ) -> None:
        """`batch`: scenes per step; `columns`: names of the values of a row, losses and metrics; `summarize`: one line
        on the metrics of a validation."""
        self.out, self.batch, self.columns, self.console, self.enabled = out, batch, columns, console, enabled
        self._summarize = summarize
        self._previous = (0.0, 0)  # elapsed and step at the last row
        self._loss: float | None = None  # of the last row; None before the first

    def __enter__(self) -> RunLog:
        if self.enabled:
            saved = train_state.read_progress(self.out)
            progress = train_state.Progress() if saved is None else saved[0]
            self._previous = progress.elapsed_s, progress.step
            _drop_unsaved_rows(self.out / LOG, self.columns, progress.step)
            self._board = SummaryWriter(str(self.out / "tensorboard"), purge_step=progress.step)
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True)
            self._task: TaskID = self._bar.add_task("learning", total=1.0, text="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            self._bar.stop()
            self._board.close()

    def step(self, progress: train_state.Progress, at: float) -> None:
        """A step is done; `at` is 0 to 1 in the schedule."""
        if not self.enabled:
            return
        rate = self._rate(progress)
        left_s = progress.elapsed_s * (1.0 - at) / max(at, 1e-9)
        loss = "" if self._loss is None else f", loss {self._loss:.3f}"
        text = f"step {progress.step}{loss}, {rate:.1f} scenes/s, {left_s / 60:.0f} min left"
        self._bar.update(self._task, completed=at, text=text)

    def row(self, progress: train_state.Progress, values: Mapping[str, float]) -> None:
        """Means of losses and metrics since the last row."""
        if not self.enabled:
            return
        is_first, self._loss = self._loss is None, values["loss"]
        row = {"step": progress.step, "minutes": progress.elapsed_s / 60.0, **values}
        row["scenes_per_s"] = self._rate(progress)
        self._previous = (progress.elapsed_s, progress.step)
        path = self.out / LOG
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            names = all_columns(self.columns)
            writer = csv.DictWriter(file, names)
            if new:
                writer.writeheader()
            writer.writerow({name: f"{row[name]:.6g}" for name in names})
        # vision pretraining has no plan metrics
        finite = {name: value for name, value in row.items() if not math.isnan(value)}
        for name in finite.keys() - {"step", "minutes"}:
            self._board.add_scalar(f"train/{name}", finite[name], progress.step)
        if is_first or not self.console.is_terminal:  # further losses are in the bar
            self.console.print(
                f"step {progress.step}, {row['minutes']:.1f} min: "
                + " ".join(f"{name} {finite[name]:.3f}" for name in self.columns if name in finite)
                + f", {row['scenes_per_s']:.1f} scenes/s"
            )

    def missing_keys(self, names: Sequence[str]) -> None:
        """The parameters that the run that this one begins with does not have."""
        if self.enabled and names:
            modules = Counter(name.removeprefix("net.").split(".")[0] for name in names)
            parts = ", ".join(f"{module} ({count} parameters)" for module, count in modules.items())
            self.console.print(f"not in the weights of --init-from, initialised as in a new run: {parts}")

    def validated(self, progress: train_state.Progress, metrics: Mapping[str, float]) -> None:
        """The result of a validation."""
        if not self.enabled:
            return
        for name, value in metrics.items():
            self._board.add_scalar(f"val/{name}", value, progress.step)
        minutes = progress.elapsed_s / 60.0
        self.console.print(f"step {progress.step}, {minutes:.1f} min: {self._summarize(metrics)}")

    def _rate(self, progress: train_state.Progress) -> float:
        """Scenes per second since the last row."""
        if progress.elapsed_s <= self._previous[0]:
            return 0.0
        return self.batch * (progress.step - self._previous[1]) / (progress.elapsed_s - self._previous[0])


def all_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Names in the head of a log."""
    return ("step", "minutes", *columns, "rate", "scenes_per_s")


def _drop_unsaved_rows(path: Path, columns: Sequence[str], step: int) -> None:
    """Removes rows of a log that are later than the state: they are written again. Raises StateError."""
    rows = complete_rows(path, columns)
    if rows is not None:
        saved_rows = [line for line in rows if float(line.split(",")[0]) <= step]
        path.write_text(f"{','.join(all_columns(columns))}\n{''.join(saved_rows)}", encoding="utf-8")


def complete_rows(path: Path, columns: Sequence[str]) -> list[str] | None:
    """Complete rows of a log; None if there is no log. Raises StateError for another file."""
    expected = all_columns(columns)
    try:
        head, *lines = read_limited(path, LOG_BYTES).decode(errors="replace").splitlines() or [",".join(expected)]
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise StateError(f"{path} cannot be read: {fault.strerror}") from None
    if tuple(head.split(",")) != expected:
        raise StateError(f"{path} is not a log of this training run: remove it, or give another --out")
    return [f"{line}\n" for line in lines if _is_row(line, len(expected))]


def _is_row(line: str, cells_of_row: int) -> bool:
    cells = line.split(",")
    try:
        return len([float(cell) for cell in cells]) == cells_of_row
    except ValueError:
        return False
