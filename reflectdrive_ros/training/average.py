"""`reflectdrive train mean RUN RUN .. --out DIR`: averages the weights of a run and of those that it started from.

A run overfits its last scenes and forgets some of the earlier ones. The average of its weights and of its initial
weights keeps both: they are in one basin of the loss, so that interpolated weights drive too, and better on new scenes
(Model soups, arXiv 2203.05482; Robust fine-tuning, arXiv 2109.01903). Inference costs the same.

RUN and DIR are folders with weights.safetensors and card.json, as models/reflectdrive2_small. A folder that is given
twice has double weight. No setting (--setting) changes the average.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..command import command
from ..model import checkpoint
from ..model.checkpoint import CheckpointError
from ..provenance import provenance, write_numbers
from . import train_state
from .train_state import WEIGHTS, StateError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of weights, two or more different")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the hashes as JSON")


@command(os_error="{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr when there is no mean."""
    digest = average(args.runs, args.out, provenance())
    averaged_from = train_state.card_of(args.out)["data"]["averaged_from"]
    numbers = {"out": str(args.out), "averaged_from": averaged_from}
    write_numbers(args.json, numbers, weights_sha256=digest)
    console.print(f"{args.out / WEIGHTS}, SHA-256 {digest}")


def average(folders: list[Path], out: Path, about: dict[str, Any]) -> str:
    """Writes the average of the weights of some folders and its card; returns the SHA-256 of the weights.

    Raises StateError for fewer than two folders or a missing card, CheckpointError for weights that differ from their
    card or belong to another network, OSError naming a file.
    """
    shares = {folder: count / len(folders) for folder, count in Counter(folders).items()}
    if len(shares) < 2:
        raise StateError(f"train mean got {len(shares)} folder, expected two or more")
    cards = [train_state.card_of(folder) for folder in shares]
    nets = [checkpoint.load(folder / WEIGHTS, card["sha256"]) for folder, card in zip(shares, cards, strict=True)]
    first = nets[0]
    for folder, net in zip(shares, nets, strict=True):
        if net.config != first.config:
            raise CheckpointError(f"{folder} holds another network than {folders[0]}: they cannot be averaged")
    with torch.no_grad():
        for parts in zip(*(net.parameters() for net in nets), strict=True):
            parts[0].copy_(sum(share * part for share, part in zip(shares.values(), parts, strict=True)))
    out.mkdir(parents=True, exist_ok=True)
    averaged_from = [
        {"share": round(share, 4), **train_state.describe_init_run(folder)} for folder, share in shares.items()
    ]
    about = {"data": {"averaged_from": averaged_from, **about}}
    return train_state.save_weights(first, out / WEIGHTS, about)
