"""Raises SIGINT, SIGTERM and SIGHUP as exceptions, so that `with` blocks close files and end child processes.

    raise SystemExit(run_process(work))     # a command, in its main thread: a signal raises Stopped in `work`
    run_until_stopped(main)                 # a program that a signal ends as planned, with exit code 0
    with defer_signals() as request:        # a loop whose step must not be cut in two
        while request.number is None:
            ...
    with block_terminal_signals():          # around the start of a worker process
        process.start()
    install_worker_handlers()               # first line of a worker process, which its parent ends

`report_stop` prints one sentence and returns the exit code: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from .errors import printable_line

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # the terminal also sends them to the parent, which ends workers
REPEAT_WINDOW_S = 3.0  # a launcher may forward the Ctrl-C of the terminal; `ros2 launch` sends SIGTERM 5 s after it
PARENT_VARIABLE = "REFLECTDRIVE_PARENT_PID"
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
STDOUT = "standard output"  # the file name of errors of writing to it
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a full disk, or beyond a limit


class Stopped(KeyboardInterrupt):
    """A signal has ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class Request:
    """The signal that requested the end; None if there was none."""

    number: int | None = None


@contextmanager
def raise_on_signal() -> Iterator[Request]:
    """While the block runs, a signal raises Stopped in the main thread. In other threads this has no effect.

    Signals that follow within REPEAT_WINDOW_S are dropped, so that they do not interrupt cleanup. Python drops an
    exception raised inside a destructor: the next signal after REPEAT_WINDOW_S raises again.
    """
    request, last_s = Request(), float("-inf")

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal last_s
        if time.monotonic() - last_s < REPEAT_WINDOW_S:
            return
        last_s, request.number = time.monotonic(), number
        raise Stopped(number)

    with _install_handlers(on_signal):
        yield request


@contextmanager
def defer_signals() -> Iterator[Request]:
    """Stores the first signal in the request, which the block polls; a later signal raises Stopped."""
    request = Request()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if request.number is not None:
            raise Stopped(number)
        request.number = number

    with _install_handlers(on_signal):
        yield request


def child_environment() -> dict[str, str]:
    """The environment of a child process that calls `end_with_parent`."""
    return {**os.environ, PARENT_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Makes Linux end this process with SIGTERM when the main thread of its parent is gone, even if it was killed.

    Without effect in a process that was not started with `child_environment`.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(parent):  # it was gone before
        raise SystemExit(1)


def install_worker_handlers() -> None:
    """Signal handlers of a worker process: it exits on SIGTERM of its parent, after `with` blocks and `finally`."""
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)


@contextmanager
def block_terminal_signals() -> Iterator[None]:
    """Blocks terminal signals while worker processes start, so that Ctrl-C does not interrupt their imports.

    Workers inherit the blocked signals until `install_worker_handlers`; the parent receives its own after the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_process(work: Callable[[], int]) -> int:
    """The exit code of a process that does `work`; 2 with one sentence where standard output cannot be written, or a
    warning ends it because PYTHONWARNINGS turns warnings into errors.

    Ended by a signal it prints one sentence and returns 128 plus the signal number.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # an ASCII terminal shows "?" for what it has no character for
        sys.stdout.reconfigure(errors="replace")
    with raise_on_signal() as request:
        try:
            return _run_and_flush(work)
        except KeyboardInterrupt as stop:
            return report_stop(stop)
        except Exception:  # what a signal cuts short may fail in its own way: an import, output to a closed terminal
            if request.number is None:
                raise
            print_stop()
            _discard_output()
            return exit_code(request.number)


def run_until_stopped(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code of `main`, or with 0 once a signal arrives.

    Ctrl-C may arrive twice, from the terminal and from `ros2 launch`. The handlers that drop the second stay until the
    process ends; Python's own shutdown restores the default ones, and the second would end the process by signal.
    """
    with raise_on_signal():
        try:
            code = main()
        except KeyboardInterrupt:
            code = 0
        sys.stdout.flush()
        os._exit(code)


def _run_and_flush(work: Callable[[], int]) -> int:
    try:
        try:
            return work()
        finally:
            if sys.stdout is not None:  # None: closed by the shell
                sys.stdout.flush()
    except BrokenPipeError:  # `reflectdrive .. | head`
        _discard_output()
        return 0
    except Warning as fault:
        text = f"a warning ended it ({type(fault).__name__}: {fault}): unset PYTHONWARNINGS, which asks for it"
        sys.stderr.write(f"reflectdrive: {printable_line(text)}\n")
        return 2
    except OSError as fault:
        if fault.filename not in (None, STDOUT) or fault.errno not in UNWRITABLE:
            raise
        _discard_output()
        sys.stderr.write(f"reflectdrive: {STDOUT} cannot be written: {fault.strerror}\n")
        return 2


def _discard_output() -> None:
    """Redirects standard output to /dev/null, so that the flush at interpreter exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_stop(stop: KeyboardInterrupt, consequence: str = "") -> int:
    """Prints one sentence with the consequence for the user on stderr; returns the exit code of the signal."""
    print_stop(consequence)
    return exit_code(stop.number if isinstance(stop, Stopped) else signal.SIGINT)


def print_stop(consequence: str = "") -> None:
    with suppress(OSError, ValueError):  # after SIGHUP there may be no terminal
        sys.stderr.write(f"stopped{'; ' if consequence else ''}{consequence}\n")


def exit_code(number: int) -> int:
    """The exit code of a process that a signal ended, by shell convention."""
    return 128 + number


@contextmanager
def _install_handlers(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    # nohup ignores SIGHUP, which is kept; a shell that starts a command in the background ignores SIGINT for it
    numbers = [
        each for each in TERMINATION_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN
    ]
    before = {each: signal.signal(each, on_signal) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
