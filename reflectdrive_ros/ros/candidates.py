"""CandidateTrajectories of other planners: from bytes to arrays and back, both layouts of the message.

The points of a candidate are one array, so that those which are not changed are written as they came. A point takes 88
bytes: 80 points of 8 candidates are read in 0.1 ms, as message objects in 60 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import reflectdrive_kernels as kernels

from ..core import geometry, kinematics
from ..core.domain import PLAN_DT_S, Array, EgoState, Trajectory
from ..core.messages import BadMessage
from . import cdr
from .cdr_writer import CdrWriter
from .inputs.channel import CLOCK_TOLERANCE_S
from .plan_messages import POINT, POINT_TIME_BYTES

UUID_BYTES = 16
NOW_S = 0.02  # a point nearer to the present is replaced by where the car is
NUMBERS = (POINT.names or ())[2:]  # of a point, without its time


@dataclass(frozen=True, eq=False)
class CandidateMessage:
    """One candidate as it came."""

    stamp_ns: int
    frame: str
    generator_id: bytes  # 16
    points: Array  # (T,) of POINT
    signal: tuple[int, int] | None  # stamp in ns and TurnIndicatorsCommand; None in the layout without it


@dataclass(frozen=True, eq=False)
class CandidateMessages:
    """A CandidateTrajectories message."""

    candidates: tuple[CandidateMessage, ...]
    generators: tuple[tuple[bytes, str], ...]  # id and name


class _Reader:
    """Reads fields in the order of the definition. Raises BadMessage where the bytes do not hold them."""

    def __init__(self, content: bytes) -> None:
        self.source, self.at = cdr.Buffer(content, 0), 0

    def number(self, kind: str) -> int:
        size = struct.calcsize("<" + kind)
        begin = self.source.run(self.at, size, size)
        self.at = begin + size
        return int(cdr.unpacker(kind).of(self.source, begin)[0])

    def octets(self, count: int) -> bytes:
        begin = self.source.run(self.at, 1, count)
        self.at = begin + count
        return bytes(self.source.data[begin : self.at])

    def text(self) -> str:
        return self.octets(self.number("I")).removesuffix(b"\0").decode("utf-8", errors="replace")

    def stamp(self) -> int:
        return self.number("i") * 1_000_000_000 + self.number("I")

    def points(self) -> Array:
        count = self.number("I")
        if count == 0:
            return np.zeros(0, POINT)
        begin = self.source.run(self.at, 4, POINT_TIME_BYTES)
        left = count * POINT.itemsize - POINT_TIME_BYTES
        rest = self.source.run(begin + POINT_TIME_BYTES, 8, left)  # only the first point may have a gap after its time
        self.at = rest + left
        content = bytes(self.source.data[begin : begin + POINT_TIME_BYTES]) + bytes(self.source.data[rest : self.at])
        return np.frombuffer(content, POINT.newbyteorder("<" if self.source.little else ">")).astype(POINT)

    def end(self) -> None:
        spare = self.source.size - self.at
        if spare > cdr.PADDING_MAX:
            raise BadMessage(f"{spare} bytes are left")


def read(content: bytes, has_signal: bool) -> CandidateMessages:
    """The message in serialised bytes; `has_signal`: whether its layout has `turn_indicators_command`.

    Raises BadMessage for bytes that are no such message.
    """
    try:
        reader, candidates, generators = _Reader(content), list[CandidateMessage](), list[tuple[bytes, str]]()
        for _ in range(reader.number("I")):
            header, generator_id = (reader.stamp(), reader.text()), reader.octets(UUID_BYTES)
            points = reader.points()
            signal = (reader.stamp(), reader.number("B")) if has_signal else None
            candidates.append(CandidateMessage(*header, generator_id, points, signal))
        for _ in range(reader.number("I")):
            generators.append((reader.octets(UUID_BYTES), reader.text()))
        reader.end()
    except BadMessage as fault:
        raise BadMessage(
            f"{len(content)} bytes are no CandidateTrajectories: {fault}: send this type, in the version that is "
            "installed here"
        ) from None
    return CandidateMessages(tuple(candidates), tuple(generators))


def read_either_layout(content: bytes) -> CandidateMessages:
    """As `read`, in the layout with the turn signal or else in the other one, as a recording of any car may have it."""
    try:
        return read(content, True)
    except BadMessage as fault:
        try:
            return read(content, False)
        except BadMessage:
            raise fault from None


def read_trajectory(content: bytes, name: str) -> CandidateMessages:
    """A serialised Trajectory as the only candidate of a generator of this name.

    Raises BadMessage for bytes that are no such message.
    """
    try:
        reader = _Reader(content)
        stamp_ns, frame, points = reader.stamp(), reader.text(), reader.points()
        reader.end()
    except BadMessage as fault:
        raise BadMessage(f"{len(content)} bytes are no Trajectory: {fault}: send this type") from None
    generator_id = bytes(UUID_BYTES)
    return CandidateMessages((CandidateMessage(stamp_ns, frame, generator_id, points, None),), ((generator_id, name),))


def write(messages: CandidateMessages, scores: Sequence[float] | None = None) -> bytes:
    """CandidateTrajectories, serialised in the layout of its candidates; with `scores` (0..1, one per candidate)
    ScoredCandidateTrajectories."""
    writer = CdrWriter().numbers("I", len(messages.candidates))
    for index, candidate in enumerate(messages.candidates):
        writer.header(candidate.stamp_ns, candidate.frame).octets(candidate.generator_id)
        writer.records(candidate.points, POINT_TIME_BYTES)
        if candidate.signal is not None:
            writer.stamp(candidate.signal[0]).numbers("B", candidate.signal[1])
        if scores is not None:
            writer.numbers("f", scores[index])
    writer.numbers("I", len(messages.generators))
    for generator_id, name in messages.generators:
        writer.octets(generator_id).text(name)
    return writer.content()


def trajectory_of(
    candidate: CandidateMessage, ego: EgoState, now_ns: int, map_frame: str, max_age_s: float
) -> Trajectory:
    """The candidate from the stamp of the ego state on, every 0.1 s, in its ego frame.

    Without times of its own, as those of planners that plan a path with speeds, it has the times of its speeds, 0 where
    the ego is. Of points that all have the time 0, as Autoware gives those behind the ego, the last counts. Raises
    BadMessage with one sentence for a candidate that is stale, in another frame, empty or not finite.
    """
    points = candidate.points
    if candidate.frame != map_frame:
        raise BadMessage(f"its frame is '{candidate.frame}', expected '{map_frame}': send it in that frame")
    if len(points) == 0:
        raise BadMessage("it has no points: check its generator")
    numbers = np.stack([points[name].astype(float) for name in NUMBERS])
    if not np.isfinite(numbers).all():
        raise BadMessage("it holds a number that is not finite (NaN or infinite): check its generator")
    age_s = (now_ns - candidate.stamp_ns) * 1e-9
    if age_s > max_age_s:
        raise BadMessage(f"it is {age_s:.2f} s old, allowed {max_age_s:.2f} s: check the load of its generator")
    if age_s < -CLOCK_TOLERANCE_S:
        raise BadMessage(f"it is stamped {-age_s:.2f} s in the future: synchronise the clocks")
    x, y, _, qx, qy, qz, qw = numbers[:7]
    if (np.square(numbers[3:7]).sum(axis=0) < 0.25).any():
        raise BadMessage("it has a pose without orientation: check its generator")
    headings = geometry.headings_from_quaternions(qx, qy, qz, qw)
    poses = geometry.compose(geometry.invert(ego.map_from_ego), np.stack([x, y, headings], axis=-1))
    times_s = points["sec"] + 1e-9 * points["nanosec"]
    if len(points) > 1 and not times_s.any():
        times_s = times_of_speeds(poses, points["longitudinal_velocity_mps"].astype(float))
    else:
        first = max(int(np.argmax(times_s != 0.0)) - 1, 0)
        poses, times_s = poses[first:], times_s[first:] + (candidate.stamp_ns - ego.stamp_ns) * 1e-9
    if (np.diff(times_s) <= 0.0).any():
        raise BadMessage("the times of its points do not increase: check its generator")
    ahead = times_s > NOW_S
    knots_s = np.concatenate([[0.0], times_s[ahead]])
    count = int(knots_s[-1] / PLAN_DT_S + 1e-6)
    if count == 0:
        raise BadMessage("it ends before the present: check its generator")
    resampled = np.empty((count, 3))
    kernels.resample(
        kinematics.with_origin(poses[ahead]),
        knots_s,
        np.minimum(PLAN_DT_S * np.arange(1, count + 1), knots_s[-1]),
        kinematics.SAME_PLACE_M,
        resampled,
    )
    return Trajectory(resampled, PLAN_DT_S)


SLOWEST_MPS = 0.05  # the time of points that are driven slower is that of this speed


def times_of_speeds(poses: Array, speeds_mps: Array) -> Array:
    """(T,) seconds at poses (T, 3), ego frame, that are passed at these speeds; 0 at the point nearest to the ego."""
    s_m = geometry.arc_lengths(poses)
    mean_mps = np.maximum(0.5 * (np.abs(speeds_mps[1:]) + np.abs(speeds_mps[:-1])), SLOWEST_MPS)
    times_s = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(s_m) / mean_mps, 1e-3))])
    (ego_s_m,), _ = geometry.project(poses, np.zeros((1, 2)))
    return np.asarray(times_s - np.interp(ego_s_m, s_m, times_s))


def changed(candidate: CandidateMessage, columns: Array, stamp_ns: int) -> CandidateMessage:
    """The candidate with other points: `columns` (T,) of POINT with times after `stamp_ns`, shifted to those after its
    own stamp; points before it are left out."""
    later_ns = stamp_ns - candidate.stamp_ns
    times_ns = columns["sec"].astype(np.int64) * 1_000_000_000 + columns["nanosec"] + later_ns
    points = columns.copy()
    points["sec"], points["nanosec"] = np.divmod(times_ns, 1_000_000_000)
    return CandidateMessage(
        candidate.stamp_ns, candidate.frame, candidate.generator_id, points[times_ns >= 0], candidate.signal
    )
