"""Bags: what goes in comes out, and whatever is wrong with one is said in a sentence."""

import json
import os
import re
import resource
import shutil
import signal
import sqlite3
from itertools import product
from pathlib import Path

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory
from geometry_msgs.msg import Point
from nav_msgs.msg import Odometry
from rclpy.serialization import serialize_message
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from scenes import config
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.ros import definitions, topics
from reflectdrive_ros.ros.bag import BagError, BagReader, BagWriter, definition
from reflectdrive_ros.ros.cdr_writer import CdrWriter


def write(path, storage="mcap", messages=5, image_bytes=0):
    """A bag with a latched text, odometry at 10 Hz and, if asked for, images."""
    with BagWriter(path, storage) as bag:
        bag.add_topic("/words", "std_msgs/msg/String", latched=True)
        bag.add_topic("/odometry", "nav_msgs/msg/Odometry")
        bag.add_topic("/image", "sensor_msgs/msg/CompressedImage")
        bag.write("/words", 0, String(data="straight on"))
        for i in range(messages):
            message = Odometry()
            message.pose.pose.position = Point(x=float(i), y=-1.0, z=0.0)
            bag.write("/odometry", i * 10**8, message)
            if image_bytes:
                bag.write("/image", i * 10**8, CompressedImage(format="jpeg", data=bytes(image_bytes)))


def storage_file(path):
    return next(file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))


@pytest.mark.parametrize("records", [3, 40])
def test_a_disk_that_is_full_ends_the_recording_after_its_last_whole_record(tmp_path, records):
    """Records are written while others are made: the fault is raised by a later one or, after the last, at the end."""
    written = []

    def record():
        with BagWriter(tmp_path / "bag") as bag:
            bag.add_topic("/words", "std_msgs/msg/String")
            whole = bag._writer.write

            def full(connection, received_ns, data):
                if received_ns == 2:
                    raise OSError(28, "no space left on device")
                whole(connection, received_ns, data)
                written.append(received_ns)

            bag._writer.write = full
            for k in range(records):
                bag.write("/words", k, String(data="on"))

    with pytest.raises(OSError, match="no space"):
        record()
    assert written == [0, 1]
    with BagReader(tmp_path / "bag") as bag:
        assert bag.message_count == 2


