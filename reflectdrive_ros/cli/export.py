"""`reflectdrive export CHECKPOINT --out DIR`: a planner's weights as ONNX graphs and a card.

CHECKPOINT is a weights.safetensors with its card.json beside it, as training writes them, or their folder. DIR gets
vision_encoder.onnx, prefill_goal.onnx, prefill.onnx, step.onnx and card.json; set `model.file` to DIR/card.json and
`model.sha256` to the printed hash. ONNX Runtime runs the graphs without torch. Of a denoiser, as its card says, DIR
gets encoder.onnx, denoiser.onnx and card.json, in float32 or int8.

Quantised graphs may drive differently. With --precision int8 or fp8 graphs are written only after they have planned for
scenes of a set (--gate DIR) and scored at most 0.3 PDMS less than float32 graphs; the card holds both scores.
Activation ranges are measured on another set (--calibrate DIR). With --precision bf16 the gate is optional.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir
from rich.console import Console
from rich.table import Table

from ..bench.accuracy_gate import evaluate_gate, quantise_and_check, sentence
from ..core.config import Config, ConfigError, load, override_dotted
from ..data import shards
from ..deploy.export import MAX_SEQUENCES, PRECISIONS, Size, export, network_size, to_bfloat16
from ..deploy.export_denoiser import export_denoiser
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.files import atomic_folder
from ..infra.provenance import provenance, write_numbers
from ..model import checkpoint
from ..model.card import CARD, LARGEST_BATCH, QUANTISED, RENDERED, GraphCard
from ..model.checkpoint import CheckpointError
from ..model.denoiser import checkpoint as curve_checkpoint
from ..model.token.net import TokenNet
from ..model.token.rollout import Decoding
from ..planning import generator_spec
from ..planning.generators import GENERATORS
from ..runtime.model_file import network_kind, read_card
from ..runtime.network import golden, torch_decoding
from ..runtime.torch_backend import TorchNetwork
from ..runtime.torch_denoiser import TorchDenoiser
from .engine import build_and_check, show

Export = Callable[[Path], str]  # writes graphs and their card into a folder; the SHA-256 of the card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="weights.safetensors, with its card.json beside it, or their folder",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="output folder of the graphs and their card"
    )
    parser.add_argument("--sha256", metavar="HASH", help="of the weights, if they have no card beside them")
    parser.add_argument(
        "--batch",
        type=arguments.positive_int(MAX_SEQUENCES),
        metavar="M",
        help="action sequences per step, or of a denoiser 1 or 2 scenes per call (2 for guidance); default: any number "
        "(the best for CPUs; engines of TensorRT then take as many as the card has goals)",
    )
    parser.add_argument(
        "--camera",
        type=_size,
        metavar="WxH",
        help="size of the cameras' images, which the graphs average down, for a GPU; default: the network's "
        "own size, to which the node resizes images on the CPU",
    )
    parser.add_argument(
        "--precision",
        choices=(*PRECISIONS.values(), *QUANTISED),
        default="fp32",
        help="of the arithmetic: bf16 and fp8 are for TensorRT, int8 for CPUs and TensorRT",
    )
    parser.add_argument(
        "--calibrate", type=Path, metavar="DIR", help="scene set for the calibration of activation ranges"
    )
    parser.add_argument("--gate", type=Path, metavar="DIR", help="scene set on which the driving scores are compared")
    parser.add_argument(
        "--gate-scenes",
        type=arguments.positive_int(),
        default=1000,
        metavar="N",
        help="scenes of --gate, spread over its families",
    )
    parser.add_argument(
        "--tensorrt",
        action="store_true",
        help="also build engines on this machine's GPU, as reflectdrive engine does; M is decoding.goals",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file whose section `decoding` is built in")
    arguments.add_settings_argument(
        parser, "one setting of `decoding`, or with --gate of the planner that is scored; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    if os.path.isdir(args.checkpoint):  # Path.is_dir raises for some names
        args.checkpoint /= "weights.safetensors"
    check_options(args)
    settings = arguments.settings_of(args.settings, ("decoding",) if args.gate is None else ())
    config = override_dotted(load(args.config) if args.config else Config(), settings)
    source = read_card(args.checkpoint)
    weights_sha256 = args.sha256 or source.get("sha256") or ""
    prepare = prepare_denoiser if network_kind(args.checkpoint) == "denoiser" else prepare_token_network
    export_into, config = prepare(args, config, source, weights_sha256, errors)
    with ExitStack() as stack:
        quantise = args.precision in QUANTISED
        out = stack.enter_context(atomic_folder(args.out))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if quantise else out
        with errors.status("tracing the graphs; this takes half a minute for the small networks"):
            card_sha256 = export_into(folder)
        if quantise:
            sets, exact = (args.calibrate, args.gate), GraphCard.read(folder / CARD)
            card_sha256 = quantise_and_check(exact, out, args.precision, sets, args.gate_scenes, config, errors)
    report(args, card_sha256, weights_sha256, console, errors)


def prepare_token_network(
    args: argparse.Namespace, config: Config, source: Mapping[str, Any], weights_sha256: str, errors: Console
) -> tuple[Export, Config]:
    """The export of a token network, after the gate of bf16; the settings as they are.

    Raises CheckpointError, ConfigError, GraphError, SetError.
    """
    net = checkpoint.load(args.checkpoint, weights_sha256)
    check_camera(args.camera, net)
    if args.precision in QUANTISED and not net.config.images:
        raise ConfigError(f"--precision {args.precision} is for networks that read images: leave it out")
    decoding, gate = torch_decoding(config.decoding), None
    if args.precision == "bf16":
        exact, net = net, to_bfloat16(net)
        if args.gate is not None:
            halved, whole = (_taking(args.camera, each, decoding) for each in (net, exact))
            gate = evaluate_gate(halved, whole, args.gate, args.gate_scenes, config, errors)
    sequences = args.batch or (config.decoding.goals if args.tensorrt else None)

    def export_into(folder: Path) -> str:
        golden_scene = golden(_taking(args.camera, net, decoding))
        about = (origin(source), decoding, sequences, golden_scene, gate, args.camera)
        return export(net, weights_sha256.lower(), folder, *about)

    return export_into, config


def prepare_denoiser(
    args: argparse.Namespace, config: Config, source: Mapping[str, Any], weights_sha256: str, errors: Console
) -> tuple[Export, Config]:
    """The export of a denoiser, and settings of a planner that has one. Raises CheckpointError, ConfigError."""
    options = {
        f"--precision {args.precision}": args.precision not in ("fp32", "int8"),
        "--camera": args.camera is not None,
        "--setting": bool(args.settings) and args.precision != "int8",
    }
    if option := next((name for name, is_set in options.items() if is_set), ""):
        raise ConfigError(f"{option} is for token networks, but {args.checkpoint} is a denoiser: leave it out")
    if args.batch is not None and args.batch > LARGEST_BATCH:
        raise ConfigError(f"--batch is {args.batch}, but a denoiser takes at most {LARGEST_BATCH} scenes per call")
    net = curve_checkpoint.load(args.checkpoint, weights_sha256)
    capabilities = source.get("capabilities") or []
    batch = args.batch or (LARGEST_BATCH if args.tensorrt else None)
    if generator_spec(config).network != "denoiser":
        denoisers = (name for name, spec in GENERATORS.items() if spec.network == "denoiser")
        config = replace(config, planner=next(denoisers))

    def export_into(folder: Path) -> str:
        golden_scene = golden(TorchDenoiser(net, capabilities=capabilities))
        domain = str(source.get("training_domain") or RENDERED)
        about = (origin(source), capabilities, domain, batch, golden_scene)
        return export_denoiser(net, weights_sha256.lower(), folder, *about)

    return export_into, config


def origin(source: Mapping[str, Any]) -> dict[str, Any]:
    """Origin of the weights and of the graphs, for their card; `source` is the card of the weights."""
    weights = {key: value for key, value in source.items() if key not in ("config", "format")}
    exporter = {key: value for key, value in provenance().items() if key in ("version", "commit")}
    return {"weights": weights, "made": exporter}


def report(args: argparse.Namespace, card_sha256: str, weights_sha256: str, console: Console, errors: Console) -> None:
    """Builds engines if asked for, and shows and writes the numbers."""
    numbers = figures(args.out / CARD, card_sha256)
    if args.tensorrt:
        numbers["tensorrt"] = build_and_check(str(args.out / CARD), "cuda", None, True, errors)
    write_numbers(args.json, numbers, weights_sha256=weights_sha256)
    console.print(table(numbers))
    if args.tensorrt:
        show(numbers["tensorrt"], console)
    if numbers["gate"]:
        console.print(sentence(numbers["gate"]))
    console.print(f"model.file: {args.out / CARD}\nmodel.sha256: {card_sha256}")


def check_options(args: argparse.Namespace) -> None:
    """Raises CheckpointError, ConfigError for options that do not go together, SetError for a set that is none."""
    if args.out.resolve() == args.checkpoint.resolve().parent:
        raise CheckpointError(f"--out {args.out} holds the weights and their card: name another folder")
    if args.precision in QUANTISED:
        if args.gate is None or args.calibrate is None or args.gate.resolve() == args.calibrate.resolve():
            raise ConfigError(
                f"--precision {args.precision} needs two scene sets with images (of a denoiser without, too): "
                "--calibrate DIR, for the activation ranges, and --gate DIR, to compare the driving score with float32"
            )
    elif args.calibrate is not None:
        raise ConfigError(f"--calibrate is for --precision {' and '.join(QUANTISED)}: leave it out")
    elif args.gate is not None and args.precision == "fp32":
        raise ConfigError("--gate compares other precisions with fp32: name one with --precision, or leave it out")
    for folder in (args.calibrate, args.gate):
        if folder is not None:
            shards.index_of(folder)  # before it is needed, half a minute later


def check_camera(camera: Size | None, net: TokenNet) -> None:
    """Raises ConfigError for images smaller than the network's, which cannot be averaged down."""
    width, height = network_size(net)
    if camera is not None and (camera[0] < width or camera[1] < height):
        raise ConfigError(
            f"--camera {camera[0]}x{camera[1]} is smaller than the images that the network takes, {width}x{height}: "
            "name the size that the cameras give, or leave it out"
        )


