"""What `bench planner` asks of torch: a device's ceilings, a frame that reuses nothing, the parts of a prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from . import phases, token_ops
from .phases import Decoding
from .token_net import BLOCK, GOAL_X, TokenNet, TokenNetConfig, base, small

COPIED_BYTES = 256 * 2**20
SIDE = 2048  # of the matrices that are multiplied
SPACED_RUNS = 7
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
    a, b = (torch.rand(SIDE, SIDE, device=device) for _ in range(2))
    out = torch.empty_like(a)
    copied = fastest(lambda: target.copy_(source), device)
    multiplied = fastest(lambda: torch.mm(a, b, out=out), device)
    return 2 * COPIED_BYTES / copied, 2 * SIDE**3 / multiplied


def fastest(action: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs: a ceiling is what the device can, not what it does beside other work."""
    spent = []
    for _ in range(SPACED_RUNS):
        begun = time.perf_counter_ns()
        action()
        if device != "cpu":
            torch.cuda.synchronize()
        spent.append(NANOSECONDS * (time.perf_counter_ns() - begun))
    return min(spent)


@torch.inference_mode()
def without_reuse(
    net: TokenNet, tensors: tuple[Tensor, Tensor, Tensor, Tensor], decoding: Decoding, count: int
) -> Tensor:
    """Blocks (1, M, 16) of a full frame whose every pass computes the prompt again, pictures included."""
    blocks = phases.prefill_goal(net, *tensors, decoding.goals).blocks[:, :count]
    for limit in token_ops.schedule(GOAL_X, decoding.draft_rounds):
        logits = net.packed_logits(*tensors, blocks)
        blocks, _ = token_ops.unmask(blocks, logits, net.config.mask_id, limit)
    for _ in range(decoding.edit_rounds):
        logits = net.packed_logits(*tensors, blocks)
        blocks, _ = token_ops.auto_edit(blocks, logits, net.config.mask_id, decoding.edits)
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
        "all": lambda: phases.prefill_goal(net, images, text, ego, route, decoding.goals),
    }
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            begun = time.perf_counter_ns()
            action()
            spent[name].append(1e-6 * (time.perf_counter_ns() - begun))
    vision, packed, whole = (median(spent[name]) for name in actions)
    return {"vision": vision, "prefill": packed - vision, "goal": whole - packed}