def test_an_sqlite_bag_that_may_not_grow_is_one_sentence(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(BagError, match=r"bag .*bag cannot be written: "):
            write(tmp_path / "bag", "sqlite3", messages=10, image_bytes=500_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_what_goes_in_comes_out(tmp_path, storage):
    write(tmp_path / "bag", storage)
    with BagReader(tmp_path / "bag") as bag:
        assert [(t.name, t.type_name, t.count, t.latched) for t in bag.topics] == [
            ("/image", "sensor_msgs/msg/CompressedImage", 0, False),
            ("/odometry", "nav_msgs/msg/Odometry", 5, False),
            ("/words", "std_msgs/msg/String", 1, True),
        ]
        assert bag.duration_s == pytest.approx(0.4)
        assert bag.message_count == 6
        assert bag.notice == ""
        entries = list(bag.messages())
        assert [entry.received_ns for entry in entries] == [0, 0, 10**8, 2 * 10**8, 3 * 10**8, 4 * 10**8]
        poses = [entry.message().pose.pose.position.x for entry in entries if entry.topic == "/odometry"]
        assert poses == [0.0, 1.0, 2.0, 3.0, 4.0]
        words = [entry.message().data for entry in bag.messages(["/words"])]
        assert words == ["straight on"]
        middle = list(bag.messages(["/odometry"], start_ns=10**8, stop_ns=3 * 10**8))
        assert [entry.received_ns for entry in middle] == [10**8, 2 * 10**8]


@pytest.mark.parametrize(
    "type_name",
    ["nav_msgs/msg/Odometry", "autoware_perception_msgs/msg/PredictedObjects", "reflectdrive/msg/PlannerDebug"],
)
def test_type_hashes_equal_those_of_the_installed_packages(type_name):
    package, _, name = type_name.partition("/msg/")
    description = Path(get_package_share_directory(package)) / "msg" / f"{name}.json"
    if not description.is_file():
        pytest.skip(f"{package} was built by a ROS 2 without type hashes (before Jazzy)")
    hashes = json.loads(description.read_text(encoding="utf-8"))["type_hashes"]
    assert definition(type_name)[1] == next(entry["hash_string"] for entry in hashes if entry["type_name"] == type_name)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_recording_that_fails_half_way_is_still_a_whole_bag(tmp_path, storage):
    def record():
        with BagWriter(tmp_path / "bag", storage) as bag:
            bag.add_topic("/words", "std_msgs/msg/String")
            bag.write("/words", 1, String(data="before"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record()
    with BagReader(tmp_path / "bag") as bag:
        assert [entry.message().data for entry in bag.messages()] == ["before"]
        assert bag.notice == ""


@pytest.mark.parametrize("has_metadata", [False, True])
def test_a_killed_mcap_recording_gives_back_what_was_flushed(tmp_path, has_metadata):
    write(tmp_path / "bag", messages=40, image_bytes=100_000)
    file = storage_file(tmp_path / "bag")
    if not has_metadata:
        (tmp_path / "bag" / "metadata.yaml").unlink()
    file.write_bytes(file.read_bytes()[:2_500_000])  # 40 images would be 4 MB
    with BagReader(tmp_path / "bag") as bag:
        entries = list(bag.messages())
        assert bag.message_count == len(entries)
        images = [entry for entry in entries if entry.topic == "/image"]
        assert 20 <= len(images) < 40
        assert all(len(entry.message().data) == 100_000 for entry in images)
        assert re.search(rf"is damaged \(.*\); {len(entries)} messages of bag\.mcap were recovered", bag.notice)
        assert [topic.name for topic in bag.topics if topic.type_name == "nav_msgs/msg/Odometry"] == ["/odometry"]
        part = list(bag.messages(["/odometry"], start_ns=10**8, stop_ns=3 * 10**8))
        assert [entry.message().pose.pose.position.x for entry in part] == [1.0, 2.0]


def test_compressed_chunks_are_recovered(tmp_path):
    digest = definition("std_msgs/msg/String")[1]
    writer = Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP)
    writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        connection = writer.add_connection("/words", "std_msgs/msg/String", msgdef="string data\n", rihs01=digest)
        for i in range(30):
            text = serialize_message(String(data=str(i) * 200_000))
            writer.write(connection, i, text)
    file = storage_file(tmp_path / "bag")
    file.write_bytes(file.read_bytes()[:-400])  # the index and the end are gone
    with BagReader(tmp_path / "bag") as bag:
        assert "messages of bag.mcap were recovered" in bag.notice
        assert next(bag.messages()).message().data == "0" * 200_000


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.9], ids=["missing", "cut at once", "cut in half", "cut late"])
def test_whole_files_without_whole_metadata_are_read_and_said(tmp_path, storage, left):
    write(tmp_path / "bag", storage)
    metadata = tmp_path / "bag" / "metadata.yaml"
    metadata.write_text(metadata.read_text()[: int(left * metadata.stat().st_size)])
    if not left:
        metadata.unlink()
    with BagReader(tmp_path / "bag") as bag:
        assert bag.message_count == 6
        assert "has no usable metadata.yaml (was its recorder killed?); its files are whole" in bag.notice
    with BagReader(storage_file(tmp_path / "bag")) as bag:
        assert bag.message_count == 6
        assert bag.notice == ""


def test_files_of_a_split_recording_are_read_in_turn(tmp_path):
    for part in range(2):
        write(tmp_path / f"part{part}", messages=3)
    (tmp_path / "bag").mkdir()
    for part in range(2):
        shutil.copy(storage_file(tmp_path / f"part{part}"), tmp_path / "bag" / f"bag_{part}.mcap")
    with BagReader(tmp_path / "bag") as bag:
        assert {topic.name: topic.count for topic in bag.topics}["/odometry"] == 6
        assert len(list(bag.messages(["/odometry"]))) == 6


def content(change):
    """Changes the bytes of a bag's file."""

    def damage(bag):
        file = storage_file(bag)
        file.write_bytes(change(file.read_bytes()))

    return damage


def metadata(old, new):
    """Changes the text of a bag's metadata."""

    def damage(bag):
        file = bag / "metadata.yaml"
        file.write_text(file.read_text().replace(old, new))

    return damage


NO_MESSAGE = "is damaged .* holds no message that can be recovered"


@pytest.mark.parametrize(
    ("storage", "damage", "sentence"),
    [
        ("mcap", lambda bag: shutil.rmtree(bag), "bag .*bag does not exist"),
        ("mcap", lambda bag: storage_file(bag).unlink(), r"lacks its file bag\.mcap"),
        (
            "mcap",
            lambda bag: [file.unlink() for file in bag.iterdir()],
            r"has no metadata\.yaml and no \.mcap or \.db3",
        ),
        ("sqlite3", content(lambda data: data[:60_000]), r"is damaged .*sqlite3 bag\.db3 \.recover"),
        ("sqlite3", content(lambda data: b""), "is damaged"),
        ("mcap", content(lambda data: b""), NO_MESSAGE),
        ("mcap", content(lambda data: b"\x89MCAP0\r\n" + bytes(range(256)) * 4), NO_MESSAGE),
        ("mcap", content(lambda data: b"hello " * 99), NO_MESSAGE),
        ("mcap", metadata("storage_identifier: mcap", "storage_identifier: rocks"), "stored as 'rocks'"),
        ("mcap", metadata("bag.mcap", "other.mcap"), r"lacks its file other\.mcap"),
    ],
)
def test_a_bad_bag_is_refused_in_one_sentence(tmp_path, storage, damage, sentence):
    write(tmp_path / "bag", storage, messages=300)
    damage(tmp_path / "bag")
    with pytest.raises(BagError, match=sentence):
        BagReader(tmp_path / "bag")


def test_a_file_that_is_no_storage_is_no_bag(tmp_path):
    (tmp_path / "notes.txt").write_text("no bag")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(BagError, match="is not a bag"):
            BagReader(path)


def test_damage_inside_an_sqlite_bag_shows_while_reading(tmp_path):
    write(tmp_path / "bag", "sqlite3", messages=300)
    file = storage_file(tmp_path / "bag")
    content = bytearray(file.read_bytes())
    content[len(content) // 3 : 2 * len(content) // 3] = b"\xff" * (len(content) // 3)
    file.write_bytes(content)
    with pytest.raises(BagError, match="is damaged"), BagReader(tmp_path / "bag") as bag:
        list(bag.messages())


# --- definitions -----------------------------------------------------------------------------------------------------


def written_by_another(path, text, values, type_name="nav_msgs/msg/Odometry", storage=StoragePlugin.MCAP):
    """A bag with one message whose definition is `text` and whose fields are `values` ((struct format, number) ..)."""
    content = CdrWriter().header(7, "map")
    for kind, number in values:
        content = content.text(number) if kind == "s" else content.numbers(kind, number)
    with Writer(path, version=9, storage_plugin=storage) as writer:
        connection = writer.add_connection("/odometry", type_name, msgdef=text, rihs01="RIHS01_" + "0" * 64)
        writer.write(connection, 1, content.content())
    return path


ODOMETRY_TEXT = definition("nav_msgs/msg/Odometry")[0]
POSE_AND_TWIST = [("d", k) for k in range(43)] + [("d", 100 + k) for k in range(42)]


def test_a_bag_is_read_by_its_own_definition(tmp_path):
    """It has one field more than that of the installed package, by which every value would be wrong."""
    text = ODOMETRY_TEXT.replace("string child_frame_id", "float64[<=3] novelty\nstring child_frame_id")
    bag = written_by_another(tmp_path / "bag", text, [("I", 1), ("d", 5.0), ("s", "base_link"), *POSE_AND_TWIST])
    with BagReader(bag) as reader:
        ((message,),) = [[entry.message() for entry in reader.messages()]]
        assert (message.novelty[0], message.child_frame_id) == (5.0, "base_link")
        assert (message.pose.pose.position.x, message.twist.twist.angular.z) == (0.0, 105.0)
        with pytest.raises(BagError, match=r"another version of nav_msgs/msg/Odometry than the installed one"):
            reader.require_installed(["/odometry"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ODOMETRY_TEXT.replace("geometry_msgs/Vector3 angular\n", ""), "without its field 'twist.twist.angular'"),
        (ODOMETRY_TEXT.replace("float64[36] cov", "float64[] cov"), "without its field 'pose.covariance'"),
        (ODOMETRY_TEXT.replace("float64 x", "string x"), "without its field 'pose.pose.position.x'"),
        ("moon_msgs/Crater crater\n", "does not define its messages of type nav_msgs/msg/Odometry"),
        ("nav_msgs/Odometry again\n", "cannot be read"),
        ("float64 = x y", "cannot be read"),
        ("=" * 80 + "\nIDL: nav_msgs/msg/Odometry\nnor is this", "cannot be read"),
    ],
    ids=["a field less", "another length", "another kind", "part missing", "endless", "noise", "noise as IDL"],
)
def test_a_definition_that_cannot_be_used_is_one_sentence(tmp_path, text, sentence):
    with BagReader(written_by_another(tmp_path / "bag", text, [])) as reader:
        (entry,) = reader.messages()
        with pytest.raises(BagError, match=rf"^bag \S+bag .*{re.escape(sentence)}") as fault:
            entry.message()
        assert "\n" not in str(fault.value)


def test_a_bag_without_definitions_is_read_by_those_of_the_package(tmp_path):
    """Bags of ROS 2 Humble have neither definitions nor hashes."""
    write(tmp_path / "bag", "sqlite3")
    with sqlite3.connect(storage_file(tmp_path / "bag")) as connection:
        connection.execute("DELETE FROM message_definitions")
    with BagReader(tmp_path / "bag") as bag:
        poses = [entry.message().pose.pose for entry in bag.messages(["/odometry"])]
        assert [pose.position.x for pose in poses] == [0.0, 1.0, 2.0, 3.0, 4.0]
    with sqlite3.connect(storage_file(tmp_path / "bag")) as connection:
        connection.execute("UPDATE topics SET type_description_hash = 'RIHS01_0' WHERE name = '/odometry'")
        connection.execute("UPDATE topics SET type = 'moon_msgs/msg/Crater' WHERE name = '/words'")
    (tmp_path / "bag" / "metadata.yaml").unlink()
    with BagReader(tmp_path / "bag") as bag:
        with pytest.raises(BagError, match="another version of nav_msgs/msg/Odometry"):
            bag.layout("nav_msgs/msg/Odometry")
        with pytest.raises(BagError, match="the definition of moon_msgs/msg/Crater is not installed"):
            bag.layout("moon_msgs/msg/Crater")


SHIPPED = sorted(name for name in definitions.shipped() if name.startswith(("autoware", "reflectdrive")))


@pytest.mark.parametrize("type_name", SHIPPED)
def test_shipped_definitions_are_those_of_the_installed_packages(type_name, monkeypatch):
    installed = definition(type_name)[1]
    monkeypatch.setattr(definitions, "_description", lambda name: definitions.shipped()[name])
    assert definitions.definition.__wrapped__(type_name)[1] == installed


def test_every_input_has_a_shipped_definition():
    for route, objects in product(topics.ROUTE_TYPES, topics.OBJECT_TYPES):
        some = {"inputs__route_type": route, "inputs__objects_type": objects, "cameras__compressed": route == "path"}
        for more in ({"inputs__drivable_type": "grid", "inputs__obstacles_type": "cloud"}, {}):
            types = {topic.type for topic in topics.inputs(config(**some, **more))}
            assert types <= definitions.shipped().keys()


def test_types_and_bytes_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(BagError, match="install the ROS package 'moon_msgs'"):
        definition("moon_msgs/msg/Crater")
    with BagReader(written_by_another(tmp_path / "bag", ODOMETRY_TEXT, [])) as bag:
        (entry,) = bag.messages()
        with pytest.raises(BadMessage, match=r"bytes are no nav_msgs/msg/Odometry: a field of \d bytes reaches beyond"):
            entry.message()


def test_a_writer_destroys_nothing(tmp_path):
    write(tmp_path / "bag")
    with pytest.raises(BagError, match="exists already; choose another name or pass --force"):
        BagWriter(tmp_path / "bag")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(BagError, match="is not a bag, so it is not replaced"):
        BagWriter(tmp_path / "home", replace=True)
    assert (tmp_path / "home" / "thesis.tex").exists()
    with BagWriter(tmp_path / "bag", replace=True) as bag:
        bag.add_topic("/words", "std_msgs/msg/String")
    with BagReader(tmp_path / "bag") as bag:
        assert bag.message_count == 0
        assert bag.duration_s == 0.0
    with pytest.raises(BagError, match="storage 'tape' is unknown; expected mcap or sqlite3"):
        BagWriter(tmp_path / "other", "tape")
    with BagWriter(tmp_path / "third") as bag, pytest.raises(BagError, match="topic /x was not declared"):
        bag.write("/x", 0, String())
    (tmp_path / "file").write_text("")
    with pytest.raises(BagError, match="cannot be created"), BagWriter(tmp_path / "file" / "bag"):
        pass


# --- metadata of others ----------------------------------------------------------------------------------------------

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 10))


