"""Types of planning: state and context of a planner, and the network that it calls.

A planner is a function `(state, observation, planner_context) -> (state, plan)` without hidden state. It raises
PlanningError, with one sentence as its message, if it cannot plan; the engine then publishes the stop plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np

from ..core import geometry
from ..core.config import Config
from ..core.domain import Array, Observation, Plan, TokenTrace
from ..core.tokens import Round, TokenLayout
from ..features.images import InputSpec, ModelInputs, model_inputs
from ..scoring.frenet import FrenetFrame, points_in_ego_frame
from ..scoring.safety import SafetyContext
from .denoiser import Denoiser


class PlanningError(Exception):
    """A planner cannot plan; the message gives the reason."""


@dataclass(frozen=True)
class PlannerState:
    """State of a planner between steps."""

    previous: Plan | None = None
    memory: object = None  # state of the generator, in its own type
    notes: tuple[str, ...] = ()  # of the last step: sentences on inputs that were replaced, cut or ignored
    full_step_reason: str = ""  # why the last step was a full one; empty after a lite step
    stage_ms: Mapping[str, float] = field(default_factory=dict)  # duration of each stage of the last step
    generated: Plan | None = None  # whose points those of `previous` are: itself, or an earlier one that it continues


@dataclass(frozen=True, eq=False)
class Prefilled:
    """Result of the prefill: the encoded scene and the goals."""

    context: Any  # prefix with KV cache, opaque; passed back to the network in each step
    actions: Array  # (K, T) int32 ids, an action sequence per goal: its goal, the rest masked; most probable first
    goal_log_probs: Array  # (K,)
    valid: Array  # (K,) bool; an invalid sequence is padding and repeats the first


def token_trace(
    rounds: Sequence[tuple[Array, Array]],
    prefilled: Prefilled | None,
    layout: TokenLayout,
    road: FrenetFrame | None = None,
) -> TokenTrace:
    """Trace of the draft, the first of the rounds, and of each edit round, ids and probabilities (1, T) each.

    `prefilled` is None if the step selected no goal; `road` is that of a layout in the frame of the route.
    """
    ids, confidence = (np.concatenate(part) for part in zip(*rounds, strict=True))
    draft = points_in_ego_frame(layout.decode(ids[0]), layout, road)
    if prefilled is None:
        return TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids, confidence, draft)
    goals, goal = prefilled.actions[prefilled.valid], list(layout.goal)
    chosen = int(np.argmax((goals[:, goal] == ids[0, goal]).all(axis=1)))  # a draft has its goal, edits may change it
    goal_points = points_in_ego_frame(layout.decode_goal(goals), layout, road)
    return TokenTrace(goal_points, np.exp(prefilled.goal_log_probs[prefilled.valid]), chosen, ids, confidence, draft)


class Network(Protocol):
    """A token network on some backend. Inputs and outputs are arrays; the context stays on its device."""

    @property
    def kind(self) -> Literal["token"]:
        """As the card of the network says."""
        ...

    @property
    def inputs(self) -> InputSpec:
        """Specification of the input arrays."""
        ...

    @property
    def layout(self) -> TokenLayout:
        """Meaning of the tokens."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What the network can do beyond drafts: goals, edit, sampling, refine, critique."""
        ...

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        """Encode the scene and predict the goals. Capability goals."""
        ...

    def prefill(self, inputs: ModelInputs) -> Any:
        """Encode the scene only, if the goal is known: the context that `prefill_goal` would give."""
        ...

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        """One decoding round on action sequences (M, T).

        Without `edit` it writes the `limit` most confident masked ids of each; with `edit` it edits the written ids
        (AutoEdit). Returns the sequences and the probability (M, T) of each id, 0 where it is masked.
        """
        ...

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        """`step` without `edit` for each of `limits` (at least one)."""
        ...

    def sampled_step(
        self, context: Any, actions: Array, limit: int, temperature: Array, share: Array
    ) -> tuple[Array, Array]:
        """As `step` without `edit`, with ids sampled from the distribution at a temperature (M,) by uniform numbers
        `share` (M, T) in [0, 1); the most probable ids at temperature 0. Capability sampling."""
        ...

    def refine(self, context: Any, actions: Array, critique: Array | None = None) -> tuple[Array, Array]:
        """Complete sequences (M, T) corrected by the expert in one pass, and the probability (M, T) of each id.
        Capability refine, or critique: then with the critiques (M, points, channels) of the plans
        (`planning.critique`)."""
        ...


