"""Domain -> messages, pure functions.

What is sent at each step or holds much is serialised here. In message objects every number passes through float() or
int(): rclpy writes others as garbage.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from autoware_internal_debug_msgs.msg import Float64Stamped, ProcessingTimeNode, ProcessingTimeTree
from autoware_internal_planning_msgs.msg import (
    CandidateTrajectory,
    ControlPoint,
    PlanningFactorArray,
)
from autoware_internal_planning_msgs.msg import PlanningFactor as PlanningFactorMessage
from autoware_planning_msgs.msg import Trajectory as TrajectoryMessage
from autoware_planning_msgs.msg import TrajectoryPoint
from autoware_vehicle_msgs.msg import TurnIndicatorsCommand
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from nav_msgs.msg import Path
from reflectdrive.msg import GoalHypotheses, PlannerDebug, PlannerStatus
from std_msgs.msg import Header
from visualization_msgs.msg import Marker, MarkerArray

from ..core import geometry, kinematics
from ..core.config import FIRST_POINTS, Config
from ..core.domain import PLAN_DT_S, Array, EgoState, FactorKind, Plan, StepReport, TokenTrace, Trajectory
from ..infra.errors import printable_line
from ..maps.elevation import FLAT_GROUND, RoadSurface
from . import rotations
from .cdr_writer import CdrWriter
from .inputs.channel import InputStatus
from .inputs.control import Signal
from .topics import NODE_NAME

NODE = NODE_NAME.rpartition("/")[2]
CANDIDATE_FIELDS = ["header", "generator_id", "points", "turn_indicators_command"]  # without the last one up to 1.13
INSTALLED_FIELDS = list(CandidateTrajectory.get_fields_and_field_types())
HAS_TURN_INDICATOR = len(INSTALLED_FIELDS) == len(CANDIDATE_FIELDS)
if INSTALLED_FIELDS not in (CANDIDATE_FIELDS, CANDIDATE_FIELDS[:-1]):
    raise ImportError(
        f"the installed CandidateTrajectory has the fields {', '.join(INSTALLED_FIELDS)}, expected "
        f"{', '.join(CANDIDATE_FIELDS)}: use another version of autoware_internal_planning_msgs"
    )

NOT_DRIVEN = np.zeros((1, 3))  # the pose now, which is not published


def time_message(stamp_ns: int) -> Time:
    return Time(sec=int(stamp_ns // 1_000_000_000), nanosec=int(stamp_ns % 1_000_000_000))


def header(stamp_ns: int, frame: str) -> Header:
    return Header(stamp=time_message(stamp_ns), frame_id=frame)


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


def message_points(columns: Array) -> list[TrajectoryPoint]:
    """Points (T,) of POINT as message objects."""
    points = []
    for row in columns.tolist():
        point = TrajectoryPoint()
        after, position, orientation = point.time_from_start, point.pose.position, point.pose.orientation
        after.sec, after.nanosec, position.x, position.y, position.z = row[:5]
        orientation.x, orientation.y, orientation.z, orientation.w = row[5:9]
        point.longitudinal_velocity_mps, point.lateral_velocity_mps, point.acceleration_mps2 = row[9:12]
        point.heading_rate_rps, point.front_wheel_angle_rad, point.rear_wheel_angle_rad = row[12:]
        points.append(point)
    return points


def plan_points(plan: Plan, config: Config, surface: RoadSurface = FLAT_GROUND, ego: EgoState | None = None) -> Array:
    """(T,) of POINT: the published points of a plan. `ego`: at the stamp of the plan, for `output.first_point`; None:
    the first point is one interval ahead."""
    return _published_points(plan.trajectory, plan, config, surface, ego)


def _published_points(
    trajectory: Trajectory, plan: Plan, config: Config, surface: RoadSurface, ego: EgoState | None
) -> Array:
    """(T,) of POINT of a trajectory of the plan: its own, or that of another candidate."""
    sent = resample_for_output(trajectory, PLAN_DT_S)
    count = FIRST_POINTS[config.output.first_point]
    driven = NOT_DRIVEN if ego is None else kinematics.driven_path(ego, PLAN_DT_S, count)
    return point_columns(sent, plan.map_from_ego, config.vehicle.wheel_base_m, surface, driven)


def trajectory(plan: Plan, config: Config, points: Array | None = None) -> TrajectoryMessage:
    """The plan for control: map frame, stamp of the odometry used.

    `points`: its `plan_points`; None: those on flat ground.
    """
    columns = plan_points(plan, config) if points is None else points
    return TrajectoryMessage(
        header=header(plan.stamp_ns, config.output.map_frame),
        points=message_points(columns),
    )


def is_ahead(points: Array) -> Array:
    """(T,) bool: which points (T,) of POINT come after the stamp, unlike the driven path; all if none has a time."""
    times_s = points["sec"] + 1e-9 * points["nanosec"]
    return np.asarray((times_s > 0.0) | (times_s == 0.0).all())


def planar_poses(points: Array) -> Array:
    """(T, 3) poses in the map of points (T,) of POINT."""
    return np.stack([points["x"], points["y"], 2.0 * np.arctan2(points["qz"], points["qw"])], axis=1)


def points_from_message(message: TrajectoryMessage) -> Array:
    """(T,) of POINT from a received trajectory."""
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


def turn_indicators(signal: Signal | None, stamp_ns: int) -> TurnIndicatorsCommand:
    return TurnIndicatorsCommand(stamp=time_message(stamp_ns), command=_turn_command(signal))


def _turn_command(signal: Signal | None) -> int:
    """None: no command, the signal of the driver stays."""
    return int(TurnIndicatorsCommand.NO_COMMAND if signal is None else signal)


def generator_name(config: Config, node: str) -> str:
    """The candidates' name without their slot; outside of the launch files' namespace with the node's full name, so
    that two nodes have no name in common."""
    return config.output.generator_name + (node if node != NODE_NAME else "")


def candidates(
    plan: Plan,
    best: Array,
    signal: Signal | None,
    config: Config,
    node: str = NODE_NAME,
    surface: RoadSurface = FLAT_GROUND,
    ego: EgoState | None = None,
) -> bytes:
    """CandidateTrajectories, serialised: the plan (slot 0, its points (T,) of POINT given) and its rivals, at most
    `output.candidates_max` in all.

    The turn signal is written where the installed message has it. Of several planners, names end with the planner's.
    `node`: the full name of the node that sends them. `ego`: as in `plan_points`.
    """
    generator = generator_name(config, node)
    rivals = plan.candidates[: config.output.candidates_max - 1]
    every = [best, *(_published_points(rival, plan, config, surface, ego) for rival in rivals)]
    writer = CdrWriter().numbers("I", len(every))
    for slot, points in enumerate(every):
        writer.header(plan.stamp_ns, config.output.map_frame).octets(slot_uuid(generator, slot))
        writer.records(points, POINT_TIME_BYTES)
        if HAS_TURN_INDICATOR:
            writer.stamp(plan.stamp_ns).numbers("B", _turn_command(signal))
    writer.numbers("I", len(every))
    for slot in range(len(every)):
        planner = f"_{plan.planners[slot]}" if plan.planners else ""
        writer.octets(slot_uuid(generator, slot)).text(f"{generator}_{slot}{planner}")
    return writer.content()


def planning_factors(report: StepReport, config: Config, surface: RoadSurface = FLAT_GROUND) -> PlanningFactorArray:
    """Where the plan is slow or stops, and why; poses are those of base_link, distances along the route to it."""
    plan = report.plan
    head = header(plan.stamp_ns, config.output.map_frame)
    message = PlanningFactorArray(header=head)
    driven_m = geometry.arc_lengths(np.concatenate([np.zeros((1, 3)), plan.trajectory.poses]))[1:]
    for factor in report.factors:
        # along the plan, so that the height is that of the plan's road also where another road lies in between
        path = [*plan.trajectory.poses[driven_m < factor.distance_m], factor.pose]
        poses = geometry.compose(plan.map_from_ego, np.stack(path))
        (*_, z_m), pitches = surface.heights_and_pitches(poses)
        x, y, yaw = poses[-1].tolist()
        (orientation,) = rotations.quaternions_from_yaw_pitch(np.array([yaw]), pitches[-1:]).tolist()
        factor_message = PlanningFactorMessage(module=NODE, is_driving_forward=True, detail=factor.kind.value)
        factor_message.behavior = (
            PlanningFactorMessage.SLOW_DOWN if factor.speed_mps > 0.0 else PlanningFactorMessage.STOP
        )
        factor_message.control_points = [
            ControlPoint(
                pose=Pose(
                    position=Point(x=x, y=y, z=float(z_m)),
                    orientation=Quaternion(**dict(zip("xyzw", orientation, strict=True))),
                ),
                velocity=float(factor.speed_mps),
                distance=float(factor.distance_m),
            )
        ]
        factor_message.safety_factors.header = head
        factor_message.safety_factors.is_safe = factor.kind is not FactorKind.OBJECT
        message.factors.append(factor_message)
    return message


def path(message: TrajectoryMessage) -> Path:
    poses = [PoseStamped(header=message.header, pose=point.pose) for point in message.points]
    return Path(header=message.header, poses=poses)


def route_path(route: Array, frame: str) -> Path:
    """A route (L, 3) in the map as the message that the node reads."""
    path = Path(header=header(0, frame))
    for x, y, _ in route.tolist():
        pose = PoseStamped(header=path.header)
        pose.pose.position.x, pose.pose.position.y = x, y
        pose.pose.orientation.w = 1.0
        path.poses.append(pose)
    return path


TEXT_HEIGHT_M = 3.0  # above the road
COLOURS = {0: (0.1, 0.8, 0.3), 1: (0.95, 0.75, 0.1), 2: (0.9, 0.15, 0.15)}  # by source: planner, carried, stop


def markers(report: StepReport, message: TrajectoryMessage, config: Config) -> MarkerArray:
    """A ribbon of the car's width along the plan, coloured by the plan's source, and a line of text."""
    ribbon = Marker(header=message.header, ns="plan", id=0, type=Marker.LINE_STRIP, action=Marker.ADD)
    ribbon.points = [point.pose.position for point in message.points]
    ribbon.scale.x = float(config.vehicle.width_m)
    ribbon.color.r, ribbon.color.g, ribbon.color.b = COLOURS[int(report.source)]
    ribbon.color.a = 0.45
    ribbon.pose.orientation.w = 1.0
    ribbon.lifetime = Duration(sec=0, nanosec=500_000_000)
    text = Marker(header=message.header, ns="plan", id=1, type=Marker.TEXT_VIEW_FACING, action=Marker.ADD)
    x, y, _ = (float(value) for value in report.plan.map_from_ego)
    text.pose.position = Point(x=x, y=y, z=message.points[0].pose.position.z + TEXT_HEIGHT_M)
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
        reason=printable_line(report.reason),
        planner=report.plan.planner or config.planner,
        step_kind=(report.step or report.plan.step).value,
        model_sha256=model_sha256,
        sequence=int(sequence),
        age_of_image=float(image_age_s),
        time_received_to_published=float(total_ms),
        time_planner=float(report.timings_ms.get("plan", 0.0)),
    )


def debug(report: StepReport, config: Config, stages_ms: dict[str, float]) -> PlannerDebug:
    """Flat arrays of the plan and its rivals, all at the published interval and equal in length."""
    plan = report.plan
    every = [resample_for_output(t, PLAN_DT_S) for t in (plan.trajectory, *plan.candidates)]
    count = min(len(t.poses) for t in every)
    poses = geometry.compose(plan.map_from_ego, np.stack([t.poses[:count] for t in every])).reshape(-1, 3)
    scores = plan.scores or (float("nan"),) * len(every)
    return PlannerDebug(
        header=header(plan.stamp_ns, config.output.map_frame),
        planner=plan.planner or config.planner,
        step_kind=(report.step or plan.step).value,
        change=plan.change,
        candidate_count=len(every),
        points_per_candidate=count,
        point_interval=PLAN_DT_S,
        candidate_x=poses[:, 0].tolist(),
        candidate_y=poses[:, 1].tolist(),
        candidate_heading=poses[:, 2].tolist(),
        candidate_score=[float(score) for score in scores],
        stage_names=list(stages_ms),
        stage_times=[float(value) for value in stages_ms.values()],
        **_tokens(plan),
    )


def _tokens(plan: Plan) -> dict[str, Any]:
    """The token fields of PlannerDebug; none if the plan has no tokens."""
    ids, trace = plan.tokens, plan.trace
    if ids is None or trace is None:
        return {}
    return {
        "tokens_before_edit": trace.ids[0].tolist(),
        "tokens_after_edit": ids.tolist(),
        "token_confidence": trace.confidence[-1].tolist(),
        "edit_rounds": len(trace.ids) - 1,
        "round_tokens": trace.ids.ravel().tolist(),
        "round_confidence": trace.confidence.ravel().tolist(),
    }


def token_trace(message: PlannerDebug) -> TokenTrace | None:
    """The draft and the edit rounds of a message, without goals; None where it has no tokens or they do not fit."""
    rows = message.edit_rounds + 1
    ids, confidence = np.array(message.round_tokens, np.int32), np.array(message.round_confidence, float)
    if not len(ids) or len(ids) % rows or confidence.shape != ids.shape:
        return None
    return TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids.reshape(rows, -1), confidence.reshape(rows, -1))


def goals(plan: Plan, config: Config) -> GoalHypotheses:
    """The goals that the step ranked; none if it kept the goal of the last plan, and for planners without goals."""
    message = GoalHypotheses(header=header(plan.stamp_ns, config.output.map_frame), chosen=-1)
    if plan.trace is not None:
        positions = geometry.transform_points(plan.map_from_ego, plan.trace.goals)
        message.x, message.y = positions[:, 0].tolist(), positions[:, 1].tolist()
        message.probability = plan.trace.goal_probabilities.tolist()
        message.chosen = plan.trace.chosen
    return message


def processing_time(stamp_ns: int, total_ms: float) -> Float64Stamped:
    return Float64Stamped(stamp=time_message(stamp_ns), data=float(total_ms))


def processing_time_tree(stages_ms: Mapping[str, float]) -> ProcessingTimeTree:
    """The stages of a step, ms, as a tree: `overall` (arrival of the input to the published plan) has `snapshot`,
    `engine` (the engine's `total`) and `publish`; all other stages are parts of the engine's time.
    """
    tree = ProcessingTimeTree()

    def add(name: str, time_ms: float, parent: int) -> int:
        node = ProcessingTimeNode(id=len(tree.nodes) + 1, name=name, processing_time=float(time_ms), parent_id=parent)
        tree.nodes.append(node)
        return int(node.id)

    root = add("overall", stages_ms.get("overall", sum(stages_ms.get(name, 0.0) for name in OUTER_STAGES)), 0)
    for outer in OUTER_STAGES:
        if outer not in stages_ms:
            continue
        parent = add("engine" if outer == "total" else outer, stages_ms[outer], root)
        if outer == "total":
            for name, time_ms in stages_ms.items():
                if name not in (*OUTER_STAGES, "overall"):
                    add(name, time_ms, parent)
    return tree


OUTER_STAGES = ("snapshot", "total", "publish")  # of a step, one after the other


def diagnostic_node(node: str) -> str:
    """What diagnostics call a node of this full name: `reflectdrive` where the launch files start it by default, the
    full name elsewhere."""
    return NODE if node == NODE_NAME else node


def diagnostics(statuses: Sequence[InputStatus], now_ns: int, node: str) -> bytes:
    """DiagnosticArray, serialised: one status per input and one for the planner, named `<node>: <what>` as Autoware's
    diagnostic graph addresses. `node`: full name of the node."""
    node_name = diagnostic_node(node)
    writer = CdrWriter().header(now_ns, "").numbers("I", len(statuses))
    for item in statuses:
        writer.numbers("B", int(item.level)).text(f"{node_name}: {item.name}").text(printable_line(item.message)).text(
            node_name
        )
        writer.numbers("I", len(item.values))
        for key, value in item.values.items():
            writer.text(key).text(printable_line(value))
    return writer.content()
