"""`bench step`: times of the network hang together with their bound, and the engine's own time is that without it."""

import json
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
from fake_gpu import driver, trt  # noqa: F401 (fixtures)
from tiny_model import tiny_model  # noqa: F401 (a fixture)
from tiny_net import tiny_inputs, tiny_net

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import backends, step
from reflectdrive_ros.bench.network_steps import consecutive_inputs, full_rounds, run_step
from reflectdrive_ros.bench.step import LATER_S, moved_on, torch_device
from reflectdrive_ros.core.config import Config, ModelConfig
from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.evaluation.privilege import observe
from reflectdrive_ros.features.images import ModelInputs
from reflectdrive_ros.model.peaks import has_gpu
from reflectdrive_ros.model.token.cuda_graphs import MODES
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

SCENES = 2
WORDS = ("<pad>", "<unk>")
FULL = full_rounds(TokenLayout())


@pytest.fixture
def slow_peaks(monkeypatch):
    """Peak rates that are not measured, and few steps on each backend: both take seconds."""
    monkeypatch.setattr(step, "measure_peaks", lambda *_: (1e10, 1e10))
    for name in ("STEPS", "SCENES"):
        monkeypatch.setattr(backends, name, 1)


def inputs_of(seed=0):
    return ModelInputs(*(part[0].numpy() for part in tiny_inputs(tiny_net(words=WORDS), scenes=1, seed=seed).tensors))


@pytest.mark.usefixtures("slow_peaks")
def test_full_and_lite_steps_are_timed_with_their_bound_and_without_the_network(
    tiny_model,  # noqa: F811
    tmp_path,
    capsys,
):
    folder = tmp_path / "val"
    folder.mkdir()
    scenes = [hand_scenes.scene(f"val-00000-{k:03d}", size=(64, 36), agents=4, speed=8.0) for k in range(SCENES)]
    note = shards.write_shard(folder, "val-00000", ShardContent.of(scenes), requested=SCENES, generator={})
    shards.write_index(folder, Index("val", SCENES, (note,), {}))
    out = tmp_path / "step.json"
    words = ["bench", "step", "--scenes", str(folder), "--model", str(tiny_model.file), "--sha256", tiny_model.sha256]
    assert main([*words, "--steps", "2", "--runs", "1", "--json", str(out)]) == 0
    numbers = json.loads(out.read_text())
    for kind in ("full", "lite"):
        assert 0.0 < numbers[f"{kind}_ms_p50"] <= numbers[f"{kind}_ms_p99"]
        assert sum(numbers[f"{kind}_parts_ms_p50"].values()) <= 1.5 * numbers[f"{kind}_ms_p99"]
        assert min(numbers[f"{kind}_parts_ms_p50"].values()) > 0.0
    assert 0.0 < numbers["roofline_lite_ms"] < numbers["roofline_full_ms"]
    parts = numbers["parts"]
    assert parts["all"]["steps"] == 2 * SCENES
    assert parts["full"]["steps"] >= SCENES
    assert 0.0 < parts["all"]["ms_p50"] <= parts["all"]["ms_p99"]
    assert numbers["weights_sha256"] == tiny_model.sha256
    printed = capsys.readouterr().out
    assert "without the network" in printed
    (weights,) = numbers["backends"]
    assert (weights["planner"], weights["backend"], weights["same_plans"]) == ("reflectdrive2", "torch", 1.0)
    assert "reflectdrive2: Fastest with the plans of float32: model.file=" in printed


