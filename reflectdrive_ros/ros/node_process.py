"""The process of a node: its command line, its start, and its end by a signal."""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from types import FrameType

import rclpy
from rclpy.context import Context
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ..core.config import ConfigError
from ..infra.errors import Parser, UserError, printable, printable_line
from ..infra.signals import end_with_parent

DOMAINS = 233  # ROS domain ids that the port numbers of DDS allow
SWITCH_INTERVAL_S = 0.0002  # a decoded image waits this long for the interpreter, and for one more call into C


def run_node(
    program: str, description: str, epilog: str, start: Callable[[], Node], args: list[str] | None = None
) -> int:
    """Runs the node that `start` creates until a signal ends it; returns the exit code.

    Exit code 2 with one sentence where `start` raises a UserError or ParameterException.
    """
    arguments = sys.argv[1:] if args is None else args
    parser = Parser(
        prog=program, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ros-args", nargs=argparse.REMAINDER, help="remappings and parameters, see below")
    parser.parse_args(arguments)
    # by default, threads wait up to 5 ms for the GIL
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    ending = driving = False

    def leave(_signal: int, _frame: FrameType | None) -> None:
        """Interrupt the constructor, which takes seconds where a network is loaded; end the main loop otherwise. Ctrl-C
        arrives twice, from the terminal and from `ros2 launch`: the second is ignored."""
        nonlocal ending
        first, ending = not ending, True
        if first and not driving:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    end_with_parent()
    node = None
    try:
        start_ros(arguments)
        node = start()
        gc.freeze()  # objects of the start-up are not scanned again
        # rclpy's EventsExecutor takes a fifth of the time per message, but hangs (7.1.6): without a timeout, and where
        # its own process publishes what it subscribes to
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        driving = True
        while not ending and node.context.ok():
            spin_once_safely(executor, node)  # a timer of the node limits each wait
    except (UserError, ParameterException) as fault:
        sys.stderr.write(printable(f"reflectdrive: {fault}\n"))
        return 2
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except Exception:
        if not ending:  # an import that Ctrl-C cuts short may fail in its own way
            raise
    finally:
        driving = True
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
        sys.stdout.flush()
    return 0


def spin_once_safely(executor: SingleThreadedExecutor, node: Node) -> None:
    """`spin_once` that logs exceptions instead of raising them, such as those of a malformed /clock message."""
    try:
        executor.spin_once()
    except ExternalShutdownException:
        raise
    except Exception as fault:
        text = printable_line(f"callback failed: {type(fault).__name__}: {fault}")
        node.get_logger().error(text, throttle_duration_sec=1.0)


def start_ros(args: list[str] | None, context: Context | None = None) -> None:
    """`rclpy.init` without signal handlers. Raises ConfigError for arguments or an environment that ROS refuses."""
    domain = os.environ.get("ROS_DOMAIN_ID", "")
    if domain and not (re.fullmatch("[0-9]{1,3}", domain) and int(domain) < DOMAINS):  # DDS would end the process
        raise ConfigError(f"ROS_DOMAIN_ID is '{domain}', expected a number from 0 to {DOMAINS - 1}")
    try:
        rclpy.init(args=args, context=context, signal_handler_options=SignalHandlerOptions.NO)
    except rclpy_implementation.UnknownROSArgsError as fault:
        raise ConfigError(f"ROS does not know these arguments after --ros-args: {fault}") from None
    except rclpy_implementation.RCLError as fault:
        raise ConfigError(f"ROS cannot start: {_strip_source_locations(fault)}") from None


def _strip_source_locations(fault: Exception) -> str:
    """The error message of ROS's C libraries on one line, without source locations."""
    text = re.sub(r"\s*, at [^,:]+:\d+", "", str(fault)).removeprefix("failed to initialize rcl: ")
    text = re.sub(r"\. Error: (Expect(ed|ing) .*|error not set)$", ", which is not well formed", text)
    return " ".join(text.replace(". Error: ", ": ").split())
