"""`reflectdrive train sft CONFIG --train DIR --val DIR --out DIR`: supervised training of ReflectDrive-2.

The same command resumes a run that was stopped by Ctrl-C, by a kill, or at the end of its minutes (give more of them).
With --minutes the learning-rate schedule ends with the time, however fast the machine is. Several devices of one
machine are set by device.devices in CONFIG, several machines by torchrun.

OUT holds weights.safetensors and card.json (the averaged weights, for driving), state.safetensors (to resume from),
log.csv and tensorboard/.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.config import ConfigError, override_dotted, override_from_file
from ..data.scene import FAMILIES
from ..infra import arguments
from ..infra.command import HelpFormatter, command
from ..infra.installing import shipped
from ..infra.signals import end_with_parent
from ..model.token.net import TokenNetConfig
from ..training import diffusion, refine, rl, runs, settings, token_runs
from ..training.runs import RunSources
from ..training.settings import DiffusionTrainConfig, RefineTrainConfig, RlTrainConfig, TrainConfig
from ..training.token_runs import PretrainedPaths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    sft_parser = kinds.add_parser("sft", help="supervised: the expert's plan, drafts and edits", description=__doc__)
    _add_run_arguments(sft_parser, several="training sets")
    sft_parser.add_argument(
        "--init-from",
        type=shipped,
        metavar="DIR",
        help="run, or folder of weights as models/reflectdrive2_small, that initialises this one, as far as it fits",
    )
    sft_parser.add_argument(
        "--tag", action="append", default=[], metavar="NAME=W", help="relative frequency of a scenario tag, else 1"
    )
    sft_parser.add_argument(
        "--language-weights", type=Path, metavar="DIR", help="Qwen3 weights that initialise a new run of base"
    )
    sft_parser.add_argument("--vision-weights", type=Path, metavar="DIR", help="SigLIP2 weights that initialise it")
    sft_parser.add_argument(
        "--scene-weights", type=shipped, metavar="DIR", help="denoiser whose encoder initialises it"
    )
    _add_teacher_argument(sft_parser)
    sft_parser.set_defaults(defaults=TrainConfig())
    for name, title, description, init_from_help, defaults in (
        (
            "rl",
            "by reward: the goal decision, drafts and edits of sampled rollouts",
            rl.__doc__,
            "run, or folder of weights as models/reflectdrive2_small, whose network is trained further",
            RlTrainConfig(),
        ),
        (
            "refine",
            "the refinement expert of drivefine, on drafts of its network",
            refine.__doc__,
            "run, or folder of weights, whose generator is refined",
            RefineTrainConfig(),
        ),
    ):
        run_parser = kinds.add_parser(name, help=title, description=description)
        _add_run_arguments(run_parser)
        run_parser.add_argument("--init-from", type=shipped, metavar="DIR", required=True, help=init_from_help)
        _add_teacher_argument(run_parser)
        run_parser.set_defaults(defaults=defaults, language_weights=None, vision_weights=None, scene_weights=None)
    diffusion_parser = kinds.add_parser(
        "diffusion", help="the denoiser of reflexdiffusion, on lanes and agents", description=diffusion.__doc__
    )
    _add_run_arguments(diffusion_parser, several="training sets; or real_tracks, real_tracks:DIR")
    diffusion_parser.add_argument(
        "--init-from", type=shipped, metavar="DIR", help="run, or folder of weights, that initialises this one"
    )
    diffusion_parser.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="SITE",
        help="leave out the recordings of a site of real_tracks; may be repeated",
    )
    diffusion_parser.set_defaults(defaults=DiffusionTrainConfig(), run=run_diffusion, teacher=None)


def _add_run_arguments(parser: argparse.ArgumentParser, several: str = "") -> None:
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


def _add_teacher_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--teacher",
        type=shipped,
        metavar="DIR",
        help="run, or folder of weights, whose plans are the targets in place of the expert's; needs data.prompt_cache",
    )


@command(lambda args: runs.resumption(args.out), "{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; that of the signal when stopped; 2 with one sentence on stderr when it cannot begin or go on."""
    end_with_parent()
    config = _config(args)
    return run_with_network(args, config, settings.NETWORKS[config.network](), console, errors)


def run_with_network(
    args: argparse.Namespace, config: TrainConfig, network: TokenNetConfig, console: Console, errors: Console
) -> int:
    """As `run`, of a network of any measures."""
    pretrained_paths = PretrainedPaths(args.language_weights, args.vision_weights, args.scene_weights)
    return token_runs.train(_sources(args), config, network, _tag_weights(args), pretrained_paths, console, errors)


@command(lambda args: runs.resumption(args.out), "{}: {}")
def run_diffusion(args: argparse.Namespace, console: Console, errors: Console) -> int:
    return diffusion.run(_sources(args), _config(args), args.hold_out, console, errors)


def _sources(args: argparse.Namespace) -> RunSources:
    sources = args.train, _set_weights(args), args.val, args.out, args.init_from, args.workers, args.json
    return RunSources(*sources, teacher=args.teacher)


def _config(args: argparse.Namespace) -> Any:
    """The settings of CONFIG with those of the command line, of the type of `args.defaults`. Raises ConfigError."""
    config = override_dotted(override_from_file(args.defaults, args.config), arguments.settings_of(args.settings))
    schedule = config.schedule
    if args.steps is not None:
        schedule = replace(schedule, steps=args.steps, minutes=0.0)
    if args.minutes is not None:
        schedule = replace(schedule, minutes=args.minutes)
    seed = config.seed if args.seed is None else args.seed
    return replace(config, schedule=schedule, seed=seed)


def _set_weights(args: argparse.Namespace) -> list[float]:
    weights = args.weights or [1.0] * len(args.train)
    if len(weights) != len(args.train):
        raise ConfigError(f"--weights has {len(weights)} numbers for {len(args.train)} sets: give one per --train")
    return weights


def _tag_weights(args: argparse.Namespace) -> dict[str, float]:
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
