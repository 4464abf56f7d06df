"""The live page: inputs, plans and verdicts of a running planner, in a browser on this machine.

    python -m reflectdrive_ros.demo.live --port 8000

It subscribes to the node's topics, so it works for `reflectdrive demo --live` and for a node on a vehicle. The server
is Python's own, answers this machine only, and needs no network access. It answers only requests to `localhost` or
127.0.0.1, on any port: the page of another site whose name resolves to this machine gets nothing (DNS rebinding).
"""

from __future__ import annotations

import io
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .. import pages
from ..core.config import VehicleConfig
from ..core.tokens import TokenLayout
from ..infra import arguments
from ..infra.command import HelpFormatter
from ..infra.errors import Parser, UserError, printable
from ..infra.signals import run_until_stopped
from . import live_view
from .live_topics import Listener
from .world_node import new_context, spin_in_background

HOST = "127.0.0.1"
PORT = 8000
HOSTS = re.compile(r"(localhost|127\.0\.0\.1)(:[0-9]{1,5})?", re.IGNORECASE)  # any port: that of a tunnel differs
CONNECTIONS = 32  # at the same time; a browser opens six for a page
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# for a whole request, from the start of the connection or the answer before, and again for its answer; the page sends
# ten requests per second
REQUEST_S = 10.0
STAMP = re.compile(r"([0-9]{1,19})(\.jpg)?")  # of an image, ns; int() refuses much longer ones


class PortError(UserError):
    """The page's port cannot be used; the message names it and what to do."""


class LiveServer(ThreadingHTTPServer):
    """Serves `/`, `/state.json`, `/road.json` and `/camera/NAME/STAMP.jpg` from a listener's messages."""

    daemon_threads = True

    def __init__(self, port: int, listener: Listener, vehicle: VehicleConfig, layout: TokenLayout) -> None:
        """Raises PortError for a port in use; port 0 selects a free one."""
        self.listener, self.vehicle, self.layout = listener, vehicle, layout
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self.html = pages.page("live.html").encode()
        try:
            super().__init__((HOST, port), RequestHandler)
        except OSError as fault:
            raise PortError(f"port {port} cannot be used: {fault.strerror}; choose another with --port") from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """One connection beyond CONNECTIONS gets the status 503."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes the connection early is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class TimedReader(socket.SocketIO):
    """Reads from a connection until `end_s`, whatever arrives in the meantime; then raises TimeoutError."""

    end_s = float("inf")  # of time.monotonic

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, "r")
        self._connection = connection

    def readinto(self, buffer: Any) -> int | None:
        left_s = self.end_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return super().readinto(buffer)


class RequestHandler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._reader = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.end_s = time.monotonic() + REQUEST_S
        super().handle_one_request()

    def do_GET(self) -> None:
        self.connection.settimeout(REQUEST_S)  # of the answer
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not HOSTS.fullmatch(hosts[0].strip()):
            self.close_connection = True
            self._answer(
                b"this page answers requests to localhost and 127.0.0.1 only",
                "text/plain",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
            return
        path = self.path.partition("?")[0]
        words = path.strip("/").split("/")
        if path == "/":
            self._answer(self.server.html, "text/html; charset=utf-8")
        elif path == "/state.json":
            state = live_view.state(self.server.listener.live_state(), self.server.vehicle, self.server.layout)
            self._answer_json(state)
        elif path == "/road.json":
            version, rings = self.server.listener.road()
            self._answer_json({"version": version, "rings": [pages.round_list(ring, 2) for ring in rings]})
        elif len(words) == 3 and words[0] == "camera" and (stamp := STAMP.fullmatch(words[2])):
            jpeg = self.server.listener.jpeg(words[1], int(stamp[1]))
            if jpeg is None:
                self._answer(b"this image is gone", "text/plain", HTTPStatus.NOT_FOUND)
            else:
                self._answer(jpeg, "image/jpeg")
        else:
            self._answer(b"there is no such page", "text/plain", HTTPStatus.NOT_FOUND)

    def _answer_json(self, content: Any) -> None:
        self._answer(json.dumps(content, separators=(",", ":"), allow_nan=False).encode(), "application/json")

    def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Ten requests per second are not logged."""


@contextmanager
def serve(port: int, vehicle: VehicleConfig, layout: TokenLayout | None = None, node: str = "") -> Iterator[LiveServer]:
    """Serves the page while the block runs; listener, server and threads end with it. Raises PortError.

    `layout`: of the planner's tokens, by default that of the shipped models. `node`: full name of the planner's node,
    by default the first one by name.
    """
    context = new_context()
    listener = Listener(context, node)
    with spin_in_background(listener, context=context):
        page = LiveServer(port, listener, vehicle, layout or TokenLayout())
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.1}, name="page", daemon=True)
        thread.start()
        try:
            yield page
        finally:
            page.shutdown()
            page.server_close()
            thread.join(timeout=2.0)


def main(args: list[str] | None = None) -> int:
    parser = Parser(prog="live", description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--port", type=arguments.PORT, default=PORT, help="of the page")
    parser.add_argument(
        "--node", default="", metavar="NAME", help="full name of the planner's node (default: the first one by name)"
    )
    parsed = parser.parse_args(sys.argv[1:] if args is None else args)
    try:
        with serve(parsed.port, VehicleConfig(), node=parsed.node) as page:
            sys.stdout.write(f"{page.url} shows the running planner; Ctrl-C ends\n")
            sys.stdout.flush()
            threading.Event().wait()
    except UserError as fault:
        sys.stderr.write(printable(f"live: {fault}\n"))
        return 2
    return 0


if __name__ == "__main__":
    run_until_stopped(main)
