"""The proving ground as messages of a vehicle's topics, for one instant of a world. Pure, no ROS processes.

The same messages go to a running node (`world_node.py`) and into a bag (`reflectdrive make-bag world`).
"""

from __future__ import annotations

import math
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
from autoware_map_msgs.msg import LaneletMapBin
from autoware_perception_msgs.msg import (
    ObjectClassification,
    PredictedObjects,
    TrafficLightElement,
    TrafficLightGroup,
    TrafficLightGroupArray,
)
from geometry_msgs.msg import Point
from std_msgs.msg import String
from visualization_msgs.msg import Marker, MarkerArray

from ..core import geometry
from ..core.config import Config, ConfigError, InputsConfig
from ..core.domain import Array, CameraFrame, Plan, Trajectory
from ..core.messages import BadMessage, require_frame
from ..maps.lanelet_archive import light_id, write_archive
from ..maps.roads import RoadMap
from ..ros import convert, plan_messages, topics
from ..ros.outputs import header, time_message
from ..sim.traffic.actors import Actors, ActorShape, Lamp
from . import sensor_messages

if TYPE_CHECKING:
    from ..sim.world import World

PERCEPTION_RANGE_M = 100.0  # range of the simulated perception
PREDICTION_S = 5  # as far as predictions reach
JPEG_QUALITY = 90
ROUTE_AHEAD_MIN_M = 120.0  # a route is sent again before it ends nearer than this
ROUTE_OFFSET_MAX_M = 0.5  # and when it leads elsewhere by more than this
ROAD_TOPIC = "/world/road"  # drivable polygons, for RViz and the live page

LABELS = {
    ActorShape.CAR: ObjectClassification.CAR,
    ActorShape.VAN: ObjectClassification.CAR,
    ActorShape.TRUCK: ObjectClassification.TRUCK,
    ActorShape.BUS: ObjectClassification.BUS,
    ActorShape.MOTORCYCLE: ObjectClassification.MOTORCYCLE,
    ActorShape.BICYCLE: ObjectClassification.BICYCLE,
    ActorShape.PEDESTRIAN: ObjectClassification.PEDESTRIAN,
    ActorShape.CONE: ObjectClassification.HAZARD,
    ActorShape.BARRIER: ObjectClassification.HAZARD,
    ActorShape.DOOR: ObjectClassification.HAZARD,
}
COLOURS = {
    Lamp.RED: TrafficLightElement.RED,
    Lamp.AMBER: TrafficLightElement.AMBER,
    Lamp.GREEN: TrafficLightElement.GREEN,
}


class CarTopic(NamedTuple):
    """A topic of the vehicle and the node's input that subscribes to it."""

    key: str  # of the topic table
    private: str  # the node's own name for it
    name: str  # the car's
    type: str
    qos: topics.Qos

    @property
    def is_latched(self) -> bool:
        return str(self.qos.value[1]) == "transient_local"


MAP = CarTopic("map", "~/input/map", "/map/vector_map", topics.MAP_TYPE, topics.Qos.LATCHED)
LIGHTS = CarTopic(
    "lights",
    "~/input/traffic_lights",
    "/perception/traffic_light_recognition/traffic_signals",
    topics.LIGHTS_TYPE,
    topics.Qos.NEWEST,
)


def check_inputs(inputs: InputsConfig) -> None:
    """Raises ConfigError if the node requires messages that the proving ground does not send."""
    for name, value, sent, what in (
        ("route_type", inputs.route_type, ("path",), "routes as nav_msgs/Path"),
        ("objects_type", inputs.objects_type, ("predicted", "none"), "objects as PredictedObjects"),
        ("drivable_type", inputs.drivable_type, ("none", "map"), "no grid"),
    ):
        if value not in sent:
            raise ConfigError(f"inputs.{name} is {value}, but the proving ground sends {what}: set it to {sent[0]}")


def car_topics(config: Config) -> tuple[CarTopic, ...]:
    """Everything that a car sends, under the names that recordings and launch files use.

    That is every input of the node that the world can send, and map and lights even where the node reads none.
    """
    fixed = {
        "tf_static": "/tf_static",
        "odometry": "/localization/kinematic_state",
        "acceleration": "/localization/acceleration",
        "route": "/planning/reflectdrive/route",
        "instruction": "/planning/reflectdrive/instruction",
        "objects": "/perception/object_recognition/objects",
        "map": MAP.name,
        "lights": LIGHTS.name,
    }
    rows = []
    for topic in topics.inputs(config):
        kind, _, camera = topic.key.partition(":")
        if kind == "image":
            name = f"/sensing/camera/{camera}/image/compressed"
        elif kind == "info":
            name = f"/sensing/camera/{camera}/camera_info"
        elif topic.key in fixed:
            name = fixed[topic.key]
        else:
            continue
        rows.append(CarTopic(topic.key, topic.name, name, topic.type, topic.qos))
    return (*rows, *(topic for topic in (MAP, LIGHTS) if topic.key not in {row.key for row in rows}))


