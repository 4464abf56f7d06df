"""Messages of sensors, localization and perception from plain numbers.

Every number passes through float() or int(), because rclpy serialises other types incorrectly.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from autoware_perception_msgs.msg import ObjectClassification, PredictedObject, PredictedPath, Shape
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import AccelWithCovarianceStamped, Point, Pose, PoseStamped, Quaternion, TransformStamped
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from sensor_msgs.msg import CameraInfo, CompressedImage
from tf2_msgs.msg import TFMessage

from ..core.domain import Array, EgoState
from ..ros.outputs import header
from ..ros.rotations import quaternion_from_matrix, quaternion_from_yaw

PREDICTION_S = 5  # as far as predictions reach


def quaternion(xyzw: tuple[float, float, float, float]) -> Quaternion:
    x, y, z, w = xyzw
    return Quaternion(x=float(x), y=float(y), z=float(z), w=float(w))


def planar_pose(x: float, y: float, z: float, heading: float) -> Pose:
    return Pose(
        position=Point(x=float(x), y=float(y), z=float(z)), orientation=quaternion(quaternion_from_yaw(heading))
    )


def odometry(ego: EgoState, frame: str) -> Odometry:
    """Pose in the map at road height, twist in base_link."""
    message = Odometry(header=header(ego.stamp_ns, frame), child_frame_id="base_link")
    x, y, heading = ego.map_from_ego.tolist()
    message.pose.pose = planar_pose(x, y, 0.0, heading)
    message.twist.twist.linear.x = float(ego.speed_mps)
    message.twist.twist.angular.z = float(ego.yaw_rate_rps)
    return message


def acceleration(ego: EgoState) -> AccelWithCovarianceStamped:
    message = AccelWithCovarianceStamped(header=header(ego.stamp_ns, "base_link"))
    linear = message.accel.accel.linear
    linear.x, linear.y = float(ego.acceleration_mps2), float(ego.speed_mps * ego.yaw_rate_rps)
    return message


def route(stamp_ns: int, poses: Array, frame: str) -> PathMessage:
    """A route (L, 3) in the map."""
    message = PathMessage(header=header(stamp_ns, frame))
    message.poses = [
        PoseStamped(header=message.header, pose=planar_pose(x, y, 0.0, heading)) for x, y, heading in poses.tolist()
    ]
    return message


def compressed_image(stamp_ns: int, camera: str, jpeg: bytes) -> CompressedImage:
    message = CompressedImage(header=header(stamp_ns, f"{camera}_optical"), format="jpeg")
    message.data = array("B", jpeg)
    return message


def camera_info(
    stamp_ns: int,
    camera: str,
    size: tuple[int, int],
    pixels_from_camera: Array,
    distortion: Sequence[float] = (0.0,) * 5,
) -> CameraInfo:
    """Of a pinhole with plumb_bob distortion k1, k2, p1, p2, k3; `size` is width and height in px."""
    message = CameraInfo(header=header(stamp_ns, f"{camera}_optical"), width=int(size[0]), height=int(size[1]))
    message.distortion_model, message.d = "plumb_bob", list(distortion)
    message.k = [float(value) for value in pixels_from_camera.ravel()]
    message.r = [float(value) for value in np.eye(3).ravel()]
    message.p = [float(value) for value in np.c_[pixels_from_camera, np.zeros(3)].ravel()]
    return message


def camera_mounts(stamp_ns: int, ego_from_cameras: Mapping[str, Array]) -> TFMessage:
    """/tf_static from base_link to each camera's optical frame, from (4, 4) by camera name."""
    transforms = []
    for camera, ego_from_camera in ego_from_cameras.items():
        transform = TransformStamped(header=header(stamp_ns, "base_link"), child_frame_id=f"{camera}_optical")
        translation = transform.transform.translation
        translation.x, translation.y, translation.z = (float(value) for value in ego_from_camera[:3, 3])
        transform.transform.rotation = quaternion(quaternion_from_matrix(ego_from_camera))
        transforms.append(transform)
    return TFMessage(transforms=transforms)


def predicted_object(uuid: bytes, label: int, pose: Array, speed_mps: float, size: Array) -> PredictedObject:
    """A box at constant velocity: `pose` (3,) its centre in the map, `size` (3,) length, width, height m, on the road.
    The twist is in the object's own axes. As in Autoware the path's first pose is the present one; its second and last
    is PREDICTION_S later.
    """
    length, width, height = (float(value) for value in size)
    x, y, heading = (float(value) for value in pose)
    now = planar_pose(x, y, 0.5 * height, heading)
    way_m = PREDICTION_S * float(speed_mps)
    there = Point(x=x + way_m * math.cos(heading), y=y + way_m * math.sin(heading), z=0.5 * height)
    path = PredictedPath(time_step=Duration(sec=PREDICTION_S, nanosec=0), confidence=1.0)
    path.path = [now, Pose(position=there, orientation=now.orientation)]
    thing = PredictedObject(existence_probability=1.0)
    thing.object_id.uuid = np.frombuffer(uuid, np.uint8)
    thing.classification = [ObjectClassification(label=int(label), probability=1.0)]
    thing.kinematics.initial_pose_with_covariance.pose = now
    thing.kinematics.initial_twist_with_covariance.twist.linear.x = float(speed_mps)
    thing.kinematics.predicted_paths = [path]
    thing.shape.type = Shape.BOUNDING_BOX
    thing.shape.dimensions.x, thing.shape.dimensions.y, thing.shape.dimensions.z = length, width, height
    return thing
