"""Counters over all plans of a replay, in constant memory."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.domain import Array, TokenTrace
from ..ros.inputs.channel import InputStatus, Level
from .record import no_alternatives

MESSAGES_MAX = 20  # reported per kind
OnProgress = Callable[[float], None]  # receives the share of a bag that is done, 0..1
OnDiagnostics = Callable[[Iterable[InputStatus]], None]  # receives the diagnostics of a step without a plan
NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class PublishedPlan:
    """One published plan with its status and diagnostics."""

    stamp_ns: int
    points: Array  # (T,) of plan_messages.POINT
    status: Any  # a PlanStatus, or a received PlannerStatus
    stages_ms: dict[str, float]
    statuses: tuple[InputStatus, ...]
    at_ns: int  # publication time on the clock of the bag
    trace: TokenTrace | None = None  # how its tokens were decoded; None where it has none
    alternatives: Array = field(default_factory=no_alternatives)  # (P, 40, 3) further plans that are scored


class ReplayCounters:
    """Counts steps, notes, diagnostics and deadline misses of a replay.

    `plans_sha256` is one hash over all numbers of all trajectories.
    """

    def __init__(self, deadline_ms: float) -> None:
        """`deadline_ms`: limit of a step; longer steps are counted."""
        self.plans = 0
        self._deadline_ms, self._over_deadline = deadline_ms, 0
        self._diagnostics: dict[tuple[Level, str], MessageCounter] = {}
        self._lock = threading.Lock()  # the reader thread reports damaged messages
        self._digest = hashlib.sha256()
        self._last: PublishedPlan | None = None
        self._steps, self._planners = Counter[str](), Counter[str]()
        self._why_full, self._notes = MessageCounter(), MessageCounter()

    def add(self, sent: PublishedPlan) -> None:
        self._digest.update(np.array(sent.stamp_ns, np.int64).tobytes())
        self._digest.update(sent.points.tobytes())
        self._steps[sent.status.step_kind] += 1
        self._planners[sent.status.planner] += 1
        for line in sent.statuses:
            if line.name == "planner":
                for sentences, key in ((self._why_full, "full_step_reason"), (self._notes, "notes")):
                    if line.values.get(key):
                        sentences.add(line.values[key])
        self._over_deadline += sent.stages_ms.get("total", 0.0) > self._deadline_ms
        self.count_diagnostics(sent.statuses)
        self._last = sent
        self.plans += 1

    def count_diagnostics(self, statuses: Iterable[InputStatus]) -> None:
        """Counts warnings and errors of one step; `add` calls it for steps with a plan."""
        with self._lock:
            for line in statuses:
                if line.level > Level.OK:
                    self._diagnostics.setdefault((line.level, line.name), MessageCounter()).add(line.message)

    def details(self) -> dict[str, Any]:
        """The hash of the plans; per input the counts received, lost, duplicate, late and refused, from the last
        diagnostics; plans by step type and by planner, reasons of full steps and notes; warnings and errors of the
        diagnostics with the number of steps that had them, errors and the most frequent first.
        """
        counters = ("received", "lost", "duplicates", "out_of_order", "refused")
        last = () if self._last is None else self._last.statuses
        counting = [line for line in last if "received" in line.values]
        return {
            "plans_sha256": self._digest.hexdigest(),
            "inputs": {line.name: {key: int(line.values[key]) for key in counters} for line in counting},
            "steps": dict(self._steps.most_common()),
            "planners": dict(self._planners.most_common()),
            "full_step_reason": self._why_full.counted(),
            "notes": self._notes.counted(),
            "deadline_ms": self._deadline_ms,
            "over_deadline": self._over_deadline,
            "diagnostics": self._messages(),
        }

    def _messages(self) -> list[dict[str, Any]]:
        lines = [
            (level, count, {"level": level.name, "name": name, "message": message, "count": count})
            for (level, name), sentences in self._diagnostics.items()
            for message, count in sentences.counted().items()
        ]
        return [line for *_, line in sorted(lines, key=lambda each: (-each[0], -each[1]))[:MESSAGES_MAX]]


class MessageCounter:
    """Counts messages; messages that differ only in numbers are merged, with the range of each number."""

    def __init__(self) -> None:
        self._counts = Counter[tuple[str, ...]]()  # by the words between numbers
        self._ranges: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    def add(self, sentence: str) -> None:
        words, numbers = (tuple(NUMBER.split(sentence)[first::2]) for first in (0, 1))
        self._counts[words] += 1
        before = self._ranges.get(words) or [(number, number) for number in numbers]
        self._ranges[words] = [
            (min(low, number, key=float), max(high, number, key=float))
            for (low, high), number in zip(before, numbers, strict=True)
        ]

    def counted(self) -> dict[str, int]:
        """Counts of the most frequent messages."""
        return {self._whole(words): count for words, count in self._counts.most_common(MESSAGES_MAX)}

    def _whole(self, words: tuple[str, ...]) -> str:
        ranges = [low if low == high else f"{low} to {high}" for low, high in self._ranges[words]]
        return "".join(part for pair in zip(words, [*ranges, ""], strict=True) for part in pair)
