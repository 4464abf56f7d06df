"""`reflectdrive score SCENES OUT`: the official driving scores of given trajectories in given scenes.

`reflectdrive score --self-test` scores scenes that come with the package and says whether this machine, with its NumPy
and BLAS, gives the official values; machines whose SHA-256 is equal write the same rows, digit by digit.

SCENES has one scene a line, OUT gets one row per scene and trajectory, both as described in
test/data/golden/SCHEMA.md (gzipped where the name ends in .gz). Scores are PDMS of NAVSIM v1.1 and EPDMS of v2 with and
without the human filter, by the rules of the official code. No setting (--setting) changes them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.tokens import Codebook
from ..evaluation import golden, self_test
from ..evaluation.golden import GoldenError
from ..infra.command import command, make_list, make_table
from ..infra.documents import DocumentError, array, check_fields, maybe, named, number, text, whole
from ..infra.errors import UserError
from ..infra.files import atomic_file
from ..infra.progress import track_progress
from ..infra.provenance import provenance, write_numbers

COLUMNS = {
    "v1": ("NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS"),
    "v2": ("NC", "DAC", "DDC", "TLC", "EP", "TTC", "LK", "HC"),
    "epdms": ("EPDMS_raw_noEC", "EPDMS_raw_EC", "EPDMS_filt_noEC", "EPDMS_filt_EC"),
}
COMPARED = ("v1", "v2_raw", "v2", "epdms")
ROW = {  # of a file of scores
    "scene_id": text(),
    "traj": whole(0, 10**9),
    **dict.fromkeys(COMPARED, named(number())),
    "EC": maybe(number()),
    "sim": maybe(array(array(number(), 9, 9), 40, 40)),
}
TOLERANCE = 1e-6  # of a score, and of a simulated state in m, rad, m/s ..


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenes", type=Path, nargs="?", metavar="SCENES", help="file of scenes, .jsonl or .jsonl.gz")
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="file of scores to write, .jsonl or .jsonl.gz")
    parser.add_argument("--self-test", action="store_true", help="golden scenes on this machine: equal or not")
    parser.add_argument("--states", action="store_true", help="also write the simulated states (key sim)")
    parser.add_argument(
        "--against", type=Path, metavar="SCORES", help="known scores of these scenes: count differences"
    )
    parser.add_argument("--codebook", action="store_true", help="what rounding to the 0.3 m codebook costs the experts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 when the self-test differs; 2 with one sentence on stderr when a file cannot be used."""
    if args.self_test:
        if args.scenes or args.against or args.codebook or args.states:
            raise UserError("--self-test has scenes of its own: give it alone, or with --json")
        return run_self_test(args.json, console, errors)
    if args.out is None:
        raise UserError("SCENES and OUT are missing: name both files, or give --self-test")
    official = None if args.against is None else official_scores(args.against)
    numbers = score_file(args.scenes, args.out, official, states=args.states, console=errors)
    if args.codebook:
        numbers["codebook"] = golden.codebook_ceiling(golden.read_scenes(args.scenes), Codebook())
    write_numbers(args.json, numbers)
    console.print(table(numbers))
    return 0


def run_self_test(json_file: Path | None, console: Console, errors: Console) -> int:
    """Scores the golden scenes of the package. Exit code 0 if all scores and states are the official ones, else 1."""
    start_s = time.perf_counter()
    with TemporaryDirectory() as folder:
        out = Path(folder) / "scores.jsonl"
        numbers = score_file(self_test.SCENES, out, official_scores(self_test.SCORES), states=True, console=errors)
        numbers["results_sha256"] = hashlib.sha256(out.read_bytes()).hexdigest()
    compared = numbers["compared"]
    numbers["equal"] = not compared["differing"] and compared["worst_state_error"] <= TOLERANCE
    numbers |= {"numpy": self_test.numpy_kernels(), "blas": self_test.blas_kernels()}
    numbers["seconds"] = round(time.perf_counter() - start_s, 3)
    write_numbers(json_file, numbers)
    rows = {
        "scores": f"{compared['rows']} trajectories in {numbers['scenes']} scenes, {differing_names(compared)}",
        "states": f"worst deviation {compared['worst_state_error']:.1e}, allowed {TOLERANCE:g}",
        "results SHA-256": numbers["results_sha256"][:16],
        "NumPy": numbers["numpy"],
        "BLAS": numbers["blas"],
        "machine": provenance()["device"],
        "time": f"{numbers['seconds']:.1f} s",
    }
    console.print(
        make_list(f"self-test: {'equal to' if numbers['equal'] else 'DIFFERENT from'} the official scores", rows)
    )
    return 0 if numbers["equal"] else 1


