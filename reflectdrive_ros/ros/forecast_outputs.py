"""What displays and evaluators read of a planner: the forecast that was used, and the next traffic light."""

from __future__ import annotations

from typing import Any

import numpy as np
from autoware_perception_msgs.msg import TrafficLightElement, TrafficLightGroup

from ..core import geometry
from ..core.domain import Array, Forecast, LightState
from . import rotations
from .cdr_writer import CdrWriter
from .convert import MapAgents

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
