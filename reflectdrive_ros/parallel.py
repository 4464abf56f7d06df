"""Work shared out among processes, any of which may die: a crash in SUMO takes its process, not the whole set.

Each worker is a fresh process that does one task after the other. It comes from a server process that has nothing but
the usual libraries loaded: no thread and no state of the parent leaks in, and another worker costs nothing. When one
dies, a new one takes its place and the task is tried again, a few times. When the parent dies, its workers end within
milliseconds.

All workers reckon alike: NumPy and OpenBLAS have faster ways of their own on newer processors, whose last bits differ,
and a scene set would be another one there. They are held to what every x86 processor with AVX2 has.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import cv2
import numpy as np

from .stopping import block_terminal_signals, install_worker_handlers

ATTEMPTS = 3
TERMINATE_TIMEOUT_S = 2.0  # that a worker gets to end when it is told to
PRELOADED_MODULE = f"{__package__}.data.codec"  # OpenCV, SciPy, shapely and the types of scenes: a second of imports
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SIMD_BASELINE = "AVX2" if platform.machine() in ("x86_64", "AMD64") else platform.machine()  # what results follow from

Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Task, Callable[[int], None]], Result]


class WorkerPoolError(RuntimeError):
    """No worker can be started; the message says so, its own words stand above."""


@dataclass(frozen=True)
class Outcome(Generic[Task, Result]):
    """What became of a task."""

    task: Task
    result: Result | None  # None if it failed
    reason: str = ""  # why it failed


def map_restartable(
    tasks: Sequence[Task], work: Work[Task, Result], workers: int, on_progress: Callable[[int, int], None]
) -> Generator[Outcome[Task, Result], None, None]:
    """Does `work(task, report)` for every task, and yields outcomes as they come.

    `work` and the tasks must be picklable; what `work` reports comes to `on_progress` with the place of its task, 0
    when it is begun anew. An exception makes its task fail, for it would do so again; a death is tried ATTEMPTS times.
    An OSError of the system (a full disk) ends it all: it is raised here. Raises CrewError if workers do not start.
    Close it when you leave it before its end: its workers end with it.
    """
    waiting = deque(range(len(tasks)))
    deaths = [0] * len(tasks)
    crew: list[_Worker] = []
    try:
        for _ in range(min(workers, len(tasks))):
            crew.append(_Worker(work))  # one by one: those that are there end with the rest
        while waiting or any(worker.place is not None for worker in crew):
            for worker in crew:
                if worker.ready and worker.place is None and waiting:
                    worker.place = waiting.popleft()
                    worker.send(tasks[worker.place])
            for connection in wait([worker.pipe for worker in crew]):
                worker = next(each for each in crew if each.pipe is connection)
                kind, content = worker.heard()
                if kind == "ready":
                    worker.ready = True
                    continue
                if kind == "dead" and not worker.ready:
                    raise WorkerPoolError("a worker process could not be started")
                place = worker.place
                if place is None:  # died while it had nothing to do
                    crew[crew.index(worker)] = _Worker(work)
                    continue
                if kind == "progress":
                    on_progress(place, content)
                    continue
                worker.place = None
                if kind == "system":
                    raise OSError(*content)
                if kind == "dead":
                    crew[crew.index(worker)] = _Worker(work)
                    on_progress(place, 0)
                    deaths[place] += 1
                    if deaths[place] < ATTEMPTS:
                        waiting.appendleft(place)
                        continue
                    content = f"its process died {ATTEMPTS} times ({content})"
                if kind == "done":
                    yield Outcome(tasks[place], content)
                else:
                    yield Outcome(tasks[place], None, content)
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.end()


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, work: Work[Any, Any]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED_MODULE])
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, work), daemon=True)
        with block_terminal_signals(), _environment({**ONE_THREAD, **portable_simd_environment()}):
            self.process.start()
        other.close()  # or its end would never be heard
        self.ready = False
        self.place: int | None = None  # of the task that it is at

    def send(self, task: Any) -> None:
        try:
            self.pipe.send(task)
        except OSError:  # it died just now; `heard` will tell
            return

    def heard(self) -> tuple[str, Any]:
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(TERMINATE_TIMEOUT_S)
            code = self.process.exitcode
            return "dead", f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return kind, content

    def end(self) -> None:
        """After `terminate`: scratch folders are removed meanwhile."""
        self.process.join(TERMINATE_TIMEOUT_S)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def portable_simd_environment() -> dict[str, str]:
    """Variables that make NumPy and OpenBLAS of a new process reckon as on any machine of this kind."""
    if SIMD_BASELINE != "AVX2":
        return {}
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    newer = [name for name in found if name == "X86_V4" or name.startswith("AVX512")]
    newer += os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(newer), "OPENBLAS_CORETYPE": "Haswell"}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of processes started here; as many workers as cores are enough threads."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection, work: Work[Any, Any]) -> None:
    """A worker's life."""
    install_worker_handlers()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    cv2.setNumThreads(1)
    try:
        pipe.send(("ready", None))
    except BrokenPipeError:  # the parent has ended meanwhile
        return
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer = "done", work(task, lambda count: pipe.send(("progress", count)))
        except OSError as fault:
            if fault.errno is None:
                answer = "failed", f"{type(fault).__name__}: {fault}"
            else:
                answer = "system", (fault.errno, fault.strerror, fault.filename)
        except Exception as fault:  # whatever it is, it is this task's: named, and the others go on
            answer = "failed", f"{type(fault).__name__}: {fault}"
        pipe.send(answer)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
