"""Prefetches the encoding and drafts of later scenes while the present one is planned.

    ahead = Prefetcher(network)
    context = PlannerContext(config, ahead, ahead.inputs_of)
    ahead.prefetch(observation)       # of the next AHEAD scenes, then plan for the one before them

Encoding a scene (resized images, the prompt's KV cache) does not depend on the plan before, nor does the draft of a
full step. A replay, which knows the later scenes, computes both on other cores. The recipe gets what the network itself
would return: the same call on the same arrays, only earlier. Whether it will call `prefill` or `prefill_goal` is
predicted; after a wrong prediction the scene is encoded again. For networks that can encode scenes while steps run on
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

from ..core.domain import Array, Observation
from ..features.images import InputSpec, ModelInputs, model_inputs
from ..planning.planner import Network, NetworkWrapper, Prefilled

PREFILL_GOAL, PREFILL = "prefill_goal", "prefill"
DraftRequest = Callable[[Prefilled, Observation], tuple[Array, Sequence[int]]]  # sequences, ids per round
PREFETCH_DEPTH = 4  # scenes that are read before the one that is planned for is done with: full and lite ones even out


@dataclass(frozen=True, eq=False)
class PrefetchedScene:
    """A scene that was read: what by which call, and how long its two parts took."""

    inputs: ModelInputs
    call: str
    result: Any  # or the exception that the call ended with
    draft: PrefetchedDraft | None
    inputs_s: float
    network_s: float


class PrefetchedDraft(NamedTuple):
    """A prefetched draft: its inputs, its rounds and its result."""

    context: Any
    actions: Array
    limits: tuple[int, ...]
    result: tuple[Array, Array]


class Prefetcher(NetworkWrapper):
    """`planning.planner.Network`; for one planner, which plans in the order of `prefetch` calls.

    Full and lite steps usually alternate, so that the prediction is the call of the scene before the last.
    """

    def __init__(
        self, network: Network, clock: Callable[[], float] = time.perf_counter, draft_inputs: DraftRequest | None = None
    ) -> None:
        """`draft_inputs`: the sequences that a step drafts after `prefill_goal`, if they depend on the scene alone."""
        super().__init__(network)
        self._clock, self._draft_inputs = clock, draft_inputs
        self._pool = ThreadPoolExecutor(min(PREFETCH_DEPTH, os.cpu_count() or 1), thread_name_prefix="read-ahead")
        self._pending: deque[tuple[int, Observation, Future[PrefetchedScene]]] = deque(
            maxlen=PREFETCH_DEPTH + 1
        )  # and not planned yet
        self._count = 0  # of scenes submitted
        self._planned: tuple[int, PrefetchedScene] | None = None  # the scene that is being planned for
        first = PREFILL_GOAL if "goals" in network.capabilities else PREFILL
        self._recent_calls = deque(((-2, first), (-1, first)), maxlen=2)  # number of a scene and its call; the last two
        self._hidden_s = 0.0

    def prefetch(self, observation: Observation) -> None:
        """Encodes a scene that will be planned after those prefetched before; call it from one thread."""
        number, self._count = self._count, self._count + 1
        (_, other), (last, last_call) = tuple(self._recent_calls)
        predicted = other if (number - last) % 2 else last_call
        self._pending.append((number, observation, self._pool.submit(self._read, observation, predicted)))

    def make_inputs(self, observation: Observation, spec: InputSpec) -> ModelInputs:
        """As `features.model_inputs`, with what it raises; waits for a scene that is still being read."""
        while self._pending:
            number, scene, coming = self._pending.popleft()
            if scene is observation:
                waiting = self._clock()
                reading = coming.result()
                self._planned = number, reading
                self._hidden_s = reading.inputs_s + reading.network_s - (self._clock() - waiting)
                return reading.inputs
        return model_inputs(observation, spec)

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        return self._prefetched_or_call(PREFILL_GOAL, inputs)  # type: ignore[no-any-return]

    def prefill(self, inputs: ModelInputs) -> Any:
        return self._prefetched_or_call(PREFILL, inputs)

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        prefetched = None if self._planned is None else self._planned[1].draft
        if (
            prefetched is not None
            and prefetched.context is context
            and np.array_equal(prefetched.actions, actions)
            and prefetched.limits == tuple(limits)
        ):
            return prefetched.result
        return self._network.draft(context, actions, limits)

    def overlap_s(self) -> float:
        """Seconds of the last scene's encoding that overlapped with planning; reset by the call."""
        hidden, self._hidden_s = max(self._hidden_s, 0.0), 0.0
        return hidden

    def _read(self, observation: Observation, call: str) -> PrefetchedScene:
        start_s = self._clock()
        inputs = model_inputs(observation, self._network.inputs)
        ready = self._clock()
        draft = None
        try:
            result = getattr(self._network, call)(inputs)
            if call == PREFILL_GOAL and self._draft_inputs is not None:
                actions, limits = self._draft_inputs(result, observation)
                draft = PrefetchedDraft(
                    result.context, actions, tuple(limits), self._network.draft(result.context, actions, limits)
                )
        except Exception as fault:
            result = fault
        return PrefetchedScene(inputs, call, result, draft, ready - start_s, self._clock() - ready)

    def _prefetched_or_call(self, call: str, inputs: ModelInputs) -> Any:
        if self._planned is None or self._planned[1].inputs is not inputs:
            return getattr(self._network, call)(inputs)
        number, reading = self._planned
        self._recent_calls.append((number, call))
        if reading.call != call:
            self._hidden_s -= reading.network_s  # of no use
            return getattr(self._network, call)(inputs)
        if isinstance(reading.result, Exception):
            raise reading.result
        return reading.result
