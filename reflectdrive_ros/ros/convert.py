"""Converts messages to domain types, by pure functions. An unusable message raises BadMessage: one sentence.

The functions read attributes only, so that they work for rclpy's messages and for those of a bag. A planning step
converts everything it uses: loops over objects collect plain floats, and numpy does the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import cv2
import numpy as np

from ..core import geometry, kinematics
from ..core.domain import AgentKind, Agents, Array, DrivableGrid, EgoState
from ..core.messages import BadMessage, require_frame
from ..maps.elevation import VehiclePlane
from ..maps.lanelet_map import ROUTE_POINTS_MAX
from ..scoring.drivable import REACH_M
from . import rotations


def stamp_ns(header: Any) -> int:
    """Nanoseconds of a std_msgs/Header, or of a message that has a stamp in place of one."""
    return int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)


# Values beyond these limits come from failing sensors or estimators and are not passed to planners.
ROUTE_LENGTH_MAX_M = 1e6  # no car drives further without a stop; a longer one has a damaged point
K_MAX_PX = 1e6  # of an intrinsic matrix; a telephoto lens on a large sensor has 1e5
EGO_SPEED_MAX_MPS = 100.0  # forward or in reverse
EGO_LATERAL_SPEED_MAX_MPS = 8.0  # a slip angle of 15 degrees at 30 m/s; more is a twist in another frame than base_link
EGO_YAW_RATE_MAX_RPS = 5.0  # a spin; full lock in a car park is 1.3
EGO_ACCELERATION_MAX_MPS2 = 20.0  # twice the limit of tyres
EGO_TILT_MAX_RAD = np.deg2rad(45.0)  # the steepest roads have 20 degrees
EGO_POSITION_MAX_M = 2e7  # half the circumference of the Earth, for any map projection
EGO_HEIGHT_MAX_M = 1e4  # no road is higher


def ego_state(message: Any, map_frame: str) -> EgoState:
    """nav_msgs/Odometry (pose in the map, twist in base_link); acceleration is added by the caller.

    Raises BadMessage for values that are not finite or not possible for a car.
    """
    require_frame(message.header, map_frame, "odometry")
    pose, twist = message.pose.pose, message.twist.twist
    q, at = pose.orientation, pose.position
    speed, sideways, yaw_rate = float(twist.linear.x), float(twist.linear.y), float(twist.angular.z)
    try:
        turn = rotations.matrix_from_quaternion((q.x, q.y, q.z, q.w))
        ego = EgoState(
            stamp_ns(message.header),
            np.array([at.x, at.y, np.arctan2(turn[1, 0], turn[0, 0])]),
            speed,
            yaw_rate_rps=yaw_rate,
        )
    except ValueError as fault:
        raise BadMessage(f"odometry cannot be used: {fault}") from None
    tilt = float(np.arccos(np.clip(turn[2, 2], -1.0, 1.0)))
    for what, value, most, unit in (
        ("a position", max(abs(at.x), abs(at.y)), EGO_POSITION_MAX_M, "m"),
        ("a height", at.z, EGO_HEIGHT_MAX_M, "m"),
        ("a speed", speed, EGO_SPEED_MAX_MPS, "m/s"),
        ("a speed to the side", sideways, EGO_LATERAL_SPEED_MAX_MPS, "m/s"),
        ("a yaw rate", yaw_rate, EGO_YAW_RATE_MAX_RPS, "rad/s"),
        ("a tilt", np.rad2deg(tilt), np.rad2deg(EGO_TILT_MAX_RAD), "degrees"),
    ):
        if not abs(value) <= most:  # NaN is not either
            raise BadMessage(
                f"odometry cannot be used: it has {what} of {value:.4g} {unit}, at most {most:g} is possible: "
                "check localisation, and that the twist is in base_link"
            )
    return ego


def vehicle_plane(message: Any) -> VehiclePlane:
    """Height and slope of a nav_msgs/Odometry that `ego_state` accepts; Autoware's base_link is at road height."""
    q, at = message.pose.pose.orientation, message.pose.pose.position
    forward = rotations.matrix_from_quaternion((q.x, q.y, q.z, q.w))[:3, 0]  # the vehicle's x axis in the map
    pose = np.array([at.x, at.y, np.arctan2(forward[1], forward[0])])
    return VehiclePlane(pose, float(at.z), float(forward[2] / np.hypot(forward[0], forward[1])))


