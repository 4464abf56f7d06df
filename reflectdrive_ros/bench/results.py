"""`reflectdrive bench results`: docs/results.md and docs/results_settings.md from the JSON files under docs/bench.

A section is written when its files exist. Below each table stand the command, the hash of the network's weights, the
commit, the date and the device of its numbers.

Numbers are stale if code that moves them has changed since their commit, or if that commit was not what ran. They are
refused; --mark-stale writes the pages with a mark at each.

No setting (--setting) changes the pages, and no JSON file (--json) is written: the pages have the numbers of the files.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from ..evaluation.driving_scores import RANDOM_WEIGHTS
from ..evaluation.open_loop import format_difference
from ..infra.command import command
from ..infra.documents import read_json
from ..infra.files import shown
from .decoding import expert_sentence
from .results_table import STALE, Numbers, ResultsError, cell, markdown, origin
from .staleness import head_of, refusal, stale

SCORES = {"pdms": "PDMS", "nc": "NC", "dac": "DAC", "ttc": "TTC", "comfort": "C", "ep": "EP"}
PLANNERS = "planners-"  # begins the files of `all_planners`
PLANNERS_DRIVES = "closed-loop-planners"  # its closed loop
HEAD = """# Results

Made by `reflectdrive bench results` from the JSON files in `docs/bench`; do not edit. In a clone,
`make docs/bench/NAME.json` measures the numbers of one table and `make results` those of all.

Scores are the PDM score of NAVSIM v1.1 and its sub-scores in percent, on scenes of the
[proving ground](proving_ground.md): rendered images of generated towns, not the NAVSIM benchmark. They compare planners
with each other, not with published results. What decoding, repair and guidance contribute:
[results_settings.md](results_settings.md).
"""
HEAD_SETTINGS = """# Results by setting

Made by `reflectdrive bench results` from the JSON files in `docs/bench`; do not edit. In a clone,
`make docs/bench/NAME.json` measures the numbers of one table. The effect of decoding, repair and guidance on the
scores of [results.md](results.md), and the time of a step, in the network and beside it.
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
    found = {}
    for path in sorted(folder.glob("*.json")) if os.path.isdir(folder) else ():
        try:
            found[path.stem] = read_json(path)
        except (ValueError, OSError) as fault:
            raise ResultsError(f"{path} cannot be read: {fault}") from None
    if not found:
        raise ResultsError(f"{shown(folder)} holds no JSON file: give the folder of measured numbers with --bench")
    return found


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
    found = {stem: numbers for stem, numbers in files.items() if stem.startswith(PLANNERS)}
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
        for stem, numbers in found.items()
        for driver, row in numbers["drivers"].items()
        if driver != "expert"
    ]
    if not rows:
        return ""
    measured = ("EPDMS", "best of its plans", "closed loop: PDMS", "full; lite step, ms")
    heads = ("planner", "repair", *SCORES.values(), "95 % of PDMS", *measured)
    scenes = {row["scenes"] for numbers in found.values() for row in numbers["drivers"].values()}
    about = (
        f"First {max(scenes)} scenes of `test`, privilege `objects`. EPDMS is without extended comfort, which compares "
        "plans of consecutive moments. Closed loop: the same generated towns; the processor time of a step there, "
        "scores and checks included."
    )
    sources = "".join(origin({stem: numbers}) for stem, numbers in {**found, **drives}.items())
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
    if ego_mlp := files.get("ego_mlp"):
        row = _score_row(f"ego-state MLP ({ego_mlp['trained_on']} scenes)", ego_mlp)
        parts.append(_score_table("Set `test`, `ego_mlp.json`", [row], {"ego_mlp": ego_mlp}))
    return "## Open loop\n\n" + "\n".join(parts) if parts else ""


def _score_table(title: str, rows: Sequence[Sequence[str]], source: Mapping[str, Numbers]) -> str:
    ordered = sorted(rows, key=lambda row: -float(row[2]))
    return (
        f"### {title}\n\n{markdown(('driver', 'scenes', *SCORES.values(), '95 % of PDMS'), ordered)}\n{origin(source)}"
    )


