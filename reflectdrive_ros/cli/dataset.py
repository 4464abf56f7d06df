"""`reflectdrive dataset BAG .. --out DIR`: scene sets from recordings, for training and evaluation.

With `--from navsim` BAG is the folder of NAVSIM's logs, which the devkit's own loader reads (docs/navsim.md).

Each bag is read twice: first every tick (0.5 s, `--tick`) is indexed, with the reasons why it makes no scene, then the
scenes are written. The index is Parquet (`pip install '.[dataset]'`). The planner's inputs in a scene are
those that the node makes of the same bag, to the last bit; nothing received later than the frame is in them. A bag
without a route gets its driven path as the route, flagged as hindsight.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import resource
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.config import Config, override_dotted
from ..data import frame_index
from ..dataset.checks import FrameLimits
from ..dataset.conversion import Dataset, DatasetOptions, make_dataset
from ..dataset.report import write_report
from ..evaluation import navsim_sets
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.errors import UserError
from ..infra.files import lock_folder, path_text, read_limited
from ..infra.progress import ShownProgress
from ..infra.provenance import write_numbers
from ..runtime import cli_args
from ..runtime.engine import image_size
from ..runtime.network import load_networks, worker_network

INTERVAL_BYTES = 1 << 24
LIMIT_OPTIONS = {
    "gap_s": ("--max-gap", "s between two odometry messages"),
    "position_std_m": ("--max-position-std", "m, standard deviation of the position"),
    "standing_s": ("--max-standing", "s that the car may have stood, if it goes on standing"),
    "off_lane_m": ("--max-off-lane", "m from the rear axle to the nearest lane of the map"),
    "off_road_m": ("--max-off-road", "m from a corner of the car to the road, on the driven path"),
    "overlap_m": ("--max-overlap", "m of the car and an object, on the driven path"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_bags_argument(parser)
    parser.add_argument("--out", type=arguments.location, required=True, metavar="DIR", help="folder of the set")
    parser.add_argument("--from", dest="source", choices=("bags", "navsim"), default="bags", help="what BAG is")
    navsim = parser.add_argument_group("of --from navsim")
    navsim.add_argument("--sensor-blobs", type=Path, metavar="DIR", help="images: sensor_blobs/SPLIT of OpenScene")
    navsim.add_argument("--metric-cache", type=Path, metavar="DIR", help="metric cache of the split, for map and score")
    navsim.add_argument("--scene-filter", type=Path, metavar="FILE", help="of the devkit: scene_filter/navtrain.yaml")
    parser.add_argument("--map", type=Path, metavar="FILE", help="Lanelet2 map (.osm) of bags that hold none")
    parser.add_argument("--config", type=Path, help="configuration file (YAML)")
    parser.add_argument("--planner", help="planner whose inputs are stored, instead of the configured one")
    cli_args.add_model_arguments(parser)
    arguments.add_settings_argument(parser)
    parser.add_argument(
        "--topic", action="append", default=[], metavar="KEY=NAME", help="topic of the bag for an input; KEY=: none"
    )
    parser.add_argument(
        "--route",
        choices=("auto", "driven"),
        default="auto",
        help="driven: the driven path, in hindsight, even if the bag has a route",
    )
    parser.add_argument(
        "--val-share",
        type=arguments.Range(0.0, 0.9),
        default=0.0,
        metavar="X",
        help="share of the drives that go to DIR/val, the others to DIR/train; 0: one set in DIR",
    )
    parser.add_argument(
        "--tick", type=arguments.duration(0.05, 60.0), default=0.5, metavar="S", help="time between two scenes"
    )
    parser.add_argument(
        "--overrides", type=Path, metavar="FILE", help="CSV of manual overrides: drive, start, end in s of the bag"
    )
    parser.add_argument(
        "--override-topic",
        default="",
        metavar="NAME",
        help="topic of manual overrides: std_msgs/Bool, true while a person drives, or Autoware's operation mode",
    )
    arguments.add_workers_arguments(parser, "--jobs", 1, "processes, each with a bag or a part of one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    limits = parser.add_argument_group("limits beyond which a tick makes no scene")
    for name, (option, text) in LIMIT_OPTIONS.items():
        default = getattr(FrameLimits(), name)
        limits.add_argument(
            option, type=arguments.Range(0.0, 1000.0), default=default, metavar="X", dest=name, help=text
        )


@command("complete shards are kept, the same command resumes", "{} cannot be written: {}; complete shards are kept")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if a bag is left out; 2 with one sentence on stderr if no set can be made."""
    config = cli_args.configuration(args)
    start_s = time.perf_counter()
    dataset = (navsim_dataset if args.source == "navsim" else bags_dataset)(args, config, errors)
    wall_s = time.perf_counter() - start_s
    write_report(args.out, dataset)
    counted = {**numbers(dataset), "wall_s": round(wall_s, 2)}
    write_numbers(args.json, counted)
    console.print(table(counted))
    console.print(f"report: {args.out / 'dataset.html'}")
    for notice in dataset.notices.values():
        errors.print(notice)
    for sentence in dataset.failures.values():
        errors.print(f"left out: {sentence}")
    return 1 if dataset.failures else 0


