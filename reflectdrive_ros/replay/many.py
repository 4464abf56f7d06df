"""Replays many bags, each in its own process, several at a time, and sums them up.

Each bag is replayed into a temporary folder that is renamed when finished, so a result folder is always complete.
`made_by.json` in it records everything the result depends on; the next run keeps results whose record is unchanged.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from ..core.config import Config
from ..infra.documents import read_json
from ..infra.errors import UserError, printable_name
from ..infra.files import part_folder, resolve, write_atomic
from ..infra.parallel import Workers, map_restartable
from ..infra.progress import ShownProgress
from ..infra.provenance import program_sha256, provenance
from ..infra.storage import is_remote, local_copy, upload
from ..runtime import cli_args
from . import engine, plan_measures
from .bag_folders import find_bags, folder_names, is_bag
from .engine import ReplayOptions
from .index import write_index
from .plan_measures import PLANS_FILE, SUMMARY_BYTES, MeasuresError, PlanMeasures, concat_measures, read_measures

MADE_BY = "made_by.json"
PROGRESS_STEP = 0.01  # share of a bag between two progress reports


@dataclass(frozen=True)
class ReplayJob:
    bag: Path
    out: Path  # folder of the result
    dependencies: Mapping[str, Any]


def replay_many(
    paths: Sequence[Path], out: Path, options: ReplayOptions, config: Config, errors: Console, copy: Path | None
) -> dict[str, Any]:
    """The summary of all bags, which is written to `out` and, where given, to `copy`; `failures` says which have none.

    Results that are there already and would be the same are kept.
    """
    bags, failures = find_bags_in(paths)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("summary.json", "index.html"):  # of an earlier run
        (out / name).unlink(missing_ok=True)
    program = program_sha256()
    jobs: list[ReplayJob] = []
    for bag, name in zip(bags, folder_names(bags), strict=True):
        try:
            job = ReplayJob(bag, out / name, result_dependencies(bag, options, config, program))
        except OSError as fault:
            failures[str(bag)] = f"{fault.filename or bag} cannot be used: {fault.strerror}"
            continue
        if job.out.exists() and not (job.out / MADE_BY).exists():
            failures[str(bag)] = f"{job.out} exists and is not a replay result: choose another folder with --out"
        else:
            jobs.append(job)
    done = [job for job in jobs if is_done(job)]
    failures |= run_jobs([job for job in jobs if job not in done], options, config, errors)
    results, parts = [], []
    for job in jobs:
        if str(job.bag) in failures:
            continue
        try:
            numbers, measures = read_result(job)
        except MeasuresError as fault:
            failures[str(job.bag)] = str(fault)
            continue
        results.append({"name": job.out.name, "state": "kept" if job in done else "replayed", **numbers})
        parts.append(measures)
    summary = aggregate(results, parts, failures, config, options)
    if not options.no_report:
        write_index(summary, out / "index.html")
    for target in [*([copy] if copy else []), out / "summary.json"]:
        write_atomic(target, json.dumps(summary, indent=2).encode() + b"\n")
    return summary


def find_bags_in(paths: Sequence[Path]) -> tuple[list[Path], dict[str, str]]:
    """The distinct bags of the given paths in order, and a sentence for each path without a bag."""
    bags: dict[Path, Path] = {}
    failures: dict[str, str] = {}
    for path in paths:
        if path.is_dir() and not is_bag(path):
            inside = find_bags(path)
            if not inside:
                failures[str(path)] = f"{path} holds no bag: a bag is a folder with metadata.yaml, .mcap or .db3 files"
        else:  # opening reports a path that is no bag
            inside = [path]
        for bag in inside:
            bags.setdefault(resolve(bag), bag)
    return list(bags.values()), failures


# --- existing results -------------------------------------------------------------------------------------------------


def result_dependencies(bag: Path, options: Any, config: Config, program: str) -> dict[str, Any]:
    """Everything a result depends on, ready for JSON; `options` is a dataclass.

    Raises OSError for a bag or map that cannot be read.
    """
    files = sorted(bag.iterdir()) if bag.is_dir() else [bag] if bag.exists() else []
    lanelet_map = Path(config.inputs.lanelet_map) if config.inputs.lanelet_map else None
    content = {
        "program": program,
        "configuration": asdict(config),  # with the model's hash
        "map": _state(lanelet_map) if lanelet_map and lanelet_map.exists() else None,
        "options": {name: value for name, value in asdict(options).items() if name != "jobs"},
        "bag": {file.name: _state(file) for file in files if file.is_file()},
    }
    return dict(json.loads(json.dumps(content, default=str)))  # as read from the file


def _state(file: Path) -> list[Any]:
    """Size in bytes and modification time in ns (on shared storage its tag), which identify the content of a file."""
    there = file.stat()
    if is_remote(file):
        info = cast(Any, there).as_info()
        return [there.st_size, str(info.get("ETag") or info.get("mtime") or info.get("created"))]
    return [there.st_size, there.st_mtime_ns]


def is_done(job: ReplayJob) -> bool:
    """Whether the result folder of the job holds a result with the same dependencies."""
    try:
        return bool(read_json(job.out / MADE_BY) == job.dependencies)
    except (OSError, ValueError):
        return False


def read_result(job: ReplayJob) -> tuple[dict[str, Any], PlanMeasures]:
    """Summary and measures in the result folder of a job. Raises MeasuresError where they are missing."""
    file = job.out / "summary.json"
    try:
        numbers = read_json(file, SUMMARY_BYTES)
    except (OSError, ValueError) as fault:
        raise MeasuresError(f"{file} cannot be read: {fault}; remove {job.out} and run again") from None
    return numbers, read_measures(job.out / PLANS_FILE)


def install_result(part: Path, job: ReplayJob) -> None:
    """Renames a finished folder to the result folder of its job and removes the earlier result."""
    write_atomic(part / MADE_BY, json.dumps(job.dependencies, indent=1).encode() + b"\n")
    if is_remote(job.out):
        upload(part, job.out, last=MADE_BY)
        return
    old = job.out.with_name(f".{job.out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if job.out.exists():
        os.replace(job.out, old)
    os.replace(part, job.out)
    shutil.rmtree(old, ignore_errors=True)


# --- the processes ---------------------------------------------------------------------------------------------------


def run_jobs(jobs: Sequence[ReplayJob], options: ReplayOptions, config: Config, errors: Console) -> dict[str, str]:
    """Runs all jobs, on `options.jobs`; returns a sentence for each bag that could not be replayed."""
    shares: dict[int, float] = {}
    bars: dict[int, TaskID] = {}  # by index of the job
    with ShownProgress(errors) as progress:
        every = progress.add_task("bags", total=float(len(jobs)))

        def on_progress(index: int, share: float) -> None:
            shares[index] = share
            if index not in bars:
                bars[index] = progress.add_task(escape(printable_name(jobs[index].out.name)), total=1.0)
            progress.update(bars[index], completed=share, visible=share < 1.0)
            progress.update(every, completed=sum(shares.values()))

        return collect_failures(jobs, partial(_run_job, options=options, config=config), options.jobs, on_progress)


def collect_failures(
    jobs: Sequence[Any], work: Callable[..., str], workers: Workers, on_progress: Callable[[int, float], None]
) -> dict[str, str]:
    """Runs `work` for each job, which has a `bag`, in a process of its own; returns the sentences of bags that cannot
    be used."""
    failures: dict[str, str] = {}
    with closing(map_restartable(jobs, work, workers, on_progress, portable=False, isolated=True)) as outcomes:
        for outcome in outcomes:
            on_progress(jobs.index(outcome.task), 1.0)
            if problem := outcome.reason or outcome.result:
                failures[str(outcome.task.bag)] = problem
    return failures


def _run_job(job: ReplayJob, report: Callable[[float], None], *, options: ReplayOptions, config: Config) -> str:
    """Replays one bag; a sentence where that is not possible."""
    with ExitStack() as stack:
        if is_remote(job.out):
            part = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reflectdrive-"))) / job.out.name
        else:
            part = stack.enter_context(part_folder(job.out))
        return _run_into(part, job, report, options, config)


def throttle(report: Callable[[float], None]) -> Callable[[float], None]:
    """Reports shares of a bag that are at least PROGRESS_STEP apart."""
    reported = 0.0

    def on_progress(share: float) -> None:
        nonlocal reported
        if share >= reported + PROGRESS_STEP:
            reported = share
            report(min(share, 1.0))

    return on_progress


def _run_into(
    part: Path, job: ReplayJob, report: Callable[[float], None], options: ReplayOptions, config: Config
) -> str:
    try:
        with local_copy(job.bag) as bag:
            record = engine.replay_bag(bag, part, options, config, Console(file=io.StringIO()), throttle(report))
            engine.write_results(record, part, options, None)
        install_result(part, job)
    except UserError as fault:
        return str(fault)
    except OSError as fault:
        return f"{fault.filename or job.out} cannot be used: {fault.strerror}"
    return ""


# --- the sum ---------------------------------------------------------------------------------------------------------


def aggregate(
    results: Sequence[Mapping[str, Any]],
    parts: Sequence[PlanMeasures],
    failures: Mapping[str, str],
    config: Config,
    options: ReplayOptions,
) -> dict[str, Any]:
    """Numbers over the plans of all bags, each plan with equal weight, and those of each bag, ready for JSON."""
    total = concat_measures(parts)
    return {
        "planner": options.planner_of(config),
        "model_sha256": config.model.sha256,
        **plan_measures.numbers(total),
        "latency_ms": {"total": plan_measures.percentiles(total.latency_ms)},
        "duration_s": round(sum(one["duration_s"] for one in results), 3),
        "mode": options.mode,
        "deadline_ms": config.engine.deadline_ms,
        "over_deadline": sum(one["over_deadline"] for one in results),
        "jobs": max((one["jobs"] for one in results), default=options.at_a_time),
        "kept": sum(one["state"] == "kept" for one in results),
        "failures": dict(failures),
        "bags": list(results),
        **provenance(weights_sha256=cli_args.weights_of(config, [config.planner])),
    }
