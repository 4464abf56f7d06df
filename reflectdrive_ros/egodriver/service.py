"""The driver contract as a gRPC server with limits: how many sessions, how long one may be idle, what a log line holds.

Session ids, camera names and bytes come from the network. What cannot be used is answered with a gRPC error and one
line of the log.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from carla_driver_interface.driver import BaseDriver, SessionState
from carla_driver_interface.protocol import (
    add_CarlaVehicleServiceServicer_to_server,
    add_EgodriverServiceServicer_to_server,
    channel_options,
)
from carla_driver_interface.server import bind_address
from carla_driver_interface.service import EgodriverServicer, ServiceMode
from google.protobuf.message import DecodeError

from ..infra.errors import UserError, printable, printable_line, printable_name

log = logging.getLogger(__name__)
WORKERS = 16  # calls that are served at a time
SESSIONS_MAX = 64  # open at a time; each has an engine, a thread and its newest images
IDLE_MAX_S = 600.0  # after this time without a call a session is ended
HOST_CHARACTERS = 255  # of the longest host name
GRACE_S = 1.0  # for calls in progress when the server ends


class LogFormatter(logging.Formatter):
    """One printable line per record; a traceback keeps its lines."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei))


class LimitedServicer(EgodriverServicer):
    """The contract's service with a limit of open sessions, and an end of idle ones."""

    def __init__(self, driver: BaseDriver, mode: ServiceMode, clock: Callable[[], float]) -> None:
        super().__init__(driver, mode)
        self._clock = clock
        self._called_s: dict[str, float] = {}  # by session id: time of its last call
        self._start_lock = threading.Lock()

    def start_session(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._start_lock:  # one after the other, so that none slips past the limit
            self._end_idle_sessions()
            with self._sessions_lock:
                is_full = len(self._sessions) >= SESSIONS_MAX
            if is_full:
                sentence = f"{SESSIONS_MAX} sessions are open, which is the limit: close one, or start another server"
                log.warning("session %s is refused: %s", printable_name(request.session_uuid), sentence)
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
            return super().start_session(request, context)

    def _require_session(self, uuid: str, context: grpc.ServicerContext) -> SessionState:
        self._end_idle_sessions()
        with self._sessions_lock:
            if uuid in self._sessions:
                self._called_s[uuid] = self._clock()
                return self._sessions[uuid]
        context.abort(
            grpc.StatusCode.NOT_FOUND,
            f"no session {printable_name(uuid)} is open: start it; one without a call for {IDLE_MAX_S:.0f} s is ended",
        )
        raise AssertionError("abort raises")

    def _end_idle_sessions(self) -> None:
        now_s = self._clock()
        with self._sessions_lock:
            self._called_s = {uuid: self._called_s.get(uuid, now_s) for uuid in self._sessions}
            idle = [self._sessions.pop(uuid) for uuid, at_s in self._called_s.items() if now_s - at_s > IDLE_MAX_S]
        for session in idle:
            log.warning("session %s is ended: no call for %.0f s", printable_name(session.uuid), IDLE_MAX_S)
            self._driver.on_session_close(session)


class OneLineErrors(grpc.ServerInterceptor):  # type: ignore[misc]
    """A call that fails is one line of the log and a gRPC error with the same sentence, instead of a traceback."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        call = printable_name(handler_call_details.method.rpartition("/")[2])

        def deserialize(content: bytes) -> Any:
            try:
                return handler.request_deserializer(content)
            except DecodeError as fault:
                log.warning("%s is refused: %d bytes are no request: %s", call, len(content), fault)
                return None  # gRPC answers INTERNAL

        def behave(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return handler.unary_unary(request, context)
            except Exception as fault:
                if type(fault) is Exception and not fault.args:  # of `context.abort`
                    raise
                sentence = printable_line(f"{call} failed: {type(fault).__name__}: {fault}")
                log.warning("%s", sentence)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, printable_name(sentence))
                raise AssertionError("abort raises") from None

        return grpc.unary_unary_rpc_method_handler(behave, deserialize, handler.response_serializer)


@contextmanager
def serving(
    driver: BaseDriver, port: int, host: str, mode: ServiceMode = "carla", clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Serves a driver while the block runs; yields the port. Raises UserError for an address that cannot be used."""
    if not host.isprintable() or len(host) > HOST_CHARACTERS:  # gRPC would write it to the terminal
        raise UserError(f"{printable_name(host)} is no address: give --host")
    server = grpc.server(ThreadPoolExecutor(WORKERS), interceptors=(OneLineErrors(),), options=channel_options())
    servicer = LimitedServicer(driver, mode, clock)
    add_EgodriverServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    add_CarlaVehicleServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    address = bind_address(host, port)
    try:
        bound_port = server.add_insecure_port(address)
    except RuntimeError:
        bound_port = 0
    if not bound_port:
        raise UserError(
            f"{printable_name(address)} cannot be served: the port is in use or the address is not this machine's; "
            "give --port"
        )
    server.start()
    try:
        yield bound_port
    finally:
        server.stop(GRACE_S).wait()


def run_server(driver: BaseDriver, port: int, host: str, mode: ServiceMode) -> None:
    """Serves until Ctrl-C or SIGTERM. Raises UserError as `serving`."""
    ended = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with serving(driver, port, host, mode):
        try:
            ended.wait()
        except KeyboardInterrupt:
            return
