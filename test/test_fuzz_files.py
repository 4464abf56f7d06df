"""Whatever files, sets of scenes, recordings and bags hold, and whatever stands on the command line: the named
exceptions with a sentence, nothing else."""

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
from functools import cache
from pathlib import Path
from unittest.mock import patch

import hand_scenes
import numpy as np
import pytest
import yaml
from changed_documents import as_bytes, changed, check_sentence, documents, npz, outcome, torn, values
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.bench import results
from reflectdrive_ros.core import config
from reflectdrive_ros.data import codec, real_tracks, shards
from reflectdrive_ros.demo import recordings
from reflectdrive_ros.evaluation import golden
from reflectdrive_ros.infra.documents import DocumentError, parse_arrays, parse_json, parse_yaml
from reflectdrive_ros.infra.files import read_limited
from reflectdrive_ros.maps.lanelet_file import load_map
from reflectdrive_ros.model.card import METADATA, GraphCard, GraphError
from reflectdrive_ros.model.external_data import OnnxError, external_files
from reflectdrive_ros.ros import bag
from reflectdrive_ros.runtime import model_file
from reflectdrive_ros.runtime.graphs import input_spec
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.trt import engine_cache

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models/reflectdrive2_small"


# --- the readers -----------------------------------------------------------------------------------------------------


@fuzzed()
@given(st.one_of(st.binary(max_size=60), torn(as_bytes({"a": [1, 2.5, None, True, {"b": "\u00e4"}]}))))
def test_json(content):
    outcome(parse_json, DocumentError, content)


YAML_WORDS = st.sampled_from(
    [
        *":,[]{}&*!|>'\"#%@`?-\n\ta1~= ",
        *("&a ", "*a", "<<: ", "!!int ", "!!float ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!!pairs "),
        *("!!python/name:os.system ", "1:1", "0x", "\\x"),
    ]
)


@fuzzed(2)
@given(st.one_of(st.binary(max_size=60), st.lists(YAML_WORDS, max_size=14).map("".join)))
def test_yaml(content):
    outcome(parse_yaml, DocumentError, content)


@fuzzed(2)
@given(torn(npz(a=np.arange(6.0).reshape(2, 3), b=np.array("text"))))
def test_arrays(content):
    outcome(parse_arrays, DocumentError, content, 1 << 20)


@fuzzed()
@given(
    st.one_of(st.text(max_size=20), st.sampled_from(["/dev/zero", "/dev/null", ".", "/proc/self/mem", "/dev/stdin"]))
)
def test_names_of_files(name):
    outcome(lambda: read_limited(Path(name), 1 << 20), OSError)


READERS = {
    "settings": (config.load, config.ConfigError),
    "model": (lambda name: model_file.model_config(str(name), None), ModelFileError),
    "card of graphs": (GraphCard.read, GraphError),
    "scene set": (shards.index_of, shards.SetError),
    "scored scenes": (lambda name: next(golden.read_lines(name)), golden.GoldenError),
    "tracks": (real_tracks.load, real_tracks.TracksError),
    "folder of tracks": (real_tracks.recordings_in, real_tracks.TracksError),
    "measured numbers": (results.read, results.ResultsError),
    "bag": (bag.BagReader, bag.BagError),
    "recording": (recordings.open_recording, recordings.RecordingError),
    "map": (lambda name: load_map(config.InputsConfig(lanelet_map=str(name))), config.ConfigError),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "name", ["a\0b", "a\ud800b", os.fsdecode(b"a\xff"), "x" * 300, "x" * 5000, "/dev/zero", "/dev/stdin/x"]
)
def test_names_that_no_readable_file_has_are_one_sentence(reader, name):
    how, errors = READERS[reader]
    with pytest.raises(errors) as fault:
        how(Path(name))
    check_sentence(fault.value)
    assert "Errno" not in str(fault.value)


# --- cards and weights -----------------------------------------------------------------------------------------------

GRAPH = b"\x08\x0a"  # an ONNX graph that has only the version of the format
GRAPHS_CARD = json.loads((MODEL / "onnx/card.json").read_text()) | {"gate": {"pdms": 84.8, "pdms_fp32": 84.9}}
for _row in GRAPHS_CARD["graphs"].values():
    _row.update(sha256=hashlib.sha256(GRAPH).hexdigest(), bytes=len(GRAPH))
