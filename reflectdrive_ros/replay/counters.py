"""What is counted over all plans of a replay, in memory that does not grow with it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..domain import Array
from ..ros.inputs.channel import InputStatus, Level

SENTENCES_MAX = 20  # of a kind that are told
Unsent = Callable[[Iterable[InputStatus]], None]  # takes the diagnostics of a step that sent no plan
NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Sent:
    """One plan as it went out, with what was said of it."""

    stamp_ns: int
    points: Array  # (T,) of outputs.POINT
    status: Any  # reflectdrive/PlannerStatus
    stages_ms: dict[str, float]
    statuses: tuple[InputStatus, ...]
    at_ns: int | None = None  # when, as the bag counts; None where only the end of the bag tells all


class Tally:
    """What is counted over all plans of a replay.

    `plans_sha256` is one hash over every number of every trajectory: equal runs have equal hashes.
    """

    def __init__(self, deadline_ms: float) -> None:
        """`deadline_ms`: what a step may take, to count those that took longer."""
        self.plans = 0
        self._deadline_ms, self._over_deadline = deadline_ms, 0
        self._diagnostics: dict[tuple[Level, str], Sentences] = {}
        self._lock = threading.Lock()  # the thread that reads ahead in the bag tells of damaged messages
        self._digest = hashlib.sha256()
        self._last: Sent | None = None
        self._steps, self._why_full, self._notes = Counter[str](), Sentences(), Sentences()

    def add(self, sent: Sent) -> None:
        self._digest.update(np.array(sent.stamp_ns, np.int64).tobytes())
        self._digest.update(sent.points.tobytes())
        self._steps[sent.status.step_kind] += 1
        for line in sent.statuses:
            if line.name == "planner":
                for sentences, key in ((self._why_full, "why_full"), (self._notes, "notes")):
                    if line.values.get(key):
                        sentences.add(line.values[key])
        self._over_deadline += sent.stages_ms.get("total", 0.0) > self._deadline_ms
        self.diagnosed(sent.statuses)
        self._last = sent
        self.plans += 1

    def diagnosed(self, statuses: Iterable[InputStatus]) -> None:
        """Count the warnings and errors of one step; `add` does it for the steps that sent a plan."""
        with self._lock:
            for line in statuses:
                if line.level > Level.OK:
                    self._diagnostics.setdefault((line.level, line.name), Sentences()).add(line.message)

    def details(self) -> dict[str, Any]:
        """The hash; per input what arrived, was lost, came twice, came late or was refused, as the last diagnostics
        tell; plans by the kind of step, why steps were full and what was noted; warnings and errors of the diagnostics
        with the number of steps that had them, errors and the most frequent first."""
        counters = ("received", "lost", "duplicates", "out_of_order", "refused")
        last = () if self._last is None else self._last.statuses
        counting = [line for line in last if "received" in line.values]
        return {
            "plans_sha256": self._digest.hexdigest(),
            "inputs": {line.name: {key: int(line.values[key]) for key in counters} for line in counting},
            "steps": dict(self._steps.most_common()),
            "why_full": self._why_full.counted(),
            "notes": self._notes.counted(),
            "deadline_ms": self._deadline_ms,
            "over_deadline": self._over_deadline,
            "diagnostics": self._said(),
        }

    def _said(self) -> list[dict[str, Any]]:
        lines = [
            (level, count, {"level": level.name, "name": name, "message": message, "count": count})
            for (level, name), sentences in self._diagnostics.items()
            for message, count in sentences.counted().items()
        ]
        return [line for *_, line in sorted(lines, key=lambda each: (-each[0], -each[1]))[:SENTENCES_MAX]]


class Sentences:
    """Sentences, and how often they were said; those that differ in numbers only are one, with the range of each."""

    def __init__(self) -> None:
        self._said = Counter[tuple[str, ...]]()  # by the words between numbers
        self._ranges: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    def add(self, sentence: str) -> None:
        words, numbers = (tuple(NUMBER.split(sentence)[first::2]) for first in (0, 1))
        self._said[words] += 1
        before = self._ranges.get(words) or [(number, number) for number in numbers]
        self._ranges[words] = [
            (min(low, number, key=float), max(high, number, key=float))
            for (low, high), number in zip(before, numbers, strict=True)
        ]

    def counted(self) -> dict[str, int]:
        """The most frequent ones."""
        return {self._whole(words): count for words, count in self._said.most_common(SENTENCES_MAX)}

    def _whole(self, words: tuple[str, ...]) -> str:
        told = [low if low == high else f"{low} to {high}" for low, high in self._ranges[words]]
        return "".join(part for pair in zip(words, [*told, ""], strict=True) for part in pair)
