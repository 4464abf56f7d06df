"""A drive that faults happen to: the real node in a process of its own, a car that sends, and what came back.

Time is the machine's own, or (`sim_time`) comes from here on /clock and can be stopped and moved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from messages import route
from scenes import config
from sender import GROUPS, IMAGES, INFOS, SENDING, TICK_S, Sender, camera_mounts

from reflectdrive_ros.core.config import as_yaml
from reflectdrive_ros.replay.node import Harness
from reflectdrive_ros.ros.processes import stop_process

HERE = Path(__file__).parent
REAL_NODE = ("-m", "reflectdrive_ros.ros.node")
FAULTY_NODE = (str(HERE / "faulty_node.py"),)
KEYS = [*IMAGES, *INFOS, "odometry", "acceleration", "objects", "route", "tf_static", "instruction", "lights", "map"]
KEYS += ["max_velocity", "operation_mode"]
HEARD = ("trajectory", "status", "diagnostics")
CLOCK_PERIOD_S = 0.01
HELD_UP_S = 3 * TICK_S  # a tick of the sender that comes later than this was held up
START_S = 60.0


class SimClock:
    """Simulated seconds that run with ours until they are paused or moved."""

    def __init__(self) -> None:
        self._run_s, self._since, self.running = 0.0, time.monotonic(), True
        self._begin_s = 1000.0

    def run_s(self) -> float:
        """For how long it has run, jumps left out."""
        return self._run_s + (time.monotonic() - self._since if self.running else 0.0)

    def now_s(self) -> float:
        return self._begin_s + self.run_s()

    def pause(self) -> None:
        self._run_s, self.running = self.run_s(), False

    def resume(self) -> None:
        self._since, self.running = time.monotonic(), True

    def jump(self, seconds: float) -> None:
        self._begin_s += seconds


class Drive:
    """The node's process, the car's sender, everything that was heard."""

    def __init__(self, folder: Path, settings: dict, case) -> None:
        self.config = config(**settings)
        self.folder, self.log = folder, folder / "node.log"
        self.harness = Harness(self.config, KEYS, HEARD)
        self.clock = SimClock() if case.sim_time else None
        self.origin_s = time.monotonic()
        self.process: subprocess.Popen | None = None
        self.sensors: dict[str, subprocess.Popen] = {}
        self.others: list[subprocess.Popen] = []  # whatever a fault starts; ended with the drive
        self.stamp_shift_s = 0.0
        self._closing = threading.Event()
        self._words = [sys.executable, *case.node, "--ros-args", "-p", f"config_file:={folder / 'config.yaml'}"]
        self._words += ["-p", f"use_sim_time:={str(case.sim_time).lower()}"]
        (folder / "config.yaml").write_text(as_yaml(self.config))
        elsewhere = {key for group in case.own_processes for key in GROUPS[group]}
        sent = set(self.harness.inputs) - elsewhere  # without lights where the settings read none
        self.sender = Sender(self.harness.inputs, self.now_s, self.driven_s, sent)
        if self.clock is not None:
            threading.Thread(target=self._tell_time, daemon=True).start()
        for group in case.own_processes:
            self.start_sensors(group)

    def now_s(self) -> float:
        if self.clock is not None:
            return self.clock.now_s() + self.stamp_shift_s
        return self.harness.node.get_clock().now().nanoseconds * 1e-9 + self.stamp_shift_s

    def driven_s(self) -> float:
        return self.clock.run_s() if self.clock is not None else time.monotonic() - self.origin_s

    def where(self, stamp_s: float, at: float) -> tuple[float, float, float]:
        """Where the car was (x m, y m) when its clock showed `stamp_s`, and how many s before `at` (perf_counter)."""
        moments, stamps, positions_m, left = np.array(self.sender.positions).T
        earlier = np.flatnonzero(moments <= at)
        nearest = earlier[np.argmin(np.abs(stamps[earlier] - stamp_s))]
        return float(positions_m[nearest]), float(left[nearest]), float(at - moments[nearest])

    def stood_still_s(self, begin: float, end: float) -> float:
        """For how long, between two moments (perf_counter), this process itself was held up and could hear nobody."""
        moments = np.array([at for at, *_ in self.sender.positions if begin <= at <= end])
        return float(np.maximum(np.diff([begin, *moments, end]) - HELD_UP_S, 0.0).sum())

    def _tell_time(self) -> None:
        while not self._closing.is_set():
            if self.clock.running:
                self.harness.publish_clock(round(self.clock.now_s() * 1e9))
            time.sleep(CLOCK_PERIOD_S)

    def start(self) -> None:
        """The node, until it runs, hears us, and we hear it. (Of one that was killed, DDS believes for a while that it
        lives: everything must be heard once more than before.)"""
        believed = {key: publisher.get_subscription_count() for key, publisher in self.harness.inputs.items()}
        before = self.log.stat().st_size if self.log.exists() else 0
        self.process = self.launch()
        until = time.perf_counter() + START_S
        while f"planner {self.config.planner}" not in self.log.read_text()[before:]:
            assert self.process.poll() is None, f"the node did not start: {self.log.read_text()[-300:]}"
            assert time.perf_counter() < until, "the node did not start"
            time.sleep(0.05)
        self.harness.wait_for_node(self.process, self.log)
        while any(self.harness.inputs[key].get_subscription_count() <= count for key, count in believed.items()):
            assert time.perf_counter() < until, "the middleware did not connect the node"
            time.sleep(0.01)
        self.latch()

    def launch(self, *arguments: str, namespace: str = "/planning/reflectdrive") -> subprocess.Popen:
        """A process of the node, with these ROS arguments after its own."""
        with self.log.open("a", encoding="utf-8") as output:
            words = [*self._words, "-r", f"__ns:={namespace}", *arguments]
            return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)

    def wait_for(self, true: Callable[[], bool], what: str, log: Path | None = None) -> None:
        until = time.perf_counter() + START_S
        while not true():
            assert time.perf_counter() < until, f"{what}: {(log or self.log).read_text()[-300:]}"
            time.sleep(0.02)

    def latch(self, own_route: object | None = None) -> None:
        self.harness.inputs["tf_static"].publish(camera_mounts())
        default = [(float(x), 0.0) for x in range(-20, 1900)]
        self.harness.inputs["route"].publish(own_route or route(default))

    def start_sensors(self, group: str) -> None:
        """A group of sensors in a process of its own, until it sends and, where there is a node, is heard."""
        start_condition = "alone" if self.process is None else "heard"
        words = [sys.executable, str(HERE / "sender.py"), group, str(self.origin_s), start_condition]
        path = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
        log = self.folder / f"{group}.log"
        with log.open("a") as output:
            before = output.tell()
            self.sensors[group] = subprocess.Popen(
                words, env={**os.environ, "PYTHONPATH": path}, stdout=output, stderr=subprocess.STDOUT
            )
        self.wait_for(lambda: SENDING in log.read_text()[before:], f"{group} did not start", log)

    def kill(self, process: subprocess.Popen) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def planned_since(self, start_s: float) -> float | None:
        """When the first plan of the planner's own came after a moment (perf_counter)."""
        for at, status in self.harness.received["status"]:
            if at >= start_s and status.source == status.SOURCE_PLANNER and status.verdict == status.VERDICT_OK:
                return at
        return None

    def wait_until_planned(self, start_s: float, timeout_s: float) -> float | None:
        until = time.perf_counter() + timeout_s
        while time.perf_counter() < until:
            at = self.planned_since(start_s)
            if at is not None or self.process.poll() is not None:
                return at
            time.sleep(0.01)
        return None

    def close(self) -> None:
        self._closing.set()
        self.sender.close()
        for process in [*self.sensors.values(), *self.others]:
            stop_process(process, patience_s=1.0)
        if self.process is not None:
            stop_process(self.process)
        self.harness.close()


@contextmanager
def driving(folder: Path, settings: dict, case) -> Iterator[Drive]:
    """A drive under way: plans are coming. Raises AssertionError when none come."""
    drive = Drive(folder, settings, case)
    try:
        drive.start()
        assert drive.wait_until_planned(time.perf_counter(), START_S), f"no plan came: {drive.log.read_text()[-2000:]}"
        yield drive
    finally:
        drive.close()
