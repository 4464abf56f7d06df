"""Torch's own counter of floating-point operations."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted(action):
    plain = sdpa_kernel(SDPBackend.MATH)  # the counter does not know the fused attention of CPUs
    with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
        action()
    return counter.get_total_flops()
