"""Shared by all commands: consoles, tables, errors as one sentence, exit codes.

A command, and a program of its own:

    @command("the same command resumes from there")
    def run(args, console, errors) -> int | None:           # UserError, OSError: one sentence on stderr, exit code 2
        write_numbers(args.json, numbers)
        console.print(make_table(("family", "scenes"), rows))

    if __name__ == "__main__":
        raise SystemExit(run_program(__doc__, add_arguments, run))
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .errors import Parser, UserError, printable
from .signals import STDOUT, report_stop, run_process
from .storage import sentence_of

LOG_WIDTH = 180  # columns of standard output that is not a terminal
CELL_COLUMNS = 28  # a cell up to this wide stays on one line
SENTENCE_COLUMNS = 48  # a table with a wider cell beside the names of its rows is stacked rather than split
PARTS_MAX = 4  # of a table that is split
ANY_WIDTH = 10**5  # columns
Arguments = argparse.Namespace


class PlainConsole(Console):
    """Plain text without wrapping and, also in tables and titles, without what a terminal would obey."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, stderr=stderr, width=width)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class Output(PlainConsole):
    """Standard output. An OSError of writing has the file name STDOUT."""

    def __init__(self) -> None:
        super().__init__(width=None if sys.stdout is not None and sys.stdout.isatty() else LOG_WIDTH)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as fault:
            fault.filename = STDOUT
            raise


def command(
    stopped: str | Callable[[Arguments], str] | None = None, os_error: str = "{} cannot be written: {}"
) -> Callable[[Callable[[Arguments, Console, Console], int | None]], Callable[[Arguments], int]]:
    """Turns `run(args, console, errors)`, which returns an exit code or None for 0, into the entry `run(args)` of a
    command.

    UserError and OSError become one sentence on standard error and exit code 2; `os_error` is the format of that
    sentence, with file and reason. `stopped` is the consequence of a signal for the user; None: the caller prints it. A
    file of --json that cannot be written is refused before the work.
    """

    def decorate(work: Callable[[Arguments, Console, Console], int | None]) -> Callable[[Arguments], int]:
        @wraps(work)
        def run(args: Arguments) -> int:
            errors = PlainConsole(stderr=True)
            try:
                check_json(args)
                return work(args, Output(), errors) or 0
            except UserError as fault:
                errors.print(str(fault))
            except OSError as fault:
                if fault.filename == STDOUT:
                    raise
                file = fault.filename or getattr(args, "out", None) or getattr(args, "json", None)
                errors.print(os_error.format(file, fault.strerror or fault))
            except Exception as fault:
                sentence = sentence_of(fault)
                if sentence is None:
                    raise
                errors.print(sentence)
            except KeyboardInterrupt as stop:
                if stopped is None:
                    raise
                return report_stop(stop, stopped if isinstance(stopped, str) else stopped(args))
            return 2

        return run

    return decorate


def check_json(args: Arguments) -> None:
    """Raises UserError if the file of --json cannot be written. Its folder may be that of --out, which is created
    later.
    """
    file: Path | None = getattr(args, "json", None)
    if file is None:
        return
    try:
        existed = file.exists()
        if existed and not file.is_file() and not file.is_dir():  # a pipe is not tried
            return
        if file.parent == getattr(args, "out", None) and not file.parent.exists():
            return
        with file.open("ab"):
            pass
        if not existed:
            file.unlink()
    except OSError as fault:
        raise UserError(f"{file} cannot be written: {fault.strerror}; name another file with --json") from None


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a description and adds each option's default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if not action.option_strings or "default" in text or default in (None, "", [], argparse.SUPPRESS):
            return text
        if default is False:  # a flag
            return text
        default_text = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        return f"{text} (default: {default_text.replace('%', '%%')})"


# --- the process -----------------------------------------------------------------------------------------------------


def run_program(doc: str | None, add_arguments: Callable[[argparse.ArgumentParser], None], run: Any) -> int:
    """Runs a command in its own process, as `python -m MODULE ..`: parses the command line, returns the exit code."""

    def work() -> int:
        parser = Parser(description=doc, formatter_class=HelpFormatter)
        add_arguments(parser)
        return int(run(parser.parse_args()))

    return run_process(work)


# --- tables ----------------------------------------------------------------------------------------------------------


