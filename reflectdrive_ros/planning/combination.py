"""Several planners as one: each proposes, and their candidates are one set for the pipeline.

The first planner is preferred: variants are of its first plan, and the plan of another has to score better by more
than `pipeline.PLANNER_COST`. One that cannot plan is left out of the step and named in the notes; the others plan: of a
planner that reads cameras and one that reads the map, either drives on where the inputs of the other are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.domain import Array, Observation, TokenTrace
from .candidates import Candidates, GeneratorSpec, TokenSearch
from .planner import PlannerContext, PlannerState, PlanningError


@dataclass(frozen=True, eq=False)
class Memories:
    """The memory of each planner between steps; None of one that could not plan."""

    each: tuple[object, ...]


def combine(specs: Sequence[GeneratorSpec]) -> GeneratorSpec:
    """One spec of several; what one engine has one of, as decoding settings, is that of the first with a network."""
    learned = next((index for index, spec in enumerate(specs) if spec.network is not None), 0)

    def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
        if is_blind(observation) and any(spec.images for spec in specs):
            raise PlanningError("neither images nor objects are known: the planner sees nothing of the traffic")
        parts, faults = list[Candidates | None](), list[str]()
        for spec, own in zip(specs, own_states(state, specs), strict=True):
            try:
                parts.append(spec.generate(own, observation, planner_context.of_planner(spec.name)))
            except PlanningError as fault:
                parts.append(None)
                faults.append(f"{spec.name} has no plan: {fault}")
        names = [spec.name for spec in specs]
        if not any(parts):
            raise PlanningError("; ".join(faults))
        leading = parts[learned] or next(part for part in parts if part is not None)
        return join(names, parts, leading, tuple(faults))

    return replace(
        specs[learned],
        name="+".join(spec.name for spec in specs),
        generate=generate,
        images=any(spec.images for spec in specs),
        vectors=any(spec.vectors for spec in specs),
        proposals=None,
    )


def is_blind(observation: Observation) -> bool:
    """Whether nothing is known of other road users."""
    return not observation.cameras and observation.others is None


def own_states(state: PlannerState, specs: Sequence[GeneratorSpec]) -> list[PlannerState]:
    """The state of each planner: its memory, and the last plan if that was its own."""
    memories = state.memory.each if isinstance(state.memory, Memories) else (None,) * len(specs)
    last = state.previous
    return [
        PlannerState(last if last is not None and last.planner == spec.name else None, memory)
        for spec, memory in zip(specs, memories, strict=True)
    ]


def join(
    names: Sequence[str], parts: Sequence[Candidates | None], leading: Candidates, faults: tuple[str, ...]
) -> Candidates:
    """The candidates of all planners, in their order; None: of one without a plan. `leading`: that whose kind of step
    and reason are reported. What a planner does not give is absent for its candidates only."""
    planning = [part for part in parts if part is not None]
    index = [(part, row) for part in planning for row in range(len(part.points))]

    def trace(candidate: int) -> TokenTrace | None:
        part, row = index[candidate]
        return None if part.trace is None else part.trace(row)

    has_log_probs = any(part.log_probs is not None for part in planning)
    return Candidates(
        np.concatenate([part.points for part in planning]),
        np.concatenate([relative_log_probs(part) for part in planning]) if has_log_probs else None,
        leading.step,
        tuple(None if part.trajectories is None else part.trajectories[row] for part, row in index),
        np.concatenate(
            [np.full(part.points.shape[:2], np.nan) if part.headings is None else part.headings for part in planning]
        ),
        tuple(None if part.ids is None else part.ids[row] for part, row in index),
        searchable(planning),
        trace,
        notes=(*faults, *(note for part in planning for note in part.notes)),
        full_step_reason=leading.full_step_reason,
        memory=Memories(tuple(None if part is None else part.memory for part in parts)),
        planners=tuple(name for name, part in zip(names, parts, strict=True) if part is not None for _ in part.points),
    )


def relative_log_probs(part: Candidates) -> Array:
    """(M,) against the most probable candidate of the planner; NaN if it has no probabilities. Those of two planners
    cannot be compared."""
    if part.log_probs is None:
        return np.full(len(part.points), np.nan)
    return np.asarray(part.log_probs - part.log_probs.max())


def searchable(parts: Sequence[Candidates]) -> TokenSearch | None:
    """The token search of the planner that has one, its waypoints in the rows of all candidates."""
    search = next((part.token_search for part in parts if part.token_search is not None), None)
    if search is None:
        return None
    shape = search.waypoints.shape[1:]
    rows = [
        np.full((len(part.points), *shape), np.nan) if part.token_search is None else part.token_search.waypoints
        for part in parts
    ]
    return replace(search, waypoints=np.concatenate(rows))
