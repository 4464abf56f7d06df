"""Claims about Lanelet2 maps as files: what would end lanelet2's process is refused before it reads them."""

import re
import time
from pathlib import Path

import pytest

from reflectdrive_ros.core.config import ConfigError, InputsConfig
from reflectdrive_ros.maps import lanelet_roads
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.maps.osm import OsmError, check_osm
from reflectdrive_ros.maps.roads import RoadError

CARGO = (Path(__file__).parent / "data" / "lanelet2_maps" / "cargo_transport_map.osm").read_text()
DEGREES_ONLY = re.sub(r'<tag k="local_[xy]" v="[^"]*"/>', "", CARGO)


def test_a_good_map_is_summarised_by_its_nodes(tmp_path):
    (tmp_path / "map.osm").write_text(CARGO)
    nodes = check_osm(tmp_path / "map.osm")
    assert (nodes.count, nodes.has_local_coordinates) == (CARGO.count("<node "), True)
    assert (nodes.lat, nodes.lon) == pytest.approx((35.2494, 139.9131), abs=1e-3)
    (tmp_path / "degrees.osm").write_text(DEGREES_ONLY)
    assert not check_osm(tmp_path / "degrees.osm").has_local_coordinates
    (tmp_path / "empty.osm").write_text("<osm/>")
    assert not check_osm(tmp_path / "empty.osm").has_local_coordinates


@pytest.mark.parametrize(
    ("text", "pattern", "value", "sentence"),
    [
        (CARGO, r'(k="local_x" v)="[^"]*"', "nan", "has a bad local_x in node 1: 'nan', expected a number from -2e"),
        (CARGO, r'(k="local_x" v)="[^"]*"', "east", "has a bad local_x in node 1: 'east'"),
        (DEGREES_ONLY, r'( lat)="[^"]*"', "nan", "has a bad lat in node 1: 'nan', expected a number from -90 to 90"),
        (DEGREES_ONLY, r'(<node id)="[^"]*"', "abc", "has a bad id in node: 'abc', expected a whole number"),
        (DEGREES_ONLY, r'(<nd ref)="[^"]*"', "", "nd: '', expected a whole number"),
        (DEGREES_ONLY, r'(<relation id)="[^"]*"', "0", "has a bad id in relation: '0'"),
        (CARGO, r"(</osm>)", "", "is no XML: "),
    ],
)
def test_a_number_that_lanelet2_must_not_read_is_one_sentence_of_every_reader(tmp_path, text, pattern, value, sentence):
    file = tmp_path / "map.osm"
    replaced = re.sub(pattern, rf'\1="{value}"' if "=" in pattern else value, text, count=1)
    assert replaced != text
    file.write_text(replaced)
    with pytest.raises(OsmError) as error:
        check_osm(file)
    assert sentence in str(error.value)
    with pytest.raises(ConfigError) as of_the_node:
        load_map(InputsConfig(lanelet_map=str(file)))
    with pytest.raises(RoadError) as of_the_proving_ground:
        lanelet_roads.load(file, tmp_path / "net")
    for fault in (of_the_node, of_the_proving_ground):
        assert sentence in str(fault.value)
        assert "\n" not in str(fault.value)


def test_a_lanelet_whose_border_is_not_in_the_file_is_one_sentence_of_the_proving_ground(tmp_path):
    (tmp_path / "map.osm").write_text(CARGO.replace('<node id="221"', '<node id="2210000"'))
    with pytest.raises(RoadError, match=r"map\.osm lacks a border of lanelet 216, or its points: give the whole map"):
        lanelet_roads.load(tmp_path / "map.osm", tmp_path / "net")


def test_a_map_that_is_no_regular_file_is_refused(tmp_path):
    (tmp_path / "zero.osm").symlink_to("/dev/zero")
    for read, fault in (
        (lambda file: load_map(InputsConfig(lanelet_map=str(file))), ConfigError),
        (lambda file: lanelet_roads.load(file, tmp_path), RoadError),
    ):
        with pytest.raises(fault, match=r"zero\.osm.*: give the (map's )?\.osm file"):
            read(tmp_path / "zero.osm")


@pytest.mark.parametrize(
    "markup",
    ["<!--{}-->", "<?note {}?>", '<tag k="{}" v=""/>', '<!DOCTYPE osm [<!ENTITY a "{}">]>'],
    ids=["comment", "instruction", "tag", "entity"],
)
def test_a_file_is_read_in_a_time_linear_in_its_size_however_long_a_comment_or_tag_is(tmp_path, markup):
    """expat scans an unfinished one again from its start with every block of the file."""
    file, declared = tmp_path / "map.osm", markup.startswith("<!DOCTYPE")
    text = "{}<osm></osm>" if declared else "<osm>{}</osm>"
    began_s = time.process_time()
    file.write_text(text.format(markup.format("x" * (900 << 10))))
    assert check_osm(file).count == 0
    file.write_text(text.format(markup.format("x" * (64 << 20))))
    begin_byte = text.index("{") + (markup.index("{") - 1 if declared else 0)
    with pytest.raises(OsmError, match=rf"^has a comment or tag of more than 1 MB at byte {begin_byte}: remove it$"):
        check_osm(file)
    assert time.process_time() - began_s < 5.0
