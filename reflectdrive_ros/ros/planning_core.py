"""Inputs and engine put together: messages in, reports out. The node, the replay and the bench all drive this one.

It knows no topics, threads or executors, and its clock is handed in, so a replay of it is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..domain import PlanSource, StepReport, Verdict
from ..runtime.engine import Clock, Engine
from .inputs import NO_CLOCK, Inputs, InputStatus, Level, Snapshot


@dataclass(frozen=True)
class Look:
    """What was known when a step became due."""

    snapshot: Snapshot
    restarts: int  # how often time had gone back, or localisation had jumped, by then
    took_ms: float  # conversion and decoding


@dataclass(frozen=True)
class PilotStep:
    """One planning step: what was known, what was answered (None without odometry: nothing honest can be sent)."""

    snapshot: Snapshot
    report: StepReport | None
    timings_ms: dict[str, float]  # snapshot (conversion and decoding), then the engine's stages
    restarts: int  # as in Look, when the step began: plans of before must not be sent after those of after


class Pilot:
    def __init__(self, config: Config, clock: Clock, engine: Engine | None = None) -> None:
        """Raises ConfigError or ModelFileError as the engine does."""
        self.config = config
        self._clock = clock
        self._engine = engine or Engine(config, clock)
        self.inputs = Inputs(config, self._engine.image_size)
        self.model_sha256, self.backend_description = self._engine.model_sha256, self._engine.backend_description
        self._restarts = 0
        self._consecutive_late = 0
        self._interrupted = ""  # why the watchdog had to send the stop, until the next step
        self._overdue = ""  # why a plan is overdue, likewise
        self._last: PilotStep | None = None

    def put(self, key: str, message: Any, now_ns: int) -> None:
        self.inputs.put(key, message, now_ns)

    def receive(self, key: str, content: bytes, now_ns: int) -> int | None:
        return self.inputs.receive(key, content, now_ns)

    def settle(self) -> None:
        """Wait for what goes on in the background; for replays, never on a car."""
        self.inputs.settle()

    def due(self, now_ns: int) -> bool:
        return self.inputs.due(now_ns)

    def step(self, now_ns: int) -> PilotStep:
        """Plan from the newest of everything; stop, saying why, where that is not enough."""
        return self.answer(self.look(now_ns))

    def look(self, now_ns: int) -> Look:
        """The newest of everything. A replay looks at the next before it answers the last."""
        begun, restarts = self._clock(), self.inputs.restarts
        snapshot = self.inputs.snapshot(now_ns)
        if snapshot.observation is not None:
            self._engine.prefetch(snapshot.observation)
        return Look(snapshot, restarts, 1e3 * (self._clock() - begun))

    def answer(self, look: Look) -> PilotStep:
        """Plan from what was seen; looks are answered in their order."""
        if self._restarts != look.restarts:
            self._restarts = look.restarts
            self._engine.reset()
        snapshot, took, report = look.snapshot, {"snapshot": look.took_ms}, None
        if snapshot.observation is not None:
            report = self._engine.step(snapshot.observation)
        elif snapshot.ego is not None:
            report = self._engine.stop(snapshot.ego, snapshot.agents, "; ".join(snapshot.problems))
        if report is not None:
            took.update(report.timings_ms)
            self._consecutive_late = self._consecutive_late + 1 if report.verdict is Verdict.LATE else 0
        self._interrupted = self._overdue = ""
        self._last = PilotStep(snapshot, report, took, look.restarts)
        return self._last

    def stop(self, now_ns: int, reason: str) -> StepReport | None:
        """The watchdog's answer, safe to ask for while a step runs: stop from the newest odometry; None without any."""
        self._interrupted = reason
        ego, agents = self.inputs.ego(now_ns)
        return None if ego is None else self._engine.stop(ego, agents, reason)

    def overdue(self, reason: str) -> None:
        """A plan should have come by now: the diagnostics say so until one does."""
        self._overdue = reason

    def problems(self, now_ns: int) -> str:
        """What keeps the planner from planning, in one line; empty when nothing does."""
        faults = [s.message for s in self.inputs.statuses(now_ns) if s.level >= Level.ERROR]
        return NO_CLOCK if any(NO_CLOCK in fault for fault in faults) else "; ".join(faults)

    def statuses(self, now_ns: int) -> list[InputStatus]:
        """The diagnostics: one line per input, then the planner's."""
        return [*self.inputs.statuses(now_ns), self.planner_status(now_ns)]

    def planner_status(self, now_ns: int) -> InputStatus:
        """The line of the last step."""
        last = self._last
        if last is None or last.report is None:
            return InputStatus("planner", Level.ERROR, self.problems(now_ns) or "no step yet", {})
        report = last.report
        level = Level.OK if report.verdict is Verdict.OK and not self._overdue else Level.WARN
        if report.source is PlanSource.STOP or self._consecutive_late >= 5 or self._interrupted:
            level = Level.ERROR
        observation = last.snapshot.observation
        unchecked = observation is not None and observation.agents is None
        message = (
            self._interrupted
            or self._overdue
            or report.reason
            or f"{report.source.name.lower()}'s plan sent"  # no kind of step: it changes faster than this is sent
        )
        if unchecked and level is Level.OK:
            level, message = Level.WARN, f"{message}; {report.plan.check or 'unchecked: no objects'}"
        if report.notes:
            level, message = max(level, Level.WARN), "; ".join((message, *report.notes))
        times = {f"{stage}_ms": f"{value:.2f}" for stage, value in last.timings_ms.items()}
        return InputStatus(
            "planner",
            level,
            message,
            {
                "planner": self.config.planner,
                "verdict": report.verdict.name,
                "source": report.source.name,
                "step": report.plan.step.value,  # of the plan that was sent
                "planned": "none" if report.step is None else report.step.value,  # of the planner's own
                "full_step_reason": report.full_step_reason,
                "notes": "; ".join(report.notes),
                "consecutive_late": str(self._consecutive_late),
                "objects": "unknown"
                if observation is None or observation.agents is None
                else str(len(observation.agents)),
                "obstacles": "unknown"
                if observation is None or observation.obstacles is None
                else str(len(observation.obstacles)),
                "check": str(report.plan.check or "unchecked"),  # of the plan that was sent
                "model_sha256": self.model_sha256,
                "backend": self.backend_description,
                "restarts": str(self._restarts),
                **times,
            },
        )