def with_qos(text):
    return [{"topic_metadata": {"offered_qos_profiles": text}}]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: "[" * 100_000, "it nests deeper than 64 levels"),
        (lambda text: LAUGHS, "an alias is not allowed here"),
        (lambda text: text + "#" * (1 << 20), "it is larger than the limit of 1048576 bytes"),
        (lambda text: "\0", "it is not YAML"),
        (lambda text: "- 1", "it holds [1], expected an object"),
        ({"storage_identifier": ["mcap"]}, "storage_identifier = ['mcap'], expected text"),
        ({"relative_file_paths": ["../bag.mcap"]}, "relative_file_paths[0] = '../bag.mcap', expected"),
        ({"relative_file_paths": ["/dev/zero"]}, "relative_file_paths[0] = '/dev/zero', expected"),
        ({"relative_file_paths": ["bag\0.mcap"]}, "relative_file_paths[0] = 'bag"),
        ({"relative_file_paths": [3]}, "relative_file_paths[0] = 3, expected"),
        ({"relative_file_paths": []}, "has 0 entries in rosbag2_bagfile_information.relative_file_paths"),
        ({"topics_with_message_count": with_qos("[" * 9999)}, "it nests deeper"),
        ({"topics_with_message_count": with_qos(LAUGHS)}, "an alias is not"),
    ],
)
def test_metadata_that_is_a_bomb_or_of_wrong_types_is_left_aside_in_one_sentence(tmp_path, change, why):
    write(tmp_path / "bag", "mcap")
    metadata = tmp_path / "bag" / "metadata.yaml"
    before = metadata.read_text()
    if isinstance(change, dict):
        values = yaml.safe_load(before)
        values["rosbag2_bagfile_information"] |= change
        metadata.write_text(yaml.safe_dump(values))
    else:
        metadata.write_text(change(before))
    assert metadata.read_text() != before
    with BagReader(tmp_path / "bag") as bag:
        assert bag.message_count == 6
        assert "has no usable metadata.yaml" in bag.notice
        assert why in bag.notice
        assert len(bag.notice) < 500


@pytest.mark.timeout(20)
def test_a_bag_of_devices_or_pipes_is_refused(tmp_path):
    write(tmp_path / "bag", "mcap")
    metadata, file = tmp_path / "bag" / "metadata.yaml", storage_file(tmp_path / "bag")
    metadata.unlink()
    os.mkfifo(metadata)
    with BagReader(tmp_path / "bag") as bag:
        assert "it is a pipe" in bag.notice
    for target, kind in (("/dev/zero", "device"), (str(tmp_path), "directory")):
        file.unlink()
        file.symlink_to(target)
        with pytest.raises(BagError, match=f"it is a {kind}|holds no|is not a bag"):
            BagReader(tmp_path / "bag")


def test_a_bag_of_an_impossible_name_does_not_exist_and_one_that_is_no_utf8_is_read(tmp_path):
    for name in ("a\0b", "a\ud800b", "x" * 5000):
        with pytest.raises(BagError, match="does not exist"):
            BagReader(tmp_path / name)
    write(tmp_path / "bag", "mcap")
    os.rename(tmp_path / "bag", os.fsencode(tmp_path) + b"/b\xff\xfe")
    with BagReader(Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff\xfe"))) as bag:
        assert bag.message_count == 6
