"""The planner node: ROS subscriptions, publishers, timers and threads around `PlanningCore`.

The executor's thread runs the subscriptions, which store messages. A worker thread plans from the newest messages, so a
slow plan never makes a queue. The watchdog has its own callback group and a steady clock: it publishes the stop plan
when the worker hangs or images stop arriving.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from typing import Any, NoReturn

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.context import Context
from rclpy.exceptions import ParameterException
from rclpy.node import Node
from rclpy.qos import QoSCompatibility, qos_check_compatible

from ..core.config import ConfigError
from ..core.domain import StepReport
from ..infra.errors import printable, printable_line
from ..maps.elevation import RoadSurface
from ..planning.inputs import reads_images
from ..runtime.model_file import ModelFileError
from . import outputs, plan_messages, topics
from .inputs.channel import InputStatus, Level
from .node_process import run_node
from .params import declare_config, starts_strictly
from .plan_publisher import PlanPublisher, qos_profile, subscribe
from .planning_core import PlanningCore, PlanningStep
from .topics import message_class

WATCHDOG_PERIOD_S = 0.02
HOLD_PERIOD_S = 0.09  # the watchdog repeats the stop plan at 10 Hz
OVERDUE_S = 0.15  # after this time without a plan, the diagnostics report the reason at once
DIAGNOSTICS_PERIOD_S = 0.15
MISMATCH_PERIOD_S = 3.0
ARRIVALS_KEPT = 256
STAMP_END = 12  # of a serialised message with a header: what follows its stamp


class PlannerNode(Node):
    def __init__(self, core: PlanningCore | None = None, context: Context | None = None) -> None:
        """Raises ConfigError or ModelFileError: one sentence with what to change; ParameterException for a parameter
        of ROS itself, such as use_sim_time."""
        super().__init__("reflectdrive", context=context)
        try:
            self.config, parameter_status = declare_config(self, has_model=core is None)
            self._core = core or PlanningCore(self.config, time.perf_counter)  # loads the network
        except BaseException:  # also Ctrl-C: no node of this name may stay in the graph
            super().destroy_node()
            raise
        self._parameter_status = [] if parameter_status is None else [parameter_status]
        # input key and stamp of an anchor image or odometry -> time of arrival; the newest ARRIVALS_KEPT
        self._arrived: dict[tuple[str, int], float] = {}
        self._busy_since: float | None = None
        # times of the worker's last plan, of the last plan of worker or watchdog, of the last report of an overdue plan
        self._planned_at = self._sent_at = self._reported_at = time.perf_counter()
        self._newest_sent = (0, 0)  # restarts of the clock, stamp
        self._closing = False
        self._wake = threading.Condition()
        self._send_lock = threading.Lock()

        self._publisher = PlanPublisher(self, self.config, self._core.model_sha256)
        self._anchor = f"image:{self.config.cameras.anchor}"
        self._subscriptions_by_key = {
            topic.key: subscribe(self, topic, self._store_callback(topic.key, topic.key in (self._anchor, "odometry")))
            for topic in topics.inputs(self.config)
            if topic.required or topics.is_installed(topic.type)
        }
        self._repeated: dict[str, bytes] = {}  # by key: the last camera_info, without its stamp
        self._mismatches: list[str] = []  # reported last; each change is reported once
        self._types_by_key = {topic.key: topic.type for topic in topics.inputs(self.config)}
        self._silent = {key for key in self._subscriptions_by_key if key != "instruction"}
        if topics.is_installed(topics.START_SERVICE_TYPE):
            self.create_service(message_class(topics.START_SERVICE_TYPE), topics.START_SERVICE, self._request_start)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(WATCHDOG_PERIOD_S, self._check_watchdog, MutuallyExclusiveCallbackGroup(), clock=steady)
        self.create_timer(
            DIAGNOSTICS_PERIOD_S, self._publish_diagnostics, MutuallyExclusiveCallbackGroup(), clock=steady
        )
        self.create_timer(MISMATCH_PERIOD_S, self._report_mismatches, clock=steady)
        self._worker = threading.Thread(target=self._work, name="planner", daemon=True)
        self._worker.start()
        cameras = ", ".join(self.config.cameras.names) if reads_images(self.config) else "none"
        self.get_logger().info(
            f"planner {self.config.planner}, model {self._core.model_sha256[:12] or 'none'}, reads cameras: {cameras}"
        )
        if self._core.domain_note:
            self.get_logger().warning(printable_line(self._core.domain_note))

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    # --- executor thread: store, and wake the worker -----------------------------------------------------------------

    def _store_callback(self, key: str, starts_step: bool) -> Any:
        repeats = key.startswith("info:")  # with every image

        def store(content: bytes) -> None:
            if repeats and self._repeated.get(key) == content[STAMP_END:]:
                return
            arrived, now_ns = time.perf_counter(), self._now_ns()
            self._silent.discard(key)
            stamp_ns = self._core.receive(key, content, now_ns)
            if repeats and stamp_ns is not None:
                self._repeated[key] = content[STAMP_END:]
            if starts_step and stamp_ns is not None:
                self._arrived[key, stamp_ns] = arrived
                while len(self._arrived) > ARRIVALS_KEPT:
                    del self._arrived[next(iter(self._arrived))]
            if key.startswith("image:") or key == "odometry":
                self._wake_if_due(now_ns)

        return store

    def _wake_if_due(self, now_ns: int) -> None:
        if self._busy_since is None and self._core.due(now_ns):
            with self._wake:
                self._wake.notify()

    def _request_start(self, request: Any, response: Any) -> Any:
        self._core.start_requested = bool(request.data)
        response.success, response.message = True, "requested" if request.data else "withdrawn"
        self.get_logger().info(f"start {response.message}")
        return response

    # --- worker thread: plan, publish --------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._core.due(self._now_ns()))
                if self._closing:
                    return
                self._busy_since = time.perf_counter()
            try:
                step = self._core.step(self._now_ns())
                if step.report is not None and step.snapshot.surface is not None:
                    self._send(step.report, step.snapshot.surface, step.restarts, step)
                else:  # no plan can be sent: publish the reason
                    self._publish_diagnostics()
            except Exception as fault:  # an error in a step must not end the node
                if self._closing:
                    return
                self.get_logger().error(
                    printable_line(f"step failed: {type(fault).__name__}: {fault}"), throttle_duration_sec=1.0
                )
            finally:
                self._busy_since = None

    def _send(self, report: StepReport, surface: RoadSurface, restarts: int, step: PlanningStep | None = None) -> None:
        """Publish the plan first, everything that explains it afterwards."""
        start_s = time.perf_counter()
        points = plan_messages.plan_points(report.published, self.config, surface, report.ego)
        plan_bytes = plan_messages.trajectory_bytes(report.plan.stamp_ns, points, self.config.output.map_frame)
        # worker and watchdog both send: the messages that explain a plan are sent before the next plan
        with self._send_lock:
            newness = restarts, report.plan.stamp_ns
            if self._closing or newness < self._newest_sent:
                return  # the watchdog has sent a stop for this stamp: an older plan must not follow a newer stop
            self._newest_sent = newness
            self._publisher.publish("trajectory", plan_bytes)
            done = self._sent_at = time.perf_counter()
            arrived_s = start_s
            if step is not None:
                self._planned_at = done
                image_ns = step.snapshot.image_stamp_ns
                started_by = ("odometry", report.plan.stamp_ns) if image_ns is None else (self._anchor, image_ns)
                arrived_s = self._arrived.get(started_by, start_s)
            times_ms = 1e3 * (done - arrived_s), 1e3 * (done - start_s)
            self._publisher.explain(report, points, surface, step, *times_ms)

    # --- watchdog and diagnostics ------------------------------------------------------------------------------------

    def _check_watchdog(self) -> None:
        """Wake the worker when images of an instant are overdue, report why no plan is sent, and publish the stop plan
        after `engine.watchdog_ms` without one."""
        now_ns = self._now_ns()
        self._wake_if_due(now_ns)
        limit_s = 1e-3 * self.config.engine.watchdog_ms
        now, busy_since = time.perf_counter(), self._busy_since
        if now - self._planned_at <= min(OVERDUE_S, limit_s):
            return
        if busy_since is not None:
            reason = f"the planner has been busy for {now - busy_since:.2f} s"
        else:
            reason = self._core.problems(now_ns) or "no new image"
        if now - max(self._sent_at, self._reported_at) > OVERDUE_S:
            self._reported_at = now
            self._core.set_overdue(reason)
            self._publish_diagnostics()
        about_to_send = busy_since is not None and now - busy_since <= limit_s
        if now - self._planned_at <= limit_s or about_to_send or now - self._sent_at < HOLD_PERIOD_S:
            return
        restarts = self._core.inputs.store.restarts
        stop = self._core.stop(now_ns, reason)
        if stop is None:
            self.get_logger().warning(printable_line(f"nothing sent: {reason}"), throttle_duration_sec=5.0)
            return
        self._send(*stop, restarts)
        self.get_logger().warning(printable_line(f"stop sent: {reason}"), throttle_duration_sec=5.0)

    def _publish_diagnostics(self) -> None:
        statuses = [*self._core.statuses(self._now_ns()), *self._parameter_status]
        self._publisher.publish(
            "diagnostics", outputs.diagnostics(statuses, self._now_ns(), self.get_fully_qualified_name())
        )

    def _report_mismatches(self) -> None:
        """Warn of publishers on topics without messages whose type or QoS is incompatible with the subscription."""
        mismatches: list[str] = []
        for key in sorted(self._silent):
            subscription, expected_type = self._subscriptions_by_key[key], self._types_by_key[key]
            for publisher in self.get_publishers_info_by_topic(subscription.topic_name):
                compatibility, why = qos_check_compatible(publisher.qos_profile, subscription.qos_profile)
                who = f"{subscription.topic_name}: '{publisher.node_name}' sends"
                if publisher.topic_type != expected_type:
                    mismatches.append(f"{who} {publisher.topic_type}, expected {expected_type}")
                elif compatibility == QoSCompatibility.ERROR:
                    mismatches.append(f"{who}, but its QoS cannot reach us: {why}")
        if mismatches and mismatches != self._mismatches:
            self.get_logger().warning(printable_line("; ".join(mismatches)))
        self._mismatches = mismatches

    def destroy_node(self) -> None:
        self.close()
        super().destroy_node()

    def close(self) -> None:
        """Stop the worker; nothing is published after this returns."""
        with self._wake, self._send_lock:
            self._closing = True
            self._wake.notify_all()
        self._worker.join(timeout=1.0)


class FaultNode(Node):
    """In place of a planner that cannot start: publishes the reason as an ERROR of the status `planner`, and no plan.

    In a running stack it stays, because a process that ends and is started again looks like one that crashes.
    """

    def __init__(self, reason: str, context: Context | None = None) -> None:
        """`reason`: one sentence with what to change."""
        super().__init__("reflectdrive", context=context)
        self._status = InputStatus("planner", Level.ERROR, reason, {})
        (topic,) = (topic for topic in topics.OUTPUTS if topic.key == "diagnostics")
        self._publisher = self.create_publisher(message_class(topic.type), topic.name, qos_profile(topic.qos))
        self.create_timer(DIAGNOSTICS_PERIOD_S, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _publish(self) -> None:
        now_ns = int(self.get_clock().now().nanoseconds)
        self._publisher.publish(outputs.diagnostics([self._status], now_ns, self.get_fully_qualified_name()))


def start_node() -> PlannerNode | FaultNode:
    """The planner; if it cannot start, and the parameter `strict_start` is false, a node that reports why.

    With `strict_start` it raises as PlannerNode does.
    """
    try:
        return PlannerNode()
    except ParameterException:  # no node can be created
        raise
    except Exception as fault:
        expected = isinstance(fault, (ConfigError, ModelFileError))
        text = " ".join(str(fault).split())
        reason = text if expected else f"the start failed with {type(fault).__name__}: {text}"
        node = FaultNode(reason)
        if starts_strictly(node):
            node.destroy_node()
            raise
        text = printable_line(f"no plan is published: {reason}") if expected else printable(traceback.format_exc())
        node.get_logger().error(text)
        return node


def program() -> NoReturn:
    """`ros2 run reflectdrive planner [--ros-args -p config_file:=FILE -p SETTING:=VALUE ...]`

    Without Python's own shutdown, which restores the default handlers: a second Ctrl-C would end the process by signal.
    """
    os._exit(main())


def main(args: list[str] | None = None) -> int:
    """Runs the node until a signal ends it; returns the exit code."""
    return run_node(
        "planner",
        __doc__ or "",
        "Settings are ROS parameters: --ros-args -p config_file:=FILE -p planner:=route_follower -p "
        "guard.max_speed_mps:=15.0 ..; config/reflectdrive.yaml lists them all with their meaning. A setting or model "
        "that cannot be used ends the process with exit code 2; with -p strict_start:=false it stays and reports it as "
        "an ERROR in /diagnostics.",
        start_node,
        args,
    )


if __name__ == "__main__":
    program()
