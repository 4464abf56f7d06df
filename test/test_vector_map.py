"""Autoware's map from its topic is the road of the file, and bytes that are no map cost a sentence."""

import random
import stat
import struct
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from lanelet_maps import TWO_LANES, drive, ends_of_the_site, ids_along_the_site, osm, route_message, settings
from map_archives import archive, cut, scrambled

from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.maps import vector_map, vector_map_reader
from reflectdrive_ros.maps.lanelet_elements import Lanelet, MapElements, pack, unpack
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.maps.lanelet_map import LaneletMap
from reflectdrive_ros.maps.vector_map import SOURCE, read_elements

lanelet2 = pytest.importorskip("lanelet2")


# --- the same road ---------------------------------------------------------------------------------------------------


def test_route_and_road_from_the_topic_are_those_from_the_file():
    by_file, by_topic = load_map(settings()), LaneletMap(read_elements(archive()), SOURCE)
    message = route_message(ids_along_the_site(), *ends_of_the_site())
    for mine, theirs in zip(by_topic.route(message, "map", 2000), by_file.route(message, "map", 2000), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for lanelet in (*by_topic.lanelets.values(), *by_file.lanelets.values()):
        assert {*lanelet.left_z_m, *lanelet.right_z_m} == {100.0}
    positions = drive()[1]
    for position in positions[:: len(positions) // 5]:
        mine, theirs = ([p.wkb for p in some.road_near(position, 250.0)] for some in (by_topic, by_file))
        assert sorted(mine) == sorted(theirs)
        assert len(mine) > 10


def test_an_intersection_area_is_road_where_no_lanelet_is(tmp_path):
    """Drawn as in Autoware's maps: a closed way with the tags type and area. Polygons of other types are no road."""
    corners = {"intersection_area": (100.0, 7.0), "detection_area": (150.0, 7.0)}
    elements = ""
    for first, (kind, (x, y)) in zip((9000, 9100), corners.items(), strict=True):
        ring = ((x, y), (x + 10.0, y), (x + 10.0, y + 6.0), (x, y + 6.0))
        for name, (px, py) in enumerate(ring, first):
            tags = f'<tag k="local_x" v="{px}"/><tag k="local_y" v="{py}"/>'
            elements += f'<node id="{name}" lat="" lon="">{tags}</node>'
        refs = "".join(f'<nd ref="{name}"/>' for name in (*range(first, first + 4), first))
        elements += f'<way id="{first + 50}">{refs}<tag k="type" v="{kind}"/><tag k="area" v="yes"/></way>'
    file = tmp_path / "areas.osm"
    file.write_text(osm(TWO_LANES).replace("</osm>", f"{elements}</osm>"))
    for read in (load_map(settings(file)), LaneletMap(read_elements(archive(file)), SOURCE)):
        road = shapely.union_all(read.road_near(np.zeros(2), 500.0))
        assert road.contains(shapely.Point(105.0, 11.0))
        assert not road.contains(shapely.Point(155.0, 11.0))
        assert road.area == pytest.approx(200.0 * 7.0 + 60.0)


def test_limits_centrelines_and_who_may_drive_there_come_along(tmp_path):
    crossing = osm(TWO_LANES | {5: (50.0, 53.0, -10.0, "")})
    begin = crossing.index('<relation id="5">')
    file = tmp_path / "crossing.osm"
    file.write_text(crossing[:begin] + crossing[begin:].replace('v="road"', 'v="crosswalk"'))
    lanelets = read_elements(archive(file)).lanelets
    assert lanelets.keys() == {1, 2, 3, 4, 5}
    assert [lanelets[k].limit_mps for k in (1, 2)] == pytest.approx([50 / 3.6, 20 * 0.44704])
    assert np.isnan(lanelets[3].limit_mps)
    np.testing.assert_allclose(lanelets[4].centerline, [(100.0, 4.5), (200.0, 4.5)])
    assert len(lanelets[1].centerline) == 0
    assert [lanelets[k].for_cars for k in lanelets] == [k != 5 for k in lanelets]


def test_a_centreline_that_autowares_loader_computed_does_not_cut_bends():
    """The loader gives every lanelet one, a point every 5 m; only one from the map differs from the middle."""
    angles = np.linspace(0.0, np.pi / 2, 40)
    round_the_corner = np.stack([np.sin(angles), 1.0 - np.cos(angles)], axis=1)
    left, right = 8.0 * round_the_corner + (0.0, 2.0), 12.0 * round_the_corner - (0.0, 2.0)
    coarse = 10.0 * round_the_corner[:: len(angles) // 3]
    plain = Lanelet(left, right, np.zeros((0, 2)), True, np.nan, np.zeros(len(left)), np.zeros(len(right)))
    explicit_line = np.array([(0.0, 1.5), (7.0, 3.0), (8.5, 10.0)])
    kinds = {1: plain, 2: replace(plain, centerline=coarse), 3: replace(plain, centerline=explicit_line)}
    by_kind = LaneletMap(MapElements(kinds), SOURCE)
    lanes = [by_kind._lane(k)[:, :2] for k in (1, 2, 3)]
    np.testing.assert_array_equal(lanes[0], lanes[1])
    np.testing.assert_allclose(lanes[2][[0, -1]], explicit_line[[0, -1]])


lines = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=4).map(
    lambda points: np.array(points, float).reshape(-1, 2)
)


@st.composite
def some_lanelets(draw):
    left, right, centerline = (draw(lines) for _ in range(3))
    left_z, right_z = (np.array(draw(st.lists(st.floats(), min_size=n, max_size=n))) for n in map(len, (left, right)))
    for_cars, shoulder = draw(st.booleans()), draw(st.booleans())
    return Lanelet(left, right, centerline, for_cars, draw(st.floats()), left_z, right_z, is_shoulder=shoulder)


@given(
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), some_lanelets(), max_size=4), *[st.lists(lines, max_size=3)] * 2
)
def test_packed_lanelets_are_the_lanelets_again(lanelets, outlines, borders):
    elements = unpack(pack(MapElements(lanelets, tuple(outlines), tuple(borders))))
    again = elements.lanelets
    assert again.keys() == lanelets.keys()
    for one, other in zip((*elements.intersections, *elements.borders), (*outlines, *borders), strict=True):
        np.testing.assert_array_equal(one, other)
    for name, lanelet in lanelets.items():
        for part in ("left", "right", "centerline", "for_cars", "is_shoulder", "limit_mps", "left_z_m", "right_z_m"):
            np.testing.assert_array_equal(getattr(again[name], part), getattr(lanelet, part))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ends", np.array([2, 4, 3])),
        ("points", np.zeros((3, 2))),
        ("for_cars", np.array([1.0])),
        ("z_m", np.zeros(3)),
        ("area_ends", np.array([3, 2])),
        ("area_points", np.zeros((3, 2))),
    ],
)
def test_arrays_that_do_not_fit_together_are_no_lanelets(name, other):
    line = np.zeros((2, 2))
    lanelet = Lanelet(line, line, np.zeros((0, 2)), True, 5.0, *np.zeros((2, 2)))
    packed = pack(MapElements({7: lanelet}, (np.zeros((4, 2)),)))
    with pytest.raises(ValueError, match="do not fit together"):
        unpack(packed | {name: other})


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go; whatever happens, none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def rules(osm_text):
    """The map with a right of way in it."""
    members = '<member type="relation" role="right_of_way" ref="1"/><member type="relation" role="yield" ref="3"/>'
    tags = '<tag k="type" v="regulatory_element"/><tag k="subtype" v="right_of_way"/>'
    return osm_text.replace("</osm>", f'<relation id="900">{members}{tags}</relation></osm>')


