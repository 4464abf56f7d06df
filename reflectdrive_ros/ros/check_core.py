"""Check and repair of other planners' candidates, without topics and threads: messages in, messages and statuses out.

It has the inputs of the planner node without its cameras, and no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..core.config import Config
from ..core.domain import Observation, Plan, PlanSource, StepReport, Trajectory
from ..core.messages import BadMessage
from ..maps.elevation import RoadSurface
from ..planning import external
from ..planning.external import CheckedCandidate
from ..planning.factors import planning_factors
from ..planning.planner import PlannerContext
from ..scoring.safety import SafetyContext
from . import candidates, plan_messages
from .candidates import CandidateMessage, CandidateMessages
from .cdr import StructLayout
from .inputs.channel import Channel, InputStatus, Level
from .inputs.snapshot import Inputs

CANDIDATES_MAX = 32  # of one message; further ones are not checked
LAST_MAX = 64  # plans that are remembered
OF_CAMERAS = ("image", "camera_info", "tf_static", "instruction")  # first words of statuses that are not ours


def without_cameras(config: Config) -> Config:
    """The configuration of a node that reads no images and loads no network."""
    cameras = replace(config.cameras, required=False)
    return replace(config, planner="constant_velocity", cameras=cameras)


@dataclass(frozen=True, eq=False)
class CandidateResult:
    """One candidate of a message. Ego frame of the observation."""

    name: str
    reason: str = ""  # why it was not checked
    trajectory: Trajectory | None = None  # as it came; None if it is malformed or there was no observation
    checked: CheckedCandidate | None = None

    @property
    def is_unchanged(self) -> bool:
        return self.checked is None or self.checked.plan.trajectory is self.trajectory


@dataclass(frozen=True, eq=False)
class CheckedMessage:
    """The candidates of one message, in their order. Without an observation no candidate is checked."""

    results: tuple[CandidateResult, ...]
    safety_context: SafetyContext | None = None
    surface: RoadSurface | None = None

    @property
    def best(self) -> int | None:
        """Index of the best candidate; None if none was checked."""
        checked = {index: one.checked for index, one in enumerate(self.results) if one.checked is not None}
        return list(checked)[external.best(list(checked.values()))] if checked else None

    def report(self) -> StepReport | None:
        """Plan, verdict and planning factors of the best; None if no candidate was checked."""
        checked = None if self.best is None else self.results[self.best].checked
        if checked is None or self.safety_context is None:
            return None
        factors = planning_factors(checked.plan.trajectory, self.safety_context)
        judgement = checked.judgement
        return StepReport(checked.plan, judgement.verdict, PlanSource.PLANNER, judgement.reason, factors=factors)


@dataclass(frozen=True, eq=False)
class CheckStep:
    """What is published after one message of candidates; serialised. Without a checked candidate there is no best."""

    stamp_ns: int
    trajectories: bytes
    scored_trajectories: bytes
    trajectory: bytes | None  # the best
    report: StepReport | None  # of the best
    surface: RoadSurface | None


class CheckCore:
    def __init__(self, config: Config, clock: Callable[[], float], *, has_signal: bool = True) -> None:
        """`clock`: seconds, monotonic. `has_signal`: as of `candidates.read`.

        Raises ConfigError where the map file cannot be used.
        """
        self._has_signal = has_signal
        self.config = without_cameras(config)
        self._clock = clock
        self._start_s = clock()
        self._planner_context = PlannerContext(self.config, deadline_used=self._deadline_used)
        self.inputs = Inputs(self.config)
        self.channel = Channel("candidates", True, self.config.inputs.max_ages_s["candidates"])
        self._last: dict[tuple[bytes, int], Plan] = {}  # by generator id and how often it occurred before
        self._restarts = 0
        self._statuses: list[InputStatus] = []  # of the candidates of the last message

    def receive(self, key: str, content: bytes, now_ns: int, layout: StructLayout | None = None) -> int | None:
        """As `MessageStore.receive`."""
        return self.inputs.store.receive(key, content, now_ns, layout)

    def _deadline_used(self) -> float:
        return 1e3 * (self._clock() - self._start_s) / self.config.engine.deadline_ms

    def check(self, content: bytes, now_ns: int) -> CheckStep | None:
        """Check, repair and score a serialised CandidateTrajectories. None if it cannot be read; accepts any bytes."""
        self._start_s = self._clock()
        try:
            most = round(1e6 * self.config.inputs.message_max_mb)
            if len(content) > most:
                raise BadMessage(f"{len(content) / 1e6:.2f} MB are not read: send less, or raise inputs.message_max_mb")
            messages = candidates.read(content, self._has_signal)
        except BadMessage as fault:
            self.refuse(fault, now_ns)
            return None
        return self._assemble(content, messages, self.check_messages(messages, now_ns))

    def refuse(self, fault: BadMessage, now_ns: int) -> None:
        """Count a message that cannot be read, for the diagnostics."""
        self.channel.received += 1
        self.channel.refused += 1
        self.channel.add_remark(f"candidates: {self.channel.refused} messages refused, the last one: {fault}", now_ns)

    def check_messages(self, messages: CandidateMessages, now_ns: int) -> CheckedMessage:
        """Check, repair and score the candidates of one message."""
        self._start_s = self._clock()
        stamp_ns = max((each.stamp_ns for each in messages.candidates), default=now_ns)
        newest = self.channel.newest()
        if newest is not None and newest[0] - stamp_ns > 1e9:  # the clock was reset
            self.channel.messages.clear()
            self.channel.stamps.clear()
        self.channel.put(stamp_ns, None)
        snapshot = self.inputs.snapshot(now_ns)
        if self._restarts != self.inputs.store.restarts:
            self._restarts = self.inputs.store.restarts
            self._last.clear()
        if snapshot.observation is None or snapshot.surface is None:
            reason = "; ".join(snapshot.problems)
            checked = CheckedMessage(tuple(CandidateResult(name, reason) for name in names(messages)))
        else:
            safety_context = SafetyContext(snapshot.observation, self.config)
            results = self._check(messages, snapshot.observation, safety_context, now_ns)
            checked = CheckedMessage(results, safety_context, snapshot.surface)
        self._statuses = [self._status(result) for result in checked.results]
        return checked

    def _check(
        self, messages: CandidateMessages, observation: Observation, safety_context: SafetyContext, now_ns: int
    ) -> tuple[CandidateResult, ...]:
        keys = occurrences(messages)
        results = [CandidateResult(name) for name in names(messages)]
        trajectories = {}
        for index, candidate in enumerate(messages.candidates):
            try:
                if index >= CANDIDATES_MAX:
                    raise BadMessage(f"at most {CANDIDATES_MAX} candidates are checked: send fewer")
                trajectories[index] = candidates.trajectory_of(
                    candidate,
                    observation.ego,
                    now_ns,
                    self.config.output.map_frame,
                    self.config.inputs.max_ages_s["candidates"],
                )
            except (BadMessage, ValueError) as fault:  # of values that no trajectory has
                results[index] = replace(results[index], reason=str(fault))
        checked = external.check_candidates(
            list(trajectories.values()),
            observation,
            replace(self._planner_context, safety=safety_context),
            [self._last.get(keys[index]) for index in trajectories],
        )
        for (index, trajectory), one in zip(trajectories.items(), checked, strict=True):
            results[index] = replace(results[index], trajectory=trajectory, checked=one)
            self._last.pop(keys[index], None)
            self._last[keys[index]] = one.plan
        while len(self._last) > LAST_MAX:
            del self._last[next(iter(self._last))]
        return tuple(results)

    def _assemble(self, content: bytes, messages: CandidateMessages, checked: CheckedMessage) -> CheckStep:
        """The messages to publish."""
        written: dict[int, CandidateMessage] = {}
        for index, (candidate, result) in enumerate(zip(messages.candidates, checked.results, strict=True)):
            if result.checked is None:
                written |= {} if self._drops else {index: candidate}
            elif result.is_unchanged or checked.surface is None:
                written[index] = candidate
            else:
                plan = result.checked.plan
                points = plan_messages.plan_points(plan, self.config, checked.surface)
                written[index] = candidates.changed(candidate, points, plan.stamp_ns)
        left = {each.generator_id for each in written.values()}
        out = CandidateMessages(
            tuple(written.values()), tuple(pair for pair in messages.generators if not self._drops or pair[0] in left)
        )
        same = all(written.get(index) is each for index, each in enumerate(messages.candidates))
        if own_name := self.config.check.generator_name:
            out, same = renamed(out, list(written), own_name), False
        scores = [0.0 if (one := checked.results[index].checked) is None else one.score for index in written]
        best = None if checked.best is None else written[checked.best]
        return CheckStep(
            max((each.stamp_ns for each in messages.candidates), default=0),
            content if same else candidates.write(out),
            candidates.write(out, scores),
            None if best is None else plan_messages.trajectory_bytes(best.stamp_ns, best.points, best.frame),
            checked.report(),
            checked.surface,
        )

    @property
    def _drops(self) -> bool:
        return self.config.check.unchecked == "drop"

    def _status(self, result: CandidateResult) -> InputStatus:
        checked = result.checked
        if checked is None:
            done = "left out" if self._drops else "passed on"
            sentence = f"unchecked and {done}: {result.reason}"
            return InputStatus(f"candidate {result.name}", Level.WARN, sentence, {"score": "0"})
        check = checked.plan.check
        unknown = check is None or check.objects is None or not check.drivable
        level = Level.WARN if checked.plan.change or unknown else Level.OK
        return InputStatus(
            f"candidate {result.name}",
            level if checked.is_safe else Level.ERROR,
            checked.sentence,
            {
                "verdict": checked.judgement.verdict.name,
                "change": checked.plan.change or "none",
                "safe": str(checked.is_safe),
                "score": f"{checked.score:.3f}",
            },
        )

    def statuses(self, now_ns: int) -> list[InputStatus]:
        """The diagnostics: one status for each input, one for each candidate of the last message."""
        inputs = [each for each in self.inputs.statuses(now_ns) if each.name.split()[0] not in OF_CAMERAS]
        return [*inputs, self.channel.status(now_ns), *self._statuses]


def renamed(messages: CandidateMessages, slots: list[int], name: str) -> CandidateMessages:
    """The candidates under ids and names of their own, one for each of their slots."""
    ids = [plan_messages.slot_uuid(name, slot) for slot in slots]
    return CandidateMessages(
        tuple(
            replace(candidate, generator_id=own_id) for candidate, own_id in zip(messages.candidates, ids, strict=True)
        ),
        tuple((own_id, f"{name}_{slot}") for own_id, slot in zip(ids, slots, strict=True)),
    )


def occurrences(messages: CandidateMessages) -> list[tuple[bytes, int]]:
    """Generator id of each candidate, and how often it occurs before: a generator may give one id to all of its own."""
    before: Counter[bytes] = Counter()
    keys = []
    for candidate in messages.candidates:
        keys.append((candidate.generator_id, before[candidate.generator_id]))
        before[candidate.generator_id] += 1
    return keys


def names(messages: CandidateMessages) -> list[str]:
    """A name for each candidate, all different: that of its generator, else its id."""
    by_id = dict(messages.generators)
    return [
        (by_id.get(generator_id) or generator_id.hex()[:8]) + (f" {count + 1}" if count else "")
        for generator_id, count in occurrences(messages)
    ]
