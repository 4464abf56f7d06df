"""`reflectdrive bench node`: time that the node adds to the planner's own, lost images, and memory growth.

This process sends the recording's images at 10 Hz over DDS to the node in its own process. Overhead is the time from
the front image's arrival to the trajectory's publication, minus the planner's time. The node measures it with its own
clock, so it does not depend on the punctuality of this process. The bound is the decoding time of the three images on
one thread, which every node that uses images needs. `cpu_ms_per_plan` is the processor time of all threads of the node.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError, override_dotted
from ..demo.recordings import RECORDING, open_recording
from ..infra import arguments
from ..infra.command import command, make_list
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..replay.node import Harness
from ..ros import image_decoding, outputs
from ..ros.processes import running_node
from ..ros.topics import message_class

PERIOD_S = 0.1
WARM_UP_S = 3.0
SETTLE_S = 0.5  # time for the last outputs and diagnostics to arrive
RAW_SIZE = (1920, 1080)
KEY_BY_SUFFIX = {
    "kinematic_state": "odometry",
    "localization/acceleration": "acceleration",
    "reflectdrive/route": "route",
    "recognition/objects": "objects",
    "tf_static": "tf_static",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=arguments.positive_int(1000), default=5, help="runs to take medians over")
    parser.add_argument("--seconds", type=arguments.duration(1.0, 3600.0), default=60.0, help="length of a run")
    parser.add_argument("--planner", default="constant_velocity", help="recipe")
    parser.add_argument("--objects", action="store_true", help="also send the recording's road users")
    parser.add_argument("--raw", action="store_true", help="three raw 1920x1080 streams instead of 640x360 JPEG")
    parser.add_argument("--recording", type=Path, default=RECORDING, help="images to send")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    config = node_config(args)
    messages = messages_by_key(args.recording, args.raw)
    runs = [one_run(args, config, messages, errors, number) for number in range(args.runs)]
    numbers = figures(runs, messages, args, config)
    write_numbers(args.json, numbers)
    console.print(table(numbers))


def messages_by_key(recording: Path, raw: bool) -> dict[str, list[Any]]:
    """The recording's messages by input key, in order; images blown up to raw Full HD on request."""
    messages: dict[str, list[Any]] = {}
    for item in open_recording(recording).messages():
        parts = item.topic.split("/")
        key = next((key for suffix, key in KEY_BY_SUFFIX.items() if item.topic.endswith(suffix)), "")
        if "camera" in parts:
            key = f"{'image' if 'image' in parts else 'info'}:{parts[parts.index('camera') + 1]}"
        if key:
            messages.setdefault(key, []).append(item.message)
    if raw:
        for key in [key for key in messages if key.startswith("image:")]:
            # 50 MB for each camera are enough
            messages[key] = [upscale_to_full_hd(message) for message in messages[key][:8]]
    return messages


def upscale_to_full_hd(message: Any) -> Any:
    """A compressed image as the raw sensor_msgs/Image of RAW_SIZE of a camera driver."""
    pixels = cv2.resize(image_decoding.jpeg_pixels(message, "bench"), RAW_SIZE)
    width, height = RAW_SIZE
    image = message_class("sensor_msgs/msg/Image")
    raw = image(header=message.header, width=width, height=height, encoding="rgb8", step=3 * width)
    raw.data.frombytes(pixels.tobytes())
    return raw


def node_config(args: argparse.Namespace) -> Config:
    """The node's settings. Raises ConfigError, also for a setting that an option of this bench determines."""
    by_option = {
        "planner": args.planner,
        "cameras.compressed": not args.raw,
        "inputs.objects_type": "predicted" if args.objects else "none",
    }
    values = arguments.settings_of(args.settings)
    if clash := [name for name in by_option if name in values]:
        raise ConfigError(f"--setting {clash[0]} has no effect here: use --planner, --raw and --objects")
    config: Config = override_dotted(Config(), {**values, **by_option})
    return config


def inputs_sent(messages: dict[str, list[Any]], args: argparse.Namespace) -> list[str]:
    return [key for key in messages if key != "objects" or args.objects]


def one_run(
    args: argparse.Namespace, config: Config, messages: dict[str, list[Any]], errors: Console, number: int
) -> dict[str, Any]:
    """One run of the node: overheads, frames sent and answered, memory."""
    keys = inputs_sent(messages, args)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "node.log"
        harness = Harness(config, keys, subscribed_keys=("trajectory", "status", "diagnostics"))
        try:
            with running_node(config, {}, log, sim_time=False) as process:
                harness.wait_for_node(process, log)
                for key in ("route", "tf_static"):
                    harness.inputs[key].publish(messages[key][0])
                send(WARM_UP_S, messages, harness, process.pid)
                time.sleep(SETTLE_S)
                before = len(harness.received["status"]), images_received(harness)
                title = f"run {number + 1} of {args.runs}"
                used_s = processor_s(process.pid)
                memory = send(args.seconds, messages, harness, process.pid, errors, title)
                time.sleep(SETTLE_S)
                used_s = processor_s(process.pid) - used_s
        finally:
            harness.close()
    statuses = [message for _, message in harness.received["status"]][before[0] :]
    planned = [s for s in statuses if s.source == s.SOURCE_PLANNER]
    frames = round(args.seconds / PERIOD_S)
    arrived = images_received(harness) - before[1]
    return {
        "overhead_ms": [s.time_received_to_published - s.time_planner for s in planned],
        "frames_sent": frames,
        "plans": len(planned),
        "images_lost": frames * len(config.cameras.names) - arrived,
        "cpu_ms_per_plan": 1e3 * used_s / max(len(planned), 1),
        "memory_mb": memory,
    }


