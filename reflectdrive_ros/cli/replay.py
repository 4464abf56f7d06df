"""`reflectdrive replay BAG ..`: replays bags through the engine or the real node, and writes a report of the plans.

By default messages are processed by the planning core of the node, in the order received and as fast as possible.
Deadlines are not enforced, because this machine is not the vehicle's computer; the plans are bit-identical on every
run. With `--node` the node runs in its own process and the bag is published over DDS in recorded time.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError
from ..infra import arguments
from ..infra.command import command, list_counts, make_list, make_table
from ..infra.files import lock_folder
from ..infra.progress import ShownProgress
from ..infra.storage import is_remote
from ..replay import golden
from ..replay.bag_folders import holds_bags
from ..replay.bag_topics import ambiguous_choices
from ..replay.engine import ReplayOptions, replay_bag, write_results
from ..replay.golden import GoldenReplayError
from ..replay.index import COLUMNS, cells
from ..replay.many import replay_many
from ..replay.plan_measures import SCORES
from ..replay.record import ReplayRecord
from ..replay.report import score_change
from ..ros.check_core import without_cameras
from ..runtime import cli_args

NAMES_MAX = 16  # of candidates in the table
MANY_FOLDER = Path("out") / "replays"  # of several bags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_bags_argument(parser)
    parser.add_argument("--out", type=arguments.location, help="output folder (default: out/<bag>, out/replays)")
    arguments.add_workers_arguments(parser, "--jobs", 1, "parallel replays of several bags")
    parser.add_argument("--node", action="store_true", help="through the real node over DDS, in recorded time")
    parser.add_argument("--rate", type=arguments.Range(0.05, 20.0), default=1.0, help="with --node: speed of playing")
    parser.add_argument(
        "--candidates",
        metavar="TOPIC",
        help="check, repair and score another planner's trajectories on this topic of the bag; nothing is planned",
    )
    parser.add_argument("--planner", help="recipe to use instead of the configured one")
    cli_args.add_model_arguments(parser)
    parser.add_argument("--config", type=Path, help="configuration file (YAML)")
    arguments.add_settings_argument(parser)
    parser.add_argument(
        "--topic", action="append", default=[], metavar="KEY=NAME", help="topic of the bag for an input; KEY=: none"
    )
    parser.add_argument(
        "--route", choices=("bag", "driven"), default="bag", help="driven: use the driven path as the route"
    )
    parser.add_argument(
        "--duration", type=arguments.duration(0.1), metavar="S", help="only the first seconds of the bag"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write summary.json here")
    parser.add_argument(
        "--golden", type=Path, metavar="FILE", help="compare the plans with a golden; differences: exit 1"
    )
    parser.add_argument("--update-golden", action="store_true", help="write the golden instead of comparing")
    parser.add_argument("--no-report", action="store_true", help="do not write report.html")


def has_several(args: argparse.Namespace) -> bool:
    """Whether bags are replayed in processes of their own: several, on a cluster, from or to shared storage."""
    elsewhere = not isinstance(args.jobs, int) or any(map(is_remote, filter(None, (*args.bags, args.out))))
    return elsewhere or len(args.bags) > 1 or holds_bags(args.bags[0])


@command(lambda args: "the same command goes on from here" if has_several(args) else "", "{} cannot be used: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 when no plan of the planner was published, plans differ from the golden, or one of several bags
    cannot be replayed; 2 with one sentence when an argument cannot be used."""
    config = cli_args.configuration(args)
    if args.candidates is not None:
        if args.node or args.planner:
            raise ConfigError(f"--candidates plans nothing: leave out --{'node' if args.node else 'planner'}")
        config = without_cameras(config)
    args.out = args.out or (MANY_FOLDER if has_several(args) else Path("out") / args.bags[0].name)
    with lock_folder(args.out):
        return (run_many if has_several(args) else run_one)(args, config, console, errors)


