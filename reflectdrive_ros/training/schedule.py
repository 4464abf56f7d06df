"""How far a run is, by steps or by the clock, and the learning rate that belongs to it."""

from __future__ import annotations

import math

from .settings import LengthConfig, OptimizerConfig

FIRST_STEPS = 50  # a warm-up by the clock is no shorter than this


def progress(length: LengthConfig, step: int, elapsed_s: float) -> float:
    """0 at the beginning, 1 at the end; a run of so many minutes ends when they are over, however slow the machine."""
    if length.minutes > 0.0:
        return min(1.0, elapsed_s / (60.0 * length.minutes))
    return min(1.0, step / length.steps)


def learning_rate(config: OptimizerConfig, at: float, step: int) -> float:
    """A straight rise over the warm-up, then half a cosine down to the final share."""
    if at < config.warmup_share or config.warmup_share == 1.0:
        return config.learning_rate * min((step + 1) / FIRST_STEPS, max(at, 1e-3) / config.warmup_share)
    along = (at - config.warmup_share) / (1.0 - config.warmup_share)
    falling = config.final_share + (1.0 - config.final_share) * 0.5 * (1.0 + math.cos(math.pi * along))
    return config.learning_rate * min((step + 1) / FIRST_STEPS, 1.0) * falling
