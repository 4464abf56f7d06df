"""One input topic: its newest messages, its age limit, its counters and its line of the diagnostics.

All ages are relative to the `now_ns` handed in: the node's clock, or the clock of a bag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any, TypeVar

from ...core.messages import BadMessage

T = TypeVar("T")

CLOCK_TOLERANCE_S = 0.1  # a stamp further in the future means that the clocks are not synchronised
REMARK_SHOWN_S = 3.0  # how long the diagnostics show a remark; that of a latched topic until its next message
OTHER_CLOCK = (
    "its stamp is more than a day from this node's time: set use_sim_time to true for a bag or a simulator, and to "
    "false for sensors"
)
NO_CLOCK = "use_sim_time is true and nothing was received on /clock: publish /clock, or set use_sim_time to false"
RATE_WINDOW = 20  # messages over which a rate is measured
PAUSE_S = 5.0  # after a longer gap between stamps, the rate is measured again from there
LOSS_SHOWN_S = 10.0  # losses of this time count in the diagnostics ..
GAPS_MIN = 3  # .. where they are this many: a sender that is started again leaves one
LOSS_GAP_MAX_S = 1.0  # a longer gap is a sender that was off
NEW_RATE = 4  # so many long intervals in a row of about one length are a new rate of the sender
SAME_RATE = 1.25  # their longest is at most this many times their shortest
RATE_MAX_HZ = 10_000.0  # no sensor is faster: such stamps are not times
AGE_MAX_S = 86_400.0  # stamps further from this node's time are of another clock


class Level(IntEnum):
    """diagnostic_msgs/DiagnosticStatus levels."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True)
class InputStatus:
    """The status of one input or of the planner in the diagnostics."""

    name: str
    level: Level
    message: str
    values: dict[str, str]

    def with_remark(self, remark: str) -> InputStatus:
        """The status at WARN or above, with one more sentence."""
        return replace(self, level=max(self.level, Level.WARN), message=f"{self.message}; {remark}")