WEIGHTS_CARD = json.loads((MODEL / "card.json").read_text())


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A folder with the files that the card names."""
    folder = tmp_path_factory.mktemp("graphs")
    for row in GRAPHS_CARD["graphs"].values():
        (folder / row["file"]).write_bytes(GRAPH)
    return folder


@fuzzed(4)
@given(content=documents(GRAPHS_CARD), metadata=st.one_of(changed({"graph": "step", "model": {}}), values))
def test_cards_of_graphs(graphs, content, metadata):
    def used():
        card = GraphCard.read(graphs / "card.json")
        input_spec(card)
        assert card.layout().bins > 2
        assert all(math.isfinite(value) for value in card.decoding().values())
        outcome(card.check_gate, GraphError)
        card.check_metadata("step", {METADATA: json.dumps(metadata)})

    (graphs / "card.json").write_bytes(content)
    outcome(used, GraphError)
    outcome(model_file.read_card, ModelFileError, graphs / "card.json")


@fuzzed(2)
@given(content=documents(WEIGHTS_CARD))
def test_cards_of_weights(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp()
    (folder / "card.json").write_bytes(content)
    outcome(model_file.model_config, ModelFileError, str(folder / "weights.safetensors"), None)


@fuzzed(2)
@given(documents(WEIGHTS_CARD["config"]))
def test_configurations_that_weights_carry(content):
    """An accepted configuration makes a network, of which the shapes are known without memory for it."""
    torch = pytest.importorskip("torch")
    from reflectdrive_ros.model import checkpoint
    from reflectdrive_ros.model.token.net import TokenNet

    transformer_config = outcome(
        checkpoint._config, checkpoint.CheckpointError, Path("weights"), content.decode(errors="surrogateescape")
    )
    if (
        transformer_config is not None and transformer_config.transformer.layers + transformer_config.vision.layers < 20
    ):  # the others take seconds
        with torch.device("meta"):
            outcome(
                checkpoint.check_shapes, checkpoint.CheckpointError, TokenNet(transformer_config), {}, Path("weights")
            )


FIT = engine_cache.EngineKey(
    "step", "0" * 64, "fp32", ("a",), engine_cache.Machine("10.13.0.35", "a GPU", "9.0", 132, "13.0")
)


@fuzzed()
@given(documents({**FIT.parts, "sha256": hashlib.sha256(b"plan").hexdigest(), "bytes": 4}))
def test_cards_of_engines(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "engines"
    folder.mkdir(exist_ok=True)
    (folder / f"{FIT.name}.plan").write_bytes(b"plan")
    (folder / f"{FIT.name}.json").write_bytes(content)
    assert outcome(engine_cache.load, engine_cache.EngineError, folder, FIT, "build it") in (b"plan", None)
    (folder / f"{FIT.name}.plan").unlink()
    outcome(engine_cache.load, engine_cache.EngineError, folder, FIT, "build it")


def graph_bytes():
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    node = onnx.helper.make_node("Constant", [], ["x"], value=tensor)
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [tensor])).SerializeToString()


@fuzzed(2)
@given(content=st.one_of(torn(graph_bytes()), torn((MODEL / "int8/vision_encoder.onnx").read_bytes()[-3000:])))
def test_graphs(content):
    """Where the library `onnx` reads the bytes too, it finds no more external data than we do."""
    names = outcome(external_files, OnnxError, content)
    if names is not None:
        onnx = pytest.importorskip("onnx")
        try:
            model = onnx.ModelProto.FromString(content)
        except Exception:  # of protobuf; each version has its own
            return
        tensors = [*model.graph.initializer, *(a.t for node in model.graph.node for a in node.attribute)]
        locations = [entry.value for t in tensors for entry in t.external_data if entry.key == "location"]
        # protobuf leaves text that is no UTF-8 as bytes
        assert {at if isinstance(at, str) else at.decode(errors="backslashreplace") for at in locations} <= names


# --- scenes, recordings, bags ----------------------------------------------------------------------------------------

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
    check_sentence(fault.value)


# --- the command line ------------------------------------------------------------------------------------------------


class Parsed(Exception):
    """Carries the parser of a command instead of running it."""


@cache
def parser_of(*words):
    def parse(self, args=None, namespace=None):
        raise Parsed(self)

    with patch.object(argparse.ArgumentParser, "parse_args", parse), pytest.raises(Parsed) as parsed:
        main(list(words))
    return parsed.value.args[0]


def options_of(parser):
    """Names of all options of a parser and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options_of(below)
        else:
            yield from action.option_strings


COMMAND_LINES = st.sampled_from([*((name,) for name in COMMANDS), *(("bench", name) for name in BENCHES)])
numbers = st.one_of(
    st.sampled_from(["nan", "inf", "-inf", "1e308", "-1", "0", "9" * 5000, "1e-320", "0x10", "1_000", "٣", "", " "]),
    st.integers().map(str), st.floats().map(repr), st.text(max_size=8),
)  # fmt: skip


def parsed(parser, words):
    """The options as argparse takes them; else the exit code and what it says on stderr."""
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            return parser.parse_args(words), "", None
        except SystemExit as ended:
            return None, errors.getvalue(), ended.code


@fuzzed(3)
@given(data=st.data())
def test_command_lines(data):
    """A command line is refused with exit code 2 and a sentence, or every number in it can be reckoned with."""
    command = data.draw(COMMAND_LINES)
    parser = parser_of(*command)
    names = st.sampled_from(sorted(set(options_of(parser)) - {"-h", "--help", "--version"}))
    words = data.draw(st.lists(st.one_of(st.tuples(names, numbers).map("=".join), names, numbers), max_size=4))
    args, errors, code = parsed(parser, [*command, *words])
    if args is None:
        assert code == 2
        assert ": error: " in errors
        return
    for name, value in vars(args).items():
        assert not isinstance(value, float) or math.isfinite(value), name
        assert not isinstance(value, int) or abs(value) <= 10**12, name
