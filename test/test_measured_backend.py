"""`model.backend: auto` after `doctor --measure`: what was measured on this machine is used, and nothing else."""

import json
import shutil

import pytest
from rich.console import Console
from shipped_planner import GRAPHS, SMALL
from test_params import node

from reflectdrive_ros.bench import backends
from reflectdrive_ros.bench.backends import Measured
from reflectdrive_ros.core.config import Config, override_dotted
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.ros import measured_backend
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.measured_backend import records_file, with_measured_backend
from reflectdrive_ros.ros.params import declare_config
from reflectdrive_ros.runtime import network

WEIGHTS = SMALL / "weights.safetensors"
ONNX = Measured(str(GRAPHS["fp32"].absolute()), "onnxruntime", "fp32", 40.0, 20.0, 1.0)
INT8 = Measured(str(GRAPHS["int8"].absolute()), "onnxruntime", "int8", 5.0, 3.0, 0.9)
TORCH = Measured(str(WEIGHTS.absolute()), "torch", "fp32", 12.0, 6.0, 1.0)


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def config(**settings):
    return override_dotted(Config(), {name.replace("__", "."): value for name, value in settings.items()})


def spoil(**changes):
    """Changes the only record."""
    (record,) = json.loads(records_file().read_text())
    records_file().write_text(json.dumps([{**record, **changes}]))
    return record


def test_the_fastest_with_the_plans_of_float32_is_used_where_it_was_measured():
    assert with_measured_backend(Config()) == (Config(), Level.OK, "")
    (sentence,) = backends.keep(Config(), [ONNX, INT8, TORCH])
    assert sentence == f"A node with model.backend auto uses it from now on: {records_file()}."
    used, level, note = with_measured_backend(Config())
    assert used == config(model__file=TORCH.file, model__sha256=sha256_of(WEIGHTS))  # which torch alone reads
    assert (level, note) == (Level.OK, f"measured backend: torch, a full step in 12.0 ms, {TORCH.file}")
    graphs = config(model__file=INT8.file, model__sha256=sha256_of(GRAPHS["int8"]))  # other graphs of these weights
    assert with_measured_backend(graphs)[0].model == used.model


def test_what_is_already_the_first_choice_stays_as_it_is():
    """So that auto still takes the next backend where, for one, an engine is missing."""
    backends.keep(Config(), [ONNX])
    used, _, note = with_measured_backend(Config())
    assert used == Config()
    assert note.startswith("measured backend: onnxruntime, a full step in 40.0 ms")


def test_graphs_that_are_slower_on_tensorrt_are_run_by_what_is_faster(monkeypatch):
    monkeypatch.setattr(network, "has_driver", lambda: True)
    backends.keep(Config(), [ONNX])
    assert with_measured_backend(Config())[0] == config(model__backend="onnxruntime")


def test_a_later_measurement_replaces_the_one_before():
    for row in (ONNX, TORCH):
        backends.keep(Config(), [row])
    (record,) = json.loads(records_file().read_text())
    assert record["backend"] == "torch"


@pytest.mark.parametrize(
    "settings",
    [
        {"model__backend": "onnxruntime"},
        {"planner": "route_follower"},
        {"planner": "drivefine"},
        {"model__threads": 1},
        {"model__device": "cpu"},
        {"decoding__goals": 2},
    ],
    ids=lambda settings: "".join(settings),
)
def test_other_settings_were_not_measured(settings):
    backends.keep(Config(), [TORCH])
    other = config(**settings)
    assert with_measured_backend(other) == (other, Level.OK, "")


def test_no_backend_with_the_plans_of_float32_and_a_backend_that_is_set_store_nothing():
    assert backends.keep(Config(), [INT8]) == backends.keep(config(model__backend="torch"), [TORCH]) == []
    assert not records_file().exists()


def refusal():
    used, level, note = with_measured_backend(Config())
    assert (used, level) == (Config(), Level.WARN)
    start, end = "the measured backend is not used, ", ": run reflectdrive doctor --measure"
    assert note.startswith(start)
    assert note.endswith(end)
    return note[len(start) : -len(end)]


