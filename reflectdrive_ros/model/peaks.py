"""Peak rates of a device, for the roofline of `bench step`: bytes copied and float32 products per second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

COPY_BYTES = 256 * 2**20
MATRIX_SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices that are multiplied
RUNS = 7
NANOSECONDS = 1e-9


def measure_peaks(device: str, threads: int) -> tuple[float, float]:
    """Bytes per second that a copy moves (reads and writes together), and FLOPs per second of a float32 product.

    It also sets torch's threads.
    """
    torch.set_num_threads(threads)
    source = torch.zeros(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    side = MATRIX_SIDE[torch.device(device).type]
    a, b = (torch.rand(side, side, device=device) for _ in range(2))
    out = torch.empty_like(a)
    copy_s = fastest_s(lambda: target.copy_(source), device)
    product_s = fastest_s(lambda: torch.mm(a, b, out=out), device)
    return 2 * COPY_BYTES / copy_s, 2 * side**3 / product_s


def fastest_s(action: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs: the limit of the device without other load."""
    times_s = []
    for _ in range(RUNS):
        start_ns = time.perf_counter_ns()
        action()
        synchronize(device)
        times_s.append(NANOSECONDS * (time.perf_counter_ns() - start_ns))
    return min(times_s)


def synchronize(device: str) -> None:
    """Waits until a device has done what was launched on it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def has_gpu() -> bool:
    return torch.cuda.is_available()
