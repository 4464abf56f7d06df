"""What `make gpu-day` measures: it runs on a simulated driver, within the time, with a reason for what does not."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from fake_gpu import driver, trt  # noqa: F401 (fixtures)
from scenes import Clock
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("gpu_day", ROOT / "tools" / "gpu_day.py")
gpu_day = importlib.util.module_from_spec(SPEC)
sys.modules["gpu_day"] = gpu_day
SPEC.loader.exec_module(gpu_day)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # of ONNX's reference, which the simulation uses
@pytest.mark.timeout(900)  # it exports, builds and loads a network five times: half a minute on a quiet machine
def test_engines_are_built_timed_and_compared_on_a_simulated_driver(tiny_model, trt, tmp_path, capsys):  # noqa: F811
    """Torch finds no GPU here, so its steps have a reason. The simulated engines compute float32 faster than bf16."""
    short = {"step_tensorrt": ("--steps", "2"), "parity": ("--limit", "3")}
    steps = gpu_day.steps_of(Path(tiny_model.file), ROOT / "test" / "data" / "scenes_val", tmp_path)
    steps = [
        gpu_day.Step(step.name, (*step.words, *short.get(step.name, ())), step.expected_s)
        for step in steps
        if step.name not in ("doctor", "lite_steps")
    ]

    def call(words, seconds):
        code = main(["fp32" if word == "bf16" else word for word in words])
        return code, capsys.readouterr().err

    numbers = gpu_day.measure(steps, tmp_path, 720.0, call, Clock())
    rows = numbers["steps"]
    assert [name for name, row in rows.items() if "not_run" in row] == ["step_torch"], rows
    assert rows["step_tensorrt"]["numbers"]["full_ms_p50"] > 0.0
    assert "TensorRT" in rows["step_tensorrt"]["numbers"]["backend_description"]
    assert numbers["cuda_mode"] is None
    json.dumps(numbers, allow_nan=False)


def test_the_commands_are_those_of_the_package():
    for step in gpu_day.steps_of(gpu_day.WEIGHTS, gpu_day.SCENES, gpu_day.OUT):
        with pytest.raises(SystemExit) as ended:
            main([*step.words, "--help"])
        assert ended.value.code == 0
    assert sum(step.expected_s for step in gpu_day.steps_of(gpu_day.WEIGHTS, gpu_day.SCENES, gpu_day.OUT)) <= 720.0
    assert gpu_day.WEIGHTS.exists()
    assert gpu_day.SCENES.is_dir()


def test_what_fails_and_what_has_no_time_left_has_its_reason(tmp_path):
    clock = Clock()
    steps = [gpu_day.Step(name, (name,), 30.0) for name in ("good", "bad", "late")]

    def call(words, seconds):
        clock.now_s += 40.0
        if words[0] == "good":
            Path(words[-1]).write_text('{"answer": 1}')
            return 0, ""
        return 2, "there is no NVIDIA driver\n"

    rows = gpu_day.measure(steps, tmp_path, 100.0, call, clock)["steps"]
    assert rows["good"]["numbers"] == {"answer": 1}
    assert rows["bad"]["not_run"] == "exit code 2: there is no NVIDIA driver"
    assert rows["late"]["not_run"] == "20 s are left, it takes 30"


def mode(one, six, same=1.0):
    return {"step_ms_p50": {"1": one, "6": six}, "same_ids": same}


@pytest.mark.parametrize(
    ("others", "fastest"),
    [
        ({"fused": mode(1.9, 2.5), "recorded": mode(1.0, 1.2)}, "recorded"),
        ({"fused": mode(1.9, 2.5), "recorded": mode(1.0, 1.2, 0.9)}, "fused"),
        ({"fused": mode(2.1, 2.5)}, "plain"),
        ({"fused": {"not_run": "triton is not installed"}}, "plain"),
    ],
)
def test_the_mode_with_the_same_ids_that_is_nowhere_slower_stays(others, fastest):
    assert gpu_day.fastest_mode({"plain": mode(2.0, 3.0), **others}) == fastest
    assert gpu_day.fastest_mode({}) is None


def test_a_command_that_takes_too_long_is_ended():
    code, text = gpu_day.call_command(["eval", "--closed-loop", "--planner", "route_follower"], 0.05)
    assert (code, text) == (124, "ended after 0 s")