class FittedTable(Table):
    """A table whose numbers are whole whatever the width of the console.

    A table that is too wide is printed dense, with headings of two lines, and the name of a group above its rows. Where
    that is not enough, its columns are split into parts, one below the other, each with the names of the rows; a table
    of sentences, or of too many parts, is stacked: each row is a list of headings and values.
    """

    def __init__(self, headings: Sequence[str], texts: int, title: str, caption: str) -> None:
        super().__init__(title=title or None, caption=caption or None)
        self.texts = texts
        for index, heading in enumerate(headings):
            self.add_column(heading, justify="left" if index < texts else "right")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide, limit = options.update(width=ANY_WIDTH, no_wrap=False), options.max_width
        natural = [high for _, high in self._widths(console, wide)]
        if self.title:
            yield Text(printable(str(self.title)), "table.title", no_wrap=False, overflow="fold")
        if sum(natural) + 3 * len(natural) + 1 <= limit:
            yield self._part(range(len(natural)), natural, close=False)
        else:
            yield from self._with_group_rows()._narrow(console, wide, limit)
        if self.caption:
            yield Text(printable(str(self.caption)), "table.caption", no_wrap=False, overflow="fold")

    def _narrow(self, console: Console, wide: ConsoleOptions, limit: int) -> RenderResult:
        """Printed dense, in parts, or stacked."""
        least, natural = zip(*self._widths(console, wide), strict=True)
        names, others = range(self._row_names), range(self._row_names, len(least))
        if _joined_width(least) <= limit:
            yield self._part(range(len(least)), _widen(least, natural, limit))
            return
        room = limit - _joined_width(least[: len(names)]) - 2
        parts = _split(others, least, room)
        wide_cells = max(natural[index] for index in others) > SENTENCE_COLUMNS
        if wide_cells or max(least[index] for index in others) > room or len(parts) > PARTS_MAX:
            yield from self._stacked(limit)
            return
        for part in parts:
            columns = [*names, *part]
            low, high = ([widths[index] for index in columns] for widths in (least, natural))
            yield Text()
            yield self._part(columns, _widen(low, high, limit))

    @property
    def _row_names(self) -> int:
        """Number of the first columns that name a row: repeated in every part."""
        return min(max(self.texts, 1), 2, len(self.columns) - 1)

    def _lines(self) -> list[tuple[Any, ...]]:
        """The cells of each row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    def _widths(self, console: Console, wide: ConsoleOptions) -> list[tuple[int, int]]:
        return [_column_widths(console, wide, [column.header, *column.cells]) for column in self.columns]

    def _with_group_rows(self) -> FittedTable:
        """The same with one column instead of the first two, if the first is empty in the further rows of a group: the
        name of a group has a row of its own.
        """
        lines = self._lines()
        if self.texts != 2 or all(line[0] for line in lines):
            return self
        headings = [str(column.header) for column in self.columns]
        grouped = FittedTable([", ".join(filter(None, headings[:2])), *headings[2:]], 1, "", "")
        for row, (group, name, *values) in zip(self.rows, lines, strict=True):
            if group:
                grouped.add_row(group, *[""] * len(values))
            grouped.add_row(f"  {name}", *values, end_section=row.end_section)
        return grouped

    def _part(self, columns: Sequence[int], widths: Sequence[int], close: bool = True) -> Table:
        """Some columns, each of a width in characters; `close`: without an edge, separated by two spaces."""
        padding = (0, 1, 0, 0) if close else (0, 1, 0, 1)
        part = Table(box=SIMPLE_HEAD, show_edge=not close, pad_edge=not close, padding=padding)
        for index, width in zip(columns, widths, strict=True):
            column = self.columns[index]
            part.add_column(column.header, justify=column.justify, width=width, overflow="fold")
        for row, line in zip(self.rows, self._lines(), strict=True):
            part.add_row(*(line[index] for index in columns), end_section=row.end_section)
        return part

    def _stacked(self, limit: int) -> RenderResult:
        """Each row as its names, then a heading and its value per line; empty values are left out."""
        names = min(self.texts, self._row_names)
        headings = [str(column.header) for column in self.columns]
        indent = max(map(len, headings[names:]))
        for line in self._lines():
            texts = [cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in line]
            filled = [
                (heading, text) for heading, text in zip(headings[names:], texts[names:], strict=True) if text.plain
            ]
            title = Text(" · ").join(text for text in texts[:names] if text.plain)
            if len(filled) == 1:
                ((heading, text),) = filled
                joined = Text.assemble(title, f" · {heading} ", text)
                if joined.cell_len <= limit:
                    yield joined
                    continue
            if title.plain:
                yield title
            values = Table.grid(padding=(0, 2, 0, 0))
            values.add_column(width=2)
            values.add_column(width=indent)
            values.add_column(overflow="fold", max_width=max(limit - indent - 6, 1))
            for heading, text in filled:
                values.add_row("", heading, text)
            yield values


def _column_widths(console: Console, options: ConsoleOptions, cells: Sequence[Any]) -> tuple[int, int]:
    """The least width of a column in characters, and that without any line break; `cells` begins with the heading."""
    heading, *values = cells
    ranges = [Measurement.get(console, options, cell) for cell in values]
    whole = [high if high <= CELL_COLUMNS else max(low, CELL_COLUMNS) for low, high in ranges]
    words = str(heading).split()
    halves = [max(len(" ".join(words[:cut])), len(" ".join(words[cut:]))) for cut in range(1, len(words) + 1)]
    return max([*whole, min(halves, default=0)]), max([*(high for _, high in ranges), len(str(heading))])


def _joined_width(widths: Sequence[int]) -> int:
    """Of columns with two spaces between them."""
    return sum(widths) + 2 * max(len(widths) - 1, 0)


def _widen(least: Sequence[int], natural: Sequence[int], limit: int) -> list[int]:
    """Widths of columns: what `limit` leaves beyond the least is shared among those that need more, evenly."""
    widths, spare = list(least), limit - _joined_width(least)
    needy = sorted((high - low, index) for index, (low, high) in enumerate(zip(least, natural, strict=True)))
    for rank, (need, index) in enumerate(needy):
        more = min(need, max(spare, 0) // (len(needy) - rank))
        widths[index] += more
        spare -= more
    return widths


def _split(columns: Sequence[int], widths: Sequence[int], limit: int) -> list[list[int]]:
    """Columns, in their order, in parts of at most `limit` characters, each as full as it can be."""
    parts: list[list[int]] = [[]]
    for column in columns:
        if parts[-1] and _joined_width([widths[each] for each in (*parts[-1], column)]) > limit:
            parts.append([])
        parts[-1].append(column)
    return parts


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", caption: str = "", texts: int = 1
) -> Table:
    """A table whose first `texts` columns are left-aligned text and the others numbers. An empty row draws a line.

    It is whole at every width of the console: see `FittedTable`.
    """
    table = FittedTable(headings, texts, title, caption)
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table


def list_counts(counts: Mapping[str, int]) -> str:
    """Such as "80 OK, 2 LATE", without what there is none of."""
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def make_list(title: str, rows: Mapping[str, str]) -> Table:
    """Names and values, one per line. Values are wrapped between words."""
    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows.items():
        table.add_row(*row)
    return table
