"""Whatever a file says, and whatever stands on the command line: the named exceptions with a sentence, nothing else."""

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

import numpy as np
import pytest
from changed_documents import as_bytes, changed, documents, npz, outcome, told, torn, values
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.bench import results
from reflectdrive_ros.core import config
from reflectdrive_ros.data import real_tracks, shards
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
    told(fault.value)
    assert "Errno" not in str(fault.value)


# --- cards and weights -----------------------------------------------------------------------------------------------

GRAPH = b"\x08\x0a"  # an ONNX graph of which only the version of the format is told
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
    """A configuration that is taken makes a network, of which the shapes are known without memory for it."""
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


# --- the command line ------------------------------------------------------------------------------------------------


class Parsed(Exception):
    """Carries the parser of a command in place of what it would do."""


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
