"""The check node: checks, repairs and scores the candidates of other planners.

It has the inputs of the planner node without its cameras, and no network. One thread stores the inputs and checks each
message of candidates as it arrives; of those that arrive meanwhile the newest is next.
"""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

from rclpy.clock import Clock, ClockType
from rclpy.context import Context
from rclpy.node import Node

from . import outputs, topics
from .check_core import CheckCore, CheckStep
from .node_process import run_node
from .params import declare_config
from .plan_publisher import publishers, subscribe

NODE = "reflectdrive_check"
LATEST_DIAGNOSTICS_S = 0.15  # at most so long without diagnostics


class CheckNode(Node):
    def __init__(self, context: Context | None = None) -> None:
        """Raises ConfigError: one sentence with what to change; ParameterException for a parameter of ROS itself."""
        super().__init__(NODE, context=context)
        try:
            config, parameter_status = declare_config(self)
            self._core = CheckCore(config, time.perf_counter, has_signal=outputs.HAS_TURN_INDICATOR)
        except BaseException:  # also Ctrl-C: no node of this name may stay in the graph
            self.destroy_node()
            raise
        self._parameter_status = [] if parameter_status is None else [parameter_status]
        self._name = self.get_fully_qualified_name()
        self._diagnosed_s = 0.0
        self._by_key = publishers(self, topics.CHECK_OUTPUTS)
        self._inputs = [
            subscribe(self, topic, self._store_callback(topic.key))
            for topic in topics.check_inputs(self._core.config)
            if topic.required or topics.is_installed(topic.type)
        ]
        self._inputs.append(subscribe(self, topics.CHECK_CANDIDATES, self._check))
        self.create_timer(
            LATEST_DIAGNOSTICS_S, self._publish_late_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _store_callback(self, key: str) -> Any:
        return lambda content: self._core.receive(key, content, self._now_ns())

    def _check(self, content: bytes) -> None:
        start_s = time.perf_counter()
        step = self._core.check(content, self._now_ns())
        if step is not None:
            self._by_key["trajectories"].publish(step.trajectories)
            if step.trajectory is not None:
                self._by_key["trajectory"].publish(step.trajectory)
            self._explain(step, 1e3 * (time.perf_counter() - start_s))
        self._publish_diagnostics()

    def _explain(self, step: CheckStep, took_ms: float) -> None:
        self._by_key["scored_trajectories"].publish(step.scored_trajectories)
        self._by_key["processing_time"].publish(outputs.processing_time(step.stamp_ns, took_ms))
        if step.report is not None and step.surface is not None:
            factors = outputs.planning_factors(step.report, self._core.config, step.surface)
            self._by_key["planning_factors"].publish(factors)

    def _publish_late_diagnostics(self) -> None:
        if time.perf_counter() - self._diagnosed_s >= LATEST_DIAGNOSTICS_S:
            self._publish_diagnostics()

    def _publish_diagnostics(self) -> None:
        self._diagnosed_s, now_ns = time.perf_counter(), self._now_ns()
        statuses = [*self._core.statuses(now_ns), *self._parameter_status]
        self._by_key["diagnostics"].publish(outputs.diagnostics(statuses, now_ns, self._name))


def program() -> NoReturn:
    """`ros2 run reflectdrive check [--ros-args -p config_file:=FILE -p SETTING:=VALUE ...]`

    Without Python's own shutdown, which restores the default handlers: a second Ctrl-C would end the process by signal.
    """
    os._exit(main())


def main(args: list[str] | None = None) -> int:
    """Runs the node until a signal ends it; returns the exit code."""
    return run_node(
        "check",
        __doc__ or "",
        "Settings are ROS parameters: --ros-args -p config_file:=FILE -p inputs.route_type:=lanelet ..; "
        "config/reflectdrive.yaml lists them all with their meaning. A setting that cannot be used ends the process "
        "with exit code 2.",
        CheckNode,
        args,
    )


if __name__ == "__main__":
    program()
