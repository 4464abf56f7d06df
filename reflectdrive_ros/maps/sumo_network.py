"""SUMO networks of towns and maps: SUMO's plain XML in, a network file and the roads read back out."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from ..core.domain import Array
from . import roads, sumo, u_turns
from .roads import RoadError, RoadMap

NETCONVERT = (
    "--offset.disable-normalization",
    "--geometry.remove=false",
    "--junctions.internal-link-detail=18",
    "--junctions.limit-turn-speed=3.5",
    "--precision=3",
    "--no-warnings",
    "--keep-edges.components=1",
)
FILE_OPTIONS = {"nodes": "node-files", "edges": "edge-files", "connections": "connection-files", "types": "type-files"}


def network_file(folder: Path, name: str) -> Path:
    """Where the SUMO network of a map or town is written: its name may be any text, so its hash is used."""
    return folder / f"{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}.net.xml"


def convert_network(name: str, plain: Mapping[str, str], folder: Path, options: Sequence[str]) -> RoadMap:
    """Convert plain XML (`nodes`, `edges`, `connections`, `types`) to a network in `folder` and read it back."""
    folder.mkdir(parents=True, exist_ok=True)
    net_file = network_file(folder, name)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        arguments = [*NETCONVERT, *options]
        for kind, text in plain.items():
            file = Path(scratch) / f"{kind}.xml"
            file.write_text(f"<{kind}>\n{text}\n</{kind}>\n")
            arguments.append(f"--{FILE_OPTIONS[kind]}={file}")
        try:
            net = sumo.convert(arguments, Path(scratch))
        except sumo.SumoRefused as fault:
            raise RoadError(f"{name} cannot be converted to a SUMO network: {fault}") from None
    u_turns.redraw_u_turns(net)
    ElementTree.ElementTree(net).write(net_file)
    return roads.read(net_file, name)


def metres_text(metres: float) -> str:
    """A length or coordinate in plain XML."""
    return f"{metres:.3f}"


def shape_text(line: Array) -> str:
    """Points (V, 2) in SUMO's shape format."""
    return " ".join(f"{metres_text(x)},{metres_text(y)}" for x, y in line)