def _row_name(stem: str, scenes: str, driver: str) -> str:
    """A driver's row name: with the VARIANT of `eval-SET-VARIANT.json` or `eval-SET-PLANNER-VARIANT.json` appended,
    except for the expert."""
    way = stem.removeprefix(f"eval-{scenes}").removeprefix("-").removeprefix(driver.partition(" ")[0]).removeprefix("-")
    return driver if not way or driver == "expert" else f"{driver}, {way}"


def _scored_files(files: Mapping[str, Numbers], scenes: str) -> dict[str, Numbers]:
    """The files with scores on a set."""
    return {
        stem: numbers
        for stem, numbers in files.items()
        if numbers.get("set") == scenes and "drivers" in numbers and not stem.startswith(PLANNERS)
    }


def _score_row(driver: str, row: Numbers) -> Sequence[str]:
    return (f"`{driver}`", str(row["scenes"]), *_scores(row))


def _scores(row: Numbers) -> Sequence[str]:
    """The cells of SCORES and of the interval of PDMS."""
    low, high = row.get("pdms_95", (None, None))
    return (*(cell(row[key]) for key in SCORES), "" if low is None else f"{low:.1f} - {high:.1f}")


def families(files: Mapping[str, Numbers]) -> str:
    """PDMS by family of each driver on `test`, one table per file."""
    parts = []
    for stem, numbers in _scored_files(files, "test").items():
        drivers = {_row_name(stem, "test", name): row["families"] for name, row in numbers["drivers"].items()}
        names = sorted({family for row in drivers.values() for family in row})
        rows = [
            (f"`{name}`", *(cell(row.get(family, {}).get("pdms")) for family in names)) for name, row in drivers.items()
        ]
        table = markdown(("driver", *names), rows)
        parts.append(f"{table}\n{origin({stem: numbers})}")
    return "## By family\n\nPDMS on `test`.\n\n" + "\n".join(parts) if parts else ""


def decoding(files: Mapping[str, Numbers]) -> str:
    """The effect of each decoding parameter: one table per planner."""
    some = {stem: numbers for stem, numbers in files.items() if stem.startswith("decoding")}
    if not some:
        return ""
    text = (
        "PDMS of the first plan (to the most probable goal or, of `drivefine`, of the most probable tokens), of the "
        "best candidate by the score with the recorded future (an upper bound), of the plan that the planner selects."
    )
    return f"## Decoding\n\n{text}\n\n" + "\n".join(
        _decoding_table(numbers) + origin({stem: numbers}) for stem, numbers in some.items()
    )


def _decoding_table(numbers: Numbers) -> str:
    rows = []
    for way, row in numbers["rows"].items():
        low, high = row["difference_95"]
        scores = (f"{row[key]:.1f}" for key in ("single", "best", "chosen"))
        rows.append((way, *scores, f"{row['difference']:+.2f}", f"{low:+.2f} .. {high:+.2f}"))
    heads = ("decoding", "single", "best", "chosen", "single, difference", "95 %")
    text = f"`{numbers['model']['file']}` on {numbers['scenes']} scenes of `{numbers['set']}`:"
    return f"{text}\n\n{markdown(heads, rows)}\n{expert_sentence(numbers['expert'])}\n"


def repair(files: Mapping[str, Numbers]) -> str:
    """The effect and cost of several goals and of repair: one table per planner and set."""
    some = {stem: numbers for stem, numbers in files.items() if "iteration_ms_p50" in numbers}
    if not some:
        return ""
    text = (
        "Unsafe: by the guard's rule the plan leaves the drivable area or hits an object at constant velocity; "
        "avoidable: the expert's plan is safe; locally repairable: some feasible plan that differs in one waypoint, "
        "within the search radius, is safe. Iterations: the mean over all scenes."
    )
    tables = "\n".join(_repair_table(numbers) for numbers in some.values())
    return f"## Repair\n\n{text}\n\n{tables}\n{origin(some)}"


