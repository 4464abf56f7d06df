"""A bag through the real node: its own process, Fast DDS in between, recorded time on /clock.

The same harness serves the replay, the demo, the bench and the tests: it isolates itself on a free ROS domain of this
machine, uses the DDS profile that does not lose images, and ends every process it began, whatever happens.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rich.console import Console
from rosgraph_msgs.msg import Clock

from ..core.config import Config
from ..infra.progress import ShownProgress
from ..ros import convert, outputs, plan_messages, topics
from ..ros.inputs.channel import InputStatus, Level
from ..ros.node_process import start_ros
from ..ros.plan_publisher import qos_profile
from ..ros.processes import full_topic_name, isolated_environment, running_node, sender_qos, wait_for_planner
from ..ros.topics import message_class
from .counters import OnDiagnostics, PublishedPlan
from .recorded_world import BagSlice

MAP_TIMEOUT_S = 60.0  # of reading the map
LAST_PLAN_S = 1.0  # time in which the node may still publish after the last message
CLOCK_PERIOD_S = 0.01
PLAN_OUTPUTS = ("trajectory", "status", "debug", "diagnostics")
REQUIRED_PARTS = {"trajectory", "status"}  # required messages of a plan
PENDING_MAX = 100  # plans whose messages may be incomplete: ten seconds of them


class Harness:
    """The harness' side of the connection: publishers for the node's inputs, and all messages that the node publishes.

    They are stored in `received`, by key and with the time of arrival, or passed to `keep(key, time, message)`.
    """

    def __init__(
        self,
        config: Config,
        keys: list[str],
        subscribed_keys: tuple[str, ...] = PLAN_OUTPUTS,
        keep: Callable[[str, float, Any], None] | None = None,
    ) -> None:
        os.environ.update(isolated_environment())
        self._context = Context()
        start_ros([], self._context)
        self.node = Node("reflectdrive_harness", context=self._context)
        self.received: dict[str, list[tuple[float, Any]]] = {topic.key: [] for topic in topics.OUTPUTS}
        self._keep = keep or (lambda key, at_s, message: self.received[key].append((at_s, message)))
        self.inputs = {
            entry.key: self.node.create_publisher(
                message_class(entry.type), full_topic_name(entry.name), sender_qos(entry.qos)
            )
            for entry in topics.inputs(config)
            if entry.key in keys
        }
        self.clock = self.node.create_publisher(Clock, "/clock", 10)
        for topic in topics.OUTPUTS:
            if topic.key in subscribed_keys:
                self.node.create_subscription(
                    message_class(topic.type), full_topic_name(topic.name), self._collecting(topic.key), 100
                )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._spinning = threading.Thread(target=self._spin, daemon=True)
        self._spinning.start()

    def _spin(self) -> None:
        with suppress(ExternalShutdownException):
            self._executor.spin()

    def _collecting(self, key: str) -> Any:
        return lambda message: self._keep(key, time.perf_counter(), message)

    def wait_for_node(self, process: subprocess.Popen, log: Path) -> None:
        """As `wait_for_planner`, of this side's publishers."""
        wait_for_planner(process, log, self.node, self.inputs.values())

    def publish_clock(self, now_ns: int) -> None:
        self.clock.publish(Clock(clock=outputs.time_message(now_ns)))

    def close(self) -> None:
        self._executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)
        self._spinning.join(timeout=1.0)


