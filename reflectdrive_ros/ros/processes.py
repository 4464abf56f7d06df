"""Runs the planner node in its own process: environment, start and end, and its topic names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile

from ..core.config import Config, as_yaml
from ..infra.signals import Stopped, child_environment, defer_signals
from . import topics
from .bag import BagError
from .plan_publisher import qos_profile
from .system_checks import shipped_file
from .topics import NODE_NAME

SENDER_DEPTH = 10
MATCH_TIMEOUT_S = 120.0  # a loaded machine may take half a minute to start a process; one that ends is noticed at once


def dds_profile() -> Path | None:
    """The shipped DDS profile: from the installed share folder, or from the source tree."""
    file = shipped_file("fastdds.xml", os.environ)
    return file if file.is_file() else None


def isolated_environment() -> dict[str, str]:
    """Environment for processes that communicate among themselves only: own domain, this machine, the shipped DDS
    profile.

    Variables that are already set are kept, so that a user may direct the replay to another domain.
    """
    environment = dict(os.environ)
    environment.setdefault("ROS_DOMAIN_ID", str(os.getpid() % 100 + 1))
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if environment.get("ROS_DISTRO") == "humble":  # without the variable above; later releases warn of this one
        environment.setdefault("ROS_LOCALHOST_ONLY", "1")
    profile_file = dds_profile()
    if profile_file is not None:
        environment.setdefault("FASTRTPS_DEFAULT_PROFILES_FILE", str(profile_file))
    return environment


@contextmanager
def running_node(
    config: Config, remaps: dict[str, str], log: Path, sim_time: bool = True, module: str = "node"
) -> Iterator[subprocess.Popen]:
    """The planner node in its own process, under its usual namespace; ended on leaving, killed if it will not end.

    `remaps`: private topic name -> the name to use instead. `module`: of this room; that of another node.
    """
    with tempfile.TemporaryDirectory() as folder, log.open("w", encoding="utf-8") as output:
        file = Path(folder) / "config.yaml"
        file.write_text(as_yaml(config), encoding="utf-8")
        command = [sys.executable, "-m", f"reflectdrive_ros.ros.{module}", "--ros-args"]
        command += ["-p", f"config_file:={file}", "-p", f"use_sim_time:={str(sim_time).lower()}"]
        for own, name in {"__ns": "/planning/reflectdrive", **remaps}.items():
            command += ["-r", f"{own}:={name}"]
        process = None
        try:
            with defer_signals() as request:  # one that came between start and assignment would leave the node behind
                process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=child_environment()
                )
            if request.number is not None:
                raise Stopped(request.number)
            yield process
        finally:
            if process is not None:
                stop_process(process)


def wait_for_planner(process: subprocess.Popen, log: Path, node: Node, inputs: Iterable[Publisher]) -> None:
    """Waits until the planner of `process`, whose output is in `log`, subscribes to all `inputs`, and its trajectory is
    there for `node`. Raises BagError, with its last line of output if it ends."""
    until, publishers = time.perf_counter() + MATCH_TIMEOUT_S, list(inputs)
    while time.perf_counter() < until:
        require_running(process, log)
        has_trajectory = node.count_publishers(full_topic_name("~/output/trajectory")) > 0
        if has_trajectory and all(publisher.get_subscription_count() > 0 for publisher in publishers):
            return
        time.sleep(0.05)
    raise BagError(f"the node did not connect within {MATCH_TIMEOUT_S:.0f} s: is another DDS profile in use?")


def require_running(process: subprocess.Popen, log: Path) -> None:
    """Raises BagError with a process's last line of output if it has ended."""
    if process.poll() is not None:
        last = (log.read_text(encoding="utf-8").strip().splitlines() or ["no output"])[-1]
        raise BagError(f"the node ended with code {process.returncode}: {last}")


def stop_process(process: subprocess.Popen, patience_s: float = 3.0) -> int:
    """Interrupts a process that has its own session, then kills that session; returns its exit code."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    finally:  # also where a second signal breaks off the waiting
        process.kill()
        with suppress(ProcessLookupError):  # all that it began have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def sender_qos(qos: topics.Qos) -> QoSProfile:
    """The node's QoS with the depth of a recorder or driver, which is the sender's choice."""
    profile = qos_profile(qos)
    profile.depth = max(profile.depth, SENDER_DEPTH)
    return profile


def full_topic_name(name: str) -> str:
    """The full name of one of the node's private topics."""
    return name.replace("~", NODE_NAME)
