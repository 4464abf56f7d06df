"""Planning: generators propose plans, one pipeline selects and repairs them. Planners are listed by name."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from ..core.config import Config, ConfigError
from ..core.recipe_config import DecodingConfig
from . import pipeline
from .candidates import GeneratorSpec
from .combination import combine
from .generators import GENERATORS
from .peers import PEERS as PEERS
from .planner import Planner

PLANNERS = tuple(name for name, spec in GENERATORS.items() if spec.network is None)  # they need no weights
LEARNED = tuple(name for name, spec in GENERATORS.items() if spec.network is not None)


def generator_specs(config: Config) -> list[GeneratorSpec]:
    """Of each configured planner. Raises ConfigError for names that are none, or are there twice."""
    names, available = config.planners, GENERATORS | PEERS
    for name in names:
        if name not in available:
            raise ConfigError(f"planner is '{name}', expected one of {', '.join(available)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"planner is '{config.planner}', which has a name twice: name each planner once")
    return [available[name] for name in names]


def generator_spec(config: Config) -> GeneratorSpec:
    """Of the configured planner, or of several as one. Raises ConfigError as `generator_specs`."""
    specs = generator_specs(config)
    return specs[0] if len(specs) == 1 else combine(specs)


def get_planner(config: Config) -> Planner:
    """The configured planner. Raises ConfigError naming the available planners, or what is missing."""
    spec = generator_spec(config)
    for name in config.planners:
        if name in PEERS and find_spec(PEERS[name].package) is None:
            raise ConfigError(
                f"planner {name} needs the package {PEERS[name].package}: install it with make peers, and set "
                "PYTHONPATH=.venv/peers"
            )
    if spec.network is not None and not config.model.file:
        raise ConfigError(
            f"planner {config.planner} needs a model: set model.file and model.sha256, or give --model FILE"
        )
    return partial(pipeline.plan, spec.generate)


def learned_configs(config: Config) -> dict[str, Config]:
    """The settings of each configured planner that has a network, by name."""
    return {spec.name: config.of_planner(spec.name) for spec in generator_specs(config) if spec.network is not None}


def needed_capabilities(config: Config) -> frozenset[str]:
    """Capabilities that the configured planner needs of its network."""
    return generator_spec(config).needs(config)


def decoding_config(config: Config) -> DecodingConfig:
    """Decoding settings of the configured planner's network."""
    return generator_spec(config).decoding(config)
