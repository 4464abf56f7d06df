"""What `bench planner` asks of torch: a device's ceilings, a frame that reuses nothing, the parts of a prefill.

And of a GPU: what it is, and what the two ways of updating ids take there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from . import ops, rollout
from .net import BLOCK, GOAL_X, TokenNet, TokenNetConfig, base, small
from .ops import EditRules
from .rollout import Decoding

COPIED_BYTES = 256 * 2**20
SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices that are multiplied
SPACED_RUNS = 7
IN_A_ROW = 20  # updates that are timed together: one alone is over before the clock is read
NANOSECONDS = 1e-9


def random_net(config: str, words: tuple[str, ...]) -> TokenNet:
    """A network of one of our sizes with weights from a seed, as bfloat16 holds them."""
    measures: TokenNetConfig = small(words) if config == "small" else base(words)
    net = TokenNet(measures)
    net.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16())
    return net.eval()


def ceilings(device: str, threads: int) -> tuple[float, float]:
    """Bytes per second that a copy moves (reads and writes together), and FLOPs per second of a float32 product."""
    torch.set_num_threads(threads)
    source = torch.zeros(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    side = SIDE[torch.device(device).type]
    a, b = (torch.rand(side, side, device=device) for _ in range(2))
    out = torch.empty_like(a)
    copied = fastest(lambda: target.copy_(source), device)
    multiplied = fastest(lambda: torch.mm(a, b, out=out), device)
    return 2 * COPIED_BYTES / copied, 2 * side**3 / multiplied


def fastest(action: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs: a ceiling is what the device can, not what it does beside other work."""
    spent = []
    for _ in range(SPACED_RUNS):
        begun = time.perf_counter_ns()
        action()
        finish(device)
        spent.append(NANOSECONDS * (time.perf_counter_ns() - begun))
    return min(spent)


def finish(device: str | torch.device) -> None:
    """Wait until a device has done what was launched on it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def without_reuse(
    net: TokenNet, tensors: tuple[Tensor, Tensor, Tensor, Tensor], decoding: Decoding, count: int, packed: bool
) -> Tensor:
    """Blocks (1, M, 16) of a full frame whose every pass computes the prompt again, pictures included.

    `packed`: once for all blocks. Else each block is a sequence of its own, with its own prompt, as it is where nothing
    is shared; the pictures are still encoded once a pass.
    """
    blocks = rollout.prefill_goal(net, *tensors, decoding.goals).blocks[:, :count]

    def logits(blocks: Tensor) -> Tensor:
        if packed:
            return net.packed_logits(*tensors, blocks)
        prompts = net.prompt(*tensors).expand(blocks.shape[1], -1, -1)
        return net.packed_beside(prompts, blocks.transpose(0, 1)).logits.transpose(0, 1)

    for limit in ops.schedule(GOAL_X, decoding.draft_rounds):
        blocks, _ = ops.unmask(blocks, logits(blocks), net.config.mask_id, limit)
    for _ in range(decoding.edit_rounds):
        blocks, _ = ops.auto_edit(blocks, logits(blocks), net.config.mask_id, decoding.edits)
    return blocks


@torch.inference_mode()
def parts_ms(
    net: TokenNet, tensors: tuple[Tensor, Tensor, Tensor, Tensor], decoding: Decoding, runs: int
) -> dict[str, float]:
    """Median milliseconds of a prefill: the pictures, the goals (heads and distances), and what lies between."""
    images, text, ego, route = tensors
    nothing = torch.full((1, 1, BLOCK), net.config.mask_id, device=images.device)
    actions: dict[str, Callable[[], object]] = {
        "vision": lambda: net.prompt(images, text, ego, route),
        "packed": lambda: net.packed(images, text, ego, route, nothing),
        "all": lambda: rollout.prefill_goal(net, images, text, ego, route, decoding.goals),
    }
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            begun = time.perf_counter_ns()
            action()
            finish(images.device)
            spent[name].append(1e-6 * (time.perf_counter_ns() - begun))
    vision, packed, whole = (median(spent[name]) for name in actions)
    return {"vision": vision, "prefill": packed - vision, "goal": whole - packed}


def has_gpu() -> bool:
    return torch.cuda.is_available()


def gpu(device: str) -> dict[str, Any]:
    """What a CUDA device says of itself; by its `uuid` other programs know it too."""
    told = torch.cuda.get_device_properties(device)
    return {
        "name": told.name,
        "uuid": f"GPU-{told.uuid}",
        "compute_capability": f"{told.major}.{told.minor}",
        "multiprocessors": told.multi_processor_count,
        "memory_gb": told.total_memory / 1e9,
        "cuda": torch.version.cuda or "",
    }


@torch.inference_mode()
def updates_ms(net: TokenNet, device: str, rules: EditRules, blocks: int, runs: int) -> dict[str, float]:
    """Median milliseconds of what follows a step's logits, launched by itself: by `token_ops`, and fused.

    `fused` is left out on a CPU, and where triton is not installed.
    """
    generator = torch.Generator().manual_seed(0)
    bins = net.config.bins
    ids = torch.randint(0, bins, (1, blocks, BLOCK), generator=generator).to(device)
    logits = torch.randn(1, blocks, BLOCK, bins, generator=generator).to(device)
    limit, edit = (torch.zeros((), dtype=kind, device=device) for kind in (torch.int64, torch.bool))
    updates: dict[str, Callable[..., object]] = {"token_ops": ops.update}
    if torch.device(device).type == "cuda" and find_spec("triton") is not None:
        from . import fused_update

        updates["fused"] = fused_update.update
    spent: dict[str, list[float]] = {name: [] for name in updates}
    for turn in range(-1, runs):  # the first compiles
        for name, update in updates.items():
            begun = time.perf_counter_ns()
            for _ in range(IN_A_ROW):
                update(ids, logits, net.config.mask_id, limit, edit, rules)
            finish(device)
            if turn >= 0:
                spent[name].append(1e-6 * (time.perf_counter_ns() - begun) / IN_A_ROW)
    return {name: median(times) for name, times in spent.items()}
