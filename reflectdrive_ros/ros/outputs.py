"""Domain -> messages, pure functions. Every number passes through float() or int(): rclpy writes others as garbage."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import numpy as np
from autoware_internal_debug_msgs.msg import Float64Stamped
from autoware_internal_planning_msgs.msg import CandidateTrajectories, CandidateTrajectory, GeneratorInfo
from autoware_planning_msgs.msg import Trajectory as TrajectoryMessage
from autoware_planning_msgs.msg import TrajectoryPoint
from autoware_vehicle_msgs.msg import TurnIndicatorsCommand
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import Point, PoseStamped
from nav_msgs.msg import Path
from reflectdrive.msg import PlannerDebug, PlannerStatus
from std_msgs.msg import Header, String
from unique_identifier_msgs.msg import UUID
from visualization_msgs.msg import Marker, MarkerArray

from .. import geometry, kinematics
from ..config import Config
from ..domain import Array, Command, Plan, StepReport, Trajectory
from .inputs import InputStatus

HAS_TURN_INDICATOR = "turn_indicators_command" in CandidateTrajectory.get_fields_and_field_types()
DISABLE, LEFT, RIGHT = (
    TurnIndicatorsCommand.DISABLE,
    TurnIndicatorsCommand.ENABLE_LEFT,
    TurnIndicatorsCommand.ENABLE_RIGHT,
)


def time_message(stamp_ns: int) -> Time:
    return Time(sec=int(stamp_ns // 1_000_000_000), nanosec=int(stamp_ns % 1_000_000_000))


def header(stamp_ns: int, frame: str) -> Header:
    return Header(stamp=time_message(stamp_ns), frame_id=frame)


def published(trajectory: Trajectory, dt_s: float) -> Trajectory:
    """The trajectory at the interval that is published; untouched when it already has it."""
    if abs(trajectory.dt_s - dt_s) < 1e-9:
        return trajectory
    count = int(trajectory.horizon_s / dt_s + 1e-6)
    return Trajectory(kinematics.resample(trajectory, dt_s * np.arange(1, count + 1)), dt_s)


def trajectory_points(
    trajectory: Trajectory, map_from_ego: Array, wheel_base_m: float, reused: list[TrajectoryPoint] | None = None
) -> list[TrajectoryPoint]:
    """Autoware points in the map: speed over the interval before each point, acceleration after it, heading rate, wheel
    angle. A stop is the last pose repeated at speed 0.

    Making a point costs ten times what filling it does, so points of an earlier message may be `reused`: they are
    overwritten, which is safe once that message has been published.
    """
    poses = geometry.compose(map_from_ego, trajectory.poses)
    speed, rate = kinematics.speeds(trajectory), kinematics.yaw_rates(trajectory)
    acceleration = kinematics.accelerations(trajectory)
    steering = kinematics.steering_from_curvature(kinematics.curvatures(trajectory), wheel_base_m)
    times_ns = np.rint(1e9 * trajectory.times_s).astype(np.int64)
    half = 0.5 * poses[:, 2]
    columns = (poses[:, 0], poses[:, 1], np.sin(half), np.cos(half), speed, acceleration, rate, steering, times_ns)
    points = [] if reused is None else reused
    points.extend(TrajectoryPoint() for _ in range(len(poses) - len(points)))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for point, (x, y, qz, qw, v, a, w, s, t) in zip(points, rows, strict=False):
        after, position, orientation = point.time_from_start, point.pose.position, point.pose.orientation
        after.sec, after.nanosec = t // 1_000_000_000, t % 1_000_000_000
        position.x, position.y = x, y
        orientation.z, orientation.w = qz, qw
        point.longitudinal_velocity_mps, point.acceleration_mps2 = v, a
        point.heading_rate_rps, point.front_wheel_angle_rad = w, s
    return points[: len(poses)]


def trajectory(plan: Plan, config: Config, reused: list[TrajectoryPoint] | None = None) -> TrajectoryMessage:
    """The plan as control takes it: map frame, stamp of the odometry used. `reused` as in `trajectory_points`."""
    return TrajectoryMessage(
        header=header(plan.stamp_ns, config.output.map_frame),
        points=trajectory_points(
            published(plan.trajectory, config.output.dt_s), plan.map_from_ego, config.vehicle.wheel_base_m, reused
        ),
    )


def slot_uuid(generator_name: str, slot: int) -> UUID:
    """The same for a slot in every cycle and every run: selectors look up their reports by it."""
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"reflectdrive:{generator_name}_{slot}")
    return UUID(uuid=np.frombuffer(name.bytes, np.uint8))


def indicator(command: Command, stamp_ns: int) -> TurnIndicatorsCommand:
    chosen = {Command.LEFT: LEFT, Command.RIGHT: RIGHT}.get(command, DISABLE)
    return TurnIndicatorsCommand(stamp=time_message(stamp_ns), command=int(chosen))


def candidates(plan: Plan, best: list[TrajectoryPoint], command: Command, config: Config) -> CandidateTrajectories:
    """The plan (slot 0, its points given) and its rivals; the turn signal is set where the installed message has it."""
    message = CandidateTrajectories()
    rivals = (
        trajectory_points(published(t, config.output.dt_s), plan.map_from_ego, config.vehicle.wheel_base_m)
        for t in plan.candidates
    )
    for slot, points in enumerate([best, *rivals]):
        identity = slot_uuid(config.output.generator_name, slot)
        candidate = CandidateTrajectory(
            header=header(plan.stamp_ns, config.output.map_frame), generator_id=identity, points=points
        )
        if HAS_TURN_INDICATOR:
            candidate.turn_indicators_command = indicator(command, plan.stamp_ns)
        message.candidate_trajectories.append(candidate)
        name = String(data=f"{config.output.generator_name}_{slot}")
        message.generator_info.append(GeneratorInfo(generator_id=identity, generator_name=name))
    return message


def path(message: TrajectoryMessage) -> Path:
    poses = [PoseStamped(header=message.header, pose=point.pose) for point in message.points]
    return Path(header=message.header, poses=poses)


def route_path(route: Array, frame: str) -> Path:
    """A route (L, 3) in the map as the message that the node reads."""
    made = Path(header=header(0, frame))
    for x, y, _ in route.tolist():
        pose = PoseStamped(header=made.header)
        pose.pose.position.x, pose.pose.position.y = x, y
        pose.pose.orientation.w = 1.0
        made.poses.append(pose)
    return made


COLOURS = {0: (0.1, 0.8, 0.3), 1: (0.95, 0.75, 0.1), 2: (0.9, 0.15, 0.15)}  # by source: planner, carried, stop


def markers(report: StepReport, message: TrajectoryMessage, config: Config) -> MarkerArray:
    """A ribbon of the car's width along the plan, coloured by where the plan came from, and a line of text."""
    ribbon = Marker(header=message.header, ns="plan", id=0, type=Marker.LINE_STRIP, action=Marker.ADD)
    ribbon.points = [point.pose.position for point in message.points]
    ribbon.scale.x = float(config.vehicle.width_m)
    ribbon.color.r, ribbon.color.g, ribbon.color.b = COLOURS[int(report.source)]
    ribbon.color.a = 0.45
    ribbon.pose.orientation.w = 1.0
    ribbon.lifetime = Duration(sec=0, nanosec=500_000_000)
    text = Marker(header=message.header, ns="plan", id=1, type=Marker.TEXT_VIEW_FACING, action=Marker.ADD)
    x, y, _ = (float(value) for value in report.plan.map_from_ego)
    text.pose.position = Point(x=x, y=y, z=3.0)
    text.pose.orientation.w = 1.0
    text.scale.z = 0.8
    text.color.r = text.color.g = text.color.b = text.color.a = 1.0
    text.text = f"{report.source.name.lower()} {report.verdict.name}"
    text.lifetime = ribbon.lifetime
    return MarkerArray(markers=[ribbon, text])


