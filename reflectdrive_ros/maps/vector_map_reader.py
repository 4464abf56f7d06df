"""The short-lived process that reads Autoware's map: bytes on its standard input, plain arrays in a file.

    python -m reflectdrive_ros.maps.vector_map_reader FOLDER < DATA

Autoware's toBinMsg writes a boost archive, the same as a .bin file of lanelet2. Reading such an archive is unsafe:
lengths are not checked, and malformed ones cause gigabytes of memory, endless loops or a crash. Here that affects this
process only. It writes RESULT_FILE in the folder, or ERROR_FILE with one sentence.
"""

from __future__ import annotations

import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..core.domain import Array
from .lanelet_elements import elements_of, pack

ARCHIVE_FILE, RESULT_FILE, ERROR_FILE = "map.bin", "lanelets.npz", "fault.txt"
MEMORY_BYTES = 4 << 30  # a map of 60 MB (20,000 lanelets, a million points) takes 0.8 GB
CPU_S = 60  # such a map takes 7 s
FILE_BYTES = 2 << 30
STEP_MAX_M = 10_000.0  # a longer step in a line is damage, and lanes with a point every 2 m would fill the memory
NICENESS = 10  # the planner has priority
TOO_LARGE = (
    f"it is malformed, or takes more than {MEMORY_BYTES >> 30} GB to read: set inputs.lanelet_map to the .osm file"
)
UNKNOWN_RULE = "No regulatory element found that implements rule "  # text of lanelet2


class UnreadableMap(Exception):
    """One sentence: why, and what to do."""


def main() -> int:
    limit_resources()
    folder = Path(sys.argv[1])
    try:
        with (folder / RESULT_FILE).open("xb") as file:
            np.savez(file, **read(sys.stdin.buffer.read(), folder / ARCHIVE_FILE))
    except (UnreadableMap, MemoryError) as fault:
        why = str(fault) if isinstance(fault, UnreadableMap) else TOO_LARGE
        (folder / ERROR_FILE).write_text(why, encoding="utf-8")
        return 1
    return 0


def limit_resources() -> None:
    os.nice(NICENESS)
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def read(data: bytes, file: Path) -> dict[str, Any]:
    """The elements of an archive, packed. `file` is its temporary path, because lanelet2 reads only files."""
    from lanelet2 import io, projection

    missing = register_autoware_rules()
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as archive:
        archive.write(data)
    try:
        # points are in the map frame already: the projector is required and not used
        loaded = io.load(str(file), projection.MercatorProjector(io.Origin(0.0, 0.0)))
    except RuntimeError as fault:
        raise UnreadableMap(explain_error(" ".join(str(fault).split()), missing)) from None
    finally:
        file.unlink()
    arrays = pack(elements_of(loaded))
    if not len(arrays["ids"]):
        raise UnreadableMap("it holds no lanelet: give Autoware a map with lanelets")
    if not all(np.isfinite(arrays[name]).all() for name in ("points", "area_points")):
        raise UnreadableMap("it has points at NaN or infinity: correct the map")
    step_m = longest_step_m(arrays["points"], arrays["ends"])
    if step_m > STEP_MAX_M:
        raise UnreadableMap(
            f"a line of it has two points {step_m:.3g} m apart, at most {STEP_MAX_M:g} m are read: correct the map, or "
            "check its publisher"
        )
    return arrays


def longest_step_m(points: Array, ends: Array) -> float:
    """The longest distance between two points that follow each other, of lines that are one after the other in
    points (N, 2) and end at `ends`; 0 without any."""
    steps_m = np.hypot(*np.diff(points, axis=0).T)
    between_lines = ends[(ends > 0) & (ends < len(points))] - 1
    steps_m[between_lines] = 0.0
    return float(steps_m.max(initial=0.0))


def register_autoware_rules() -> str:
    """Registers Autoware's regulatory elements in lanelet2 if they are installed; returns the reason if not."""
    try:
        import_module("autoware_lanelet2_extension_python.regulatory_elements")  # this registers them
    except ImportError as fault:
        return str(fault)
    return ""


def explain_error(why: str, missing: str) -> str:
    """What lanelet2 complained of, and what to do about it."""
    if UNKNOWN_RULE not in why:
        return f"lanelet2 says '{why}': it is incomplete or malformed, or another version of lanelet2 or boost wrote it"
    rule = why.partition(UNKNOWN_RULE)[2].partition(" ")[0]
    if not missing:
        return f"lanelet2 does not know its rule '{rule}': update autoware_lanelet2_extension_python"
    return (
        f"lanelet2 does not know its rule '{rule}', because Autoware's own rules cannot be imported ({missing}): "
        "install the ROS package autoware_lanelet2_extension_python, or set inputs.lanelet_map to the map's .osm file"
    )


if __name__ == "__main__":
    raise SystemExit(main())
