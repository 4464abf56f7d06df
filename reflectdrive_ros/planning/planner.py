"""The seams of planning: what a recipe is given and what it returns.

A planner is one function `(state, observation, tools) -> (state, plan)`. Its memory goes in and comes out; nothing is
shared behind its back. What it cannot do it says with a PlanningError, one sentence, and the engine sends a safe plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import Config
from ..domain import Observation, Plan


class PlanningError(Exception):
    """A planner cannot plan; the message says why."""


@dataclass(frozen=True)
class PlannerState:
    """What a recipe remembers between steps."""

    previous: Plan | None = None
    lite_run: int = 0  # lite steps since the last full one


@dataclass(frozen=True)
class Tools:
    """What a recipe may use."""

    config: Config


Planner = Callable[[PlannerState, Observation, Tools], tuple[PlannerState, Plan]]
