"""How long the stages of a step take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .planner import PlannerContext


class StageTimes:
    """Milliseconds of each stage by the clock of the context."""

    def __init__(self, planner_context: PlannerContext) -> None:
        self.ms: dict[str, float] = {}
        self._clock = planner_context.clock

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        start_s = self._clock()
        yield
        self.ms[stage] = 1e3 * (self._clock() - start_s)
