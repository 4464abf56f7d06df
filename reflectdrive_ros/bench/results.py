"""`reflectdrive bench results`: docs/results.md and docs/results_settings.md from the JSON files under docs/bench.

A section is written when its files exist. Below each table stand its file, which has the command, the hash of the
network's weights, the commit and the date of its numbers, and the device of times.

Numbers are stale if code that moves them has changed since their commit, or if that commit was not what ran. They are
refused; --mark-stale writes the pages with a mark at each.

No setting (--setting) changes the pages, and no JSON file (--json) is written: the pages have the numbers of the files.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ..evaluation.bootstrap import format_difference
from ..evaluation.variants import RANDOM_WEIGHTS
from ..infra.command import command
from ..infra.documents import read_json
from ..infra.files import path_text
from .staleness import Numbers, ResultsError, head_of, refusal, stale

STALE = "stale"  # the key that `render` adds to numbers: why they are not of the present code
SCORES = {"pdms": "PDMS", "nc": "NC", "dac": "DAC", "ttc": "TTC", "comfort": "C", "ep": "EP"}
DRIVES = {  # measures of drives and their headings
    "drive_score": "drive score",
    "pdms": "PDMS",
    "route_completion": "route %",
    "at_fault": "contacts at fault",
    "off_road_time": "off road, % of time",
    "red_lights": "red lights",
    "comfort": "comfort %",
}
VARIANTS = "variants-"  # begins the files of `variants`
CLOSED_LOOP = {  # file -> title of its table
    "closed-loop": "Generated towns",
    "closed-loop-judge-carla": "CARLA's towns, for development",
}
OPEN_LOOP = {
    "eval-test": "All planners, `objects`",
    "eval-test-alone": "All planners, `objects`: the first plan of the generator, without variants and repair",
    "eval-test-privileges": "The default planner by privilege",
    "eval-real_tracks": "Recorded traffic, on which `reflexdiffusion` is trained",
}
HEAD = """# Results

Made by `reflectdrive bench results` from the JSON files in `docs/bench`; do not edit. In a clone,
`make docs/bench/NAME.json` measures one table, `make results` all. The file below a table has its command.

Scores are the PDM score of NAVSIM v1.1 and its sub-scores in percent, on scenes of the
[proving ground](proving_ground.md): rendered images of generated towns, not the NAVSIM benchmark. They compare planners
with each other, not with published results. Differences to the first row of a command are paired by scene or world,
with 95 % bootstrap intervals. More tables: [results_settings.md](results_settings.md).
"""
HEAD_SETTINGS = """# Results by setting

Made by `reflectdrive bench results`, as [results.md](results.md): settings side by side, and the time of a step.
"""
STALE_NOTE = (
    "Numbers marked **stale** are not of the code of commit {}: they are of older code or of an uncommitted change.\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bench", type=Path, default=Path("docs/bench"), metavar="DIR", help="JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs"), metavar="DIR", help="folder of the two pages")
    parser.add_argument(
        "--mark-stale", action="store_true", help="write numbers that are not of the present code too, each with a mark"
    )


@command(os_error="{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr when a file cannot be read or written, or for each stale file."""
    files = read(args.bench)
    reasons = stale(files, args.bench)
    if reasons and not args.mark_stale:
        raise ResultsError(
            "\n".join(refusal(reasons, files, args.bench))
            + f"\n{len(reasons)} of {len(files)} files are stale: measure them again (make results: all), or write the "
            "pages with a mark at each: reflectdrive bench results --mark-stale"
        )
    pages = render(files, reasons, head_of(args.bench) if reasons else "")
    for name, page in pages.items():
        (args.out / name).write_text(page, encoding="utf-8")
    console.print(f"{' and '.join(str(args.out / name) for name in pages)} written from {args.bench}")


def read(folder: Path) -> dict[str, Numbers]:
    """Numbers by file name without suffix. Raises ResultsError naming a file that is not JSON, or the folder."""
    files = {}
    for path in sorted(folder.glob("*.json")) if os.path.isdir(folder) else ():
        try:
            files[path.stem] = read_json(path)
        except (ValueError, OSError) as fault:
            raise ResultsError(f"{path} cannot be read: {fault}") from None
    if not files:
        raise ResultsError(f"{path_text(folder)} holds no JSON file: give the folder of measured numbers with --bench")
    return files


def render(files: Mapping[str, Numbers], reasons: Mapping[str, str] | None = None, commit: str = "") -> dict[str, str]:
    """The pages by file name; the same for the same arguments. `reasons`: why files are stale at `commit`, by stem."""
    marked = {stem: {**numbers, STALE: (reasons or {}).get(stem, "")} for stem, numbers in files.items()}
    pages = {}
    for name, (head, sections) in PAGES.items():
        parts = [part for section in sections if (part := section(marked))]
        has_marks = any(f"**{STALE}: " in part for part in parts)
        pages[name] = "\n".join([f"{head}\n{STALE_NOTE.format(commit[:12])}" if has_marks else head, *parts])
    return pages


