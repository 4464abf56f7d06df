"""Index of the frames of recorded drives: one row per tick, with the reasons why a tick became no scene.

A Parquet file with a column per field of `FrameRow`; its schema's metadata has a header with `format` and what the rows
depend on. Pages have checksums.

    write_rows(path, header, rows)
    header, rows = read_rows(path)
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..infra.documents import DocumentError, array, check_fields, flag, number, parse_json, text, whole
from ..infra.files import read_limited, shown, write_atomic
from .shards import SetError

FORMAT = 2  # of an index, and of a set made of recordings; in format 1 the index was JSON lines
INDEX_BYTES = 1 << 30  # of the largest file; a row has some 50 bytes
HEADER = b"reflectdrive"  # key of the header

# name of a reason -> what is counted under it
REASONS: Mapping[str, str] = {
    "missing_input": "an image, camera_info, camera pose, odometry, route or older image is not there",
    "stale_input": "an input is older than the node's age limit, or images are not of one instant",
    "refused_input": "an input was refused by the node: damaged, frozen, in another frame, not possible for a car",
    "incomplete_history": "less than 2 s of odometry before",
    "incomplete_future": "less than 4 s of odometry, or 5 s of objects, ahead",
    "gap": "a gap in the odometry between 2 s before and 4 s ahead",
    "localisation_jump": "the position jumps within that time",
    "localisation_covariance": "the standard deviation of the position is too large within that time",
    "standing": "the car stands for long, and still does 4 s ahead",
    "manual_override": "a person drives in the 4 s ahead, by the interval file or the override topic",
    "off_lane": "the car is too far from the lanes of the map",
    "runs_red_light": "the driven path crosses the stop line of a light that is red then",
    "future_collides": "the driven path overlaps an object within 4 s",
    "future_off_road": "the driven path leaves the road of the map within 4 s",
    "place_of_val": "a drive of the validation set passes the same place",
}


@dataclass(frozen=True)
class FrameRow:
    """One tick of a drive."""

    drive: str
    tick: int  # number of ticks since the bag's start
    stamp_ns: int  # of the odometry; of reception where there is none
    valid: bool
    reasons: tuple[str, ...]  # of REASONS; empty if valid
    problem: str  # the node's sentence on its inputs
    x_m: float  # of the rear axle, map frame
    y_m: float
    speed_mps: float
    place: str  # tile of the map
    tag: str  # scenario
    command: str
    hindsight: bool  # route and command come from the driven path
    objects: bool  # whether objects are known
    split: str = ""  # train or val
    scene: str = ""  # name of the scene made of it


FIELDS = {
    "drive": text(),
    "tick": whole(0, 2**40),
    "stamp_ns": whole(-(2**63), 2**63 - 1),
    "valid": flag,
    "reasons": array(text(), 0, len(REASONS)),
    "problem": text(),
    **dict.fromkeys(("x_m", "y_m", "speed_mps"), number()),
    **dict.fromkeys(("place", "tag", "command", "split", "scene"), text()),
    "hindsight": flag,
    "objects": flag,
}


SCHEMA = pyarrow.schema(
    {
        **dict.fromkeys(FIELDS, pyarrow.string()),
        **dict.fromkeys(("tick", "stamp_ns"), pyarrow.int64()),
        **dict.fromkeys(("valid", "hindsight", "objects"), pyarrow.bool_()),
        **dict.fromkeys(("x_m", "y_m", "speed_mps"), pyarrow.float64()),
        "reasons": pyarrow.list_(pyarrow.string()),
    }
)


def write_rows(path: Path, header: Mapping[str, Any], rows: Iterable[FrameRow]) -> None:
    """Writes an index whole or not at all. Raises OSError naming the file."""
    schema = SCHEMA.with_metadata({HEADER: json.dumps({"format": FORMAT, **header})})
    table = pyarrow.Table.from_pylist([asdict(row) for row in rows], schema=schema)
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content, write_page_checksum=True)
    write_atomic(path, content.getvalue())


def read_rows(path: Path) -> tuple[dict[str, Any], list[FrameRow]]:
    """Header and rows. Raises SetError for a file that is damaged or of a newer version, OSError."""
    content = read_limited(path, INDEX_BYTES)
    try:
        table = _table(content)
        header = parse_json((table.schema.metadata or {}).get(HEADER, b"null"))
        if not isinstance(header, dict) or "format" not in header:
            raise DocumentError("has no header")
        check_format(path, header["format"])
        return header, [_row(row) for row in table.to_pylist()]
    except DocumentError as fault:
        raise SetError(f"{shown(path)} {fault}: remove it, and it is made again") from None


def _table(content: bytes) -> Any:
    """Raises DocumentError."""
    try:
        return pyarrow.parquet.read_table(io.BytesIO(content), page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError, ValueError) as fault:
        raise DocumentError(f"is no Parquet file that can be read ({str(fault).splitlines()[0][:200]})") from None


def check_format(path: Path, found: Any) -> None:
    """Raises SetError for an index of a newer version."""
    if found != FORMAT:
        raise SetError(
            f"{shown(path)} has format {found}, this version reads {FORMAT}: it was written by another version of "
            "reflectdrive; use that one, or name another folder with --out"
        )


def _row(content: Any) -> FrameRow:
    check_fields(content, FIELDS)
    values = {entry.name: content[entry.name] for entry in fields(FrameRow)}
    return FrameRow(**{**values, "reasons": tuple(values["reasons"])})


def reason_counts(rows: Sequence[FrameRow]) -> dict[str, int]:
    """Ticks by reason, in the order of REASONS; a tick may have several."""
    return {name: count for name in REASONS if (count := sum(name in row.reasons for row in rows))}