def bags_dataset(args: argparse.Namespace, config: Config, errors: Console) -> Dataset:
    """The set of the scenes of bags. Raises UserError."""
    if args.map is not None:
        config = override_dotted(config, {"inputs.lanelet_map": str(args.map)})
    options = DatasetOptions(
        topic=tuple(args.topic),
        route=args.route,
        limits=FrameLimits(**{entry.name: getattr(args, entry.name) for entry in fields(FrameLimits)}),
        tick_s=args.tick,
        overrides=None if args.overrides is None else read_overrides(args.overrides),
        override_topic=args.override_topic,
    )
    with lock_folder(args.out):
        return make_dataset(
            args.bags, args.out, options, config, network_image_size(config), args.val_share, args.jobs, errors
        )


def navsim_dataset(args: argparse.Namespace, config: Config, errors: Console) -> Dataset:
    """The set of NAVSIM's scenes. Raises UserError."""
    if len(args.bags) != 1 or args.sensor_blobs is None:
        raise UserError("--from navsim takes one folder of logs, and --sensor-blobs DIR with its images")
    source = navsim_sets.NavsimSource(args.bags[0], args.sensor_blobs, args.metric_cache, args.scene_filter)
    with lock_folder(args.out), ShownProgress(errors) as progress:
        bar = progress.add_task("reading logs", total=None)
        rows, index = navsim_sets.make_set(
            source,
            args.out,
            network_image_size(config),
            args.jobs,
            lambda done, logs: progress.update(bar, completed=done, total=logs),
        )
    return Dataset(rows, {"": index}, {}, {}, navsim_sets.FRAME_S)


def network_image_size(config: Config) -> tuple[int, int]:
    """Width and height in px of the images that the node makes for its planner."""
    return image_size(load_networks(config, worker_network)) or (config.cameras.width, config.cameras.height)


def read_overrides(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Intervals by drive. Raises UserError naming the line that is none."""
    try:
        lines = read_limited(path, INTERVAL_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is no UTF-8 text"
        raise UserError(f"--overrides {path_text(path)} cannot be read: {reason}") from None
    overrides: dict[str, list[tuple[float, float]]] = {}
    try:
        rows = list(csv.reader(io.StringIO(lines)))
    except csv.Error as fault:
        raise UserError(f"--overrides {path_text(path)} is no table of drive,start,end: {fault}") from None
    for number, cells in enumerate(rows, 1):
        if not cells or cells[0].startswith("#") or (number == 1 and cells[0].strip() == "drive"):
            continue
        try:
            drive, start_s, end_s = cells[0].strip(), float(cells[1]), float(cells[2])
            if not (math.isfinite(start_s) and math.isfinite(end_s) and start_s <= end_s):
                raise ValueError
        except (ValueError, IndexError):
            raise UserError(
                f"--overrides {path_text(path)}, line {number}: expected drive,start,end with seconds from the bag's "
                "start"
            ) from None
        overrides.setdefault(drive, []).append((start_s, end_s))
    return overrides


def numbers(dataset: Dataset) -> dict[str, Any]:
    families = Counter[str]()
    for index in dataset.indices.values():
        families.update(index.families)
    return {
        "drives": len({row.drive for row in dataset.rows}),
        "ticks": len(dataset.rows),
        "scenes": sum(index.scenes for index in dataset.indices.values()),
        "bytes": sum(index.bytes for index in dataset.indices.values()),
        "sets": {name or ".": index.scenes for name, index in dataset.indices.items()},
        "families": families,
        "skipped": frame_index.reason_counts(dataset.rows),
        "hindsight": sum(row.valid and row.hindsight for row in dataset.rows),
        "failures": dict(dataset.failures),
        "memory_mb_max": round(
            max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024.0
        ),
    }


def table(counted: Mapping[str, Any]) -> Table:
    facts = [
        f"{counted['scenes']} scenes of {counted['ticks']} ticks of {counted['drives']} drives",
        f"{counted['bytes'] / 1e6:.1f} MB",
        f"{counted['hindsight']} with a hindsight route",
        f"{counted['wall_s']:.1f} s",
    ]
    rows: list[tuple[str, ...]] = [("scenes", name, str(count)) for name, count in counted["families"].items()]
    rows += [(), *(("skipped", name, str(count)) for name, count in counted["skipped"].items())]
    return make_table(("", "", "ticks"), rows, "; ".join(facts), texts=2)
