"""`reflectdrive bench results`: docs/results.md and docs/results_settings.md from the JSON files under docs/bench.

A section is written when its files exist. Below each table stand the command, the hash of the network's weights, the
commit and the date of its numbers, and the device of times.

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
from .results_table import STALE, Numbers, ResultsError, cell, markdown, origin
from .staleness import head_of, refusal, stale

SCORES = {"pdms": "PDMS", "nc": "NC", "dac": "DAC", "ttc": "TTC", "comfort": "C", "ep": "EP"}
PLANNERS = "planners-"  # begins the files of `all_planners`
PLANNERS_DRIVES = "closed-loop-planners"  # its closed loop
VARIANTS = "variants-"  # begins the files of `variants`
HEAD = """# Results

Made by `reflectdrive bench results` from the JSON files in `docs/bench`; do not edit. In a clone,
`make docs/bench/NAME.json` measures one table, `make results` all.

Scores are the PDM score of NAVSIM v1.1 and its sub-scores in percent, on scenes of the
[proving ground](proving_ground.md): rendered images of generated towns, not the NAVSIM benchmark. They compare planners
with each other, not with published results. What settings contribute, and the times of a step:
[results_settings.md](results_settings.md).
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
    about = f"\n{STALE_NOTE.format(commit[:12])}" if reasons else ""
    return {
        name: "\n".join(part for part in (f"{head}{about}", *(section(marked) for section in sections)) if part)
        for name, (head, sections) in PAGES.items()
    }


# --- sections --------------------------------------------------------------------------------------------------------


def all_planners(files: Mapping[str, Numbers]) -> str:
    """The learned planners side by side, of `planners-PLANNER.json` and, without their repair,
    `planners-PLANNER-bare.json`: the same scenes and inputs. The closed loop is that of `closed-loop-planners.json`."""
    scored = {stem: numbers for stem, numbers in files.items() if stem.startswith(PLANNERS)}
    drives = {stem: numbers for stem, numbers in files.items() if stem == PLANNERS_DRIVES}
    rows = [
        (
            f"`{driver.partition(' (')[0]}`",
            "no" if stem.endswith("-bare") else "yes",
            *_scores(row),
            cell(row["epdms"]),
            cell(row.get("best_of_k")),
            *_drive_cells(drives.get(PLANNERS_DRIVES), driver.partition(" (")[0] if not stem.endswith("-bare") else ""),
        )
        for stem, numbers in scored.items()
        for driver, row in numbers["drivers"].items()
        if driver != "expert"
    ]
    if not rows:
        return ""
    measured = ("EPDMS", "best of its plans", "closed loop: PDMS", "full; lite step, ms")
    heads = ("planner", "repair", *SCORES.values(), "95 % of PDMS", *measured)
    scenes = {row["scenes"] for numbers in scored.values() for row in numbers["drivers"].values()}
    about = (
        f"First {max(scenes)} scenes of `test`, privilege `objects`. EPDMS is without extended comfort, which compares "
        "plans of consecutive moments. Closed loop: the same generated towns; the processor time of a step there, "
        "scores and checks included."
    )
    sources = "".join(origin({stem: numbers}) for stem, numbers in {**scored, **drives}.items())
    return f"## All planners\n\n{about}\n\n{markdown(heads, sorted(rows, key=lambda row: -float(row[2])))}\n{sources}"


def _drive_cells(drives: Numbers | None, planner: str) -> tuple[str, str]:
    """PDMS of a planner in closed loop, and the mean times of its steps; "-" where it did not drive."""
    row = None if drives is None else drives["planners"].get(planner)
    if row is None:
        return "-", "-"
    times = (row.get("planning_ms", {}).get(kind, {}).get("mean") for kind in ("full", "lite"))
    return cell(row.get("pdms")), "; ".join(cell(each) for each in times if each is not None)


