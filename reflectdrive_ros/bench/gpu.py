"""GPU measurements of `bench planner`: properties, clocks, and the fastest way to run a step.

They decide `model.token.cuda_graphs.DEFAULT_MODE`: a mode is used if it is faster here and writes the same ids.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from ..features.images import ModelInputs
from ..infra.command import make_table
from ..model.token import torch_bench
from ..model.token.cuda_graphs import DEFAULT_MODE, MODES
from ..model.token.net import TokenNet
from ..runtime.torch_backend import TorchNetwork
from .parity import full_rounds, run_step

COUNTS = (1, 6)  # action sequences of a step: of a lite one, and of all goals
NO_GPU = "not run: no CUDA device"
NOT_REQUESTED = "not run: --device is cpu"
CLOCKS = ("clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem")  # MHz, as nvidia-smi names them


def measure(
    net: TokenNet, reference: TorchNetwork, inputs: ModelInputs, device: str, rounds: int
) -> dict[str, Any] | str:
    """Properties of the GPU, and milliseconds of id updates and steps on it; a sentence if nothing runs there."""
    if device == "cpu":
        return NOT_REQUESTED if torch_bench.has_gpu() else NO_GPU
    gpu = torch_bench.gpu_properties(device)
    rules = reference.decoding.edits
    gpu["update_ms_p50"] = {str(count): torch_bench.updates_ms(net, device, rules, count, rounds) for count in COUNTS}
    gpu |= cuda_modes(net, reference, inputs, device, rounds)
    return {**gpu, "clocks_mhz": clocks(gpu.pop("uuid")), "chosen": str(DEFAULT_MODE)}


def cuda_modes(
    net: TokenNet, reference: TorchNetwork, inputs: ModelInputs, device: str, rounds: int
) -> dict[str, dict[str, Any]]:
    """Median milliseconds of a full frame's steps, from ids on the host to ids on the host, by mode.

    `same_ids` is the share of final ids equal to those of `reference`, which runs kernel by kernel.
    """
    networks, left_out = dict[str, TorchNetwork](), dict[str, str]()
    for way in MODES:
        try:
            networks[str(way)] = TorchNetwork(net, device, reference.decoding, reference.inputs.tokenizer, way)
        except ModuleNotFoundError as fault:
            left_out[str(way)] = f"not run: {fault.name} is not installed"
    rounds_of_step = full_rounds(reference.layout)
    spent: dict[str, dict[str, list[float]]] = {name: {str(count): [] for count in COUNTS} for name in networks}
    same: dict[str, list[float]] = {name: [] for name in networks}
    for turn in range(-1, rounds):  # the first records and compiles
        for count in COUNTS:
            expected, _ = run_step(reference, inputs, rounds_of_step, count)
            for name, network in networks.items():
                written, (_, drafts, edits) = run_step(network, inputs, rounds_of_step, count)
                same[name].append(float(np.mean(written == expected)))
                if turn >= 0:
                    spent[name][str(count)].append((drafts + edits) / len(rounds_of_step))
    return {
        "step_ms_p50": {name: {count: median(ms) for count, ms in by.items()} for name, by in spent.items()},
        "same_ids": {name: min(shares) for name, shares in same.items()},
        "left_out": left_out,
    }


def clocks(uuid: str) -> dict[str, float] | str:
    """Clocks from nvidia-smi right after the measurements; a sentence if it reports none, as on some Jetsons."""
    words = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "-i", uuid]
    try:
        output = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout
        return dict(zip(CLOCKS, (float(value) for value in output.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        return "nvidia-smi does not report them"


def table(gpu: Mapping[str, Any]) -> Table:
    """Of what `measure` found on a GPU."""
    ticks = gpu["clocks_mhz"]
    if not isinstance(ticks, str):
        ticks = ", ".join(f"{name.removeprefix('clocks.')} {value:.0f}" for name, value in ticks.items()) + " MHz"
    rows = []
    for name in gpu["update_ms_p50"][str(COUNTS[0])]:
        rows.append((f"update: {name}", *(f"{gpu['update_ms_p50'][str(count)][name]:.3f}" for count in COUNTS), ""))
    for name, by_count in gpu["step_ms_p50"].items():
        drives = " (drives)" if name == gpu["chosen"] else ""
        share = f"{100 * gpu['same_ids'][name]:.2f} %"
        rows.append((f"step: {name}{drives}", *(f"{by_count[str(count)]:.3f}" for count in COUNTS), share))
    for name, why in gpu["left_out"].items():
        rows.append((f"step: {name}", why, "", ""))
    title = (
        f"{gpu['name']}, compute capability {gpu['compute_capability']}, {gpu['memory_gb']:.0f} GB, "
        f"CUDA {gpu['cuda']}; clocks: {ticks}"
    )
    counts = (f"{count} sequence{'s' * (count > 1)}" for count in COUNTS)
    return make_table(("ms p50", *counts, "same ids"), rows, title)
