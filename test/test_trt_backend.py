"""The TensorRT backend against a simulated GPU and TensorRT (`fake_gpu`), with real graphs."""

import ast
import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from engine_graphs import (  # noqa: F401 (fixtures)
    MOVES,
    as_set,
    built_engines,
    decoded,
    exported_cards,
    nets_of_both_precisions,
    on,
    opened,
    refused,
    scene,
)
from fake_gpu import USED, FakeDriver, FakeTensorRT, driver, trt  # noqa: F401 (fixtures)
from network_inputs import camera_images
from scenes import Clock, observation
from tiny_graphs import RULES, unknown_to_tensorrt
from tiny_net import assert_same_answer

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.cli import export as export_run
from reflectdrive_ros.core.domain import PlanSource
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.deploy import engines
from reflectdrive_ros.deploy.export import PRECISIONS
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.model.card import required_graphs, sha256_of
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.network import synthetic_inputs
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.runtime.trt import backend, cuda_device
from reflectdrive_ros.runtime.trt.backend import TrtNetwork
from reflectdrive_ros.runtime.trt.cuda_device import CudaError
from reflectdrive_ros.runtime.trt.engine_cache import EngineError, store_timing

GRAPHS = required_graphs("token", ("edit", "goals"))
DATA = Path(__file__).parent / "data"


# --- the same plans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", [True, False], ids=["CUDA graphs", "in parts"])
def test_engines_write_the_tokens_that_onnx_runtime_writes(built, cards, driver, capture):  # noqa: F811
    network = TrtNetwork(cards["fp32"], "cuda", built, capture=capture)
    expected = OrtNetwork(cards["fp32"])
    for seed, count in ((0, 4), (1, 1), (2, 3)):
        rows = (decoded(of, scene(network, seed), count) for of in (network, expected))
        for mine, other in zip(*rows, strict=True):
            assert_same_answer(mine, other)
        assert len(np.unique(mine, axis=0)) == count
    assert bool(driver.launches) == capture
    assert network.backend_description.endswith("fp32, CUDA graphs" if capture else "fp32, launched in parts")


def test_engines_of_bfloat16_hand_on_keys_and_values_as_they_are(trt, cards, nets, tmp_path):  # noqa: F811
    list(engines.build(cards["bf16"], "cuda", tmp_path, Clock()))
    network, eager = opened(cards["bf16"], tmp_path, backend="tensorrt"), TorchNetwork(nets["bf16"], decoding=RULES)
    assert "Fake Thor, bf16," in network.backend_description
    scenes = [scene(network, seed) for seed in range(4)]
    cached, expected = ([decoded(of, each)[-2] for each in scenes] for of in (network, eager))
    assert np.equal(cached, expected).mean() > 0.9  # sums of bfloat16 in another order are other sums


def test_more_actions_than_an_engine_takes_are_several_calls(built, cards, driver):  # noqa: F811
    """A repair redrafts more action sequences than there are goals."""
    network, expected = TrtNetwork(cards["fp32"], "cuda", built), OrtNetwork(cards["fp32"])
    actions = np.tile(expected.prefill_goal(scene(network, 0)).actions, (4, 1))[:13]
    context, launches = network.prefill_goal(scene(network, 0)).context, driver.launches
    written, confidence = network.step(context, actions, 5, False)
    assert driver.launches - launches == 3
    other = expected.step(expected.prefill_goal(scene(network, 0)).context, actions, 5, False)
    assert_same_answer(written, other[0])
    assert_same_answer(confidence, other[1])


def test_a_call_is_one_copy_back_and_one_launch(built, cards, driver):  # noqa: F811
    network = TrtNetwork(cards["fp32"], "cuda", built)
    launches, copies = driver.launches, driver.copies_back
    decoded(network, scene(network, 0))
    assert driver.launches - launches == 2 + len(MOVES)  # to look at the images is a call of its own
    assert driver.copies_back - copies == 2 + len(MOVES)


