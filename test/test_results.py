"""docs/results.md and docs/results_settings.md say what the JSON files say, and nothing else."""

import argparse
import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.bench import results
from reflectdrive_ros.data import sets
from reflectdrive_ros.evaluation import worlds

pytestmark = pytest.mark.meta

ROOT = Path(__file__).parents[1]


MEASURED = results.read(ROOT / "docs/bench")


def text_of(files):
    return "\n".join(results.render(files).values())


def test_the_pages_are_those_of_the_files():
    """What is stale is judged when they are written (`test_staleness.py`): here the marks are those of the pages."""
    shipped = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in results.PAGES}
    text = "\n".join(shipped.values())
    marks = dict(re.findall(r"^- \[([^\]]+)\.json\].*, \*\*stale: (.*)\*\*$", text, re.M))
    commit = next(iter(re.findall(r"are not of the code of commit (\w+)", text)), "")
    pages = results.render(MEASURED, marks, commit)
    assert shipped == pages, "run `make results-pages ARGS=--mark-stale`"


def test_a_changed_number_changes_the_page_and_a_missing_file_its_section():
    expert = MEASURED["eval-test"]["drivers"]["expert"]
    other = {**MEASURED["eval-test"], "drivers": {"expert": {**expert, "pdms": 12.3}}, "differences": {}}
    page = text_of({**MEASURED, "eval-test": other})
    assert "| `expert` | 12.3 |" in page
    assert "## Closed loop" in page
    left_out = ("closed-loop", "closed-loop-judge-carla", "step", "node")
    without = {stem: numbers for stem, numbers in MEASURED.items() if stem not in left_out}
    assert "## Closed loop" not in text_of(without)
    assert "## Time" not in text_of(without)


