"""The graphs that `bench planner` measures: those of --graphs, or exported now, with their TensorRT engines."""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

from rich.console import Console

from ..core.config import Config
from ..model.card import CARD, LARGEST_BATCH, RENDERED, GraphCard, GraphError
from ..model.denoiser.net import DenoiserNet
from ..model.token.net import TokenNet
from ..runtime.network import golden, torch_decoding


def token_graphs(
    args: argparse.Namespace, net: TokenNet, sha256: str, max_goals: int, device: str, folder: Path, errors: Console
) -> GraphCard:
    """The card of --graphs, or of graphs and engines made now. Raises GraphError, CudaError, EngineError."""
    if args.graphs is None:
        from ..deploy.export import export
        from ..runtime.torch_backend import TorchNetwork

        sequences, decoding = max_goals if args.backend == "tensorrt" else None, torch_decoding(Config().decoding)
        with errors.status("exporting"):
            answer = golden(TorchNetwork(copy.deepcopy(net), decoding=decoding))  # `net` may be on a GPU
            export(net, sha256, folder, {}, decoding, sequences, answer)
    return built_card(args, sha256, device, folder, errors)


def denoiser_graphs(
    args: argparse.Namespace,
    net: DenoiserNet,
    sha256: str,
    capabilities: list[str],
    device: str,
    folder: Path,
    errors: Console,
) -> GraphCard:
    """The card of --graphs, or of graphs and engines made now. Raises GraphError, CudaError, EngineError."""
    if args.graphs is None:
        from ..deploy.export_denoiser import export_denoiser
        from ..runtime.torch_denoiser import TorchDenoiser

        batch = LARGEST_BATCH if args.backend == "tensorrt" else None
        with errors.status("exporting"):
            answer = golden(TorchDenoiser(copy.deepcopy(net), capabilities=capabilities))
            export_denoiser(net, sha256, folder, {}, capabilities, RENDERED, batch, answer)
    return built_card(args, sha256, device, folder, errors)


def built_card(args: argparse.Namespace, sha256: str, device: str, folder: Path, errors: Console) -> GraphCard:
    """The card of --graphs, or of the graphs in a folder, whose engines are built for TensorRT.

    Raises GraphError, CudaError, EngineError.
    """
    if args.graphs is not None:
        card = GraphCard.read(args.graphs)
        if card.model["weights_sha256"] != sha256:
            raise GraphError(f"{args.graphs} was exported from other weights than --model: export them again")
        return card
    card = GraphCard.read(folder / CARD)
    if args.backend == "tensorrt":
        from ..deploy.engines import build

        with errors.status("building engines; this takes minutes"):
            list(build(card, device, None, time.perf_counter))
    return card
