"""`reflectdrive doctor`: what is installed, what is missing, what to do. Exit code 1 where the planner cannot run."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..provenance import write_numbers
from ..ros.system_checks import Finding, State, run_checks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings here too")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when the planner can run, 1 when something it requires is missing, 2 when FILE cannot be written."""
    console = Console()
    if not console.is_terminal:  # a log is wide enough for a sentence
        console = Console(width=140)
    findings = list(run_checks(os.environ))
    ready = not any(finding.required and finding.state is State.MISSING for finding in findings)
    if args.json is not None:
        content = {
            "ready": ready,
            "findings": [{**asdict(finding), "state": finding.state.value} for finding in findings],
        }
        try:
            write_numbers(args.json, content)
        except OSError as fault:
            Console(stderr=True).print(escape(f"{args.json} cannot be written: {fault.strerror}"), soft_wrap=True)
            return 2
    console.print(_table(findings))
    console.print("The planner can run." if ready else "The planner cannot run: see MISSING above.", highlight=False)
    return 0 if ready else 1


def _table(findings: list[Finding]) -> Table:
    colours = {State.OK: "green", State.WARN: "yellow", State.MISSING: "red"}
    table = Table(box=SIMPLE_HEAD)
    for heading in ("", "state", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        state = f"[{colours[finding.state]}]{finding.state.value}[/]"
        if finding.state is State.MISSING and not finding.required:
            state = f"[dim]{finding.state.value} (optional)[/]"
        table.add_row(escape(finding.name), state, escape(finding.found), escape(finding.todo))
    return table
