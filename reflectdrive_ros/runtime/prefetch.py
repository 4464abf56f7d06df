"""A network that reads the next scenes while the plan for this one is still being made.

    ahead = ReadAhead(network)
    tools = Tools(config, ahead, ahead.inputs_of)
    ahead.begin(observation)       # of the next AHEAD scenes, then plan for the one before them

To read a scene (pictures brought to size, keys and values of the prompt) takes no plan, nor does the draft of a full
step, so a replay, which knows what comes, has other cores do it. What the recipe asks for is what the network itself
would answer: the same call on the same arrays, only earlier. Whether it will ask for `prefill` or `prefill_goal` is
guessed, and where the guess is wrong the scene is read again. For networks whose scenes may be read while steps run on
another (`concurrent`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..domain import Array, Observation
from ..features import InputSpec, ModelInputs, model_inputs
from ..planning.planner import Network, Prefilled
from ..tokens import Codebook

GOAL, ALONE = "prefill_goal", "prefill"
ToDraft = Callable[[Prefilled, Observation], tuple[Array, list[int]]]  # blocks, and how many ids each round writes
AHEAD = 4  # scenes that are read before the one that is planned for is done with: full and lite ones even out


@dataclass(frozen=True, eq=False)
class Reading:
    """A scene that was read: what by which call, and how long its two parts took."""

    inputs: ModelInputs
    asked: str
    found: Any  # or the exception that the call ended with
    draft: Draft | None
    inputs_s: float
    network_s: float


class Draft(NamedTuple):
    """What was drafted of a scene, in which rounds, and what came of it."""

    context: Any
    blocks: Array
    limits: list[int]
    found: tuple[Array, Array]


class ReadAhead:
    """`planning.planner.Network`; for one planner, that plans in the order in which scenes are begun.

    Full and lite steps take turns as a rule, so the guess is what the scene before the last has led to.
    """

    def __init__(
        self, network: Network, clock: Callable[[], float] = time.perf_counter, to_draft: ToDraft | None = None
    ) -> None:
        """`to_draft`: what a step that asks for `prefill_goal` drafts, where the scene alone decides."""
        self._network, self._clock, self._to_draft = network, clock, to_draft
        self._pool = ThreadPoolExecutor(min(AHEAD, os.cpu_count() or 1), thread_name_prefix="read-ahead")
        self._begun: deque[tuple[int, Observation, Future[Reading]]] = deque(maxlen=AHEAD + 1)  # and not planned yet
        self._count = 0  # of scenes that were begun
        self._planned: tuple[int, Reading] | None = None  # the scene that is being planned for
        self._asked = deque(((-2, GOAL), (-1, GOAL)), maxlen=2)  # number of a scene, what was asked of it; the last two
        self._hidden_s = 0.0

    @property
    def inputs(self) -> InputSpec:
        return self._network.inputs

    @property
    def codebook(self) -> Codebook:
        return self._network.codebook

    def begin(self, observation: Observation) -> None:
        """Read a scene that will be planned for after those that were begun before; any one thread may say so."""
        number, self._count = self._count, self._count + 1
        (_, other), (last, asked) = tuple(self._asked)
        in_turn = other if (number - last) % 2 else asked
        self._begun.append((number, observation, self._pool.submit(self._read, observation, in_turn)))

    def make_inputs(self, observation: Observation, spec: InputSpec) -> ModelInputs:
        """As `features.model_inputs`, with what it raises; waits for a scene that is still being read."""
        while self._begun:
            number, seen, coming = self._begun.popleft()
            if seen is observation:
                waiting = self._clock()
                reading = coming.result()
                self._planned = number, reading
                self._hidden_s = reading.inputs_s + reading.network_s - (self._clock() - waiting)
                return reading.inputs
        return model_inputs(observation, spec)

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        return self._known(GOAL, inputs)  # type: ignore[no-any-return]

    def prefill(self, inputs: ModelInputs) -> Any:
        return self._known(ALONE, inputs)

    def step(self, context: Any, blocks: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        return self._network.step(context, blocks, limit, edit)

    def draft(self, context: Any, blocks: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        made = None if self._planned is None else self._planned[1].draft
        if (
            made is not None
            and made.context is context
            and np.array_equal(made.blocks, blocks)
            and made.limits == list(limits)
        ):
            return made.found
        return self._network.draft(context, blocks, limits)

    def hidden_s(self) -> float:
        """Seconds that went into the reading of the last scene while nobody waited for it; asked again, none."""
        hidden, self._hidden_s = max(self._hidden_s, 0.0), 0.0
        return hidden

    def _read(self, observation: Observation, asked: str) -> Reading:
        begun = self._clock()
        inputs = model_inputs(observation, self._network.inputs)
        ready = self._clock()
        draft = None
        try:
            found = getattr(self._network, asked)(inputs)
            if asked == GOAL and self._to_draft is not None:
                blocks, limits = self._to_draft(found, observation)
                draft = Draft(found.context, blocks, limits, self._network.draft(found.context, blocks, limits))
        except Exception as fault:
            found = fault
        return Reading(inputs, asked, found, draft, ready - begun, self._clock() - ready)

    def _known(self, asked: str, inputs: ModelInputs) -> Any:
        if self._planned is None or self._planned[1].inputs is not inputs:
            return getattr(self._network, asked)(inputs)
        number, reading = self._planned
        self._asked.append((number, asked))
        if reading.asked != asked:
            self._hidden_s -= reading.network_s  # of no use
            return getattr(self._network, asked)(inputs)
        if isinstance(reading.found, Exception):
            raise reading.found
        return reading.found