def _repair_table(numbers: Numbers) -> str:
    """Times are missing if nothing was repaired."""
    rows = []
    for way, row in numbers["rows"].items():
        counts = (f"{row[key]:.1f}" for key in ("repaired", "unsafe", "avoidable", "locally_repairable"))
        difference = format_difference(row["difference"], row["difference_95"])
        rows.append((way, *_scores(row), difference, f"{row['iterations']:.2f}", *counts))
    counted = ("PDMS less configured", "iterations", "repaired %", "unsafe %", "avoidable %", "locally repairable %")
    heads = ("plans", *SCORES.values(), "95 % of PDMS", *counted)
    times = [
        f"{cell(numbers[f'{name}_ms_p50'])} ms (p95 {cell(numbers[f'{name}_ms_p95'])})"
        for name in ("iteration", "repaired_step", "repaired_step_wall")
    ]
    text = (
        f"`{numbers['planner']}` on {numbers['scenes']} scenes of `{numbers['set']}`; an iteration took "
        f"{times[0]} of processor time without the network, a repaired step {times[1]}; wall time of a repaired step "
        f"with {numbers['threads']} threads: {times[2]}."
    )
    return f"{text}\n\n{markdown(heads, rows)}"


def ablations(files: Mapping[str, Numbers]) -> str:
    """The effect of the losses `L_field` and `L_SAP`: each left out, paired by seed."""
    numbers = files.get("ablations")
    if not numbers:
        return ""
    rows = []
    for variant, row in numbers["variants"].items():
        by_seed = (f"{numbers['runs'][f'{variant}-{seed}']['pdms']:.1f}" for seed in range(numbers["seeds"]))
        scores = [f"{row[key]:.1f}" for key in SCORES]
        differences_of = numbers["differences"].get(variant.removeprefix("no-"), {})
        differences = (format_paired(differences_of.get(key, ())) for key in ("pdms", "dac", "pdms_drafted"))
        others = (f"{row['goal_error_m']:.2f}", f"{row['pdms_drafted']:.1f}")
        rows.append((variant, scores[0], " ".join(by_seed), *scores[1:], *others, *differences))
    _, *parts = SCORES.values()
    difference_heads = (f"{name}: full less variant" for name in ("PDMS", "DAC", "drafted"))
    heads = ("trained", "PDMS", "by seed", *parts, "goal error, m", "PDMS drafted", *difference_heads)
    text = (
        f"The same budget each: {numbers['steps']} steps of {numbers['batch']} scenes, of "
        f"{numbers['scenes_trained_on']}, after {numbers['vision_steps']} shared steps of vision pretraining. Plans "
        "are those to the most probable goal as the network decodes them, with the route, on "
        f"{numbers['validation_scenes']} scenes of `val`; drafted: before editing. Differences are paired by seed: "
        "mean (smallest .. largest). The paper, without editing and adding one after the "
        "other: +2.4 for the field loss, mainly through DAC, +0.5 for SAP."
    )
    return f"## Ablations\n\n{text}\n\n{markdown(heads, rows)}\n{origin({'ablations': numbers})}"


def format_paired(differences: Sequence[float]) -> str:
    """Mean, minimum and maximum of paired differences; empty without differences."""
    if not differences:
        return ""
    mean = sum(differences) / len(differences)
    return f"{mean:+.2f} ({min(differences):+.2f} .. {max(differences):+.2f})"


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
    parts = [f"{text}{''.join(_alternating(files))}\n"]
    drives: dict[tuple[str, str], dict[str, Numbers]] = {}
    for stem, numbers in files.items():
        if "route_completion" in numbers and stem != PLANNERS_DRIVES:
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
        given = "objects, road" if "drivable_type=map" in numbers["command"] else "objects"
        for planner, row in numbers["planners"].items():
            name = (f"`{planner}`", f"`{stem}`", given)
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