def status(
    report: StepReport, config: Config, model_sha256: str, sequence: int, image_age_s: float, total_ms: float
) -> PlannerStatus:
    return PlannerStatus(
        header=header(report.plan.stamp_ns, config.output.map_frame),
        verdict=int(report.verdict),
        source=int(report.source),
        reason=report.reason,
        planner=config.planner,
        step_kind=report.plan.step.value,
        model_sha256=model_sha256,
        sequence=int(sequence),
        age_of_image=float(image_age_s),
        time_received_to_published=float(total_ms),
        time_planner=float(report.timings_ms.get("plan", 0.0)),
    )


def debug(report: StepReport, config: Config, stages_ms: dict[str, float]) -> PlannerDebug:
    """Flat arrays of the plan and its rivals, all at the published interval and equal in length."""
    plan = report.plan
    every = [published(t, config.output.dt_s) for t in (plan.trajectory, *plan.candidates)]
    count = min(len(t.poses) for t in every)
    poses = geometry.compose(plan.map_from_ego, np.stack([t.poses[:count] for t in every])).reshape(-1, 3)
    scores = plan.scores or (float("nan"),) * len(every)
    tokens = [] if plan.tokens is None else [int(token) for token in plan.tokens]
    return PlannerDebug(
        header=header(plan.stamp_ns, config.output.map_frame),
        planner=config.planner,
        step_kind=plan.step.value,
        candidate_count=len(every),
        points_per_candidate=count,
        point_interval=float(config.output.dt_s),
        candidate_x=poses[:, 0].tolist(),
        candidate_y=poses[:, 1].tolist(),
        candidate_heading=poses[:, 2].tolist(),
        candidate_score=[float(score) for score in scores],
        tokens_after_edit=tokens,
        stage_names=list(stages_ms),
        stage_times=[float(value) for value in stages_ms.values()],
    )


def processing_time(stamp_ns: int, total_ms: float) -> Float64Stamped:
    return Float64Stamped(stamp=time_message(stamp_ns), data=float(total_ms))


def diagnostics(statuses: Iterable[InputStatus], now_ns: int, node: str) -> DiagnosticArray:
    """One status per input and one for the planner, named `<node>: <what>` as Autoware's diagnostic graph addresses."""
    message = DiagnosticArray(header=header(now_ns, ""))
    for item in statuses:
        message.status.append(
            DiagnosticStatus(
                level=bytes([int(item.level)]),
                name=f"{node}: {item.name}",
                message=item.message,
                hardware_id="reflectdrive",
                values=[KeyValue(key=key, value=value) for key, value in item.values.items()],
            )
        )
    return message
