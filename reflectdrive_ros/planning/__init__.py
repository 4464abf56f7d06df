"""Recipes: each planner is one function that reads like its paper."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config, ConfigError, DecodingConfig
from . import constant_velocity, reflectdrive, reflectdrive2, route_follower
from .planner import Planner

PLANNERS: dict[str, Planner] = {
    "constant_velocity": constant_velocity.plan,
    "route_follower": route_follower.plan,
}
BLIND = ("constant_velocity", "route_follower")  # they look at no picture, so none need be drawn or read for them
LEARNED: dict[str, Planner] = {  # they have a network, which needs a model's weights
    "reflectdrive": reflectdrive.plan,
    "reflectdrive2": reflectdrive2.plan,
}
TO_DRAFT = {"reflectdrive2": reflectdrive2.to_draft}  # of those whose first draft hangs on the scene alone


def planner_named(config: Config) -> Planner:
    """The recipe that a configuration asks for. Raises ConfigError naming those there are, or what it needs."""
    known = planners(config)
    if config.planner in known:
        return known[config.planner]
    if config.planner in LEARNED:
        raise ConfigError(
            f"planner {config.planner} needs a model: set model.file and model.sha256, or give --model FILE"
        )
    raise ConfigError(f"planner is '{config.planner}', expected one of {', '.join((*PLANNERS, *LEARNED))}")


def planners(config: Config) -> dict[str, Planner]:
    """The recipes that can plan with a configuration: what has learned needs a model's weights."""
    return {**PLANNERS, **LEARNED} if config.model.file else dict(PLANNERS)


def decoding_of(config: Config) -> DecodingConfig:
    """How the configured planner wants its network to decode: ReflectDrive has goals of its own."""
    if config.planner != "reflectdrive":
        return config.decoding
    wanted = config.reflectdrive
    return replace(config.decoding, goals=wanted.goals, goal_spacing_m=wanted.goal_spacing_m)
