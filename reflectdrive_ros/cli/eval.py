"""`reflectdrive eval`: PDM scores of planners on recorded traffic (`--scenes real_tracks`, with the recorded human), on
proving-ground scenes (`--scenes test`, with the expert), or in closed loop (`--closed-loop`).

Several planners stand side by side with `--planner A B`; settings and weights with one `--variant` each:

    reflectdrive eval --scenes val --variant all --variant no_repair pipeline.repair=false
    reflectdrive eval --closed-loop --variant shipped --variant mine model.file=out/run/weights.safetensors
    reflectdrive eval --scenes test --variant follower planner=route_follower --variant idle planner=constant_velocity

A variant has a name and any settings, laid over those of --config, --setting, --model and --planner; `model.file` are
its weights, `privilege` replaces --privilege. All rows are scored on the same scenes or drives with the vehicle and the
rules of score outside of the variants. Each is compared, pair by pair, with the first row that is given as much, with
95 % bootstrap intervals over scenes or worlds. The JSON has all measures, their differences, and both by scenario
family; the tables have families with --by-family.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from ..core.config import Config, ConfigError
from ..data import real_tracks, sets
from ..data.scene import FAMILIES
from ..evaluation import closed_loop, open_loop, recorded_tracks, variants
from ..evaluation.privilege import PRIVILEGES
from ..evaluation.variants import Variant
from ..infra import arguments
from ..infra.command import command
from ..infra.errors import UserError
from ..planning import LEARNED, PEERS, PLANNERS
from ..runtime import cli_args

BASELINES = ("constant_velocity", "route_follower")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = (real_tracks.NAME, *sets.SIZES)
    parser.add_argument(
        "--scenes",
        metavar="NAME|DIR",
        help=f"scene set {', '.join(names)}, or the folder of a set or of recordings (default: {real_tracks.NAME})",
    )
    parser.add_argument(
        "--planner",
        nargs="+",
        metavar="NAME",
        help=f"planners to score: {', '.join(sorted((*PLANNERS, *LEARNED, *PEERS)))} (default: {' '.join(BASELINES)}; "
        "with --variant that of the settings); A+B: both in one row, their plans as one set",
    )
    parser.add_argument(
        "--variant",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "SETTING=VALUE"),
        help="a row of the tables: its name, and settings on top of all others; repeatable, the first is the reference",
    )
    cli_args.add_model_arguments(parser)
    cli_args.add_random_weights_argument(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of planners and score (YAML)")
    arguments.add_settings_argument(parser)
    parser.add_argument(
        "--by-family", action="store_true", help="tables also by scenario family, site or town of the drives"
    )
    scenes = parser.add_argument_group("scene sets of the proving ground", "a missing set is generated first")
    scenes.add_argument(
        "--limit",
        type=arguments.positive_int(),
        metavar="N",
        help="score N scenes only: those of the first shards, spread over the scenario families as the set is",
    )
    scenes.add_argument(
        "--privilege",
        nargs="+",
        choices=PRIVILEGES,
        metavar="NAME",
        help="inputs beyond images: words (command, speed limit, instruction), route (also the route), "
        "objects (also the drivable area, and objects with their present velocities), logged (also their recorded "
        "futures); several give one row each (default: objects)",
    )
    parser.add_argument(
        "--families", nargs="+", metavar="NAME", help=f"only {', '.join(FAMILIES)}; of recordings: only these sites"
    )
    arguments.add_workers_arguments(parser, "--workers", arguments.available_cores(), "processes")
    closed_loop.add_arguments(parser.add_argument_group("closed loop", "the engine drives in generated worlds"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command(lambda args: closed_loop.stopped_sentence(args) if args.closed_loop else "")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if scenes of a set are left out; 2 with one sentence on stderr when the set cannot be read or FILE
    cannot be written.
    """
    config = configuration(args)
    _refuse_options_of_the_other_loop(args)
    # real_tracks:DIR is the folder, as in training sets
    args.scenes = (args.scenes or real_tracks.NAME).removeprefix(f"{real_tracks.NAME}:")
    args.privilege = args.privilege or ["objects"]
    if args.closed_loop:
        return closed_loop.run_closed_loop(args, config, rows(args, config, [""]), console, errors)
    if _are_recordings(args.scenes):
        return recorded_tracks.run(args, config, rows(args, config, [""]), console, errors)
    if unknown := sorted(set(args.families or ()) - set(FAMILIES)):
        raise ConfigError(f"--families names {', '.join(unknown)}, expected some of {', '.join(FAMILIES)}")
    return open_loop.run(args, config, rows(args, config, args.privilege), console, errors)


def configuration(args: argparse.Namespace) -> Config:
    """The settings that all rows share. Raises ConfigError, ModelFileError."""
    if not args.variant:
        args.planner = args.planner or list(BASELINES)
        return cli_args.configuration(args)
    planner, *more = args.planner or [None]
    if more:
        raise ConfigError(
            f"--planner names {' and '.join(args.planner)}, and --variant is given: give each variant its planner, "
            f"as in --variant NAME planner={planner}"
        )
    return cli_args.configuration(argparse.Namespace(**{**vars(args), "planner": planner}))


def rows(args: argparse.Namespace, config: Config, privileges: list[str]) -> dict[str, Variant]:
    """The rows of the tables, by name. Raises ConfigError, UserError."""
    trained = not args.only_random_weights
    random_weights = args.random_weights or args.only_random_weights
    if args.variant:
        settings = variants.parse(args.variant)
        result = variants.of_settings(config, settings, privileges, random_weights, trained)
    else:
        result = variants.of_planners(config, args.planner, privileges, random_weights, trained)
    if args.only_random_weights and not all(row.is_learned for row in result.values()):
        raise UserError(f"--only-random-weights is for learned planners: name some of {', '.join(LEARNED)} only")
    return result


def _refuse_options_of_the_other_loop(args: argparse.Namespace) -> None:
    """Raises ConfigError for an option that the requested loop does not read."""
    names = ("scenes", "limit", "privilege", "families") if args.closed_loop else ("map", "judge", "worst", "out")
    if (name := next((name for name in names if getattr(args, name) is not None), None)) is None:
        return
    if args.closed_loop:
        raise ConfigError(f"--{name} is for recorded scenes, and --closed-loop drives in worlds: leave one of them out")
    raise ConfigError(f"--{name} is for drives in closed loop: add --closed-loop, or leave it out")


def _are_recordings(scenes: str) -> bool:
    """Whether the value of --scenes names real_tracks or a folder with recordings of it."""
    return scenes == real_tracks.NAME or (
        scenes not in sets.SIZES and os.path.isdir(scenes) and any(Path(scenes).glob("*.npz"))
    )
