"""`reflectdrive engine CARD`: builds TensorRT engines of exported graphs, on the machine that will run them.

CARD is the card.json of `reflectdrive export --blocks 6`. An engine is bound to one TensorRT version on one GPU: copy
the graphs to the vehicle and build there, which takes minutes and the whole GPU; never while it drives. Existing
engines that fit are kept. Then both are loaded and must pass the card's self-check. The precision is that of the
graphs: `reflectdrive export --precision bf16`, or fp8.

Exit code 0: the engines exist and pass the self-check. 2: they do not, with one sentence that gives the reason.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config import DecodingConfig, ModelConfig, override
from ..deploy.engines import UNUSABLE, build
from ..model.card import GraphCard
from ..provenance import write_numbers
from ..runtime.model_file import model_config
from ..runtime.network import load_network


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("card", metavar="CARD", help="card.json of exported graphs")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="of the engines (default: engines, beside the card)")
    parser.add_argument("--device", default="cuda", metavar="NAME", help="cuda, or one of several, as cuda:1 (cuda)")
    parser.add_argument(
        "--check", action="store_true", help="build nothing: check that engines exist and pass the self-check"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table's numbers here too")


def run(args: argparse.Namespace) -> int:
    console, errors = Console(), Console(stderr=True)
    try:
        numbers = build_and_check(args.card, args.device, args.folder, not args.check, errors)
        if args.json is not None:
            write_numbers(args.json, numbers)
    except UNUSABLE as fault:
        errors.print(escape(str(fault)), soft_wrap=True, highlight=False)
        return 2
    except OSError as fault:
        errors.print(escape(f"{fault.filename} cannot be written: {fault.strerror}"), soft_wrap=True, highlight=False)
        return 2
    show(numbers, console)
    return 0


def build_and_check(card: str, device: str, folder: Path | None, build_them: bool, errors: Console) -> dict[str, Any]:
    """The command's numbers, once the engines are there and have answered. Raises one of UNUSABLE, OSError."""
    found = model_config(card, None)
    model = ModelConfig(found.file, found.sha256, "tensorrt", device, str(folder or ""))
    graphs = GraphCard.read(model.file)
    graphs.check_gate()  # fails before minutes are spent on engines that would be refused
    rows = []
    if build_them:
        with errors.status("building engines; this takes minutes"):
            rows = [{**asdict(row), "file": str(row.file)} for row in build(graphs, device, folder, time.perf_counter)]
    network = load_network(model, override(DecodingConfig(), graphs.decoding()))
    backend_description = getattr(network, "backend_description", "")
    return {
        "card": model.file,
        "precision": graphs.precision,
        "engines": rows,
        "backend_description": backend_description,
    }


def show(numbers: dict[str, Any], console: Console) -> None:
    if numbers["engines"]:
        console.print(table(numbers))
    console.print(
        f"answers as {numbers['card']} tells, on {numbers['backend_description']}", highlight=False, soft_wrap=True
    )


def table(numbers: dict[str, Any]) -> Table:
    shown = Table(box=SIMPLE_HEAD)
    for name, justify in (("engine", "left"), ("MB", "right"), ("built in", "right")):
        shown.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in numbers["engines"]:
        took = f"{row['seconds']:.0f} s" if row["seconds"] else "was there"
        shown.add_row(row["file"], f"{Path(row['file']).stat().st_size / 1e6:.1f}", took)
    return shown