def open_loop(files: Mapping[str, Numbers]) -> str:
    """Scores of every driver, one table per set and file."""
    parts = []
    for name in ("test", "hard", "val", "real_tracks"):
        for stem, numbers in _scored_files(files, name).items():
            rows = [_score_row(_row_name(stem, name, driver), row) for driver, row in numbers["drivers"].items()]
            parts.append(_score_table(f"Set `{name}`, `{stem}.json`", rows, {stem: numbers}))
    return "## Open loop\n\n" + "\n".join(parts) if parts else ""


def _score_table(title: str, rows: Sequence[Sequence[str]], source: Mapping[str, Numbers]) -> str:
    ordered = sorted(rows, key=lambda row: -float(row[2]))
    return (
        f"### {title}\n\n{markdown(('driver', 'scenes', *SCORES.values(), '95 % of PDMS'), ordered)}\n{origin(source)}"
    )


def _row_name(stem: str, scenes: str, driver: str) -> str:
    """A driver's row name: with the VARIANT of `eval-SET-VARIANT.json` or `eval-SET-PLANNER-VARIANT.json` appended,
    except for the expert."""
    suffix = (
        stem.removeprefix(f"eval-{scenes}").removeprefix("-").removeprefix(driver.partition(" ")[0]).removeprefix("-")
    )
    return driver if not suffix or driver == "expert" else f"{driver}, {suffix}"


def _scored_files(files: Mapping[str, Numbers], scenes: str) -> dict[str, Numbers]:
    """The files with scores on a set."""
    return {
        stem: numbers
        for stem, numbers in files.items()
        if numbers.get("set") == scenes and "drivers" in numbers and not stem.startswith((PLANNERS, VARIANTS))
    }


def _score_row(driver: str, row: Numbers) -> Sequence[str]:
    return (f"`{driver}`", str(row["scenes"]), *_scores(row))


def _scores(row: Numbers) -> Sequence[str]:
    """The cells of SCORES and of the interval of PDMS."""
    low, high = row.get("pdms_95", (None, None))
    return (*(cell(row[key]) for key in SCORES), "" if low is None else f"{low:.1f} - {high:.1f}")


def families(files: Mapping[str, Numbers]) -> str:
    """PDMS by family of each driver on `test`, of the files of `open_loop`."""
    drivers = {
        _row_name(stem, "test", name): row["families"]
        for stem, numbers in _scored_files(files, "test").items()
        for name, row in numbers["drivers"].items()
    }
    if not drivers:
        return ""
    names = sorted({family for row in drivers.values() for family in row})
    rows = [
        (f"`{name}`", *(cell(row.get(family, {}).get("pdms")) for family in names)) for name, row in drivers.items()
    ]
    return f"## By family\n\nPDMS on `test`, of the same files.\n\n{markdown(('driver', *names), rows)}"


CLOSED = {
    "km": "km",
    "route_completion": "route %",
    "collisions_per_km": "collisions/km",
    "at_fault_per_km": "at fault/km",
    "off_road_per_km": "off road/km",
    "off_road_time": "off road, % of time",
    "red_lights_per_km": "red lights/km",
    "speeding_per_km": "speeding/km",
    "comfort": "comfort %",
    "pdms": "PDMS",
}


def closed_loop(files: Mapping[str, Numbers]) -> str:
    """A table for each planner in generated towns, then for each in towns of others."""
    text = "Milliseconds are processor time of whole steps, scores and checks included."
    parts = [f"{text}\n"]
    drives: dict[tuple[str, str], dict[str, Numbers]] = {}
    for stem, numbers in files.items():
        if "route_completion" in numbers and stem != PLANNERS_DRIVES and not stem.startswith(VARIANTS):
            of_network = numbers["planner"].removesuffix(f" {RANDOM_WEIGHTS}")
            drives.setdefault((numbers.get("judge", ""), of_network), {})[stem] = numbers
    for (judge, planner), some in sorted(drives.items()):
        worlds = f"Towns `{judge}`, for development" if judge else "Generated towns"
        about = _towns(next(iter(some.values()))) if judge else ""
        parts.append(f"### {worlds}, `{planner}`\n\n{about}{_drives(some)}\n{origin(some)}")
    return "## Closed loop\n\n" + "\n".join(parts) if len(parts) > 1 else ""