def _alternating(files: Mapping[str, Numbers]) -> Iterator[str]:
    """Score and time of alternating full and lite steps against full steps only, on the same worlds."""
    try:
        both = [files[stem]["planners"]["reflectdrive2"] for stem in ("closed-loop-shipped", "closed-loop-every-full")]
    except KeyError:
        return
    turns, every = ({world["seed"]: world["pdms"] for world in one["worlds"]} for one in both)
    apart = np.array([turns[seed] - every[seed] for seed in turns if seed in every])
    spread = apart.std(ddof=1) / np.sqrt(len(apart))
    alternating, full = (one["planning_ms"]["mean"] for one in both)
    of_kind = both[0]["planning_ms"]
    yield (
        f" Alternating full and lite steps score {apart.mean():+.1f} PDMS (standard error {spread:.1f}, {len(apart)} "
        f"worlds each) against full steps alone; their steps are {full / alternating:.2f} times cheaper in the "
        f"mean, a lite one {of_kind['full']['mean'] / of_kind['lite']['mean']:.2f} times cheaper than a full one."
    )


def speed(files: Mapping[str, Numbers]) -> str:
    """Planner's step by backend."""
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


def reflection(files: Mapping[str, Numbers]) -> str:
    """Effect of guidance and reflection, a table per set and group of scenes, or of the drives in closed loop."""
    shown = {**SCORES, "reflected_percent": "plans reflected, %", "reflected_steps_percent": "steps, %"}
    parts = []
    for stem, numbers in files.items():
        if not stem.startswith("reflection"):
            continue
        if "drives" in numbers:
            parts.append(f"{_reflection_drives(numbers)}\n{origin({stem: numbers})}")
            continue
        first = f" from scene {numbers['first']}" if numbers.get("first") else ""
        for group, rows in numbers["rows"].items():
            count = numbers.get("scenes_of", {}).get(group)
            scenes = f"{count} scenes, " if count else ""
            title = (
                f"Set `{numbers['set']}`{first}, {group.replace('_', ' ')}, {scenes}privilege `{numbers['privilege']}`"
            )
            table = _reflection_table(rows, shown, "plan_ms_p50")
            parts.append(f"### {title}\n\n{table}\n{origin({stem: numbers})}")
    about = (
        "Plans of `reflexdiffusion`, in open loop without repair; differences are paired by scene or world. The "
        "sampler starts from zeros: no seed changes a plan.\n\n"
    )
    return "## Guidance and reflection\n\n" + about + "\n".join(parts) if parts else ""


def _reflection_drives(numbers: Numbers) -> str:
    measures = ("km", "at_fault_per_km", "off_road_per_km", "route_completion", "comfort", "pdms")
    shown = {name: CLOSED[name] for name in measures}
    shown |= {"reflected_percent": "plans reflected, %", "reflected_steps_percent": "steps, %"}
    repair = "with repair" if numbers["repair"] else "without repair"
    worlds = f"{len(numbers['worlds'])} worlds with a bend ahead, {numbers['duration_s']:g} s each"
    return f"### In closed loop, {worlds}, {repair}\n\n{_reflection_table(numbers['drives'], shown, 'step_ms')}"


def _reflection_table(rows: Mapping[str, Numbers], shown: Mapping[str, str], time: str) -> str:
    """`time`: the entry of milliseconds, shown relative to `base`, as all rows had the same load of the machine."""
    base_ms = rows["base"][time]
    cells = [
        (
            f"`{name}`",
            format_difference(row["to_base"], row["to_base_95"]),
            *(cell(row[key], 2 if key.endswith("_per_km") else 1) for key in shown),
            f"{row[time] / base_ms:.2f}",
        )
        for name, row in rows.items()
    ]
    return markdown(("variant", "PDMS to base (95 %)", *shown.values(), "time, of base"), cells)


Section = Callable[[Mapping[str, Numbers]], str]
PAGES: dict[str, tuple[str, tuple[Section, ...]]] = {
    "results.md": (HEAD, (all_planners, open_loop, families, closed_loop)),
    "results_settings.md": (HEAD_SETTINGS, (decoding, repair, ablations, reflection, speed, time_beside_the_network)),
}
