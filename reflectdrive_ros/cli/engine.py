"""`reflectdrive engine CARD`: builds TensorRT engines of exported graphs, on the machine that will run them.

CARD is the card.json of `reflectdrive export`. An engine has one shape: where the graphs leave the number of action
sequences free, their card's number of goals is built in. It is bound to one TensorRT version on one GPU: copy the
graphs to the vehicle and build there, which takes minutes and the whole GPU; never while it drives. Existing engines
that fit are kept. Then both are loaded and must pass the card's self-check. The precision is that of the graphs:
`reflectdrive export --precision bf16`, int8 or fp8.

Exit code 0: the engines exist and pass the self-check. 2: they do not, with one sentence that gives the reason.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError, ModelConfig, override, override_dotted
from ..core.recipe_config import DecodingConfig
from ..deploy.engines import BuiltEngine, build, try_build
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.provenance import write_numbers
from ..model.card import GraphCard
from ..runtime.model_file import model_config
from ..runtime.network import load_network

READ = ("model.engines", "model.device")  # settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("card", metavar="CARD", help="card.json of exported graphs")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="of the engines (default: model.engines)")
    parser.add_argument("--device", metavar="NAME", help="cuda, or one of several, as cuda:1 (default: model.device)")
    arguments.add_settings_argument(parser, f"one setting, may be repeated: {', '.join(READ)}")
    parser.add_argument(
        "--check", action="store_true", help="build nothing: check that engines exist and pass the self-check"
    )
    parser.add_argument(
        "--without-gpu", action="store_true", help="keep nothing: check that NVIDIA's builder takes the graphs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    settings = override_dotted(Config(), arguments.settings_of(args.settings, READ)).model
    if args.without_gpu:
        if args.settings:
            raise ConfigError("--setting has no effect with --without-gpu, which keeps no engine: leave it out")
        numbers = check_builder(args.card, errors)
        write_numbers(args.json, numbers)
        console.print(table(numbers))
        console.print(f"TensorRT for RTX takes all graphs of {numbers['card']}; nothing ran on a GPU")
        return
    device = args.device or ("cuda" if settings.device == "auto" else settings.device)
    folder = args.folder or (Path(settings.engines) if settings.engines else None)
    numbers = build_and_check(args.card, device, folder, not args.check, errors)
    write_numbers(args.json, numbers)
    show(numbers, console)


def build_and_check(card: str, device: str, folder: Path | None, build_them: bool, errors: Console) -> dict[str, Any]:
    """The command's numbers, once the engines are there and have answered. Raises UserError, OSError."""
    found = model_config(card, None)
    model = ModelConfig(found.file, found.sha256, "tensorrt", device, str(folder or ""))
    graphs = GraphCard.read(model.file)
    graphs.check_gate()  # fails before minutes are spent on engines that would be refused
    rows = []
    if build_them:
        with errors.status("building engines; this takes minutes"):
            rows = [_row(engine) for engine in build(graphs, device, folder, time.perf_counter)]
    built_in = graphs.decoding() if graphs.kind == "token" else {}
    network = load_network(model, override(DecodingConfig(), built_in))
    backend_description = getattr(network, "backend_description", "")
    return {
        "card": model.file,
        "precision": graphs.precision,
        "engines": rows,
        "backend_description": backend_description,
    }


def check_builder(card: str, errors: Console) -> dict[str, Any]:
    """The command's numbers with --without-gpu. Raises UserError, OSError."""
    graphs = GraphCard.read(model_config(card, None).file)
    with errors.status("building engines"):
        rows = [_row(engine) for engine in try_build(graphs, time.perf_counter)]
    return {"card": card, "precision": graphs.precision, "engines": rows}


def _row(engine: BuiltEngine) -> dict[str, Any]:
    return {**asdict(engine), "file": str(engine.file)}


def show(numbers: dict[str, Any], console: Console) -> None:
    if numbers["engines"]:
        console.print(table(numbers))
    console.print(f"answers as {numbers['card']} tells, on {numbers['backend_description']}")


def table(numbers: dict[str, Any]) -> Table:
    rows = []
    for row in numbers["engines"]:
        took = f"{row['seconds']:.0f} s" if row["seconds"] else "was there"
        rows.append((row["file"], f"{row['size'] / 1e6:.1f}", took))
    return make_table(("engine", "MB", "built in"), rows)
