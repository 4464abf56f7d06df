"""Arguments that all trainings of `reflectdrive train` share, and the sets that they name."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.config import ConfigError
from ..data.scene import FAMILIES
from ..infra import arguments
from ..infra.command import HelpFormatter
from ..infra.installing import shipped


def add_run_arguments(parser: argparse.ArgumentParser, several: str = "") -> None:
    """`several` describes --train where it takes several sets."""
    parser.formatter_class = HelpFormatter
    parser.add_argument("config", type=Path, metavar="CONFIG", help="settings (YAML), as config/train/*.yaml")
    if several:
        parser.add_argument("--train", nargs="+", required=True, metavar="DIR", help=several)
        parser.add_argument(
            "--weights",
            type=arguments.Range(1e-6, 1e6, "a weight"),
            nargs="+",
            metavar="W",
            help="relative frequency of the scenes of each set of --train (default: equal)",
        )
    else:
        parser.add_argument("--train", nargs=1, required=True, metavar="DIR", help="training set")
        parser.set_defaults(weights=None)
    parser.set_defaults(tag=())
    parser.add_argument("--val", type=arguments.location, metavar="DIR", help="validation set")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", type=arguments.positive_int(10**9), metavar="N", help="instead of the configured length"
    )
    length.add_argument(
        "--minutes", type=arguments.Range(0.01, 1e6, "minutes"), metavar="M", help="likewise, in minutes"
    )
    parser.add_argument("--seed", type=arguments.SEED, metavar="N", help="instead of the configured seed")
    arguments.add_settings_argument(parser)
    arguments.add_workers_arguments(parser, "--workers", 2, "processes that read scenes and score plans")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the numbers as JSON, at the end of the run"
    )


def add_teacher_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--teacher",
        type=shipped,
        metavar="DIR",
        help="run, or folder of weights, whose plans are the targets in place of the expert's; needs data.prompt_cache",
    )


def set_weights(args: argparse.Namespace) -> list[float]:
    """The weight of each set of --train."""
    weights = args.weights or [1.0] * len(args.train)
    if len(weights) != len(args.train):
        raise ConfigError(f"--weights has {len(weights)} numbers for {len(args.train)} sets: give one per --train")
    return weights


def tag_weights(args: argparse.Namespace) -> dict[str, float]:
    """The weight of each scenario tag of --tag. Raises ConfigError."""
    weights = {}
    for pair in args.tag:
        name, _, weight = pair.partition("=")
        try:
            weights[name] = arguments.Range(0.0, 1e6)(weight)
        except argparse.ArgumentTypeError as fault:
            raise ConfigError(f"--tag {pair}: {fault}") from None
        if name not in FAMILIES:
            raise ConfigError(f"--tag names {name}, expected one of {', '.join(FAMILIES)}")
    return weights
