"""Whatever sets of scenes, recordings and bags hold: the named exceptions with a sentence, nothing else."""

import json
from functools import cache
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import yaml
from changed_documents import as_bytes, changed, documents, npz, outcome, told, torn
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.data import codec, real_tracks, shards
from reflectdrive_ros.evaluation import golden
from reflectdrive_ros.infra.documents import parse_arrays, parse_json
from reflectdrive_ros.ros import bag

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SAMPLE = codec.sample_of(hand_scenes.scene(images=True))
NOTE = {
    "file": "test-00000.tar", "sha256": "0" * 64, "bytes": 10, "asked": 5, "scenes": 5, "families": {"straight": 5},
    "counts": {"retried": 0}, "networks": {"town": "abc"}, "made_by": {"options": {"width": 192}},
}  # fmt: skip
INDEX = {
    "format": 1,
    "set": "test",
    "size": 5,
    "shards": [NOTE, NOTE],
    "made_by": NOTE["made_by"],
    "missing": {"a": "b"},
}


@fuzzed(2)
@given(content=documents(INDEX), note=documents({"format": 1, **NOTE}))
def test_set_indices_and_notes(tmp_path_factory, content, note):
    folder = tmp_path_factory.getbasetemp()
    (folder / "index.json").write_bytes(content)
    (folder / "test-00000.json").write_bytes(note)
    index = outcome(shards.index_of, shards.SetError, folder)
    if index is not None:
        assert index.scenes + index.bytes >= 0
        assert all(isinstance(count, int) for count in (index.families | index.counts).values())
        assert all(index.available(each, ["straight"]) >= 0 for each in index.shards)
    shards.note_of(folder, "test-00000")


@fuzzed(3)
@given(
    meta=st.one_of(st.just(SAMPLE["meta.json"]), documents(json.loads(SAMPLE["meta.json"]))),
    arrays=st.one_of(st.just(SAMPLE["arrays.npz"]), torn(SAMPLE["arrays.npz"])),
    image=st.one_of(st.just(SAMPLE["front_0.0.jpg"]), torn(SAMPLE["front_0.0.jpg"])),
    images=st.booleans(),
)
def test_scenes_of_sets(meta, arrays, image, images):
    sample = {**SAMPLE, "meta.json": meta, "arrays.npz": arrays, "front_0.0.jpg": image}
    scene = outcome(lambda: codec.scene_of(sample, images=images), codec.CodecError)
    if scene is not None:
        assert np.isfinite(scene.route).all()
        assert len(scene.agents) <= len(scene.tracks)


@cache
def fields_of_arrays():
    """The arrays of a scene by name."""
    return parse_arrays(SAMPLE["arrays.npz"])


odd_arrays = st.one_of(
    st.sampled_from([np.zeros(0), np.array(3.0), np.array("text"), np.zeros((1, 1, 1)), np.full(5, np.nan)]),
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from("?BhIqfdU")).map(lambda s: np.zeros(*s)),
    st.lists(st.integers(0, 2**16 - 1), max_size=5).map(lambda numbers: np.array(numbers, np.uint16)),
)


@fuzzed(2)
@given(name=st.sampled_from(sorted(fields_of_arrays())), array=st.one_of(odd_arrays, st.none()), cut=st.integers(0, 50))
def test_arrays_of_scenes(name, array, cut):
    arrays = dict(fields_of_arrays())
    arrays[name] = arrays[name][..., : max(arrays[name].shape[-1] - cut, 0)] if array is None else array
    sample = {**SAMPLE, "arrays.npz": npz(**arrays)}
    outcome(lambda: codec.scene_of(sample), codec.CodecError)


@fuzzed(2)
@given(torn(shards.tar_of([{**SAMPLE, "arrays.npz": b""}])))
def test_tars_of_scenes(content):
    outcome(lambda: list(shards.samples_of(content, images=True)), shards.SetError)


SCORED = next(golden.read_lines(Path(__file__).parent / "data/golden/scenes.jsonl.gz"))[1]
SCORED |= {"centerline": SCORED["centerline"][:20], "tracks": SCORED["tracks"][:3], "time_us": 0}
SCORED["candidates"] = SCORED["candidates"][:2]
for _lane in (*SCORED["map"]["lanes"], SCORED["pdm_ref_v1"], SCORED["pdm_ref_v2"]):  # what is not read
    for _name in ("baseline", "out", "in", "poses"):
        _lane.pop(_name, None)


@fuzzed(3)
@given(changed(SCORED))
def test_scenes_that_are_scored(entry):
    """As read from a file: NaN and numbers beyond all floats are among the values."""
    scene = outcome(golden.parse_scene, ValueError, parse_json(as_bytes(entry)))
    if scene is not None:
        assert np.isfinite(scene.first.centerline).all()


RECORDING = next((Path(__file__).parent / "data/real_tracks").glob("*.npz"))


@cache
def recorded():
    return parse_arrays(RECORDING.read_bytes())


@fuzzed()
@given(
    meta=documents({"site": "a", "tags": ["highway"], "ego_kind": "overhead", "lanes": [
        {"id": 1, "succ": [2], "pred": [], "left": None, "right": 2, "speed_limit": None}]}),
    name=st.one_of(st.none(), st.sampled_from(sorted(recorded()))), array=odd_arrays,
)  # fmt: skip
def test_recordings_of_tracks(tmp_path_factory, meta, name, array):
    arrays = recorded() | {"meta_json": np.array(meta.decode(errors="replace").replace("\0", "0"))}
    file = tmp_path_factory.getbasetemp() / "tracks.npz"
    file.write_bytes(npz(**(arrays if name is None else arrays | {name: array})))
    outcome(real_tracks.load, real_tracks.TracksError, file)


BAG = {
    "rosbag2_bagfile_information": {
        "version": 8, "storage_identifier": "mcap", "relative_file_paths": ["bag_0.mcap"], "message_count": 1,
        "duration": {"nanoseconds": 1}, "starting_time": {"nanoseconds_since_epoch": 1}, "compression_mode": "",
        "topics_with_message_count": [{"message_count": 1, "topic_metadata": {
            "name": "/a", "type": "std_msgs/msg/String", "serialization_format": "cdr",
            "offered_qos_profiles": "- history: 3\n  depth: 0\n"}}],
    }
}  # fmt: skip


@fuzzed(2)
@given(
    content=st.one_of(
        changed(BAG).map(lambda metadata: json.dumps(metadata).encode()),  # JSON is YAML
        torn(yaml.safe_dump(BAG).encode()),
    )
)
def test_bag_metadata(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "bag"
    folder.mkdir(exist_ok=True)
    (folder / "bag_0.mcap").write_bytes(b"")
    (folder / "metadata.yaml").write_bytes(content)
    storage = outcome(bag._storage_files, bag.BagError, folder)
    if storage is not None:
        files, unusable = storage
        assert {file.parent for file in files} == {folder}
        assert "\n" not in unusable
    with pytest.raises(bag.BagError) as fault:  # the bag's only file is empty
        bag.BagReader(folder)
    told(fault.value)