def acceleration(message: Any) -> float:
    """m/s^2 along the heading, of an AccelWithCovarianceStamped. Raises BadMessage for what no car does."""
    value = float(message.accel.accel.linear.x)
    if not np.isfinite(value):
        raise BadMessage("acceleration is NaN or infinite")
    if abs(value) > EGO_ACCELERATION_MAX_MPS2:
        raise BadMessage(
            f"acceleration of {value:.4g} m/s^2 cannot be used, at most {EGO_ACCELERATION_MAX_MPS2:g} is possible: "
            "check its sender"
        )
    return value


OBJECTS_MAX = 500  # the nearest are kept: the checks take longer with more
OBJECT_EXTENT_MAX_M = 40.0  # a longer box is a fault of perception


def max_velocity_mps(message: Any) -> float:
    """m/s of a VelocityLimit; 0 means stop. Raises BadMessage for a negative value, NaN and infinity."""
    value = float(message.max_velocity)
    if not 0.0 <= value < np.inf:
        raise BadMessage(f"a limit of {value:g} m/s cannot be used: publish 0 (stop) or more")
    return value


def path_route(message: Any, map_frame: str) -> Array:
    """(L, 3) route in the map of a nav_msgs/Path, thinned to ROUTE_POINTS_MAX points; headings follow the points."""
    require_frame(message.header, map_frame, "the route")
    if len(message.poses) < 2:
        raise BadMessage(f"the route has {len(message.poses)} points: publish a path of at least two")
    stride = -(-len(message.poses) // ROUTE_POINTS_MAX)
    thinned = [*message.poses[:-1:stride], message.poses[-1]]
    points = np.array([(p.pose.position.x, p.pose.position.y) for p in thinned], float)
    if not np.isfinite(points).all():
        raise BadMessage("the route holds NaN or infinity")
    points = geometry.distinct_points(points, closer_than=1e-3)
    if len(points) < 2:
        raise BadMessage("all points of the route are equal: publish a path with at least two different points")
    return np.concatenate([points, geometry.headings_along(points)[:, None]], axis=1)


def route_length_fault(points: Array) -> str:
    """Why a route through points (L, 2+) is too long; empty if it is not. The part near the car is sampled every metre,
    up to the next point: a point far away would fill the memory."""
    with np.errstate(over="ignore"):
        length_m = float(geometry.arc_lengths(points)[-1])
    if length_m <= ROUTE_LENGTH_MAX_M:
        return ""
    allowed_km = f"{1e-3 * ROUTE_LENGTH_MAX_M:g} km"
    return f"the route is {1e-3 * length_m:.4g} km long, at most {allowed_km} are followed: correct its points"


# --- cameras ---------------------------------------------------------------------------------------------------------


def intrinsics(message: Any, name: str) -> Array:
    """(3, 3) pixels_from_camera of a sensor_msgs/CameraInfo, for its own width and height.

    Raises BadMessage for focal lengths that are not positive, and for entries that are not finite or above K_MAX_PX.
    """
    matrix = np.array(message.k, float).reshape(3, 3)
    if not np.isfinite(matrix).all() or matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
        raise BadMessage(f"camera {name}: camera_info has no focal length; calibrate it or fill k")
    if np.abs(matrix).max() > K_MAX_PX:  # scaling it to the network's size would overflow
        raise BadMessage(f"camera {name}: camera_info has {np.abs(matrix).max():.3g} px in k, allowed {K_MAX_PX:.0e}")
    return matrix


def static_transforms(message: Any) -> dict[str, tuple[str, Array]]:
    """child frame -> (parent frame, (4, 4) parent_from_child) of a tf2_msgs/TFMessage; unusable ones are left out."""
    transforms = {}
    for transform in message.transforms:
        x, y, z, *quaternion = transform_numbers(transform.transform)
        try:
            matrix = rotations.matrix_from_quaternion(quaternion)
        except ValueError:
            continue
        matrix[:3, 3] = x, y, z
        if all(map(isfinite, (x, y, z))):
            transforms[transform.child_frame_id.lstrip("/")] = (transform.header.frame_id.lstrip("/"), matrix)
    return transforms


def camera_from_ego(transforms: dict[str, tuple[str, Array]], name: str, frame: str) -> Array:
    """(4, 4) from the camera to base_link, along static transforms (as `static_transforms` returns them)."""
    return geometry.invert_matrix(ego_from_frame(transforms, f"camera {name}", frame))


def ego_from_frame(transforms: dict[str, tuple[str, Array]], whose: str, frame: str) -> Array:
    """(4, 4) of a sensor's frame, likewise."""
    ego_from_sensor, at = np.eye(4), frame.lstrip("/")
    for _ in range(len(transforms) + 1):
        if at == "base_link":
            return ego_from_sensor
        if at not in transforms:
            break
        at, parent_from_child = transforms[at]
        ego_from_sensor = parent_from_child @ ego_from_sensor
    raise BadMessage(f"{whose}: /tf_static has no transform from base_link to '{frame}'")


# --- other road users ------------------------------------------------------------------------------------------------

KINDS = {  # autoware_perception_msgs/ObjectClassification labels
    0: AgentKind.UNKNOWN,
    1: AgentKind.VEHICLE,
    2: AgentKind.VEHICLE,
    3: AgentKind.VEHICLE,
    4: AgentKind.VEHICLE,
    5: AgentKind.BICYCLE,  # motorcycle
    6: AgentKind.BICYCLE,
    7: AgentKind.PEDESTRIAN,
    8: AgentKind.PEDESTRIAN,  # animal
    9: AgentKind.STATIC,
}
DRIVABLE_OVER_LABELS = (10, 11)  # OVER_DRIVABLE, UNDER_DRIVABLE: not an obstacle
CYLINDER, POLYGON = 1, 2
PREDICTED_DT_S = 0.5
PREDICTED_STEPS = 10
SMALLEST_M = 0.1


@dataclass(frozen=True, eq=False)
class MapAgents:
    """Other road users as a message had them: at its stamp, in the map."""

    stamp_ns: int
    agents: Agents  # poses, velocities and predictions in map axes
    ignored: dict[str, int]  # reason -> how many objects were left out
    ids: tuple[bytes, ...]  # of the agents, the same from message to message
    items: tuple[Any, ...]  # the objects of the message, one for each agent


AGENT_SPEED_MAX_MPS = 150.0  # faster is no road user; and numbers near the largest there are overflow
AGENT_DISTANCE_MAX_M = 100_000.0  # likewise, of an object or its path, from the car


def map_agents(
    message: Any, map_frame: str, near: Array, extent_max_m: float = OBJECT_EXTENT_MAX_M, count_max: int = OBJECTS_MAX
) -> MapAgents:
    """Agents of PredictedObjects or TrackedObjects, nearest to `near` (x, y in the map) first.

    An unusable object (NaN, no orientation, a box longer than `extent_max_m`, out of range, too fast) is left out and
    counted by reason; the others stay. Twists are in the object's own axes, as Autoware publishes them.
    """
    require_frame(message.header, map_frame, "objects")
    predicted = len(message.objects) > 0 and hasattr(message.objects[0].kinematics, "predicted_paths")
    usable, ignored, rows = [], dict[str, int](), []
    for item in message.objects:
        kinematics = item.kinematics
        pose = kinematics.initial_pose_with_covariance if predicted else kinematics.pose_with_covariance
        twist = kinematics.initial_twist_with_covariance if predicted else kinematics.twist_with_covariance
        label = max(item.classification, key=lambda c: c.probability).label if item.classification else 0
        if label in DRIVABLE_OVER_LABELS:
            ignored["driven over"] = ignored.get("driven over", 0) + 1
            continue
        usable.append(item)
        rows.append((*pose_and_speed(pose, twist), *extent(item.shape), KINDS.get(label, 0)))
    table = np.array(rows, float).reshape(-1, 11)
    x, y, qx, qy, qz, qw, vx, vy, length, width, kind = table.T
    heading = np.arctan2(2 * (qw * qz + qx * qy), 1 - 2 * (qy**2 + qz**2))
    left_out = np.zeros(len(table), bool)
    for reason, bad in (
        ("not finite", ~np.isfinite(table).all(axis=1)),
        ("no orientation", np.abs(qx**2 + qy**2 + qz**2 + qw**2 - 1) > 0.1),
        (f"longer than {extent_max_m:.0f} m", np.maximum(length, width) > extent_max_m),
        ("no size", np.minimum(length, width) <= 0),
        (f"faster than {AGENT_SPEED_MAX_MPS:.0f} m/s", np.maximum(np.abs(vx), np.abs(vy)) > AGENT_SPEED_MAX_MPS),
        (
            f"farther than {AGENT_DISTANCE_MAX_M / 1e3:.0f} km",
            np.maximum(np.abs(x - near[0]), np.abs(y - near[1])) > AGENT_DISTANCE_MAX_M,
        ),
    ):
        fresh = bad & ~left_out
        if fresh.any():
            ignored[reason] = int(fresh.sum())
        left_out |= bad
    distance = np.where(left_out, np.inf, np.hypot(x - near[0], y - near[1]))
    order = np.argsort(distance, kind="stable")
    order = order[: len(order) - int(left_out.sum())]
    if len(order) > count_max:
        ignored[f"beyond the nearest {count_max}"] = len(order) - count_max
        order = order[:count_max]

    turn = heading[order]
    velocities = geometry.rotate(np.stack([vx, vy], axis=1)[order], turn)
    poses = np.stack([x[order], y[order], turn], axis=1)
    sizes = np.maximum(np.stack([length, width], axis=1)[order], SMALLEST_M)
    paths = predicted_poses([usable[i] for i in order], poses, velocities) if predicted else None
    agents = Agents(poses, velocities, sizes, kind[order].astype(np.int64), paths, PREDICTED_DT_S)
    items = tuple(usable[i] for i in order)
    ids = tuple(bytes(item.object_id.uuid) for item in items)
    return MapAgents(stamp_ns(message.header), agents, ignored, ids, items)


def transform_numbers(transform: Any) -> tuple[float, ...]:
    """x, y, z of the translation and the quaternion's x, y, z, w of a geometry_msgs/Transform."""
    if hasattr(transform, "first_numbers"):  # cdr.Message
        return tuple(transform.first_numbers(7))
    t, q = transform.translation, transform.rotation
    return t.x, t.y, t.z, q.x, q.y, q.z, q.w


def pose_and_speed(pose: Any, twist: Any) -> tuple[float, ...]:
    """x, y, the quaternion's x, y, z, w and the linear speeds along x and y of a geometry_msgs/PoseWithCovariance and a
    TwistWithCovariance."""
    if hasattr(pose, "first_numbers"):  # cdr.Message
        x, y, _, *quaternion = pose.first_numbers(7)
        return x, y, *quaternion, *twist.first_numbers(2)
    at, q, speed = pose.pose.position, pose.pose.orientation, twist.twist.linear
    return at.x, at.y, q.x, q.y, q.z, q.w, speed.x, speed.y


def extent(shape: Any) -> tuple[float, float]:
    """(length, width) m of an autoware_perception_msgs/Shape."""
    if shape.type == POLYGON and len(shape.footprint.points):
        return (
            2.0 * max(abs(p.x) for p in shape.footprint.points),
            2.0 * max(abs(p.y) for p in shape.footprint.points),
        )
    if shape.type == CYLINDER:
        return shape.dimensions.x, shape.dimensions.x
    return shape.dimensions.x, shape.dimensions.y


def predicted_poses(items: list[Any], poses: Array, velocities: Array) -> Array | None:
    """(A, PREDICTED_STEPS, 3) along each object's most confident path, at PREDICTED_DT_S; constant velocity for an
    object without paths and beyond a path's end. None if no object has a path.
    """
    times = PREDICTED_DT_S * np.arange(1, PREDICTED_STEPS + 1)
    result = np.repeat(poses[:, None, :], PREDICTED_STEPS, axis=1)
    result[..., :2] += velocities[:, None, :] * times[None, :, None]
    groups: dict[tuple[float, int], tuple[list[int], list[Array]]] = {}  # paths of one step and length go together
    for row, item in enumerate(items):
        paths = item.kinematics.predicted_paths
        if paths:
            best = max(paths, key=lambda path: path.confidence)
            step_s = best.time_step.sec + 1e-9 * best.time_step.nanosec
            if step_s > 0 and len(best.path) >= 2:
                rows, knots = groups.setdefault((step_s, len(best.path)), ([], []))
                rows.append(row)
                knots.append(planar_poses(best.path))
    for (step_s, count), (rows, knots) in groups.items():
        table = np.array(knots, float)  # (R, count, 4)
        heading = np.unwrap(2.0 * np.arctan2(table[..., 2], table[..., 3]), axis=1)
        path = np.concatenate([table[..., :2], heading[..., None]], axis=2)
        usable = np.isfinite(path).all(axis=(1, 2))
        usable &= (np.abs(path[..., :2] - poses[rows, None, :2]) <= AGENT_DISTANCE_MAX_M).all(axis=(1, 2))
        # Autoware's paths start at the object's present pose: knot k is k steps ahead
        inside = times <= step_s * (count - 1) + 1e-9
        at = np.minimum(times[inside] / step_s, count - 1)
        before = np.minimum(at.astype(int), count - 2)
        share = (at - before)[None, :, None]
        along = (1 - share) * path[:, before] + share * path[:, before + 1]
        result[np.ix_(np.array(rows)[usable], np.flatnonzero(inside))] = along[usable]
    return result if groups else None


def planar_poses(poses: Any) -> Array:
    """(N, 4) x, y and the quaternion's z, w of a sequence of geometry_msgs/Pose."""
    if hasattr(poses, "numbers"):  # cdr.Items: (N, 7) at once
        return np.asarray(poses.numbers()[:, [0, 1, 5, 6]])
    return np.array([(p.position.x, p.position.y, p.orientation.z, p.orientation.w) for p in poses], float)


def agents_to_ego_frame(map_agents: MapAgents, ego: EgoState) -> Agents:
    """The agents moved at constant velocity to the ego's stamp, in the ego frame of that stamp.

    Without this, a car at 15 m/s is misplaced by 1.5 m per 0.1 s of age.
    """
    late_s = (ego.stamp_ns - map_agents.stamp_ns) * 1e-9
    agents, ego_from_map = map_agents.agents, geometry.invert(ego.map_from_ego)
    shift = np.zeros((len(agents), 3))
    shift[:, :2] = agents.velocities_mps * late_s
    paths = agents.predicted_poses
    if paths is not None:
        paths = geometry.compose(ego_from_map, paths + shift[:, None, :])
    return Agents(
        geometry.compose(ego_from_map, agents.poses + shift),
        geometry.rotate(agents.velocities_mps, ego_from_map[2]),
        agents.sizes,
        agents.kinds,
        paths,
        agents.predicted_dt_s,
    )


# --- drivable space --------------------------------------------------------------------------------------------------

GRID_FREE_BELOW = 50  # cells below this value are drivable; unknown ones are not
GRID_RESOLUTION_MAX_M = 0.5  # a coarser grid cannot resolve a lane
GRID_RESOLUTION_MIN_M = 0.02  # a finer grid is one in other units
GRID_AROUND_M = 160.0  # cells further from the car are left out: no plan of 4 s reaches them
GRID_CELLS_MAX = 4_000_000  # around the car: distances of a larger grid take longer than a planning step
CELL_CORNER = 0.5 * np.sqrt(2.0)  # of a cell, from its centre


@dataclass(frozen=True, eq=False)
class MapGrid:
    """An OccupancyGrid as signed distances, where it was at its stamp."""

    stamp_ns: int
    grid: DrivableGrid  # its pose is that in its own frame
    moves_with_car: bool  # that frame is base_link


def map_grid(message: Any, map_frame: str, ego: EgoState) -> MapGrid:
    """Drivable space of a nav_msgs/OccupancyGrid in the map or in base_link.

    Cells from 0 to GRID_FREE_BELOW - 1 are drivable; occupied, unknown (-1) and cells beyond the grid are not. A cell's
    distance is that to the nearest corner of a cell of the other kind, so that the grid is conservative.
    """
    frame = message.header.frame_id.lstrip("/")
    if frame not in (map_frame, "base_link"):
        raise BadMessage(
            f"the drivable grid is in frame '{message.header.frame_id}', expected '{map_frame}' or 'base_link'"
        )
    resolution_m, width, height = float(message.info.resolution), int(message.info.width), int(message.info.height)
    if not GRID_RESOLUTION_MIN_M <= resolution_m <= GRID_RESOLUTION_MAX_M:  # NaN is not either
        raise BadMessage(
            f"the drivable grid has a resolution of {resolution_m:g} m, expected {GRID_RESOLUTION_MIN_M} to "
            f"{GRID_RESOLUTION_MAX_M} m: publish another"
        )
    cells = np.frombuffer(message.data, np.int8)
    if width == 0 or height == 0 or len(cells) != width * height:
        raise BadMessage(f"the drivable grid holds {len(cells)} cells, its width and height are {width} and {height}")
    q, at = message.info.origin.orientation, message.info.origin.position
    try:
        corner = np.array([at.x, at.y, rotations.yaw_from_quaternion((q.x, q.y, q.z, q.w))])
    except ValueError as fault:
        raise BadMessage(f"the drivable grid has no usable origin: {fault}") from None
    if not np.isfinite(corner).all():
        raise BadMessage("the drivable grid has no usable origin: it holds NaN or infinity")
    here = np.zeros(3) if frame == "base_link" else ego.map_from_ego
    ego_cell = geometry.transform_points(geometry.invert(corner), here[None, :2])[0] / resolution_m
    outside_m = float(np.maximum(-ego_cell, ego_cell - (width, height)).max()) * resolution_m
    if outside_m > 0:
        raise BadMessage(f"the car is {outside_m:.0f} m outside of the drivable grid: publish one around the car")

    reach = int(GRID_AROUND_M / resolution_m)
    low = np.maximum(ego_cell.astype(int) - reach, 0)
    high = np.minimum(ego_cell.astype(int) + reach, (width, height))
    if int(np.prod(high - low)) > GRID_CELLS_MAX:
        raise BadMessage(
            f"the drivable grid has {int(np.prod(high - low))} cells around the car, at most {GRID_CELLS_MAX} are "
            "used: publish a coarser or smaller one"
        )
    near = cells.reshape(height, width)[low[1] : high[1], low[0] : high[0]]
    free = np.pad((near >= 0) & (near < GRID_FREE_BELOW), 1).astype(np.uint8)  # cells beyond the grid are unknown
    inside, outside = (cv2.distanceTransform(kind, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) for kind in (free, 1 - free))
    signed = resolution_m * np.where(free, inside - CELL_CORNER, -outside)
    first = np.array([*(resolution_m * (low - 0.5)), 0.0])  # the padding's cell
    grid = DrivableGrid(
        np.clip(signed, -REACH_M, REACH_M).T.astype(np.float32), resolution_m, geometry.compose(corner, first)
    )
    return MapGrid(stamp_ns(message.header), grid, frame == "base_link")


def grid_to_ego_frame(source: MapGrid, ego: EgoState) -> DrivableGrid:
    """The grid in the present ego frame; a grid in base_link is moved back by the motion of the car since its stamp."""
    if not source.moves_with_car:
        return replace(
            source.grid, ego_from_grid=geometry.compose(geometry.invert(ego.map_from_ego), source.grid.ego_from_grid)
        )
    now_from_then = geometry.invert(displacement_since(ego, source.stamp_ns))
    return replace(source.grid, ego_from_grid=geometry.compose(now_from_then, source.grid.ego_from_grid))


def displacement_since(ego: EgoState, stamp_ns: int) -> Array:
    """(3,) then_from_now: the motion from a stamp until now, at the present speed and curvature."""
    driven_m = ego.speed_mps * (ego.stamp_ns - stamp_ns) * 1e-9
    return np.asarray(kinematics.arc(kinematics.curvature_now(ego), np.array([driven_m]))[0])
