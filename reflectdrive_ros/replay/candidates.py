"""Check of another planner's trajectories that are recorded in a bag, as the check node would do it in the car.

The candidates of each message are checked, repaired and scored at the time at which the recorder received it. The best
of a message is the plan of the replay. Deadlines are not enforced, so every replay gives the same verdicts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.config import Config
from ..core.domain import Array, Trajectory
from ..core.messages import BadMessage
from ..planning import external
from ..ros import candidates, plan_messages, topics
from ..ros.bag import BagError, BagReader
from ..ros.candidates import CandidateMessages
from ..ros.check_core import CandidateResult, CheckCore, CheckedMessage
from ..runtime.engine import NO_DEADLINE_MS
from ..scoring.simulate import HORIZON_S
from .counters import MessageCounter, OnDiagnostics, OnProgress, PublishedPlan
from .plan_measures import SCORES, number_cell, write_csv
from .record import no_alternatives, poses_at_score_times
from .recorded_world import BagSlice

CANDIDATES_FILE = "candidates.csv"
TRAJECTORY_MESSAGE = next(topic.type for topic in topics.OUTPUTS if topic.key == "trajectory")
CANDIDATE_TYPES = (topics.CHECK_CANDIDATES.type, TRAJECTORY_MESSAGE)
CANDIDATE_VERDICTS = ("safe", "repaired", "unsafe", "malformed", "unchecked")
NO_SCORES = dict.fromkeys(SCORES, float("nan"))


@dataclass(frozen=True)
class CandidateRow:
    """One candidate. Scores are 0..1; NaN where there is none."""

    received_ns: int
    name: str
    verdict: str  # of CANDIDATE_VERDICTS
    sentence: str  # what the diagnostics say of it
    score_before: float = float("nan")  # driving score in the forecast, as it came, safe or not
    score_after: float = float("nan")  # of what the check publishes in its place; 0 if that is unsafe
    before: Mapping[str, float] = field(default_factory=lambda: NO_SCORES)  # each of SCORES in the recorded future
    after: Mapping[str, float] = field(default_factory=lambda: NO_SCORES)


@dataclass(frozen=True)
class _Checked:
    """A candidate until the recorded future is read."""

    row: CandidateRow
    plan: int = -1  # index of the plan of its message
    before: int = -1  # among the alternatives of that plan; -1: shorter than the score's horizon
    after: int = -1


class CandidateReplay:
    """Replays the candidates of one topic. Raises BagError for a topic that has none, or a bag without odometry."""

    def __init__(self, reader: BagReader, topic: str) -> None:
        self.topic, self.type = topic, type_of(reader, topic)
        self.messages = 0
        self._checked: list[_Checked] = []
        self._read: Callable[[bytes], CandidateMessages] = (
            partial(candidates.read_trajectory, name=topic)
            if self.type == TRAJECTORY_MESSAGE
            else candidates.read_either_layout
        )

    def plans(
        self, part: BagSlice, config: Config, route: Any | None, on_progress: OnProgress, unsent: OnDiagnostics
    ) -> Iterator[PublishedPlan]:
        """The best of each message, in order. `route`: a nav_msgs/Path instead of the route of the bag. `unsent`
        receives the diagnostics of each message without a checked candidate."""
        core = CheckCore(replace(config, engine=replace(config.engine, deadline_ms=NO_DEADLINE_MS)), time.perf_counter)
        if route is not None:
            core.inputs.store.put("route", route, 0)
        count = 0
        for key, message in replace(part, sources={**part.sources, "candidates": self.topic}).inputs():
            now_ns = message.received_ns
            if key != "candidates":
                core.receive(key, message.data, now_ns, message.layout)
                continue
            core.inputs.wait_idle()
            on_progress(part.share(now_ns))
            self.messages += 1
            start_s = time.perf_counter()
            checked = self._check(core, message.data, now_ns)
            total_ms = 1e3 * (time.perf_counter() - start_s)
            sent = None if checked is None else self._publish(core, checked, now_ns, count, total_ms)
            if sent is None:
                unsent(core.statuses(now_ns))
            else:
                count += 1
                yield sent

    def _check(self, core: CheckCore, content: bytes, now_ns: int) -> CheckedMessage | None:
        try:
            messages = self._read(content)
        except BadMessage as fault:
            core.refuse(fault, now_ns)
            self._checked.append(_Checked(CandidateRow(now_ns, "message", "malformed", str(fault))))
            return None
        return core.check_messages(messages, now_ns)

    def _publish(
        self, core: CheckCore, message: CheckedMessage, now_ns: int, plan: int, total_ms: float
    ) -> PublishedPlan | None:
        """Records the candidates; the best of them as a plan, None if none was checked."""
        alternatives: list[Array] = []
        for result, score_before in zip(message.results, scores_received(message), strict=True):
            row = candidate_row(result, score_before, message.surface is not None, now_ns)
            before = _append(alternatives, result.trajectory)
            changed = result.checked is not None and not result.is_unchanged
            after = _append(alternatives, result.checked.plan.trajectory) if changed and result.checked else before
            self._checked.append(_Checked(row, plan, before, after))
        report = message.report()
        if report is None or message.surface is None:
            return None
        status = plan_messages.status(report, core.config, "", plan + 1, float("nan"), total_ms)
        status = replace(status, planner=self.topic)
        return PublishedPlan(
            report.plan.stamp_ns,
            plan_messages.plan_points(report.plan, core.config, message.surface),
            status,
            {"total": total_ms},
            tuple(core.statuses(now_ns)),
            now_ns,
            alternatives=np.array(alternatives) if alternatives else no_alternatives(),
        )

    def rows(self, scores: Mapping[int, Mapping[str, Array]]) -> list[CandidateRow]:
        """All candidates. `scores`: those of the alternatives of each plan in the recorded future, by its index."""
        return [
            replace(one.row, before=_at(scores.get(one.plan), one.before), after=_at(scores.get(one.plan), one.after))
            for one in self._checked
        ]

    def numbers(self, rows: Sequence[CandidateRow]) -> dict[str, Any]:
        """Counts of verdicts, mean scores in percent and sentences of what was not checked, ready for JSON."""
        sentences = MessageCounter()
        for row in rows:
            if row.verdict in ("malformed", "unchecked"):
                sentences.add(f"{row.verdict}: {row.sentence}")
        names = list(dict.fromkeys(row.name for row in rows))
        return {
            "topic": self.topic,
            "type": self.type,
            "messages": self.messages,
            **means(rows),
            "sentences": sentences.counted(),
            "by_name": {name: means([row for row in rows if row.name == name]) for name in names},
        }


def type_of(reader: BagReader, name: str) -> str:
    """One of CANDIDATE_TYPES, of this topic. Raises BagError if the bag has no such topic, or no odometry."""
    kinds = {topic.name: topic.type_name for topic in reader.topics if topic.count}
    if name not in kinds:
        own = sorted(each for each, kind in kinds.items() if kind in CANDIDATE_TYPES)
        others = f"it has {', '.join(own)}" if own else f"no topic of it is of type {' or '.join(CANDIDATE_TYPES)}"
        raise BagError(f"--candidates {name}: bag {reader.path} has no messages of this topic; {others}")
    if kinds[name] not in CANDIDATE_TYPES:
        raise BagError(f"--candidates {name} is of type {kinds[name]}, expected {' or '.join(CANDIDATE_TYPES)}")
    odometry = next(topic.type for topic in topics.inputs(Config()) if topic.key == "odometry")
    if odometry not in kinds.values():
        raise BagError(
            f"bag {reader.path} has no odometry (a topic of type {odometry}): candidates are checked from where the "
            "car is, so record it with them"
        )
    return kinds[name]


def scores_received(message: CheckedMessage) -> list[float]:
    """The driving score in the forecast of each candidate of a message as it came; NaN if it was not checked.

    Progress is relative to the best of what the check publishes, so that of an unchanged candidate does not change.
    """
    pairs = {
        index: (one.checked.plan.trajectory, one.trajectory)
        for index, one in enumerate(message.results)
        if one.checked is not None and one.trajectory is not None
    }
    scores = dict.fromkeys(range(len(message.results)), float("nan"))
    if pairs and message.safety_context is not None:
        published, received = zip(*pairs.values(), strict=True)
        values = external.forecast_scores([*published, *received], message.safety_context, peers=len(published))
        scores |= dict(zip(pairs, values[len(published) :].tolist(), strict=True))
    return list(scores.values())


def candidate_row(result: CandidateResult, score_before: float, has_inputs: bool, now_ns: int) -> CandidateRow:
    """`has_inputs`: whether there was an observation to check candidates in."""
    checked = result.checked
    if checked is None:
        verdict = "malformed" if has_inputs else "unchecked"
        return CandidateRow(now_ns, result.name, verdict, result.reason)
    verdict = "unsafe" if not checked.is_safe else "safe" if result.is_unchanged else "repaired"
    return CandidateRow(now_ns, result.name, verdict, checked.sentence, score_before, checked.score)


def _append(alternatives: list[Array], trajectory: Trajectory | None) -> int:
    """Index of the trajectory among the alternatives, to which it is added; -1 if it is too short for the score."""
    if trajectory is None or trajectory.horizon_s < HORIZON_S - 1e-6:
        return -1
    alternatives.append(poses_at_score_times(trajectory.poses, trajectory.dt_s))
    return len(alternatives) - 1


def _at(scores: Mapping[str, Array] | None, index: int) -> dict[str, float]:
    return NO_SCORES if scores is None or index < 0 else {name: float(scores[name][index]) for name in SCORES}


def means(rows: Sequence[CandidateRow]) -> dict[str, Any]:
    """Counts of verdicts, and mean scores in percent over the candidates that have them; None if none has."""
    counts = Counter(row.verdict for row in rows)
    return {
        "candidates": len(rows),
        "verdicts": {verdict: counts[verdict] for verdict in CANDIDATE_VERDICTS},
        "score_before": _percent([row.score_before for row in rows]),
        "score_after": _percent([row.score_after for row in rows]),
        "scored": {
            "candidates": int(sum(np.isfinite(row.before["nc"]) for row in rows)),
            "before": {name: _percent([row.before[name] for row in rows]) for name in SCORES},
            "after": {name: _percent([row.after[name] for row in rows]) for name in SCORES},
        },
    }


def _percent(values: Sequence[float]) -> float | None:
    finite = [value for value in values if np.isfinite(value)]
    return round(100.0 * float(np.mean(finite)), 2) if finite else None


def write_rows(rows: Sequence[CandidateRow], path: Path) -> None:
    """As CSV, whole or not at all; an empty cell is an unknown score. Raises OSError where it cannot be written."""
    plain = [entry.name for entry in fields(CandidateRow) if entry.name not in ("before", "after")]
    scored = [(when, name) for when in ("before", "after") for name in SCORES]
    cells = (
        [*(getattr(row, name) for name in plain), *(getattr(row, when)[name] for when, name in scored)] for row in rows
    )
    texts = ([number_cell(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in cells)
    write_csv(path, [*plain, *(f"{name}_{when}" for when, name in scored)], texts)