@dataclass
class Channel:
    """One input topic: its newest messages, and counters of all others."""

    name: str
    required: bool
    max_age_s: float | None  # None: latched, stays valid
    keep: int = 1
    messages: deque[tuple[int, Any]] = field(default_factory=deque)  # (stamp, message), oldest first
    received: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    refused: int = 0
    refused_ns: int = 0  # stamp of the last message refused at conversion: it counts once
    lost: int = 0
    gaps: deque[tuple[int, int]] = field(default_factory=deque)  # stamp after a recent gap, messages lost in it
    fault: str = ""  # why the last conversion failed
    blocked: str = ""  # why no message may be used; empty if they may
    remark: str = ""  # temporary note for the diagnostics, such as of a refused message
    remark_ns: int = 0  # time of the remark
    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW))

    def put(self, stamp_ns: int, message: Any) -> bool:
        """Store a message; False for a duplicate, and for one older than the newest."""
        self.received += 1
        if self.messages and stamp_ns <= self.messages[-1][0]:
            if stamp_ns == self.messages[-1][0]:
                self.duplicates += 1
            else:
                self.out_of_order += 1
            return False
        if self.stamps and stamp_ns - self.stamps[-1] > PAUSE_S * 1e9:
            self.stamps.clear()
        if self.max_age_s is not None:  # latched messages are numbered, refused ones included
            self._count_lost(stamp_ns)
        else:
            self.remark = ""  # the sender corrected the message that was refused
        self.stamps.append(stamp_ns)
        self.messages.append((stamp_ns, message))
        while len(self.messages) > self.keep:
            self.messages.popleft()
        return True

    def _count_lost(self, stamp_ns: int) -> None:
        """Count lost messages: a gap of about n median periods means n - 1 of them. The gaps after which a sender has
        another rate do not count."""
        while self.gaps and stamp_ns - self.gaps[0][0] > LOSS_SHOWN_S * 1e9:
            self.gaps.popleft()
        if len(self.stamps) < 5:
            return
        period = max(median(later - earlier for earlier, later in pairwise(self.stamps)), 1)
        gap_ns = stamp_ns - self.stamps[-1]
        if not (1.75 < gap_ns / period < 20 and gap_ns <= LOSS_GAP_MAX_S * 1e9):  # less is jitter
            return
        self.lost += round(gap_ns / period) - 1
        self.gaps.append((stamp_ns, round(gap_ns / period) - 1))
        newest = [*self.stamps, stamp_ns][-NEW_RATE - 1 :]
        steps = [later - earlier for earlier, later in pairwise(newest)]
        if min(steps) > 1.75 * period and max(steps) <= SAME_RATE * min(steps):
            while self.gaps and self.gaps[-1][0] > newest[0]:
                self.lost -= self.gaps.pop()[1]
            self.stamps.clear()
            self.stamps.extend(newest[:-1])

    def recent_losses(self, now_ns: int) -> int:
        """Messages lost within LOSS_SHOWN_S, if they are more than 2 % and not those of a sender that was off."""
        recent = [lost for stamp_ns, lost in self.gaps if now_ns - stamp_ns <= LOSS_SHOWN_S * 1e9]
        rate_hz = self.rate_hz()
        expected = LOSS_SHOWN_S * rate_hz if isfinite(rate_hz) else 0.0
        return sum(recent) if len(recent) >= GAPS_MIN and sum(recent) > 0.02 * max(expected, 50.0) else 0

    def add_remark(self, sentence: str, now_ns: int) -> None:
        """Report it in the diagnostics for REMARK_SHOWN_S; on a latched topic until its next message."""
        self.remark, self.remark_ns = sentence, now_ns

    def convert(self, item: tuple[int, Any] | None, now_ns: int, converter: Callable[[Any], T]) -> T:
        """The converted message. Raises BadMessage if it is missing, stale, blocked or malformed."""
        return self.convert_usable(self.usable(item, now_ns), converter)

    def usable(self, item: tuple[int, T] | None, now_ns: int) -> tuple[int, T]:
        """The item. Raises BadMessage if it is missing, stale or blocked."""
        problem = self.problem(now_ns)
        if problem or item is None:
            raise BadMessage(problem or f"{self.name}: nothing received yet")
        return item

    def convert_usable(self, item: tuple[int, Any], converter: Callable[[Any], T]) -> T:
        """As `convert`, of an item that `usable` gave before."""
        try:
            result = converter(item[1])
        except BadMessage as fault:
            self.refused += self.fault != str(fault) or item[0] != self.refused_ns
            self.fault, self.refused_ns = str(fault), item[0]
            raise
        self.fault = ""
        return result

    def newest(self) -> tuple[int, Any] | None:
        return self.messages[-1] if self.messages else None

    def nearest(self, stamp_ns: int) -> tuple[int, Any] | None:
        return min(self.messages, key=lambda item: abs(item[0] - stamp_ns), default=None)

    def rate_hz(self) -> float:
        """Messages per second by their stamps; 0 before the second one, NaN for stamps that are no times."""
        spread = self.stamps[-1] - self.stamps[0] if len(self.stamps) > 1 else 0
        rate_hz = (len(self.stamps) - 1) * 1e9 / spread if spread else 0.0
        return rate_hz if rate_hz <= RATE_MAX_HZ else float("nan")

    def age_s(self, now_ns: int) -> float:
        """Age of the newest message, s; NaN without a message, and for a stamp of another clock."""
        newest = self.newest()
        age_s = float("nan") if newest is None else (now_ns - newest[0]) * 1e-9
        return age_s if abs(age_s) <= AGE_MAX_S else float("nan")

    def problem(self, now_ns: int) -> str:
        """Why this input may not be used now; empty if it may."""
        if self.blocked:
            return self.blocked
        newest = self.newest()
        if newest is None:
            return f"{self.name}: nothing received yet"
        if self.max_age_s is None:
            return ""
        if now_ns == 0:
            return f"{self.name}: {NO_CLOCK}"
        age_s = (now_ns - newest[0]) * 1e-9
        if newest[0] == 0 and age_s > self.max_age_s:
            return f"{self.name}: its stamp is 0: the sender must set header.stamp"
        if abs(age_s) > AGE_MAX_S:
            return f"{self.name}: {OTHER_CLOCK}"
        if age_s > self.max_age_s:
            return f"{self.name}: newest is {age_s:.2f} s old, allowed {self.max_age_s:.2f} s"
        if age_s < -CLOCK_TOLERANCE_S:
            return f"{self.name}: stamped {-age_s:.2f} s in the future: synchronise the clocks"
        return ""

    def status(self, now_ns: int) -> InputStatus:
        problem, rate_hz = self.problem(now_ns) or self.fault, self.rate_hz()
        # a latched topic has neither age nor rate
        summary = f"{self.received} received"
        if self.max_age_s is not None:
            summary = f"{rate_hz:.1f} Hz" if isfinite(rate_hz) else "its stamps are too close together for a rate"
        level, message = Level.OK, summary
        if problem:
            level, message = (Level.ERROR if self.required else Level.WARN), problem
        is_recent = self.max_age_s is None or 0 <= now_ns - self.remark_ns <= REMARK_SHOWN_S * 1e9
        if self.remark and is_recent:
            level = max(level, Level.WARN)
            message = "; ".join(filter(None, [problem, self.remark]))
        elif not problem and (lost := self.recent_losses(now_ns)):
            profiles = "config/fastdds.xml or config/cyclonedds.xml"
            level, message = Level.WARN, f"{self.name}: {lost} messages lost on the way; use {profiles}"
        counters = ("received", "lost", "duplicates", "out_of_order", "refused")
        values = {} if self.max_age_s is None else {"age_s": f"{self.age_s(now_ns):.3f}", "rate_hz": f"{rate_hz:.2f}"}
        values |= {key: str(getattr(self, key)) for key in counters}
        return InputStatus(self.name, level, message, values)
