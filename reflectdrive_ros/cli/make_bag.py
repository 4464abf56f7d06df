"""`reflectdrive make-bag SOURCE OUT`: a rosbag2 of a recording that comes with the package, or of the proving ground.

The source `world` is a drive through a generated town: the same messages as in `reflectdrive demo`, without a ROS
process, and deterministic by seed. (On processors of one kind: rounding differs on others, and over minutes of traffic
differences in the last bit grow.)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError, override_dotted
from ..demo import world_bag
from ..demo.recordings import DemoRecording, open_recording
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..model.card import RENDERED
from ..planning import get_planner
from ..ros.bag import IMAGE_DOMAIN, STORAGES, BagReader, BagWriter

WORLD = Path("world")
PLANNER = "route_follower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        help="pandaset_002 or comma2k19_example (of the source tree), a folder of such a recording, or the word world",
    )
    parser.add_argument("out", type=Path, help="output folder of the bag")
    parser.add_argument("--storage", choices=list(STORAGES), default="mcap", help="storage of the bag")
    parser.add_argument("--force", action="store_true", help="replace an existing bag")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    drive = parser.add_argument_group("of the world")
    world_bag.add_world_arguments(drive)
    drive.add_argument("--seconds", type=arguments.duration(0.1, 3600.0), default=20.0, help="of driving")
    drive.add_argument("--planner", help=f"planner (default: {PLANNER})")
    arguments.add_settings_argument(drive)


@command(lambda args: f"what was written until then is a whole bag: {args.out}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    with _opened(args) as recording, BagWriter(args.out, args.storage, replace=args.force) as bag:
        if args.source == WORLD:
            bag.describe(IMAGE_DOMAIN, RENDERED)
        for topic in recording.topics:
            bag.add_topic(topic.name, topic.type_name, latched=topic.latched)
        title = f"writing {recording.name}"
        for message in track_progress(recording.messages(), title, errors, recording.message_count):
            bag.write(message.topic, message.stamp_ns, message.message)
    numbers = _numbers(args.out)
    write_numbers(args.json, {"source": recording.name, "storage": args.storage, **numbers})
    console.print(_table(recording.name, args.out, numbers))


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[DemoRecording]:
    if args.source != WORLD:
        if args.settings:
            raise ConfigError(f"--setting has no effect on the messages of the recording {args.source}: leave it out")
        yield open_recording(args.source)
        return
    overrides = {} if args.planner is None else {"planner": args.planner}
    config = override_dotted(Config(), {"planner": PLANNER, **arguments.settings_of(args.settings), **overrides})
    get_planner(config)
    with world_bag.open_world(args, config) as world:
        yield world_bag.world_recording(world, config, args.seconds)


def _numbers(path: Path) -> dict[str, Any]:
    """The content of the bag, read back to verify it."""
    received: dict[str, list[int]] = {}
    with BagReader(path) as bag:
        for message in bag.messages():
            received.setdefault(message.topic, []).append(message.received_ns)
        topics = []
        for topic in bag.topics:
            hz = _rate(received.get(topic.name, []))
            topics.append({"name": topic.name, "type": topic.type_name, "messages": topic.count, "hz": hz})
        duration_s = round(bag.duration_s, 3)
        return {"bag": str(path), "messages": bag.message_count, "duration_s": duration_s, "topics": topics}


def _rate(received_ns: list[int]) -> float | None:
    """Messages per second between the first and the last; None for a single one."""
    if len(received_ns) < 2 or received_ns[-1] <= received_ns[0]:
        return None
    return round((len(received_ns) - 1) / (received_ns[-1] - received_ns[0]) * 1e9, 2)


def _table(name: str, path: Path, numbers: dict[str, Any]) -> Table:
    size_mb = sum(file.stat().st_size for file in path.iterdir()) / 1e6
    title = f"{name}: {numbers['messages']} messages, {numbers['duration_s']:.1f} s, {size_mb:.1f} MB in {path}"
    rows = []
    for topic in numbers["topics"]:
        hz = "latched" if topic["hz"] is None else f"{topic['hz']:.1f}"
        rows.append((topic["name"], topic["type"], str(topic["messages"]), hz))
    return make_table(("topic", "type", "messages", "Hz"), rows, title, texts=2)