# --- sections --------------------------------------------------------------------------------------------------------


def closed_loop(files: Mapping[str, Numbers]) -> str:
    """Drives of every planner, one table per file."""
    text = (
        "The [drive score](evaluation.md#closed-loop) is after nuPlan's closed-loop score. Milliseconds are processor "
        "time of whole steps, scores and checks included."
    )
    return _tables("Closed loop", text, CLOSED_LOOP, files, _drives)


def open_loop(files: Mapping[str, Numbers]) -> str:
    """Scores of every planner, one table per file."""
    text = "EPDMS is without extended comfort, which compares plans of consecutive moments."
    return _tables("Open loop", text, OPEN_LOOP, files, _scenes)


def variants(files: Mapping[str, Numbers]) -> str:
    """Settings side by side, of `eval --variant`, one table per file."""
    titles = {stem: stem.removeprefix(VARIANTS) for stem in files if stem.startswith(VARIANTS)}
    text = "Each row is planned or driven with its settings, all on the same scenes or in the same worlds."
    return _tables("Settings side by side", text, titles, files, lambda one: (_drives if "km" in one else _scenes)(one))


def _tables(
    heading: str, text: str, titles: Mapping[str, str], files: Mapping[str, Numbers], table: Callable[[Numbers], str]
) -> str:
    """A section of tables of the files (stem -> title) that exist; empty without them."""
    parts = [
        f"### {title}\n\n{table(files[stem])}\n{origin({stem: files[stem]})}"
        for stem, title in titles.items()
        if stem in files
    ]
    return f"## {heading}\n\n{text}\n\n" + "\n".join(parts) if parts else ""


def _scenes(numbers: Numbers) -> str:
    """Scores of planned scenes, the best first."""
    rows = [
        (
            f"`{name}`",
            *(cell(row[key]) for key in SCORES),
            _interval(row.get("pdms_95")),
            cell(row.get("epdms")),
            cell(row.get("best_of_k")),
            _to_reference(numbers, name, "pdms"),
        )
        for name, row in sorted(numbers["drivers"].items(), key=lambda item: -float(item[1]["pdms"]))
    ]
    heads = ("planner", *SCORES.values(), "95 % of PDMS", "EPDMS", "best of its plans", "PDMS less the first")
    scenes = next(iter(numbers["drivers"].values()))["scenes"]
    return f"{scenes} scenes of `{numbers['set']}`.\n\n{markdown(heads, rows)}"


def _drives(numbers: Numbers) -> str:
    """Scores and events of drives, the best first."""
    rows = []
    for name, row in sorted(numbers["planners"].items(), key=lambda item: -float(item[1].get("drive_score") or 0.0)):
        times = (row.get("planning_ms", {}).get(kind, {}).get("mean") for kind in ("full", "lite"))
        rows.append(
            (
                f"`{name}`",
                *(_count_or_cell(row.get(key)) for key in DRIVES),
                "; ".join(cell(each) for each in times if each is not None) or "-",
                _to_reference(numbers, name, "drive_score"),
            )
        )
    heads = ("planner", *DRIVES.values(), "full; lite step, ms", "drive score less the first")
    row = next(iter(numbers["planners"].values()))
    road = "objects, lights and road given" if "drivable_type=map" in numbers["command"] else "objects and lights given"
    about = f"{row['drives']} drives of {row['seconds'] / max(row['drives'], 1):.0f} s each, {road}{_towns(numbers)}."
    missing = [f"Without {job}: {reason}." for job, reason in numbers.get("failures", {}).items()]
    return f"{' '.join([about, *missing])}\n\n{markdown(heads, rows)}"


def _count_or_cell(value: float | None) -> str:
    return str(value) if isinstance(value, int) else cell(value)


def _towns(numbers: Numbers) -> str:
    """Of drives in towns of others: their maps."""
    if not numbers.get("judge"):
        return ""
    maps = ", ".join(f"`{name}`" for name in numbers["map_sha256"])
    return f"; {maps}, limits of at most {3.6 * numbers['max_limit_mps']:.0f} km/h"


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None or bounds[0] is None else f"{bounds[0]:.1f}..{bounds[1]:.1f}"


def _to_reference(numbers: Numbers, name: str, measure: str) -> str:
    means = numbers.get("differences", {}).get(name)
    return "" if means is None or means[measure] is None else format_difference(means[measure], means[f"{measure}_95"])


