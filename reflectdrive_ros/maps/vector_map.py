"""Autoware's map from its topic, read in the background in a separate process; the last readable map is used.

The message holds a boost archive of lanelet2's C++ objects. `vector_map_reader.py` reads it in a child process, because
malformed bytes can crash the reader; the result is plain arrays.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import Any

import numpy as np

from ..core.domain import Array
from ..core.messages import BadMessage, require_frame
from ..infra.documents import read_arrays
from .lanelet_elements import MapElements, unpack
from .lanelet_map import LaneletMap, MapSource, absent_stop_lines
from .vector_map_reader import ERROR_FILE, RESULT_FILE

READER_TIMEOUT_S = 120.0  # of wall clock; on a busy machine its processor time runs slower
ARCHIVE_HEADER = b"\x16\0\0\0\0\0\0\0serialization::archive"  # of every boost archive on a machine of 64 bits
SOURCE = MapSource(
    "Autoware's map",
    "check that map, route and odometry are in the same frame",
    "plan the route again on this map",
)
OR_A_FILE = "or set inputs.lanelet_map to the map's .osm file"
NOT_YET = f"the map has not been received yet: start Autoware's map_loader (/map/vector_map), {OR_A_FILE}"
BEING_READ = "the map is being read"


class VectorMap:
    """`put` and the other methods may be called from different threads."""

    def __init__(self, map_frame: str, background: Executor) -> None:
        """`background` must do one thing after the other."""
        self._map_frame, self._background = map_frame, background
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None
        self._read: tuple[bytes, LaneletMap] | None = None  # SHA-256 of its bytes
        self._fault = NOT_YET  # why there is no map, or why the newest message is not used; empty if it is
        self._lost_stop_lines: Array = np.zeros((0, 2, 2))
        self.refused = 0

    def put(self, message: Any) -> None:
        """Starts to read an autoware_map_msgs/LaneletMapBin. Until it is read, and if it cannot be read, the map before
        it stays in use: the car need not stop when the map server restarts, and forgets no stop line.
        """
        if self._reading is not None:
            self._reading.cancel()  # a waiting map is no longer the newest
        with self._lock:
            if self._read is None:
                self._fault = BEING_READ
        self._reading = self._background.submit(self._take, message)

    def newest(self) -> LaneletMap:
        """The last readable one. Raises BadMessage where there is none."""
        with self._lock:
            if self._read is None:
                raise BadMessage(self._fault)
            return self._read[1]

    def problem(self) -> str:
        """Why there is no map; empty if there is one."""
        with self._lock:
            return "" if self._read is not None else self._fault

    def remark(self) -> str:
        """Why the newest message is not used in place of the map before it; empty if it is, and without a map."""
        with self._lock:
            return f"{self._fault}; the map before it stays in use" if self._read is not None and self._fault else ""

    def lost_stop_lines(self) -> Array:
        """(K, 2, 2) m, map frame: stop lines of lights of the maps until now that the map in use does not have."""
        with self._lock:
            return self._lost_stop_lines

    def wait_idle(self) -> None:
        """Wait until what was put has been read."""
        if self._reading is not None:
            wait([self._reading])

    def _take(self, message: Any) -> None:
        """In the background."""
        try:
            require_frame(message.header, self._map_frame, "the map")
            data = bytes(message.data)
            digest = hashlib.sha256(data).digest()
            if self._read is not None and self._read[0] == digest:
                read = self._read  # the same map again: results computed from it stay valid
            else:
                lanelets = LaneletMap(read_elements(data), SOURCE)
                _ = lanelets.lights, lanelets.road, lanelets.lane_segments  # stored in it
                read = digest, lanelets
        except BadMessage as why:
            self._refuse(str(why))
        except Exception as why:  # any error must become a diagnostic
            self._refuse(f"the map cannot be read: {type(why).__name__}: {' '.join(str(why).split())}")
        else:
            before = [] if self._read is None else [self._lost_stop_lines, self._read[1].lights.stop_lines]
            lost = absent_stop_lines(np.concatenate([np.zeros((0, 2, 2)), *before]), read[1].lights)
            with self._lock:
                self._read, self._fault, self._lost_stop_lines = read, "", lost

    def _refuse(self, fault: str) -> None:
        with self._lock:
            self._fault = fault
            self.refused += 1


def read_elements(data: bytes) -> MapElements:
    """The elements of an archive. Raises BadMessage."""
    if not data.startswith(ARCHIVE_HEADER):
        what = "is empty" if not data else "does not start like a map of lanelet2"
        raise BadMessage(f"the map cannot be read: it {what}: check its publisher, {OR_A_FILE}")
    command = [sys.executable, "-m", f"{__package__}.vector_map_reader"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="reflectdrive-map-") as name:
        folder = Path(name)
        try:
            done = subprocess.run(
                [*command, name],
                input=data,
                env=environment,
                capture_output=True,
                timeout=READER_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BadMessage(
                f"the map cannot be read: reading took more than {READER_TIMEOUT_S:.0f} s, {OR_A_FILE}"
            ) from None
        if (folder / ERROR_FILE).exists():
            raise BadMessage(f"the map cannot be read: {(folder / ERROR_FILE).read_text(encoding='utf-8')}")
        if done.returncode:
            raise BadMessage(f"the map cannot be read: {describe_exit(done)}: check its publisher, {OR_A_FILE}")
        try:
            return unpack(read_arrays(folder / RESULT_FILE))
        except (OSError, ValueError, KeyError) as fault:
            raise BadMessage(f"the map cannot be read: the output of its reader is incomplete ({fault})") from None


def describe_exit(reader: subprocess.CompletedProcess[bytes]) -> str:
    """How the reader ended, and its last words."""
    code = reader.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    words = reader.stderr.decode(errors="replace").split("\n")
    last = next((f" ({line.strip()[:200]})" for line in reversed(words) if line.strip()), "")
    return f"its reader {how}{last}"
