"""Tasks of a worker pool on a Ray cluster (extra `[cluster]`); no other module imports Ray.

    for outcome in map_restartable(tasks, work, Cluster("10.0.0.1:6379"), on_progress): ...   # parallel.py

Ray places each task on a core of some node and tries it again when that node or its Ray worker is lost. In the Ray
worker the task is done by a local pool of one process, the same as without a cluster: the same environment, so the same
bits, and the same rule for a task whose process dies. Workers must have the same package and libraries as this process.
Tasks and results travel through Ray: files that tasks name must be on storage that every node sees (docs/cluster.md).
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from .. import __version__
from .errors import UserError
from .installing import pip_extra
from .provenance import program_sha256

LOCAL = "local"
CONNECT_S = 20.0  # for the head of a cluster to answer
POLL_S = 0.5  # between two readings of the progress of tasks
REPORT_S = 2.0  # between two reports of a task: 500 a second from 1,000 tasks
WINDOW = 2000  # tasks that Ray knows at a time: its autoscaler sees the demand, `ray.wait` stays short
NODE_LOSSES = 10  # times that a task is tried again because its node or Ray worker was lost
LIBRARIES = ("numpy", "opencv-python-headless", "scipy", "shapely", "eclipse-sumo", "onnxruntime", "torch")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ENVIRONMENT = (*THREADS, "NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")  # inherited without a cluster; Ray sets one
# Nothing is sent. Workers of a Ray that is started here have the priority of a local pool; Ray's own is the lowest.
DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
OnProgress = Callable[[int, Any], None]

_connected = ""  # the address of the cluster that this process is connected to


class ClusterError(UserError):
    """The cluster cannot be used; the message names the reason and what to do."""


@dataclass(frozen=True)
class Cluster:
    """The cores of a Ray cluster, instead of a number of processes.

    The address is HOST:PORT of its head, or LOCAL or LOCAL:CORES to start one on this machine.
    """

    address: str


class ClusterPool:
    """`make_pool()` on every requested core of a cluster: a local pool of one process, for tasks one by one.

    Raises ClusterError without Ray, for a head that does not answer within CONNECT_S, and for one of another version.
    """

    def __init__(self, cluster: Cluster, make_pool: Callable[[], Any], portable: bool) -> None:
        self._ray = connect(cluster)
        self._parcel = self._ray.put(make_pool)
        environment = {name: os.environ.get(name) for name in ENVIRONMENT}
        self._caller = _Caller(fingerprint(portable), portable, environment, tuple(sys.argv))
        self._run = self._ray.remote(_run).options(num_cpus=1, max_retries=NODE_LOSSES)

    def map(self, tasks: Sequence[Any], on_progress: OnProgress | None) -> Generator[tuple[int, Any, str], None, None]:
        """(index, result, reason of a failure) of each task in order of completion.

        Raises OSError of the system from a worker, ClusterError for a worker of another version.
        """
        ray, inbox, looked_s = self._ray, None, time.monotonic()
        if on_progress is not None:
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            inbox = ray.remote(_Inbox).options(num_cpus=0, scheduling_strategy=here).remote()
        waiting, running = deque(range(len(tasks))), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < WINDOW:
                    index = waiting.popleft()
                    # a list, so that Ray does not send its content with each task
                    running[self._run.remote([self._parcel], self._caller, inbox, index, tasks[index])] = index
                ray.wait(list(running), timeout=POLL_S)
                done, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
                if inbox is not None and on_progress is not None and time.monotonic() - looked_s >= POLL_S:
                    looked_s = time.monotonic()
                    for index, value in ray.get(inbox.take.remote()).items():
                        on_progress(index, value)
                for ref in done:
                    yield running[ref], *self._answer(ref)
                    del running[ref]
        finally:
            for ref in running:
                ray.cancel(ref, force=True)  # its worker ends, and with it the process of the task
            if inbox is not None:
                ray.kill(inbox)

    def _answer(self, ref: Any) -> tuple[Any, str]:
        """Result and reason of a task that has ended."""
        try:
            kind, content = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as fault:  # the package is missing there, or a task is not picklable
            reason = str(fault.cause).splitlines()[0]
            raise ClusterError(f"a worker of the cluster cannot run tasks: {reason}") from None
        except self._ray.exceptions.RayError as fault:
            return None, f"its worker or node was lost {NODE_LOSSES + 1} times ({type(fault).__name__})"
        if kind == "system":
            raise OSError(*content)
        if kind == "unfit":
            raise ClusterError(content)
        return (content, "") if kind == "done" else (None, content)


def connect(cluster: Cluster) -> Any:
    """The module `ray`, connected to a cluster, until the end of the process."""
    global _connected
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise ClusterError(f"Ray is not installed, --cluster needs it: {pip_extra('cluster')}") from None
    if ray.is_initialized() and _connected == cluster.address:
        return ray
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    options: dict[str, Any] = {"address": cluster.address}
    host, _, cores = cluster.address.partition(":")
    if host == LOCAL:
        count = int(cores) if cores else len(os.sched_getaffinity(0))
        options = {"address": LOCAL, "num_cpus": count, "include_dashboard": False}
    else:
        _check_answers(cluster.address)
    ray.shutdown()  # of another cluster
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as fault:  # another Ray or Python, no place for its files, 30 s over on a loaded machine; no base
        ray.shutdown()
        sentence = " ".join(str(fault).split())
        raise ClusterError(f"the cluster {cluster.address} cannot be used: {sentence}") from None
    finally:
        with suppress(ValueError):  # not the main thread
            for number, handler in handlers.items():
                signal.signal(number, handler)
    _connected = cluster.address
    return ray


def _check_answers(address: str) -> None:
    """Raises ClusterError if there is no head of a Ray cluster. `ray.init` would try for two minutes, and log."""
    host, _, port = address.rpartition(":")
    advice = f"give HOST:PORT of a head that `ray start --head` printed, or --cluster {LOCAL}"
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as fault:
        reason = fault.strerror or f"no answer within {CONNECT_S:.0f} s"
        raise ClusterError(f"the cluster {address} does not answer ({reason}): {advice}") from None
    probe = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check", "--address", address]
    try:
        subprocess.run(probe, capture_output=True, timeout=CONNECT_S, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        raise ClusterError(f"{address} answers, but not as the head of a Ray cluster: {advice}") from None


@cache
def fingerprint(portable: bool) -> Mapping[str, str]:
    """What the bits of a result depend on besides the task: name -> version, for messages.

    Processes that are not `portable` use all SIMD instructions of their processor, which are then part of it.
    """
    versions = {"Python": platform.python_version(), "reflectdrive": f"{__version__} (source {program_sha256()[:12]})"}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if not portable:
        versions["SIMD"] = " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))
    return versions


# --- in the Ray workers ----------------------------------------------------------------------------------------------

_pool: tuple[str, Any] | None = None  # of this Ray worker, and the parcel that it was made from


@dataclass(frozen=True)
class _Caller:
    """Of the process that has the tasks; processes of the pool get the same."""

    fingerprint: Mapping[str, str]
    portable: bool
    environment: Mapping[str, str | None]
    argv: tuple[str, ...]  # results name the command that they come from


def _run(parcel: Sequence[Any], caller: _Caller, inbox: Any, index: int, task: Any) -> tuple[str, Any]:
    """Does one task: ("done", result), ("failed", reason), ("system", arguments of an OSError), ("unfit", sentence)."""
    global _pool
    reported_s = 0.0

    def on_progress(_: int, value: Any) -> None:
        nonlocal reported_s
        if inbox is not None and (value == 0 or time.monotonic() - reported_s >= REPORT_S):
            reported_s = time.monotonic()
            inbox.add.remote(index, value)

    if _pool is None or _pool[0] != parcel[0].hex():
        own, needed = fingerprint(caller.portable), caller.fingerprint
        names = {**needed, **own}
        other = [name for name in names if own.get(name) != needed.get(name)]
        if other:
            there = ", ".join(f"{name} {own.get(name, 'missing')} and not {needed.get(name)}" for name in other)
            return "unfit", f"the worker on {platform.node()} has {there}: install the same on every node"
        import ray

        if _pool is not None:
            _pool[1].close()
        vars(sys.modules["__main__"]).pop("__file__", None)  # else each process of the pool would import Ray's program
        sys.argv = [*caller.argv]
        for name, value in caller.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _pool = parcel[0].hex(), ray.get(parcel[0])()
    try:
        (outcome,) = _pool[1].map([task], on_progress)
    except UserError as fault:
        return "unfit", f"the worker on {platform.node()}: {fault}"
    except OSError as fault:
        return "system", (fault.errno, fault.strerror, fault.filename)
    return ("failed", outcome.reason) if outcome.reason else ("done", outcome.result)


class _Inbox:
    """An actor beside the caller: the last value that each task reported."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}

    def add(self, index: int, value: Any) -> None:
        self._values[index] = value

    def take(self) -> dict[int, Any]:
        values, self._values = self._values, {}
        return values