def families(files: Mapping[str, Numbers]) -> str:
    """PDMS by scenario family of the learned planners of `eval-test.json`, families as rows."""
    if "eval-test" not in files:
        return ""
    rows_by_name = files["eval-test"]["drivers"]
    learned = {name for name in rows_by_name if name.replace(" (", f" {RANDOM_WEIGHTS} (") in rows_by_name}
    drivers = {name: row for name, row in rows_by_name.items() if name == "expert" or name in learned}
    names = sorted({family for row in drivers.values() for family in row["families"]})
    rows = [
        (name.replace("_", " "), *(cell(row["families"].get(name, {}).get("pdms")) for row in drivers.values()))
        for name in names
    ]
    heads = ("family", *(f"`{name.partition(' (')[0]}`" for name in drivers))
    return f"## By family\n\nPDMS of the learned planners, of `eval-test.json`.\n\n{markdown(heads, rows)}"


def speed(files: Mapping[str, Numbers]) -> str:
    """The network of a step, of `bench step`."""
    some = {stem: numbers for stem, numbers in files.items() if "full_ms_p50" in numbers}
    if not some:
        return ""
    keys = ("full_ms_p50", "full_ms_p99", "roofline_full_ms", "lite_ms_p50", "lite_ms_p99", "roofline_lite_ms")
    rows = [
        (f"`{stem}`", *(cell(numbers.get(key), 2) for key in keys), numbers["device"]) for stem, numbers in some.items()
    ]
    heads = ("file", "full p50", "p99", "bound", "lite p50", "p99", "bound", "device")
    return f"## Time of a step\n\nMilliseconds.\n\n{markdown(heads, rows)}\n{origin(some)}"


def time_beside_the_network(files: Mapping[str, Numbers]) -> str:
    """The engine's step without the network, of `bench step`; what the node adds to it, of `bench node`."""
    parts = []
    if step := files.get("step"):
        text = (
            f"Milliseconds of processor time of the engine's step without the network: `{step['planner']}` on "
            f"{step['scenes']} scenes of `{step['set']}`, known objects and road, median of {step['runs']} runs."
        )
        rows = [
            (name, str(row["steps"]), *(cell(row[f"ms_p{p}"], 2) for p in (50, 95, 99)), f"{row['iterations']:.2f}")
            for name, row in step["parts"].items()
        ]
        heads = ("steps", "number", "p50", "p95", "p99", "repair iterations")
        parts.append(f"{text}\n\n{markdown(heads, rows)}\n{origin({'step': step})}")
    if node := files.get("node"):
        text = (
            "Milliseconds from the arrival of the front image to the published trajectory, less the planner's: three "
            f"{node['images']} at 10 Hz, median of {node['runs']} runs of {node['seconds']:.0f} s. The bound is the "
            "decoding of the images on one thread."
        )
        row = (cell(node[key], 2) for key in ("overhead_ms_p50", "overhead_ms_p99", "bound_decode_ms"))
        parts.append(
            f"{text}\n\n{markdown(('node', 'p50', 'p99', 'bound'), [('overhead', *row)])}\n{origin({'node': node})}"
        )
    return "## Time beside the network\n\n" + "\n".join(parts) if parts else ""


# --- Markdown --------------------------------------------------------------------------------------------------------


def cell(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def origin(some: Mapping[str, Numbers]) -> str:
    """The origin of a table's numbers. Raises ResultsError when the files are of different weights."""
    first_files: dict[str, str] = {}  # hash of weights -> the first file with it
    lines = ""
    for stem, numbers in some.items():
        weights = numbers.get("weights_sha256") or ""  # of several networks, separated by commas
        if weights:
            first_files.setdefault(weights, stem)
        parts = (
            weights and f"weights {', '.join(f'`{each[:8]}`' for each in weights.split(', '))}",
            f"commit {numbers['commit'][:12]}",
            numbers["date"][:10],
            numbers["device"] if numbers["command"].startswith("reflectdrive bench") else "",  # of times, not of scores
            f"**{STALE}: {numbers[STALE]}**" if numbers.get(STALE) else "",
        )
        lines += f"- [{stem}.json](bench/{stem}.json): {', '.join(filter(None, parts))}\n"
    if len(first_files) > 1:
        one, other, *_ = first_files.items()
        raise ResultsError(
            f"{one[1]}.json and {other[1]}.json are in one table but of different weights ({one[0][:8]}, "
            f"{other[0][:8]}): measure one of them again or remove it"
        )
    return lines


Section = Callable[[Mapping[str, Numbers]], str]
PAGES: dict[str, tuple[str, tuple[Section, ...]]] = {
    "results.md": (HEAD, (closed_loop, open_loop, families)),
    "results_settings.md": (HEAD_SETTINGS, (variants, speed, time_beside_the_network)),
}
