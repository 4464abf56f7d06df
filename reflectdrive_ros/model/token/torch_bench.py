"""Torch measurements of `bench planner`: limits of a device, a frame without reuse, the parts of a prefill.

And for a GPU: its properties, and the times of the two implementations of the id update.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...core.tokens import decoding_rounds
from . import ops, rollout
from .net import TokenNet, TokenNetConfig, base_config, small_config
from .ops import EditRules
from .rollout import Decoding

COPY_BYTES = 256 * 2**20
MATRIX_SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices that are multiplied
RUNS = 7
REPEATS = 20  # updates that are timed together: one alone is over before the clock is read
NANOSECONDS = 1e-9


def random_net(config: str, words: tuple[str, ...]) -> TokenNet:
    """A network of a standard size with random weights from a seed, rounded to bfloat16."""
    measures: TokenNetConfig = small_config(words) if config == "small" else base_config(words)
    net = TokenNet(measures)
    net.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16())
    return net.eval()


def measure_peaks(device: str, threads: int) -> tuple[float, float]:
    """Bytes per second that a copy moves (reads and writes together), and FLOPs per second of a float32 product."""
    torch.set_num_threads(threads)
    source = torch.zeros(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    side = MATRIX_SIDE[torch.device(device).type]
    a, b = (torch.rand(side, side, device=device) for _ in range(2))
    out = torch.empty_like(a)
    copied = fastest_s(lambda: target.copy_(source), device)
    multiplied = fastest_s(lambda: torch.mm(a, b, out=out), device)
    return 2 * COPY_BYTES / copied, 2 * side**3 / multiplied


def fastest_s(action: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs: the limit of the device without other load."""
    spent = []
    for _ in range(RUNS):
        begun = time.perf_counter_ns()
        action()
        synchronize(device)
        spent.append(NANOSECONDS * (time.perf_counter_ns() - begun))
    return min(spent)


def synchronize(device: str | torch.device) -> None:
    """Wait until a device has done what was launched on it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def full_step_uncached(
    net: TokenNet, tensors: tuple[Tensor, Tensor, Tensor, Tensor], decoding: Decoding, count: int, packed: bool
) -> Tensor:
    """Actions (1, M, T) of a full frame in which every pass computes the prompt again, including images.

    `packed`: once for all sequences. Else each sequence has its own prompt in the batch; the images are still encoded
    once per pass.
    """
    actions = rollout.prefill_sequences(net, *tensors, decoding.goals).actions[:, :count]

    def logits(actions: Tensor) -> Tensor:
        if packed:
            return net.packed_logits(*tensors, actions)
        prompts = net.prompt(*tensors).expand(actions.shape[1], -1, -1)
        return net.forward_from_prompt(prompts, actions.transpose(0, 1)).logits.transpose(0, 1)

    rounds = decoding_rounds(len(net.config.layout.free), decoding.draft_rounds, decoding.edit_rounds)
    return rollout.rollout(logits, actions, net.config.layout, rounds, decoding.edits)[-1].actions


@torch.inference_mode()
def parts_ms(
    net: TokenNet, tensors: tuple[Tensor, Tensor, Tensor, Tensor], decoding: Decoding, runs: int
) -> dict[str, float]:
    """Median milliseconds of a prefill's parts: images, goals (heads and distances) where there are any, the rest."""
    images, text, ego, route = tensors
    nothing = net.all_masked(1, images.device)
    actions: dict[str, Callable[[], object]] = {
        "vision": lambda: net.prompt(images, text, ego, route),
        "packed": lambda: net.forward_packed(images, text, ego, route, nothing),
    }
    if net.config.layout.goal:
        actions["all"] = lambda: rollout.prefill_goal(net, images, text, ego, route, decoding.goals)
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            begun = time.perf_counter_ns()
            action()
            synchronize(images.device)
            spent[name].append(1e-6 * (time.perf_counter_ns() - begun))
    vision, packed, *rest = (median(spent[name]) for name in actions)
    parts = {"vision": vision, "prefill": packed - vision}
    return {**parts, "goal": rest[0] - packed} if rest else parts


def has_gpu() -> bool:
    return torch.cuda.is_available()


def gpu_properties(device: str) -> dict[str, Any]:
    """Properties of a CUDA device; other programs identify it by `uuid`."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gb": properties.total_memory / 1e9,
        "cuda": torch.version.cuda or "",
    }


@torch.inference_mode()
def updates_ms(net: TokenNet, device: str, rules: EditRules, actions: int, runs: int) -> dict[str, float]:
    """Median milliseconds of the id update after a step's logits, launched by itself: by `ops`, and fused.

    `fused` is left out on a CPU, and without triton.
    """
    generator = torch.Generator().manual_seed(0)
    layout = net.config.layout
    ids = torch.randint(0, layout.bins, (1, actions, layout.length), generator=generator).to(device)
    logits = torch.randn(1, actions, layout.length, layout.bins, generator=generator).to(device)
    limit, edit = (torch.zeros((), dtype=kind, device=device) for kind in (torch.int64, torch.bool))
    updates: dict[str, Callable[..., object]] = {"token_ops": ops.update}
    on_gpu = torch.device(device).type == "cuda" and find_spec("triton") is not None
    if on_gpu and ops.decodes_plainly(layout):
        from . import fused_update

        updates["fused"] = fused_update.update
    spent: dict[str, list[float]] = {name: [] for name in updates}
    for turn in range(-1, runs):  # the first compiles
        for name, update in updates.items():
            begun = time.perf_counter_ns()
            for _ in range(REPEATS):
                update(ids, logits, layout, limit, edit, rules)
            synchronize(device)
            if turn >= 0:
                spent[name].append(1e-6 * (time.perf_counter_ns() - begun) / REPEATS)
    return {name: median(times) for name, times in spent.items()}
