"""The index of a set made of recordings: which bag, or part of one, is indexed where, and the splits.

OUT/frames/DRIVE.parquet         rows of one bag
OUT/frames/DRIVE.1of2.parquet    of a part of it, until all parts are whole
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data import frame_index
from ..data.frame_index import FrameRow
from ..infra.parallel import Workers
from ..ros.bag import BagError
from .checks import problem_reason

FRAMES = "frames"
SPLITS = ("train", "val")


@dataclass(frozen=True)
class ConversionJob:
    """One bag or a part of one. Without `pending_shards` it is indexed, else those shards are written."""

    bag: Path
    drive: str
    out: Path
    dependencies_sha256: str  # hash of what its files depend on
    size: int = 0  # of the bag, bytes
    part: tuple[int, int] = (0, 1)  # which part of the bag is indexed, and of how many
    pending_shards: tuple[tuple[str, tuple[int, ...]], ...] | None = None  # shard that is to be made -> its ticks


def count_parts(sizes: Sequence[int], workers: Workers) -> list[int]:
    """Into how many parts each bag is divided, by its share of the work, so that no worker is idle. The workers of a
    cluster have whole bags."""
    total = max(sum(sizes), 1)
    return [max(-(-workers * size // total), 1) if isinstance(workers, int) else 1 for size in sizes]


def index_path(job: ConversionJob) -> Path:
    number, count = job.part
    return job.out / FRAMES / (f"{job.drive}.parquet" if count == 1 else f"{job.drive}.{number + 1}of{count}.parquet")


def join_indices(jobs: Sequence[ConversionJob], parts: Sequence[ConversionJob]) -> None:
    """Writes the indices of bags whose parts are all whole, and removes the parts."""
    for job in jobs:
        mine = [part for part in parts if part.drive == job.drive]
        contents = [read_index(part) for part in mine]
        if len(mine) > 1 and all(each is not None for each in contents):
            headers, rows = zip(*filter(None, contents), strict=True)
            notice = next((header["notice"] for header in headers if header["notice"]), "")
            frame_index.write_rows(
                index_path(job), {**headers[0], "notice": notice}, [r for each in rows for r in each]
            )
        if read_index(job) is not None:
            for path in (job.out / FRAMES).glob(f"{job.drive}.*of*.parquet"):
                path.unlink()


def read_index(job: ConversionJob) -> tuple[dict[str, Any], list[FrameRow]] | None:
    """Header and rows of a bag's index; None if it is missing or would be another now.

    Raises SetError for one that is damaged or of another version.
    """
    path = index_path(job)
    try:
        header, rows = frame_index.read_rows(path)
    except OSError:
        return None
    return (header, rows) if header.get("made_by") == job.dependencies_sha256 else None


def no_frame_sentence(bag: Path, rows: Sequence[FrameRow]) -> str:
    counts = frame_index.reason_counts(rows)
    reason = max(counts, key=counts.__getitem__, default="")
    problems = [part for row in reversed(rows) for part in row.problem.split("; ") if part]
    why = next((part for part in problems if problem_reason(part) == reason), frame_index.REASONS.get(reason, ""))
    return (
        f"bag {bag} has no valid frame: {counts.get(reason, 0)} of {len(rows)} ticks are skipped as {reason}"
        + f" ({why})" * bool(why)
    )


def assign_splits(rows: Mapping[str, Sequence[FrameRow]], val_share: float) -> dict[str, list[FrameRow]]:
    """Rows with their split: whole drives go to val, and frames of train at places that these pass are left out.

    Drives are chosen by the hash of their name, so that further drives move no other from one split to the other
    as long as the share of drives in val stays.
    """
    if not val_share:
        return {drive: [*each] for drive, each in rows.items()}
    if len(rows) < 2:
        raise BagError(f"--val-share {val_share:g} needs at least two drives: splits are by drive")
    order = sorted(rows, key=lambda drive: hashlib.sha256(drive.encode()).hexdigest())
    val = set(order[: min(max(round(val_share * len(order)), 1), len(order) - 1)])
    val_places = {row.place for drive in val for row in rows[drive] if row.place}
    rows_by_drive: dict[str, list[FrameRow]] = {}
    for drive, each in rows.items():
        split = "val" if drive in val else "train"
        rows_by_drive[drive] = [
            replace(row, split=split, valid=False, reasons=(*row.reasons, "place_of_val"))
            if split == "train" and row.place in val_places
            else replace(row, split=split)
            for row in each
        ]
    return rows_by_drive
