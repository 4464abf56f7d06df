"""The record of a replay: plans with their surroundings in the map frame, and the summary computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Agents, Array, EgoState, PlanSource, StepKind, Verdict
from ..core.field_checks import check_array
from ..planning.corrections import Correction
from ..scoring import metrics
from ..scoring.simulate import DT_S, HORIZON_S, STEPS, simulate
from . import plan_measures
from .plan_measures import PlanMeasures

COMPARISON_TIMES_S = np.arange(0.5, 4.01, 0.5)  # after the plan's stamp, for comparison with the driven path
SIMULATION_BATCH = 256  # plans
MIN_PLAN_LENGTH_M = 0.5  # shorter plans have no direction to compare


class Diagnostic(NamedTuple):
    """One status as it was published: level 0 OK, 1 WARN, 2 ERROR, 3 STALE."""

    name: str
    level: int
    message: str


@dataclass(frozen=True, eq=False)
class ReplayImage:
    """A camera image of the planner, with the calibration needed to draw on it."""

    name: str
    stamp_ns: int
    jpeg: bytes
    width: int  # px that `pixels_from_camera` counts in; the JPEG itself may be smaller
    height: int
    pixels_from_camera: Array  # (3, 3)
    camera_from_ego: Array  # (4, 4) m; camera axes are z forward, x right, y down
    distortion: tuple[float, ...] = ()  # k1, k2, p1, p2, k3 (plumb_bob), k4, k5, k6 (rational); empty: none or unknown

    def __post_init__(self) -> None:
        if len(self.distortion) not in (0, 4, 5, 8) or not np.isfinite(self.distortion).all():
            raise ValueError(f"ReplayImage.distortion is {self.distortion}, expected 0, 4, 5 or 8 finite numbers")
        for name, shape in (("pixels_from_camera", (3, 3)), ("camera_from_ego", (4, 4))):
            object.__setattr__(self, name, check_array("ReplayImage", name, getattr(self, name), shape))


def no_alternatives() -> Array:
    return np.zeros((0, STEPS, 3))


@dataclass(frozen=True, eq=False)
class ReplayFrame:
    """One published plan. Poses are in the map frame; T poses at `dt_s`, the first one interval after the stamp."""

    stamp_ns: int
    map_from_ego: Array  # (3,)
    speed_mps: float  # of the ego
    plan_poses: Array  # (T, 3)
    plan_speeds: Array  # (T,) m/s
    dt_s: float
    verdict: Verdict
    source: PlanSource
    reason: str
    step: StepKind
    timings_ms: Mapping[str, float]  # by stage
    agents: Agents = field(default_factory=Agents.none)  # poses in the map frame
    images: tuple[ReplayImage, ...] = ()  # left to right; empty for planners without cameras
    diagnostics: tuple[Diagnostic, ...] = ()
    acceleration_mps2: float = 0.0  # of the ego, along its heading; 0 where unknown
    yaw_rate_rps: float = 0.0  # of the ego
    draft: Array = field(default_factory=lambda: np.zeros((0, 2)))  # (N, 2) m, ego frame; (0, 2): no tokens
    corrections: tuple[Correction, ...] = ()  # of the draft, by the edit rounds
    plan_heights: Array = field(default_factory=lambda: np.zeros(0))  # (T,) z, m; (0,): all 0
    plan_pitches: Array = field(default_factory=lambda: np.zeros(0))  # (T,) rad, positive nose down; (0,): all 0
    ego_height_m: float = 0.0  # z of the odometry
    ego_slope: float = 0.0  # rise per metre along the heading, from the odometry's pitch
    planner: str = ""  # whose plan it is; of a stop all that were configured
    alternatives: Array = field(default_factory=no_alternatives)  # (P, 40, 3) further plans, as `poses_at_score_times`
    driven_poses: Array = field(default_factory=lambda: np.zeros((0, 3)))  # (D, 3) published before the plan's own
    driven_speeds: Array = field(default_factory=lambda: np.zeros(0))  # (D,) m/s

    def __post_init__(self) -> None:
        points, passed = (len(np.atleast_1d(poses)) for poses in (self.plan_poses, self.driven_poses))
        for name in ("plan_heights", "plan_pitches"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(points))
        for name, shape in (
            ("map_from_ego", (3,)),
            ("plan_poses", (None, 3)),
            ("plan_speeds", (points,)),
            ("plan_heights", (points,)),
            ("plan_pitches", (points,)),
            ("draft", (None, 2)),
            ("alternatives", (None, STEPS, 3)),
            ("driven_poses", (None, 3)),
            ("driven_speeds", (passed,)),
        ):
            object.__setattr__(self, name, check_array("ReplayFrame", name, getattr(self, name), shape))
        if not np.isfinite(self.speed_mps):
            raise ValueError(f"ReplayFrame.speed_mps is {self.speed_mps}, expected a finite number")
        if not self.dt_s > 0:
            raise ValueError(f"ReplayFrame.dt_s is {self.dt_s}, expected more than 0")

    @property
    def heights_above_plane(self) -> Array:
        """(T,) m, of the plan above the plane of the vehicle at the plan's stamp."""
        ahead = geometry.compose(geometry.invert(self.map_from_ego), self.plan_poses)[:, 0]
        return np.asarray(self.plan_heights - self.ego_height_m - self.ego_slope * ahead)