class NetworkWrapper:
    """A network that asks another for all that its subclasses do not answer themselves: encoding and drafts."""

    kind: Literal["token"] = "token"

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def inputs(self) -> InputSpec:
        return self._network.inputs

    @property
    def layout(self) -> TokenLayout:
        return self._network.layout

    @property
    def capabilities(self) -> frozenset[str]:
        return self._network.capabilities

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        return self._network.step(context, actions, limit, edit)

    def sampled_step(
        self, context: Any, actions: Array, limit: int, temperature: Array, share: Array
    ) -> tuple[Array, Array]:
        return self._network.sampled_step(context, actions, limit, temperature, share)

    def refine(self, context: Any, actions: Array, critique: Array | None = None) -> tuple[Array, Array]:
        return self._network.refine(context, actions, critique)


AnyNetwork = Network | Denoiser  # what a model file holds, as its card's `kind` says
Networks = Mapping[str, AnyNetwork]  # by name of the planner


def draft_sequentially(network: Network, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
    """`Network.draft` as one `step` call per round, for backends without a fused implementation."""
    return run_rounds(partial(network.step, context), actions, tuple(map(Round, limits)))


def run_rounds(
    step: Callable[[Array, int, bool], tuple[Array, Array]], actions: Array, rounds: Sequence[Round]
) -> tuple[Array, Array]:
    """Sequences (M, T) after decoding rounds, and the probability of each id; `step` is `Network.step` of a scene."""
    confidence = np.zeros(actions.shape)
    for limit, edit in rounds:
        actions, confidence = step(actions, limit, edit)
    return actions, confidence


def can_score(observation: Observation) -> bool:
    """Whether candidates can be scored: agents or drivable space are known, and there is a route."""
    has_hazards = observation.others is not None or observation.drivable is not None
    return has_hazards and len(geometry.distinct_points(observation.route)) >= 2


def prefill_sequences(network: Network, inputs: ModelInputs) -> Prefilled:
    """`prefill_goal` or, of a network without the capability goals, one sequence of masks."""
    if "goals" in network.capabilities:
        return network.prefill_goal(inputs)
    masked = np.full((1, network.layout.length), network.layout.mask_id, np.int32)
    return Prefilled(network.prefill(inputs), masked, np.zeros(1), np.ones(1, bool))


def no_clock() -> float:
    """Seconds of a clock that stands: stages take no time."""
    return 0.0


def no_deadline() -> float:
    """Share of the deadline used, if there is no deadline: 0."""
    return 0.0


@dataclass(frozen=True)
class PlannerContext:
    """Configuration, network, clock and checks of a planner."""

    config: Config
    network: AnyNetwork | None = None  # of learned planners; of several, that of the first
    networks: Networks = field(default_factory=dict)  # of several planners
    make_inputs: Callable[[Observation, InputSpec], ModelInputs] = model_inputs
    deadline_used: Callable[[], float] = no_deadline  # elapsed share of the deadline, 0 at the start of the step
    safety: SafetyContext | None = None  # of the step's observation
    clock: Callable[[], float] = no_clock  # seconds, of the durations of stages

    @staticmethod
    def of(config: Config, networks: Networks) -> PlannerContext:
        """Of a single plan, or of the first of a drive, without clock and deadline."""
        return PlannerContext(config, next(iter(networks.values()), None), networks)

    def of_planner(self, name: str) -> PlannerContext:
        """That of one of several planners."""
        return replace(self, network=self.networks.get(name, self.network))

    def safety_context(self, observation: Observation) -> SafetyContext:
        """The SafetyContext of the step, or a new one if the caller shares none for this observation."""
        if self.safety is not None and self.safety.observation is observation:
            return self.safety
        return SafetyContext(observation, self.config)


def token_network(recipe: str, planner_context: PlannerContext) -> Network:
    """The token network. Raises PlanningError if there is none, or another kind."""
    network = planner_context.network
    if network is None:
        raise PlanningError(f"{recipe} has no network: set model.file and model.sha256 to its weights")
    if network.kind == "denoiser":
        raise PlanningError(f"{recipe} needs a network of kind token, but has a denoiser: set model.file to another")
    return network


def network_inputs(
    recipe: str, observation: Observation, planner_context: PlannerContext, needs: frozenset[str]
) -> tuple[Network, ModelInputs]:
    """The network and its inputs.

    Raises PlanningError if there is no network, if it lacks a capability that the recipe `needs`, or if an input cannot
    be used.
    """
    network = token_network(recipe, planner_context)
    if missing := needs - network.capabilities:
        has = ", ".join(sorted(network.capabilities)) or "none"
        raise PlanningError(f"{recipe} needs the capability {min(missing)} of its network, whose card has {has}")
    try:
        return network, planner_context.make_inputs(observation, network.inputs)
    except ValueError as fault:
        raise PlanningError(str(fault)) from None


Planner = Callable[[PlannerState, Observation, PlannerContext], tuple[PlannerState, Plan]]