def options_of(args: argparse.Namespace) -> ReplayOptions:
    return ReplayOptions(**{each.name: getattr(args, each.name) for each in fields(ReplayOptions)})


def run_one(args: argparse.Namespace, config: Config, console: Console, errors: Console) -> int:
    if args.golden is not None:  # one that cannot be written or compared with is said before the work
        golden.check_name(args.golden)
        if not args.update_golden:
            golden.read(args.golden)
    elif args.update_golden:
        raise GoldenReplayError("--update-golden writes the file of --golden: name it")
    options = options_of(args)
    with ShownProgress(errors, hidden=args.node) as progress:
        task = progress.add_task("replaying", total=1.0)

        def on_progress(share: float) -> None:
            progress.update(task, completed=share)

        record = replay_bag(args.bags[0], args.out, options, config, errors, on_progress)
    numbers = write_results(record, args.out, options, args.json)
    different = golden_differences(record, args)
    console.print(table(numbers))
    page = args.out / ("summary.json" if args.no_report else "report.html")
    console.print(f"{page.stem}: {page}")
    for line in [*no_plan_lines(numbers), *(f"differs from the golden: {line}" for line in different)]:
        errors.print(line)
    return 1 if different or not has_own_plan(numbers) else 0


def golden_differences(record: ReplayRecord, args: argparse.Namespace) -> list[str]:
    if args.golden is None:
        return []
    if args.update_golden:
        whole = not args.node and args.duration is None and not record.details["notice"]
        golden.write(record, args.golden, whole)
        return []
    return golden.differences(record, args.golden)


def run_many(args: argparse.Namespace, config: Config, console: Console, errors: Console) -> int:
    if args.golden is not None:
        raise ConfigError("--golden compares one bag: give one")
    if args.node and args.jobs != 1:
        raise ConfigError("--node plays in recorded time: replay one bag after the other, with --jobs 1")
    summary = replay_many(args.bags, args.out, options_of(args), config, errors, args.json)
    page = args.out / ("summary.json" if args.no_report else "index.html")
    print_summary(summary, page, console, errors)
    return 0 if not summary["failures"] and all(has_own_plan(one) for one in summary["bags"]) else 1


# --- what is printed -------------------------------------------------------------------------------------------------


def has_own_plan(numbers: Mapping[str, Any]) -> bool:
    """Whether a plan of the planner was published, new or carried forward; stop plans do not count."""
    return bool(numbers["plans"] > numbers["sources"]["STOP"])


def no_plan_lines(numbers: Mapping[str, Any]) -> list[str]:
    """If no plan of the planner was published: one line that says so, and one per error of the diagnostics."""
    if has_own_plan(numbers):
        return []
    diagnostics = numbers["diagnostics"]
    diagnostics = [line for line in diagnostics if line["level"] == "ERROR"] or diagnostics
    stops = f"{numbers['plans']} stops were sent" if numbers["plans"] else "nothing was published"
    lines = [
        f"bag {numbers['bag']}: no plan of {numbers['planner']} was published, {stops}; the diagnostics, with counts:"
    ]
    return lines + [f"  {line['count']} x {line['name']}: {line['message']}" for line in diagnostics]


def planner_rows(numbers: dict[str, Any]) -> dict[str, str]:
    """Table rows with the step kinds and notes of a learned planner."""
    rows = {}
    if set(numbers["steps"]) - {"baseline"}:
        rows["steps"] = ", ".join(f"{count} {name}" for name, count in numbers["steps"].items())
    if numbers["notes"]:
        rows["noted"] = "; ".join(f"{count} x {note}" for note, count in numbers["notes"].items())
    return rows


def deadline_row(numbers: Mapping[str, Any]) -> dict[str, str]:
    """A table row with plans over the deadline, which the engine's verdicts do not count as late."""
    if numbers["mode"] != "engine":
        return {}
    sentence = f"this replay has no deadline; {numbers['over_deadline']} plans over the deadline of"
    return {"deadline": f"{sentence} {numbers['deadline_ms']:g} ms"}