def test_what_was_given_is_not_written_over_by_the_next_call(built, cards):
    network = TrtNetwork(cards["fp32"], "cuda", built)
    first = decoded(network, scene(network, 0))
    copies = [row.copy() for row in first]
    decoded(network, scene(network, 1))
    for mine, before in zip(first, copies, strict=True):
        np.testing.assert_array_equal(mine, before)


def test_where_cuda_captures_nothing_the_parts_are_launched_and_the_network_says_so(built, cards, driver):  # noqa: F811
    driver.captures = False
    network = TrtNetwork(cards["fp32"], "cuda", built)
    assert "launched in parts (CUDA says" in network.backend_description
    expected = decoded(OrtNetwork(cards["fp32"]), scene(network, 3))
    np.testing.assert_array_equal(decoded(network, scene(network, 3))[-2], expected[-2])


def test_another_thread_than_that_which_loaded_it_may_plan(built, cards):
    network, done = TrtNetwork(cards["fp32"], "cuda", built), []
    thread = threading.Thread(target=lambda: done.append(decoded(network, scene(network, 0))))
    thread.start()
    thread.join()
    assert len(done) == 1


# --- a scene at a time -----------------------------------------------------------------------------------------------


def test_a_context_whose_scene_was_overwritten_is_refused(built, cards):
    network = TrtNetwork(cards["fp32"], "cuda", built)
    first = network.prefill_goal(scene(network, 0))
    second = network.prefill_goal(scene(network, 1))
    complaint = refused(lambda: network.step(first.context, first.actions, 5, False), PlanningError)
    assert "keys and values of scene 1 are gone: scene 2 was read into their place" in complaint
    network.step(second.context, second.actions, 5, False)
    other = TrtNetwork(cards["fp32"], "cuda", built).prefill_goal(scene(network, 1))
    other_two = replace(other.context, number=2)
    for foreign in (other_two, {"keys_0": None}):
        refused(lambda: network.step(foreign, second.actions, 5, False), PlanningError)  # noqa: B023 (called at once)


def test_a_prefill_that_fails_leaves_no_scene_behind(built, cards, trt):  # noqa: F811
    network = TrtNetwork(cards["fp32"], "cuda", built, capture=False)
    first = network.prefill_goal(scene(network, 0))
    trt.refuses = True
    complaint = refused(lambda: network.prefill_goal(scene(network, 1)), PlanningError)
    assert "graph vision_encoder failed: TensorRT does not run vision_encoder" in complaint
    trt.refuses = False
    assert "scene 1 are gone" in refused(lambda: network.step(first.context, first.actions, 5, False), PlanningError)


def test_a_wrong_feed_is_refused_by_the_name_of_its_tensor(built, cards):
    network = TrtNetwork(cards["fp32"], "cuda", built)
    good = scene(network, 0)
    for changed, complaint in (
        (replace(good, images=good.images[:, :16]), r"views is uint8 \(3, 2, 16, 64, 3\), expected uint8 \(3, 2, 32"),
        (replace(good, images=good.images.astype(np.float32)), "views is float32"),
        (replace(good, text=good.text[:3]), r"text is int64 \(1, 3\), expected int64 \(1, 16\)"),
    ):
        with pytest.raises(PlanningError, match=complaint):
            network.prefill_goal(changed)
    prefilled = network.prefill_goal(good)
    with pytest.raises(PlanningError, match=r"actions is int64 \(1, 6, 15\), expected int64 \(1, 6, 16\)"):
        network.step(prefilled.context, prefilled.actions[:, :15], 1, False)


def test_a_gpu_that_is_lost_while_driving_stops_the_car(built, cards, driver):  # noqa: F811
    engine, scene = Engine(on(cards["fp32"], built), Clock()), observation(speed=8.0, cameras=camera_images())
    assert engine.backend_description.startswith("TensorRT 10.13.3.9 on Fake Thor")
    assert "graph" not in engine.step(scene).reason
    driver.lost = True
    assert engine.step(scene).source is not PlanSource.PLANNER
    engine.reset()
    report = engine.step(scene)
    assert report.source is PlanSource.STOP
    assert "graph vision_encoder failed: CUDA says 'unspecified launch failure' (error 719" in report.reason


