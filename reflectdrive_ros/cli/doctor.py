"""`reflectdrive doctor`: what is installed, what is missing, what to do. Exit code 1 where the planner cannot run.

The planner is the configured one: its model file, a backend that reads it, and the messages of its topics are checked.
With --measure its model is timed: weights and graphs in all precisions, on every backend that is installed. A node with
`model.backend: auto` then uses the fastest with the plans of float32.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.config import Config, load, override_dotted
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.provenance import write_numbers
from ..ros.system_checks import Finding, State, run_checks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the node (YAML)")
    arguments.add_settings_argument(parser)
    parser.add_argument(
        "--measure", action="store_true", help="also time the model's files on every installed backend (a minute)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0 when the planner can run, 1 when something required is missing, 2 for a bad file or setting."""
    config = override_dotted(load(args.config) if args.config else Config(), arguments.settings_of(args.settings))
    findings = list(run_checks(os.environ, config))
    ready = not any(finding.required and finding.state is State.MISSING for finding in findings)
    rows = [{**asdict(finding), "state": finding.state.value} for finding in findings]
    numbers, outputs = {"ready": ready, "findings": rows}, list[Table | str]([_table(findings)])
    if args.measure:
        from ..bench import backends  # late: the findings are there although a library is missing

        measured = backends.measure(config, errors)
        numbers["backends"] = backends.numbers(measured)
        outputs += [*backends.report(measured), *backends.keep(config, measured)]
    write_numbers(args.json, numbers)
    for each in outputs:
        console.print(each, soft_wrap=isinstance(each, str))
    console.print("The planner can run." if ready else "The planner cannot run: see MISSING above.")
    if any(finding.name == "ROS 2" and finding.state is State.MISSING for finding in findings):
        console.print("Without ROS there is no node; replay, dataset, score, eval, train, export and serve need none.")
    return 0 if ready else 1


def _table(findings: list[Finding]) -> Table:
    colours = {State.OK: "green", State.WARN: "yellow", State.MISSING: "red"}
    table = make_table(("", "state", "found", "what to do"), (), texts=2)
    for finding in findings:
        state = Text(finding.state.value, colours[finding.state])
        if finding.state is State.MISSING and not finding.required:
            state = Text(f"{finding.state.value} (optional)", "dim")
        table.add_row(finding.name, state, finding.detail, finding.todo)
    return table
