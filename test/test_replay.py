"""Replays of the recording: deterministic, equal to the golden, and a sentence for every bag that cannot be used.

The goldens in test/golden are changed on purpose only:
    reflectdrive make-bag test/data/pandaset_002 out/pandaset
    reflectdrive replay out/pandaset --planner NAME --golden test/golden/pandaset_002.NAME.npz --update-golden
after looking at the report, with the reason in the commit message.
"""

import contextlib
import io
import json
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from followed_replay import followed_recording, replayed  # noqa: F401 (fixtures)
from own_bags import explained_fields, fields_of
from replay_records import embedded
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.replay import golden as golden_replay
from reflectdrive_ros.replay.engine import prefetch_items
from reflectdrive_ros.replay.golden import GoldenReplayError
from reflectdrive_ros.ros.bag import BagError, BagReader

HERE = Path(__file__).parent


def test_items_made_ahead_come_in_order_by_one_other_thread_and_end_with_their_own_fault():
    produced, threads = [], set()

    def items():
        for number in range(5):
            produced.append(number)
            threads.add(threading.current_thread())
            yield number
        raise BagError("the bag ends here")

    consumed, ahead = [], prefetch_items(items(), 2)
    for _ in range(5):
        consumed.append(next(ahead))
        assert len(produced) <= len(consumed) + 2
    with pytest.raises(BagError, match="ends here"):
        next(ahead)
    assert consumed == produced == list(range(5))
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_who_asks_for_no_more_items_leaves_no_thread_behind():
    ahead = prefetch_items(iter(range(1, 1000)), 3)
    assert next(ahead) == 1
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


@pytest.fixture(scope="session")
def comma(tmp_path_factory):
    bag = tmp_path_factory.mktemp("bags") / "comma"
    assert main(["make-bag", str(HERE / "data" / "comma2k19_example"), str(bag)]) == 0
    return bag


def test_the_recording_drives_as_the_golden_has_it_bit_for_bit_on_every_repeat(followed, pandaset, tmp_path, capsys):
    golden = HERE / "golden" / "pandaset_002.route_follower.npz"
    code, numbers = replayed(pandaset, tmp_path, "--no-report", "--golden", str(golden))
    # a line of progress comes each minute
    differences = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("replaying: ")]
    assert (code, differences) == (0, [])
    assert numbers["plans_sha256"] == followed[0]["plans_sha256"]


@pytest.fixture(scope="module")
def straight(pandaset, tmp_path_factory):
    """The recording at constant velocity, against a golden of which one speed was changed: code, summary, errors."""
    folder = tmp_path_factory.mktemp("straight")
    with np.load(HERE / "golden" / "pandaset_002.constant_velocity.npz") as file:
        golden = dict(file)
    golden["speeds"] = golden["speeds"].copy()
    golden["speeds"][7, 3] += 0.01
    np.savez(folder / "golden.npz", **golden)
    words = ["--no-report", "--planner", "constant_velocity", "--golden", str(folder / "golden.npz")]
    words += ["--setting", "pipeline.repair=false"]  # straight on, whatever is there
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code, numbers = replayed(pandaset, folder / "out", *words)
    return code, numbers, errors.getvalue()


def test_a_changed_plan_shows_against_the_golden_and_no_other_does(straight):
    code, _, errors = straight
    assert code == 1
    (_, differences) = " ".join(errors.split()).split("speeds: 1 of 79 plans differ by up to 0.01")
    assert "differ" not in differences


def test_the_follower_drives_the_recording_better_than_going_straight_on(followed, straight):
    straight = straight[1]
    for numbers in (straight, followed[0]):
        assert numbers["plans"] == 79
        assert numbers["sources"]["PLANNER"] >= 75
        assert set(numbers["latency_ms"]["plan"]) >= {"p50", "p99"}
    assert followed[0]["ade_m"] < 0.6 * straight["ade_m"]


