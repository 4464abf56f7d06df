"""The node in its own process, and a car that sends it over real DDS what a car sends and looks at what comes back."""

import time
from contextlib import contextmanager

import pytest
from messages import CAMERAS, acceleration, camera_info, jpeg, odometry, predicted_objects, route, tf_static
from scenes import config

from reflectdrive_ros.replay.node import Harness
from reflectdrive_ros.ros import outputs, topics
from reflectdrive_ros.ros.processes import running_node

OK, WARN, ERROR = b"\x00", b"\x01", b"\x02"
EVERYTHING = ("trajectory", "status", "candidates", "turn_indicators", "diagnostics", "processing_time")


class Car:
    """Our side: sends what a car sends, stamped with the node's wall clock, and looks at what comes back."""

    def __init__(self, harness, process, route_message=None):
        """`route_message`: None for a straight one."""
        self.harness, self.process = harness, process
        self.route = route_message or route([(float(x), 0.0) for x in range(-20, 350)])
        self.tick = 0
        self.sent_s = None
        self.left_out = 0  # times at which we should have sent and did not

    def now_s(self):
        return self.harness.node.get_clock().now().nanoseconds * 1e-9

    def latch(self):
        self.harness.inputs["route"].publish(self.route)
        self.harness.inputs["tf_static"].publish(tf_static())

    def send(self, cameras=CAMERAS, ego=None, objects=True, shade=None, make=jpeg):
        self.tick += 1
        now = self.now_s()
        self.left_out += round((now - (self.sent_s or now - 0.1)) / 0.1) - 1
        self.sent_s = now
        inputs = self.harness.inputs
        ego = {} if ego is None else ego
        inputs["odometry"].publish(odometry(now, **{"x": 0.5 * self.tick, **ego}))
        inputs["acceleration"].publish(acceleration(now))
        if objects:
            inputs["objects"].publish(predicted_objects(now, (400.0, 0.0, 0.0, 5.0, 4.5)))
        for camera in cameras:
            info = camera_info(camera)
            info.header.stamp = outputs.time_message(round(now * 1e9))
            inputs[f"info:{camera}"].publish(info)
            inputs[f"image:{camera}"].publish(make(now, camera, self.tick if shade is None else shade))

    def drive(self, seconds, **what):
        """Send at 10 Hz; returns the plans' statuses that came meanwhile."""
        before = len(self.harness.received["status"])
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.send(**what)
            time.sleep(0.1)
        return [message for _, message in self.harness.received["status"][before:]]

    def until(self, fits, timeout_s=15.0, **what):
        """Keep driving until a status fits; returns it."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            for message in self.drive(0.3, **what):
                if fits(message):
                    return message
        pytest.fail(f"no such status within {timeout_s} s; last: {self.harness.received['status'][-1:]}")

    def diagnosed(self, fits, timeout_s=15.0, **what):
        """Keep driving until the diagnostics' lines fit; returns them."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            self.drive(0.3, **what)
            if self.harness.received["diagnostics"] and fits(lines := self.diagnostics()):
                return lines
        pytest.fail(f"no such diagnostics within {timeout_s} s; last: {self.diagnostics()}")

    def diagnostics(self):
        """name -> (level, message) of the newest diagnostics."""
        newest = self.harness.received["diagnostics"][-1][1]
        return {status.name.partition(": ")[2]: (status.level, status.message) for status in newest.status}


@contextmanager
def car(tmp_path, output_keys=EVERYTHING, route_message=None, **settings):
    config = patient(**settings)
    keys = [*(f"{kind}:{name}" for kind in ("image", "info") for name in CAMERAS), *OTHERS]
    read = {topic.key for topic in topics.inputs(config) if topics.is_installed(topic.type)}
    harness = Harness(config, [key for key in keys if key in read], output_keys)
    try:
        with running_node(config, {}, tmp_path / "node.log", sim_time=False) as process:
            harness.wait_for_node(process, tmp_path / "node.log")
            sender = Car(harness, process, route_message)
            sender.latch()
            yield sender
    finally:
        harness.close()


LATCHED = ("route", "tf_static", "odometry", "acceleration", "objects", "instruction")
OTHERS = (*LATCHED, "map", "operation_mode", "turn_indicators_status")


def planned(status):
    return status.source == status.SOURCE_PLANNER


def stopped(status):
    return status.source == status.SOURCE_STOP


def patient(**settings):
    """Small cameras, and time enough for a busy machine."""
    return config(
        **{"cameras__width": 64, "cameras__height": 36, "planner": "constant_velocity", **settings},
        engine__watchdog_ms=400.0,
        engine__deadline_ms=2000.0,  # shared machines stall; lateness has its own tests
    )