def official_scores(path: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Rows of a file of scores by scene and trajectory. Raises GoldenError."""
    rows: dict[tuple[str, int], Mapping[str, Any]] = {}
    for line, row in golden.read_lines(path):
        try:
            check_fields(row, ROW)
        except DocumentError as fault:
            raise GoldenError(f"{path}, line {line}: not a row of scores: it {fault}") from None
        rows[row["scene_id"], row["traj"]] = row
    return rows


def score_file(
    scenes: Path,
    out: Path,
    official_rows: Mapping[tuple[str, int], Mapping[str, Any]] | None,
    *,
    states: bool,
    console: Console,
) -> dict[str, Any]:
    """Scores the scenes of one file into another and returns the numbers of the table.

    OUT appears only when all scenes were scored. Raises GoldenError for a bad file of scenes, OSError for a bad OUT.
    """
    count = sum(1 for _ in golden.read_lines(scenes))
    if not count:
        raise GoldenError(f"{scenes} holds no scene")
    values: dict[str, list[float]] = {f"{group}.{name}": [] for group, names in COLUMNS.items() for name in names}
    differing: Counter[str] = Counter()
    rows = compared = 0
    worst_state = 0.0
    if out.exists() and not out.is_file():
        raise GoldenError(f"{out} is no regular file, so it is not replaced: name another OUT")
    open_text: Any = gzip.open if out.suffix == ".gz" else open
    with atomic_file(out) as part, open_text(part, "wt", encoding="utf-8") as file:
        for scene in track_progress(golden.read_scenes(scenes), "scoring", console, count):
            scores = golden.score_official(scene)
            for row in golden.score_rows(scene, scores, states=states):
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
                rows += 1
                for group, names in COLUMNS.items():
                    for name in names:
                        if name in row[group]:
                            values[f"{group}.{name}"].append(row[group][name])
                if official_rows is not None and (row["scene_id"], row["traj"]) in official_rows:
                    compared += 1
                    official = official_rows[row["scene_id"], row["traj"]]
                    differing.update(differences(row, official))
                    if "sim" in official:
                        mine = golden.simulated_states(scene, scores.raw.states[row["traj"]])
                        worst_state = max(worst_state, golden.state_error(mine, np.asarray(official["sim"])))
    numbers: dict[str, Any] = {
        "scenes": count,
        "trajectories": rows,
        "means_percent": {name: 100 * float(np.mean(series)) for name, series in values.items() if series},
    }
    if official_rows is not None:
        numbers["compared"] = {"rows": compared, "differing": dict(differing), "worst_state_error": worst_state}
    return numbers


def differences(row: Mapping[str, Any], official: Mapping[str, Any]) -> list[str]:
    """Names, as "v1.NC", of the scores in which a row differs from the official one by more than TOLERANCE."""
    names = [
        f"{group}.{name}"
        for group in COMPARED
        for name in row[group].keys() | official[group].keys()
        if abs(row[group].get(name, np.inf) - official[group].get(name, np.inf)) > TOLERANCE
        or (name in row[group]) != (name in official[group])
    ]
    return names + (["EC"] if row["EC"] != official["EC"] else [])


def differing_names(compared: Mapping[str, Any]) -> str:
    names = ", ".join(f"{name} {count}" for name, count in sorted(compared["differing"].items()))
    return f"differing by more than {TOLERANCE:g}: {names or 'none'}"


def table(numbers: Mapping[str, Any]) -> Table:
    """The means, and below them how many rows differ from known scores."""
    means = numbers["means_percent"]
    names = ("NC", "DAC", "DDC", "TLC", "EP", "TTC", "LK", "C")
    rows = []
    for heading, group, comfort, total in (
        ("PDMS (v1.1)", "v1", "C", "v1.PDMS"),
        ("EPDMS (v2)", "v2", "HC", "epdms.EPDMS_filt_noEC"),
    ):
        keys = [f"{group}.{comfort if name == 'C' else name}" for name in names] + [total]
        rows.append((heading, *(f"{means[key]:.2f}" if key in means else "" for key in keys)))
    captions = []
    if "compared" in numbers:
        compared = numbers["compared"]
        captions.append(
            f"{compared['rows']} rows compared with known scores; {differing_names(compared)}; "
            f"worst simulated state {compared['worst_state_error']:.1e}"
        )
    for form, means in numbers.get("codebook", {}).items():
        captions.append(
            f"experts' {form.upper()}: exact {means['exact']:.2f}, rounded to 0.3 m {means['rounded']:.2f}, "
            f"rounded with directions of steps as headings {means['steps']:.2f}"
        )
    title = f"{numbers['trajectories']} trajectories in {numbers['scenes']} scenes, means in percent"
    return make_table(("", *names, "score"), rows, title, "\n".join(captions))