class PlannerOutputs(Node):
    """Collects the planner's outputs. Those with many numbers are kept as bytes: as objects they take twenty times as
    much memory.
    """

    AS_BYTES = ("trajectory", "debug")

    def __init__(self, context: Context) -> None:
        super().__init__("reflectdrive_demo", context=context)
        self.received: dict[str, list[tuple[float, Any]]] = {key: [] for key in PLAN_OUTPUTS}
        for topic in topics.OUTPUTS:
            if topic.key in self.received:
                qos = qos_profile(topic.qos)
                qos.depth = 100
                self.create_subscription(
                    message_class(topic.type),
                    full_topic_name(topic.name),
                    self._receive(topic.key),
                    qos,
                    raw=topic.key in self.AS_BYTES,
                )

    def _receive(self, key: str) -> Any:
        return lambda message: self.received[key].append((time.perf_counter(), message))

    def sent(self) -> list[PublishedPlan]:
        """Every plan with its status and diagnostics, by stamp."""
        statuses = {convert.stamp_ns(m.header): m for _, m in self.received["status"]}
        debugs = {convert.stamp_ns(_decode("debug", data).header): data for _, data in self.received["debug"]}
        diagnostics = [(at, diagnostics_of(m)) for at, m in self.received["diagnostics"]]
        # those from before the first step explain no plan: their line of the planner has no values yet
        diagnostics = [
            (at, lines) for at, lines in diagnostics if any(line.values for line in lines if line.name == "planner")
        ]
        times = [at for at, _ in diagnostics]
        plans: dict[int, PublishedPlan] = {}
        for at, data in self.received["trajectory"]:
            trajectory = _decode("trajectory", data)
            stamp = convert.stamp_ns(trajectory.header)
            if stamp in statuses:
                debug = _decode("debug", debugs[stamp]) if stamp in debugs else None
                # a later message belongs to this plan
                lines = diagnostics[min(bisect_left(times, at), len(diagnostics) - 1)][1] if diagnostics else ()
                # the world stands still until its plan is there
                plans.setdefault(stamp, published_plan(trajectory, statuses[stamp], debug, lines, at_ns=stamp))
        return [plans[stamp] for stamp in sorted(plans)]


def _decode(key: str, data: bytes) -> Any:
    """The message of an output of the planner."""
    return deserialize_message(data, message_class(next(topic.type for topic in topics.OUTPUTS if topic.key == key)))


def published_plan(
    trajectory: Any, status: Any, debug: Any | None, diagnostics: tuple[InputStatus, ...], at_ns: int
) -> PublishedPlan:
    """A plan from its messages. Without the debug message it has neither stage times nor tokens."""
    return PublishedPlan(
        convert.stamp_ns(trajectory.header),
        plan_messages.points_from_message(trajectory),
        status,
        {} if debug is None else dict(zip(debug.stage_names, map(float, debug.stage_times), strict=True)),
        diagnostics,
        at_ns,
        None if debug is None else outputs.token_trace(debug),
    )


def replay_node(
    part: BagSlice,
    config: Config,
    rate: float,
    route: bytes,
    out: Path,
    errors: Console,
    unsent: OnDiagnostics,
) -> Iterator[Any]:
    """Plays the bag to the node in recorded time; then returns every published plan with its status, by stamp.

    `unsent` receives the diagnostics of steps without a plan. `route`: a serialised nav_msgs/Path to send beforehand
    instead of the bag's own, or b"". The bag's map is sent beforehand too: on a vehicle the node has read it before it
    drives.

    The node's messages are spooled to a file until the bag has ended, because measuring plans meanwhile would compete
    with the node for the processor.
    """
    reader, sources = part.reader, part.sources
    reader.require_installed(sources.values())
    log = out / "node.log"
    with tempfile.TemporaryFile(dir=out) as file:
        spool, map_is_read, is_playing = MessageSpool(file), threading.Event(), threading.Event()

        def keep(key: str, at_s: float, message: Any) -> None:
            if key == "diagnostics" and not map_is_read.is_set() and is_map_read(message):
                map_is_read.set()
            if is_playing.is_set():  # before that the node waits for the bag, which is no fault
                spool.add(key, at_s, message)

        harness = Harness(config, [*sources, *(["route"] if route else [])], keep=keep)
        try:
            with running_node(config, {}, log) as process:
                harness.wait_for_node(process, log)
                if "map" in sources and not send_map(part, harness, map_is_read):
                    errors.print(f"the node has not read the map within {MAP_TIMEOUT_S:.0f} s: see {log}")
                if route:
                    harness.inputs["route"].publish(route)
                began_s = time.perf_counter()
                is_playing.set()
                play(part, harness, rate, errors)
                time.sleep(LAST_PLAN_S)
        finally:
            harness.close()
        yield from assemble_plans(spool, lambda at_s: reader.start_ns + int((at_s - began_s) * rate * 1e9), unsent)


def send_map(part: BagSlice, harness: Harness, is_read: threading.Event) -> bool:
    """Sends the first map of a bag, and waits until `is_read` is set; whether that was within MAP_TIMEOUT_S."""
    for message in part.reader.messages([part.sources["map"]]):
        harness.inputs["map"].publish(message.data)
        return is_read.wait(MAP_TIMEOUT_S)
    return True


def is_map_read(message: Any) -> bool:
    """Whether a DiagnosticArray of the node says that its map is in use."""
    return any(line.name == "map" and line.level is Level.OK for line in diagnostics_of(message))


