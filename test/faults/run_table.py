"""Runs the fault table and publishes what was measured.

    make test-faults                                  # all cases; docs/bench/faults.json and docs/faults.md
    make test-faults ARGS="engine_hangs cpu_hog"      # some, without writing anything
    make test-faults ARGS="--record engine_hangs"     # some, and puts their rows into the file and the page
    python test/faults/run_table.py --page            # writes docs/faults.md from docs/bench/faults.json

The page ends with the sections of `long_runs`, from worlds.json, fuzz.json and soak.json in docs/bench/long_runs.

Exit code 1 when a case does not meet what is required.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from cases import BY_NAME, CASES, Case
from drive import driving
from judge import RECOVERY_MS, SILENCE_MS, Outcome, assess
from long_runs import outdated, sections

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.infra.provenance import provenance
from reflectdrive_ros.runtime import cli_args

ROOT = Path(__file__).resolve().parents[2]
NUMBERS, PAGE = ROOT / "docs" / "bench" / "faults.json", ROOT / "docs" / "faults.md"
LONG_RUNS = NUMBERS.parent / "long_runs"
SETTLE_S = 2.0
FIRST_DOMAIN = 60
RECOVERY_LIMIT_S = 15.0  # afterwards it counts as not recovered


def run(case: Case, folder: Path) -> Outcome:
    """One case against a node of its own."""
    with driving(folder, settings_of(case, folder), case) as drive:
        time.sleep(SETTLE_S)
        case.before(drive)
        first = drive.process
        began = time.perf_counter()
        case.begin(drive)
        time.sleep(case.seconds)
        reachable_until = time.perf_counter()
        case.end(drive)
        ended = time.perf_counter()
        recovered = drive.wait_until_planned(ended, RECOVERY_LIMIT_S)
        time.sleep(0.3)
        complaints = case.after(drive)
        log = drive.log.read_text(errors="replace")
        if drive.process.poll() is not None:
            complaints.append(f"the node ended with code {drive.process.returncode}: {log[-300:]}")
        if first is not drive.process and not (case.kills_node or case.restarts_node):
            complaints.append("the node was started again")
        if "Traceback" in log and not case.traceback_allowed:
            complaints.append(f"the node's log holds a traceback: {log[log.index('Traceback') :][-300:]}")
        last = reachable_until if case.restarts_node else ended
        return assess(drive, case, began, last, ended, recovered, complaints)


def settings_of(case: Case, folder: Path) -> dict:
    """The settings of a case; a map with lights is written to the folder."""
    if case.lit_map is None:
        return case.settings
    from light_maps import crossing  # needs lanelet2, as only these cases do

    file = folder / "map.osm"
    file.write_text(crossing(along_x=(-20.0, 1000.0, 1900.0), right_y=-1.75, **case.lit_map))
    return {**case.settings, "inputs__drivable_type": "map", "inputs__lanelet_map": str(file)}


def numbers(outcomes: dict[str, Outcome]) -> dict:
    rows = {}
    for name, outcome in outcomes.items():
        row = asdict(outcome) | {"met": outcome.met, "what": BY_NAME[name].what}
        times = {key: round(value, 1) for key, value in row.items() if key.endswith("_ms") and value is not None}
        rows[name] = row | times
    required = {"silence_ms": SILENCE_MS, "recovery_ms": RECOVERY_MS}
    return {"cases": rows, "met": sum(o.met for o in outcomes.values()), "of": len(outcomes), "required": required}


def merged(table: dict, provenance_of_run: dict) -> dict:
    """The stored table with rows of a run of some cases, each of which says when and with which commit it was made."""
    content = json.loads(NUMBERS.read_text())
    run_of = {key: provenance_of_run[key] for key in ("commit", "date", "device")}
    content["cases"] |= {name: {**row, "measured": run_of} for name, row in table["cases"].items()}
    content["cases"] = {name: content["cases"][name] for name in BY_NAME if name in content["cases"]}
    return {**content, "met": sum(row["met"] for row in content["cases"].values()), "of": len(content["cases"])}


HEAD = """# Faults

Made from [bench/faults.json](bench/faults.json) by `make test-faults`: each row is a fault of the inputs of the real
node over DDS, in its own process with the default planner and the shipped settings, while it
drove at 5 m/s with three cameras.

- **silence**: the longest time during the fault without an answer: a trajectory that may be followed
  (finite, in `map`, starting at the car, along its path) or a diagnostic that names the fault or that there is no plan.
  Required: {silence:.0f} ms.
- **detection**: time to the first diagnostic or status that names the fault; empty if none is required.
- **recovery**: time from the fault's end to the planner's own plan. Required: {recovery:.0f} ms.
- Delays of the measuring process itself are subtracted from the silence (`stood_still_ms` in the file).
- A restarted sensor is back when the middleware has connected it. A killed node cannot answer: control's
  timeout must.

{met} of {of} cases meet the requirements. {remeasured}Machine: {device}; commit {commit}; {date}.
"""


def page(content: dict) -> str:
    required = content["required"]
    remeasured = [row["measured"] for row in content["cases"].values() if "measured" in row]
    how = "".join(f", {each}" for each in sorted({row.get("conditions", "") for row in remeasured} - {""}))
    note = f"{len(remeasured)} of them were measured apart (`measured` in the file){how}. " if remeasured else ""
    text = HEAD.format(silence=required["silence_ms"], recovery=required["recovery_ms"], remeasured=note, **content)
    lines = [
        text,
        "| fault | silence ms | detection ms | recovery ms | met | diagnostics |",
        "|---|---|---|---|---|---|",
    ]
    for row in content["cases"].values():
        times = ["" if row[key] is None else f"{row[key]:.0f}" for key in ("silence_ms", "detection_ms", "recovery_ms")]
        wrong = "; ".join([*row["unsafe"], *row["complaints"]])
        note = (wrong or row["diagnostic"]).replace("|", "/").replace("\n", " ")[:160]
        lines.append(f"| {row['what']} | {' | '.join(times)} | {'yes' if row['met'] else '**no**'} | {note} |")
    return "\n".join(lines) + "\n\n" + sections(LONG_RUNS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(BY_NAME))
    parser.add_argument("--record", action="store_true", help="put the rows of the named cases into the file")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(page(json.loads(NUMBERS.read_text())))
        for sentence in outdated(LONG_RUNS):
            sys.stderr.write(f"{sentence}\n")
        return 0
    unknown = set(args.cases) - set(BY_NAME)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    outcomes = {}
    for number, case in enumerate([BY_NAME[name] for name in args.cases] or CASES):
        os.environ["ROS_DOMAIN_ID"] = str(FIRST_DOMAIN + number)  # what one case killed must not linger in the next
        with tempfile.TemporaryDirectory() as folder:
            outcomes[case.name] = outcome = run(case, Path(folder))
        sys.stdout.write(f"{'ok  ' if outcome.met else 'FAIL'} {case.name}: {outcome}\n")
        sys.stdout.flush()
    provenance_of_run = provenance(["make", "test-faults"], cli_args.weights_of(Config(), [Config().planner]))
    if not args.cases or args.record:
        table = numbers(outcomes)
        content = merged(table, provenance_of_run) if args.cases else {**table, **provenance_of_run}
        NUMBERS.write_text(json.dumps(content, indent=2) + "\n")
        PAGE.write_text(page(content))
    return 0 if all(outcome.met for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
