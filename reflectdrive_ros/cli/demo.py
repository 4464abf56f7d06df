"""`reflectdrive demo`: a generated town with reactive traffic, and the real node in it over real ROS 2 topics.

The world runs in this process: it renders three cameras, publishes odometry, road users and a route, and follows the
node's plans. The node runs in its own process, as on a vehicle. All messages are recorded in a bag, and a page shows
the drive. With `--live` another page shows it while it runs, in real time; Ctrl-C ends the drive. `--recording` plays a
real recording to the node instead (PandaSet sequence 002 comes with the package); recorded agents do not react to the
planned car. The planner is then `route_follower`: the shipped networks that read images are trained on rendered ones.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..demo import live, world_bag, world_messages
from ..demo.recordings import RECORDING
from ..demo.world_node import WorldNode, new_context, remaps, spin_in_background
from ..evaluation.driving_scores import extend
from ..infra import arguments
from ..infra.command import command, list_counts, make_list
from ..infra.errors import UserError
from ..infra.files import lock_folder, resolve
from ..infra.progress import ShownProgress
from ..infra.provenance import provenance
from ..infra.signals import Request, defer_signals
from ..maps.sumo import SumoMissing
from ..model.card import RENDERED
from ..replay.chunks import ReplayChunks
from ..replay.counters import PublishedPlan, ReplayCounters
from ..replay.engine import plans_bag
from ..replay.node import PlannerOutputs
from ..replay.record import DriveEvent, DriveRecord, ReplayRecord, summary
from ..replay.report import drive_rows, write_report
from ..ros.bag import IMAGE_DOMAIN, BagReader, BagWriter
from ..ros.processes import isolated_environment, require_running, running_node
from ..runtime import cli_args
from ..runtime.engine import planner_note
from ..runtime.model_file import card_layout
from . import make_bag, replay

if TYPE_CHECKING:
    from ..sim.world import World

SECONDS = 40.0
LIVE_SECONDS = 600.0  # its bag grows by 1 MB/s
BASELINE = "route_follower"  # drives on a real recording
SCORE_STRIDE = 10  # steps; a score takes as long as an image
DRAIN_S = 0.5  # time for the node's messages on its last plan
# in lock step the world stands still while the node plans: planning times are reported, and plans are never late
WORLD_SETTINGS = {
    "engine.watchdog_ms": 10_000.0,
    "engine.deadline_ms": 10_000.0,
    "cameras.domain": RENDERED,
    "inputs.drivable_type": "map",  # of the world, which also has the stop lines of its traffic lights
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    world_bag.add_world_arguments(parser)
    parser.add_argument(
        "--seconds",
        type=arguments.duration(0.1),
        help=f"of driving (default: {SECONDS:.0f}; with --live {LIVE_SECONDS:.0f}, or until Ctrl-C)",
    )
    parser.add_argument("--planner", help="recipe to use instead of the default")
    cli_args.add_model_arguments(parser)
    arguments.add_settings_argument(parser)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for bag, plans and report")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    parser.add_argument("--live", action="store_true", help="show the drive in a browser while it runs")
    parser.add_argument("--port", type=arguments.PORT, default=live.PORT, help="of the live page")
    parser.add_argument(
        "--recording", type=Path, nargs="?", const=RECORDING, metavar="DIR", help="play a real recording instead"
    )


@command(os_error="{} cannot be used: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    with lock_folder(args.out):
        if args.recording is not None:
            return replay_recording(args, console, errors)
        try:
            closed_loop(args, console, errors)
        except SumoMissing as fault:
            raise UserError(f"{fault}; `reflectdrive demo --recording` needs no world") from None
    return 0


# --- the closed loop -------------------------------------------------------------------------------------------------


def closed_loop(args: argparse.Namespace, console: Console, errors: Console) -> None:
    config = cli_args.configuration(args, WORLD_SETTINGS)
    os.environ.update(isolated_environment())
    bag = args.out / "world"
    with ExitStack() as opened:
        page = None
        if args.live:
            page = opened.enter_context(live.serve(args.port, config.vehicle, card_layout(config.model)))
        errors.print(f"generating a world from seed {args.seed} ..")
        world = opened.enter_context(world_bag.open_world(args, config))
        drive, sent = run_drive(world, config, args, page, console, errors)
    with errors.status("writing the report"):
        record = build_record(bag, config, sent, drive)
        numbers = write_results(record, sent, config, args)
    console.print(table(numbers))
    console.print(f"open {(args.out / 'report.html').resolve()} in a browser")


def run_drive(
    world: World,
    config: Config,
    args: argparse.Namespace,
    page: live.LiveServer | None,
    console: Console,
    errors: Console,
) -> tuple[DriveRecord, list[PublishedPlan]]:
    """Drives in lock step with the node and records; returns the drive's log and the node's outputs.

    With a live page in real time, until the time is over or a signal arrives.
    """
    scores: list[tuple[int, float]] = []
    progress_m = np.zeros(2)  # of the scored plans, and of the reference planner from the same states
    fresh = moments = 0
    seconds = args.seconds or (SECONDS if page is None else LIVE_SECONDS)
    log = args.out / "node.log"
    began, begin_ns = time.perf_counter(), world.stamp_ns
    context = new_context()
    with BagWriter(args.out / "world", replace=True) as record:
        record.describe(IMAGE_DOMAIN, RENDERED)
        node = WorldNode(world, config, world_bag.camera_rig(config), context=context, record=record)
        answers = PlannerOutputs(context)
        with spin_in_background(node, answers, context=context), running_node(config, remaps(config), log) as process:
            node.wait_for_planner(process, log)
            began = time.perf_counter()
            with (
                ShownProgress(errors, hidden=page is not None) as progress,
                nullcontext(Request()) if page is None else defer_signals() as request,
            ):
                if page is not None:
                    console.print(f"{page.url} shows the drive; Ctrl-C ends it")
                task = progress.add_task("driving", total=seconds)
                for moment in node.drive(seconds, lock_step=True, real_time=page is not None):
                    require_running(process, log)
                    moments += 1
                    fresh += moment.fresh
                    if moment.fresh and moment.plan is not None and (moments - 1) % SCORE_STRIDE == 0:
                        card, reference = world.score(extend(moment.plan.trajectory))
                        scores.append((moment.stamp_ns, float(card.score[0])))
                        progress_m += float(card.progress_m[0]), reference.progress_m
                    for event in moment.events if page is not None else ():
                        console.print(f"{event.time_s:.1f} s: {event.text}")
                    progress.update(task, completed=(moment.stamp_ns - begin_ns) * 1e-9)
                    if request.number is not None:
                        break
            wall_s = time.perf_counter() - began
            time.sleep(DRAIN_S)
    log_of = world.drive
    numbers = {
        "town": world.road_map.name,
        "seed": world.options.seed,
        "duration_s": round(log_of.duration_s, 3),
        "distance_m": round(log_of.distance_m, 2),
        "limit_distance_m": round(log_of.limit_distance_m, 2),
        "standing_s": round(log_of.standing_s, 2),
        "mean_speed_mps": round(log_of.distance_m / max(log_of.duration_s, 1e-9), 3),
        "route_completion": round(log_of.route_completion, 4),
        "plan_progress_m": round(float(progress_m[0]), 2),
        "reference_progress_m": round(float(progress_m[1]), 2),
        "score_mean": round(sum(score for _, score in scores) / len(scores), 4) if scores else None,
        "collisions": len(log_of.collisions),
        "collisions_at_fault": log_of.at_fault,
        "off_road_s": round(log_of.off_road_s, 2),
        "off_road_m": round(log_of.off_road_m, 2),
        "red_lights": log_of.count("red_light"),
        "comfort_share": round(log_of.comfort, 4),
        "ticks": moments,
        "fresh_plans": fresh,
        "wall_s": round(wall_s, 2),
        "realtime_factor": round(log_of.duration_s / wall_s, 3),
        "events": [{"time_s": round(e.time_s, 2), "kind": e.kind, "text": e.text} for e in log_of.events],
    }
    events = tuple(DriveEvent(begin_ns + round(e.time_s * 1e9), e.kind, e.text) for e in log_of.events)
    stamps, values = np.array([stamp for stamp, _ in scores], np.int64), np.array([score for _, score in scores])
    rings = tuple(world_messages.road_rings(world.road_map))
    return DriveRecord(rings, stamps, values, events, numbers), answers.sent()


def build_record(bag: Path, config: Config, sent: list[PublishedPlan], drive: DriveRecord) -> ReplayRecord:
    """The drive as a replay of its own bag, with the world's events."""
    tally = ReplayCounters(config.engine.deadline_ms)
    for plan in sent:
        tally.add(plan)
    details = {
        "mode": "closed loop",
        "planner_note": planner_note(config),
        **tally.details(),
        **provenance(weights_sha256=cli_args.weights_of(config, [config.planner])),
    }
    with BagReader(bag) as reader:
        had = {topic.name for topic in reader.topics if topic.count}
        sources = {topic.key: topic.name for topic in world_messages.car_topics(config) if topic.name in had}
        legs = ReplayChunks(reader, sources, config, scoring=False)  # the world has scored the drive already
        for plan in sent:
            legs.add(plan)
        return replace(legs.record(details, drive), bag=drive.numbers["town"])