class DriveEvent(NamedTuple):
    """An event of a simulated drive: `kind` is collision, off_road, red_light, stuck or end_of_route."""

    stamp_ns: int
    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class DriveRecord:
    """Data of a simulated drive that a recording does not have: road outlines, scores, events."""

    rings: tuple[Array, ...]  # (V, 2) outlines of the drivable area, map frame
    score_stamps_ns: Array  # (S,) int64, of the plans that were scored
    scores: Array  # (S,) PDM score, 0..1
    events: tuple[DriveEvent, ...]
    numbers: Mapping[str, Any]  # of the drive; "world" in the summary

    def __post_init__(self) -> None:
        rings = tuple(check_array("DriveRecord", "rings", ring, (None, 2)) for ring in self.rings)
        object.__setattr__(self, "rings", rings)
        object.__setattr__(self, "scores", check_array("DriveRecord", "scores", self.scores, (None,)))
        stamps = check_array("DriveRecord", "score_stamps_ns", self.score_stamps_ns, (len(self.scores),), np.int64)
        object.__setattr__(self, "score_stamps_ns", stamps)


@dataclass(frozen=True, eq=False)
class AllPlans:
    """Measures of all plans of a replay."""

    measures: PlanMeasures
    timings_ms: Mapping[str, Array]  # by stage, of the plans in which it ran


@dataclass(frozen=True, eq=False)
class ReplayRecord:
    """A whole replay. `details` (dropped and late inputs, provenance, ..) is copied into the summary."""

    planner: str
    bag: str
    frames: Sequence[ReplayFrame]  # by stamp; of a long replay a regular subset
    driven_path: Array  # (M, 3) map frame: path of the recorded car
    driven_stamps_ns: Array  # (M,) int64, rising
    vehicle: VehicleConfig = field(default_factory=VehicleConfig)
    details: Mapping[str, Any] = field(default_factory=dict)
    routes: tuple[tuple[int, Array], ...] = ()  # every route (L, 3), map frame, with the stamp from which on it led
    drive: DriveRecord | None = None  # of a closed loop
    road: Sequence[Array] = ()  # (V, 2) outlines of the map's lanelets and intersections, map frame; none without a map
    scores: Mapping[str, Array] = field(default_factory=dict)  # (N,) of each of SCORES, or empty
    counted: AllPlans | None = None  # of all plans, where the frames are only some of them

    def __post_init__(self) -> None:
        driven = check_array("ReplayRecord", "driven_path", self.driven_path, (None, 3))
        object.__setattr__(self, "driven_path", driven)
        stamps = check_array("ReplayRecord", "driven_stamps_ns", self.driven_stamps_ns, (len(driven),), np.int64)
        if (np.diff(stamps) <= 0).any():
            raise ValueError("ReplayRecord.driven_stamps_ns does not rise")
        object.__setattr__(self, "driven_stamps_ns", stamps)

    @cached_property
    def driven_headings(self) -> Array:
        """(M,) unwrapped headings of the driven path."""
        return np.unwrap(self.driven_path[:, 2])

    @cached_property
    def plans(self) -> AllPlans:
        """Measures of each plan; cached, because each plan is simulated."""
        return self.counted or AllPlans(measure_plans(self), stage_times(self.frames))


