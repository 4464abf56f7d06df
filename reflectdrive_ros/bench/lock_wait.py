"""How long a thread that decodes an image waits to get the interpreter's lock back while the node plans.

    waits_ms = lock_waits_ms(config, messages, 5.0)

OpenCV releases the lock while it decodes. The thread that holds it at the end is asked to give it up after
`SWITCH_INTERVAL_S`, and does so between two bytecodes: one long call into C delays it. Here one thread plans from a
recording's images without pause, as many as it can; another decodes an image every few milliseconds. What is neither
its processor time nor time in which it queued for a processor is time that it slept until the lock was free. On a
machine with other load that includes the time for which the lock's holder queued.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ..core.config import Config
from ..ros import image_decoding, outputs
from ..ros.node import SWITCH_INTERVAL_S
from ..ros.planning_core import PlanningCore

PROBE_PERIOD_S = 0.003
STEP_NS = 100_000_000


def lock_waits_ms(config: Config, messages: dict[str, list[Any]], seconds: float) -> list[float]:
    """`messages` by input key, as `bench.node.messages_by_key` has them; the images as JPEG."""
    core = PlanningCore(config, time.perf_counter)
    stop, before = threading.Event(), sys.getswitchinterval()
    planner = threading.Thread(target=_plan_without_pause, args=(core, messages, stop), name="planner")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()  # as the node does: objects of the start-up are not scanned again
    planner.start()
    try:
        waits_ms = list[float]()
        image = next(choices[0] for key, choices in messages.items() if key.startswith("image:"))
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            time.sleep(PROBE_PERIOD_S)
            waits_ms.append(_wait_for_lock_ms(image))
    finally:
        stop.set()
        planner.join()
        sys.setswitchinterval(before)
        gc.unfreeze()
    return waits_ms


def _wait_for_lock_ms(image: Any) -> float:
    """Decodes an image; ms for which this thread slept meanwhile."""
    queued_ns, used, begun = _queued_ns(), time.thread_time(), time.perf_counter()
    image_decoding.jpeg_pixels(image, "probe")
    slept = (time.perf_counter() - begun) - (time.thread_time() - used)
    return max(1e3 * slept - 1e-6 * (_queued_ns() - queued_ns), 0.0)


def _queued_ns() -> int:
    """Time for which this thread was ready to run and others had its processor."""
    return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])


def _plan_without_pause(core: PlanningCore, messages: dict[str, list[Any]], stop: threading.Event) -> None:
    now_ns, count = time.time_ns(), 0
    while not stop.is_set():
        now_ns, count = now_ns + STEP_NS, count + 1
        for key, choices in messages.items():
            message = choices[count % len(choices)]
            if hasattr(message, "header"):
                message.header.stamp = outputs.time_message(now_ns)
            core.put(key, message, now_ns)
        core.step(now_ns)
