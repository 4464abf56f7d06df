"""Recipes: each planner is one function that reads like its paper."""

from __future__ import annotations

from ..config import Config
from . import constant_velocity, reflectdrive2, route_follower
from .planner import Planner

PLANNERS: dict[str, Planner] = {
    "constant_velocity": constant_velocity.plan,
    "route_follower": route_follower.plan,
}
BLIND = ("constant_velocity", "route_follower")  # they look at no picture, so none need be drawn or read for them
LEARNED: dict[str, Planner] = {
    "reflectdrive2": reflectdrive2.plan,
}


def planners(config: Config) -> dict[str, Planner]:
    """The recipes that can plan with a configuration: what has learned needs a model's weights."""
    return {**PLANNERS, **LEARNED} if config.model.file else dict(PLANNERS)
