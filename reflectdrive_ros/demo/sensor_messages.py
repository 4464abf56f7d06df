"""Messages of sensors, localization and perception from plain numbers.

Every number passes through float() or int(), because rclpy serialises other types incorrectly.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from autoware_perception_msgs.msg import ObjectClassification, PredictedObject, PredictedPath, Shape
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import AccelWithCovarianceStamped, Point, Pose, PoseStamped, Quaternion, TransformStamped, Twist
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMessage
from sensor_msgs.msg import CameraInfo, CompressedImage
from tf2_msgs.msg import TFMessage

from ..core.domain import Array
from ..ros.outputs import header
from ..ros.rotations import quaternion_from_matrix, quaternion_from_yaw


def quaternion(xyzw: tuple[float, float, float, float]) -> Quaternion:
    x, y, z, w = xyzw
    return Quaternion(x=float(x), y=float(y), z=float(z), w=float(w))


def planar_pose(x: float, y: float, z: float, heading: float) -> Pose:
    return Pose(
        position=Point(x=float(x), y=float(y), z=float(z)), orientation=quaternion(quaternion_from_yaw(heading))
    )


def odometry(stamp_ns: int, frame: str, pose: Pose, twist: Sequence[float] | Array) -> Odometry:
    """`twist`: m/s forward, m/s left, rad/s about z, in base_link."""
    message = Odometry(header=header(stamp_ns, frame), child_frame_id="base_link")
    message.pose.pose = pose
    set_twist(message.twist.twist, twist)
    return message


def set_twist(message: Twist, twist: Sequence[float] | Array) -> None:
    message.linear.x, message.linear.y, message.angular.z = (float(value) for value in twist)


def acceleration(stamp_ns: int, forward_left_mps2: Sequence[float]) -> AccelWithCovarianceStamped:
    message = AccelWithCovarianceStamped(header=header(stamp_ns, "base_link"))
    linear = message.accel.accel.linear
    linear.x, linear.y = (float(value) for value in forward_left_mps2)
    return message


def route(stamp_ns: int, poses: Array, frame: str, heights_m: Array | None = None) -> PathMessage:
    """A route (L, 3) in the map; its heights (L,) are 0 where none are given."""
    message = PathMessage(header=header(stamp_ns, frame))
    heights = np.zeros(len(poses)) if heights_m is None else heights_m
    message.poses = [
        PoseStamped(header=message.header, pose=planar_pose(x, y, z, heading))
        for (x, y, heading), z in zip(poses.tolist(), heights.tolist(), strict=True)
    ]
    return message


def compressed_image(stamp_ns: int, camera: str, jpeg: bytes) -> CompressedImage:
    message = CompressedImage(header=header(stamp_ns, f"{camera}_optical"), format="jpeg")
    message.data = array("B", jpeg)
    return message


def camera_info(stamp_ns: int, camera: str, size: tuple[int, int], pixels_from_camera: Array) -> CameraInfo:
    """Of a pinhole without distortion; `size` is width and height in px."""
    message = CameraInfo(header=header(stamp_ns, f"{camera}_optical"), width=int(size[0]), height=int(size[1]))
    message.distortion_model, message.d = "plumb_bob", [0.0] * 5
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


def predicted_object(
    uuid: bytes, label: int, pose: Pose, twist: Sequence[float], size: Array, positions: Array, step_s: float
) -> PredictedObject:
    """A box with its centre at `pose` in the map; `size` (3,) length, width, height m. `twist` is in the object's own
    axes. `positions` (P, 2) of its predicted path, `step_s` apart, which keeps height and heading; as in Autoware the
    first is the present one.
    """
    z, facing = pose.position.z, pose.orientation
    time_step = Duration(sec=int(step_s), nanosec=round(1e9 * (step_s % 1.0)))
    path = PredictedPath(time_step=time_step, confidence=1.0)
    path.path = [Pose(position=Point(x=x, y=y, z=z), orientation=facing) for x, y in positions.tolist()]
    thing = PredictedObject(existence_probability=1.0)
    thing.object_id.uuid = np.frombuffer(uuid, np.uint8)
    thing.classification = [ObjectClassification(label=int(label), probability=1.0)]
    thing.kinematics.initial_pose_with_covariance.pose = pose
    set_twist(thing.kinematics.initial_twist_with_covariance.twist, twist)
    thing.kinematics.predicted_paths = [path]
    thing.shape.type = Shape.BOUNDING_BOX
    dimensions = thing.shape.dimensions
    dimensions.x, dimensions.y, dimensions.z = (float(value) for value in size)
    return thing
