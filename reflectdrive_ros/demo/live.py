"""The live page: inputs, plans and verdicts of a running planner, in a browser on this machine.

    python -m reflectdrive_ros.demo.live --port 8000

It subscribes to the node's topics, so it works for `reflectdrive demo --live` and for a node on a vehicle. The server
is Python's own, answers this machine only, and needs no network access.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .. import arguments, pages
from ..command import HelpFormatter
from ..config import VehicleConfig
from ..errors import Parser, UserError, printable
from ..stopping import run_until_stopped
from ..tokens import TokenLayout
from . import live_view
from .live_topics import Listener
from .world_node import new_context, spin_in_background

HOST = "127.0.0.1"
PORT = 8000
IDLE_S = 10.0  # a connection without a request is closed after this time; the page sends ten per second
STAMP = re.compile(r"([0-9]{1,19})(\.jpg)?")  # of an image, ns; int() refuses much longer ones


class PortError(UserError):
    """The page's port cannot be used; the message names it and what to do."""


class LiveServer(ThreadingHTTPServer):
    """Serves `/`, `/state.json`, `/road.json` and `/camera/NAME/STAMP.jpg` from a listener's messages."""

    daemon_threads = True

    def __init__(self, port: int, listener: Listener, vehicle: VehicleConfig, layout: TokenLayout) -> None:
        """Raises PortError for a port in use; port 0 selects a free one."""
        self.listener, self.vehicle, self.layout = listener, vehicle, layout
        self.html = pages.page("live.html").encode()
        try:
            super().__init__((HOST, port), RequestHandler)
        except OSError as fault:
            raise PortError(f"port {port} cannot be used: {fault.strerror}; choose another with --port") from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes the connection early is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class RequestHandler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        words = path.strip("/").split("/")
        if path == "/":
            self._answer(self.server.html, "text/html; charset=utf-8")
        elif path == "/state.json":
            found = live_view.state(self.server.listener.heard(), self.server.vehicle, self.server.layout)
            self._answer_json(found)
        elif path == "/road.json":
            version, rings = self.server.listener.road()
            self._answer_json({"version": version, "rings": [live_view.round_list(ring, 2) for ring in rings]})
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
