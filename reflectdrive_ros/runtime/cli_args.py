"""Common arguments of the commands that plan: a configuration file, single settings, a planner, a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.config import Config, ConfigError, load, override_dotted
from ..infra import arguments
from ..planning import LEARNED, generator_spec, get_planner, learned_configs
from .model_file import model_config, verified_sha256, weights_sha256


def add_model_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--model", metavar="FILE", help=f"weights of a learned planner ({', '.join(LEARNED)})")
    parser.add_argument("--sha256", metavar="HASH", help="hash of --model (default: from the card.json beside it)")


def add_random_weights_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="one more row per learned planner: its network with random weights",
    )


def add_scenes_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """`--scenes`, for `evaluation.open_loop.resolve_scene_set`."""
    parser.add_argument(
        "--scenes",
        default=default,
        metavar="NAME|DIR",
        help="scene set train, val, test or hard, generated where missing, or the folder of a set",
    )


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Of benches that plan for the scenes of a set."""
    add_scenes_argument(parser, "test")
    parser.add_argument(
        "--limit",
        type=arguments.positive_int(),
        default=300,
        metavar="N",
        help="scenes, spread over the families of the set",
    )
    parser.add_argument(
        "--workers",
        type=arguments.process_count(),
        default=1,
        metavar="N",
        help="processes to make a missing set",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (YAML)")
    add_model_arguments(parser)
    arguments.add_settings_argument(parser)


def weights_of(config: Config, planners: Sequence[str]) -> str:
    """Hash of the weights in use, empty if none of these planners has a network; several are separated by commas."""
    configs = (replace(config, planner=planner) for planner in planners)
    models = (own.model for each in configs for own in learned_configs(each).values())
    return ", ".join(dict.fromkeys(map(weights_sha256, models)))


def configuration(args: argparse.Namespace, patience: Mapping[str, Any] | None = None) -> Config:
    """Defaults, then --config, `patience`, --planner and single settings, then the model.

    --planner may have several values; then each is configured in turn. Raises ConfigError, ModelFileError.
    """
    config = load(args.config) if getattr(args, "config", None) else Config()
    values = {**(patience or {}), **arguments.settings_of(args.settings)}
    if isinstance(args.planner, str):
        values["planner"] = args.planner
    config = override_dotted(config, values) if values else config
    planners = args.planner if isinstance(args.planner, list) else [config.planner]
    configs = [replace(config, planner=planner) for planner in planners]
    learned = [each for each in configs if generator_spec(each).network is not None]
    if args.model is None and args.sha256 is not None:
        raise ConfigError("--sha256 is given without --model")
    if args.model is not None:
        if not learned:
            raise ConfigError(f"--model is given, but {', '.join(planners)} has none: name one of {', '.join(LEARNED)}")
        model = model_config(args.model, args.sha256)
        config = replace(config, model=replace(config.model, file=model.file, sha256=model.sha256))
    if getattr(args, "random_weights", False) and not learned:
        raise ConfigError(
            f"--random-weights is given, but {', '.join(planners)} has no weights: name one of {', '.join(LEARNED)}"
        )
    for name in planners:
        planner_config = replace(config, planner=name)
        get_planner(planner_config)
        for own in learned_configs(planner_config).values():
            verified_sha256(own.model)
    return config