@pytest.fixture
def with_rules(tmp_path):
    file = tmp_path / "rules.osm"
    file.write_text(rules(osm(TWO_LANES)))
    return archive(file)


def greedy():
    """A string in it with a length field of a terabyte."""
    at = archive().index(b"local_x") - 8
    return archive()[:at] + struct.pack("<Q", 1 << 40) + archive()[at + 8 :]


def without_lanelets():
    return archive_of_text('<?xml version="1.0"?><osm></osm>')


def archive_of_text(text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "map.osm"
        file.write_text(text)
        return archive(file)


@pytest.mark.parametrize(
    ("make_bytes", "words"),
    [
        (lambda: b"", "it is empty: check its publisher, or set inputs.lanelet_map"),
        (lambda: random.Random(0).randbytes(100_000), "it does not start like a map of lanelet2"),
        (lambda: b"<?xml version='1.0'?><osm></osm>", "it does not start like a map of lanelet2"),
        (partial(cut, 0.5), "lanelet2 says 'input stream error': it is incomplete or malformed"),
        (lambda: archive()[:-4], "lanelet2 says 'input stream error': it is incomplete or malformed"),
        (greedy, ""),
        *((partial(scrambled, seed), "") for seed in range(6)),
        (without_lanelets, "it holds no lanelet: give Autoware a map with lanelets"),
        (lambda: archive_of_text(osm(TWO_LANES).replace('"0.0"', '"nan"')), "it has points at NaN or infinity"),
    ],
)
def test_bytes_that_are_no_map_cost_a_sentence(temporary, make_bytes, words):
    data = make_bytes()
    with pytest.raises(BadMessage) as error:
        read_elements(data)
    assert str(error.value).startswith("the map cannot be read: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rule_that_lanelet2_does_not_know_is_named_with_what_to_install(with_rules):
    assert read_elements(with_rules).lanelets.keys() == TWO_LANES.keys()
    with pytest.raises(BadMessage) as error:
        read_elements(
            with_rules.replace(b"right_of_way\x04", b"road_marking\x04").replace(b"right_of_way", b"road_marking")
        )
    assert "lanelet2 does not know its rule 'road_marking'" in str(error.value)
    assert "install the ROS package autoware_lanelet2_extension_python, or set inputs.lanelet_map" in str(error.value)


def test_autowares_rules_are_registered_where_they_are_installed(with_rules, tmp_path, monkeypatch):
    """A package of that name is imported before the map is read; one that does not know the rule is too old."""
    package = tmp_path / "autoware_lanelet2_extension_python"
    package.mkdir()
    (package / "__init__.py").touch()
    note = tmp_path / "imported"
    (package / "regulatory_elements.py").write_text(f"open({str(note)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadMessage, match="rule 'road_marking': update autoware_lanelet2_extension_python"):
        read_elements(with_rules.replace(b"right_of_way", b"road_marking"))
    assert note.exists()


def test_a_reader_that_takes_too_long_is_ended(temporary, monkeypatch):
    monkeypatch.setattr(vector_map, "READER_TIMEOUT_S", 0.02)
    with pytest.raises(BadMessage, match=r"reading took more than 0 s, or set inputs.lanelet_map"):
        read_elements(archive())


def test_what_the_reader_left_is_believed_only_if_it_is_whole(temporary, monkeypatch):
    def torn(command, **_):
        (Path(command[-1]) / vector_map_reader.RESULT_FILE).write_bytes(b"PK\x03\x04 torn")
        return vector_map.subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(vector_map.subprocess, "run", torn)
    with pytest.raises(BadMessage, match="the output of its reader is incomplete"):
        read_elements(archive())


def test_the_archive_is_nobody_elses_to_read_and_gone_afterwards(tmp_path, monkeypatch):
    modes = []

    def load(name, projector):
        modes.append(stat.S_IMODE(Path(name).stat().st_mode))
        raise RuntimeError("input stream error")

    monkeypatch.setattr(lanelet2.io, "load", load)
    with pytest.raises(vector_map_reader.UnreadableMap):
        vector_map_reader.read(archive(), tmp_path / "map.bin")
    assert modes == [0o600]
    assert not (tmp_path / "map.bin").exists()
