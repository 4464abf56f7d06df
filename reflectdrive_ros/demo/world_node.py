"""The proving ground on a vehicle's topics: publishes three cameras, odometry, road users and a route, subscribes to
plans.

    python -m reflectdrive_ros.demo.world_node --seed 3

The ego follows the newest plan. If rendering takes longer than a tick of 0.1 s, simulated time runs slower than real
time; no tick is skipped. In lock step each tick waits for its own plan, so that a drive does not depend on the speed of
the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import rclpy
from autoware_planning_msgs.msg import Trajectory as TrajectoryMessage
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from visualization_msgs.msg import MarkerArray

from ..core.config import Config
from ..core.domain import Array, Plan
from ..core.messages import BadMessage
from ..infra import arguments
from ..infra.command import HelpFormatter
from ..infra.errors import Parser, UserError, printable, printable_line, printable_name
from ..infra.signals import run_until_stopped
from ..ros import convert, outputs, topics
from ..ros.bag import BagWriter
from ..ros.node_process import start_ros
from ..ros.plan_publisher import qos_profile
from ..ros.processes import dds_profile, full_topic_name, sender_qos, wait_for_planner
from ..ros.topics import NODE_NAME, message_class
from . import world_bag, world_messages
from .world_bag import TICK_S

if TYPE_CHECKING:
    from ..sim.drive_log import Event
    from ..sim.world import World

LOCK_STEP_S = 2.0  # the longest that a tick waits for its plan
INTRODUCTION_S = 0.3
ODOMETRY_DELAY_S = 0.02  # after the objects of the same instant, without cameras
MAP_TIMEOUT_S = 60.0  # of reading the map; on a busy machine it takes some seconds
SPIN_S = 0.5  # the longest wait of the topics' thread for a message
MAX_POSES = 100  # poses of the ego that a plan may still refer to


@dataclass(frozen=True, eq=False)
class WorldStep:
    """A published instant of the world; the world stands still until the next one is requested."""

    stamp_ns: int
    plan: Plan | None  # the ego's next plan; None before the first
    fresh: bool  # the plan is of this instant
    events: tuple[Event, ...]  # since the previous instant


class WorldNode(Node):
    """A world and its topics. `drive` runs in the caller's thread, plans arrive in another."""

    def __init__(
        self,
        world: World,
        config: Config,
        rig: Sequence[Any],
        *,
        context: Context | None = None,
        record: BagWriter | None = None,
        trajectory_topic: str = full_topic_name("~/output/trajectory"),
    ) -> None:
        """`rig`: the cameras to draw (`sim.render.camera.rig`), None for planners without cameras.

        `record`: a bag that keeps everything sent.
        """
        super().__init__("world", context=context)
        self.world = world
        self._config, self._rig, self._record = config, rig, record
        self._sender = world_messages.Sender(config.output.map_frame)
        self._egos: dict[int, Array] = {}
        self._plan: Plan | None = None
        self._arrived = threading.Condition()
        self._map_is_read = threading.Event()
        self._due = time.perf_counter()
        car = world_messages.car_topics(config)
        self.names = {topic.key: topic.name for topic in car}
        self.inputs = {
            topic.key: self.create_publisher(message_class(topic.type), topic.name, sender_qos(topic.qos))
            for topic in car
        }
        self._clock_publisher = self.create_publisher(Clock, "/clock", 10)
        road = self.create_publisher(MarkerArray, world_messages.ROAD_TOPIC, qos_profile(topics.Qos.LATCHED))
        road.publish(world_messages.road_markers(world.road_map, world.stamp_ns, config.output.map_frame))
        # keys of the inputs that the world sends and the node subscribes to
        self._read = {topic.key for topic in topics.inputs(config)} & self.inputs.keys()
        if "map" in self._read:
            self.create_subscription(DiagnosticArray, "/diagnostics", self._note_map, qos_profile(topics.Qos.LIST))
        self.create_subscription(TrajectoryMessage, trajectory_topic, self._take, qos_profile(topics.Qos.NEWEST))
        if record is not None:
            for topic in car:
                record.add_topic(topic.name, topic.type, latched=topic.is_latched)

    def _take(self, message: TrajectoryMessage) -> None:
        stamp_ns = convert.stamp_ns(message.header)
        map_from_ego = self._egos.get(stamp_ns)
        if map_from_ego is None:
            return  # of another drive, or too old to be followed
        try:
            plan = world_messages.plan_from_message(message, map_from_ego, self._config.output.map_frame)
        except BadMessage as fault:
            self.get_logger().warning(printable_line(str(fault)), throttle_duration_sec=1.0)
            return
        with self._arrived:
            if self._plan is None or plan.stamp_ns >= self._plan.stamp_ns:
                self._plan = plan
                self._arrived.notify_all()

    def _note_map(self, message: DiagnosticArray) -> None:
        if any(line.name.endswith(": map") and line.level == DiagnosticStatus.OK for line in message.status):
            self._map_is_read.set()

    def drive(self, seconds: float | None, *, lock_step: bool = False, real_time: bool = True) -> Iterator[WorldStep]:
        """Moments until `seconds` of simulated time are over; without end for None.

        `lock_step`: each tick waits for its own plan, up to LOCK_STEP_S. `real_time`: never faster than time itself.
        """
        self.introduce()
        begin_ns, self._due = self.world.stamp_ns, time.perf_counter()
        events: tuple[Event, ...] = ()
        while seconds is None or self.world.stamp_ns - begin_ns < seconds * 1e9 - 1:
            moment = self._moment(events, lock_step, real_time)
            yield moment
            events = self.world.step(moment.plan, TICK_S)

    def _moment(self, events: tuple[Event, ...], lock_step: bool, real_time: bool) -> WorldStep:
        """Publishes the present instant, and waits as `drive` says."""
        stamp_ns = self.world.stamp_ns
        self._egos[stamp_ns] = self.world.ego.map_from_ego
        while len(self._egos) > MAX_POSES:
            del self._egos[next(iter(self._egos))]
        self._clock_publisher.publish(Clock(clock=outputs.time_message(stamp_ns)))
        *others, odometry = self._sender.messages(self.world)
        self._send(others)
        if not self._rig:  # odometry starts a step then: what arrives after it would be missed
            time.sleep(ODOMETRY_DELAY_S)
        self._send([odometry])
        if self._rig:  # published last: an image that arrived before its odometry would be planned without it
            self._send(self._sender.images(self.world.render_images(self._rig)))
        if lock_step:
            with self._arrived:
                self._arrived.wait_for(lambda: self._plan is not None and self._plan.stamp_ns >= stamp_ns, LOCK_STEP_S)
        if real_time:
            self._due = max(self._due + TICK_S, time.perf_counter() - TICK_S)  # what was lost is not caught up
            time.sleep(max(0.0, self._due - time.perf_counter()))
        with self._arrived:
            plan = self._plan
        return WorldStep(stamp_ns, plan, plan is not None and plan.stamp_ns == stamp_ns, events)

    def introduce(self) -> None:
        """Publishes what does not change, and waits for its arrival: images may overtake it. A node that uses the map
        has read it then."""
        images = self.world.render_images(self._rig) if self._rig else ()
        sent = self._send(self._sender.introduction(self.world, images))
        time.sleep(INTRODUCTION_S)
        if "map" in self._read & sent and not self._map_is_read.wait(MAP_TIMEOUT_S):
            self.get_logger().warning(f"the node has not read the map within {MAP_TIMEOUT_S:.0f} s: see its log")

    def _send(self, messages: Iterable[tuple[str, Any]]) -> set[str]:
        """Publishes and records the messages; returns the keys of what was sent."""
        sent = set()
        for key, message in messages:
            if key not in self.inputs:  # such as objects, if the settings do not use them
                continue
            data = serialize_message(message)
            self.inputs[key].publish(data)
            sent.add(key)
            if self._record is not None:
                self._record.write(self.names[key], self.world.stamp_ns, data)
        return sent

    def wait_for_planner(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """As `ros.processes.wait_for_planner`, of the topics that the planner reads."""
        wait_for_planner(process, log, self, [self.inputs[key] for key in self._read])


def remaps(config: Config) -> dict[str, str]:
    """What makes a planner node listen to the car's topics: its private name -> the car's."""
    return {topic.private: topic.name for topic in world_messages.car_topics(config) if topic.private.startswith("~")}


@contextmanager
def spin_in_background(*nodes: Node, context: Context) -> Iterator[None]:
    """The nodes' callbacks run in a thread of their own; nodes and context are gone afterwards."""
    executor = SingleThreadedExecutor(context=context)
    ending = threading.Event()
    for node in nodes:
        executor.add_node(node)

    def spin() -> None:
        with suppress(ExternalShutdownException):
            while not ending.is_set():
                executor.spin_once(SPIN_S)

    thread = threading.Thread(target=spin, name="topics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()  # a callback whose node is destroyed meanwhile would raise: the thread ends first
        executor.wake()
        thread.join(timeout=5.0)
        executor.shutdown(timeout_sec=1.0)
        for node in nodes:
            node.destroy_node()
        rclpy.try_shutdown(context=context)


def new_context(args: list[str] | None = None) -> Context:
    """A ROS context that leaves signals to us. Raises ConfigError as `start_ros` does."""
    context = Context()
    start_ros(args or [], context)
    return context


def program() -> NoReturn:
    """`ros2 run reflectdrive world`"""
    run_until_stopped(main)


def main(args: list[str] | None = None) -> int:
    """Publishes the world that the arguments describe; returns the exit code."""
    argv = sys.argv[1:] if args is None else args
    parser = Parser(prog="world", description=__doc__, formatter_class=HelpFormatter)
    world_bag.add_world_arguments(parser)
    parser.add_argument(
        "--seconds", type=arguments.duration(0.1), help="seconds of simulated time (default: unlimited)"
    )
    parser.add_argument("--lock-step", action="store_true", help="each tick waits for its own plan")
    parser.add_argument(
        "--trajectory", default=f"{NODE_NAME}/output/trajectory", metavar="TOPIC", help="topic of the plans"
    )
    parser.add_argument("--ros-args", nargs=argparse.REMAINDER, help="remappings and parameters of ROS")
    parsed = parser.parse_args(argv)
    profile_file = dds_profile()
    if profile_file is not None:
        os.environ.setdefault("FASTRTPS_DEFAULT_PROFILES_FILE", str(profile_file))
    config = Config()
    try:
        with world_bag.open_world(parsed, config) as world:
            context = new_context(argv)
            node = WorldNode(
                world, config, world_bag.camera_rig(config), context=context, trajectory_topic=parsed.trajectory
            )
            with spin_in_background(node, context=context):
                run(node, parsed.seconds, parsed.lock_step)
    except UserError as fault:
        sys.stderr.write(printable(f"world: {fault}\n"))
        return 2
    return 0


def run(node: WorldNode, seconds: float | None, lock_step: bool) -> None:
    """Drives, and prints events and the real-time factor."""
    node.get_logger().info(f"the world is {printable_name(node.world.road_map.name)}")
    reported_s, since_ns, plans = time.perf_counter(), node.world.stamp_ns, 0
    for moment in node.drive(seconds, lock_step=lock_step):
        plans += moment.fresh
        for event in moment.events:
            node.get_logger().info(event.text)
        now = time.perf_counter()
        if now - reported_s > 10.0:
            rate = (node.world.stamp_ns - since_ns) * 1e-9 / (now - reported_s)
            node.get_logger().info(f"x{rate:.2f} real time, {plans} plans")
            reported_s, since_ns, plans = now, node.world.stamp_ns, 0


if __name__ == "__main__":
    program()
