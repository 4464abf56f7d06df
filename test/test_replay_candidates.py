"""Candidates of another planner in a bag: a verdict for each, its score before and after the repair, and a sentence for
what cannot be used."""

import csv
import itertools
import json

import numpy as np
import pytest
from autoware_planning_msgs.msg import Trajectory
from messages import predicted_objects
from own_bags import ODOMETRY, ROUTE, explained_fields, fields_of, short_bag, whole_recording
from rclpy.serialization import deserialize_message
from replay_records import embedded
from shared import create_once

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core import geometry
from reflectdrive_ros.ros import bag as bags
from reflectdrive_ros.ros import candidates, convert, outputs, plan_messages
from reflectdrive_ros.ros.bag import BagReader, BagWriter
from reflectdrive_ros.ros.candidates import CandidateMessage, CandidateMessages
from reflectdrive_ros.ros.topics import message_class

RECORDING, OBJECTS = "pandaset_002", 40
CANDIDATES = "/planning/generator/foreign/candidate_trajectories"
TYPE = "autoware_internal_planning_msgs/msg/CandidateTrajectories"
NAMES = ("Recorded", "Faster", "Broken")
TIMES_S = 0.1 * np.arange(1, 81)


def recorded_drive(recording, objects):
    """Stamps (M,) ns and poses (M, 3) of the recorded car."""
    content = [entry for topic, _, _, entry in whole_recording(recording, objects) if topic == ODOMETRY]
    egos = [
        convert.ego_state(deserialize_message(entry, message_class("nav_msgs/msg/Odometry")), "map")
        for entry in content
    ]
    return np.array([ego.stamp_ns for ego in egos]), np.array([ego.map_from_ego for ego in egos])


def points_after(stamp_ns, drive, speed=1.0):
    """(80,) points of the recorded path from a stamp on, driven at a multiple of the recorded speed; straight on from
    its end."""
    stamps, poses = drive
    times_s = (stamps - stamps[0]) * 1e-9
    path = geometry.distinct_points(poses, 0.05)
    s_m = np.interp(times_s, times_s, geometry.arc_lengths(poses))
    last_mps = (s_m[-1] - s_m[-11]) / (times_s[-1] - times_s[-11])
    begin_s = (stamp_ns - stamps[0]) * 1e-9
    ahead_s = begin_s + TIMES_S
    ahead_m = np.interp(ahead_s, times_s, s_m) + last_mps * np.maximum(ahead_s - times_s[-1], 0.0)
    begin_m = np.interp(begin_s, times_s, s_m)
    ahead = geometry.sample(path, begin_m + speed * (ahead_m - begin_m))
    points = np.zeros(len(TIMES_S), plan_messages.POINT)
    points["sec"], points["nanosec"] = np.divmod(np.rint(1e9 * TIMES_S).astype(np.int64), 1_000_000_000)
    points["x"], points["y"] = ahead[:, 0], ahead[:, 1]
    points["qz"], points["qw"] = np.sin(ahead[:, 2] / 2), np.cos(ahead[:, 2] / 2)
    points["longitudinal_velocity_mps"] = np.diff(speed * ahead_m, prepend=speed * begin_m) / 0.1
    return points


def foreign(stamp_ns, drive, has_signal):
    """A generator's message: the recorded path, the same at twice the speed, and one with a NaN."""
    lines = [points_after(stamp_ns, drive), points_after(stamp_ns, drive, 2.0), points_after(stamp_ns, drive)]
    lines[2]["y"][30] = np.nan
    signal = (stamp_ns, 2) if has_signal else None
    ids = [bytes([number]) * 16 for number in range(1, 4)]
    many = [CandidateMessage(stamp_ns, "map", each, points, signal) for each, points in zip(ids, lines, strict=True)]
    return candidates.write(CandidateMessages(tuple(many), tuple(zip(ids, NAMES, strict=True))))


def after_odometry(add):
    """A change of a recording that writes `add(message)` after each message of odometry, and no images."""

    def change(topic, message):
        written = [] if "camera" in topic else [(topic, message)]
        return [*written, add(message)] if topic == ODOMETRY else written

    return change


