"""The planner's bench: its figures hang together, and its count of equal tokens finds a network that is another."""

import itertools
import json
import subprocess
from argparse import Namespace
from io import StringIO

import numpy as np
import pytest
from fake_gpu import driver, trt  # noqa: F401 (fixtures)
from rich.console import Console
from tiny_net import ONE_LAYER, tiny_inputs, tiny_net

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import gpu, planner
from reflectdrive_ros.bench.graphs import token_graphs
from reflectdrive_ros.bench.parity import full_rounds, lite_rounds, run_step
from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.features.images import ModelInputs
from reflectdrive_ros.infra.command import error_console
from reflectdrive_ros.model.token import torch_bench
from reflectdrive_ros.model.token.cuda_graphs import MODES
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.runtime.trt import cuda_device

WORDS = ("<pad>", "<unk>")
FULL, LITE = full_rounds(TokenLayout()), lite_rounds(TokenLayout())


def scenes(count=3):
    net = tiny_net(words=WORDS)
    for seed in range(count):
        yield ModelInputs(*(part[0].numpy() for part in tiny_inputs(net, scenes=1, seed=seed)))


def test_figures_of_a_small_run(tmp_path):
    words = ["bench", "planner", "--backend", "torch", "--steps", "2", "--threads", "1", "--json", str(tmp_path / "f")]
    assert main(words) == 0
    told = json.loads((tmp_path / "f").read_text())
    for kind in ("full", "lite"):
        assert 0 < told[f"{kind}_ms_p50"] <= told[f"{kind}_ms_p99"]
        assert told[f"roofline_{kind}_ms"] > 0
    assert told["roofline_lite_ms"] < told["roofline_full_ms"]
    assert list(told["full_by_goals_ms_p50"]) == ["1", "3", "6"]
    assert set(told["parts_ms_p50"]) == {"vision", "prefill", "goal"}
    assert told["reuse_times_faster_one_goal"] > 1
    assert told["own_reuse_times_faster_one_goal"] > 1
    assert {"version", "commit", "device", "date", "command"} <= set(told)
    assert told["gpu"] in (gpu.NO_GPU, gpu.NOT_REQUESTED)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "nowhere.safetensors", "--sha256", "ab"], "nowhere.safetensors cannot be read"),
        (["--device", "cuda"], "--device cuda goes with --backend torch or tensorrt"),
        (["--backend", "tensorrt", "--device", "cpu"], "--device is cpu, but TensorRT runs on GPUs: leave it out"),
        (["--backend", "torch", "--device", "tpu"], "--device is tpu, expected cpu, cuda or cuda:1 .."),
    ],
)
def test_what_cannot_be_benched_is_one_sentence(words, complaint, capsys):
    assert main(["bench", "planner", *words]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("packed", [True, False])
def test_frames_that_reuse_nothing_write_the_same_tokens(packed):
    net = tiny_net(words=WORDS)
    eager = TorchNetwork(net)
    for inputs in scenes():
        afresh = torch_bench.full_step_uncached(net, eager.tensors(inputs), eager.decoding, 6, packed)
        np.testing.assert_array_equal(afresh[0].numpy(), run_step(eager, inputs, FULL, 6)[0])


@pytest.mark.parametrize(("goals", "edited"), [(6, 1), (1, None)])
def test_frames_that_read_the_scene_in_every_pass_write_the_same_tokens(goals, edited):
    network = TorchNetwork(tiny_net(words=WORDS))
    for inputs in scenes():
        again = planner.reading_again(network, inputs, goals, edited)
        np.testing.assert_array_equal(again, run_step(network, inputs, FULL, goals, edited=edited)[0])


def test_a_frame_may_edit_some_of_its_action_sequences():
    network = TorchNetwork(tiny_net(words=WORDS))
    for inputs in scenes():
        np.testing.assert_array_equal(
            run_step(network, inputs, FULL, 6, edited=2)[0],
            run_step(network, inputs, FULL, 6)[0][:2],
        )


def test_a_frame_tells_where_its_time_went():
    network = TorchNetwork(tiny_net(words=WORDS))
    actions, (prefill, drafts, edits) = run_step(network, next(scenes(1)), LITE, 1)
    assert actions.shape == (1, 16)
    assert min(prefill, drafts, edits) > 0


# --- TensorRT --------------------------------------------------------------------------------------------------------


def test_without_a_driver_the_bench_of_tensorrt_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(cuda_device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    assert main(["bench", "planner", "--backend", "tensorrt"]) == 2
    told = capsys.readouterr().err
    assert "there is no NVIDIA driver" in told
    assert "Traceback" not in told


@pytest.mark.usefixtures("trt")
def test_the_table_of_tensorrt_is_that_of_the_other_backends(tmp_path, capsys, monkeypatch):
    """On a made-up GPU, which torch does not find: so eager torch is on the CPU, and there is no bound."""
    monkeypatch.setattr(torch_bench, "random_net", lambda *_: tiny_net(words=WORDS, transformer=ONE_LAYER))
    monkeypatch.setattr(planner, "cold_start_s", lambda *_: 1.5)  # in a process where nobody made up a GPU
    words = ["bench", "planner", "--backend", "tensorrt", "--steps", "2", "--threads", "1"]
    assert main([*words, "--json", str(tmp_path / "f")]) == 0
    told = json.loads((tmp_path / "f").read_text())
    assert told["backend_description"].startswith("TensorRT 10.13.3.9 on Fake Thor, fp32")
    assert told["eager_backend_description"].endswith("on cpu")
    assert told["roofline_full_ms"] is None
    assert told["cold_start_s"] == 1.5
    for kind in ("full", "lite"):
        assert 0 < told[f"{kind}_ms_p50"] <= told[f"{kind}_ms_p99"]
    assert {"1", "3", "6"} == set(told["full_by_goals_ms_p50"])
    assert told["times_faster_than_eager"] > 0
    assert "no bound: torch finds no GPU" in " ".join(capsys.readouterr().out.split())


# --- on a GPU --------------------------------------------------------------------------------------------------------


def test_graphs_that_a_bench_exports_pass_their_self_check_in_a_new_process(tmp_path):
    net, args = tiny_net(words=WORDS, transformer=ONE_LAYER), Namespace(graphs=None, backend="onnxruntime")
    card = token_graphs(args, net, "", 6, "cpu", tmp_path, error_console())
    assert planner.cold_start_s(card, "onnxruntime", "cpu", 1) > 0.0


def test_each_way_has_its_turn_and_is_held_against_the_plain_one():
    """On a CPU all ways are the plain one, so this tries the bench and not the ways."""
    net = tiny_net(words=WORDS)
    told = gpu.cuda_modes(net, TorchNetwork(net), next(scenes(1)), "cpu", 2)
    assert set(told["step_ms_p50"]) | set(told["left_out"]) == set(told["same_ids"]) == {str(way) for way in MODES}
    assert all(ms > 0 for by_count in told["step_ms_p50"].values() for ms in by_count.values())
    assert set(told["same_ids"].values()) == {1.0}
    other = gpu.cuda_modes(net, TorchNetwork(tiny_net(1, words=WORDS)), next(scenes(1)), "cpu", 1)
    assert max(other["same_ids"].values()) < 1.0


@pytest.mark.parametrize(
    ("answer", "ticks"),
    [
        ("1755, 1980, 2619, 2619\n", "sm 1755, max.sm 1980, mem 2619, max.mem 2619 MHz"),
        ("[N/A], 1, 1, 1", "not report"),
    ],
)
def test_the_table_names_the_gpu_its_clocks_and_what_was_left_out(answer, ticks, monkeypatch):
    answered = subprocess.CompletedProcess([], 0, answer, "")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: answered)
    told = {"name": "A GPU", "compute_capability": "11.0", "memory_gb": 122.8, "cuda": "13.0"}
    told |= {"clocks_mhz": gpu.clocks("GPU-1"), "chosen": "graph", "left_out": {"fused": "not run: no triton"}}
    told |= {"update_ms_p50": {str(count): {"token_ops": 0.2} for count in gpu.COUNTS}}
    told |= {"step_ms_p50": {"graph": {"1": 0.5, "6": 0.75}}, "same_ids": {"graph": 1.0}}
    console = Console(width=200, file=StringIO())
    console.print(gpu.table(told))
    text = " ".join(console.file.getvalue().split())
    for part in ("A GPU, compute capability 11.0, 123 GB", ticks, "graph (drives)", "0.750", "not run: no triton"):
        assert part in text


@pytest.mark.skipif(not torch_bench.has_gpu(), reason="needs a CUDA GPU")
def test_figures_of_a_small_run_on_a_gpu(tmp_path):
    words = ["bench", "planner", "--backend", "torch", "--device", "cuda", "--steps", "2"]
    assert main([*words, "--json", str(tmp_path / "f")]) == 0
    told = json.loads((tmp_path / "f").read_text())
    assert told["gpu"]["same_ids"]["graph"] == 1.0
    assert told["device"].startswith(told["gpu"]["name"])


def test_on_the_road_older_images_were_the_newest_and_strange_ones_were_never_seen():
    inputs = next(scenes(1))
    cameras = len(inputs.images) // 2
    for strange in (False, True):
        first, second = itertools.islice(planner.consecutive_inputs(inputs, cameras, strange), 2)
        before = {image.tobytes() for image in first.images}
        known = [image.tobytes() in before for image in second.images]
        assert known == [not strange] * cameras + [False] * cameras
