"""Many bags: each as alone, the others go on when one cannot be read, nothing half-done, nothing done twice."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from followed_replay import replayed, rows_without_times
from own_bags import explained_fields, fields_of

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.infra.files import LOCK
from reflectdrive_ros.replay import bag_folders
from reflectdrive_ros.replay.bag_folders import find_bags, folder_names, holds_bags
from reflectdrive_ros.replay.plan_measures import read_measures

HERE = Path(__file__).parent
WORDS = ("--setting", "cameras.required=false", "--duration", "6")


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """Two bags of the same name, one that cannot be read, a folder with none."""
    folder = tmp_path_factory.mktemp("many")
    first = folder / "monday" / "drive"
    first.parent.mkdir()
    assert main(["make-bag", str(HERE / "data" / "comma2k19_example"), str(first)]) == 0
    shutil.copytree(first, folder / "tuesday" / "drive")
    (folder / "broken").mkdir()
    (folder / "broken" / "metadata.yaml").write_text("nonsense")
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="module")
def followed(bags, tmp_path_factory):
    out = tmp_path_factory.mktemp("followed")
    return (*replayed(bags, out, *WORDS), out)


def test_a_bag_that_cannot_be_read_is_named_and_the_others_go_on(followed, bags):
    code, numbers, out = followed
    assert code == 1
    (sentence,) = numbers["failures"].values()
    assert str(bags / "broken") in sentence
    assert [one["name"] for one in numbers["bags"]] == ["monday-drive", "tuesday-drive"]
    assert not (out / "broken").exists()
    assert [path.name for path in out.glob(".*")] == [LOCK]


def test_the_total_is_over_the_plans_of_all_bags_and_its_fields_are_explained(followed):
    _, numbers, out = followed
    parts = [read_measures(out / one["name"] / "plans.csv") for one in numbers["bags"]]
    assert numbers["plans"] == sum(len(part) for part in parts) == sum(numbers["verdicts"].values())
    assert numbers["ade_m"] == pytest.approx(np.concatenate([part.ade_m for part in parts]).mean(), abs=1e-4)
    assert {"version", "commit", "device", "date", "command"} <= set(numbers)
    *_, one = numbers["bags"]
    fields = fields_of({key: value for key, value in numbers.items() if key != "bags"}) | fields_of(one)
    assert {"kept", "failures.NAME", "state"} <= fields
    assert fields - explained_fields() == {"name", "state"}  # which are told as bags[].name and bags[].state


def cell(percent):
    return "-" if percent is None else f"{percent:.0f}"


def test_the_page_leads_to_every_report_and_fetches_nothing(followed):
    _, numbers, out = followed
    page = (out / "index.html").read_text()
    for one in numbers["bags"]:
        assert f'href="{one["name"]}/report.html"' in page
        assert (out / one["name"] / "report.html").exists()
        assert f"<td>{' / '.join(cell(one['scored'][name]) for name in ('nc', 'dac', 'pdms'))}</td>" in page
    assert "http" not in page
    assert "__" not in page
    assert "Not replayed" in page


def test_a_bag_among_others_is_replayed_as_alone(followed, bags, tmp_path):
    code, alone = replayed(bags / "monday" / "drive", tmp_path, *WORDS, "--no-report")
    assert code == 0
    for one in followed[1]["bags"]:
        assert one["plans_sha256"] == alone["plans_sha256"]
    assert rows_without_times(followed[2] / "monday-drive") == rows_without_times(tmp_path)


def test_what_is_done_is_kept_what_is_touched_or_half_done_is_done_again(followed, bags, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(followed[2], out)
    moved = tmp_path / "bags"
    shutil.copytree(bags, moved)  # with its times of writing
    half = out / ".tuesday-drive.0.reflectdrive.part"  # as a killed run leaves it
    half.mkdir()
    (half / "plans.csv").write_text("stamp_ns\n")
    os.utime(moved / "tuesday" / "drive" / "metadata.yaml", ns=(1, 1))
    code, numbers = replayed(moved, out, *WORDS)
    assert code == 1
    assert [one["state"] for one in numbers["bags"]] == ["kept", "replayed"]
    assert not half.exists()
    before = json.loads((followed[2] / "summary.json").read_text())
    assert numbers["ade_m"] == before["ade_m"]


def test_a_folder_that_is_not_ours_is_left_alone(bags, tmp_path, capsys):
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "thesis.txt").write_text("years of work")
    assert replayed(bags / "monday", tmp_path, *WORDS)[0] == 1
    assert "exists and is not a replay result" in capsys.readouterr().err
    assert (tmp_path / "drive" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--golden", "x.npz"], "--golden compares one bag"),
        (["--node", "--jobs", "2"], "with --jobs 1"),
    ],
)
def test_what_makes_sense_for_one_bag_only_is_refused(bags, tmp_path, capsys, words, sentence):
    assert replayed(bags, tmp_path / "out", *words)[0] == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- folders ---------------------------------------------------------------------------------------------------------


def test_bags_are_found_in_folders_but_not_in_the_results_of_replays(bags, followed):
    assert [bag.name for bag in find_bags(bags)] == ["broken", "drive", "drive"]
    assert holds_bags(bags)
    assert not holds_bags(bags / "monday" / "drive")
    assert find_bags(followed[2]) == []


def test_a_search_for_bags_ends_on_a_whole_disk_and_does_not_go_in_circles(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bag_folders, "MAX_ENTRIES", 300)
    assert main(["replay", "/", "--out", str(tmp_path / "out")]) == 2
    assert "/ holds more than 300 files and folders: name bags, or a smaller folder" in capsys.readouterr().err
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert find_bags(tmp_path) == []


@pytest.mark.parametrize(
    ("bags", "names"),
    [
        (["/a/x", "/a/y"], ["x", "y"]),
        (["/", "/x"], ["bag", "x"]),
        (["/a/x", "/b/x", "/b/y"], ["a-x", "b-x", "y"]),
        (["/1/a/x", "/2/a/x"], ["1-a-x", "2-a-x"]),
        (["/a-b/c", "/a/b-c", "/c"], ["a-b-c", "b-c", "c"]),
    ],
)
def test_names_tell_bags_apart_whatever_their_order(bags, names):
    assert folder_names([Path(bag) for bag in bags]) == names
    assert folder_names([Path(bag) for bag in reversed(bags)]) == names[::-1]


# --- compared --------------------------------------------------------------------------------------------------------


def test_replays_are_compared_bag_by_bag(followed, tmp_path, capsys):
    out = followed[2]
    file = tmp_path / "numbers.json"
    assert main(["compare", str(out), str(out), "--json", str(file)]) == 0
    output = capsys.readouterr().out
    assert "no difference shown between A and B" in output
    stretches = "from 6 clusters on: 6 stretches of 10 s that both replays planned, within one bag or several"
    assert f"{stretches}, or 8 bags" in output
    numbers = json.loads(file.read_text())
    assert numbers["bags"] == ["monday-drive", "tuesday-drive"]
    for measure in numbers["measures"].values():
        assert (measure["difference"], measure["shown"]) == (0.0, False)
        assert measure["difference_95"] is measure["p"] is None  # two blocks of 6 s
    assert re.search(r"^ *ADE m .* - +- +too few clusters *$", output, re.MULTILINE)


def without(name):
    return lambda folder: (folder / name).unlink()


def of_another_bag(folder):
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "bag": "elsewhere"}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without("plans.csv"), "{one}"),
        (without("summary.json"), "{one}"),
        (of_another_bag, "replay the same bags into both"),
    ],
)
def test_half_a_replay_and_one_of_other_bags_are_not_compared(followed, tmp_path, capsys, change, sentence):
    one = tmp_path / "one"
    shutil.copytree(followed[2] / "monday-drive", one)
    change(one)
    assert main(["compare", str(one), str(followed[2])]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert sentence.format(one=one) in error
