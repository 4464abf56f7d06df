"""Planning: generators propose plans, one pipeline selects and repairs them. Planners are listed by name."""

from __future__ import annotations

from functools import partial

from ..core.config import Config, ConfigError
from ..core.recipe_config import DecodingConfig
from . import pipeline
from .candidates import GeneratorSpec
from .generators import GENERATORS
from .planner import Planner

PLANNERS = tuple(name for name, spec in GENERATORS.items() if spec.network is None)  # they need no weights
LEARNED = tuple(name for name, spec in GENERATORS.items() if spec.network is not None)
CAMERA_FREE = tuple(name for name, spec in GENERATORS.items() if not spec.images)  # no images are rendered or read
VECTOR_PLANNERS = tuple(name for name, spec in GENERATORS.items() if spec.vectors)


def generator_spec(config: Config) -> GeneratorSpec:
    """Of the configured planner. Raises ConfigError naming the planners."""
    spec = GENERATORS.get(config.planner)
    if spec is None:
        raise ConfigError(f"planner is '{config.planner}', expected one of {', '.join(GENERATORS)}")
    return spec


def get_planner(config: Config) -> Planner:
    """The configured planner. Raises ConfigError naming the available planners, or what is missing."""
    spec = generator_spec(config)
    if spec.network is not None and not config.model.file:
        raise ConfigError(
            f"planner {config.planner} needs a model: set model.file and model.sha256, or give --model FILE"
        )
    return partial(pipeline.plan, spec.generate)


def needed_capabilities(config: Config) -> frozenset[str]:
    """Capabilities that the configured planner needs of its network."""
    return generator_spec(config).needs(config)


def decoding_config(config: Config) -> DecodingConfig:
    """Decoding settings of the configured planner's network."""
    return generator_spec(config).decoding(config)
