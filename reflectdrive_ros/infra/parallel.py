"""A pool of worker processes that survives crashes of its workers, for example in SUMO.

Each worker processes one task after the other. Workers are forked from a fork server that has only common libraries
loaded, so no thread or state of the parent is inherited and starting a worker is cheap. A worker that dies is replaced
and its task is tried again, up to ATTEMPTS times. Workers exit within milliseconds when the parent dies.

All workers use the same SIMD instructions: NumPy and OpenBLAS select faster kernels on newer processors whose results
differ in the last bit, which would change a scene set. Workers are limited to AVX2 on x86.

Instead of a number of workers, a `Cluster` runs the tasks on the nodes of a Ray cluster, with the same results.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import cv2
import numpy as np

from .cluster import THREADS, Cluster, ClusterPool, OnProgress
from .errors import UserError
from .signals import block_terminal_signals, install_worker_handlers

ATTEMPTS = 3
TERMINATE_TIMEOUT_S = 5.0  # before a terminated worker is killed
PACKAGE = __name__.partition(".")[0]
PRELOADED_MODULE = f"{PACKAGE}.data.codec"  # OpenCV, SciPy, shapely and the types of scenes: a second of imports
ONE_THREAD = dict.fromkeys(THREADS, "1")
SIMD_BASELINE = "AVX2" if platform.machine() in ("x86_64", "AMD64") else platform.machine()  # results depend on it

Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Task, Callable[[Any], None]], Result]
Workers = int | Cluster  # how many processes of this machine, or those of a cluster


class WorkerPoolError(UserError, RuntimeError):
    """No worker process can be started; its own error output is above."""


@dataclass(frozen=True)
class Outcome(Generic[Task, Result]):
    """The result of a task or the reason of its failure."""

    task: Task
    result: Result | None  # None if it failed
    reason: str = ""  # why it failed


def map_restartable(
    tasks: Sequence[Task],
    work: Work[Task, Result],
    workers: Workers,
    on_progress: OnProgress | None = None,
    *,
    portable: bool = True,
    isolated: bool = False,
) -> Generator[Outcome[Task, Result], None, None]:
    """`RestartablePool.map` in a pool of its own, of no more workers than tasks.

    Close the generator to end its workers early.
    """
    count = min(workers, len(tasks)) if isinstance(workers, int) else workers
    pool = RestartablePool(work, count, portable=portable, isolated=isolated)
    with closing(pool):
        yield from pool.map(tasks, on_progress)


class RestartablePool(Generic[Task, Result]):
    """Worker processes that call `work(task, report)`, for one sequence of tasks after the other.

    `work` and the tasks must be picklable. `portable` workers have one thread and the SIMD baseline, others those of
    this process. `isolated`: a fresh process for each task, which is tried once. Close the pool to end its workers.
    """

    def __init__(
        self, work: Work[Task, Result], workers: Workers, *, portable: bool = True, isolated: bool = False
    ) -> None:
        self._work, self._portable, self._isolated = work, portable, isolated
        self._workers: list[_Worker] = []
        if isinstance(workers, int):
            self._count, self._cluster = workers, None
        else:
            make_pool = partial(RestartablePool, work, 1, portable=portable, isolated=isolated)
            self._count, self._cluster = 0, ClusterPool(workers, make_pool, portable)

    def map(
        self, tasks: Sequence[Task], on_progress: OnProgress | None = None
    ) -> Generator[Outcome[Task, Result], None, None]:
        """Runs every task and yields outcomes in order of completion.

        Values passed to `report` are passed on to `on_progress(index, value)`; 0 means that the task was restarted. An
        exception fails its task; a task whose process dies is tried ATTEMPTS times. Raises OSError of the system from
        a worker (a full disk), and WorkerPoolError if workers do not start. The pool is closed if the generator does
        not reach its end.
        """
        if self._cluster is not None:
            for index, result, reason in self._cluster.map(tasks, on_progress):
                yield Outcome(tasks[index], result, reason)
            return
        try:
            while len(self._workers) < self._count:
                self._workers.append(_Worker(self._work, self._portable))
            yield from self._map(tasks, on_progress or (lambda index, value: None))
        except BaseException:
            self.close()
            raise

    def _map(self, tasks: Sequence[Task], on_progress: OnProgress) -> Generator[Outcome[Task, Result], None, None]:
        pool, waiting, deaths = self._workers, deque(range(len(tasks))), [0] * len(tasks)
        while waiting or any(worker.index is not None for worker in pool):
            for worker in pool:
                if worker.ready and worker.index is None and waiting:
                    worker.index = waiting.popleft()
                    worker.send(tasks[worker.index])
            for connection in wait([worker.pipe for worker in pool]):
                worker = next(each for each in pool if each.pipe is connection)
                kind, content = worker.receive()
                if kind == "ready":
                    worker.ready = True
                    continue
                if kind == "dead" and not worker.ready:
                    raise WorkerPoolError("a worker process could not be started")
                index = worker.index
                if index is None:  # died while idle
                    pool[pool.index(worker)] = _Worker(self._work, self._portable)
                    continue
                if kind == "progress":
                    on_progress(index, content)
                    continue
                worker.index = None
                if kind == "system":
                    raise OSError(*content)
                if kind == "dead":
                    pool[pool.index(worker)] = _Worker(self._work, self._portable)
                    on_progress(index, 0)
                    deaths[index] += 1
                    if deaths[index] < ATTEMPTS and not self._isolated:
                        waiting.appendleft(index)
                        continue
                    content = f"its process died{'' if self._isolated else f' {ATTEMPTS} times'} ({content})"
                elif self._isolated:
                    worker.pipe.close()  # it ends
                    worker.end()
                    pool.remove(worker)
                    if waiting:
                        pool.append(_Worker(self._work, self._portable))
                if kind == "done":
                    yield Outcome(tasks[index], content)
                else:
                    yield Outcome(tasks[index], None, content)

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        while self._workers:
            self._workers.pop().end()


class _Worker:
    def __init__(self, work: Work[Any, Any], portable: bool) -> None:
        # the fork server keeps the environment and the SIMD instructions that it began with
        context = multiprocessing.get_context("forkserver") if portable else multiprocessing.get_context("spawn")
        context.set_forkserver_preload([PRELOADED_MODULE])
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, work, portable), daemon=True)
        variables = {**ONE_THREAD, **portable_simd_environment()} if portable else {}
        with block_terminal_signals(), _environment(variables):
            self.process.start()
        other.close()  # otherwise the end of the worker is not detected
        self.ready = False
        self.index: int | None = None  # of its current task

    def send(self, task: Any) -> None:
        try:
            self.pipe.send(task)
        except OSError:  # it has died; `receive` reports it
            return

    def receive(self) -> tuple[str, Any]:
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(TERMINATE_TIMEOUT_S)
            code = self.process.exitcode
            return "dead", f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return kind, content

    def end(self) -> None:
        """Waits for a terminated worker, which removes its scratch folders, and kills it after a timeout."""
        self.process.join(TERMINATE_TIMEOUT_S)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def portable_simd_environment() -> dict[str, str]:
    """Environment variables that limit NumPy and OpenBLAS of a new process to the SIMD baseline."""
    if SIMD_BASELINE != "AVX2":
        return {}
    extensions = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    newer = [name for name in extensions if name == "X86_V4" or name.startswith("AVX512")]
    newer += os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(newer), "OPENBLAS_CORETYPE": "Haswell"}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables while the block runs, for processes started in it."""
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


def _serve(pipe: Connection, work: Work[Any, Any], portable: bool) -> None:
    install_worker_handlers()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if portable:
        cv2.setNumThreads(1)
    try:
        pipe.send(("ready", None))
    except BrokenPipeError:  # the parent has exited
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
        except UserError as fault:
            answer = "failed", str(fault)
        except Exception as fault:  # fails this task only
            answer = "failed", f"{type(fault).__name__}: {fault}"
        pipe.send(answer)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
