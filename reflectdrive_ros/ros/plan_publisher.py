"""The publishers of the node: a plan first, then everything that explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rclpy.node import Node, PublisherEventCallbacks, SubscriptionEventCallbacks  # of qos_event in Humble
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from ..core.config import Config
from ..core.domain import Array, StepReport
from ..maps.elevation import RoadSurface
from . import outputs, plan_messages, topics
from .inputs.control import Signal, TurnSignal
from .inputs.route import bend_ahead
from .planning_core import PlanningStep
from .topics import message_class


def qos_profile(qos: topics.Qos) -> QoSProfile:
    reliability, durability, depth = qos.value
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy[reliability.upper()],
        durability=DurabilityPolicy[durability.upper()],
    )


def publishers(node: Node, outputs_of_node: Iterable[topics.Topic]) -> dict[str, Any]:
    """A publisher for each topic, by its key."""
    return {
        topic.key: node.create_publisher(
            message_class(topic.type),
            topic.name,
            qos_profile(topic.qos),
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
        )
        for topic in outputs_of_node
    }


def subscribe(node: Node, topic: topics.Topic, callback: Callable[[bytes], None]) -> Any:
    """A subscription to a topic's serialised messages: rclpy deserialises with the GIL held, and an error there would
    end the node."""
    return node.create_subscription(
        message_class(topic.type),
        topic.name,
        callback,
        qos_profile(topic.qos),
        # rclpy polls every event handler at every message, which costs more than the messages themselves
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        raw=True,
    )


class PlanPublisher:
    """Not safe for threads: the caller sends one plan at a time."""

    def __init__(self, node: Node, config: Config, model_sha256: str) -> None:
        self._config, self._model_sha256 = config, model_sha256
        self._node_name = node.get_fully_qualified_name()
        self._sequence = 0
        self._turn_signal = TurnSignal()
        self._signal: Signal | None = None  # commanded with the last plan
        self._by_key = publishers(node, topics.OUTPUTS)

    def publish(self, key: str, message: Any) -> None:
        """`message`: a message of the topic with this key, or its serialised bytes."""
        self._by_key[key].publish(message)

    def _has_subscribers(self, key: str) -> bool:
        return int(self._by_key[key].get_subscription_count()) > 0

    def explain(
        self,
        report: StepReport,
        points: Array,
        surface: RoadSurface,
        step: PlanningStep | None,
        total_ms: float,
        publish_ms: float,
    ) -> None:
        """Publish the status of a plan that was sent, and what else is subscribed to: candidates, turn signal, planning
        factors, debug topics.

        `points`: its (T,) published points. `step`: None for a stop of the watchdog, which keeps the turn signal.
        """
        self._sequence += 1
        plan = report.plan
        image_ns = None
        stages = {**report.timings_ms, "publish": publish_ms, "overall": total_ms}
        if step is not None:
            image_ns, stages = step.snapshot.image_stamp_ns, {**step.timings_ms, **stages}
            observation = step.snapshot.observation
            bend_rad = None if observation is None else bend_ahead(observation.route)
            self._signal = self._turn_signal.update(bend_rad, step.snapshot.control, plan.stamp_ns * 1e-9)
        age_s = float("nan") if image_ns is None else (plan.stamp_ns - image_ns) * 1e-9
        status = plan_messages.status(report, self._config, self._model_sha256, self._sequence, age_s, total_ms)
        self.publish("status", plan_messages.status_bytes(status, plan.stamp_ns, self._config.output.map_frame))
        node = self._node_name
        message_factories: dict[str, Callable[[], Any]] = {
            "processing_time": lambda: outputs.processing_time(plan.stamp_ns, total_ms),
            "candidates": lambda: outputs.candidates(
                report.published, points, self._signal, self._config, node, surface, report.ego
            ),
            "turn_indicators": lambda: outputs.turn_indicators(self._signal, plan.stamp_ns),
            "planning_factors": lambda: outputs.planning_factors(report, self._config, surface),
            "path": lambda: outputs.path(outputs.trajectory(plan, self._config, points)),
            "markers": lambda: outputs.markers(report, outputs.trajectory(plan, self._config, points), self._config),
            "debug": lambda: outputs.debug(report, self._config, {} if step is None else stages),
            "goals": lambda: outputs.goals(plan, self._config),
        }
        if step is not None:
            tracked, forecast = step.snapshot.tracked, report.forecast
            frame, signal = self._config.output.map_frame, step.snapshot.signal_ahead
            message_factories["traffic_signal"] = lambda: outputs.traffic_signal(signal)
            if tracked is not None and forecast is not None:
                message_factories["predicted_objects"] = lambda: outputs.predicted_objects(
                    tracked, forecast, plan.map_from_ego, plan.stamp_ns, frame
                )
            message_factories["processing_time_detail"] = lambda: outputs.processing_time_tree(stages)
        for key, make in message_factories.items():
            if self._has_subscribers(key):
                self.publish(key, make())