def images_received(harness: Harness) -> int:
    """Received images over all cameras, from the node's diagnostics."""
    last = harness.received["diagnostics"][-1][1]
    lines = [status for status in last.status if ": image" in status.name]
    return sum(int(value.value) for status in lines for value in status.values if value.key == "received")


def send(
    seconds: float,
    messages: dict[str, list[Any]],
    harness: Harness,
    pid: int,
    errors: Console | None = None,
    title: str = "",
) -> list[float]:
    """Send images at 10 Hz and odometry at 50 Hz, stamped now; returns the node's memory (MB) once a second."""
    memory, ticks = [], range(round(seconds / PERIOD_S))
    began = time.perf_counter()
    for tick in ticks if errors is None else track_progress(ticks, title, errors):
        images = [key for key in harness.inputs if key.startswith(("image", "info"))]
        others = [key for key in ("acceleration", "objects") if key in harness.inputs]
        for fifth in range(5):
            ahead = began + (tick + 0.2 * fifth) * PERIOD_S - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            elif ahead < -0.5 * PERIOD_S:
                began -= ahead  # this process was delayed: a camera would not send two images at once to catch up
            stamp = outputs.time_message(int(harness.node.get_clock().now().nanoseconds))
            for key in ["odometry", *([*others, *images] if fifth == 0 else [])]:
                choices = messages[key]
                message = choices[tick % len(choices)]
                message.header.stamp = stamp
                harness.inputs[key].publish(message)
        if tick % 10 == 0:
            memory.append(resident_mb(pid))
    return memory


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return float(line.split()[1]) / 1024.0
    return float("nan")


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(
    runs: list[dict[str, Any]], messages: dict[str, list[Any]], args: argparse.Namespace, config: Config
) -> dict[str, Any]:
    p50 = [float(np.percentile(r["overhead_ms"], 50)) for r in runs]
    p99 = [float(np.percentile(r["overhead_ms"], 99)) for r in runs]
    growth = [growth_percent(r["memory_mb"]) for r in runs]
    images = [messages[key][0] for key in messages if key.startswith("image:")]
    return {
        "overhead_ms_p50": median(p50),
        "overhead_ms_p99": median(p99),
        "overhead_ms_p50_runs": p50,
        "overhead_ms_p99_runs": p99,
        "bound_decode_ms": decode_ms(images, config),
        "cpu_ms_per_plan": median(r["cpu_ms_per_plan"] for r in runs),
        "bytes_per_instant": sum(len(image.data) for image in images),
        "frames_sent": [r["frames_sent"] for r in runs],
        "plans": [r["plans"] for r in runs],
        "images_lost": [r["images_lost"] for r in runs],
        "memory_mb": [r["memory_mb"][-1] for r in runs],
        "memory_growth_percent": growth,
        "runs": len(runs),
        "seconds": args.seconds,
        "planner": args.planner,
        "images": "raw 1920x1080" if args.raw else "JPEG 640x360",
        "objects": args.objects,
    }


def growth_percent(memory_mb: list[float]) -> float:
    """From the mean of the second tenth of the run (everything is loaded by then) to that of the last tenth."""
    tenth = max(1, len(memory_mb) // 10)
    early = float(np.mean(memory_mb[tenth : 2 * tenth] or memory_mb[:1]))
    return 100.0 * (float(np.mean(memory_mb[-tenth:])) - early) / early


def decode_ms(images: list[Any], config: Config) -> float:
    """Milliseconds to decode and resize the images of one instant on one thread, median of 50."""
    times = []
    for _ in range(50):
        start_s = time.perf_counter()
        for image in images:
            image_decoding.pixels(image, "bench", config.cameras.width, config.cameras.height)
        times.append(1e3 * (time.perf_counter() - start_s))
    return median(times)


def table(numbers: dict[str, Any]) -> Table:
    title = f"node · {numbers['images']} · {numbers['runs']} runs of {numbers['seconds']:.0f} s"
    rows = {
        "overhead p50": f"{numbers['overhead_ms_p50']:.2f} ms (bound: {numbers['bound_decode_ms']:.2f} ms to decode)",
        "overhead p99": f"{numbers['overhead_ms_p99']:.2f} ms",
        "processor time": f"{numbers['cpu_ms_per_plan']:.1f} ms for each plan",
        "plans of frames": ", ".join(f"{p}/{f}" for p, f in zip(numbers["plans"], numbers["frames_sent"], strict=True)),
        "images lost": ", ".join(map(str, numbers["images_lost"])),
        "memory": ", ".join(
            f"{m:.0f} MB ({g:+.1f} %)"
            for m, g in zip(numbers["memory_mb"], numbers["memory_growth_percent"], strict=True)
        ),
        "input": f"{numbers['bytes_per_instant'] / 1e3:.0f} kB an instant",
    }
    return make_list(title, rows)