def test_plans_report_and_a_summary_of_explained_fields_are_left_behind(followed):
    numbers, tmp_path = followed
    assert json.loads((tmp_path / "copy.json").read_text()) == numbers
    assert {"version", "commit", "device", "date", "command"} <= set(numbers)
    assert numbers["inputs"]["image front"]["lost"] == 0
    with BagReader(tmp_path / "plans") as bag:
        counts = {topic.name: topic.count for topic in bag.topics}
    assert counts["/planning/reflectdrive/output/trajectory"] == numbers["plans"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/jpeg") + page.count("/9j/") >= 3 * numbers["plans"] * 0.9
    fields = fields_of(numbers)
    assert {"plans", "topics.KEY.name", "inputs.NAME.lost", "latency_ms.STAGE.p50", "diagnostics[].count"} <= fields
    assert fields <= explained_fields()


def test_a_bag_whose_name_is_not_utf_8_is_replayed_with_a_report(comma, tmp_path):
    """Under LC_ALL=C every name beyond ASCII comes in like this."""
    bag = tmp_path / os.fsdecode(b"b\xffg")
    bag.symlink_to(comma)
    code, numbers = replayed(bag, tmp_path / "out", "--setting", "cameras.required=false", "--duration", "2")
    assert code == 0
    assert numbers["plans"] > 10
    assert b"<title>reflectdrive replay: route_follower on b\xffg" in (tmp_path / "out" / "report.html").read_bytes()


@pytest.mark.dds
def test_the_driven_path_can_be_the_route_of_the_node(comma, tmp_path):
    words = ["--setting", "cameras.required=false", "--route", "driven", "--no-report", "--duration", "3", "--node"]
    code, numbers = replayed(comma, tmp_path, *words)
    assert code == 0
    assert numbers["route"] == "driven"
    assert numbers["plans"] > 20
    assert numbers["sources"]["PLANNER"] > 15  # the first may come before the route has


def test_a_planner_may_be_kept_from_the_objects_by_which_its_plans_are_still_scored(followed, pandaset, tmp_path):
    code, numbers = replayed(pandaset, tmp_path, "--no-report", "--topic", "objects=")
    assert code == 0
    assert "objects" in followed[0]["inputs"]
    assert "objects" not in numbers["inputs"]
    assert numbers["plans"] == followed[0]["plans"]
    assert numbers["plans_sha256"] != followed[0]["plans_sha256"]
    assert numbers["scored"]["plans"] == followed[0]["scored"]["plans"]


def test_a_truncated_bag_gives_what_can_be_recovered_and_says_so(pandaset, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(pandaset, broken)
    (broken / "metadata.yaml").unlink()
    file = next(broken.glob("*.mcap"))
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size // 2)
    code, numbers = replayed(broken, tmp_path / "out", "--no-report")
    errors = capsys.readouterr().err
    assert code == 0
    assert "recovered" in errors
    assert 20 < numbers["plans"] < 60


def test_a_model_replays_the_same_each_time_and_tells_of_its_steps(pandaset, tiny_model, tmp_path, capsys):  # noqa: F811
    words = ["--planner", "reflectdrive2", "--model", str(tiny_model.file), "--no-report", "--duration", "2"]
    code, numbers = replayed(pandaset, tmp_path / "one", *words)
    assert code == 0
    assert numbers["plans"] == sum(numbers["steps"].values())
    assert numbers["steps"]["full"] > 0
    assert any("the older images are missing" in note for note in numbers["notes"])  # at the very beginning
    assert sum(numbers["full_step_reason"].values()) == numbers["steps"]["full"]
    assert "full" in capsys.readouterr().out
    _, again = replayed(pandaset, tmp_path / "two", *words)
    assert again["plans_sha256"] == numbers["plans_sha256"]


def test_a_report_says_which_of_several_planners_each_plan_is_from(pandaset, tmp_path):
    words = ["--planner", "constant_velocity+route_follower", "--duration", "2"]
    code, numbers = replayed(pandaset, tmp_path, *words, "--setting", "cameras.required=false")
    assert code == 0
    assert numbers["planner"] == "constant_velocity+route_follower"
    assert numbers["planners"].keys() <= {"constant_velocity", "route_follower", numbers["planner"]}
    assert sum(numbers["planners"].values()) == numbers["plans"] > 5
    content = embedded(tmp_path / "report.html")
    of_frames = Counter(each["planner"] for each in content["frames"] if each["source"] == PlanSource.PLANNER)
    assert of_frames.keys() <= {"constant_velocity", "route_follower"}
    assert of_frames.total() > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "has no topic of type sensor_msgs/msg/"),
        ("--setting guard.max_speeed_mps=3", "did you mean 'guard.max_speed_mps'"),
        ("--setting guard.max_speed_mps=fast", "expected float"),
        ("--setting nonsense", "expected NAME=VALUE"),
        ("--planner nobody", "planner is 'nobody'"),
        ("--config missing.yaml", "missing.yaml does not exist"),
        ("--topic odometer=/x", "no such input"),
        ("--setting cameras.required=false --topic odometry=", "--topic odometry=: route_follower needs"),
        ("--planner reflectdrive2 --setting model.file=no.onnx --setting model.sha256=ab", "no.onnx cannot be read"),
        ("--planner reflectdrive2 --setting model.file='' --setting model.sha256=''", "reflectdrive2 needs a model"),
        ("--model {model}", "--model is given, but route_follower has none"),
        ("--sha256 abc", "--sha256 is given without --model"),
        ("--planner reflectdrive2 --model {model} --sha256 abc", "expected abc"),
        ("--planner reflectdrive2 --model none.safetensors --sha256 abc", "cannot be read"),
        ("--planner reflectdrive2 --model none.safetensors", "give it with --sha256"),
        ("--golden {bag}", "is not a golden: give a file whose name ends in .npz"),
        ("--golden {bag} --update-golden", "is not a golden: give a file whose name ends in .npz"),
        ("--golden none.npz", "golden none.npz does not exist: make it with --update-golden"),
        ("--update-golden", "--update-golden writes the file of --golden: name it"),
        ("--json {bag}", "cannot be written: Is a directory; name another file with --json"),
        ("--json " + "x" * 300, "cannot be written: File name too long; name another file with --json"),
        ("--json {bag}/no/such.json", "cannot be written: No such file or directory; name another file"),
    ],
)
def test_what_cannot_be_used_is_said_before_the_work(comma, tmp_path, tiny_model, capsys, words, sentence):  # noqa: F811
    before = sorted(comma.parent.rglob("*"))
    words = words.format(bag=comma, model=tiny_model.file).split()
    code, _ = replayed(comma, tmp_path / "out", *words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert any(sentence in line for line in lines)
    assert len(lines) == 1 or not words  # of topics all that are missing are named
    assert not (tmp_path / "out" / "plans").exists()
    assert sorted(comma.parent.rglob("*")) == before


def packed(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04garbage",
        b"[" * 100_000,
        packed(stamp_ns=np.zeros(3)),
        packed(**dict.fromkeys(golden_replay.TOLERANCES, np.array(["x"]))),
        packed(**dict.fromkeys(golden_replay.TOLERANCES, np.array([np.nan]))),
        packed(**dict.fromkeys(golden_replay.TOLERANCES, np.array([{}], object))),
        packed(stamp_ns=np.zeros(golden_replay.MAX_BYTES // 8 + 1)),
        packed(**dict.fromkeys(golden_replay.TOLERANCES, np.zeros(3)))[:-30],
    ],
    ids=["empty", "garbled", "nested", "lacking", "texts", "nan", "objects", "huge", "cut"],
)
def test_a_golden_that_is_none_is_one_sentence_before_the_work(comma, tmp_path, capsys, content):
    (tmp_path / "golden.npz").write_bytes(content)
    code, _ = replayed(comma, tmp_path / "out", "--golden", str(tmp_path / "golden.npz"))
    assert code == 2
    errors = capsys.readouterr().err
    assert "golden.npz cannot be read (" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_golden_is_no_device_and_is_not_written_from_half_a_replay(tmp_path):
    (tmp_path / "golden.npz").symlink_to("/dev/zero")
    with pytest.raises(GoldenReplayError, match=r"cannot be read .it is a device"):
        golden_replay.read(tmp_path / "golden.npz")
    with pytest.raises(GoldenReplayError, match="whole bag"):
        golden_replay.write(None, tmp_path / "golden.npz", whole=False)
