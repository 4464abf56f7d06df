"""What a fault did to the car: was there always an answer, was any of them unsafe, how soon was all well again.

An answer is a safe trajectory, or a diagnostic (or a status line) that names the fault or says that no plan comes.
Required: no longer than 200 ms without an answer, no unsafe trajectory, no crash, and the planner's own plans again
within 1 s of the fault's end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from sender import SPEED_MPS

SILENCE_MS = 200.0
RECOVERY_MS = 1000.0
OFF_PATH_M = 0.5  # the car drives straight along x
OFF_PLACE_M = 1.0  # first point of a plan against where the car was at its stamp
OLD_S = 0.5  # a plan that comes later than this is no answer any more
FASTER_MPS = 0.5  # than the car gets by SPEED_UP_MPS2 from its present speed
SPEED_UP_MPS2 = 2.0  # more than the default planner speeds up from 5 m/s, half of what the guard allows
OVERDUE = r"the planner has been busy|no new image|old, allowed|nearest is"  # a fault, whatever the case is about


@dataclass(frozen=True)
class Outcome:
    """One case, measured. Times are None where there is nothing to measure."""

    silence_ms: float | None  # the longest time without an answer; None where the node was killed
    detection_ms: float | None  # until the first diagnostic or status that names the fault
    recovery_ms: float | None  # from the fault's end to the planner's own plan
    diagnostic: str  # the sentence that named it
    unsafe: tuple[str, ...]
    complaints: tuple[str, ...]  # what else went wrong: a crash, a traceback, a claim of the case itself
    stood_still_ms: float = 0.0  # for so long the measuring process itself was held up; taken off the silence

    @property
    def safe(self) -> bool:
        """All but the times: those depend on the machine."""
        return not self.unsafe and not self.complaints and self.recovery_ms is not None

    @property
    def met(self) -> bool:
        in_time = self.silence_ms is None or self.silence_ms <= SILENCE_MS
        return self.safe and in_time and self.recovery_ms <= RECOVERY_MS


def unsafe(trajectory, position_m: float, left_m: float = 0.0) -> str:
    """Why nobody should follow a trajectory of a car that is at x = `position_m`, y = `left_m`; empty if it is safe."""
    if trajectory.header.frame_id != "map":
        return f"a plan in frame '{trajectory.header.frame_id}'"
    times = [(point, point.time_from_start) for point in trajectory.points]
    points = [point for point, time in times if time.sec + 1e-9 * time.nanosec > 0.0]  # without the driven path
    if len(points) < 2:
        return f"a plan of {len(points)} points"
    x, y, speed = np.array(
        [(p.pose.position.x, p.pose.position.y, p.longitudinal_velocity_mps) for p in points], float
    ).T
    if not np.isfinite([x, y, speed]).all():
        return "a plan that is not finite"
    lateral_m = np.abs(y - left_m).max()
    if abs(x[0] - position_m - 0.1 * SPEED_MPS) > OFF_PLACE_M or lateral_m > OFF_PATH_M:
        return f"a plan that starts {x[0] - position_m:+.1f} m from the car, up to {lateral_m:.1f} m beside it"
    reachable = SPEED_MPS + SPEED_UP_MPS2 * 0.1 * np.arange(1, len(speed) + 1)
    # the first speed is the first point's distance from a car that does not follow the plans, which was checked above
    if (speed > reachable + FASTER_MPS)[1:].any() or speed.min() < 0.0:
        return f"a plan of {speed.min():.1f} to {speed.max():.1f} m/s"
    return ""


def assess(
    drive, case, began: float, reachable_until: float, ended: float, recovered: float | None, complaints: list[str]
) -> Outcome:
    """The outcome of a fault between moments (perf_counter) of a drive; answers are required to `reachable_until`."""
    bad, answers, named = [], [], []
    for at, trajectory in window(drive.harness.received["trajectory"], began, recovered or ended):
        stamp = trajectory.header.stamp
        position, left, age = drive.where(stamp.sec + 1e-9 * stamp.nanosec, at)
        why = unsafe(trajectory, position, left)
        bad += [why] if why else []
        answers += [] if why or age > OLD_S else [at]
    for at, text in sentences(drive, began, recovered or ended):
        if case.says and re.search(case.says, text):
            named.append((at, text))
        elif re.search(OVERDUE, text):
            answers.append(at)
    answers = sorted([*answers, *(at for at, _ in named)])
    during = [began, *(at for at in answers if began < at < reachable_until), reachable_until]
    gaps = [later - earlier - drive.stood_still_s(earlier, later) for earlier, later in pairwise(during)]
    silence = None if case.kills_node else 1e3 * max(gaps)
    if case.says and not named:
        complaints = [*complaints, f"nobody said anything like '{case.says}'"]
    return Outcome(
        silence,
        1e3 * (named[0][0] - began) if named else None,
        None if recovered is None else 1e3 * (recovered - ended),
        named[0][1] if named else "",
        tuple(dict.fromkeys(bad)),
        tuple(complaints),
        1e3 * drive.stood_still_s(began, ended),
    )


def sentences(drive, begin: float, end: float):
    """(moment, sentence) of everything that the node said was wrong: diagnostics at WARN or above, reasons of stops."""
    entries = []
    for at, message in window(drive.harness.received["diagnostics"], begin, end):
        entries += [(at, status.message) for status in message.status if status.level != b"\x00"]
    for at, message in window(drive.harness.received["status"], begin, end):
        entries += [(at, message.reason)] if message.reason else []
    return sorted(entries)


def window(received, begin: float, end: float):
    return [(at, message) for at, message in list(received) if begin <= at <= end]
