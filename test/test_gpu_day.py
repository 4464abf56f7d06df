"""What `make gpu-day` measures: commands of the package, within the time, with a reason for what does not run."""

from pathlib import Path

import gpu_day
import pytest
from scenes import Clock

from reflectdrive_ros.__main__ import main


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
