"""`reflectdrive replay BAG ..`: replays bags through the engine or the real node, and writes a report of the plans.

By default messages are processed by the planning core of the node, in the order received and as fast as possible.
Deadlines are not enforced, because this machine is not the vehicle's computer; the plans are bit-identical on every
run. With `--node` the node runs in its own process and the bag is published over DDS in recorded time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from .. import arguments
from ..config import Config, ConfigError
from ..domain import Array
from ..files import lock_folder
from ..provenance import provenance
from ..ros import outputs, topics
from ..ros.bag import BagError, BagReader, BagWriter, DamagedMessage
from ..ros.inputs.channel import InputStatus, Level
from ..ros.planning_core import PlanningCore, StepInputs
from ..runtime import cli_args
from ..runtime.engine import NO_DEADLINE_MS, Engine
from ..runtime.model_file import ModelFileError
from ..runtime.prefetch import PREFETCH_DEPTH
from . import golden
from .bag_folders import holds_bags
from .bag_topics import ambiguous_choices, known_sources, map_topics
from .chunks import ReplayChunks
from .counters import OnDiagnostics, PublishedPlan, ReplayCounters
from .golden import GoldenError
from .plan_measures import PLANS_FILE, SCORES, write_measures
from .record import ReplayRecord, summary
from .report import write_report

SWITCH_INTERVAL_S = 0.0005  # of Python threads; with the default of 5 ms a core waits that long for work
RESULTS_FOLDER = Path("out") / "replays"  # of several bags
PLANS_PREFIX = "/planning/reflectdrive"
RESULT_FILES = ("summary.json", "report.html", PLANS_FILE)

Item = TypeVar("Item")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bags", type=Path, nargs="+", metavar="BAG", help="rosbag2 folder or file (mcap or sqlite3), or folder of bags"
    )
    parser.add_argument("--out", type=Path, help="output folder (default: out/<bag>, out/replays)")
    parser.add_argument(
        "--jobs",
        type=arguments.process_count(),
        default=1,
        metavar="N",
        help="of several bags so many at once (default: 1)",
    )
    parser.add_argument("--node", action="store_true", help="through the real node over DDS, in recorded time")
    parser.add_argument(
        "--rate",
        type=arguments.FloatRange(0.05, 20.0),
        default=1.0,
        help="with --node: speed of playing (default: 1.0)",
    )
    parser.add_argument("--planner", help="recipe to use instead of the configured one")
    cli_args.add_model_arguments(parser)
    parser.add_argument("--config", type=Path, help="configuration file (YAML)")
    cli_args.add_settings_argument(parser)
    arguments.add_renamed_options(parser, {"set": "--setting"})
    parser.add_argument(
        "--topic", action="append", default=[], metavar="KEY=NAME", help="topic of the bag for an input; KEY=: none"
    )
    parser.add_argument(
        "--route", choices=("bag", "driven"), default="bag", help="driven: the path driven, in hindsight"
    )
    parser.add_argument(
        "--duration", type=arguments.duration(0.1), metavar="S", help="only the first so many seconds of the bag"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write summary.json here too")
    parser.add_argument(
        "--golden", type=Path, metavar="FILE", help="compare the plans with a golden; differences: exit 1"
    )
    parser.add_argument("--update-golden", action="store_true", help="write the golden instead: a deliberate act")
    parser.add_argument("--no-report", action="store_true", help="leave report.html out")


def run(args: argparse.Namespace, *, owned: bool = False) -> int:
    """Exit code 0; 1 when no plan of the planner was published, plans differ from the golden, or one of several bags
    cannot be replayed; 2 with one sentence when an argument cannot be used.

    `owned`: whether the caller holds the lock of --out.
    """
    errors = Console(stderr=True)
    try:
        config = cli_args.configuration(args)
        several = len(args.bags) > 1 or holds_bags(args.bags[0])
        with (
            nullcontext()
            if owned
            else lock_folder(args.out or (RESULTS_FOLDER if several else Path("out") / args.bags[0].name))
        ):
            if several:
                from .many import replay_many

                return replay_many(args, config, errors)
            return run_one(args, config, errors)
    except (BagError, ConfigError, GoldenError, ModelFileError) as fault:
        errors.print(escape(str(fault)), soft_wrap=True)
    except OSError as fault:
        errors.print(escape(f"{fault.filename or args.out} cannot be used: {fault.strerror}"), soft_wrap=True)
    return 2


def run_one(args: argparse.Namespace, config: Config, errors: Console) -> int:
    if args.golden is not None:  # an unusable golden is reported before the replay
        golden.check_name(args.golden)
        if not args.update_golden:
            golden.read(args.golden)
    elif args.update_golden:
        raise GoldenError("--update-golden writes the file of --golden: name it")
    record, out = replay(args, config, errors)
    numbers = write_results(record, out, args, args.json)
    different = golden_differences(record, args)
    console = Console() if sys.stdout.isatty() else Console(width=110)
    console.print(table(numbers))
    shown = out / ("summary.json" if args.no_report else "report.html")
    console.print(escape(f"{shown.stem}: {shown}"), soft_wrap=True)
    for line in [*no_plan_lines(numbers), *(f"differs from the golden: {line}" for line in different)]:
        errors.print(escape(line), soft_wrap=True)
    return 1 if different or not has_own_plan(numbers) else 0


def has_own_plan(numbers: Mapping[str, Any]) -> bool:
    """Whether a plan of the planner was published, new or carried forward; stop plans do not count."""
    return bool(numbers["plans"] > numbers["sources"]["STOP"])


def no_plan_lines(numbers: Mapping[str, Any]) -> list[str]:
    """If no plan of the planner was published: one line that says so, and one per error of the diagnostics."""
    if has_own_plan(numbers):
        return []
    said = numbers["diagnostics"]
    said = [line for line in said if line["level"] == "ERROR"] or said
    stops = f"{numbers['plans']} stops were sent" if numbers["plans"] else "nothing was published"
    lines = [
        f"bag {numbers['bag']}: no plan of {numbers['planner']} was published, {stops}; the diagnostics, with counts:"
    ]
    return lines + [f"  {line['count']} x {line['name']}: {line['message']}" for line in said]


def replay(args: argparse.Namespace, config: Config, errors: Console) -> tuple[ReplayRecord, Path]:
    """Replays one bag and writes its plans; returns the record and the output folder."""
    out = args.out or Path("out") / args.bags[0].name
    with Progress(console=errors, transient=True, disable=args.node) as progress:  # the node's replay shows its own
        task = progress.add_task("replaying", total=1.0)

        def on_progress(share: float) -> None:
            progress.update(task, completed=share)

        return replay_bag(args.bags[0], out, args, config, errors, on_progress), out


def replay_bag(
    bag: Path,
    out: Path,
    args: argparse.Namespace,
    config: Config,
    errors: Console,
    on_progress: Callable[[float], None],
) -> ReplayRecord:
    """Replays a bag and writes its plans into `out`; returns the record. `on_progress` receives the share done."""
    begun = time.perf_counter()
    with BagReader(bag) as reader, BagReader(bag) as again:
        if reader.notice:
            errors.print(escape(reader.notice), soft_wrap=True)
        found = map_topics(config, reader, args.topic, driven_route=args.route == "driven")
        config, sources = found.config, found.sources
        for line in ambiguous_choices(found.details()):
            errors.print(escape(line), soft_wrap=True)
        tally = ReplayCounters(config.engine.deadline_ms)
        out.mkdir(parents=True, exist_ok=True)
        stop_ns = reader.end_ns + 1 if args.duration is None else reader.start_ns + round(args.duration * 1e9)
        route = None
        if args.route == "driven":
            route = outputs.route_path(recorded_path(reader, sources, config), config.output.map_frame)
        plans: Iterable[PublishedPlan]
        if args.node:
            from .node import replay_node

            unsent = tally.count_diagnostics
            plans, mode = replay_node(reader, sources, config, stop_ns, args.rate, route, out, errors, unsent), "node"
        else:
            plans, mode = (
                replay_engine(reader, sources, config, stop_ns, route, on_progress, tally.count_diagnostics),
                "engine",
            )
        for name in RESULT_FILES:  # of an earlier replay: they do not belong to these plans
            (out / name).unlink(missing_ok=True)
        timed = TimedPlans(plans)
        chunks = ReplayChunks(again, known_sources(reader) | sources, config, drawn=not args.no_report)
        with PlansBag(out / "plans", config.output.map_frame) as kept:
            for sent in timed:
                kept.write(sent)
                tally.add(sent)
                chunks.add(sent)
        record = chunks.record(
            {
                "mode": mode,
                "jobs": args.jobs,  # parallel replays: latencies depend on it
                "route": args.route,
                "topics": found.details(),
                **tally.details(),
                "planning_s": round(timed.planning_s, 3),
                "realtime_factor": round((min(stop_ns, reader.end_ns) - reader.start_ns) * 1e-9 / timed.planning_s, 2),
                "notice": reader.notice,
                **provenance(weights_sha256=cli_args.weights_of(config, [config.planner])),
            }
        )
        wall_s = round(time.perf_counter() - begun, 3)  # plans were written and measured, too
        return dataclasses.replace(record, details={**record.details, "wall_s": wall_s})


class TimedPlans:
    """Iterates over plans and measures the planning time, without the time between plans."""

    def __init__(self, plans: Iterable[PublishedPlan]) -> None:
        self._plans, self.planning_s = plans, 0.0

    def __iter__(self) -> Iterator[PublishedPlan]:
        begun = time.perf_counter()
        for plan in self._plans:
            self.planning_s += time.perf_counter() - begun
            yield plan
            begun = time.perf_counter()
        self.planning_s += time.perf_counter() - begun


def write_results(record: ReplayRecord, out: Path, args: argparse.Namespace, copy: Path | None) -> dict[str, Any]:
    """Writes plans.csv, report.html and finally summary.json; returns the summary. `copy`: a second summary file."""
    numbers = summary(record)
    write_measures(record.plans.measures, out / PLANS_FILE)
    if not args.no_report:
        write_report(record, out / "report.html")
    numbers["memory_mb_max"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0, 1)
    text = json.dumps(numbers, indent=2) + "\n"
    for target in [*([copy] if copy else []), out / "summary.json"]:
        target.write_text(text, encoding="utf-8")
    return numbers


def golden_differences(record: ReplayRecord, args: argparse.Namespace) -> list[str]:
    if args.golden is None:
        return []
    if args.update_golden:
        whole = not args.node and args.duration is None and not record.details["notice"]
        golden.write(record, args.golden, whole)
        return []
    return golden.differences(record, args.golden)


# --- through the engine ----------------------------------------------------------------------------------------------


def replay_engine(
    reader: BagReader,
    sources: dict[str, str],
    config: Config,
    stop_ns: int,
    route: Any | None,
    on_progress: Callable[[float], None],
    unsent: OnDiagnostics,
) -> Iterator[PublishedPlan]:
    """All plans of a bag in order; deterministic. `route`: a nav_msgs/Path instead of the route of the bag.

    `unsent` receives the diagnostics of each step without a plan, or the final ones if no step was due.
    """
    engine_config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, deadline_ms=NO_DEADLINE_MS))
    core = PlanningCore(
        engine_config, time.perf_counter, Engine(engine_config, time.perf_counter, prefetch_scenes=True)
    )
    if route is not None:
        core.put("route", route, 0)
    count, steps, before = 0, 0, sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        for seen in prefetch_items(due_steps(core, reader, sources, stop_ns, on_progress, unsent), PREFETCH_DEPTH):
            steps += 1
            if sent := publish_plan(core, seen, config, count + 1):
                count += 1
                yield sent
            else:
                unsent(seen.statuses)
        if not steps:
            unsent(core.statuses(min(stop_ns, reader.end_ns)))
    finally:
        sys.setswitchinterval(before)


class DueStep(NamedTuple):
    """The inputs of a due step; the network may encode its images while earlier steps are planned."""

    look: StepInputs
    statuses: tuple[InputStatus, ...]  # of the inputs
    now_ns: int


def due_steps(
    core: PlanningCore,
    reader: BagReader,
    sources: dict[str, str],
    stop_ns: int,
    on_progress: Callable[[float], None],
    damaged: OnDiagnostics,
) -> Iterator[DueStep]:
    """The inputs of each due step, from the messages of a bag in order. `damaged` receives skipped messages."""
    keys = {name: key for key, name in sources.items()}
    length_ns = max(min(stop_ns, reader.end_ns) - reader.start_ns, 1)
    for message in reader.messages(keys, stop_ns=stop_ns):
        now_ns = message.received_ns
        try:
            core.put(keys[message.topic], message.message(), now_ns)
        except DamagedMessage as fault:
            damaged([InputStatus(keys[message.topic], Level.ERROR, f"left out: {fault}", {})])
        if core.due(now_ns):
            core.wait_idle()
            yield DueStep(core.collect_inputs(now_ns), tuple(core.inputs.statuses(now_ns)), now_ns)
            on_progress((now_ns - reader.start_ns) / length_ns)


def prefetch_items(items: Iterator[Item], most: int) -> Iterator[Item]:
    """Iterates with up to `most` items computed ahead in another thread; its exceptions are raised here."""
    hand = ThreadPoolExecutor(1, thread_name_prefix="reader")
    try:
        coming = deque(hand.submit(next, items, None) for _ in range(most))
        while (item := coming.popleft().result()) is not None:
            coming.append(hand.submit(next, items, None))
            yield item
    finally:
        hand.shutdown(cancel_futures=True)


def publish_plan(core: PlanningCore, seen: DueStep, config: Config, number: int) -> PublishedPlan | None:
    """The plan of a step as the node would publish it; None where not even a stop plan is possible."""
    step = core.plan_step(seen.look)
    if step.report is None:
        return None
    begun = time.perf_counter()
    points = outputs.plan_points(step.report.plan, config)
    total_ms = step.timings_ms["snapshot"] + step.timings_ms["total"] + 1e3 * (time.perf_counter() - begun)
    image_ns = step.snapshot.image_stamp_ns
    age_s = float("nan") if image_ns is None else (step.report.plan.stamp_ns - image_ns) * 1e-9
    status = outputs.status(step.report, config, core.model_sha256, number, age_s, total_ms)
    statuses = (*seen.statuses, core.planner_status(seen.now_ns))
    return PublishedPlan(step.report.plan.stamp_ns, points, status, step.timings_ms, statuses, seen.now_ns)


def recorded_path(reader: BagReader, sources: dict[str, str], config: Config) -> Array:
    """(M, 3) poses of the recorded path in the map frame, one per metre."""
    from ..ros import convert

    kept: list[Array] = []
    for message in reader.messages([sources["odometry"]]):
        try:
            pose = convert.ego_state(message.message(), config.output.map_frame).map_from_ego
        except DamagedMessage:
            continue
        except convert.BadMessage as fault:
            raise BagError(f"--route driven: {fault}") from None
        if not kept or np.hypot(*(pose[:2] - kept[-1][:2])) >= 1.0:
            kept.append(pose)
    return np.array(kept)


# --- results ----------------------------------------------------------------------------------------------------------


class PlansBag:
    """Writes plans as a bag: trajectory and status messages at their own stamps."""

    def __init__(self, path: Path, frame: str) -> None:
        self._bag, self._frame = BagWriter(path, replace=True), frame
        outs = {topic.key: topic for topic in topics.OUTPUTS}
        self._names = {key: outs[key].name.replace("~", PLANS_PREFIX) for key in ("trajectory", "status")}
        self._types = {key: outs[key].type for key in self._names}

    def __enter__(self) -> PlansBag:
        with ExitStack() as opened:
            opened.push(self._remove)
            opened.enter_context(self._bag)
            for key, name in self._names.items():
                self._bag.add_topic(name, self._types[key])
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, fault, trace)

    def _remove(self, kind: type[BaseException] | None, *_: object) -> None:
        """Removes the bag of an interrupted replay."""
        if kind is not None:
            shutil.rmtree(self._bag.path, ignore_errors=True)

    def write(self, sent: PublishedPlan) -> None:
        trajectory = outputs.trajectory_bytes(sent.stamp_ns, sent.points, self._frame)
        self._bag.write(self._names["trajectory"], sent.stamp_ns, trajectory)
        self._bag.write(self._names["status"], sent.stamp_ns, sent.status)


def planner_rows(numbers: dict[str, Any]) -> dict[str, str]:
    """Table rows with the step kinds and notes of a learned planner."""
    rows = {}
    if set(numbers["steps"]) - {"baseline"}:
        rows["steps"] = ", ".join(f"{count} {name}" for name, count in numbers["steps"].items())
    if numbers["notes"]:
        rows["noted"] = "; ".join(f"{count} x {note}" for note, count in numbers["notes"].items())
    return rows


def topic_rows(numbers: dict[str, Any]) -> dict[str, str]:
    """Which topics of the bag were used."""
    return {"topics": "\n".join(f"{key} = {entry['name']}" for key, entry in numbers["topics"].items())}


def deadline_row(numbers: Mapping[str, Any]) -> dict[str, str]:
    """A table row with plans over the deadline, which the engine's verdicts do not count as late."""
    if numbers["mode"] != "engine":
        return {}
    text = f"this replay has no deadline; {numbers['over_deadline']} plans over the deadline of"
    return {"deadline": f"{text} {numbers['deadline_ms']:g} ms"}


