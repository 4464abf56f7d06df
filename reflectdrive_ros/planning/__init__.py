"""Recipes: each planner is one function that reads like its paper."""

from __future__ import annotations

from . import constant_velocity, route_follower
from .planner import Planner

PLANNERS: dict[str, Planner] = {
    "constant_velocity": constant_velocity.plan,
    "route_follower": route_follower.plan,
}
