"""The command line: `reflectdrive COMMAND`, also `python -m reflectdrive_ros COMMAND`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from . import __version__
from .infra.errors import Parser
from .infra.installing import import_advice
from .infra.signals import run_process

ABOUT = (
    "Plans the motion of a car with learned planners that correct their own plans; every plan is checked, and an "
    "unsafe one is repaired or replaced. The commands drive these planners in simulated towns and on recordings, "
    "score, train and export them, and check an installation. The ROS 2 node starts with `ros2 launch reflectdrive "
    "planner.launch.py`. To begin: `reflectdrive demo`."
)
# command -> (module with add_arguments(parser) and run(args) -> exit code, description). A module is imported when its
# command is called: a laptop without ROS can score, a car without scipy can plan.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("cli.demo", "the closed loop: the proving ground drives the real node over real topics; with a report"),
    "replay": ("cli.replay", "rosbag2 recordings through the engine or the node: plans, numbers, report"),
    "compare": ("cli.compare", "two replays of the same bags: differences, and how sure they are"),
    "make-bag": ("cli.make_bag", "a rosbag2 from a recording that comes with the package, or from the proving ground"),
    "dataset": ("cli.dataset", "scene sets from rosbag2 recordings, for training and evaluation; with a report"),
    "scenes": ("cli.scenes", "makes, completes, checks and shows a scene set of the proving ground"),
    "eval": ("cli.eval", "planners, settings or weights on a scene set or in closed loop: PDM scores, side by side"),
    "train": ("cli.train", "training of a planner on a scene set; resumes where it was stopped"),
    "export": ("cli.export", "a planner's weights as ONNX graphs, which run without torch"),
    "engine": ("cli.engine", "TensorRT engines of such graphs, built on the machine that drives with them"),
    "import": ("cli.import_", "public checkpoints of other planners as weights of this package"),
    "score": ("cli.score", "PDM score of given trajectories in given scenes"),
    "serve": ("cli.serve", "a planner as a server for simulators: AlpaSim's driver contract (gRPC)"),
    "doctor": ("cli.doctor", "what is installed, what is missing, what to do"),
}
BENCHES: dict[str, tuple[str, str]] = {
    "step": ("bench.step", "the time of a planning step, in the network and beside it, with its roofline"),
    "node": ("bench.node", "what the node adds to the planner's time, frames lost, memory"),
    "soak": ("bench.soak", "a long drive with the real node: memory growth, late plans, leaks"),
    "scoring": ("bench.scoring", "the driving score: time against candidates and agents"),
    "parity": ("bench.parity", "graphs and eager torch on the same scenes: equal ids, both PDMS"),
    "results": ("bench.results", "writes the pages of results from the measured JSON files"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    return run_process(lambda: run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    parser = Parser(prog="reflectdrive", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"reflectdrive {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((word for word in argv if not word.startswith("-")), "")
    for name, (module, doc) in COMMANDS.items():
        add_command(commands, name, module, doc, name == chosen)
    doc = "measurements with their physical bounds"
    bench = commands.add_parser("bench", help=doc, description=doc)
    benches = bench.add_subparsers(title="benches", metavar="BENCH", required=True)
    for name, (module, doc) in BENCHES.items():
        add_command(benches, name, module, doc, chosen == "bench" and name in argv)
    if empty := empty_argument(argv):
        sys.stderr.write(f"reflectdrive: {empty} is empty: give it a value, or leave it out\n")
        return 2
    args = parser.parse_args(argv)
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.stderr.write("reflectdrive: the working directory has been removed: change to one that exists\n")
        return 2
    with explained_imports(chosen):
        return int(args.run(args))


def empty_argument(argv: list[str]) -> str:
    """Names the first argument that is an empty text, as of a variable that is not set; "" if there is none.

    As a path it would be the working directory.
    """
    for index, word in enumerate(argv):
        before = argv[index - 1] if index else ""
        if not word:
            return f"the value of {before}" if before.startswith("--") else f"argument {index + 1}"
        if word.startswith("--") and word.find("=") == len(word) - 1:  # --out=
            return f"the value of {word[:-1]}"
    return ""


def add_command(
    commands: argparse._SubParsersAction[Parser], name: str, module: str, doc: str, is_selected: bool
) -> None:
    parser = commands.add_parser(name, help=doc, description=doc)
    if is_selected:
        from .infra.command import HelpFormatter  # with its libraries, which a list of commands does not need

        loaded = load_module(name, f"{__package__}.{module}")
        parser.description = loaded.__doc__
        parser.formatter_class = HelpFormatter
        loaded.add_arguments(parser)
        parser.set_defaults(run=loaded.run)


def load_module(command: str, module: str) -> ModuleType:
    with explained_imports(command):
        return importlib.import_module(module)


@contextmanager
def explained_imports(command: str) -> Iterator[None]:
    """Exits with one sentence and code 2 where a library that the block needs cannot be imported."""
    try:
        yield
    except ImportError as fault:
        advice = import_advice(fault)
        if advice is None:
            raise
        sys.stderr.write(f"{command} {advice}\n")
        raise SystemExit(2) from None


def planner() -> None:
    """`ros2 run reflectdrive planner`"""
    load_module("planner", f"{__package__}.ros.node").program()


def check() -> None:
    """`ros2 run reflectdrive check`"""
    load_module("check", f"{__package__}.ros.check_node").program()


def world() -> None:
    """`ros2 run reflectdrive world`"""
    load_module("world", f"{__package__}.demo.world_node").program()


if __name__ == "__main__":
    raise SystemExit(main())