def test_a_record_of_another_machine_is_not_used_and_stays_beside_the_own_one(monkeypatch):
    backends.keep(Config(), [TORCH])
    with monkeypatch.context() as patch:
        patch.setattr(measured_backend, "device", lambda: "AMD EPYC 7B13 with AVX2, 8 cores")
        reason = refusal()
        assert reason.startswith("it was measured with processor ")
        assert reason.endswith(", here is AMD EPYC 7B13 with AVX2, 8 cores")
        backends.keep(Config(), [ONNX])
        assert "onnxruntime" in with_measured_backend(Config())[2]
    assert len(json.loads(records_file().read_text())) == 2
    assert "torch" in with_measured_backend(Config())[2]


def test_after_another_version_of_a_library_it_is_measured_again():
    backends.keep(Config(), [TORCH])
    machine = spoil()["machine"]
    spoil(machine={**machine, "onnxruntime": "1.2.3"})
    assert refusal() == f"it was measured with onnxruntime 1.2.3, here is {machine['onnxruntime']}"
    backends.keep(Config(), [TORCH])
    assert spoil()["machine"] == machine


def test_a_file_that_is_no_longer_the_measured_one_is_not_used(tmp_path):
    backends.keep(Config(), [TORCH])
    spoil(file=str(tmp_path / "gone.safetensors"))
    assert refusal() == f"{tmp_path / 'gone.safetensors'}: No such file or directory"
    (tmp_path / "gone.safetensors").write_bytes(b"other weights")
    assert refusal() == f"{tmp_path / 'gone.safetensors'} has changed"
    spoil(sha256=sha256_of(tmp_path / "gone.safetensors"))
    assert refusal() == f"{tmp_path / 'gone.safetensors'} has other weights"


@pytest.mark.parametrize(("content", "reason"), [("[", "is "), ("{}", "holds {}"), ('[{"a": 1}]', "has no ")])
def test_a_damaged_file_of_records_is_one_sentence_and_is_written_again(content, reason):
    backends.keep(Config(), [TORCH])
    records_file().write_text(content)
    assert f"{records_file()} {reason}" in refusal()
    backends.keep(Config(), [TORCH])
    assert with_measured_backend(Config())[1] is Level.OK


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / ".cache").write_text("a file")
    (sentence,) = backends.keep(Config(), [TORCH])
    assert sentence.startswith("It is not stored for model.backend auto, ")
    assert sentence.endswith(": Not a directory.")


def test_a_node_with_a_model_reports_it_among_its_parameters():
    backends.keep(Config(), [TORCH])
    with node() as instance:
        used, status = declare_config(instance, has_model=True)
        assert used.model.file == TORCH.file
        assert instance.get_parameter("model.file").value == Config().model.file  # as configured
    assert (status.name, status.level) == ("parameters", Level.OK)
    assert status.message.startswith("measured backend: torch")
    with node() as instance:  # the check node
        assert declare_config(instance) == (Config(), None)


def test_what_was_measured_drives(tmp_path, monkeypatch):
    """Measured for graphs, with the weights made the fastest; the network that loads is that of torch."""
    shutil.copytree(SMALL.parent / "reflexdiffusion_small", tmp_path / "model")
    card = tmp_path / "model/onnx/card.json"
    own = config(planner="reflexdiffusion", model__file=str(card), model__sha256=sha256_of(card), model__threads=1)
    for name in ("STEPS", "SCENES"):
        monkeypatch.setattr(backends, name, 1)
    rows = backends.measure(own, Console(quiet=True))
    weights = next(row for row in rows if row.backend == "torch")
    assert weights.same_plans == 1.0
    backends.keep(own, [weights])
    used, _, note = with_measured_backend(own)
    assert str(tmp_path / "model/weights.safetensors") in note
    loaded = network.load_network(used.model, measured_backend.decoding_config(used))
    assert loaded.backend_description.startswith("torch")
