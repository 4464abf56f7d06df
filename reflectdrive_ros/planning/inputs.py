"""Which inputs the configured planner needs, in addition to those of the settings."""

from __future__ import annotations

from ..core.config import Config
from . import generator_specs


def reads_images(config: Config) -> bool:
    """Whether the planner reads camera images. A token network with `cameras.required` false reads the scene alone."""
    return any(spec.images and (spec.network != "token" or config.cameras.required) for spec in generator_specs(config))


def reads_vectors(config: Config) -> bool:
    """Whether the planner reads lanes with their lights, and the agents' history; others pay nothing."""
    return any(
        spec.vectors or (spec.network == "token" and not config.cameras.required) for spec in generator_specs(config)
    )


def needs_cameras(config: Config) -> bool:
    """Whether the car stops without images: `cameras.required`, but never with a planner whose network reads none."""
    return config.cameras.required and all(spec.network != "denoiser" for spec in generator_specs(config))


def uses_map(config: Config) -> bool:
    """Whether a map is read: for the route, the drivable space, or the lanes that the planner reads."""
    return config.inputs.needs_map or reads_vectors(config)


def uses_lights(config: Config) -> bool:
    """Whether traffic lights are read: their stop lines come from the map."""
    return uses_map(config) and config.inputs.lights_type == "groups"


def map_by_topic(config: Config) -> bool:
    """Whether the map comes from Autoware's topic: one is read, and no file is configured."""
    return uses_map(config) and not config.inputs.lanelet_map
