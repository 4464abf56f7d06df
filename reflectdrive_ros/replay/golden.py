"""Golden replays: recorded observations must give the stored plans again.

A golden holds, for every plan of a replay, its stamp, verdict, source and poses; times depend on the machine and are
left out. One table holds the tolerances. A golden is changed on purpose only: `reflectdrive replay BAG --golden FILE
--update-golden`, after reading report.html, with the reason in the commit message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.domain import Array
from ..infra.documents import read_arrays
from ..infra.errors import UserError
from ..infra.files import MEGABYTE
from .record import ReplayRecord

TOLERANCES = {  # field: largest difference; the arithmetic of other processors differs in the last digits
    "stamp_ns": 0,
    "verdict": 0,
    "source": 0,
    "poses_xy": 1e-4,  # m, map frame
    "poses_heading": 1e-4,  # rad
    "speeds": 1e-3,  # m/s
}
MAX_BYTES = 256 * MEGABYTE
POINT_STRIDE = 5  # each fifth point of a plan: half a second apart


class GoldenError(UserError):
    """A golden is missing, does not fit, or may not be written; the message names what to do."""


def check_name(golden: Path) -> None:
    """Raises GoldenError for a folder and for a name without .npz, which numpy would append."""
    if golden.suffix != ".npz" or golden.is_dir():
        raise GoldenError(f"--golden {golden} is not a golden: give a file whose name ends in .npz")


def fields(record: ReplayRecord) -> dict[str, Array]:
    """The arrays of a golden: every plan, each with its every fifth point. Plans must be equally long, not too many."""
    frames = record.frames
    if len(frames) < len(record.plans.measures):
        raise GoldenError(f"a golden holds every plan, and {len(record.plans.measures)} are too many: give --duration")
    lengths = {len(frame.plan_poses) for frame in frames}
    if len(lengths) != 1:
        raise GoldenError(f"a golden needs plans of one length, this replay has {sorted(lengths)}")
    poses = np.stack([frame.plan_poses[POINT_STRIDE - 1 :: POINT_STRIDE] for frame in frames])
    return {
        "stamp_ns": np.array([frame.stamp_ns for frame in frames], np.int64),
        "verdict": np.array([frame.verdict for frame in frames], np.int64),
        "source": np.array([frame.source for frame in frames], np.int64),
        "poses_xy": poses[..., :2],
        "poses_heading": poses[..., 2],
        "speeds": np.stack([frame.plan_speeds[POINT_STRIDE - 1 :: POINT_STRIDE] for frame in frames]),
    }


def read(golden: Path) -> dict[str, Array]:
    """The arrays of a golden. Raises GoldenError when it does not exist or cannot be read."""
    try:
        content = read_arrays(golden, MAX_BYTES)
        arrays = {name: content[name] for name in TOLERANCES}
        if wrong := [
            name for name, values in arrays.items() if values.dtype.kind not in "if" or not np.isfinite(values).all()
        ]:
            raise ValueError(f"{', '.join(wrong)} holds a value that is not finite")
        return arrays
    except FileNotFoundError:
        raise GoldenError(f"golden {golden} does not exist: make it with --update-golden") from None
    except (OSError, ValueError, KeyError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise GoldenError(f"golden {golden} cannot be read ({why}): write it again with --update-golden") from None


def differences(record: ReplayRecord, golden: Path) -> list[str]:
    """One sentence for each field that differs by more than its tolerance; empty when the replay is as before.

    Raises GoldenError when there is no golden to compare with.
    """
    return compare_arrays(fields(record), read(golden), TOLERANCES)


def compare_arrays(now: Mapping[str, Array], before: Mapping[str, Array], tolerances: Mapping[str, float]) -> list[str]:
    """One sentence for each field, an array (N, ..) with a row per plan, that differs by more than its tolerance."""
    differences = []
    for name, tolerance in tolerances.items():
        if now[name].shape != before[name].shape:
            differences.append(f"{name}: {now[name].shape} now, {before[name].shape} in the golden")
            continue
        deviations = np.abs(now[name] - before[name])
        if name == "poses_heading":
            deviations = np.minimum(deviations, 2 * np.pi - deviations)
        if deviations.size and not deviations.max() <= tolerance:
            of_plans = deviations.reshape(len(deviations), -1).max(axis=1)
            first, count = int(np.argmax(~(of_plans <= tolerance))), int((~(of_plans <= tolerance)).sum())
            differences.append(
                f"{name}: {count} of {len(deviations)} plans differ by up to {deviations.max():.6g} "
                f"(allowed {tolerance:g}), first at plan {first}"
            )
    return differences


def write(record: ReplayRecord, golden: Path, whole: bool) -> None:
    """Writes the golden. Raises GoldenError unless the whole bag was replayed."""
    if not whole:
        raise GoldenError("a golden is only written from a replay of the whole bag through the engine")
    golden.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = fields(record)
    np.savez_compressed(golden, **arrays)