@pytest.mark.parametrize("content", ["{", None])
def test_a_broken_file_or_an_empty_folder_is_one_sentence(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "eval.json").write_text(content)
    assert main(["bench", "results", "--bench", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not list(tmp_path.glob("*.md"))


def test_rows_stand_side_by_side_with_their_paired_differences():
    expert = MEASURED["eval-test"]["drivers"]["expert"]
    scenes = {
        **MEASURED["eval-test"],
        "drivers": {"a": {**expert, "pdms": 50.0}, "b": {**expert, "pdms": 60.0}},
        "differences": {"b": {"reference": "a", "pdms": 1.5, "pdms_95": [-0.25, 3.0]}},
    }
    (drove, *_) = MEASURED["closed-loop"]["planners"].values()
    drives = {
        **MEASURED["closed-loop"],
        "planners": {"a": {**drove, "drive_score": 70.0}, "b": {**drove, "drive_score": 80.0}},
        "differences": {"b": {"reference": "a", "drive_score": 10.0, "drive_score_95": [4.0, 16.0]}},
    }
    page = results.variants({"variants-one": scenes, "variants-other": drives})
    assert page.index("### one") < page.index(f"{expert['scenes']} scenes of `test`") < page.index("### other")
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("|")[1].strip() for line in lines] == ["`b`", "`a`", "`b`", "`a`"], "the best first"
    assert lines[0].endswith("| +1.50 (-0.25 .. +3.00) |")
    assert lines[2].endswith("| +10.00 (+4.00 .. +16.00) |")
    assert [lines[row].split("|")[-2].strip() for row in (1, 3)] == ["", ""], "the first row is the reference"


def test_the_time_of_the_network_stands_beside_its_bound():
    times = {"full_ms_p50": 50.0, "full_ms_p99": 60.0, "roofline_full_ms": 12.5}
    times |= {"lite_ms_p50": None, "lite_ms_p99": 20.0, "roofline_lite_ms": 5.25}
    page = results.speed({"step": {**MEASURED["step"], **times}})
    assert "| `step` | 50.00 | 60.00 | 12.50 | - | 20.00 | 5.25 |" in page


def test_numbers_of_different_weights_never_stand_in_one_table():
    step = MEASURED["step"]
    with pytest.raises(results.ResultsError, match="of different weights"):
        results.speed({"step": step, "step-trial": {**step, "weights_sha256": "0" * 64}})


FILES = [file for file in sorted((ROOT / "docs/bench").glob("*.json")) if file.stem != "faults"]  # has its own page
FILES += sorted((ROOT / "docs/bench/long_runs").glob("*.json"))
SHIPPED = {path.parent.name: json.loads(path.read_text())["sha256"] for path in ROOT.glob("models/*/card.json")}
NETWORKS = {  # planner -> the network that it has by default
    "reflectdrive2": "reflectdrive2_small",
    "reflectdrive": "reflectdrive2_small",
    "drivefine": "drivefine_small",
    "reflexdiffusion": "reflexdiffusion_small",
}
TUNED = ("recording-tuned",)  # of networks that are not shipped, made by the command in the file


def networks_of(command):
    """Names of the shipped networks of an `eval` command: `model.file` of a row, else those of its planners."""
    shared, *rows = command.split(" --variant ")
    named = re.findall(r" --planner ((?:\w+ ?)+)", shared)
    planners = named[0].split() if named else []
    names = set() if rows else {NETWORKS[planner] for planner in planners if planner in NETWORKS}
    for row in rows:
        given = re.findall(r"model\.file=models/(\w+)/", row)
        own = [name for several in re.findall(r"planner=([\w+]+)", row) for name in several.split("+")] or planners
        names |= set(given) or {NETWORKS[planner] for planner in own if planner in NETWORKS}
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_numbers_of_networks_are_those_of_the_shipped_weights(file):
    """Or name other weights, of a network that is not shipped."""
    numbers = json.loads(file.read_text(encoding="utf-8"))
    weights = set((numbers.get("weights_sha256") or "").split(", ")) - {""}
    if file.stem in TUNED:
        assert weights
        assert weights.isdisjoint(SHIPPED.values())
    elif file.parent.name == "long_runs":  # of the commit and the weights that docs/faults.md names
        page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
        assert all(f"weights `{each[:8]}`" in page for each in weights)
    elif numbers["command"].startswith("reflectdrive eval "):
        assert weights == {SHIPPED[name] for name in networks_of(numbers["command"])}
    else:
        assert weights <= set(SHIPPED.values())
        learned = re.search(r"(reflectdrive2|drivefine|reflexdiffusion)", numbers["command"])
        assert weights or not learned, "the numbers of a learned planner name its weights"


OTHER_WAYS = {"json", "workers", "worst", "out"}  # options that change no number of a table


def options_of(words):
    """Command, bench and options of a command line."""
    command, *rest = words
    bench = rest.pop(0) if command == "bench" else ""
    module, _ = BENCHES[bench] if command == "bench" else COMMANDS[command]
    parser = argparse.ArgumentParser()
    importlib.import_module(f"reflectdrive_ros.{module}").add_arguments(parser)
    options = vars(parser.parse_args(rest))
    return command, bench, {name: value for name, value in options.items() if name not in OTHER_WAYS}


@pytest.mark.parametrize("stem", re.findall(r"^- `(.*)\.json`: ", text_of(MEASURED), re.M))
def test_make_has_the_recorded_command_of_every_table(stem):
    target = f"docs/bench/{stem}.json"
    process = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in process.stdout.splitlines() if f"--json {target}" in line]
    recorded = json.loads((ROOT / target).read_text(encoding="utf-8"))["command"]
    program, *words = shlex.split(recorded)
    assert program == "reflectdrive"
    assert options_of(shlex.split(line.partition("/reflectdrive ")[2])) == options_of(words)


def test_make_fetches_the_towns_of_the_judge():
    assert f"{worlds.PACKAGE}=={worlds.PACKAGE_VERSION}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recorded_command_runs_in_a_clone(file):
    """It is a command that exists, with options that it takes, and names no folder outside of the checkout."""
    program, *words = shlex.split(json.loads(file.read_text(encoding="utf-8"))["command"])
    for word in words:
        assert not word.startswith("/"), word
        assert ".." not in Path(word).parts, word
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
    elif program == "python":
        assert words[0] == "-m"
        assert importlib.util.find_spec(words[1]) is not None
    else:
        assert program == "reflectdrive"
        options_of(words)
        folders = [words[k + 1] for k, word in enumerate(words) if word in ("--train", "--test", "--val", "--scenes")]
        folders = [word for word in folders if word not in (*sets.SIZES, "real_tracks")]
        paths = [word.rpartition("=")[2] for word in words if "/" in word or word in folders]
        assert all((ROOT / word).exists() or word.startswith(("out/", "docs/bench/")) for word in paths)