def scored_row(scored: dict[str, Any]) -> dict[str, str]:
    """A table row with the driving score, where the bag has the data for it."""
    if not scored["plans"]:
        return {}
    parts = ", ".join(f"{name.upper()} {scored[name]:.1f}" for name in SCORES if scored[name] is not None)
    return {"driving score": f"{parts} ({scored['plans']} plans, others as they drove)"}


def candidate_rows(numbers: Mapping[str, Any] | None) -> dict[str, str]:
    """Table rows with the verdicts on another planner's candidates and their scores before and after the repair."""
    if numbers is None:
        return {}
    rows = {"candidates": f"{list_counts(numbers['verdicts'])} in {numbers['messages']} messages"}
    if len(numbers["by_name"]) > 1:
        names = list(numbers["by_name"])[:NAMES_MAX]
        rows |= {f"  {name}": list_counts(numbers["by_name"][name]["verdicts"]) for name in names}
    rows["forecast score"] = score_change(numbers["score_before"], numbers["score_after"])
    scored = numbers["scored"]
    if scored["candidates"]:
        parts = [
            f"{name.upper()} {score_change(scored['before'][name], scored['after'][name])}"
            for name in SCORES
            if scored["before"][name] is not None
        ]
        rows["recorded future"] = f"{', '.join(parts)} ({scored['candidates']} candidates)"
    if numbers["sentences"]:
        rows["not checked"] = "\n".join(f"{count} x {text}" for text, count in numbers["sentences"].items())
    return rows


def table(numbers: dict[str, Any]) -> Table:
    rows = {
        "topics": "\n".join(f"{key} = {entry['name']}" for key, entry in numbers["topics"].items()),
        "plans": f"{numbers['plans']} in {numbers['duration_s']:.1f} s",
        "verdicts": list_counts(numbers["verdicts"]),
        **deadline_row(numbers),
        **planner_rows(numbers),
        "sent": list_counts(numbers["sources"]),
        "ADE / FDE over 4 s": "no plan reaches 4 s of recorded future"
        if numbers["ade_m"] is None
        else f"{numbers['ade_m']:.2f} m / {numbers['fde_m']:.2f} m ({numbers['plans_compared']} plans)",
        **scored_row(numbers["scored"]),
        **candidate_rows(numbers.get("candidates")),
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
    return make_list(f"{numbers['bag']} · {numbers['planner']} · {numbers['mode']}", rows)


def print_summary(summary: Mapping[str, Any], page: Path, console: Console, errors: Console) -> None:
    rows = [(one["name"], one["state"], *cells(one)) for one in summary["bags"]]
    total = ("total", f"{summary['kept']} kept" if summary["kept"] else "", *cells(summary))
    console.print(make_table(COLUMNS, [*rows, (), total], f"{len(rows)} bags · {summary['planner']}", texts=2))
    for name, text in deadline_row(summary).items():
        console.print(f"{name}: {text}")
    for topics, bags in topic_groups(summary["bags"]).items():
        console.print(f"topics of {', '.join(bags)}: {topics}")
    console.print(f"{page.stem}: {page}")
    for one in summary["bags"]:
        notice = [one["notice"]] if one["notice"] else []
        choices = [f"{one['name']}: {line}" for line in ambiguous_choices(one["topics"])]
        for line in [*notice, *choices, *no_plan_lines(one)]:
            errors.print(line)
    for bag, sentence in summary["failures"].items():
        named = sentence if bag in sentence else f"{bag}: {sentence}"
        errors.print(f"not replayed: {named}")


def topic_groups(bags: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of bags by the topics that were used in them."""
    groups: dict[str, list[str]] = {}
    for one in bags:
        topics = ", ".join(f"{key} = {entry['name']}" for key, entry in one["topics"].items())
        groups.setdefault(topics, []).append(one["name"])
    return groups
