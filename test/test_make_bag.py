"""`reflectdrive make-bag`: a recording becomes a bag, and nothing is overwritten or lost."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import commands
import pytest

from reflectdrive_ros.cli import make_bag
from reflectdrive_ros.ros.bag import BagReader

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]


run = partial(commands.run, make_bag)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_pandaset_becomes_a_bag_that_a_planner_can_use(tmp_path, storage, capsys):
    out, numbers = tmp_path / "bag", tmp_path / "numbers.json"
    assert run(DATA / "pandaset_002", out, "--storage", storage, "--json", numbers) == 0
    with BagReader(out) as bag:
        counts = {topic.name: topic.count for topic in bag.topics}
        assert counts == {
            "/tf_static": 1,
            "/planning/reflectdrive/route": 1,
            "/localization/kinematic_state": 80,
            "/localization/acceleration": 80,
            "/perception/object_recognition/objects": 80,
            **{f"/sensing/camera/{name}/camera_info": 80 for name in ("front_left", "front", "front_right")},
            **{f"/sensing/camera/{name}/image/compressed": 80 for name in ("front_left", "front", "front_right")},
        }
        assert {topic.name for topic in bag.topics if topic.latched} == {"/tf_static", "/planning/reflectdrive/route"}
        for entry in bag.messages(["/sensing/camera/front/image/compressed"]):
            stamp = entry.message().header.stamp
            assert entry.received_ns == stamp.sec * 10**9 + stamp.nanosec
    content = json.loads(numbers.read_text(encoding="utf-8"))
    assert content["messages"] == 722
    assert {"version", "commit", "device", "date", "command", "source", "storage"} <= set(content)
    front = next(t for t in content["topics"] if t["name"] == "/sensing/camera/front/image/compressed")
    assert front["hz"] == pytest.approx(10.0, abs=0.01)
    assert "/sensing/camera/front/image/compressed" in capsys.readouterr().out


def test_a_bag_is_replaced_only_when_asked(tmp_path, capsys):
    source, out = DATA / "comma2k19_example", tmp_path / "bag"
    assert run(source, out) == 0
    assert run(source, out) == 2
    assert "exists already; choose another name or pass --force" in capsys.readouterr().err
    assert run(source, out, "--force") == 0
    (out / "notes.txt").write_text("mine")
    assert run(source, out, "--force") == 2
    assert "is not a bag, so it is not replaced" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["comma2k19_example", "test/data/comma2k19_example"])
def test_a_recording_of_the_source_tree_is_found_from_every_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert run(name, tmp_path / "bag") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("pandaset_003", f"does not exist or is no folder; those of {DATA} are used by name"),
        ("/nowhere/at/all", "does not exist or is no folder"),
        (".", "is no known recording: expected pandaset_002"),
        ("comma2k19_example --json no/such/folder.json", "cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_leaves_no_bag(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    source, *others = words.split()
    assert run(source, tmp_path / "out", *others) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert sentence in error
    assert not (tmp_path / "out").exists()


SLOW_DISK = """
import sys, time
from reflectdrive_ros.__main__ import main
from reflectdrive_ros.ros.bag import BagWriter

write = BagWriter.write
BagWriter.write = lambda *message: (time.sleep(0.01), write(*message))[1]
sys.exit(main())
"""


@pytest.mark.parametrize("word", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
def test_a_stopped_recording_is_a_whole_bag(tmp_path, word):
    command = [sys.executable, "-c", SLOW_DISK, "make-bag", str(DATA / "pandaset_002"), str(tmp_path / "bag")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not any(file.stat().st_size > 1_000_000 for file in tmp_path.glob("bag/*.mcap")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(word)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + word, errors
    assert "what was written until then is a whole bag" in errors
    with BagReader(tmp_path / "bag") as bag:
        assert bag.notice == ""
        assert 0 < bag.message_count < 722
        assert len(list(bag.messages())) == bag.message_count