@pytest.mark.usefixtures("slow_peaks")
def test_a_denoiser_has_full_steps_of_an_encoded_scene_and_its_evaluations(tmp_path):
    out = tmp_path / "step.json"
    assert main(["bench", "step", "--planner", "reflexdiffusion", "--steps", "1", "--json", str(out)]) == 0
    numbers = json.loads(out.read_text())
    assert numbers["full_parts_ms_p50"].keys() == {"encode", "evaluations"}
    assert numbers["roofline_full_ms"] > 0.0
    assert "lite_ms_p50" not in numbers
    assert {row["backend"] for row in numbers["backends"]} >= {"onnxruntime", "torch"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "nowhere.safetensors", "--sha256", "ab"], "nowhere.safetensors cannot be read"),
        (["--setting", "model.backend=tensorrt", "--setting", "model.device=cpu"], "model.device is cpu"),
        (["--setting", "model.device=tpu"], "model.device is 'tpu'"),
    ],
)
def test_a_network_that_cannot_be_timed_is_one_sentence(words, sentence, capsys):
    assert main(["bench", "step", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert sentence in line


def test_the_bound_is_that_of_the_device_of_the_network(monkeypatch):
    monkeypatch.setattr(step, "has_gpu", lambda: True)
    assert torch_device("ONNX Runtime 1.31.1 on cpu, 2 threads", "auto") == "cpu"
    assert torch_device("torch 2.13.0 on cuda:1 (graph)", "auto") == "cuda:1"
    assert torch_device("TensorRT 10.13.3.9 on Fake Thor, fp32", "auto") == "cuda"
    monkeypatch.setattr(step, "has_gpu", lambda: False)
    assert torch_device("TensorRT 10.13.3.9 on Fake Thor, fp32", "cuda:1") is None


def test_without_a_bound_the_table_says_why():
    numbers = json.loads((Path(__file__).parents[1] / "docs/bench/step.json").read_text())
    no_bound = dict.fromkeys(("roofline_full_ms", "roofline_lite_ms", "copy_gb_per_s", "matmul_gflop_per_s"))
    table = step.network_table({**numbers, **no_bound})
    assert table.row_count == 2
    assert table.caption == "no bound: torch does not find the device"


def test_a_frame_may_edit_some_of_its_action_sequences():
    network = TorchNetwork(tiny_net(words=WORDS))
    for seed in range(3):
        inputs = inputs_of(seed)
        edited = run_step(network, inputs, FULL, 6, edited=2)[0]
        np.testing.assert_array_equal(edited, run_step(network, inputs, FULL, 6)[0][:2])


def test_older_images_are_the_newest_of_the_step_before():
    inputs = inputs_of()
    cameras = len(inputs.images) // 2
    steps = consecutive_inputs(inputs, cameras)
    first, second = next(steps), next(steps)
    before = {image.tobytes() for image in first.images}
    assert [image.tobytes() in before for image in second.images] == [True] * cameras + [False] * cameras


def test_the_second_observation_is_where_the_car_is_then():
    observation = observe(hand_scenes.scene("val-00000-000", size=(64, 36), agents=1, speed=8.0), "objects")
    later = moved_on(observation)
    assert later.stamp_ns - observation.stamp_ns == round(1e9 * LATER_S)
    driven_m = ((later.ego.map_from_ego - observation.ego.map_from_ego)[:2] ** 2).sum() ** 0.5
    assert abs(driven_m - 8.0 * LATER_S) < 0.01


# --- on a GPU --------------------------------------------------------------------------------------------------------


def test_each_mode_has_its_turn_and_is_compared_with_the_plain_one(tiny_model):  # noqa: F811
    """On a CPU all modes are the plain one, so this tries the bench and not the modes."""
    config = Config(model=ModelConfig(str(tiny_model.file), tiny_model.sha256))
    modes = step.cuda_modes(config, "cpu", 2)
    assert list(modes) == [str(mode) for mode in MODES]
    timed = [row for row in modes.values() if "not_run" not in row]
    assert all(ms > 0 for row in timed for ms in row["step_ms_p50"].values())
    assert {row["same_ids"] for row in timed} == {1.0}
    assert step.modes_table(modes).row_count == len(MODES)


@pytest.mark.skipif(not has_gpu(), reason="needs a CUDA GPU")
def test_a_network_on_a_gpu_has_a_bound_and_its_modes(tmp_path):
    words = ["--model", "models/reflectdrive2_small/weights.safetensors", "--setting", "model.device=cuda"]
    assert main(["bench", "step", *words, "--steps", "2", "--json", str(tmp_path / "f")]) == 0
    numbers = json.loads((tmp_path / "f").read_text())
    assert numbers["roofline_full_ms"] > 0
    assert numbers["cuda_modes"]["graph"]["same_ids"] == 1.0
