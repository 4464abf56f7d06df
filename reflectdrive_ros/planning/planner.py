"""The seams of planning: what a recipe is given and what it returns.

A planner is one function `(state, observation, tools) -> (state, plan)`. Its memory goes in and comes out; nothing is
shared behind its back. What it cannot do it says with a PlanningError, one sentence, and the engine sends a safe plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..config import Config
from ..domain import Array, Observation, Plan, TokenTrace
from ..features import InputSpec, ModelInputs, model_inputs
from ..tokens import Codebook


class PlanningError(Exception):
    """A planner cannot plan; the message says why."""


@dataclass(frozen=True)
class PlannerState:
    """What a recipe remembers between steps."""

    previous: Plan | None = None
    lite_run: int = 0  # lite steps since the last full one
    memory: object = None  # what one recipe remembers beyond that, in a type of its own; told of if it is Remarks


@runtime_checkable
class Remarks(Protocol):
    """What a memory has to say of the step that left it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on inputs that were not used as they came."""
        ...

    @property
    def why_full(self) -> str:
        """Why the step was a full one; empty where it was not."""
        ...


@dataclass(frozen=True, eq=False)
class Prefilled:
    """What a network knows of a scene before the first draft."""

    context: Any  # the network's own; goes back to it with each step
    actions: Array  # (K, 16) int32 ids, one block per goal: its last pair, the rest masked; the likeliest first
    goal_log_probs: Array  # (K,)
    valid: Array  # (K,) bool; a block that is not real repeats the first


def trace_of(rounds: Sequence[tuple[Array, Array]], known: Prefilled | None, codebook: Codebook) -> TokenTrace:
    """Of the draft and each edit round: ids and probabilities (1, 16) each. `known`: None where no goal was sought."""
    ids, confidence = (np.concatenate(part) for part in zip(*rounds, strict=True))
    if known is None:
        return TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids, confidence)
    goals = known.actions[known.valid][:, -2:]
    chosen = int(np.argmax((goals == ids[0, -2:]).all(axis=1)))  # neither draft nor edits change the goal
    return TokenTrace(codebook.to_values(goals), np.exp(known.goal_log_probs[known.valid]), chosen, ids, confidence)


class Network(Protocol):
    """A token network on some backend. Arrays go in and come out; what lies between stays on its device."""

    @property
    def inputs(self) -> InputSpec:
        """What it takes."""
        ...

    @property
    def codebook(self) -> Codebook:
        """What its ids mean."""
        ...

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        """Read the scene and decide where to go."""
        ...

    def prefill(self, inputs: ModelInputs) -> Any:
        """Read the scene alone, for who knows where to go: the context that `prefill_goal` would give."""
        ...

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        """One round on blocks (M, 16): write the `limit` most confident masked ids of each, or edit what is written.

        Returns the blocks, and the probability (M, 16) of each id, 0 where it is still the mask.
        """
        ...

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        """`step` that writes, once for each of at least one of `limits`, all rounds of a block at a stretch."""
        ...


def in_turn(network: Network, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
    """`Network.draft` of who has nothing better: one step after another, all blocks in each."""
    first, *others = limits
    actions, confidence = network.step(context, actions, first, False)
    for limit in others:
        actions, confidence = network.step(context, actions, limit, False)
    return actions, confidence


def no_hurry() -> float:
    return 0.0


@dataclass(frozen=True)
class Tools:
    """What a recipe may use."""

    config: Config
    network: Network | None = None  # of planners that have learned
    inputs_of: Callable[[Observation, InputSpec], ModelInputs] = model_inputs
    spent: Callable[[], float] = no_hurry  # share of the deadline that is gone


def what_it_sees(recipe: str, observation: Observation, tools: Tools) -> tuple[Network, ModelInputs]:
    """The network of a recipe that has learned, and what it is given. Raises PlanningError where one is missing."""
    if tools.network is None:
        raise PlanningError(f"{recipe} has no network: set model.file and model.sha256 to its weights")
    try:
        return tools.network, tools.inputs_of(observation, tools.network.inputs)
    except ValueError as fault:
        raise PlanningError(str(fault)) from None


Planner = Callable[[PlannerState, Observation, Tools], tuple[PlannerState, Plan]]