def interpolate_driven_path(record: ReplayRecord, stamps_ns: Array) -> Array:
    """(N, 3) poses of the recorded vehicle at the stamps, linear between odometry messages; constant at both ends."""
    # from the first stamp on: nanoseconds since 1970 do not fit into a double
    driven_s = (record.driven_stamps_ns - record.driven_stamps_ns[0]) * 1e-9
    query_s = (np.asarray(stamps_ns, np.int64) - record.driven_stamps_ns[0]) * 1e-9
    x, y = (np.interp(query_s, driven_s, record.driven_path[:, axis]) for axis in (0, 1))
    heading = np.interp(query_s, driven_s, record.driven_headings)
    return np.stack([x, y, geometry.wrap(heading)], axis=-1)


def summary(record: ReplayRecord) -> dict[str, Any]:
    """Numbers of a replay, ready for JSON; what cannot be computed (no plans, no future) is None.

    `ade_m` and `fde_m` compare published plans with the driven path, at 0.5, 1, .. 4 s and at 4 s; only
    `plans_compared` of them reach 4 s ahead with a recording that does so too. `max_lateral_shift_m` is the largest
    lateral distance between consecutive plans. `comfort_share` is the share of the plans within the score's
    bounds of comfort, when the car follows them.
    """
    measures, stamps = record.plans.measures, record.plans.measures.stamp_ns
    span_s = float(stamps[-1] - stamps[0]) * 1e-9 if len(stamps) > 1 else 0.0
    return {
        "planner": record.planner,
        "bag": record.bag,
        "duration_s": round(span_s, 3),
        "rates": {"plans_hz": round((len(stamps) - 1) / span_s, 3) if span_s > 0 else None},
        **plan_measures.numbers(measures),
        "latency_ms": {stage: plan_measures.percentiles(times) for stage, times in record.plans.timings_ms.items()},
        **({} if record.drive is None else {"world": dict(record.drive.numbers)}),
        **record.details,
    }


def measure_plans(record: ReplayRecord, before: ReplayFrame | None = None) -> PlanMeasures:
    """The measures of each plan. `before`: the plan published before the first, which that is compared with."""
    frames, nan = record.frames, float("nan")
    errors = np.array([_displacements(record, frame) for frame in frames]).reshape(-1, len(COMPARISON_TIMES_S))
    pairs = zip([before, *frames], frames, strict=False)
    return PlanMeasures(
        stamp_ns=np.array([frame.stamp_ns for frame in frames], np.int64),
        ade_m=errors.mean(axis=1),
        fde_m=errors[:, -1],
        lateral_shift_m=np.array([nan if earlier is None else _shift(earlier, later) for earlier, later in pairs]),
        comfortable=_comfortable(frames, record.vehicle),
        verdict=np.array([frame.verdict for frame in frames], np.int64),
        source=np.array([frame.source for frame in frames], np.int64),
        latency_ms=np.array([frame.timings_ms.get("total", nan) for frame in frames]),
        **{name: record.scores.get(name, np.full(len(frames), nan)) for name in plan_measures.SCORES},
    )


def stage_times(frames: Sequence[ReplayFrame]) -> dict[str, Array]:
    """Times of each stage, in the order in which the stages first appear; a stage that did not run has none."""
    times: dict[str, list[float]] = {}
    for frame in frames:
        for stage, milliseconds in frame.timings_ms.items():
            if np.isfinite(milliseconds):
                times.setdefault(stage, []).append(milliseconds)
    return {stage: np.array(values) for stage, values in times.items()}