def write_results(
    record: ReplayRecord, sent: list[PublishedPlan], config: Config, args: argparse.Namespace
) -> dict[str, Any]:
    """plans, summary.json and report.html; returns the summary."""
    with plans_bag(args.out / "plans", config.output.map_frame) as write:
        for plan in sent:
            write(plan)
    numbers = summary(record)
    text = json.dumps(numbers, indent=2) + "\n"
    for target in filter(None, (args.out / "summary.json", args.json)):
        target.write_text(text, encoding="utf-8")
    write_report(record, args.out / "report.html")
    return numbers


def table(numbers: dict[str, Any]) -> Table:
    rows = {
        **dict(drive_rows(numbers)),
        "verdicts": list_counts(numbers["verdicts"]),
        **replay.planner_rows(numbers),
        "lost inputs": str(sum(values["lost"] for values in numbers["inputs"].values())),
    }
    return make_list(f"{numbers['world']['town']} · {numbers['planner']} · {numbers['mode']}", rows)


# --- the recording ---------------------------------------------------------------------------------------------------


def replay_recording(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """A real recording through the node, in recorded time."""
    bag = args.out / resolve(args.recording).name
    code = make_bag.run(parse(make_bag, [str(args.recording), str(bag), "--force"]))
    if code:
        return code
    options = parse(replay, [str(bag), "--node", "--out", str(args.out)])
    for name in ("planner", "model", "sha256", "settings", "json"):
        setattr(options, name, getattr(args, name))
    options.duration = args.seconds
    if not (args.planner or args.model):
        options.planner = BASELINE
        console.print(
            f"playing {bag.name} to {BASELINE}, a baseline without a network: the shipped networks that read images "
            "are trained on rendered ones only; --planner reflectdrive2 plays it to one of them"
        )
    code = replay.run_one(options, cli_args.configuration(options), console, errors)
    if not code:
        console.print(f"open {(args.out / 'report.html').resolve()} in a browser")
    return code


def parse(command: ModuleType, words: list[str]) -> argparse.Namespace:
    """The arguments of another command, as its command line would give them."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)
