"""Domain -> messages, pure functions.

What is sent at each step or holds much is serialised here. In message objects every number passes through float() or
int(): rclpy writes others as garbage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from autoware_internal_debug_msgs.msg import Float64Stamped, ProcessingTimeNode, ProcessingTimeTree
from autoware_internal_planning_msgs.msg import CandidateTrajectory, ControlPoint, PlanningFactorArray
from autoware_internal_planning_msgs.msg import PlanningFactor as PlanningFactorMessage
from autoware_perception_msgs.msg import TrafficLightElement, TrafficLightGroup
from autoware_planning_msgs.msg import Trajectory as TrajectoryMessage
from autoware_planning_msgs.msg import TrajectoryPoint
from autoware_vehicle_msgs.msg import TurnIndicatorsCommand
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from nav_msgs.msg import Path
from reflectdrive.msg import GoalHypotheses, PlannerDebug
from std_msgs.msg import Header
from visualization_msgs.msg import Marker, MarkerArray

from ..core import geometry
from ..core.config import Config
from ..core.domain import PLAN_DT_S, Array, EgoState, FactorKind, Forecast, LightState, Plan, StepReport, TokenTrace
from ..infra.errors import printable_line
from ..maps.elevation import FLAT_GROUND, RoadSurface
from . import plan_messages, rotations
from .cdr_writer import CdrWriter
from .convert import MapAgents
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


def time_message(stamp_ns: int) -> Time:
    return Time(sec=int(stamp_ns // 1_000_000_000), nanosec=int(stamp_ns % 1_000_000_000))


def header(stamp_ns: int, frame: str) -> Header:
    return Header(stamp=time_message(stamp_ns), frame_id=frame)


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


def trajectory(plan: Plan, config: Config, points: Array | None = None) -> TrajectoryMessage:
    """The plan for control: map frame, stamp of the odometry used.

    `points`: its `plan_points`; None: those on flat ground.
    """
    columns = plan_messages.plan_points(plan, config) if points is None else points
    return TrajectoryMessage(header=header(plan.stamp_ns, config.output.map_frame), points=message_points(columns))


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
    every = [best, *(plan_messages.plan_points(plan, config, surface, ego, rival) for rival in rivals)]
    writer = CdrWriter().numbers("I", len(every))
    for slot, points in enumerate(every):
        writer.header(plan.stamp_ns, config.output.map_frame).octets(plan_messages.slot_uuid(generator, slot))
        writer.records(points, plan_messages.POINT_TIME_BYTES)
        if HAS_TURN_INDICATOR:
            writer.stamp(plan.stamp_ns).numbers("B", _turn_command(signal))
    writer.numbers("I", len(every))
    for slot in range(len(every)):
        planner = f"_{plan.planners[slot]}" if plan.planners else ""
        writer.octets(plan_messages.slot_uuid(generator, slot)).text(f"{generator}_{slot}{planner}")
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


def debug(report: StepReport, config: Config, stages_ms: dict[str, float]) -> PlannerDebug:
    """Flat arrays of the plan and its rivals, all at the published interval and equal in length."""
    plan = report.plan
    every = [plan_messages.resample_for_output(t, PLAN_DT_S) for t in (plan.trajectory, *plan.candidates)]
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
        "draft_x": trace.draft[:, 0].tolist(),
        "draft_y": trace.draft[:, 1].tolist(),
    }


def token_trace(message: PlannerDebug) -> TokenTrace | None:
    """The draft and the edit rounds of a message, without goals; None where it has no tokens or they do not fit."""
    rows = message.edit_rounds + 1
    ids, confidence = np.array(message.round_tokens, np.int32), np.array(message.round_confidence, float)
    fits = len(ids) and len(ids) % rows == 0 and confidence.shape == ids.shape
    if not fits or len(message.draft_x) != len(message.draft_y):
        return None
    draft = np.stack([message.draft_x, message.draft_y], axis=1).astype(float)
    return TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids.reshape(rows, -1), confidence.reshape(rows, -1), draft)


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


# --- forecast and next traffic light ----------------------------------------------------------------------------------

PATH_STEP_S = 0.5  # of the published paths
COVARIANCE_BYTES = bytes(36 * 8)  # unknown
BOUNDING_BOX = 0
LAMP_COLOURS = {
    LightState.RED: TrafficLightElement.RED,
    LightState.AMBER: TrafficLightElement.AMBER,
    LightState.GREEN: TrafficLightElement.GREEN,
    LightState.UNKNOWN: TrafficLightElement.UNKNOWN,
}


def predicted_objects(tracked: MapAgents, forecast: Forecast, map_from_ego: Array, stamp_ns: int, frame: str) -> bytes:
    """PredictedObjects, serialised: the objects of a message at `stamp_ns`, each with the one path that plans were
    checked against.

    `forecast`: in the ego frame, of these agents first and then of others, which are left out. Ids, classification,
    speed and height are those of the message, sizes those of the boxes that were used.
    """
    every = max(round(PATH_STEP_S / forecast.dt_s), 1)
    paths = geometry.compose(map_from_ego, forecast.poses[: len(tracked.agents), ::every])
    writer = CdrWriter().header(stamp_ns, frame).numbers("I", len(paths))
    for item, object_id, path, size in zip(tracked.items, tracked.ids, paths, tracked.agents.sizes, strict=True):
        kinematics = item.kinematics
        pose = getattr(kinematics, "initial_pose_with_covariance", None) or kinematics.pose_with_covariance
        twist = getattr(kinematics, "initial_twist_with_covariance", None) or kinematics.twist_with_covariance
        poses = message_poses(path, float(pose.pose.position.z))
        linear = twist.twist.linear
        writer.octets(object_id).numbers("f", item.existence_probability).numbers("I", len(item.classification))
        for each in item.classification:
            writer.numbers("Bf", each.label, each.probability)
        writer.numbers(7 * "d", *poses[0]).octets(COVARIANCE_BYTES)
        writer.numbers(6 * "d", linear.x, linear.y, linear.z, 0.0, 0.0, 0.0).octets(COVARIANCE_BYTES)
        writer.numbers(6 * "d", *np.zeros(6)).octets(COVARIANCE_BYTES)
        writer.numbers("I", 1).records(poses, 0)
        writer.numbers("iIf", *divmod(round(1e9 * every * forecast.dt_s), 1_000_000_000), 1.0)
        writer.numbers("B", BOUNDING_BOX).numbers("I", 0).numbers("ddd", *size, item.shape.dimensions.z)
    return writer.content()


def message_poses(path: Array, z_m: float) -> Array:
    """(T, 7) position and quaternion of poses (T, 3) at one height."""
    quaternions = rotations.quaternions_from_yaw_pitch(path[:, 2], np.zeros(len(path)))
    return np.concatenate([path[:, :2], np.full((len(path), 1), z_m), quaternions], axis=1)


def traffic_signal(signal: tuple[int, LightState] | None) -> TrafficLightGroup:
    """The next light on the route, by group id and the state that counts, as one lamp; group 0 without lamps if there
    is none."""
    message: Any = TrafficLightGroup()
    if signal is not None:
        lamp = TrafficLightElement(color=LAMP_COLOURS[signal[1]], confidence=1.0)
        lamp.shape, lamp.status = TrafficLightElement.CIRCLE, TrafficLightElement.SOLID_ON
        message.traffic_light_group_id, message.elements = int(signal[0]), [lamp]
    return message
