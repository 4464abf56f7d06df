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

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from .. import arguments
from ..config import Config, ConfigError, override_dotted
from ..planning import get_planner
from ..provenance import write_numbers
from ..ros import world_bag
from ..ros.bag import STORAGES, BagError, BagReader, BagWriter
from ..ros.recordings import Recording, RecordingError, open_recording
from ..stopping import report_stop

WORLD = Path("world")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        help="pandaset_002 or comma2k19_example (of the source tree), a folder of such a recording, or the word world",
    )
    parser.add_argument("out", type=Path, help="output folder of the bag")
    parser.add_argument("--storage", choices=list(STORAGES), default="mcap", help="storage of the bag (default: mcap)")
    parser.add_argument("--force", action="store_true", help="replace an existing bag")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of the table here too")
    drive = parser.add_argument_group("of the world")
    world_bag.add_world_arguments(drive)
    drive.add_argument("--seconds", type=arguments.duration(0.1, 3600.0), default=20.0, help="of driving (default: 20)")
    drive.add_argument("--planner", default="route_follower", help="planner (default: route_follower)")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 2 with one sentence on stderr when the source or the target cannot be used."""
    errors = Console(stderr=True)
    try:
        with _opened(args) as recording, BagWriter(args.out, args.storage, replace=args.force) as bag:
            _copy(recording, bag, errors)
        numbers = _numbers(args.out)
        if args.json is not None:
            write_numbers(args.json, {"source": recording.name, "storage": args.storage, **numbers})
    except (RecordingError, BagError, ConfigError, *world_bag.WORLD_ERRORS) as fault:
        errors.print(escape(str(fault)), soft_wrap=True)
        return 2
    except OSError as fault:
        errors.print(escape(f"{fault.filename or args.out} cannot be written: {fault.strerror}"), soft_wrap=True)
        return 2
    except KeyboardInterrupt as stop:
        return report_stop(stop, f"what was written until then is a whole bag: {args.out}")
    console = Console()
    if not console.is_terminal:  # a log is wide enough for a topic's name
        console = Console(width=120)
    console.print(_table(recording.name, args.out, numbers))
    return 0


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[Recording]:
    if args.source != WORLD:
        yield open_recording(args.source)
        return
    config = override_dotted(Config(), {"planner": args.planner})
    get_planner(config)
    with world_bag.open_world(args, config) as world:
        yield world_bag.world_recording(world, config, args.seconds)


def _copy(recording: Recording, bag: BagWriter, console: Console) -> None:
    for topic in recording.topics:
        bag.add_topic(topic.name, topic.type_name, latched=topic.latched)
    steps = track(
        recording.messages(), f"writing {recording.name}", recording.message_count, console=console, transient=True
    )
    for message in steps:
        bag.write(message.topic, message.stamp_ns, message.message)


def _numbers(path: Path) -> dict[str, Any]:
    """The content of the bag, read back to verify it."""
    received: dict[str, list[int]] = {}
    with BagReader(path) as bag:
        for message in bag.messages():
            received.setdefault(message.topic, []).append(message.received_ns)
        topics = [
            {
                "name": topic.name,
                "type": topic.type_name,
                "messages": topic.count,
                "hz": _rate(received.get(topic.name, [])),
            }
            for topic in bag.topics
        ]
        return {
            "bag": str(path),
            "messages": bag.message_count,
            "duration_s": round(bag.duration_s, 3),
            "topics": topics,
        }


def _rate(received_ns: list[int]) -> float | None:
    """Messages per second between the first and the last; None for a single one."""
    if len(received_ns) < 2 or received_ns[-1] <= received_ns[0]:
        return None
    return round((len(received_ns) - 1) / (received_ns[-1] - received_ns[0]) * 1e9, 2)


def _table(name: str, path: Path, numbers: dict[str, Any]) -> Table:
    size_mb = sum(file.stat().st_size for file in path.iterdir()) / 1e6
    title = f"{name}: {numbers['messages']} messages, {numbers['duration_s']:.1f} s, {size_mb:.1f} MB in {path}"
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("topic")
    table.add_column("type")
    table.add_column("messages", justify="right")
    table.add_column("Hz", justify="right")
    for topic in numbers["topics"]:
        hz = "latched" if topic["hz"] is None else f"{topic['hz']:.1f}"
        table.add_row(topic["name"], topic["type"], str(topic["messages"]), hz)
    return table