def _displacements(record: ReplayRecord, frame: ReplayFrame) -> Array:
    """(8,) metres between plan and driven path at `COMPARISON_TIMES_S`; NaN when either ends sooner."""
    unknown = np.full(len(COMPARISON_TIMES_S), np.nan)
    times = frame.dt_s * np.arange(1, len(frame.plan_poses) + 1)
    stamps = frame.stamp_ns + np.round(COMPARISON_TIMES_S * 1e9).astype(np.int64)
    if len(record.driven_path) < 2 or len(times) == 0 or times[-1] < COMPARISON_TIMES_S[-1] - 1e-6:
        return unknown
    if stamps[-1] > record.driven_stamps_ns[-1] or frame.stamp_ns < record.driven_stamps_ns[0]:
        return unknown
    knots, poses = np.concatenate([[0.0], times]), np.concatenate([frame.map_from_ego[None], frame.plan_poses])
    planned = np.stack([np.interp(COMPARISON_TIMES_S, knots, poses[:, axis]) for axis in (0, 1)], axis=-1)
    return np.asarray(np.linalg.norm(planned - interpolate_driven_path(record, stamps)[:, :2], axis=1))


def _shift(before: ReplayFrame, after: ReplayFrame) -> float:
    """The largest lateral distance of the later plan from the earlier one, over the length of the earlier one; NaN
    where they do not overlap."""
    line = geometry.distinct_points(np.concatenate([before.map_from_ego[None], before.plan_poses]), 1e-3)
    if len(line) < 2 or (length_m := geometry.arc_lengths(line)[-1]) < MIN_PLAN_LENGTH_M or len(after.plan_poses) == 0:
        return float("nan")
    along, lateral = geometry.project(line, after.plan_poses[:, :2])
    driven_m = geometry.arc_lengths(np.concatenate([after.map_from_ego[None], after.plan_poses]))[1:]
    overlaps = (along > 0) & (np.maximum(along, driven_m) < length_m - 1e-6)
    return float(np.abs(lateral[overlaps]).max()) if overlaps.any() else float("nan")


def _comfortable(frames: Sequence[ReplayFrame], vehicle: VehicleConfig) -> Array:
    """(N,) 1 if the car that follows a plan stays within the score's comfort bounds, else 0; NaN for a plan that is
    shorter than the score's horizon.
    """
    flags = np.full(len(frames), np.nan)
    long = [k for k, frame in enumerate(frames) if len(frame.plan_poses) * frame.dt_s >= HORIZON_S - 1e-6]
    for first in range(0, len(long), SIMULATION_BATCH):
        some = long[first : first + SIMULATION_BATCH]
        motions = np.array([ego_motion(frames[k], vehicle) for k in some])
        states = simulate(np.array([plan_poses_in_ego(frames[k]) for k in some]), motions, vehicle)
        flags[some] = metrics.comfort_flags(states, vehicle, metrics.COMFORT_SANE).all(axis=1)
    return flags


def ego_motion(frame: ReplayFrame, vehicle: VehicleConfig) -> Array:
    """(8,) the motion state of the ego at the plan's stamp, as the scorer expects it."""
    # odometry has no steering angle; zero would cause a jerk at the start of a curve
    steering = np.arctan2(vehicle.wheel_base_m * frame.yaw_rate_rps, max(abs(frame.speed_mps), 1.0))
    motion = (frame.speed_mps, frame.acceleration_mps2, frame.yaw_rate_rps, float(steering))
    return EgoState(frame.stamp_ns, frame.map_from_ego, *motion).motion


def plan_poses_in_ego(frame: ReplayFrame) -> Array:
    """(40, 3) the plan's first 4 s at the score's interval, ego frame, headings unwrapped."""
    return poses_at_score_times(geometry.compose(geometry.invert(frame.map_from_ego), frame.plan_poses), frame.dt_s)


def poses_at_score_times(poses: Array, dt_s: float) -> Array:
    """(40, 3) the first 4 s of poses (T, 3) in the ego frame, at the score's interval, headings unwrapped."""
    poses = np.concatenate([np.zeros((1, 3)), poses])
    poses[:, 2] = np.unwrap(poses[:, 2])
    knots = dt_s * np.arange(len(poses))
    at = DT_S * np.arange(1, STEPS + 1)
    return np.stack([np.interp(at, knots, poses[:, axis]) for axis in range(3)], axis=-1)
