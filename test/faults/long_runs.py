"""The sections of docs/faults.md on long runs: a thousand worlds, a million odd inputs, hours of driving.

Each is made from a file that a target of the Makefile writes. The page says what is missing in a file and where a file
is missing; `outdated` names the files that were measured with other code than the present.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = {"worlds": "make test-worlds", "fuzz": "make fuzz", "soak": "make soak"}  # target by file name
WORLDS, INPUTS, SOAK_MINUTES = 1000, 1_000_000, 240.0  # of a whole run
CODE = ("reflectdrive_ros", "src", "config", "models")
SENTENCES_MAX = 20  # on abnormal drives
KILLED = "[the cause is corrected](lab/2026-11-30-odd-inputs.md)"


def sections(numbers: Path) -> str:
    """The sections, from the files in the folder `numbers`."""
    parts = ["## Long runs\nEach section is of the commit that it names."]
    for name, title in (("worlds", "A thousand worlds"), ("fuzz", "Odd inputs"), ("soak", "Soak")):
        file = numbers / f"{name}.json"
        link = f"bench/long_runs/{name}.json"
        parts.append(f"### {title}")
        if not file.is_file():
            parts.append(f"Not measured: there is no `{link}`. `{FILES[name]}` measures it.")
            continue
        content = json.loads(file.read_text())
        parts.append(f"Made from [{link}]({link}) by `{FILES[name]}`: {DESCRIBE[name](content)}")
        parts.append(_measured(content))
    return "\n\n".join(parts) + "\n"


def outdated(numbers: Path) -> list[str]:
    """A sentence for each file that is missing, of uncommitted changes, or of other code than the present."""
    sentences = []
    for name, target in FILES.items():
        file = numbers / f"{name}.json"
        if not file.is_file():
            sentences.append(f"{file.name} is missing: {target}")
            continue
        commit = json.loads(file.read_text())["commit"]
        if commit.endswith("-dirty") or not commit:
            sentences.append(f"{file.name} is of uncommitted changes: {target}")
            continue
        difference = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", *CODE]
        if subprocess.run(difference, capture_output=True, check=False).returncode != 0:
            sentences.append(f"{file.name} is of commit {commit[:12]}, whose code differs from the present: {target}")
    return sentences


def _measured(content: Mapping[str, Any]) -> str:
    commit = content["commit"]
    dirty = " with uncommitted changes" if commit.endswith("-dirty") else ""
    shipped = {json.loads(card.read_text())["sha256"] for card in ROOT.glob("models/*/card.json")}
    own = [each for each in (content.get("weights_sha256") or "").split(", ") if each]
    weights = "".join(f"; weights `{each[:8]}`{'' if each in shipped else ', not those shipped now'}" for each in own)
    return f"Machine: {content['device']}; commit {commit.removesuffix('-dirty')}{dirty}; {content['date']}{weights}."


def _worlds(content: Mapping[str, Any]) -> str:
    rows, seeds = [], sorted({each["seed"] for row in content["planners"].values() for each in row["worlds"]})
    for planner, row in content["planners"].items():
        count = row["drives"] + row["broken_off"]
        abnormal = sum(name.startswith(f"{planner}, seed ") for name in content["abnormal"])
        events = (row["at_fault"], row["red_lights"], row["stuck"])
        score = "-" if row["pdms"] is None else f"{row['pdms']:.1f}"
        rows.append(
            f"| {planner} | {count} of {WORLDS} | {row['broken_off']} | {row['process_deaths']} | {abnormal} "
            f"| {row['km']:.1f} | {' | '.join(map(str, events))} | {score} |"
        )
    lines = [
        f"drives of 10 s, each in a town of its own with reactive traffic, seeds {seeds[0]} to {seeds[-1]}. A drive is",
        "abnormal when its process died, when it broke off, when an error was logged, or when a state or score is NaN",
        "or infinite. A drive whose process died is driven again in a new process.",
        "",
        "| planner | drives | broken off | dead processes, driven again | abnormal in all | km | at fault | red lights "
        "| stuck | PDMS |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    sentences = [f"- {name}: {text}" for name, text in content["abnormal"].items()]
    if len(sentences) > SENTENCES_MAX:
        sentences = [*sentences[:SENTENCES_MAX], f"- {len(sentences) - SENTENCES_MAX} more are in the file"]
    return "\n".join([*lines, *([""] if sentences else []), *sentences])


def _fuzz(content: Mapping[str, Any]) -> str:
    failed = ", ".join(f"`{name}`" for name in content["failed"]) or "none"
    hours = content["seconds"] / 3600.0
    rounds = content.get("killed_rounds", 0)
    killed = f" Rounds whose process was killed: {rounds} ({KILLED})." if rounds else ""
    return (
        f"messages, images, settings, files and bytes that\nno sensor should send, in {len(content['tests'])} tests. "
        f"Tried: {content['inputs']:,} of {INPUTS:,} inputs in {hours:.1f} h. Tests that failed: {failed}.{killed}"
    )


def _soak(content: Mapping[str, Any]) -> str:
    exceeded = ", ".join(name for name, met in content["limits_met"].items() if not met) or "none"
    return (
        f"{content['minutes']:g} of {SOAK_MINUTES:g} minutes or more of driving in\nsimulated time "
        f"({content['wall_minutes']:g} minutes of ours), in closed loop with the real node "
        f"(`{content['planner']}`) in its own process: {content['plans']:,} plans, {content['stops']:,} of them stops. "
        f"Memory: {content['memory_mb_first']:.0f} to {content['memory_mb_last']:.0f} MB "
        f"({content['memory_growth_percent']:+.2f} %).\nDescriptors more at the end: {content['descriptors_leaked']}, "
        f"threads: {content['threads_leaked']}. Late plans: {100.0 * content['late_share']:.2f} %. "
        f"Limits exceeded: {exceeded}."
    )


DESCRIBE = {"worlds": _worlds, "fuzz": _fuzz, "soak": _soak}
