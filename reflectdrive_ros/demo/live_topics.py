"""Subscribes to the topics of a running planner node: its inputs and its outputs. Topic names are discovered.

The planner is the node that publishes a PlannerStatus. The ROS graph gives its subscriptions under their remapped
names, so that the page also works with a node on a vehicle. Trajectories of other nodes are received too: in shadow
mode, those that the car follows.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from rclpy.context import Context
from rclpy.node import Node
from visualization_msgs.msg import MarkerArray

from ..core.domain import Array
from ..core.messages import BadMessage
from ..ros import convert, image_decoding, outputs, topics
from ..ros.plan_publisher import qos_profile
from ..ros.topics import Qos, message_class
from .world_messages import ROAD_TOPIC

DISCOVERY_PERIOD_S = 0.5
MAX_IMAGES = 8  # of each camera, so that a page can fetch the image of its state
MAX_POSES = 300
MAX_HISTORY = 600  # plans; a minute
STATUS_TYPE = "reflectdrive/msg/PlannerStatus"
TRAJECTORY_TYPE = "autoware_planning_msgs/msg/Trajectory"
PARTICIPANT_BYTES = 12  # of an endpoint's id, those of its participant (RTPS 2.3, section 9.3.1)
UNKNOWN_NODE = "_NODE_NAME_UNKNOWN_"  # rmw's name for a node that has not been announced
OTHER = "other:"  # begins the key of another node's trajectory; its topic follows
OUTPUT_KEYS = {"trajectory", "status", "debug", "goals", "diagnostics"}
OUTPUTS = {topic.type: (topic.key, topic.qos) for topic in topics.OUTPUTS if topic.key in OUTPUT_KEYS}
INPUTS = {
    "sensor_msgs/msg/CompressedImage": ("image", Qos.SENSOR),
    "sensor_msgs/msg/Image": ("image", Qos.SENSOR),
    "sensor_msgs/msg/CameraInfo": ("info", Qos.SENSOR),
    "tf2_msgs/msg/TFMessage": ("tf_static", Qos.STATIC_TF),
    "nav_msgs/msg/Odometry": ("odometry", Qos.NEWEST),
    "nav_msgs/msg/Path": ("route", Qos.LATCHED),
    "std_msgs/msg/String": ("instruction", Qos.NEWEST),
    **dict.fromkeys(topics.OBJECT_TYPES.values(), ("objects", Qos.NEWEST)),
}
GENERIC_WORDS = {"", "sensing", "camera", "input", "image", "image_raw", "compressed", "camera_info", "image_rect"}


def camera_name(topic: str) -> str:
    """Name of a camera, from its image or camera_info topic."""
    words = [word for word in topic.split("/") if word not in GENERIC_WORDS]
    return words[-1] if words else topic


@dataclass(frozen=True, eq=False)
class LiveState:
    """The newest of all messages at one moment."""

    planner: str  # full name of the planner's node; empty while there is none
    newest: Mapping[str, Any]  # messages by key
    images: Mapping[str, tuple[int, str]]  # stamp and frame of the newest image, by camera
    infos: Mapping[str, Any]  # CameraInfo by camera
    transforms: Mapping[str, tuple[str, Array]]  # of /tf_static, as `convert.static_transforms`
    poses: tuple[tuple[int, Array], ...]  # stamp and map_from_ego, newest last
    history: tuple[tuple[float, int, int, float, float], ...]  # stamp s, verdict, source, ms, m/s
    silent_s: float | None  # since the last plan, by our clock; None before the first
    plans_hz: float  # by our clock
    road_version: int  # changes with the road


class Listener(Node):
    def __init__(self, context: Context | None = None, node: str = "") -> None:
        """`node`: full name of the planner's node; empty: the first one by name."""
        super().__init__("reflectdrive_live", context=context)
        self._lock = threading.Lock()
        self._planner_filter = node
        self._planner = ""
        self._topics: set[str] = set()
        self._newest: dict[str, Any] = {}
        self._images: dict[str, OrderedDict[int, Any]] = {}
        self._infos: dict[str, Any] = {}
        self._transforms: dict[str, tuple[str, Array]] = {}
        self._poses: deque[tuple[int, Array]] = deque(maxlen=MAX_POSES)
        self._speed = 0.0
        self._history: deque[tuple[float, int, int, float, float]] = deque(maxlen=MAX_HISTORY)
        self._plan_times: deque[float] = deque(maxlen=20)
        self._road: list[Array] = []
        self._road_version = 0
        self.create_subscription(MarkerArray, ROAD_TOPIC, self._take_road, qos_profile(Qos.LATCHED))
        self.create_timer(DISCOVERY_PERIOD_S, self._look)

    # --- subscriptions -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find the planner, and subscribe to its topics that are not subscribed yet.

        Endpoints are compared by participant: of an endpoint whose node has not been announced, the name is unknown.
        Fast DDS loses such announcements at times, for as long as both nodes live (ros2/rmw_fastrtps issue 792).
        """
        named = [(topic, kind) for topic, kinds in self.get_topic_names_and_types() for kind in kinds]
        planners = {
            full_name(info): info
            for topic, kind in named
            if kind == STATUS_TYPE
            for info in self.get_publishers_info_by_topic(topic)
            if info.node_name != UNKNOWN_NODE and self._planner_filter in ("", full_name(info))
        }
        self._planner = min(planners, default="")
        if not planners:
            return
        participant = planners[self._planner].endpoint_gid[:PARTICIPANT_BYTES]

        def is_planners(info: Any) -> bool:
            is_named = info.node_name == UNKNOWN_NODE or full_name(info) == self._planner
            return is_named and info.endpoint_gid[:PARTICIPANT_BYTES] == participant

        for topic, kind in named:
            if topic in self._topics:
                continue
            if kind in INPUTS and any(map(is_planners, self.get_subscriptions_info_by_topic(topic))):
                self._listen(topic, kind, *INPUTS[kind])
            elif kind in OUTPUTS and any(map(is_planners, self.get_publishers_info_by_topic(topic))):
                self._listen(topic, kind, *OUTPUTS[kind])
            elif kind == TRAJECTORY_TYPE and self.count_publishers(topic):
                self._listen(topic, kind, OTHER + topic, Qos.NEWEST)

    def _listen(self, topic: str, kind: str, key: str, qos: Qos) -> None:
        self._topics.add(topic)
        self.create_subscription(message_class(kind), topic, self._taking(key, camera_name(topic)), qos_profile(qos))

    def _taking(self, key: str, camera: str) -> Any:
        def take(message: Any) -> None:
            with self._lock:
                self._take(key, camera, message)

        return take

    def _take(self, key: str, camera: str, message: Any) -> None:
        if key == "image":
            images = self._images.setdefault(camera, OrderedDict())
            images[convert.stamp_ns(message.header)] = message
            while len(images) > MAX_IMAGES:
                images.popitem(last=False)
            return
        if key == "info":
            self._infos[camera] = message
            return
        if key == "tf_static":
            self._transforms.update(convert.static_transforms(message))
            return
        if key == "diagnostics" and not self._are_planners(message):  # every node of a car sends on this topic
            return
        self._newest[key] = message
        if key == "odometry":
            try:
                ego = convert.ego_state(message, message.header.frame_id.lstrip("/"))
            except BadMessage:
                return
            self._speed = ego.speed_mps
            self._poses.append((ego.stamp_ns, ego.map_from_ego))
        elif key == "status":
            self._plan_times.append(time.perf_counter())
            stamp_s = convert.stamp_ns(message.header) * 1e-9
            took = float(message.time_received_to_published)
            self._history.append((stamp_s, int(message.verdict), int(message.source), took, self._speed))

    def _are_planners(self, message: Any) -> bool:
        prefix = f"{outputs.diagnostic_node(self._planner)}: "
        return any(status.name.startswith(prefix) for status in message.status)

    def _take_road(self, message: MarkerArray) -> None:
        rings = [np.array([(point.x, point.y) for point in marker.points]) for marker in message.markers]
        with self._lock:
            self._road = [ring for ring in rings if len(ring) > 2]
            self._road_version += 1

    # --- received messages -------------------------------------------------------------------------------------------

    def live_state(self) -> LiveState:
        with self._lock:
            times = list(self._plan_times)
            span_s = times[-1] - times[0] if len(times) > 1 else 0.0
            return LiveState(
                self._planner,
                dict(self._newest),
                {name: (max(images), images[max(images)].header.frame_id) for name, images in self._images.items()},
                dict(self._infos),
                dict(self._transforms),
                tuple(self._poses),
                tuple(self._history),
                time.perf_counter() - times[-1] if times else None,
                (len(times) - 1) / span_s if span_s > 0 else 0.0,
                self._road_version,
            )

    def jpeg(self, camera: str, stamp_ns: int) -> bytes | None:
        """The image of that stamp, if it is still stored."""
        with self._lock:
            message = self._images.get(camera, OrderedDict()).get(stamp_ns)
        return None if message is None else _to_jpeg(message)

    def road(self) -> tuple[int, list[Array]]:
        """Version, and rings (V, 2) in the map."""
        with self._lock:
            return self._road_version, list(self._road)


def full_name(info: Any) -> str:
    """Of the node of an endpoint (rclpy's TopicEndpointInfo)."""
    return f"{info.node_namespace.rstrip('/')}/{info.node_name}"


def _to_jpeg(message: Any) -> bytes | None:
    """JPEG bytes unchanged; raw images are encoded. None for an image without bytes or one that cannot be read."""
    if not hasattr(message, "encoding"):
        return bytes(message.data) or None
    try:
        pixels = image_decoding.raw_pixels(message, message.header.frame_id)
    except BadMessage:
        return None
    encoded = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 80])[1]
    return encoded.tobytes()
