"""What is published of a plan, as arrays and bytes: without the message classes of ROS, so that a replay needs none."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import geometry, kinematics
from ..core.config import FIRST_POINTS, Config
from ..core.domain import PLAN_DT_S, Array, EgoState, Plan, StepReport, Trajectory
from ..infra.errors import printable_line
from ..maps.elevation import FLAT_GROUND, RoadSurface
from . import rotations
from .cdr_writer import CdrWriter

POINT = np.dtype(  # autoware_planning_msgs/TrajectoryPoint, field by field in the order of its definition
    [("sec", "<i4"), ("nanosec", "<u4")]
    + [(name, "<f8") for name in ("x", "y", "z", "qx", "qy", "qz", "qw")]
    + [
        (name, "<f4")
        for name in (
            "longitudinal_velocity_mps",
            "lateral_velocity_mps",
            "acceleration_mps2",
            "heading_rate_rps",
            "front_wheel_angle_rad",
            "rear_wheel_angle_rad",
        )
    ]
)
POINT_TIME_BYTES = 8  # of POINT, before its doubles
NOT_DRIVEN = np.zeros((1, 3))  # the pose now, which is not published


def resample_for_output(trajectory: Trajectory, dt_s: float) -> Trajectory:
    """The trajectory at the interval that is published; untouched when it already has it."""
    if abs(trajectory.dt_s - dt_s) < 1e-9:
        return trajectory
    count = int(trajectory.horizon_s / dt_s + 1e-6)
    return Trajectory(kinematics.resample(trajectory, dt_s * np.arange(1, count + 1)), dt_s)


def point_columns(
    trajectory: Trajectory, map_from_ego: Array, wheel_base_m: float, surface: RoadSurface, driven: Array = NOT_DRIVEN
) -> Array:
    """(D + T,) of POINT: Autoware points in the map, on the surface. Speed is that of the interval before each point,
    acceleration that of the one after it; a stop is the last pose repeated at speed 0. Roll is 0.

    `driven`: (1 + D, 3) poses up to now at the trajectory's interval, ego frame; their times are not after the stamp.
    They lie in the vehicle's plane.
    """
    motion = Trajectory(
        geometry.compose(geometry.invert(driven[0]), np.concatenate([driven[1:], trajectory.poses])), trajectory.dt_s
    )
    before, poses = (geometry.compose(map_from_ego, each) for each in (driven[1:], trajectory.poses))
    heights, pitches = zip(
        RoadSurface(surface.plane).heights_and_pitches(before), surface.heights_and_pitches(poses), strict=True
    )
    poses = np.concatenate([before, poses])
    times_ns = np.rint(1e9 * motion.dt_s * (np.arange(len(poses)) + 1 - len(before))).astype(np.int64)
    points = np.zeros(len(poses), POINT)
    points["sec"], points["nanosec"] = np.divmod(times_ns, 1_000_000_000)
    points["x"], points["y"], points["z"] = poses[:, 0], poses[:, 1], np.concatenate(heights)
    points["qx"], points["qy"], points["qz"], points["qw"] = rotations.quaternions_from_yaw_pitch(
        poses[:, 2], np.concatenate(pitches)
    ).T
    points["longitudinal_velocity_mps"] = kinematics.speeds(motion)
    points["acceleration_mps2"] = kinematics.accelerations(motion)
    points["heading_rate_rps"] = kinematics.yaw_rates(motion)
    points["front_wheel_angle_rad"] = kinematics.steering_from_curvature(kinematics.curvatures(motion), wheel_base_m)
    return points


def plan_points(
    plan: Plan,
    config: Config,
    surface: RoadSurface = FLAT_GROUND,
    ego: EgoState | None = None,
    trajectory: Trajectory | None = None,
) -> Array:
    """(T,) of POINT: the published points of a plan, or of the `trajectory` of another of its candidates.

    `ego`: at the stamp of the plan, for `output.first_point`; None: the first point is one interval ahead.
    """
    sent = resample_for_output(plan.trajectory if trajectory is None else trajectory, PLAN_DT_S)
    count = FIRST_POINTS[config.output.first_point]
    driven = NOT_DRIVEN if ego is None else kinematics.driven_path(ego, PLAN_DT_S, count)
    return point_columns(sent, plan.map_from_ego, config.vehicle.wheel_base_m, surface, driven)


def is_ahead(points: Array) -> Array:
    """(T,) bool: which points (T,) of POINT come after the stamp, unlike the driven path; all if none has a time."""
    times_s = points["sec"] + 1e-9 * points["nanosec"]
    return np.asarray((times_s > 0.0) | (times_s == 0.0).all())


def planar_poses(points: Array) -> Array:
    """(T, 3) poses in the map of points (T,) of POINT."""
    return np.stack([points["x"], points["y"], 2.0 * np.arctan2(points["qz"], points["qw"])], axis=1)


def points_from_message(message: Any) -> Array:
    """(T,) of POINT from a received autoware_planning_msgs/Trajectory."""
    rows = []
    for point in message.points:
        after, position, turn = point.time_from_start, point.pose.position, point.pose.orientation
        speeds = point.longitudinal_velocity_mps, point.lateral_velocity_mps, point.acceleration_mps2
        turning = point.heading_rate_rps, point.front_wheel_angle_rad, point.rear_wheel_angle_rad
        pose = position.x, position.y, position.z, turn.x, turn.y, turn.z, turn.w
        rows.append((after.sec, after.nanosec, *pose, *speeds, *turning))
    return np.array(rows, POINT)


def trajectory_bytes(stamp_ns: int, points: Array, frame: str) -> bytes:
    """A Trajectory of points (T,) of POINT, serialised."""
    return CdrWriter().header(stamp_ns, frame).records(points, POINT_TIME_BYTES).content()


def slot_uuid(generator_name: str, slot: int) -> bytes:
    """Constant for a slot over cycles and runs: selectors store their reports by it."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"reflectdrive:{generator_name}_{slot}").bytes