def _drives(some: Mapping[str, Numbers]) -> str:
    """A row for each file and planner; then the parts of the PDM score of the plans driven, where a file has them."""
    rows, scores, score_heads = [], [], {**SCORES, "tlc": "red lights"}
    for stem, numbers in some.items():
        inputs = "objects, road" if "drivable_type=map" in numbers["command"] else "objects"
        for planner, row in numbers["planners"].items():
            name = (f"`{planner}`", f"`{stem}`", inputs)
            times = (cell(row.get("planning_ms", {}).get(kind, {}).get("mean")) for kind in ("full", "lite"))
            rows.append((*name, str(row["drives"]), *(cell(row.get(key)) for key in CLOSED), *times))
            if plans := row.get("plan_scores"):
                scores.append((*name, *(cell({**row, **plans}[part]) for part in score_heads)))
    heads = ("planner", "file", "given")
    table = markdown((*heads, "drives", *CLOSED.values(), "full step, ms", "lite"), rows)
    parts = f"\nScores of the plans that were driven:\n\n{markdown((*heads, *score_heads.values()), scores)}"
    return table + (parts if scores else "")


def _towns(numbers: Numbers) -> str:
    """What the drives in towns of others have in common."""
    maps = ", ".join(f"`{name}`" for name in numbers["map_sha256"])
    row = next(iter(numbers["planners"].values()))
    return (
        f"{maps}; limits of at most {3.6 * numbers['max_limit_mps']:.0f} km/h; "
        f"{row['seconds'] / max(row['drives'], 1):.0f} s a drive.\n\n"
    )


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


def variants(files: Mapping[str, Numbers]) -> str:
    """Settings, weights or planners side by side, of `eval --variant`: a table for each file."""
    parts = []
    for stem, numbers in files.items():
        if not stem.startswith(VARIANTS):
            continue
        table = _variant_drives(numbers) if "planners" in numbers else _variant_scores(numbers)
        parts.append(f"### {stem.removeprefix(VARIANTS)}\n\n{table}\n{origin({stem: numbers})}")
    text = (
        "Each row is planned or driven with its settings, all on the same scenes or in the same worlds. Differences to "
        "the first row are paired; their 95 % intervals are bootstrap intervals over scenes or worlds."
    )
    return f"## Settings side by side\n\n{text}\n\n" + "\n".join(parts) if parts else ""


def _variant_scores(numbers: Numbers) -> str:
    rows = [
        (f"`{name}`", *_scores(row), cell(row.get("best_of_k")), _to_reference(numbers, name))
        for name, row in numbers["drivers"].items()
    ]
    heads = ("row", *SCORES.values(), "95 % of PDMS", "best of its plans", "PDMS less the first (95 %)")
    scenes = next(iter(numbers["drivers"].values()))["scenes"]
    return f"{scenes} scenes of `{numbers['set']}`.\n\n{markdown(heads, rows)}"


def _variant_drives(numbers: Numbers) -> str:
    rows = []
    for name, row in numbers["planners"].items():
        times = (cell(row.get("planning_ms", {}).get(kind, {}).get("mean")) for kind in ("full", "lite"))
        rows.append((f"`{name}`", *(cell(row.get(key)) for key in CLOSED), *times, _to_reference(numbers, name)))
    heads = ("row", *CLOSED.values(), "full step, ms", "lite", "PDMS less the first (95 %)")
    drives = next(iter(numbers["planners"].values()))["drives"]
    return f"{drives} drives each, in closed loop.\n\n{markdown(heads, rows)}"


def _to_reference(numbers: Numbers, name: str) -> str:
    means = numbers["differences"].get(name)
    return "" if means is None or means["pdms"] is None else format_difference(means["pdms"], means["pdms_95"])


Section = Callable[[Mapping[str, Numbers]], str]
PAGES: dict[str, tuple[str, tuple[Section, ...]]] = {
    "results.md": (HEAD, (all_planners, open_loop, families, closed_loop)),
    "results_settings.md": (HEAD_SETTINGS, (variants, speed, time_beside_the_network)),
}
