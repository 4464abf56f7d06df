"""Messages of the driver contract as inputs of a planner, and plans as its trajectories.

The contract's frames: `local` is a right-handed map frame; `rig` has its origin on the ground below the rear axle, x
forward, y left, z up, which is this package's ego frame. Times are microseconds, quaternions are (x, y, z, w) in the
contract's own types. A planner sees the plane: heights, roll and pitch of the car are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import geometry
from ..core.domain import Array, EgoState, LightState, StopLines, TrafficLights, Trajectory
from ..features.reprojection import Calibration
from ..ros.convert import route_length_fault

US_TO_NS = 1000
HALF_LANE_M = 2.0  # of the stop line of a light of which only the distance is available
ROUTE_GAP_M = 1.0  # a route that begins no further ahead of the car than this begins at it
LIGHTS = {"RED": LightState.RED, "YELLOW": LightState.AMBER, "GREEN": LightState.GREEN}


class BadInput(ValueError):
    """A message cannot be used; the message says what, why and what to do."""


def planar(pose: Any) -> Array:
    """(3,) x, y, heading of the contract's Pose. Raises BadInput for one that holds NaN or infinity."""
    forward = np.asarray(pose.rotation_matrix)[:, 0]
    pose_xyh = np.array([pose.position[0], pose.position[1], np.arctan2(forward[1], forward[0])], float)
    if not np.isfinite(pose_xyh).all():
        raise BadInput("the egomotion holds NaN or infinity: send the pose of the rig in the local frame")
    return pose_xyh


def ego_state(time_us: int, pose: Any, state: Any) -> EgoState:
    """The ego at a time, from its pose and DynamicState (velocities and accelerations in the rig frame, SI units)."""
    speed, acceleration, yaw_rate = (
        float(value) for value in (state.linear_velocity.x, state.linear_acceleration.x, state.angular_velocity.z)
    )
    if not np.isfinite([speed, acceleration, yaw_rate]).all():
        raise BadInput("the dynamic state holds NaN or infinity: send velocities in the rig frame")
    return EgoState(time_us * US_TO_NS, planar(pose), speed, acceleration, yaw_rate)


def route_in_map(waypoints_in_rig: Array, map_from_rig: Array) -> Array:
    """(L, 3) poses in the map frame of route waypoints (L, 3) x, y, z in the rig frame of the pose (3,); none or two or
    more.

    AlpaSim can leave out the part of a route near the car (`route_start_offset_m`). A route that begins ahead of the
    car is joined to it by a straight line.
    """
    points = np.asarray(waypoints_in_rig, float).reshape(-1, 3)[:, :2]
    if not np.isfinite(points).all():
        raise BadInput("the route holds NaN or infinity: send waypoints in the rig frame")
    if len(points) >= 2 and points[0, 0] > max(ROUTE_GAP_M, abs(points[0, 1])):
        points = np.concatenate([np.zeros((1, 2)), points])
    line = geometry.distinct_points(geometry.transform_points(map_from_rig, points)) if len(points) else points
    if len(line) < 2:
        return np.zeros((0, 3))
    fault = route_length_fault(line)
    if fault:
        raise BadInput(fault)
    return np.concatenate([line, geometry.headings_along(line)[:, None]], axis=1)


def trajectory_us(plan: Trajectory, time_us: int) -> tuple[list[int], Array]:
    """Times in microseconds and poses (T, 3) in the rig frame of a plan of `time_us` in the ego frame."""
    times = [time_us + round(1e6 * float(seconds)) for seconds in plan.times_s]
    return times, np.asarray(plan.poses)


def light_ahead(name: str, distance_m: float, route: Array) -> tuple[TrafficLights | None, StopLines | None]:
    """The light of the ego's lane, `distance_m` ahead of its front along the route (L, 3, ego frame), as a light with a
    stop line across the route; nothing where there is none."""
    state = LIGHTS.get(name.removeprefix("TRAFFIC_LIGHT_STATE_"))
    if state is None or distance_m < 0.0 or len(route) < 2:
        return None, None
    here_m, _ = geometry.ego_on_route(route)
    x, y, heading = geometry.sample(route, np.array([here_m + distance_m]))[0]
    left = HALF_LANE_M * np.array([-np.sin(heading), np.cos(heading)])
    ends = np.array([x, y]) + np.stack([left, -left])
    return TrafficLights(np.zeros(1, np.int64), np.array([int(state)])), StopLines(ends[None], np.zeros(1, np.int64))


def calibration(camera: Any, ego_from_camera: Any) -> Calibration:
    """Of an AvailableCamera: its intrinsics, and the Pose of its optical frame (x right, y down, z ahead) in the rig.

    Raises BadInput for a camera model that is not supported.
    """
    spec, name = camera.intrinsics, camera.logical_id
    kind = next((one for one in ("opencv_pinhole_param", "opencv_fisheye_param") if spec.HasField(one)), "")
    if not kind:
        raise BadInput(f"camera {name} is neither opencv_pinhole nor opencv_fisheye: declare one of these models")
    lens = getattr(spec, kind)
    radial = [float(value) for value in lens.radial_coeffs]
    if kind == "opencv_fisheye_param":
        model, coefficients = "equidistant", (radial + [0.0] * 4)[:4]
    else:
        if any(lens.thin_prism_coeffs):
            raise BadInput(f"camera {name} has thin prism distortion, which is not supported: rectify its images")
        tangential = ([float(value) for value in lens.tangential_coeffs] + [0.0, 0.0])[:2]
        radial = (radial + [0.0] * 6)[:6]
        model, coefficients = "rational_polynomial", [*radial[:2], *tangential, *radial[2:]]
        if not any(coefficients):
            model, coefficients = "", []
    matrix = np.array(
        [
            [lens.focal_length_x, 0.0, lens.principal_point_x],
            [0.0, lens.focal_length_y, lens.principal_point_y],
            [0, 0, 1],
        ]
    )
    if not (spec.resolution_w > 0 and spec.resolution_h > 0 and min(matrix[0, 0], matrix[1, 1]) > 0.0):
        raise BadInput(f"camera {name} has no resolution or focal length: declare both in px")
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = ego_from_camera.rotation_matrix, ego_from_camera.position
    try:
        return Calibration(
            name, spec.resolution_w, spec.resolution_h, matrix, model, tuple(coefficients), geometry.invert_matrix(pose)
        )
    except ValueError as fault:
        raise BadInput(f"camera {name} {fault}") from None