# --- what is not there, or does not fit ------------------------------------------------------------------------------


def test_without_a_driver_tensorrt_is_never_imported(cards, tmp_path):
    """It would take the process down. Asked in a process of its own, with the machine's own driver out of sight."""
    program = (
        "import sys\n"
        "class Bomb:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        assert name.split('.')[0] != 'tensorrt', 'imported'\n"
        "sys.meta_path.insert(0, Bomb())\n"
        "from reflectdrive_ros.core.config import ModelConfig\n"
        "from reflectdrive_ros.core.recipe_config import DecodingConfig\n"
        "from reflectdrive_ros.runtime import network as backend\n"
        "from reflectdrive_ros.runtime.trt import cuda_device\n"
        "cuda_device.LIBRARY = 'libcuda-that-is-not-there.so.1'\n"
        "model = ModelConfig(sys.argv[1], sys.argv[2], 'tensorrt', engines=sys.argv[3])\n"
        "try:\n"
        "    backend.load_network(model, DecodingConfig(4))\n"
        "except backend.ModelFileError as fault:\n"
        "    print(fault)\n"
    )
    model = as_set(cards["fp32"])
    words = [sys.executable, "-c", program, model.file, model.sha256, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("there is no NVIDIA driver (libcuda-that-is-not-there.so.1: cannot open"), done.stderr


def test_a_driver_without_a_gpu_and_a_gpu_that_is_not_there_are_named(cards, driver):  # noqa: F811
    assert "there is no GPU cuda:3: the driver finds 1" in refused(lambda: cuda_device.CudaDevice(3), CudaError)
    assert "model.device is cpu" in refused(lambda: opened(cards["fp32"], "", backend="tensorrt", device="cpu"))
    driver.devices = 0
    complaint = refused(lambda: opened(cards["fp32"], "", backend="tensorrt"))
    assert "CUDA says 'no CUDA-capable device is detected' (error 100 of cuInit)" in complaint


def test_a_tensorrt_that_is_missing_too_old_or_broken_is_named(built, cards, trt, monkeypatch):  # noqa: F811
    def message_of_load():
        return refused(lambda: opened(cards["fp32"], built, backend="tensorrt"))

    trt.runtime_fault = "CUDA initialization failure\nwith error: 35"
    assert message_of_load() == "TensorRT returns no runtime: CUDA initialization failure with error: 35"
    trt.__version__ = "8.6.1"
    assert "TensorRT 8.6.1 is too old: 10.13 or later is needed" in message_of_load()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert "TensorRT cannot be imported" in message_of_load()
    assert "python3-libnvinfer" in message_of_load()


def elsewhere(monkeypatch, trt, **changes):  # noqa: F811
    """The same disk in another computer."""
    other = FakeDriver(**changes)
    monkeypatch.setattr(cuda_device, "load_driver", lambda: other)
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRT(other, trt.__version__))


def test_engines_of_another_gpu_are_named(built, cards, trt, monkeypatch):  # noqa: F811
    elsewhere(monkeypatch, trt, name="Fake H100", capability=(9, 0), processors=132)
    sentence = refused(lambda: opened(cards["fp32"], built, backend="tensorrt"))
    assert "was built for the GPU Fake Thor, compute capability 11.0, 20 multiprocessors; here it would be" in sentence
    assert "the GPU Fake H100, compute capability 9.0, 132 multiprocessors" in sentence
    assert f"with: reflectdrive engine {cards['fp32'].path} --folder {built}" in sentence