def route_path(route: Array, frame: str) -> bytes:
    """A route (L, 3) in the map as the nav_msgs/Path that the node reads, serialised."""
    writer = CdrWriter().header(0, frame).numbers("I", len(route))
    for x, y, _ in route.tolist():
        writer.header(0, frame).numbers("ddddddd", x, y, 0.0, 0.0, 0.0, 0.0, 1.0)
    return writer.content()


@dataclass(frozen=True)
class PlanStatus:
    """The fields of a PlannerStatus, without its header."""

    verdict: int
    source: int
    reason: str
    planner: str
    step_kind: str
    model_sha256: str
    sequence: int
    age_of_image: float
    time_received_to_published: float
    time_planner: float


def status(
    report: StepReport, config: Config, model_sha256: str, sequence: int, image_age_s: float, total_ms: float
) -> PlanStatus:
    return PlanStatus(
        verdict=int(report.verdict),
        source=int(report.source),
        reason=printable_line(report.reason),
        planner=report.plan.planner or config.planner,
        step_kind=(report.step or report.plan.step).value,
        model_sha256=model_sha256,
        sequence=int(sequence),
        age_of_image=float(image_age_s),
        time_received_to_published=float(total_ms),
        time_planner=float(report.timings_ms.get("plan", 0.0)),
    )


def status_bytes(status: Any, stamp_ns: int, frame: str) -> bytes:
    """A PlannerStatus, serialised; `status`: a PlanStatus or a received message."""
    writer = CdrWriter().header(stamp_ns, frame).numbers("BB", status.verdict, status.source)
    writer.text(status.reason).text(status.planner).text(status.step_kind).text(status.model_sha256)
    times = status.age_of_image, status.time_received_to_published, status.time_planner
    return writer.numbers("Qfff", status.sequence, *times).content()
