"""The soak's arithmetic, and some seconds of it against the real node."""

import json
import os
import signal
import threading

import commands
import pytest

from reflectdrive_ros.bench import soak
from reflectdrive_ros.bench.soak import ProcessMonitor, settled_growth


def test_a_leak_is_growth_after_things_have_settled():
    assert settled_growth([5, *[20] * 99]) == 0
    assert settled_growth([20, 21] * 50) == 0
    assert settled_growth([20 + k // 10 for k in range(100)]) == 8


def watched(memory, descriptors=(20,) * 100, late=0):
    monitor = ProcessMonitor()
    monitor.memory_mb, monitor.descriptors, monitor.threads = list(memory), list(descriptors), [9] * 100
    monitor.total_ms, monitor.late = [10.0] * 1000, late
    return monitor.numbers()


def test_each_limit_is_seen():
    assert watched([100.0] * 100)["met"]
    assert not watched([100.0 + 0.1 * k for k in range(100)])["limits_met"]["memory_growth_percent"]
    assert not watched([100.0] * 100, range(100))["limits_met"]["descriptors_leaked"]
    assert not watched([100.0] * 100, late=5)["limits_met"]["late_share"]


@pytest.mark.long
@pytest.mark.dds
def test_a_signal_ends_the_drive_with_the_numbers_until_then(tmp_path):
    file = tmp_path / "soak.json"
    words = ("--planner", "route_follower", "--setting", "cameras.required=false", "--json", file)
    interrupt = threading.Timer(12.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        assert commands.run(soak, *words) in (0, 1)  # so short a drive need not have settled
    finally:
        interrupt.cancel()
    numbers = json.loads(file.read_text())
    assert 0.0 < numbers["minutes"] < soak.MINUTES
    assert numbers["plans"] > 10
    assert numbers["descriptors_leaked"] <= 0
