"""`reflectdrive demo`: see it drive. A real recording is played to the real node over real ROS 2 topics.

Three front cameras, odometry, road users and a route of PandaSet sequence 002 become a rosbag2; the node runs in its
own process, reads it in recorded time and answers with Autoware trajectories and diagnostics; a page shows it all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from . import make_bag, replay

RECORDING = Path(__file__).resolve().parents[2] / "test" / "data" / "pandaset_002"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recording", type=Path, default=RECORDING, help="folder of the recording to drive")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for bag, plans and report")
    parser.add_argument("--planner", help="recipe to use instead of the default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")


def run(args: argparse.Namespace) -> int:
    bag = args.out / args.recording.resolve().name
    args.out.mkdir(parents=True, exist_ok=True)
    code = call(make_bag, [str(args.recording), str(bag), "--force"])
    if code:
        return code
    words = [str(bag), "--node", "--out", str(args.out)]
    words += ["--planner", args.planner] if args.planner else []
    words += ["--json", str(args.json)] if args.json else []
    code = call(replay, words)
    if not code:
        Console().print(escape(f"open {(args.out / 'report.html').resolve()} in a browser"), soft_wrap=True)
    return code


def call(command: object, words: list[str]) -> int:
    """Another command of ours, as the command line would run it."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]
    return int(command.run(parser.parse_args(words)))  # type: ignore[attr-defined]
