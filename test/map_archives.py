"""Autoware's map as the bytes that it sends, whole, cut and scrambled."""

import random
import tempfile
from array import array
from functools import cache
from pathlib import Path

import pytest
from autoware_map_msgs.msg import LaneletMapBin
from lanelet_maps import MAP

from reflectdrive_ros.ros import outputs

lanelet2 = pytest.importorskip("lanelet2")


@cache
def archive(path=MAP):
    """The bytes that Autoware sends of a map: the lanelets where its loader puts them, in a boost archive."""
    projector = lanelet2.projection.MercatorProjector(lanelet2.io.Origin(0.0, 0.0))
    loaded = lanelet2.io.load(str(path), projector)
    for point in loaded.pointLayer:
        point.x, point.y = float(point.attributes["local_x"]), float(point.attributes["local_y"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "map.bin"
        lanelet2.io.write(str(file), loaded, projector)
        return file.read_bytes()


def map_message(data=None, frame="map"):
    content = archive() if data is None else data
    return LaneletMapBin(header=outputs.header(0, frame), data=array("B", content))


def cut(share):
    return archive()[: int(share * len(archive()))]


def scrambled(seed):
    at, data = random.Random(seed).randrange(60, 5000), archive()
    return data[:at] + random.Random(seed).randbytes(200) + data[at + 200 :]
