"""Replays many bags, each in its own process, several at a time, and prints one table.

Each bag is replayed into a temporary folder that is renamed when finished, so a result folder is always complete.
`made_by.json` in it records everything the result depends on; the next run keeps results whose record is unchanged.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from ..config import Config, ConfigError
from ..provenance import provenance
from ..ros.bag import BagError
from ..runtime import cli_args
from ..runtime.model_file import ModelFileError
from ..stopping import block_terminal_signals, install_worker_handlers, report_stop
from . import engine, plan_measures
from .bag_folders import find_bags, folder_names, is_bag
from .bag_topics import ambiguous_choices
from .index import COLUMNS, cells, write_index
from .plan_measures import PLANS_FILE, MeasuresError, PlanMeasures, concat_measures, read_measures

MADE_BY = "made_by.json"
PROGRESS_STEP = 0.01  # share of a bag between two progress reports
TERMINATE_TIMEOUT_S = 5.0  # before a terminated process is killed
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Job:
    bag: Path
    out: Path  # folder of the result
    made_by: Mapping[str, Any]


def replay_many(args: argparse.Namespace, config: Config, errors: Console) -> int:
    """Exit code 0, or 1 when a bag could not be replayed or has no plan of the planner.

    Raises ConfigError for options that apply to one bag only.
    """
    if args.golden is not None:
        raise ConfigError("--golden compares one bag: give one")
    if args.node and args.jobs > 1:
        raise ConfigError("--node plays in recorded time: replay one bag after the other, with --jobs 1")
    out = args.out or engine.RESULTS_FOLDER
    bags, failures = find_bags_in(args.bags)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("summary.json", "index.html"):  # of an earlier run
        (out / name).unlink(missing_ok=True)
    program = program_sha256()
    jobs: list[Job] = []
    for bag, name in zip(bags, folder_names(bags), strict=True):
        try:
            job = Job(bag, out / name, made_by(bag, args, config, program))
        except OSError as fault:
            failures[str(bag)] = f"{fault.filename or bag} cannot be used: {fault.strerror}"
            continue
        if job.out.exists() and not (job.out / MADE_BY).exists():
            failures[str(bag)] = f"{job.out} exists and is not a replay result: choose another folder with --out"
        else:
            jobs.append(job)
    kept = [job for job in jobs if is_done(job)]
    try:
        failures |= run_jobs([job for job in jobs if job not in kept], args, config, errors)
    except KeyboardInterrupt as stop:
        return report_stop(stop, "the same command resumes from here")
    results, parts = [], []
    for job in jobs:
        if str(job.bag) in failures:
            continue
        try:
            numbers, measures = read_result(job)
        except MeasuresError as fault:
            failures[str(job.bag)] = str(fault)
            continue
        results.append({"name": job.out.name, "state": "kept" if job in kept else "replayed", **numbers})
        parts.append(measures)
    summary = aggregate(results, parts, failures, config, args)
    if not args.no_report:
        write_index(summary, out / "index.html")
    for target in [*([args.json] if args.json else []), out / "summary.json"]:
        replace_text(target, json.dumps(summary, indent=2) + "\n")
    print_summary(summary, out, errors, report=not args.no_report)
    return 0 if not failures and all(engine.has_own_plan(one) for one in results) else 1


def find_bags_in(given: Sequence[Path]) -> tuple[list[Path], dict[str, str]]:
    """The distinct bags of the given paths in order, and a sentence for each path without a bag."""
    bags: dict[Path, Path] = {}
    failures: dict[str, str] = {}
    for path in given:
        if path.is_dir() and not is_bag(path):
            inside = find_bags(path)
            if not inside:
                failures[str(path)] = f"{path} holds no bag: a bag is a folder with metadata.yaml, .mcap or .db3 files"
        else:  # opening reports a path that is no bag
            inside = [path]
        for bag in inside:
            bags.setdefault(bag.resolve(), bag)
    return list(bags.values()), failures


# --- existing results -------------------------------------------------------------------------------------------------


def made_by(bag: Path, args: argparse.Namespace, config: Config, program: str) -> dict[str, Any]:
    """Everything a result depends on, ready for JSON. Raises OSError for a bag or map that cannot be read."""
    files = sorted(bag.iterdir()) if bag.is_dir() else [bag] if bag.exists() else []
    lanelet_map = Path(config.inputs.lanelet_map) if config.inputs.lanelet_map else None
    options = ("topic", "route", "duration", "node", "rate", "no_report")
    made = {
        "program": program,
        "configuration": asdict(config),  # with the model's hash
        "map": _state(lanelet_map) if lanelet_map and lanelet_map.exists() else None,
        "options": {name: getattr(args, name) for name in options},
        "bag": {file.name: _state(file) for file in files if file.is_file()},
    }
    return dict(json.loads(json.dumps(made, default=str)))  # as read from the file


def _state(file: Path) -> list[int]:
    """Size in bytes and modification time in ns, which identify the content of a file."""
    there = file.stat()
    return [there.st_size, there.st_mtime_ns]


def program_sha256() -> str:
    """SHA-256 over the source files of this package."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE_FOLDER.rglob("*")):
        if file.suffix in (".py", ".html", ".js"):
            digest.update(f"{file.relative_to(PACKAGE_FOLDER)}\n".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def is_done(job: Job) -> bool:
    """Whether the result folder of the job holds a result with the same `made_by`."""
    try:
        return bool(json.loads((job.out / MADE_BY).read_text(encoding="utf-8")) == job.made_by)
    except (OSError, ValueError):
        return False


def read_result(job: Job) -> tuple[dict[str, Any], PlanMeasures]:
    """Summary and measures in the result folder of a job. Raises MeasuresError where they are missing."""
    file = job.out / "summary.json"
    try:
        numbers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise MeasuresError(f"{file} cannot be read: {fault}; remove {job.out} and run again") from None
    return numbers, read_measures(job.out / PLANS_FILE)


def install_result(part: Path, job: Job) -> None:
    """Renames a finished folder to the result folder of its job and removes the earlier result."""
    replace_text(part / MADE_BY, json.dumps(job.made_by, indent=1) + "\n")
    old = job.out.with_name(f".{job.out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if job.out.exists():
        os.replace(job.out, old)
    os.replace(part, job.out)
    shutil.rmtree(old, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


# --- the processes ---------------------------------------------------------------------------------------------------


def run_jobs(jobs: Sequence[Job], args: argparse.Namespace, config: Config, errors: Console) -> dict[str, str]:
    """Runs all jobs, `args.jobs` at a time; returns a sentence for each bag that could not be replayed."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads of the middleware
    options = argparse.Namespace(**{name: value for name, value in vars(args).items() if name != "run"})
    waiting = list(reversed(jobs))
    running: dict[Connection, tuple[Job, SpawnProcess, TaskID]] = {}
    failures: dict[str, str] = {}
    try:
        with Progress(console=errors, transient=True) as progress:
            every = progress.add_task("bags", total=float(len(jobs)))
            shares: dict[Path, float] = {}
            while waiting or running:
                while waiting and len(running) < args.jobs:
                    job = waiting.pop()
                    ours, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=_run_job, args=(job, options, config, theirs), daemon=True)
                    with block_terminal_signals():
                        process.start()
                    theirs.close()
                    running[ours] = (job, process, progress.add_task(escape(job.out.name), total=1.0))
                ready = wait(list(running))
                for ours in [one for one in running if one in ready]:
                    job, process, bar = running[ours]
                    said = _receive(ours, process)
                    if isinstance(said, float):
                        shares[job.out] = said
                        progress.update(bar, completed=said)
                    else:
                        shares[job.out] = 1.0
                        if said:
                            failures[str(job.bag)] = said
                        progress.remove_task(bar)
                        del running[ours]
                    progress.update(every, completed=sum(shares.values()))
    finally:  # after an interrupt no result folder is incomplete
        for _, process, _ in running.values():
            process.terminate()
        for _, process, _ in running.values():
            process.join(TERMINATE_TIMEOUT_S)
            process.kill()
    return failures


def _receive(ours: Connection, process: SpawnProcess) -> float | str:
    """The next report of a process: the share done, or at its end an error, empty on success."""
    try:
        said: float | str = ours.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else "broke off"
        return f"its process {how}; its last output is above"
    if isinstance(said, str):
        process.join()
    return said


def _run_job(job: Job, args: argparse.Namespace, config: Config, said: Connection) -> None:
    """Replays one bag; the main function of a process."""
    install_worker_handlers()
    part = job.out.with_name(f".{job.out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    printed = 0.0

    def report_progress(share: float) -> None:
        nonlocal printed
        if share >= printed + PROGRESS_STEP:
            printed = share
            said.send(min(share, 1.0))

    sentence = ""
    try:
        record = engine.replay_bag(job.bag, part, args, config, Console(file=io.StringIO()), report_progress)
        engine.write_results(record, part, args, None)
        install_result(part, job)
    except (BagError, ConfigError, ModelFileError) as fault:
        sentence = str(fault)
    except BrokenPipeError:  # the parent has exited
        return
    except OSError as fault:
        sentence = f"{fault.filename or job.out} cannot be used: {fault.strerror}"
    finally:
        shutil.rmtree(part, ignore_errors=True)
    with suppress(BrokenPipeError):
        said.send(sentence)


# --- the sum ---------------------------------------------------------------------------------------------------------


def aggregate(
    results: Sequence[Mapping[str, Any]],
    parts: Sequence[PlanMeasures],
    failures: Mapping[str, str],
    config: Config,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Numbers over the plans of all bags, each plan with equal weight, and those of each bag, ready for JSON."""
    total = concat_measures(parts)
    return {
        "planner": config.planner,
        "model_sha256": config.model.sha256,
        **plan_measures.numbers(total),
        "latency_ms": plan_measures.latency(total),
        "duration_s": round(sum(one["duration_s"] for one in results), 3),
        "mode": "node" if args.node else "engine",
        "deadline_ms": config.engine.deadline_ms,
        "over_deadline": sum(one["over_deadline"] for one in results),
        "jobs": max((one["jobs"] for one in results), default=args.jobs),
        "kept": sum(one["state"] == "kept" for one in results),
        "failures": dict(failures),
        "bags": list(results),
        **provenance(weights_sha256=cli_args.weights_of(config, [config.planner])),
    }


def print_summary(summary: Mapping[str, Any], out: Path, errors: Console, *, report: bool) -> None:
    """Prints the table, failures and the path of the report."""
    console = Console() if sys.stdout.isatty() else Console(width=180)
    table = Table(title=f"{len(summary['bags'])} bags · {summary['planner']}", title_justify="left", box=SIMPLE_HEAD)
    for name in COLUMNS:
        is_bag_column = name == "bag"
        table.add_column(
            name,
            justify="left" if name in ("bag", "") else "right",
            no_wrap=not is_bag_column,
            min_width=12 * is_bag_column,
        )
    for k, one in enumerate(summary["bags"]):
        row = [one["name"], one["state"], *cells(one)]
        table.add_row(*map(escape, row), end_section=k == len(summary["bags"]) - 1)
    table.add_row("total", f"{summary['kept']} kept" if summary["kept"] else "", *cells(summary))
    console.print(table)
    shown = out / ("index.html" if report else "summary.json")
    for name, text in engine.deadline_row(summary).items():
        console.print(escape(f"{name}: {text}"), soft_wrap=True)
    for text, bags in topic_groups(summary["bags"]).items():
        console.print(escape(f"topics of {', '.join(bags)}: {text}"), soft_wrap=True)
    console.print(escape(f"{shown.stem}: {shown}"), soft_wrap=True)
    for one in summary["bags"]:
        notice = [one["notice"]] if one["notice"] else []
        choices = [f"{one['name']}: {line}" for line in ambiguous_choices(one["topics"])]
        for line in [*notice, *choices, *engine.no_plan_lines(one)]:
            errors.print(escape(line), soft_wrap=True)
    for bag, sentence in summary["failures"].items():
        named = sentence if bag in sentence else f"{bag}: {sentence}"
        errors.print(escape(f"not replayed: {named}"), soft_wrap=True)


def topic_groups(bags: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of bags by the topics that were used in them."""
    groups: dict[str, list[str]] = {}
    for one in bags:
        text = ", ".join(f"{key} = {entry['name']}" for key, entry in one["topics"].items())
        groups.setdefault(text, []).append(one["name"])
    return groups