def _taking(camera: Size | None, net: TokenNet, decoding: Decoding) -> TorchNetwork:
    """The network in torch, given images of the cameras' size."""
    network = TorchNetwork(net, decoding=decoding)
    if camera is not None:
        network.inputs = replace(network.inputs, width=camera[0], height=camera[1])
    return network


def _size(text: str) -> Size:
    width, _, height = text.partition("x")
    pixels = arguments.Range(16, 8192, "px")
    try:
        return pixels(width), pixels(height)
    except argparse.ArgumentTypeError as fault:
        raise argparse.ArgumentTypeError(f"{fault}: expected a size as 1920x1080") from None


def figures(path: Path, card_sha256: str) -> dict[str, Any]:
    card = GraphCard.read(path)
    graphs = {}
    for name, file in card.files.items():
        nodes = len(list(onnx_ir.load(file).graph.all_nodes()))
        graphs[name] = {"bytes": file.stat().st_size, "nodes": nodes, "sha256": card.sha256[name]}
    about = {"precision": card.precision, "gate": dict(card.gate)}
    return {"card": str(path), "card_sha256": card_sha256, **about, "graphs": graphs}


def table(numbers: dict[str, Any]) -> Table:
    rows = []
    for name, row in numbers["graphs"].items():
        rows.append((name, f"{row['bytes'] / 1e6:.1f}", str(row["nodes"]), row["sha256"][:16]))
    return make_table(("graph", "MB", "nodes", "SHA-256"), rows)