def test_an_engine_that_tensorrt_does_not_take_is_named(built, cards):
    """Its hash is right: it was stored like this."""
    for file in built.glob("step-*.plan"):
        file.write_bytes(b"nonsense")
        card = json.loads(file.with_suffix(".json").read_text())
        file.with_suffix(".json").write_text(json.dumps(card | {"sha256": sha256_of(file)}))
    sentence = refused(lambda: opened(cards["fp32"], built, backend="tensorrt"))
    (file,) = built.glob("step-*.plan")
    assert f"TensorRT returns no engine from {file} (delete it and build it, which takes minutes, with:" in sentence
    assert "Serialization assertion magicTagRead == kMAGIC_TAG failed." in sentence


def test_a_gpu_without_room_is_named(built, cards, driver):  # noqa: F811
    driver.full = True
    sentence = refused(lambda: opened(cards["fp32"], built, backend="tensorrt"))
    assert sentence == "the GPU is out of memory (cuMemAlloc_v2): close other programs that use it"


def test_engines_of_graphs_for_any_number_of_actions_take_as_many_as_there_are_goals(trt, cards, driver, tmp_path):  # noqa: F811
    list(engines.build(cards["free"], "cuda", tmp_path, Clock()))
    network, expected = opened(cards["free"], tmp_path, backend="tensorrt"), OrtNetwork(cards["free"])
    for mine, other in zip(decoded(network, scene(network, 0)), decoded(expected, scene(network, 0)), strict=True):
        assert_same_answer(mine, other)
    context, launches = network.prefill_goal(scene(network, 1)).context, driver.launches
    network.step(context, np.zeros((RULES.goals.count + 1, 16), np.int32), 0, True)
    assert driver.launches - launches == 2


# --- which backend drives --------------------------------------------------------------------------------------------


def test_auto_takes_engines_where_they_are(built, cards):
    assert isinstance(opened(cards["fp32"], built), TrtNetwork)
    assert isinstance(opened(cards["fp32"], built, device="cpu"), OrtNetwork)


def no_driver():
    raise CudaError("there is no NVIDIA driver")


@pytest.mark.parametrize("fault", ["no engine", "no driver", "no tensorrt", "damaged", "wrong answers"])
def test_auto_falls_back_and_says_why(built, cards, trt, fault, monkeypatch):  # noqa: F811
    if fault == "no engine":
        for file in built.iterdir():
            file.unlink()
    if fault == "no driver":
        monkeypatch.setattr(cuda_device, "load_driver", no_driver)
    if fault == "no tensorrt":
        monkeypatch.setitem(sys.modules, "tensorrt", None)
    if fault == "damaged":
        for file in built.glob("*.plan"):
            file.write_bytes(file.read_bytes()[:-100])
    if fault == "wrong answers":
        monkeypatch.setattr(TrtNetwork, "step", lambda self, context, actions, *_: (actions, np.zeros(actions.shape)))
    words = {
        "no engine": "(not tensorrt: there is no TensorRT engine of vision_encoder in",
        "no driver": "(not tensorrt: there is no NVIDIA driver",
        "no tensorrt": "(not tensorrt: TensorRT cannot be imported",
        "damaged": "is damaged: vision_encoder-",
        "wrong answers": "fails its self-check: tokens stay masked",
    }
    backend_description = Engine(on(cards["fp32"], built), Clock()).backend_description
    assert backend_description.startswith("ONNX Runtime")
    assert words[fault] in backend_description
    assert "ONNX Runtime" not in refused(lambda: opened(cards["fp32"], built, backend="tensorrt"))


