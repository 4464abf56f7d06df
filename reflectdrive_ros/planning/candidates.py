"""What a generator proposes: plans through waypoints, in its order of preference.

A generator is one function `(state, observation, planner_context) -> Candidates`. `planning.pipeline` varies, selects,
repairs, finishes and checks what it proposes; a generator does none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.config import Config
from ..core.domain import Array, Observation, StepKind, TokenTrace, Trajectory
from ..core.recipe_config import DecodingConfig
from ..core.tokens import TokenLayout
from .planner import PlannerContext, PlannerState, PlanningError
from .postprocess.waypoints import HORIZON_S, waypoints


@dataclass(frozen=True, eq=False)
class TokenSearch:
    """What a repair by token search needs of the candidates of a step."""

    waypoints: Array  # (M, 8, A) the tokens' values before smoothing: x m, y m, heading rad
    layout: TokenLayout
    redraft: Callable[[Array], Array]  # partly masked ids (M, T) -> complete ids, in one step of the network


@dataclass(frozen=True, eq=False)
class Candidates:
    """M plans of one step, M >= 1, the one that the generator prefers first. Ego frame."""

    points: Array  # (M, 8, 2) m, at 0.5 .. 4 s, within the limits of the vehicle and of the route
    log_probs: Array | None = (
        None  # (M,) natural logarithm of the probability, up to a constant; NaN, None: it has none
    )
    step: StepKind = StepKind.FULL
    trajectories: Sequence[Trajectory | None] | None = None  # (M) published as they are where nothing is changed
    headings: Array | None = None  # (M, 8) rad, of unchanged plans; NaN or None: those of the path
    ids: Array | Sequence[Array | None] | None = None  # (M, T) int32 tokens, of a token network
    token_search: TokenSearch | None = None  # None: a repair brakes only
    trace: Callable[[int], TokenTrace | None] | None = None  # how the plan of an index was decoded
    notes: tuple[str, ...] = ()  # sentences on inputs that were replaced, cut or ignored
    full_step_reason: str = ""  # empty after a lite step
    memory: object = None  # state of the generator for its next step, in its own type
    planners: tuple[str, ...] = ()  # (M) whose each is; empty: of one planner

    def __post_init__(self) -> None:
        if self.points.ndim != 3 or self.points.shape[2] != 2 or not len(self.points):
            raise ValueError(f"Candidates.points has the shape {self.points.shape}, expected (M, 8, 2) with M >= 1")


def of_trajectories(trajectories: tuple[Trajectory, ...], step: StepKind = StepKind.FULL) -> Candidates:
    """Candidates of a generator without probabilities. Raises PlanningError for a trajectory of less than 4 s."""
    if (shortest_s := min(each.horizon_s for each in trajectories)) < HORIZON_S - 1e-9:
        raise PlanningError(f"the plan ends at {shortest_s:.1f} s, {HORIZON_S:.0f} s are checked")
    points = np.stack([waypoints(each) for each in trajectories])
    return Candidates(points, step=step, trajectories=trajectories)


Generator = Callable[[PlannerState, Observation, PlannerContext], Candidates]
DraftInputs = Callable[..., tuple[Array, tuple[int, ...]]]  # (prefilled, observation, planner_context)
Proposals = Callable[[Observation, PlannerContext], tuple[Trajectory, ...]]


def no_capabilities(config: Config) -> frozenset[str]:
    return frozenset()


def default_decoding(config: Config) -> DecodingConfig:
    return config.decoding


@dataclass(frozen=True)
class GeneratorSpec:
    """What the other rooms have to know of a generator. Each generator's module has one as SPEC."""

    name: str
    generate: Generator
    network: Literal["token", "denoiser"] | None = None  # the kind of its network; None: it has none
    images: bool = False  # whether it reads camera images
    vectors: bool = False  # whether it reads lanes with their lights, and the agents' history; others pay nothing
    needs: Callable[[Config], frozenset[str]] = no_capabilities  # of its network
    decoding: Callable[[Config], DecodingConfig] = default_decoding  # of its network
    draft_inputs: DraftInputs | None = None  # of a first draft that depends on the scene alone, to prefetch it
    package: str = ""  # that it needs and that `make setup` does not install
    proposals: Proposals | None = None  # all its plans, most probable first, without choice or repair
