"""A token network that keeps its answers for one scene: planners with different privileges ask it for the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..core.domain import Array
from ..features.images import ModelInputs
from ..planning.planner import AnyNetwork, Network, NetworkWrapper, Prefilled

Answer = tuple[Array, Array]  # ids and probabilities


def remembering(network: AnyNetwork) -> AnyNetwork:
    """The network, with memory if it is a token network. Every answer is that of the network, to the bit."""
    return network if network.kind != "token" else RememberingNetwork(network)


class RememberingNetwork(NetworkWrapper):
    """Keeps the last prefill and its drafts and edits: some backends hold one scene at a time."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._inputs = b""
        self._prefilled: Prefilled | None = None
        self._answers: dict[Hashable, Answer] = {}

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        scene = {} if inputs.scene is None else inputs.scene.arrays
        key = b"".join(part.tobytes() for part in (*inputs.arrays.values(), *scene.values()))
        if self._prefilled is None or key != self._inputs:
            self._inputs, self._prefilled = key, self._network.prefill_goal(inputs)
            self._answers = {}
        return self._prefilled

    def prefill(self, inputs: ModelInputs) -> Any:
        return self._network.prefill(inputs)

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> Answer:
        return self._answer(context, actions, (limit, edit), lambda: self._network.step(context, actions, limit, edit))

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> Answer:
        return self._answer(context, actions, tuple(limits), lambda: self._network.draft(context, actions, limits))

    def _answer(self, context: Any, actions: Array, rounds: Hashable, decode: Callable[[], Answer]) -> Answer:
        if self._prefilled is None or context is not self._prefilled.context:
            return decode()
        key = (actions.shape, actions.tobytes(), rounds)
        if key not in self._answers:
            self._answers[key] = decode()
        ids, confidence = self._answers[key]
        return ids.copy(), confidence.copy()
