"""Progress of a run, by steps or by time, and its learning rate.

A run has two parts: vision pretraining, then full training. Each has its own warm-up and decay.
"""

from __future__ import annotations

import math

from .settings import OptimizerConfig, ScheduleConfig

WARMUP_FRACTION = 0.03  # of each part
FINAL_LR_FRACTION = 0.02  # of the learning rate, at the end of each part
FIRST_STEPS = 50  # a warm-up by the clock is no shorter than this


def progress(config: ScheduleConfig, step: int, elapsed_s: float) -> float:
    """0 at the beginning, 1 at the end; a run of so many minutes ends when they are over, however slow the machine."""
    if config.minutes > 0.0:
        return min(1.0, elapsed_s / (60.0 * config.minutes))
    return min(1.0, step / config.steps)


def vision_only(config: OptimizerConfig, at: float) -> bool:
    """Whether only the vision encoder is trained."""
    return at < config.vision_pretrain_fraction


def learning_rate(config: OptimizerConfig, at: float, step: int) -> float:
    """In each part of the run a straight rise over the warm-up, then half a cosine down to the final share."""
    start, ended = (
        (0.0, config.vision_pretrain_fraction) if vision_only(config, at) else (config.vision_pretrain_fraction, 1.0)
    )
    at = (at - start) / max(ended - start, 1e-9)
    if at < WARMUP_FRACTION:
        return config.learning_rate * min((step + 1) / FIRST_STEPS, max(at, 1e-3) / WARMUP_FRACTION)
    along = (at - WARMUP_FRACTION) / (1.0 - WARMUP_FRACTION)
    falling = FINAL_LR_FRACTION + (1.0 - FINAL_LR_FRACTION) * 0.5 * (1.0 + math.cos(math.pi * along))
    return config.learning_rate * min((step + 1) / FIRST_STEPS, 1.0) * falling