# --- one instant -----------------------------------------------------------------------------------------------------


@dataclass
class Sender:
    """The messages of a vehicle. Stores the route that it sent, which is sent again only when it no longer fits."""

    frame: str = "map"
    sent_route: Array | None = None

    def introduction(self, world: World, images: Sequence[CameraFrame]) -> Iterator[tuple[str, Any]]:
        """(input key, message) that a planner needs before the first image: map, cameras and route."""
        with suppress(ImportError):  # without lanelet2 a car without a map drives
            yield "map", map_message(world.road_map, world.stamp_ns, self.frame)
        mounts = {image.name: geometry.invert_matrix(image.camera_from_ego) for image in images}
        if mounts:
            yield "tf_static", sensor_messages.camera_mounts(world.stamp_ns, mounts)
        yield from self._infos(images)
        yield from self._route(world)

    def messages(self, world: World) -> Iterator[tuple[str, Any]]:
        """(input key, message) of all present messages except images; odometry is the last."""
        ego = world.ego
        yield from self._route(world)
        yield "instruction", String(data=world.instruction)
        yield "objects", objects(world.snapshot.actors, ego.stamp_ns, ego.map_from_ego, self.frame)
        yield "lights", traffic_lights(world.road_map, world.snapshot.lamps, ego.stamp_ns, ego.map_from_ego)
        yield (
            "acceleration",
            sensor_messages.acceleration(ego.stamp_ns, (ego.acceleration_mps2, ego.speed_mps * ego.yaw_rate_rps)),
        )
        x, y, heading = ego.map_from_ego.tolist()
        pose = sensor_messages.planar_pose(x, y, 0.0, heading)  # at road height
        yield (
            "odometry",
            sensor_messages.odometry(ego.stamp_ns, self.frame, pose, (ego.speed_mps, 0.0, ego.yaw_rate_rps)),
        )

    def images(self, images: Sequence[CameraFrame]) -> Iterator[tuple[str, Any]]:
        """(input key, message) of the images. They trigger a planning step: send the other messages first."""
        yield from self._infos(images)
        for image in images:
            message = sensor_messages.compressed_image(image.stamp_ns, image.name, jpeg(image.pixels))
            yield f"image:{image.name}", message

    def _infos(self, images: Sequence[CameraFrame]) -> Iterator[tuple[str, Any]]:
        for image in images:
            size = image.pixels.shape[1], image.pixels.shape[0]
            info = sensor_messages.camera_info(image.stamp_ns, image.name, size, image.pixels_from_camera)
            yield f"info:{image.name}", info

    def _route(self, world: World) -> Iterator[tuple[str, Any]]:
        route = world.route
        if self.sent_route is None or not is_route_current(self.sent_route, route, world.ego.map_from_ego):
            self.sent_route = route
            yield "route", sensor_messages.route(world.stamp_ns, route, self.frame)


def is_route_current(sent: Array, route: Array, map_from_ego: Array) -> bool:
    """Whether the route (L, 3) sent last still covers the present route, far enough ahead."""
    (here,), _ = geometry.project(sent, map_from_ego[None, :2])
    end = geometry.arc_lengths(sent)[-1]
    (now,), _ = geometry.project(route, map_from_ego[None, :2])
    ahead_m = geometry.arc_lengths(route)[-1] - now
    if end - here < min(ROUTE_AHEAD_MIN_M, ahead_m - 1.0):
        return False
    ahead = geometry.sample(route, now + np.arange(0.0, min(ahead_m, end - here), 2.0))[:, :2]
    if len(ahead) == 0:
        return True
    _, offset = geometry.project(sent, ahead)
    return bool(np.abs(offset).max() < ROUTE_OFFSET_MAX_M)