def test_without_a_configured_gpu_tensorrt_is_not_mentioned(cards, monkeypatch):
    monkeypatch.setattr(cuda_device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert opened(cards["fp32"], "").backend_description.endswith("on cpu, 2 threads")


# --- graphs in bfloat16 ----------------------------------------------------------------------------------------------


def test_graphs_in_bfloat16_are_for_tensorrt_alone(cards, trt, tmp_path):  # noqa: F811
    sentence = refused(lambda: opened(cards["bf16"], tmp_path))
    assert "is in bf16, which ONNX Runtime does not run: build TensorRT engines of it" in sentence
    assert "; not tensorrt: there is no TensorRT engine of vision_encoder in" in sentence


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_in_bfloat16_are_onnx_of_operators_that_tensorrt_takes(cards, name):
    file = cards["bf16"].files[name]
    onnx.checker.check_model(str(file), full_check=True)
    assert unknown_to_tensorrt(file) == []


@pytest.mark.parametrize("name", GRAPHS)
def test_products_are_in_bfloat16_and_what_is_summed_up_long_in_float32(cards, name):
    kinds = {}
    for node in onnx_ir.load(cards["bf16"].files[name]).graph.all_nodes():
        kinds.setdefault(node.op_type, set()).update(value.dtype.name for value in node.inputs if value is not None)
        if node.op_type == "Cast" and node.inputs[0].dtype.name == "UINT8":
            assert node.outputs[0].dtype.name == "FLOAT"  # bytes become nothing else in TensorRT
    assert kinds["MatMul"] == {"BFLOAT16"}
    assert kinds["Softmax"] == {"FLOAT"}
    in_full = {"prefill_goal": "Exp", "step": "Greater"}
    assert "BFLOAT16" not in kinds.get(in_full.get(name), ())
    tensors = onnx.load(cards["bf16"].files["step"]).graph.input
    handed_on = [value.type.tensor_type for value in tensors if value.name.startswith(("keys_", "values_"))]
    assert {each.elem_type for each in handed_on} == {onnx.TensorProto.BFLOAT16}


# --- building --------------------------------------------------------------------------------------------------------


def test_what_fits_is_not_built_again_and_what_is_damaged_is(built, cards, trt):  # noqa: F811
    assert trt.builds == len(GRAPHS)
    assert [row.seconds for row in engines.build(cards["fp32"], "cuda", built, Clock(1.0))] == [0.0] * len(GRAPHS)
    assert trt.builds == len(GRAPHS)
    (damaged,) = built.glob("step-*.plan")
    damaged.write_bytes(b"half")
    assert [row.seconds for row in engines.build(cards["fp32"], "cuda", built, Clock(1.0))] == [0.0, 0.0, 0.0, 1.0]
    assert trt.builds == len(GRAPHS) + 1
    assert isinstance(opened(cards["fp32"], built), TrtNetwork)


def test_what_was_timed_is_used_again_by_the_same_tensorrt_only(built, cards, trt):  # noqa: F811
    once = [b"timed " * count for count in range(len(GRAPHS))]
    assert trt.timings == once
    trt.__version__ = "10.16.1.11"
    list(engines.build(cards["fp32"], "cuda", built, Clock()))
    assert trt.timings == 2 * once
    files = sorted(built.glob("timing-*.cache"))
    assert len(files) == 2
    for file in files:
        store_timing(file, b"spoilt")  # whole, but not what TensorRT takes
    (next(built.glob("step-*.plan"))).unlink()
    list(engines.build(cards["fp32"], "cuda", built, Clock()))
    list(engines.build(cards["bf16"], "cuda", built, Clock()))
    assert trt.timings.count(b"spoilt") >= 1


def test_a_build_that_fails_says_why_and_leaves_nothing(trt, cards, tmp_path):  # noqa: F811
    def message_of_build():
        return refused(lambda: list(engines.build(cards["fp32"], "cuda", tmp_path, Clock())), EngineError)

    trt.build_fault = "[defaultAllocator.cpp::allocate::57] Error Code 1: Cuda Runtime (out of memory)"
    assert "out of memory while an engine of" in message_of_build()
    assert "close other programs that use the GPU" in message_of_build()
    trt.build_fault = "Could not find any implementation for node {ForeignNode}."
    assert "TensorRT 10.13.3.9 cannot build an engine of" in message_of_build()
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_tensorrt_cannot_read_is_named_with_its_own_words(trt, tmp_path):  # noqa: F811
    empty = tmp_path / "step.onnx"
    empty.write_bytes(b"")
    complaint = refused(lambda: engines._plan(trt, empty, 6, b""), EngineError)
    assert complaint == f"TensorRT 10.13.3.9 cannot read {empty}: node 7 is of no kind that is known"


def test_the_command_builds_checks_and_tells_by_its_exit_code(trt, cards, tmp_path, capsys):  # noqa: F811
    words = ["engine", str(cards["fp32"].path), "--folder", str(tmp_path)]
    assert main([*words, "--check"]) == 2
    assert "there is no TensorRT engine of vision_encoder" in capsys.readouterr().err
    assert trt.builds == 0
    assert main([*words, "--json", str(tmp_path / "told.json")]) == 0
    report = json.loads((tmp_path / "told.json").read_text())
    assert [row["graph"] for row in report["engines"]] == list(GRAPHS)
    assert all(Path(row["file"]).is_file() for row in report["engines"])
    assert report["backend_description"].startswith("TensorRT 10.13.3.9 on Fake Thor, fp32")
    assert main([*words, "--check"]) == 0
    assert trt.builds == len(GRAPHS)
    assert main(["engine", str(tmp_path / "card.json")]) == 2


@pytest.fixture
def exporting(cards, nets, tmp_path, monkeypatch):
    """The words of a command that exports, and what it exports in which precision and for how many action sequences."""
    weights, exported = tmp_path / "weights.safetensors", []

    def stand_in(net, _sha256, folder, _about, _decoding, actions, _golden, _gate, _camera):
        exported.append((PRECISIONS[net.x_head.weight.dtype], actions))
        shutil.copytree(cards[exported[-1][0]].path.parent, folder, dirs_exist_ok=True)
        return "0" * 64

    monkeypatch.setattr(export_run, "export", stand_in)
    return ["export", str(weights), "--sha256", checkpoint.save(nets["fp32"], weights, {})], exported


def test_export_builds_engines_where_it_can(exporting, trt, tmp_path, monkeypatch, capsys):  # noqa: F811
    words, exported = exporting
    words = [*words, "--tensorrt", "--precision", "bf16"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    assert exported == [("bf16", DecodingConfig().goals)]
    assert len(list((tmp_path / "a" / "engines").glob("*.plan"))) == len(GRAPHS)
    assert "on TensorRT 10.13.3.9 on Fake Thor, bf16" in capsys.readouterr().out
    monkeypatch.setattr(cuda_device, "load_driver", no_driver)
    assert main([*words, "--out", str(tmp_path / "b")]) == 2
    assert "there is no NVIDIA driver" in capsys.readouterr().err
    assert (tmp_path / "b" / "card.json").exists()


# --- what is asked of others is there --------------------------------------------------------------------------------


def test_every_member_of_tensorrt_that_is_used_is_in_all_supported_versions(built, cards, trt):  # noqa: F811
    USED.clear()
    list(engines.build(cards["bf16"], "cuda", built, Clock()))
    trt.build_fault = "no"
    refused(lambda: list(engines.build(cards["free"], "cuda", built, Clock())), EngineError)
    decoded(TrtNetwork(cards["fp32"], "cuda", built), synthetic_inputs(OrtNetwork(cards["fp32"])))
    named = {
        (node.value.attr, node.attr)
        for module in (backend, engines)
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "trt"
    } - {("__version__", "split"), ("ILogger", "__init__")}
    assert {("TensorIOMode", "INPUT"), ("BuilderFlag", "TF32")} <= named
    assert {("Builder", "build_serialized_network"), ("IExecutionContext", "execute_async_v3")} <= USED
    there = json.loads((DATA / "tensorrt_api.json").read_text())["classes"]
    for kind, member in sorted(USED | named):
        assert member in there[kind], f"TensorRT's {kind} has no {member} in every version"
    for kind in backend.DTYPES:
        assert kind in there["DataType"]