def scored_row(scored: dict[str, Any]) -> dict[str, str]:
    """A table row with the driving score, where the bag has the data for it."""
    if not scored["plans"]:
        return {}
    parts = ", ".join(f"{name.upper()} {scored[name]:.1f}" for name in SCORES if scored[name] is not None)
    return {"driving score": f"{parts} ({scored['plans']} plans, others as they drove)"}


def table(numbers: dict[str, Any]) -> Table:
    """The table of a summary."""
    made = Table(title=f"{numbers['bag']} · {numbers['planner']} · {numbers['mode']}", show_header=False)
    counts = {name: count for name, count in numbers["verdicts"].items() if count}
    sources = {name: count for name, count in numbers["sources"].items() if count}
    rows = {
        **topic_rows(numbers),
        "plans": f"{numbers['plans']} in {numbers['duration_s']:.1f} s",
        "verdicts": ", ".join(f"{count} {name}" for name, count in counts.items()) or "none",
        **deadline_row(numbers),
        **planner_rows(numbers),
        "sent": ", ".join(f"{count} {name}" for name, count in sources.items()) or "none",
        "ADE / FDE over 4 s": "no plan reaches 4 s of recorded future"
        if numbers["ade_m"] is None
        else f"{numbers['ade_m']:.2f} m / {numbers['fde_m']:.2f} m ({numbers['plans_compared']} plans)",
        **scored_row(numbers["scored"]),
        "largest lateral shift": "-"
        if numbers["max_lateral_shift_m"] is None
        else f"{numbers['max_lateral_shift_m']:.2f} m between cycles",
        **{
            f"{stage} p50 / p99": f"{values['p50']:.2f} / {values['p99']:.2f} ms"
            for stage, values in numbers["latency_ms"].items()
        },
        "speed, memory": f"planned {numbers['realtime_factor']:.1f} times real time, {numbers['wall_s']:.1f} s with "
        f"writing and measuring the plans, {numbers['memory_mb_max']:.0f} MB at most",
        "lost inputs": str(sum(values["lost"] for values in numbers["inputs"].values())),
        "plans SHA-256": numbers["plans_sha256"][:16],
    }
    for name, value in rows.items():
        made.add_row(name, escape(value))
    return made
