"""`reflectdrive scenes`: makes, checks or shows a scene set of the proving ground.

An incomplete set is completed: complete shards are kept. A large one can be made in parts, on several machines (--first
20000 --count 30000), which are then sets of their own. Sets are `train`, `val`, `test` and `hard`; they share no road
network. Without --out a set is in $REFLECTDRIVE_SCENES, or else in ~/.cache/reflectdrive/scenes, under a name that
changes with the scene version and the sampler's options. No setting (--setting) changes a scene: a set is the same for
all planners and vehicles.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
from rich.console import Console
from rich.table import Table

from ..data import sets, shards
from ..data.contact_sheet import contact_sheet
from ..data.scene import FAMILIES
from ..data.sets import SceneSetSpec
from ..data.shards import Index, SetError
from ..evaluation import scene_sets
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.errors import UserError
from ..infra.provenance import write_numbers

MAX_SHOWN = 1000  # scenes in one image


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenes", choices=sets.SIZES, default="test", help="scene set")
    parser.add_argument(
        "--count",
        type=arguments.positive_int(10_000_000),
        metavar="N",
        help="scenes to make (default: the set's own size)",
    )
    parser.add_argument(
        "--first", type=arguments.INDEX, default=0, metavar="N", help="scenes to leave out at the start"
    )
    parser.add_argument(
        "--out", type=arguments.location, metavar="DIR", help="folder or URL (default: the usual folder)"
    )
    arguments.add_workers_arguments(parser, "--workers", arguments.available_cores(), "processes")
    for name, size in zip(("--width", "--height"), scene_sets.IMAGE_SIZE, strict=True):
        pixels = arguments.Range(16, 4096, "px")
        parser.add_argument(name, type=pixels, default=size, help="of an image (default: %(default)s px)")
    parser.add_argument("--no-images", action="store_true", help="scenes without cameras")
    parser.add_argument(
        "--displaced",
        type=arguments.Range(0.0, 1.0),
        default=0.0,
        metavar="SHARE",
        help="share of the egos that start up to 2 m and 34 degrees off their lane, for training (default: 0)",
    )
    parser.add_argument("--check", type=arguments.location, metavar="DIR", help="only read a set: checksums and scenes")
    parser.add_argument("--show", nargs=2, metavar=("N", "FILE"), help="draw N scenes of the set into an image")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command("complete shards are kept, the same command resumes", "{} cannot be written: {}; complete shards are kept")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if shards are damaged or could not be made; 2 with one sentence on stderr if it cannot go on."""
    if args.check is not None:
        return _check(args.check, console, errors)
    try:
        sheet_scenes = None if args.show is None else arguments.positive_int(MAX_SHOWN)(args.show[0])
    except argparse.ArgumentTypeError as fault:
        raise UserError(f"--show: {fault}") from None
    make_shard, generator = scene_sets.make_sampler(
        args.width, args.height, images=not args.no_images, first=args.first, displaced_share=args.displaced
    )
    spec = SceneSetSpec(args.scenes, args.count or sets.SIZES[args.scenes], generator)
    folder = args.out or sets.default_folder(args.scenes, generator)
    index, rate = scene_sets.ensure_scene_set(folder, spec, make_shard, args.workers, errors)
    if sheet_scenes is not None:
        show(folder, sheet_scenes, Path(args.show[1]), errors)
    write_numbers(args.json, numbers(folder, index, rate))
    console.print(_table(index, rate))
    counts = ", ".join(f"{name} {count}" for name, count in index.counts.items())
    console.print(f"on the way: {counts or 'nothing to tell'}\nin {folder}")
    for name, reason in index.missing.items():
        errors.print(f"{name} could not be made: {reason}")
    return 1 if index.missing else 0


def show(folder: Path, scenes: int, file: Path, console: Console) -> None:
    """Draws scenes spread over a set into one image. Raises SetError, OSError."""
    index = shards.index_of(folder)
    step = max(1, index.scenes // scenes)
    every = shards.read(folder, images=True, on_damage=console.print)
    some = list(islice(every, 0, 1 + step * (scenes - 1), step))
    if not some:
        raise SetError(f"{folder} holds no scene to show")
    _, encoded = cv2.imencode(".png", cv2.cvtColor(contact_sheet(some), cv2.COLOR_RGB2BGR))
    file.write_bytes(bytes(encoded))


def _check(folder: Path, console: Console, errors: Console) -> int:
    whole = damaged = 0
    for _, damage in shards.check(folder):
        if damage is None:
            whole += 1
        else:
            damaged += 1
            errors.print(damage)
    index = shards.index_of(folder)
    for fault in index.faults:
        errors.print(f"{folder}/{fault}")
    again = len(index.shards) - len(index.distinct)
    repeated = f", {again} listed again" if again else ""
    console.print(f"{whole} shards are complete, {damaged} damaged, {len(index.missing)} were never made{repeated}")
    return 1 if damaged or index.faults else 0


# --- numbers and table -----------------------------------------------------------------------------------------------


def numbers(folder: Path, index: Index, rate: float | None) -> dict[str, Any]:
    return {
        "set": index.set,
        "folder": str(folder),
        "size": index.size,
        "scenes": index.scenes,
        "bytes": index.bytes,
        "scenes_per_s": rate,
        "families": index.families,
        "counts": index.counts,
        "networks": len(index.networks),
        "missing": dict(index.missing),
    }


def _table(index: Index, rate: float | None) -> Table:
    facts = [
        f"set '{index.set}': {index.scenes} scenes of {index.size}",
        f"{len(index.shards)} shards",
        f"{len(index.networks)} towns",
        f"{index.bytes / 1e6:.1f} MB, {index.bytes / max(index.scenes, 1) / 1e3:.0f} kB a scene",
        f"{rate:.1f} scenes/s" if rate is not None else "nothing new" if index.missing else "all there before",
    ]
    rows = []
    for family, share in FAMILIES.items():
        there = index.families.get(family, 0)
        rows.append((family, str(there), f"{100 * there / max(index.scenes, 1):.1f}", str(share)))
    return make_table(("family", "scenes", "%", "aim %"), rows, "; ".join(facts))
