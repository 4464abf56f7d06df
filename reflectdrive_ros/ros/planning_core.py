"""Inputs and engine together: messages in, step reports out. The node, the replay and the bench use the same class.

It has no topics, threads or executors, and its clock is handed in, so a replay is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.config import Config
from ..core.domain import PlanSource, StepReport, Verdict
from ..maps.elevation import RoadSurface
from ..planning.standstill import STARTED_MPS, StartMode
from ..runtime.engine import Clock, Engine
from .inputs.camera_rig import RigInput
from .inputs.channel import NO_CLOCK, InputStatus, Level
from .inputs.snapshot import Inputs, Snapshot


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one planning step, taken when the step became due."""

    snapshot: Snapshot
    restarts: int  # number of clock resets and localisation jumps until then
    conversion_ms: float  # conversion of messages and decoding of images


@dataclass(frozen=True)
class PlanningStep:
    """One planning step: its inputs and its report. The report is None without odometry: a plan has no position."""

    snapshot: Snapshot
    report: StepReport | None
    timings_ms: dict[str, float]  # snapshot (conversion and decoding), then the engine's stages
    restarts: int  # as in StepInputs: a plan from before a restart must not be sent after one from after it


class PlanningCore:
    def __init__(self, config: Config, clock: Clock, engine: Engine | None = None) -> None:
        """Raises ConfigError or ModelFileError, as the engine does."""
        self.config = config
        self._clock = clock
        self._engine = engine or Engine(config, clock)
        optional = self._engine.camera_dropout
        rig = RigInput(self._engine.rig, config.cameras, optional=optional) if self._engine.rig else None
        self.inputs = Inputs(config, self._engine.image_size, rig)
        self.model_sha256, self.backend_description = self._engine.model_sha256, self._engine.backend_description
        self.domain_note = self._engine.domain_note
        self.start_requested = False  # by the service; ends when the car moves
        self._restarts = 0
        self._consecutive_late = 0
        self._interrupted = ""  # why the watchdog had to send the stop, until the next step
        self._overdue = ""  # why a plan is overdue, likewise
        self._last: PlanningStep | None = None

    def put(self, key: str, message: Any, now_ns: int) -> None:
        self.inputs.store.put(key, message, now_ns)

    def receive(self, key: str, content: bytes, now_ns: int) -> int | None:
        return self.inputs.store.receive(key, content, now_ns)

    def wait_idle(self) -> None:
        """Wait until background work is done. For replays only, never on a vehicle."""
        self.inputs.wait_idle()

    def due(self, now_ns: int) -> bool:
        return self.inputs.due(now_ns)

    def step(self, now_ns: int) -> PlanningStep:
        """Plan from the newest messages. Returns a stop plan with its reason where they do not suffice."""
        return self.plan_step(self.collect_inputs(now_ns))

    def collect_inputs(self, now_ns: int) -> StepInputs:
        """Convert the newest messages. A replay may collect the next step's inputs before it plans the last ones."""
        start_s, restarts = self._clock(), self.inputs.store.restarts
        snapshot = self.inputs.snapshot(now_ns)
        if snapshot.observation is not None:
            self._engine.prefetch(snapshot.observation)
        return StepInputs(snapshot, restarts, 1e3 * (self._clock() - start_s))

    def plan_step(self, inputs: StepInputs) -> PlanningStep:
        """Plan from collected inputs. Steps must be planned in the order in which their inputs were collected."""
        snapshot, timings_ms, report = inputs.snapshot, {"snapshot": inputs.conversion_ms}, None
        by_driver = snapshot.control.by_driver
        if self._restarts != inputs.restarts or by_driver:
            self._restarts = inputs.restarts
            self._engine.reset()
        if snapshot.observation is not None:
            report = self._engine.step(snapshot.observation, self._start(snapshot))
        elif snapshot.ego is not None:
            report = self._engine.stop(snapshot.ego, snapshot.agents, "; ".join(snapshot.problems))
        if by_driver:  # the car does not follow this plan: neither the first step after it nor a stop may start from it
            self._engine.reset()
        if report is not None:
            timings_ms.update(report.timings_ms)
            self._consecutive_late = self._consecutive_late + 1 if report.verdict is Verdict.LATE else 0
        self._interrupted = self._overdue = ""
        self._last = PlanningStep(snapshot, report, timings_ms, inputs.restarts)
        return self._last

    def _start(self, snapshot: Snapshot) -> StartMode:
        """Whether a standing car may be started. A request ends as soon as the car moves."""
        if snapshot.ego is not None and snapshot.ego.speed_mps >= STARTED_MPS:
            self.start_requested = False
        if self.start_requested:
            return StartMode.NOW
        return StartMode.IF_STUCK if snapshot.control.autonomous else StartMode.NEVER

    def stop(self, now_ns: int, reason: str) -> tuple[StepReport, RoadSurface] | None:
        """The watchdog's stop plan from the newest odometry; None without usable odometry. Callable during a step."""
        self._interrupted = reason
        snapshot = self.inputs.ego(now_ns)
        if snapshot.ego is None or snapshot.surface is None:
            return None
        return self._engine.stop(snapshot.ego, snapshot.agents, reason), snapshot.surface

    def set_overdue(self, reason: str) -> None:
        """Report in the diagnostics that a plan is overdue, until the next step."""
        self._overdue = reason

    def problems(self, now_ns: int) -> str:
        """Why the planner cannot plan, in one line; empty when it can."""
        if now_ns == 0:  # ROS time before the first message on /clock
            return NO_CLOCK
        return "; ".join(s.message for s in self.inputs.statuses(now_ns) if s.level >= Level.ERROR)

    def statuses(self, now_ns: int) -> list[InputStatus]:
        """The diagnostics: one status for each input, then the planner's status."""
        return [*self.inputs.statuses(now_ns), self.planner_status(now_ns)]

    def planner_status(self, now_ns: int) -> InputStatus:
        """The status of the last step."""
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
            or f"{report.source.name.lower()}'s plan sent"  # the kind of step changes faster than this is sent
        )
        if unchecked and level is Level.OK:
            level, message = Level.WARN, f"{message}; {report.plan.check or 'unchecked: no objects'}"
        if report.notes:
            level, message = max(level, Level.WARN), "; ".join((message, *report.notes))
        message = "; ".join(filter(None, (message, self.domain_note)))
        times = {f"{stage}_ms": f"{value:.2f}" for stage, value in last.timings_ms.items()}
        return InputStatus(
            "planner",
            level,
            message,
            {
                "planner": self.config.planner,
                "chosen_planner": report.plan.planner,  # of several, that of the plan that was sent
                "verdict": report.verdict.name,
                "source": report.source.name,
                "step": report.plan.step.value,  # of the plan that was sent
                "planned": "none" if report.step is None else report.step.value,  # of the planner's own plan
                "full_step_reason": report.full_step_reason,
                "change": report.plan.change,  # of the generator's plan, by the pipeline
                "notes": "; ".join(report.notes),
                "consecutive_late": str(self._consecutive_late),
                "objects": "unknown"
                if observation is None or observation.agents is None
                else str(len(observation.agents)),
                "obstacles": "unknown"
                if observation is None or observation.obstacles is None
                else str(len(observation.obstacles)),
                "check": str(report.plan.check or "unchecked"),  # of the plan that was sent
                "training_domain": self.domain_note,
                "model_sha256": self.model_sha256,
                "backend": self.backend_description,
                "restarts": str(self._restarts),
                "driven_by": {None: "unknown", True: "planner", False: "driver"}[last.snapshot.control.autonomous],
                **times,
            },
        )
