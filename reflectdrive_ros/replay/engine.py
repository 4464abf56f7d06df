"""Replays a bag through the engine, or the node where requested, and writes the plans and what was measured of them."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rich.console import Console

from ..core.config import Config
from ..core.domain import Array
from ..core.messages import BadMessage
from ..infra.arguments import available_cores
from ..infra.parallel import Workers
from ..infra.provenance import provenance
from ..ros import definitions, plan_messages, topics
from ..ros.bag import BagError, BagReader, BagWriter
from ..ros.inputs.channel import InputStatus, Level
from ..ros.planning_core import PlanningCore, StepInputs
from ..runtime import cli_args
from ..runtime.engine import NO_DEADLINE_MS, Engine, network_domain_note, planner_note
from ..runtime.prefetch import PREFETCH_DEPTH
from .bag_topics import ambiguous_choices, map_topics, recorded_sources
from .candidates import CANDIDATES_FILE, CandidateReplay, write_rows
from .chunks import ReplayChunks
from .counters import OnDiagnostics, OnProgress, PublishedPlan, ReplayCounters
from .plan_measures import PLANS_FILE, write_measures
from .record import ReplayRecord, summary
from .recorded_world import BagSlice
from .report import write_report

SWITCH_INTERVAL_S = 0.0005  # of Python threads; with the default of 5 ms a core waits that long for work
PLANS_PREFIX = "/planning/reflectdrive"
RESULT_FILES = ("summary.json", "report.html", PLANS_FILE, CANDIDATES_FILE)

Item = TypeVar("Item")


@dataclass(frozen=True)
class ReplayOptions:
    """How bags are replayed: the options of `reflectdrive replay`."""

    topic: Sequence[str] = ()  # KEY=NAME: the topic of the bag for an input
    route: str = "bag"  # or driven: use the driven path as the route
    duration: float | None = None  # only the first seconds of the bag
    node: bool = False  # through the real node over DDS, in recorded time
    rate: float = 1.0  # of playing to the node
    no_report: bool = False
    candidates: str | None = None  # topic of another planner's trajectories, which are checked instead of planning
    jobs: Workers = 1

    def planner_of(self, config: Config) -> str:
        """Whose plans the results are of."""
        return self.candidates or config.planner

    @property
    def mode(self) -> str:
        return "check" if self.candidates else "node" if self.node else "engine"

    @property
    def at_a_time(self) -> int:
        """Replays at a time on one machine: latencies hold for that."""
        return self.jobs if isinstance(self.jobs, int) else available_cores()


def replay_bag(
    bag: Path, out: Path, options: ReplayOptions, config: Config, errors: Console, on_progress: OnProgress
) -> ReplayRecord:
    """Replays a bag and writes its plans into `out`; returns the record. `on_progress` receives the share done."""
    start_s = time.perf_counter()
    with BagReader(bag) as reader, BagReader(bag) as again:
        if reader.notice:
            errors.print(reader.notice)
        checked = None if options.candidates is None else CandidateReplay(reader, options.candidates)
        is_driven = options.route == "driven"
        mapping = map_topics(config, reader, options.topic, driven_route=is_driven, for_check=checked is not None)
        config, sources = mapping.config, mapping.sources
        for kind in mapping.types.values():
            reader.layout(kind)  # raises BagError where it cannot be read
        for line in ambiguous_choices(mapping.details()):
            errors.print(line)
        if note := network_domain_note(config):
            errors.print(note)
        tally = ReplayCounters(config.engine.deadline_ms)
        out.mkdir(parents=True, exist_ok=True)
        stop_ns = reader.end_ns + 1 if options.duration is None else reader.start_ns + round(options.duration * 1e9)
        part, route, path = BagSlice(reader, sources, stop_ns=stop_ns), b"", None
        if is_driven:
            route = plan_messages.route_path(recorded_path(part, config), config.output.map_frame)
            path = definitions.read(route, topics.ROUTE_TYPES["path"])
        plans: Iterable[PublishedPlan]
        unsent = tally.count_diagnostics
        if checked is not None:
            plans = checked.plans(part, config, path, on_progress, unsent)
        elif options.node:
            from .node import replay_node

            plans = replay_node(part, config, options.rate, route, out, errors, unsent)
        else:
            plans = replay_engine(part, config, path, on_progress, unsent)
        for name in RESULT_FILES:  # of an earlier replay: they do not belong to the plans that come now
            (out / name).unlink(missing_ok=True)
        chunks = ReplayChunks(again, recorded_sources(reader) | sources, config, with_images=not options.no_report)
        with plans_bag(out / "plans", config.output.map_frame) as write:
            planning_s, begin_s = 0.0, time.perf_counter()  # without the time between plans
            for sent in plans:
                planning_s += time.perf_counter() - begin_s
                write(sent)
                tally.add(sent)
                chunks.add(sent)
                begin_s = time.perf_counter()
            planning_s += time.perf_counter() - begin_s
        record = chunks.record({})
        details: dict[str, Any] = {
            "mode": options.mode,
            "planner_note": planner_note(config) if checked is None else "the best candidate of each message, checked",
            "jobs": options.at_a_time,
            "route": options.route,
            "topics": mapping.details(),
            **tally.details(),
            "planning_s": round(planning_s, 3),
            "realtime_factor": round((part.end_ns - reader.start_ns) * 1e-9 / planning_s, 2),
            "notice": reader.notice,
            **provenance(weights_sha256=cli_args.weights_of(config, [config.planner])),
        }
        if checked is not None:
            rows = checked.rows(chunks.alternatives)
            write_rows(rows, out / CANDIDATES_FILE)
            details["candidates"] = checked.numbers(rows)
        details["wall_s"] = round(time.perf_counter() - start_s, 3)  # plans were written and measured, too
        return replace(record, planner=options.planner_of(config), details=details)


def write_results(record: ReplayRecord, out: Path, options: ReplayOptions, copy: Path | None) -> dict[str, Any]:
    """Writes plans.csv, report.html and finally summary.json; returns the summary. `copy`: a second summary file."""
    numbers = summary(record)
    write_measures(record.plans.measures, out / PLANS_FILE)
    if not options.no_report:
        write_report(record, out / "report.html")
    numbers["memory_mb_max"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0, 1)
    text = json.dumps(numbers, indent=2) + "\n"
    for target in [*([copy] if copy else []), out / "summary.json"]:
        target.write_text(text, encoding="utf-8")
    return numbers


# --- through the engine ----------------------------------------------------------------------------------------------


def replay_engine(
    part: BagSlice, config: Config, route: Any | None, on_progress: OnProgress, unsent: OnDiagnostics
) -> Iterator[PublishedPlan]:
    """All plans of a bag in order; deterministic. `route`: a nav_msgs/Path instead of the route of the bag.

    `unsent` receives the diagnostics of each step without a plan, or the final ones if no step was due.
    """
    engine_config = replace(config, engine=replace(config.engine, deadline_ms=NO_DEADLINE_MS))
    core = PlanningCore(
        engine_config, time.perf_counter, Engine(engine_config, time.perf_counter, prefetch_scenes=True)
    )
    if route is not None:
        core.put("route", route, 0)
    count, steps, before = 0, 0, sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        for due_step in prefetch_items(due_steps(core, part, on_progress, unsent), PREFETCH_DEPTH):
            steps += 1
            if sent := publish_plan(core, due_step, config, count + 1):
                count += 1
                yield sent
            else:
                unsent(due_step.statuses)
        if not steps:
            unsent(core.statuses(part.end_ns))
    finally:
        sys.setswitchinterval(before)


class DueStep(NamedTuple):
    """The inputs of a due step; the network may encode its images while earlier steps are planned."""

    inputs: StepInputs
    statuses: tuple[InputStatus, ...]  # of the inputs
    now_ns: int


def due_steps(core: PlanningCore, part: BagSlice, on_progress: OnProgress, damaged: OnDiagnostics) -> Iterator[DueStep]:
    """The inputs of each due step, from the messages of a bag in order. `damaged` receives skipped messages."""
    for key, message in part.inputs():
        now_ns = message.received_ns
        try:
            core.put(key, message.message(), now_ns)
        except BadMessage as fault:
            damaged([InputStatus(key, Level.ERROR, f"left out: {fault}", {})])
        if core.due(now_ns):
            core.wait_idle()
            yield DueStep(core.collect_inputs(now_ns), tuple(core.inputs.statuses(now_ns)), now_ns)
            on_progress(part.share(now_ns))


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


def publish_plan(core: PlanningCore, due_step: DueStep, config: Config, number: int) -> PublishedPlan | None:
    """The plan of a step as the node would publish it; None where not even a stop plan is possible."""
    step = core.plan_step(due_step.inputs)
    surface = step.snapshot.surface
    if step.report is None or surface is None:
        return None
    start_s = time.perf_counter()
    points = plan_messages.plan_points(step.report.published, config, surface, step.report.ego)
    total_ms = step.timings_ms["snapshot"] + step.timings_ms["total"] + 1e3 * (time.perf_counter() - start_s)
    image_ns = step.snapshot.image_stamp_ns
    age_s = float("nan") if image_ns is None else (step.report.plan.stamp_ns - image_ns) * 1e-9
    status = plan_messages.status(step.report, config, core.model_sha256, number, age_s, total_ms)
    statuses = (*due_step.statuses, core.planner_status(due_step.now_ns))
    plan = step.report.plan
    return PublishedPlan(plan.stamp_ns, points, status, step.timings_ms, statuses, due_step.now_ns, plan.trace)


def recorded_path(part: BagSlice, config: Config) -> Array:
    """(M, 3) poses of the recorded path in the map frame, one per metre."""
    from ..ros import convert

    poses: list[Array] = []
    for _, odometry in replace(part, stop_ns=None).messages("odometry"):
        try:
            pose = convert.ego_state(odometry, config.output.map_frame).map_from_ego
        except BadMessage as fault:
            raise BagError(f"--route driven: {fault}") from None
        if not poses or np.hypot(*(pose[:2] - poses[-1][:2])) >= 1.0:
            poses.append(pose)
    return np.array(poses)


# --- results --------------------------------------------------------------------------------------------------------


@contextmanager
def plans_bag(path: Path, frame: str) -> Iterator[Callable[[PublishedPlan], None]]:
    """Replaces the bag of plans, and gives the function that writes a plan: its trajectory and its status at their own
    stamps. An interrupted replay leaves no bag."""
    bag = BagWriter(path, replace=True)
    outs = {topic.key: topic for topic in topics.OUTPUTS if topic.key in ("trajectory", "status")}
    names = {key: topic.name.replace("~", PLANS_PREFIX) for key, topic in outs.items()}

    def write(sent: PublishedPlan) -> None:
        trajectory = plan_messages.trajectory_bytes(sent.stamp_ns, sent.points, frame)
        bag.write(names["trajectory"], sent.stamp_ns, trajectory)
        bag.write(names["status"], sent.stamp_ns, plan_messages.status_bytes(sent.status, sent.stamp_ns, frame))

    try:
        with bag:
            for key, topic in outs.items():
                bag.add_topic(names[key], topic.type)
            yield write
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
