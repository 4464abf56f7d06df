"""`reflectdrive export CHECKPOINT --out DIR`: a planner's weights as two ONNX graphs and a card that names them.

CHECKPOINT is a weights.safetensors with its card.json beside, as training leaves them. DIR gets prefill_goal.onnx,
step.onnx and card.json; `model.file` is then DIR/card.json and `model.sha256` the hash that is told at the end. ONNX
Runtime runs them without torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import onnx_ir
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config import Config, load
from ..model import checkpoint
from ..model.checkpoint import CheckpointError
from ..model.export import MOST_BLOCKS, PRECISIONS, export, in_bfloat16
from ..model.graph_card import CARD, GraphCard
from ..runtime.backend import golden, torch_decoding
from ..runtime.torch_backend import TorchNetwork
from .engine_run import UNUSABLE, engines, show
from .provenance import provenance, write_numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="weights.safetensors, its card.json beside")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the graphs and their card go")
    parser.add_argument("--sha256", metavar="HASH", help="of the weights, where no card stands beside them")
    parser.add_argument(
        "--blocks",
        type=int,
        choices=range(1, MOST_BLOCKS + 1),
        metavar="M",
        help="blocks that a step takes; left out, any number (for CPUs; TensorRT wants it fixed)",
    )
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS.values()),
        default="fp32",
        help="of the arithmetic; bf16 is for TensorRT, ONNX Runtime does not run it (fp32)",
    )
    parser.add_argument(
        "--tensorrt",
        action="store_true",
        help="build engines of the graphs too, on this machine's GPU, as reflectdrive engine does; M is decoding.goals",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="whose section `decoding` is built in (YAML)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table's numbers here too")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 2 with one sentence on stderr when weights or engines cannot be used or a file cannot be written."""
    console, errors = Console(), Console(stderr=True)
    try:
        config = load(args.config) if args.config else Config()
        if args.out.resolve() == args.checkpoint.resolve().parent:
            raise CheckpointError(f"--out {args.out} holds the weights and their card: name another folder")
        source = source_card(args.checkpoint)
        net = checkpoint.load(args.checkpoint, args.sha256 or source.get("sha256", ""))
        weights_sha256 = args.sha256 or source["sha256"]
        if args.precision == "bf16":
            net = in_bfloat16(net)
        weights = {key: value for key, value in source.items() if key not in ("config", "format")}
        made = {key: value for key, value in provenance([]).items() if key in ("version", "commit")}
        with errors.status("tracing both graphs; the small network takes half a minute"):
            about = {"weights": weights, "made": made}
            decoding = torch_decoding(config.decoding)
            known = golden(TorchNetwork(net, decoding=decoding)) if net.config.words else None
            blocks = args.blocks or (config.decoding.goals if args.tensorrt else None)
            card_sha256 = export(net, weights_sha256.lower(), args.out, about, decoding, blocks, known)
        numbers = figures(args.out / CARD, card_sha256)
        if args.tensorrt:
            numbers["tensorrt"] = engines(str(args.out / CARD), "cuda", None, True, errors)
        if args.json is not None:
            write_numbers(args.json, numbers)
    except (CheckpointError, *UNUSABLE) as fault:
        errors.print(escape(str(fault)), soft_wrap=True, highlight=False)
        return 2
    except OSError as fault:
        errors.print(escape(f"{fault.filename} cannot be written: {fault.strerror}"), soft_wrap=True, highlight=False)
        return 2
    console.print(table(numbers))
    if args.tensorrt:
        show(numbers["tensorrt"], console)
    console.print(f"model.file: {args.out / CARD}\nmodel.sha256: {card_sha256}", highlight=False, soft_wrap=True)
    return 0


def source_card(weights: Path) -> dict[str, Any]:
    """The card beside the weights; empty where there is none. Raises CheckpointError for one that is no JSON."""
    card = weights.parent / CARD
    if not card.exists():
        return {}
    try:
        content = json.loads(card.read_bytes())
    except ValueError as fault:
        raise CheckpointError(f"{card} is not JSON: {fault}") from None
    if not isinstance(content, dict) or not isinstance(content.get("sha256", ""), str):
        raise CheckpointError(f"{card} is no card of weights: give their hash with --sha256")
    return content


def figures(path: Path, card_sha256: str) -> dict[str, Any]:
    card = GraphCard.read(path)
    graphs = {}
    for name, file in card.files.items():
        nodes = len(list(onnx_ir.load(file).graph.all_nodes()))
        graphs[name] = {"bytes": file.stat().st_size, "nodes": nodes, "sha256": card.sha256[name]}
    return {"card": str(path), "card_sha256": card_sha256, "graphs": graphs}


def table(numbers: dict[str, Any]) -> Table:
    shown = Table(box=SIMPLE_HEAD)
    for name, justify in (("graph", "left"), ("MB", "right"), ("nodes", "right"), ("SHA-256", "left")):
        shown.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name, row in numbers["graphs"].items():
        shown.add_row(name, f"{row['bytes'] / 1e6:.1f}", str(row["nodes"]), row["sha256"][:16])
    return shown
