"""A score of each drive, 0 to 100, after nuPlan's closed-loop score.

    by_job = scores(results)                    # all drives of a seed: progress is relative to the best of them
    by_job["route_follower", 3].total           # 0..1

The score is the product of four multipliers and the weighted mean of four terms (`TERM_WEIGHTS`), each 0..1. The bounds
are those of nuPlan; the terms are computed by the PDM score's code and not compared with nuPlan's devkit. What differs:

- Progress is relative to the best drive of the seed, not to a human's: to the longest way along the route. Of a drive
  with a multiplier of 0 or a red light the way before its first fault counts. Where a seed has a single drive, the
  progress of its plans is relative to that of the reference planner from the same states.
- A car is against the lanes where its centre is more than 0.3 m out of those of its direction: in narrow roads one that
  passes an obstacle straddles the line.
- Time to collision and comfort are all or nothing over a scenario of nuPlan, 15 s. Here they are the share of the
  drive's windows of about 15 s that keep the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.domain import AgentKind, Array
from ..scoring import metrics
from ..scoring.simulate import DT_S
from ..sim.drive_log import MIN_COMFORT_STATES, Collision, DriveLog
from ..sim.traffic.actors import KIND_OF_SHAPE
from .drive_results import DriveResult, Job

TERM_WEIGHTS = {"progress": 5.0, "ttc": 5.0, "speed_limit": 4.0, "comfort": 2.0}
OFF_ROAD_M = 0.3  # a corner may be this far off the drivable space
MIN_SHARE_M = 2.0  # less counts as this much, of the drive and of the best
MAKING_PROGRESS = 0.2  # a smaller share of the best is no progress
MAX_OVERSPEED_MPS = 2.23  # above the limit for the whole drive: the term is 0
WINDOW_S = 15.0  # a scenario of nuPlan


TERMS = {  # the fields of a DriveScore and their headings
    "no_contact": "no contact at fault",
    "drivable_area": "on the road",
    "direction": "its direction",
    "making_progress": "makes progress",
    "progress": "progress",
    "ttc": "TTC",
    "speed_limit": "speed limit",
    "comfort": "comfort",
}


@dataclass(frozen=True)
class DriveScore:
    """Terms of one drive, 0..1: four multipliers, then those of TERM_WEIGHTS."""

    no_contact: float  # 0 for a contact at fault with a road user or two with objects, 0.5 for one with an object
    drivable_area: float  # 0 if a corner was more than OFF_ROAD_M off the drivable space
    direction: float  # 0.5 or 0 for more than 2 m or 6 m against the direction of the lanes within a second
    making_progress: float  # 0 if `progress` is below MAKING_PROGRESS
    progress: float  # along the route, relative to the best
    ttc: float  # share of windows in which the time to collision is never below 0.95 s
    speed_limit: float  # 1 less the mean speed above the limit over MAX_OVERSPEED_MPS, at least 0
    comfort: float  # share of windows within the comfort bounds

    @property
    def total(self) -> float:
        multiplier = self.no_contact * self.drivable_area * self.direction * self.making_progress
        mean = sum(weight * float(getattr(self, name)) for name, weight in TERM_WEIGHTS.items()) / sum(
            TERM_WEIGHTS.values()
        )
        return multiplier * mean


def scores(results: Sequence[DriveResult]) -> dict[Job, DriveScore]:
    """The scores of drives by planner and seed. Drives of the same seed are compared with each other."""
    by_seed: dict[int, list[DriveResult]] = {}
    for result in results:
        by_seed.setdefault(result.seed, []).append(result)
    return {
        (result.planner, result.seed): _score(result, progress)
        for drives in by_seed.values()
        for result, progress in zip(drives, _relative_progress(drives), strict=True)
    }


def score_metrics(results: Sequence[DriveResult], by_job: Mapping[Job, DriveScore]) -> dict[str, Any]:
    """Means over drives in percent: `drive_score`, None without drives, and the terms under `drive_terms`."""
    rows = [by_job[result.planner, result.seed] for result in results]
    terms = TERMS if rows else {}
    return {
        "drive_score": round(100.0 * float(np.mean([row.total for row in rows])), 2) if rows else None,
        "drive_terms": {name: round(100.0 * float(np.mean([getattr(row, name) for row in rows])), 2) for name in terms},
    }


def progress_note(results: Sequence[DriveResult]) -> str:
    """What the progress in the scores of these drives is relative to."""
    seeds = [result.seed for result in results]
    alone = sum(seeds.count(seed) == 1 for seed in set(seeds))
    best, reference = "the best drive of the same world", "the reference planner, for want of another planner's drive"
    if alone == 0:
        return f"drive score: progress is relative to {best}"
    where = "" if alone == len(set(seeds)) else f"{best}; in {alone} worlds to "
    return f"drive score: progress is relative to {where}{reference}"


def _score(result: DriveResult, progress: float) -> DriveScore:
    log, measurements = result.log, result.measurements
    no_contact, drivable_area, direction = _faults(result)
    windows = _windows(log)
    overspeed_mps = measurements.overspeed_m / max(log.duration_s, DT_S)
    return DriveScore(
        no_contact,
        drivable_area,
        direction,
        making_progress=float(progress >= MAKING_PROGRESS),
        progress=progress,
        ttc=float(np.mean([not np.isin(measurements.ttc_steps, window).any() for window in windows])),
        speed_limit=max(1.0 - overspeed_mps / MAX_OVERSPEED_MPS, 0.0),
        comfort=float(np.mean([_is_comfortable(log, window) for window in windows])),
    )


def _faults(result: DriveResult) -> tuple[float, float, float]:
    """The multipliers that do not depend on other drives."""
    measurements = result.measurements
    on_road = float(measurements.off_road_depth_m <= OFF_ROAD_M)
    return _no_contact(result.log.collisions), on_road, measurements.direction


def _no_contact(collisions: Sequence[Collision]) -> float:
    at_fault = [one for one in collisions if one.at_fault]
    objects = sum(KIND_OF_SHAPE[one.shape] == AgentKind.STATIC for one in at_fault)
    if len(at_fault) > objects or objects > 1:
        return 0.0
    return 0.5 if objects else 1.0


def _relative_progress(drives: Sequence[DriveResult]) -> list[float]:
    """Of all drives of one seed, 0..1."""
    if len(drives) == 1:
        alone = drives[0].measurements
        return [_share(alone.plan_progress_m, alone.reference_progress_m)]
    best_m = max(map(_reference_m, drives))
    return [_share(drive.measurements.progress_m, best_m) for drive in drives]


def _reference_m(drive: DriveResult) -> float:
    """Progress by which other drives of the seed are measured."""
    has_fault = math.prod(_faults(drive)) == 0.0 or drive.log.count("red_light") > 0
    return drive.measurements.faultless_progress_m if has_fault else drive.measurements.progress_m


def _share(progress_m: float, best_m: float) -> float:
    if progress_m < -MIN_SHARE_M:
        return 0.0
    return min(max(progress_m, MIN_SHARE_M) / max(best_m, MIN_SHARE_M), 1.0)


def _windows(log: DriveLog) -> list[Array]:
    """Indices of the drive's instants, in equal parts of about WINDOW_S."""
    return np.array_split(np.arange(len(log.states)), max(round(log.duration_s / WINDOW_S), 1))


def _is_comfortable(log: DriveLog, window: Array) -> bool:
    """Whether all comfort bounds hold; too few states are not judged."""
    if len(window) < MIN_COMFORT_STATES:
        return True
    return bool(metrics.comfort_flags(log.states[window][None], log.vehicle, metrics.COMFORT_SANE).all())
