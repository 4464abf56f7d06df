"""`make gpu-day`: what a GPU gives, measured in 12 minutes by the commands of the package, to docs/bench/gpu-day.json.

    .venv/bin/python tools/gpu_day.py [--minutes 12] [--json FILE]

TensorRT engines of the shipped network and their self-check, times of steps with TensorRT, and with torch in each
mode of `model.token.cuda_graphs` (CUDA graphs, fused update), plans of the engines compared with eager torch, and what
lite steps cost in closed loop. A command that fails, or for which too little time is left, is in the file with its
reason. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectdrive_ros.infra.provenance import write_numbers

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "models" / "reflectdrive2_small" / "weights.safetensors"
SCENES = ROOT / "test" / "data" / "scenes_val"
OUT = ROOT / "out" / "gpu-day"
MINUTES = 12.0


@dataclass(frozen=True)
class Step:
    """One command of the package. `expected_s` is the time that it takes on a data-centre GPU; it needs as much."""

    name: str
    words: tuple[str, ...]
    expected_s: float


Call = Callable[[Sequence[str], float], tuple[int, str]]  # words and seconds -> exit code and what it printed


def steps_of(weights: Path, scenes: Path, out: Path) -> tuple[Step, ...]:
    card = str(out / "onnx" / "card.json")
    on_gpu = ("--setting", "model.device=cuda")
    engines = ("--setting", "model.backend=tensorrt", *on_gpu)
    return (
        Step("doctor", ("doctor",), 20.0),
        Step("export", ("export", str(weights), "--out", str(out / "onnx"), "--precision", "bf16"), 60.0),
        Step("engines", ("engine", card, "--device", "cuda"), 180.0),
        Step("step_tensorrt", ("bench", "step", "--model", card, *engines), 40.0),
        Step("step_torch", ("bench", "step", "--model", str(weights), *on_gpu), 120.0),
        Step(
            "parity",
            (
                *("bench", "parity", "--model", str(weights), "--graphs", card, "--backend", "tensorrt"),
                *("--device", "cuda", "--scenes", str(scenes), "--limit", "100"),
            ),
            90.0,
        ),
        Step(
            "lite_steps",
            (
                *("eval", "--closed-loop", "--planner", "reflectdrive2", "--seeds", "4", "--duration", "20"),
                *("--variant", "alternating", "--variant", "full_only", "reflectdrive2.lite_steps_per_full=0"),
            ),
            180.0,
        ),
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"in all (default: {MINUTES:g})")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "bench" / "gpu-day.json", metavar="FILE")
    args = parser.parse_args(words)
    numbers = measure(steps_of(WEIGHTS, SCENES, OUT), OUT, 60.0 * args.minutes, call_command, time.monotonic)
    write_numbers(args.json, numbers)
    for name, row in numbers["steps"].items():
        print(f"{name}: {row.get('not_run', 'measured')} ({row['seconds']:.0f} s)")
    print(f"CUDA mode: {numbers['cuda_mode']}\n{args.json}")
    return int(any("not_run" in row for row in numbers["steps"].values()))


def measure(steps: Sequence[Step], out: Path, seconds: float, call: Call, clock: Callable[[], float]) -> dict[str, Any]:
    """Runs the steps within `seconds`; numbers by step, and the CUDA mode that they decide for."""
    out.mkdir(parents=True, exist_ok=True)
    end, rows = clock() + seconds, dict[str, dict[str, Any]]()
    for step in steps:
        begin, file = clock(), out / f"{step.name}.json"
        file.unlink(missing_ok=True)
        row: dict[str, Any] = {"command": " ".join(["reflectdrive", *step.words])}
        if end - begin < step.expected_s:
            row["not_run"] = f"{end - begin:.0f} s are left, it takes {step.expected_s:.0f}"
        else:
            code, text = call([*step.words, "--json", str(file)], end - begin)
            if code == 0 and file.exists():
                row["numbers"] = json.loads(file.read_text(encoding="utf-8"))
            else:
                row["not_run"] = f"exit code {code}: {text.strip()[-500:]}"
        rows[step.name] = {**row, "seconds": round(clock() - begin, 1)}
    modes = rows.get("step_torch", {}).get("numbers", {}).get("cuda_modes", {})
    return {"seconds_max": seconds, "steps": rows, "cuda_mode": fastest_mode(modes)}


def fastest_mode(modes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The mode of `bench step` with the same ids as the plain one that is fastest with all goals, and not slower with
    one sequence; the plain one if no other is, None where it was not measured."""
    measured = {name: row["step_ms_p50"] for name, row in modes.items() if row.get("same_ids") == 1.0}
    plain = next(iter(modes), None)
    if plain not in measured:
        return None
    goals = max(measured[plain], key=int)
    fit = {name: times[goals] for name, times in measured.items() if all(times[n] <= measured[plain][n] for n in times)}
    return min(fit, key=lambda name: fit[name])


def call_command(words: Sequence[str], seconds: float) -> tuple[int, str]:
    """A command of the package in a process of its own, ended after `seconds`."""
    command = [sys.executable, "-m", "reflectdrive_ros", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"ended after {seconds:.0f} s"
    return done.returncode, done.stderr or done.stdout


if __name__ == "__main__":
    sys.exit(main())
