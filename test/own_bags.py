"""Short bags as a person may bring them: a few seconds of a recording, with its messages changed on the way."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

from rclpy.serialization import deserialize_message, serialize_message
from shared import create_once

from reflectdrive_ros.demo.recordings import open_recording
from reflectdrive_ros.ros.bag import BagWriter, type_name_of
from reflectdrive_ros.ros.convert import stamp_ns

DATA = Path(__file__).parent / "data"
ODOMETRY, ROUTE = "/localization/kinematic_state", "/planning/reflectdrive/route"


@functools.cache
def whole_recording(recording, objects):
    """(topic, stamp, class, bytes) of each message; to make a hundred objects with their predicted paths takes longer
    than to read eight of them.
    """
    entries = []
    for entry in open_recording(DATA / recording).messages():
        if hasattr(entry.message, "objects"):
            entry.message.objects = entry.message.objects[:objects]
        entries.append((entry.topic, entry.stamp_ns, type(entry.message), serialize_message(entry.message)))
    return entries


def messages_of(recording, objects):
    if objects is None:
        for entry in open_recording(DATA / recording).messages():
            yield entry.topic, entry.stamp_ns, entry.message
        return
    for topic, stamp, kind, content in whole_recording(recording, objects):
        yield topic, stamp, deserialize_message(content, kind)


def short_bag(path, recording, change=lambda topic, message: [(topic, message)], seconds=3.0, objects=None):
    """Writes a bag of the first `seconds` of a recording, with the first `objects` of each message (None: all): a
    hundred with their predicted paths take most of the time in which a bag is read.

    `change` gives for each message what is written instead: (topic, message) pairs, or (topic, message, bytes) where
    other bytes, if not None, take the message's place.
    """
    begin_ns = None
    with BagWriter(path) as bag:
        for recorded, stamp, message in messages_of(recording, objects):
            begin_ns = stamp if begin_ns is None else begin_ns
            if stamp > begin_ns + seconds * 1e9:
                break
            for topic, written, *content in change(recorded, message):
                bag.add_topic(topic, type_name_of(type(written)))
                bag.write(topic, stamp, written if content in ([], [None]) else content[0])
    return path


def world_bag():
    """One second of world 3, made once per test run in a process of its own: a process can hold one world."""

    def make(bag):
        words = ["make-bag", "world", str(bag), "--seed", "3", "--seconds", "1"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        subprocess.run([sys.executable, "-m", "reflectdrive_ros", *words], check=True, env=environment, timeout=300)

    return create_once("world_bag", make)


def odometry_in_odom(topic, message):
    if topic == ODOMETRY:
        message.header.frame_id = "odom"
    return [(topic, message)]


def odometry_later():
    """A change that leaves out the odometry of the first 0.2 s."""
    begin_ns = []

    def change(topic, message):
        if topic != ODOMETRY:
            return [(topic, message)]
        begin_ns.append(stamp_ns(message.header))
        return [(topic, message)] if begin_ns[-1] > begin_ns[0] + 200_000_000 else []

    return change


def fields_of(summary):
    """Names of a summary's fields as docs/own_bags.md writes them; a key that is data becomes NAME, KEY or STAGE."""
    named = {"topics": "KEY", "latency_ms": "STAGE"}
    keyed = ("verdicts", "sources", "inputs", "steps", "planners", "full_step_reason", "notes", "failures")
    named |= dict.fromkeys(keyed, "NAME")

    def within(path, value):
        if isinstance(value, dict):
            for key, content in value.items():
                yield from within([*path, named.get(path[-1], key) if len(path) == 1 else key], content)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                yield from within([*path[:-1], f"{path[-1]}[]"], entry)
        elif value != [] or len(path) > 1:  # an empty list of entries tells no field of theirs
            yield ".".join(path)

    return {name for key, value in summary.items() for name in within([key], value)}


def explained_fields(page="own_bags.md"):
    """Names in the first column of the tables of docs/own_bags.md, or of another page."""
    page = (Path(__file__).parents[1] / "docs" / page).read_text().split("## Fields of summary.json")[-1]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