def objects(actors: Actors, stamp_ns: int, map_from_ego: Array, frame: str) -> PredictedObjects:
    """Agents within PERCEPTION_RANGE_M of the ego, on the road, at constant velocity."""
    message = PredictedObjects(header=header(stamp_ns, frame))
    gap = np.hypot(*(actors.poses[:, :2] - map_from_ego[:2]).T) if len(actors) else np.zeros(0)
    near = actors.select(np.flatnonzero(gap < PERCEPTION_RANGE_M))
    for key, shape, (x, y, heading), speed_mps, size in zip(
        near.ids.tolist(), near.shapes.tolist(), near.poses.tolist(), near.speeds_mps.tolist(), near.sizes, strict=True
    ):
        ahead_m = PREDICTION_S * speed_mps
        thing = sensor_messages.predicted_object(
            uuid.UUID(int=key & (2**128 - 1)).bytes,
            LABELS[ActorShape(shape)],
            sensor_messages.planar_pose(x, y, 0.5 * size[2], heading),
            (speed_mps, 0.0, 0.0),
            size,
            np.array([(x, y), (x + ahead_m * math.cos(heading), y + ahead_m * math.sin(heading))]),
            PREDICTION_S,
        )
        message.objects.append(thing)
    return message


def traffic_lights(road_map: RoadMap, lamps: Array, stamp_ns: int, map_from_ego: Array) -> TrafficLightGroupArray:
    """The lamps (S,) of `road_map.signals` within PERCEPTION_RANGE_M of the ego, one group with a circle each."""
    message, first_id = TrafficLightGroupArray(stamp=time_message(stamp_ns)), light_id(road_map, 0)
    for index, (signal, lamp) in enumerate(zip(road_map.signals, lamps.tolist(), strict=True)):
        if np.hypot(*(signal.stop_line.mean(axis=0) - map_from_ego[:2])) < PERCEPTION_RANGE_M:
            element = TrafficLightElement(
                color=COLOURS.get(Lamp(lamp), TrafficLightElement.UNKNOWN),
                shape=TrafficLightElement.CIRCLE,
                status=TrafficLightElement.SOLID_ON,
                confidence=1.0,
            )
            group = TrafficLightGroup(traffic_light_group_id=first_id + index, elements=[element])
            message.traffic_light_groups.append(group)
    return message


def map_message(road_map: RoadMap, stamp_ns: int, frame: str) -> LaneletMapBin:
    """The road network as Autoware's map. Raises ImportError where lanelet2 is not installed."""
    data = array("B", write_archive(road_map))
    return LaneletMapBin(header=header(stamp_ns, frame), name_map=road_map.name, data=data)


def jpeg(pixels: Array) -> bytes:
    """(H, W, 3) uint8 RGB as a JPEG."""
    done, encoded = cv2.imencode(
        ".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    )
    assert done
    return bytes(encoded)


def road_rings(road_map: RoadMap) -> list[Array]:
    """(V, 2) outlines in the map of every road and junction; together they are what may be driven on."""
    rings = []
    for area in (*road_map.roads.values(), *road_map.junctions.values()):
        for part in getattr(area, "geoms", [area]):
            if not part.is_empty:
                rings.append(geometry.outer_ring(part))
    return rings


def road_markers(road_map: RoadMap, stamp_ns: int, frame: str) -> MarkerArray:
    """One closed line per road and junction."""
    message = MarkerArray()
    for index, ring in enumerate(road_rings(road_map)):
        line = Marker(header=header(stamp_ns, frame), ns="road", id=index, type=Marker.LINE_STRIP, action=Marker.ADD)
        line.pose.orientation.w = 1.0
        line.scale.x = 0.1
        line.color.r = line.color.g = line.color.b = 0.6
        line.color.a = 1.0
        line.points = [Point(x=x, y=y, z=0.0) for x, y in [*ring.tolist(), ring[0].tolist()]]
        message.markers.append(line)
    return message


# --- and back --------------------------------------------------------------------------------------------------------


def plan_from_message(message: Any, map_from_ego: Array, frame: str) -> Plan:
    """The plan in an autoware_planning_msgs/Trajectory that was made where the ego stood at its stamp.

    Raises BadMessage for one that cannot be followed.
    """
    require_frame(message.header, frame, "the trajectory")
    points = plan_messages.points_from_message(message)
    points = points[plan_messages.is_ahead(points)]
    if len(points) < 2:
        raise BadMessage(f"the trajectory has {len(points)} points ahead of the car: at least two are needed")
    times_s = points["sec"] + 1e-9 * points["nanosec"]
    poses = geometry.compose(geometry.invert(map_from_ego), plan_messages.planar_poses(points))
    try:
        trajectory = Trajectory(poses, times_s[1] - times_s[0])
    except ValueError as fault:
        raise BadMessage(f"the trajectory cannot be followed: {fault}") from None
    return Plan(convert.stamp_ns(message.header), map_from_ego, trajectory)
