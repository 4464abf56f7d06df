"""Results of drives, in memory and in the file from which a stopped run goes on.

with FinishedDrives(file, source, vehicle) as finished:   # UserError where another process writes into it
    for job in jobs:
        if job not in finished.results:
            finished.put(job, drive(job))
    finished.discard()                                     # all are done, and written elsewhere
"""

from __future__ import annotations

import fcntl
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..core.config import VehicleConfig
from ..core.domain import Array
from ..infra.errors import UserError
from ..scoring.simulate import DT_S
from ..sim.drive_log import Collision, DriveLog, Event
from ..sim.traffic.actors import ActorShape
from .drive_measurements import DriveMeasurements
from .incidents import Incident

Job = tuple[str, int]  # name of the planner's row, seed


@dataclass(frozen=True, eq=False)
class DriveResult:
    """One planner's drive in one world."""

    planner: str  # name of its row in the table
    seed: int
    town: str
    log: DriveLog
    measurements: DriveMeasurements  # for the score of the drive
    scores: Array  # (S,) PDM score of the plans that were driven, one each second, 0..1
    sub_scores: Array  # (S, 6) the parts of these scores, columns `drive_sums.PLAN_SCORES`, 0..1
    verdicts: Mapping[str, int]  # of the planner's own plans
    sources: Mapping[str, int]  # of the executed plans
    planning_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # processor time of steps, by their kind
    incidents: tuple[Incident, ...] = ()  # with the seconds before them
    errors: tuple[str, ...] = ()  # sentences that were logged as errors, in their order
    process_deaths: int = 0  # how many processes died in this drive before one ended it


def abnormalities(result: DriveResult) -> list[str]:
    """Sentences on what no drive should have, whatever the planner did: dead processes, errors, NaN and infinity."""
    sentences = []
    if result.process_deaths:
        sentences.append(f"its process died {result.process_deaths} times before the drive ended")
    sentences += [f"{text}{f' ({count} times)' if count > 1 else ''}" for text, count in Counter(result.errors).items()]
    log = result.log
    series = {"states": log.states, "clearances": log.clearances_m, "scores": result.scores, "parts": result.sub_scores}
    for name, values in series.items():
        rows = np.flatnonzero([not np.isfinite(row).all() for row in values])
        if len(rows):
            every_s = DT_S if name in ("states", "clearances") else 1.0
            sentences.append(f"{name} are NaN or infinite {len(rows)} times, first after {every_s * rows[0]:.1f} s")
    if not np.isfinite([log.progress_m, log.limit_distance_m]).all():
        sentences.append(f"progress is {log.progress_m} m of {log.limit_distance_m} m")
    return sentences


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    """The sentences that this package logs as errors while the block runs, each with its exception."""
    sentences: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fault = record.exc_info[1] if record.exc_info else None
            sentences.append(f"{record.getMessage()}{'' if fault is None else f': {type(fault).__name__}: {fault}'}")
            if logging.lastResort is not None and not logging.getLogger().handlers:  # as without this handler
                logging.lastResort.handle(record)

    collector = Collector(logging.ERROR)
    logger = logging.getLogger(__name__.partition(".")[0])
    logger.addHandler(collector)
    try:
        yield sentences
    finally:
        logger.removeHandler(collector)


class FinishedDrives:
    """The results of finished drives, each a line of a file; incidents are not part of it.

    Results in a file that was made by something else, or without measurements, are dropped; `note` is a sentence on it.
    A process can be killed at any time: a line that was cut short is dropped.
    """

    def __init__(self, file: Path, source: Mapping[str, Any], vehicle: VehicleConfig) -> None:
        """`source`: all that a result depends on besides planner and seed, ready for JSON.

        Raises UserError if another process writes into the file, OSError.
        """
        self.path = file
        self.results: dict[Job, DriveResult] = {}
        self.note = ""
        self._file = file.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"another process drives for {file}: wait for it to end, or give another --json") from None
        header = json.dumps(source, sort_keys=True).encode() + b"\n"
        self._file.seek(0)
        first = self._file.readline()
        if first != header:
            if first:
                self.note = f"{file} has drives of another program, settings, weights or maps: all are driven again"
            self._file.truncate(0)
            self._file.write(header)
            self._file.flush()
        else:
            self._read(vehicle, len(header))

    def _read(self, vehicle: VehicleConfig, end: int) -> None:
        """Reads whole lines, and removes what follows the first other one."""
        for line in self._file:
            try:
                row = json.loads(line)
                if "measurements" not in row and "states" in row:
                    self.note = f"{self.path} has drives without the terms of their score: these are driven again"
                result = _result_of(row, vehicle)
            except (ValueError, KeyError, TypeError, AttributeError):
                break
            if not line.endswith(b"\n"):
                break
            self.results[result.planner, result.seed] = result
            end += len(line)
        self._file.truncate(end)

    def put(self, result: DriveResult) -> None:
        """Raises OSError."""
        self.results[result.planner, result.seed] = result
        self._file.write(json.dumps(_row_of(result), separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def discard(self) -> None:
        """Removes the file."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> FinishedDrives:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _row_of(result: DriveResult) -> dict[str, Any]:
    log = result.log
    return {
        "planner": result.planner,
        "seed": result.seed,
        "town": result.town,
        "stamps_ns": log.stamps_ns.tolist(),
        "states": log.states.tolist(),
        "clearances_m": log.clearances_m.tolist(),
        "off_road": log.off_road.tolist(),
        "events": [asdict(event) for event in log.events],
        "collisions": [{**asdict(one), "shape": int(one.shape)} for one in log.collisions],
        "progress_m": log.progress_m,
        "limit_distance_m": log.limit_distance_m,
        "measurements": asdict(result.measurements),
        "scores": result.scores.tolist(),
        "sub_scores": result.sub_scores.tolist(),
        "verdicts": dict(result.verdicts),
        "sources": dict(result.sources),
        "planning_ms": {kind: [round(time_ms, 4) for time_ms in times] for kind, times in result.planning_ms.items()},
        "errors": list(result.errors),
        "process_deaths": result.process_deaths,
    }


def _result_of(row: Mapping[str, Any], vehicle: VehicleConfig) -> DriveResult:
    """Raises ValueError, KeyError, TypeError or AttributeError for anything that `_row_of` does not make."""
    measurements = row["measurements"]
    log = DriveLog(
        np.array(row["stamps_ns"], np.int64),
        np.array(row["states"], float),
        np.array(row["clearances_m"], float),
        np.array(row["off_road"], bool),
        tuple(Event(**event) for event in row["events"]),
        tuple(Collision(**{**one, "shape": ActorShape(one["shape"])}) for one in row["collisions"]),
        float(row["progress_m"]),
        float(row["limit_distance_m"]),
        vehicle,
    )
    return DriveResult(
        str(row["planner"]),
        int(row["seed"]),
        str(row["town"]),
        log,
        DriveMeasurements(**{**measurements, "ttc_steps": tuple(measurements["ttc_steps"])}),
        np.array(row["scores"], float),
        np.array(row["sub_scores"], float).reshape(len(row["scores"]), -1),
        dict(row["verdicts"]),
        dict(row["sources"]),
        dict(row["planning_ms"]),
        (),
        tuple(row["errors"]),
        int(row["process_deaths"]),
    )
