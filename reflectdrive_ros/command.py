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
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import Parser, UserError, printable
from .stopping import STDOUT, report_stop, run_process
from .storage import sentence_of

LOG_WIDTH = 180  # columns of standard output that is not a terminal
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


def error_console() -> Console:
    """Standard error, with progress bars."""
    return PlainConsole(stderr=True)


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
            errors = error_console()
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
        shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        return f"{text} (default: {shown.replace('%', '%%')})"


# --- the process -----------------------------------------------------------------------------------------------------


def run_program(doc: str | None, add_arguments: Callable[[argparse.ArgumentParser], None], run: Any) -> int:
    """Runs a command in its own process, as `python -m MODULE ..`: parses the command line, returns the exit code."""

    def work() -> int:
        parser = Parser(description=doc, formatter_class=HelpFormatter)
        add_arguments(parser)
        return int(run(parser.parse_args()))

    return run_process(work)


# --- tables ----------------------------------------------------------------------------------------------------------


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", caption: str = "", texts: int = 1
) -> Table:
    """A table whose first `texts` columns are left-aligned text and the others numbers. An empty row draws a line."""
    table = Table(title=title or None, caption=caption or None, title_justify="left", box=SIMPLE_HEAD)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < texts else "right", no_wrap=place == 0)
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table


def make_list(title: str, rows: Mapping[str, str]) -> Table:
    """Names and values, one per line."""
    table = Table(title=title, show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table