class MessageSpool:
    """Messages in a file, in order of arrival: those of a long drive do not fit into memory."""

    HEAD = struct.Struct("<BdI")  # index of the key in PLAN_OUTPUTS, time of arrival, bytes

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._types = {topic.key: message_class(topic.type) for topic in topics.OUTPUTS if topic.key in PLAN_OUTPUTS}

    def add(self, key: str, at_s: float, message: Any) -> None:
        content = serialize_message(message)
        self._file.write(self.HEAD.pack(PLAN_OUTPUTS.index(key), at_s, len(content)) + content)

    def __iter__(self) -> Iterator[tuple[str, float, Any]]:
        """Key, time of arrival and message of each; none may be added afterwards."""
        self._file.seek(0)
        while head := self._file.read(self.HEAD.size):
            key_index, at_s, size = self.HEAD.unpack(head)
            key = PLAN_OUTPUTS[key_index]
            yield key, at_s, deserialize_message(self._file.read(size), self._types[key])


def assemble_plans(
    messages: Iterable[tuple[str, float, Any]], bag_ns: Callable[[float], int], unsent: OnDiagnostics
) -> Iterator[Any]:
    """Plans with their status and diagnostics, by stamp, from messages in order of arrival.

    `bag_ns` converts a time of arrival to the bag's time. `unsent` receives diagnostics with no trajectory since the
    last ones. A plan without a status is left out.
    """
    waiting: dict[int, dict[str, Any]] = {}  # by stamp: the parts of a plan
    diagnostics: tuple[InputStatus, ...] = ()
    trajectories = 0  # since the last diagnostics

    def take_plan(stamp: int, **changes: Any) -> Iterator[PublishedPlan]:
        parts = waiting.pop(stamp) | changes
        if parts.keys() >= REQUIRED_PARTS:
            at_ns, lines = parts["at_ns"], parts["diagnostics"]
            yield published_plan(parts["trajectory"], parts["status"], parts.get("debug"), lines, at_ns)

    for key, at_s, message in messages:
        if key == "diagnostics":
            diagnostics = diagnostics_of(message)
            if not trajectories:
                unsent(diagnostics)
            trajectories = 0
            continue
        trajectories += key == "trajectory"
        parts = waiting.setdefault(convert.stamp_ns(message.header), {})
        if key == "trajectory" and key not in parts:
            parts |= {"diagnostics": diagnostics, "at_ns": bag_ns(at_s)}
        parts.setdefault(key, message)
        while len(waiting) > PENDING_MAX:
            yield from take_plan(min(waiting))
    last = max((stamp for stamp, parts in waiting.items() if parts.keys() >= REQUIRED_PARTS), default=None)
    for stamp in sorted(waiting):  # the counters of the end belong to the last plan
        yield from take_plan(stamp, **({"diagnostics": diagnostics} if stamp == last else {}))


def play(part: BagSlice, harness: Harness, rate: float, errors: Console) -> None:
    """Publish the bag's messages at their times; /clock runs along at 100 Hz."""
    began, start_ns = time.perf_counter(), part.reader.start_ns
    clock_ns = start_ns
    harness.publish_clock(clock_ns)
    with ShownProgress(errors) as progress:
        task = progress.add_task("playing to the node", total=1.0)
        for key, message in part.inputs():
            while True:
                now_ns = start_ns + int((time.perf_counter() - began) * rate * 1e9)
                if now_ns - clock_ns >= CLOCK_PERIOD_S * 1e9:
                    clock_ns = min(now_ns, message.received_ns)
                    harness.publish_clock(clock_ns)
                ahead_s = (message.received_ns - now_ns) * 1e-9 / rate
                if ahead_s <= 0:
                    break
                time.sleep(min(ahead_s, CLOCK_PERIOD_S / rate))
            harness.inputs[key].publish(message.data)
            progress.update(task, completed=part.share(message.received_ns))
    for step in range(1, int(LAST_PLAN_S / CLOCK_PERIOD_S / 4)):
        harness.publish_clock(clock_ns + step * int(CLOCK_PERIOD_S * 1e9))
        time.sleep(CLOCK_PERIOD_S)


def diagnostics_of(message: Any) -> tuple[InputStatus, ...]:
    """The lines of a DiagnosticArray, names without the node's."""
    return tuple(
        InputStatus(
            status.name.partition(": ")[2],
            Level(int.from_bytes(status.level, "little")),
            status.message,
            {value.key: value.value for value in status.values},
        )
        for status in message.status
    )
