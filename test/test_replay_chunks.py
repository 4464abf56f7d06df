"""A replay in legs tells what a replay in one piece does, and keeps no more of a long drive than it says."""

import json

import pytest
from followed_replay import followed_recording, replayed, rows_without_times  # noqa: F401 (a fixture)
from replay_records import embedded

from reflectdrive_ros.replay import chunks


def settled(numbers):
    """A summary without what is never the same twice."""
    changing = (
        "latency_ms",
        "over_deadline",
        "planning_s",
        "wall_s",
        "realtime_factor",
        "memory_mb_max",
        "date",
        "command",
        "commit",  # of files that somebody may be editing
    )
    return {name: value for name, value in numbers.items() if name not in changing}


def test_legs_tell_what_one_piece_does(pandaset, followed, tmp_path, monkeypatch):
    whole, folder = followed
    monkeypatch.setattr(chunks, "CHUNK_PLANS", 40)
    monkeypatch.setattr(chunks, "MARGIN_NS", 6_000_000_000)
    code, legs = replayed(pandaset, tmp_path / "legs")
    assert (code, settled(legs)) == (0, settled(whole))
    assert rows_without_times(tmp_path / "legs") == rows_without_times(folder)
    assert any(row["nc"] for row in rows_without_times(folder))
    one, many = (embedded(out / "report.html") for out in (folder, tmp_path / "legs"))
    for key in ("driven", "routes", "images", "statuses"):
        assert json.dumps(one[key]) == json.dumps(many[key]), key
    for before, after in zip(one["frames"], many["frames"], strict=True):
        assert {**before, "ms": {}} == {**after, "ms": {}}


@pytest.fixture(scope="module")
def two_seconds(pandaset, tmp_path_factory):
    """Summary and folder of a replay in one piece, with its report."""
    out = tmp_path_factory.mktemp("two_seconds")
    return replayed(pandaset, out, "--duration", "2")[1], out


def test_of_a_long_drive_some_plans_are_drawn_and_all_are_counted(pandaset, two_seconds, tmp_path, monkeypatch):
    whole, folder = two_seconds
    for name, most in (("CHUNK_PLANS", 10), ("MARGIN_NS", 500_000_000), ("FRAMES_MAX", 6), ("IMAGES_MAX", 4)):
        monkeypatch.setattr(chunks, name, most)
    monkeypatch.setattr(chunks, "PATH_MAX", 40)
    code, numbers = replayed(pandaset, tmp_path / "legs", "--duration", "2")
    assert code == 0
    assert numbers["plans"] == whole["plans"] == 19
    assert numbers["latency_ms"].keys() == whole["latency_ms"].keys()
    decimated, all_of_them = (embedded(out / "report.html") for out in (tmp_path / "legs", folder))
    assert [entry["t"] for entry in decimated["frames"]] == [entry["t"] for entry in all_of_them["frames"]][::4]
    assert "5 of 19 plans are drawn" in decimated["origin"]
    assert 2 <= len(decimated["images"]) <= 4
    assert 20 <= len(decimated["driven"]["t"]) <= 40


def test_images_are_made_for_a_report_alone_and_change_no_number(pandaset, two_seconds, tmp_path, monkeypatch):
    with_report, folder = two_seconds
    calls = []
    monkeypatch.setattr(chunks.BagCameras, "images", lambda *of: calls.append(of))
    _, without = replayed(pandaset, tmp_path / "numbers", "--duration", "2", "--no-report")
    assert not calls
    assert settled(without) == settled(with_report)
    assert rows_without_times(tmp_path / "numbers") == rows_without_times(folder)