def with_candidates(has_signal=outputs.HAS_TURN_INDICATOR):
    drive, empty = recorded_drive(RECORDING, OBJECTS), message_class(TYPE)()
    return after_odometry(lambda m: (CANDIDATES, empty, foreign(convert.stamp_ns(m.header), drive, has_signal)))


def checked(bag, out, *words, topic=CANDIDATES):
    code = main(["replay", str(bag), "--candidates", topic, "--out", str(out), *words])
    file = out / "summary.json"
    return code, json.loads(file.read_text()) if file.exists() else {}


def rows(out):
    with (out / "candidates.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def foreign_bag():
    return create_once("foreign", lambda path: short_bag(path, RECORDING, with_candidates(), 8.0, OBJECTS))


@pytest.fixture(scope="module")
def replayed(foreign_bag, tmp_path_factory):
    out = tmp_path_factory.mktemp("candidates")
    code, numbers = checked(foreign_bag, out)
    assert code == 0
    return numbers, out


def test_each_candidate_has_a_verdict_and_its_score_before_and_after_the_repair(replayed):
    numbers = replayed[0]["candidates"]
    assert (numbers["topic"], numbers["type"], numbers["messages"]) == (CANDIDATES, TYPE, replayed[0]["plans"])
    recorded, faster, broken = (numbers["by_name"][name] for name in NAMES)
    messages = numbers["messages"]
    assert numbers["candidates"] == 3 * messages
    assert recorded["verdicts"]["safe"] == recorded["candidates"] == messages
    assert recorded["score_before"] == recorded["score_after"] > 85.0
    assert recorded["scored"]["before"] == recorded["scored"]["after"]
    assert recorded["scored"]["after"]["ep"] > 95.0  # it is the recorded drive
    assert faster["verdicts"]["repaired"] > 0.5 * messages  # whose speed jumps
    assert faster["scored"]["before"]["ep"] > faster["scored"]["after"]["ep"]
    assert broken["verdicts"]["malformed"] == messages
    assert (broken["score_before"], broken["score_after"], broken["scored"]["candidates"]) == (None, None, 0)
    (sentence,) = numbers["sentences"]
    assert sentence.startswith("malformed: it holds a number that is not finite")


def test_every_candidate_is_a_row(replayed):
    numbers, out = replayed
    table = rows(out)
    assert len(table) == numbers["candidates"]["candidates"]
    repaired = [row for row in table if row["verdict"] == "repaired"]
    assert {row["name"] for row in repaired} == {"Faster"}
    assert all("; repaired; safe" in row["sentence"] or "stop along its path" in row["sentence"] for row in repaired)
    assert all(float(row["score_after"]) > 0.0 for row in repaired)
    scored = [row for row in table if row["nc_before"]]
    assert len(scored) == numbers["candidates"]["scored"]["candidates"] > 8
    assert not any(row["pdms_before"] for row in scored)  # the recording has no drivable space


def test_the_best_of_each_message_is_the_plan_of_the_replay(replayed):
    numbers, out = replayed
    assert numbers["planner"] == CANDIDATES
    assert numbers["sources"]["PLANNER"] == numbers["plans"]
    with BagReader(out / "plans") as bag:
        counts = {topic.name: topic.count for topic in bag.topics}
    assert counts["/planning/reflectdrive/output/trajectory"] == numbers["plans"]
    titles, *table = embedded(out / "report.html")["candidates"]
    assert [cells[0] for cells in table] == [*NAMES, "all"]
    assert dict(zip(titles, table[1], strict=True))["repaired"] == str(
        numbers["candidates"]["by_name"]["Faster"]["verdicts"]["repaired"]
    )


def test_fields_of_the_summary_are_explained(replayed):
    numbers = dict(replayed[0])
    under = {name.split(".")[0] for name in explained_fields("check_other_planners.md")}
    assert set(numbers.pop("candidates")) <= under
    assert fields_of(numbers) <= explained_fields()


def test_the_other_layout_of_the_message_gives_the_same_verdicts(replayed, tmp_path, monkeypatch):
    """Its type in the bag is not the installed one."""
    definition = bags.definition

    def other(name):
        text, digest = definition(name)
        return (text, "RIHS01_" + "0" * 64) if name == TYPE else (text, digest)

    with monkeypatch.context() as patch:
        patch.setattr(bags, "definition", other)
        bag = short_bag(tmp_path / "other", RECORDING, with_candidates(not outputs.HAS_TURN_INDICATOR), 8.0, OBJECTS)
    with BagReader(bag) as reader, pytest.raises(bags.BagError, match="another version"):
        reader.require_installed([CANDIDATES])
    code, numbers = checked(bag, tmp_path / "out", "--no-report")
    assert code == 0
    verdicts, expected = (
        {name: one["verdicts"] for name, one in each["candidates"]["by_name"].items()}
        for each in (numbers, replayed[0])
    )
    assert verdicts == expected
    assert numbers["plans_sha256"] == replayed[0]["plans_sha256"]


def test_the_score_in_the_recorded_future_has_the_road_of_the_map(tmp_path):
    """The recorded drive on Autoware's map, and the same 6 m to its left, which is off the road."""
    lanelet_maps = pytest.importorskip("lanelet_maps")
    messages = lanelet_maps.drive()[0][1400:2000:4]  # 15 s at 10 Hz
    egos = [convert.ego_state(message, "map") for message in messages]
    drive = np.array([ego.stamp_ns for ego in egos]), np.array([ego.map_from_ego for ego in egos])
    empty, free_road = message_class(TYPE)(), predicted_objects(0.0)
    with BagWriter(tmp_path / "bag") as bag:
        bag.add_topic(ROUTE, "nav_msgs/msg/Path")
        route = plan_messages.route_path(geometry.distinct_points(drive[1], 0.1), "map")
        bag.write(ROUTE, int(drive[0][0]), route)
        for message in messages:
            stamp_ns = convert.stamp_ns(message.header)
            on_road, beside = points_after(stamp_ns, drive), points_after(stamp_ns, drive)
            headings = 2.0 * np.arctan2(beside["qz"], beside["qw"])
            beside["x"] -= 6.0 * np.sin(headings)
            beside["y"] += 6.0 * np.cos(headings)
            signal = (stamp_ns, 2) if outputs.HAS_TURN_INDICATOR else None
            many = [CandidateMessage(stamp_ns, "map", bytes(16), each, signal) for each in (on_road, beside)]
            content = candidates.write(CandidateMessages(tuple(many), ((bytes(16), "Site"),)))
            free_road.header = message.header
            for topic, written, data in [
                (ODOMETRY, message, None),
                ("/perception/object_recognition/objects", free_road, None),
                (CANDIDATES, empty, content),
            ]:
                bag.add_topic(topic, bags.type_name_of(type(written)))
                bag.write(topic, stamp_ns, written if data is None else data)
    words = ["--no-report", "--setting", f"inputs.lanelet_map={lanelet_maps.MAP}"]
    code, numbers = checked(tmp_path / "bag", tmp_path / "out", *words, "--setting", "inputs.drivable_type=map")
    assert code == 0
    on_road, beside = (numbers["candidates"]["by_name"][name]["scored"] for name in ("Site", "Site 2"))
    assert on_road["candidates"] == beside["candidates"] >= 10
    assert on_road["before"]["pdms"] > 90.0
    assert beside["before"]["dac"] < 10.0
    assert beside["before"]["pdms"] < 10.0
    assert beside["after"]["dac"] > 90.0  # it is led back to the road
    assert beside["after"]["pdms"] > 60.0


@pytest.mark.parametrize("behind", [0, 5])
def test_a_trajectory_topic_is_one_candidate(replayed, tmp_path, behind):
    """`behind`: points that the car has passed, with the time 0."""
    drive = recorded_drive(RECORDING, OBJECTS)

    def trajectory(message):
        ego = convert.ego_state(message, "map")
        points = points_after(ego.stamp_ns, drive)
        passed = np.repeat(points[:1], behind, axis=0)
        for row, metres in zip(passed, np.arange(-behind, 0), strict=True):
            row["sec"], row["nanosec"] = 0, 0
            row["x"], row["y"] = geometry.compose(ego.map_from_ego, np.array([metres, 0.0, 0.0]))[:2]
        content = plan_messages.trajectory_bytes(ego.stamp_ns, np.concatenate([passed, points]), "map")
        return "/planning/trajectory", Trajectory(), content

    bag = short_bag(tmp_path / "bag", RECORDING, after_odometry(trajectory), 2.0, OBJECTS)
    code, numbers = checked(bag, tmp_path / "out", "--no-report", topic="/planning/trajectory")
    assert code == 0
    assert numbers["candidates"]["type"] == "autoware_planning_msgs/msg/Trajectory"
    assert list(numbers["candidates"]["by_name"]) == ["/planning/trajectory"]
    assert numbers["candidates"]["verdicts"]["safe"] == numbers["candidates"]["candidates"] > 15


def test_bytes_that_are_no_message_are_malformed_and_the_others_are_checked(tmp_path):
    add, count = with_candidates(), itertools.count()

    def change(topic, message):
        written = add(topic, message)
        if topic == ODOMETRY and next(count) == 4:
            name, empty, content = written[-1]
            written[-1] = (name, empty, content[:-30])
        return written

    code, numbers = checked(short_bag(tmp_path / "bag", RECORDING, change, 1.0, OBJECTS), tmp_path / "out")
    assert code == 0
    assert numbers["candidates"]["by_name"]["message"]["verdicts"]["malformed"] == 1
    assert any("are no CandidateTrajectories" in sentence for sentence in numbers["candidates"]["sentences"])
    assert numbers["plans"] == numbers["candidates"]["messages"] - 1


def test_without_repair_what_is_unsafe_stays_so(foreign_bag, tmp_path):
    words = ["--setting", "pipeline.repair=false", "--no-report"]
    code, numbers = checked(foreign_bag, tmp_path, *words)
    faster = numbers["candidates"]["by_name"]["Faster"]
    assert code == 0
    assert faster["verdicts"]["unsafe"] > 0
    assert faster["verdicts"]["repaired"] == 0
    assert faster["score_after"] < faster["score_before"]  # 0 for what is not safe


@pytest.mark.parametrize(
    ("topic", "words", "sentence"),
    [
        ("/none", (), f"--candidates /none: bag {{}} has no messages of this topic; it has {CANDIDATES}"),
        (ODOMETRY, (), f"--candidates {ODOMETRY} is of type nav_msgs/msg/Odometry, expected autoware_internal"),
        (CANDIDATES, ("--node",), "--candidates plans nothing: leave out --node"),
        (CANDIDATES, ("--planner", "idm_proposals"), "--candidates plans nothing: leave out --planner"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_code_two(foreign_bag, tmp_path, capsys, topic, words, sentence):
    code, _ = checked(foreign_bag, tmp_path / "out", *words, topic=topic)
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert sentence.format(foreign_bag) in error


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [(ODOMETRY, "has no odometry (a topic of type nav_msgs/msg/Odometry)"), (ROUTE, "--route driven")],
)
def test_a_bag_that_lacks_what_the_check_needs_says_so(tmp_path, capsys, missing, sentence):
    add = with_candidates()

    def change(topic, message):
        return [written for written in add(topic, message) if written[0] != missing]

    short_bag(tmp_path / "bag", RECORDING, change, 4.5, OBJECTS)
    code, _ = checked(tmp_path / "bag", tmp_path / "out")
    assert code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    if missing == ROUTE:
        code, numbers = checked(tmp_path / "bag", tmp_path / "out", "--route", "driven", "--no-report")
        assert code == 0
        assert numbers["candidates"]["by_name"]["Recorded"]["verdicts"]["safe"] > 0
