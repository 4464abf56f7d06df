"""Short bags as a person may bring them: a few seconds of a recording, with its messages changed on the way."""

from pathlib import Path

from reflectdrive_ros.ros.bag import BagWriter, type_name_of
from reflectdrive_ros.ros.recordings import open_recording

DATA = Path(__file__).parent / "data"
ODOMETRY, ROUTE = "/localization/kinematic_state", "/planning/reflectdrive/route"


def short_bag(path, recording, change=lambda topic, message: [(topic, message)], seconds=3.0):
    """Writes a bag of the first `seconds` of a recording; `change` gives (topic, message) pairs for each message."""
    begin_ns = None
    with BagWriter(path) as bag:
        for entry in open_recording(DATA / recording).messages():
            begin_ns = entry.stamp_ns if begin_ns is None else begin_ns
            if entry.stamp_ns > begin_ns + seconds * 1e9:
                break
            for topic, message in change(entry.topic, entry.message):
                bag.add_topic(topic, type_name_of(type(message)))
                bag.write(topic, entry.stamp_ns, message)
    return path


def odometry_in_odom(topic, message):
    if topic == ODOMETRY:
        message.header.frame_id = "odom"
    return [(topic, message)]


def odometry_after_the_first():
    """A change that leaves out the first odometry."""
    dropped = []

    def change(topic, message):
        if topic == ODOMETRY and not dropped:
            dropped.append(message)
            return []
        return [(topic, message)]

    return change
