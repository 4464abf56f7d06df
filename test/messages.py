"""Real ROS messages for the tests, small and complete: what a car would send."""

import copy
from array import array

import cv2
import numpy as np
from autoware_perception_msgs.msg import (
    ObjectClassification,
    PredictedObject,
    PredictedObjects,
    PredictedPath,
    TrafficLightElement,
    TrafficLightGroup,
    TrafficLightGroupArray,
)
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import AccelWithCovarianceStamped, Pose, PoseStamped, TransformStamped
from nav_msgs.msg import Odometry, Path
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from tf2_msgs.msg import TFMessage

from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.rotations import quaternion_from_yaw

SECOND_NS = 1_000_000_000
CAMERAS = ("front_left", "front", "front_right")


def ns(seconds):
    return round(seconds * SECOND_NS)


def set_yaw(pose, yaw):
    pose.orientation.z, pose.orientation.w = quaternion_from_yaw(yaw)[2:]


def odometry(seconds, x=0.0, y=0.0, yaw=0.0, speed=5.0, frame="map"):
    message = Odometry(header=outputs.header(ns(seconds), frame), child_frame_id="base_link")
    message.pose.pose.position.x, message.pose.pose.position.y = x, y
    set_yaw(message.pose.pose, yaw)
    message.twist.twist.linear.x = speed
    return message


def acceleration(seconds, value=0.5):
    message = AccelWithCovarianceStamped(header=outputs.header(ns(seconds), "base_link"))
    message.accel.accel.linear.x = value
    return message


def route(points=None, frame="map"):
    points = [(float(x), 0.0) for x in range(-10, 100)] if points is None else points
    message = Path(header=outputs.header(0, frame))
    for x, y in points:
        pose = PoseStamped(header=message.header)
        pose.pose.position.x, pose.pose.position.y = float(x), float(y)
        pose.pose.orientation.w = 1.0
        message.poses.append(pose)
    return message


def image(shade=0, width=64, height=36):
    """An image that differs with its shade."""
    pixels = np.full((height, width, 3), (shade * 37) % 256, np.uint8)
    pixels[:, : width // 2] = (shade * 11 + 5) % 256
    return pixels


def jpeg(seconds, camera="front", shade=0, pixels=None, **size):
    pixels = image(shade, **size) if pixels is None else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    data = cv2.imencode(".jpg", pixels)[1].tobytes()
    return CompressedImage(
        header=outputs.header(ns(seconds), f"{camera}_optical"), format="jpeg", data=array("B", data)
    )


def raw(seconds, camera="front", pixels=None, encoding="rgb8"):
    pixels = image() if pixels is None else pixels
    message = Image(header=outputs.header(ns(seconds), f"{camera}_optical"), encoding=encoding)
    message.height, message.width = pixels.shape[:2]
    message.step = int(pixels.nbytes // pixels.shape[0])
    message.data = array("B", pixels.tobytes())
    return message


def camera_info(camera="front", width=64, height=36):
    message = CameraInfo(header=outputs.header(0, f"{camera}_optical"), width=width, height=height)
    message.k = np.array([60.0, 0.0, width / 2, 0.0, 60.0, height / 2, 0.0, 0.0, 1.0])
    return message


def tf_static(cameras=CAMERAS):
    """Cameras 1.5 m up, looking forward: optical z is ego x."""
    message = TFMessage()
    for camera in cameras:
        transform = TransformStamped(header=outputs.header(0, "base_link"), child_frame_id=f"{camera}_optical")
        transform.transform.translation.z = 1.5
        q = transform.transform.rotation
        q.x, q.y, q.z, q.w = -0.5, 0.5, -0.5, 0.5
        message.transforms.append(transform)
    return message


def predicted_objects(seconds, *rows, frame="map", label=ObjectClassification.CAR):
    """PredictedObjects from rows (x, y, yaw, speed, length), each with its constant-velocity path."""
    message = PredictedObjects(header=outputs.header(ns(seconds), frame))
    for x, y, yaw, speed, length in rows:
        item = PredictedObject(existence_probability=1.0)
        item.classification.append(ObjectClassification(label=label, probability=1.0))
        kinematics = item.kinematics
        kinematics.initial_pose_with_covariance.pose = at(x, y, yaw)
        kinematics.initial_twist_with_covariance.twist.linear.x = float(speed)
        path = PredictedPath(time_step=Duration(sec=0, nanosec=500_000_000), confidence=1.0)
        path.path = [at(x + 0.5 * k * speed * np.cos(yaw), y + 0.5 * k * speed * np.sin(yaw), yaw) for k in range(11)]
        kinematics.predicted_paths.append(path)
        item.shape.dimensions.x, item.shape.dimensions.y, item.shape.dimensions.z = float(length), 1.9, 1.6
        message.objects.append(item)
    return message


LIGHT_GROUP = 500
GREEN_CIRCLE = TrafficLightElement(
    color=TrafficLightElement.GREEN,
    shape=TrafficLightElement.CIRCLE,
    status=TrafficLightElement.SOLID_ON,
    confidence=1.0,
)


def traffic_lights(seconds, *lamps, group=LIGHT_GROUP):
    """A message with one group of these lamps; without any, a green circle."""
    elements = list(lamps) or [GREEN_CIRCLE]
    light_group = TrafficLightGroup(traffic_light_group_id=group, elements=copy.deepcopy(elements))
    return TrafficLightGroupArray(stamp=outputs.time_message(ns(seconds)), traffic_light_groups=[light_group])


def at(x, y, yaw):
    pose = Pose()
    pose.position.x, pose.position.y = float(x), float(y)
    set_yaw(pose, yaw)
    return pose
