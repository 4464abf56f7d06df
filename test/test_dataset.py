"""Scenes made of recordings: the node's inputs to the last bit, nothing from the future, sets that survive a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import own_bags
import pyarrow.parquet
import pytest
from own_bags import ODOMETRY, ROUTE
from std_msgs.msg import Bool

from reflectdrive_ros.__main__ import run
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.data import codec, frame_index, shards
from reflectdrive_ros.dataset import conversion as dataset_module
from reflectdrive_ros.dataset import frames, index
from reflectdrive_ros.dataset.index import assign_splits, count_parts
from reflectdrive_ros.demo.recordings import open_recording
from reflectdrive_ros.features.images import model_inputs
from reflectdrive_ros.replay.bag_topics import map_topics
from reflectdrive_ros.replay.engine import due_steps
from reflectdrive_ros.replay.recorded_world import BagSlice
from reflectdrive_ros.ros.bag import BagReader
from reflectdrive_ros.ros.convert import stamp_ns
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.network import load_networks, worker_network

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]


def unchanged(topic, message):
    return [(topic, message)]


def whole_bag(path, change=unchanged, seconds=100.0):
    return own_bags.short_bag(path, "pandaset_002", change, seconds, objects=8)


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    return whole_bag(tmp_path_factory.mktemp("bags") / "sunny")


@pytest.fixture(scope="module")
def dataset(bag, tmp_path_factory):
    out = tmp_path_factory.mktemp("sets") / "set"
    assert run(["dataset", str(bag), "--out", str(out)]) == 0
    return out


def scenes_of(folder, images=True):
    damages = []
    scenes = list(shards.read(folder, images=images, on_damage=damages.append))
    assert not damages
    return scenes


def node_observations(path, *pairs):
    """The observations of the node's planning core over a bag, by stamp, and the format of its network's inputs."""
    with BagReader(path) as reader:
        mapping = map_topics(Config(), reader, pairs, driven_route=False)
        core = PlanningCore(mapping.config, time.perf_counter)
        steps = due_steps(core, BagSlice(reader, mapping.sources), lambda share: None, lambda statuses: None)
        observations = [step.inputs.snapshot.observation for step in steps]
    spec = load_networks(mapping.config, worker_network)["reflectdrive2"].inputs
    return {each.stamp_ns: each for each in observations if each is not None}, spec


def assert_inputs_equal_those_of_the_node(folder, path):
    observations, spec = node_observations(path)
    scenes = scenes_of(folder)
    assert scenes
    for scene in scenes:
        ours = model_inputs(scene.observation(), spec)
        theirs = model_inputs(observations[scene.ego.stamp_ns], spec)
        assert ours.notes == theirs.notes
        for name, array in theirs.arrays.items():
            assert ours.arrays[name].dtype == array.dtype, name
            assert ours.arrays[name].tobytes() == array.tobytes(), name


def test_inputs_of_the_recorded_drive_equal_those_of_the_node_to_the_last_bit(bag, dataset, tmp_path):
    assert_inputs_equal_those_of_the_node(dataset, bag)
    # with a tick every 0.7 s the images of 0.5 s before a scene belong to no tick
    assert run(["dataset", str(bag), "--out", str(tmp_path / "set"), "--tick", "0.7"]) == 0
    assert_inputs_equal_those_of_the_node(tmp_path / "set", bag)
    assert len(scenes_of(tmp_path / "set", images=False)) < len(scenes_of(dataset, images=False))


def frames_of(bag, ticks):
    """Rows and files of the scenes of some ticks."""
    job = index.ConversionJob(bag, "sunny", bag.parent, "")
    with BagReader(bag) as reader:
        drive, route = dataset_module.open_drive(job, reader, dataset_module.DatasetOptions(), Config(), (288, 144))
        return [
            (row, scene and codec.sample_of(scene, lossless=True))
            for row, scene in drive.frames(reader, route, ticks, with_scenes=True)
        ]


def test_a_part_of_a_bag_gives_the_same_rows_and_scenes_as_the_whole(bag, monkeypatch):
    """Until `LEAD_NS` before the part objects are left out; their history is 2 s long."""
    monkeypatch.setattr(frames, "LEAD_NS", 3_000_000_000)
    whole = frames_of(bag, range(16))
    assert [row.tick for row, _ in whole] == list(range(16))
    assert any(scene for _, scene in whole[6:])
    assert frames_of(bag, range(6, 16)) == whole[6:]
    assert frames_of(bag, [5, 7]) == [whole[5], whole[7]]


@pytest.mark.parametrize(
    ("sizes", "workers", "parts"),
    [([10], 2, [2]), ([10, 10], 2, [1, 1]), ([10, 10, 10], 2, [1, 1, 1]), ([80, 20], 2, [2, 1]), ([0], 4, [1])],
)
def test_a_bag_is_divided_by_its_share_of_the_work(sizes, workers, parts):
    assert count_parts(sizes, workers) == parts


def test_inputs_of_a_proving_ground_drive_equal_those_of_the_node_and_its_map_is_there(tmp_path):
    words = ["--seconds", "7.5", "--planner", "route_follower"]
    assert run(["make-bag", "world", str(tmp_path / "town"), *words]) == 0
    assert run(["dataset", str(tmp_path / "town"), "--out", str(tmp_path / "set")]) == 0
    assert_inputs_equal_those_of_the_node(tmp_path / "set", tmp_path / "town")
    for scene in scenes_of(tmp_path / "set", images=False):
        assert scene.has_map
        assert any(scene.areas.lane_on_route)
        assert scene.notes["route"] == "bag"


def test_objects_received_after_a_frame_change_none_of_its_inputs(bag, dataset, tmp_path):
    """A bag whose later objects are moved by 10 m gives the same observation and history."""
    first = scenes_of(dataset)[0]
    after_ns = first.ego.stamp_ns + 50_000_000

    def moved(topic, message):
        header = getattr(message, "header", None)
        if header is not None and stamp_ns(header) > after_ns and hasattr(message, "objects"):
            for item in message.objects:
                item.kinematics.initial_pose_with_covariance.pose.position.x += 10.0
        return [(topic, message)]

    whole_bag(tmp_path / "sunny", moved)
    assert run(["dataset", str(tmp_path / "sunny"), "--out", str(tmp_path / "set"), "--max-overlap", "100"]) == 0
    again = next(scene for scene in scenes_of(tmp_path / "set") if scene.name == first.name)
    assert np.array_equal(first.agents.poses, again.agents.poses)
    assert np.array_equal(first.history.poses[:, :21], again.history.poses[:, :21])
    assert np.array_equal(first.route, again.route)
    assert first.command is again.command
    for ours, theirs in zip(first.cameras, again.cameras, strict=True):
        assert np.array_equal(ours.pixels, theirs.pixels)
    assert not np.array_equal(first.tracks.poses, again.tracks.poses)  # their future did change


def test_the_expert_is_the_driven_path(bag, dataset):
    odometry = []
    with BagReader(bag) as reader:
        for entry in reader.messages([ODOMETRY]):
            message = entry.message()
            odometry.append((stamp_ns(message.header), message.pose.pose.position.x, message.pose.pose.position.y))
    odometry = np.array(odometry)
    for scene in scenes_of(dataset, images=False):
        x, y, heading = scene.ego.map_from_ego
        turn = np.array([[np.cos(heading), -np.sin(heading)], [np.sin(heading), np.cos(heading)]])
        there = scene.expert[:, :2] @ turn.T + (x, y)
        at = scene.ego.stamp_ns + 0.5e9 * np.arange(1, 9)
        driven = np.stack([np.interp(at, odometry[:, 0], odometry[:, k]) for k in (1, 2)], axis=1)
        assert np.abs(there - driven).max() < 1e-3


def test_every_tick_has_a_row_with_its_reasons(dataset):
    _, rows = frame_index.read_rows(dataset / "frames.parquet")
    assert [row.tick for row in rows] == list(range(16))  # 8 s
    assert all(row.valid == (not row.reasons) for row in rows)
    assert all(reason in frame_index.REASONS for row in rows for reason in row.reasons)
    assert [row.scene for row in rows if row.valid] == [scene.name for scene in scenes_of(dataset, images=False)]
    assert "incomplete_history" in rows[1].reasons
    assert "incomplete_future" in rows[-1].reasons


def without(name):
    """A change of a recording that leaves out a topic."""
    return lambda topic, message: [] if topic.endswith(name) else [(topic, message)]


def test_a_bag_without_a_route_gets_its_driven_path_as_a_flagged_hindsight_route(tmp_path):
    whole_bag(tmp_path / "a", without(ROUTE))
    assert run(["dataset", str(tmp_path / "a"), "--out", str(tmp_path / "set")]) == 0
    _, rows = frame_index.read_rows(tmp_path / "set" / "frames.parquet")
    assert all(row.hindsight for row in rows)
    for scene in scenes_of(tmp_path / "set", images=False):
        assert scene.notes["route"] == "driven"
        gaps = np.abs(scene.expert[:, None, :2] - scene.route[None, :, :2])
        assert np.hypot(*np.moveaxis(gaps, -1, 0)).min(axis=1).max() < 1.5  # the route passes where it drove


def indexed(tmp_path, change, seconds=100.0, **options):
    """Problem sentence, rows and notice of a changed recording, indexed in this process."""
    whole_bag(tmp_path / "a", change, seconds)
    job = index.ConversionJob(tmp_path / "a", "a", tmp_path, "")
    (tmp_path / index.FRAMES).mkdir()
    options = dataset_module.DatasetOptions(**options)
    problem = dataset_module._run_job(job, lambda _: None, options=options, config=Config(), image_size=(288, 162))
    header, rows = index.read_index(job) or ({"notice": ""}, [])
    return problem, rows, header["notice"]


def skipped(tmp_path, change, **options):
    """Reasons of a changed recording, by tick."""
    return {row.tick: set(row.reasons) for row in indexed(tmp_path, change, **options)[1]}


@pytest.fixture(scope="module")
def after_s():
    """Of a message: the seconds since the recording began."""
    first_ns = next(iter(open_recording(DATA / "pandaset_002").messages())).stamp_ns
    return lambda message: (stamp_ns(message.header) - first_ns) * 1e-9


def test_a_gap_in_the_odometry_skips_the_frames_around_it(tmp_path, after_s):
    def change(topic, message):
        return [] if topic == ODOMETRY and 4.0 < after_s(message) < 4.8 else [(topic, message)]

    reasons = skipped(tmp_path, change)
    assert all("gap" in reasons[tick] for tick in (5, 6, 7))
    assert "gap" not in reasons[15]


def test_a_jump_and_a_large_covariance_skip_the_frames_around_them(tmp_path, after_s):
    def change(topic, message):
        if topic == ODOMETRY:
            message.pose.pose.position.y += 6.0 * (after_s(message) > 5.0)
            message.pose.covariance[0] = 4.0 * (5.8 < after_s(message) < 6.2)
        return [(topic, message)]

    reasons = skipped(tmp_path, change)
    assert {"localisation_jump", "localisation_covariance"} <= reasons[6]
    assert not {"localisation_jump", "localisation_covariance"} & reasons[0]


def test_a_camera_image_that_is_not_there_is_a_missing_input(tmp_path, after_s):
    def change(topic, message):
        late = topic.endswith("front_left/image/compressed") and after_s(message) > 2.4
        return [] if late else [(topic, message)]

    reasons = skipped(tmp_path, change)
    assert all({"stale_input", "missing_input"} & reasons[tick] for tick in range(6, 15))


def test_an_object_on_the_driven_path_and_the_intervals_of_a_file_skip_frames(bag, tmp_path):
    with BagReader(bag) as reader:
        last = [entry.message() for entry in reader.messages([ODOMETRY])][45].pose.pose.position

    def change(topic, message):
        for item in list(getattr(message, "objects", []))[:1]:
            at = item.kinematics.initial_pose_with_covariance.pose.position
            at.x, at.y = last.x, last.y
        return [(topic, message)]

    (tmp_path / "hands.csv").write_text("drive,start,end\na,4.0,4.5\n")
    whole_bag(tmp_path / "a", change)
    words = ["--out", str(tmp_path / "set"), "--overrides", str(tmp_path / "hands.csv")]
    assert run(["dataset", str(tmp_path / "a"), *words]) == 2  # no frame is left
    _, rows = frame_index.read_rows(tmp_path / "set" / "frames" / "a.parquet")
    reasons = {row.tick: set(row.reasons) for row in rows}
    assert "future_collides" in reasons[4]
    assert all("manual_override" in reasons[tick] for tick in (4, 6, 8))
    assert "manual_override" not in reasons[10]


@pytest.mark.parametrize("name", ["../../esc", "\x1b[31m", "x" * 1_000_000, "a\0b"])
def test_a_drive_that_a_file_of_intervals_names_is_no_path_and_no_command_to_a_terminal(bag, name, tmp_path, capsys):
    (tmp_path / "hands.csv").write_text(f"{name},1.0,2.0\n")
    code = run(["dataset", str(bag), "--out", str(tmp_path / "set"), "--overrides", str(tmp_path / "hands.csv")])
    text = "".join(capsys.readouterr())
    assert code == 2
    assert "hands.csv" in text or "the interval file names drive" in text
    assert len(text) < 1000
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    assert {path.name for path in tmp_path.iterdir()} <= {"hands.csv", "set"}


def test_a_topic_of_the_bag_marks_manual_overrides(tmp_path, capsys, after_s):
    def change(topic, message):
        override = [("/override", Bool(data=4.0 <= after_s(message) < 4.5))] if topic == ODOMETRY else []
        return [(topic, message), *override]

    reasons = skipped(tmp_path, change, override_topic="/override")
    assert all("manual_override" in reasons[tick] for tick in (4, 6, 8))
    assert "manual_override" not in reasons[10]
    capsys.readouterr()
    words = (capsys, tmp_path / "a", "--out", tmp_path / "other", "--override-topic")
    assert "has no such topic, expected one of type std_msgs/msg/Bool or" in refusal(*words, "/hands")
    assert "has it as nav_msgs/msg/Odometry" in refusal(*words, ODOMETRY)


def test_an_index_is_parquet_and_a_damaged_one_is_no_index(dataset, tmp_path):
    whole = (dataset / "frames.parquet").read_bytes()
    columns = pyarrow.parquet.read_table(dataset / "frames.parquet").to_pydict()
    assert list(columns)[:5] == ["drive", "tick", "stamp_ns", "valid", "reasons"]
    assert set(columns["drive"]) == {"sunny"}
    path = tmp_path / "frames.parquet"
    middle = len(whole) // 4
    for harmed in (whole[:-100], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b"", b"{}" * 50):
        path.write_bytes(harmed)
        with pytest.raises(shards.SetError, match=r"frames\.parquet .*: remove it, and it is made again"):
            frame_index.read_rows(path)


# --- sets ------------------------------------------------------------------------------------------------------------


def test_the_same_command_keeps_what_is_there_and_completes_what_is_not(bag, dataset, tmp_path):
    out = tmp_path / "set"
    shutil.copytree(dataset, out)
    tar = out / "sunny-00000.tar"
    whole, written = tar.read_bytes(), tar.stat().st_mtime_ns
    assert run(["dataset", str(bag), "--out", str(out)]) == 0
    assert tar.stat().st_mtime_ns == written
    tar.write_bytes(whole[:1000])  # cut short by a kill that write_atomic would have prevented
    assert run(["dataset", str(bag), "--out", str(out)]) == 0
    assert tar.read_bytes() == whole


@pytest.mark.parametrize(
    ("first_file", "left"),
    [
        pytest.param("set", {"sunny.parquet"}, marks=pytest.mark.long),
        ("set/frames/sunny.parquet", {f"sunny{part}.parquet" for part in ("", ".1of2", ".2of2")}),
    ],
    ids=["while it reads", "while it writes"],
)
def test_a_kill_leaves_nothing_that_is_read_as_whole_and_the_next_run_makes_the_same_set(
    bag, dataset, tmp_path, first_file, left
):
    command = [sys.executable, "-m", "reflectdrive_ros", "dataset", str(bag), "--out", str(tmp_path / "set")]
    command += ["--jobs", "2"]
    running = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    while running.poll() is None and not (tmp_path / first_file).exists():
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    time.sleep(0.5)  # its workers end when it dies
    for path in (tmp_path / "set").glob("*.json"):
        json.loads(path.read_text())
    assert run(command[3:]) == 0
    assert (tmp_path / "set" / "sunny-00000.tar").read_bytes() == (dataset / "sunny-00000.tar").read_bytes()
    assert frame_index.read_rows(tmp_path / "set/frames.parquet") == frame_index.read_rows(dataset / "frames.parquet")
    assert {path.name for path in (tmp_path / "set/frames").iterdir()} <= left


def test_a_damaged_bag_is_named_and_the_rest_goes_on(bag, tmp_path, capsys):
    damaged = tmp_path / "broken"
    damaged.mkdir()
    (damaged / "broken.mcap").write_bytes(b"no mcap at all" * 100)
    assert run(["dataset", str(bag), str(damaged), "--out", str(tmp_path / "set")]) == 1
    assert "broken" in capsys.readouterr().err
    assert scenes_of(tmp_path / "set", images=False)


def refusal(capsys, *arguments):
    """The one sentence with which the command ends."""
    code = run(["dataset", *map(str, arguments)])
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(lines) == 1
    return lines[0]


def doubled_width(topic, message):
    if topic.endswith("front/camera_info"):
        message.width *= 2
    return [(topic, message)]


@pytest.mark.parametrize(
    ("change", "seconds", "sentence"),
    [
        (unchanged, 3.0, "needs 2 s before it and 4 s after it"),
        (doubled_width, 7.0, "its camera_info says"),
        (without("/tf_static"), 7.0, "tf_static: the bag has no topic"),
        (without("front/camera_info"), 7.0, "CameraInfo is named after camera 'front'"),
    ],
)
def test_a_bag_that_cannot_be_used_is_refused(tmp_path, capsys, change, seconds, sentence):
    whole_bag(tmp_path / "a", change, seconds)
    assert run(["dataset", str(tmp_path / "a"), "--out", str(tmp_path / "set")]) == 2
    assert sentence in capsys.readouterr().err


def test_a_set_of_a_newer_version_or_of_the_proving_ground_is_not_overwritten(bag, dataset, tmp_path, capsys):
    shutil.copytree(dataset, tmp_path / "newer")
    content = json.loads((tmp_path / "newer/index.json").read_text())
    content["made_by"]["dataset_format"] += 1
    (tmp_path / "newer/index.json").write_text(json.dumps(content))
    assert "another version of reflectdrive" in refusal(capsys, bag, "--out", tmp_path / "newer")
    shutil.copytree(DATA / "scenes_val", tmp_path / "set")
    assert "holds another set of scenes" in refusal(capsys, bag, "--out", tmp_path / "set")


def test_a_map_of_another_frame_and_two_drives_of_one_name_are_refused(bag, tmp_path, capsys):
    lanelets = sorted((DATA / "lanelet2_maps").rglob("*.osm"))[0]
    sentence = refusal(capsys, bag, "--out", tmp_path / "set", "--map", lanelets)
    assert "they are in different frames" in sentence
    shutil.copytree(bag, tmp_path / "other" / "sunny")
    sentence = refusal(capsys, bag, tmp_path / "other" / "sunny", "--out", tmp_path / "set")
    assert "two drives have the name 'sunny'" in sentence


def test_a_loop_of_links_is_no_bag(tmp_path, capsys):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for bag in (tmp_path / "a", tmp_path / "a/inside"):
        sentence = refusal(capsys, bag, "--out", tmp_path / "set")
        assert sentence == f"no scene was made: bag {bag} does not exist"


def changed_info(**values):
    def change(topic, message):
        if topic.endswith("front/camera_info"):
            for name, value in values.items():
                setattr(message, name, value)
        return [(topic, message)]

    return change


def test_an_unknown_distortion_model_is_refused_with_those_that_are_known(tmp_path):
    problem, rows, _ = indexed(tmp_path, changed_info(distortion_model="thin_prism", d=[0.1] * 5), 7.0)
    assert problem == ""
    assert not any(row.valid for row in rows)
    sentence = index.no_frame_sentence(tmp_path / "a", rows)
    assert "distortion model 'thin_prism', expected one of plumb_bob, rational_polynomial, equidistant" in sentence


def test_a_fisheye_beyond_180_degrees_is_used_up_to_them_with_a_notice(tmp_path):
    k = [150.0, 0.0, 320.0, 0.0, 150.0, 180.0, 0.0, 0.0, 1.0]
    _, rows, notice = indexed(tmp_path, changed_info(distortion_model="equidistant", d=[0.0] * 4, k=k), 7.0)
    assert any(row.valid for row in rows)
    assert "what its fisheye sees beyond 90 degrees from its axis is not used" in notice


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); import runpy, sys; "


def test_a_full_disk_ends_with_one_sentence_and_leaves_nothing_half_written(bag, tmp_path):
    """A limit on the size of files takes the place of a full disk: the shard's 1.3 MB cannot be written."""
    command = [sys.executable, "-c", LIMITED + "sys.exit(runpy.run_module('reflectdrive_ros', run_name='__main__'))"]
    words = ["dataset", str(bag), "--out", str(tmp_path / "set")]
    completed = subprocess.run(
        [*command, *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert completed.returncode == 2
    (line,) = completed.stderr.strip().splitlines()
    assert "cannot be written" in line
    assert not list((tmp_path / "set").glob("*.tar"))
    assert not shards.index_of(tmp_path / "set").shards


def test_splits_are_by_drive_and_places_of_val_are_left_out_of_train(dataset):
    _, rows = frame_index.read_rows(dataset / "frames.parquet")
    drives = {
        name: [replace(row, drive=name, place=f"map/{k // 8 + shift}") for k, row in enumerate(rows)]
        for name, shift in (("a", 0), ("b", 1), ("c", 7))
    }
    rows_by_drive = assign_splits(drives, 0.34)
    splits = {name: {row.split for row in each} for name, each in rows_by_drive.items()}
    assert all(len(each) == 1 for each in splits.values())
    assert [each == {"val"} for each in splits.values()].count(True) == 1
    every = [row for each in rows_by_drive.values() for row in each]
    val = {row.place for row in every if row.split == "val"}
    assert not any(row.valid for row in every if row.split == "train" and row.place in val)
