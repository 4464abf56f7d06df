"""Validation of the numbers in an .osm file before lanelet2 reads it.

lanelet2 reads text as 0 and accepts NaN coordinates; building such a map crashes the process with signal 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from ..infra.files import MEGABYTE, open_limited

MAX_BYTES = 1024 * MEGABYTE
BLOCK_BYTES = MEGABYTE // 16
MAX_MARKUP_BYTES = MEGABYTE  # of one comment or tag; those of maps have less than 1 kB
LIMITS = {"lat": 90.0, "lon": 180.0}  # degrees
MAX_COORDINATE_M = 2e7  # largest coordinate in a map frame; northings of UTM reach 1e7
MAX_ID = 2**63 - 1
MEMBERS = ("nd", "member")  # of ways and relations


class OsmError(ValueError):
    """A map cannot be used; the message gives the element and the reason, without the file name."""


@dataclass
class OsmNodes:
    """Summary of the nodes of a map, filled while the file is read."""

    count: int = 0
    lat: float = 0.0  # degrees, the mean; an empty one counts as 0
    lon: float = 0.0
    local_x: int = 0  # number of nodes with this tag, the position in the map frame
    local_y: int = 0
    within: str = ""  # the element being read, for messages

    @property
    def has_local_coordinates(self) -> bool:
        return 0 < self.count == self.local_x == self.local_y

    def begin(self, name: str, attributes: Mapping[str, str]) -> None:
        """The beginning of an XML element. Raises OsmError."""
        if name in ("node", "way", "relation"):
            self.within = f"{name} {_parse_id(attributes, 'id', name)}"
            if name == "node":
                self.count += 1
                lat, lon = (
                    _parse_number(attributes.get(axis) or "0", axis, most, self.within) for axis, most in LIMITS.items()
                )
                self.lat += (lat - self.lat) / self.count
                self.lon += (lon - self.lon) / self.count
        elif name in MEMBERS:
            _parse_id(attributes, "ref", f"{self.within}, {name}")
        elif name == "tag" and self.within.startswith("node") and attributes.get("k") in ("local_x", "local_y", "ele"):
            key = attributes["k"]
            _parse_number(attributes.get("v", ""), key, MAX_COORDINATE_M, self.within)
            if key != "ele":
                setattr(self, key, getattr(self, key) + 1)


def check_osm(path: Path) -> OsmNodes:
    """Parse the whole file once without keeping it, in a time linear in its size.

    Raises OsmError and, as `files.open_limited`, OSError.
    """
    nodes, parser, read_bytes = OsmNodes(), expat.ParserCreate(), 0
    parser.StartElementHandler = nodes.begin
    try:
        with open_limited(path, MAX_BYTES) as file:
            while block := file.read(BLOCK_BYTES):
                parser.Parse(block)
                read_bytes += len(block)
                begin_byte = max(parser.CurrentByteIndex, 0)  # of what is unfinished, which the next block scans again
                if read_bytes - begin_byte > MAX_MARKUP_BYTES:
                    size = f"more than {MAX_MARKUP_BYTES // MEGABYTE} MB"
                    raise OsmError(f"has a comment or tag of {size} at byte {begin_byte}: remove it")
        parser.Parse(b"", True)
    except expat.ExpatError as fault:
        raise OsmError(f"is no XML: {fault}") from None
    return nodes


def _parse_id(attributes: Mapping[str, str], name: str, where: str) -> int:
    text = attributes.get(name, "")
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < abs(value) <= MAX_ID:
        raise OsmError(f"has a bad {name} in {where}: '{text[:40]}', expected a whole number other than 0")
    return value


def _parse_number(text: str, name: str, most: float, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= most:  # also of nan
        raise OsmError(f"has a bad {name} in {where}: '{text[:40]}', expected a number from {-most:g} to {most:g}")
    return value
